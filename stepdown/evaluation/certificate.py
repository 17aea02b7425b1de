"""What the theorems certify about a trained policy: constants, lower bounds, and their limits.

docs/theory.md derives the statements. Values are physiological rewards of an episode of six hours,
not discounted, the most probable level at each decision; the model is the one that the policy was
trained in. Per hour with h hours to go after it, a model error moves the value by at most
reach · d, where reach = (h + 1) · half the range of an hourly reward and d the metric of
Assumption 2: d ≤ C · u₊ + ε. So

    value in truth ≥ value in the model − Σ over hours of reach · (C · E[u₊] + ε).

C and ε are estimated on held-out decisions from the value gap |G| (model_error.py), three ways:
in the mean, at every held-out decision, and at every decision with C as the training weight has it.
"Estimated" is the word: Assumption 2 speaks of all states, and imagined ones have no truth.
"""

import functools
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from stepdown.evaluation.compare import draw_patients, middle, spearman
from stepdown.evaluation.model_error import (
    ByHour,
    HeldOut,
    fit_values,
    imagine_episodes,
    imagine_hours,
    reward_range,
    tell_apart,
    value_gaps,
)
from stepdown.evaluation.shifts import charge_all
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Dynamics, Episodes, Policy
from stepdown.patients.episodes import Mode, Sampled, play
from stepdown.policies.rules import Chance
from stepdown.problem.metrics import score_episodes
from stepdown.signals import HORIZON

DRAWS = 500  # of patients, for the interval of a line

Vector = Float[np.ndarray, " n"]
ByTime = Float[np.ndarray, " hours"]
Episodewise = Float[np.ndarray, "m hours"]


@dataclass(frozen=True)
class CertificateConfig:
    """What the bounds are asked about."""

    weight: float = 0.08  # lambda of the training: reward per nat; 0 if it charged no density
    draws: int = 32  # imagined next hours per held-out decision
    sampled: bool = False  # draw levels instead of taking the most probable

    def __post_init__(self):
        if self.weight < 0 or self.draws < 1:
            raise ValueError(
                "expected a weight of at least 0 and at least 1 draw, got "
                f"{self.weight:g} and {self.draws}."
            )


@dataclass(frozen=True)
class Constants:
    """Assumption 2, d ≤ slope · u₊ + rest, and the lower bound that follows."""

    slope: float  # C, per nat
    rest: float  # epsilon; d itself is at most 2
    bound: float  # on the value in truth (Theorem 1)


@dataclass(frozen=True)
class Certificate:
    """The theorems for one policy. Values: sums of hourly rewards over an episode."""

    weight: float  # lambda of the training
    reach: float  # c: half the range of what an episode can be worth
    floor: float  # least possible value: a bound below it says nothing
    value_in_model: float
    value_in_truth: float  # NaN for recordings
    charged: float  # E[u+], nats an hour, over the policy's hours in the model
    bonus: float  # E[|u-|], nats an hour
    largest_bonus: float  # sup |u-|, nats
    in_mean: Constants  # C and epsilon by least squares: the assumption holds on average
    everywhere: Constants  # the tightest pair that holds at every held-out decision
    as_trained: Constants  # C = weight / reach; epsilon so that it holds at every decision
    weight_asked: float  # lambda that covers the mean slope in the first hour: reach * C
    gap: float  # Theorem 2 with `as_trained`, budget: the policy's own E[u+]
    in_mean_low: float  # lower 95 % limit of the first bound, patients drawn again
    error_known: float  # mean |G|, summed over an episode's hours, where u <= 0
    error_strange: float  # ... where u > 0; NaN without such decisions
    bias_known: float  # mean G there, with its sign: what is left when errors cancel
    rank_correlation: float  # of u+ and |G| over held-out decisions
    noise: float  # what chance alone adds to such a sum; NaN for single recorded hours
    value_fit: float  # R² of the fitted value function, mean over hours to go
    tv_known: float  # lower 95 % limit of total variation where u <= 0, by a classifier
    tv_all: float  # ... over all held-out decisions
    metric_ceiling: float  # no (C, epsilon) in the paper's own metric gives a higher lower bound
    decisions: int  # held out
    patients: int
    redrawn: bool  # next hours drawn anew from the simulator; else recorded, one each
    value_in_twin: float = float("nan")  # for whoever puts them side by side

    @property
    def is_vacuous(self) -> bool:
        """Whether even the assumption in the mean certifies nothing above the least value."""
        return self.in_mean.bound <= self.floor


