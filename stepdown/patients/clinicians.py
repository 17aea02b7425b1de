"""How teams set levels: four styles with thresholds of their own, and a memory.

A clinician sees the noisy observations of the console and nothing else; only where the
population grants `insight` do they also see a rough reading of recovery, as by echo or
lactate, that no record holds. Rescue can come at any tick; routine decisions are hourly.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from stepdown.patients.population import Luck, Population, World, pick
from stepdown.patients.pump import pump_flow
from stepdown.signals import FLOW, HIGHEST, HR, LOWEST, MAP, PULSATILITY

TEAM_LUCK, DECIDE_LUCK = (4, 4), (12, 0)  # uniforms, normals

# style:         protocol cautious brisk erratic
SHARES = jnp.array([0.35, 0.28, 0.20, 0.17])
EARLIEST = jnp.array([12.0, 22.0, 6.0, 8.0])  # h before the first step down
DWELL = jnp.array([4.0, 8.0, 2.0, 2.0])  # h between steps
STEP_CHANCE = jnp.array([0.30, 0.18, 0.45, 0.30])  # per ready hour
STEP_SIZE = jnp.array([2, 1, 2, 2])
RESCUE_RATE = jnp.array([3.6, 4.2, 2.0, 1.5])  # 1/h while pressure is low
RESCUE_SIZE = jnp.array([2, 2, 1, 3])
CEILING = jnp.array([8, 8, 9, 9])  # a rescue goes no higher: P9 is not meant for days
RESTLESS = jnp.array([0.05, 0.04, 0.10, 0.22])  # unprompted changes per hour
STARTS = jnp.array([6, 7, 8, 9])
START_SHARES = jnp.array([0.16, 0.20, 0.26, 0.38])
FLOORS = jnp.array([2, 3, 4])
FLOOR_SHARES = jnp.array([0.40, 0.20, 0.40])


class Clinician(eqx.Module):
    """The team at one bedside."""

    style: Int[Array, ""]
    map_ready: Float[Array, ""]  # mmHg above which a step down is considered
    pulsatility_ready: Float[Array, ""]
    rate_ready: Float[Array, ""]  # /min below which
    floor: Int[Array, ""]  # lowest level before explant
    clock: Float[Array, ""]  # hour of day at the start of support
    explant_hours: Float[Array, ""]  # stable at the floor before explant
    first_level: Int[Array, ""]


class Memory(eqx.Module):
    """What the team carries from tick to tick."""

    level: Int[Array, ""]  # for the coming tick
    hours: Float[Array, ""]  # since the start of support
    unchanged: Float[Array, ""]  # h since the last change
    map_now: Float[Array, ""]  # over about 15 min
    map_hour: Float[Array, ""]  # over about an hour
    pulsatility_hour: Float[Array, ""]
    rate_hour: Float[Array, ""]
    stable: Float[Array, ""]  # h of stability in a row
    test_from: Int[Array, ""]  # level to return to after a turn-down test, else 0
    explanted: Bool[Array, ""]


def draw_clinician(population: Population, luck: Luck) -> Clinician:
    """A team out of the mix of styles."""
    p, u, z = population, luck.uniform, luck.normal
    shares = START_SHARES * jnp.exp(p.start_high * (STARTS - 7.5))
    return Clinician(
        style=pick(u[0], jnp.arange(4), SHARES),
        map_ready=67.0 + p.caution + 4.0 * z[0],
        pulsatility_ready=15.5 + 5.0 * z[1],
        rate_ready=112.0 + 8.0 * z[2],
        floor=pick(u[1], FLOORS, FLOOR_SHARES),
        clock=24.0 * u[2],
        explant_hours=5.0 + 0.5 * z[3],
        first_level=pick(u[3], STARTS, shares / shares.sum()),
    )


def first_memory(clinician: Clinician, observation: Float[Array, " 12"]) -> Memory:
    """The memory as support begins."""
    zero = jnp.zeros(())
    return Memory(
        level=clinician.first_level,
        hours=zero,
        unchanged=zero,
        map_now=observation[MAP],
        map_hour=observation[MAP],
        pulsatility_hour=observation[PULSATILITY],
        rate_hour=observation[HR],
        stable=zero,
        test_from=jnp.zeros((), int),
        explanted=jnp.zeros((), bool),
    )


def decide(
    memory: Memory,
    clinician: Clinician,
    observation: Float[Array, " 12"],
    reading: Float[Array, ""],
    world: World,
    luck: Luck,
) -> Memory:
    """Look at the console and set the level of the coming tick."""
    c, dt, u = clinician, world.dt, luck.uniform
    m = _look(memory, observation, dt)
    on_hour = jnp.floor(m.hours + dt / 2) > jnp.floor(m.hours - dt / 2)
    routine, tested = _routine(m, c, observation, reading, world, u)
    goal = jnp.where(on_hour, routine, m.level)
    low = (m.map_now < 60) & (m.unchanged >= 0.3)
    alert = jnp.where(m.level <= 4, 4.0, 1.0)  # a sinking pressure at low support is acted on
    rate = world.population.rescue * RESCUE_RATE[c.style] * alert
    rescued = low & (u[9] < 1 - jnp.exp(-rate * dt))
    goal = jnp.where(rescued, _raised(m.level, RESCUE_SIZE[c.style], c.style), goal)
    goal = jnp.clip(goal, LOWEST, HIGHEST)

    at_floor = (m.level <= c.floor) & (m.stable >= c.explant_hours)
    by_day = jnp.mod(c.clock + m.hours, 24.0) >= 7.0
    testing = on_hour & tested & ~rescued
    return eqx.tree_at(
        lambda x: (x.level, x.unchanged, x.test_from, x.explanted),
        m,
        (
            goal,
            jnp.where(goal == m.level, m.unchanged, 0.0),
            jnp.where(testing, m.level, jnp.where(on_hour, 0, m.test_from)),
            m.explanted | (on_hour & at_floor & by_day & (u[10] < 0.12)),
        ),
    )


def _raised(level, by, style):
    """Up by some levels, within the team's ceiling; never down."""
    return jnp.maximum(level, jnp.minimum(level + by, CEILING[style]))


