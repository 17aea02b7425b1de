"""One twin, one guardian, one policy, and patients with 12, 11, 9 and 7 signals."""

import dataclasses
import functools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.guardian.filled import fill_guardian, guardian_of
from stepdown.guardian.fit import DensityConfig, fit_guardian, save_guardian
from stepdown.guardian.guardians import DENSITIES, load_guardian
from stepdown.guardian.threshold import RECORDED
from stepdown.patients.pump import load_profile
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.filled import FilledPolicy
from stepdown.policies.saved import load_policy, save_policy
from stepdown.problem.filling import SUBSETS
from stepdown.problem.hours import keep_signals
from stepdown.signals import CURRENT, FLOW, LEVEL, NAMES, SPEED
from stepdown.training import FitConfig
from stepdown.twin.filled import FilledTwin
from stepdown.twin.fit import fit_twin, save_twin
from stepdown.twin.twins import load_twin
from tests.twin.toys import SELECT, TRAIN, pocket

KDE = DensityConfig(DENSITIES["kde"])
CLONING = BCConfig(widths=(16,), fit=FitConfig(epochs=2, batch=128))
TWIN = pocket("best", fit=FitConfig(epochs=2, batch=128))
EVERY = tuple(SUBSETS)
STATE, PLAN = SELECT.state[3], jnp.asarray(5)


def hours(names, role="select"):
    return keep_signals(TRAIN if role == "train" else SELECT, names)


@functools.cache
def fitted_twin(count: int = 12):
    names = SUBSETS[count]
    return fit_twin(hours(names, "train"), hours(names), TWIN, key=jr.key(0))[0]


@functools.cache
def fitted_guardian(count: int = 12):
    names = SUBSETS[count]
    return fit_guardian(hours(names, "train"), hours(names), KDE, key=jr.key(0))[0]


@functools.cache
def fitted_policy(count: int = 12):
    names = SUBSETS[count]
    return train_bc(hours(names, "train"), hours(names), CLONING, key=jr.key(0))[0]


@functools.cache
def saved(folder: Path):
    """The three, fitted on all signals, through the disk."""
    save_twin(folder / "twin", fitted_twin(), TWIN)
    save_guardian(folder / "guardian", fitted_guardian(), KDE, RECORDED, contains_patient_data=True)
    save_policy(folder / "policy", fitted_policy(), "bc")
    loaded = load_twin(folder / "twin")[0], load_guardian(folder / "guardian")[0]
    return *loaded, load_policy(folder / "policy")[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("models"))


def columns_of(count: int) -> np.ndarray:
    return np.array([name in SUBSETS[count] for name in NAMES])


@pytest.mark.parametrize("count", EVERY)
def test_one_twin_forecasts_what_the_patient_has(models, count):
    state = keep_signals(SELECT, SUBSETS[count]).state[3]
    twin, kept = FilledTwin(models[0]), columns_of(count)
    ask = eqx.filter_jit(
        lambda twin, state: (twin(state, PLAN, key=jr.key(1)), twin.center(state, PLAN))
    )
    for later in ask(twin, state):
        assert np.isfinite(later[:, :LEVEL][:, kept]).all()
        assert np.isnan(later[:, :LEVEL][:, ~kept]).all()
        np.testing.assert_array_equal(later[:, LEVEL], 5)
    for ours, own in zip(ask(twin, state), ask(FilledTwin(fitted_twin()), state), strict=True):
        np.testing.assert_array_equal(ours, own)
    if count == 12:
        np.testing.assert_array_equal(
            ask(twin, state)[1], eqx.filter_jit(models[0].center)(state, PLAN)
        )


def test_a_plan_is_followed_with_what_the_patient_has(models):
    state = keep_signals(SELECT, SUBSETS[7]).state[3]
    drawn = FilledTwin(models[0]).follow(
        state, jnp.array([[5, 4], [6, 6]]), keys=jr.split(jr.key(2), 3)
    )
    assert drawn.shape == (2, 3, 2, 6, 13)
    kept = np.append(columns_of(7), True)
    assert np.isfinite(drawn[..., kept]).all()
    assert np.isnan(drawn[..., ~kept]).all()


