"""What is wrong with a recording, in words: a pure look at one stay, nothing is changed.

`examine` asks the clock, the units, the signals, the pump and the hours in this order. Codes and
remedies are in `findings.py`, rates of detection and limits in docs/doctor.md.

A unit is suspect if the median of the stay is no possible one in the declared unit and a usual one
in another known unit. Where two units overlap, other columns help: pulsatility is systolic less
diastolic pressure. What cannot be told is listed in docs/doctor.md: kPa on LV pressures that are
declared in mmHg, and cmH2O, a third off mmHg, on everything.
"""

import numpy as np

from stepdown.patients.pump import OFF, PumpProfile, level_of_speed
from stepdown.records.clock import Timed, read_clock
from stepdown.records.findings import (
    Finding,
    Severity,
    at,
    by_severity,
    counted,
    quoted,
    runs,
    stretches,
)
from stepdown.records.flat import flat_samples
from stepdown.records.mapping import (
    BY_SIZE,
    OUR_UNITS,
    TYPICAL,
    UNITS,
    likely_units,
    other_units,
    units_of,
)
from stepdown.records.stays import Trace, too_many
from stepdown.signals import HIGHEST, KNOWN, LEVELS, LOWEST, NAMES, REQUIRED

MANY, MOST = 0.05, 0.9  # share of the values
ALLOWED_MISSING = 0.2  # share of an hour, or of a signal
LV_DERIVED = ("lvp", "lvedp", "tau", "ese")  # not shown by consoles below P-4
LV_SHOWN_FROM = 4
WINDOW = 2.0  # s at 25 Hz, over which units and suction are told
NEAR = np.log(1.6)  # a stretch in another unit continues the stay within this factor
# A waveform swings further than the means of the same line, and a flush goes to 300 mmHg.
HARD = {signal.name: signal.hard for signal in KNOWN.values()} | {"placement": (-50.0, 350.0)}
SOFT = {signal.name: signal.soft for signal in KNOWN.values()} | {"placement": (-30.0, 235.0)}
WAVE_SOFT = SOFT | {"current": (0.0, 1400.0)}
SUCTION = 0.75  # of what is usual at the level
ENOUGH = 0.8  # share of the hours


def examine(trace: Trace, profile: PumpProfile) -> tuple[Finding, ...]:
    """Everything found in one stay, most serious first."""
    stay, found = read_clock(trace)
    found += _times(trace)
    units = suspect_units(stay)
    suspects = frozenset(finding.signal for finding in units)
    found += [*units, *_absent(trace), *_lines(stay, suspects)]
    if len(stay.order):
        found += _levels(stay)
        if "speed" not in suspects:
            found += _pump(stay, profile)
        found += _suction(stay, profile, suspects)
    spoiled = [finding for finding in found if finding.code in ("D05", "D06")]
    found.append(_usable_hours(stay, spoiled))
    return tuple(by_severity(found))


def _times(trace: Trace) -> list[Finding]:
    lost = trace.timeless
    if not lost:
        return []
    shown = quoted(trace.unreadable_times, longest=30) or "empty cells"
    sentence = f"No readable time in {counted(lost, 'row')}, such as {shown}."
    severity: Severity = "action" if too_many(lost, len(trace.second)) else "check"
    return [Finding("D13", severity, trace.patient, "time", (), lost, sentence)]


# ── units ────────────────────────────────────────────────────────────────────────────────────────


def suspect_units(stay: Timed) -> list[Finding]:
    """Findings about the units of a stay (D08)."""
    if not len(stay.order):
        return []
    found = []
    for name in stay.lines:
        found += _whole_column(stay, name) or _slips(stay, name)
    suspects = {finding.signal for finding in found}
    if {"sbp", "dbp", "pulsatility"} <= set(stay.lines) and "pulsatility" not in suspects:
        found += _pulsatility(stay, suspects)
    return found


