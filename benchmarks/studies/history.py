"""Does a longer history tell better what a level does? `python -m benchmarks.studies.history`.

The plainest twin there is: next hour's means as a linear function of the last hours' means and
levels and of the level now chosen, fitted to hours through which the level was held. Iterated, it
answers what one level more, held for six hours, does to MAP. Writes docs/results/history.json;
`python -m benchmarks.documents.results` makes the table of it.
"""

import json

import jax.random as jr
import numpy as np

from benchmarks.tables import DOCS, make_table
from stepdown.artifacts import provenance
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.patients.population import PresetName
from stepdown.records.split import split_patients
from stepdown.signals import MAP

HISTORIES = (1, 2, 3, 6)  # hours
HORIZON = 6
FILE = DOCS / "results/history.json"


def main() -> None:
    """One row per preset and length of the history."""
    found = []
    presets: tuple[PresetName, ...] = ("guarded", "benign", "hidden")
    for preset in presets:
        config = CohortConfig(preset=preset, version=1)
        cohort, _ = simulate_cohort(config, key=jr.split(jr.key(7), 3)[0])
        train, _, _ = split_patients(cohort, key=jr.key(0))
        signals, level, held = hourly_means(train)
        for history in HISTORIES:
            past, later = rows(signals, level, held, history)
            weights, fitted = fit(past, later)
            told = {"preset": preset, "history": history, "hours": len(past), "fitted": fitted}
            found.append(told | {"answer": answer(weights, history)})
            print(found[-1], flush=True)
    about = provenance(config={"presets": presets, "seed": 7, "version": 1})
    FILE.write_text(json.dumps({"rows": found, "about": about}, indent=1), encoding="utf-8")


def tables() -> dict[str, str]:
    """The table of docs/all-results.md, by its marker."""
    lines = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    heads = ("preset", "history, h", "hours", "R² of MAP")
    made = [
        [x["preset"], str(x["history"]), f"{x['hours']:,}", f"{x['fitted']:.3f}"]
        + [" ".join(f"{slope:+.2f}" for slope in x["answer"])]
        for x in lines
    ]
    return {"history": make_table([*heads, "MAP per level after 1, 2, ... 6 h, mmHg"], made)}


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
