"""Simulated patients: one bedside, and a cohort of them as their consoles recorded it.

At a bedside are a patient, the pump, and whoever sets its level. `tick` lets the patient's own team
treat; `play_hour` holds a level that somebody else chose. Keys belong to the patient's tick, not to
the treatment, so that the same patient meets the same fate under every policy as far as the level
allows.

Patients of a cohort run in groups of fixed size and hours in chunks of fixed length, so there is
one compiled program for any cohort; stays that have ended leave the groups, so the cost is that of
the hours really recorded. A patient's fate depends on the seed and their number alone.
"""

import dataclasses
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from stepdown.handover import Cohort
from stepdown.patients.clinicians import (
    READING_SD,
    TEAM_LUCK,
    Clinician,
    Memory,
    decide,
    decide_luck,
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
from stepdown.patients.movement import STIR_LUCK
from stepdown.patients.population import (
    TRAITS_LUCK,
    PresetName,
    Traits,
    Version,
    World,
    draw_luck,
    draw_traits,
    preset,
)
from stepdown.patients.pump import load_profile

GROUP = 256  # patients in one compiled call
CHUNK = 6  # hours in one compiled call
LONGEST = 120.0  # h; a longer stay is cut
DEAD = 2  # outcome of a stay


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
    return Patient(traits, course, clinician, first_memory(clinician, seen, world.population))


def tick(
    patient: Patient, world: World, *, key: PRNGKeyArray
) -> tuple[Patient, tuple[Float[Array, " signals"], Int[Array, ""]]]:
    """One tick under the level in force; then the patient's team looks and decides."""
    level = patient.memory.level
    course, signals, (for_reading, for_team) = _live_and_look(patient, level, world, key)
    reading = course.recovery + READING_SD * for_reading.normal[0]  # as by echo
    memory = decide(patient.memory, patient.clinician, signals, reading, world, for_team)
    return dataclasses.replace(patient, course=course, memory=memory), (signals, level)


def play_hour(
    patient: Patient, level: Int[Array, ""], world: World, *, keys: Key[Array, " steps"]
) -> tuple[Patient, Float[Array, "steps columns"]]:
    """One hour under a given level, a key per tick; the team only watches.

    Gives the patient and the hour as a state.
    """

    def body(course, key):
        now = dataclasses.replace(patient, course=course)
        return _live_and_look(now, level, world, key)[:2]

    course, signals = jax.lax.scan(body, patient.course, keys)
    goal = None if patient.memory.goal is None else level
    memory = dataclasses.replace(patient.memory, level=level, goal=goal)
    return dataclasses.replace(patient, course=course, memory=memory), to_state(signals, level)


def to_state(
    signals: Float[Array, "steps signals"], level: Int[Array, ""]
) -> Float[Array, "steps columns"]:
    """An hour of samples, each followed by the level in force."""
    in_force = jnp.full((len(signals), 1), level, signals.dtype)
    return jnp.concatenate([signals, in_force], axis=1)


def _live_and_look(patient, level, world, key):
    """The tick itself; the luck that it leaves over is the team's."""
    population, for_stir = world.population, None
    sizes = (LIVE_LUCK, LOOK_LUCK, (0, 1), decide_luck(population))
    if population.movement is None:
        for_life, for_look, *for_team = draw_luck(*sizes, key=key)
    else:
        for_life, for_look, *for_team, for_stir = draw_luck(*sizes, STIR_LUCK, key=key)
    course = live(patient.course, patient.traits, level, world, for_life, for_stir)
    return course, observe(course, patient.traits, level, world, for_look), for_team


def tick_keys(key: PRNGKeyArray, first: Int[Array, ""], count: int) -> Key[Array, " count"]:
    """The keys of a patient's ticks from `first` on, whoever treats."""
    return jax.vmap(lambda i: jr.fold_in(key, i))(first + jnp.arange(count))


# ── a cohort ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class CohortConfig:
    """A simulated cohort.

    >>> config = sd.CohortConfig(patients=40, preset="guarded", hours=30.0)
    """

    patients: int = 379
    preset: PresetName = "guarded"
    profile: str = "cp"
    hours: float | None = None  # on support unless the patient dies; None: until explant too
    minutes: float = 10.0  # between two samples
    version: Version = 2  # of the patients; 1: as they were before they moved like real ones

    def __post_init__(self):
        if self.patients < 1:
            raise ValueError(f"expected at least 1 patient, got {self.patients}.")
        if self.hours is not None and not 1 <= self.hours <= LONGEST:
            raise ValueError(f"expected 1 to {LONGEST:.0f} hours, got {self.hours:g}.")
        if self.version not in get_args(Version):
            raise ValueError(f"expected version 1 or 2 of the patients, got {self.version}.")
        if self.minutes <= 0 or round(60 / self.minutes) * self.minutes != 60:
            raise ValueError(
                f"expected a sampling interval that divides the hour, got {self.minutes:g} min."
            )


class Latents(eqx.Module):
    """The true state behind a cohort, hour by hour: for judging, never for fitting."""

    patients: Patient  # leaves (patients, ...), as admitted
    course: Course  # leaves (patients, hours), at the start of each hour
    memory: Memory
    keys: Key[Array, " patients"]
    outcome: Int[Array, " patients"]  # 0 transferred or still on support, 1 explanted, 2 dead


def world_of(config: CohortConfig) -> World:
    """What the patients of this config share.

    >>> world = sd.world_of(config)
    """
    population = preset(config.preset, config.version)
    return World(population, load_profile(config.profile), config.minutes / 60)


def simulate_cohort(
    config: CohortConfig,
    *,
    key: PRNGKeyArray,
    world: World | None = None,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Cohort, Latents]:
    """A cohort as its console recorded it, and the truth behind it.

    >>> cohort, truth = sd.simulate_cohort(config, key=jr.key(7))
    >>> cohort.signals.shape  # patients, samples of ten minutes, signals
    (40, 180, 12)
    """
    world = world_of(config) if world is None else world
    if config.version > 1:  # so that no two presets share a patient
        key = jr.fold_in(key, zlib.crc32(config.preset.encode()))
    keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(config.patients))
    admitted = in_groups(_admit, (keys,), world)
    planned = _planned_ticks(admitted, config, world)
    size = CHUNK * round(1 / world.dt)

    now, active, chunks = admitted, np.arange(config.patients), []
    length = np.zeros(config.patients, int)
    outcome = np.zeros(config.patients, int)
    for first in range(0, int(planned.max()), size):
        rows, chunk = in_groups(
            _treat, (_rows(now, active), keys[active]), world, jnp.asarray(first)
        )
        now = _put(now, active, rows)
        chunks.append((active, chunk))
        stop, fate = _stops(chunk, explants=config.hours is None)
        left = planned[active] - first
        length[active] = first + np.minimum(np.minimum(stop, left), size)
        outcome[active] = np.where(stop <= np.minimum(left, size), fate, 0)
        active = active[np.minimum(stop, left) > size]
        watch(min((first + size) / planned.max(), 1.0))
        if len(active) == 0:
            break
    whole = _lay_out(chunks, config.patients)
    latents = Latents(admitted, whole.course, whole.memory, keys, jnp.asarray(outcome))
    return _make_cohort(whole, length, outcome == DEAD, config), latents


