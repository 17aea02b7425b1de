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

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from stepdown.evaluation.bounds import (
    Vector,
    cover,
    lower_bound,
    mean_line,
    optimality_gap,
    reaches,
    tightest_cover,
)
from stepdown.evaluation.hour_values import ByHour, fit_values, reward_range
from stepdown.evaluation.in_patients import score_episodes
from stepdown.evaluation.model_error import (
    HeldOut,
    imagine_episodes,
    imagine_hours,
    tell_apart,
    value_gaps,
)
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Dynamics, Episodes, Policy
from stepdown.patients.cohort import in_groups
from stepdown.patients.episodes import Mode, Sampled, play
from stepdown.policies.rules import Chance

BLOCK = 2048  # decisions charged at a time

DRAWS = 500  # of patients, for an interval

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
    played = imagined if held_out.truth is None else play(decider, *held_out.truth)
    values = fit_values(played, held_out.start_row)
    drawn = imagine_hours(dynamics, held_out, config.draws, key=k_draws)
    gaps, chance = value_gaps(values, held_out, drawn)
    u = charge_all(guardian, held_out.state, held_out.level)
    over = _charge_episodes(guardian, imagined)
    charge = config.weight, max(0.0, -float(guardian.lowest))
    value = _value(imagined)
    tv_known, tv_all = _least_tv(tell_apart(held_out, drawn), held_out.row, u <= 0)
    return Certificate(
        **_bounds(value, np.abs(gaps), u, over, charge),
        **_errors(gaps, u),
        value_in_truth=float("nan") if held_out.truth is None else _value(played),
        in_mean_low=_resampled(value, np.abs(gaps), u, over, held_out.row),
        noise=float(np.sqrt(2.0 / np.pi) * np.sqrt(chance).sum(1).mean()),
        value_fit=float(np.nanmean(values.fit)),
        tv_known=tv_known,
        tv_all=tv_all,
        metric_ceiling=value - 2.0 * tv_known * float(reaches().sum()),
        decisions=len(u),
        patients=len(np.unique(held_out.row)),
        redrawn=held_out.truth is not None,
    )


def _errors(gaps: Float[np.ndarray, "n hours"], u: Vector) -> dict[str, Any]:
    """Errors of the model in and out of known territory."""
    sizes, known = np.abs(gaps).sum(1), u <= 0
    return {
        "error_known": _mean(sizes[known]),
        "error_strange": _mean(sizes[~known]),
        "bias_known": _mean(gaps.sum(1)[known]),
        "rank_correlation": _rank_correlation(np.maximum(u, 0.0), sizes),
    }


def _bounds(
    value: float, errors: ByHour, u: Vector, over: Episodewise, charge: tuple[float, float]
) -> dict[str, Any]:
    """Constants and bounds from |G| by hours to go, and u there and over the policy's hours."""
    weight, largest_bonus = charge
    reach, plus, met = reaches(), np.maximum(u, 0.0), np.maximum(over, 0.0).mean(0)
    worst = (errors / reach[None, ::-1]).max(1)  # columns are hours to go, times the other way

    def constants(slope: float, rest: float) -> Constants:
        return Constants(slope, rest, lower_bound(value, reach, met, slope, rest))

    in_mean = constants(*mean_line(errors.sum(1) / reach.sum(), plus))
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
        "bonus": float(np.maximum(-over, 0.0).mean()),
        "largest_bonus": largest_bonus,
        "in_mean": in_mean,
        "everywhere": constants(tightest, cover(worst, plus, tightest)),
        "as_trained": Constants(trained, rest, bound),
        "weight_asked": in_mean.slope * float(reach[0]),
        "gap": optimality_gap(reach, float(met.sum()), rest, weight, largest_bonus),
    }


def _resampled(
    value: float, errors: ByHour, u: Vector, over: Episodewise, row: Int[np.ndarray, " n"]
) -> float:
    """Lower 95 % limit of the bound in the mean, by a bootstrap over held-out patients."""
    reach, met = reaches(), np.maximum(over, 0.0).mean(0)
    typical, plus = errors.sum(1) / reach.sum(), np.maximum(u, 0.0)
    _, index = np.unique(row, return_inverse=True)
    rows = [np.flatnonzero(index == number) for number in range(index.max() + 1)]
    draw, found = np.random.default_rng(0), []
    for _ in range(DRAWS):
        again = np.concatenate([rows[i] for i in draw.integers(len(rows), size=len(rows))])
        line = mean_line(typical[again], plus[again])
        found.append(lower_bound(value, reach, met, *line))
    return float(np.quantile(found, 0.025))


# ── what they need ───────────────────────────────────────────────────────────────────────────────


def charge_all(guardian: Guardian, states, levels: Int[np.ndarray, " n"]) -> Vector:
    """The guardian's u of many decisions, nats, on the host."""
    rows = (np.asarray(states, np.float32), np.asarray(levels, np.int32))
    return in_groups(_penalties, rows, guardian, size=BLOCK).astype(float)


def _penalties(states, levels, guardian: Guardian):
    return guardian.penalties(states, levels)


def _charge_episodes(guardian: Guardian, episodes: Episodes) -> Float[np.ndarray, "n hours"]:
    """The charge of every decision of every episode."""
    states = np.asarray(episodes.state)[:, :-1]
    levels = np.asarray(episodes.level)[:, 1:]
    u = charge_all(guardian, states.reshape(-1, *states.shape[2:]), levels.ravel())
    return u.reshape(levels.shape)


def _value(episodes: Episodes) -> float:
    return float(np.mean(np.asarray(score_episodes(episodes).reward)))


def _mean(values: Vector) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _least_tv(
    right: Vector, row: Int[np.ndarray, " n"], known: Bool[np.ndarray, " n"]
) -> tuple[float, float]:
    """Lower 95 % limits of 2 · right − 1, over known and over all decisions; 0 if none is told."""
    found = []
    for part in (known, np.ones_like(known)):
        _, index = np.unique(row[part], return_inverse=True)
        total, count = np.bincount(index, 2.0 * right[part] - 1.0), np.bincount(index)
        chosen = np.random.default_rng(0).integers(max(len(count), 1), size=(2000, len(count)))
        means = total[chosen].sum(1) / np.maximum(count[chosen].sum(1), 1)
        found.append(max(0.0, float(np.quantile(means, 0.05))))
    return found[0], found[1]


def _rank_correlation(first: Vector, second: Vector) -> float:
    """Spearman's, ties by their mean rank; NaN if either never changes."""
    ranks = [_ranks(x) for x in (first, second)]
    if min(x.std() for x in ranks) == 0:
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Vector) -> Vector:
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - 0.5 * (count + 1.0))[index]
