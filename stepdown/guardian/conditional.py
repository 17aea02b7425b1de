"""How usual a choice is in its state: log p(a | s) = log p(s, a) - log p(s).

A state has 73 coordinates and the choice is one more, so log p(s, a) is mostly about the state.
`share` says how much of log p(s) stays: 0 is the conditional density, 1 the joint one, and
between them lies a guardian that sees strange states and strange choices alike.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stepdown.guardian.pairs import Pairs
from stepdown.signals import LEVELS


@runtime_checkable
class Density(Protocol):
    """log p of a decision in nats, up to a constant; higher means denser."""

    @property
    def pairs(self) -> Pairs:
        """How a decision becomes a point."""
        ...

    def log_density(
        self, state: Float[Array, "steps 13"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Of one decision."""
        ...

    def log_densities(
        self, states: Float[Array, "n steps 13"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """Of many, in chunks."""
        ...


class Conditional(eqx.Module):
    """share * log p(s) + log p(a | s), up to a constant."""

    joint: Density
    states: Density | None  # blind to the choice (action weight 0); None: sum over the levels
    share: Float[Array, ""]  # of log p(s) that is kept, 0 to 1

    @property
    def pairs(self) -> Pairs:
        """As in the joint density."""
        return self.joint.pairs

    def log_density(
        self, state: Float[Array, "steps 13"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Nats."""
        if self.states is not None:
            known = self.states.log_density(state, level)
        else:
            each = jax.vmap(lambda other: self.joint.log_density(state, other))
            known = jax.nn.logsumexp(each(jnp.asarray(LEVELS)))
        return self.joint.log_density(state, level) - (1.0 - self.share) * known

    def log_densities(
        self, states: Float[Array, "n steps 13"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """Nats, by the batch form of the parts."""
        if self.states is not None:
            known = self.states.log_densities(states, levels)
        else:

            def at(level):
                return self.joint.log_densities(states, jnp.full_like(levels, level))

            known = jax.nn.logsumexp(jax.lax.map(at, jnp.asarray(LEVELS)), axis=0)
        return self.joint.log_densities(states, levels) - (1.0 - self.share) * known
