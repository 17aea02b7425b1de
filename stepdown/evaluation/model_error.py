"""How wrong a model of patients is about held-out ones, decision by decision (docs/theory.md).

Two measures, and neither is the paper's. The paper's metric is a supremum over all bounded
functions of the next hour, which nobody can estimate in 72 dimensions. The value gap |G| takes the
one function that matters to a policy: the reward of the hour plus the policy's value of what
follows, fitted. A classifier that tells real next hours from imagined ones bounds the metric from
below: twice its share of right answers minus one is at most the total variation.

In simulated patients the next hour is drawn anew as often as needed, for every level, from the
patient's hidden state. Recordings hold one next hour for the level that was set. |G| from a single
hour contains the hour's own chance, so it is too large, never too small on average.

The value is fitted too: the rewards to come are regressed on what an hour shows, for every number
of hours to go, by ridge regressions that leave out a fold of patients. Dead patients score the
least reward on.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stepdown.handover import Dynamics, Episodes, Transitions, require_role
from stepdown.patients.cohort import in_groups
from stepdown.patients.episodes import Mode, Starts, play
from stepdown.patients.population import World
from stepdown.policies.rows import step_rows
from stepdown.policies.rules import Always
from stepdown.problem.clinical import PAPER, normalized_reward, reward_parts, slope
from stepdown.signals import ESE, FLOW, HORIZON, LEVEL, LEVELS, NAMES, REQUIRED

TOLD = 4  # draws of a decision that the classifier sees of either side
FOLDS = 5  # of patients: nobody is judged by what was fitted to them
RIDGE = 10.0  # rows of nothing, against fitting chance
BLOCK = 4096  # rows of one compiled call
BENT = (*REQUIRED, FLOW, ESE)  # signals whose squares count as well
USUAL = {  # middle and scale of what the regressions see of an hour
    "map": (80.0, 15.0),
    "speed": (4e4, 6e3),
    "current": (500.0, 150.0),
    "flow": (3.0, 1.0),
    "lvp": (50.0, 20.0),
    "lvedp": (12.0, 8.0),
    "hr": (80.0, 18.0),
    "sbp": (95.0, 20.0),
    "dbp": (65.0, 14.0),
    "pulsatility": (30.0, 15.0),
    "tau": (50.0, 15.0),
    "ese": (1.5, 0.8),
    "level": (5.5, 2.0),
}

Decider = Callable[[None, Float[Array, "steps columns"], PRNGKeyArray], Int[Array, ""]]
Rows = Float[np.ndarray, "n steps columns"]
ByHour = Float[np.ndarray, "n hours"]


class Truth(eqx.Module):
    """Where episodes can be played in simulated patients."""

    starts: Starts
    world: World


class HeldOut(eqx.Module):
    """Decisions of held-out patients, the hours that came of them, and where episodes begin."""

    state: Rows
    level: Int[np.ndarray, " n"]
    later: Float[np.ndarray, "n draws steps columns"]  # next hours under the level
    alive: Bool[np.ndarray, "n draws"]  # through that hour
    row: Int[np.ndarray, " n"]  # patient
    start: Float[np.ndarray, "m steps columns"]  # hours before the first decision of an episode
    start_row: Int[np.ndarray, " m"]  # patient
    truth: Truth | None = None  # None for recordings

    @property
    def fold(self) -> Int[np.ndarray, " n"]:
        """The fold of each decision's patient."""
        return fold_of(self.row, self.start_row)


def redraw_hours(
    starts: Starts, world: World, moments: int = 128, draws: int = 32, *, key: PRNGKeyArray
) -> HeldOut:
    """Every level at some starts in simulated patients, each next hour drawn many times anew.

    No policy enters, so one call serves all policies. The luck is the same for every level.
    """
    count = min(moments, len(starts.row))
    index = np.repeat(np.arange(count), draws)
    starts = jax.tree.map(_on_host, starts)
    again = jax.tree.map(lambda x: x[index], starts)
    again = eqx.tree_at(lambda x: x.key, again, jr.split(key, len(index)))
    played = [play(Mode(Always(jnp.asarray(level))), again, world, 1) for level in LEVELS]
    later = np.stack([np.asarray(one.state[:, 1]) for one in played])
    alive = np.stack([np.asarray(one.alive[:, 0]) for one in played])
    state, row = np.asarray(starts.state), np.asarray(starts.row)
    shape = (len(LEVELS) * count, draws)
    return HeldOut(
        state=np.tile(state[:count], (len(LEVELS), 1, 1)),
        level=np.repeat(np.array(LEVELS, np.int32), count),
        later=later.reshape(*shape, *later.shape[2:]),
        alive=alive.reshape(shape),
        row=np.tile(row[:count], len(LEVELS)),
        start=state,
        start_row=row,
        truth=Truth(starts, world),
    )


