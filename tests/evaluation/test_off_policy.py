"""From recorded stays to values: right where the truth is known, and silent where nothing is."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float

from stepdown.evaluation.behavior import Behavior, fit_behavior
from stepdown.evaluation.decisions import make_decisions
from stepdown.evaluation.importance import Limits, Overlap, point_one_way, verdict
from stepdown.evaluation.off_policy import (
    Estimate,
    OffPolicyConfig,
    estimate_off_policy,
    imagine_values,
    join,
    policy_chances,
    prepare_records,
)
from stepdown.policies.networks import level_in_force
from stepdown.policies.rules import RULES
from stepdown.signals import LEVEL, LEVELS, LOWEST, MAP
from tests.evaluation.stays import POCKET, hourly_reward, hours, make_cohort, wander

CHANCE = np.array([0.3, 0.5, 0.2])
QUICK = OffPolicyConfig(draws=100, gammas=(1.5,))
ESTIMATORS = ("wis", "fqe", "wdr", "joint", "magic", "model")


class Wander(eqx.Module):
    """Down, hold or up by one with given chances; a step beyond the levels is a hold."""

    chance: Float[Array, " 3"]

    def __call__(self, state: Float[Array, "steps 13"], /) -> Float[Array, " 8"]:
        goals = jnp.clip(level_in_force(state) + jnp.arange(-1, 2), LEVELS[0], LEVELS[-1])
        chances = jnp.zeros(8).at[goals - LOWEST].add(self.chance)
        return jnp.log(jnp.maximum(chances, 1e-12))


class Pump(eqx.Module):
    """The true world of these stays: MAP follows the level."""

    def __call__(self, state, level, /, *, key):
        return state.at[:, MAP].set(40.0 + 2.0 * level).at[:, LEVEL].set(level * 1.0)


def exact_value(chance, starts: np.ndarray) -> float:
    """The value of wandering from the recorded starts, by the chain of levels."""
    chain = np.zeros((8, 8))
    for level in LEVELS:
        for step, share in zip((-1, 0, 1), chance, strict=True):
            chain[level - LOWEST, np.clip(level + step, 2, 9) - LOWEST] += share
    value = np.zeros(8)
    for _ in range(6):
        value = chain @ (hourly_reward(LEVELS) + value)
    return float(value[starts - LOWEST].mean())


@pytest.fixture(scope="module")
def records():
    """Ragged stays of 8 to 16 hours."""
    decisions = make_decisions(make_cohort(wander(80, 16, CHANCE, seed=3)))
    behavior = fit_behavior(decisions, POCKET, key=jr.key(0))
    return prepare_records(decisions, behavior, QUICK, key=jr.key(1))


@pytest.fixture(scope="module")
def judged(records):
    """Two policies that lean down and up, and one that nobody follows."""
    policies = {
        "down": Wander(jnp.array([0.5, 0.4, 0.1])),
        "up": Wander(jnp.array([0.2, 0.5, 0.3])),
        "always P9": RULES["always P9"],
    }
    return policies, {
        name: estimate_off_policy(policy, records, model=Pump(), key=jr.key(2))
        for name, policy in policies.items()
    }


def test_all_estimators_find_the_value_of_the_chain(records, judged):
    policies, found = judged
    starts = np.round(records.decisions.state[:, -1, LEVEL]).astype(int)
    for name in ("down", "up"):
        truth = exact_value(np.asarray(policies[name].chance), starts)
        for estimator in ESTIMATORS:
            one = getattr(found[name], estimator)
            assert one.low <= truth <= one.high, (name, estimator)
            if estimator != "wis":  # which alone does not know the starts, and varies by more
                assert one.value == pytest.approx(truth, abs=0.3), (name, estimator)
        assert found[name].word == "informative"
        assert 0.8 < found[name].overlap.share_seen() <= 1.0
    # the model is the true world, so its own error is only the throws of the policy
    gap = found["up"].wdr.draws - found["down"].wdr.draws
    assert np.quantile(gap, 0.025) > 0


def test_a_policy_that_nobody_followed_is_called_uninformative(judged):
    found = judged[1]["always P9"]
    assert found.word == "uninformative"
    assert found.overlap.share_seen() < 0.4
    assert found.overlap.unsupported > 0.3
    assert judged[1]["down"].overlap.unsupported < 0.01


def test_bounds_contain_wis_and_its_interval_nearly(judged):
    for one in judged[1].values():
        (bounds,) = one.bounds
        assert bounds.lower <= one.wis.value <= bounds.upper
        assert bounds.low <= bounds.lower
        assert bounds.high >= bounds.upper


def test_two_estimates_are_joined_without_losing_what_either_holds():
    draws = np.arange(3.0)
    joint = join(Estimate(1.0, 0.0, 2.0, draws), Estimate(3.0, 1.0, 4.0, 3 * draws))
    assert (joint.value, joint.low, joint.high) == (2.0, 0.0, 4.0)
    assert joint.draws.tolist() == [0.0, 2.0, 4.0]


def test_the_clinicians_own_policy_has_weights_of_one(records):
    """If the behavior policy is known, judging it is a plain mean of what was recorded."""
    decisions = records.decisions
    own = policy_chances(Wander(jnp.asarray(CHANCE)), decisions.state)
    ones, fold = np.ones(len(own)), records.behavior.fold
    known = Behavior(np.log(np.maximum(own, 1e-12)), ones, ones, fold)
    again = prepare_records(decisions, known, QUICK, key=jr.key(1))
    found = estimate_off_policy(Wander(jnp.asarray(CHANCE)), again, key=jr.key(2))
    rows = [np.flatnonzero(decisions.start)]
    for _ in range(5):
        before = rows[-1]
        rows.append(before[decisions.follows[before]] + 1)
    plain = sum(decisions.reward[row].mean() for row in rows)
    assert found.wis.value == pytest.approx(plain, rel=1e-5)
    assert found.overlap.seen == pytest.approx([len(row) / len(rows[0]) for row in rows])
    assert found.magic is None


def test_a_fold_counts_nobody_of_its_own(records):
    first = np.unique(records.decisions.patient, return_index=True)[1]
    fold = records.behavior.fold[first]
    assert records.folds.counts.shape == (5, 80)
    for number, counts in enumerate(records.folds.counts):
        assert counts.tolist() == (fold != number).tolist()


def test_hours_that_were_not_held_count_for_nobody_and_others_for_them(records):
    """Every other hour saw another level; a level is held with a chance of one half."""
    held = np.arange(len(records.decisions.level)) % 2 == 0
    decisions = dataclasses.replace(records.decisions, held=held)
    own = policy_chances(Wander(jnp.asarray(CHANCE)), decisions.state)
    half = np.full(len(own), 0.5)
    known = Behavior(np.log(np.maximum(own, 1e-12)), half, 2 * half, records.behavior.fold)
    config = dataclasses.replace(QUICK, hours=1)
    again = prepare_records(decisions, known, config, key=jr.key(1))
    found = estimate_off_policy(Wander(jnp.asarray(CHANCE)), again, key=jr.key(2))
    assert found.wis.value == pytest.approx(decisions.reward[held].mean(), rel=1e-5)
    assert found.overlap.seen == pytest.approx([2 * held.mean()])


def test_hours_after_a_death_count_with_the_least_reward():
    """Two stays at P6: one of four hours, one that ends by death twenty minutes into the third."""
    stays = [hours(6, 6, 6, 6), np.concatenate([hours(6, 6), [6, 6]])]
    decisions = make_decisions(make_cohort(stays), np.array([False, True]))
    ones = np.ones(len(decisions.level))
    logs = np.log(policy_chances(RULES["hold"], decisions.state) + 1e-12)
    known = Behavior(logs, ones, ones, decisions.patient.astype(np.int32))
    config = dataclasses.replace(QUICK, hours=3)
    records = prepare_records(decisions, known, config, key=jr.key(0))
    found = estimate_off_policy(RULES["hold"], records, how="mode", key=jr.key(0))
    r = hourly_reward(6)
    # four, three and two episodes are known that far; one of them is that of whoever dies
    assert found.wis.value == pytest.approx(r + (2 * r - 2) / 3 + (r - 2) / 2, abs=1e-5)


def test_a_model_is_asked_for_states_recorded_decisions_and_next_states(records):
    """To hold in the true world earns the same reward every hour, by hand."""
    decisions = records.decisions
    found = imagine_values(RULES["hold"], Pump(), decisions, 3, how="mode", key=jr.key(0))
    now = hourly_reward(np.round(decisions.state[:, -1, LEVEL]))
    chosen = hourly_reward(decisions.level)
    for hour in range(3):
        assert found.now[hour] == pytest.approx((hour + 1) * now, abs=1e-4)
        assert found.decision[hour] == pytest.approx((hour + 1) * chosen, abs=1e-4)
        assert found.later[hour] == pytest.approx(hour * chosen, abs=1e-4)


def test_mode_takes_the_most_probable_level(records):
    states = records.decisions.state[:5]
    lean = Wander(jnp.array([0.2, 0.5, 0.3]))
    assert policy_chances(lean, states, "mode") == pytest.approx(
        np.round(policy_chances(RULES["hold"], states))
    )
    assert policy_chances(lean, states).sum(1) == pytest.approx(np.ones(5))


def test_impossible_chances_and_foreign_parts_are_refused(records):
    decisions, behavior = records.decisions, records.behavior
    with np.errstate(divide="ignore"):
        never = np.log(np.arange(8)[None] != (decisions.level - LOWEST)[:, None])
    with pytest.raises(ValueError, match=f"got 0 at {len(never)} decisions"):
        prepare_records(decisions, dataclasses.replace(behavior, level=never), QUICK, key=jr.key(0))
    short = Behavior(*(x[:10] for x in (behavior.level, *(np.ones(20),) * 2, behavior.fold)))
    with pytest.raises(ValueError, match="expected chances for these decisions"):
        prepare_records(decisions, short, QUICK, key=jr.key(0))
    with pytest.raises(ValueError, match="expected finite log-probabilities"):
        estimate_off_policy(Wander(jnp.full(3, jnp.nan)), records, key=jr.key(0))
    with pytest.raises(ValueError, match="at least 1 hour"):
        OffPolicyConfig(hours=0)
    with pytest.raises(ValueError, match="a floor and a rare chance"):
        OffPolicyConfig(floor=0.0)


def test_actions_that_nobody_knows_are_refused(records):
    decisions, behavior = records.decisions, records.behavior
    for odd in (1, 10):  # counted from P2, P1 would silently be P9
        level = decisions.level.copy()
        level[3] = odd
        with pytest.raises(ValueError, match=f"expected decisions for P2 to P9, got P{odd}"):
            prepare_records(
                dataclasses.replace(decisions, level=level), behavior, QUICK, key=jr.key(0)
            )
    with pytest.raises(ValueError, match=r"expected log-probabilities of the 8 levels .*\(9,\)"):
        policy_chances(lambda state: jnp.zeros(9), decisions.state)
    with pytest.raises(ValueError, match="expected finite log-probabilities"):
        policy_chances(lambda state: jnp.full(8, -jnp.inf), decisions.state)


def test_a_policy_that_excludes_what_was_recorded_weighs_nothing(records):
    """Zero propensities of the policy: nobody followed it, and weighting says so."""
    found = estimate_off_policy(_Elsewhere(), records, how="mode", key=jr.key(2))
    assert found.word == "uninformative"
    assert found.overlap.share_seen() < 0.05
    assert found.wis.high - found.wis.low > 1.0 or not np.isfinite(found.wis.high)
    assert np.isfinite(found.fqe.value)


class _Elsewhere(eqx.Module):
    """Always four levels away, which nobody does."""

    def __call__(self, state: Float[Array, "steps 13"], /) -> Float[Array, " 8"]:
        far = jnp.where(level_in_force(state) > 5, -4, 4) + level_in_force(state)
        return jnp.where(jnp.arange(8) == far - LOWEST, 0.0, -1e9)


def test_stays_shorter_than_the_horizon_are_used_as_far_as_they_go():
    """Three decisions a stay: hours beyond them have no weighted value, and that is said."""
    draw = np.random.default_rng(0)
    stays = [np.repeat(draw.choice([5, 6], 4), 6) for _ in range(40)]
    decisions = make_decisions(make_cohort(stays))
    fold = (decisions.patient % 5).astype(np.int32)
    chances = np.where(np.isin(np.arange(8) + LOWEST, [5, 6]), 0.5, 1e-9)[None]
    logs = np.log(np.repeat(chances, len(fold), axis=0))
    ones = np.ones(len(fold))
    coin = Behavior(logs, ones, ones, fold)
    policy = _Coin()
    whole = prepare_records(decisions, coin, dataclasses.replace(QUICK, hours=6), key=jr.key(0))
    found = estimate_off_policy(policy, whole, key=jr.key(1))
    assert found.word == "uninformative"
    assert not np.isfinite(found.wis.value)
    assert (found.wis.low, found.wis.high) == (-np.inf, np.inf)
    assert found.overlap.recorded.tolist() == pytest.approx([1.0, 2 / 3, 1 / 3, 0, 0, 0])
    # asked for as many hours as there are, the same records are enough
    short = prepare_records(decisions, coin, dataclasses.replace(QUICK, hours=3), key=jr.key(0))
    found = estimate_off_policy(policy, short, key=jr.key(1))
    assert found.word == "informative"
    assert found.wis.low < 3 * hourly_reward([5, 6]).mean() < found.wis.high


class _Coin(eqx.Module):
    """P5 or P6, whatever was before."""

    def __call__(self, state: Float[Array, "steps 13"], /) -> Float[Array, " 8"]:
        levels = jnp.arange(8) + LOWEST
        return jnp.log(jnp.where((levels == 5) | (levels == 6), 0.5, 1e-12))


def test_the_word_follows_the_limits():
    def overlap(patients, seen, never=0.0):
        hours = np.ones(6)
        return Overlap(patients * hours, seen * hours, 0.2 * hours, hours, hours, never)

    limits = Limits(patients=10.0, seen=0.4)
    assert overlap(10.0, 0.6).share_seen() == pytest.approx(0.48)  # without the heaviest patient
    assert verdict(overlap(10.001, 0.6), limits) == "informative"
    assert verdict(overlap(9.9, 0.6), limits) == "uninformative"
    assert verdict(overlap(50.0, 0.45), limits) == "uninformative"
    assert verdict(overlap(50.0, 0.9, 0.3), limits) == "uninformative"
    assert point_one_way([0.3, 0.1])
    assert point_one_way([-0.3, -0.1, -0.2])
    for gains in ([0.3, -0.1], [0.3, 0.0], [0.0, 0.0], [0.3, np.nan], [np.nan], []):
        assert not point_one_way(gains)
    # one bad hour is not made up for by good ones
    uneven = dataclasses.replace(overlap(1.0, 1.0), effective=np.array([300.0] * 5 + [1.0]))
    assert uneven.patients() == pytest.approx(6 / (5 / 300 + 1))
    assert overlap(1.0, 3.0).share_seen() == 1.0
    with pytest.raises(ValueError, match="shares of 0 to 1"):
        Limits(seen=1.5)
