"""The decision problem for Gymnasium: `stepdown/Patients-v0` and `stepdown/Twin-v0`.

Observation: the last hour in physical units, sample by sample, the present signals and then the
level in force (6 x 13 = 78 numbers by default), cut at the hard ranges of `signals.KNOWN`.
Action i means level P(i+2) for the coming hour. Reward: the normalized physiological reward of
that hour, shaped if weights are given. Six decisions, then truncation. A death terminates: its
reward is the minimum of that hour and of every hour that would have followed, so an episode scores
what judges give it, and dying early never pays. The vector form steps everybody in one compiled
call.

Below Gymnasium's classes lies the problem as pure functions: begin an episode, set a level, see
the hour. A ward is where episodes happen: simulated patients (known truth) or fitted dynamics.
The scores of an episode so far are kept as running sums, so that a step never looks back.

`import stepdown` makes the names known; `gymnasium.make` does so itself when asked for
`stepdown:Patients-v0`. With `preset` and `seed` the patients are those of `stepdown simulate` with
the same words, so a data set and the environment that it came from hold the same people.
"""

import functools
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from gymnasium import vector
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.seeding import np_random
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, UInt8

from stepdown.handover import Dynamics, Role, hours_read
from stepdown.patients.cohort import CohortConfig, play_hour, simulate_cohort, tick_keys, world_of
from stepdown.patients.episodes import Starts, draw_starts
from stepdown.patients.population import PresetName, World
from stepdown.patients.pump import load_profile
from stepdown.problem.clinical import (
    PAPER,
    ClinicalConfig,
    Decision,
    stable_by_limits,
    weaned,
)
from stepdown.problem.hours import check_units
from stepdown.problem.metrics import METRICS, Sums, parts_of, scores_of
from stepdown.problem.persistence import CarryForward
from stepdown.records.latents import latents_of
from stepdown.records.split import SPLIT, split_patients
from stepdown.signals import (
    HIGHEST,
    HORIZON,
    HR,
    LEVEL,
    LEVELS,
    LOWEST,
    MAP,
    NAMES,
    PULSATILITY,
    REQUIRED,
    hard_ranges,
)

POOL = CohortConfig(patients=256, hours=24.0)  # patients of a ward that was given none
POOL_SEED, POOL_STARTS = 20_000, 1024

# Gymnasium 1.0, which some learners pin, does the same but has no name for it.
_NEXT_STEP = (
    {"autoreset_mode": vector.AutoresetMode.NEXT_STEP} if hasattr(vector, "AutoresetMode") else {}
)

# Column, lowest and highest value drawn, color. From top to bottom.
BANDS = (
    (MAP, 30.0, 130.0, (200, 40, 40)),
    (HR, 30.0, 150.0, (40, 120, 60)),
    (PULSATILITY, 0.0, 80.0, (40, 80, 180)),
    (LEVEL, LOWEST - 0.5, HIGHEST + 0.5, (60, 60, 60)),
)
BAND, SAMPLE, MARGIN = 48, 6, 4  # pixels: height of a band, width of a sample, border

Hour = Float[Array, "steps columns"]
Picture = UInt8[np.ndarray, "height width 3"]


class PatientWard(eqx.Module):
    """Simulated patients, whose truth is known to the simulator alone."""

    starts: Starts
    world: World
    replay: bool = eqx.field(static=True, default=False)  # every patient's own random numbers

    columns = NAMES  # what the simulated bedside records

    @property
    def states(self) -> Float[Array, "starts steps columns"]:
        """The recorded hours before the starts."""
        return jnp.asarray(self.starts.state)

    def begin(self, start: Int[Array, ""], /):
        """The patient, their key and the next tick."""
        own = (self.starts.patient, self.starts.key, self.starts.tick)
        return jax.tree.map(lambda x: jnp.asarray(x)[start], own)

    def hour(self, kept, state: Hour, level: Int[Array, ""], /, *, key: PRNGKeyArray):
        """One hour of the simulated bedside, and whether the patient lived through it."""
        patient, own, tick = kept
        steps = len(state)
        keys = tick_keys(own, tick, steps) if self.replay else jr.split(key, steps)
        patient, later = play_hour(patient, level, self.world, keys=keys)
        return (patient, own, tick + steps), later, patient.course.alive > 0


