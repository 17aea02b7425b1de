"""The clock of a recording: rate, gaps, jumps, duplicate stamps (D01 to D04).

Stamps are read in file order, so that a clock that was set back shows. Nothing is repaired.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepdown.patients.console import BRIDGE
from stepdown.records.findings import Finding, Severity, at, counted, stretches
from stepdown.records.stays import Trace
from stepdown.signals import SAMPLE_MINUTES

MOST_JUMPS = 20  # of a stay's clock; more means rows out of order
FAR = 100 * 86400.0  # s; no stay is that long
DRIFT = (5e-4, 2e-2)  # relative; less is fine, more is another rate
USUAL = (  # s between two samples of the usual exports
    *(1 / hertz for hertz in (1000, 500, 250, 240, 200, 125, 120, 100, 64, 62.5, 60, 50, 40)),
    *(1 / hertz for hertz in (32, 30, 25, 20, 10, 5, 4, 2)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 600.0),
)
LONG_GAP = 60 * SAMPLE_MINUTES  # s; no window bridges it
YEARS = (631152000.0, 3786912000.0)  # s since 1970: 1990 and 2090


@dataclass(frozen=True)
class Timed:
    """A stay in order of time, without the rows that have no usable time."""

    trace: Trace  # as recorded
    interval: float  # s between two samples; 0 where it cannot be told
    order: np.ndarray  # of the rows
    second: np.ndarray  # s since the first stamp
    lines: Mapping[str, np.ndarray]  # in our units
    level: np.ndarray | None

    @property
    def longest(self) -> float:
        """Pause that is still no gap, s."""
        return self.interval + max(0.5 * self.interval, min(BRIDGE, 3.5 * self.interval))

    @property
    def whole(self) -> tuple[tuple[float, float], ...]:
        """First and last time, as where something was found."""
        return ((float(self.second[0]), float(self.second[-1])),)

    def found(self, code: str, severity: Severity, name: str, mask, sentence: str) -> Finding:
        """What is said about the samples of a mask."""
        where, count = stretches(mask, self.second), int(mask.sum())
        return Finding(code, severity, self.trace.patient, name, where, count, sentence)


def read_clock(trace: Trace) -> tuple[Timed, list[Finding]]:
    """The stay in order of time, and everything odd about its stamps."""
    usable, far = _usable(trace.second)
    found = [_far(trace, far)] if far.any() else []
    second = trace.second[usable]  # in file order
    steps = np.diff(second)
    forward = steps[steps > 0]
    order = np.flatnonzero(usable)
    if np.any(steps < 0):
        order = order[np.argsort(second, kind="stable")]
    usual = float(np.median(forward)) if len(forward) else 0.0
    near = forward[(forward > 0.5 * usual) & (forward < 1.5 * usual)]
    near = near if len(near) else forward  # between two lengths, the median is neither
    stay = Timed(
        trace,
        interval=float(near.mean()) if len(near) else 0.0,
        order=order,
        second=trace.second[order],
        lines={name: line.in_our_unit()[order] for name, line in trace.lines.items()},
        level=None if trace.level is None else trace.level.values[order],
    )
    if not len(near):
        sentence = f"{len(second)} usable stamps, so the rate cannot be told."
        found.append(_said(trace, "D01", "check", (), len(second), sentence))
        return stay, [*found, *_calendar(trace)]
    found += [_rate(stay, near), *_backwards(trace, second, steps)]
    found += _off_grid(stay, second, steps, near)
    return stay, [*found, *_duplicates(stay), *_gaps(stay), *_calendar(trace)]


def _said(trace: Trace, code: str, severity: Severity, where, count: int, sentence: str) -> Finding:
    return Finding(code, severity, trace.patient, "time", tuple(where), count, sentence)


def _usable(second: np.ndarray):
    """Rows whose time can belong to the stay, and rows whose time is absurd."""
    known = np.isfinite(second)
    if not known.any():
        return known, known
    far = known & (np.abs(np.where(known, second, 0) - np.median(second[known])) > FAR)
    return known & ~far, far


def _far(trace: Trace, far: np.ndarray) -> Finding:
    first, count = float(trace.second[far][0]), int(far.sum())
    away = abs(first - float(np.nanmedian(trace.second)))
    sentence = f"{counted(count, 'stamp')} {at(away)} away from the others."
    return _said(trace, "D03", "check", [(first, first)], count, sentence)


def _rate(stay: Timed, near: np.ndarray) -> Finding:
    interval = stay.interval
    words = _every(interval)
    usual = min(USUAL, key=lambda known: abs(np.log(interval / known)))
    off = interval / usual - 1
    severity: Severity = "note"
    if interval > LONG_GAP * (1 + DRIFT[1]):
        severity, words = "action", f"{words}, slower than one in {SAMPLE_MINUTES:g} min"
    elif DRIFT[0] < abs(off) < DRIFT[1]:
        severity = "check"
        words += f", {100 * abs(off):.2f} % off {_every(usual)}: a drifting clock?"
    elif np.mean(np.abs(near / np.median(near) - 1) > 0.1) > 0.1:
        severity, words = "check", f"{words} on average, at irregular times"
    sentence = f"One sample {words}."
    return _said(stay.trace, "D01", severity, stay.whole, len(stay.order), sentence)


def _every(interval: float) -> str:
    if interval < 0.5:
        return f"{1 / interval:.2f} times a second"
    return f"every {interval:.5g} s" if interval < 120 else f"every {interval / 60:.5g} min"


def _backwards(trace: Trace, second, steps) -> list[Finding]:
    back = np.flatnonzero(steps < 0)
    if not len(back):
        return []
    where = [(float(second[i + 1]), float(second[i])) for i in back]
    sentence = (
        f"{counted(len(back), 'jump')} back in time; first at {at(where[0][1])}, "
        f"by {at(-float(steps[back[0]]))}."
    )
    severity: Severity = "check" if len(back) <= MOST_JUMPS else "action"
    return [_said(trace, "D03", severity, where, len(back), sentence)]


def _off_grid(stay: Timed, second, steps, near) -> list[Finding]:
    """Steps of the clock that are shorter than a sample; none where stamps are irregular."""
    interval = stay.interval
    # Stamps of few digits alternate between two lengths; that is rounding, not a jump.
    rounding = 0.0 if abs(np.median(near) / interval - 1) < DRIFT[0] else 1e-3 / interval
    slack = max(1e-3, 1.5 * rounding) * interval + 4e-16 * float(np.max(np.abs(second)))
    odd = (steps > 0.0) & (steps < 1.5 * interval) & (np.abs(steps - interval) > slack)
    if not odd.any() or odd.sum() > 0.1 * len(steps):
        return []
    where = [(float(second[i]), float(second[i + 1])) for i in np.flatnonzero(odd)]
    sentence = (
        f"{counted(len(where), 'stamp')} off the regular grid; first at {at(where[0][0])}, by "
        f"{float(steps[np.argmax(odd)] - interval):+.4g} s."
    )
    return [_said(stay.trace, "D03", "check", where, len(where), sentence)]


def _duplicates(stay: Timed) -> list[Finding]:
    again = np.flatnonzero(np.diff(stay.second) == 0)
    if not len(again):
        return []
    columns = [*stay.lines.values(), *([] if stay.level is None else [stay.level])]
    same = all(np.array_equal(x[again], x[again + 1], equal_nan=True) for x in columns)
    values = "the same values" if same else "different values"
    where = [(float(x), float(x)) for x in stay.second[again]]
    sentence = f"{counted(len(again), 'stamp')} twice with {values}; first at {at(where[0][0])}."
    severity: Severity = "check" if 2 * len(again) < len(stay.second) else "action"
    return [_said(stay.trace, "D04", severity, where, len(again), sentence)]


def _gaps(stay: Timed) -> list[Finding]:
    """Pauses between rows that hold any value."""
    held = stay.second
    if stay.lines:
        held = held[np.any([np.isfinite(values) for values in stay.lines.values()], axis=0)]
    # Empty rows at the start or at the end of a file are a gap too.
    before, after = stay.second[0] - stay.interval, stay.second[-1] + stay.interval
    time = np.concatenate([[before], held, [after]])
    pause = np.diff(time)
    gap = np.flatnonzero(pause > stay.longest)
    if not len(gap):
        return []
    lost = pause[gap] - stay.interval
    # Six digits: an interval from stamps in milliseconds is not exact.
    severity: Severity = "check" if lost.max() >= LONG_GAP * (1 - 1e-6) else "note"
    starts, ends = time[gap] + stay.interval, time[gap + 1] - stay.interval
    where = [(float(a), max(float(a), float(b))) for a, b in zip(starts, ends, strict=True)]
    sentence = (
        f"{counted(len(gap), 'gap')}, {at(float(lost.sum()))} in all; the longest begins at "
        f"{at(where[int(np.argmax(lost))][0])} and lasts {at(float(lost.max()))}."
    )
    found = [_said(stay.trace, "D02", severity, where, len(gap), sentence)]
    hour = np.abs(lost - 3600) < max(1.0, 1e-3 * stay.interval)
    if stay.trace.start is not None and hour.any():
        where = [pair for pair, one in zip(where, hour, strict=True) if one]
        sentence = f"Exactly one hour is missing at {at(where[0][0])}: a gap, or summer time."
        found.append(_said(stay.trace, "D03", "check", where, len(where), sentence))
    return found


def _calendar(trace: Trace) -> list[Finding]:
    if trace.start is None:
        return []
    found = [_said(trace, "D03", "action", (), 1, question) for question in trace.questions]
    if not YEARS[0] <= trace.start < YEARS[1]:
        year = int(1970 + trace.start / (365.2425 * 86400))
        sentence = f"The stay begins in {year}: a clock never set, or dates shifted on purpose."
        found.append(_said(trace, "D03", "check", (), 1, sentence))
    return found