def _planned_ticks(admitted: Patient, config: CohortConfig, world: World):
    """When each stay ends if neither explant nor death ends it sooner."""
    if config.hours is not None:
        hours = np.full(config.patients, float(config.hours))
    else:
        hours = np.clip(np.asarray(admitted.traits.stay_hours), 2.0, LONGEST)
    return np.floor(hours / world.dt + 1e-6).astype(int)


def _admit(keys, world: World) -> Patient:
    return jax.vmap(lambda key: admit(world, key=key))(keys)


class _Chunk(eqx.Module):
    """Some hours of some patients; leaves (patients, hours, ...)."""

    signals: Float[Array, "*n ticks signals"]
    level: Int[Array, "*n ticks"]
    ended: Bool[Array, "*n ticks 2"]  # by explant, by death
    course: Course  # at the start of each hour
    memory: Memory


def _treat(patients: Patient, keys, world: World, first):
    """A chunk of hours for a group of patients."""
    per_hour = round(1 / world.dt)

    def one(patient, key):
        def hour(patient, keys):
            start = patient
            patient, (signals, level, ended) = jax.lax.scan(
                lambda p, k: _recorded(p, world, k), patient, keys
            )
            return patient, _Chunk(signals, level, ended, start.course, start.memory)

        all_keys = tick_keys(key, first, CHUNK * per_hour)
        return jax.lax.scan(hour, patient, all_keys.reshape(CHUNK, per_hour))

    return jax.vmap(one)(patients, keys)


