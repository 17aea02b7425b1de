"""Signals that a patient lacks, filled with what the others let expect of them.

Consoles and charts differ in what they hold, so that a model meets patients without some of the
signals that it was fitted on. Those are given their conditional mean under a normal law of an
hour. Sample t of the hour is x_t = mean of its level + m + e_t: m belongs to the hour, e_t to the
sample, both are normal and independent. Given the signals that are there, in all samples, what is
expected of the others is a sum of two regressions: of their hour's mean on the means of those that
are there, and of their way within the hour on the ways of those. Both follow in closed form from
two covariances of the train patients, for any subset of signals.

What holds exactly is kept exactly: pulsatility is systolic less diastolic pressure, the mean lies
between both, and nothing leaves its hard range. Filling is for patients that come to a fitted
model. It adds no information, and nothing is fitted to what was filled.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stepdown.signals import (
    DBP,
    KNOWN,
    LEVEL,
    LEVELS,
    LOWEST,
    MAP,
    NAMES,
    PULSATILITY,
    REQUIRED,
    SBP,
)

RIDGE = 1e-3  # of a signal's variance, added to it: identities make a covariance singular
FEW = 5.0  # hours at a level that count as much as the straight line through all levels
LEAST = 1e-12  # variance, to divide by

# Which signals recordings hold, from most to fewest; `map`, `hr`, `pulsatility` and the level are
# in all of them, because reward and limits are made of these.
SUBSETS: dict[int, tuple[str, ...]] = {
    12: NAMES,
    # Tau needs the curve of the LV pressure; exports usually lack it.
    11: tuple(name for name in NAMES if name != "tau"),
    # A console prints LVEDP as a number; mean LV pressure and elastance are worked out from the
    # curve, which an older export does not hold.
    9: tuple(name for name in NAMES if name not in ("tau", "ese", "lvp")),
    # Charts hold the arterial line and what a nurse copies off the console: flow and motor current.
    7: ("map", "current", "flow", "hr", "sbp", "dbp", "pulsatility"),
}

State = Float[Array, "steps columns"]
Square = Float[Array, "signals signals"]


class Relations(eqx.Module):
    """How signals go together in train patients, as z-scores; zero where one is not in use."""

    by_level: Float[Array, "8 signals"]  # mean at each level
    between: Square  # covariance of the hours' means about the mean of their level
    within: Square  # covariance of the samples about the mean of their hour


def fit_relations(
    scores: Float[np.ndarray, "n steps signals"], level: Float[np.ndarray, " n"]
) -> Relations:
    """The moments of train hours as z-scores, with the level in force in each."""
    means, index = scores.mean(1), np.rint(level).astype(int) - LOWEST
    by_level = _level_means(means, index)
    away, ways = means - by_level[index], scores - means[:, None]
    between = away.T @ away / len(away)
    within = np.einsum("nti,ntj->ij", ways, ways) / ways[..., 0].size
    return Relations(*(jnp.asarray(x, jnp.float32) for x in (by_level, between, within)))


def _level_means(means: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The mean at each level; where few hours are, it leans on the line through all of them."""
    count = np.bincount(index, minlength=len(LEVELS)).astype(float)[:, None]
    place = np.arange(len(LEVELS))
    total = np.zeros((len(LEVELS), means.shape[1]))
    np.add.at(total, index, means)
    off = index - index.mean()
    slope = off @ (means - means.mean(0)) / max(off @ off, LEAST)
    line = means.mean(0) + (place - index.mean())[:, None] * slope
    return line + (total - count * line) / (count + FEW)


def blank_relations(signals: int) -> Relations:
    """Relations of the right shape and any content, for what is about to be read."""
    square = jnp.zeros((signals, signals))
    return Relations(jnp.zeros((len(LEVELS), signals)), square, square)


