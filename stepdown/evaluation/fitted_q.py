"""Fitted Q evaluation over a finite horizon, linear in what is known of hour and stay.

The value of a decision with h hours to go is the reward of its hour plus the policy's value of the
next state with h − 1 to go: a ridge regression for every h, backward from the last hour. All of
them share one matrix, which no policy changes, and each needs nothing but sums over patients. So
it is inverted once for every bootstrap draw of patients and once without each fold of them, and
refitting costs next to nothing. Stays that end are no loss: every recorded decision serves every h.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from stepdown.evaluation.behavior import Behavior, current_levels
from stepdown.evaluation.decisions import CONTEXT, Decisions
from stepdown.signals import HORIZON, LEVEL, LEVELS, LOWEST

KEY = (  # of the context, joined with level and change
    *("mean map", "mean flow", "mean hr", "mean pulsatility", "mean ese"),
    *("least map", "least pulsatility", "reward", "log hours on support", "hours of calm"),
)
KEY_COLUMNS = tuple(CONTEXT.index(name) for name in KEY)
CHANGES = 3  # levels; larger changes are told apart by the level alone
BLOCK = 50  # draws at a time, so that memory stays small

Context = Float[np.ndarray, "n columns"]
Table = Float[np.ndarray, "n p"]
Policy = Float[np.ndarray, "n 8"]  # probabilities of P2..P9 at each row
Counts = Float[np.ndarray, "draws patients"]


class Lessons(eqx.Module):
    """What recorded decisions teach about any policy; sums over each patient's held hours."""

    table: Table  # features of the recorded decisions
    weight: Float[np.ndarray, " n"]  # 0 where not held, up for those that were not
    square: Float[np.ndarray, "patients p p"]  # features × features
    reward: Float[np.ndarray, "patients p"]  # features × reward
    lost: Float[np.ndarray, "patients p"]  # features of hours that were not survived
    floor: float  # reward of an hour after death


class Counted(eqx.Module):
    """Ways of counting patients, and the matrix of the regression for each, inverted."""

    counts: Counts
    inverse: Float[np.ndarray, "draws p p"]


class Course(eqx.Module):
    """Where a policy leads; sums over each patient."""

    ahead: Float[np.ndarray, "patients p p"]  # features × the policy's features one hour on
    start: Float[np.ndarray, "patients p"]  # the policy's features at starts
    starts: Float[np.ndarray, " patients"]  # number of starts


class Expected(eqx.Module):
    """The policy's mean features at every row."""

    now: Table
    later: Table  # one hour on


class Ahead(eqx.Module):
    """What a model expects of a policy, at every row and for 0, 1, ... hours to go."""

    decision: Float[np.ndarray, "hours n"]  # value of the recorded decision, from 1 hour on
    now: Float[np.ndarray, "hours n"]  # value of the row's state, from 1 hour on
    later: Float[np.ndarray, "hours n"]  # value of its next state, from 0 hours on


def learn(decisions: Decisions, behavior: Behavior) -> Lessons:
    """Sums over each patient's held hours, weighted up for those that were not held."""
    table = decision_features(decisions.context, current_levels(decisions), decisions.level)
    weight = np.where(decisions.held, 1.0 / behavior.held, 0.0)
    weighted = table * weight[:, None]
    first = _first_rows(decisions)
    return Lessons(
        table=table,
        weight=weight,
        square=_products(weighted, table, first),
        reward=np.add.reduceat(weighted * decisions.reward[:, None], first),
        lost=np.add.reduceat(weighted * decisions.dead[:, None], first),
        floor=float(decisions.reward[decisions.dead].min(initial=0.0)),
    )


def count_patients(lessons: Lessons, counts: Counts, ridge: float) -> Counted:
    """Prepare the regression for every way of counting patients."""
    size = lessons.square.shape[-1]
    charge = ridge * np.eye(size)
    charge[0, 0] = 1e-6
    flat = lessons.square.reshape(len(lessons.square), -1)
    parts = []
    for low in range(0, len(counts), BLOCK):
        squares = (counts[low : low + BLOCK] @ flat).reshape(-1, size, size)
        parts.append(np.linalg.inv(squares + charge[None]))
    return Counted(counts, np.concatenate(parts))


