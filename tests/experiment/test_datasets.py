"""Where the hours of a data set come from: recorded, synthetic, or synthetic with noise."""

from dataclasses import dataclass

import jax.random as jr
import numpy as np
import pytest

from stepdown.experiment.datasets import Source, store_hours
from stepdown.experiment.jobs import Desk, Job, run_job
from stepdown.experiment.patients import read_hours
from stepdown.experiment.plan import make_plan
from stepdown.experiment.presets import PRESETS, CohortChoice
from stepdown.handover import Transitions
from stepdown.patients.pump import load_profile
from stepdown.policies.datasets import DatasetConfig, make_noiseless
from stepdown.policies.rules import RULES
from stepdown.problem.persistence import CarryForward
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import LEVEL

CONFIG = DatasetConfig(episodes=100, select_episodes=100)


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Desk:
    return Desk(tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def patients(desk) -> Job:
    job = make_plan(PRESETS["pocket"], CohortChoice()).patients
    run_job(job, desk)
    return job


@dataclass(frozen=True)
class ImagineByLot:
    """Levels drawn by lot, in patients that stay as they are."""

    patients: Job

    def make(self, desk: Desk):
        recorded, dynamics = read_hours(desk, self.patients), CarryForward(load_profile("cp"))
        return store_hours(
            *(
                make_noiseless(RULES["random"], dynamics, part, CONFIG, key=jr.key(0))
                for part in (recorded.train, recorded.select)
            )
        )


@pytest.fixture(scope="module")
def synthetic(desk, patients) -> Job:
    job = Job("data", ImagineByLot(patients))
    run_job(job, desk)
    return job


def test_recorded_hours_are_those_of_the_patients(desk, patients):
    known, found = (
        read_hours(desk, patients),
        Source("recorded", patients, None, CONFIG).hours(desk),
    )
    for own, part in zip((known.train, known.select), found, strict=True):
        assert part.role == own.role
        assert np.array_equal(part.state, own.state)


def test_the_noisy_set_is_the_noiseless_one_with_noise(desk, patients, synthetic):
    clean, noisy = (
        Source(name, patients, synthetic, CONFIG).hours(desk) for name in ("noiseless", "noisy")
    )
    sd = np.asarray(fit_scaler(read_hours(desk, patients).train).sd)

    def moved(before: Transitions, after: Transitions) -> np.ndarray:
        return (np.asarray(after.state) - np.asarray(before.state))[..., :LEVEL] / sd

    for before, after in zip(clean, noisy, strict=True):
        assert len(before.level) == 600
        change = moved(before, after)
        hit = np.abs(change).max((1, 2)) > 0
        assert hit.mean() == pytest.approx(0.8, abs=0.07)  # 4 sd of 600 states
        assert change[hit].std((0, 1)) == pytest.approx(np.full(12, 0.2), rel=0.1)
        assert np.array_equal(after.reward, before.reward)
        assert np.array_equal(after.level, before.level)
    train, select = (moved(*pair) for pair in zip(clean, noisy, strict=True))
    assert not np.allclose(train, select, atol=0.01)  # noise of their own
