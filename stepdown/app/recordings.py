"""Recorded patients as the screen shows them: a list, trends, and the moment that is "now".

Recordings carry no dates: time is counted in minutes of support, and shown as a clock that began
at midnight of the first of January 2000, UTC. Gaps stay gaps. Only test patients are shown, whom
no model has seen.
"""

import datetime
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepdown.app.gates import UNKNOWN
from stepdown.app.limits import PresetName
from stepdown.app.pumps import PUMPS
from stepdown.app.request import Channel, Request, parse_time
from stepdown.handover import Cohort
from stepdown.signals import HORIZON, LEVELS, NAMES, SIGNALS, STEPS

EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
HISTORY = 36  # samples of a request: six hours at one in ten minutes
LATEST = 24 * 60.0  # min after the last sample that can still be asked for


@dataclass(frozen=True)
class Stay:
    """One recorded patient on a regular grid."""

    patient: str  # pseudonym
    signals: np.ndarray  # (samples, 12), NaN where nothing was measured
    level: np.ndarray  # (samples,), UNKNOWN in a gap
    minutes: float  # between samples
    pump: str

    @property
    def last(self) -> float:
        """Minute of the newest sample."""
        return float(np.flatnonzero(self.level != UNKNOWN)[-1] * self.minutes)


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
        stays[patient] = Stay(patient, signals[:end], level[:end], cohort.minutes, pump)
    return stays


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
    end = math.floor(minute / stay.minutes + 1e-9)
    signals, level = _window(stay, end, HISTORY * round(10 / stay.minutes))
    known = np.flatnonzero(level != UNKNOWN)
    return Request(
        pump_profile=stay.pump,
        p_now=int(level[known[-1]]) if len(known) else None,
        t_end=to_iso(end * stay.minutes),
        now=to_iso(minute),
        grid_min=stay.minutes,
        channels={
            signal.name: Channel(signal.ucum, tuple(_value(x) for x in signals[:, i]))
            for i, signal in enumerate(SIGNALS)
        },
        p_levels=tuple(None if x == UNKNOWN else int(x) for x in level),
        horizon_h=horizon_h,
        candidates=LEVELS,
        limits=limits,
    )


def _window(stay: Stay, end: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` samples up to and with `end`; empty where the recording has none."""
    place = np.arange(end - count + 1, end + 1)
    inside = (place >= 0) & (place < len(stay.level))
    index = np.clip(place, 0, len(stay.level) - 1)
    signals = np.where(inside[:, None], stay.signals[index], np.nan)
    return signals, np.where(inside, stay.level[index], UNKNOWN)


def _value(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def trends(stay: Stay, minute: float, hours: float) -> dict[str, Any]:
    """Samples up to a moment, gaps as None, with the level in force at each."""
    end = math.floor(minute / stay.minutes + 1e-9)
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
            signal.name: {
                "label": signal.label,
                "unit": signal.unit,
                "ucum": signal.ucum,
                "values": [_rounded(x, signal.unit) for x in signals[:, i]],
            }
            for i, signal in enumerate(SIGNALS)
        },
        "marks": [],
        "waveform": None,
        "not_recorded": ["suction and position messages", "waveforms"],
    }


def _rounded(x: float, unit: str) -> float | None:
    digits = 2 if unit in ("L/min", "mmHg/mL") else 1
    return round(float(x), digits) if np.isfinite(x) else None


def patient_row(stay: Stay, minute: float) -> dict[str, Any]:
    """A line of the patient list; what needs a model is added by the server."""
    end = math.floor(minute / stay.minutes + 1e-9)
    seen = np.flatnonzero(stay.level[: end + 1] != UNKNOWN)
    _, level = _window(stay, end, STEPS * round(10 / stay.minutes))
    known = level[level != UNKNOWN]
    return {
        "patient": stay.patient,
        "pump_profile": stay.pump,
        "pump_label": PUMPS[stay.pump].label,
        "p_now": int(known[-1]) if len(known) else None,
        "hours_on_support": round(minute / 60, 1),
        "recorded_hours": round(stay.last / 60, 1),
        "now": to_iso(minute),
        "minute": minute,
        "age_min": round(minute - seen[-1] * stay.minutes, 1) if len(seen) else None,
    }


def quality(stay: Stay, minute: float) -> dict[str, Any]:
    """By channel: unit, ranges, what is missing, out of range or standing still, up to a moment."""
    end = math.floor(minute / stay.minutes + 1e-9)
    past, level = stay.signals[: end + 1], stay.level[: end + 1]
    hour, _ = _window(stay, end, STEPS * round(10 / stay.minutes))
    channels = {}
    for index, signal in enumerate(SIGNALS):
        values = past[:, index]
        known = np.isfinite(values)
        out = known & ((values < signal.hard[0]) | (values > signal.hard[1]))
        odd = known & ~out & ((values < signal.soft[0]) | (values > signal.soft[1]))
        channels[signal.name] = {
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
            "flat_stretches": _flat_stretches(values, stay.minutes)
            if signal.name != "speed"
            else 0,
        }
    return {
        "patient": stay.patient,
        "now": to_iso(minute),
        "minute": minute,
        "chip": _chip(channels),
        "clock": {"grid_min": stay.minutes, "regular": True, "dates": "not recorded"},
        "gaps": int(np.sum(np.diff(np.concatenate([[0], level == UNKNOWN]).astype(int)) == 1)),
        "channels": channels,
        "excluded": _excluded(channels),
    }


def _flat_stretches(values: np.ndarray, minutes: float) -> int:
    """Stretches of half an hour or longer with one value; whole numbers are not counted."""
    span = math.ceil(30 / minutes)
    known = values[np.isfinite(values)]
    if len(values) <= span or (known == np.round(known)).all():
        return 0
    same = np.concatenate([[False], values[1:] == values[:-1], [False]])
    ends = np.flatnonzero(np.diff(same.astype(int)))
    return int(np.sum(ends[1::2] - ends[::2] >= span))


def _chip(channels: dict[str, Any]) -> str:
    """One word for the screen."""
    if any(channels[name]["missing_last_hour"] > 0.2 for name in ("map", "hr", "pulsatility")):
        return "poor"
    odd = any(
        one["outside_hard"] or one["flat_stretches"] or one["missing_last_hour"]
        for one in channels.values()
    )
    return "check" if odd else "good"


def _excluded(channels: dict[str, Any]) -> list[str]:
    found = []
    for name in NAMES:
        one = channels[name]
        if one["outside_hard"]:
            found.append(f"{one['label']}: {one['outside_hard']} values outside the hard range.")
        if one["flat_stretches"]:
            found.append(f"{one['label']}: {one['flat_stretches']} stretches standing still.")
    return found
