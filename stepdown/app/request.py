"""What is asked: one moment of one patient, as JSON says it, and as arrays in our units.

The arrays are as measured: nothing is filled in here. Only the state for the models carries a
single missing sample forward (docs/definitions.md), and the answer says so.
"""

import datetime
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepdown.app.gates import UNKNOWN, Bedside
from stepdown.app.limits import PresetName
from stepdown.patients.pump import PumpProfile, level_of_speed, load_profile, profile_names
from stepdown.records.mapping import QUANTITIES, UNITS
from stepdown.signals import HIGHEST, HORIZON, KNOWN, LEVEL, LEVELS, LOWEST, REQUIRED, SPEED, STEPS

LONGEST = 72  # samples of a request
_YEARS = range(1990, 2090)  # others are a clock that was never set
_UCUM = {"cm[H2O]": "cmH2O", "1000/min": "krpm", "10*3/min": "krpm"}  # beside our own units
_DIGITS = {"L/min": 2, "mmHg/mL": 2, "µg/kg/min": 3}  # of other units one


@dataclass(frozen=True)
class Channel:
    """One signal of a request; None where nothing was measured."""

    unit: str | None
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Request:
    """One moment of one patient; the last samples of the channels are the hour before it."""

    pump_profile: str | None
    p_now: int | None
    t_end: str  # time of the last sample, ISO 8601 with a zone
    channels: Mapping[str, Channel]  # by names of the run's columns
    now: str | None = None  # the chosen moment; None: the time of the last sample
    grid_min: float = 10.0
    candidates: tuple[int, ...] = LEVELS
    horizon_h: int = HORIZON  # of the curves; risks always look six hours ahead
    p_levels: tuple[int | None, ...] | None = None  # level in force at each sample
    alarms: tuple[str, ...] = ()
    limits: PresetName | None = None  # None: those of the server; the most restrictive wins

    def __post_init__(self):
        lengths = {len(channel.values) for channel in self.channels.values()}
        lengths |= {len(self.p_levels)} if self.p_levels is not None else set()
        if len(lengths) > 1 or not all(1 <= n <= LONGEST for n in lengths):
            raise ValueError(
                f"channels: expected 1 to {LONGEST} samples, as many in each, "
                f"got {sorted(lengths)}."
            )
        parse_time(self.t_end, "t_end")
        if self.now is not None:
            parse_time(self.now, "now")