def _all_of(stay: Timed, name: str, sentence: str, units: tuple[str, ...] = ()) -> Finding:
    """A whole column in another unit than it says."""
    patient, count = stay.trace.patient, len(stay.trace.second)
    return Finding("D08", "action", patient, name, stay.whole, count, sentence, units)


def _whole_column(stay: Timed, name: str) -> list[Finding]:
    """A median that is no possible one in the declared unit, or that has none."""
    line = stay.trace.lines[name]
    units = likely_units(name, line.values)
    if not np.isfinite(line.values).any() or (line.unit is not None and line.unit in units):
        return []
    if line.unit is not None:
        # A third more or less (cmH2O for mmHg) explains nothing: then it is a matter of range.
        others = other_units(name, line.unit)
        units = tuple(unit for unit in units if unit in others)
        if not units:
            return []
    median = float(np.nanmedian(line.values))
    guess = " or ".join(units) if units else "no unit that is known here"
    if line.unit is None:
        sentence = f"No unit is declared; the median {median:.4g} fits {guess}."
    else:
        ours = median * UNITS[line.unit][1]
        sentence = (
            f"Declared in {line.unit}, the median would be {ours:.4g} {OUR_UNITS[name]}; "
            f"{median:.4g} fits {guess}."
        )
    return [_all_of(stay, name, sentence, units)]


