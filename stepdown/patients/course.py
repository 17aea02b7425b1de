"""The slow hours around the beat: recovery, ischemia, hidden drugs, volume, rhythm, noise.

`live` moves one patient by one tick (10 minutes by default) under a level; `observe` turns
the tick into what the console would report. Rates are per hour and all noise is written for
any tick length. A tick takes the same random numbers whatever happens to the patient, so two
courses with the same luck differ by their levels alone (common random numbers).
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stepdown.patients.heart import Beat, Circulation, Volumes, beat, start_volumes
from stepdown.patients.movement import Push, Stir, calm, push, stir
from stepdown.patients.population import Luck, Movement, Population, Traits, World
from stepdown.patients.pump import motor_current
from stepdown.signals import LOWEST

START_LUCK, LIVE_LUCK, LOOK_LUCK = (0, 7), (11, 14), (2, 6)  # uniforms, normals
BEATS = 10  # of a tick; from a warm start this settles MAP within 0.1-0.3 mmHg
SETTLING_BEATS = 60  # of the start: from a cold start 60 to 80 settle it

# ── the numbers of the slow hours ────────────────────────────────────────────────────────────────
# "judgment": ours, chosen so that published time scales and moments come out, not estimated from
# patients (docs/cohort.md). "textbook": the range usually given, no one source. Shares run from 0
# to 1, a `_WIDTH` is that of a logistic or softplus step, a pair `X, X_RANGE` is the least and what
# a uniform draw adds to it. What differs between patients or presets stands in `population.py`.

# as support begins (judgment: a heart in shock on moderate drugs)
START_ISCHEMIA, START_PRESSOR, START_INOTROPE = 0.2, 0.3, 0.3  # shares
START_VOLUME_SD = 60.0  # mL around the patient's own volume, and around its target

# recovery of stunned myocardium: hours to days (docs/cohort.md); its shape is judgment
LOADED_PACE = 0.45  # of recovery, as a share of the patient's rate, without any unloading
UNLOADED_GAIN = 0.75  # added to it by a fully unloaded ventricle at `UNLOADING_FLOW`
UNLOADED_LVEDP, UNLOADED_LVEDP_WIDTH = 14.0, 3.0  # mmHg
UNLOADING_FLOW, UNLOADING_FLOW_CAP = 3.0, 1.3  # L/min of the pump, and the most it may count for
RECOVERY_LIMITS = (0.02, 0.98)  # share; neither end is ever reached

# injury: hypotension and an overfilled ventricle undo recovery (judgment)
INJURIOUS_MAP, INJURIOUS_MAP_WIDTH = 61.0, 4.0  # mmHg
INJURIOUS_LVEDP, INJURIOUS_LVEDP_WIDTH = 20.0, 4.0  # mmHg
CONGESTION_WEIGHT = 0.35  # of overfilling beside hypotension
RELAPSE_INJURY_GAIN = 1.5  # relapses are up to this much more frequent under injury
RELAPSE_LOSS, RELAPSE_LOSS_RANGE = 0.12, 0.28  # share of recovery that a relapse takes
RELAPSE_HOURS = 1.5  # h, time constant of the loss
ISCHEMIA_HOURS = 0.35  # h; ischemia follows perfusion within minutes and is reversible

# heart (judgment)
USUAL_RATE, QUICKER_LIMITS = 80.0, (-0.5, 0.8)  # /min; of the rate beside it, for its force
INOTROPE_RATE_RISE = 14.0  # /min at the full dose
RATE_LIMITS = (40.0, 160.0)  # /min
RATE_WANDER_HOURS = 3.0  # h, time constant of the slow wandering
RELAXED_TAU = 0.030  # s in a recovered heart; textbook: 30 to 45 ms
WEAK_TAU_RISE, ISCHEMIC_TAU_RISE = 0.028, 0.02  # s; textbook: 50 to 80 ms in failing hearts
RV_INOTROPE_SHARE = 0.5  # of the left ventricle's gain
FIBRILLATION_ONSET_HOURS = 14.0  # h between spells of atrial fibrillation, in the prone
FIBRILLATION_HOURS = 8.0  # h, mean length of a spell

# vessels and volume (judgment)
REFLEX_HOURS = 0.2  # h, lag of the baroreflex over a tick; the reflex itself takes seconds
REFLEX_RESISTANCE_LIMITS = (0.75, 1.3)  # share of the resistance that the reflex may leave
VASOPLEGIA_RISE, VASOPLEGIA_FALL = 0.7, 3.0  # h, width of its coming and of its going
STRESSED_VOLUME_LIMITS = (550.0, 2200.0)  # mL; textbook: 1000 to 1800 in shock
VOLUME_HOURS = 5.0  # h, time constant of the return to the target
VOLUME_TARGET_SD, VOLUME_TARGET_HOURS = 70.0, 20.0  # mL, h: the target wanders over a day
BOLUS_HOURS, BOLUS_VOLUME, BOLUS_VOLUME_RANGE = 14.0, 60.0, 160.0  # h between, mL
LOSS_HOURS, LOSS_VOLUME, LOSS_VOLUME_RANGE = 40.0, 80.0, 180.0  # h between, mL

# hidden drugs, titrated toward a target (judgment)
PRESSOR_PACE = 0.25  # share of the full dose per hour, `PRESSOR_MAP_SCALE` below target
PRESSOR_MAP_SCALE = 8.0  # mmHg
PRESSOR_STEPS = (-0.5, 1.2)  # weaned more slowly than started
INOTROPE_PACE = 0.12  # share of the full dose per hour, `INOTROPE_OUTPUT_SCALE` below target
INOTROPE_OUTPUT, INOTROPE_OUTPUT_SCALE = 4.0, 1.0  # L/min
INOTROPE_STEPS = (-1.0, 1.0)

# pump position (judgment)
MIGRATION_HOURS, REPOSITION_HOURS = 90.0, 5.0  # h until the pump slips, until it is put right
MIGRATION_LOSS = 0.12  # share of the flow

# death (judgment): 1/h in profound shock; half of it at `DEADLY_MAP`, little 8 mmHg above
DEATH_RATE = 0.5
DEADLY_MAP, DEADLY_MAP_WIDTH = 42.0, 2.5  # mmHg

# what the console adds (judgment, with the published lag-1 correlations and heavy tails in view)
PRESSURE_NOISE_HOURS, PULSE_NOISE_HOURS, RATE_NOISE_HOURS = 0.5, 0.7, 0.5  # h, time constants
LV_DRIFT_HOURS = 9.0  # h, of the LV pressure estimate: most of a shift
ELASTANCE_NOISE, ELASTANCE_NOISE_HOURS = 0.07, 1.0  # share, h
# of a Student's t with 3 degrees of freedom, nearly: the floor bounds it
TAIL_SCALE, TAIL_FLOOR = 0.75, 0.1
FLUSH_SHARE, FLUSH_SHIFT = 0.01, -12.0  # of the samples, mmHg: the line was flushed meanwhile
LEAST_MAP, LEAST_DBP = 5.0, 1.0  # mmHg that a console still shows
CURRENT_NOISE, SPEED_NOISE, FLOW_NOISE = 2.0, 12.0, 0.01  # mA, rpm, L/min over ten minutes
RATE_SHOWN, TAU_SHOWN = (25.0, 220.0), (15.0, 200.0)  # /min, ms: a console's range
TAU_NOISE = 0.08  # sd of the logarithm
USUAL_HEAD, USUAL_MAP = 100.0, 74.0  # mmHg at which estimates of LV pressure and elastance hold
LEAST_SCALE = 0.3  # of an estimate of elastance
MILLISECONDS = 1000.0  # in one second


class Course(eqx.Module):
    """The latent state of one patient: never recorded, for judging only."""

    recovery: Float[Array, ""]  # 0..1
    ischemia: Float[Array, ""]  # 0..1
    pressor: Float[Array, ""]  # 0..1
    inotrope: Float[Array, ""]  # 0..1
    resistance_wander: Float[Array, ""]
    volume: Float[Array, ""]  # mL away from the patient's own
    volume_target: Float[Array, ""]
    rate_wander: Float[Array, ""]
    fibrillating: Float[Array, ""]  # 0 or 1
    migrated: Float[Array, ""]  # 0 or 1
    relapsing: Float[Array, ""]  # recovery still to be lost
    reflex: Float[Array, ""]  # mmHg below the set point, lagged
    alive: Float[Array, ""]  # 0 or 1
    hours: Float[Array, ""]  # since the start of support
    volumes: Volumes
    beat: Beat
    # what the console adds
    pressure_noise: Float[Array, ""]
    pulse_noise: Float[Array, ""]
    rate_noise: Float[Array, ""]
    lv_drift: Float[Array, ""]
    lvedp_drift: Float[Array, ""]
    elastance_noise: Float[Array, ""]
    stir: Stir | None = None  # of version 2


def start_course(traits: Traits, level: Int[Array, ""], world: World, luck: Luck) -> Course:
    """The patient as support begins, settled over `SETTLING_BEATS`."""
    population = world.population
    zero, z = jnp.zeros(()), luck.normal
    blank = Beat(*([zero] * len(Beat.__dataclass_fields__)))
    course = Course(
        recovery=traits.recovery_start,
        ischemia=zero + START_ISCHEMIA,
        pressor=zero + START_PRESSOR,
        inotrope=zero + START_INOTROPE,
        resistance_wander=population.resistance_wander * z[0],
        volume=START_VOLUME_SD * z[1],
        volume_target=START_VOLUME_SD * z[2],
        rate_wander=population.rate_wander * z[3],
        fibrillating=zero,
        migrated=zero,
        relapsing=zero,
        reflex=zero,
        alive=zero + 1.0,
        hours=zero,
        volumes=start_volumes(traits.blood_volume),
        beat=blank,
        pressure_noise=population.pressure_noise * z[4],
        pulse_noise=zero,
        rate_noise=zero,
        lv_drift=population.lv_drift * z[5],
        lvedp_drift=population.lvedp_drift * z[6],
        elastance_noise=zero,
        stir=None if population.movement is None else calm(),
    )
    circulation = circulation_of(course, traits, population)
    volumes, last = _beats(course.volumes, circulation, level, world.profile, SETTLING_BEATS)
    return dataclasses.replace(course, volumes=volumes, beat=last)


def live(
    course: Course,
    traits: Traits,
    level: Int[Array, ""],
    world: World,
    luck: Luck,
    stirred: Luck | None = None,
) -> Course:
    """One tick under a level; a dead patient stays as they are. `stirred` is version 2's luck."""
    population, before = world.population, course
    if population.movement is not None:
        assert course.stir is not None
        assert stirred is not None
        moved = stir(course.stir, population.movement, world.dt, stirred)
        before = dataclasses.replace(course, stir=moved)
    now = _slow(_noise(before, world, luck.normal[5:]), traits, world, luck)
    circulation = circulation_of(now, traits, population)
    excess = circulation.blood_volume - now.volumes.total()  # given, lost, or rounding
    volumes = dataclasses.replace(now.volumes, veins=now.volumes.veins + excess)
    volumes, last = _beats(volumes, circulation, level, world.profile, BEATS)
    now = dataclasses.replace(now, volumes=volumes, beat=last)
    return jax.tree.map(lambda new, old: jnp.where(course.alive > 0, new, old), now, course)


