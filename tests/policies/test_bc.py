"""Cloning gives the probabilities that the recorded clinicians had."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import log_softmax

from stepdown.policies.bc import BCConfig, train_bc
from stepdown.signals import LVEDP, MAP
from stepdown.training import FitConfig
from tests.policies.toys import CENTER, ROWS, SD, make_hours, random_states

CONFIG = BCConfig(widths=(32,), fit=FitConfig(epochs=25, batch=128, learning_rate=3e-3, patience=5))


def clinicians(states: np.ndarray) -> np.ndarray:
    """Known log-probabilities: near the level in force, lower where the pressure is high."""
    levels, now = np.arange(2, 10), states[:, -1, -1]
    pressure = (states[:, :, MAP].mean(1) - CENTER[MAP]) / (SD[MAP] / 6**0.5)
    wanted = now - 1.0 * pressure
    return log_softmax(-0.5 * (levels[None] - wanted[:, None]) ** 2, axis=1)


def records(role: str, seed: int, rows: int = ROWS):
    draw = np.random.default_rng(seed)
    states = random_states(rows, draw.integers(3, 8, rows), seed)
    chances = np.exp(clinicians(states))
    levels = 2 + (draw.random((rows, 1)) > chances.cumsum(1)).sum(1).clip(max=7)
    return dataclasses.replace(make_hours(states, levels, states), role=role)


@pytest.fixture(scope="module")
def parts():
    return records("train", 0, 4 * ROWS), records("select", 1)


@pytest.fixture(scope="module")
def cloned(parts):
    return train_bc(parts[0], parts[1], CONFIG, key=jr.key(0))


def test_probabilities_are_those_of_the_clinicians(cloned):
    states = random_states(ROWS, np.arange(ROWS) % 5 + 3, seed=2)
    found = np.exp(jax.jit(jax.vmap(cloned[0]))(jnp.asarray(states)))
    known = np.exp(clinicians(states))
    assert np.abs(found - known).mean() < 0.03
    excess = (known * (clinicians(states) - np.log(found))).sum(1).mean()  # nats lost to them
    assert excess < 0.05


def test_probabilities_are_calibrated(cloned, parts):
    """Of the levels that were given some probability, that share was set, on other patients."""
    other = records("test", 3)
    given = np.exp(jax.jit(jax.vmap(cloned[0]))(other.state)).ravel()
    happened = (np.arange(2, 10)[None] == np.asarray(other.level)[:, None]).ravel()
    bins = np.digitize(given, [0.01, 0.1, 0.2, 0.3])
    for number in range(5):
        rows = bins == number
        assert rows.sum() > 300
        assert happened[rows].mean() == pytest.approx(given[rows].mean(), abs=0.04)


def test_the_kept_epoch_is_the_one_that_select_patients_prefer(cloned, parts):
    policy, info = cloned
    best = int(info["best_epoch"])
    assert info["held_out"][best] == info["held_out"].min()
    scores = jax.jit(jax.vmap(policy))(parts[1].state)
    loss = -np.asarray(scores)[np.arange(ROWS), np.asarray(parts[1].level) - 2].mean()
    assert loss == pytest.approx(info["held_out"][best], rel=1e-4)


def test_the_same_key_gives_the_same_policy_and_another_another(cloned, parts):
    again, _ = train_bc(parts[0], parts[1], CONFIG, key=jr.key(0))
    other, _ = train_bc(parts[0], parts[1], CONFIG, key=jr.key(1))
    for mine, same in zip(jax.tree.leaves(cloned[0]), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(mine, same)
    assert not np.array_equal(cloned[0].network.weights[0], other.network.weights[0])


def test_seeds_side_by_side_are_the_seeds_alone(cloned, parts):
    both, info = train_bc(parts[0], parts[1], CONFIG, key=jnp.stack([jr.key(1), jr.key(0)]))
    for two, alone in zip(jax.tree.leaves(both), jax.tree.leaves(cloned[0]), strict=True):
        np.testing.assert_allclose(two[1], alone, rtol=1e-5, atol=1e-6)
    epochs = len(cloned[1]["held_out"])
    np.testing.assert_allclose(info["held_out"][:epochs, 1], cloned[1]["held_out"], rtol=1e-5)


def test_select_patients_must_be_there_and_have_the_same_signals(parts):
    train, select = parts
    with pytest.raises(ValueError, match="expected select patients, got test"):
        train_bc(train, dataclasses.replace(select, role="test"), CONFIG, key=jr.key(0))
    with pytest.raises(ValueError, match="hours of select patients, got none"):
        train_bc(train, jax.tree.map(lambda x: x[:0], select), CONFIG, key=jr.key(0))
    blind = dataclasses.replace(select, state=select.state.at[5, 2, LVEDP].set(jnp.nan))
    with pytest.raises(ValueError, match="expected lvedp in every select hour"):
        train_bc(train, blind, CONFIG, key=jr.key(0))
    with pytest.raises(ValueError, match="at least one width"):
        BCConfig(widths=())
