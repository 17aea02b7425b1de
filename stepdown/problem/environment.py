"""The decision problem for Gymnasium: `stepdown/Patients-v0` and `stepdown/Twin-v0`.

Observation: the last hour in physical units, sample by sample, the present signals and then the
level in force (6 x 13 = 78 numbers by default), cut at the hard ranges of `signals.SIGNALS`.
Action i means level P(i+2) for the coming hour. Reward: the normalized physiological reward of
that hour, shaped if weights are given. Six decisions, then truncation; nothing terminates, and
hours after death score the minimum. The vector form steps everybody in one compiled call.

Importing this file makes the names known; `gymnasium.make` does so itself when asked for
`stepdown.problem.environment:stepdown/Patients-v0`.
"""

from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from gymnasium import vector
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.seeding import np_random
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Float, Key

from stepdown.handover import Dynamics
from stepdown.problem.picture import draw_trend
from stepdown.problem.wards import (
    RANGES,
    PatientWard,
    Ward,
    begin_episode,
    known_columns,
    set_level,
    simulated_ward,
    twin_ward,
    what_is_seen,
)
from stepdown.signals import HIGHEST, HORIZON, LEVELS, LOWEST

# Gymnasium 1.0, which some learners pin, does the same but has no name for it.
_NEXT_STEP = (
    {"autoreset_mode": vector.AutoresetMode.NEXT_STEP} if hasattr(vector, "AutoresetMode") else {}
)


class WeaningEnv(gymnasium.Env):
    """One patient at a time."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(
        self,
        ward: Ward,
        weights: tuple[float, float] = (0.0, 0.0),  # of jumps and of weaning
        render_mode: str | None = None,
    ):
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode: expected rgb_array or None, got {render_mode!r}.")
        self.render_mode = render_mode
        self.observation_space, self._columns = _space(ward)
        self.action_space = Discrete(len(LEVELS))
        self._ward, self._weights = ward, jnp.array(weights)
        self._base = self._moment = None
        self._episode = 0
        self._seen: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode; `options={"start": number}` picks the start."""
        super().reset(seed=seed)
        if self._base is None or seed is not None:
            self._base, self._episode = _base_key(self.np_random), 0
        start = _starts(options, self._ward, ())
        self._moment, shown = _begin(
            self._ward, self._base, jnp.asarray(self._episode), start, self._columns
        )
        self._episode += 1
        self._seen = [np.asarray(self._moment.state)]
        return _observation(shown), {k: v.item() for k, v in _info(shown).items()}

    def step(self, action):
        """Hold level P(action + 2) for an hour."""
        if self._moment is None or int(self._moment.hour) >= HORIZON:
            raise ResetNeeded("expected a running episode, got none or a finished one. Call reset.")
        level = _levels(action, ())
        self._moment, shown = _step(self._ward, self._moment, level, self._weights, self._columns)
        self._seen.append(np.asarray(self._moment.state))
        info = {k: v.item() for k, v in _info(shown).items()}
        return _observation(shown), float(shown["reward"]), False, info["hour"] >= HORIZON, info

    def render(self):
        """MAP, HR, pulsatility and level of the episode so far, as pixels."""
        if self.render_mode is None:
            return None
        return draw_trend(np.stack(self._seen), HORIZON + 1)


class WeaningVectorEnv(vector.VectorEnv):
    """Many patients at once. Number i is seeded with seed + i and lives as `WeaningEnv` would.

    All episodes are equally long, so all end together; the step after that resets (next-step
    autoreset) and its actions and rewards count for nothing.
    """

    metadata = {"render_modes": []} | _NEXT_STEP

    def __init__(
        self,
        ward: Ward,
        num_envs: int = 1,
        weights: tuple[float, float] = (0.0, 0.0),  # of jumps and of weaning
        hours: int = HORIZON,  # decisions in an episode
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}.")
        self.num_envs = num_envs
        self.single_observation_space, self._columns = _space(ward)
        self.single_action_space = Discrete(len(LEVELS))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ward, self._weights = ward, jnp.array(weights)
        self._bases = self._moments = None
        self._episode, self._hour, self._hours = 0, 0, hours

    def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None):
        """Begin an episode everywhere; `options={"start": numbers}` picks the starts."""
        if seed is not None:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
            if len(seeds) != self.num_envs:
                raise ValueError(f"seed: expected {self.num_envs} numbers, got {len(seeds)}.")
            super().reset(seed=seeds[0])
            self._bases = jnp.stack([_base_key(np_random(one)[0]) for one in seeds])
            self._episode = 0
        if self._bases is None:
            self._bases = jnp.stack([_base_key(self.np_random) for _ in range(self.num_envs)])
        starts = _starts(options, self._ward, (self.num_envs,))
        episode = jnp.asarray(self._episode)
        self._moments, shown = _begin_all(self._ward, self._bases, episode, starts, self._columns)
        self._episode, self._hour = self._episode + 1, 0
        return _observation(shown), _masked(_info(shown))

    def step(self, actions):
        """Hold level P(action + 2) for an hour, everywhere."""
        if self._moments is None:
            raise ResetNeeded("expected running episodes, got none. Call reset.")
        never = np.zeros(self.num_envs, bool)
        levels = _levels(actions, (self.num_envs,))
        if self._hour >= self._hours:
            observations, infos = self.reset()
            return observations, np.zeros(self.num_envs), never, never.copy(), infos
        self._moments, shown = _step_all(
            self._ward, self._moments, levels, self._weights, self._columns
        )
        self._hour += 1
        truncated = np.full(self.num_envs, self._hour >= self._hours)
        rewards = np.asarray(shown["reward"], np.float64)
        return _observation(shown), rewards, never, truncated, _masked(_info(shown))


