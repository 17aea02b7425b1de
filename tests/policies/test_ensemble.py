"""The ensemble against dynamics that are known: linear, Gaussian, correlated over the hour."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.policies.ensemble import fit_ensemble
from stepdown.signals import LEVEL, SIGNALS
from tests.policies.toys import CENTER, ENSEMBLE, PRESENT, ROWS, SD, make_hours, random_states

PULL, PER_LEVEL, NOISE, SHARED = 0.6, 0.2, 0.5, 0.8  # in sd; correlation of samples of a signal


@pytest.fixture(scope="module")
def fitted():
    """Each signal falls back to its center, follows the level, and has noise of its own."""
    draw = np.random.default_rng(0)
    levels = draw.integers(2, 10, size=(2, ROWS))
    states = random_states(ROWS, levels[0], seed=1)
    own, hour = draw.normal(size=(ROWS, 6, 13)), draw.normal(size=(ROWS, 1, 13))
    noise = NOISE * (np.sqrt(SHARED) * hour + np.sqrt(1 - SHARED) * own)
    later = expected(states, levels[1]) + (SD * noise).astype(np.float32)
    return fit_ensemble(make_hours(states, levels[1], later), ENSEMBLE, key=jr.key(1))


def expected(states, levels):
    """The mean of the coming hour."""
    pulled = CENTER + (1 - PULL) * (states - CENTER)
    later = pulled + SD * PER_LEVEL * (levels[:, None, None] - 5.5)
    later[:, :, LEVEL] = levels[:, None]
    return later.astype(np.float32)


def fresh(rows: int):
    levels = np.arange(rows) % 8 + 2
    return random_states(rows, levels[::-1], seed=5), levels


@eqx.filter_jit
def _predict(ensemble, states, levels):
    return jax.vmap(ensemble.predict)(states, levels)


def predict(ensemble, states, levels):
    """Mean and sd of the change by every member, (rows, members, 24)."""
    mean, sd = _predict(ensemble, jnp.asarray(states), jnp.asarray(levels))
    return np.asarray(mean), np.asarray(sd)


@eqx.filter_jit
def step_all(ensemble, states, levels, key):
    return ensemble.step_all(states, levels, key=key)


def scaled(ensemble, states):
    """The present signals in the ensemble's z-scores, (rows, 24)."""
    used = list(PRESENT)
    mean, sd = (np.asarray(x)[used] for x in (ensemble.scaler.mean, ensemble.scaler.sd))
    return ((np.asarray(states)[..., used] - mean) / sd).reshape(len(states), -1)


@pytest.fixture(scope="module")
def forecasts(fitted):
    """Means and sd of every member on fresh rows, and the true ones, in z-scores."""
    ensemble, _ = fitted
    states, levels = fresh(400)
    mean, sd = predict(ensemble, states, levels)
    truth = expected(states, levels)
    true_sd = (NOISE * SD[:LEVEL] / np.asarray(ensemble.scaler.sd))[list(PRESENT)]
    change = scaled(ensemble, truth) - scaled(ensemble, states)
    return mean, sd, change, np.tile(true_sd, 6)


def test_linear_dynamics_are_recovered(forecasts):
    mean, _, change, _ = forecasts
    error = mean - change[:, None, :]
    # what is left is chance: 5 % with 2,400 rows, 1 % with four times as many
    assert np.mean(error**2) < 0.08 * np.mean(change**2)
    assert np.mean(error.mean((0, 1)) ** 2) < 0.001 * np.mean(change**2)


def test_noise_is_recovered(forecasts):
    _, sd, _, true_sd = forecasts
    np.testing.assert_allclose(sd.mean((0, 1)) / true_sd, 1.0, atol=0.15)


def test_residual_correlation_of_held_out_patients_is_recovered(fitted):
    ensemble, _ = fitted
    found = np.asarray(ensemble.factor @ ensemble.factor.T)
    signal = np.arange(24) % 4
    true = np.where(np.equal.outer(signal, signal), SHARED, 0.0) + (1 - SHARED) * np.eye(24)
    assert np.abs(found - true).max() < 0.1


