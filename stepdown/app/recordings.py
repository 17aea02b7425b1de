"""A finished run as the app shows it: verified models, and test patients at the moment "now".

Recordings carry no dates: time is counted in minutes of support, and shown as a clock that began
at midnight of the first of January 2000, UTC. Gaps stay gaps. Only test patients are shown, whom
no model has seen.
"""

import csv
import datetime
import hashlib
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepdown import __version__
from stepdown.app.engine import DRAWS, MOST, Engine, make_support
from stepdown.app.gates import HELD, UNKNOWN, odd_values
from stepdown.app.limits import GateConfig, PresetName
from stepdown.app.request import PUMPS, Channel, Request, parse_time, pump_of_table, rounded
from stepdown.artifacts import MANIFEST, ArtifactError, check_folder
from stepdown.guardian.guardians import load_guardian
from stepdown.handover import Cohort
from stepdown.policies.saved import load_policy
from stepdown.problem.hours import make_transitions
from stepdown.records.split import (
    Parts,
    read_note,
    read_parts,
    read_profile,
    require_same_split,
)
from stepdown.signals import FURTHER, HORIZON, KNOWN, LEVELS, MARKS, NAMES, REQUIRED
from stepdown.twin.twins import load_twin

TABLES = ("twin", "guardian", "risks")  # of a run, shown in the model card where they are
EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
HISTORY = 6  # hours of a request
OLDEST = 24.0  # h after which a further value is no longer shown as one of now
WATT = 451.0  # mmHg L/min in a watt of cardiac power
LATEST = 24 * 60.0  # min after the last sample that can still be asked for


@dataclass(frozen=True)
class Stay:
    """One recorded patient on a regular grid."""

    patient: str  # pseudonym
    signals: np.ndarray  # (samples, columns), NaN where nothing was measured
    level: np.ndarray  # (samples,), UNKNOWN in a gap
    minutes: float  # between samples
    pump: str
    columns: tuple[str, ...]  # of signals.KNOWN

    @property
    def last(self) -> float:
        """Minute of the newest sample."""
        return float(np.flatnonzero(self.level != UNKNOWN)[-1] * self.minutes)


@dataclass(frozen=True)
class Loaded:
    """What a run folder holds for the app."""

    engine: Engine
    stays: dict[str, Stay]  # test patients, who are shown
    fitted_on: dict[str, Stay]  # train patients, for the card alone
    card: dict[str, Any]


def load_run(run: Path, draws: int = DRAWS) -> Loaded:
    """Verify every file of a run, then load what an answer needs; damage is an ArtifactError."""
    check_run(run)
    parts, stays = load_recordings(run)
    for kind in _kinds(run)[1:]:
        require_same_split(read_note(run / kind, kind), parts, run / kind)
    twin, twin_config = load_twin(run / "twin")
    guardian, saved = load_guardian(run / "guardian")
    policy, known = load_policy(run / "policy") if "policy" in _kinds(run) else (None, None)
    scaler = guardian.density.pairs.scaler
    for kind, history in (("twin", twin.history), ("policy", known.history if known else 1)):
        require_one_hour(run / kind, history)
    if abs(twin.steps * parts.test.minutes - 60) > 1e-6:
        raise ArtifactError(
            f"{run}: expected a twin of one hour, got {twin.steps} samples of "
            f"{parts.test.minutes:g} min. Fit it on hours."
        )
    if known and known.steps != twin.steps:
        raise ArtifactError(
            f"{run / 'policy'}: expected a policy of {twin.steps} samples, got {known.steps}."
        )
    columns = {"twin": twin.scaler.columns, "guardian": scaler.columns}
    _check_columns(run, parts, columns | ({"policy": known.columns} if known else {}))
    train, select = make_transitions(parts.train), make_transitions(parts.select)
    engine = Engine(
        twin=twin,
        guardian=guardian,
        support=make_support(train, select, scaler, parts.train.patient),
        table=read_profile(run / "cohort", None),
        model=_identity(run),
        draws=draws,
        most=MOST * draws // DRAWS,
        policy=policy,
        method=known.method if known else None,
        read_by_policy=known.present if known else (),
    )
    card = {
        **engine.model,
        "signals": engine.names,
        "patients": {x.role: len(x.patient) for x in (parts.train, parts.select, parts.test)},
        "similar_radius": round(engine.support.radius, 2),
        "draws": draws,
        "policy": engine.method,
        "tables": {name: _table(run / "tables" / f"{name}.csv") for name in TABLES},
        "twin": twin_config.kind.name,
        "guardian": saved.density,
        "hours": {"train": len(train.level), "select": len(select.level)},
        "guardian_holds_patient_data": saved.contains_patient_data,
    }
    return Loaded(engine, stays, read_stays(parts.train, pump_of_table(engine.table)), card)


