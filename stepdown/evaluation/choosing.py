"""Choosing a policy without the truth: evidence that a user with private data has, and rules.

For every candidate: its reward in the twin and in a second twin fitted to other patients, how
strange its decisions are to the guardian, and what the records alone say (FQE, WIS). All of it
comes from select patients. The clinicians are a candidate too: nothing need be changed.

In a twin the clinicians are their recorded levels, played whatever happens there: they cannot
answer to the twin's luck as they did to the patients'. Gains over them are a little too kind.

A rule is a pure function from the evidence about all candidates to the name of one.
`benchmarks/studies/choosing.py` measures what each of them loses in truth (its regret) on simulated
cohorts; the default is the one that proved itself there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from stepdown.evaluation.behavior import BehaviorConfig, fit_behavior
from stepdown.evaluation.compare import (
    Weights,
    difference,
    estimate,
    interval,
    resample,
    values_of,
)
from stepdown.evaluation.decisions import make_decisions
from stepdown.evaluation.guardians import charge_all
from stepdown.evaluation.importance import point_one_way
from stepdown.evaluation.judging import draw_moments, judge_in_twin, judge_plans
from stepdown.evaluation.off_policy import (
    Estimate,
    OffPolicyConfig,
    Records,
    estimate_off_policy,
    estimate_recorded,
    prepare_records,
)
from stepdown.guardian.threshold import Guardian, split_penalty
from stepdown.handover import Cohort, Dynamics, Judged, Moments, Policy, require_role
from stepdown.policies.rules import Chance
from stepdown.problem.hours import make_transitions
from stepdown.signals import HORIZON

TEAM = "clinicians"
CHARGE = 0.08  # lambda of CORMPO in our setting: what a nat of strangeness costs in an hour
MODEL_ERROR = 0.25  # reward, sd; how far twins were off the truth about constant levels


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
    informative: bool  # overlap is enough, and WIS, WDR and both twins see gains of one sign

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


class Models(eqx.Module):
    """What can be asked about a policy, beside the records."""

    twin: Dynamics
    second: Dynamics  # fitted to other patients than the first
    guardian: Guardian


class InTwins(eqx.Module):
    """One way of setting levels, judged in both twins."""

    twin: Judged
    second: Judged


class Witnesses(eqx.Module):
    """All that can speak about a policy: the models, and the records of select patients."""

    models: Models
    moments: Moments  # starts in recorded hours of select patients
    team: InTwins  # the recorded levels
    weights: Weights  # of the starts, by draw of patients
    records: Records
    recorded: Estimate  # what the clinicians reached


def call_witnesses(
    models: Models,
    select: Cohort,
    died: Bool[np.ndarray, " patients"] | None = None,
    config: EvidenceConfig = EvidenceConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
) -> Witnesses:
    """Do what all candidates share.

    The clinicians' policy is estimated by cross-fitting over the select patients. `died` marks
    stays that ended by death, where that is known.
    """
    require_role(select, "select")
    k_starts, k_behavior, k_draws = jr.split(key, 3)
    moments, plans = draw_moments(
        make_transitions(select), config.starts, key=k_starts, role="select"
    )
    decisions = make_decisions(select, died)
    behavior = fit_behavior(decisions, config.behavior, key=k_behavior)
    records = prepare_records(decisions, behavior, config.off_policy, key=k_draws)
    return Witnesses(
        models=models,
        moments=moments,
        team=InTwins(*(judge_plans(plans, x, moments) for x in (models.twin, models.second))),
        weights=resample(np.asarray(moments.row)),
        records=records,
        recorded=estimate_recorded(records),
    )


def gather_evidence(
    name: str, policy: Policy, witnesses: Witnesses, *, key: PRNGKeyArray
) -> Evidence:
    """All evidence about one policy, judged by its mode; chance is drawn."""
    models, moments = witnesses.models, witnesses.moments
    judged = InTwins(*(judge_in_twin(policy, x, moments) for x in (models.twin, models.second)))
    if len(judged.twin.level) != 1:
        raise ValueError(
            f"expected one policy, got {len(judged.twin.level)} seeds. Take them one by one: "
            "each is a candidate of its own."
        )
    how = "sampled" if isinstance(policy, Chance) else "mode"
    found = estimate_off_policy(policy, witnesses.records, how=how, key=key)
    overlap = found.overlap
    estimates = {"fqe": found.fqe, "wis": found.wis, "joint": found.joint}
    imagined, recorded = _in_twins(judged, witnesses), witnesses.recorded.value
    gains = [imagined[f"{x}_gain"].value for x in ("twin", "second")]
    gains += [x.value - recorded for x in (found.wis, found.wdr)]
    return Evidence(
        name=name,
        **imagined,
        **_from_records(estimates, witnesses.recorded),
        patients=overlap.patients(),
        seen=overlap.share_seen(),
        unsupported=overlap.unsupported,
        informative=found.word == "informative" and point_one_way(gains),
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


def _in_twins(judged: InTwins, witnesses: Witnesses) -> dict[str, Any]:
    """Rewards in both twins with their gains, and how strange the decisions are."""
    spans, weights, models = {}, witnesses.weights, witnesses.models
    for name in ("twin", "second"):
        reward, team = (values_of(getattr(x, name), "reward") for x in (judged, witnesses.team))
        spans[name] = _span(estimate(reward, weights))
        spans[f"{name}_gain"] = _span(estimate(difference(reward, team), weights))
    u = charges_on_rollouts(models.guardian, models.twin, witnesses.moments, judged.twin)
    return spans | {
        "u": float(u.mean()),
        "u_plus": float(split_penalty(u)[0].mean()),
        "unsafe": float(values_of(judged.twin, "unsafe_hours").mean()),
    }


def charges_on_rollouts(
    guardian: Guardian, twin: Dynamics, moments: Moments, judged: Judged
) -> Float[Array, "n hours"]:
    """The guardian's u of every decision of judged episodes, whose states are played again."""
    levels = jnp.asarray(judged.level[0, :, 1:], jnp.int32)
    states = _replay(twin, moments.state, levels, moments.key)
    return jnp.asarray(charge_all(guardian, states, levels))


