"""One loop, several methods: toy patients whose best treatment is provable."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.guardian.fit import DensityConfig, fit_guardian
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.threshold import RECORDED
from stepdown.policies.constraint import allowed_levels
from stepdown.policies.ensemble import fit_ensemble
from stepdown.policies.model_based import ModelBasedConfig, prepare, train_model_based
from stepdown.policies.penalties import (
    DensityPenalty,
    DisagreementPenalty,
    SpreadPenalty,
    Unpenalized,
    charge,
)
from stepdown.policies.rows import step_rows
from stepdown.policies.sac import unpack
from stepdown.problem.clinical import normalized_reward, shaped_reward
from stepdown.signals import HR, LEVEL, LEVELS, LVEDP, MAP, PULSATILITY
from tests.policies.toys import (
    CENTER,
    ENSEMBLE,
    POCKET,
    ROWS,
    MoreIsBetter,
    Support,
    epoch,
    make_hours,
    random_states,
    side_by_side,
)


@pytest.fixture(scope="module")
def hours():
    """Records that hold P3 to P5 only, in patients for whom more support is better."""
    levels = np.arange(ROWS) % 3 + 3
    states = random_states(ROWS, levels[::-1], seed=0)
    states[:, :, MAP] = 40.0 + 2.0 * levels[::-1][:, None]
    later = states.copy()
    later[:, :, MAP], later[:, :, LEVEL] = 40.0 + 2.0 * levels[:, None], levels[:, None]
    return make_hours(states, levels, later)


def careful(weight: float) -> DensityPenalty:
    return DensityPenalty(Support(jnp.array([3, 4, 5])), jnp.asarray(weight))


@eqx.filter_jit
def chances(policy, states):
    """Mean probability of each level over the states."""
    return jnp.mean(jnp.exp(jax.vmap(policy)(states)), axis=0)


@pytest.fixture(scope="module")
def bold(hours):
    """MBPO in the world where more is better."""
    return train_model_based(hours, MoreIsBetter(), Unpenalized(), POCKET, key=jr.key(1))


@pytest.fixture(scope="module")
def cautious(hours):
    """CORMPO in the same world, with a guardian that knows the records."""
    return train_model_based(hours, MoreIsBetter(), careful(1.0), POCKET, key=jr.key(1))


def test_mbpo_leaves_the_data(bold, hours):
    found = chances(bold[0], hours.state)
    assert found[LEVELS.index(9)] > 0.8


def test_cormpo_stays_in_the_data_and_takes_the_best_of_it(cautious, hours):
    found = chances(cautious[0], hours.state)
    assert found[1:4].sum() > 0.9
    assert found[LEVELS.index(5)] > 0.8


def test_a_weight_of_zero_is_mbpo(bold, cautious, hours):
    policy, _ = train_model_based(hours, MoreIsBetter(), careful(0.0), POCKET, key=jr.key(1))
    np.testing.assert_allclose(
        chances(policy, hours.state), chances(bold[0], hours.state), atol=1e-3
    )
    assert not np.allclose(chances(cautious[0], hours.state), chances(bold[0], hours.state))


def test_what_is_reported_is_what_was_played(cautious):
    _, info = cautious
    levels = info["levels"]
    assert levels.shape == (3, 8)
    np.testing.assert_allclose(levels.sum(1), 1.0, atol=1e-5)
    recorded = levels[:, 1:4].sum(1)
    np.testing.assert_allclose(info["uncertainty"], 5.0 - 6.0 * recorded, atol=1e-4)
    np.testing.assert_allclose(info["penalty"], info["uncertainty"], atol=1e-5)
    assert recorded[-1] > 0.95 > recorded[0]
    assert info["entropy"][-1] < info["entropy"][0]


def noisy_records(seed: int, role: str):
    """Two states: P6 brings good pressure and a noisy filling pressure, P4 poor and quiet.

    Both are recorded equally often, so nothing is unknown about either.
    """
    draw = np.random.default_rng(seed)
    levels = np.where(draw.random(ROWS) < 0.5, 4, 6)
    before = np.where(draw.random(ROWS) < 0.5, 4, 6)

    def patient(level):
        states = np.tile(CENTER, (len(level), 6, 1))
        states[:, :, MAP] = np.where(level == 6, 64.0, 52.0)[:, None]
        states[:, :, MAP] += draw.normal(size=(len(level), 6))
        noise = draw.normal(size=(len(level), 6)) * np.where(level == 6, 8.0, 0.5)[:, None]
        states[:, :, LVEDP] += noise
        states[:, :, LEVEL] = level[:, None]
        return states.astype(np.float32)

    records = make_hours(patient(before), levels, patient(levels))
    return dataclasses.replace(records, role=role)


@pytest.fixture(scope="module")
def noisy():
    records = noisy_records(3, "train")
    return records, fit_ensemble(records, ENSEMBLE, key=jr.key(2))[0]


def test_spread_over_punishes_noise_and_density_does_not(noisy):
    """The paper's central argument: the better level is noisy, but well known (Sec. 4.2)."""
    records, ensemble = noisy
    select = noisy_records(4, "select")
    guardian, _ = fit_guardian(
        records, select, DensityConfig(DENSITIES["kde"]), RECORDED, key=jr.key(0)
    )
    mopo = SpreadPenalty(ensemble, jnp.asarray(2.0))
    cormpo = DensityPenalty(guardian, jnp.asarray(2.0))
    by_spread, _ = train_model_based(records, ensemble, mopo, POCKET, key=jr.key(3))
    by_density, _ = train_model_based(records, ensemble, cormpo, POCKET, key=jr.key(3))
    assert chances(by_spread, records.state)[LEVELS.index(6)] < 0.2
    assert chances(by_density, records.state)[LEVELS.index(6)] > 0.8


