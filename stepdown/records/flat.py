"""Flat lines: values that stand still for longer than rounding and a quiet patient explain.

The doctor and cleaning ask the same question here. A line is flat only if it keeps one value for
half an hour, and for so many samples in a row that its own habits do not make such a run: the
digits of the column and the steps that it usually takes say how often neighbors are equal. How
often a run goes on once two values were equal is counted in the rest of the stay, since a patient
is quiet for hours and lively for others. Where equal neighbors are the rule, as in a flow of one
decimal, a run says nothing and the line is not judged. A column that never moves is judged by the
usual movement of its signal: a mean pressure of whole mmHg that never moves is stuck, a flow of
one decimal need not be.

At 25 Hz a line is flat if it stays within one digit for ten seconds; a beating heart does not.
"""

import numpy as np

from stepdown.records.findings import runs
from stepdown.signals import KNOWN, NAMES

WAVEFORM_INTERVAL = 1 / 24  # s; faster is a waveform
FLAT_SECONDS, FLAT_MINUTES = 10.0, 30.0
CHANCE = (1e-3, 1e-4)  # flat runs that a sound column would make by chance; a rounded one
ROUNDED = 0.05  # share of equal neighbors from which on rounding makes them
PRIOR = 5  # steps
RULE = 0.5  # share of equal neighbors from which on equal values say nothing
# Lines that stand still in a healthy recording: a controller holds the speed, a pacemaker the
# heart rate, and what is charted by hand (signals.FURTHER) holds until the next entry.
STEADY = ("speed", "hr", *(name for name in KNOWN if name not in NAMES))
# Usual step between two means of ten minutes, in our units: half the median of simulated stays,
# so that a quiet patient is not accused.
USUAL_STEP = {
    **{"map": 0.7, "current": 1.4, "flow": 0.008, "lvp": 0.8, "lvedp": 1.0, "sbp": 0.8},
    **{"dbp": 0.8, "pulsatility": 0.6, "tau": 1.6, "ese": 0.007, "placement": 0.7},
}


def flat_samples(name: str, values: np.ndarray, second: np.ndarray, interval: float) -> np.ndarray:
    """Which samples of a line, in our unit and in order of time, belong to a flat stretch.

    `interval` is the usual time between two samples, s; 0 where it cannot be told.
    """
    if name in STEADY or not interval:
        return np.zeros(len(values), bool)
    if interval < WAVEFORM_INTERVAL:
        return _stuck_samples(values, second, interval)
    return _repeated_values(name, values, second, interval)


def digit(values: np.ndarray) -> float:
    """The smallest step between two values that occur; the last decimal of a single one."""
    known = np.unique(values[np.isfinite(values)][:200_000])
    steps = np.diff(known)
    # Two numbers that differ by rounding of the arithmetic are one.
    steps = steps[steps > 1e-9 * np.abs(known[-1])] if len(steps) else steps
    if len(steps):
        return float(steps.min())
    for places in range(7):
        if len(known) and abs(known[0] - round(float(known[0]), places)) < 1e-9 * abs(known[0]):
            return 10.0**-places
    return 0.0


def _repeated_values(name: str, values, second, interval: float) -> np.ndarray:
    """Equal neighbors for half an hour, and longer than chance makes them."""
    steps = np.diff(values)
    regular = np.diff(second) <= 1.5 * interval
    with np.errstate(invalid="ignore"):
        repeats = np.concatenate([(steps == 0) & regular, [False]])
    flat = np.zeros(len(values), bool)
    found = runs(repeats)
    lengths = found[:, 1] - found[:, 0] + 1  # equal steps in a row
    judged = int(np.sum(np.isfinite(steps) & regular))
    long = np.flatnonzero(lengths + 1 >= max(3, round(60 * FLAT_MINUTES / interval)))
    expected = digit(values) / (3 * USUAL_STEP[name]) if len(long) else 0.0
    for number in long:
        others, length = np.delete(lengths, number), int(lengths[number])
        chance = _chance(expected, interval, others, judged - length)
        allowed = CHANCE[chance > ROUNDED]
        if chance < RULE and judged * chance**length < allowed:
            first, last = found[number]
            flat[first : last + 2] = True
    return flat


def _chance(expected: float, interval: float, others: np.ndarray, steps: int) -> float:
    """How often a sound value is equal to the one before, as the other steps of the stay tell.

    Of the share of equal neighbors and the share of runs that went on, the larger counts. What the
    digits let expect weighs as much as `PRIOR` steps, since a short stay proves little: where the
    usual movement of the signal is far below a digit, only a lively stay proves anything.
    """
    equal = int(others.sum())
    if steps == equal:  # it moves nowhere else
        return expected / min(interval / 600.0, 1.0) ** 0.5
    share = max((equal + PRIOR * expected) / (steps + PRIOR), min(0.5 / steps, expected))
    return max(share, (equal - len(others) + share) / (equal + 1))


def _stuck_samples(values, second, interval: float) -> np.ndarray:
    """Samples that stay within one digit for ten seconds.

    Seconds are compared first: ten seconds hold nine whole ones. Their run then grows to the
    sample, as long as all stays within the digit.
    """
    slack = digit(values) * 1.001
    size = max(round(min(1 / interval, len(values) + 1)), 1)
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
        held = second[end - 1] - second[begin] + interval
        whole = end - begin >= 0.9 * held / interval  # no gap in between
        if held >= FLAT_SECONDS * (1 - 1e-3) - interval and whole:
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
