"""Bands that hold for six hours: how wide errors are drawn, as select patients' runs tell.

A state holds one hour. What a longer past would tell about a patient (a usual pressure, a sensor's
offset) is luck to a twin, and it draws that luck anew each hour, where in truth it lasts. So errors
that are right for the next hour add up to too much after six. Their width is therefore a
compromise, found on select patients: recorded levels are played for six hours, and each coordinate
is drawn so much wider or narrower that the coverage of the 90 % band lies as far above nine tenths
at its best hour as below at its worst.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.handover import Transitions
from stepdown.signals import DBP, HORIZON, SBP

ROUNDS = 3  # of playing and correcting
STARTS, DRAWS = 512, 39  # of 39 draws and the truth, each has a fortieth of the places
NOMINAL = 0.9
NARROWEST, WIDEST = 0.5, 2.0
GROUP = 32  # starts of one compiled call


def fit_width(twin: Any, select: Transitions, *, key: PRNGKeyArray) -> Any:
    """The twin with errors as wide as select patients' runs ask for.

    Where no six recorded hours follow one another, the twin is left as it is.
    """
    runs = recorded_runs(select, HORIZON)
    if not len(runs):
        return twin
    k_starts, *k_rounds = jr.split(key, ROUNDS + 1)
    seed = int(jr.randint(k_starts, (), 0, 2**31 - 1))
    runs = np.sort(np.random.default_rng(seed).choice(runs, STARTS, replace=len(runs) < STARTS))
    for k_round in k_rounds:
        covered = play_runs(twin, select, runs, key=k_round)
        change = correction(covered, twin.scaler.present)
        width = jnp.clip(twin.network.width * change, NARROWEST, WIDEST)
        twin = eqx.tree_at(lambda t: t.network.width, twin, width)
    return twin


def recorded_runs(hours: Transitions, length: int) -> Int[np.ndarray, " runs"]:
    """Rows from which `length` recorded hours follow one another; rows may have been left out."""
    state, later = np.asarray(hours.state)[1:], np.asarray(hours.next_state)[:-1]
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
    """Coverage of the 90 % band at each hour ahead, by signal in use."""
    levels, later = np.asarray(hours.levels), np.asarray(hours.next_state)
    parts = []
    for first in range(0, len(runs), GROUP):
        number = np.minimum(np.arange(first, first + GROUP), len(runs) - 1)
        plan = runs[number][:, None] + np.arange(HORIZON)
        rows = hours.state[runs[number]], levels[plan], later[plan], number
        parts.append(np.asarray(_covered(twin, rows, key))[: len(runs) - first])
    return np.concatenate(parts).mean(0)[:, list(twin.scaler.present)]


@eqx.filter_jit
def _covered(twin: Any, rows, key):
    def one(state, levels, truth, number):
        keys = jr.split(jr.fold_in(key, number), (HORIZON, DRAWS))
        start = jnp.broadcast_to(state[None], (DRAWS, *state.shape))

        def hour(now, x):
            now = jax.vmap(lambda s, k: twin(s, x[0], key=k))(now, x[1])
            return now, now[..., :-1]

        _, drawn = jax.lax.scan(hour, start, (levels, keys))  # (hours, draws, steps, signals)
        rank = jnp.sum(drawn < truth[:, None, :, :-1], axis=1)
        edge = round((1 - NOMINAL) / 2 * (DRAWS + 1))
        inside = (rank >= edge) & (rank < DRAWS + 1 - edge)
        return jnp.mean(inside, axis=1)  # over the samples

    return jax.vmap(one)(*rows)


def correction(
    covered: Float[np.ndarray, "hours signals"], present: tuple[int, ...]
) -> Float[Array, " signals"]:
    """By how much to widen each coordinate, as if errors were normal.

    The coordinate in the place of one of the two pressures makes both, so it answers for both.
    """
    middle = (covered.max(0) + covered.min(0)) / 2
    if SBP in present and DBP in present:
        pair = [present.index(SBP), present.index(DBP)]
        middle[pair] = middle[pair].mean()
    middle = np.clip(middle, 0.5, 0.99)
    return ndtri(0.5 + NOMINAL / 2) / ndtri(jnp.asarray(0.5 + middle / 2, jnp.float32))
