"""How teams set levels: four styles with thresholds of their own, and a memory.

A clinician sees the noisy observations of the console and nothing else; only where the
population grants `insight` do they also see a rough reading of recovery, as by echo or
lactate, that no record holds. Rescue can come at any tick; routine decisions are hourly.
Rules say how likely each change is; `decide` throws for it.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from stepdown.patients.population import Luck, Population, World, pick
from stepdown.patients.pump import pump_flow
from stepdown.signals import FLOW, HIGHEST, HR, LOWEST, LVEDP, MAP, PULSATILITY

TEAM_LUCK = (4, 4)  # uniforms, normals

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
PROTOCOL, ERRATIC = 0, 3  # styles

# what a team calls ready, in the mean over teams: mmHg, mmHg, /min
MAP_READY, PULSATILITY_READY, RATE_READY = 67.0, 15.5, 112.0
MAP_LOW, MAP_SINKING = 60.0, 64.0  # mmHg below which support is raised, at once and at the round
LEAPS = 0.15  # of the steps by more than one level: by three
READING_SD = 0.10  # of a reading of recovery
TEST_LEVEL = 3  # of a turn-down test


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
    goal: Int[Array, ""] | None = None  # of version 2: the level that is on its way


def draw_clinician(population: Population, luck: Luck) -> Clinician:
    """A team out of the mix of styles."""
    p, u, z = population, luck.uniform, luck.normal
    pulse_ready = PULSATILITY_READY if p.movement is None else p.movement.pulse_ready
    shares = START_SHARES * jnp.exp(p.start_high * (STARTS - 7.5))
    return Clinician(
        style=pick(u[0], jnp.arange(4), SHARES),
        map_ready=MAP_READY + p.caution + 4.0 * z[0],
        pulsatility_ready=pulse_ready + 5.0 * z[1],
        rate_ready=RATE_READY + 8.0 * z[2],
        floor=pick(u[1], FLOORS, FLOOR_SHARES),
        clock=24.0 * u[2],
        explant_hours=5.0 + 0.5 * z[3],
        first_level=pick(u[3], STARTS, shares / shares.sum()),
    )


def first_memory(
    clinician: Clinician, observation: Float[Array, " signals"], population: Population
) -> Memory:
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
        goal=None if population.movement is None else clinician.first_level,
    )


def decide(
    memory: Memory,
    clinician: Clinician,
    observation: Float[Array, " signals"],
    reading: Float[Array, ""],
    world: World,
    luck: Luck,
) -> Memory:
    """Look at the console and set the level of the coming tick.

    Rounds are made on the hour; in version 2 once an hour on average, at any tick at which no
    change is on its way, and what a round decides is reached step by step.
    """
    c, dt, u = clinician, world.dt, luck.uniform
    m = look(memory, observation, dt)
    if m.goal is None:
        asked = jnp.floor(m.hours + dt / 2) > jnp.floor(m.hours - dt / 2)
    else:
        asked = (u[12] < dt) & (m.goal == m.level)
    frightened = world.population.insight * u[7] > courage(reading)
    goal, tested = _follow(m, hourly_round(m, c, observation, reading, frightened, world), u)
    goal = jnp.where(asked, goal, m.level if m.goal is None else m.goal)
    rescued = u[9] < rescue_chance(m, c, world)
    goal = jnp.where(rescued, raised(m.level, RESCUE_SIZE[c.style], c.style), goal)
    goal = jnp.clip(goal, LOWEST, HIGHEST)
    level = goal if m.goal is None else _stepped(m.level, goal, asked | rescued, world, u[13:])

    at_floor = (m.level <= c.floor) & (m.stable >= c.explant_hours)
    by_day = jnp.mod(c.clock + m.hours, 24.0) >= 7.0
    testing = asked & tested & ~rescued
    return dataclasses.replace(
        m,
        level=level,
        goal=None if m.goal is None else goal,
        unchanged=jnp.where(level == m.level, m.unchanged, 0.0),
        test_from=jnp.where(testing, m.level, jnp.where(asked, 0, m.test_from)),
        explanted=m.explanted | (asked & at_floor & by_day & (u[10] < 0.12)),
    )


def decide_luck(population: Population) -> tuple[int, int]:
    """How many uniforms and normals a decision takes."""
    return (12, 0) if population.movement is None else (15, 0)


def _stepped(level, goal, at_once, world: World, u: Float[Array, " 2"]):
    """On the way to a goal by one level, now and then by more; the first step comes at once."""
    m = world.population.movement
    assert m is not None
    goes = at_once | (u[0] < 1 - jnp.exp(-m.step_pace * world.dt))
    size = jnp.where(u[1] < m.strides, jnp.where(u[1] < LEAPS * m.strides, 3, 2), 1)
    return jnp.where(goes, level + jnp.clip(goal - level, -size, size), level)


def look(
    memory: Memory, observation: Float[Array, " signals"], dt: Float[Array, ""] | float
) -> Memory:
    """Fold one observation into the running picture."""
    m, fast, slow = memory, 1 - jnp.exp(-dt / 0.25), 1 - jnp.exp(-dt / 0.6)
    map_hour = m.map_hour + slow * (observation[MAP] - m.map_hour)
    pulsatility = m.pulsatility_hour + slow * (observation[PULSATILITY] - m.pulsatility_hour)
    good = (map_hour > 65) & (pulsatility > 15)
    return dataclasses.replace(
        m,
        hours=m.hours + dt,
        unchanged=m.unchanged + dt,
        map_now=m.map_now + fast * (observation[MAP] - m.map_now),
        map_hour=map_hour,
        pulsatility_hour=pulsatility,
        rate_hour=m.rate_hour + slow * (observation[HR] - m.rate_hour),
        stable=jnp.where(good, m.stable + dt, 0.0),
    )


def rescue_chance(memory: Memory, clinician: Clinician, world: World) -> Float[Array, ""]:
    """That a low pressure is answered at this tick."""
    low = (memory.map_now < MAP_LOW) & (memory.unchanged >= 0.3)
    m = world.population.movement
    alert = 4.0 if m is None else m.alert  # a sinking pressure at low support is acted on
    alert = jnp.where(memory.level <= 4, alert, 1.0)
    rate = world.population.rescue * RESCUE_RATE[clinician.style] * alert
    return jnp.where(low, 1 - jnp.exp(-rate * world.dt), 0.0)


def raised(
    level: Int[Array, ""], by: Int[Array, ""] | int, style: Int[Array, ""]
) -> Int[Array, ""]:
    """Up by some levels, within the team's ceiling; never down."""
    return jnp.maximum(level, jnp.minimum(level + by, CEILING[style]))


