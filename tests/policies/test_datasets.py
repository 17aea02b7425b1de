"""Synthetic records: who starts where, what is stored, and what noise leaves alone."""

from dataclasses import replace

import jax.random as jr
import numpy as np
import pytest

from stepdown.handover import Transitions
from stepdown.policies.datasets import DatasetConfig, add_noise, make_noiseless
from stepdown.policies.rules import RULES
from stepdown.problem.clinical import PAPER
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import HR, LEVEL, LVEDP, MAP, PULSATILITY
from stepdown.twin.coordinates import blank_coordinates
from stepdown.twin.fit import make_twin
from tests.policies.toys import PRESENT, MoreIsBetter, make_hours, random_states
from tests.twin.toys import TRAIN, pocket

CONFIG = DatasetConfig(episodes=400, select_episodes=50)
STARTS, HOURS = 40, 6


@pytest.fixture(scope="module")
def recorded() -> Transitions:
    """Forty hours of five patients, whom 10 to 14 stand for."""
    levels = np.arange(STARTS) % 8 + 2
    states = random_states(STARTS, levels, seed=0)
    later = random_states(STARTS, levels, seed=1)
    return make_hours(states, levels, later, patient=10 + np.arange(STARTS) // 8)


@pytest.fixture(scope="module")
def clean(recorded) -> Transitions:
    return make_noiseless(RULES["random"], MoreIsBetter(), recorded, CONFIG, key=jr.key(3))


@pytest.fixture(scope="module")
def noisy(clean) -> Transitions:
    return add_noise(clean, fit_scaler(clean), CONFIG, key=jr.key(4))


def by_episode(values) -> np.ndarray:
    values = np.asarray(values)
    return values.reshape(-1, HOURS, *values.shape[1:])


def test_episodes_start_at_recorded_hours_of_their_patient(recorded, clean):
    starts, patients = by_episode(clean.state)[:, 0], by_episode(clean.patient)
    known = np.asarray(recorded.state)
    which = [np.flatnonzero(known[:, 0, MAP] == start[0, MAP])[0] for start in starts]
    assert np.array_equal(starts, known[which], equal_nan=True)
    assert np.array_equal(patients, np.asarray(recorded.patient)[which][:, None].repeat(HOURS, 1))
    # 400 draws out of 40 with replacement: all come, none alike (P(one missing) is 0.002)
    times = np.bincount(which, minlength=STARTS)
    assert (times > 0).all()
    assert times.std() > 1.0


def test_hours_of_an_episode_follow_one_another(clean):
    states, later = by_episode(clean.state), by_episode(clean.next_state)
    assert len(clean.level) == 400 * HOURS
    assert np.array_equal(states[:, 1:], later[:, :-1], equal_nan=True)
    assert np.array_equal(by_episode(clean.last), np.tile(np.arange(HOURS) == 5, (400, 1)))
    assert np.array_equal(np.asarray(clean.next_state)[:, 0, LEVEL], clean.level)
    # MAP of the toy patient is told by the level alone
    pressure = np.asarray(clean.next_state)[..., MAP].mean(1)
    assert np.allclose(pressure, 40 + 2.0 * np.asarray(clean.level), atol=0.3)


def test_the_expert_is_sampled(recorded, clean):
    share = np.bincount(np.asarray(clean.level), minlength=10)[2:] / len(clean.level)
    assert share == pytest.approx(np.full(8, 0.125), abs=0.03)  # 4 sd of 2,400 draws
    held = make_noiseless(RULES["hold"], MoreIsBetter(), recorded, CONFIG, key=jr.key(3))
    assert np.array_equal(held.level, np.asarray(held.state)[:, 0, LEVEL])


def test_rewards_are_those_of_the_coming_hour(clean):
    """The formula of App. A, term by term in plain NumPy."""
    later = np.asarray(clean.next_state, float)
    low, pulse = later[..., MAP].min(1), later[..., PULSATILITY].min(1)
    charge = np.maximum(7 * (60 - low) / 20, 0)
    charge += np.maximum((later[..., MAP].mean(1) - 106) / 18, 0)
    charge += np.maximum((later[..., HR].min(1) - 75) ** 2 / 250 - 1, 0)
    charge += np.maximum(7 * (20 - pulse) / 20, 0) + np.maximum((pulse - 50) / 20, 0)
    wanted = np.clip((1.7018 - charge) / 2.6621, -2, 2)
    assert np.asarray(clean.unshaped) == pytest.approx(wanted, abs=1e-4)
    assert np.array_equal(clean.reward, clean.unshaped)
    assert np.ptp(wanted) > 1


def test_rewards_follow_the_clinical_settings(recorded, clean):
    halved = replace(CONFIG, clinical=replace(PAPER, reward_sd=2 * PAPER.reward_sd))
    less = make_noiseless(RULES["random"], MoreIsBetter(), recorded, halved, key=jr.key(3))
    inside = np.abs(np.asarray(clean.reward)) < PAPER.reward_clip
    assert inside.mean() > 0.5
    assert np.asarray(less.reward)[inside] == pytest.approx(
        np.asarray(clean.reward)[inside] / 2, abs=1e-5
    )


def test_select_patients_get_fewer_episodes_and_test_patients_none(recorded):
    def of(role):
        hours = replace(recorded, role=role)
        return make_noiseless(RULES["hold"], MoreIsBetter(), hours, CONFIG, key=jr.key(3))

    few = of("select")
    assert (few.role, len(few.level)) == ("select", 50 * HOURS)
    with pytest.raises(ValueError, match="expected train or select patients, got test"):
        of("test")


def test_the_same_key_gives_the_same_episodes(recorded, clean):
    again, other = (
        make_noiseless(RULES["random"], MoreIsBetter(), recorded, CONFIG, key=jr.key(seed))
        for seed in (3, 5)
    )
    assert np.array_equal(again.next_state, clean.next_state, equal_nan=True)
    assert not np.array_equal(other.level, clean.level)


def test_noise_hits_four_of_five_observations_by_a_fifth_of_an_sd(clean, noisy):
    scale = np.asarray(fit_scaler(clean).sd)[list(PRESENT)]
    moved = (np.asarray(noisy.state) - np.asarray(clean.state))[..., list(PRESENT)] / scale
    hit = np.abs(moved).max((1, 2)) > 0
    assert hit.mean() == pytest.approx(0.8, abs=0.03)  # 3.7 sd of 2,400 observations
    assert moved[hit].std((0, 1)) == pytest.approx(np.full(4, 0.2), rel=0.03)
    assert moved[hit].mean((0, 1)) == pytest.approx(np.zeros(4), abs=0.01)
    # independent over samples, signals and hours
    samples = moved[hit].reshape(hit.sum(), -1)
    assert np.abs(np.corrcoef(samples.T) - np.eye(24)).max() < 0.1
    assert (np.abs(moved[hit]).min((1, 2)) > 0).all()


def test_an_observation_is_blurred_once_and_rewards_not_at_all(clean, noisy):
    states, later = by_episode(noisy.state), by_episode(noisy.next_state)
    assert np.array_equal(states[:, 1:], later[:, :-1], equal_nan=True)
    ends = by_episode(clean.next_state)[:, -1] != later[:, -1]
    assert ends[..., LVEDP].any(1).mean() == pytest.approx(0.8, abs=0.08)
    for name in ("reward", "unshaped", "level", "last", "patient"):
        assert np.array_equal(getattr(noisy, name), getattr(clean, name))
    for name in ("state", "next_state"):
        before, after = (np.asarray(getattr(x, name))[..., LEVEL] for x in (clean, noisy))
        assert np.array_equal(before, after)
    assert noisy.role == "train"


def test_no_noise_changes_nothing(clean):
    none = replace(CONFIG, noise_sd=0.0)
    same = add_noise(clean, fit_scaler(clean), none, key=jr.key(4))
    assert np.array_equal(same.state, clean.state, equal_nan=True)
    assert np.array_equal(same.next_state, clean.next_state, equal_nan=True)


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"hours": 0}, {"noise_share": 1.2}])
def test_odd_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        DatasetConfig(**wrong)


def test_dynamics_that_need_an_absent_signal_are_refused(recorded):
    scaler = fit_scaler(TRAIN)
    scale = blank_coordinates(scaler.present, scaler.columns)
    twin = make_twin(scaler, scale, 6, pocket("mlp"), key=jr.key(0))
    with pytest.raises(ValueError, match="expected hours with speed"):
        make_noiseless(RULES["hold"], twin, recorded, CONFIG, key=jr.key(0))
