"""Evidence about a policy that a user with private data has: everything but the truth.

For every candidate: its reward in the twin and in a second twin fitted to other patients, how
strange its decisions are to the guardian, and what the records alone say (FQE, WIS). All of it
comes from select patients. The clinicians are a candidate too: nothing need be changed.

In a twin the clinicians are their recorded levels, played whatever happens there: they cannot
answer to the twin's luck as they did to the patients'. Gains over them are a little too kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from stepdown.evaluation.behavior import BehaviorConfig, fit_behavior
from stepdown.evaluation.compare import Weights, difference, estimate, resample, values_of
from stepdown.evaluation.decisions import make_decisions
from stepdown.evaluation.judging import Judged, Moments, draw_moments, judge_in_twin, judge_plans
from stepdown.evaluation.off_policy import (
    Estimate,
    OffPolicyConfig,
    Records,
    estimate_off_policy,
    prepare_records,
)
from stepdown.evaluation.weighted import path_weights, wis
from stepdown.guardian.threshold import Guardian, split_penalty
from stepdown.handover import Cohort, Dynamics, Policy, require_role
from stepdown.policies.rules import Chance
from stepdown.problem.clinical import PAPER
from stepdown.problem.hours import make_transitions

TEAM = "clinicians"


@dataclass(frozen=True)
class Span:
    """A value with its 95 % interval, by a bootstrap over patients."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Evidence:
    """What is known of a candidate without the truth: six-hour rewards, on select patients.

    A gain is the candidate's value minus the clinicians', paired; theirs is 0.
    """

    name: str
    twin: Span  # mean reward in the twin, levels by the policy's mode
    twin_gain: Span
    second: Span  # in a second twin, fitted to other patients than the first
    second_gain: Span
    u: float  # the guardian's mean u over the decisions of the twin's rollouts, nats
    u_plus: float  # mean of its positive part
    unsafe: float  # share of unsafe hours in the twin
    fqe: Span  # fitted Q evaluation on the records; the clinicians' is what was recorded
    fqe_gain: Span
    wis: Span  # per-decision weighted importance sampling
    wis_gain: Span
    joint: Span  # FQE and WDR together
    joint_gain: Span
    patients: float  # effective sample size of the weighting, in patients
    seen: float  # share of the policy's hours that records hold
    unsupported: float  # share of its choices that teams practically never make
    informative: bool  # whether the overlap is enough to weigh records

    @property
    def is_team(self) -> bool:
        """Whether this is the clinicians: leaving everything as it is."""
        return self.name == TEAM


@dataclass(frozen=True)
class EvidenceConfig:
    """How evidence is gathered."""

    starts: int = 1024  # episodes in each twin
    behavior: BehaviorConfig = field(default_factory=BehaviorConfig)
    off_policy: OffPolicyConfig = field(default_factory=lambda: OffPolicyConfig(gammas=()))

    def __post_init__(self):
        if self.starts < 2:
            raise ValueError(f"starts: expected at least 2, got {self.starts}.")


class Witnesses(eqx.Module):
    """All that can speak about a policy: two twins, a guardian, the records of select patients."""

    twin: Dynamics
    second: Dynamics
    guardian: Guardian
    moments: Moments  # starts in recorded hours of select patients
    team: tuple[Judged, Judged]  # the recorded levels in both twins
    weights: Weights  # of the starts, by draw of patients
    records: Records
    recorded: Estimate  # what the clinicians reached


def call_witnesses(
    models: tuple[Dynamics, Dynamics, Guardian],
    select: Cohort,
    died: Bool[np.ndarray, " patients"] | None = None,
    config: EvidenceConfig = EvidenceConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
) -> Witnesses:
    """Do what all candidates share; `models` are the twin, the second twin and the guardian.

    The clinicians' policy is estimated by cross-fitting over the select patients. `died` marks
    stays that ended by death, where that is known.
    """
    require_role(select, "select")
    twin, second, guardian = models
    k_starts, k_behavior, k_draws = jr.split(key, 3)
    moments, plans = draw_moments(
        make_transitions(select), config.starts, key=k_starts, role="select"
    )
    decisions = make_decisions(select, died)
    behavior = fit_behavior(decisions, config.behavior, key=k_behavior)
    records = prepare_records(decisions, behavior, config.off_policy, key=k_draws)
    team = tuple(judge_plans(plans, one, moments) for one in (twin, second))
    return Witnesses(
        twin=twin,
        second=second,
        guardian=guardian,
        moments=moments,
        team=(team[0], team[1]),
        weights=resample(np.asarray(moments.row)),
        records=records,
        recorded=_recorded(records),
    )


