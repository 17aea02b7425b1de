"""Synthetic records of the paper: an expert treats patients of the twin, hour by hour (Sec. 5.1).

The noiseless set is what the twin showed; the noisy set is the same episodes with blurred
observations. Both keep the role and the patients of the recorded hours that episodes start from,
so that whatever is fitted to them is held out by patient, as with recorded hours.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stepdown.handover import Dynamics, Policy, Transitions
from stepdown.patients.episodes import Sampled
from stepdown.patients.population import host_generator
from stepdown.policies.learning import check_dynamics
from stepdown.problem import hours as recorded
from stepdown.problem.clinical import PAPER, ClinicalConfig, normalized_reward
from stepdown.problem.hours import PAPER_NOISE, NoiseConfig
from stepdown.problem.scaling import Scaler
from stepdown.signals import HORIZON
from stepdown.twin.rollout import roll_out


@dataclass(frozen=True)
class DatasetConfig:
    """Sizes and noise of the synthetic data sets; defaults are the paper's."""

    episodes: int = 5000  # from train patients
    select_episodes: int = 1000  # from select patients, for choosing
    hours: int = HORIZON  # of every episode
    noise_share: float = PAPER_NOISE.share  # of the observations that get any
    noise_sd: float = PAPER_NOISE.sd  # in standard deviations of train patients
    clinical: ClinicalConfig = PAPER

    def __post_init__(self):
        sizes = (self.episodes, self.select_episodes, self.hours)
        if min(sizes) < 1:
            raise ValueError(
                "expected at least 1 episode, 1 select episode and 1 hour, got "
                f"{', '.join(map(str, sizes))}."
            )
        NoiseConfig(self.noise_share, self.noise_sd)  # refuses an odd share or sd


PAPER_DATA = DatasetConfig()


def make_noiseless(
    expert: Policy,
    twin: Dynamics,
    hours: Transitions,
    config: DatasetConfig = PAPER_DATA,
    *,
    key: PRNGKeyArray,
) -> Transitions:
    """Episodes of a sampling expert in the twin, from recorded states drawn with replacement.

    `hours` are recorded hours of train or of select patients: their role says how many episodes
    there are, and role and patients are handed on. Rewards are not shaped, as by default
    elsewhere: who learns from them adds what it wants.
    """
    episodes = _episodes(hours, config)
    check_dynamics(twin, hours)
    k_starts, k_luck = jr.split(key)
    rows = host_generator(k_starts).integers(len(hours.level), size=episodes)
    states = jnp.asarray(np.asarray(hours.state)[rows])
    keys = jr.split(k_luck, episodes)
    played = roll_out(Sampled(expert), twin, states, config.hours, keys=keys)

    reward = _rewards(played.state[:, 1:], config.clinical).ravel()
    chosen = played.level[:, 1:].ravel()
    last = np.tile(np.arange(config.hours) == config.hours - 1, episodes)
    return Transitions(
        state=_joined(played.state[:, :-1]),
        level=chosen,
        levels=jnp.broadcast_to(chosen[:, None], (len(chosen), states.shape[1])),
        reward=reward,
        unshaped=reward,
        next_state=_joined(played.state[:, 1:]),
        last=jnp.asarray(last),
        died=jnp.zeros(len(reward), bool),  # nobody dies in the twin
        filled=jnp.zeros(len(reward), bool),
        patient=jnp.asarray(np.asarray(hours.patient)[rows].repeat(config.hours)),
        role=hours.role,
        columns=hours.columns,
    )


def _episodes(hours: Transitions, config: DatasetConfig) -> int:
    if hours.role not in ("train", "select"):
        raise ValueError(
            f"expected train or select patients, got {hours.role} patients. "
            "Learning from episodes that start there would leak into the reported scores."
        )
    if len(hours.level) == 0:
        raise ValueError("expected recorded hours to start from, got none. Bring longer stays.")
    return config.episodes if hours.role == "train" else config.select_episodes


@eqx.filter_jit
def _rewards(
    later: Float[Array, "episodes hours steps columns"], config: ClinicalConfig
) -> Float[Array, "episodes hours"]:
    return jax.vmap(jax.vmap(lambda state: normalized_reward(state, config)))(later)


def _joined(
    states: Float[Array, "episodes hours steps columns"],
) -> Float[Array, "rows steps columns"]:
    """Hour after hour, episode after episode."""
    return states.reshape(-1, *states.shape[2:])


def add_noise(
    hours: Transitions, scaler: Scaler, config: DatasetConfig = PAPER_DATA, *, key: PRNGKeyArray
) -> Transitions:
    """The noisy set: signals blurred in train z-units, levels and stored rewards left clean.

    Each observation gets noise as a whole or not at all, and once: the next state of an hour is
    the state of the hour after it.
    """
    noise = NoiseConfig(config.noise_share, config.noise_sd)
    return recorded.add_noise(hours, scaler, noise, key=key)
