"""Episodes in a twin: somebody decides, the twin answers, hour after hour.

Every start has its own key, and each hour its own key out of that, so all who decide meet the
same luck (paired comparisons), and a start alone comes out as among others.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.handover import Dynamics, Episodes, advance
from stepdown.signals import HORIZON, LEVEL
from stepdown.twin.fit import Twin

Decider = Callable[[None, Float[Array, "steps columns"], PRNGKeyArray], Int[Array, ""]]
ROWS = 2048  # episodes at a time, so that memory stays small


@eqx.filter_jit
def roll_out(
    decider: Decider,
    dynamics: Dynamics,
    states: Float[Array, "n past columns"],
    hours: int = HORIZON,
    *,
    keys: Key[Array, " n"],
) -> Episodes:
    """Let somebody decide for `hours` hours from every state; episodes hold the hours alone.

    A decider is called as among simulated patients (`patients/episodes.py`), with None for the
    patient: nobody knows more than the state here. Nobody dies in a twin.
    """

    def one(start):
        state, key = start

        def hour(state, key):
            k_level, k_hour = jr.split(key)
            level = decider(None, state, k_level)
            later = dynamics(state, level, key=k_hour)
            return advance(state, later), (later, level)

        _, (later, levels) = jax.lax.scan(hour, state, jr.split(key, hours))
        before = jnp.round(state[-1, LEVEL]).astype(int)
        return Episodes(
            state=jnp.concatenate([state[None, -later.shape[1] :], later]),
            level=jnp.concatenate([before[None], levels]),
            alive=jnp.ones(hours, bool),
        )

    return jax.lax.map(one, (states, keys), batch_size=min(ROWS, len(states)))


@eqx.filter_jit
def follow_plans(
    twin: Twin,
    state: Float[Array, "past columns"],
    plans: Int[Array, "plans hours"],
    *,
    keys: Key[Array, " draws"],
) -> Float[Array, "plans draws hours steps columns"]:
    """What may come under each plan of levels; draw i has the same luck under all plans.

    The first hour of all plans starts from one history, which is encoded once.
    """
    per_hour = jnp.swapaxes(jax.vmap(lambda key: jr.split(key, plans.shape[1]))(keys), 0, 1)
    first = twin.what_if(state, plans[:, 0], keys=per_hour[0])

    def hour(states, now):
        levels, keys = now
        draws = jax.vmap(lambda s, level, key: twin(s, level, key=key), (0, None, 0))
        later = jax.vmap(draws, (0, 0, None))(states, levels, keys)
        return advance(states, later), later

    begun = jnp.broadcast_to(state, (*first.shape[:2], *state.shape))
    _, others = jax.lax.scan(hour, advance(begun, first), (plans[:, 1:].T, per_hour[1:]))
    whole = jnp.concatenate([first[None], others])
    return jnp.moveaxis(whole, 0, 2)
