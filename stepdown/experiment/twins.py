"""Jobs of twins: fit one kind some times, score it on test patients; the paper's windows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.evaluation.forecast import (
    METRICS,
    Examples,
    describe_honesty,
    forecast_examples,
    grow_errors,
    score_forecasts,
    summarize,
    summarize_growth,
)
from stepdown.evaluation.risks import calibrate_risks
from stepdown.experiment.jobs import Desk, Job, arrays_and_info, saved
from stepdown.experiment.patients import on_cpu, read_hours, read_sliding
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.scaling import fit_scaler
from stepdown.records.split import SPLIT, split_patients
from stepdown.twin.fit import KIND, TwinConfig, fit_twins, save_twin

COMPARED = ("mae", "mae_z", "mae_map", "mae_changing", "crps", "crps_z")
KEY, SCORES, GROWTH, EXAMPLES = 0, 200, 300, 0  # seeds of fits, scores, growing errors, examples
RISKS = 400  # seed of six-hour courses


@dataclass(frozen=True)
class FitTwin:
    """Fit a kind of twin some times and score it on test patients; the first one is kept."""

    patients: Job
    config: TwinConfig
    seeds: int

    def make(self, desk: Desk) -> dict[str, Content]:
        """Scores of every fit, and of the first one all that figures need."""
        hours, config = read_hours(desk, self.patients), self.config
        keys = jr.split(jr.key(KEY), self.seeds)
        with desk.teller.progress(f"fitting {config.kind.name}") as watch:
            train = read_sliding(desk, self.patients, config.kind.stride)
            twins, info = fit_twins(train, hours.select, config, keys=keys, watch=watch)
        scaler = fit_scaler(hours.sliding)
        scores = [
            score_forecasts(twin, hours.test, scaler, key=jr.key(SCORES + i))
            for i, twin in enumerate(twins)
        ]
        growth = grow_errors(twins[0], hours.test, key=jr.key(GROWTH))
        found = {
            "seeds": [summarize(one) for one in scores],
            "growth": summarize_growth(growth),
            "starts": len(growth.patient),
            "honesty": describe_honesty(scores[0], key=jr.key(SCORES)),
            "risks": calibrate_risks(twins[0], hours.test, key=jr.key(RISKS)),
            "epochs": np.asarray(info.get("best_epoch", 0)).tolist(),
        }
        rows = {name: np.stack([METRICS[name](one) for one in scores]) for name in COMPARED}
        rows["patient"] = np.asarray(scores[0].patient)
        if examples := forecast_examples(twins[0], hours.test, key=jr.key(EXAMPLES)):
            rows |= {f"example/{name}": getattr(examples, name) for name in _SHOWN}
        return arrays_and_info(rows, found) | saved(
            lambda path: save_twin(path, twins[0], config, seed=KEY), KIND
        )


_SHOWN = tuple(Examples.__dataclass_fields__)


def read_examples(desk: Desk, job: Job) -> Examples | None:
    """The example hours that a job has forecast, if there are any."""
    arrays = desk.arrays(job)
    if f"example/{_SHOWN[0]}" not in arrays:
        return None
    return Examples(*(arrays[f"example/{name}"] for name in _SHOWN))


# ── other windows ────────────────────────────────────────────────────────────────────────────────

WINDOWS = ((15.0, 0.5), (60.0, 5.0), (60.0, 10.0), (120.0, 5.0), (120.0, 10.0))  # window, sample
FEW, SHORT = 120, 24.0  # patients and hours at 30 s: twenty times the samples


@dataclass(frozen=True)
class ScoreWindow:
    """One of the paper's alternative settings: squared errors of twins on the same patients."""

    window: float  # min
    cohort: CohortConfig  # with the time between samples
    seed: int
    twins: tuple[tuple[TwinConfig, int], ...]  # and how often each is fitted

    def make(self, desk: Desk) -> dict[str, Content]:
        """Squared errors by model and metric, one for each fit."""
        with on_cpu():
            cohort, _ = simulate_cohort(self.cohort, key=jr.split(jr.key(self.seed), 3)[0])
        slide = HoursConfig(stride=max(self.window / 2, 15.0), window=self.window)
        every = HoursConfig(stride=self.window, window=self.window)
        train, select, test = (
            make_transitions(part, cut)
            for part, cut in zip(
                split_patients(cohort, key=jr.key(SPLIT)), (slide, every, every), strict=True
            )
        )
        found: dict[str, dict[str, list[float]]] = {}
        for config, seeds in self.twins:
            twins, _ = fit_twins(train, select, config, keys=jr.split(jr.key(0), seeds))
            scaler = fit_scaler(train)
            each = [summarize(score_forecasts(one, test, scaler, key=jr.key(1))) for one in twins]
            found[config.kind.name] = {
                name: [one[name] for one in each] for name in ("mse_z", "mse_map")
            }
        return arrays_and_info({}, found)


def windows_of(
    cohort: CohortConfig, seed: int, twins: tuple[tuple[TwinConfig, int], ...]
) -> Iterator[ScoreWindow]:
    """The paper's five windows on the same patients, the finest on fewer and shorter stays."""
    for window, minutes in WINDOWS:
        own = replace(cohort, minutes=minutes)
        if minutes < 1:
            own = replace(own, patients=min(cohort.patients, FEW), hours=SHORT)
        yield ScoreWindow(window, own, seed, twins)
