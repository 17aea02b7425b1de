"""The words of an answer: what is measured now, and why a state is refused."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepdown.app.engine import Engine
from stepdown.app.gates import UNKNOWN
from stepdown.app.limits import Limits
from stepdown.app.pumps import PUMPS
from stepdown.app.refusals import CODES, STATE_CODES, refusal
from stepdown.app.request import Read
from stepdown.app.units import suspect_units
from stepdown.signals import NAMES, REQUIRED, SIGNALS

_DIGITS = {"L/min": 2, "mmHg/mL": 2}


def now_table(read: Read, limits: Limits) -> dict[str, Any]:
    """The newest sample of every signal that came, and its lowest in the hour; None is missing."""
    hour, bounds, table = read.bed.signals, limits.bounds(), {}
    for index, signal in enumerate(SIGNALS):
        column = hour[:, index]
        known = column[np.isfinite(column)]
        table[signal.name] = {
            "value": _number(column[-1], signal.unit),
            "unit": signal.unit,
            "ucum": signal.ucum,
            "lowest": _number(known.min(), signal.unit) if len(known) else None,
            "highest": _number(known.max(), signal.unit) if len(known) else None,
            "trend": _trend(column, signal.unit),
            "inside": _inside(column, *bounds[index]) if index in bounds else None,
            "converted": read.converted.get(signal.name),
        }
    return table


def _inside(column: np.ndarray, low: float, high: float) -> bool | None:
    """Whether the hour lay inside; None where a missing sample leaves that open."""
    if ((column <= low) | (column >= high)).any():
        return False
    return None if np.isnan(column).any() else True


def _trend(column: np.ndarray, unit: str) -> float | None:
    """Change over the hour by a straight line."""
    place = np.flatnonzero(np.isfinite(column) & (np.abs(column) < 1e6))
    if len(place) < 3:
        return None
    away = place - place.mean()
    slope = away @ column[place] / (away @ away)
    return _number(slope * (len(column) - 1), unit)


def _number(value: float | np.floating, unit: str) -> float | None:
    return round(float(value), _DIGITS.get(unit, 1)) if np.isfinite(value) else None


def quality_notes(read: Read, filled: Sequence[str], used: Sequence[int]) -> dict[str, Any]:
    """What was converted, carried over for the models, missing, or not looked at."""
    missing = np.isnan(read.bed.signals).mean(0)
    return {
        "converted": read.converted,
        "carried_over": list(filled),
        "missing": {NAMES[i]: round(float(missing[i]), 2) for i in used if missing[i] > 0},
        "not_used": [name for i, name in enumerate(NAMES) if i not in used],
        "age_min": None if np.isnan(read.bed.age) else round(float(read.bed.age), 1),
    }


def state_sentences(read: Read, refused: np.ndarray, engine: Engine) -> list[dict[str, Any]]:
    """The refusals of a state with what exactly is the matter."""
    details = {
        "R02": lambda: _named(_lacking(read, engine, REQUIRED), "is missing in the hour"),
        "R04": lambda: _range_detail(read),
        "R05": lambda: _unit_detail(read),
        "R07": lambda: _level_detail(read, engine),
        "R09": lambda: _named(_lacking(read, engine, engine.used), "is missing in the hour"),
    }
    found = []
    for code, held in zip(STATE_CODES, refused, strict=True):
        if held:
            about, words = details[code]() if code in details else (None, "")
            sentence = f"{CODES[code].sentence} {words}".strip()
            found.append(refusal(code, sentence, about))
    return found


def _named(columns: Sequence[int], what: str) -> tuple[str | None, str]:
    if not columns:
        return None, ""
    return NAMES[columns[0]], f"{', '.join(SIGNALS[i].label for i in columns)} {what}."


def _lacking(read: Read, engine: Engine, columns: Sequence[int]) -> list[int]:
    share = np.isnan(read.bed.signals).mean(0)
    return [i for i in columns if share[i] > engine.gates.missing]


def _outside(read: Read) -> list[int]:
    found = []
    for index, signal in enumerate(SIGNALS):
        values = read.bed.signals[:, index]
        if ((values < signal.hard[0]) | (values > signal.hard[1])).any():
            found.append(index)
    return found


def _range_detail(read: Read) -> tuple[str | None, str]:
    found = _outside(read)
    if not found:
        return None, ""
    told = []
    for index in found:
        signal = SIGNALS[index]
        low, high = signal.hard
        told.append(f"{signal.label} lies outside {low:g} to {high:.0f} {signal.unit}")
    return NAMES[found[0]], f"{', '.join(told)}."


def _unit_detail(read: Read) -> tuple[str | None, str]:
    if read.undeclared:
        label = SIGNALS[NAMES.index(read.undeclared[0])].label
        return read.undeclared[0], f"{label} has no unit that fits it."
    found = np.flatnonzero(suspect_units(read.bed.signals, read.factors))
    told = [f"{SIGNALS[i].label} does not look like {SIGNALS[i].unit}" for i in found]
    return (NAMES[found[0]], f"{', '.join(told)}.") if told else (None, "")


def _level_detail(read: Read, engine: Engine) -> tuple[str | None, str]:
    bed = read.bed
    if bed.highest == 0:
        known = [pump.label for pump in PUMPS.values() if pump.table == engine.table]
        return "pump", f"The models know {' and '.join(known)}."
    if bed.level == UNKNOWN:
        return "level", "No P-level was given."
    if bed.speed_level not in (UNKNOWN, bed.level):
        return "level", f"P-{bed.level} was given; the speed is that of P-{bed.speed_level}."
    return "level", f"P-{bed.level} is none of P-2 to P-{bed.highest}."