def require_one_hour(path: Path, history: int) -> None:
    """Refuse a model that reads more than the last hour: an answer here begins with one hour."""
    if history > 1:
        raise ArtifactError(
            f"{path}: expected a {path.name} that reads one hour, as the app asks about, got one "
            f"that reads {history} h. Fit it with a history of 1."
        )


def _check_columns(run: Path, parts: Parts, columns: dict[str, tuple[str, ...]]) -> None:
    """Refuse a model that was fitted on other columns than the recordings have."""
    for kind, found in columns.items():
        if found != parts.test.columns:
            raise ArtifactError(
                f"{run / kind}: expected a {kind} of the columns of the cohort, "
                f"{', '.join(parts.test.columns)}, got {', '.join(found)}. Fit it on this cohort."
            )


def check_run(run: Path) -> None:
    """Refuse a run that is not whole; folders made by hand are checked part by part."""
    if (run / MANIFEST).is_file():
        check_folder(run, "run")
    for kind in _kinds(run):
        check_folder(run / kind, kind)


def _kinds(run: Path) -> tuple[str, ...]:
    """Parts of a run that the app reads; a policy need not be there."""
    kinds = ("cohort", "twin", "guardian")
    return (*kinds, "policy") if (run / "policy").is_dir() else kinds


def _identity(run: Path) -> dict[str, Any]:
    """Version and digests: of the twin, of the guardian, and of both together."""
    seals = {
        kind: json.loads((run / kind / MANIFEST).read_bytes())["sha256"] for kind in _kinds(run)
    }
    joint = hashlib.sha256("".join(seals.values()).encode()).hexdigest()
    return {"version": __version__, "sha256": joint, "parts": seals}