class TwinWard(eqx.Module):
    """Fitted dynamics: the coming hour depends on the last one and the level."""

    dynamics: Dynamics
    states: Float[Array, "starts steps columns"]
    columns: tuple[str, ...] = eqx.field(static=True, default=NAMES)  # of signals.KNOWN

    def begin(self, start: Int[Array, ""], /):
        """Keep nothing: the state is all there is."""
        return ()

    def hour(self, kept, state: Hour, level: Int[Array, ""], /, *, key: PRNGKeyArray):
        """One draw of the dynamics; the level column is known, not predicted."""
        later = self.dynamics(state, level, key=key).at[:, LEVEL].set(level.astype(float))
        return kept, later, jnp.array(True)


Ward = PatientWard | TwinWard


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
        self.observation_space, self._known = _space(ward)
        self.action_space = Discrete(len(LEVELS))
        self._ward, self._weights = ward, jnp.array(weights)
        self._base = self._moment = None
        self._episode, self._over = 0, True
        self._seen: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode; `options={"start": number}` picks the start."""
        super().reset(seed=seed)
        if self._base is None or seed is not None:
            self._base, self._episode = _base_key(self.np_random), 0
        start = _starts(options, self._ward, ())
        self._moment, shown = _begin(
            self._ward, self._base, jnp.asarray(self._episode), start, self._known
        )
        self._episode, self._over = self._episode + 1, False
        self._seen = [np.asarray(self._moment.state)]
        return _observation(shown), {k: v.item() for k, v in _info(shown).items()}

    def step(self, action):
        """Hold level P(action + 2) for an hour."""
        if self._over:
            raise ResetNeeded("expected a running episode, got none or a finished one. Call reset.")
        level = _levels(action, ())
        self._moment, shown = _step(
            self._ward, self._moment, level, self._weights, self._known, HORIZON
        )
        self._seen.append(np.asarray(self._moment.state))
        info = {k: v.item() for k, v in _info(shown).items()}
        terminated, truncated = not info["alive"], info["alive"] and info["hour"] >= HORIZON
        self._over = terminated or truncated
        return _observation(shown), float(shown["reward"]), terminated, truncated, info

    def render(self):
        """MAP, HR, pulsatility and level of the episode so far, as pixels."""
        if self.render_mode is None:
            return None
        return draw_trend(np.stack(self._seen), HORIZON + 1)


class WeaningVectorEnv(vector.VectorEnv):
    """Many patients at once. Number i is seeded with seed + i and lives as `WeaningEnv` would.

    The step after the end of an episode begins that patient's place anew (next-step autoreset);
    its action and reward count for nothing.
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
        self.single_observation_space, self._known = _space(ward)
        self.single_action_space = Discrete(len(LEVELS))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ward, self._weights = ward, jnp.array(weights)
        self._bases = self._moments = None
        self._hours = hours
        self._episode, self._over = np.zeros(num_envs, int), np.zeros(num_envs, bool)

    def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None):
        """Begin an episode everywhere; `options={"start": numbers}` picks the starts."""
        if seed is not None:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
            if len(seeds) != self.num_envs:
                raise ValueError(f"seed: expected {self.num_envs} numbers, got {len(seeds)}.")
            super().reset(seed=seeds[0])
            self._bases = jnp.stack([_base_key(np_random(one)[0]) for one in seeds])
            self._episode[:] = 0
        if self._bases is None:
            self._bases = jnp.stack([_base_key(self.np_random) for _ in range(self.num_envs)])
        starts = _starts(options, self._ward, (self.num_envs,))
        episodes = jnp.asarray(self._episode)
        self._moments, shown = _begin_all(self._ward, self._bases, episodes, starts, self._known)
        self._episode += 1
        self._over[:] = False
        return _observation(shown), _masked(_info(shown))

    def step(self, actions):
        """Hold level P(action + 2) for an hour, everywhere."""
        if self._moments is None or self._bases is None:
            raise ResetNeeded("expected running episodes, got none. Call reset.")
        levels = _levels(actions, (self.num_envs,))
        over, episode = jnp.asarray(self._over), jnp.asarray(self._episode)
        places = Places(over, self._bases, episode, self._hours)
        self._moments, shown = _step_all(
            self._ward, self._moments, levels, self._weights, self._known, places
        )
        self._episode += self._over
        info = _info(shown)
        terminated = ~info["alive"]
        truncated = info["alive"] & (info["hour"] >= self._hours)
        self._over = terminated | truncated
        rewards = np.asarray(shown["reward"], np.float64)
        return _observation(shown), rewards, terminated, truncated, _masked(info)


