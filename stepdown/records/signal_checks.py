"""The signals of a recording, one by one: units, ranges, flat lines, gaps, text (D05 to D14).

A unit is suspect if the median of the stay is no possible one in the declared unit and a usual one
in another known unit. Where two units overlap, other columns help: pulsatility is systolic less
diastolic pressure. What cannot be told is listed in docs/doctor.md: kPa on LV pressures that are
declared in mmHg, and cmH2O, a third off mmHg, on everything. Nothing is repaired.
"""

import numpy as np

from stepdown.records.clock import WAVEFORM_INTERVAL, Clock
from stepdown.records.findings import (
    Finding,
    Severity,
    at,
    counted,
    quoted,
    runs,
    stretches,
)
from stepdown.records.mapping import (
    BY_SIZE,
    OUR_UNITS,
    TYPICAL,
    UNITS,
    likely_units,
    other_units,
    units_of,
)
from stepdown.records.stays import Trace
from stepdown.signals import KNOWN, NAMES, REQUIRED

# Lines that stand still in a healthy recording: a controller holds the speed, and what is charted
# by hand (signals.FURTHER) holds until the next entry.
STEADY = ("speed", *(name for name in KNOWN if name not in NAMES))
FLAT_SECONDS, FLAT_MINUTES = 10.0, 30.0
COARSE = (0.05, 0.3)  # share of neighbors that rounding makes equal: often, as a rule
CHANCE = 0.01  # flat stretches that rounding alone would make in a stay
MANY, MOST = 0.05, 0.9  # share of the values
ALLOWED_MISSING = 0.2  # share of an hour, or of a signal
LV_DERIVED = ("lvp", "lvedp", "tau", "ese")  # not shown by consoles below P-4
LV_SHOWN_FROM = 4
WINDOW = 2.0  # s at 25 Hz
NEAR = np.log(1.6)  # a stretch in another unit continues the stay within this factor
# A waveform swings further than the means of the same line, and a flush goes to 300 mmHg.
HARD = {signal.name: signal.hard for signal in KNOWN.values()} | {"placement": (-50.0, 350.0)}
SOFT = {signal.name: signal.soft for signal in KNOWN.values()} | {"placement": (-30.0, 235.0)}
WAVE_SOFT = SOFT | {"current": (0.0, 1400.0)}


def examine_lines(trace: Trace, clock: Clock, suspects: frozenset[str]) -> list[Finding]:
    """Everything about single lines; a line of a suspect unit is not judged by range."""
    found = _absent(trace)
    for name, line in trace.lines.items():
        values = line.in_our_unit()[clock.order]
        found += _text(trace, name)
        if not np.isfinite(values).any() and not np.isinf(values).any():
            continue
        found += _missing(trace, clock, name, values)
        if name not in suspects:
            found += _ranges(trace, clock, name, values)
        if name not in STEADY:
            found += _flat(trace, clock, name, values)
    if not suspects & {"map", "sbp", "dbp", "pulsatility"}:
        found += _order(trace, clock)
    return found


def _absent(trace: Trace) -> list[Finding]:
    needed = {*trace.expected} if trace.is_waveform else {NAMES[i] for i in REQUIRED}
    if {"sbp", "dbp"} <= set(trace.lines):
        needed -= {"pulsatility"}  # their difference
    found = []
    for name in trace.expected:
        line = trace.lines.get(name)
        if line is not None and not np.all(np.isnan(line.values)):
            continue
        severity: Severity = "action" if name in needed else "note"
        sentence = "No column holds it." if line is None else "Its column holds no value at all."
        found.append(Finding("D11", severity, trace.patient, name, (), 0, sentence))
    if trace.level is None and "speed" not in trace.lines:
        sentence = "Neither a level nor a speed from which it could be read."
        found.append(Finding("D11", "action", trace.patient, "level", (), 0, sentence))
    return found


def _text(trace: Trace, name: str) -> list[Finding]:
    line = trace.lines[name]
    if not line.unreadable:
        return []
    time = trace.second[list(line.unreadable)]
    where = tuple((float(t), float(t)) for t in time if np.isfinite(t))
    cells = counted(len(line.unreadable), "cell")
    sentence = f"No number in {cells}, such as {quoted(line.examples)}."
    return [Finding("D13", "action", trace.patient, name, where, len(line.unreadable), sentence)]


