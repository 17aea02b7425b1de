"""Choosing a policy without the truth: rules that a user with private data could apply.

A rule is a pure function from the evidence about all candidates (`evidence.py`, whose names may
be imported from here) to the name of one. `benchmarks/studies/choosing.py` measures what each of
them loses in truth (its regret) on simulated cohorts; the default is the one that proved itself
there.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stepdown.evaluation.evidence import (
    TEAM,
    Evidence,
    EvidenceConfig,
    Span,
    Witnesses,
    call_witnesses,
    gather_evidence,
    team_evidence,
)
from stepdown.signals import HORIZON

__all__ = [
    "CHOICE_RULES",
    "DEFAULT_RULE",
    "TEAM",
    "Evidence",
    "EvidenceConfig",
    "Rule",
    "Span",
    "Witnesses",
    "call_witnesses",
    "both_twins",
    "choose_best",
    "gather_evidence",
    "mean_rank",
    "pessimistic",
    "pooled_gain",
    "regret",
    "team_evidence",
    "usual",
]

CHARGE = 0.08  # lambda of CORMPO in our setting: what a nat of strangeness costs in an hour
MODEL_ERROR = 0.25  # reward; how far twins were off the truth about constant levels

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


def pooled_gain(one: Evidence, error: float = MODEL_ERROR) -> float:
    """Gain over the clinicians by both twins and the records, each weighted by its precision.

    An interval tells how much other patients would change, not how far a model is off; `error`, an
    sd in reward, stands for that. A source without an interval, or without a value, is left out.
    """
    if one.is_team:
        return 0.0
    gains = [one.twin_gain, one.second_gain, one.joint_gain]
    known = [x for x in gains if np.isfinite([x.value, x.low, x.high]).all()]
    if not known:
        return float("nan")
    weights = [1.0 / (((x.high - x.low) / 3.92) ** 2 + error**2) for x in known]
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
