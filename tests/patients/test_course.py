"""The slow hours: a cliff under weak hearts, none under recovered ones; rates for any tick."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.patients.bedside import Patient, admit, play_hour
from stepdown.patients.course import LOOK_LUCK, observe
from stepdown.patients.population import World, draw_luck, preset
from stepdown.patients.pump import load_profile
from stepdown.signals import DBP, MAP, PULSATILITY, SBP

NO_DRUGS = {"pressor_effect": jnp.asarray(0.0), "inotrope_effect": jnp.asarray(0.0)}
WORLD = World(dataclasses.replace(preset("guarded"), **NO_DRUGS), load_profile("cp"))


@eqx.filter_jit
def pressure_after(recovery, level, patients=200, hours=5):
    """True MAP of many patients, held at a recovery and a level for some hours."""

    def one(key):
        k_admit, k_ticks = jr.split(key)
        patient = admit(WORLD, key=k_admit)
        traits = eqx.tree_at(lambda t: t.recovery_rate, patient.traits, jnp.zeros(()))
        traits = eqx.tree_at(lambda t: t.relapse_rate, traits, jnp.zeros(()))
        course = eqx.tree_at(lambda c: c.recovery, patient.course, recovery)
        patient = Patient(traits, course, patient.clinician, patient.memory)

        def hour(patient, keys):
            patient, _ = play_hour(patient, level, WORLD, keys=keys)
            kept = eqx.tree_at(lambda c: c.recovery, patient.course, recovery)
            return Patient(patient.traits, kept, patient.clinician, patient.memory), None

        patient, _ = jax.lax.scan(hour, patient, jr.split(k_ticks, (hours, 6)))
        return patient.course.beat.map

    return jax.vmap(one)(jr.split(jr.key(1), patients))


def test_a_weak_heart_falls_off_a_cliff_without_support():
    supported = pressure_after(jnp.asarray(0.15), jnp.asarray(9))
    alone = pressure_after(jnp.asarray(0.15), jnp.asarray(2))
    assert float(jnp.mean(supported - alone)) >= 10
    assert float(jnp.mean(alone < 60)) >= 0.70


def test_a_recovered_heart_stands_on_its_own():
    supported = pressure_after(jnp.asarray(0.9), jnp.asarray(9))
    alone = pressure_after(jnp.asarray(0.9), jnp.asarray(2))
    assert 0 < float(jnp.mean(supported - alone)) <= 10


def test_the_console_keeps_pressures_in_order():
    def look(key):
        k_admit, k_look = jr.split(key)
        patient = admit(WORLD, key=k_admit)
        (luck,) = draw_luck(LOOK_LUCK, key=k_look)
        return observe(patient.course, patient.traits, jnp.asarray(6), WORLD, luck)

    seen = jax.jit(jax.vmap(look))(jr.split(jr.key(2), 200))
    assert bool(jnp.all(seen[:, SBP] > seen[:, MAP]))
    assert bool(jnp.all(seen[:, MAP] > seen[:, DBP]))
    assert np.allclose(seen[:, PULSATILITY], seen[:, SBP] - seen[:, DBP], atol=1e-3)


def test_two_short_ticks_wander_as_far_as_one_long_one():
    """The sd of the slow wandering after an hour does not depend on the tick."""

    def after_an_hour(dt):
        world = World(WORLD.population, WORLD.profile, dt)
        ticks = round(1 / dt)

        def one(key):
            k_admit, k_ticks = jr.split(key)
            patient = admit(world, key=k_admit)
            still = dataclasses.replace(patient.course, rate_wander=jnp.zeros(()))
            patient = Patient(patient.traits, still, patient.clinician, patient.memory)
            patient, _ = play_hour(patient, jnp.asarray(6), world, keys=jr.split(k_ticks, ticks))
            return patient.course.rate_wander

        return float(np.std(eqx.filter_jit(jax.vmap(one))(jr.split(jr.key(3), 400))))

    assert after_an_hour(1 / 12) == pytest.approx(after_an_hour(1 / 6), rel=0.15)


@eqx.filter_jit
def hour_at_nine(patient, world, keys):
    return play_hour(patient, jnp.asarray(9), world, keys=keys)


def test_the_dead_stay_dead_and_still():
    patient = eqx.filter_jit(admit)(WORLD, key=jr.key(4))
    dead = eqx.tree_at(lambda c: c.alive, patient.course, jnp.zeros(()))
    patient = Patient(patient.traits, dead, patient.clinician, patient.memory)
    after, _ = hour_at_nine(patient, WORLD, jr.split(jr.key(5), 6))
    same = jax.tree.map(lambda a, b: bool(a == b), after.course, patient.course)
    assert all(jax.tree.leaves(same))
