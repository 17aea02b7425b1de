"""The hour that repeats itself: what a forecast must beat, and what twins correct.

Only the pump is known to follow its new level; all else stays as it was last seen. The level may be
one for the whole hour, as somebody decides, or one for each sample, as it was recorded.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.patients.pump import PumpProfile, motor_current, pump_flow, pump_head
from stepdown.signals import CURRENT, FLOW, LEVEL, LOWEST, SPEED

NEAR = 0.01  # relative difference to a level's speed that is still that level

Sample = Float[Array, " columns"]
Hour = Float[Array, "steps columns"]


def hour_level(levels: Int[Array, " steps"]) -> Float[Array, ""]:
    """The level of an hour as a whole: the mean of its samples, rounded to nearest, halves up."""
    return jnp.floor(jnp.mean(levels.astype(float)) + 0.5)


class CarryForward(eqx.Module):
    """Dynamics that repeat the last sample; only the pump follows its new level.

    Flow changes along the pump's curve at the same head, current with it, speed by the table. The
    level of the last sample is read off its speed: a state holds the mean level of its hour, which
    is another one where the level was changed inside the hour.
    """

    profile: PumpProfile

    def __call__(
        self, state: Hour, level: Int[Array, "*samples"], /, *, key: PRNGKeyArray | None = None
    ) -> Hour:
        """The same hour for any key."""
        levels = jnp.broadcast_to(level, state.shape[:1])
        rows = jax.vmap(lambda one: self._sample(state[-1], one))(levels)
        return rows.at[:, LEVEL].set(hour_level(levels))

    def _sample(self, latest: Sample, level: Int[Array, ""]) -> Sample:
        """The last sample, had this been its level."""
        before = self.in_force(latest)
        head = pump_head(self.profile, before, latest[FLOW])
        flow = jnp.where(level == before, latest[FLOW], pump_flow(self.profile, level, head))
        power = motor_current(self.profile, level, flow)
        power -= motor_current(self.profile, before, latest[FLOW])
        speed = self.profile.speed[level - LOWEST] / self.profile.speed[before - LOWEST]
        row = latest.at[FLOW].set(flow)
        return row.at[CURRENT].add(power).at[SPEED].multiply(speed)

    def levels_in_force(self, state: Hour) -> Int[Array, " steps"]:
        """The level of each sample of an hour."""
        return jax.vmap(self.in_force)(state)

    def in_force(self, sample: Sample) -> Int[Array, ""]:
        """The level whose speed a sample shows, or the state's own where no speed comes near."""
        stated = jnp.round(sample[LEVEL]).astype(int)
        off = jnp.abs(sample[SPEED] / self.profile.speed - 1)
        nearest = jnp.argmin(off)
        return jnp.where(off[nearest] < NEAR, nearest + LOWEST, stated)
