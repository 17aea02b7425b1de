"""Stays as transitions: what was seen for an hour, what was set, what came next (App. B).

Windows are cut in `windows.py`; here they get their rewards, shaped and unshaped, from what was
really measured. `add_noise` makes the noisy data set of the paper out of any transitions.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.handover import Cohort, Transitions
from stepdown.patients.cohort import in_groups
from stepdown.problem.clinical import PAPER, ClinicalConfig, normalized_reward, shaped_reward
from stepdown.problem.scaling import Scaler
from stepdown.problem.windows import HourLevel, batch_size, cut_stays


@dataclass(frozen=True)
class HoursConfig:
    """How stays become transitions; defaults are docs/definitions.md."""

    jump_weight: float = 0.0  # lambda 1 of the shaped reward
    weaning_weight: float = 0.0  # lambda 2
    level: HourLevel = "mean"  # of a recorded hour
    stride: float = 60.0  # min between two rows; twins are trained on every 30
    window: float = 60.0  # min of a state; others are the twin's alternative settings
    clinical: ClinicalConfig = PAPER

    def __post_init__(self):
        for name, minutes in (("stride", self.stride), ("window", self.window)):
            if not minutes > 0:
                raise ValueError(f"{name}: expected minutes above 0, got {minutes:g}.")


@dataclass(frozen=True)
class NoiseConfig:
    """Noise on observations; defaults are the paper's noisy data set."""

    share: float = 0.8  # of the states that get any
    sd: float = 0.2  # in standard deviations of train patients

    def __post_init__(self):
        if not (0 <= self.share <= 1 and self.sd >= 0):
            raise ValueError(
                f"expected a share of 0 to 1 and an sd of at least 0, got {self.share}, {self.sd}."
            )


HOURLY, PAPER_NOISE = HoursConfig(), NoiseConfig()


def make_transitions(cohort: Cohort, config: HoursConfig = HOURLY) -> Transitions:
    """Every decision of every stay, patient by patient, in order of time."""
    cut = cut_stays(cohort, level=config.level, stride=config.stride, window=config.window)
    weights = jnp.asarray([config.jump_weight, config.weaning_weight], jnp.float32)
    rows = (cut.measured, cut.level, cut.next_measured)
    shaped, unshaped = in_groups(
        _rewards, rows, weights, config.clinical, size=batch_size(len(cut.level))
    )
    carried = _differ(cut.state, cut.measured) | _differ(cut.next_state, cut.next_measured)
    return Transitions(
        state=jnp.asarray(cut.state),
        level=jnp.asarray(cut.level),
        reward=jnp.asarray(shaped),
        unshaped=jnp.asarray(unshaped),
        next_state=jnp.asarray(cut.next_state),
        last=jnp.asarray(cut.last),
        changed=jnp.asarray(cut.changed),
        filled=jnp.asarray(carried),
        patient=jnp.asarray(cut.patient),
        role=cohort.role,
    )


def _rewards(states, levels, next_states, weights, config: ClinicalConfig):
    """Shaped and unshaped reward of every row."""

    def one(state, level, later):
        shaped = shaped_reward(
            state,
            level,
            later,
            jump_weight=weights[0],
            weaning_weight=weights[1],
            config=config,
        )
        return shaped, normalized_reward(later, config)

    return jax.vmap(one)(states, levels, next_states)


def _differ(carried: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return np.asarray((np.isnan(measured) & ~np.isnan(carried)).any((1, 2)))


def add_noise(
    hours: Transitions, scaler: Scaler, config: NoiseConfig = PAPER_NOISE, *, key: PRNGKeyArray
) -> Transitions:
    """Blur what was seen, never the level nor the stored rewards (the paper's noisy data).

    A state gets noise as a whole or not at all. The next state of a row is the state of the row
    after it, so both get the same noise; only the end of a record draws its own.
    """
    require_order(hours)
    rows = len(hours.level)
    k_state, k_end = jr.split(key)
    state = hours.state + _noise(hours.state, scaler, config, k_state)
    ends = hours.next_state + _noise(hours.next_state, scaler, config, k_end)
    after = state[np.minimum(np.arange(rows) + 1, rows - 1)]
    next_state = jnp.where(hours.last[:, None, None], ends, after)
    return Transitions(
        **{name: getattr(hours, name) for name in _KEPT}, state=state, next_state=next_state
    )


_KEPT = ("level", "reward", "unshaped", "last", "changed", "filled", "patient", "role")


def require_order(hours: Transitions) -> None:
    """Refuse rows that do not follow one another, such as shuffled or half-hourly ones."""
    goes_on = ~np.asarray(hours.last)
    follows = np.asarray(hours.next_state)[:-1][goes_on[:-1]]
    if goes_on[-1:].any() or not np.array_equal(
        np.asarray(hours.state)[1:][goes_on[:-1]], follows, equal_nan=True
    ):
        raise ValueError(
            "expected rows one hour apart and in order, got others. "
            "Make the transitions with a stride of 60 min, and add noise before shuffling."
        )


def _noise(states, scaler: Scaler, config: NoiseConfig, key):
    """Noise in physical units for whole states; zero in the level column."""
    k_which, k_size = jr.split(key)
    hit = jr.bernoulli(k_which, config.share, (len(states), 1, 1))
    size = jnp.concatenate([config.sd * scaler.sd, jnp.zeros(1)])
    noise = jr.normal(k_size, states.shape) * size[None, None, :]
    return jnp.where(hit, noise, 0.0)
