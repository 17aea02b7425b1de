"""Imagined hours: the policy played in the dynamics from recorded states, as rows to learn from.

Rewards are computed from the predicted hour (problem/clinical.py), shaped, and charged with the
penalty at the state and level of the decision. Nothing ends: five hours are a horizon, not a fate.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stepdown.handover import Dynamics, Penalty
from stepdown.policies.constraint import masked
from stepdown.policies.networks import Network
from stepdown.policies.penalties import charge
from stepdown.policies.rows import Hours, Levels, View
from stepdown.policies.sac import ACTIONS, Batch, pack
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.signals import LOWEST

ROWS = 1000  # imagined at a time by dynamics without a batch form, so that memory stays small


@dataclass(frozen=True)
class RolloutConfig:
    """Imagined hours; defaults are the paper's (App. F). A change compiles anew."""

    starts: int = 10_000
    hours: int = 5
    kept: int = 5  # rollouts in the ring; older ones are forgotten
    constrained: bool = False  # to the allowed levels (constraint.py)
    clinical: ClinicalConfig = PAPER

    def __post_init__(self):
        if min(self.starts, self.hours, self.kept) < 1:
            raise ValueError(
                "expected at least 1 start, 1 hour and 1 kept rollout, got "
                f"{self.starts}, {self.hours} and {self.kept}."
            )

    @property
    def rows(self) -> int:
        """Rows of one rollout."""
        return self.starts * self.hours


class Imagination(eqx.Module):
    """Where the policy is played, and how that is judged."""

    dynamics: Dynamics
    penalty: Penalty
    view: View  # how the policy reads decisions
    starts: Float[Array, "starts steps 13"]
    config: RolloutConfig = eqx.field(static=True)


def imagine(
    actor: Network, imagination: Imagination, *, key: PRNGKeyArray
) -> tuple[Float[Array, "rows columns"], dict[str, Array]]:
    """Play the policy from random recorded states; rows as `sac.pack` makes them."""
    config, view = imagination.config, imagination.view
    k_start, k_hours = jr.split(key)
    which = jr.randint(k_start, (config.starts,), 0, len(imagination.starts))
    states = imagination.starts[which]
    seen = view.features(states), view.allowed(states)

    def hour(carry, key):
        states, (now, allowed) = carry
        k_level, k_step = jr.split(key)
        choice = jr.categorical(k_level, jax.vmap(masked)(jax.vmap(actor)(now), allowed))
        levels = choice + LOWEST
        later = step_rows(imagination.dynamics, states, levels, key=k_step)
        reward = view.reward(states, levels, later)
        charged, uncertain = charge(imagination.penalty, states, levels)
        seen = view.features(later), view.allowed(later)
        rows = pack(Batch(now, seen[0], choice, reward - charged, allowed, seen[1]))
        info = {
            "reward": jnp.mean(reward),
            "penalty": jnp.mean(charged),
            "uncertainty": jnp.mean(uncertain),
            "levels": jnp.mean(jax.nn.one_hot(choice, ACTIONS), axis=0),
        }
        return (later, seen), (rows, info)

    _, (rows, info) = jax.lax.scan(hour, (states, seen), jr.split(k_hours, config.hours))
    return rows.reshape(config.rows, -1), jax.tree.map(lambda x: jnp.mean(x, axis=0), info)


def step_rows(dynamics: Dynamics, states: Hours, levels: Levels, *, key: PRNGKeyArray) -> Hours:
    """The coming hour of every row, by the dynamics' own batch form if they have one."""
    many: Any = getattr(dynamics, "step_all", None)
    if many is not None:
        return many(states, levels, key=key)
    return jax.lax.map(
        lambda row: dynamics(row[0], row[1], key=row[2]),
        (states, levels, jr.split(key, len(levels))),
        batch_size=min(ROWS, len(levels)),
    )
