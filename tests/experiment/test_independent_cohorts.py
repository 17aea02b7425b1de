"""Cohorts of one comparison share no patient: shown by the patients themselves."""

import itertools
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from stepdown.experiment.jobs import Desk, Job, run_job
from stepdown.experiment.judging import simulate_fresh
from stepdown.experiment.patients import SimulatePatients, read_truth
from stepdown.experiment.plan import make_plans
from stepdown.experiment.presets import PRESETS, CohortChoice
from stepdown.patients.cohort import CohortConfig, Latents
from stepdown.patients.population import Version
from stepdown.signals import SPEED

PATIENTS, HOURS = 3, 2.0
SEVERAL = sorted(name for name, sizes in PRESETS.items() if len(sizes.cohorts) > 1)


def numbers_of(signals: np.ndarray, latents: Latents) -> tuple[np.ndarray, np.ndarray]:
    """Who each patient is, and what was recorded of him; the speed, which the level sets, apart."""
    leaves = jax.tree.leaves(latents.patients.traits)
    traits = [np.asarray(x, float).reshape(PATIENTS, -1) for x in leaves]
    samples = np.delete(signals.astype(float), SPEED, axis=2).reshape(PATIENTS, -1)
    return np.concatenate(traits, axis=1), samples


def shared(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest share of equal numbers between a patient of ours and one of theirs."""
    return max(float(np.mean(one == other)) for one in ours for other in theirs)


def draw(
    choice: CohortChoice, path: Path, version: Version = 2
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The patients to learn from and the fresh ones to judge by, as a run draws them."""
    config = CohortConfig(PATIENTS, choice.preset, hours=HOURS, version=version)
    job = Job(choice.name, SimulatePatients(config, choice.seed))
    run_job(job, Desk(path))
    truth = read_truth(Desk(path), job)
    assert truth is not None
    fresh, latents = simulate_fresh(config, choice.seed)
    return {
        choice.name: numbers_of(np.asarray(truth.cohort.signals), truth.latents),
        f"{choice.name}, fresh": numbers_of(np.asarray(fresh.signals), latents),
    }


@pytest.mark.parametrize("preset", SEVERAL)
def test_no_two_cohorts_of_a_preset_share_a_patient(preset, tmp_path):
    sizes = PRESETS[preset]
    drawn: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for one in sizes.cohorts:
        drawn |= draw(one, tmp_path, sizes.version)
    assert len(drawn) == 2 * len(sizes.cohorts)
    for (name, ours), (other, theirs) in itertools.combinations(drawn.items(), 2):
        # a trait may be yes or no, and a signal may be at a bound
        assert shared(ours[0], theirs[0]) < 0.5, (name, other)
        assert shared(ours[1], theirs[1]) < 0.1, (name, other)


def test_one_seed_of_version_1_was_one_cohort_under_three_names(tmp_path):
    """What the check is against: another preset, the same patients, nearly the same samples."""
    ours, theirs = (draw(CohortChoice(x, 7), tmp_path, 1)[f"{x}-7"] for x in ("guarded", "hidden"))
    assert shared(ours[0], theirs[0]) > 0.9
    assert shared(ours[1], theirs[1]) > 0.9


def test_a_run_refuses_cohorts_that_draw_from_one_seed():
    """Version 2 draws from the preset, too; version 1 from the seed alone."""
    several = tuple(CohortChoice(x, 7) for x in ("guarded", "hidden"))
    config = replace(PRESETS["pocket"], cohorts=several)
    assert [plan.name for plan in make_plans(config)] == ["guarded-7", "hidden-7"]
    with pytest.raises(ValueError, match="guarded-7 and hidden-7, which draw theirs from the same"):
        make_plans(replace(config, version=1))
    twice = replace(config, cohorts=(CohortChoice(seed=7), CohortChoice(seed=8), CohortChoice()))
    with pytest.raises(ValueError, match="guarded-7 and guarded-7, which draw theirs"):
        make_plans(twice)
    apart = replace(config, cohorts=(CohortChoice(seed=7), CohortChoice(seed=8)), version=1)
    assert len(make_plans(apart)) == 2


@pytest.mark.parametrize("preset", list(PRESETS))
def test_the_cohorts_of_every_preset_are_accepted(preset):
    assert len(make_plans(PRESETS[preset])) == len(PRESETS[preset].cohorts)