@eqx.filter_jit
def _replay(
    dynamics: Dynamics,
    states: Float[Array, "n steps columns"],
    levels: Int[Array, "n hours"],
    keys: Key[Array, " n"],
) -> Float[Array, "n hours steps columns"]:
    """The state before each decision, with the luck of `judge_in_twin`."""

    def one(row):
        state, plan, key = row
        own = jax.vmap(jr.split)(jr.split(key, len(plan)))[:, 1]

        def hour(state, now):
            return dynamics(state, now[0], key=now[1]), state

        return jax.lax.scan(hour, state, (plan, own))[1]

    return jax.lax.map(one, (states, levels, keys), batch_size=min(256, len(states)))


def _from_records(found: Mapping[str, Estimate], team: Estimate) -> dict[str, Any]:
    """Values from the records and their gains over the clinicians, paired by draw."""
    spans = {}
    for name, one in found.items():
        spans[name] = Span(one.value, one.low, one.high)
        spans[f"{name}_gain"] = Span(one.value - team.value, *interval(one.draws - team.draws))
    return spans


def _span(found: Mapping[str, float]) -> Span:
    return Span(found["mean"], found["low"], found["high"])


# ── rules ────────────────────────────────────────────────────────────────────────────────────────

Rule = Callable[[Sequence[Evidence]], str]


def choose_best(
    candidates: Sequence[Evidence],
    value: Callable[[Evidence], float],
    allowed: Callable[[Evidence], bool] = lambda one: True,
) -> str:
    """The allowed candidate of the largest value; of equals the first; NaN is never chosen.

    If none is allowed, it is the clinicians, or, where they are no candidate, the least strange.
    """
    if not candidates:
        raise ValueError("expected candidates to choose from, got none.")
    known = [one for one in candidates if allowed(one) and not np.isnan(value(one))]
    if known:
        return max(known, key=value).name
    team = [one for one in candidates if one.is_team]
    return team[0].name if team else min(candidates, key=lambda one: one.u_plus).name