def _slips(stay: Timed, name: str) -> list[Finding]:
    """Stretches in another unit than the rest of the column."""
    unit = stay.trace.lines[name].unit
    if name not in BY_SIZE or unit is None:
        return []
    size = _window(stay)
    windows = stay.lines[name][: len(stay.second) // size * size].reshape(-1, size)
    # The median of a window: the low half of a beat is no slip to kPa.
    values, peak = np.median(windows, axis=1), windows.max(axis=1)
    low, high = TYPICAL[name]
    inside = (values >= low) & (values <= high)
    odd = np.isfinite(values) & ~inside & (values > 0)
    if not odd.any() or not inside.any():
        return []
    usual = np.median(values[inside])
    for other in other_units(name, unit):
        # Written in `other` but read as declared: the truth differs by this factor.
        with np.errstate(invalid="ignore", over="ignore"):
            factor = UNITS[other][1] / UNITS[unit][1]
            true = np.where(odd, values, np.nan) * factor
            slip = (np.abs(np.log(true / usual)) < NEAR) & (true >= low) & (true <= high)
            slip &= peak * factor <= HARD[name][1]
        slip = _longer_than_one(slip)
        if slip.any():
            where, count = stretches(slip, stay.second[::size]), int(slip.sum()) * size
            words = f"{counted(count, 'sample')} from {at(where[0][0])} on"
            sentence = f"{words} in {other} rather than {unit}."
            patient = stay.trace.patient
            return [Finding("D08", "action", patient, name, where, count, sentence, (other,))]
    return []


def _window(stay: Timed) -> int:
    """Samples of a waveform in two seconds; values stand alone."""
    if not stay.trace.is_waveform or not stay.interval:
        return 1
    # No window is longer than the record, however small its steps claim to be.
    return max(round(min(WINDOW / stay.interval, len(stay.second) + 1)), 1)


def _longer_than_one(mask: np.ndarray) -> np.ndarray:
    """Without single samples: one odd value is a glitch, not a unit."""
    kept = np.zeros_like(mask)
    for first, last in runs(mask):
        kept[first : last + 1] = last > first
    return kept


def _pulsatility(stay: Timed, suspects: set[str]) -> list[Finding]:
    """Pulsatility in another unit than the pressures that it is the difference of.

    Where these are in a wrong unit themselves, a pulsatility that fits them is so too.
    """
    name, values = "pulsatility", stay.lines["pulsatility"]
    declared = stay.trace.lines[name].unit
    if declared is None or len(suspects & {"sbp", "dbp"}) == 1:
        return []
    difference = stay.lines["sbp"] - stay.lines["dbp"]
    known = np.isfinite(difference) & np.isfinite(values) & (difference > 0)
    if known.sum() < 3:
        return []
    share = float(np.median(values[known] / difference[known]))
    fits = share > 0 and abs(np.log(share)) < 0.2
    if "sbp" in suspects:
        sentence = "It is systolic less diastolic pressure, whose units are suspect."
        return [_all_of(stay, name, sentence)] if fits else []
    if fits or share <= 0:
        return []
    for unit in units_of(name):
        if abs(np.log(share * UNITS[unit][1] / UNITS[declared][1])) < 0.1:
            sentence = (
                f"Declared in {declared}, it would be {share:.3g} times systolic less diastolic "
                f"pressure; in {unit} it is their difference."
            )
            return [_all_of(stay, name, sentence, (unit,))]
    return []


# ── signals, one by one ──────────────────────────────────────────────────────────────────────────


def _absent(trace: Trace) -> list[Finding]:
    needed = {*trace.expected} if trace.is_waveform else {NAMES[i] for i in REQUIRED}
    if {"sbp", "dbp"} <= set(trace.lines):
        needed -= {"pulsatility"}  # their difference
    found = []
    for name in trace.expected:
        line = trace.lines.get(name)
        if line is not None and not np.all(np.isnan(line.values)):
            continue
        severity: Severity = "note"
        if name in needed:  # a stay without values is left out, a column is expected
            severity = "action" if line is None else "check"
        sentence = "No column holds it." if line is None else "Its column holds no value at all."
        found.append(Finding("D11", severity, trace.patient, name, (), 0, sentence))
    if trace.level is None and "speed" not in trace.lines:
        sentence = "Neither a level nor a speed from which it could be read."
        found.append(Finding("D11", "action", trace.patient, "level", (), 0, sentence))
    return found


def _lines(stay: Timed, suspects: frozenset[str]) -> list[Finding]:
    """Everything about single lines; a line of a suspect unit is not judged by range."""
    found = []
    for name, values in stay.lines.items():
        found += _text(stay.trace, name)
        if np.isnan(values).all():
            continue
        found += _missing(stay, name, values)
        if name not in suspects:
            found += _ranges(stay, name, values)
        found += _flat(stay, name, values)
    if not suspects & {"map", "sbp", "dbp", "pulsatility"}:
        found += _order(stay)
    return found


def _text(trace: Trace, name: str) -> list[Finding]:
    line = trace.lines[name]
    if not line.unreadable:
        return []
    time = trace.second[list(line.unreadable)]
    where = tuple((float(t), float(t)) for t in time if np.isfinite(t))
    count = len(line.unreadable)
    sentence = f"No number in {counted(count, 'cell')}, such as {quoted(line.examples)}."
    severity: Severity = "action" if too_many(count, len(line.values)) else "check"
    return [Finding("D13", severity, trace.patient, name, where, count, sentence)]


def _missing(stay: Timed, name: str, values) -> list[Finding]:
    """Empty samples of a line that has others; below P-4 a console shows no LV signals."""
    # A row without any value is a gap of the stay, not of this line.
    empty = np.isnan(values) & ~np.all([np.isnan(x) for x in stay.lines.values()], axis=0)
    if name in LV_DERIVED and stay.level is not None:
        with np.errstate(invalid="ignore"):
            empty &= ~(stay.level < LV_SHOWN_FROM)
    if not empty.any():
        return []
    share = empty.sum() / len(values)
    severity: Severity = "check" if share > ALLOWED_MISSING else "note"
    longest = max(int(b - a) + 1 for a, b in runs(empty))
    sentence = (
        f"{100 * share:.1f} % of the samples are empty, at most "
        f"{at(longest * stay.interval)} in one piece."
    )
    return [stay.found("D12", severity, name, empty, sentence)]


def _ranges(stay: Timed, name: str, values) -> list[Finding]:
    """Values that are no measurement, and of the others those that are rare in patients."""
    soft = (WAVE_SOFT if stay.trace.is_waveform else SOFT)[name]
    impossible = _outside(values, HARD[name])
    rare = _outside(values, soft) & ~impossible
    found = []
    for code, outside, (low, high) in (("D06", impossible, HARD[name]), ("D07", rare, soft)):
        if not outside.any():
            continue
        odd, share = values[outside], outside.sum() / np.sum(~np.isnan(values))
        severity: Severity = "check" if code == "D06" or share > MOST else "note"
        sentence = (
            f"{counted(len(odd), 'value')} ({100 * share:.2g} %) outside {low:g} to "
            f"{high:g} {OUR_UNITS[name]}, from {odd.min():.6g} to {odd.max():.6g}."
        )
        found.append(stay.found(code, severity, name, outside, sentence))
    return found


def _outside(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return (values < limits[0]) | (values > limits[1])


def _flat(stay: Timed, name: str, values) -> list[Finding]:
    flat = flat_samples(name, values, stay.second, stay.interval)
    if not flat.any():
        return []
    where = stretches(flat, stay.second)
    longest = max(last - first for first, last in where) + stay.interval
    sentence = (
        f"{counted(len(where), 'stretch')} without change, the longest for {at(longest)}; "
        f"first from {at(where[0][0])}, at {values[np.argmax(flat)]:.5g} {OUR_UNITS[name]}."
    )
    return [stay.found("D05", "check", name, flat, sentence)]


def _order(stay: Timed) -> list[Finding]:
    """Diastolic below mean below systolic; pulsatility their difference."""
    if not {"sbp", "dbp"} & set(stay.lines):
        return []
    nothing = np.full(len(stay.order), np.nan)
    mean, sbp, dbp, pulse = (
        stay.lines.get(name, nothing) for name in ("map", "sbp", "dbp", "pulsatility")
    )
    slack = 1.0 + 0.02 * np.abs(sbp)  # mmHg: rounding, and means over other seconds
    with np.errstate(invalid="ignore"):
        wrong = (mean > sbp + slack) | (mean < dbp - slack) | (dbp > sbp + slack)
        wrong |= np.abs(pulse - (sbp - dbp)) > 2 * slack + 0.2 * np.abs(sbp - dbp)
    judged = np.isfinite(sbp) | np.isfinite(dbp)
    if wrong.sum() <= MANY * max(judged.sum(), 1):
        return []
    share = wrong.sum() / judged.sum()
    sentence = f"In {100 * share:.0f} % of the samples the pressures contradict each other."
    return [stay.found("D14", "action", "map", wrong, sentence)]


# ── level, pump, hours ───────────────────────────────────────────────────────────────────────────


def _levels(stay: Timed) -> list[Finding]:
    line, level, found = stay.trace.level, stay.level, []
    if line is None or level is None:
        return []
    if line.unreadable:
        count = len(line.unreadable)
        sentence = f"No level in {counted(count, 'cell')}, such as {quoted(line.examples)}."
        found.append(Finding("D13", "check", stay.trace.patient, "level", (), count, sentence))
    odd = np.isfinite(level) & ~np.isin(level, LEVELS)
    if odd.any():
        values = ", ".join(f"{x:g}" for x in np.unique(level[odd])[:4])
        samples = counted(int(odd.sum()), "sample")
        sentence = f"{samples} with a level outside {LOWEST} to {HIGHEST}: {values}."
        found.append(stay.found("D17", "check", "level", odd, sentence))
    return found


def _pump(stay: Timed, profile: PumpProfile) -> list[Finding]:
    """Speeds against the steps of the profile, and against the level."""
    if "speed" not in stay.lines:
        return []
    speed = stay.lines["speed"]
    read = level_of_speed(profile, speed)
    with np.errstate(invalid="ignore"):
        turning = speed > 0
    between = turning & (read <= OFF) & ~_around_changes(read)
    found = []
    if between.any():
        share = between.sum() / turning.sum()
        severity: Severity = "action" if share > 0.5 else "check"
        sentence = (
            f"{counted(int(between.sum()), 'sample')} ({100 * share:.2g} %) between the steps "
            f"of the profile, such as {speed[np.argmax(between)]:,.0f} rpm."
        )
        found.append(stay.found("D10", severity, "speed", between, sentence))
    return found if stay.level is None else [*found, *_mismatch(stay, read, stay.level)]


def _mismatch(stay: Timed, read, level) -> list[Finding]:
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
    return [stay.found("D09", "action", "level", wrong, sentence)]


def _shift(values: np.ndarray, by: int) -> np.ndarray:
    return values[np.clip(np.arange(len(values)) - by, 0, len(values) - 1)]


def _around_changes(level: np.ndarray) -> np.ndarray:
    """Samples whose neighbors lie on two different levels."""
    before, after = _shift(level, 1), _shift(level, -1)
    return (before != after) & (before > 0) & (after > 0)


def _suction(stay: Timed, profile: PumpProfile, suspects: frozenset[str]) -> list[Finding]:
    """Flow, or at 25 Hz motor current, far below the usual at the same level."""
    name = "current" if stay.trace.is_waveform else "flow"
    if name not in stay.lines or name in suspects:
        return []
    size = _window(stay)
    count = len(stay.second) // size * size
    values = stay.lines[name][:count].reshape(-1, size).mean(1)
    # A window that holds a change of level has no usual current.
    level, second = _any_level(stay, profile), stay.second[:count:size]
    first, last = level[:count:size], level[size - 1 : count : size]
    level = np.where(first == last, first, 0)
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
    return [Finding("D15", "note", stay.trace.patient, name, where, len(where), sentence)]


def _any_level(stay: Timed, profile: PumpProfile) -> np.ndarray:
    """The level as declared, or as the speed says; none where unknown or off."""
    if stay.level is not None:
        return np.nan_to_num(stay.level, nan=0.0).astype(int)
    if "speed" in stay.lines:
        return level_of_speed(profile, stay.lines["speed"])
    return np.zeros(len(stay.order), int)


def _usable_hours(stay: Timed, spoiled: list[Finding]) -> Finding:
    """Whole hours in which every required signal has at most the allowed share missing."""
    trace, second = stay.trace, stay.second
    names = ("placement",) if trace.is_waveform else tuple(NAMES[i] for i in REQUIRED)
    if {"sbp", "dbp"} <= set(stay.lines) and "pulsatility" not in stay.lines:
        names = (*(n for n in names if n != "pulsatility"), "sbp", "dbp")
    hours = int((second[-1] - second[0] + stay.interval) / 3600 + 1e-6) if len(second) else 0
    usable = np.full(hours, bool(stay.interval))
    for name in names:
        if name not in stay.lines or not hours:
            usable[:] = False
            continue
        good = np.isfinite(stay.lines[name])
        for a, b in (pair for f in spoiled if f.signal == name for pair in f.where):
            good &= (second < a) | (second > b)
        hour = ((second - second[0]) / 3600 + 1e-9).astype(int)
        wanted = 3600 / max(stay.interval, 1e-9)
        held = np.bincount(hour[good], minlength=hours)[:hours]
        usable &= held >= (1 - ALLOWED_MISSING) * wanted * (1 - 1e-6) - 1e-6
    share = usable.mean() if hours else 0.0
    severity: Severity = "note" if share >= ENOUGH else "check"
    sentence = f"{usable.sum()} of {hours} whole hours can be used."
    begin = float(second[0]) if len(second) else 0.0
    where = tuple((begin + 3600 * int(a), begin + 3600 * int(b + 1)) for a, b in runs(~usable))
    return Finding("D16", severity, trace.patient, "", where, int(usable.sum()), sentence)
