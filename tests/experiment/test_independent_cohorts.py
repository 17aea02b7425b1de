"""Cohorts of one comparison share no patient: shown by the patients themselves."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.studies.independent import cohorts_of, read_design
from stepdown.experiment.jobs import Desk, Job, run_job
from stepdown.experiment.judging import simulate_fresh
from stepdown.experiment.patients import SimulatePatients, read_truth
from stepdown.experiment.plan import make_plans
from stepdown.experiment.presets import DESIGN, PRESETS, CohortChoice, sizes_of
from stepdown.patients.cohort import CohortConfig, Latents
from stepdown.patients.population import Version
from stepdown.signals import SPEED

PATIENTS, HOURS = 3, 2.0
STUDY = read_design()  # of the study on independent cohorts


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


def test_no_two_cohorts_share_a_patient(tmp_path):
    """Neither to learn from nor to judge by: those of `full`, and the one of `paper`."""
    cohorts = (*PRESETS["full"].cohorts, *PRESETS["paper"].cohorts)
    drawn: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for one in cohorts:
        drawn |= draw(one, tmp_path, PRESETS["full"].version)
    assert len(drawn) == 2 * len(cohorts) == 50
    for (name, ours), (other, theirs) in itertools.combinations(drawn.items(), 2):
        # a trait may be yes or no, and a signal may be at a bound
        assert shared(ours[0], theirs[0]) < 0.5, (name, other)
        assert shared(ours[1], theirs[1]) < 0.1, (name, other)


def test_the_run_and_the_study_name_the_same_cohorts():
    assert DESIGN["full"]["seeds"] == STUDY["test"]["seeds"]
    versions: tuple[Version, ...] = (1, 2)
    for version in versions:
        cohorts = sizes_of("full", version=version).cohorts
        assert {(x.preset, x.seed) for x in cohorts} == {
            (x["preset"], x["seed"]) for x in cohorts_of(STUDY, "test") if x["version"] == version
        }
        assert [x.preset for x in cohorts[:3]] == ["guarded", "hidden", "benign"]
        assert all(
            sum(x.preset == y for x in cohorts) >= 8 for y in ("guarded", "hidden", "benign")
        )
    assert PRESETS["full"].seeds == 5
    assert {"planner", "distilled", "cormpo_kde", "mbpo"} < set(PRESETS["full"].methods)


def test_the_paper_preset_is_judged_where_nothing_was_designed():
    """Neither on a seed that was burnt nor on one of another comparison."""
    (cohort,) = PRESETS["paper"].cohorts
    prose = " ".join(STUDY["known_before"])
    burnt = {int(x) for x in re.findall(r"\b\d+\b", prose)}
    for first, last in re.findall(r"\b(\d+) to (\d+)\b", prose):
        burnt |= set(range(int(first), int(last) + 1))
    assert {7, 8, 9, 101, 13, 1115, 2128, 443} < burnt
    elsewhere = {x["seed"] for part in ("development", "test") for x in cohorts_of(STUDY, part)}
    assert cohort.seed not in burnt | elsewhere


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