def test_speed_and_current_are_filled_by_the_pump():
    pump, twin = load_profile("cp"), FilledTwin(fitted_twin())
    state = STATE.at[:, jnp.array([SPEED, CURRENT])].set(jnp.nan)
    found, at = np.asarray(twin.fill(state)), int(STATE[-1, LEVEL]) - 2
    np.testing.assert_array_equal(found[:, SPEED], np.full(6, pump.speed[at]))
    slope = pump.current_per_flow * pump.speed[at] / pump.reference_speed
    by_map = pump.idle_current[at] + slope * np.asarray(state)[:, FLOW]
    np.testing.assert_allclose(found[:, CURRENT], by_map, rtol=1e-5)


@pytest.mark.parametrize("count", EVERY)
def test_one_guardian_judges_with_what_the_patient_has(models, count):
    poorer = keep_signals(SELECT, SUBSETS[count])
    filled = fill_guardian(models[1])
    judged = eqx.filter_jit(lambda one, hours: one.p_values(hours.state, hours.level))
    found = np.asarray(judged(filled, poorer))
    assert np.isfinite(filled(poorer.state[0], poorer.level[0]))
    np.testing.assert_allclose(
        found[5], filled.p_value(poorer.state[5], poorer.level[5]), atol=1e-6
    )
    anew = np.asarray(judged(guardian_of(models[1], SELECT, SUBSETS[count]), poorer))
    rate = 1 / (len(anew) + 1) + 0.05
    assert 0.03 < np.mean(anew <= rate) <= rate  # the promise holds with these signals
    if count == 12:
        np.testing.assert_array_equal(found, judged(models[1], SELECT))


@pytest.mark.parametrize("count", EVERY)
def test_one_policy_decides_with_what_the_patient_has(models, count):
    poorer = keep_signals(SELECT, SUBSETS[count])
    decide = eqx.filter_jit(lambda policy, states: jax.vmap(policy)(states))
    found = np.asarray(decide(FilledPolicy(models[2]), poorer.state))
    np.testing.assert_allclose(np.exp(found).sum(1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(found, decide(FilledPolicy(fitted_policy()), poorer.state))
    if count < 12:  # what was filled is what was to be expected: nearer than the train mean
        full = np.asarray(decide(fitted_policy(), SELECT.state))
        plain = jnp.where(
            jnp.isnan(poorer.state[..., :LEVEL]),
            models[2].scaler.mean[None, None],
            poorer.state[..., :LEVEL],
        )
        plain = np.asarray(decide(fitted_policy(), SELECT.state.at[..., :LEVEL].set(plain)))
        assert np.abs(found - full).mean() <= np.abs(plain - full).mean() * 1.02


@pytest.mark.parametrize("count", [11, 9, 7])
def test_a_refit_does_without(count):
    poorer, kept = keep_signals(SELECT, SUBSETS[count]), columns_of(count)
    later = fitted_twin(count).center(poorer.state[3], PLAN)
    assert np.isfinite(later[:, :LEVEL][:, kept]).all()
    assert np.isnan(later[:, :LEVEL][:, ~kept]).all()
    guardian = fitted_guardian(count)
    assert guardian.density.shape[1] == 6 * count + 2
    assert np.isfinite(guardian(poorer.state[3], PLAN))
    policy = fitted_policy(count)
    np.testing.assert_array_equal(policy(poorer.state[3]), policy(STATE))  # it never looks


def test_select_patients_who_lack_more_are_refused():
    fewer = dataclasses.replace(keep_signals(SELECT, SUBSETS[11]))
    with pytest.raises(ValueError, match="expected tau in the hours of select patients, got none"):
        fit_twin(TRAIN, fewer, TWIN, key=jr.key(0))
