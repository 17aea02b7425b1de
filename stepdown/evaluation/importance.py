"""Importance-weighted estimators on ragged episodes, and how far their weights can be trusted.

An episode is weighted at each hour by how much more likely the policy was than the team to come
that far, over all episodes recorded that far (per decision, self-normalized). Every estimator here
is a sum over hours of ratios of sums over patients, so a bootstrap over patients needs nothing but
the patients' sums.

WDR is written as the model's value of the starts plus, hour by hour, the weighted mean of what the
model got wrong (its temporal differences). Where all episodes have full length this equals the form
of Thomas & Brunskill (2016). Where a record stops, the model's value of the last hour stands for
what was not recorded. MAGIC blends the sums that stop correcting after 0, 1, ... hours.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.evaluation.compare import interval
from stepdown.evaluation.decisions import Decisions
from stepdown.signals import HORIZON

PerHour = Float[np.ndarray, "episodes hours"]
Sums = Float[np.ndarray, "patients hours"]


class Paths(eqx.Module):
    """Episodes of at most so many recorded decisions; the axes are episode and hour."""

    row: Int[np.ndarray, "episodes hours"]  # of the decisions; of the last one where none is known
    known: Bool[np.ndarray, "episodes hours"]  # the decision was recorded, or the patient was dead
    gone: Bool[np.ndarray, "episodes hours"]  # the patient had died before this hour
    patient: Int[np.ndarray, " episodes"]  # counted from 0 without gaps
    patients: int


class Chances(eqx.Module):
    """What the weight of every decision is made of."""

    policy: Float[np.ndarray, " n"]  # that the policy takes the recorded level
    team: Float[np.ndarray, " n"]  # that the teams do
    held: Float[np.ndarray, " n"]  # 0 where the level was not held, up for those that were not
    goes_on: Float[np.ndarray, " n"]  # that the record goes on after it

    @property
    def ratio(self) -> Float[np.ndarray, " n"]:
        """The weight of each decision by itself."""
        return self.policy / self.team * self.held


class Ratios(eqx.Module):
    """Sums of every patient, whose quotients over all patients add up to a value."""

    above: Float[np.ndarray, "patients terms"]
    below: Float[np.ndarray, "patients terms"]

    def values(self, counts: Float[np.ndarray, "draws patients"]) -> Float[np.ndarray, " draws"]:
        """The value when each patient counts so many times; NaN where nobody was followed."""
        return self.terms(counts).sum(1)

    def terms(self, counts: Float[np.ndarray, "draws patients"]) -> Float[np.ndarray, "draws n"]:
        """The quotients that add up to the value."""
        below = counts @ self.below
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(below > 0, (counts @ self.above) / below, np.nan)


def make_paths(decisions: Decisions, hours: int = HORIZON) -> Paths:
    """An episode from every start, followed as far as its stay was recorded."""
    start = np.flatnonzero(decisions.start)
    row, known, gone = [start], [np.ones(len(start), bool)], [np.zeros(len(start), bool)]
    for _ in range(hours - 1):
        lost = gone[-1] | (decisions.dead[row[-1]] & known[-1])
        on = known[-1] & decisions.follows[row[-1]] & ~lost
        row.append(np.where(on, row[-1] + 1, row[-1]))
        known.append(on | lost)
        gone.append(lost)
    patients, index = np.unique(decisions.patient[start], return_inverse=True)
    return Paths(
        row=np.stack(row, 1),
        known=np.stack(known, 1),
        gone=np.stack(gone, 1),
        patient=index,
        patients=len(patients),
    )


def path_weights(
    paths: Paths, ratio: Float[np.ndarray, " n"], goes_on: Float[np.ndarray, " n"]
) -> PerHour:
    """Cumulative weights; 0 where nothing is known.

    `ratio` is each decision's own weight, `goes_on` the chance that the record goes on after it.
    """
    each = np.where(paths.gone, 1.0, ratio[paths.row])
    kept = np.where(paths.gone[:, 1:], 1.0, 1.0 / goes_on[paths.row[:, :-1]])
    each[:, 1:] *= kept
    return np.where(paths.known, np.cumprod(each, axis=1), 0.0)


def patient_sums(paths: Paths, values: PerHour) -> Sums:
    """Sums over the episodes of each patient."""
    sums = np.zeros((paths.patients, values.shape[1]))
    np.add.at(sums, paths.patient, values)
    return sums


def wis(paths: Paths, weight: PerHour, reward: PerHour) -> Ratios:
    """Per-decision weighted importance sampling: the weighted mean reward of every hour, added."""
    return Ratios(patient_sums(paths, weight * reward), patient_sums(paths, weight))


def wdr(paths: Paths, weight: PerHour, value: Float[np.ndarray, " episodes"], error: PerHour):
    """The mean `value` of the starts, then the weighted mean of the model's `error` of each hour.

    The error of an hour is reward + value of the next hour − value of the decision, in the model.
    """
    ones = np.ones((len(value), 1))
    first = patient_sums(paths, value[:, None]), patient_sums(paths, ones)
    rest = patient_sums(paths, weight * error), patient_sums(paths, weight)
    return Ratios(*(np.concatenate(pair, axis=1) for pair in zip(first, rest, strict=True)))


def magic(
    corrected: Ratios, counts: Float[np.ndarray, "draws patients"]
) -> tuple[Float[np.ndarray, " draws"], float, Float[np.ndarray, " terms"]]:
    """Blend a model's value with 0, 1, ... hours of correction (Thomas & Brunskill 2016, Sec. 8).

    The blend minimizes the estimated squared bias plus variance. Variance comes from the bootstrap
    over patients. The bias of a partial sum is its distance to the middle half of the full sum's
    draws. Returns the draws of the blend, its value and the shares of the partial sums.
    """
    one = np.ones((1, corrected.above.shape[0]))
    partial = np.cumsum(corrected.terms(counts), axis=1)
    center = np.cumsum(corrected.terms(one), axis=1)[0]
    known = partial[np.isfinite(partial).all(1)]
    if len(known) < 2 or not np.isfinite(center).all():
        shares = np.zeros(len(center))
        shares[0] = 1.0  # nothing can be corrected: the model alone
    else:
        low, high = np.nanquantile(partial[:, -1], [0.25, 0.75])
        bias = np.maximum(low - center, 0.0) + np.maximum(center - high, 0.0)
        error = np.atleast_2d(np.cov(known.T)) + np.outer(bias, bias)
        shares = simplex_minimum(error)
    used = shares > 0
    return partial[:, used] @ shares[used], float(center[used] @ shares[used]), shares


def simplex_minimum(matrix: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """Shares (at least 0, together 1) with the least x'Ax, by trying every set of positive ones."""
    size = len(matrix)
    ridge = matrix + 1e-9 * (np.trace(matrix) / size + 1e-12) * np.eye(size)
    best, least = np.zeros(size), np.inf
    for number in range(1, size + 1):
        for used in itertools.combinations(range(size), number):
            part = ridge[np.ix_(used, used)]
            x = np.linalg.solve(part, np.ones(number))
            x = x / x.sum()
            score = x @ part @ x
            if (x >= -1e-12).all() and score < least:
                best, least = np.zeros(size), score
                best[list(used)] = np.maximum(x, 0.0)
    return best / best.sum()