def make_patients(
    ward: PatientWard | None = None,
    *,
    jump_weight: float = 0.0,
    weaning_weight: float = 0.0,
    render_mode: str | None = None,
    **cohort: Any,
) -> WeaningEnv:
    """`stepdown/Patients-v0`: simulated patients, by default a pool of its own.

    `cohort` are the words of `cohort_ward`, such as `preset="guarded", seed=7`.
    """
    return WeaningEnv(_ward_of(ward, cohort), (jump_weight, weaning_weight), render_mode)


def _ward_of(ward: PatientWard | None, cohort: dict[str, Any]) -> PatientWard:
    """The ward that was given or described; both at once are refused."""
    if not cohort:
        return simulated_ward() if ward is None else ward
    if ward is not None or "preset" not in cohort:
        raise ValueError(
            f"expected a ward, or preset and seed of a cohort, got {', '.join(cohort)}. Say such "
            'as preset="guarded", seed=7.'
        )
    return cohort_ward(**cohort)


def make_patients_vector(
    num_envs: int = 1,
    ward: PatientWard | None = None,
    *,
    jump_weight: float = 0.0,
    weaning_weight: float = 0.0,
    max_episode_steps: int = HORIZON,
    **cohort: Any,
) -> WeaningVectorEnv:
    """`stepdown/Patients-v0`, many at once."""
    ward = _ward_of(ward, cohort)
    return WeaningVectorEnv(ward, num_envs, (jump_weight, weaning_weight), max_episode_steps)


def make_twin(
    dynamics: Dynamics | None = None,
    states: Float[Array, "starts steps columns"] | None = None,
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
    states: Float[Array, "starts steps columns"] | None = None,
    *,
    jump_weight: float = 0.0,
    weaning_weight: float = 0.0,
    max_episode_steps: int = HORIZON,
) -> WeaningVectorEnv:
    """`stepdown/Twin-v0`, many at once."""
    weights = (jump_weight, weaning_weight)
    return WeaningVectorEnv(twin_ward(dynamics, states), num_envs, weights, max_episode_steps)


def _space(ward: Ward) -> tuple[Box, tuple[int, ...]]:
    known = known_columns(np.asarray(ward.states), ward.columns)  # those that every start knows
    return observation_box(known, ward.states.shape[1], ward.columns), known


def observation_box(known: tuple[int, ...], steps: int, columns: tuple[str, ...] = NAMES) -> Box:
    """Flat observations, sample by sample, within the hard range of each known column."""
    ranges = np.array(hard_ranges(columns), np.float32)
    low, high = np.tile(ranges[list(known)], (steps, 1)).T
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
def _begin(ward, base, episode, start, known):
    now = begin_episode(ward, start, key=jr.fold_in(base, episode))
    nothing = {"reward": jnp.zeros(()), "unshaped": jnp.zeros(())}
    return now, what_is_seen(ward, now, known) | nothing


@eqx.filter_jit
def _begin_all(ward, bases, episodes, starts, known):
    def one(base, episode, start):
        return _begin(ward, base, episode, start, known)

    return jax.vmap(one)(bases, episodes, starts)


@eqx.filter_jit
def _step(ward, now, level, weights, known, hours):
    now, outcome = set_level(ward, now, level, weights, hours)
    return now, what_is_seen(ward, now, known) | {
        "reward": outcome.reward,
        "unshaped": outcome.unshaped,
    }


class Places(eqx.Module):
    """Whose episode is over and begins anew, and with which luck."""

    over: Bool[Array, "*n"]
    base: Key[Array, "*n"]
    episode: Int[Array, "*n"]
    hours: int = eqx.field(static=True)  # decisions in an episode


@eqx.filter_jit
def _step_all(ward, moments, levels, weights, known, places: Places):
    def one(now, level, place: Places):
        begun = _begin(ward, place.base, place.episode, jnp.asarray(-1), known)
        stepped = _step(ward, now, level, weights, known, place.hours)
        return jax.tree.map(lambda new, old: jnp.where(place.over, new, old), begun, stepped)

    return jax.vmap(one)(moments, levels, places)


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


