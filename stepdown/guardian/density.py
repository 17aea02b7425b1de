"""What densities share: a decision as a point, what can be asked of one, its conditional form.

A point is the hour's signals, the level in force and the chosen level, in z-scores: 74 coordinates
with all twelve signals and six samples (docs/definitions.md, Guardian). A density is fitted to such
points and asked about such points, never about anything else.

A state has many coordinates (73 by default) and the choice is one more, so log p(s, a) is mostly
about the state. How usual a choice is in its state says log p(a | s) = log p(s, a) - log p(s).
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stepdown.problem.scaling import LEVEL_MEAN, LEVEL_SD, Scaler
from stepdown.signals import LEVELS

DEEPEST = 23.03  # nats below a peak; the authors' floor is a mean kernel of 1e-10


class Pairs(eqx.Module):
    """Turns a state and the level chosen in it into a point."""

    scaler: Scaler
    action_weight: Float[Array, ""]  # of the chosen level, among coordinates of unit weight

    def __call__(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, " coordinates"]:
        """The signals sample by sample, the level in force once, the weighted choice."""
        scores = self.scaler.to_scores(state)
        choice = self.action_weight * (level - LEVEL_MEAN) / LEVEL_SD
        return jnp.concatenate([scores[:, :-1].ravel(), scores[-1, -1:], choice[None]])


@runtime_checkable
class Density(Protocol):
    """log p of a decision in nats, up to a constant; higher means denser."""

    @property
    def pairs(self) -> Pairs:
        """How a decision becomes a point."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Recorded decisions inside (0 for a density that holds none), coordinates of a point."""
        ...

    def floor(self) -> float | None:
        """The log density below which nothing is told apart, or None."""
        ...

    def log_density(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Of one decision."""
        ...

    def log_densities(
        self, states: Float[Array, "n steps columns"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """Of many, in chunks."""
        ...


class Conditional(eqx.Module):
    """share * log p(s) + log p(a | s), up to a constant.

    `share` says how much of log p(s) stays: 0 is the conditional density, 1 the joint one, and
    between them lies a guardian that sees strange states and strange choices alike.
    """

    joint: Density
    states: Density | None  # blind to the choice (action weight 0); None: sum over the levels
    share: Float[Array, ""]  # of log p(s) that is kept, 0 to 1

    @property
    def pairs(self) -> Pairs:
        """As in the joint density."""
        return self.joint.pairs

    @property
    def shape(self) -> tuple[int, int]:
        """As in the joint density."""
        return self.joint.shape

    def floor(self) -> None:
        """None: the floor of the joint density means nothing here."""
        return

    def log_density(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Nats."""
        if self.states is not None:
            known = self.states.log_density(state, level)
        else:
            each = jax.vmap(lambda other: self.joint.log_density(state, other))
            known = jax.nn.logsumexp(each(jnp.asarray(LEVELS)))
        return self.joint.log_density(state, level) - (1.0 - self.share) * known

    def log_densities(
        self, states: Float[Array, "n steps columns"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """Nats, by the batch form of the parts."""
        if self.states is not None:
            known = self.states.log_densities(states, levels)
        else:

            def at(level):
                return self.joint.log_densities(states, jnp.full_like(levels, level))

            known = jax.nn.logsumexp(jax.lax.map(at, jnp.asarray(LEVELS)), axis=0)
        return self.joint.log_densities(states, levels) - (1.0 - self.share) * known
