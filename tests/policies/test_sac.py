"""Discrete SAC against exact soft value iteration, and what one update may and may not do."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import logsumexp

from stepdown.policies.sac import (
    Batch,
    SACConfig,
    begin_learner,
    make_rates,
    pack,
    unpack,
    update,
)
from stepdown.problem.clinical import PAPER

STATES, DISCOUNT, TEMPERATURE = 4, 0.7, 0.2
CONFIG = SACConfig(discount=DISCOUNT, learning_rate=3e-3, target_rate=0.05, temperature=TEMPERATURE)


def small_mdp():
    """Rewards (4, 8) and, for every pair, two next states that are equally likely."""
    draw = np.random.default_rng(0)
    return draw.normal(size=(STATES, 8)), draw.integers(STATES, size=(STATES, 8, 2))


def all_decisions(reward, following, allowed=None, deadly=None) -> Batch:
    """Every pair of state and level with both of its next states, states as unit vectors.

    Nobody lives in the deadly states.
    """
    state, choice, branch = (x.ravel() for x in np.indices((STATES, 8, 2)))
    later = following[state, choice, branch]
    allowed = np.ones((STATES, 8), bool) if allowed is None else allowed
    return Batch(
        now=jnp.eye(STATES)[state],
        later=jnp.eye(STATES)[later],
        choice=jnp.asarray(choice),
        reward=jnp.asarray(reward[state, choice], jnp.float32),
        allowed=jnp.asarray(allowed[state]),
        allowed_later=jnp.asarray(allowed[later]),
        died=jnp.asarray(np.isin(later, [] if deadly is None else deadly)),
    )


def soft_value_iteration(reward, following, allowed):
    """Textbook: Q = r + discount E[T log sum exp Q/T] over the allowed levels."""
    values = weights = total = np.zeros((STATES, 8))
    for _ in range(200):
        weights = np.where(allowed, values / TEMPERATURE, -np.inf)
        total = np.asarray(logsumexp(weights, axis=1, keepdims=True))
        values = reward + DISCOUNT * (TEMPERATURE * total[:, 0])[following].mean(-1)
    return values, np.exp(weights - total)


@jax.jit
def learn(batch: Batch, key):
    rates = make_rates(CONFIG, fixed_temperature=True)
    learner = begin_learner(STATES, (64, 64), rates, key=key)
    learner, _ = jax.lax.scan(lambda now, _: update(now, batch, rates), learner, length=3000)
    outputs = jax.vmap(lambda network: jax.vmap(network)(jnp.eye(STATES)))(learner.networks)
    return outputs[0], outputs[1:], learner.log_temperature


@pytest.mark.parametrize("limited", [False, True])
def test_values_and_policy_are_those_of_soft_value_iteration(limited):
    reward, following = small_mdp()
    allowed = np.ones((STATES, 8), bool)
    allowed[:, 5:] = not limited
    weights, critics, log_temperature = learn(all_decisions(reward, following, allowed), jr.key(0))
    values, policy = soft_value_iteration(reward, following, allowed)
    np.testing.assert_allclose(critics[0], values, atol=0.05)
    np.testing.assert_allclose(critics[1], values, atol=0.05)
    shown = jax.nn.softmax(jnp.where(allowed, weights, -jnp.inf))
    np.testing.assert_allclose(shown, policy, atol=0.05)
    assert np.exp(log_temperature) == pytest.approx(TEMPERATURE)


def test_a_death_is_worth_the_minimum_for_every_hour_to_come():
    """No critic is asked behind it, so it is the worst there is, also for a short horizon."""
    reward, following = small_mdp()
    weights, critics, _ = learn(all_decisions(reward, following, deadly=[1]), jr.key(0))
    death = -PAPER.reward_clip / (1 - DISCOUNT)
    values = total = np.zeros((STATES, 8))
    for _ in range(200):
        total = TEMPERATURE * np.asarray(logsumexp(values / TEMPERATURE, axis=1))
        values = reward + DISCOUNT * np.where(following == 1, death, total[following]).mean(-1)
    np.testing.assert_allclose(critics, np.stack([values, values]), atol=0.05)
    shown = jax.nn.softmax(weights)
    np.testing.assert_allclose(shown, np.exp((values - total[:, None]) / TEMPERATURE), atol=0.05)
    assert death < -PAPER.reward_clip * 1.5  # a lump of one hour would not pay for many


@pytest.fixture(scope="module")
def one_update():
    batch = all_decisions(*small_mdp())
    rates = make_rates(CONFIG)
    before = begin_learner(STATES, (64, 64), rates, key=jr.key(1))
    return before, *jax.jit(update)(before, batch, rates)


def test_both_critics_and_the_actor_move(one_update):
    before, after, _ = one_update
    for old, new in zip(before.networks.weights, after.networks.weights, strict=True):
        moved = np.abs(np.asarray(new - old)).max((1, 2))
        assert moved.shape == (3,)
        assert (moved > 1e-4).all()


def test_targets_lag_behind_the_critics(one_update):
    before, after, _ = one_update
    for old, slow, fast in zip(
        before.targets.weights, after.targets.weights, after.networks.weights, strict=True
    ):
        np.testing.assert_allclose(slow, 0.95 * old + 0.05 * fast[1:], atol=1e-6)
        assert np.abs(slow - fast[1:]).max() > 1e-4


def test_temperature_falls_while_the_policy_is_too_random(one_update):
    before, after, info = one_update
    assert info["entropy"] > 0.1 * np.log(8)  # the first policy is nearly uniform
    assert after.log_temperature < before.log_temperature


def constant_learner(actor, first, second, targets):
    """Networks that answer the same in every state: their last biases."""
    learner = begin_learner(STATES, (4,), make_rates(CONFIG), key=jr.key(0))

    def constant(networks, outputs):
        weights = tuple(jnp.zeros_like(x) for x in networks.weights)
        return replace(networks, weights=weights, biases=(networks.biases[0], jnp.asarray(outputs)))

    networks = constant(learner.networks, [actor, first, second])
    return replace(learner, networks=networks, targets=constant(learner.targets, targets))


LEVELS = np.zeros(8)
LOW, HIGH = LEVELS - 1.0, LEVELS + 3.0


@pytest.mark.parametrize("targets", [(LOW, HIGH), (HIGH, LOW)])
def test_the_smaller_target_critic_counts(targets):
    """Uniform policy: the goal is r + discount (smaller + T log 8), whichever critic is smaller."""
    batch = all_decisions(*small_mdp())
    learner = constant_learner(LEVELS, LEVELS, LEVELS, targets)
    _, info = update(learner, batch, make_rates(CONFIG))
    goal = np.asarray(batch.reward) + DISCOUNT * (-1.0 + TEMPERATURE * np.log(8))
    assert info["critic_loss"] == pytest.approx(np.mean(goal**2), rel=1e-4)


@pytest.mark.parametrize("swap", [False, True])
def test_the_actor_follows_the_smaller_critic(swap):
    """P2 is worth 5 to one critic and -5 to the other, P3 is worth 1 to both: P3 is better."""
    first, second = LEVELS.copy(), LEVELS.copy()
    first[:2], second[:2] = (5.0, 1.0), (-5.0, 1.0)
    critics = (second, first) if swap else (first, second)
    learner = constant_learner(LEVELS, *critics, [LEVELS, LEVELS])
    after, info = update(learner, all_decisions(*small_mdp()), make_rates(CONFIG))
    moved = np.asarray(after.networks.biases[-1][0])
    assert moved[1] > 1e-3  # P3 gains
    assert moved[0] < -1e-3  # P2 loses
    assert info["value"] == pytest.approx((-5.0 + 1.0) / 8, rel=1e-4)


def test_packed_rows_give_back_the_decisions():
    allowed = np.random.default_rng(1).random((STATES, 8)) < 0.5
    batch = all_decisions(*small_mdp(), allowed, [2])
    again = unpack(pack(batch))
    for name in ("now", "later", "choice", "reward", "allowed", "allowed_later", "died"):
        np.testing.assert_array_equal(getattr(again, name), getattr(batch, name))


@pytest.mark.parametrize(
    "wrong", [{"discount": 1.1}, {"entropy_share": -0.1}, {"learning_rate": 0.0}]
)
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="expected a"):
        SACConfig(**wrong)
