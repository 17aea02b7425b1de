"""A twin for patients who lack some of the signals that it was fitted on.

What a patient lacks is filled before the twin reads the hour (problem/filling.py), and left out of
the forecast again: nobody is told a number of something that was never measured. A twin reads speed
and current as they lie off the pump's map, in steps far smaller than a regression could hit, so
these two are filled by the map itself. Whoever follows a plan over several hours fills once, at the
start, and leaves out at the end: between two hours the twin's own draws say more than a second
filling would.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.patients.pump import motor_current
from stepdown.signals import CURRENT, FLOW, LEVEL, LOWEST, SPEED
from stepdown.twin.fit import Past, State, Twin
from stepdown.twin.rollout import follow_plans


class FilledTwin(eqx.Module):
    """Forecasts with whatever signals there are; absent ones stay NaN."""

    twin: Twin

    def __call__(
        self, state: Past, level: Int[Array, "*samples"], /, *, key: PRNGKeyArray
    ) -> State:
        """Draw one possible next hour."""
        return self._open(self.twin(self.fill(state), level, key=key), state)

    def center(self, state: Past, level: Int[Array, "*samples"], /) -> State:
        """The point forecast."""
        return self._open(self.twin.center(self.fill(state), level), state)

    def follow(
        self, state: Past, plans: Int[Array, "plans hours"], *, keys: Key[Array, " draws"]
    ) -> Float[Array, "plans draws hours steps columns"]:
        """What may come under each plan of levels (rollout.follow_plans)."""
        return self._open(follow_plans(self.twin, self.fill(state), plans, keys=keys), state)

    def fill(self, state: Past) -> Past:
        """The state as the twin reads it, hour by hour."""
        hours = state.reshape(-1, self.twin.steps, state.shape[1])
        return jax.vmap(self._fill_hour)(hours).reshape(state.shape)

    def _fill_hour(self, state: State) -> State:
        pump, present = self.twin.carry.profile, self.twin.scaler.present
        filled, gone = self.twin.scaler.fill(state), jnp.isnan(state).any(0)
        level = jnp.round(state[-1, LEVEL]).astype(int)
        if SPEED in present:
            column = jnp.where(gone[SPEED], pump.speed[level - LOWEST], filled[:, SPEED])
            filled = filled.at[:, SPEED].set(column)
        if CURRENT in present and FLOW in present:
            by_map = jax.vmap(lambda flow: motor_current(pump, level, flow))(filled[:, FLOW])
            column = jnp.where(gone[CURRENT], by_map, filled[:, CURRENT])
            filled = filled.at[:, CURRENT].set(column)
        return filled

    def _open(self, later: Float[Array, "*n"], state: Past) -> Float[Array, "*n"]:
        """The forecast without the signals that the patient lacks."""
        gone = jnp.isnan(state).any(0).at[LEVEL].set(False)
        return jnp.where(jnp.broadcast_to(gone, later.shape), jnp.nan, later)
