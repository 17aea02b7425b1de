"""The true chances of every decision of the simulated teams, in closed form.

Only for judging estimators: no record holds a team's style, thresholds and memory. The rules are
those of `patients/clinicians.py`, weighed instead of thrown; a test compares the two.
Memory is kept at the top of every hour, so the hour before a decision is walked through once more.
With insight (preset hidden) teams also read the patient's recovery, averaged here over its noise.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.evaluation.behavior import Behavior
from stepdown.evaluation.decisions import Decisions
from stepdown.handover import Cohort
from stepdown.patients.clinicians import (
    READING_SD,
    RESCUE_SIZE,
    Clinician,
    Memory,
    courage,
    hourly_round,
    look,
    raised,
    rescue_chance,
)
from stepdown.patients.cohort import Latents, batch_size, in_groups
from stepdown.patients.population import World
from stepdown.problem.hours import cut_stays
from stepdown.signals import HIGHEST, LEVELS, LOWEST

NODES, SHARES = (np.asarray(x) for x in np.polynomial.hermite_e.hermegauss(7))

Chances = Float[Array, " 8"]
Scalar = Float[Array, ""]


def true_behavior(cohort: Cohort, latents: Latents, decisions: Decisions, world: World) -> Behavior:
    """What `fit_behavior` estimates, but known; that records go on is left at 1.

    For simulated cohorts alone, whose stays have no gaps.
    """
    first = cut_stays(cohort).start
    if len(first) != int(decisions.start.sum()):
        raise ValueError("expected the decisions of this cohort, got others. Make them from it.")
    rows = np.flatnonzero(decisions.start)
    patient, hour = decisions.patient[rows], first // decisions.state.shape[1]
    level, _ = _walk(cohort, latents, patient, hour, world)
    _, held = _walk(cohort, latents, patient, hour + 1, world)
    count = len(decisions.level)
    chances = np.full((count, len(LEVELS)), 1.0 / len(LEVELS))  # of the hours of death: no matter
    chances[rows], every = level, np.ones(count)
    every[rows] = held
    with np.errstate(divide="ignore"):
        logs = np.log(chances)
    return Behavior(logs, every, np.ones(count), np.zeros(count, np.int32))


def _walk(cohort: Cohort, latents: Latents, patient, hour, world: World):
    """Chances after an hour of each patient, and that its level was held."""
    width = round(60 / cohort.minutes)
    steps = hour[:, None] * width + np.arange(width)
    steps = np.minimum(steps, cohort.level.shape[1] - 1)
    memory = jax.tree.map(lambda x: np.asarray(x)[patient, hour], latents.memory)
    last = np.minimum(hour + 1, latents.course.recovery.shape[1] - 1)
    recovery = np.asarray(latents.course.recovery)[patient, last]
    team = jax.tree.map(lambda x: np.asarray(x)[patient], latents.patients.clinician)
    seen = np.asarray(cohort.signals)[patient[:, None], steps]
    level = np.asarray(cohort.level)[patient[:, None], steps]
    rows = (memory, team, np.nan_to_num(seen), level, recovery)
    level, held = in_groups(_walk_all, rows, world, size=batch_size(len(patient)))
    return np.asarray(level, float), np.asarray(held, float)


def _walk_all(memory, team, seen, level, recovery, world: World):
    return jax.vmap(_walk_hour, (0, 0, 0, 0, 0, None))(memory, team, seen, level, recovery, world)


def _walk_hour(memory: Memory, team: Clinician, seen, level, recovery, world: World):
    """Follow the memory through an hour as recorded; chances of the level after it."""

    def tick(memory, now):
        observation, level, later = now
        memory = look(_at(memory, level), observation, world.dt)
        moves = raised(level, RESCUE_SIZE[team.style], team.style) != level
        changed = jnp.where(later == level, memory.unchanged, 0.0)
        chance = jnp.where(moves, rescue_chance(memory, team, world), 0.0)
        return eqx.tree_at(lambda m: (m.level, m.unchanged), memory, (later, changed)), chance

    memory, chances = jax.lax.scan(tick, memory, (seen[:-1], level[:-1], level[1:]))
    memory = look(_at(memory, level[-1]), seen[-1], world.dt)

    def given(noise):
        return level_chances(memory, team, seen[-1], recovery + READING_SD * noise, world)

    shares = jnp.asarray(SHARES / SHARES.sum(), jnp.float32)
    return shares @ jax.vmap(given)(jnp.asarray(NODES, jnp.float32)), jnp.prod(1.0 - chances)


def _at(memory: Memory, level: Int[Array, ""]) -> Memory:
    return eqx.tree_at(lambda m: m.level, memory, level)


def level_chances(
    memory: Memory, team: Clinician, observation: Float[Array, " 12"], reading: Scalar, world: World
) -> Chances:
    """Chances of P2..P9 at the top of an hour; `memory` holds the observation already."""

    def after_round(frightened: bool) -> Chances:
        chances = _certain(memory.level)
        feeling = jnp.asarray(frightened)
        for line in hourly_round(memory, team, observation, reading, feeling, world):
            share = line.applies * jnp.clip(line.chance, 0.0, 1.0)
            chances = (1 - share) * chances + share * jnp.mean(jax.vmap(_certain)(line.goals), 0)
        return chances

    # a uniform number times insight exceeds the courage that the reading gives
    insight = jnp.maximum(world.population.insight, 1e-6)
    fear = jnp.clip(1 - courage(reading) / insight, 0.0, 1.0)
    chances = (1 - fear) * after_round(False) + fear * after_round(True)
    rescued = rescue_chance(memory, team, world)
    rescue = raised(memory.level, RESCUE_SIZE[team.style], team.style)
    return (1 - rescued) * chances + rescued * _certain(rescue)


def _certain(level: Int[Array, ""]) -> Chances:
    return (jnp.arange(len(LEVELS)) == jnp.clip(level, LOWEST, HIGHEST) - LOWEST) * 1.0
