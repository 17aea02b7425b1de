"""What a level does, forecast beside truth: a causal check that only simulated patients allow.

From the same moments of the same patients every level is set in turn. In the simulator this is
the truth, free of the reasons for which teams chose levels; in a twin it is what the records
taught. Where the two differ on average, the records were confounded or silent.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key

from stepdown.handover import Dynamics, Episodes
from stepdown.patients.episodes import Mode, Starts, play
from stepdown.patients.population import World
from stepdown.policies.rules import Always
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.problem.metrics import score_episodes
from stepdown.signals import FLOW, HORIZON, LEVEL, LEVELS, MAP
from stepdown.twin.rollout import roll_out


class LevelEffects(eqx.Module):
    """What eight constant levels do to the same starts; the axes are start and level."""

    flow: Float[np.ndarray, "n 8"]  # mean of the first hour, L/min
    map: Float[np.ndarray, "n 8"]  # mean of the first hour, mmHg
    late_map: Float[np.ndarray, "n 8"]  # mean of the last hour, mmHg
    value: Float[np.ndarray, "n 8"]  # physiological reward of the hours
    before: Int[np.ndarray, " n"]  # level in force at the start
    row: Int[np.ndarray, " n"]  # patient: the unit of any bootstrap


def true_effects(
    starts: Starts, world: World, hours: int = HORIZON, config: ClinicalConfig = PAPER
) -> LevelEffects:
    """Every level in the simulated patients, with each patient's own random numbers."""
    played = [play(Mode(Always(jnp.asarray(level))), starts, world, hours) for level in LEVELS]
    return _effects(played, starts, config)


def forecast_effects(
    dynamics: Dynamics,
    starts: Starts,
    hours: int = HORIZON,
    config: ClinicalConfig = PAPER,
    *,
    keys: Key[Array, " draws"],
) -> LevelEffects:
    """Every level in a twin, the mean over draws; the same luck for each level."""
    states = jnp.asarray(starts.state)
    each = []
    for key in keys:
        own = jax.vmap(lambda i, key=key: jr.fold_in(key, i))(jnp.arange(len(states)))
        played = [
            roll_out(Mode(Always(jnp.asarray(level))), dynamics, states, hours, keys=own)
            for level in LEVELS
        ]
        each.append(_effects(played, starts, config))
    first = each[0]
    means = {
        name: np.mean([getattr(effects, name) for effects in each], axis=0)
        for name in ("flow", "map", "late_map", "value")
    }
    return LevelEffects(**means, before=first.before, row=first.row)


def _effects(played: list[Episodes], starts: Starts, config: ClinicalConfig) -> LevelEffects:
    first = [np.asarray(episodes.state[:, 1]) for episodes in played]
    last = [np.asarray(episodes.state[:, -1]) for episodes in played]
    values = [np.asarray(score_episodes(episodes, config)["reward"]) for episodes in played]
    return LevelEffects(
        flow=np.stack([hour[..., FLOW].mean(1) for hour in first], 1),
        map=np.stack([hour[..., MAP].mean(1) for hour in first], 1),
        late_map=np.stack([hour[..., MAP].mean(1) for hour in last], 1),
        value=np.stack(values, 1),
        before=np.round(np.asarray(starts.state)[:, -1, LEVEL]).astype(int),
        row=np.asarray(starts.row),
    )


def slopes(effect: Float[np.ndarray, "n 8"]) -> Float[np.ndarray, " n"]:
    """Least-squares change per level of support, for each start."""
    levels = np.array(LEVELS, float) - np.mean(LEVELS)
    return effect @ levels / (levels @ levels)
