"""The teams' rules, worked by hand: what moves them, how likely, and where to."""

import dataclasses
import math

import equinox as eqx
import jax.numpy as jnp
import pytest

from stepdown.patients.clinicians import (
    CEILING,
    Clinician,
    Line,
    Memory,
    courage,
    hourly_round,
    look,
    raised,
    rescue_chance,
)
from stepdown.patients.cohort import CohortConfig, world_of
from stepdown.signals import FLOW, HR, MAP, PULSATILITY

WORLD = world_of(CohortConfig(version=1))  # weaning pace 0.66, rescue 0.177, no insight
PROTOCOL, CAUTIOUS, BRISK, ERRATIC = range(4)
RESTLESS, GIVING_WAY, RELAXING, STEP, TEST, STARVED, SINKING, RETURN = range(8)
SEEN = jnp.zeros(12).at[jnp.array([MAP, HR, PULSATILITY, FLOW])].set(jnp.array([75, 80, 30, 5.0]))


def team(style: int = PROTOCOL, **changes) -> Clinician:
    """Support began at noon; ready above 63 mmHg and a pulse of 15, below 110 /min."""
    made = dict(
        style=style,
        map_ready=63.0,
        pulsatility_ready=15.0,
        rate_ready=110.0,
        floor=3,
        clock=12.0,
        explant_hours=5.0,
        first_level=8,
    )
    return Clinician(**{name: jnp.asarray(x) for name, x in (made | changes).items()})


def memory(**changes) -> Memory:
    """A calm day and a night on support at P6, the last eight hours unchanged."""
    made = dict(
        level=6,
        hours=24.0,
        unchanged=8.0,
        map_now=75.0,
        map_hour=75.0,
        pulsatility_hour=30.0,
        rate_hour=80.0,
        stable=6.0,
        test_from=0,
        explanted=False,
    )
    return Memory(**{name: jnp.asarray(x) for name, x in (made | changes).items()})


def lines(memory: Memory, team: Clinician, seen=SEEN, *, frightened=False, world=WORLD):
    return hourly_round(memory, team, seen, jnp.asarray(0.5), jnp.asarray(frightened), world)


def told(line: Line) -> tuple[bool, float, list[int]]:
    return bool(line.applies), float(line.chance), line.goals.tolist()


def test_pressure_is_answered_below_60_after_18_minutes_and_four_times_as_fast_at_low_support():
    def chance(**changes) -> float:
        return float(rescue_chance(memory(**changes), team(), WORLD))

    once, fast = (1 - math.exp(-0.177 * 3.6 * alert / 6) for alert in (1, 4))
    assert chance(map_now=59.9) == pytest.approx(once, rel=1e-4)
    assert chance(map_now=59.9, level=4) == pytest.approx(fast, rel=1e-4)
    assert chance(map_now=60.0) == chance(map_now=59.0, unchanged=0.29) == 0.0


def test_a_rescue_ends_at_the_ceiling_of_the_style_and_never_lowers():
    for style, ceiling in enumerate((8, 8, 9, 9)):
        assert CEILING[style] == ceiling
        assert int(raised(jnp.asarray(7), 3, jnp.asarray(style))) == ceiling
        assert int(raised(jnp.asarray(9), 1, jnp.asarray(style))) == 9
    assert int(raised(jnp.asarray(4), 2, jnp.asarray(PROTOCOL))) == 6


