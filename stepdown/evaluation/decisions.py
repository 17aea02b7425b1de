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
from collections.abc import Callable
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


class Past(NamedTuple):
    """Running numbers of every stay; arrays of (patients, steps), up to and with the sample."""

    level: np.ndarray
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

    def at(self, patient: np.ndarray, step: np.ndarray) -> "Past":
        """The same at some samples alone."""
        return Past(*(values[patient, step] for values in self))


REMEMBERED: dict[str, Callable[[Past], np.ndarray]] = {  # before a decision
    **{f"at P{x}": lambda past, x=x: past.level == x for x in LEVELS},
    **{f"at this level under {x:g} h": lambda past, x=x: past.unchanged < x for x in DWELLS},
    **{f"on support under {x:g} h": lambda past, x=x: past.hours < x for x in DAYS},
    "log hours at this level": lambda past: np.log1p(past.unchanged),
    "log hours on support": lambda past: np.log1p(past.hours),
    "last change": lambda past: past.jump,
    "last change within the hour": lambda past: past.jump * (past.unchanged <= 1.0),
    "turn-down test": lambda past: (
        (past.jump <= -2) & (past.unchanged <= 1.0) & (past.level == LEVELS[1])
    ),
    "changes per hour": lambda past: past.changes / np.maximum(past.hours, 6.0),
    "above the lowest": lambda past: past.level - past.lowest,
    "hours of calm": lambda past: np.minimum(past.calm, 12.0),
    "long calm at low support": lambda past: (past.calm >= 5.0) & (past.level <= 4),
    "running MAP": lambda past: past.pressure,
    "latest MAP": lambda past: past.quick,
    "latest MAP below the limit": lambda past: np.maximum(PAPER.map_limit - past.quick, 0.0),
    "running MAP below the limit": lambda past: np.maximum(
        PAPER.map_limit + 4.0 - past.pressure, 0.0
    ),
    "running pulsatility": lambda past: past.pulse,
    "running heart rate": lambda past: past.rate,
}
CONTEXT = (  # the columns of `Decisions.context`
    *[f"mean {name}" for name in NAMES],
    *[f"{what} {NAMES[i]}" for what in ("least", "slope of", "last") for i in REQUIRED],
    *[field.name for field in dataclasses.fields(RewardParts)],
    "reward",
    "stable",
    *REMEMBERED,
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


def make_decisions(cohort: Cohort, died: Bool[np.ndarray, " patients"] | None = None) -> Decisions:
    """Every decision of every stay; `died` marks stays whose last sample is the last of a life.

    Without `died` every end of a record counts as an end of recording, also a death.
    """
    if cohort.role == "train":
        raise ValueError(
            "expected patients that no policy was trained on, got train patients. "
            "Evaluate on select patients to choose and on test patients to report."
        )
    patients, samples = cohort.level.shape
    died = np.zeros(patients, bool) if died is None else died
    if len(died) != patients:
        raise ValueError(f"expected one flag for each of {patients} patients, got {len(died)}.")
    cut, dead = _with_deaths(cut_stays(cohort), np.asarray(cohort.seen).sum(1), died)
    first, width = cut.start, cut.state.shape[1]
    steps = first[:, None] + width + np.arange(width)
    at = cut.patient[:, None], np.minimum(steps, samples - 1)
    levels = np.asarray(cohort.level)[at]
    alive_ticks = np.asarray(cohort.seen)[at] & (steps < samples)
    moved = (levels[:, 1:] != levels[:, :-1]) & alive_ticks[:, 1:]
    reward = in_groups(_rewards, (cut.next_measured,), size=batch_size(len(first)))
    _require_known(levels[:, 0], reward[~dead])
    past = follow_stays(cohort)
    context, next_context = _contexts(past, cut)
    follows = np.append(first[1:] == first[:-1] + width, False)
    follows &= np.append(cut.patient[1:] == cut.patient[:-1], False)
    return Decisions(
        state=cut.state,
        level=levels[:, 0].astype(np.int32),
        reward=np.where(dead, -PAPER.reward_clip, reward).astype(np.float32),
        next_state=cut.next_state,
        held=~moved.any(1),
        follows=follows & ~dead,
        dead=dead,
        start=np.asarray(alive_ticks.all(1)),
        patient=cut.patient,
        context=context,
        next_context=next_context,
        ticks=_ticks(past.at(at[0], at[1][:, :-1])),
        moved=moved,
        role=cohort.role,
    )


def _with_deaths(cut: Windows, samples: np.ndarray, died: np.ndarray):
    """One more row for each stay that ends by death within an hour: its decision was taken.

    Also whether the coming hour of a row is the last of a patient who died.
    """
    width = cut.state.shape[1]
    ends = np.append(cut.patient[1:] != cut.patient[:-1], True)
    over = samples[cut.patient] - (cut.start + 2 * width)
    extra = np.flatnonzero(ends & died[cut.patient] & (over > 0) & (over < width))
    order = np.sort(np.concatenate([np.arange(len(ends)), extra]), kind="stable")
    added = np.append(False, order[1:] == order[:-1])
    cut = Windows(*(values[order] for values in cut))
    cut.state[added], cut.measured[added] = cut.next_state[added], cut.next_measured[added]
    cut.start[added] += width
    return cut, died[cut.patient] & (samples[cut.patient] <= cut.start + 2 * width)


def _rewards(hours):
    return jax.vmap(normalized_reward)(hours)


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


def _contexts(past: Past, cut: Windows):
    """What is known before the decision and after the coming hour, on one scale."""
    width, sides = cut.state.shape[1], []
    for hours, end in ((cut.state, cut.start + width), (cut.next_state, cut.start + 2 * width)):
        seen = in_groups(_summaries, (hours,), size=batch_size(len(hours)))
        now = past.at(cut.patient, np.minimum(end, past.level.shape[1]) - 1)
        remembered = np.stack([column(now) for column in REMEMBERED.values()], axis=1)
        sides.append(np.concatenate([seen, remembered], axis=1))
    mean = mean_known(sides[0], 0)
    sd = np.sqrt(mean_known((sides[0] - mean) ** 2, 0))
    sd = np.where(sd > 0, sd, 1.0)
    scores = [np.nan_to_num((side - mean) / sd).clip(-6.0, 6.0) for side in sides]
    return scores[0].astype(np.float32), scores[1].astype(np.float32)


def _summaries(hours):
    """Means, extremes and slopes of an hour, and how it scored."""

    def one(state):
        charges = jnp.stack(jax.tree.leaves(reward_parts(state)))
        return jnp.concatenate(
            [
                jnp.mean(state[:, : len(NAMES)], axis=0),
                jnp.stack([jnp.min(state[:, i]) for i in REQUIRED]),
                jnp.stack([slope(state[:, i]) for i in REQUIRED]),
                jnp.stack([state[-1, i] for i in REQUIRED]),
                jnp.minimum(charges, 6.0),
                jnp.stack([normalized_reward(state), stable_by_limits(state) * 1.0]),
            ]
        )

    return jax.vmap(one)(hours)


def _ticks(past: Past) -> Float[np.ndarray, "n changes clues"]:
    """What was seen at each sample of an hour but the last: reasons to change inside the hour."""
    low = np.maximum(PAPER.map_limit - past.quick, 0.0)
    return np.stack(
        [
            low > 0,
            np.minimum(low, 15.0) / 10.0,
            (low > 0) & (past.level <= 4),
            (low > 0) & (past.level >= 8),
            past.unchanged < 0.3,
            (past.pressure - 75.0) / 10.0,
            (past.pulse - 30.0) / 15.0,
            (past.rate - 80.0) / 15.0,
            (past.level - 6.0) / 2.0,
        ],
        axis=-1,
    )


def follow_stays(cohort: Cohort) -> Past:
    """Walk through every stay, sample by sample; what is not seen changes nothing."""
    dt = cohort.minutes / 60
    level, seen = np.asarray(cohort.level), np.asarray(cohort.seen)
    signals = np.asarray(cohort.signals, float)
    nothing = np.zeros(len(level))
    now: dict[str, np.ndarray] = {
        name: nothing for name in ("unchanged", "hours", "jump", "changes", "calm")
    }
    for name, column in _WATCHED:
        early = signals[:, : round(60 / cohort.minutes), column]
        typical = mean_known(signals[..., column].ravel(), 0)
        now[name] = np.where(np.isnan(early).all(1), typical, mean_known(early, 1))
    now["lowest"] = nothing + LEVELS[-1]
    before, kept = np.where(seen[:, 0], level[:, 0], 0), []
    for step in range(level.shape[1]):
        here = seen[:, step]
        _advance(now, signals[:, step], level[:, step], before, here, dt)
        before = np.where(here, level[:, step], before)
        kept.append(Past(level=level[:, step], **now))
    return Past(*(np.stack(values, axis=1) for values in zip(*kept, strict=True)))


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
