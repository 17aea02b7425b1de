"""Choosing without the truth: evidence worked out by hand, and what each rule picks from it."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.choosing import (
    CHOICE_RULES,
    DEFAULT_RULE,
    TEAM,
    Evidence,
    EvidenceConfig,
    Models,
    Span,
    call_witnesses,
    charges_on_rollouts,
    choose_best,
    gather_evidence,
    pessimistic,
    pooled_gain,
    regret,
    team_evidence,
)
from stepdown.evaluation.judging import judge_in_twin
from stepdown.evaluation.off_policy import OffPolicyConfig
from stepdown.guardian.density import Pairs
from stepdown.guardian.threshold import Guardian
from stepdown.patients.episodes import Mode
from stepdown.policies.networks import LearnedPolicy, make_network
from stepdown.policies.rules import RULES
from stepdown.problem.scaling import Scaler
from stepdown.signals import FLOW, HR, LEVEL, MAP, PULSATILITY
from stepdown.twin.rollout import roll_out
from tests.evaluation.stays import POCKET, hourly_reward, make_cohort, wander

CONFIG = EvidenceConfig(starts=64, behavior=POCKET, off_policy=OffPolicyConfig(draws=40, gammas=()))
STAYS = wander(40, 24, np.array([0.25, 0.5, 0.25]), seed=5)


class Pump(eqx.Module):
    """MAP follows the level, a little off the truth by `bias` and by luck."""

    bias: jax.Array
    noise: jax.Array

    def __call__(self, state, level, /, *, key):
        pressure = 40.0 + 2.0 * level + self.bias + self.noise * jr.normal(key)
        return state.at[:, MAP].set(pressure).at[:, LEVEL].set(level * 1.0)


class Steady(eqx.Module):
    """Nats fall with the size of the change: u is the change less one.

    They also fall with pressures that the level does not explain, of which there are none in the
    records and in the exact twin.
    """

    pairs: Pairs

    @property
    def shape(self) -> tuple[int, int]:
        return 0, 3

    def floor(self) -> None:
        return None

    def log_density(self, state, level, /):
        odd = jnp.abs(state[-1, MAP] - 40.0 - 2.0 * state[-1, LEVEL])
        return -jnp.abs(level - state[-1, LEVEL]) - odd

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
    models = Models(exact, noisy, make_guardian())
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
    level = np.asarray(witnesses.team.twin.level)[0, :, 1:]
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
    policy, moments = RULES["blind stepping down"], witnesses.moments
    twin, steady = witnesses.models.second, witnesses.models.guardian
    judged = judge_in_twin(policy, twin, moments)

    class Pressure(Steady):
        def log_density(self, state, level, /):
            return -0.1 * state[-1, MAP]

    guardian = eqx.tree_at(lambda g: g.density, steady, Pressure(steady.density.pairs))
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
    test = make_cohort(STAYS, "test")
    with pytest.raises(ValueError, match="expected select patients, got test patients"):
        call_witnesses(witnesses.models, test, None, CONFIG, key=jr.key(0))
    scaler = witnesses.models.guardian.density.pairs.scaler
    both = jax.vmap(lambda key: LearnedPolicy(scaler, make_network((25, 8), key=key)))(
        jr.split(jr.key(0), 2)
    )
    with pytest.raises(ValueError, match="expected one policy, got 2 seeds"):
        gather_evidence("two", both, witnesses, key=jr.key(1))
    with pytest.raises(ValueError, match="starts: expected at least 2, got 1"):
        EvidenceConfig(starts=1)


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────

VALUES = ("twin", "second", "fqe", "wis", "joint")


def evidence(name: str, **numbers: float | bool) -> Evidence:
    """Evidence with intervals of ±0.5; the clinicians' values are −1 everywhere."""
    known = {"u": -1.0, "u_plus": 0.1, "unsafe": 0.2, "patients": 30.0, "seen": 0.9}
    known |= {"unsupported": 0.05, "informative": True}
    spans = {}
    for kind in VALUES:
        value = float(numbers.pop(kind, -1.0))
        wide = 0.0 if name == TEAM else 0.5
        spans[kind] = Span(value, value - wide, value + wide)
        spans[f"{kind}_gain"] = Span(value + 1, value + 1 - wide, value + 1 + wide)
    return Evidence(name=name, **spans, **(known | numbers))  # type: ignore[arg-type]


BOLD = evidence("bold", twin=1.0, second=-2.0, u=3.0, u_plus=4.0, fqe=-1.5, informative=False)
TIMID = evidence("timid", twin=-0.4, second=-0.3, fqe=-0.8, wis=-0.7, joint=-0.75)
LUCKY = evidence("lucky", twin=-0.9, second=-1.2, fqe=0.5, wis=5.0, u=0.5, informative=False)
NOBODY = evidence(TEAM)
ALL = (NOBODY, BOLD, TIMID, LUCKY)


