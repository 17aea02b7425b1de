"""Recorded hours like this one: how many there are at each level, and what happened next.

A recorded hour is similar if its state is no farther than a radius, in z-scores over the hour's
signals and the level in force. The radius is set by select patients: so large that 95 % of their
recorded decisions have at least 20 similar train hours at the level that was chosen. Counts are
of hours in which exactly the candidate level was chosen.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.handover import Transitions, require_role
from stepdown.problem.scaling import LEVEL_MEAN, LEVEL_SD, Scaler
from stepdown.signals import HR, LEVEL, LEVELS, MAP, PULSATILITY

SHARE, ENOUGH = 0.95, 20  # of select decisions that have enough similar hours
SAMPLED = 1000  # select decisions that set the radius
NEAREST = 3  # recorded patients that are shown for a level


class Support(eqx.Module):
    """Train hours as points, with what came next."""

    points: Float[np.ndarray, "n coordinates"]
    level: Int[np.ndarray, " n"]  # chosen
    before: Int[np.ndarray, " n"]  # in force
    patient: Int[np.ndarray, " n"]
    hour: Int[np.ndarray, " n"]  # of the patient's recorded decisions
    later: Float[np.ndarray, "n steps 3"]  # MAP, HR and pulsatility of the hour that followed
    radius: float
    scaler: Scaler
    names: tuple[str, ...] = eqx.field(static=True)  # pseudonyms


def make_support(
    train: Transitions, select: Transitions, scaler: Scaler, names: tuple[str, ...]
) -> Support:
    """Index the train hours; `names` are the pseudonyms of the train cohort."""
    require_role(train, "train")
    require_role(select, "select")
    points, patient = _points(scaler, np.asarray(train.state)), np.asarray(train.patient)
    level = np.asarray(train.level)
    every = np.unique(np.linspace(0, len(select.level) - 1, SAMPLED).astype(int))
    asked = _points(scaler, np.asarray(select.state)[every])
    chosen = np.asarray(select.level)[every]
    later = np.asarray(train.next_state)[..., [MAP, HR, PULSATILITY]]
    first = np.searchsorted(patient, patient)  # rows go patient by patient
    return Support(
        points=points,
        level=level,
        before=np.round(np.asarray(train.state)[:, -1, -1]).astype(int),
        patient=patient,
        hour=np.arange(len(patient)) - first,
        later=later,
        radius=_radius(points, level, asked, chosen),
        scaler=scaler,
        names=names,
    )


def distances(support: Support, state: np.ndarray) -> Float[np.ndarray, " n"]:
    """From one state to every train state, z-scores."""
    query = _points(support.scaler, np.asarray(state)[None])
    return np.linalg.norm(support.points - query, axis=1)


def count_similar(support: Support, distance: Float[np.ndarray, " n"]) -> Int[np.ndarray, " 8"]:
    """Similar train hours in which each level was chosen."""
    near = support.level[distance <= support.radius]
    return np.bincount(near, minlength=LEVELS[-1] + 1)[LEVELS[0] : LEVELS[-1] + 1]


def nearest_patients(
    support: Support, distance: Float[np.ndarray, " n"], level: int, count: int = NEAREST
) -> list[dict]:
    """The most similar hour of each of the nearest patients at this level, and what came next."""
    rows = np.flatnonzero((support.level == level) & (distance <= support.radius))
    rows = rows[np.argsort(distance[rows], kind="stable")]
    _, first = np.unique(support.patient[rows], return_index=True)
    return [_told(support, int(row), float(distance[row])) for row in rows[np.sort(first)[:count]]]


def _told(support: Support, row: int, distance: float) -> dict:
    pressure, rate, pulse = support.later[row].T
    return {
        "patient": support.names[support.patient[row]],
        "hour": int(support.hour[row]),
        "distance": round(float(distance), 2),
        "p_before": int(support.before[row]),
        "p": int(support.level[row]),
        "next_hour": {
            "map_mean": _round(np.nanmean(pressure)),
            "map_lowest": _round(np.nanmin(pressure)),
            "hr_mean": _round(np.nanmean(rate)),
            "pulsatility_lowest": _round(np.nanmin(pulse)),
        },
    }


def _round(value: np.floating) -> float:
    return round(float(value), 1)


def _points(scaler: Scaler, states: np.ndarray) -> np.ndarray:
    """The signals of the hour and the level in force; not the choice."""
    used = list(scaler.present)
    mean, sd = np.asarray(scaler.mean)[used], np.asarray(scaler.sd)[used]
    scores = ((states[..., used] - mean) / sd).reshape(len(states), -1)
    level = (states[:, -1, LEVEL] - LEVEL_MEAN) / LEVEL_SD
    return np.concatenate([scores, level[:, None]], axis=1, dtype=np.float32)


def _radius(points, level, asked, chosen) -> float:
    """Within it, most select decisions have enough similar hours at the chosen level."""
    needed: list[float] = []
    squares = np.sum(points**2, axis=1)
    for p in np.unique(chosen):
        rows = level == p
        if rows.sum() < ENOUGH:
            needed += [np.inf] * int((chosen == p).sum())
            continue
        here = asked[chosen == p]
        gram = here @ points[rows].T
        square = np.sum(here**2, axis=1)[:, None] + squares[rows][None] - 2 * gram
        needed += list(np.sqrt(np.maximum(np.partition(square, ENOUGH - 1)[:, ENOUGH - 1], 0.0)))
    finite: Bool[np.ndarray, " n"] = np.isfinite(needed)
    if not finite.any():
        return 0.0  # too few patients: nothing has support
    return float(np.quantile(np.asarray(needed)[finite], SHARE))
