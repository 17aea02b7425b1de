"""The simulated patients as a judge: any way of setting levels, played out hour by hour.

Every start carries its patient's own keys, so all deciders meet the same fate (common random
numbers), and a patient's own team replays exactly what was recorded.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.handover import Cohort, Episodes, Policy, advance
from stepdown.patients.cohort import (
    GROUP,
    Latents,
    Patient,
    in_groups,
    play_hour,
    tick,
    tick_keys,
    to_state,
)
from stepdown.patients.population import World
from stepdown.signals import HORIZON, LOWEST

Decider = Callable[[Patient, Float[Array, "past columns"], PRNGKeyArray], Int[Array, ""]]


class Starts(eqx.Module):
    """Moments at the top of an hour from which episodes begin."""

    patient: Patient  # leaves (n, ...): the truth, which no policy reads
    state: Float[Array, "n past columns"]  # the hour before, or hours, as recorded
    key: Key[Array, "*n"]  # of the patient
    tick: Int[Array, " n"]  # the first tick to come
    row: Int[Array, " n"]  # of the cohort: the unit of any bootstrap


class Mode(eqx.Module):
    """A policy judged by its most probable level.

    >>> learned = sd.Mode(policy)
    """

    policy: Policy

    def __call__(self, patient, state, key):
        """Choose from the recorded hour alone."""
        return jnp.argmax(self.policy(state)) + LOWEST


class Sampled(eqx.Module):
    """A policy judged by drawing its levels."""

    policy: Policy

    def __call__(self, patient, state, key):
        """Choose from the recorded hour alone."""
        return jr.categorical(key, self.policy(state)) + LOWEST


class OwnTeam(eqx.Module):
    """The patient's clinicians go on treating, at any tick.

    >>> clinicians = sd.OwnTeam()
    """


def draw_starts(
    cohort: Cohort, latents: Latents, count: int, *, history: int = 1, key: PRNGKeyArray
) -> Starts:
    """Random recorded hours with an hour behind them; an episode goes on where a record stops.

    States hold `history` hours; where a stay is younger, its first hour stands for those that are
    not there. The starts are the same for every history.

    >>> fresh, behind = sd.simulate_cohort(config, key=jr.key(8))  # patients that nobody has seen
    >>> starts = sd.draw_starts(fresh, behind, 64, key=jr.key(0))
    """
    per_hour = round(60 / cohort.minutes)
    whole = np.asarray(cohort.seen).sum(1) // per_hour
    pairs = np.array([(row, hour) for row, n in enumerate(whole) for hour in range(1, n)])
    if len(pairs) == 0:
        raise ValueError("expected stays of at least two hours, got none. Record longer stays.")
    chosen = np.asarray(jr.choice(key, len(pairs), (count,), replace=count > len(pairs)))
    row, hour = pairs[chosen].T
    course, memory = jax.tree.map(lambda x: x[row, hour], (latents.course, latents.memory))
    admitted = latents.patients
    traits, team = jax.tree.map(lambda x: x[row], (admitted.traits, admitted.clinician))
    behind = np.maximum(hour[:, None] - np.arange(history, 0, -1), 0)  # (n, history)
    samples = (behind[..., None] * per_hour + np.arange(per_hour)).reshape(count, -1)
    signals = np.asarray(cohort.signals)[row[:, None], samples]
    level = np.asarray(cohort.level)[row[:, None], samples].reshape(*behind.shape, per_hour)
    in_force = np.floor(level.mean(2) + 0.5).repeat(per_hour, 1)
    return Starts(
        patient=Patient(traits, course, team, memory),
        state=jnp.asarray(np.concatenate([signals, in_force[..., None]], -1), jnp.float32),
        key=latents.keys[row],
        tick=jnp.asarray(hour * per_hour),
        row=jnp.asarray(row),
    )


def play(
    decider: Decider | OwnTeam, starts: Starts, world: World, hours: int = HORIZON
) -> Episodes:
    """Let somebody decide for `hours` hours from every start.

    >>> episodes = sd.play(learned, starts, world)
    >>> episodes.level.shape  # the level in force, then six decisions
    (64, 7)
    """
    size = min(GROUP, 1 << (len(starts.row) - 1).bit_length())
    return in_groups(_play, (starts,), decider, world, hours, size=size)


def _play(starts: Starts, decider, world: World, hours: int) -> Episodes:
    per_hour = round(1 / world.dt)

    def one(start):
        patient, state, key, first = start.patient, start.state, start.key, start.tick

        def go_on(carry, now):
            patient, state = carry
            live_keys = tick_keys(key, now, per_hour)
            if isinstance(decider, OwnTeam):
                patient, (signals, levels) = jax.lax.scan(
                    lambda p, k: tick(p, world, key=k), patient, live_keys
                )
                level = jnp.floor(jnp.mean(levels * 1.0) + 0.5).astype(int)
                hour = to_state(signals, level)
            else:
                level = decider(patient, state, jr.fold_in(jr.fold_in(key, now), 1))
                patient, hour = play_hour(patient, level, world, keys=live_keys)
            return (patient, advance(state, hour)), (hour, level, patient.course.alive > 0)

        nows = first + per_hour * jnp.arange(hours)
        _, (later, levels, alive) = jax.lax.scan(go_on, (patient, state), nows)
        before = jnp.round(state[-1, -1]).astype(int)
        return Episodes(
            state=jnp.concatenate([state[None, -per_hour:], later]),
            level=jnp.concatenate([before[None], levels]),
            alive=alive,
        )

    return jax.vmap(one)(starts)
