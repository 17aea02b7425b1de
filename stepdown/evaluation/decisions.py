"""Recorded stays as off-policy evaluation reads them: decisions in order, with what led to them.

A decision is the level of the first sample of an hour. It was held if the hour saw no other level;
an hour that did is a departure from any policy that decides hourly. Every row with an hour behind
it is the start of an episode, so episodes overlap, and patients are the unit of every interval.

A stay may be shorter than an episode, break off or end by explant. Nothing is invented behind its
end: estimators use the decisions that were recorded and say how many there were. Only death is
carried on, where the records tell of it: hours from death on score the minimum.

Teams look further back than one hour: how long a level has been in force, where it was before, how
long the patient has been calm. A behavior policy that ignores this mistakes habit for chance, so
what a team remembers is read off the records as well: level, time and the running picture.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.handover import Cohort, Role
from stepdown.patients.cohort import batch_size, in_groups
from stepdown.problem.clinical import (
    PAPER,
    ClinicalConfig,
    RewardParts,
    normalized_reward,
    reward_parts,
    slope,
    stable_by_limits,
)
from stepdown.problem.hours import Windows, cut_stays
from stepdown.signals import HIGHEST, HR, LEVELS, LOWEST, MAP, NAMES, PULSATILITY, REQUIRED

Rows = Float[np.ndarray, "n steps columns"]

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
CHARGES = tuple(field.name for field in dataclasses.fields(RewardParts))
CONTEXT = (  # the columns of `Decisions.context`
    *[f"mean {name}" for name in NAMES],
    *[f"{what} {NAMES[i]}" for what in ("least", "slope of", "last") for i in REQUIRED],
    *CHARGES,
    "reward",
    "stable",
    *LOOK_BACK,
)


class Decisions(eqx.Module):
    """Decisions of whole stays, patient by patient in order of time; arrays of the host."""

    state: Rows
    level: Int[np.ndarray, " n"]  # set at the start of the coming hour
    reward: Float[np.ndarray, " n"]  # physiological, of the coming hour
    next_state: Rows
    held: Bool[np.ndarray, " n"]  # the level, through the coming hour
    follows: Bool[np.ndarray, " n"]  # the next row is this stay's next hour
    dead: Bool[np.ndarray, " n"]  # the patient did not live through the coming hour
    start: Bool[np.ndarray, " n"]  # an episode may begin here
    patient: Int[np.ndarray, " n"]  # row of the cohort: the unit of any bootstrap
    context: Float[np.ndarray, "n features"]  # the hour and the stay so far, z-scores
    next_context: Float[np.ndarray, "n features"]  # the same after the coming hour
    ticks: Float[np.ndarray, "n changes clues"]  # what was seen before each chance to change
    moved: Bool[np.ndarray, "n changes"]  # the level at that chance
    role: Role = eqx.field(static=True)


def make_decisions(
    cohort: Cohort,
    died: Bool[np.ndarray, " patients"] | None = None,
    config: ClinicalConfig = PAPER,
) -> Decisions:
    """Every decision of every stay; `died` marks stays whose last sample is the last of a life.

    Without `died` every end of a record counts as an end of recording, also a death.
    """
    if cohort.role == "train":
        raise ValueError(
            "expected patients that no policy was trained on, got train patients. "
            "Evaluate on select patients to choose and on test patients to report."
        )
    cut, first = cut_with_clock(cohort)
    width = cut.state.shape[1]
    if died is not None:
        cut, first = _with_deaths(cohort, cut, first, died)
    steps = first[:, None] + width + np.arange(width)
    at = cut.patient[:, None], np.minimum(steps, cohort.level.shape[1] - 1)
    levels = np.asarray(cohort.level)[at]
    alive_ticks = np.asarray(cohort.seen)[at] & (steps < cohort.level.shape[1])
    moved = (levels[:, 1:] != levels[:, :-1]) & alive_ticks[:, 1:]
    dead = np.zeros(len(first), bool) if died is None else _deaths(cohort, cut, first, died)
    reward = _rewards(cut.next_measured, config)
    _require_known(levels[:, 0], reward[~dead])
    context, next_context = _contexts(cohort, cut, first, config)
    follows = np.append(first[1:] == first[:-1] + width, False)
    follows &= np.append(cut.patient[1:] == cut.patient[:-1], False)
    return Decisions(
        state=cut.state,
        level=levels[:, 0].astype(np.int32),
        reward=np.where(dead, -config.reward_clip, reward).astype(np.float32),
        next_state=cut.next_state,
        held=~moved.any(1),
        follows=follows & ~dead,
        dead=dead,
        start=np.asarray(alive_ticks.all(1)),
        patient=cut.patient,
        context=context,
        next_context=next_context,
        ticks=tick_features(cohort, cut.patient, first + width, width),
        moved=moved,
        role=cohort.role,
    )


def cut_with_clock(cohort: Cohort) -> tuple[Windows, Int[np.ndarray, " n"]]:
    """The windows of `cut_stays`, and the sample of the stay with which each state begins.

    The same stays are cut a second time with a clock in place of MAP, which is never absent.
    """
    cut = cut_stays(cohort)
    signals = np.array(cohort.signals)
    clock = (60.0 + 0.01 * np.arange(signals.shape[1]))[None]
    signals[..., MAP] = np.where(np.isnan(signals[..., MAP]), np.nan, clock)
    timed = cut_stays(dataclasses.replace(cohort, signals=jnp.asarray(signals))).measured
    steps = np.round((timed[..., MAP] - 60.0) / 0.01) - np.arange(timed.shape[1])[None]
    return cut, np.nanmax(steps, axis=1).astype(int)


def _with_deaths(cohort: Cohort, cut: Windows, first: np.ndarray, died: np.ndarray):
    """One more row for each stay that ends by death within an hour: its decision was taken."""
    if len(died) != len(cohort.patient):
        raise ValueError(
            f"expected one flag for each of {len(cohort.patient)} patients, got {len(died)}."
        )
    width = cut.state.shape[1]
    ends = np.append(cut.patient[1:] != cut.patient[:-1], True)
    over = np.asarray(cohort.seen).sum(1)[cut.patient] - (first + 2 * width)
    extra = np.flatnonzero(ends & died[cut.patient] & (over > 0) & (over < width))
    order = np.sort(np.concatenate([np.arange(len(first)), extra]), kind="stable")
    added = np.append(False, order[1:] == order[:-1])
    fields = {name: getattr(cut, name)[order] for name in Windows._fields}
    for now, later in (("state", "next_state"), ("measured", "next_measured")):
        fields[now][added] = fields[later][added]
    return Windows(**fields), np.where(added, first[order] + width, first[order])


def _deaths(cohort: Cohort, cut: Windows, first: np.ndarray, died: np.ndarray) -> np.ndarray:
    """Whether the coming hour is the last of a patient who died."""
    until = first + 2 * cut.state.shape[1]
    return np.asarray(died)[cut.patient] & (np.asarray(cohort.seen).sum(1)[cut.patient] <= until)


def _rewards(hours: Rows, config: ClinicalConfig) -> np.ndarray:
    def rewards(states):
        return jax.vmap(lambda state: normalized_reward(state, config))(states)

    return in_groups(rewards, (hours,), size=batch_size(len(hours)))


def _require_known(level: np.ndarray, reward: np.ndarray) -> None:
    if odd := sorted(set(level.tolist()) - set(range(LOWEST, HIGHEST + 1))):
        raise ValueError(
            f"expected levels {LOWEST} to {HIGHEST}, got {odd[0]}. Correct the level column."
        )
    if not np.isfinite(reward).all():
        raise ValueError(
            f"expected a reward for every hour, got {int((~np.isfinite(reward)).sum())} hours "
            "without one. Drop the hours that lack a signal which the reward needs."
        )


def _contexts(cohort: Cohort, cut: Windows, first: np.ndarray, config: ClinicalConfig):
    """What is known before the decision and after the coming hour, on one scale."""
    width, rows = cut.state.shape[1], cut.patient
    ends = np.minimum(first[:, None] + width * np.array([1, 2]), cohort.level.shape[1])
    sides = []
    for hours, end in ((cut.state, ends[:, 0]), (cut.next_state, ends[:, 1])):
        seen = in_groups(_summaries, (hours,), config, size=batch_size(len(hours)))
        sides.append(np.concatenate([seen, look_back(cohort, rows, end)], axis=1))
    mean = mean_known(sides[0], 0)
    sd = np.sqrt(mean_known((sides[0] - mean) ** 2, 0))
    sd = np.where(sd > 0, sd, 1.0)
    scores = [np.nan_to_num((side - mean) / sd).clip(-6.0, 6.0) for side in sides]
    return scores[0].astype(np.float32), scores[1].astype(np.float32)


def _summaries(hours, config: ClinicalConfig):
    """Means, extremes and slopes of an hour, and how it scored."""

    def one(state):
        charges = jnp.stack(jax.tree.leaves(reward_parts(state, config)))
        return jnp.concatenate(
            [
                jnp.mean(state[:, : len(NAMES)], axis=0),
                jnp.stack([jnp.min(state[:, i]) for i in REQUIRED]),
                jnp.stack([slope(state[:, i]) for i in REQUIRED]),
                jnp.stack([state[-1, i] for i in REQUIRED]),
                jnp.minimum(charges, 6.0),
                jnp.stack(
                    [normalized_reward(state, config), stable_by_limits(state, config) * 1.0]
                ),
            ]
        )

    return jax.vmap(one)(hours)


# ── what a team remembers ────────────────────────────────────────────────────────────────────────


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
        _advance(now, signals[:, step], level[:, step], before, here, dt)
        before = np.where(here, level[:, step], before)
        for name in Past._fields:
            kept[name][:, step] = now[name]
    return Past(**kept)


_WATCHED = (("pressure", MAP), ("quick", MAP), ("pulse", PULSATILITY), ("rate", HR))


def _advance(now: dict[str, np.ndarray], signals, level, before, here, dt: float) -> None:
    """One sample on; `before` is the last level seen, `here` whether this one is."""
    change = level - before
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