@pytest.mark.parametrize(
    ("style", "chance", "goals"),
    [
        (PROTOCOL, 0.66 * 0.30, [4] * 5),
        (CAUTIOUS, 0.66 * 0.18, [5] * 5),
        (BRISK, 0.66 * 0.45, [4] * 5),
        (ERRATIC, 0.66 * 0.30, [3, 4, 4, 4, 4]),  # one step in five is larger
    ],
)
def test_a_calm_and_rested_patient_is_stepped_down(style, chance, goals):
    found = told(lines(memory(), team(style))[STEP])
    assert found == (True, pytest.approx(chance), goals)
    night = lines(memory(), team(style, clock=2.0))[STEP]
    assert float(night.chance) == pytest.approx(0.35 * chance)
    assert lines(memory(level=4), team(style))[STEP].goals.min() == 3  # the team's floor
    assert not lines(memory(level=3), team(style))[STEP].applies
    for odd in (
        {"map_hour": 63.0},
        {"pulsatility_hour": 15.0},
        {"rate_hour": 110.0},
        {"unchanged": 1.9},
        {"hours": 6.0},
    ):
        assert not lines(memory(**odd), team(style))[STEP].applies


def test_what_else_a_round_may_bring():
    calm = lines(memory(), team())
    assert told(calm[RESTLESS]) == (True, pytest.approx(0.54 * 0.05), [4, 5, 5, 7, 7, 8])
    assert told(calm[TEST]) == (True, pytest.approx(0.012), [3])
    assert not any(calm[x].applies for x in (GIVING_WAY, RELAXING, STARVED, SINKING, RETURN))
    assert not lines(memory(level=4), team())[TEST].applies
    faint = memory(pulsatility_hour=20.9)
    assert told(lines(faint, team())[GIVING_WAY]) == (True, pytest.approx(0.18), [5])
    assert not lines(faint, team(ERRATIC))[GIVING_WAY].applies
    full = memory(level=9, unchanged=2.0)
    assert told(lines(full, team())[RELAXING]) == (True, 0.06, [8])
    assert not lines(memory(level=9, unchanged=1.9), team())[RELAXING].applies
    assert told(lines(memory(), team(), SEEN.at[FLOW].set(0.5))[STARVED]) == (True, 0.4, [5])
    back = lines(memory(level=3, test_from=7), team())
    assert told(back[RETURN]) == (True, 1.0, [7])


def test_a_sinking_pressure_or_fear_raises_support_by_one():
    low = lines(memory(map_hour=63.9), team())[SINKING]
    assert told(low) == (True, pytest.approx(0.25 * 0.177), [7])
    assert not lines(memory(map_hour=64.0), team())[SINKING].applies
    assert lines(memory(), team(), frightened=True)[SINKING].applies
    assert float(courage(jnp.asarray(0.3))) == 1.0  # whoever recovers by 0.3 frightens nobody


def test_insight_makes_weaning_follow_the_reading():
    """Trust is 1 at a reading of 0.5, twice that far above and nothing far below."""
    open_eyed = dataclasses.replace(
        WORLD, population=dataclasses.replace(WORLD.population, insight=jnp.asarray(1.0))
    )
    for reading, trust in ((0.5, 1.0), (1.1, 2.0), (-0.1, 0.0)):
        known = hourly_round(
            memory(), team(), SEEN, jnp.asarray(reading), jnp.asarray(False), open_eyed
        )
        assert float(known[STEP].chance) == pytest.approx(trust * 0.66 * 0.30, abs=1e-4)
        assert float(known[TEST].chance) == pytest.approx(trust * 0.012, abs=1e-5)


def test_a_look_moves_the_running_picture_and_counts_calm_hours():
    now = look(memory(), SEEN.at[MAP].set(45.0), WORLD.dt)
    quick, slow = (1 - math.exp(-(1 / 6) / fades) for fades in (0.25, 0.6))
    assert float(now.map_now) == pytest.approx(75 - 30 * quick, rel=1e-5)
    assert float(now.map_hour) == pytest.approx(75 - 30 * slow, rel=1e-5)
    assert float(now.hours) == pytest.approx(24 + 1 / 6)
    assert float(now.stable) == pytest.approx(6 + 1 / 6)
    worn = eqx.tree_at(lambda m: m.map_hour, memory(), jnp.asarray(65.0))
    assert float(look(worn, SEEN.at[MAP].set(64.0), WORLD.dt).stable) == 0.0