@functools.cache  # Gymnasium makes an environment many times
def simulated_ward(config: CohortConfig = POOL, seed: int = POOL_SEED) -> PatientWard:
    """Moments of freshly simulated patients that no record holds."""
    k_cohort, k_starts = jr.split(jr.key(seed))
    cohort, latents = simulate_cohort(config, key=k_cohort)
    return PatientWard(draw_starts(cohort, latents, POOL_STARTS, key=k_starts), world_of(config))


@functools.lru_cache(maxsize=2)
def cohort_ward(
    preset: PresetName,
    seed: int = 7,
    *,
    role: Role = "train",
    starts: int = POOL_STARTS,
    replay: bool = False,
    **recipe: Any,
) -> PatientWard:
    """The patients of one role of a cohort of `stepdown simulate`, with their own clinicians' past.

    With `replay` each lives with the chance that their record was made with, so a recorded decision
    leads to the recorded hour; otherwise every episode draws its own. `recipe` is what else a
    `CohortConfig` says, such as `patients=24`.
    """
    config = CohortConfig(**{"patients": 379, "preset": preset, **recipe})
    cohort, latents = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
    parts = {part.role: part for part in split_patients(cohort, key=jr.key(SPLIT))}
    if role not in parts:
        raise ValueError(f"role: expected one of {', '.join(parts)}, got {role!r}.")
    part = parts[role]
    drawn = draw_starts(part, latents_of(latents, cohort, part), starts, key=jr.key(POOL_SEED))
    return PatientWard(drawn, world_of(config), replay)


def twin_ward(
    dynamics: Dynamics | None = None,
    states: Float[Array, "starts steps columns"] | None = None,
) -> TwinWard:
    """Episodes in fitted dynamics; by default carried forward from simulated patients."""
    states = simulated_ward().states if states is None else states
    dynamics = CarryForward(load_profile("cp")) if dynamics is None else dynamics
    if hours_read(dynamics) > 1:
        raise ValueError(
            f"expected dynamics that read one hour, got some that read {hours_read(dynamics)} h. "
            "Fit a twin with a history of 1: an episode's observation is one hour."
        )
    scaler = getattr(dynamics, "scaler", None)  # none where nothing was fitted
    return TwinWard(dynamics, states, NAMES if scaler is None else scaler.columns)


def known_columns(states: np.ndarray, columns: tuple[str, ...] = NAMES) -> tuple[int, ...]:
    """Columns that every start state knows; states that cannot be starts are refused in words."""
    if states.ndim != 3 or states.shape[-1] != len(columns) + 1 or not len(states):
        raise ValueError(
            f"expected start states of shape (starts, steps, {len(columns) + 1}), got "
            f"{states.shape}. Pass the states of transitions."
        )
    check_units(states[..., :LEVEL], columns)
    level = states[..., LEVEL]
    if not np.isin(level, LEVELS).all():
        odd = level[~np.isin(level, LEVELS)][0]
        raise ValueError(
            f"expected whole levels {LOWEST} to {HIGHEST} in force, got {odd:g}. "
            "Round the level of the hour."
        )
    known = np.asarray(np.isfinite(states).all((0, 1)))
    if lacking := [NAMES[i] for i in REQUIRED if not known[i]]:
        raise ValueError(f"expected {lacking[0]} in every start state, got NaN. Drop these starts.")
    return tuple(int(i) for i in np.flatnonzero(known))


class Moment(eqx.Module):
    """Where an episode stands."""

    kept: Any
    state: Hour
    alive: Bool[Array, ""]
    hour: Int[Array, ""]  # decisions so far
    sums: Sums  # so far
    key: Key[Array, ""]  # of the episode


class Outcome(eqx.Module):
    """What one decision brought."""

    reward: Float[Array, ""]  # shaped by the weights
    unshaped: Float[Array, ""]


