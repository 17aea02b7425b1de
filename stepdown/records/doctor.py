"""What is wrong with a recording, in words: a pure look at one stay, nothing is changed.

`examine` asks the clock, the units, the lines, the pump and the hours in this order. Codes and
remedies are in `findings.py`, rates of detection and limits in docs/doctor.md.
"""

import jax
import numpy as np

from stepdown.patients.pump import PumpProfile
from stepdown.records.clock import Clock, read_clock
from stepdown.records.findings import Finding, Severity, by_severity, counted, runs, stretches
from stepdown.records.lines import ALLOWED_MISSING, examine_lines
from stepdown.records.suspicion import suspect_units
from stepdown.records.trace import Trace
from stepdown.signals import HIGHEST, LEVELS, LOWEST, NAMES, REQUIRED

SPEED_TOLERANCE = 0.02  # of a profile's step
SUCTION = 0.75  # of what is usual at the level
SUCTION_WINDOW = 2.0  # s at 25 Hz
ENOUGH = 0.8  # share of the hours


def examine(trace: Trace, profile: PumpProfile) -> tuple[Finding, ...]:
    """Everything found in one stay, most serious first."""
    clock = read_clock(trace)
    found = [*clock.findings, *_times(trace)]
    second = trace.second[clock.order]
    suspects: list[Finding] = []
    if len(second):
        suspects = suspect_units(trace, second, clock.order)
    names = frozenset(finding.signal for finding in suspects)
    found += [*suspects, *examine_lines(trace, clock, second, names)]
    if len(second):
        steps = np.asarray(jax.tree.map(np.asarray, profile).speed, float)
        found += _levels(trace, clock, second)
        if "speed" not in names:
            found += _pump(trace, clock, second, steps)
        found += _suction(trace, clock, second, steps, names)
    flat = [finding for finding in found if finding.code in ("D05", "D06")]
    found.append(_usable_hours(trace, clock, second, flat))
    return tuple(by_severity(found))


def level_from_speed(speed: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """P-level of a speed in rpm within 2 % of its step of the profile, 0 between the steps."""
    speed = np.asarray(speed, float)
    slack = SPEED_TOLERANCE * (1 + 1e-9)  # the limit itself belongs to the step
    place = np.minimum(np.searchsorted(steps * (1 + slack), speed), len(steps) - 1)
    with np.errstate(invalid="ignore"):
        near = np.abs(speed / steps[place] - 1) <= slack
    return np.where(near, place + LOWEST, 0)


def _finding(trace: Trace, code: str, severity: Severity, name: str, *rest) -> Finding:
    where, count, sentence = rest
    return Finding(code, severity, trace.patient, name, tuple(where), int(count), sentence)


def _times(trace: Trace) -> list[Finding]:
    lost = int(np.sum(~np.isfinite(trace.second)))
    if not lost:
        return []
    shown = ", ".join(repr(text) for text in trace.unreadable_times[:3]) or "empty cells"
    sentence = f"No readable time in {counted(lost, 'row')}, such as {shown}."
    return [_finding(trace, "D13", "action", "time", (), lost, sentence)]


def _levels(trace: Trace, clock: Clock, second) -> list[Finding]:
    if trace.level is None:
        return []
    level, found = trace.level.values[clock.order], []
    if trace.level.unreadable:
        examples = ", ".join(repr(text) for text in trace.level.examples[:3])
        sentence = (
            f"No level in {counted(len(trace.level.unreadable), 'cell')}, such as {examples}."
        )
        count = len(trace.level.unreadable)
        found.append(_finding(trace, "D13", "action", "level", (), count, sentence))
    with np.errstate(invalid="ignore"):
        odd = np.isfinite(level) & ~np.isin(level, LEVELS)
    if odd.any():
        severity: Severity = "action" if odd.mean() > 0.5 else "check"
        values = ", ".join(f"{x:g}" for x in np.unique(level[odd])[:4])
        count = counted(int(odd.sum()), "sample")
        sentence = f"{count} with a level outside {LOWEST} to {HIGHEST}: {values}."
        where = stretches(odd, second)
        found.append(_finding(trace, "D17", severity, "level", where, odd.sum(), sentence))
    return found


def _pump(trace: Trace, clock: Clock, second, steps) -> list[Finding]:
    """Speeds against the steps of the profile, and against the level."""
    if "speed" not in trace.lines:
        return []
    speed = trace.lines["speed"].in_our_unit()[clock.order]
    read = level_from_speed(speed, steps)
    with np.errstate(invalid="ignore"):
        turning = speed > 0
    between = turning & (read == 0) & ~_around_changes(read)
    found = []
    if between.any():
        share = between.sum() / turning.sum()
        severity: Severity = "action" if share > 0.5 else "check"
        sentence = (
            f"{counted(int(between.sum()), 'sample')} ({100 * share:.2g} %) between the steps "
            f"of the profile, such as {speed[np.argmax(between)]:,.0f} rpm."
        )
        where = stretches(between, second)
        found.append(_finding(trace, "D10", severity, "speed", where, between.sum(), sentence))
    if trace.level is not None:
        found += _mismatch(trace, read, trace.level.values[clock.order], second)
    return found


def _mismatch(trace: Trace, read, level, second) -> list[Finding]:
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
    where = stretches(wrong, second)
    return [_finding(trace, "D09", "action", "level", where, wrong.sum(), sentence)]


def _shift(values: np.ndarray, by: int) -> np.ndarray:
    return values[np.clip(np.arange(len(values)) - by, 0, len(values) - 1)]


def _around_changes(level: np.ndarray) -> np.ndarray:
    """Samples whose neighbors lie on two different levels."""
    before, after = _shift(level, 1), _shift(level, -1)
    return (before != after) & (before > 0) & (after > 0)


def _suction(trace: Trace, clock: Clock, second, steps, suspects) -> list[Finding]:
    """Flow, or at 25 Hz motor current, far below the usual at the same level."""
    name = "current" if trace.is_waveform else "flow"
    if name not in trace.lines or name in suspects | {"speed"} & suspects:
        return []
    values = trace.lines[name].in_our_unit()[clock.order]
    level = _any_level(trace, clock, steps)
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
    return [_finding(trace, "D15", "note", name, where, len(where), sentence)]


def _any_level(trace: Trace, clock: Clock, steps) -> np.ndarray:
    """The level as declared, or as the speed says; 0 where unknown."""
    if trace.level is not None:
        return np.nan_to_num(trace.level.values[clock.order], nan=0.0).astype(int)
    if "speed" in trace.lines:
        return level_from_speed(trace.lines["speed"].in_our_unit()[clock.order], steps)
    return np.zeros(len(clock.order), int)


def _usable_hours(trace: Trace, clock: Clock, second, spoiled: list[Finding]) -> Finding:
    """Whole hours in which every required signal has at most the allowed share missing."""
    names = ("placement",) if trace.is_waveform else tuple(NAMES[i] for i in REQUIRED)
    if {"sbp", "dbp"} <= set(trace.lines) and "pulsatility" not in trace.lines:
        names = (*(n for n in names if n != "pulsatility"), "sbp", "dbp")
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
    where = [(begin + 3600 * int(a), begin + 3600 * int(b + 1)) for a, b in runs(~usable)]
    return _finding(trace, "D16", severity, "", where, usable.sum(), sentence)