def test_drawn_noise_has_the_given_correlation(fitted):
    ensemble, _ = fitted
    states = jnp.asarray(fresh(8)[0][:1].repeat(4000, axis=0))
    drawn = scaled(ensemble, step_all(ensemble, states, jnp.full(4000, 5), jr.key(2)))
    found = np.asarray(np.corrcoef(drawn.T))
    np.testing.assert_allclose(found[0, [4, 20]], SHARED, atol=0.1)  # later samples of MAP
    np.testing.assert_allclose(found[0, [1, 2, 23]], 0.0, atol=0.1)  # other signals


def test_each_row_is_served_by_one_elite_and_elites_share_the_rows(fitted):
    """Without noise, a drawn hour is the mean of exactly one elite (asked one by one)."""
    ensemble, _ = fitted
    silent = eqx.tree_at(lambda e: e.factor, ensemble, jnp.zeros((24, 24)))
    states, levels = fresh(402)  # not a multiple of the elites
    later = step_all(silent, jnp.asarray(states), jnp.asarray(levels), jr.key(3))
    drawn = scaled(ensemble, later)
    means = predict(ensemble, states, levels)[0][:, np.asarray(ensemble.elites)]
    distance = np.abs(means - (drawn - scaled(ensemble, states))[:, None]).max(-1)
    nearest = distance.argmin(1)
    assert distance.min(1).max() < 1e-4
    np.testing.assert_array_equal(np.bincount(nearest), [201, 201])


def test_elites_are_the_members_with_the_best_held_out_loss(fitted):
    ensemble, info = fitted
    assert set(np.asarray(ensemble.elites).tolist()) == set(np.argsort(info["nll"])[:2].tolist())
    assert (info["r2"] > 0.5).all()


def test_one_draw_keeps_the_level_and_the_possible_ranges(fitted):
    ensemble, _ = fitted
    wild = jnp.asarray(fresh(8)[0][0] * np.where(np.arange(13) < LEVEL, 100.0, 1.0), jnp.float32)
    later = np.asarray(eqx.filter_jit(ensemble)(wild, jnp.asarray(7), key=jr.key(4)))
    low, high = np.array([SIGNALS[i].hard for i in PRESENT]).T
    signals = later[:, list(PRESENT)]
    assert (later[:, LEVEL] == 7).all()
    assert ((signals >= low) & (signals <= high)).all()
    assert np.isnan(np.delete(later, [*PRESENT, LEVEL], axis=1)).all()  # what was never recorded


def test_uncertainties_of_many_rows_are_those_of_each(fitted):
    ensemble, _ = fitted
    states, levels = fresh(8)
    mean, sd = predict(ensemble, states, levels)
    states, levels = jnp.asarray(states), jnp.asarray(levels)
    spread = np.linalg.norm(sd, axis=-1).max(1)
    apart = np.linalg.norm(mean - mean.mean(1, keepdims=True), axis=-1).max(1)
    np.testing.assert_allclose(ensemble.spreads(states, levels), spread, rtol=1e-4)
    np.testing.assert_allclose(ensemble.disagreements(states, levels), apart, rtol=1e-4)
    np.testing.assert_allclose(ensemble.spread(states[0], levels[0]), spread[0], rtol=1e-4)
    np.testing.assert_allclose(ensemble.disagreement(states[0], levels[0]), apart[0], rtol=1e-4)


def test_noise_of_each_number_on_its_own_is_an_option():
    states, levels = fresh(ROWS)
    config = dataclasses.replace(ENSEMBLE, correlated=False)
    ensemble, _ = fit_ensemble(make_hours(states, levels, states), config, key=jr.key(1))
    np.testing.assert_array_equal(ensemble.factor, np.eye(24))


def test_held_out_rows_need_a_second_patient_and_train_patients():
    states, levels = fresh(8)
    alone = make_hours(states, levels, states, patient=np.zeros(8, int))
    with pytest.raises(ValueError, match="at least 2 train patients, got 1"):
        fit_ensemble(alone, ENSEMBLE, key=jr.key(0))
    with pytest.raises(ValueError, match="expected train patients, got test"):
        fit_ensemble(dataclasses.replace(alone, role="test"), ENSEMBLE, key=jr.key(0))