def _beats(volumes, circulation, level, profile, count):
    volumes, beats = jax.lax.scan(
        lambda v, _: beat(v, circulation, level, profile), volumes, None, length=count
    )
    return volumes, jax.tree.map(lambda x: x[-1], beats)


def heart_rate(course: Course, traits: Traits, population: Population) -> Float[Array, ""]:
    """Beats per minute: own rate, reflex, inotropes, rhythm, wandering."""
    rate = traits.rate + traits.reflex_rate * course.reflex
    rate += INOTROPE_RATE_RISE * course.inotrope
    rate += population.fibrillation_rise * course.fibrillating + course.rate_wander
    if (moved := _moved(course, population)) is not None:
        rate += moved[1].rate
    return jnp.clip(rate, *RATE_LIMITS)


def relaxation(course: Course) -> Float[Array, ""]:
    """LV relaxation constant in s: slower when weak or ischemic."""
    weak = RELAXED_TAU + WEAK_TAU_RISE * (1 - course.recovery)
    return weak + ISCHEMIC_TAU_RISE * course.ischemia


def circulation_of(course: Course, traits: Traits, population: Population) -> Circulation:
    """Heart and vessels as the slow state makes them at this moment."""
    p = population
    recovered = p.weakest + (1 - p.weakest) * course.recovery
    driven = 1 + p.inotrope_effect * course.inotrope
    right_driven = 1 + RV_INOTROPE_SHARE * p.inotrope_effect * course.inotrope
    contractility = recovered * driven * (1 - p.ischemic_loss * course.ischemia)
    plegic = _vasoplegia(course.hours, traits)
    tone = jnp.exp(course.resistance_wander) * (1 + p.pressor_effect * course.pressor)
    rate, volume = heart_rate(course, traits, population), traits.blood_volume + course.volume
    gain, compliance = traits.pump_gain * (1 - MIGRATION_LOSS * course.migrated), traits.compliance
    moved = _moved(course, p)
    if moved is not None and course.stir is not None:
        m, by = moved
        quicker = jnp.clip(rate / USUAL_RATE - 1, *QUICKER_LIMITS)
        contractility = contractility * jnp.exp(by.drive) * (1 + m.force_frequency * quicker)
        tone, volume, gain = tone * jnp.exp(by.tone), volume + by.volume, gain * by.gain
        compliance = compliance * jnp.exp(course.stir.pulse)
    reflex = jnp.clip(1 + traits.reflex_resistance * course.reflex, *REFLEX_RESISTANCE_LIMITS)
    return Circulation(
        period=60.0 / rate,
        lv_elastance=traits.elastance * contractility,
        lv_dead_volume=traits.dead_volume,
        lv_stiffness=traits.stiffness,
        lv_curvature=traits.curvature,
        relaxation=relaxation(course),
        rv_elastance=traits.rv_elastance * right_driven,
        resistance=traits.resistance * tone * (1 - plegic) * reflex,
        arterial_compliance=compliance,
        root_resistance=traits.root_resistance,
        pulmonary_resistance=traits.pulmonary_resistance,
        blood_volume=jnp.clip(volume, *STRESSED_VOLUME_LIMITS),
        pump_gain=gain,
    )