def _missing(trace: Trace, clock: Clock, name: str, values) -> list[Finding]:
    """Empty samples of a line that has others; below P-4 a console shows no LV signals."""
    empty = np.isnan(values)
    # A row without any value is a gap of the stay, not of this line.
    others = [line.values[clock.order] for line in trace.lines.values()]
    empty &= np.any([~np.isnan(x) for x in others], axis=0)
    if name in LV_DERIVED and trace.level is not None:
        with np.errstate(invalid="ignore"):
            empty &= ~(trace.level.values[clock.order] < LV_SHOWN_FROM)
    if not empty.any():
        return []
    share = empty.sum() / len(values)
    severity: Severity = "check" if share > ALLOWED_MISSING else "note"
    longest = max(int(b - a) + 1 for a, b in runs(empty))
    sentence = (
        f"{100 * share:.1f} % of the samples are empty, at most "
        f"{at(longest * clock.interval)} in one piece."
    )
    where = stretches(empty, clock.second)
    return [Finding("D12", severity, trace.patient, name, where, int(empty.sum()), sentence)]


def _ranges(trace: Trace, clock: Clock, name: str, values) -> list[Finding]:
    found = []
    soft = (WAVE_SOFT if trace.is_waveform else SOFT)[name]
    known = values[~np.isnan(values)]
    for code, (low, high) in (("D06", HARD[name]), ("D07", soft)):
        with np.errstate(invalid="ignore"):
            outside = (values < low) | (values > high)
            if code == "D07":  # what is no measurement was named already
                outside &= (values >= HARD[name][0]) & (values <= HARD[name][1])
        if not outside.any():
            continue
        share = outside.sum() / len(known)
        severity: Severity = "check" if code == "D06" else "note"
        if code == "D06" and share > MANY:
            severity = "action"
        if code == "D07" and share > MOST:
            severity = "check"
        odd = values[outside]
        sentence = (
            f"{counted(int(outside.sum()), 'value')} ({100 * share:.2g} %) outside {low:g} to "
            f"{high:g} {OUR_UNITS[name]}, from {odd.min():.6g} to {odd.max():.6g}."
        )
        where = stretches(outside, clock.second)
        found.append(
            Finding(code, severity, trace.patient, name, where, int(outside.sum()), sentence)
        )
    return found


def _flat(trace: Trace, clock: Clock, name: str, values) -> list[Finding]:
    if 0 < clock.interval < WAVEFORM_INTERVAL:
        flat = _stuck_samples(values, clock)
    else:
        flat = _repeated_values(values, clock)
    if not flat.any():
        return []
    where = stretches(flat, clock.second)
    longest = max(last - first for first, last in where) + clock.interval
    sentence = (
        f"{counted(len(where), 'stretch')} without change, the longest for {at(longest)}; "
        f"first from {at(where[0][0])}, at {values[np.argmax(flat)]:.5g} {OUR_UNITS[name]}."
    )
    return [Finding("D05", "check", trace.patient, name, where, int(flat.sum()), sentence)]


def _digit(values: np.ndarray) -> float:
    """The smallest step between two values that occur."""
    steps = np.diff(np.unique(values[np.isfinite(values)][:200_000]))
    return float(steps.min()) if len(steps) else 0.0


def _stuck_samples(values, clock: Clock) -> np.ndarray:
    """Samples that stay within one digit for ten seconds.

    Seconds are compared first: ten seconds hold nine whole ones. Their run then grows to the
    sample, as long as all stays within the digit.
    """
    slack = _digit(values) * 1.001
    size = max(round(min(1 / clock.interval, len(values) + 1)), 1)
    count = len(values) // size
    flat = np.zeros(len(values), bool)
    if count < FLAT_SECONDS - 1:
        return flat
    blocks = values[: count * size].reshape(count, size)
    high, low = blocks.max(axis=1), blocks.min(axis=1)  # NaN where anything is missing
    windows = np.lib.stride_tricks.sliding_window_view
    width = int(FLAT_SECONDS) - 1
    with np.errstate(invalid="ignore"):
        still = windows(high, width).max(axis=1) - windows(low, width).min(axis=1) <= slack
    for first, last in runs(still):
        begin, end = _grow(values, int(first) * size, int(last + width) * size, slack)
        held = clock.second[end - 1] - clock.second[begin] + clock.interval
        whole = end - begin >= 0.9 * held / clock.interval  # no gap in between
        if held >= FLAT_SECONDS * (1 - 1e-3) - clock.interval and whole:
            flat[begin:end] = True
    return flat


