"""The one compiled program of a what-if: eight levels, six hours, all draws, judged by counts.

It always computes everything, in the same order and with random numbers that depend on the state
alone, so candidates can be asked for in any order, or alone, and the numbers are the same. What
is not shown is cut away on the host.
"""

import hashlib

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key

from stepdown.guardian.threshold import Guardian
from stepdown.handover import Policy
from stepdown.signals import FLOW, HORIZON, HR, LEVELS, LVEDP, MAP, PULSATILITY
from stepdown.twin.calibrated import Calibrated
from stepdown.twin.fit import Twin, level_score
from stepdown.twin.rollout import follow_plans

SHOWN = (MAP, PULSATILITY, HR, LVEDP, FLOW)  # columns that are forecast on the screen
QUANTILES = (0.05, 0.25, 0.50, 0.75, 0.95)
JUDGED = (MAP, HR, PULSATILITY)  # columns with limits

State = Float[Array, "steps 13"]


class Outlook(eqx.Module):
    """What may come under each level, held for six hours."""

    quantiles: Float[Array, "8 quantiles samples shown"]
    carried: Float[Array, "8 shown"]  # the last sample, carried forward under the level
    crossing: Int[Array, "8 judged"]  # draws that leave a limit at any sample
    crossing_any: Int[Array, " 8"]  # ... any of the limits
    p_value: Float[Array, " 8"]  # of the decision, by the guardian
    within: Float[Array, "8 shown"]  # variance inside the members, first hour; NaN: not known
    between: Float[Array, "8 shown"]  # variance of the members' centers
    preference: Float[Array, " 8"]  # log-probabilities of the policy; NaN without one


@eqx.filter_jit
def look_ahead(
    models: tuple[Twin, Guardian, Policy | None],
    state: State,
    bounds: Float[Array, "3 2"],
    keys: Key[Array, " draws"],
) -> Outlook:
    """Follow every level for six hours; `bounds` are the limits of MAP, HR and pulsatility."""
    twin, guardian, policy = models
    levels = jnp.asarray(LEVELS)
    plans = jnp.broadcast_to(levels[:, None], (len(LEVELS), HORIZON))
    drawn = follow_plans(twin, state, plans, keys=keys)
    drawn = drawn.reshape(*drawn.shape[:2], -1, drawn.shape[-1])  # (8, draws, samples, 13)
    shown = drawn[..., np.array(SHOWN)]
    quantiles = jnp.quantile(shown, jnp.asarray(QUANTILES), axis=1)
    judged = drawn[..., np.array(JUDGED)]
    low, high = bounds[None, None, None, :, 0], bounds[None, None, None, :, 1]
    left = ~((judged > low) & (judged < high)).all(2)  # (8, draws, judged)
    carried = jax.vmap(lambda level: twin.carry(state, level))(levels)[:, -1]
    within, between = _spread(twin, state, levels)
    states = jnp.broadcast_to(state[None], (len(LEVELS), *state.shape))
    return Outlook(
        quantiles=jnp.moveaxis(quantiles, 0, 1),
        carried=carried[:, np.array(SHOWN)],
        crossing=left.sum(1),
        crossing_any=left.any(-1).sum(1),
        p_value=guardian.p_values(states, levels),
        within=within,
        between=between,
        preference=jnp.full(len(LEVELS), jnp.nan) if policy is None else policy(state),
    )


def _spread(twin: Twin, state: State, levels: Int[Array, " 8"]):
    """Variance within and between members over the first hour, in z-scores; NaN if one model."""
    unknown = jnp.full((len(LEVELS), len(SHOWN)), jnp.nan)
    network = twin.network
    if not isinstance(network, Calibrated):
        return unknown, unknown
    scores = twin.scaler.to_scores(state)

    def one(level):
        far, spread = eqx.filter_vmap(lambda x: x.expect(scores, level_score(level)))(
            network.members
        )
        inside = jnp.mean(spread**2, axis=0) * jnp.var(network.errors, axis=0)
        return jnp.mean(inside, axis=0), jnp.mean(jnp.var(far, axis=0), axis=0)

    within, between = jax.vmap(one)(levels)
    known = [twin.scaler.present.index(i) if i in twin.scaler.present else -1 for i in SHOWN]
    lacking = jnp.asarray([i < 0 for i in known])[None]
    pick = np.array(known)
    return tuple(jnp.where(lacking, jnp.nan, x[:, pick]) for x in (within, between))


def likeness(p_value: np.ndarray) -> float:
    """How like the training data a state is: the p-value of the likeliest level."""
    return float(np.max(p_value))


def keys_of(state: np.ndarray, draws: int) -> Key[Array, " draws"]:
    """Random numbers that belong to this state: the same question has the same answer."""
    told = hashlib.sha256(np.ascontiguousarray(state, "<f4").tobytes()).digest()
    return jr.split(jr.key(int.from_bytes(told[:4], "little")), draws)


def disagreement(outlook: Outlook) -> np.ndarray:
    """Share of the variance that is between the members, the worst of MAP and pulsatility."""
    columns = [SHOWN.index(MAP), SHOWN.index(PULSATILITY)]
    within = np.asarray(outlook.within)[:, columns]
    between = np.asarray(outlook.between)[:, columns]
    return np.max(between / np.maximum(within + between, 1e-12), axis=-1)