def follow_policy(
    lessons: Lessons, decisions: Decisions, policy: Policy, next_policy: Policy
) -> tuple[Course, Expected]:
    """Where the policy leads, and its mean features now and one hour on."""
    later_levels = np.round(decisions.next_state[:, -1, LEVEL]).astype(int)
    now = expected_features(decisions.context, current_levels(decisions), policy)
    later = expected_features(decisions.next_context, later_levels, next_policy)
    first = _first_rows(decisions)
    weighted = lessons.table * (lessons.weight * ~decisions.dead)[:, None]
    course = Course(
        ahead=_products(weighted, later, first),
        start=np.add.reduceat(now * decisions.start[:, None], first),
        starts=np.add.reduceat(decisions.start * 1.0, first),
    )
    return course, Expected(now, later)


def fit_q(
    lessons: Lessons, course: Course, counted: Counted, hours: int = HORIZON
) -> Float[np.ndarray, "draws hours p"]:
    """Coefficients for 1 to `hours` hours to go, for every way of counting patients."""
    size = lessons.square.shape[-1]
    flat = course.ahead.reshape(len(course.ahead), -1)
    found = np.zeros((len(counted.counts), hours, size))
    for low in range(0, len(found), BLOCK):
        part = slice(low, low + BLOCK)
        count, inverse = counted.counts[part], counted.inverse[part]
        ahead = (count @ flat).reshape(-1, size, size)
        reward, lost = count @ lessons.reward, count @ lessons.lost
        for hour in range(hours):
            target = reward + hour * lessons.floor * lost
            if hour:
                target = target + np.einsum("dij,dj->di", ahead, found[part, hour - 1])
            found[part, hour] = np.einsum("dij,dj->di", inverse, target)
    return found


def fqe_values(
    lessons: Lessons, course: Course, counted: Counted, hours: int = HORIZON
) -> Float[np.ndarray, " draws"]:
    """The value of the starts for every way of counting patients, refitted every time."""
    last = fit_q(lessons, course, counted, hours)[:, -1]
    counts = counted.counts
    return np.einsum("dp,dp->d", counts @ course.start, last) / (counts @ course.starts)


def cross_fitted(
    weights: Float[np.ndarray, "folds hours p"],
    lessons: Lessons,
    expected: Expected,
    fold: Int[np.ndarray, " n"],
    decisions: Decisions,
) -> Ahead:
    """Values at every row by the coefficients fitted without its fold."""
    by_hour = np.swapaxes(weights, 0, 1)

    def at(table: Table) -> np.ndarray:
        return np.stack([np.einsum("np,np->n", table, each[fold]) for each in by_hour])

    after = np.concatenate([np.zeros((1, len(fold))), at(expected.later)[:-1]])
    lost = np.arange(len(after))[:, None] * lessons.floor
    later = np.where(decisions.dead[None], lost, after)
    return Ahead(decision=at(lessons.table), now=at(expected.now), later=later)


def decision_features(
    context: Context, in_force: Int[np.ndarray, " n"], level: Int[np.ndarray, " n"]
) -> Table:
    """The context, the level, the change, and both joined with the key columns."""
    certain = (level[:, None] == np.array(LEVELS)[None]) * 1.0
    return expected_features(context, in_force, certain)


def expected_features(context: Context, in_force: Int[np.ndarray, " n"], policy: Policy) -> Table:
    """The mean of `decision_features` over a policy's levels: they are linear in its chances."""
    levels = np.array(LEVELS)
    step = np.clip(levels[None] - in_force[:, None], -CHANGES, CHANGES)
    down, up = ((policy * np.maximum(way, 0)).sum(1) for way in (-step, step))
    fell, rose = ((policy * (way > 0)).sum(1) for way in (-step, step))
    middle = policy @ ((levels - (LOWEST + 3.5)) / 2.0)
    key = context[:, [i for i in KEY_COLUMNS if i < context.shape[1]]]
    parts = [
        np.ones((len(context), 1)),
        context,
        np.stack([down, up, fell, rose], axis=1),
        policy,
        *[key * by[:, None] for by in (down, up, middle)],
    ]
    return np.concatenate(parts, axis=1, dtype=float)


def _first_rows(decisions: Decisions) -> np.ndarray:
    """The first row of each patient; their rows stand together."""
    return np.flatnonzero(np.append(True, decisions.patient[1:] != decisions.patient[:-1]))


def _products(left: Table, right: Table, first: np.ndarray) -> np.ndarray:
    """Sums of outer products over each patient's rows."""
    ends = np.append(first[1:], len(left))
    return np.stack([left[a:b].T @ right[a:b] for a, b in zip(first, ends, strict=True)])
