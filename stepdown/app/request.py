"""What is asked: one moment of one patient, as JSON says it, and as arrays in our units.

The arrays are as measured: nothing is filled in here. Only the state for the models carries a
single missing sample forward (docs/definitions.md), and the answer says so.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from stepdown.app.gates import UNKNOWN, Bedside
from stepdown.app.limits import PresetName
from stepdown.app.pumps import PUMPS, profile_of
from stepdown.app.units import unit_factor
from stepdown.patients.pump import level_of_speed
from stepdown.signals import HIGHEST, HORIZON, LEVEL, LEVELS, LOWEST, REQUIRED, SPEED, STEPS

LONGEST = 72  # samples of a request
ALARMS = ("suction", "position")
_YEARS = range(1990, 2090)  # others are a clock that was never set


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
        _check_channels(self)
        for name, value, known in (
            ("candidates", self.candidates, LEVELS),
            ("alarms", self.alarms, ALARMS),
            ("p_levels", self.p_levels or (), (None, *range(HIGHEST + 1))),
            ("limits", (self.limits,), (None, *get_args(PresetName))),
            ("horizon_h", (self.horizon_h,), range(1, HORIZON + 1)),
        ):
            if not set(value) <= set(known):
                words = ", ".join(str(x) for x in known if x is not None)
                raise ValueError(f"{name}: expected {words}, got something else.")
        if not self.candidates or not 0 < self.grid_min <= 60:
            raise ValueError("expected at least one candidate, and grid_min above 0 to 60.")
        parse_time(self.t_end, "t_end")
        if self.now is not None:
            parse_time(self.now, "now")


def _check_channels(request: Request) -> None:
    lengths = {len(channel.values) for channel in request.channels.values()}
    lengths |= {len(request.p_levels)} if request.p_levels is not None else set()
    if len(lengths) > 1 or not all(1 <= n <= LONGEST for n in lengths):
        raise ValueError(
            f"channels: expected 1 to {LONGEST} samples, as many in each, got {sorted(lengths)}."
        )


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
        str(name).lower(): Channel(
            one.get("unit"), tuple(None if x is None else float(x) for x in one["values"])
        )
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
    rest["grid_min"] = float(rest.get("grid_min", 10.0))
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
        minutes=float(request.grid_min),
        columns=columns,
    )


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
