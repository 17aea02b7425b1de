"""What is wrong with a recording, in words: a pure look at one stay, nothing is changed.

`examine` asks the clock, the units, the signals, the pump and the hours in this order. Codes and
remedies are in `findings.py`, rates of detection and limits in docs/doctor.md.
"""

import numpy as np

from stepdown.patients.pump import OFF, PumpProfile, level_of_speed
from stepdown.records.clock import Clock, read_clock
from stepdown.records.findings import (
    Finding,
    Severity,
    by_severity,
    counted,
    quoted,
    runs,
    stretches,
)
from stepdown.records.signal_checks import ALLOWED_MISSING, examine_lines, suspect_units
from stepdown.records.stays import Trace
from stepdown.signals import HIGHEST, LEVELS, LOWEST, NAMES, REQUIRED

SUCTION = 0.75  # of what is usual at the level
SUCTION_WINDOW = 2.0  # s at 25 Hz
ENOUGH = 0.8  # share of the hours


def examine(trace: Trace, profile: PumpProfile) -> tuple[Finding, ...]:
    """Everything found in one stay, most serious first."""
    clock = read_clock(trace)
    found = [*clock.findings, *_times(trace)]
    suspects = suspect_units(trace, clock)
    names = frozenset(finding.signal for finding in suspects)
    found += [*suspects, *examine_lines(trace, clock, names)]
    if len(clock.order):
        found += _levels(trace, clock)
        if "speed" not in names:
            found += _pump(trace, clock, profile)
        found += _suction(trace, clock, profile, names)
    flat = [finding for finding in found if finding.code in ("D05", "D06")]
    found.append(_usable_hours(trace, clock, flat))
    return tuple(by_severity(found))


def _times(trace: Trace) -> list[Finding]:
    lost = int(np.sum(~np.isfinite(trace.second)))
    if not lost:
        return []
    shown = quoted(trace.unreadable_times, longest=30) or "empty cells"
    sentence = f"No readable time in {counted(lost, 'row')}, such as {shown}."
    return [Finding("D13", "action", trace.patient, "time", (), lost, sentence)]


def _levels(trace: Trace, clock: Clock) -> list[Finding]:
    if trace.level is None:
        return []
    level, found = trace.level.values[clock.order], []
    if trace.level.unreadable:
        count = len(trace.level.unreadable)
        sentence = f"No level in {counted(count, 'cell')}, such as {quoted(trace.level.examples)}."
        found.append(Finding("D13", "action", trace.patient, "level", (), count, sentence))
    with np.errstate(invalid="ignore"):
        odd = np.isfinite(level) & ~np.isin(level, LEVELS)
    if odd.any():
        severity: Severity = "action" if odd.mean() > 0.5 else "check"
        values = ", ".join(f"{x:g}" for x in np.unique(level[odd])[:4])
        count = int(odd.sum())
        samples = counted(count, "sample")
        sentence = f"{samples} with a level outside {LOWEST} to {HIGHEST}: {values}."
        where = stretches(odd, clock.second)
        found.append(Finding("D17", severity, trace.patient, "level", where, count, sentence))
    return found


def _pump(trace: Trace, clock: Clock, profile: PumpProfile) -> list[Finding]:
    """Speeds against the steps of the profile, and against the level."""
    if "speed" not in trace.lines:
        return []
    speed = trace.lines["speed"].in_our_unit()[clock.order]
    read = level_of_speed(profile, speed)
    with np.errstate(invalid="ignore"):
        turning = speed > 0
    between = turning & (read <= OFF) & ~_around_changes(read)
    found = []
    if between.any():
        share = between.sum() / turning.sum()
        severity: Severity = "action" if share > 0.5 else "check"
        count = int(between.sum())
        sentence = (
            f"{counted(count, 'sample')} ({100 * share:.2g} %) between the steps "
            f"of the profile, such as {speed[np.argmax(between)]:,.0f} rpm."
        )
        where = stretches(between, clock.second)
        found.append(Finding("D10", severity, trace.patient, "speed", where, count, sentence))
    if trace.level is not None:
        found += _mismatch(trace, clock, read, trace.level.values[clock.order])
    return found