def test_disagreement_is_small_where_both_levels_are_known(noisy):
    """Members agree about recorded levels, however noisy, and disagree about others."""
    records, ensemble = noisy
    states = records.state[:64]
    penalty = DisagreementPenalty(ensemble, jnp.asarray(2.0))
    mean = {a: float(charge(penalty, states, jnp.full(64, a))[1].mean()) for a in (4, 6, 9)}
    assert mean[9] > 1.5 * max(mean[4], mean[6])
    charged, uncertain = charge(penalty, states, jnp.full(64, 6))
    np.testing.assert_allclose(charged, 2.0 * uncertain)
    alone = jax.vmap(penalty)(states[:4], jnp.full(4, 6))
    np.testing.assert_allclose(charged[:4], alone, rtol=1e-4)


def test_a_seed_alone_equals_the_seed_in_the_batch(hours, bold):
    keys = jnp.stack([jr.key(5), jr.key(1)])
    setting = prepare(hours, MoreIsBetter(), Unpenalized(), POCKET)
    both, info = side_by_side(setting, keys)  # as on a GPU
    second = jax.tree.map(lambda x: x[1], both)
    states = hours.state[:50]
    np.testing.assert_allclose(
        chances(second, states), chances(bold[0], states), atol=5e-3
    )  # products in another order, over 600 updates
    assert info["reward"].shape == (3, 2)
    np.testing.assert_allclose(info["reward"][0, 1], bold[1]["reward"][0], rtol=1e-5)


def test_seeds_in_turn_are_exactly_the_seeds_alone(hours, bold):
    keys = jnp.stack([jr.key(1)])
    one, info = train_model_based(hours, MoreIsBetter(), Unpenalized(), POCKET, key=keys)
    for row, alone in zip(jax.tree.leaves(one), jax.tree.leaves(bold[0]), strict=True):
        np.testing.assert_array_equal(row[0], alone)
    np.testing.assert_array_equal(info["value"][:, 0], bold[1]["value"])


def test_a_training_goes_on_bitwise_from_a_saved_state(hours, bold):
    """The state as plain arrays on the host, put back in the middle of an epoch."""
    setting = prepare(hours, MoreIsBetter(), Unpenalized(), POCKET)
    training, done = setting.begin(key=jr.key(1)), 0
    while done < POCKET.updates:
        training, done = setting.advance(training, done, key=jr.key(1))
        saved = jax.tree.map(np.array, training)
        training = jax.tree.map(jnp.asarray, saved)
    policy = setting.finish(training)
    for again, once in zip(jax.tree.leaves(policy), jax.tree.leaves(bold[0]), strict=True):
        np.testing.assert_array_equal(again, once)


@pytest.mark.parametrize("key", [jr.key(1), jr.split(jr.key(1), 2)], ids=["one", "two"])
def test_a_training_keeps_its_types_so_that_it_compiles_once(hours, key):
    """A type that changes on the way, even from weak to strong, compiles every program again."""
    setting = prepare(hours, MoreIsBetter(), Unpenalized(), POCKET)
    before = [jax.typeof(leaf) for leaf in jax.tree.leaves(setting.begin(key=key))]
    later, _ = epoch(setting, setting.begin(key=key), 0, key)
    assert [jax.typeof(leaf) for leaf in jax.tree.leaves(later)] == before