def _vasoplegia(hours, traits: Traits):
    """Loss of tone that comes within an hour or two and leaves slowly."""
    since = hours - traits.vasoplegia_start
    come = jax.nn.sigmoid(since / VASOPLEGIA_RISE)
    gone = jax.nn.sigmoid((since - traits.vasoplegia_hours) / VASOPLEGIA_FALL)
    return traits.vasoplegia_depth * come * (1 - gone)


def _slow(course: Course, traits: Traits, world: World, luck: Luck) -> Course:
    """Everything but the beat, moved by one tick."""
    p, dt, c, b = world.population, world.dt, course, course.beat
    u, z = luck.uniform, luck.normal
    shocked = jax.nn.sigmoid((DEADLY_MAP - b.map) / DEADLY_MAP_WIDTH)
    slips = _happens(u[8], 1 / MIGRATION_HOURS, dt)
    back = _happens(u[9], 1 / REPOSITION_HOURS, dt)
    starts = _happens(u[6], traits.fibrillation_prone / FIBRILLATION_ONSET_HOURS, dt)
    stops = _happens(u[7], 1 / FIBRILLATION_HOURS, dt)
    rate_hours = RATE_WANDER_HOURS if p.movement is None else p.movement.rate_hours
    return dataclasses.replace(
        course,
        **_recovered(course, traits, world, u),
        **_dosed(course, traits, dt),
        **_filled(course, p.movement, dt, u, z[1]),
        alive=c.alive * (1.0 - _happens(u[10], DEATH_RATE * shocked, dt)),
        resistance_wander=_wander(
            c.resistance_wander, p.resistance_wander, p.resistance_hours, dt, z[0]
        ),
        rate_wander=_wander(c.rate_wander, p.rate_wander, rate_hours, dt, z[2]),
        fibrillating=jnp.where(c.fibrillating > 0, 1.0 - stops, starts * 1.0),
        migrated=jnp.where(c.migrated > 0, 1.0 - back, slips * 1.0),
        reflex=_toward(c.reflex, traits.reflex_set - b.map, REFLEX_HOURS, dt),
        hours=c.hours + dt,
    )