def certify(
    policy: Policy,
    dynamics: Dynamics,
    guardian: Guardian,
    held_out: HeldOut,
    config: CertificateConfig = CertificateConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
) -> Certificate:
    """Estimate the constants on held-out decisions and bound the policy's value in truth.

    `dynamics` are those that the policy was trained in. Make `held_out` once for all policies:
    by `redraw_hours` in simulated patients, by `recorded_hours` from recordings.
    """
    k_rollout, k_draws = jr.split(key)
    decider = (Sampled if config.sampled or isinstance(policy, Chance) else Mode)(policy)
    imagined = imagine_episodes(decider, dynamics, jnp.asarray(held_out.start), key=k_rollout)
    truth = held_out.truth
    played = imagined if truth is None else play(decider, truth.starts, truth.world)
    values = fit_values(played, held_out.start_row)
    drawn = imagine_hours(dynamics, held_out, config.draws, key=k_draws)
    gaps, chance = value_gaps(values, held_out, drawn)
    u = charge_all(guardian, held_out.state, held_out.level).astype(float)
    found = _Measured(_value(imagined), gaps, u, _charge_episodes(guardian, imagined), held_out.row)
    right = tell_apart(held_out, drawn)
    tv_known, tv_all = (_least_tv(right, held_out.row, x) for x in (u <= 0, np.ones(len(u), bool)))
    return Certificate(
        **_bounds(found, config.weight, max(0.0, -float(guardian.lowest))),
        **_errors(found),
        value_in_truth=float("nan") if truth is None else _value(played),
        in_mean_low=_in_mean_low(found),
        noise=float(np.sqrt(2.0 / np.pi) * np.sqrt(chance).sum(1).mean()),
        value_fit=float(np.nanmean(values.fit)),
        tv_known=tv_known,
        tv_all=tv_all,
        metric_ceiling=found.value - 2.0 * tv_known * float(reaches().sum()),
        decisions=len(u),
        patients=len(np.unique(held_out.row)),
        redrawn=truth is not None,
    )


class _Measured(eqx.Module):
    """What was measured of one policy and its model."""

    value: float  # in the model
    gaps: ByHour  # G at held-out decisions
    u: Vector  # there
    over: Episodewise  # u over the policy's hours in the model
    row: Int[np.ndarray, " n"]  # patient of a held-out decision

    @property
    def plus(self) -> Vector:
        """u₊ at held-out decisions."""
        return np.maximum(self.u, 0.0)

    @property
    def met(self) -> ByTime:
        """E[u₊] at each of the policy's decisions."""
        return np.maximum(self.over, 0.0).mean(0)

    @property
    def typical(self) -> Vector:
        """|G| over all hours to go, in units of their reach."""
        return np.abs(self.gaps).sum(1) / reaches().sum()


def _errors(found: _Measured) -> dict[str, Any]:
    """Errors of the model in and out of known territory."""
    sizes, known = np.abs(found.gaps).sum(1), found.u <= 0
    return {
        "error_known": _mean(sizes[known]),
        "error_strange": _mean(sizes[~known]),
        "bias_known": _mean(found.gaps.sum(1)[known]),
        "rank_correlation": spearman(found.plus, sizes),
    }


def _bounds(found: _Measured, weight: float, largest_bonus: float) -> dict[str, Any]:
    """Constants and bounds from |G| by hours to go, and u there and over the policy's hours."""
    value, plus, met, reach = found.value, found.plus, found.met, reaches()
    # columns are hours to go, times the other way
    worst = (np.abs(found.gaps) / reach[None, ::-1]).max(1)

    def constants(slope: float, rest: float) -> Constants:
        return Constants(slope, rest, lower_bound(value, reach, met, slope, rest))

    in_mean = constants(*mean_line(found.typical, plus))
    tightest = tightest_cover(worst, plus, float((reach * met).sum() / reach.sum()))
    trained = weight / float(reach[0])
    rest = cover(worst, plus, trained)
    # The training charges every hour alike, the last ones more than their reach asks for.
    bound = value - weight * float(met.sum()) - rest * float(reach.sum())
    return {
        "weight": weight,
        "reach": float(reach[0]),
        "floor": reward_range()[0] * len(reach),
        "value_in_model": value,
        "charged": float(met.mean()),
        "bonus": float(np.maximum(-found.over, 0.0).mean()),
        "largest_bonus": largest_bonus,
        "in_mean": in_mean,
        "everywhere": constants(tightest, cover(worst, plus, tightest)),
        "as_trained": Constants(trained, rest, bound),
        "weight_asked": in_mean.slope * float(reach[0]),
        "gap": optimality_gap(reach, float(met.sum()), rest, weight, largest_bonus),
    }