def make_patients(
    ward: PatientWard | None = None,
    *,
    jump_weight: float = 0.0,
    weaning_weight: float = 0.0,
    render_mode: str | None = None,
) -> WeaningEnv:
    """`stepdown/Patients-v0`: simulated patients, by default a pool of its own."""
    ward = simulated_ward() if ward is None else ward
    return WeaningEnv(ward, (jump_weight, weaning_weight), render_mode)


def make_patients_vector(
    num_envs: int = 1,
    ward: PatientWard | None = None,
    *,
    jump_weight: float = 0.0,
    weaning_weight: float = 0.0,
    max_episode_steps: int = HORIZON,
) -> WeaningVectorEnv:
    """`stepdown/Patients-v0`, many at once."""
    ward = simulated_ward() if ward is None else ward
    return WeaningVectorEnv(ward, num_envs, (jump_weight, weaning_weight), max_episode_steps)


def make_twin(
    dynamics: Dynamics | None = None,
    states: Float[Array, "starts steps 13"] | None = None,
    *,
    jump_weight: float = 0.0,
    weaning_weight: float = 0.0,
    render_mode: str | None = None,
) -> WeaningEnv:
    """`stepdown/Twin-v0`: any fitted dynamics; by default the last values carried forward."""
    return WeaningEnv(twin_ward(dynamics, states), (jump_weight, weaning_weight), render_mode)


def make_twin_vector(
    num_envs: int = 1,
    dynamics: Dynamics | None = None,
    states: Float[Array, "starts steps 13"] | None = None,
    *,
    jump_weight: float = 0.0,
    weaning_weight: float = 0.0,
    max_episode_steps: int = HORIZON,
) -> WeaningVectorEnv:
    """`stepdown/Twin-v0`, many at once."""
    weights = (jump_weight, weaning_weight)
    return WeaningVectorEnv(twin_ward(dynamics, states), num_envs, weights, max_episode_steps)


def _space(ward: Ward) -> tuple[Box, tuple[int, ...]]:
    columns = known_columns(np.asarray(ward.states))  # those that every start knows
    return observation_box(columns, ward.states.shape[1]), columns


def observation_box(columns: tuple[int, ...], steps: int) -> Box:
    """Flat observations, sample by sample, within the hard range of each column."""
    low, high = np.tile(RANGES[list(columns)], (steps, 1)).T
    return Box(low, high, dtype=np.float32)


def _base_key(generator: np.random.Generator) -> Key[Array, ""]:
    return jr.key(int(generator.integers(2**31)))


def _starts(options: dict[str, Any] | None, ward: Ward, shape: tuple[int, ...]):
    """Numbers of the starts that were asked for, or -1 to draw them."""
    wanted = np.asarray((options or {}).get("start", -1))
    count = len(ward.states)
    if not np.issubdtype(wanted.dtype, np.integer) or not np.all((wanted >= -1) & (wanted < count)):
        raise ValueError(f"start: expected a number from 0 to {count - 1}, got {wanted}.")
    return jnp.asarray(np.broadcast_to(wanted, shape))


def _levels(actions: Any, shape: tuple[int, ...]):
    """P-levels of actions; anything but 0..7 is refused."""
    wanted = np.asarray(actions)
    whole = wanted.shape == shape and np.issubdtype(wanted.dtype, np.integer)
    if not whole or not np.all((wanted >= 0) & (wanted < len(LEVELS))):
        raise ValueError(
            f"expected whole numbers 0 to {len(LEVELS) - 1} of shape {shape}, which mean "
            f"P{LOWEST} to P{HIGHEST}, got {actions!r}. Subtract {LOWEST} from a level."
        )
    return jnp.asarray(wanted + LOWEST, jnp.int32)


@eqx.filter_jit
def _begin(ward, base, episode, start, columns):
    now = begin_episode(ward, start, key=jr.fold_in(base, episode))
    return now, what_is_seen(now, columns) | {"reward": jnp.zeros(()), "unshaped": jnp.zeros(())}


@eqx.filter_jit
def _begin_all(ward, bases, episode, starts, columns):
    return jax.vmap(lambda base, start: _begin(ward, base, episode, start, columns))(bases, starts)


@eqx.filter_jit
def _step(ward, now, level, weights, columns):
    now, outcome = set_level(ward, now, level, weights)
    return now, what_is_seen(now, columns) | {
        "reward": outcome.reward,
        "unshaped": outcome.unshaped,
    }


@eqx.filter_jit
def _step_all(ward, moments, levels, weights, columns):
    return jax.vmap(lambda now, level: _step(ward, now, level, weights, columns))(moments, levels)


def _observation(shown: dict[str, Array]) -> np.ndarray:
    observation = np.array(shown["observation"], np.float32)
    if not np.isfinite(observation).all():
        raise ValueError(
            "expected finite values from the dynamics, got NaN or infinity. "
            "Check that they were fitted with the signals that the starts have."
        )
    return observation


def _info(shown: dict[str, Array]) -> dict[str, np.ndarray]:
    """Level (P2..P9), hour, alive, unshaped reward of the hour, and the scores so far."""
    return {k: np.asarray(v) for k, v in shown.items() if k not in ("observation", "reward")}


def _masked(info: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gymnasium's vector form: beside each value, whether it is given."""
    return info | {f"_{name}": np.ones(len(value), bool) for name, value in info.items()}


for _name, _maker in {"Patients-v0": "make_patients", "Twin-v0": "make_twin"}.items():
    gymnasium.register(
        id=f"stepdown/{_name}",
        entry_point=f"{__name__}:{_maker}",
        vector_entry_point=f"{__name__}:{_maker}_vector",
        max_episode_steps=HORIZON,
    )
