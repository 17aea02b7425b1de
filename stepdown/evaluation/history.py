"""What a team remembers at a bedside, read off the records: level, time and the running picture.

Teams look further back than one hour: how long a level has been in force, where it was before, how
long the patient has been calm. A behavior policy that ignores this mistakes habit for chance.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from stepdown.handover import Cohort
from stepdown.problem.clinical import PAPER
from stepdown.signals import HR, LEVELS, MAP, PULSATILITY

QUICK, SLOW = 0.25, 0.6  # h over which the running picture fades
CALM_MAP, CALM_PULSE = 65.0, 15.0  # mmHg
DWELLS = (1.0, 2.0, 4.0, 8.0)  # h at one level
DAYS = (6.0, 12.0, 24.0, 48.0)  # h on support


LOOK_BACK = (
    *[f"at P{level}" for level in LEVELS],
    *[f"at this level under {dwell:g} h" for dwell in DWELLS],
    *[f"on support under {day:g} h" for day in DAYS],
    "log hours at this level",
    "log hours on support",
    "last change",
    "last change within the hour",
    "turn-down test",
    "changes per hour",
    "above the lowest",
    "hours of calm",
    "long calm at low support",
    "running MAP",
    "latest MAP",
    "latest MAP below the limit",
    "running MAP below the limit",
    "running pulsatility",
    "running heart rate",
)


class Past(NamedTuple):
    """Running numbers of every stay; arrays of (patients, steps), up to and with the sample."""

    unchanged: np.ndarray  # h
    hours: np.ndarray  # h since the first sample
    jump: np.ndarray  # levels, size of the last change
    changes: np.ndarray  # number of changes so far
    lowest: np.ndarray  # level so far
    calm: np.ndarray  # h in a row
    pressure: np.ndarray  # mmHg, slow
    quick: np.ndarray  # mmHg, quick
    pulse: np.ndarray  # mmHg, slow
    rate: np.ndarray  # /min, slow


def look_back(
    cohort: Cohort, patient: Int[np.ndarray, " n"], end: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "n features"]:
    """What is remembered just before sample `end` of a patient's stay."""
    past, level = follow_stays(cohort), np.asarray(cohort.level)
    at = (patient, end - 1)
    now, low = level[at], past.lowest[at]
    unchanged, hours, jump = past.unchanged[at], past.hours[at], past.jump[at]
    columns = [
        *[(now == one) * 1.0 for one in LEVELS],
        *[(unchanged < dwell) * 1.0 for dwell in DWELLS],
        *[(hours < day) * 1.0 for day in DAYS],
        np.log1p(unchanged),
        np.log1p(hours),
        jump,
        jump * (unchanged <= 1.0),
        (jump <= -2) * (unchanged <= 1.0) * (now == LEVELS[1]),  # a turn-down test
        past.changes[at] / np.maximum(hours, 6.0),
        now - low,
        np.minimum(past.calm[at], 12.0),
        (past.calm[at] >= 5.0) * (now <= 4.0),
        past.pressure[at],
        past.quick[at],
        np.maximum(PAPER.map_limit - past.quick[at], 0.0),
        np.maximum(PAPER.map_limit + 4.0 - past.pressure[at], 0.0),
        past.pulse[at],
        past.rate[at],
    ]
    return np.stack(columns, axis=1)


def tick_features(
    cohort: Cohort, patient: Int[np.ndarray, " n"], begin: Int[np.ndarray, " n"], width: int
) -> Float[np.ndarray, "n changes clues"]:
    """What was seen at each sample of an hour but the last: reasons to change inside the hour."""
    past, level = follow_stays(cohort), np.asarray(cohort.level)
    steps = np.minimum(begin[:, None] + np.arange(width - 1), level.shape[1] - 1)
    at = (patient[:, None], steps)
    low = np.maximum(PAPER.map_limit - past.quick[at], 0.0)
    below = (low > 0) * 1.0
    return np.stack(
        [
            below,
            np.minimum(low, 15.0) / 10.0,
            below * (level[at] <= 4),
            below * (level[at] >= 8),
            (past.unchanged[at] < 0.3) * 1.0,
            (past.pressure[at] - 75.0) / 10.0,
            (past.pulse[at] - 30.0) / 15.0,
            (past.rate[at] - 80.0) / 15.0,
            (level[at] - 6.0) / 2.0,
        ],
        axis=-1,
    )


def follow_stays(cohort: Cohort) -> Past:
    """Walk through every stay, sample by sample; what is not seen changes nothing."""
    dt = cohort.minutes / 60
    level, seen = np.asarray(cohort.level), np.asarray(cohort.seen)
    signals = np.asarray(cohort.signals, float)
    patients, steps = level.shape
    kept = {name: np.zeros((patients, steps)) for name in Past._fields}
    now = {name: np.zeros(patients) for name in Past._fields}
    for name, column in _WATCHED:
        early = signals[:, :6, column]
        typical = mean_known(signals[..., column].ravel(), 0)
        now[name] = np.where(np.isnan(early).all(1), typical, mean_known(early, 1))
    now["lowest"] = np.full(patients, float(LEVELS[-1]))
    before = np.where(seen[:, 0], level[:, 0], 0)
    for step in range(steps):
        here = seen[:, step]
        _advance(now, level[:, step] - before, (signals[:, step], level[:, step]), here, dt)
        before = np.where(here, level[:, step], before)
        for name in Past._fields:
            kept[name][:, step] = now[name]
    return Past(**kept)


_WATCHED = (("pressure", MAP), ("quick", MAP), ("pulse", PULSATILITY), ("rate", HR))


def _advance(now: dict[str, np.ndarray], change, sample, here: np.ndarray, dt: float) -> None:
    """One sample on; `change` is the level against the last one seen."""
    signals, level = sample
    new = here & (change != 0)
    now["unchanged"] = np.where(new, dt, now["unchanged"] + dt)
    now["hours"] = now["hours"] + dt
    now["jump"] = np.where(new, change, now["jump"])
    now["changes"] = now["changes"] + new
    now["lowest"] = np.where(here, np.minimum(now["lowest"], level), now["lowest"])
    for name, column in _WATCHED:
        share = 1 - np.exp(-dt / (QUICK if name == "quick" else SLOW))
        moved = now[name] + share * (signals[:, column] - now[name])
        now[name] = np.where(here & ~np.isnan(moved), moved, now[name])
    good = (now["pressure"] > CALM_MAP) & (now["pulse"] > CALM_PULSE)
    now["calm"] = np.where(good, now["calm"] + dt, 0.0)


def mean_known(values: np.ndarray, axis: int) -> np.ndarray:
    """The mean of what is known; 0 where nothing is."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis) / np.maximum(known.sum(axis), 1))
