"""Toy patients whose best treatment is provable; states in physical units, as everywhere.

Four signals are recorded and the others are absent, so the networks stay small.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.handover import Transitions
from stepdown.policies.ensemble import EnsembleConfig
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.policies.rows import RolloutConfig
from stepdown.policies.sac import SACConfig
from stepdown.problem.clinical import normalized_reward
from stepdown.signals import HR, LEVEL, LVEDP, MAP, PULSATILITY
from stepdown.training import FitConfig

PRESENT = (MAP, LVEDP, HR, PULSATILITY)
CENTER, SD = np.full((2, 13), np.nan, np.float32)
CENTER[list(PRESENT)], SD[list(PRESENT)] = (58, 15, 75, 30), (4, 3, 2, 3)
CENTER[LEVEL], SD[LEVEL] = 5, 0

ROWS = 3000  # everywhere the same, so that programs are shared
ENSEMBLE = EnsembleConfig(
    members=3,
    elites=2,
    width=64,
    depth=1,
    fit=FitConfig(epochs=20, batch=64, learning_rate=3e-3, decay=True),
)
POCKET = ModelBasedConfig(
    updates=600,
    rollout_every=200,
    batch=64,
    widths=(32, 32),
    jump_weight=0.0,
    sac=SACConfig(discount=0.5, learning_rate=3e-3, target_rate=0.05, entropy_share=0.02),
    rollouts=RolloutConfig(starts=128, hours=2, kept=2),
)


def make_hours(states, levels, later, patient=None) -> Transitions:
    """Recorded hours with their physiological reward."""
    reward = jax.jit(jax.vmap(normalized_reward))(jnp.asarray(later))
    rows = len(levels)
    patient = np.arange(rows) * 8 // max(rows, 1) if patient is None else patient
    flags = jnp.zeros(rows, bool)
    return Transitions(
        state=jnp.asarray(states),
        level=jnp.asarray(levels, jnp.int32),
        levels=jnp.tile(jnp.asarray(levels, jnp.int32)[:, None], (1, np.shape(states)[1])),
        reward=reward,
        unshaped=reward,
        next_state=jnp.asarray(later),
        last=flags,
        died=flags,
        filled=flags,
        patient=jnp.asarray(patient, jnp.int32),
        role="train",
    )


def random_states(rows: int, levels, seed: int) -> np.ndarray:
    """Hours of independent samples around the center, at given levels in force."""
    draw = np.random.default_rng(seed)
    states = (CENTER + SD * draw.normal(size=(rows, 6, 13))).astype(np.float32)
    states[:, :, LEVEL] = np.asarray(levels)[:, None]
    return states


class MoreIsBetter(eqx.Module):
    """MAP rises by 2 mmHg per level up to 58 mmHg at P9, so each level more is rewarded more."""

    def __call__(
        self, state: Float[Array, "steps 13"], level: Int[Array, ""], /, *, key: PRNGKeyArray
    ) -> Float[Array, "steps 13"]:
        pressure = 40.0 + 2.0 * level + 0.1 * jr.normal(key, (len(state),))
        later = state.at[:, MAP].set(pressure).at[:, HR].set(75.0).at[:, PULSATILITY].set(30.0)
        return later.at[:, LEVEL].set(level * 1.0)


class Support(eqx.Module):
    """A guardian that knows which levels were recorded: u is -1 there, 5 elsewhere."""

    levels: Int[Array, " n"]

    def __call__(self, state: Float[Array, "steps 13"], level: Int[Array, ""], /):
        return jnp.where(jnp.any(self.levels == level), -1.0, 5.0)


def epoch(setting, training, done: int, key):
    """The rest of an epoch of a loop in pieces."""
    training, done = setting.advance(training, done, key=key)
    while done % setting.every:
        training, done = setting.advance(training, done, key=key)
    return training, done


def side_by_side(setting, keys):
    """All seeds in one program, as a GPU trains them: the policies and the curves."""
    training, done, curves = setting.begin(key=keys), 0, []
    while done < setting.updates:
        training, done = epoch(setting, training, done, keys)
        curves.append(jax.tree.map(np.asarray, training.tally))
    return setting.finish(training), {
        x: np.stack([c[x] for c in curves]) for c in curves for x in c
    }
