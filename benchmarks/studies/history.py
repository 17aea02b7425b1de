"""Does a longer history tell better what a level does? `python -m benchmarks.studies.history`.

The plainest twin there is: next hour's means as a linear function of the last hours' means and
levels and of the level now chosen, fitted to hours through which the level was held. Iterated, it
answers what one level more, held for six hours, does to MAP. Prints a Markdown table to be read
beside the truth in docs/all-results.md.
"""

import jax
import jax.random as jr
import numpy as np

from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.patients.population import PresetName
from stepdown.records.split import split_patients
from stepdown.signals import MAP

HISTORIES = (1, 2, 3, 6)  # hours
HORIZON = 6


def main() -> None:
    """One row per preset and length of the history."""
    print(f"jax {jax.__version__}, seed 7, train patients\n")
    print("| preset | history, h | hours | R² of MAP | MAP per level after 1, 2, ... 6 h, mmHg |")
    print("|---|---|---|---|---|")
    presets: tuple[PresetName, ...] = ("guarded", "benign", "hidden")
    for preset in presets:
        cohort, _ = simulate_cohort(CohortConfig(preset=preset), key=jr.split(jr.key(7), 3)[0])
        train, _, _ = split_patients(cohort, key=jr.key(0))
        signals, level, held = hourly_means(train)
        for history in HISTORIES:
            past, later = rows(signals, level, held, history)
            weights, fitted = fit(past, later)
            slopes = " ".join(f"{x:+.2f}" for x in answer(weights, history))
            print(f"| {preset} | {history} | {len(past):,} | {fitted:.3f} | {slopes} |", flush=True)


def hourly_means(cohort: Cohort) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signals and levels hour by hour, NaN where unseen, and where the level was held."""
    hours = cohort.level.shape[1] // 6
    cut = [np.asarray(x)[:, : 6 * hours] for x in (cohort.signals, cohort.level, cohort.seen)]
    signals, level, seen = (x.reshape(len(x), hours, 6, *x.shape[2:]) for x in cut)
    means = np.where(np.expand_dims(seen.all(2), -1), signals.mean(2), np.nan)
    return means, level.mean(2), level.min(2) == level.max(2)


def rows(signals, level, held, history: int) -> tuple[np.ndarray, np.ndarray]:
    """What was known and what came: hours of the past, their levels, the level now, a one."""
    past, later = [], []
    for hour in range(history, signals.shape[1]):
        before = slice(hour - history, hour)
        known = [signals[:, before].reshape(len(signals), -1), level[:, before]]
        known += [level[:, hour, None], np.ones((len(signals), 1))]
        past.append(np.concatenate(known, axis=1)[held[:, hour]])
        later.append(signals[held[:, hour], hour])
    inputs, outputs = np.concatenate(past), np.concatenate(later)
    known = np.isfinite(inputs).all(1) & np.isfinite(outputs).all(1)
    return inputs[known], outputs[known]


def fit(past: np.ndarray, later: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares, and the explained share of MAP's variance."""
    weights = np.linalg.lstsq(past, later, rcond=None)[0]
    residual = (later - past @ weights)[:, MAP]
    return weights, 1 - residual.var() / later[:, MAP].var()


def answer(weights: np.ndarray, history: int) -> list[float]:
    """What one level more, held from now on, does to MAP hour after hour."""
    signals, levels, found = np.zeros((history, weights.shape[1])), np.zeros(history), []
    for _ in range(HORIZON):
        change = np.concatenate([signals.ravel(), levels, [1.0, 0.0]]) @ weights
        found.append(float(change[MAP]))
        signals, levels = np.vstack([signals[1:], change]), np.append(levels[1:], 1.0)
    return found


if __name__ == "__main__":
    main()