def _recovered(course: Course, traits: Traits, world: World, u) -> dict[str, Array]:
    """Healing under unloading, harm by injury, relapse and ischemia."""
    p, dt, c, b = world.population, world.dt, course, course.beat
    emptied = jax.nn.sigmoid((UNLOADED_LVEDP - b.lvedp) / UNLOADED_LVEDP_WIDTH)
    pumped = jnp.minimum(b.flow / UNLOADING_FLOW, UNLOADING_FLOW_CAP)
    unloading = LOADED_PACE + UNLOADED_GAIN * emptied * pumped
    hypotension = jax.nn.softplus((INJURIOUS_MAP - b.map) / INJURIOUS_MAP_WIDTH)
    congestion = jax.nn.softplus((b.lvedp - INJURIOUS_LVEDP) / INJURIOUS_LVEDP_WIDTH)
    injury = hypotension + CONGESTION_WEIGHT * congestion
    relapse_rate = traits.relapse_rate * (1 + RELAPSE_INJURY_GAIN * jnp.tanh(injury))
    relapse = _happens(u[0], relapse_rate, dt)
    relapsing = c.relapsing + relapse * (RELAPSE_LOSS + RELAPSE_LOSS_RANGE * u[1]) * c.recovery
    lost = relapsing * (1 - jnp.exp(-dt / RELAPSE_HOURS))
    gain = traits.recovery_rate * unloading * (1 - c.recovery)
    recovery = c.recovery + dt * (gain - p.injury_rate * injury * c.recovery) - lost
    perfusion = b.dbp - b.lvedp
    ischemic = jax.nn.sigmoid((traits.ischemia_center - perfusion) / p.ischemia_width)
    return {
        "recovery": jnp.clip(recovery, *RECOVERY_LIMITS),
        "relapsing": relapsing - lost,
        "ischemia": _toward(c.ischemia, ischemic, ISCHEMIA_HOURS, dt),
    }


