"""Bands that hold for six hours: how wide errors are drawn, as select patients' runs tell.

A state holds one hour. What a longer past would tell about a patient (a usual pressure, a sensor's
offset) is luck to a twin, and it draws that luck anew each hour, where in truth it lasts. So errors
that are right for the next hour add up to too much after six. Yet only what an hour of errors moves
as a whole adds up; what its samples scatter about that passes. So there are two widths for each
coordinate, found on select patients: recorded levels are played for six hours, and what lasts is
drawn so wide that the 90 % band covers nine tenths in the later hours, what passes so wide that it
does in the first. Where both cannot be had, coverage lies in the end as far above nine tenths at
its best hour as below at its worst.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.handover import Transitions, advance
from stepdown.signals import HORIZON

ROUNDS = 10  # of playing and correcting
STARTS, DRAWS = 512, 39  # at most; of 39 draws and the truth, each has a fortieth of the places
NOMINAL = 0.9
LATER = 3  # hours from which on what passes no longer tells
NARROWEST, WIDEST = 0.2, 2.0
GROUP = 32  # starts of one compiled call


def fit_width(twin: Any, select: Transitions, *, key: PRNGKeyArray) -> Any:
    """The twin with errors as wide as select patients' runs ask for.

    Where no six recorded hours follow one another, the twin is left as it is.
    """
    runs = recorded_runs(select, HORIZON)
    if not len(runs):
        return twin
    k_starts, *k_rounds = jr.split(key, ROUNDS + 2)
    seed = int(jr.randint(k_starts, (), 0, 2**31 - 1))
    count = min(STARTS, len(runs))
    runs = np.sort(np.random.default_rng(seed).choice(runs, count, replace=False))
    for number, k_round in enumerate(k_rounds):
        covered = play_runs(twin, select, runs, key=k_round)
        change = correction(covered) if number < ROUNDS else compromise(covered)
        width = jnp.clip(twin.network.width * change, NARROWEST, WIDEST)
        twin = eqx.tree_at(lambda t: t.network.width, twin, width)
    return twin


def recorded_runs(hours: Transitions, length: int) -> Int[np.ndarray, " runs"]:
    """Rows from which `length` recorded hours follow one another; rows may have been left out."""
    state, later = np.asarray(hours.hour)[1:], np.asarray(hours.next_state)[:-1]
    patient = np.asarray(hours.patient)
    same = ((state == later) | (np.isnan(state) & np.isnan(later))).all((1, 2))
    goes_on = same & (patient[1:] == patient[:-1]) & ~np.asarray(hours.last)[:-1]
    goes_on = np.append(goes_on, False)
    fits = np.ones(len(goes_on), bool)
    for ahead in range(length - 1):
        fits &= np.append(goes_on[ahead:], np.zeros(ahead, bool))
    return np.flatnonzero(fits)


def play_runs(
    twin: Any, hours: Transitions, runs: Int[np.ndarray, " runs"], *, key: PRNGKeyArray
) -> Float[np.ndarray, "hours signals"]:
    """Coverage of the 90 % band at each hour ahead, by coordinate."""
    levels, later = np.asarray(hours.levels), np.asarray(hours.next_state)
    parts = []
    for first in range(0, len(runs), GROUP):
        number = np.minimum(np.arange(first, first + GROUP), len(runs) - 1)
        plan = runs[number][:, None] + np.arange(HORIZON)
        rows = hours.state[runs[number]], levels[plan], later[plan], number
        parts.append(np.asarray(_covered(twin, rows, key))[: len(runs) - first])
    return np.concatenate(parts).mean(0)


@eqx.filter_jit
def _covered(twin: Any, rows, key):
    def one(state, levels, truth, number):
        keys = jr.split(jr.fold_in(key, number), (HORIZON, DRAWS))
        start = jnp.broadcast_to(state[None], (DRAWS, *state.shape))

        def hour(now, x):
            levels, keys, truth = x
            later = jax.vmap(lambda s, k: twin(s, levels, key=k))(now, keys)
            drawn = jax.vmap(lambda s: twin.free(s, levels))(later)
            return advance(now, later), jnp.mean(inside(drawn, twin.free(truth, levels)), axis=0)

        return jax.lax.scan(hour, start, (levels, keys, truth))[1]

    return jax.vmap(one)(*rows)


def inside(drawn: Float[Array, " draws *shape"], truth: Float[Array, "*shape"]):
    """How much of the truth's place among the draws lies in the central band, 0 to 1.

    A truth that equals some draws shares their places, so what never varies is covered by nine
    tenths.
    """
    places, edge = len(drawn) + 1, (1 - NOMINAL) / 2
    low = jnp.sum(drawn < truth[None], axis=0) / places
    high = low + (jnp.sum(drawn == truth[None], axis=0) + 1) / places
    overlap = jnp.minimum(high, 1 - edge) - jnp.maximum(low, edge)
    return jnp.maximum(overlap, 0.0) / (high - low)


def correction(covered: Float[np.ndarray, "hours signals"]) -> Float[Array, "2 signals"]:
    """By how much to widen what lasts and what passes, as if errors were normal.

    What passes makes but a part of the first hour's error, so it takes a double step.
    """
    lasting, passing = _wider(covered[LATER:].mean(0)), _wider(covered[0])
    return jnp.stack([lasting, passing**2])


def compromise(covered: Float[np.ndarray, "hours signals"]) -> Float[Array, "2 signals"]:
    """By how much to widen both, for the middle of the best and the worst hour to be nominal."""
    middle = _wider((covered.max(0) + covered.min(0)) / 2)
    return jnp.stack([middle, middle])


def _wider(covered: Float[np.ndarray, " signals"]) -> Float[Array, " signals"]:
    covered = np.clip(covered, 0.5, 0.99)
    return ndtri(0.5 + NOMINAL / 2) / ndtri(jnp.asarray(0.5 + covered / 2, jnp.float32))