def test_the_pool_holds_recorded_rows_and_then_imagined_ones(hours):
    """Recorded rows have their shaped reward and no charge, imagined ones are charged."""
    config = dataclasses.replace(POCKET, jump_weight=0.4, weaning_weight=0.3)
    setting = prepare(hours, MoreIsBetter(), careful(1.0), config)
    training, done = epoch(setting, setting.begin(key=jr.key(1)), 0, jr.key(1))
    info = training.tally
    pool = unpack(training.pool)
    rows, rollout = len(hours.level), config.rollouts.rows
    wanted = jax.vmap(lambda s, a, t: shaped_reward(s, a, t, jump_weight=0.4, weaning_weight=0.3))(
        hours.state, hours.level, hours.next_state
    )
    np.testing.assert_allclose(pool.reward[:rows], wanted, atol=1e-5)
    np.testing.assert_array_equal(pool.choice[:rows] + 2, hours.level)
    imagined = np.asarray(pool.reward[rows : rows + rollout])
    assert imagined.mean() == pytest.approx(float(info["reward"] - info["penalty"]), abs=1e-4)
    assert done == config.rollout_every
    assert np.all(np.asarray(training.pool[rows + rollout :]) == 0.0)  # not filled yet
    assert setting.real == 3  # 5 % of a batch of 64


def test_the_ring_forgets_the_oldest_rollout(hours):
    """With room for two rollouts, the third takes the place of the first."""
    setting = prepare(hours, MoreIsBetter(), careful(1.0), POCKET)
    training, done, pools = setting.begin(key=jr.key(1)), 0, []
    while done < POCKET.updates:
        training, done = epoch(setting, training, done, jr.key(1))
        pools.append(
            np.array(training.pool[len(hours.level) :]).reshape(2, POCKET.rollouts.rows, -1)
        )
    first, second, third = pools
    assert np.array_equal(first[0], second[0])
    assert not np.array_equal(second[0], third[0])
    assert np.array_equal(second[1], third[1])


def test_the_expert_learns_without_recorded_rows(hours):
    """The same loop with known dynamics; rewards of the records play no part."""
    config = dataclasses.replace(POCKET, real_share=0.0)
    worthless = dataclasses.replace(hours, unshaped=hours.unshaped - 100.0)
    expert, _ = train_model_based(worthless, MoreIsBetter(), Unpenalized(), config, key=jr.key(1))
    assert chances(expert, hours.state)[LEVELS.index(9)] > 0.8


def test_a_constrained_policy_takes_small_steps_in_training_and_use(hours):
    config = dataclasses.replace(POCKET, constrained=True)
    policy, _ = train_model_based(hours, MoreIsBetter(), Unpenalized(), config, key=jr.key(1))
    states = hours.state[:60]
    chance = np.exp(jax.vmap(policy)(states))
    step = np.abs(np.array(LEVELS)[None] - np.asarray(states)[:, 0, LEVEL, None])
    assert chance[step > 2].max() < 1e-6
    assert np.mean(chance[step == 2]) > 0.4  # two up and two down are possible, up is better


def test_never_down_out_of_an_hour_of_low_pressure_or_rate():
    safe = np.tile(CENTER, (6, 1))
    safe[:, MAP], safe[:, LEVEL] = 80.0, 6.0
    weak = safe.copy()
    weak[3, PULSATILITY] = 9.0  # a limit, too, but less support is the remedy
    for state in (safe, weak):
        np.testing.assert_array_equal(
            allowed_levels(jnp.asarray(state)), [level in (4, 5, 6, 7, 8) for level in LEVELS]
        )
    for signal, value in ((MAP, 60.0), (HR, 50.0), (MAP, np.nan)):  # unseen is not safe
        low = safe.copy()
        low[slice(None) if np.isnan(value) else 3, signal] = value
        np.testing.assert_array_equal(
            allowed_levels(jnp.asarray(low)), [level in (6, 7, 8) for level in LEVELS]
        )


def test_dynamics_without_a_batch_form_are_asked_row_by_row(hours):
    states, levels = hours.state[:5], jnp.arange(2, 7)
    later = step_rows(MoreIsBetter(), states, levels, key=jr.key(0))
    np.testing.assert_allclose(later[:, :, MAP].mean(1), 40.0 + 2.0 * np.arange(2, 7), atol=0.3)
    rewards = jax.vmap(normalized_reward)(later)
    assert np.all(np.diff(rewards) > 0)


def test_dynamics_of_other_signals_are_refused(hours, noisy):
    without = hours.state.at[:, :, LVEDP].set(jnp.nan)
    with pytest.raises(ValueError, match="expected hours with lvedp"):
        prepare(dataclasses.replace(hours, state=without), noisy[1], Unpenalized(), POCKET)


def test_dynamics_of_other_hours_are_refused(hours, noisy):
    names = ("state", "next_state", "levels")
    twice = {name: jnp.repeat(getattr(hours, name), 2, axis=1) for name in names}
    with pytest.raises(ValueError, match="expected hours of 6 samples, which the dynamics use"):
        prepare(dataclasses.replace(hours, **twice), noisy[1], Unpenalized(), POCKET)


def test_impossible_configs_are_refused():
    with pytest.raises(ValueError, match="whole epochs"):
        ModelBasedConfig(updates=1500)
    with pytest.raises(ValueError, match="real_share"):
        ModelBasedConfig(real_share=1.5)
