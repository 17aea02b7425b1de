"""Decisions as rows to learn from: recorded ones, and ones imagined in the dynamics.

Every method reads decisions in the same way: what the networks see, what is earned, what is
allowed. So a difference in a table is a difference in the idea. In imagined hours the policy is
played in the dynamics from recorded states. Rewards are computed from the predicted hour
(problem/clinical.py), shaped, and charged with the penalty at the state and level of the decision.
Nothing ends there: five hours are a horizon, not a fate. Recorded rows end where a patient died.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stepdown.handover import Dynamics, Penalty, Transitions
from stepdown.policies.constraint import allowed_levels, masked
from stepdown.policies.networks import Network, features, level_index
from stepdown.policies.penalties import charge
from stepdown.policies.sac import ACTIONS, Batch, pack
from stepdown.problem.clinical import PAPER, ClinicalConfig, normalized_reward, shaped_reward
from stepdown.problem.scaling import Scaler
from stepdown.signals import LOWEST

AT_A_TIME = 1000  # rows imagined by dynamics without a batch form, so that memory stays small

States = Float[Array, "n steps columns"]
Levels = Int[Array, " n"]


class View(eqx.Module):
    """How a learner reads decisions."""

    scaler: Scaler
    shaping: Float[Array, " 2"]  # weights of jumps and of weaning
    constrained: bool = eqx.field(static=True, default=False)  # to the allowed levels
    clinical: ClinicalConfig = eqx.field(static=True, default=PAPER)

    def reward(self, states: States, levels: Levels, later: States) -> Float[Array, " n"]:
        """The shaped reward of many decisions."""

        def one(state, level, after):
            jump, weaning = self.shaping
            weights = {"jump_weight": jump, "weaning_weight": weaning}
            return shaped_reward(state, level, after, **weights, config=self.clinical)

        return jax.vmap(one)(states, levels, later)

    def features(self, states: States) -> Float[Array, "n inputs"]:
        """What the networks see."""
        return jax.vmap(lambda state: features(self.scaler, state))(states)

    def allowed(self, states: States) -> Bool[Array, "n 8"]:
        """The levels that may be chosen; all of them unless constrained."""
        if not self.constrained:
            return jnp.ones((len(states), ACTIONS), bool)
        return jax.vmap(lambda state: allowed_levels(state, self.clinical))(states)


def make_shaping(jump_weight: float, weaning_weight: float) -> Float[Array, " 2"]:
    """Both weights of the shaped reward as one array, so that a sweep compiles once."""
    return jnp.asarray([jump_weight, weaning_weight], jnp.float32)


@eqx.filter_jit
def recorded_rows(hours: Transitions, view: View) -> Float[Array, "n columns"]:
    """Recorded decisions as rows: the recorded physiological reward, shaped, without a penalty."""
    states, later = hours.state, hours.next_state
    plain = jax.vmap(lambda state: normalized_reward(state, view.clinical))(later)
    shaping = view.reward(states, hours.level, later) - plain
    batch = Batch(
        now=view.features(states),
        later=view.features(later),
        choice=level_index(hours.level),
        reward=hours.unshaped + shaping,
        allowed=view.allowed(states),
        allowed_later=view.allowed(later),
        died=hours.died,
    )
    return pack(batch)


# ── imagined ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RolloutConfig:
    """Imagined hours; defaults are the paper's (App. F). A change compiles anew."""

    starts: int = 10_000
    hours: int = 5
    kept: int = 5  # rollouts in the ring; older ones are forgotten

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
    starts: Float[Array, "starts steps columns"]
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
        lived = jnp.zeros(len(choice), bool)
        rows = pack(Batch(now, seen[0], choice, reward - charged, allowed, seen[1], lived))
        info = {
            "reward": jnp.mean(reward),
            "penalty": jnp.mean(charged),
            "uncertainty": jnp.mean(uncertain),
            "levels": jnp.mean(jax.nn.one_hot(choice, ACTIONS), axis=0),
        }
        return (later, seen), (rows, info)

    _, (rows, info) = jax.lax.scan(hour, (states, seen), jr.split(k_hours, config.hours))
    return rows.reshape(config.rows, -1), jax.tree.map(lambda x: jnp.mean(x, axis=0), info)


def step_rows(dynamics: Dynamics, states: States, levels: Levels, *, key: PRNGKeyArray) -> States:
    """The coming hour of every row, by the dynamics' own batch form if they have one."""
    many: Any = getattr(dynamics, "step_all", None)
    if many is not None:
        return many(states, levels, key=key)
    return jax.lax.map(
        lambda row: dynamics(row[0], row[1], key=row[2]),
        (states, levels, jr.split(key, len(levels))),
        batch_size=min(AT_A_TIME, len(levels)),
    )
