"""Evidence about a policy: numbers that can be worked out by hand in a world of one rule."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.behavior import BehaviorConfig
from stepdown.evaluation.evidence import (
    TEAM,
    EvidenceConfig,
    call_witnesses,
    charges_on_rollouts,
    gather_evidence,
    team_evidence,
)
from stepdown.evaluation.judging import judge_in_twin
from stepdown.evaluation.off_policy import OffPolicyConfig
from stepdown.guardian.density import Pairs
from stepdown.guardian.threshold import Guardian
from stepdown.patients.episodes import Mode
from stepdown.policies.rules import RULES
from stepdown.problem.scaling import Scaler
from stepdown.signals import FLOW, HR, LEVEL, MAP, PULSATILITY
from stepdown.training import FitConfig
from stepdown.twin.rollout import roll_out
from tests.evaluation.stays import hourly_reward, make_cohort, wander

CONFIG = EvidenceConfig(
    starts=64,
    behavior=BehaviorConfig(widths=(), repeats=1, fit=FitConfig(10, 128, 1e-2, patience=5)),
    off_policy=OffPolicyConfig(draws=40, gammas=()),
)
STAYS = wander(40, 24, np.array([0.25, 0.5, 0.25]), seed=5)


class Pump(eqx.Module):
    """MAP follows the level, a little off the truth by `bias` and by luck."""

    bias: jax.Array
    noise: jax.Array

    def __call__(self, state, level, /, *, key):
        pressure = 40.0 + 2.0 * level + self.bias + self.noise * jr.normal(key)
        return state.at[:, MAP].set(pressure).at[:, LEVEL].set(level * 1.0)


class Steady(eqx.Module):
    """Nats fall with the size of the change: u is the change less one."""

    pairs: Pairs

    def log_density(self, state, level, /):
        return -jnp.abs(level - state[-1, LEVEL])

    def log_densities(self, states, levels, /):
        return jax.vmap(self.log_density)(states, levels)


def make_guardian() -> Guardian:
    scaler = Scaler(jnp.zeros(12), jnp.ones(12), (MAP, FLOW, HR, PULSATILITY))
    density = Steady(Pairs(scaler, jnp.ones(())))
    low, high = jnp.asarray(-1.0), jnp.asarray(20.0)
    return Guardian(density, jnp.asarray(-1.0), low, high, jnp.zeros(3))


@pytest.fixture(scope="module")
def witnesses():
    exact, noisy = Pump(jnp.zeros(()), jnp.zeros(())), Pump(jnp.asarray(-0.5), jnp.asarray(1.0))
    models = (exact, noisy, make_guardian())
    return call_witnesses(models, make_cohort(STAYS, "select"), None, CONFIG, key=jr.key(0))


@pytest.fixture(scope="module")
def always(witnesses):
    return gather_evidence("always P5", RULES["always P5"], witnesses, key=jr.key(1))


def test_rewards_in_both_twins_are_those_of_the_levels(always):
    exact = 6 * hourly_reward(5)
    assert always.twin.value == pytest.approx(exact, abs=1e-4)
    assert always.twin.low == pytest.approx(exact, abs=1e-4)  # nothing differs between patients
    # half a millimeter less is 7 x 0.5 / 20 an hour, in units of 2.6621
    biased = exact - 6 * 7 * 0.5 / 20 / 2.6621
    assert always.second.value == pytest.approx(biased, abs=0.1)
    assert always.second.low < biased < always.second.high


def test_gains_are_over_the_recorded_levels(witnesses, always):
    level = np.asarray(witnesses.team[0].level)[0, :, 1:]
    team = hourly_reward(level).sum(1)
    expected = 6 * hourly_reward(5) - team.mean()
    assert always.twin_gain.value == pytest.approx(expected, abs=1e-4)
    assert always.twin_gain.low < expected < always.twin_gain.high


def test_strangeness_is_that_of_the_rollouts(witnesses, always):
    before = np.round(np.asarray(witnesses.moments.state)[:, -1, LEVEL])
    jump = np.abs(before - 5)  # in the first hour alone
    u = np.concatenate([(jump - 1)[:, None], np.full((len(jump), 5), -1.0)], axis=1)
    assert always.u == pytest.approx(u.mean(), abs=1e-5)
    assert always.u_plus == pytest.approx(np.maximum(u, 0).mean(), abs=1e-5)


def test_states_are_played_again_as_they_were_judged(witnesses):
    """In the twin with luck: the slow way rolls out and charges row by row."""
    policy, twin, moments = RULES["blind stepping down"], witnesses.second, witnesses.moments
    judged = judge_in_twin(policy, twin, moments)

    class Pressure(Steady):
        def log_density(self, state, level, /):
            return -0.1 * state[-1, MAP]

    guardian = eqx.tree_at(
        lambda g: g.density, witnesses.guardian, Pressure(witnesses.guardian.density.pairs)
    )
    found = charges_on_rollouts(guardian, twin, moments, judged)
    played = roll_out(Mode(policy), twin, moments.state, keys=moments.key)
    slow = np.asarray(played.state)[:, :-1, -1, MAP] * 0.1 - 1.0
    np.testing.assert_allclose(found, slow, rtol=1e-4)


def test_records_tell_what_a_level_is_worth(always):
    exact = 6 * hourly_reward(5)
    assert always.fqe.value == pytest.approx(exact, abs=0.15)
    assert always.fqe.low < always.fqe.value < always.fqe.high
    assert 0 < always.seen < 1
    assert always.patients < 40


def test_the_clinicians_are_what_was_recorded_and_gain_nothing(witnesses):
    team = team_evidence(witnesses)
    assert team.name == TEAM
    assert team.is_team
    assert team.informative
    gains = (team.twin_gain, team.second_gain, team.fqe_gain, team.wis_gain, team.joint_gain)
    assert {x for gain in gains for x in (gain.value, gain.low, gain.high)} == {0.0}
    # reward by hour of the episode, over all episodes that are recorded that far
    hourly = [hourly_reward(stay[::6]) for stay in STAYS]
    means = [np.concatenate([r[1 + hour :] for r in hourly]).mean() for hour in range(6)]
    assert team.fqe.value == pytest.approx(sum(means), abs=0.1)  # weighted up for shorter stays
    assert team.patients == 40


def test_several_seeds_at_once_and_wrong_patients_are_refused(witnesses):
    models = (witnesses.twin, witnesses.second, witnesses.guardian)
    with pytest.raises(ValueError, match="expected select patients, got test patients"):
        call_witnesses(models, make_cohort(STAYS, "test"), None, CONFIG, key=jr.key(0))
    with pytest.raises(ValueError, match="starts: expected at least 2, got 1"):
        EvidenceConfig(starts=1)
