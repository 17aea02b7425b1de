"""The slow hours around the beat: recovery, ischemia, hidden drugs, volume, rhythm, noise.

`live` moves one patient by one tick (10 minutes by default) under a level; `observe` turns
the tick into what the console would report. Rates are per hour and all noise is written for
any tick length. A tick takes the same random numbers whatever happens to the patient, so two
courses with the same luck differ by their levels alone (common random numbers).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stepdown.patients.heart import Beat, Circulation, Volumes, beat, start_volumes
from stepdown.patients.luck import Luck
from stepdown.patients.population import Population, Traits, World
from stepdown.patients.pump import PumpProfile, motor_current
from stepdown.signals import LOWEST

START_LUCK, LIVE_LUCK, LOOK_LUCK = (0, 7), (11, 14), (2, 6)  # uniforms, normals
BEATS = 10  # from a warm start this settles MAP within 0.1-0.3 mmHg
DEATH_RATE = 0.5  # 1/h in profound shock; half of it at this pressure, little 8 mmHg above
DEADLY_MAP, DEADLY_WIDTH = 42.0, 2.5


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


def start_course(traits: Traits, level: Int[Array, ""], world: World, luck: Luck) -> Course:
    """The patient as support begins, settled over 60 beats."""
    population = world.population
    zero, z = jnp.zeros(()), luck.normal
    blank = Beat(*([zero] * len(Beat.__dataclass_fields__)))
    course = Course(
        recovery=traits.recovery_start,
        ischemia=zero + 0.2,
        pressor=zero + 0.3,
        inotrope=zero + 0.3,
        resistance_wander=population.resistance_wander * z[0],
        volume=60.0 * z[1],
        volume_target=60.0 * z[2],
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
    )
    circulation = circulation_of(course, traits, population)
    volumes, last = _beats(course.volumes, circulation, level, world.profile, 60)
    return eqx.tree_at(lambda c: (c.volumes, c.beat), course, (volumes, last))


def live(course: Course, traits: Traits, level: Int[Array, ""], world: World, luck: Luck) -> Course:
    """One tick under a level; a dead patient stays as they are."""
    population = world.population
    now = _slow(_noise(course, world, luck.normal[5:]), traits, world, luck)
    circulation = circulation_of(now, traits, population)
    excess = circulation.blood_volume - now.volumes.total()  # given, lost, or rounding
    volumes = eqx.tree_at(lambda v: v.veins, now.volumes, now.volumes.veins + excess)
    volumes, last = _beats(volumes, circulation, level, world.profile, BEATS)
    now = eqx.tree_at(lambda c: (c.volumes, c.beat), now, (volumes, last))
    return jax.tree.map(lambda new, old: jnp.where(course.alive > 0, new, old), now, course)


def _beats(volumes, circulation, level, profile, count):
    volumes, beats = jax.lax.scan(
        lambda v, _: beat(v, circulation, level, profile), volumes, None, length=count
    )
    return volumes, jax.tree.map(lambda x: x[-1], beats)


def heart_rate(course: Course, traits: Traits, population: Population) -> Float[Array, ""]:
    """Beats per minute: own rate, reflex, inotropes, rhythm, wandering."""
    rate = traits.rate + traits.reflex_rate * course.reflex + 14.0 * course.inotrope
    rate += population.fibrillation_rise * course.fibrillating + course.rate_wander
    return jnp.clip(rate, 40.0, 160.0)


def relaxation(course: Course) -> Float[Array, ""]:
    """LV relaxation constant in s: slower when weak or ischemic."""
    return 0.030 + 0.028 * (1 - course.recovery) + 0.02 * course.ischemia


def circulation_of(course: Course, traits: Traits, population: Population) -> Circulation:
    """Heart and vessels as the slow state makes them at this moment."""
    p = population
    recovered = p.weakest + (1 - p.weakest) * course.recovery
    driven = 1 + p.inotrope_effect * course.inotrope
    contractility = recovered * driven * (1 - p.ischemic_loss * course.ischemia)
    plegic = _vasoplegia(course.hours, traits)
    tone = jnp.exp(course.resistance_wander) * (1 + p.pressor_effect * course.pressor)
    reflex = jnp.clip(1 + traits.reflex_resistance * course.reflex, 0.75, 1.3)
    return Circulation(
        period=60.0 / heart_rate(course, traits, population),
        lv_elastance=traits.elastance * contractility,
        lv_dead_volume=traits.dead_volume,
        lv_stiffness=traits.stiffness,
        lv_curvature=traits.curvature,
        relaxation=relaxation(course),
        rv_elastance=traits.rv_elastance * (1 + 0.5 * p.inotrope_effect * course.inotrope),
        resistance=traits.resistance * tone * (1 - plegic) * reflex,
        arterial_compliance=traits.compliance,
        root_resistance=traits.root_resistance,
        pulmonary_resistance=traits.pulmonary_resistance,
        blood_volume=jnp.clip(traits.blood_volume + course.volume, 550.0, 2200.0),
        pump_gain=traits.pump_gain * (1 - 0.12 * course.migrated),
    )


def _vasoplegia(hours, traits: Traits):
    """Loss of tone that comes within an hour or two and leaves slowly."""
    since = hours - traits.vasoplegia_start
    come = jax.nn.sigmoid(since / 0.7)
    gone = jax.nn.sigmoid((since - traits.vasoplegia_hours) / 3.0)
    return traits.vasoplegia_depth * come * (1 - gone)


def _slow(course: Course, traits: Traits, world: World, luck: Luck) -> Course:
    """Everything but the beat, moved by one tick."""
    p, dt, c, b = world.population, world.dt, course, course.beat
    u, z = luck.uniform, luck.normal

    def happens(i, rate):
        return u[i] < 1 - jnp.exp(-rate * dt)

    def toward(value, goal, hours):
        return value + (goal - value) * (1 - jnp.exp(-dt / hours))

    def wander(value, sd, hours, i):
        keep = jnp.exp(-dt / hours)
        return keep * value + sd * jnp.sqrt(1 - keep**2) * z[i]

    unloading = 0.45 + 0.75 * jax.nn.sigmoid((14 - b.lvedp) / 3) * jnp.minimum(b.flow / 3, 1.3)
    injury = jax.nn.softplus((61 - b.map) / 4) + 0.35 * jax.nn.softplus((b.lvedp - 20) / 4)
    relapse = happens(0, traits.relapse_rate * (1 + 1.5 * jnp.tanh(injury)))
    relapsing = c.relapsing + relapse * (0.12 + 0.28 * u[1]) * c.recovery
    lost = relapsing * (1 - jnp.exp(-dt / 1.5))
    gain = traits.recovery_rate * unloading * (1 - c.recovery)
    recovery = c.recovery + dt * (gain - p.injury_rate * injury * c.recovery) - lost

    perfusion = b.dbp - b.lvedp
    ischemic = jax.nn.sigmoid((traits.ischemia_center - perfusion) / p.ischemia_width)
    pressor = 0.25 * jnp.clip((traits.pressor_target - b.map) / 8, -0.5, 1.2)
    inotrope = 0.12 * jnp.clip((4.0 - b.output) / 1.0, -1.0, 1.0)

    bolus = happens(2, 1 / 14) * (60 + 160 * u[3])
    loss = happens(4, 1 / 40) * (80 + 180 * u[5])
    volume = toward(c.volume, c.volume_target, 5.0) + bolus - loss

    starts = happens(6, traits.fibrillation_prone / 14)
    stops = happens(7, 1 / 8)
    fibrillating = jnp.where(c.fibrillating > 0, 1.0 - stops, starts * 1.0)
    slips, back = happens(8, 1 / 90), happens(9, 1 / 5)
    migrated = jnp.where(c.migrated > 0, 1.0 - back, slips * 1.0)

    dies = happens(10, DEATH_RATE * jax.nn.sigmoid((DEADLY_MAP - b.map) / DEADLY_WIDTH))

    new = {
        "alive": c.alive * (1.0 - dies),
        "recovery": jnp.clip(recovery, 0.02, 0.98),
        "relapsing": relapsing - lost,
        "ischemia": toward(c.ischemia, ischemic, 0.35),
        "pressor": jnp.clip(c.pressor + dt * pressor, 0.0, 1.0),
        "inotrope": jnp.clip(c.inotrope + dt * inotrope, 0.0, 1.0),
        "resistance_wander": wander(
            c.resistance_wander, p.resistance_wander, p.resistance_hours, 0
        ),
        "volume": volume,
        "volume_target": wander(c.volume_target, 70.0, 20.0, 1),
        "rate_wander": wander(c.rate_wander, p.rate_wander, 3.0, 2),
        "fibrillating": fibrillating,
        "migrated": migrated,
        "reflex": toward(c.reflex, traits.reflex_set - b.map, 0.2),
        "hours": c.hours + dt,
    }
    return eqx.tree_at(
        lambda x: tuple(getattr(x, name) for name in new), course, tuple(new.values())
    )


def _noise(course: Course, world: World, z: Float[Array, " 9"]) -> Course:
    """Heavy-tailed wandering of what the console adds to the truth."""
    p, dt, c = world.population, world.dt, course
    tail = 0.75 / jnp.sqrt((z[6] ** 2 + z[7] ** 2 + z[8] ** 2) / 3 + 0.1)  # near Student t3

    def wander(value, sd, hours, i):
        keep = jnp.exp(-dt / hours)
        return keep * value + sd * jnp.sqrt(1 - keep**2) * z[i] * tail

    new = {
        "pressure_noise": wander(c.pressure_noise, p.pressure_noise, 0.5, 0),
        "pulse_noise": wander(c.pulse_noise, p.pulse_noise, 0.7, 1),
        "rate_noise": wander(c.rate_noise, p.rate_noise, 0.5, 2),
        "lv_drift": wander(c.lv_drift, p.lv_drift, 9.0, 3),
        "lvedp_drift": wander(c.lvedp_drift, p.lvedp_drift, 9.0, 4),
        "elastance_noise": wander(c.elastance_noise, 0.07, 1.0, 5),
    }
    return eqx.tree_at(
        lambda x: tuple(getattr(x, name) for name in new), course, tuple(new.values())
    )


def truth(
    course: Course,
    traits: Traits,
    level: Int[Array, ""],
    population: Population,
    profile: PumpProfile,
) -> Float[Array, " 12"]:
    """The twelve signals of the last tick without any measurement error."""
    b = course.beat
    return jnp.stack(
        [
            b.map,
            profile.speed[level - LOWEST],
            motor_current(profile, level, b.flow),
            b.flow,
            b.lvp,
            b.lvedp,
            heart_rate(course, traits, population),
            b.sbp,
            b.dbp,
            b.sbp - b.dbp,
            1000.0 * relaxation(course),
            b.elastance,
        ]
    )


def observe(
    course: Course, traits: Traits, level: Int[Array, ""], world: World, luck: Luck
) -> Float[Array, " 12"]:
    """The twelve signals as the console reports them; SBP > MAP > DBP always holds."""
    p, profile = world.population, world.profile
    c, b = course, course.beat
    u, z = luck.uniform, luck.normal
    flush = jnp.where(u[0] < 0.01, -12.0, 0.0)
    shift = traits.pressure_offset + c.pressure_noise + flush
    mean = jnp.maximum(b.map + shift, 5.0)
    pulse = jnp.exp(c.pulse_noise)
    sbp = mean + pulse * (b.sbp - b.map)
    dbp = jnp.maximum(mean - pulse * (b.map - b.dbp), 1.0)
    slip = jnp.where(u[1] < p.rate_slips, p.rate_slip_size * z[0], 0.0)
    rate = heart_rate(c, traits, p) + c.rate_noise + slip
    current = motor_current(profile, level, b.flow) + traits.current_bias + 2.0 * z[1]
    ventricle = shift + traits.lv_offset
    # estimated from the same pressure, so its offset shows here too
    scale = traits.elastance_bias * jnp.exp(c.elastance_noise) * (1 + shift / b.sbp)
    return jnp.stack(
        [
            mean,
            profile.speed[level - LOWEST] + 12.0 * z[2],
            current,
            b.flow + 0.01 * z[3],
            b.lvp + ventricle + c.lv_drift,
            b.lvedp + ventricle + p.lvedp_offset + c.lv_drift + c.lvedp_drift + z[4],
            jnp.clip(rate, 25.0, 220.0),
            sbp,
            dbp,
            sbp - dbp,
            jnp.clip(1000.0 * relaxation(c) * jnp.exp(0.08 * z[5]), 15.0, 200.0),
            b.elastance * scale,
        ]
    )