def _recorded(patient, world, key):
    """One tick, and whether it ended the stay."""
    patient, (signals, level) = tick(patient, world, key=key)
    ended = jnp.stack([patient.memory.explanted, patient.course.alive <= 0])
    return patient, (signals, level, ended)


def in_groups(
    function: Callable,
    rows: PyTree,
    *shared,
    size: int = GROUP,
    key: PRNGKeyArray | None = None,
) -> PyTree:
    """Call a function of `size` rows over any number of rows; results on the host.

    The last group is filled up with copies of the last row, so one program serves all. With a key
    every group is given its own, as the last argument.
    """
    count = len(jax.tree.leaves(rows)[0])
    parts = []
    for number, start in enumerate(range(0, count, size)):
        index = np.minimum(np.arange(start, start + size), count - 1)
        own = shared if key is None else (*shared, jr.fold_in(key, number))
        part = jax.tree.map(np.asarray, _call(function, _rows(rows, index), own))
        parts.append(_rows(part, slice(0, count - start)))
    return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)


def batch_size(rows: int) -> int:
    """Rows of one compiled call, out of two sizes, so that there are two programs at most."""
    return 256 if rows <= 256 else 4096


@eqx.filter_jit
def _call(function, rows, shared):
    return function(*rows, *shared)


def _rows(tree, index):
    return jax.tree.map(lambda x: x[index], tree)


def _put(tree, index, rows):
    def put(x, row):
        x = np.array(x)
        x[index] = row
        return x

    return jax.tree.map(put, tree, rows)


def _stops(chunk: _Chunk, explants: bool):
    """Tick of the chunk (from 1) with which each stay ends, or one beyond it; and how."""
    flags = chunk.ended.reshape(len(chunk.ended), -1, 2) & np.array([explants, True])
    ticks = np.where(flags.any(1), flags.argmax(1), flags.shape[1]) + 1  # of explant, of death
    return ticks.min(1), np.where(ticks[:, 1] <= ticks[:, 0], DEAD, 1)


def _lay_out(chunks, patients: int) -> _Chunk:
    """All chunks side by side; 0 where a stay had ended."""

    def fill(*parts):
        out = np.zeros((patients, len(parts) * CHUNK, *parts[0].shape[2:]), parts[0].dtype)
        for i, ((active, _), part) in enumerate(zip(chunks, parts, strict=True)):
            out[active, i * CHUNK : (i + 1) * CHUNK] = part
        return out

    return jax.tree.map(fill, *(chunk for _, chunk in chunks))


def _make_cohort(whole: _Chunk, length, died, config: CohortConfig) -> Cohort:
    count, width = config.patients, len(str(config.patients))
    seen = np.arange(length.max())[None] < length[:, None]
    signals = whole.signals.reshape(count, -1, whole.signals.shape[-1])[:, : seen.shape[1]]
    level = whole.level.reshape(count, -1)[:, : seen.shape[1]]
    return Cohort(
        signals=jnp.asarray(np.where(seen[..., None], signals, np.nan)),
        level=jnp.asarray(np.where(seen, level, 0)),
        seen=jnp.asarray(seen),
        patient=tuple(f"p{i + 1:0{width}d}" for i in range(count)),
        minutes=config.minutes,
        died=jnp.asarray(died),
    )
