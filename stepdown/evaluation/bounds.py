"""Theorems 1 and 2 for an episode, and the constants of Assumption 2, as arithmetic.

docs/theory.md derives them. The metric d of Assumption 2 is bounded by slope · u₊ + rest (the
paper's C and ε); a metric of 1 at a decision moves the value by at most its reach (the paper's c).
"""

import numpy as np
from jaxtyping import Float

from stepdown.evaluation.hour_values import reward_range
from stepdown.signals import HORIZON

Vector = Float[np.ndarray, " n"]
ByTime = Float[np.ndarray, " hours"]


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


def mean_line(error: Vector, plus: Vector) -> tuple[float, float]:
    """Slope and rest of the least-squares line, neither below zero."""
    spread = float(plus.var())
    slope = float(((plus - plus.mean()) * error).mean()) / spread if spread > 0 else 0.0
    slope = max(slope, 0.0)
    rest = float(error.mean() - slope * plus.mean())
    if rest >= 0:
        return slope, rest
    return float((plus * error).mean() / (plus**2).mean()), 0.0
