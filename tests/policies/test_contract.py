"""What every policy keeps, whoever made it: one dictionary, the same tests for all."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stepdown.handover import Policy
from stepdown.policies import model_based, svr
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.checkpoints import load_policy, save_policy
from stepdown.policies.constraint import Constrained
from stepdown.policies.ensemble import fit_ensemble
from stepdown.policies.model_based import train_model_based
from stepdown.policies.penalties import (
    DensityPenalty,
    DisagreementPenalty,
    SpreadPenalty,
    Unpenalized,
)
from stepdown.policies.rules import RULES
from stepdown.policies.svr import SVRConfig, train_svr
from stepdown.signals import LEVELS
from stepdown.training import FitConfig
from tests.policies.toys import (
    ENSEMBLE,
    POCKET,
    ROWS,
    MoreIsBetter,
    Support,
    make_hours,
    random_states,
)

ONE_EPOCH = dataclasses.replace(POCKET, updates=200)
EXPERT = dataclasses.replace(ONE_EPOCH, real_share=0.0)
SMALL_STEPS = dataclasses.replace(
    ONE_EPOCH, rollouts=dataclasses.replace(POCKET.rollouts, constrained=True)
)
CLONING = BCConfig(widths=(32,), fit=FitConfig(epochs=2, batch=128))
REGULARIZED = SVRConfig(
    updates=200, report_every=200, batch=64, widths=(32, 32), sac=POCKET.sac, behavior=CLONING
)
WEIGHT = jnp.asarray(0.1)


@functools.cache
def hours(role: str):
    """Records of all levels from P3 to P7."""
    draw = np.random.default_rng(len(role))
    before, levels = draw.integers(3, 8, ROWS), draw.integers(3, 8, ROWS)
    later = random_states(ROWS, levels, seed=1)
    return dataclasses.replace(make_hours(random_states(ROWS, before, 0), levels, later), role=role)


@functools.cache
def ensemble():
    return fit_ensemble(hours("train"), ENSEMBLE, key=jr.key(9))[0]


def learn(dynamics, penalty, config, key) -> Policy:
    return train_model_based(hours("train"), dynamics, penalty, config, key=key)[0]


LEARNED: dict[str, Callable[..., Policy]] = {
    "bc": lambda key: train_bc(hours("train"), hours("select"), CLONING, key=key)[0],
    "svr": lambda key: train_svr(hours("train"), hours("select"), REGULARIZED, key=key)[0],
    "expert": lambda key: learn(MoreIsBetter(), Unpenalized(), EXPERT, key),
    "mbpo": lambda key: learn(ensemble(), Unpenalized(), ONE_EPOCH, key),
    "mopo": lambda key: learn(ensemble(), SpreadPenalty(ensemble(), WEIGHT), ONE_EPOCH, key),
    "disagreement": lambda key: learn(
        ensemble(), DisagreementPenalty(ensemble(), WEIGHT), ONE_EPOCH, key
    ),
    "cormpo": lambda key: learn(
        MoreIsBetter(), DensityPenalty(Support(jnp.array([3, 4, 5])), WEIGHT), ONE_EPOCH, key
    ),
    "constrained": lambda key: learn(MoreIsBetter(), Unpenalized(), SMALL_STEPS, key),
}
EVERYBODY = [*LEARNED, *RULES]


@functools.cache
def made(name: str) -> Policy:
    return LEARNED[name](jr.key(3)) if name in LEARNED else RULES[name]


@eqx.filter_jit
def weigh(policy, states):
    return jax.vmap(policy)(states)


@pytest.mark.parametrize("name", EVERYBODY)
def test_log_probabilities_sum_to_one(name):
    scores = np.asarray(weigh(made(name), hours("train").state[:64]), np.float64)
    assert scores.shape == (64, 8)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(np.exp(scores).sum(1), 1.0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in LEARNED if name != "constrained"])
def test_every_level_is_reachable(name):
    scores = np.asarray(weigh(made(name), hours("train").state[:64]))
    assert scores.min() > np.log(1e-12)


def test_a_constrained_policy_reaches_what_is_allowed_and_nothing_else():
    states = hours("train").state[:64]
    scores = np.asarray(weigh(made("constrained"), states))
    step = np.array(LEVELS)[None] - np.asarray(states)[:, -1, -1:]
    rising = (step >= 0) & (step <= 2)
    assert scores[rising].min() > np.log(1e-12)
    assert scores[np.abs(step) > 2].max() < -1e6


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("name", EVERYBODY)
@settings(max_examples=25)
@given(state=arrays(np.float32, (6, 13), elements=numbers))
def test_any_finite_state_is_answered(name, state):
    scores = np.asarray(weigh(made(name), jnp.asarray(state)[None]), np.float64)
    assert np.isfinite(scores).all()
    assert np.exp(scores).sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", LEARNED)
def test_the_same_key_gives_the_same_policy_and_another_key_another(name):
    again, other = LEARNED[name](jr.key(3)), LEARNED[name](jr.key(4))
    for mine, same in zip(jax.tree.leaves(made(name)), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(mine, same)
    states = hours("train").state[:64]
    assert not np.allclose(weigh(made(name), states), weigh(other, states), atol=1e-3)


@pytest.mark.parametrize("name", EVERYBODY)
def test_compiled_and_not_compiled_agree(name):
    state = hours("train").state[7]
    compiled = weigh(made(name), state[None])[0]
    np.testing.assert_allclose(made(name)(state), compiled, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LEARNED)
def test_a_saved_policy_is_the_same_policy(name, tmp_path: Path):
    save_policy(tmp_path / "policy", made(name), name, seed=3)
    loaded, about = load_policy(tmp_path / "policy")
    assert about.method == name
    assert about.constrained == (name == "constrained")
    states = hours("train").state[:64]
    np.testing.assert_array_equal(weigh(loaded, states), weigh(made(name), states))


def states_of(loop, setting):
    """Before and after one epoch of a loop in pieces."""
    before = loop.begin(setting, key=jr.key(0))
    kept = jax.tree.map(np.array, before.learner)
    training, done = before, 0
    while done < setting.sizes.every:
        training, done = loop.advance(training, setting, done, key=jr.key(0))
    return kept, training.learner


def settings_of(name: str):
    train, select = hours("train"), hours("select")
    if name == "svr":
        behavior = made("bc")
        return svr, svr.prepare(train, select, behavior, REGULARIZED)  # pyright: ignore[reportArgumentType]
    return model_based, model_based.prepare(train, ensemble(), Unpenalized(), ONE_EPOCH)


@pytest.mark.parametrize("name", ["svr", "mbpo"])
def test_both_critics_move_and_their_targets_lag(name):
    before, after = states_of(*settings_of(name))
    for old, new in zip(before.networks.weights, after.networks.weights, strict=True):
        moved = np.abs(np.asarray(new) - old).max((1, 2))
        assert moved.shape == (3,)
        assert (moved > 1e-3).all()
    for fast, slow in zip(after.networks.weights, after.targets.weights, strict=True):
        assert np.abs(fast[1:] - slow).max() > 1e-4  # still behind
    first, second = after.networks.weights[0][1:]
    assert not np.allclose(first, second)


def test_the_constraint_changes_nothing_but_forbidden_levels():
    free = made("mbpo")
    bound = Constrained(free)
    states = hours("train").state[:64]
    scores, limited = np.asarray(weigh(free, states)), np.asarray(weigh(bound, states))
    allowed = limited > -1e6
    odds = np.where(allowed, limited - scores, np.nan)
    np.testing.assert_allclose(np.nanmax(odds, axis=1), np.nanmin(odds, axis=1), atol=1e-4)


# What everybody learns from, and whatever refuses it; nothing is fitted.
LEARNERS: dict[str, Callable] = {
    "bc": lambda rows: train_bc(rows, hours("select"), CLONING, key=jr.key(0)),
    "svr": lambda rows: train_svr(rows, hours("select"), REGULARIZED, key=jr.key(0)),
    "model-based": lambda rows: model_based.prepare(rows, MoreIsBetter(), Unpenalized(), ONE_EPOCH),
}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"role": "test"}, "expected train patients, got test"),
        ({"level": jnp.full(ROWS, 4)}, "more than one level, got P4 alone"),
        ({"level": jnp.full(ROWS, 1)}, "expected levels 2 to 9, got 1"),
        ({"unshaped": jnp.full(ROWS, jnp.nan)}, "expected finite rewards"),
        ({}, "expected recorded hours, got none"),
    ],
)
def test_unusable_records_are_refused(name, change, message):
    rows = dataclasses.replace(hours("train"), **change)
    if not change:
        rows = jax.tree.map(lambda x: x[:0], rows)
    with pytest.raises(ValueError, match=message):
        LEARNERS[name](rows)


@pytest.mark.parametrize("name", ["svr", "mbpo"])
def test_no_key_is_used_twice(name):
    loop, setting = settings_of(name)
    with jax.debug_key_reuse(True):
        training = loop.begin(setting, key=jr.key(0))
        _, done = loop.advance(training, setting, 0, key=jr.key(0))
    assert done > 0
