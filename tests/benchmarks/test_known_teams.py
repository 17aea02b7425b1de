"""The chances in closed form are those with which the simulated teams really decide."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from benchmarks.studies.known_teams import level_chances, true_behavior
from stepdown.evaluation.decisions import make_decisions
from stepdown.patients.clinicians import Clinician, Memory, decide, decide_luck, look, rescue_chance
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.population import Luck
from stepdown.signals import FLOW, HR, LOWEST, MAP, PULSATILITY

CASES, THROWS = 96, 4000


def random_bedsides(seed: int):
    """Teams of all styles with all kinds of memories, a tick before the hour."""
    draw = np.random.default_rng(seed)

    def floats(low, high):
        return jnp.asarray(draw.uniform(low, high, CASES), jnp.float32)

    def whole(low, high):
        return jnp.asarray(draw.integers(low, high + 1, CASES), jnp.int32)

    team = dict(
        style=whole(0, 3),
        map_ready=floats(58, 70),
        pulsatility_ready=floats(8, 20),
        rate_ready=floats(90, 120),
        floor=whole(2, 4),
        clock=floats(0, 24),
        explant_hours=floats(4, 6),
        first_level=whole(6, 9),
    )
    memory = dict(
        level=whole(2, 9),
        hours=whole(4, 40) - 1 / 6,
        unchanged=whole(0, 12) * 1.0 + 0.5,
        map_now=floats(52, 75),
        map_hour=floats(56, 80),
        pulsatility_hour=floats(10, 40),
        rate_hour=floats(70, 120),
        stable=floats(0, 8),
        test_from=jnp.asarray(np.where(draw.random(CASES) < 0.1, draw.integers(5, 9, CASES), 0)),
        explanted=jnp.zeros(CASES, bool),
    )
    seen = np.full((CASES, 12), 1.0, np.float32)
    seen[:, MAP], seen[:, HR] = draw.uniform(50, 80, CASES), draw.uniform(70, 120, CASES)
    seen[:, PULSATILITY], seen[:, FLOW] = draw.uniform(8, 40, CASES), draw.uniform(0.5, 4, CASES)
    made = jax.vmap(lambda memory, team: (Memory(**memory), Clinician(**team)))(memory, team)
    return *made, jnp.asarray(seen)


@pytest.mark.parametrize("preset", ["guarded", "hidden"])
def test_level_chances_are_the_frequencies_of_many_throws(preset):
    world = world_of(CohortConfig(preset=preset, version=1))
    memory, team, seen = random_bedsides(0)
    reading = jnp.asarray(np.random.default_rng(1).uniform(0.2, 0.8, CASES), jnp.float32)
    throws = jr.uniform(jr.key(0), (THROWS, decide_luck(world.population)[0]))

    @jax.jit
    def both(memory, team, seen, reading):
        def one(throw):
            return decide(memory, team, seen, reading, world, Luck(throw, jnp.zeros(0))).level

        levels = jax.vmap(one)(throws)
        shares = jnp.mean(levels[:, None] == LOWEST + jnp.arange(8)[None], axis=0)
        looked = look(memory, seen, world.dt)
        return shares, level_chances(looked, team, seen, reading, world)

    shares, chances = jax.vmap(both)(memory, team, seen, reading)
    assert np.asarray(chances).sum(1) == pytest.approx(np.ones(CASES), abs=1e-5)
    error = np.sqrt(np.maximum(chances * (1 - chances), 1e-4) / THROWS)
    assert (np.abs(shares - chances) / error).max() < 5.0  # 768 comparisons
    assert (np.asarray(chances) > 0.01).sum() > 2 * CASES  # not merely hold


def test_rescue_inside_the_hour_has_its_own_chance():
    world = world_of(CohortConfig(version=1))
    memory, team, seen = random_bedsides(2)
    memory = eqx.tree_at(lambda m: m.hours, memory, memory.hours - 0.5)
    throws = jr.uniform(jr.key(1), (THROWS, decide_luck(world.population)[0]))

    def both(memory, team, seen):
        def one(throw):
            return decide(memory, team, seen, jnp.ones(()), world, Luck(throw, jnp.zeros(0))).level

        moved = jnp.mean(jax.vmap(one)(throws) != memory.level)
        looked = look(memory, seen, world.dt)
        full = memory.level >= jnp.array([8, 8, 9, 9])[team.style]
        return moved, jnp.where(full, 0.0, rescue_chance(looked, team, world))

    moved, chance = jax.jit(jax.vmap(both))(memory, team, seen)
    error = np.sqrt(np.maximum(chance * (1 - chance), 1e-4) / THROWS)
    assert (np.abs(moved - chance) / error).max() < 4.5
    assert (np.asarray(chance) > 0.02).sum() >= 10


def test_recorded_levels_are_as_frequent_as_their_chances_say():
    config = CohortConfig(patients=8, hours=24.0, version=1)
    cohort, latents = simulate_cohort(config, key=jr.key(0))
    decisions = make_decisions(cohort)
    known = true_behavior(cohort, latents, decisions, world_of(config))
    chance = np.exp(known.level)
    index = decisions.level - LOWEST
    recorded = chance[np.arange(len(index)), index]
    assert recorded.min() > 0.002  # nothing impossible was recorded
    assert chance.sum(1) == pytest.approx(np.ones(len(index)), abs=1e-5)
    held = chance.max(1)
    error = np.sqrt((held * (1 - held)).sum())
    assert (index == chance.argmax(1)).sum() == pytest.approx(held.sum(), abs=4 * error)
    assert known.held.min() > 0.05
    assert known.held.sum() == pytest.approx(decisions.held.sum(), abs=6)