def _dosed(course: Course, traits: Traits, dt: float) -> dict[str, Array]:
    """The drugs that no record holds, titrated to pressure and to output."""
    c, b = course, course.beat
    too_low = (traits.pressor_target - b.map) / PRESSOR_MAP_SCALE
    pressor = PRESSOR_PACE * jnp.clip(too_low, *PRESSOR_STEPS)
    too_little = (INOTROPE_OUTPUT - b.output) / INOTROPE_OUTPUT_SCALE
    inotrope = INOTROPE_PACE * jnp.clip(too_little, *INOTROPE_STEPS)
    return {
        "pressor": jnp.clip(c.pressor + dt * pressor, 0.0, 1.0),
        "inotrope": jnp.clip(c.inotrope + dt * inotrope, 0.0, 1.0),
    }


def _filled(course: Course, movement: Movement | None, dt: float, u, z) -> dict[str, Array]:
    """Volume on its way to a wandering target, with boluses and losses."""
    c, sd = course, VOLUME_TARGET_SD
    bolus = _happens(u[2], 1 / BOLUS_HOURS, dt) * (BOLUS_VOLUME + BOLUS_VOLUME_RANGE * u[3])
    loss = _happens(u[4], 1 / LOSS_HOURS, dt) * (LOSS_VOLUME + LOSS_VOLUME_RANGE * u[5])
    if movement is not None:
        bolus, loss, sd = (movement.volume_share * x for x in (bolus, loss, sd))
    return {
        "volume": _toward(c.volume, c.volume_target, VOLUME_HOURS, dt) + bolus - loss,
        "volume_target": _wander(c.volume_target, sd, VOLUME_TARGET_HOURS, dt, z),
    }


