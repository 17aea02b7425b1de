"""What depends on a choice: other windows of the twin, and CORMPO with one number changed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax.random as jr

from stepdown.artifacts import Content
from stepdown.evaluation.forecast import score_forecasts, summarize
from stepdown.experiment.jobs import Desk, arrays_and_info
from stepdown.experiment.patients import SPLIT, on_cpu
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.scaling import fit_scaler
from stepdown.records.split import split_patients
from stepdown.twin.fit import TwinConfig, fit_twins

WINDOWS = ((15.0, 0.5), (60.0, 5.0), (60.0, 10.0), (120.0, 5.0), (120.0, 10.0))  # window, sample
FEW, SHORT = 120, 24.0  # patients and hours at 30 s: twenty times the samples
PERCENTILES = (5.0, 20.0, 35.0, 50.0, 65.0)
CHANGES = {  # parameter, field of the recipe, values
    "lambda": ("penalty_weight", (0.0, 0.02, 0.08, 0.15, 0.3)),
    "lambda1": ("jump_weight", (0.0, 0.25, 0.5, 1.0)),
    "lambda2": ("weaning_weight", (0.0, 0.1, 0.3)),
}


@dataclass(frozen=True)
class Window:
    """One of the paper's alternative settings of the twin."""

    window: float  # min
    minutes: float  # between samples
    cohort: CohortConfig
    seed: int
    twin: TwinConfig
    seeds: int  # of the Transformer


def windows_of(cohort: CohortConfig, seed: int, twin: TwinConfig, seeds: int) -> Iterator[Window]:
    """The paper's five windows on the same patients, the finest on fewer and shorter stays."""
    for window, minutes in WINDOWS:
        own = replace(cohort, minutes=minutes)
        if minutes < 1:
            own = replace(own, patients=min(cohort.patients, FEW), hours=SHORT)
        yield Window(window, minutes, own, seed, twin, seeds)


def make_window_job(desk: Desk, settings: Window) -> dict[str, Content]:
    """Squared errors of the Transformer, the best twin and persistence."""
    with on_cpu():
        cohort, _ = simulate_cohort(settings.cohort, key=jr.split(jr.key(settings.seed), 3)[0])
    slide = HoursConfig(stride=max(settings.window / 2, 15.0), window=settings.window)
    every = HoursConfig(stride=settings.window, window=settings.window)
    train, select, test = (
        make_transitions(part, cut)
        for part, cut in zip(
            split_patients(cohort, key=jr.key(SPLIT)), (slide, every, every), strict=True
        )
    )
    found: dict[str, dict[str, list[float]]] = {}
    for model in ("tdt", "best", "persistence"):
        keys = jr.split(jr.key(0), settings.seeds if model == "tdt" else 1)
        twins, _ = fit_twins(train, select, replace(settings.twin, model=model), keys=keys)
        scaler = fit_scaler(train)
        each = [summarize(score_forecasts(one, test, scaler, key=jr.key(1))) for one in twins]
        found[model] = {name: [one[name] for one in each] for name in ("mse_z", "mse_map")}
    return arrays_and_info({}, found)


def changes_of(recipe: ModelBasedConfig) -> Iterator[tuple[str, float, ModelBasedConfig]]:
    """CORMPO's recipe with one number changed: parameter, value, recipe."""
    for parameter, (name, values) in CHANGES.items():
        for value in values:
            yield parameter, value, replace(recipe, **{name: value})