# ── how far records follow a policy ──────────────────────────────────────────────────────────────
#
# Three numbers decide whether an estimate says anything. Effective patients: so many equally
# weighted patients would vary as much. Share seen: importance weights have mean 1 if the records
# hold all that the policy does, so a smaller mean is a share that nobody ever recorded, of which no
# weighting can tell. Unsupported: the share of the policy's choices that teams practically never
# make there. The limits were set on pilot cohorts with their truth in sight; those cohorts count in
# no table.

Word = Literal["informative", "uninformative"]


@dataclass(frozen=True)
class Limits:
    """Less than this, and an estimate is called uninformative."""

    patients: float = 10.0  # effective, harmonic mean over the hours
    seen: float = 0.4  # share of the policy's hours, mean over the hours
    unsupported: float = 0.2  # no more than this share of its choices

    def __post_init__(self):
        if self.patients < 0 or not (0 <= self.seen <= 1 and 0 <= self.unsupported <= 1):
            raise ValueError(
                "expected a number of patients from 0 and shares of 0 to 1, got "
                f"{self.patients:g}, {self.seen:g} and {self.unsupported:g}."
            )


LIMITS = Limits()


class Overlap(eqx.Module):
    """How far the records follow the policy; arrays by hour of the episode."""

    effective: Float[np.ndarray, " hours"]  # patients that carry the weight (Kish)
    seen: Float[np.ndarray, " hours"]  # mean weight: 1 if all that the policy does was recorded
    largest: Float[np.ndarray, " hours"]  # share of the weight that one patient carries
    tail: Float[np.ndarray, " hours"]  # weight of the largest hundredth of the episodes, as a share
    recorded: Float[np.ndarray, " hours"]  # share of the episodes that are recorded that far
    unsupported: float  # share of the policy's choices that teams practically never make

    def patients(self) -> float:
        """Effective patients over the whole episode: the harmonic mean of the hours."""
        with np.errstate(divide="ignore"):
            return float(1.0 / np.mean(1.0 / self.effective))

    def share_seen(self) -> float:
        """Share of the policy's hours that was seen, without the patient who carries most.

        Nobody's single stay is evidence, and a mean weight above 1 makes up for nothing.
        """
        return float(np.mean(np.minimum(self.seen * (1.0 - self.largest), 1.0)))