def _grow(values, begin: int, end: int, slack: float) -> tuple[int, int]:
    """The longest stretch around this one that still stays within the slack."""
    high, low = values[begin:end].max(), values[begin:end].min()
    while end < len(values) and max(high, values[end]) - min(low, values[end]) <= slack:
        high, low, end = max(high, values[end]), min(low, values[end]), end + 1
    while begin and max(high, values[begin - 1]) - min(low, values[begin - 1]) <= slack:
        begin -= 1
        high, low = max(high, values[begin]), min(low, values[begin])
    return begin, end


def _repeated_values(values, clock: Clock) -> np.ndarray:
    """Equal neighbors for half an hour, and longer than rounding makes by chance."""
    steps = np.diff(values)
    regular = np.diff(clock.second) <= clock.longest if clock.interval else True
    known = np.abs(steps[np.isfinite(steps) & (steps != 0)])
    shortest = max(3, round(60 * FLAT_MINUTES / max(clock.interval, 1e-9)))
    repeats = np.concatenate([(steps == 0) & regular, [False]])
    flat = np.zeros(len(values), bool)
    shortest = max(shortest, _longer_than_chance(values, known, runs(repeats)))
    for first, last in runs(repeats):
        if last - first + 2 >= shortest:
            flat[first : last + 2] = True
    return flat


def _longer_than_chance(values, steps, repeats: np.ndarray) -> int:
    """Equal values in a row that rounding alone does not make.

    The digit and the usual step say how often neighbors are equal by rounding. Where that is
    often, the line may also be steady for a while, so more is asked; where it is a matter of
    course, equal values say nothing.
    """
    count = int(np.isfinite(values).sum())
    if not len(steps) or not len(repeats):
        return 0
    chance = _digit(values) / (3 * float(np.median(steps)))
    lengths = repeats[:, 1] - repeats[:, 0] + 1
    allowed = CHANCE
    if chance > COARSE[0]:
        chance = max(chance, (lengths.sum() - lengths.max()) / max(count - lengths.max(), 1))
        allowed = CHANCE / 100
    if chance > COARSE[1]:
        return count + 1
    chance = max(chance, 0.5 / count)
    return int(np.ceil(1 + np.log(allowed / count) / np.log(chance) - 1e-9))


