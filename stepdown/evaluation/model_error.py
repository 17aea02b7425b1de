"""How wrong a model of patients is about held-out ones, decision by decision (docs/theory.md).

Two measures, and neither is the paper's. The paper's metric is a supremum over all bounded
functions of the next hour, which nobody can estimate in 72 dimensions. The value gap |G| takes the
one function that matters to a policy: the reward of the hour plus the policy's value of what
follows, fitted. A classifier that tells real next hours from imagined ones bounds the metric from
below: twice its share of right answers minus one is at most the total variation.

In simulated patients the next hour is drawn anew as often as needed, for every level, from the
patient's hidden state. Recordings hold one next hour for the level that was set. |G| from a single
hour contains the hour's own chance, so it is too large, never too small on average.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stepdown.evaluation.hour_values import BLOCK, ByHour, Rows, Values, fold_of, ridge, worth
from stepdown.handover import Dynamics, Episodes, Transitions, require_role
from stepdown.patients.episodes import Mode, Starts, play
from stepdown.patients.population import World
from stepdown.policies.rows import step_rows
from stepdown.policies.rules import Always
from stepdown.problem.clinical import PAPER
from stepdown.signals import HORIZON, LEVEL, LEVELS

TOLD = 4  # draws of a decision that the classifier sees of either side

Decider = Callable[[None, Float[Array, "steps 13"], PRNGKeyArray], Int[Array, ""]]


class HeldOut(eqx.Module):
    """Decisions of held-out patients, the hours that came of them, and where episodes begin."""

    state: Rows
    level: Int[np.ndarray, " n"]
    later: Float[np.ndarray, "n draws steps 13"]  # next hours under the level
    alive: Bool[np.ndarray, "n draws"]  # through that hour
    row: Int[np.ndarray, " n"]  # patient
    start: Float[np.ndarray, "m steps 13"]  # hours before the first decision of an episode
    start_row: Int[np.ndarray, " m"]  # patient
    truth: tuple[Starts, World] | None = None  # None for recordings

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
        truth=(starts, world),
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


# ── errors of the model ──────────────────────────────────────────────────────────────────────────


@eqx.filter_jit
def imagine_episodes(
    decider: Decider, dynamics: Dynamics, states: Float[Array, "n steps 13"], *, key: PRNGKeyArray
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
) -> Float[np.ndarray, "n draws steps 13"]:
    """Next hours of the same decisions in the model."""
    count, steps = held_out.state.shape[:2]
    index = np.repeat(np.arange(count), draws)
    parts = []
    for number, first in enumerate(range(0, len(index), BLOCK)):
        block = index[np.minimum(np.arange(first, first + BLOCK), len(index) - 1)]
        rows = jnp.asarray(held_out.state[block]), jnp.asarray(held_out.level[block])
        parts.append(np.asarray(_step(dynamics, *rows, jr.fold_in(key, number))))
    return np.concatenate(parts)[: len(index)].reshape(count, draws, steps, LEVEL + 1)


@eqx.filter_jit
def _step(dynamics, states, levels, key):
    return step_rows(dynamics, states, levels, key=key)


def value_gaps(
    values: Values, held_out: HeldOut, imagined: Float[np.ndarray, "n many steps 13"]
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
    held_out: HeldOut, imagined: Float[np.ndarray, "n many steps 13"]
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
