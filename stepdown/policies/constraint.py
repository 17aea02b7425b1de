"""The hard constraint: small steps, and never down while pressure or heart rate is low.

It asks which limit was broken. An hour can be outside the limits for want of pulsatility alone,
and then less support is the remedy: that forbids nothing.

Off in the paper's comparison, on at the bedside. A policy trained under it knows it: forbidden
levels have no weight in its values and are never chosen in its rollouts.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stepdown.handover import Policy, hours_read
from stepdown.policies.networks import level_in_force
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.signals import HR, LEVELS, MAP

Arrays = Array | np.ndarray

REACH = 2  # levels in one decision
NEVER = -1e9  # a log-weight; finite, so that nothing becomes NaN


class Forbidden(eqx.Module):
    """What the constraint forbids, by level from P2 on."""

    far: Bool[Arrays, "*n 8"]  # more than two levels away
    down: Bool[Arrays, "*n 8"]  # lower, after an hour with a low pressure or heart rate


def forbidden_levels(level: Int[Arrays, "*n"], low: Bool[Arrays, "*n"]) -> Forbidden:
    """Levels that may not follow the one in force; NumPy or JAX, one patient or many."""
    step = np.array(LEVELS) - level[..., None]
    return Forbidden(far=abs(step) > REACH, down=(step < 0) & low[..., None])


def pressure_or_rate_low(
    state: Float[Array, "steps columns"], config: ClinicalConfig = PAPER
) -> Bool[Array, ""]:
    """Whether MAP or HR was at or below its limit, or not measured at all, in the hour."""
    pressure, rate = jnp.nanmin(state[:, MAP]), jnp.nanmin(state[:, HR])
    return ~((pressure > config.map_limit) & (rate > config.hr_limit))


def allowed_levels(
    state: Float[Array, "steps columns"], config: ClinicalConfig = PAPER
) -> Bool[Array, " 8"]:
    """Levels at most two away, and none below the present one after low MAP or HR."""
    found = forbidden_levels(level_in_force(state), pressure_or_rate_low(state, config))
    return jnp.logical_not(found.far | found.down)


class Constrained(eqx.Module):
    """A policy that cannot choose what is not allowed."""

    policy: Policy
    config: ClinicalConfig = eqx.field(static=True, default=PAPER)

    @property
    def history(self) -> int:
        """Hours of a state that the policy reads; the constraint asks about the last."""
        return hours_read(self.policy)

    def __call__(self, state: Float[Array, "past columns"], /) -> Float[Array, " 8"]:
        """Weigh the allowed levels; the others have no chance."""
        hour = state[-(len(state) // self.history) :]
        return masked(self.policy(state), allowed_levels(hour, self.config))


def masked(weights: Float[Array, " 8"], allowed: Bool[Array, " 8"]) -> Float[Array, " 8"]:
    """Log-probabilities that give forbidden levels no chance."""
    return jax.nn.log_softmax(jnp.where(allowed, weights, NEVER))
