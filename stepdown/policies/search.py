"""How trials of a search are compared: reward in a twin, from hours of select patients.

A rule that a user with real data could apply. It is known to pick badly under confounding
(docs/all-results.md), so it is only a default. The trials themselves stand in the table of methods.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from stepdown.handover import Dynamics, Policy, Transitions, require_role
from stepdown.patients.episodes import Mode
from stepdown.patients.population import host_generator
from stepdown.problem.clinical import decisions_of, hourly_reward
from stepdown.twin.rollout import roll_out

STARTS = 2048  # from 256 the lead of a best trial is mostly luck (docs/all-results.md)


class TwinReward(eqx.Module):
    """Mean 6-hour reward of a policy's mode in a twin, from the same starts, with the same luck."""

    twin: Dynamics
    states: Float[Array, "starts steps columns"]
    keys: Key[Array, " starts"]

    def __call__(self, policy: Policy) -> float:
        """Higher is better."""
        episodes = roll_out(Mode(policy), self.twin, self.states, keys=self.keys)
        return float(np.mean(np.asarray(_rewards(episodes))))


@eqx.filter_jit
def _rewards(episodes) -> Float[Array, " starts"]:
    return jax.vmap(lambda e: jnp.sum(jax.vmap(hourly_reward)(decisions_of(e))))(episodes)


def make_rule(
    twin: Dynamics, select: Transitions, starts: int = STARTS, *, key: PRNGKeyArray
) -> TwinReward:
    """The rule from random hours of select patients."""
    require_role(select, "select")
    k_starts, k_luck = jr.split(key)
    rows = host_generator(k_starts).integers(len(select.level), size=starts)
    return TwinReward(twin, jnp.asarray(np.asarray(select.state)[rows]), jr.split(k_luck, starts))
