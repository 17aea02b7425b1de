"""A decision as a point: the hour's signals, the level in force, the chosen level, in z-scores.

With all twelve signals and six samples these are 74 coordinates (docs/definitions.md, Guardian).
A density is fitted to such points and asked about such points, never about anything else.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stepdown.problem.scaling import LEVEL_MEAN, LEVEL_SD, Scaler


class Pairs(eqx.Module):
    """Turns a state and the level chosen in it into a point."""

    scaler: Scaler
    action_weight: Float[Array, ""]  # of the chosen level, among coordinates of unit weight

    def __call__(
        self, state: Float[Array, "steps 13"], level: Int[Array, ""], /
    ) -> Float[Array, " coordinates"]:
        """The signals sample by sample, the level in force once, the weighted choice."""
        scores = self.scaler.to_scores(state)
        choice = self.action_weight * (level - LEVEL_MEAN) / LEVEL_SD
        return jnp.concatenate([scores[:, :-1].ravel(), scores[-1, -1:], choice[None]])
