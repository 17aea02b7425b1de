"""SVR against its operator in tabular form, and in records that hold three levels."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.learning import split_seeds
from stepdown.policies.networks import LearnedPolicy, Network, feature_count, make_network
from stepdown.policies.sac import Batch, SACConfig, begin_learner, make_rates, update
from stepdown.policies.svr import SupportTerm, SVRConfig, prepare, train_svr
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import LEVEL, LEVELS, MAP
from stepdown.training import FitConfig
from tests.policies.toys import ROWS, make_hours, random_states, side_by_side

STATES, DISCOUNT, TEMPERATURE, WORST = 4, 0.7, 0.2, -3.0
CONFIG = SACConfig(discount=DISCOUNT, learning_rate=3e-3, target_rate=0.05, temperature=TEMPERATURE)


def small_world():
    """Rewards (4, 8), the next state of every pair, and a behavior that uses five levels each."""
    draw = np.random.default_rng(0)
    reward, following = draw.normal(size=(STATES, 8)), draw.integers(STATES, size=(STATES, 8))
    supported = np.array([draw.permutation(8) < 5 for _ in range(STATES)])
    return reward, following, supported


def recorded(reward, following, supported) -> Batch:
    """Every supported pair once; nothing is known about the others."""
    state, choice = np.nonzero(supported)
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


def tabular(reward, following, supported):
    """Mao et al.: the backup inside the support, Q_min outside, over all levels of the policy."""
    values = np.full((STATES, 8), WORST)
    for _ in range(200):
        soft = TEMPERATURE * np.asarray(logsumexp(values / TEMPERATURE, axis=1))
        values = np.where(supported, reward + DISCOUNT * soft[following], WORST)
    weights = values / TEMPERATURE
    return values, softmax(weights, axis=1)


@jax.jit
def learn(batch: Batch, behavior, key):
    rates = make_rates(CONFIG, fixed_temperature=True)
    table = Network((behavior,), (jnp.zeros(8),), jax.nn.relu)  # one-hot states in, log beta out
    term = SupportTerm(table, jnp.asarray(0.01), jnp.asarray(WORST), jnp.asarray(1.0))
    learner = begin_learner(STATES, (64, 64), rates, key=key)
    step = lambda now, _: update(now, batch, rates, term)  # noqa: E731
    learner, _ = jax.lax.scan(step, learner, length=3000)
    outputs = jax.vmap(lambda network: jax.vmap(network)(jnp.eye(STATES)))(learner.networks)
    return outputs[0], outputs[1:]


def test_values_and_policy_are_those_of_the_tabular_operator():
    world = small_world()
    values, policy = tabular(*world)
    behavior = np.where(world[2], np.log(0.2), -20.0)
    actor, critics = learn(recorded(*world), jnp.asarray(behavior, jnp.float32), jr.key(0))
    np.testing.assert_allclose(critics[0], values, atol=0.06)
    np.testing.assert_allclose(critics[1], values, atol=0.06)
    np.testing.assert_allclose(jax.nn.softmax(actor), policy, atol=0.05)
    best = np.where(world[2], world[0], -np.inf).argmax(1)
    assert (world[0].argmax(1) != best).any()  # a better, unsupported level was there to tempt


def test_the_term_is_the_mean_square_outside_the_support():
    draw = np.random.default_rng(1)
    critics, behavior = draw.normal(size=(2, 3, 8)), draw.dirichlet(np.full(8, 0.3), STATES)
    table = Network((jnp.log(jnp.asarray(behavior, jnp.float32)),), (jnp.zeros(8),), jax.nn.relu)
    term = SupportTerm(table, jnp.asarray(0.05), jnp.asarray(WORST), jnp.asarray(0.7))
    rows, flags = np.array([2, 0, 3]), jnp.ones((3, 8), bool)
    states = jnp.eye(STATES)[rows]
    alive = jnp.zeros(3, bool)
    batch = Batch(states, states, jnp.zeros(3, int), jnp.zeros(3), flags, flags, alive)
    total = 0.0
    for critic in critics:
        for row, state in enumerate(rows):
            for level in range(8):
                if behavior[state, level] < 0.05:
                    total += (critic[row, level] - WORST) ** 2
    by_hand = 0.7 * 0.5 * total / (3 * 8)
    assert term(jnp.asarray(critics, jnp.float32), batch) == pytest.approx(by_hand, rel=1e-5)


POCKET = SVRConfig(
    updates=600,
    report_every=200,
    batch=64,
    widths=(32, 32),
    weight=1.0,
    sac=SACConfig(discount=0.5, learning_rate=3e-3, target_rate=0.05, entropy_share=0.02),
    behavior=BCConfig(widths=(32,), fit=FitConfig(epochs=8, batch=128, learning_rate=3e-3)),
)


@pytest.fixture(scope="module")
def parts():
    """Records that hold P3 to P5 only, in patients for whom more support is better."""

    def one(role, seed):
        draw = np.random.default_rng(seed)
        before, levels = draw.integers(3, 6, ROWS), draw.integers(3, 6, ROWS)
        states = random_states(ROWS, before, seed)
        states[:, :, MAP] = 40.0 + 2.0 * before[:, None]
        later = states.copy()
        later[:, :, MAP], later[:, :, LEVEL] = 40.0 + 2.0 * levels[:, None], levels[:, None]
        return dataclasses.replace(make_hours(states, levels, later), role=role)

    return one("train", 0), one("select", 1)


def test_svr_stays_in_the_records_and_takes_the_best_of_them(parts):
    policy, info = train_svr(parts[0], parts[1], POCKET, key=jr.key(0))
    chances = np.exp(jax.jit(jax.vmap(policy))(parts[0].state)).mean(0)
    assert chances[LEVELS.index(5)] > 0.8
    assert chances[LEVELS.index(6) :].sum() < 0.05
    assert {name: x.shape for name, x in info.items()} == dict.fromkeys(info, (3,))
    assert info["critic_loss"][-1] < info["critic_loss"][0]


def test_seeds_side_by_side_are_the_seeds_alone(parts):
    config = dataclasses.replace(POCKET, updates=200, report_every=100)
    keys = jnp.stack([jr.key(1), jr.key(0)])
    k_behavior, k_train = split_seeds(keys)
    behavior, _ = train_bc(parts[0], parts[1], config.behavior, key=k_behavior)
    setting = prepare(parts[0], parts[1], behavior, config)
    both, info = side_by_side(setting, k_train)  # as on a GPU
    alone, curve = train_svr(parts[0], parts[1], config, key=keys[1])
    second = jax.tree.map(lambda x: x[1], both)
    states = parts[0].state[:60]
    np.testing.assert_allclose(
        np.exp(jax.vmap(second)(states)), np.exp(jax.vmap(alone)(states)), atol=5e-3
    )
    np.testing.assert_allclose(info["value"][0, 1], curve["value"][0], rtol=1e-3)


def test_a_constrained_policy_takes_small_steps(parts):
    config = dataclasses.replace(POCKET, constrained=True, updates=200)
    policy, _ = train_svr(parts[0], parts[1], config, key=jr.key(0))
    chances = np.exp(jax.jit(jax.vmap(policy))(parts[0].state[:60]))
    step = np.array(LEVELS)[None] - np.asarray(parts[0].state)[:60, 0, LEVEL, None]
    assert chances[np.abs(step) > 2].max() < 1e-6
    assert chances[step < 0].max() < 1e-6  # 46 to 50 mmHg: every hour is outside the limits


def test_a_behavior_policy_of_other_hours_is_refused(parts):
    scaler = fit_scaler(parts[0])
    other = LearnedPolicy(scaler, make_network((feature_count(scaler, 12), 8, 8), key=jr.key(0)))
    with pytest.raises(ValueError, match="behavior policy of the same signals and samples"):
        prepare(parts[0], parts[1], other, POCKET)


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="a discount below 1"):
        SVRConfig(sac=SACConfig(discount=1.0))
    with pytest.raises(ValueError, match="whole epochs"):
        SVRConfig(updates=1500)