def _noise(course: Course, world: World, z: Float[Array, " 9"]) -> Course:
    """Heavy-tailed wandering of what the console adds to the truth."""
    p, dt, c = world.population, world.dt, course
    tail = TAIL_SCALE / jnp.sqrt((z[6] ** 2 + z[7] ** 2 + z[8] ** 2) / 3 + TAIL_FLOOR)

    def wander(value, sd, hours, i):
        return _wander(value, sd, hours, dt, z[i], tail)

    drift, beats, lv = PRESSURE_NOISE_HOURS, RATE_NOISE_HOURS, LV_DRIFT_HOURS
    unsure, unsure_hours = ELASTANCE_NOISE, ELASTANCE_NOISE_HOURS
    if p.movement is not None:
        m = p.movement
        drift, beats, lv = m.drift_hours, m.beat_hours, m.lv_hours
        unsure, unsure_hours = m.elastance_noise, m.elastance_hours
    return dataclasses.replace(
        course,
        pressure_noise=wander(c.pressure_noise, p.pressure_noise, drift, 0),
        pulse_noise=wander(c.pulse_noise, p.pulse_noise, PULSE_NOISE_HOURS, 1),
        rate_noise=wander(c.rate_noise, p.rate_noise, beats, 2),
        lv_drift=wander(c.lv_drift, p.lv_drift, lv, 3),
        lvedp_drift=wander(c.lvedp_drift, p.lvedp_drift, lv, 4),
        elastance_noise=wander(c.elastance_noise, unsure, unsure_hours, 5),
    )


def _happens(uniform, rate, dt: float):
    """Whether an event of this rate, 1/h, comes within the tick."""
    return uniform < 1 - jnp.exp(-rate * dt)


def _toward(value, goal, hours, dt: float):
    """The value after a tick on its way to a goal with a time constant in hours."""
    return value + (goal - value) * (1 - jnp.exp(-dt / hours))


def _wander(value, sd, hours, dt: float, *luck):
    """AR(1) with a stationary sd and a time constant in hours; `luck` multiplies its step."""
    keep = jnp.exp(-dt / hours)
    return keep * value + math.prod(luck, start=sd * jnp.sqrt(1 - keep**2))


def truth(
    course: Course, traits: Traits, level: Int[Array, ""], world: World
) -> Float[Array, " signals"]:
    """The twelve signals of the last tick without any measurement error."""
    b, profile = course.beat, world.profile
    return jnp.stack(
        [
            b.map,
            profile.speed[level - LOWEST],
            motor_current(profile, level, b.flow),
            b.flow,
            b.lvp,
            b.lvedp,
            heart_rate(course, traits, world.population),
            b.sbp,
            b.dbp,
            b.sbp - b.dbp,
            MILLISECONDS * relaxation(course),
            b.elastance,
        ]
    )