def _table(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def load_recordings(run: Path) -> tuple[Parts, dict[str, Stay]]:
    """The split cohort of a run, and its test patients."""
    parts = read_parts(run / "cohort")
    table = read_profile(run / "cohort", None)
    return parts, read_stays(parts.test, pump_of_table(table))


def read_stays(cohort: Cohort, pump: str) -> dict[str, Stay]:
    """The stays of a cohort by pseudonym."""
    stays = {}
    for row, patient in enumerate(cohort.patient):
        seen = np.asarray(cohort.seen[row])
        if not seen.any():
            continue
        signals = np.where(seen[:, None], np.asarray(cohort.signals[row], float), np.nan)
        level = np.where(seen, np.asarray(cohort.level[row]), UNKNOWN)
        end = np.flatnonzero(seen)[-1] + 1
        stays[patient] = Stay(
            patient, signals[:end], level[:end], cohort.minutes, pump, cohort.columns
        )
    return stays


# ── one patient at a moment ───────────────────────────────────────────────────────────────────────


def to_iso(minute: float) -> str:
    """A minute of support as a time on the recording's clock."""
    return (EPOCH + datetime.timedelta(minutes=minute)).isoformat()


def to_minute(at: str | None, stay: Stay) -> float:
    """The chosen moment: an ISO time, a minute of support, or by default the newest sample."""
    if at is None:
        return stay.last
    try:
        minute = float(at)
    except ValueError:
        # In a query a "+" is a blank, so that zones arrive with one.
        minute = (parse_time(at.replace(" ", "+"), "at") - EPOCH).total_seconds() / 60
    if not 0 <= minute <= stay.last + LATEST:
        raise ValueError(
            f"at: expected a moment of the recording, {to_iso(0)} to {to_iso(stay.last)}."
        )
    return minute


def request_at(
    stay: Stay, minute: float, horizon_h: int = HORIZON, limits: PresetName | None = None
) -> Request:
    """What a bedside would have asked at this moment: nothing after it is looked at."""
    end = _place(stay, minute)
    signals, level = _window(stay, end, _samples(stay, HISTORY))
    known = np.flatnonzero(level != UNKNOWN)
    return Request(
        pump_profile=stay.pump,
        p_now=int(level[known[-1]]) if len(known) else None,
        t_end=to_iso(end * stay.minutes),
        now=to_iso(minute),
        grid_min=stay.minutes,
        channels={
            name: Channel(
                KNOWN[name].ucum, tuple(float(x) if np.isfinite(x) else None for x in signals[:, i])
            )
            for i, name in enumerate(stay.columns)
        },
        p_levels=tuple(None if x == UNKNOWN else int(x) for x in level),
        horizon_h=horizon_h,
        candidates=LEVELS,
        alarms=tuple(x for x in MARKS if _is_reported(stay, signals, x)),
        limits=limits,
    )


def _is_reported(stay: Stay, signals: np.ndarray, mark: str) -> bool:
    """Whether the newest word of the last hour about suction or position is that it was so."""
    if mark not in stay.columns:
        return False
    told = signals[-_samples(stay, 1) :, stay.columns.index(mark)]
    known = told[np.isfinite(told)]
    return bool(len(known) and known[-1] > 0)


def _place(stay: Stay, minute: float) -> int:
    """Where the newest sample of a moment stands in the recording."""
    return math.floor(minute / stay.minutes + 1e-9)


def _samples(stay: Stay, hours: int) -> int:
    return round(60 * hours / stay.minutes)


def _window(stay: Stay, end: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` samples up to and with `end`; empty where the recording has none."""
    place = np.arange(end - count + 1, end + 1)
    inside = (place >= 0) & (place < len(stay.level))
    index = np.clip(place, 0, len(stay.level) - 1)
    signals = np.where(inside[:, None], stay.signals[index], np.nan)
    return signals, np.where(inside, stay.level[index], UNKNOWN)


def trends(stay: Stay, minute: float, hours: float) -> dict[str, Any]:
    """Samples up to a moment, gaps as None, with the level in force at each."""
    end = _place(stay, minute)
    count = math.floor(hours * 60 / stay.minutes) + 1
    signals, level = _window(stay, end, count)
    at = [(end - count + 1 + i) * stay.minutes for i in range(count)]
    return {
        "patient": stay.patient,
        "now": to_iso(minute),
        "minute": minute,
        "grid_min": stay.minutes,
        "minutes": at,
        "times": [to_iso(m) for m in at],
        "p_levels": [None if x == UNKNOWN else int(x) for x in level],
        "channels": {
            name: {
                "label": KNOWN[name].label,
                "unit": KNOWN[name].unit,
                "ucum": KNOWN[name].ucum,
                "values": [rounded(x, KNOWN[name].unit) for x in signals[:, i]],
            }
            for i, name in enumerate(stay.columns)
            if name not in MARKS
        },
        "marks": [
            {"minute": at[row], "kind": name, "words": KNOWN[name].label}
            for name in MARKS
            if name in stay.columns
            for row in np.flatnonzero(signals[:, stay.columns.index(name)] > 0)
        ],
        "waveform": None,
        "not_recorded": [
            *(f"{name} messages" for name in MARKS if name not in stay.columns),
            "waveforms",
        ],
    }


def patient_row(stay: Stay, minute: float) -> dict[str, Any]:
    """A line of the patient list; what needs a model is added by the server."""
    end = _place(stay, minute)
    seen = np.flatnonzero(stay.level[: end + 1] != UNKNOWN)
    _, level = _window(stay, end, _samples(stay, 1))
    known = level[level != UNKNOWN]
    return {
        "patient": stay.patient,
        "pump_profile": stay.pump,
        "pump_label": PUMPS[stay.pump].label,
        "pump_highest": PUMPS[stay.pump].highest,
        "p_now": int(known[-1]) if len(known) else None,
        "hours_on_support": round(minute / 60, 1),
        "recorded_hours": round(stay.last / 60, 1),
        "now": to_iso(minute),
        "minute": minute,
        "age_min": round(minute - seen[-1] * stay.minutes, 1) if len(seen) else None,
        "further": further_now(stay, minute),
    }


def further_now(stay: Stay, minute: float) -> list[dict[str, Any]]:
    """The newest value of what only some places record, with its age, whether or not it is used.

    PAPi and CPO are computed where they were not recorded but what they are made of was.
    """
    end, found = _place(stay, minute), {}
    for name in ("map", *(signal.name for signal in FURTHER)):
        if name not in stay.columns:
            continue
        values = stay.signals[: end + 1, stay.columns.index(name)]
        known = np.flatnonzero(np.isfinite(values))
        if len(known) and minute - known[-1] * stay.minutes <= 60 * OLDEST:
            found[name] = float(values[known[-1]]), minute - known[-1] * stay.minutes
    for name, (parts, made) in _DERIVED.items():
        if name not in found and set(parts) <= set(found):
            value = made(*(found[part][0] for part in parts))
            if math.isfinite(value):
                found[name] = value, max(found[part][1] for part in parts)
    return [
        {
            "name": signal.name,
            "label": signal.label,
            "unit": signal.unit,
            "value": round(found[signal.name][0], 2),
            "digits": 2 if signal.soft[1] <= 20 else 0,
            "age_min": round(found[signal.name][1], 1),
        }
        for signal in FURTHER
        if signal.name in found and (signal.name not in MARKS or found[signal.name][0] > 0)
    ]


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0 else math.nan


_DERIVED = {  # by name: what it is made of, and how
    "papi": (("pas", "pad", "cvp"), lambda high, low, venous: _ratio(high - low, venous)),
    "cpo": (("map", "co"), lambda pressure, output: pressure * output / WATT),
}


def quality(stay: Stay, minute: float, gates: GateConfig) -> dict[str, Any]:
    """By channel: unit, ranges, what is missing, out of range or standing still, up to a moment."""
    end = _place(stay, minute)
    past, level = stay.signals[: end + 1], stay.level[: end + 1]
    hour, _ = _window(stay, end, _samples(stay, 1))
    channels = {}
    for index, name in enumerate(stay.columns):
        signal, values = KNOWN[name], past[:, index]
        known = np.isfinite(values)
        out = known & ((values < signal.hard[0]) | (values > signal.hard[1]))
        odd = known & ~out & ((values < signal.soft[0]) | (values > signal.soft[1]))
        channels[name] = {
            "label": signal.label,
            "unit": signal.unit,
            "ucum": signal.ucum,
            "hard_range": list(signal.hard),
            "soft_range": list(signal.soft),
            "samples": len(values),
            "missing_share": round(float(1 - known.mean()), 4) if len(values) else None,
            "missing_last_hour": round(float(np.isnan(hour[:, index]).mean()), 2),
            "outside_hard": int(out.sum()),
            "outside_soft": int(odd.sum()),
            "flat_stretches": 0 if name in HELD else _flat_stretches(values, stay.minutes, gates),
        }
    odd = list(odd_values(hour).values())
    return {
        "patient": stay.patient,
        "now": to_iso(minute),
        "minute": minute,
        "chip": "check" if odd and _chip(channels, gates) == "good" else _chip(channels, gates),
        "odd": odd,
        "clock": {"grid_min": stay.minutes, "regular": True, "dates": "not recorded"},
        "gaps": int(np.sum(np.diff(np.concatenate([[0], level == UNKNOWN]).astype(int)) == 1)),
        "channels": channels,
        "excluded": _excluded(channels),
    }


def _flat_stretches(values: np.ndarray, minutes: float, gates: GateConfig) -> int:
    """Stretches with one value that are too long (R03); whole numbers are not counted.

    Charted rows, farther apart than such a stretch is long, say nothing about what was between.
    """
    if minutes >= gates.flat:
        return 0
    span = math.ceil(gates.flat / minutes)
    known = values[np.isfinite(values)]
    if len(values) <= span or (known == np.round(known)).all():
        return 0
    same = np.concatenate([[False], values[1:] == values[:-1], [False]])
    ends = np.flatnonzero(np.diff(same.astype(int)))
    return int(np.sum(ends[1::2] - ends[::2] >= span))


def _chip(channels: dict[str, Any], gates: GateConfig) -> str:
    """One word for the screen."""
    if any(channels[NAMES[i]]["missing_last_hour"] > gates.missing for i in REQUIRED):
        return "poor"
    odd = any(
        one["outside_hard"] or one["flat_stretches"] or one["missing_last_hour"]
        for one in channels.values()
        if one["missing_share"] != 1.0  # never recorded is absent, not lost
    )
    return "check" if odd else "good"


def _excluded(channels: dict[str, Any]) -> list[str]:
    found = []
    for one in channels.values():
        if one["outside_hard"]:
            found.append(f"{one['label']}: {one['outside_hard']} values outside the hard range.")
        if one["flat_stretches"]:
            found.append(f"{one['label']}: {one['flat_stretches']} stretches standing still.")
    return found
