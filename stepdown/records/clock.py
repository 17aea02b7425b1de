"""The clock of a recording: rate, gaps, jumps, duplicate stamps (D01 to D04).

Stamps are read in file order, so that a clock that was set back shows. Nothing is repaired.
"""

from dataclasses import dataclass, replace

import numpy as np

from stepdown.patients.console import BRIDGE
from stepdown.records.findings import Finding, Severity, at, counted
from stepdown.records.stays import Trace
from stepdown.signals import SAMPLE_MINUTES

WAVEFORM_INTERVAL = 1 / 24  # s; faster is a waveform
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
class Clock:
    """What the stamps say."""

    interval: float  # s between two samples; 0 where it cannot be told
    order: np.ndarray  # rows by time, without those that have no usable time
    second: np.ndarray  # of the rows in this order, s since the first stamp
    findings: tuple[Finding, ...] = ()

    @property
    def longest(self) -> float:
        """Pause that is still no gap, s."""
        return self.interval + max(0.5 * self.interval, min(BRIDGE, 3.5 * self.interval))


def read_clock(trace: Trace) -> Clock:
    """Interval, order and everything odd about the stamps."""
    usable, far = _usable(trace.second)
    found = [_far(trace, far)] if far.any() else []
    second = trace.second[usable]  # in file order
    steps = np.diff(second)
    forward = steps[steps > 0]
    order = np.flatnonzero(usable)
    if np.any(steps < 0):
        order = order[np.argsort(second, kind="stable")]
    clock = Clock(0.0, order, trace.second[order])
    if not len(forward):
        sentence = f"{len(second)} usable stamps, so the rate cannot be told."
        found.append(Finding("D01", "action", trace.patient, "time", (), len(second), sentence))
        return replace(clock, findings=tuple(found))
    usual = float(np.median(forward))
    near = forward[(forward > 0.5 * usual) & (forward < 1.5 * usual)]
    near = near if len(near) else forward  # between two lengths, the median is neither
    clock = replace(clock, interval=float(near.mean()))
    found += [_rate(trace, clock, near), *_backwards(trace, second, steps)]
    found += _off_grid(trace, clock, second, steps, near)
    found += [*_duplicates(trace, clock), *_gaps(trace, clock), *_calendar(trace)]
    return replace(clock, findings=tuple(found))


def _usable(second: np.ndarray):
    """Rows whose time can belong to the stay, and rows whose time is absurd."""
    known = np.isfinite(second)
    if not known.any():
        return known, known
    far = known & (np.abs(np.where(known, second, 0) - np.median(second[known])) > FAR)
    return known & ~far, far


def _far(trace: Trace, far: np.ndarray) -> Finding:
    odd = trace.second[far]
    away = abs(float(odd[0]) - float(np.nanmedian(trace.second)))
    sentence = f"{counted(int(far.sum()), 'stamp')} {at(away)} away from the others."
    where = ((float(odd[0]), float(odd[0])),)
    return Finding("D03", "action", trace.patient, "time", where, int(far.sum()), sentence)


def _rate(trace: Trace, clock: Clock, near: np.ndarray) -> Finding:
    interval = clock.interval
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
    where = ((float(clock.second[0]), float(clock.second[-1])),)
    sentence = f"One sample {words}."
    return Finding("D01", severity, trace.patient, "time", where, len(clock.order), sentence)


def _every(interval: float) -> str:
    if interval < 0.5:
        return f"{1 / interval:.2f} times a second"
    return f"every {interval:.5g} s" if interval < 120 else f"every {interval / 60:.5g} min"


def _backwards(trace: Trace, second, steps) -> list[Finding]:
    back = np.flatnonzero(steps < 0)
    if not len(back):
        return []
    where = tuple((float(second[i + 1]), float(second[i])) for i in back)
    sentence = (
        f"{counted(len(back), 'jump')} back in time; first at {at(where[0][1])}, "
        f"by {at(-float(steps[back[0]]))}."
    )
    return [Finding("D03", "action", trace.patient, "time", where, len(back), sentence)]


