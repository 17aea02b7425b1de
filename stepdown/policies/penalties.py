"""Ways to be careful: what a choice costs in a rollout, beside its reward.

MBPO, MOPO, disagreement and CORMPO differ by the penalty alone. Each charges `weight` times an
uncertainty; the weight is an array, so that a sweep compiles once.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stepdown.handover import Penalty
from stepdown.policies.ensemble import Ensemble

Hour = Float[Array, "steps columns"]
Hours = Float[Array, "n steps columns"]
Level = Int[Array, ""]


class Unpenalized(eqx.Module):
    """No charge (MBPO, and the expert in the twin)."""

    def __call__(self, state: Hour, level: Level, /) -> Float[Array, ""]:
        """Nothing."""
        return jnp.zeros(())


class SpreadPenalty(eqx.Module):
    """MOPO's charge: the largest norm of the predicted sd over the members."""

    ensemble: Ensemble
    weight: Float[Array, ""]

    def __call__(self, state: Hour, level: Level, /) -> Float[Array, ""]:
        """Charge weight * spread."""
        return self.weight * self.ensemble.spread(state, level)

    def uncertainties(self, states: Hours, levels: Int[Array, " n"]) -> Float[Array, " n"]:
        """The spread of many rows."""
        return self.ensemble.spreads(states, levels)


class DisagreementPenalty(eqx.Module):
    """A charge for members that disagree: the largest distance to the mean of all."""

    ensemble: Ensemble
    weight: Float[Array, ""]

    def __call__(self, state: Hour, level: Level, /) -> Float[Array, ""]:
        """Charge weight * disagreement."""
        return self.weight * self.ensemble.disagreement(state, level)

    def uncertainties(self, states: Hours, levels: Int[Array, " n"]) -> Float[Array, " n"]:
        """The disagreement of many rows."""
        return self.ensemble.disagreements(states, levels)


class DensityPenalty(eqx.Module):
    """CORMPO's charge for leaving the data: weight * u(s, a), u = threshold - log p (Eq. 5)."""

    guardian: Penalty
    weight: Float[Array, ""]

    def __call__(self, state: Hour, level: Level, /) -> Float[Array, ""]:
        """Charge weight * u."""
        return self.weight * self.guardian(state, level)

    def uncertainties(self, states: Hours, levels: Int[Array, " n"]) -> Float[Array, " n"]:
        """The guardian's u of many rows, by its own batch form if it has one."""
        many: Any = getattr(self.guardian, "penalties", None) or jax.vmap(self.guardian)
        return many(states, levels)


@runtime_checkable
class Weighted(Protocol):
    """A penalty that is a multiple of an uncertainty, and knows it for many rows at once."""

    weight: Float[Array, ""]

    def uncertainties(self, states: Hours, levels: Int[Array, " n"], /) -> Float[Array, " n"]:
        """What the weight multiplies."""
        ...


PenaltyName = Literal["none", "spread", "disagreement", "density"]
# Each is made of what a training is given: the dynamics, the guardian, the weight.
PENALTIES: dict[PenaltyName, Callable[[Any, Any, Float[Array, ""]], Penalty]] = {
    "none": lambda dynamics, guardian, weight: Unpenalized(),
    "spread": lambda dynamics, guardian, weight: SpreadPenalty(dynamics, weight),
    "disagreement": lambda dynamics, guardian, weight: DisagreementPenalty(dynamics, weight),
    "density": lambda dynamics, guardian, weight: DensityPenalty(guardian, weight),
}


def charge(
    penalty: Penalty, states: Hours, levels: Int[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The charges of many rows, and the uncertainties that they are a multiple of."""
    if not isinstance(penalty, Weighted):
        charges = jax.vmap(penalty)(states, levels)
        return charges, charges
    uncertain = penalty.uncertainties(states, levels)
    return penalty.weight * uncertain, uncertain
