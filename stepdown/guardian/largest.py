"""The k largest entries of each row, added up as exponentials: the heart of the kernel density.

Sorting is the slow part, and the sum does not need it. On a CPU a threshold with exactly k
entries above it is found by counting, first among the four largest of each group of columns,
then, only if a group may hide a fifth, among all. On a GPU the k groups with the largest maxima
are gathered, which must hold the k largest entries, then the best small groups of these, until
few entries are left to be sorted.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Way = Literal["threshold", "groups", "sort"]

_LANES = 1024  # groups come in multiples of this
_FOLD = 32  # slices that are added up at a time: compilers do not vectorize sums along a row
_DEPTH = 4  # entries kept of each group
_REACH = 30.0  # nats below the largest: k entries beyond add less than float32 can see
_TOLERANCE = 1e-6  # nats


class _Bracket(NamedTuple):
    """Two thresholds around the k-th largest entry, and how many entries reach them."""

    low: Float[Array, " rows"]
    high: Float[Array, " rows"]
    above_low: Int[Array, " rows"]  # at least k, unless fewer than k lie within reach
    above_high: Int[Array, " rows"]  # fewer than k


def log_sum_largest(
    scores: Float[Array, "rows columns"], count: int, way: Way | None = None
) -> Float[Array, " rows"]:
    """Log of the summed exponentials of the `count` largest entries of each row.

    Equal to sorting within 1e-6 nats and rounding; entries that tie for the last place share it.
    `way` is for tests and benchmarks; without it the device decides.
    """
    way = way or ("threshold" if jax.default_backend() == "cpu" else "groups")
    groups = _groups(scores.shape[1], count)
    if way == "threshold" and scores.shape[1] > 2 * _DEPTH * groups:
        return _by_threshold(scores, count, groups)
    while way == "groups" and scores.shape[1] > 8 * count:
        scores = _best_groups(scores, count)
    return jax.nn.logsumexp(jax.lax.top_k(scores, count)[0], axis=1)


def full_width(columns: int, count: int) -> int:
    """Columns, at least so many, that need no filling up here: a copy less for the caller."""
    return _multiple(columns, _groups(columns, count))


def _groups(columns: int, count: int) -> int:
    """Ten groups per entry wanted, but no group of more than 16 columns for a few million."""
    return _multiple(max(10 * count, -(-columns // 16)), _LANES)


# ── by threshold ─────────────────────────────────────────────────────────────────────────────────


def _by_threshold(scores, count: int, groups: int):
    scores = _padded(scores, groups)
    few = _group_tops(scores, groups)
    maxima = few[:, :groups]
    peak = jax.lax.stop_gradient(maxima.max(1))
    # The k-th largest maximum cannot exceed the k-th largest entry: most of the search is cheap.
    low = _narrow(maxima, _bracket(maxima, peak - _REACH, peak), peak, count).low
    found = _narrow(few, _bracket(few, low, peak), peak, count)
    hiding = few[:, -groups:] >= found.low[:, None]  # there may be a fifth

    def among_all():
        everything = _narrow(scores, _bracket(scores, found.low, peak), peak, count)
        return _weighted_sum(scores, everything, peak, count)

    def among_few():
        return _weighted_sum(few, found, peak, count)

    return peak + jnp.log(jax.lax.cond(hiding.any(), among_all, among_few))


def _bracket(scores, low, peak) -> _Bracket:
    """From `low`, which the k-th largest entry reaches, to just above the largest."""
    high = jnp.nextafter(peak, jnp.full_like(peak, jnp.inf))
    return _Bracket(low, high, _reached(scores, low), jnp.zeros(peak.shape, jnp.int32))


def _group_tops(scores, groups: int):
    """The largest four of each group, maxima first.

    With ten times as many groups as entries wanted, five of them rarely share one. A group is
    every n-th column, so that neighbors in time are in different ones.
    """
    members = scores.reshape(len(scores), -1, groups)
    tops = [jnp.full_like(members[:, 0], -jnp.inf)] * _DEPTH
    for member in range(members.shape[1]):
        entry = members[:, member]
        for place, best in enumerate(tops):
            larger = entry > best  # unlike maximum, a comparison is one instruction
            tops[place] = jnp.where(larger, entry, best)
            entry = jnp.where(larger, best, entry)
    return jnp.concatenate(tops, axis=1)


def _narrow(scores, bracket: _Bracket, peak, count: int) -> _Bracket:
    """Move the thresholds together until what lies between them cannot matter."""
    scores = jax.lax.stop_gradient(scores)  # where the threshold lies has no slope

    def is_open(now: _Bracket):
        middle = 0.5 * (now.low + now.high)
        at_stake = (count - now.above_high) * jnp.exp(now.high - peak) * (now.high - now.low)
        splits = (middle > now.low) & (middle < now.high)
        return (now.above_low > count) & (at_stake > _TOLERANCE) & splits

    def step(carry):
        now, turn = carry
        # Counts grow about exponentially; every third step halves, so that it always ends.
        logs = jnp.log(jnp.maximum(jnp.stack([now.above_low, now.above_high]), 0.5))
        guess = (logs[0] - jnp.log(count + 0.5)) / (logs[0] - logs[1])
        share = jnp.where(turn % 3 == 2, 0.5, jnp.clip(guess, 0.01, 0.99))
        trial = now.low + share * (now.high - now.low)
        reached = _reached(scores, trial)
        up, moving = reached >= count, is_open(now)
        return _Bracket(
            jnp.where(moving & up, trial, now.low),
            jnp.where(moving & ~up, trial, now.high),
            jnp.where(moving & up, reached, now.above_low),
            jnp.where(moving & ~up, reached, now.above_high),
        ), turn + 1

    return jax.lax.while_loop(lambda carry: is_open(carry[0]).any(), step, (bracket, 0))[0]


def _reached(scores, threshold):
    """How many entries of each row reach its threshold."""
    slices = scores.reshape(len(scores), _FOLD, -1)
    hits = [slices[:, i] >= threshold[:, None] for i in range(_FOLD)]
    folded = functools.reduce(jnp.add, [hit.astype(jnp.int32) for hit in hits])
    return folded.sum(1)


def _weighted_sum(scores, bracket: _Bracket, peak, count: int):
    """Everything above, and of what lies between the thresholds the share that is still due."""
    between = jnp.maximum(bracket.above_low - bracket.above_high, 1)
    due = jnp.minimum((count - bracket.above_high) / between, 1.0)
    reached = (scores >= bracket.low[:, None]) * due[:, None]
    weights = reached + (scores >= bracket.high[:, None]) * (1.0 - due[:, None])
    kernels = weights * jnp.exp(scores - peak[:, None])
    # A product is vectorized, a sum along a row is not; short parts keep the rounding small.
    parts = kernels.reshape(len(scores), _FOLD, -1)
    return (parts @ jnp.ones(parts.shape[2])).sum(1)


# ── by groups ────────────────────────────────────────────────────────────────────────────────────


def _best_groups(scores, count: int):
    """The groups with the largest maxima: they must hold the `count` largest entries.

    Five groups per entry wanted keep the sorted rows short; neighbors are gathered at once.
    """
    size = max(2, scores.shape[1] // (5 * count))
    members = _padded(scores, size).reshape(len(scores), -1, size)
    _, best = jax.lax.top_k(members.max(2), count)
    return jnp.take_along_axis(members, best[:, :, None], axis=1).reshape(len(scores), -1)


def _padded(scores, factor: int):
    """Columns filled up to a multiple of `factor` with entries that are never chosen."""
    short = _multiple(scores.shape[1], factor) - scores.shape[1]
    if short == 0:
        return scores
    return jnp.pad(scores, ((0, 0), (0, short)), constant_values=-jnp.inf)


def _multiple(number: int, factor: int) -> int:
    return -(-number // factor) * factor
