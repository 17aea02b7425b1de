"""The slow hours: a cliff under weak hearts, none under recovered ones; rates for any tick."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.patients.cohort import Patient, admit, play_hour
from stepdown.patients.course import LOOK_LUCK, observe
from stepdown.patients.population import World, draw_luck, preset
from stepdown.patients.pump import load_profile
from stepdown.signals import DBP, MAP, PULSATILITY, SBP

NO_DRUGS = {"pressor_effect": jnp.asarray(0.0), "inotrope_effect": jnp.asarray(0.0)}
WORLD = World(dataclasses.replace(preset("guarded"), **NO_DRUGS), load_profile("cp"))
COUNT = 200  # patients everywhere, so that programs are shared
KEYS = jax.vmap(jr.split)(jr.split(jr.key(1), COUNT))  # of each: to admit, to live


@pytest.fixture(scope="module")
def patients() -> Patient:
    return eqx.filter_jit(jax.vmap(lambda key: admit(WORLD, key=key)))(KEYS[:, 0])


def play_all(patients: Patient, level: int, world: World, keys) -> Patient:
    """One hour of all patients, a row of keys each."""
    return _play_all(patients, jnp.asarray(level, jnp.int32), world, keys)


@eqx.filter_jit
def _play_all(patients, level, world, keys):
    return jax.vmap(lambda one, own: play_hour(one, level, world, keys=own)[0])(patients, keys)


def put(patients: Patient, where, value: float) -> Patient:
    """The patients with another value, the same for all; typed, so that programs are shared."""
    return eqx.tree_at(where, patients, jnp.full(COUNT, value, jnp.float32))


def pressure_after(patients: Patient, recovery: float, level: int, hours: int = 5) -> np.ndarray:
    """True MAP of many patients, held at a recovery and a level for some hours."""
    patients = put(patients, lambda p: p.traits.recovery_rate, 0.0)
    patients = put(patients, lambda p: p.traits.relapse_rate, 0.0)
    keys = jax.vmap(lambda key: jr.split(key, (hours, 6)))(KEYS[:, 1])
    for hour in range(hours):
        patients = put(patients, lambda p: p.course.recovery, recovery)
        patients = play_all(patients, level, WORLD, keys[:, hour])
    return np.asarray(patients.course.beat.map)


def test_a_weak_heart_falls_off_a_cliff_without_support(patients):
    supported, alone = (pressure_after(patients, 0.15, level) for level in (9, 2))
    assert np.mean(supported - alone) >= 10
    assert np.mean(alone < 60) >= 0.70


def test_a_recovered_heart_stands_on_its_own(patients):
    supported, alone = (pressure_after(patients, 0.9, level) for level in (9, 2))
    assert 0 < np.mean(supported - alone) <= 10


def test_the_console_keeps_pressures_in_order(patients):
    def look(patient, key):
        (luck,) = draw_luck(LOOK_LUCK, key=key)
        return observe(patient.course, patient.traits, jnp.asarray(6), WORLD, luck)

    seen = eqx.filter_jit(jax.vmap(look))(patients, jr.split(jr.key(2), COUNT))
    assert bool(jnp.all(seen[:, SBP] > seen[:, MAP]))
    assert bool(jnp.all(seen[:, MAP] > seen[:, DBP]))
    assert np.allclose(seen[:, PULSATILITY], seen[:, SBP] - seen[:, DBP], atol=1e-3)


def test_two_short_ticks_wander_as_far_as_one_long_one(patients):
    """The sd of the slow wandering after an hour does not depend on the tick."""

    def after_an_hour(ticks):
        world = World(WORLD.population, WORLD.profile, 1 / ticks)
        still = put(patients, lambda p: p.course.rate_wander, 0.0)
        runs = [
            play_all(still, 6, world, keys).course.rate_wander
            for keys in jr.split(jr.key(3), (4, COUNT, ticks))
        ]
        return float(np.std(np.concatenate(runs)))

    assert after_an_hour(12) == pytest.approx(after_an_hour(6), rel=0.15)


def test_a_level_that_others_chose_is_the_teams_level_from_then_on(patients):
    after = play_all(patients, 9, WORLD, jr.split(jr.key(4), (COUNT, 6)))
    assert (patients.memory.level != 9).any()
    assert (after.memory.level == 9).all()


def test_the_dead_stay_dead_and_still(patients):
    dead = put(patients, lambda p: p.course.alive, 0.0)
    after = play_all(dead, 9, WORLD, jr.split(jr.key(5), (COUNT, 6)))
    same = jax.tree.map(np.array_equal, after.course, dead.course)
    assert all(jax.tree.leaves(same))