def _off_grid(trace: Trace, clock: Clock, second, steps, near) -> list[Finding]:
    """Steps of the clock that are shorter than a sample; none where stamps are irregular."""
    interval = clock.interval
    # Stamps of few digits alternate between two lengths; that is rounding, not a jump.
    rounding = 0.0 if abs(np.median(near) / interval - 1) < DRIFT[0] else 1e-3 / interval
    slack = max(1e-3, 1.5 * rounding) * interval + 4e-16 * float(np.max(np.abs(second)))
    odd = (steps > 0.0) & (steps < 1.5 * interval) & (np.abs(steps - interval) > slack)
    if not odd.any() or odd.sum() > 0.1 * len(steps):
        return []
    where = tuple((float(second[i]), float(second[i + 1])) for i in np.flatnonzero(odd))
    shift = float(steps[np.argmax(odd)] - interval)
    sentence = (
        f"{counted(int(odd.sum()), 'stamp')} off the regular grid; first at {at(where[0][0])}, by "
    )
    sentence += f"{shift:+.4g} s."
    return [Finding("D03", "check", trace.patient, "time", where, int(odd.sum()), sentence)]


def _duplicates(trace: Trace, clock: Clock) -> list[Finding]:
    again = np.flatnonzero(np.diff(clock.second) == 0)
    if not len(again):
        return []
    one, two = clock.order[again], clock.order[again + 1]
    columns = [line.values for line in trace.lines.values()]
    columns += [trace.level.values] if trace.level is not None else []
    same = [np.array_equal(x[one], x[two], equal_nan=True) for x in columns]
    severity: Severity = "check" if all(same) else "action"
    values = "the same values" if all(same) else "different values"
    where = tuple((float(x), float(x)) for x in clock.second[again])
    sentence = f"{counted(len(again), 'stamp')} twice with {values}; first at {at(where[0][0])}."
    return [Finding("D04", severity, trace.patient, "time", where, len(again), sentence)]


def _gaps(trace: Trace, clock: Clock) -> list[Finding]:
    """Pauses between rows that hold any value."""
    held = clock.second
    if trace.lines:
        known = [np.isfinite(line.values[clock.order]) for line in trace.lines.values()]
        held = held[np.any(known, axis=0)]
    # Empty rows at the start or at the end of a file are a gap too.
    before, after = clock.second[0] - clock.interval, clock.second[-1] + clock.interval
    time = np.concatenate([[before], held, [after]])
    pause = np.diff(time)
    gap = np.flatnonzero(pause > clock.longest)
    if not len(gap):
        return []
    lost = pause[gap] - clock.interval
    # Six digits: an interval from stamps in milliseconds is not exact.
    severity: Severity = "check" if lost.max() >= LONG_GAP * (1 - 1e-6) else "note"
    starts, ends = time[gap] + clock.interval, time[gap + 1] - clock.interval
    where = tuple((float(a), max(float(a), float(b))) for a, b in zip(starts, ends, strict=True))
    longest = where[int(np.argmax(lost))][0]
    sentence = f"{counted(len(gap), 'gap')}, {at(float(lost.sum()))} in all; the longest begins at "
    sentence += f"{at(longest)} and lasts {at(float(lost.max()))}."
    found = [Finding("D02", severity, trace.patient, "time", where, len(gap), sentence)]
    hour = np.abs(lost - 3600) < max(1.0, 1e-3 * clock.interval)
    if trace.start is not None and hour.any():
        where = tuple(pair for pair, one in zip(where, hour, strict=True) if one)
        sentence = f"Exactly one hour is missing at {at(where[0][0])}: a gap, or summer time."
        found.append(Finding("D03", "check", trace.patient, "time", where, len(where), sentence))
    return found


def _calendar(trace: Trace) -> list[Finding]:
    if trace.start is None:
        return []
    found = []
    if trace.zoneless:
        sentence = "Dates without a zone: an hour may come twice or not at all."
        found.append(Finding("D03", "action", trace.patient, "time", (), 1, sentence))
    if not YEARS[0] <= trace.start < YEARS[1]:
        year = int(1970 + trace.start / (365.2425 * 86400))
        sentence = f"The stay begins in {year}: a clock never set, or dates shifted on purpose."
        found.append(Finding("D03", "check", trace.patient, "time", (), 1, sentence))
    return found