def parse_time(text: str, name: str) -> datetime.datetime:
    """A moment with a zone."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(f"{name}: expected a time with a zone, such as 2000-01-02T14:20:00+00:00.")
    return moment


def request_from_dict(table: Mapping[str, Any], columns: tuple[str, ...]) -> Request:
    """A request out of JSON that has the right types, such as that of `asdict(request)`.

    Channels are some of these columns, and may be in capitals.
    """
    channels = {
        name.lower(): Channel(one["unit"], tuple(one["values"]))
        for name, one in table["channels"].items()
    }
    if len(channels) < len(table["channels"]):
        raise ValueError("channels: expected each name once.")
    for name in channels:
        if name not in columns:
            raise ValueError(f"channels: expected {', '.join(columns)}, got {name[:32]!r}.")
    rest = {name: value for name, value in table.items() if name != "channels"}
    for name in ("candidates", "p_levels", "alarms"):
        if rest.get(name) is not None:
            rest[name] = tuple(rest[name])
    return Request(channels=channels, **rest)


@dataclass(frozen=True)
class Read:
    """A request as arrays; `bed` has no likeness yet."""

    bed: Bedside
    signals: np.ndarray  # (samples, columns), all that came, our units
    levels: np.ndarray  # (samples,), UNKNOWN where not told
    factors: np.ndarray  # (columns,), what they were multiplied with
    converted: dict[str, str]  # signal -> declared unit, where that is not ours
    undeclared: tuple[str, ...]  # signals without a unit that fits them


def read_request(
    request: Request, steps: int, table: str, columns: tuple[str, ...], used: Sequence[int]
) -> Read:
    """Convert units, place the samples on the grid, and read the level off the speed.

    `table` is the profile that the models were fitted on; another pump is unknown to them.
    `used` are those of the columns that they read; the others are not looked at.
    """
    lengths = [len(one.values) for one in request.channels.values()]
    signals = np.full((max([*lengths, len(request.p_levels or ()), steps]), len(columns)), np.nan)
    factors, converted, undeclared = np.ones(len(columns)), {}, []
    for index, name in enumerate(columns):  # in one order, however they came
        if name not in request.channels:
            continue
        channel = request.channels[name]
        factor = unit_factor(name, channel.unit)
        if factor is None:
            undeclared += [name] * (index in {*used, *REQUIRED})
        elif factor != 1.0:
            factors[index], converted[name] = factor, channel.unit
        values = np.array([math.nan if x is None else x for x in channel.values], float)
        with np.errstate(over="ignore"):
            signals[len(signals) - len(values) :, index] = values * factors[index]
    levels = _levels(request, len(signals))
    return Read(
        bed=_bedside(request, signals[-steps:], levels[-steps:], table, columns, undeclared),
        signals=signals,
        levels=levels,
        factors=factors,
        converted=converted,
        undeclared=tuple(undeclared),
    )


def _levels(request: Request, samples: int) -> np.ndarray:
    levels = np.full(samples, UNKNOWN)
    if request.p_levels is not None:
        told = [UNKNOWN if x is None else x for x in request.p_levels]
        levels[samples - len(told) :] = told
    if request.p_now is not None:
        levels[-1] = request.p_now
    return levels


def _bedside(
    request: Request,
    hour: np.ndarray,
    levels: np.ndarray,
    table: str,
    columns: tuple[str, ...],
    undeclared: Sequence[str],
) -> Bedside:
    steps = len(hour)
    end = parse_time(request.t_end, "t_end")
    now = parse_time(request.now, "now") if request.now is not None else end
    seen = np.flatnonzero(np.isfinite(hour[:, list(REQUIRED)]).all(-1))
    waited = (now - end).total_seconds() / 60
    age = waited + (steps - 1 - seen[-1]) * request.grid_min if len(seen) else math.nan
    pump = PUMPS.get(request.pump_profile or "")
    known = pump is not None and pump.table == table
    speed = hour[-1, SPEED]
    usable = end.year in _YEARS and now.year in _YEARS and now >= end
    on_grid = abs(request.grid_min * steps - 60) < 1e-6
    off = levels[(levels != UNKNOWN) & (levels < LOWEST)]  # the pump stood still within the hour
    level = off[-1] if len(off) else (UNKNOWN if request.p_now is None else request.p_now)
    return Bedside(
        signals=hour,
        level=np.asarray(level),
        highest=np.asarray(pump.highest if pump is not None and known else 0),
        age=np.asarray(float(age)),
        clock=np.asarray(usable and on_grid),
        alarm=np.asarray(bool(request.alarms)),
        undeclared=np.asarray(bool(undeclared)),
        speed_level=level_of_speed(profile_of(table), speed) if known else np.asarray(UNKNOWN),
        likeness=np.asarray(math.nan),
        most_flow=np.asarray(most_flow(profile_of(table), int(level)) if known else math.inf),
        minutes=float(request.grid_min),
        columns=columns,
    )


def absent_columns(read: Read, used: Sequence[int]) -> tuple[int, ...]:
    """Columns that the models read and of which this patient has no sample at all.

    They are filled from the others (problem/filling.py); one that was there and broke off is not,
    and neither is one that is required.
    """
    empty = np.asarray(np.isnan(read.signals).all(0))
    return tuple(i for i in used if empty[i] and i not in REQUIRED)


def model_state(read: Read, used: Sequence[int]) -> tuple[np.ndarray, tuple[str, ...]] | None:
    """The hour as models read it, and the signals with a sample carried over; None if too empty.

    One missing sample of a signal takes the value before it, or at the very start of what came,
    the one after it. The level column is the rounded mean of the hour (docs/definitions.md).
    """
    steps = read.bed.signals.shape[-2]
    state = np.full((steps, len(read.bed.columns) + 1), np.nan, np.float32)
    filled = []
    for index in used:
        column = read.signals[-steps - 1 :, index].copy()
        empty = np.flatnonzero(np.isnan(column[-steps:]))
        if len(empty) > steps // STEPS:
            return None
        for place in empty + len(column) - steps:
            before = column[place - 1] if place > 0 else math.nan
            column[place] = before if np.isfinite(before) else column[min(place + 1, steps)]
        filled += [read.bed.columns[index]] * bool(len(empty))
        with np.errstate(over="ignore"):
            state[:, index] = column[-steps:]
    told = read.levels[-steps:]
    told = np.where(told == UNKNOWN, read.bed.level, told)
    state[:, LEVEL] = np.floor(told.mean() + 0.5)
    if not np.isfinite(state[:, [*used, LEVEL]]).all() or state[0, LEVEL] not in LEVELS:
        return None
    return state, tuple(filled)


# ── units ─────────────────────────────────────────────────────────────────────────────────────────

# Names follow UCUM; the printed forms (mmHg, rpm) are understood too. Nothing is guessed: a column
# without a unit is refused, and so is one whose values fit another known unit and not their own.


def unit_factor(signal: str, unit: str | None) -> float | None:
    """What a value in this unit is multiplied with to be in ours; None if it is no unit of it."""
    if unit in (KNOWN[signal].unit, KNOWN[signal].ucum):
        return 1.0
    measured, factor = UNITS.get(_UCUM.get(unit or "", unit or ""), (None, None))
    return factor if measured == QUANTITIES.get(signal) else None


def rounded(value: float | np.floating, unit: str) -> float | None:
    """A value as it is sent: with the digits of its unit, None where there is none."""
    return round(float(value), _DIGITS.get(unit, 1)) if np.isfinite(value) else None


# ── pumps ─────────────────────────────────────────────────────────────────────────────────────────

# A profile in `patients/profiles` is a pump type of its own name with all levels, unless its table
# is shared by types that are told apart here.


@dataclass(frozen=True)
class Pump:
    """A pump type."""

    label: str
    table: str  # profile of speeds (patients/profiles)
    highest: int = HIGHEST  # P-level


_TYPES = {  # of tables that several pump types share; the one with all levels first
    "cp-smartassist": Pump("CP SmartAssist", "cp"),
    "cp-older": Pump("CP (older)", "cp", highest=8),
}
_SHARED = {pump.table for pump in _TYPES.values()}
PUMPS = _TYPES | {name: Pump(name, name) for name in profile_names() if name not in _SHARED}


def pump_of_table(table: str) -> str:
    """The pump type of a recording that names only its table; the one with all its levels."""
    found = [name for name, pump in PUMPS.items() if pump.table == table]
    if not found:
        known = ", ".join(sorted({pump.table for pump in PUMPS.values()}))
        raise ValueError(
            f"expected a recording of one of the pumps {known}, got {table!r}. "
            "Add its profile to patients/profiles."
        )
    return found[0]


def most_flow(profile: PumpProfile, level: int) -> float:
    """L/min at a level without any head, by the profile's own relation; not known below P-2."""
    if level not in LEVELS:
        return math.inf
    head, speed = (float(x[level - LOWEST]) for x in (profile.shutoff_head, profile.speed))
    linear = float(profile.linear_loss) * speed / float(profile.reference_speed)
    square = float(profile.quadratic_loss)
    if square <= 0:
        return head / linear
    return (math.sqrt(linear**2 + 4 * square * head) - linear) / (2 * square)


@functools.cache
def profile_of(table: str) -> PumpProfile:
    """The table of a pump."""
    return load_profile(table)