def observe(
    course: Course, traits: Traits, level: Int[Array, ""], world: World, luck: Luck
) -> Float[Array, " signals"]:
    """The twelve signals as the console reports them; SBP > MAP > DBP always holds."""
    p, profile = world.population, world.profile
    c, b = course, course.beat
    u, z = luck.uniform, luck.normal
    moved = _moved(course, p)
    flushes, jitter, unsteady = FLUSH_SHARE, CURRENT_NOISE, 1.0  # mmHg
    if moved is not None:
        m = moved[0]
        flushes, jitter, unsteady = m.flushes, m.current_noise, m.lvedp_noise
    flush = jnp.where(u[0] < flushes, FLUSH_SHIFT, 0.0)
    shift = traits.pressure_offset + c.pressure_noise + flush
    flow, pulse = b.flow + FLOW_NOISE * z[3], jnp.exp(c.pulse_noise)
    if moved is not None and c.stir is not None:
        pressed = moved[1].thorax  # at the mean; high pressures more, low ones less
        shift, flow, pulse = shift + pressed, flow + c.stir.flow, pulse * (1 + pressed / b.map)
    mean = jnp.maximum(b.map + shift, LEAST_MAP)
    sbp = mean + pulse * (b.sbp - b.map)
    dbp = jnp.maximum(mean - pulse * (b.map - b.dbp), LEAST_DBP)
    slip = jnp.where(u[1] < p.rate_slips, p.rate_slip_size * z[0], 0.0)
    rate = heart_rate(c, traits, p) + c.rate_noise + slip
    current = motor_current(profile, level, b.flow) + traits.current_bias
    current += jitter * z[1]
    tau = MILLISECONDS * relaxation(c) * jnp.exp(TAU_NOISE * z[5])
    ventricle, lvedp, scale = _ventricle(course, traits, level, world, shift)
    return jnp.stack(
        [
            mean,
            profile.speed[level - LOWEST] + SPEED_NOISE * z[2],
            current,
            flow,
            b.lvp + ventricle + c.lv_drift,
            lvedp + p.lvedp_offset + c.lv_drift + c.lvedp_drift + unsteady * z[4],
            jnp.clip(rate, *RATE_SHOWN),
            sbp,
            dbp,
            sbp - dbp,
            jnp.clip(tau, *TAU_SHOWN),
            b.elastance * scale,
        ]
    )


def _moved(course: Course, population: Population) -> tuple[Movement, Push] | None:
    """What moves the patients of version 2, and where to."""
    if course.stir is None or population.movement is None:
        return None
    return population.movement, push(course.stir, population.movement)


def _ventricle(course: Course, traits: Traits, level: Int[Array, ""], world: World, shift):
    """The console's view of the ventricle, from a pressure signal that is off by `shift`.

    What its pressure is off by, the end-diastolic one so far, and the scale of its elastance.
    """
    p, c, b = world.population, course, course.beat
    ventricle = shift + traits.lv_offset
    # estimated from the same pressure, so its offset shows here too
    scale = traits.elastance_bias * jnp.exp(c.elastance_noise) * (1 + shift / b.sbp)
    moved = _moved(course, p)
    if moved is None or c.stir is None:
        return ventricle, b.lvedp + ventricle, scale
    m, by = moved
    beyond = world.profile.shutoff_head[level - LOWEST] - USUAL_HEAD
    ventricle += c.stir.zero - m.head_error * beyond
    less = by.thorax * (1 - b.dbp / b.map)
    # by the pressure that is developed: what is wrong with LVEDP alone, and part of the rest
    wrong = c.lvedp_drift - less + m.lvedp_share * (ventricle + c.lv_drift + p.lvedp_offset)
    scale *= jnp.maximum(1 - wrong / b.sbp, LEAST_SCALE)
    # no console knows the ventricle's volume
    scale *= (jnp.maximum(b.map + shift, LEAST_MAP) / USUAL_MAP) ** m.pressure_share
    return ventricle, b.lvedp + ventricle - less, scale
