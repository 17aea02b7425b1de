"""The values of a recording, line by line: flat, out of range, missing, text (D05 to D14)."""

import numpy as np

from stepdown.records.clock import WAVEFORM_INTERVAL, Clock
from stepdown.records.findings import Finding, Severity, at, counted, runs, stretches
from stepdown.records.trace import HARD, OUR_UNITS, SOFT, WAVE_SOFT, Trace
from stepdown.signals import NAMES, REQUIRED

HELD_BY_CONTROLLER = "speed"  # stands still in a healthy recording
FLAT_SECONDS, FLAT_MINUTES = 10.0, 30.0
COARSE = (0.05, 0.3)  # share of neighbors that rounding makes equal: often, as a rule
CHANCE = 0.01  # flat stretches that rounding alone would make in a stay
MANY, MOST = 0.05, 0.9  # share of the values
ALLOWED_MISSING = 0.2  # share of an hour, or of a signal
LV_DERIVED = ("lvp", "lvedp", "tau", "ese")  # not shown by consoles below P-4
LV_SHOWN_FROM = 4


def examine_lines(
    trace: Trace, clock: Clock, second: np.ndarray, suspects: frozenset[str]
) -> list[Finding]:
    """Everything about single lines; a line of a suspect unit is not judged by range."""
    found = _absent(trace)
    for name, line in trace.lines.items():
        values = line.in_our_unit()[clock.order]
        found += _text(trace, name, second)
        if not np.isfinite(values).any() and not np.isinf(values).any():
            continue
        found += _missing(trace, clock, name, values, second)
        if name not in suspects:
            found += _ranges(trace, name, values, second)
        if name != HELD_BY_CONTROLLER:
            found += _flat(trace, clock, name, values, second)
    if not suspects & {"map", "sbp", "dbp", "pulsatility"}:
        found += _order(trace, clock, second)
    return found


def _finding(trace: Trace, code: str, severity: Severity, name: str, *rest) -> Finding:
    where, count, sentence = rest
    return Finding(code, severity, trace.patient, name, tuple(where), int(count), sentence)


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
        found.append(_finding(trace, "D11", severity, name, (), 0, sentence))
    if trace.level is None and "speed" not in trace.lines:
        sentence = "Neither a level nor a speed from which it could be read."
        found.append(_finding(trace, "D11", "action", "level", (), 0, sentence))
    return found


def _text(trace: Trace, name: str, second) -> list[Finding]:
    line = trace.lines[name]
    if not line.unreadable:
        return []
    time = trace.second[list(line.unreadable)]
    where = [(float(t), float(t)) for t in time if np.isfinite(t)]
    examples = ", ".join(repr(text) for text in line.examples[:3])
    sentence = f"No number in {counted(len(line.unreadable), 'cell')}, such as {examples}."
    return [_finding(trace, "D13", "action", name, where, len(line.unreadable), sentence)]


def _missing(trace: Trace, clock: Clock, name: str, values, second) -> list[Finding]:
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
    where = stretches(empty, second)
    return [_finding(trace, "D12", severity, name, where, empty.sum(), sentence)]


def _ranges(trace: Trace, name: str, values, second) -> list[Finding]:
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
        where = stretches(outside, second)
        found.append(_finding(trace, code, severity, name, where, outside.sum(), sentence))
    return found


def _flat(trace: Trace, clock: Clock, name: str, values, second) -> list[Finding]:
    if 0 < clock.interval < WAVEFORM_INTERVAL:
        flat = _stuck_samples(values, second, clock)
    else:
        flat = _repeated_values(values, second, clock)
    if not flat.any():
        return []
    where = stretches(flat, second)
    longest = max(last - first for first, last in where) + clock.interval
    sentence = (
        f"{counted(len(where), 'stretch')} without change, the longest for {at(longest)}; "
        f"first from {at(where[0][0])}, at {values[np.argmax(flat)]:.5g} {OUR_UNITS[name]}."
    )
    return [_finding(trace, "D05", "check", name, where, flat.sum(), sentence)]


def _digit(values: np.ndarray) -> float:
    """The smallest step between two values that occur."""
    steps = np.diff(np.unique(values[np.isfinite(values)][:200_000]))
    return float(steps.min()) if len(steps) else 0.0


def _stuck_samples(values, second, clock: Clock) -> np.ndarray:
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
        held = second[end - 1] - second[begin] + clock.interval
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


def _repeated_values(values, second, clock: Clock) -> np.ndarray:
    """Equal neighbors for half an hour, and longer than rounding makes by chance."""
    steps = np.diff(values)
    regular = np.diff(second) <= clock.longest if clock.interval else np.ones(len(steps), bool)
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


def _order(trace: Trace, clock: Clock, second) -> list[Finding]:
    """Diastolic below mean below systolic; pulsatility their difference."""
    if not {"sbp", "dbp"} & set(trace.lines):
        return []
    lines = {name: line.in_our_unit()[clock.order] for name, line in trace.lines.items()}
    nothing = np.full(len(second), np.nan)
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
    where = stretches(wrong, second)
    return [_finding(trace, "D14", "action", "map", where, wrong.sum(), sentence)]