def _in_mean_low(found: _Measured) -> float:
    """Lower 95 % limit of the bound in the mean, by a bootstrap over held-out patients."""
    reach, met, typical, plus = reaches(), found.met, found.typical, found.plus
    bounds = [
        lower_bound(found.value, reach, met, *mean_line(typical, plus, weight))
        for weight in draw_patients(found.row, DRAWS)
    ]
    return middle(np.array(bounds))[0]


# ── the theorems for an episode, and the constants of Assumption 2, as arithmetic ────────────────
#
# The metric d of Assumption 2 is bounded by slope · u₊ + rest (the paper's C and ε); a metric of 1
# at a decision moves the value by at most its reach (the paper's c).


def reaches(hours: int = HORIZON) -> ByTime:
    """How much a metric of 1 can move the value at each decision: half the range of what is ahead.

    A decision at time t has its own hour and hours − 1 − t more ahead.
    """
    low, high = reward_range()
    return 0.5 * (high - low) * np.arange(hours, 0, -1)


def lower_bound(value: float, reach: ByTime, plus: ByTime, slope: float, rest: float) -> float:
    """Theorem 1: the value in truth is at least this. `plus` is E[u₊] at each decision."""
    return float(value - (reach * (slope * plus + rest)).sum())


def optimality_gap(
    reach: ByTime, budget: float, rest: float, weight: float, largest_bonus: float
) -> float:
    """Theorem 2: how far below the best policy within the budget the penalized optimum can lie.

    The budget is on the sum of E[u₊] over an episode; weight ≥ slope · reach at every decision.
    """
    bonus = weight * largest_bonus * len(reach)
    return float(2.0 * weight * budget + 2.0 * rest * reach.sum() + bonus)


def cover(error: Vector, plus: Vector, slope: float) -> float:
    """The least rest with error ≤ slope · plus + rest at every decision."""
    return float(np.maximum(error - slope * plus, 0.0).max())


def tightest_cover(error: Vector, plus: Vector, where: float) -> float:
    """The slope for which slope · where + rest is least while every error is covered.

    The sum is convex in the slope, and no slope beyond the steepest error helps.
    """
    low, high = 0.0, float((error / np.maximum(plus, 1e-9))[plus > 0].max(initial=0.0))
    for _ in range(80):
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        costs = [slope * where + cover(error, plus, slope) for slope in (left, right)]
        low, high = (low, right) if costs[0] <= costs[1] else (left, high)
    return low


def mean_line(error: Vector, plus: Vector, weight: Vector | None = None) -> tuple[float, float]:
    """Slope and rest of the least-squares line, neither below zero; decisions may be weighted."""
    mean = functools.partial(np.average, weights=weight)
    apart = plus - mean(plus)
    spread = float(mean(apart**2))
    slope = max(float(mean(apart * error)) / spread if spread > 0 else 0.0, 0.0)
    rest = float(mean(error) - slope * mean(plus))
    if rest >= 0:
        return slope, rest
    return float(mean(plus * error) / mean(plus**2)), 0.0


# ── what they need ───────────────────────────────────────────────────────────────────────────────


def _charge_episodes(guardian: Guardian, episodes: Episodes) -> Float[np.ndarray, "n hours"]:
    """The charge of every decision of every episode."""
    states = np.asarray(episodes.state)[:, :-1]
    levels = np.asarray(episodes.level)[:, 1:]
    u = charge_all(guardian, states.reshape(-1, *states.shape[2:]), levels.ravel())
    return u.reshape(levels.shape).astype(float)


def _value(episodes: Episodes) -> float:
    return float(np.mean(np.asarray(score_episodes(episodes)["reward"])))


def _mean(values: Vector) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _least_tv(right: Vector, row: Int[np.ndarray, " n"], among: Bool[np.ndarray, " n"]) -> float:
    """Lower 95 % limit of 2 · right − 1 among some decisions; 0 if none is told."""
    if not among.any():
        return 0.0
    means = draw_patients(row[among]) @ (2.0 * right[among] - 1.0)
    return max(0.0, float(np.quantile(means, 0.05)))
