"""One bedside: a patient, the pump, and whoever sets its level.

`tick` lets the patient's own team treat; `play_hour` holds a level that somebody else chose.
Keys belong to the patient's tick, not to the treatment, so that the same patient meets the
same fate under every policy as far as the level allows.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.patients.clinicians import (
    DECIDE_LUCK,
    READING_SD,
    TEAM_LUCK,
    Clinician,
    Memory,
    decide,
    draw_clinician,
    first_memory,
)
from stepdown.patients.course import (
    LIVE_LUCK,
    LOOK_LUCK,
    START_LUCK,
    Course,
    live,
    observe,
    start_course,
)
from stepdown.patients.population import TRAITS_LUCK, Traits, World, draw_luck, draw_traits


class Patient(eqx.Module):
    """One patient with their team; everything needed to go on from here."""

    traits: Traits
    course: Course
    clinician: Clinician
    memory: Memory


def admit(world: World, *, key: PRNGKeyArray) -> Patient:
    """Draw a patient and a team, and start support."""
    for_traits, for_team, for_start, for_look = draw_luck(
        TRAITS_LUCK, TEAM_LUCK, START_LUCK, LOOK_LUCK, key=key
    )
    traits = draw_traits(world.population, for_traits)
    clinician = draw_clinician(world.population, for_team)
    level = clinician.first_level
    course = start_course(traits, level, world, for_start)
    seen = observe(course, traits, level, world, for_look)
    return Patient(traits, course, clinician, first_memory(clinician, seen))


def tick(
    patient: Patient, world: World, *, key: PRNGKeyArray
) -> tuple[Patient, tuple[Float[Array, " signals"], Int[Array, ""]]]:
    """One tick under the level in force; then the patient's team looks and decides."""
    level = patient.memory.level
    course, signals, (for_reading, for_team) = _live_and_look(patient, level, world, key)
    reading = course.recovery + READING_SD * for_reading.normal[0]  # as by echo
    memory = decide(patient.memory, patient.clinician, signals, reading, world, for_team)
    return Patient(patient.traits, course, patient.clinician, memory), (signals, level)


def play_hour(
    patient: Patient, level: Int[Array, ""], world: World, *, keys: Key[Array, " steps"]
) -> tuple[Patient, Float[Array, "steps columns"]]:
    """One hour under a given level, a key per tick; the team only watches.

    Gives the patient and the hour as a state.
    """

    def body(course, key):
        now = Patient(patient.traits, course, patient.clinician, patient.memory)
        return _live_and_look(now, level, world, key)[:2]

    course, signals = jax.lax.scan(body, patient.course, keys)
    memory = eqx.tree_at(lambda m: m.level, patient.memory, level)
    return Patient(patient.traits, course, patient.clinician, memory), to_state(signals, level)


def to_state(
    signals: Float[Array, "steps signals"], level: Int[Array, ""]
) -> Float[Array, "steps columns"]:
    """An hour of samples, each followed by the level in force."""
    in_force = jnp.full((len(signals), 1), level, signals.dtype)
    return jnp.concatenate([signals, in_force], axis=1)


def _live_and_look(patient, level, world, key):
    """The tick itself; the luck that it leaves over is the team's."""
    for_life, for_look, *for_team = draw_luck(LIVE_LUCK, LOOK_LUCK, (0, 1), DECIDE_LUCK, key=key)
    course = live(patient.course, patient.traits, level, world, for_life)
    return course, observe(course, patient.traits, level, world, for_look), for_team


def tick_keys(key: PRNGKeyArray, first: Int[Array, ""], count: int) -> Key[Array, " count"]:
    """The keys of a patient's ticks from `first` on, whoever treats."""
    return jax.vmap(lambda i: jr.fold_in(key, i))(first + jnp.arange(count))
