"""The words of an answer: what is measured now, why it is refused, why a level is acceptable."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepdown.app.candidates import Shared, count_words
from stepdown.app.engine import Engine
from stepdown.app.forecast import JUDGED, Outlook
from stepdown.app.gates import LV_FROM, UNKNOWN, gate_wish, has_gap, inside_limits
from stepdown.app.limits import Limits
from stepdown.app.pumps import PUMPS
from stepdown.app.refusals import CODES, GATES, LV_END, STATE_CODES, refusal
from stepdown.app.request import Read
from stepdown.app.units import suspect_units
from stepdown.signals import HORIZON, HR, LEVELS, MAP, NAMES, PULSATILITY, REQUIRED, SIGNALS

_NAMES = {MAP: "MAP", HR: "HR", PULSATILITY: "pulsatility"}
_DIGITS = {"L/min": 2, "mmHg/mL": 2}


def now_table(read: Read, limits: Limits) -> dict[str, Any]:
    """The newest sample of every signal that came, and its lowest in the hour; None is missing."""
    hour, bounds, table = read.bed.signals, limits.bounds(), {}
    for index, signal in enumerate(SIGNALS):
        column = hour[:, index]
        known = column[np.isfinite(column)]
        low, high = bounds.get(index, (-np.inf, np.inf))
        table[signal.name] = {
            "value": _number(column[-1], signal.unit),
            "unit": signal.unit,
            "ucum": signal.ucum,
            "lowest": _number(known.min(), signal.unit) if len(known) else None,
            "highest": _number(known.max(), signal.unit) if len(known) else None,
            "trend": _trend(column, signal.unit),
            "inside": bool(((known > low) & (known < high)).all()) if index in bounds else None,
            "converted": read.converted.get(signal.name),
        }
    return table


def _trend(column: np.ndarray, unit: str) -> float | None:
    """Change over the hour by a straight line."""
    place = np.flatnonzero(np.isfinite(column) & (np.abs(column) < 1e6))
    if len(place) < 3:
        return None
    slope = np.polyfit(place, column[place], 1)[0]
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
        "R02": lambda: _named(read, _lacking(read, engine, REQUIRED), "is missing in the hour"),
        "R04": lambda: _named(read, _outside(read), "lies outside its range"),
        "R05": lambda: _unit_detail(read),
        "R07": lambda: _level_detail(read, engine),
        "R09": lambda: _named(read, _lacking(read, engine, engine.used), "is missing in the hour"),
    }
    found = []
    for code, held in zip(STATE_CODES, refused, strict=True):
        if held:
            about, words = details[code]() if code in details else (None, "")
            sentence = f"{CODES[code].sentence} {words}".strip()
            found.append(refusal(code, sentence, about))
    return found


def _named(read: Read, columns: Sequence[int], what: str) -> tuple[str | None, str]:
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


def _unit_detail(read: Read) -> tuple[str | None, str]:
    if read.undeclared:
        label = SIGNALS[NAMES.index(read.undeclared[0])].label
        return read.undeclared[0], f"{label} has no unit that fits it."
    return _named(
        read,
        [int(i) for i in np.flatnonzero(suspect_units(read.bed.signals, read.factors))],
        "fits another unit",
    )


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


def refused_reasons(codes: Sequence[str]) -> list[str]:
    """Why there is no suggestion."""
    return ["No forecast and no suggestion.", *(CODES[code].sentence for code in codes)]


def reasons_for(shared: Shared, limits: Limits, suggested: int) -> list[str]:
    """Why these levels are acceptable, and why others are not; never empty."""
    bed, draws = shared.read.bed, shared.engine.draws
    lowest = {i: np.nanmin(bed.signals[:, i]) for i in JUDGED}
    told = ", ".join(f"{_NAMES[i]} >= {lowest[i]:.0f}" for i in JUDGED)
    stable = inside_limits(bed.signals, limits)
    hours = _stable_hours(shared.read, limits)
    reasons = []
    if has_gap(bed.signals, shared.engine.used):
        reasons.append(f"{GATES['H5']} No change is suggested.")
    if stable:
        reasons.append(f"Inside the limits for {_hours(hours)} (last hour: {told}).")
    else:
        reasons.append(f"Outside the limits in the last hour ({told}): no step down.")
    if suggested > 0:
        i = suggested - LEVELS[0]
        pressure = int(shared.outlook.crossing[i, JUDGED.index(MAP)])
        reasons += [
            f"P-{suggested}: {count_words(pressure, draws)} cross MAP {limits.map_low:g} "
            f"within {HORIZON} h.",
            f"{int(shared.similar[i])} similar patient-hours at P-{suggested}.",
        ]
    else:
        reasons.append(
            "Nothing is suggested: each level is refused, out of reach, or leaves the limits in "
            f"more than {100 * shared.engine.gates.risk:.0f} % of the simulated courses."
        )
    low = [p for p in LEVELS if p < LV_FROM and shared.good[p - LEVELS[0]]]
    return [*reasons, LV_END] if low else reasons


def policy_wish(engine: Engine, outlook: Outlook, good: np.ndarray) -> dict[str, Any] | None:
    """What the learned policy of the run would choose, and whether the gates leave it that."""
    if engine.policy is None:
        return None
    wish = LEVELS[int(np.argmax(outlook.preference))]
    kept = int(gate_wish(np.asarray(wish), good)) == wish
    verdict = "which is acceptable" if kept else "which is not acceptable here"
    words = f"The learned policy ({engine.method}) would choose P-{wish}, {verdict}."
    return {"method": engine.method, "wish": wish, "acceptable": kept, "words": words}


def _stable_hours(read: Read, limits: Limits) -> int:
    """Whole hours in a row, back from now, inside the limits."""
    steps, count = len(read.bed.signals), 0
    while (count + 1) * steps <= len(read.signals):
        end = len(read.signals) - count * steps
        if not inside_limits(read.signals[end - steps : end], limits):
            break
        count += 1
    return count


def _hours(count: int) -> str:
    return "the last hour" if count <= 1 else f"{count} h"
