"""A guardian for patients who lack some of the signals that it was fitted on.

What a patient lacks is filled before the density is asked (problem/filling.py). A filled hour is
more usual than a measured one, because it holds only what was to be expected; so the scale has to
be set by select patients who lack the same signals, or fewer decisions are refused than promised.
"""

from collections.abc import Collection
from dataclasses import replace

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int

from stepdown.guardian.density import Density, Pairs
from stepdown.guardian.threshold import RECORDED, Guardian, GuardianConfig, make_guardian
from stepdown.handover import Transitions
from stepdown.problem.hours import keep_signals


class FilledDensity(eqx.Module):
    """log p of a decision in a state whose absent signals are filled."""

    density: Density

    @property
    def pairs(self) -> Pairs:
        """As in the density."""
        return self.density.pairs

    @property
    def shape(self) -> tuple[int, int]:
        """As in the density."""
        return self.density.shape

    def floor(self) -> float | None:
        """As in the density."""
        return self.density.floor()

    def log_density(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Nats."""
        return self.density.log_density(self.pairs.scaler.fill(state), level)

    def log_densities(
        self, states: Float[Array, "n steps columns"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """Nats of many."""
        return self.density.log_densities(jax.vmap(self.pairs.scaler.fill)(states), levels)


def fill_guardian(guardian: Guardian) -> Guardian:
    """The same guardian with its scale as it is, for any signals."""
    return replace(guardian, density=FilledDensity(guardian.density))


def guardian_of(
    guardian: Guardian,
    select: Transitions,
    names: Collection[str],
    config: GuardianConfig = RECORDED,
) -> Guardian:
    """The same density for patients with these signals, its scale set by select patients anew."""
    return make_guardian(FilledDensity(guardian.density), keep_signals(select, names), config)