def _routine(memory, clinician, observation, reading, world: World, u):
    """The hourly round: where the level should go, and whether that is a turn-down test."""
    p, m, c = world.population, memory, clinician
    level, style = m.level, c.style
    night = jnp.where(jnp.mod(c.clock + m.hours, 24.0) < 7.0, 0.35, 1.0)
    trust = 1 - p.insight + 2 * p.insight * jax.nn.sigmoid((reading - 0.5) / 0.06)
    calm = (
        (m.map_hour > c.map_ready)
        & (m.pulsatility_hour > c.pulsatility_ready)
        & (m.rate_hour < c.rate_ready)
    )
    rested = (m.hours > EARLIEST[style]) & (m.unchanged >= DWELL[style])
    size = STEP_SIZE[style] + jnp.where((style == 3) & (u[0] < 0.2), 1, 0)
    sideways = jnp.array([-2, -1, -1, 1, 1, 2])[(u[1] * 6).astype(int)]
    giving_way = (m.pulsatility_hour < 21) & (m.map_hour > 69) & (style != 3)
    relaxing = (level == HIGHEST) & (m.map_hour > 64) & (m.unchanged >= 2.0)
    tested = calm & (level > 4) & (u[5] < 0.012 * trust)
    # the pump pulls more than the ventricle holds: flow below what this pressure explains
    starved = observation[FLOW] < 0.72 * pump_flow(world.profile, level, 0.6 * observation[MAP])
    sinking = (m.map_hour < 64) | (p.insight * u[7] > 2.5 * reading + 0.25)

    later_lines_outrank_earlier_ones = (
        (u[2] < p.restlessness * RESTLESS[style], level + sideways),
        (giving_way & (u[3] < p.oversupport * night), level - 1),
        (relaxing & (u[11] < 0.06), level - 1),
        (
            calm
            & rested
            & (level > c.floor)
            & (u[4] < p.weaning_pace * STEP_CHANCE[style] * night * trust),
            jnp.maximum(level - size, c.floor),
        ),
        (tested, 3),
        (starved & (u[6] < 0.4), level - 1),
        (sinking & (u[8] < 0.25 * p.rescue), _raised(level, 1, style)),
        (m.test_from > 0, m.test_from),
    )
    goal = level
    for wanted, where in later_lines_outrank_earlier_ones:
        goal = jnp.where(wanted, where, goal)
    return goal, tested & (goal == 3) & (m.test_from == 0)


def _look(memory: Memory, observation: Float[Array, " 12"], dt) -> Memory:
    """Fold one observation into the running picture."""
    m, fast, slow = memory, 1 - jnp.exp(-dt / 0.25), 1 - jnp.exp(-dt / 0.6)
    map_hour = m.map_hour + slow * (observation[MAP] - m.map_hour)
    pulsatility = m.pulsatility_hour + slow * (observation[PULSATILITY] - m.pulsatility_hour)
    good = (map_hour > 65) & (pulsatility > 15)
    return Memory(
        level=m.level,
        hours=m.hours + dt,
        unchanged=m.unchanged + dt,
        map_now=m.map_now + fast * (observation[MAP] - m.map_now),
        map_hour=map_hour,
        pulsatility_hour=pulsatility,
        rate_hour=m.rate_hour + slow * (observation[HR] - m.rate_hour),
        stable=jnp.where(good, m.stable + dt, 0.0),
        test_from=m.test_from,
        explanted=m.explanted,
    )