def _mismatch(trace: Trace, clock: Clock, read, level) -> list[Finding]:
    known = np.nan_to_num(level, nan=0.0)
    wrong = (read > 0) & np.isin(known, LEVELS) & (read != known)
    # A sample that holds a change of level may go with either side of it.
    wrong &= ~(_around_changes(known) & ((read == _shift(known, 1)) | (read == _shift(known, -1))))
    if not wrong.any():
        return []
    first = int(np.argmax(wrong))
    sentence = (
        f"{counted(int(wrong.sum()), 'sample')} at the speed of another level; the first says "
        f"P-{known[first]:g} at the speed of P-{read[first]}."
    )
    where = stretches(wrong, clock.second)
    return [Finding("D09", "action", trace.patient, "level", where, int(wrong.sum()), sentence)]


def _shift(values: np.ndarray, by: int) -> np.ndarray:
    return values[np.clip(np.arange(len(values)) - by, 0, len(values) - 1)]


def _around_changes(level: np.ndarray) -> np.ndarray:
    """Samples whose neighbors lie on two different levels."""
    before, after = _shift(level, 1), _shift(level, -1)
    return (before != after) & (before > 0) & (after > 0)


def _suction(
    trace: Trace, clock: Clock, profile: PumpProfile, suspects: frozenset[str]
) -> list[Finding]:
    """Flow, or at 25 Hz motor current, far below the usual at the same level."""
    name = "current" if trace.is_waveform else "flow"
    if name not in trace.lines or name in suspects:
        return []
    values = trace.lines[name].in_our_unit()[clock.order]
    level, second = _any_level(trace, clock, profile), clock.second
    if trace.is_waveform and clock.interval:
        # No window is longer than the record, however small its steps claim to be.
        size = max(round(min(SUCTION_WINDOW / clock.interval, len(values) + 1)), 1)
        count = len(values) // size * size
        values = values[:count].reshape(-1, size).mean(1)
        # A window that holds a change of level has no usual current.
        first, last = level[:count:size], level[size - 1 : count : size]
        level, second = np.where(first == last, first, 0), second[:count:size]
    low = np.zeros(len(values), bool)
    for one in np.unique(level[level > 0]):
        here = (level == one) & np.isfinite(values)
        if here.sum() >= 6:  # fewer have no usual
            low |= here & (values < SUCTION * np.median(values[here]))
    if not low.any():
        return []
    where = stretches(low, second)
    sentence = (
        f"{counted(len(where), 'stretch')} with {name} below {100 * SUCTION:.0f} % of what is "
        "usual at their level."
    )
    return [Finding("D15", "note", trace.patient, name, where, len(where), sentence)]


def _any_level(trace: Trace, clock: Clock, profile: PumpProfile) -> np.ndarray:
    """The level as declared, or as the speed says; none where unknown or off."""
    if trace.level is not None:
        return np.nan_to_num(trace.level.values[clock.order], nan=0.0).astype(int)
    if "speed" in trace.lines:
        return level_of_speed(profile, trace.lines["speed"].in_our_unit()[clock.order])
    return np.zeros(len(clock.order), int)


def _usable_hours(trace: Trace, clock: Clock, spoiled: list[Finding]) -> Finding:
    """Whole hours in which every required signal has at most the allowed share missing."""
    names = ("placement",) if trace.is_waveform else tuple(NAMES[i] for i in REQUIRED)
    if {"sbp", "dbp"} <= set(trace.lines) and "pulsatility" not in trace.lines:
        names = (*(n for n in names if n != "pulsatility"), "sbp", "dbp")
    second = clock.second
    hours = int((second[-1] - second[0] + clock.interval) / 3600 + 1e-6) if len(second) else 0
    usable = np.full(hours, bool(clock.interval))
    for name in names:
        if name not in trace.lines or not hours:
            usable[:] = False
            continue
        good = np.isfinite(trace.lines[name].values[clock.order])
        for a, b in (pair for f in spoiled if f.signal == name for pair in f.where):
            good &= (second < a) | (second > b)
        hour = ((second - second[0]) / 3600 + 1e-9).astype(int)
        wanted = 3600 / max(clock.interval, 1e-9)
        held = np.bincount(hour[good], minlength=hours)[:hours]
        usable &= held >= (1 - ALLOWED_MISSING) * wanted * (1 - 1e-6) - 1e-6
    share = usable.mean() if hours else 0.0
    severity: Severity = "note" if share >= ENOUGH else "check" if share > 0 else "action"
    sentence = f"{usable.sum()} of {hours} whole hours can be used."
    begin = float(second[0]) if len(second) else 0.0
    where = tuple((begin + 3600 * int(a), begin + 3600 * int(b + 1)) for a, b in runs(~usable))
    return Finding("D16", severity, trace.patient, "", where, int(usable.sum()), sentence)