def gather_evidence(
    name: str, policy: Policy, witnesses: Witnesses, *, key: PRNGKeyArray
) -> Evidence:
    """All evidence about one policy, judged by its mode; chance is drawn."""
    moments = witnesses.moments
    judged = tuple(
        judge_in_twin(policy, one, moments) for one in (witnesses.twin, witnesses.second)
    )
    if len(judged[0].level) != 1:
        raise ValueError(
            f"expected one policy, got {len(judged[0].level)} seeds. Take them one by one: "
            "each is a candidate of its own."
        )
    how = "sampled" if isinstance(policy, Chance) else "mode"
    found = estimate_off_policy(policy, witnesses.records, how=how, key=key)
    overlap = found.overlap
    estimates = {"fqe": found.fqe, "wis": found.wis, "joint": found.joint}
    return Evidence(
        name=name,
        **_in_twins((judged[0], judged[1]), witnesses),
        **_from_records(estimates, witnesses.recorded),
        patients=overlap.patients(),
        seen=overlap.share_seen(),
        unsupported=overlap.unsupported,
        informative=found.word == "informative",
    )


def team_evidence(witnesses: Witnesses) -> Evidence:
    """The clinicians as a candidate: their recorded levels, and what was recorded."""
    recorded = witnesses.recorded
    same = {name: recorded for name in ("fqe", "wis", "joint")}
    return Evidence(
        name=TEAM,
        **_in_twins(witnesses.team, witnesses),
        **_from_records(same, recorded),
        patients=float(witnesses.records.paths.patients),
        seen=1.0,
        unsupported=0.0,
        informative=True,
    )


def _in_twins(judged: tuple[Judged, Judged], witnesses: Witnesses) -> dict[str, Any]:
    """Rewards in both twins with their gains, and how strange the decisions are."""
    spans, weights = {}, witnesses.weights
    for name, one, team in zip(("twin", "second"), judged, witnesses.team, strict=True):
        reward = values_of(one, "reward")
        spans[name] = _span(estimate(reward, weights))
        spans[f"{name}_gain"] = _span(
            estimate(difference(reward, values_of(team, "reward")), weights)
        )
    u = charges_on_rollouts(witnesses.guardian, witnesses.twin, witnesses.moments, judged[0])
    return spans | {
        "u": float(u.mean()),
        "u_plus": float(split_penalty(u)[0].mean()),
        "unsafe": float(values_of(judged[0], "unsafe_hours").mean()),
    }


def charges_on_rollouts(
    guardian: Guardian, twin: Dynamics, moments: Moments, judged: Judged
) -> Float[Array, "n hours"]:
    """The guardian's u of every decision of judged episodes, whose states are played again."""
    levels = jnp.asarray(judged.level[0, :, 1:], jnp.int32)
    states = _replay(twin, moments.state, levels, moments.key)
    flat = states.reshape(-1, *states.shape[2:])
    return _charge(guardian, flat, levels.ravel()).reshape(levels.shape)


@eqx.filter_jit
def _replay(
    dynamics: Dynamics,
    states: Float[Array, "n steps 13"],
    levels: Int[Array, "n hours"],
    keys: Key[Array, " n"],
) -> Float[Array, "n hours steps 13"]:
    """The state before each decision, with the luck of `judge_in_twin`."""

    def one(row):
        state, plan, key = row
        own = jax.vmap(jr.split)(jr.split(key, len(plan)))[:, 1]

        def hour(state, now):
            return dynamics(state, now[0], key=now[1]), state

        return jax.lax.scan(hour, state, (plan, own))[1]

    return jax.lax.map(one, (states, levels, keys), batch_size=min(256, len(states)))


@eqx.filter_jit
def _charge(guardian: Guardian, states, levels):
    return guardian.penalties(states, levels)


def _recorded(records: Records) -> Estimate:
    """What the clinicians reached: the mean reward of every hour, over the hours recorded."""
    paths, ones = records.paths, np.ones(len(records.chance))
    weight = path_weights(paths, ones, records.behavior.goes_on)
    reward = np.where(paths.gone, -PAPER.reward_clip, records.decisions.reward[paths.row])
    ratios = wis(paths, weight, reward.astype(float))
    value, draws = (ratios.values(x.counts) for x in (records.own, records.draws))
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(float(value[0]), float(low), float(high), draws)


def _from_records(found: Mapping[str, Estimate], team: Estimate) -> dict[str, Any]:
    """Values from the records and their gains over the clinicians, paired by draw."""
    spans = {}
    for name, one in found.items():
        spans[name] = Span(one.value, one.low, one.high)
        gain = one.draws - team.draws
        low, high = np.quantile(gain, [0.025, 0.975]) if np.isfinite(gain).all() else _ANYTHING
        spans[f"{name}_gain"] = Span(one.value - team.value, float(low), float(high))
    return spans


_ANYTHING = (-np.inf, np.inf)


def _span(found: Mapping[str, float]) -> Span:
    return Span(found["mean"], found["low"], found["high"])
