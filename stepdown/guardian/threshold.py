"""The guardian: any density, a threshold from select patients, and a scale that means something.

u = tau - log p is the paper's penalty (Eq. 5): signed, within fixed bounds. The conformal p-value
is the share of select patients' decisions that are as strange as this one. Refusing below 5 %
therefore raises 5 % false alarms on unseen patients, whatever the density.

All hours of the select patients count alike, because the promise is about hours. Hours of one
patient resemble each other, so with 57 select patients the rate of a single cohort is noisy.
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.guardian.density import DEEPEST, Density
from stepdown.handover import Transitions, require_role
from stepdown.problem.scaling import check_width

SEARCHED = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0)  # percentiles tried for the least variance

Clip = Literal["both", "positive"]


@dataclass(frozen=True)
class GuardianConfig:
    """Where known territory ends; defaults are the paper's for recorded data (App. F)."""

    percentile: float = 35.0  # of select patients' log p
    rule: Literal["percentile", "variance"] = "percentile"  # variance: the paper's search
    clip: Clip = "both"  # positive: no bonus for dense decisions

    def __post_init__(self):
        if not 0 < self.percentile < 100:
            raise ValueError(
                f"percentile: expected a number between 0 and 100, got {self.percentile:g}."
            )


RECORDED, SYNTHETIC = GuardianConfig(), GuardianConfig(percentile=20.0)


class Guardian(eqx.Module):
    """Charges u for a decision, and says how many recorded ones are as strange."""

    density: Density
    threshold: Float[Array, ""]  # tau, nats
    lowest: Float[Array, ""]  # u, nats
    highest: Float[Array, ""]
    scores: Float[Array, " n"]  # log p of select patients' decisions, in ascending order

    def __call__(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Charge u = tau - log p of one decision, nats."""
        return self._charge(self.density.log_density(state, level))

    def penalties(
        self, states: Float[Array, "n steps columns"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """Charge many decisions."""
        return self._charge(self.density.log_densities(states, levels))

    def p_value(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Share of recorded decisions at least as strange as this one, itself among them."""
        return self.rank(self.density.log_density(state, level))

    def p_values(
        self, states: Float[Array, "n steps columns"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """The same for many decisions."""
        return self.rank(self.density.log_densities(states, levels))

    def rank(self, score: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The p-value of a log density."""
        return p_values(self.scores, score)

    def _charge(self, score: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.clip(self.threshold - score, self.lowest, self.highest)


class PValuePenalty(eqx.Module):
    """A charge without a threshold: -log p-value, 1 nat on average over recorded decisions.

    It lies between 0 and log(n + 1), means the same for every density, and has nothing to tune.
    """

    guardian: Guardian

    def __call__(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Nats."""
        return -jnp.log(self.guardian.p_value(state, level))

    def penalties(
        self, states: Float[Array, "n steps columns"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """The same for many decisions."""
        return -jnp.log(self.guardian.p_values(states, levels))


def make_guardian(
    density: Density,
    select: Transitions,
    config: GuardianConfig = RECORDED,
) -> Guardian:
    """Set the threshold and the scale by select patients.

    u is bounded above by its value at the density's floor. Without a floor, or with one above the
    threshold, the bound is 23.03 nats: a density 1e10 times below the threshold's.
    """
    require_role(select, "select")
    scores = np.sort(score_decisions(density, select))
    threshold = float(np.percentile(scores, _percentile(scores, config)))
    floor = density.floor()
    if floor is None or floor >= threshold:
        floor = threshold - DEEPEST
    lowest = threshold - float(scores[-1]) if config.clip == "both" else 0.0
    return Guardian(
        density=density,
        threshold=jnp.asarray(threshold, jnp.float32),
        lowest=jnp.asarray(lowest, jnp.float32),
        highest=jnp.asarray(threshold - floor, jnp.float32),
        scores=jnp.asarray(scores),
    )


def p_values(scores: Float[Array, " m"], queries: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Conformal: (1 + number of scores up to the query) / (m + 1); the scores ascend.

    What is no number is as strange as can be.
    """
    below = jnp.searchsorted(scores, queries, side="right")
    return (1.0 + jnp.where(jnp.isnan(queries), 0, below)) / (1.0 + len(scores))


def split_penalty(u: Float[Array, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """u+ and u-, the charge and the bonus in a penalty; they add up to it."""
    return jnp.maximum(u, 0.0), jnp.minimum(u, 0.0)


def score_decisions(density: Density, hours: Transitions) -> Float[np.ndarray, " n"]:
    """Log densities of recorded decisions, on the host; what cannot be judged is refused."""
    check_width(hours.state, density.pairs.scaler.columns)
    if len(hours.level) == 0:
        raise ValueError(
            f"expected decisions of {hours.role} patients, got none; bring more patients."
        )
    scores = log_densities(density, hours.state, hours.level)
    if not np.isfinite(scores).all():
        raise ValueError(
            f"expected a finite log density for every {hours.role} decision, got others. Use "
            "patients that have the signals of the train patients, without empty samples."
        )
    return scores


def log_densities(
    density: Density, states: Float[Array, "n steps columns"], levels: Int[Array, " n"]
) -> Float[np.ndarray, " n"]:
    """Nats, compiled, on the host."""
    return np.asarray(_log_densities(density, states, levels))


@eqx.filter_jit
def _log_densities(density, states, levels):
    return density.log_densities(states, levels)


def _percentile(scores: Float[np.ndarray, " n"], config: GuardianConfig) -> float:
    """The given percentile, or the one above which log p varies least (App. F).

    Cutting more of a lower tail leaves less variance, so the search tends to the largest
    percentile on its list; that the paper reports 20 % fits a list that ends there.
    """
    if config.rule == "percentile":
        return config.percentile
    cuts = np.percentile(scores, SEARCHED)
    return SEARCHED[int(np.argmin([scores[scores >= cut].var() for cut in cuts]))]
