"""The decision problem as pure functions: begin an episode, set a level, see the hour.

A ward is where episodes happen: simulated patients (known truth) or fitted dynamics. The scores
of an episode so far are kept as running sums, so that a step never looks back.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from stepdown.handover import Dynamics, Scores
from stepdown.patients.bedside import play_hour, tick_keys
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import Starts, draw_starts
from stepdown.patients.population import World
from stepdown.patients.pump import (
    PumpProfile,
    load_profile,
    motor_current,
    pump_flow,
    pump_head,
)
from stepdown.problem.clinical import (
    PAPER,
    ClinicalConfig,
    action_change,
    normalized_reward,
    stable_by_gradient,
    stable_by_limits,
    weaned,
)
from stepdown.problem.windows import check_units
from stepdown.signals import (
    CURRENT,
    FLOW,
    HIGHEST,
    LEVEL,
    LEVELS,
    LOWEST,
    NAMES,
    REQUIRED,
    SIGNALS,
    SPEED,
)

METRICS = ("acp", "total_change", "ws_gradient", "ws_limits", "ws_both", "unsafe_hours")
RANGES = np.array([signal.hard for signal in SIGNALS] + [(LOWEST, HIGHEST)], np.float32)
POOL = CohortConfig(patients=256, hours=24.0)  # patients of a ward that was given none
POOL_SEED, POOL_STARTS = 20_000, 1024
NEAR = 0.01  # relative difference to a level's speed that is still that level

Hour = Float[Array, "steps 13"]


class PatientWard(eqx.Module):
    """Simulated patients, whose truth is known to the simulator alone."""

    starts: Starts
    world: World
    replay: bool = eqx.field(static=True, default=False)  # every patient's own random numbers

    @property
    def states(self) -> Float[Array, "starts steps 13"]:
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
        patient, signals = play_hour(patient, level, self.world, keys=keys)
        later = jnp.concatenate([signals, jnp.full((steps, 1), level, signals.dtype)], axis=1)
        return (patient, own, tick + steps), later, patient.course.alive > 0


class TwinWard(eqx.Module):
    """Fitted dynamics: the coming hour depends on the last one and the level."""

    dynamics: Dynamics
    states: Float[Array, "starts steps 13"]

    def begin(self, start: Int[Array, ""], /):
        """Keep nothing: the state is all there is."""
        return ()

    def hour(self, kept, state: Hour, level: Int[Array, ""], /, *, key: PRNGKeyArray):
        """One draw of the dynamics; the level column is known, not predicted."""
        later = self.dynamics(state, level, key=key).at[:, LEVEL].set(level.astype(float))
        return kept, later, jnp.array(True)


Ward = PatientWard | TwinWard


class CarryForward(eqx.Module):
    """Dynamics that repeat the last sample; only the pump follows its new level.

    Flow changes along the pump's curve at the same head, current with it, speed by the table. The
    level of the last sample is read off its speed: a state holds the mean level of its hour, which
    is another one where the level was changed inside the hour.
    """

    profile: PumpProfile

    def __call__(
        self, state: Hour, level: Int[Array, ""], /, *, key: PRNGKeyArray | None = None
    ) -> Hour:
        """The same hour for any key."""
        latest = state[-1]
        before = self._in_force(latest)
        head = pump_head(self.profile, before, latest[FLOW])
        flow = jnp.where(level == before, latest[FLOW], pump_flow(self.profile, level, head))
        power = motor_current(self.profile, level, flow)
        power -= motor_current(self.profile, before, latest[FLOW])
        speed = self.profile.speed[level - LOWEST] / self.profile.speed[before - LOWEST]
        row = latest.at[FLOW].set(flow).at[LEVEL].set(level.astype(float))
        row = row.at[CURRENT].add(power).at[SPEED].multiply(speed)
        return jnp.broadcast_to(row, state.shape)

    def _in_force(self, sample: Float[Array, " 13"]) -> Int[Array, ""]:
        """The level whose speed a sample shows, or the state's own where no speed comes near."""
        stated = jnp.round(sample[LEVEL]).astype(int)
        off = jnp.abs(sample[SPEED] / self.profile.speed - 1)
        nearest = jnp.argmin(off)
        return jnp.where(off[nearest] < NEAR, nearest + LOWEST, stated)


