"""CQL against its fixed point in tabular form."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from stepdown.policies.cql import ConservativeTerm, CQLConfig
from stepdown.policies.sac import Batch, SACConfig, begin_learner, make_rates, update

STATES, DISCOUNT, TEMPERATURE, WEIGHT = 4, 0.7, 0.2, 0.4
CONFIG = SACConfig(discount=DISCOUNT, learning_rate=3e-3, target_rate=0.05, temperature=TEMPERATURE)


def small_world():
    """Rewards (4, 8), the next state of every pair, and how often each pair was recorded."""
    draw = np.random.default_rng(3)
    reward, following = draw.normal(size=(STATES, 8)), draw.integers(STATES, size=(STATES, 8))
    return reward, following, draw.integers(1, 6, (STATES, 8))


def recorded(reward, following, count) -> Batch:
    """Every pair as often as it was recorded, states as unit vectors."""
    state, choice = (x.ravel().repeat(count.ravel()) for x in np.indices((STATES, 8)))
    everything = jnp.ones((len(state), 8), bool)
    return Batch(
        now=jnp.eye(STATES)[state],
        later=jnp.eye(STATES)[following[state, choice]],
        choice=jnp.asarray(choice),
        reward=jnp.asarray(reward[state, choice], jnp.float32),
        allowed=everything,
        allowed_later=everything,
        died=jnp.zeros(len(state), bool),
    )


def tabular(reward, following, count, weight):
    """Where alpha (softmax Q - beta) + beta (Q - r - discount V) is zero, V the soft value."""
    share = count / count.sum(1, keepdims=True)
    values = np.zeros((STATES, 8))
    for _ in range(20_000):
        soft = TEMPERATURE * np.asarray(logsumexp(values / TEMPERATURE, axis=1))
        error = values - reward - DISCOUNT * soft[following]
        values = values - 0.3 * (weight * (softmax(values, axis=1) - share) + share * error)
    return values


@jax.jit
def learn(batch: Batch, weight, key):
    rates = make_rates(CONFIG, fixed_temperature=True)
    learner = begin_learner(STATES, (64, 64), rates, key=key)
    step = lambda now, _: update(now, batch, rates, ConservativeTerm(weight))  # noqa: E731
    learner, _ = jax.lax.scan(step, learner, length=3000)
    outputs = jax.vmap(lambda network: jax.vmap(network)(jnp.eye(STATES)))(learner.networks)
    return outputs[0], outputs[1:]


def test_values_and_policy_are_those_of_the_tabular_fixed_point():
    """The same program without the term finds other values: those of plain value iteration."""
    world = small_world()
    found = {
        weight: learn(recorded(*world), jnp.asarray(weight), jr.key(0)) for weight in (WEIGHT, 0.0)
    }
    for weight, (actor, critics) in found.items():
        values = tabular(*world, weight)
        np.testing.assert_allclose(critics[0], values, atol=0.06)
        np.testing.assert_allclose(critics[1], values, atol=0.06)
        policy = softmax(values / TEMPERATURE, axis=1)
        np.testing.assert_allclose(jax.nn.softmax(actor), policy, atol=0.06)
    apart = np.asarray(found[WEIGHT][1][0] - found[0.0][1][0])
    assert np.abs(apart).max() > 0.5
    rare = world[2] == 1
    assert apart[rare].mean() < apart[~rare].mean() - 0.1  # what is seldom chosen is worth less


def test_the_term_is_log_sum_exp_minus_the_recorded_value():
    draw = np.random.default_rng(1)
    critics, choice = draw.normal(size=(2, 3, 8)), np.array([5, 0, 7])
    allowed = np.ones((3, 8), bool)
    allowed[1, :6] = False  # a constraint; what was recorded counts all the same
    states = jnp.zeros((3, STATES))
    flags = jnp.asarray(allowed)
    rows = (states, states, jnp.asarray(choice), jnp.zeros(3), flags, flags, jnp.zeros(3, bool))
    total = 0.0
    for critic in critics:
        for row, level in enumerate(choice):
            counted = [critic[row, x] for x in range(8) if allowed[row, x] or x == level]
            total += np.log(np.exp(counted).sum()) - critic[row, level]
    term = ConservativeTerm(jnp.asarray(0.7))
    found = term(jnp.asarray(critics, jnp.float32), Batch(*rows))
    assert found == pytest.approx(0.7 * total / 3, rel=1e-5)


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="weight: expected at least 0, got -1"):
        CQLConfig(weight=-1.0)
    with pytest.raises(ValueError, match="whole epochs"):
        CQLConfig(updates=1500)
