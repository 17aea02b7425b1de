"""A policy's value of an hour, fitted: the one function by which a model's errors are weighed.

The rewards to come are regressed on what an hour shows, for every number of hours to go, by ridge
regressions that leave out a fold of patients. Dead patients score the least reward on.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.handover import Episodes
from stepdown.patients.cohort import in_groups
from stepdown.problem.clinical import PAPER, normalized_reward, reward_parts, slope
from stepdown.signals import ESE, FLOW, HORIZON, HR, LEVEL, MAP, PULSATILITY

FOLDS = 5  # of patients: nobody is judged by what was fitted to them
RIDGE = 10.0  # rows of nothing, against fitting chance
BLOCK = 4096  # rows of one compiled call
TRIO = (MAP, HR, PULSATILITY)
BENT = (*TRIO, FLOW, ESE)  # signals whose squares count as well

Rows = Float[np.ndarray, "n steps 13"]
ByHour = Float[np.ndarray, "n hours"]


class Values(eqx.Module):
    """A policy's value of a state with 0, 1, ... hours to go: ridge regressions without a fold."""

    weight: Float[np.ndarray, "folds hours p"]  # 0 for no hours to go
    fit: Float[np.ndarray, " hours"]  # R² on the fold that was left out; NaN for no hours to go


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


def _features(states: Float[Array, "n steps 13"]):
    middle = jnp.array([80.0, 4e4, 500.0, 3.0, 50.0, 12.0, 80.0, 95.0, 65.0, 30.0, 50.0, 1.5, 5.5])
    scale = jnp.array([15.0, 6e3, 150.0, 1.0, 20.0, 8.0, 18.0, 20.0, 14.0, 15.0, 15.0, 0.8, 2.0])

    def one(state):
        scores = jnp.clip((state - middle[None]) / scale[None], -6.0, 6.0)
        mean, reward = jnp.mean(scores, axis=0), normalized_reward(state)
        parts = [
            jnp.ones(1),
            mean,
            jnp.stack([jnp.min(scores[:, i]) for i in TRIO]),
            jnp.stack([scores[-1, i] for i in BENT]),
            jnp.stack([slope(scores[:, i]) for i in TRIO]),
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
