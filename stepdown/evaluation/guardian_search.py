"""Choosing what a kernel density looks at, on select patients alone.

A trial tells recorded from swapped choices (AUROC). It counts only if the guardian stays usable
and does not go blind: recorded changes of one or two levels are refused in at most a quarter of
cases, and hours moved by 1 sd in at least nine of ten, both at 5 %. Without the second rule the
conditional density always wins, and it hardly looks at the state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.evaluation.shifts import auroc, shift_states, small_change_alarms, swap_levels
from stepdown.guardian.density import Density
from stepdown.guardian.threshold import log_densities, p_values, score_decisions
from stepdown.handover import Transitions, require_role


@dataclass(frozen=True)
class SearchConfig:
    """What is tried, and what a trial must hold."""

    weights: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)  # of the chosen level
    bandwidths: tuple[float, ...] = (0.5, 1.0)  # z-scores
    shares: tuple[float, ...] = (0.0, 0.33, 0.5, 1.0)  # of log p(s); 0 conditional, 1 joint
    rate: float = 0.05  # refuse p-values up to this
    most_alarms: float = 0.25  # on recorded changes of one or two levels
    least_recall: float = 0.9  # of hours moved by `shift`
    shift: float = 1.0  # sd

    def __post_init__(self):
        if not (self.weights and self.bandwidths and self.shares):
            raise ValueError("expected at least one weight, bandwidth and share, got none.")
        if min(*self.weights, *self.bandwidths, 1.0) <= 0 or not 0 < self.rate < 1:
            raise ValueError("expected weights and bandwidths above 0 and a rate within 0 and 1.")
        if not all(0 <= share <= 1 for share in self.shares):
            raise ValueError(f"expected shares of 0 to 1, got {self.shares}.")


@dataclass(frozen=True)
class Trial:
    """One setting and what it does on select patients."""

    weight: float
    bandwidth: float
    share: float
    swapped: float  # AUROC of recorded against swapped choices
    small_changes: float  # share of recorded changes of one or two levels that are refused
    state_auroc: float  # hours moved by 1 sd
    state_recall: float
    allowed: bool


Fit = Callable[[float, float], Density]  # weight (0: blind to the choice), bandwidth


class _Scores(NamedTuple):
    """Log densities of select decisions as recorded, with swapped choices, in moved hours."""

    recorded: np.ndarray
    swapped: np.ndarray
    moved: np.ndarray


def search_guardian(
    fit: Fit,
    select: Transitions,
    config: SearchConfig,
    *,
    key: PRNGKeyArray,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Trial, tuple[Trial, ...]]:
    """The best allowed trial and all of them; every trial sees the same swaps and shifts."""
    require_role(select, "select")
    trials: list[Trial] = []
    total = len(config.bandwidths) * (1 + len(config.weights))
    for done, bandwidth in enumerate(config.bandwidths):
        watch(done / len(config.bandwidths))
        states = _score(fit(0.0, bandwidth), select, config, key)
        for number, weight in enumerate(config.weights):
            joint = _score(fit(weight, bandwidth), select, config, key)
            for share in config.shares:
                kept = (x - (1 - share) * y for x, y in zip(joint, states, strict=True))
                told = _judge(_Scores(*kept), select, config)
                trials.append(Trial(weight, bandwidth, share, **told))
            watch((done * (1 + len(config.weights)) + number + 2) / total)
    allowed = [trial for trial in trials if trial.allowed]
    return max(allowed or trials, key=lambda trial: trial.swapped), tuple(trials)


def _score(density: Density, select: Transitions, config: SearchConfig, key) -> _Scores:
    k_swap, k_shift = jr.split(key)
    states = shift_states(select.state, density.pairs.scaler, config.shift, key=k_shift)
    swaps = swap_levels(select.level, key=k_swap)
    return _Scores(
        recorded=score_decisions(density, select),
        swapped=log_densities(density, select.state, swaps),
        moved=log_densities(density, states, select.level),
    )


def _judge(scores: _Scores, select: Transitions, config: SearchConfig) -> dict[str, Any]:
    """All of a trial but its setting."""
    ascending = jnp.sort(jnp.asarray(scores.recorded))
    refused = np.asarray(p_values(ascending, jnp.asarray(scores.moved)) <= config.rate)
    p_value = np.asarray(p_values(ascending, jnp.asarray(scores.recorded)))
    small = small_change_alarms(p_value, select, config.rate)["refused"] or 0.0
    recall = float(np.mean(refused))
    return {
        "swapped": auroc(scores.recorded, scores.swapped),
        "small_changes": small,
        "state_auroc": auroc(scores.recorded, scores.moved),
        "state_recall": recall,
        "allowed": small <= config.most_alarms and recall >= config.least_recall,
    }