def begin_episode(ward: Ward, start: Int[Array, ""], *, key: PRNGKeyArray) -> Moment:
    """Begin at one of the ward's starts; a negative number draws one."""
    k_start, k_hours = jr.split(key)
    drawn = jr.randint(k_start, (), 0, len(ward.states))
    start = jnp.where(start < 0, drawn, start)
    zero = jnp.zeros(())
    return Moment(
        kept=ward.begin(start),
        state=ward.states[start],
        alive=jnp.array(True),
        hour=jnp.zeros((), int),
        sums={name: (zero, zero) for name in METRICS},
        key=k_hours,
    )


def set_level(
    ward: Ward,
    now: Moment,
    level: Int[Array, ""],
    weights: Float[Array, " 2"],
    hours: int = HORIZON,
    config: ClinicalConfig = PAPER,
) -> tuple[Moment, Outcome]:
    """Hold a level for an hour; `weights` are those of jumps and of weaning (shaped reward).

    Who dies is scored for all of the episode's `hours` at once, as if the level stayed.
    """
    k_hour = jr.fold_in(now.key, now.hour)
    kept, later, lived = ward.hour(now.kept, now.state, level, key=k_hour)
    alive = now.alive & lived
    before = jnp.round(now.state[-1, LEVEL]).astype(level.dtype)
    decision = Decision(now.state, before, level, later, now.alive, alive)
    parts, stable = parts_of(decision, config), stable_by_limits(now.state, config) & now.alive
    shaping = weights[1] * stable * weaned(before - level) - weights[0] * parts["acp"][0]
    gone = parts_of(Decision(later, level, level, later, alive, alive), config)  # hours of the dead
    left = jnp.where(alive, 0, hours - 1 - now.hour)
    parts = jax.tree.map(lambda own, none: now.alive * (own + left * none), parts, gone)
    unshaped = parts["reward"][0]
    reward = unshaped + now.alive * shaping
    sums = jax.tree.map(jnp.add, now.sums, parts)
    return Moment(kept, later, alive, now.hour + 1, sums, now.key), Outcome(reward, unshaped)


def what_is_seen(ward: Ward, now: Moment, known: tuple[int, ...]) -> dict[str, Any]:
    """What the outside may see: the observation, and where the episode stands."""
    low, high = np.array(hard_ranges(ward.columns), np.float32).T
    seen = jnp.clip(now.state, low[None], high[None])[:, np.array(known)]
    metrics = {name: score for name, score in scores_of(now.sums).items() if name != "reward"}
    level = jnp.round(now.state[-1, LEVEL]).astype(int)
    shown = {"observation": seen.ravel(), "level": level, "hour": now.hour, "alive": now.alive}
    return shown | metrics


def draw_trend(states: Float[np.ndarray, "hours steps columns"], hours: int) -> Picture:
    """MAP, HR, pulsatility and level over an episode of up to `hours` hours."""
    steps = states.shape[1]
    width = 2 * MARGIN + SAMPLE * steps * hours
    picture = np.full((len(BANDS) * BAND, width, 3), 255, np.uint8)
    samples = states.reshape(-1, states.shape[-1])
    for number, (column, low, high, color) in enumerate(BANDS):
        top = number * BAND
        picture[top + BAND - 1] = 220  # a line between two bands
        share = np.clip((samples[:, column] - low) / (high - low), 0.0, 1.0)
        height = np.nan_to_num((BAND - 2 * MARGIN) * (1.0 - share)).astype(int) + top + MARGIN
        _draw_line(picture, height, ~np.isnan(share), color)
    for hour in range(1, hours):
        picture[:, MARGIN + SAMPLE * steps * hour - 1] = 235
    return picture


def _draw_line(picture: Picture, height, known, color) -> None:
    """Steps that are joined by uprights; nothing where nothing is known."""
    last = None
    for sample, (y, seen) in enumerate(zip(height, known, strict=True)):
        x = MARGIN + SAMPLE * sample
        if seen:
            low, high = min(y, y if last is None else last), max(y, y if last is None else last)
            picture[low : high + 2, x : x + 2] = color
            picture[y : y + 2, x : x + SAMPLE] = color
        last = y if seen else None


def patients_spec(**cohort: Any) -> EnvSpec:
    """What Gymnasium makes the environment of a cohort from; its words go with a data set."""
    maker = f"{__name__}:make_patients"
    return EnvSpec(
        id="stepdown/Patients-v0",
        entry_point=maker,
        vector_entry_point=f"{maker}_vector",
        max_episode_steps=HORIZON,
        kwargs=cohort,
    )