@functools.cache  # Gymnasium makes an environment many times
def simulated_ward(config: CohortConfig = POOL, seed: int = POOL_SEED) -> PatientWard:
    """Moments of freshly simulated patients that no record holds."""
    k_cohort, k_starts = jr.split(jr.key(seed))
    cohort, latents = simulate_cohort(config, key=k_cohort)
    return PatientWard(draw_starts(cohort, latents, POOL_STARTS, key=k_starts), world_of(config))


def twin_ward(
    dynamics: Dynamics | None = None, states: Float[Array, "starts steps 13"] | None = None
) -> TwinWard:
    """Episodes in fitted dynamics; by default carried forward from simulated patients."""
    states = simulated_ward().states if states is None else states
    return TwinWard(CarryForward(load_profile("cp")) if dynamics is None else dynamics, states)


def known_columns(states: np.ndarray) -> tuple[int, ...]:
    """Columns that every start state knows; states that cannot be starts are refused in words."""
    if states.ndim != 3 or states.shape[-1] != LEVEL + 1 or not len(states):
        raise ValueError(
            f"expected start states of shape (starts, steps, {LEVEL + 1}), got {states.shape}. "
            "Pass the states of transitions."
        )
    check_units(states[..., :LEVEL])
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


class Tally(eqx.Module):
    """Running sums of an episode; pairs of stability are by gradient, limits and both."""

    acp: Float[Array, ""]
    total_change: Float[Array, ""]
    weaned: Float[Array, " 3"]
    stable: Float[Array, " 3"]
    unsafe: Float[Array, ""]
    reward: Float[Array, ""]


class Moment(eqx.Module):
    """Where an episode stands."""

    kept: Any
    state: Hour
    alive: Bool[Array, ""]
    hour: Int[Array, ""]  # decisions so far
    tally: Tally
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
        tally=Tally(zero, zero, jnp.zeros(3), jnp.zeros(3), zero, zero),
        key=k_hours,
    )


def set_level(
    ward: Ward,
    now: Moment,
    level: Int[Array, ""],
    weights: Float[Array, " 2"],
    config: ClinicalConfig = PAPER,
) -> tuple[Moment, Outcome]:
    """Hold a level for an hour; `weights` are those of jumps and of weaning (shaped reward)."""
    k_hour = jr.fold_in(now.key, now.hour)
    kept, later, lived = ward.hour(now.kept, now.state, level, key=k_hour)
    alive = now.alive & lived
    before = jnp.round(now.state[-1, LEVEL]).astype(level.dtype)
    change = jnp.stack([before, level])
    gain = weaned(before - level)
    by_slope = stable_by_gradient(now.state, config)
    by_limits = stable_by_limits(now.state, config)
    stable = jnp.stack([by_slope, by_limits, by_slope & by_limits]) & now.alive

    unshaped = jnp.where(alive, normalized_reward(later, config), -config.reward_clip)
    jump = action_change(change, config.jump)
    reward = unshaped - weights[0] * jump + weights[1] * stable[1] * gain
    tally = Tally(
        acp=now.tally.acp + jump,
        total_change=now.tally.total_change + action_change(change, 0),
        weaned=now.tally.weaned + stable * gain,
        stable=now.tally.stable + stable,
        unsafe=now.tally.unsafe + ~(alive & stable_by_limits(later, config)),
        reward=now.tally.reward + unshaped,
    )
    return Moment(kept, later, alive, now.hour + 1, tally, now.key), Outcome(reward, unshaped)


def scores_so_far(now: Moment) -> Scores:
    """The clinical scores of the decisions made up to this moment."""
    tally = now.tally
    gradient, limits, both = tally.weaned / jnp.maximum(tally.stable, 1.0)
    return Scores(
        reward=tally.reward,
        acp=tally.acp,
        total_change=tally.total_change,
        ws_gradient=gradient,
        ws_limits=limits,
        ws_both=both,
        unsafe_hours=tally.unsafe / jnp.maximum(now.hour, 1),
    )


def what_is_seen(now: Moment, columns: tuple[int, ...]) -> dict[str, Array]:
    """What the outside may see: the observation, and where the episode stands."""
    seen = jnp.clip(now.state, RANGES[None, :, 0], RANGES[None, :, 1])[:, np.array(columns)]
    scores = scores_so_far(now)
    metrics = {name: getattr(scores, name) for name in METRICS}
    level = jnp.round(now.state[-1, LEVEL]).astype(int)
    shown = {"observation": seen.ravel(), "level": level, "hour": now.hour, "alive": now.alive}
    return shown | metrics
