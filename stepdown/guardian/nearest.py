"""Evidence for a density: the recorded hours nearest to a decision, to be looked at.

"Known territory" should not have to be believed. For a decision this returns which hours of which
(pseudonymous) patients are closest, what was done in them and what came next. Distances are
those of the density: z-scores, the chosen level by its weight, six samples of each signal.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.guardian.kde import Kde, check_query, to_points
from stepdown.handover import Transitions, require_role

_BLOCK = 2**16  # points at a time


class Evidence(eqx.Module):
    """Recorded decisions, the nearest first. Physical units."""

    row: Int[Array, " count"]  # of the recorded hours
    distance: Float[Array, " count"]  # in z-scores, weighted as in the density
    patient: Int[Array, " count"]  # row of the cohort, whose names are pseudonyms
    hour: Int[Array, " count"]  # counts the patient's recorded decisions from 0
    state: Float[Array, "count steps columns"]
    level: Int[Array, " count"]
    next_state: Float[Array, "count steps columns"]  # the recorded hour that followed


def nearest_hours(
    kde: Kde,
    hours: Transitions,
    state: Float[Array, "steps columns"],
    level: Int[Array, ""] | int,
    count: int = 5,
    *,
    distinct: bool = False,
) -> Evidence:
    """The `count` recorded decisions nearest to one, or the nearest of `count` patients.

    `hours` are those that the density was fitted to, in the same order. With `distinct`, fewer
    come back if there are fewer patients. Of equally near hours the earlier row comes first.
    """
    _check_hours(kde, hours, count)
    check_query(kde, np.asarray(state)[None], np.asarray(level)[None])
    query = to_points(kde.pairs, jnp.asarray(state)[None], jnp.asarray(level)[None])
    distance = _distances(np.asarray(kde.points), np.asarray(query))
    order = np.argsort(distance, kind="stable")
    patient = np.asarray(hours.patient)
    if distinct:
        _, first = np.unique(patient[order], return_index=True)
        order = order[np.sort(first)]
    row = order[:count]
    _check_rows(kde, hours, row)
    return Evidence(
        row=jnp.asarray(row),
        distance=jnp.asarray(distance[row]),
        patient=jnp.asarray(patient[row]),
        hour=jnp.asarray([int((patient[:i] == patient[i]).sum()) for i in row]),
        state=hours.state[row],
        level=hours.level[row],
        next_state=hours.next_state[row],
    )


def _distances(points: np.ndarray, query: np.ndarray) -> np.ndarray:
    """By differences, not by the Gram form: an hour is at distance 0 from itself."""
    blocks = (points[i : i + _BLOCK] for i in range(0, len(points), _BLOCK))
    return np.concatenate([np.linalg.norm(block - query, axis=1) for block in blocks])


def _check_hours(kde: Kde, hours: Transitions, count: int) -> None:
    require_role(hours, "train")
    if len(hours.level) != len(kde.points):
        raise ValueError(
            f"expected the {len(kde.points)} hours that the density was fitted to, "
            f"got {len(hours.level)}. Pass the same train hours in the same order."
        )
    if not 1 <= count <= len(kde.points):
        raise ValueError(f"count: expected 1 to {len(kde.points)} hours, got {count}.")


def _check_rows(kde: Kde, hours: Transitions, row: np.ndarray) -> None:
    """Hours in another order would be shown as evidence for what they are not."""
    points = to_points(kde.pairs, hours.state[row], hours.level[row])
    if not np.allclose(points, kde.points[row], rtol=1e-4, atol=1e-4):
        raise ValueError(
            "expected the hours that the density was fitted to, in the same order, got others. "
            "Pass the train hours as they were when it was fitted."
        )
