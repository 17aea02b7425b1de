"""How a cohort moves: within the hour, from hour to hour, in its tails, and together.

Means and spreads of samples say nothing about time. The numbers here do, and they are what the
second calibration of the simulated patients is held to (docs/cohort.md). Hours are full hours of
six samples, cut from the start of a stay; a sample that was not measured leaves its hour out for
that signal. NumPy only; sizes are in the unit of the signal.
"""

import dataclasses
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from stepdown.handover import Cohort
from stepdown.signals import HIGHEST, LOWEST, SAMPLE_MINUTES

ROBUST = 1.4826  # of the median distance from the median: the sd, if the values were normal


@dataclass(frozen=True)
class Moves:
    """How one signal moves."""

    inside: float  # sd of the samples of an hour, median over hours
    inside_tail: float  # ... 90th centile
    change_robust: float  # of hour means, from one hour to the next: robust sd
    change_sd: float
    change_kurtosis: float  # excess
    largest: float  # 99th centile of the steps between two samples of an hour


@dataclass(frozen=True)
class Practice:
    """How levels are set; shares in percent."""

    inside: float  # hours within which the level changes
    unchanged: float  # hours whose rounded level is that of the hour before
    steps: tuple[float, float, float, float]  # of changes between samples: 1, 2, 3, more levels
    levels: tuple[float, ...]  # of samples at P2..P9


def every_ten_minutes(cohort: Cohort) -> Cohort:
    """A finer cohort thinned to samples ten minutes apart; a coarser one as it is."""
    every = round(SAMPLE_MINUTES / cohort.minutes)
    if every <= 1:
        return cohort
    parts = {name: getattr(cohort, name)[:, ::every] for name in ("signals", "level", "seen")}
    return dataclasses.replace(cohort, **parts, minutes=SAMPLE_MINUTES)


def hours_of(cohort: Cohort) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signals (patients, hours, samples, columns), levels, and which hours are full."""
    per_hour, (patients, steps) = round(60 / cohort.minutes), cohort.seen.shape
    shape = (patients, steps // per_hour, per_hour)
    whole = shape[1] * per_hour
    signals = np.asarray(cohort.signals)[:, :whole].reshape(*shape, -1)
    levels = np.asarray(cohort.level)[:, :whole].reshape(shape)
    full = np.all(np.asarray(cohort.seen)[:, :whole].reshape(shape), axis=-1)
    return signals, levels, np.asarray(full)


def moves_of(cohort: Cohort) -> dict[str, Moves]:
    """How each signal of the cohort moves; one that was not measured is left out."""
    signals, _, full = hours_of(cohort)
    found = {}
    for index, name in enumerate(cohort.columns):
        hours = signals[..., index].astype(float)
        known = full & ~np.isnan(hours).any(-1)
        both = known[:, 1:] & known[:, :-1]
        if both.any():
            means = np.where(known, hours.mean(-1), 0.0)
            change, steps = (means[:, 1:] - means[:, :-1])[both], np.diff(hours[known], axis=-1)
            found[name] = moves_from(hours[known].std(-1), change, np.abs(steps))
    return found


def moves_from(spread: np.ndarray, change: np.ndarray, steps: np.ndarray) -> Moves:
    """From the sd inside each hour, changes of hour means, and steps between samples of hours."""
    inside, tail = np.quantile(spread, [0.5, 0.9])
    middle = np.median(change)
    return Moves(
        inside=float(inside),
        inside_tail=float(tail),
        change_robust=float(ROBUST * np.median(np.abs(change - middle))),
        change_sd=float(change.std()),
        change_kurtosis=excess_kurtosis(change),
        largest=float(np.quantile(steps, 0.99)),
    )


def excess_kurtosis(values: np.ndarray) -> float:
    """Fourth moment over the squared variance, less the 3 of normal numbers; NaN if all equal."""
    away = values - values.mean()
    variance = np.mean(away**2)
    return float(np.mean(away**4) / variance**2 - 3) if variance > 0 else float("nan")


def practice_of(cohort: Cohort) -> Practice:
    """How levels are set in the cohort."""
    _, levels, full = hours_of(cohort)
    rounded = np.floor(levels.mean(-1) + 0.5)
    both = full[:, 1:] & full[:, :-1]
    seen, level = np.asarray(cohort.seen), np.asarray(cohort.level)
    steps = np.abs(np.diff(level, axis=1))[seen[:, 1:] & seen[:, :-1]]
    sizes = np.bincount(np.minimum(steps[steps > 0], 4), minlength=5)[1:]
    counts = np.bincount(level[seen], minlength=HIGHEST + 1)[LOWEST : HIGHEST + 1]
    return Practice(
        inside=_percent((levels != levels[..., :1]).any(-1)[full]),
        unchanged=_percent((rounded[:, 1:] == rounded[:, :-1])[both]),
        steps=tuple(100 * sizes / max(sizes.sum(), 1)),
        levels=tuple(100 * counts / max(counts.sum(), 1)),
    )


def _percent(flags: np.ndarray) -> float:
    return 100 * float(flags.mean()) if flags.size else float("nan")


def correlations_of(cohort: Cohort) -> dict[tuple[str, str], float]:
    """Correlation over all samples of every two signals, the level among them; NaN if unknown."""
    seen = np.asarray(cohort.seen)
    samples = np.asarray(cohort.signals)[seen].astype(float)
    samples = np.concatenate([samples, np.asarray(cohort.level)[seen][:, None]], axis=1)
    names = (*cohort.columns, "level")
    known = ~np.isnan(samples)
    found = {}
    for one, other in combinations(range(len(names)), 2):
        rows = known[:, one] & known[:, other]
        pair = samples[rows][:, [one, other]]
        steady = len(pair) < 2 or (pair.std(0) == 0).any()
        found[names[one], names[other]] = (
            float("nan") if steady else float(np.corrcoef(pair.T)[0, 1])
        )
    return found