def pessimistic(one: Evidence, charge: float = CHARGE) -> float:
    """Reward in the twin, less a charge for strange decisions in each of the six hours."""
    return one.twin.value - charge * HORIZON * one.u_plus


def both_twins(one: Evidence) -> float:
    """Mean reward in the two twins: they err by chance in different ways."""
    return (one.twin.value + one.second.value) / 2


def pooled_gain(one: Evidence) -> float:
    """Gain over the clinicians by both twins and the records, each weighted by its precision.

    An interval tells how much other patients would change, not how far a model is off;
    `MODEL_ERROR` stands for that. A source without an interval, or without a value, is left out.
    """
    if one.is_team:
        return 0.0
    gains = [one.twin_gain, one.second_gain, one.joint_gain]
    known = [x for x in gains if np.isfinite([x.value, x.low, x.high]).all()]
    if not known:
        return float("nan")
    weights = [1.0 / (((x.high - x.low) / 3.92) ** 2 + MODEL_ERROR**2) for x in known]
    return float(np.average([x.value for x in known], weights=weights))


def mean_rank(candidates: Sequence[Evidence], one: Evidence) -> float:
    """How many candidates it beats on average: in the twin, in the second twin, by FQE.

    Equals are told apart by the mean of both twins.
    """
    kinds = ("twin", "second", "fqe")
    below = [
        sum(getattr(x, kind).value < getattr(one, kind).value for x in candidates) for kind in kinds
    ]
    return float(np.mean(below)) + 1e-6 * both_twins(one)


def usual(one: Evidence) -> bool:
    """Whether its decisions are, on average, inside the guardian's territory."""
    return one.u <= 0


CHOICE_RULES: dict[str, Rule] = {
    "twin reward": lambda c: choose_best(c, lambda e: e.twin.value),
    "twin reward, mean u at most 0": lambda c: choose_best(c, lambda e: e.twin.value, usual),
    "pessimistic twin": lambda c: choose_best(c, pessimistic),
    "second twin": lambda c: choose_best(c, lambda e: e.second.value),
    "smaller of both twins": lambda c: choose_best(c, lambda e: min(e.twin.value, e.second.value)),
    "mean of both twins": lambda c: choose_best(c, both_twins),
    "mean of both twins, mean u at most 0": lambda c: choose_best(c, both_twins, usual),
    "FQE": lambda c: choose_best(c, lambda e: e.fqe.value),
    "WIS where informative, else FQE": lambda c: choose_best(
        c, lambda e: e.wis.value if e.informative else e.fqe.value
    ),
    "mean rank by both twins and FQE": lambda c: choose_best(c, lambda e: mean_rank(c, e)),
    "least gain by both twins and FQE": lambda c: choose_best(
        c, lambda e: min(e.twin_gain.value, e.second_gain.value, e.fqe_gain.value)
    ),
    "pooled gain": lambda c: choose_best(c, pooled_gain),
    "pooled gain, mean u at most 0": lambda c: choose_best(c, pooled_gain, usual),
    "surely better in both twins": lambda c: choose_best(
        c, lambda e: min(e.twin_gain.low, e.second_gain.low)
    ),
    "mean of both twins where informative": lambda c: choose_best(
        c, both_twins, lambda e: e.informative
    ),
    "surely better by the records": lambda c: choose_best(
        c, lambda e: e.joint_gain.low, lambda e: e.informative
    ),
}
DEFAULT_RULE = "mean of both twins, mean u at most 0"  # on development cohorts, seeds 100 on


def regret(truth: Mapping[str, float], chosen: str) -> float:
    """What is lost in truth by this choice: the best candidate's value minus the chosen one's."""
    if chosen not in truth:
        raise ValueError(f"expected a candidate out of {', '.join(truth)}, got {chosen!r}.")
    return max(truth.values()) - truth[chosen]
