"""The true chances of every decision of the simulated teams, in closed form.

Only for judging estimators: no record holds a team's style, thresholds and memory. The rules are
those of `patients/clinicians.py`, each with a chance instead of a throw; a test compares the two.
Memory is kept at the top of every hour, so the hour before a decision is walked through once more.
With insight (preset hidden) teams also read the patient's recovery, averaged here over its noise.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.evaluation.behavior import Behavior
from stepdown.evaluation.decisions import Decisions, cut_with_clock
from stepdown.handover import Cohort
from stepdown.patients import clinicians as teams
from stepdown.patients.clinicians import Clinician, Memory
from stepdown.patients.cohort import Latents, batch_size, in_groups
from stepdown.patients.population import Luck, World
from stepdown.patients.pump import pump_flow
from stepdown.signals import FLOW, HIGHEST, LEVELS, LOWEST, MAP

READING_SD = 0.10  # of the team's reading of recovery
NODES, SHARES = (np.asarray(x) for x in np.polynomial.hermite_e.hermegauss(7))

Chances = Float[Array, " 8"]
Scalar = Float[Array, ""]


def true_behavior(cohort: Cohort, latents: Latents, decisions: Decisions, world: World) -> Behavior:
    """What `fit_behavior` estimates, but known; that records go on is left at 1.

    For simulated cohorts alone, whose stays have no gaps.
    """
    _, first = cut_with_clock(cohort)
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
        memory = watch(_at(memory, level), team, observation, world)
        moves = _raised(level, teams.RESCUE_SIZE[team.style], team.style) != level
        changed = jnp.where(later == level, memory.unchanged, 0.0)
        chance = jnp.where(moves, rescue_chance(memory, team, world), 0.0)
        return eqx.tree_at(lambda m: (m.level, m.unchanged), memory, (later, changed)), chance

    memory, chances = jax.lax.scan(tick, memory, (seen[:-1], level[:-1], level[1:]))
    memory = watch(_at(memory, level[-1]), team, seen[-1], world)

    def given(noise):
        return level_chances(memory, team, seen[-1], recovery + READING_SD * noise, world)

    shares = jnp.asarray(SHARES / SHARES.sum(), jnp.float32)
    return shares @ jax.vmap(given)(jnp.asarray(NODES, jnp.float32)), jnp.prod(1.0 - chances)


def _at(memory: Memory, level: Int[Array, ""]) -> Memory:
    return eqx.tree_at(lambda m: m.level, memory, level)


def watch(
    memory: Memory, team: Clinician, observation: Float[Array, " 12"], world: World
) -> Memory:
    """The memory after one more look at the console, before anybody acts."""
    # with the highest throws nobody acts, but for what the next lines undo
    still = Luck(jnp.ones(teams.DECIDE_LUCK[0]), jnp.zeros(0))
    after = teams.decide(memory, team, observation, jnp.ones(()), world, still)
    return eqx.tree_at(
        lambda m: (m.level, m.unchanged, m.test_from),
        after,
        (memory.level, memory.unchanged + world.dt, memory.test_from),
    )


def rescue_chance(memory: Memory, team: Clinician, world: World) -> Scalar:
    """That a low pressure is answered at this tick."""
    low = (memory.map_now < 60) & (memory.unchanged >= 0.3)
    alert = jnp.where(memory.level <= 4, 4.0, 1.0)
    rate = world.population.rescue * teams.RESCUE_RATE[team.style] * alert
    return jnp.where(low, 1 - jnp.exp(-rate * world.dt), 0.0)


def level_chances(
    memory: Memory, team: Clinician, observation: Float[Array, " 12"], reading: Scalar, world: World
) -> Chances:
    """Chances of P2..P9 at the top of an hour; `memory` holds the observation already."""
    level, style = memory.level, team.style
    chances = _certain(level)
    for chance, where in _rounds(memory, team, observation, reading, world):
        share = jnp.clip(chance, 0.0, 1.0)
        chances = (1 - share) * chances + share * where
    rescued = rescue_chance(memory, team, world)
    raised = _raised(level, teams.RESCUE_SIZE[style], style)
    return (1 - rescued) * chances + rescued * _certain(raised)


def _rounds(memory: Memory, team: Clinician, observation, reading, world: World):
    """The lines of the hourly round: how likely each is, and where it leads; later ones outrank."""
    p, m, c, level, style = world.population, memory, team, memory.level, team.style
    night = jnp.where(jnp.mod(c.clock + m.hours, 24.0) < 7.0, 0.35, 1.0)
    trust = 1 - p.insight + 2 * p.insight * jax.nn.sigmoid((reading - 0.5) / 0.06)
    calm = (m.map_hour > c.map_ready) & (m.pulsatility_hour > c.pulsatility_ready)
    calm &= m.rate_hour < c.rate_ready
    rested = (m.hours > teams.EARLIEST[style]) & (m.unchanged >= teams.DWELL[style])
    giving_way = (m.pulsatility_hour < 21) & (m.map_hour > 69) & (style != 3)
    relaxing = (level == HIGHEST) & (m.map_hour > 64) & (m.unchanged >= 2.0)
    starved = observation[FLOW] < 0.72 * pump_flow(world.profile, level, 0.6 * observation[MAP])
    # u > 2.5 reading + 0.25 over insight, for a uniform u; without insight never
    fears = jnp.clip(1 - (2.5 * reading + 0.25) / jnp.maximum(p.insight, 1e-6), 0.0, 1.0)
    sinking = jnp.where(m.map_hour < 64, 1.0, fears)
    size = teams.STEP_SIZE[style]
    steps = [_certain(jnp.maximum(level - by, c.floor)) for by in (size, size + 1)]
    down = jnp.where(style == 3, 0.8 * steps[0] + 0.2 * steps[1], steps[0])
    pace = jnp.minimum(p.weaning_pace * teams.STEP_CHANCE[style] * night * trust, 1.0)
    sideways = sum(_certain(level + by) for by in (-2, -1, -1, 1, 1, 2)) / 6
    return (
        (p.restlessness * teams.RESTLESS[style], sideways),
        (giving_way * p.oversupport * night, _certain(level - 1)),
        (relaxing * 0.06, _certain(level - 1)),
        (calm * rested * (level > c.floor) * pace, down),
        (calm * (level > 4) * 0.012 * trust, _certain(jnp.asarray(3))),
        (starved * 0.4, _certain(level - 1)),
        (sinking * jnp.minimum(0.25 * p.rescue, 1.0), _certain(_raised(level, 1, style))),
        ((m.test_from > 0) * 1.0, _certain(m.test_from)),
    )


def _certain(level: Int[Array, ""]) -> Chances:
    return (jnp.arange(len(LEVELS)) == jnp.clip(level, LOWEST, HIGHEST) - LOWEST) * 1.0


def _raised(level, by, style):
    """Up by some levels, within the team's ceiling; never down."""
    return jnp.maximum(level, jnp.minimum(level + by, teams.CEILING[style]))
