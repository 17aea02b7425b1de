"""The hard constraint: small steps, and never down out of an unsafe hour.

Off in the paper's comparison, on at the bedside. A policy trained under it knows it: forbidden
levels have no weight in its values and are never chosen in its rollouts.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stepdown.handover import Policy
from stepdown.policies.networks import level_in_force
from stepdown.problem.clinical import PAPER, ClinicalConfig, stable_by_limits
from stepdown.signals import LEVELS

REACH = 2  # levels in one decision
NEVER = -1e9  # a log-weight; finite, so that nothing becomes NaN


def allowed_levels(
    state: Float[Array, "steps 13"], config: ClinicalConfig = PAPER
) -> Bool[Array, " 8"]:
    """Levels at most two away, and none below the present one after an hour outside the limits."""
    step = np.array(LEVELS) - level_in_force(state)
    return (jnp.abs(step) <= REACH) & ((step >= 0) | stable_by_limits(state, config))


class Constrained(eqx.Module):
    """A policy that cannot choose what is not allowed."""

    policy: Policy
    config: ClinicalConfig = eqx.field(static=True, default=PAPER)

    def __call__(self, state: Float[Array, "steps 13"], /) -> Float[Array, " 8"]:
        """Weigh the allowed levels; the others have no chance."""
        return masked(self.policy(state), allowed_levels(state, self.config))


def masked(weights: Float[Array, " 8"], allowed: Bool[Array, " 8"]) -> Float[Array, " 8"]:
    """Log-probabilities that give forbidden levels no chance."""
    return jax.nn.log_softmax(jnp.where(allowed, weights, NEVER))