def _on_host(x):
    """Rows of host arrays are taken many times faster; keys stay where they are."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def recorded_hours(
    hours: Transitions, decisions: int = 1024, episodes: int = 1000, *, key: PRNGKeyArray
) -> HeldOut:
    """Recorded decisions of test patients, each with the one hour that followed."""
    require_role(hours, "test")
    draw = np.random.default_rng(np.asarray(jr.key_data(key)).ravel())
    count = len(hours.level)
    chosen = draw.permutation(count)[:decisions]
    begin = draw.choice(count, episodes, replace=episodes > count)
    state, later, row = (np.asarray(x) for x in (hours.state, hours.next_state, hours.patient))
    return HeldOut(
        state=state[chosen],
        level=np.asarray(hours.level, np.int32)[chosen],
        later=later[chosen][:, None],
        alive=np.ones((len(chosen), 1), bool),
        row=row[chosen],
        start=state[begin],
        start_row=row[begin],
    )


class Values(eqx.Module):
    """A policy's value of a state with 0, 1, ... hours to go: ridge regressions without a fold."""

    weight: Float[np.ndarray, "folds hours p"]  # 0 for no hours to go
    fit: Float[np.ndarray, " hours"]  # R² on the fold that was left out; NaN for no hours to go


# ── errors of the model ──────────────────────────────────────────────────────────────────────────


@eqx.filter_jit
def imagine_episodes(
    decider: Decider,
    dynamics: Dynamics,
    states: Float[Array, "n steps columns"],
    *,
    key: PRNGKeyArray,
) -> Episodes:
    """Somebody decides for six hours in the model, from every state; nobody dies there."""

    def hour(states, key):
        k_level, k_hour = jr.split(key)
        keys = jr.split(k_level, len(states))
        levels = jax.vmap(lambda state, key: decider(None, state, key))(states, keys)
        later = step_rows(dynamics, states, levels, key=k_hour)
        return later, (later, levels)

    _, (later, levels) = jax.lax.scan(hour, states, jr.split(key, HORIZON))
    before = jnp.round(states[:, -1, LEVEL]).astype(levels.dtype)
    return Episodes(
        state=jnp.concatenate([states[:, None], jnp.moveaxis(later, 0, 1)], axis=1),
        level=jnp.concatenate([before[:, None], levels.T], axis=1),
        alive=jnp.ones(levels.T.shape, bool),
    )


def imagine_hours(
    dynamics: Dynamics, held_out: HeldOut, draws: int, *, key: PRNGKeyArray
) -> Float[np.ndarray, "n draws steps columns"]:
    """Next hours of the same decisions in the model."""
    count, *shape = held_out.state.shape
    index = np.repeat(np.arange(count), draws)
    parts = []
    for number, first in enumerate(range(0, len(index), BLOCK)):
        block = index[np.minimum(np.arange(first, first + BLOCK), len(index) - 1)]
        rows = jnp.asarray(held_out.state[block]), jnp.asarray(held_out.level[block])
        parts.append(np.asarray(_step(dynamics, *rows, jr.fold_in(key, number))))
    return np.concatenate(parts)[: len(index)].reshape(count, draws, *shape)


@eqx.filter_jit
def _step(dynamics, states, levels, key):
    return step_rows(dynamics, states, levels, key=key)


def value_gaps(
    values: Values, held_out: HeldOut, imagined: Float[np.ndarray, "n many steps columns"]
) -> tuple[ByHour, ByHour]:
    """G, model minus truth, for 0, 1, ... hours to go, and the variance that chance gives it.

    The variance is NaN on the side of a single draw.
    """
    hours = values.weight.shape[1]
    lost = -PAPER.reward_clip * (1.0 + np.arange(hours))
    means, spread = [], np.zeros((len(held_out.level), hours))
    for side in (imagined, held_out.later):
        draws = side.shape[1]
        fold = np.repeat(held_out.fold, draws)
        found = worth(values, side.reshape(-1, *side.shape[2:]), fold).reshape(-1, draws, hours)
        if side is held_out.later:
            found = np.where(held_out.alive[..., None], found, lost[None, None])
        means.append(found.mean(1))
        spread += found.var(1, ddof=1) / draws if draws > 1 else np.nan
    return means[0] - means[1], spread


def tell_apart(
    held_out: HeldOut, imagined: Float[np.ndarray, "n many steps columns"]
) -> Float[np.ndarray, " n"]:
    """Share of right answers, at each decision, of a classifier fitted to other patients' hours.

    It is linear in hour, level, change, squared change and roughness. A better one would find a
    larger total variation, so what follows from its answers is a lower bound.
    """
    draws = min(TOLD, held_out.later.shape[1], imagined.shape[1])
    sides = [_clues(held_out, side[:, :draws]) for side in (held_out.later, imagined)]
    table = np.concatenate(sides)
    middle, scale = table.mean(0), table.std(0)
    scores = np.clip((table - middle) / np.where(scale > 0, scale, 1.0), -6.0, 6.0)
    table = np.concatenate([np.ones((len(table), 1)), scores], axis=1)
    real = np.repeat([1.0, -1.0], len(sides[0]))
    fold = np.tile(np.repeat(held_out.fold, draws), 2)
    guess = np.zeros(len(real))
    for left_out in np.unique(fold):
        weight = ridge(table[fold != left_out], real[fold != left_out])
        guess[fold == left_out] = table[fold == left_out] @ weight
    return (guess * real > 0).reshape(2, -1, draws).mean((0, 2))


