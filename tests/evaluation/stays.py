"""Stays made by hand for off-policy evaluation; four signals, samples every 10 min.

MAP is 40 + 2 x level, HR 75, pulsatility 30: the reward of an hour depends on its level alone.
"""

import jax.numpy as jnp
import numpy as np

from stepdown.evaluation.behavior import BehaviorConfig
from stepdown.handover import Cohort, Role
from stepdown.signals import FLOW, HR, MAP, PULSATILITY
from stepdown.training import FitConfig

# One size for all tests: they share a program where cohorts are about as large.
POCKET = BehaviorConfig(widths=(), repeats=1, fit=FitConfig(25, 128, 1e-2, patience=5))


def hourly_reward(level) -> np.ndarray:
    """The normalized reward of an hour at a level, by hand: only low pressure is charged."""
    charge = 7.0 * (60.0 - (40.0 + 2.0 * np.asarray(level))) / 20.0
    return (-charge + 1.7018) / 2.6621


def make_cohort(levels: list[np.ndarray], role: Role = "test") -> Cohort:
    """Stays of given levels, sample by sample; unseen where the level is 0."""
    steps = max(map(len, levels))
    level = np.zeros((len(levels), steps), np.int32)
    for row, own in enumerate(levels):
        level[row, : len(own)] = own
    signals = np.full((*level.shape, 12), np.nan, np.float32)
    signals[..., MAP], signals[..., HR] = 40.0 + 2.0 * level, 75.0
    signals[..., PULSATILITY], signals[..., FLOW] = 30.0, 0.4 * level
    signals[level == 0] = np.nan
    return Cohort(
        signals=jnp.asarray(signals),
        level=jnp.asarray(level),
        seen=jnp.asarray(level > 0),
        patient=tuple(f"p{i}" for i in range(len(levels))),
        role=role,
    )


def hours(*levels: int) -> np.ndarray:
    """Whole hours, one level each."""
    return np.repeat(levels, 6)


def wander(patients: int, length: int, chance: np.ndarray, seed: int) -> list[np.ndarray]:
    """Stays in which each hour goes down, holds or goes up by one with the given chances.

    At the lowest level nobody goes down, at the highest nobody goes up. Lengths vary.
    """
    draw = np.random.default_rng(seed)
    stays = []
    for _ in range(patients):
        now, own = int(draw.integers(3, 9)), []
        for _ in range(int(draw.integers(length // 2, length + 1))):
            own.append(now)
            now = int(np.clip(now + draw.choice([-1, 0, 1], p=chance), 2, 9))
        stays.append(hours(*own))
    return stays