def measure_overlap(paths: Paths, weight: PerHour, unsupported: float) -> Overlap:
    """How many patients carry the weight, how much of the policy was seen, how heavy the tail."""
    sums = patient_sums(paths, weight)
    total = np.maximum(sums.sum(0), 1e-300)
    top = np.sort(weight, axis=0)[-max(len(weight) // 100, 1) :]
    return Overlap(
        effective=sums.sum(0) ** 2 / np.maximum((sums**2).sum(0), 1e-300),
        seen=weight.mean(0),
        largest=sums.max(0) / total,
        tail=top.sum(0) / total,
        recorded=paths.known.mean(0),
        unsupported=unsupported,
    )


def verdict(overlap: Overlap, limits: Limits = LIMITS) -> Word:
    """Whether the records say anything about the policy."""
    enough = overlap.patients() >= limits.patients and overlap.share_seen() >= limits.seen
    usual = overlap.unsupported <= limits.unsupported
    return "informative" if enough and usual else "uninformative"


def point_one_way(gains: Iterable[float]) -> bool:
    """Whether several witnesses see the same sign; what is 0 or no number vouches for nothing.

    Enough overlap is not enough: WIS and WDR err together where teams knew more than the records
    hold, and a twin, which weighs nothing, errs otherwise.
    """
    return {float(np.sign(x)) for x in gains} in ({1.0}, {-1.0})


# ── how wrong WIS could be if teams knew more than the records hold ──────────────────────────────
#
# Marginal sensitivity model (Tan 2006; Zhao, Small & Bhattacharya 2019): whatever a team knew
# beside the record changes the odds of each recorded level by a factor between 1/Γ and Γ. The
# weight of a decision, 1/b, then lies between 1 + (1/b − 1)/Γ and 1 + (1/b − 1)Γ, and that of an
# episode between the products. Each hour's weighted mean is made as small and as large as such
# weights can. Hours are bounded one by one, so the sum may be wider than needed, never narrower.


class Bounds(eqx.Module):
    """What WIS could be under hidden confounding of strength Γ, with 95 % limits."""

    gamma: float
    lower: float  # the smallest value that the weights allow
    upper: float
    low: float  # 2.5 % of the bootstrap over patients of the smallest value
    high: float  # 97.5 % of the largest


class WeightRange(eqx.Module):
    """The least and the largest weights of every episode and hour."""

    low: PerHour
    high: PerHour


def confounding_bounds(
    paths: Paths,
    weights: WeightRange,
    reward: PerHour,
    gamma: float,
    counts: Float[np.ndarray, "draws patients"],
) -> Bounds:
    """Bounds from the least and the largest weights of every episode and hour.

    The worst weights of the cohort serve all draws: at an optimum they change nothing to the first
    order.
    """
    own = np.ones((1, paths.patients))
    least = wis(paths, worst_weights(weights, -reward), reward)
    most = wis(paths, worst_weights(weights, reward), reward)
    return Bounds(
        gamma=gamma,
        lower=float(least.values(own)[0]),
        upper=float(most.values(own)[0]),
        low=interval(least.values(counts))[0],
        high=interval(most.values(counts))[1],
    )


def worst_weights(weights: WeightRange, reward: PerHour) -> PerHour:
    """The weights that make every hour's weighted mean of `reward` as large as it can be.

    Some of the largest rewards have their high weight and all others their low one.
    """
    low, high = weights.low, weights.high
    chosen = low.copy()
    for hour in range(reward.shape[1]):
        used = np.flatnonzero(high[:, hour] > 0)
        order = used[np.argsort(-reward[used, hour], kind="stable")]
        r, least, more = reward[order, hour], low[order, hour], (high - low)[order, hour]
        above, below = np.cumsum(more * r) + least @ r, np.cumsum(more) + least.sum()
        top = int(np.argmax(above / below)) + 1 if len(order) else 0
        chosen[order[:top], hour] = high[order[:top], hour]
    return chosen


def weight_range(paths: Paths, chances: Chances, gamma: float) -> WeightRange:
    """The weights that hidden reasons of strength Γ allow."""
    if not gamma >= 1:
        raise ValueError(f"gamma: expected at least 1 (nothing hidden), got {gamma:g}.")
    odds = 1.0 / chances.team - 1.0
    low, high = (
        path_weights(paths, chances.policy * (1.0 + odds * by) * chances.held, chances.goes_on)
        for by in (1.0 / gamma, gamma)
    )
    return WeightRange(low, high)