def _clues(held_out: HeldOut, later: np.ndarray) -> np.ndarray:
    """What the classifier sees of every draw."""
    count, draws = later.shape[:2]
    before = np.repeat(held_out.state[:, None, :, :LEVEL], draws, axis=1)
    level = np.repeat(held_out.level[:, None, None] * 1.0, draws, axis=1)
    signals = later[..., :LEVEL]
    change = signals - before
    rough = np.abs(np.diff(signals, axis=2))
    parts = [before, change, change**2, rough]
    flat = [np.nan_to_num(part.reshape(count, draws, -1)) for part in parts]
    return np.concatenate([*flat, level], axis=2).reshape(count * draws, -1)


# ── a policy's value of an hour ──────────────────────────────────────────────────────────────────


def fit_values(episodes: Episodes, row: Int[np.ndarray, " n"], hours: int = HORIZON) -> Values:
    """Regress the rewards to come on the hour; every hour of an episode is a start."""
    count, times = np.asarray(episodes.level).shape
    table, reward = _look(np.asarray(episodes.state).reshape(-1, *episodes.state.shape[2:]))
    table, reward = table.reshape(count, times, -1), reward.reshape(count, times)[:, 1:]
    alive = np.asarray(episodes.alive)
    reward = np.where(alive, reward, -PAPER.reward_clip)
    living = np.concatenate([np.ones((count, 1), bool), alive], axis=1)
    sums = np.concatenate([np.zeros((count, 1)), reward.cumsum(1)], axis=1)
    fold = fold_of(row, row)
    weight = np.zeros((fold.max() + 1, hours, table.shape[-1]))
    fit = np.full(hours, np.nan)
    for ahead in range(1, hours):
        known = living[:, : times - ahead]
        x, y = table[:, : times - ahead][known], (sums[:, ahead:] - sums[:, :-ahead])[known]
        of = np.broadcast_to(fold[:, None], known.shape)[known]
        for left_out in range(len(weight)):
            weight[left_out, ahead] = ridge(x[of != left_out], y[of != left_out])
        missed = y - np.einsum("np,np->n", x, weight[of, ahead])
        fit[ahead] = 1.0 - missed.var() / max(float(y.var()), 1e-12)
    return Values(weight, fit)


def worth(values: Values, states: Rows, fold: Int[np.ndarray, " n"]) -> ByHour:
    """Reward of an hour plus the value of what follows, for 0, 1, ... hours to go after it."""
    table, reward = _look(states)
    ahead = np.arange(values.weight.shape[1])[None]
    later = np.einsum("np,nhp->nh", table, values.weight[fold])
    low, high = reward_range()
    return reward[:, None] + np.clip(later, low * ahead, high * ahead)


def reward_range() -> tuple[float, float]:
    """The least and the greatest reward of an hour."""
    best = min((0.0 - PAPER.reward_mean) / PAPER.reward_sd, PAPER.reward_clip)
    return -PAPER.reward_clip, best


def fold_of(row: Int[np.ndarray, " n"], among: Int[np.ndarray, " m"]) -> Int[np.ndarray, " n"]:
    """Folds of patients, as even as can be; at least two patients are needed."""
    patients = np.unique(among)
    if len(patients) < 2:
        raise ValueError(
            f"expected at least 2 held-out patients, got {len(patients)}: what is fitted to some "
            "is judged on others. Hold out more patients."
        )
    return np.searchsorted(patients, row) % min(FOLDS, len(patients))


def _look(states: Rows) -> tuple[np.ndarray, np.ndarray]:
    """What the regressions see of every hour, and its reward."""
    table, reward = in_groups(_features, (np.asarray(states, np.float32),), size=BLOCK)
    return np.nan_to_num(table).astype(float), reward.astype(float)


def _features(states: Float[Array, "n steps columns"]):
    middle, scale = (jnp.array([USUAL[name][i] for name in (*NAMES, "level")]) for i in (0, 1))

    def one(state):
        twelve = jnp.append(state[:, : len(NAMES)], state[:, LEVEL:], axis=1)
        scores = jnp.clip((twelve - middle[None]) / scale[None], -6.0, 6.0)
        mean, reward = jnp.mean(scores, axis=0), normalized_reward(state)
        parts = [
            jnp.ones(1),
            mean,
            jnp.stack([jnp.min(scores[:, i]) for i in REQUIRED]),
            jnp.stack([scores[-1, i] for i in BENT]),
            jnp.stack([slope(scores[:, i]) for i in REQUIRED]),
            jnp.stack([mean[i] ** 2 for i in (*BENT, LEVEL)]),
            jnp.stack([mean[i] * mean[LEVEL] for i in BENT]),
            jnp.minimum(jnp.stack(jax.tree.leaves(reward_parts(state))), 6.0),
            reward[None],
        ]
        return jnp.concatenate(parts), reward

    return jax.vmap(one)(states)


def ridge(table: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Coefficients of a ridge regression; the first column is not held back."""
    charge = RIDGE * np.eye(table.shape[1])
    charge[0, 0] = 1e-6
    return np.linalg.solve(table.T @ table + charge, table.T @ target)
