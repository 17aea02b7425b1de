"""Decisions as every learner reads them: what the networks see, what is earned, what is allowed.

Recorded and imagined decisions become rows of numbers (sac.py) in the same way for every method,
so a difference in a table is a difference in the idea.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from stepdown.handover import Transitions
from stepdown.policies.constraint import allowed_levels
from stepdown.policies.networks import features, level_index
from stepdown.policies.sac import ACTIONS, Batch, pack
from stepdown.problem.clinical import PAPER, ClinicalConfig, normalized_reward, shaped_reward
from stepdown.problem.scaling import Scaler

Hours = Float[Array, "n steps 13"]
Levels = Int[Array, " n"]


class View(eqx.Module):
    """How a learner reads decisions."""

    scaler: Scaler
    shaping: Float[Array, " 2"]  # weights of jumps and of weaning
    constrained: bool = eqx.field(static=True, default=False)  # to the allowed levels
    clinical: ClinicalConfig = eqx.field(static=True, default=PAPER)

    def reward(self, states: Hours, levels: Levels, later: Hours) -> Float[Array, " n"]:
        """The shaped reward of many decisions."""

        def one(state, level, after):
            jump, weaning = self.shaping
            weights = {"jump_weight": jump, "weaning_weight": weaning}
            return shaped_reward(state, level, after, **weights, config=self.clinical)

        return jax.vmap(one)(states, levels, later)

    def features(self, states: Hours) -> Float[Array, "n inputs"]:
        """What the networks see."""
        return jax.vmap(lambda state: features(self.scaler, state))(states)

    def allowed(self, states: Hours) -> Bool[Array, "n 8"]:
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
    )
    return pack(batch)