def test_each_rule_picks_what_its_evidence_prefers():
    chosen = {name: rule(ALL) for name, rule in CHOICE_RULES.items()}
    expected = {
        "twin reward": "bold",  # the largest reward in the twin, whatever else is known
        "twin reward, mean u at most 0": "timid",  # bold and lucky are strange
        "pessimistic twin": "timid",  # bold pays 6 x 0.08 x 4
        "second twin": "timid",
        "smaller of both twins": "timid",
        "FQE": "lucky",
        "WIS where informative, else FQE": "lucky",  # its WIS of 5 does not count
        "surely better in both twins": "timid",
        "surely better by the records": TEAM,  # timid's gain may be below 0
        "least gain by both twins and FQE": "timid",
        "mean of both twins": "timid",  # -0.35; bold's is -0.5
        "mean of both twins where informative": "timid",
        "mean of both twins, mean u at most 0": "timid",
        "pooled gain": "timid",
        "pooled gain, mean u at most 0": "timid",
        "mean rank by both twins and FQE": "timid",  # second, first, second of four
    }
    assert {name: chosen[name] for name in expected} == expected


def test_weighting_speaks_only_where_it_is_informative():
    rule = CHOICE_RULES["WIS where informative, else FQE"]
    assert rule((TIMID, dataclasses.replace(LUCKY, fqe=Span(-3.0, -3.0, -3.0)))) == "timid"
    assert rule((TIMID, dataclasses.replace(LUCKY, informative=True))) == "lucky"


def test_sources_are_pooled_by_their_precision():
    narrow, wide = Span(1.0, 0.9, 1.1), Span(-1.0, -3.0, 1.0)
    one = dataclasses.replace(TIMID, twin_gain=narrow, second_gain=narrow, joint_gain=wide)
    sd = np.array([0.2, 0.2, 4.0]) / 3.92
    weights = 1 / (sd**2 + 0.25**2)
    expected = weights @ [1.0, 1.0, -1.0] / weights.sum()
    assert pooled_gain(one) == pytest.approx(expected)
    silent = dataclasses.replace(one, joint_gain=Span(math.nan, -math.inf, math.inf))
    assert pooled_gain(silent) == pytest.approx(1.0)
    assert pooled_gain(NOBODY) == 0.0


def test_the_charge_is_that_of_six_hours():
    assert pessimistic(BOLD) == pytest.approx(1.0 - 6 * 0.08 * 4.0)
    assert pessimistic(BOLD, charge=0.0) == 1.0


def test_where_nothing_is_allowed_nothing_is_changed():
    assert choose_best(ALL, lambda e: e.twin.value, lambda e: False) == TEAM
    strange = (BOLD, LUCKY)  # without the clinicians: the least strange
    assert choose_best(strange, lambda e: e.twin.value, lambda e: False) == "lucky"


def test_unknown_values_are_never_chosen_and_equals_go_to_the_first():
    unknown = evidence("unknown", wis=math.nan, twin=math.nan)
    assert choose_best((unknown, TIMID), lambda e: e.twin.value) == "timid"
    twice = evidence("again", twin=-0.4)
    assert choose_best((TIMID, twice), lambda e: e.twin.value) == "timid"
    assert choose_best((twice, TIMID), lambda e: e.twin.value) == "again"


def test_rules_that_want_to_be_sure_leave_things_as_they_are():
    worse = [evidence(f"worse {i}", twin=-1.2, second=-1.2, joint=-1.2) for i in range(3)]
    for name in ("surely better in both twins", "surely better by the records", DEFAULT_RULE):
        assert CHOICE_RULES[name]([NOBODY, *worse]) == TEAM


def test_a_rule_names_the_same_candidate_in_any_order():
    draw = np.random.default_rng(0)
    kinds = (*VALUES, "u", "u_plus")
    for _ in range(20):
        rows = draw.normal(size=(5, len(kinds)))  # no two alike
        made = [
            evidence(f"c{i}", **dict(zip(kinds, x.tolist(), strict=True)))
            for i, x in enumerate(rows)
        ]
        for rule in CHOICE_RULES.values():
            chosen = rule(made)
            assert chosen in {one.name for one in made}
            assert rule(made[::-1]) == chosen


def test_regret_is_what_the_best_would_have_brought_more():
    truth = {"a": -0.5, "b": 0.25, TEAM: 0.0}
    assert [regret(truth, name) for name in truth] == [0.75, 0.0, 0.25]
    with pytest.raises(ValueError, match="expected a candidate out of a, b"):
        regret(truth, "c")


def test_no_candidates_are_refused():
    with pytest.raises(ValueError, match="expected candidates to choose from, got none"):
        CHOICE_RULES[DEFAULT_RULE]([])


def test_the_default_is_a_rule():
    assert DEFAULT_RULE in CHOICE_RULES
