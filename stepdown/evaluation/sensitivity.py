"""How wrong WIS could be if teams knew more than the records hold (Γ bounds).

Marginal sensitivity model (Tan 2006; Zhao, Small & Bhattacharya 2019): whatever a team knew beside
the record changes the odds of each recorded level by a factor between 1/Γ and Γ. The weight of a
decision, 1/b, then lies between 1 + (1/b − 1)/Γ and 1 + (1/b − 1)Γ, and that of an episode between
the products. Each hour's weighted mean is made as small and as large as such weights can. Hours are
bounded one by one, so the sum may be wider than needed, never narrower.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Float

from stepdown.evaluation.weighted import Paths, PerHour, path_weights, wis


class Bounds(eqx.Module):
    """What WIS could be under hidden confounding of strength Γ, with 95 % limits."""

    gamma: float
    lower: float  # the smallest value that the weights allow
    upper: float
    low: float  # 2.5 % of the bootstrap over patients of the smallest value
    high: float  # 97.5 % of the largest


def confounding_bounds(
    paths: Paths,
    weights: tuple[PerHour, PerHour],
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
    low, high = least.values(counts), most.values(counts)
    known = np.isfinite(low).all()
    return Bounds(
        gamma=gamma,
        lower=float(least.values(own)[0]),
        upper=float(most.values(own)[0]),
        low=float(np.quantile(low, 0.025)) if known else -np.inf,
        high=float(np.quantile(high, 0.975)) if known else np.inf,
    )


def worst_weights(weights: tuple[PerHour, PerHour], reward: PerHour) -> PerHour:
    """The weights that make every hour's weighted mean of `reward` as large as it can be.

    Some of the largest rewards have their high weight and all others their low one.
    """
    low, high = weights
    chosen = low.copy()
    for hour in range(reward.shape[1]):
        used = np.flatnonzero(high[:, hour] > 0)
        order = used[np.argsort(-reward[used, hour], kind="stable")]
        r, least, more = reward[order, hour], low[order, hour], (high - low)[order, hour]
        above, below = np.cumsum(more * r) + least @ r, np.cumsum(more) + least.sum()
        top = int(np.argmax(above / below)) + 1 if len(order) else 0
        chosen[order[:top], hour] = high[order[:top], hour]
    return chosen


def weight_range(
    paths: Paths,
    policy: Float[np.ndarray, " n"],
    chance: Float[np.ndarray, " n"],
    rest: tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]],
    gamma: float,
) -> tuple[PerHour, PerHour]:
    """The least and the largest weights of every episode and hour.

    `policy` and `chance` are the policy's and the teams' probabilities of the recorded level;
    `rest` is what else a decision's weight is multiplied by, and the chance that the record goes
    on.
    """
    if not gamma >= 1:
        raise ValueError(f"gamma: expected at least 1 (nothing hidden), got {gamma:g}.")
    odds = 1.0 / chance - 1.0
    low, high = (
        path_weights(paths, policy * (1.0 + odds * by) * rest[0], rest[1])
        for by in (1.0 / gamma, gamma)
    )
    return low, high