def expect_scores(
    relations: Relations,
    scores: Float[Array, "steps signals"],
    level: Float[Array, ""],
    known: Bool[Array, " signals"],
) -> Float[Array, "steps signals"]:
    """What is expected of all signals, given the whole hour of those that are known."""
    center = relations.by_level[jnp.round(level).astype(int) - LOWEST]
    held = jnp.where(known[None], scores, 0.0)
    mean = held.mean(0)
    far = jnp.where(known, mean - center, 0.0)
    ways = held - mean[None]
    expected = center + _given(relations.between, known, far[:, None])[:, 0]
    return expected[None] + _given(relations.within, known, ways.T).T


def _given(
    covariance: Square, known: Bool[Array, " signals"], values: Float[Array, "signals n"]
) -> Float[Array, "signals n"]:
    """The conditional mean of all, given those that are known (0 where not)."""
    sd = jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), LEAST))
    alike = covariance / (sd[:, None] * sd[None])
    both, own = known[:, None] & known[None], jnp.eye(len(sd))
    weights = _solve(jnp.where(both, alike + RIDGE * own, own), values / sd[:, None])
    return (jnp.where(known[None], alike, 0.0) @ weights) * sd[:, None]


def _solve(square: Square, values: Float[Array, "signals n"]) -> Float[Array, "signals n"]:
    """Solve a small positive definite system by Gauss and Jordan, in plain array operations.

    No call to LAPACK: many of those at once, in compiled code on a CPU with few cores, wait for
    each other forever.
    """
    both = jnp.concatenate([square, values], 1)
    for k in range(len(square)):
        row = both[k] / both[k, k]
        both = (both - both[:, k][:, None] * row[None]).at[k].set(row)
    return both[:, len(square) :]


def keep_identities(
    hour: Float[Array, "steps signals"],
    gone: Bool[Array, " signals"],
    columns: tuple[str, ...],
) -> Float[Array, "steps signals"]:
    """Filled signals inside their hard ranges, filled pressures true to mean and pulsatility."""
    low, high = jnp.asarray([KNOWN[name].hard for name in columns]).T
    hour = jnp.where(gone[None], jnp.clip(hour, low[None], high[None]), hour)
    mean, pulse, top, foot = (hour[:, i] for i in (MAP, PULSATILITY, SBP, DBP))
    below = jnp.clip((mean - foot) / jnp.maximum(pulse, LEAST), 0.0, 1.0)
    both = gone[SBP] & gone[DBP]
    foot = jnp.where(both, mean - below * pulse, jnp.where(gone[DBP], top - pulse, foot))
    top = jnp.where(gone[SBP], foot + pulse, top)
    return hour.at[:, DBP].set(foot).at[:, SBP].set(top)


# ── what is absent, and hours without some signals ───────────────────────────────────────────────


def absent_signals(
    states: Float[Array, "*n steps columns"] | Float[np.ndarray, "*n steps columns"],
    columns: tuple[str, ...],
    used: tuple[int, ...],
) -> tuple[str, ...]:
    """Signals in use that these states lack altogether; one that cannot be filled is refused."""
    empty = np.isnan(np.asarray(states)[..., :LEVEL])
    gone = [i for i in used if empty[..., i].all()]
    for i in used:
        if i in gone and i in REQUIRED:
            needed = ", ".join(NAMES[j] for j in REQUIRED)
            raise ValueError(
                f"expected {columns[i]}, got none. {needed} and the level cannot be filled from "
                "other signals. Bring a recording that holds them."
            )
        if i not in gone and empty[..., i].any():
            raise ValueError(
                f"expected {columns[i]} in every sample or in none, got some. Carry the last "
                "value forward, or leave the signal out."
            )
    return tuple(columns[i] for i in gone)


def filled_words(absent: tuple[str, ...]) -> str:
    """The sentence of an answer that rests on filled signals."""
    labels = [KNOWN[name].label for name in absent]
    listed = labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
    verb = "was" if len(labels) == 1 else "were"
    return f"{listed} {verb} absent and filled with what the other signals let expect."