def courage(reading: Float[Array, ""]) -> Float[Array, ""]:
    """How much fear a reading of recovery allays; fear is uniform up to the team's insight."""
    return 2.5 * reading + 0.25


class Line(NamedTuple):
    """A line of the hourly round: whether it applies, how often it is followed, and where to."""

    applies: Bool[Array, ""]
    chance: Float[Array, ""] | float  # that it is followed where it applies
    goals: Int[Array, " ways"]  # levels, all alike


def hourly_round(
    memory: Memory,
    clinician: Clinician,
    observation: Float[Array, " signals"],
    reading: Float[Array, ""],
    frightened: Bool[Array, ""],
    world: World,
) -> tuple[Line, ...]:
    """The lines of a round, later ones outranking earlier ones; `memory` has the observation."""
    p, m, c = world.population, memory, clinician
    level, style = m.level, c.style
    night = jnp.where(jnp.mod(c.clock + m.hours, 24.0) < 7.0, 0.35, 1.0)
    trust = 1 - p.insight + 2 * p.insight * jax.nn.sigmoid((reading - 0.5) / 0.06)
    calm = (
        (m.map_hour > c.map_ready)
        & (m.pulsatility_hour > c.pulsatility_ready)
        & (m.rate_hour < c.rate_ready)
    )
    if p.movement is not None:
        calm = calm & (observation[LVEDP] < p.movement.lvedp_ready)
    rested = (m.hours > EARLIEST[style]) & (m.unchanged >= DWELL[style])
    larger = jnp.where(style == ERRATIC, jnp.array([1, 0, 0, 0, 0]), 0)  # one step in five
    down = level - (STEP_SIZE[style] + larger)
    giving_way = (m.pulsatility_hour < 21) & (m.map_hour > 69) & (style != ERRATIC)
    relaxing = (level == HIGHEST) & (m.map_hour > 64) & (m.unchanged >= 2.0)
    # the pump pulls more than the ventricle holds: flow below what this pressure explains
    starved = observation[FLOW] < 0.72 * pump_flow(world.profile, level, 0.6 * observation[MAP])
    sinking = (m.map_hour < MAP_SINKING) | frightened
    lower = (level - 1)[None]
    return (
        Line(
            jnp.ones((), bool),
            p.restlessness * RESTLESS[style],
            level + jnp.array([-2, -1, -1, 1, 1, 2]),
        ),
        Line(giving_way, p.oversupport * night, lower),
        Line(relaxing, 0.06, lower),
        Line(
            calm & rested & (level > c.floor),
            p.weaning_pace * STEP_CHANCE[style] * night * trust,
            jnp.maximum(down, c.floor),
        ),
        Line(calm & (level > 4), 0.012 * trust, _test_level(level, p)[None]),
        Line(starved, 0.4, lower),
        Line(sinking, 0.25 * p.rescue, raised(level, 1, style)[None]),
        Line(m.test_from > 0, 1.0, m.test_from[None]),
    )


def _test_level(level: Int[Array, ""], population: Population) -> Int[Array, ""]:
    """Where a turn-down test goes: straight to P3, or, in version 2, two levels down."""
    return jnp.full((), TEST_LEVEL) if population.movement is None else level - 2


TESTS = 4  # the line of a turn-down test
THROWS = (2, 3, 11, 4, 5, 6, 8, 0)  # the uniform that follows each line
WAYS = (1, 0, 0, 0, 0, 0, 0, 0)  # the uniform that chooses among its goals


def _follow(memory: Memory, lines: tuple[Line, ...], u: Float[Array, " uniforms"]):
    """Throw for every line: where the level should go, and whether that is a turn-down test."""
    followed = [
        line.applies & (u[throw] < line.chance) for line, throw in zip(lines, THROWS, strict=True)
    ]
    goal = memory.level
    for line, wanted, way in zip(lines, followed, WAYS, strict=True):
        goal = jnp.where(wanted, line.goals[(u[way] * len(line.goals)).astype(int)], goal)
    return goal, followed[TESTS] & (goal == lines[TESTS].goals[0]) & (memory.test_from == 0)