def _order(trace: Trace, clock: Clock) -> list[Finding]:
    """Diastolic below mean below systolic; pulsatility their difference."""
    if not {"sbp", "dbp"} & set(trace.lines):
        return []
    lines = {name: line.in_our_unit()[clock.order] for name, line in trace.lines.items()}
    nothing = np.full(len(clock.order), np.nan)
    mean, sbp, dbp, pulse = (
        lines.get(name, nothing) for name in ("map", "sbp", "dbp", "pulsatility")
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
    where = stretches(wrong, clock.second)
    return [Finding("D14", "action", trace.patient, "map", where, int(wrong.sum()), sentence)]


def suspect_units(trace: Trace, clock: Clock) -> list[Finding]:
    """Findings about the units of a stay (D08)."""
    if not len(clock.order):
        return []
    found = []
    for name in trace.lines:
        found += _whole_column(trace, clock, name) or _slips(trace, clock, name)
    suspects = {finding.signal for finding in found}
    if {"sbp", "dbp", "pulsatility"} <= set(trace.lines) and "pulsatility" not in suspects:
        found += _pulsatility(trace, clock, suspects)
    return found


def _whole_column(trace: Trace, clock: Clock, name: str) -> list[Finding]:
    """A median that is no possible one in the declared unit, or that has none."""
    line = trace.lines[name]
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
    where, count = _whole_stay(clock), len(line.values)
    return [Finding("D08", "action", trace.patient, name, where, count, sentence, units)]


def _whole_stay(clock: Clock) -> tuple[tuple[float, float], ...]:
    return ((float(clock.second[0]), float(clock.second[-1])),)


def _slips(trace: Trace, clock: Clock, name: str) -> list[Finding]:
    """Stretches in another unit than the rest of the column."""
    line = trace.lines[name]
    if name not in BY_SIZE or line.unit is None:
        return []
    size = _window(clock.second) if trace.is_waveform else 1
    values, peak = _windows(line.in_our_unit()[clock.order], size)
    low, high = TYPICAL[name]
    inside = (values >= low) & (values <= high)
    odd = np.isfinite(values) & ~inside & (values > 0)
    if not odd.any() or not inside.any():
        return []
    usual = np.median(values[inside])
    for unit in other_units(name, line.unit):
        # Written in `unit` but read as declared: the truth differs by this factor.
        with np.errstate(invalid="ignore", over="ignore"):
            factor = UNITS[unit][1] / UNITS[line.unit][1]
            true = np.where(odd, values, np.nan) * factor
            slip = (np.abs(np.log(true / usual)) < NEAR) & (true >= low) & (true <= high)
            slip &= peak * factor <= HARD[name][1]
        slip = _longer_than_one(slip)
        if slip.any():
            where = stretches(slip, clock.second[::size])
            count = int(slip.sum()) * size
            words = f"{counted(count, 'sample')} from {at(where[0][0])} on"
            sentence = f"{words} in {unit} rather than {line.unit}."
            return [Finding("D08", "action", trace.patient, name, where, count, sentence, (unit,))]
    return []


def _window(second: np.ndarray) -> int:
    """Samples in two seconds."""
    steps = np.diff(second[:1000])
    usual = float(np.median(steps)) if len(steps) else 0.0
    # No window is longer than the record, however small its steps claim to be.
    return max(round(min(WINDOW / usual, len(second) + 1)), 1) if usual > 0 else 1


def _windows(values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Median and largest value of every window: the low half of a beat is no slip to kPa."""
    if size == 1:
        return values, values
    windows = values[: len(values) // size * size].reshape(-1, size)
    return np.median(windows, axis=1), windows.max(axis=1)


def _longer_than_one(mask: np.ndarray) -> np.ndarray:
    """Without single samples: one odd value is a glitch, not a unit."""
    kept = np.zeros_like(mask)
    for first, last in runs(mask):
        kept[first : last + 1] = last > first
    return kept


def _pulsatility(trace: Trace, clock: Clock, suspects: set[str]) -> list[Finding]:
    """Pulsatility in another unit than the pressures that it is the difference of.

    Where these are in a wrong unit themselves, a pulsatility that fits them is so too.
    """
    name, where = "pulsatility", _whole_stay(clock)
    line = trace.lines[name]
    if line.unit is None or len(suspects & {"sbp", "dbp"}) == 1:
        return []
    difference = trace.lines["sbp"].in_our_unit() - trace.lines["dbp"].in_our_unit()
    known = np.isfinite(difference) & np.isfinite(line.values) & (difference > 0)
    if known.sum() < 3:
        return []
    share = float(np.median(line.in_our_unit()[known] / difference[known]))
    fits = share > 0 and abs(np.log(share)) < 0.2
    count = len(line.values)
    if "sbp" in suspects:
        sentence = "It is systolic less diastolic pressure, whose units are suspect."
        found = Finding("D08", "action", trace.patient, name, where, count, sentence)
        return [found] if fits else []
    if fits or share <= 0:
        return []
    for unit in units_of(name):
        if abs(np.log(share * UNITS[unit][1] / UNITS[line.unit][1])) < 0.1:
            sentence = (
                f"Declared in {line.unit}, it would be {share:.3g} times systolic less diastolic "
                f"pressure; in {unit} it is their difference."
            )
            return [Finding("D08", "action", trace.patient, name, where, count, sentence, (unit,))]
    return []
