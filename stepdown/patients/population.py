"""Who the patients are: one page of population numbers, three presets, one draw of traits.

Numbers are medians (or means) and spreads over patients; `_spread` of a quantity that cannot
be negative is the sd of its logarithm. They are array leaves, so presets and sensitivity
sweeps share one compiled program. Sources and the calibration: docs/cohort.md.

All chance in compiled code comes as `Luck`: the random numbers of one moment, drawn at once and
handed out. A key per little draw would be the usual way, but each costs half a second to compile.
"""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stepdown.patients.pump import PumpProfile

PresetName = Literal["guarded", "benign", "hidden"]
Version = Literal[1, 2]  # of the patients
Number = float | Float[Array, ""]

TRAITS_LUCK = (8, 23)  # uniforms, normals

# What all populations share. Judgment, chosen for published time scales (docs/cohort.md); limits
# keep a rare draw within what a patient on support can be. A pair `X, X_RANGE` is the least and
# what a uniform draw adds to it.
ELASTANCE_LIMITS = (0.6, 3.0)  # mmHg/mL
DEAD_VOLUME_LIMITS = (10.0, 110.0)  # mL
CURVATURE_LIMITS = (0.012, 0.032)  # 1/mL
COMPLIANCE_LIMITS = (0.2, 1.3)  # mL/mmHg, of version 2; textbook: 0.8 to 1.2 in the elderly
ROOT_RESISTANCE_LIMITS = (0.03, 0.14)  # mmHg s/mL
BLOOD_VOLUME_LIMITS = (650.0, 1900.0)  # mL
RATE_LIMITS = (46.0, 135.0)  # /min
PUMP_GAIN_LIMITS = (0.7, 1.2)  # share of the profile's flow
RECOVERY_START_LIMITS = (0.04, 0.85)  # share
NONRECOVERER_PACE = 0.15  # of the recovery rate that a nonrecoverer has
RELAPSE_SPREAD = 0.4  # sd of the logarithm of the relapse rate
VASOPLEGIA_DEPTH, VASOPLEGIA_DEPTH_RANGE = 0.12, 0.30  # share of the resistance that is lost
VASOPLEGIA_LATEST = 30.0  # h; it comes at any time before
VASOPLEGIA_HOURS, VASOPLEGIA_HOURS_RANGE = 10.0, 30.0
REFLEX_RATE, REFLEX_RATE_RANGE = 0.1, 0.4  # /min per mmHg; healthy is 1, blunted by shock
REFLEX_RESISTANCE, REFLEX_RESISTANCE_RANGE = 0.002, 0.006  # share per mmHg
REFLEX_SET, REFLEX_SET_SD = 75.0, 5.0  # mmHg
CURRENT_BIAS_SD = 6.0  # mA over pumps
STAY_SPREAD = 0.4  # sd of the logarithm of the administrative stay


class Movement(eqx.Module):
    """How the patients of version 2 move within the hour (movement.py); sizes are means."""

    # the calm ground: sd of what wanders and fades within `ground_hours`
    ground_hours: Number = 0.153
    tone_ground: Number = 0.005  # log of the vessels' resistance
    drive_ground: Number = 0.027  # log of the contractility
    drive_hours: Number = 0.35  # its time constant
    thorax_ground: Number = 1.16  # mmHg on every pressure in the chest
    pulse_ground: Number = 0.013  # log of the pulse that the arteries let through
    # bouts: how many an hour, how long until one has faded, what one does
    coughs: Number = 0.522  # coughing, pressing, procedures
    cough_hours: Number = 0.602
    cough_thorax: Number = 6.3  # mmHg
    cough_rate: Number = 3.08  # /min
    boluses: Number = 0.113  # vasoactive or sedating drugs, a syringe changed
    bolus_hours: Number = 0.414
    bolus_drive: Number = 0.16
    runs: Number = 0.0815  # of arrhythmia
    run_hours: Number = 0.453
    run_rate: Number = 33.1  # /min
    run_drive: Number = 0.06  # lost while the atria do not help
    turns: Number = 0.18  # the patient is turned, sat up or laid flat
    turn_hours: Number = 2.53
    turn_volume: Number = 18.0  # mL of venous return
    turn_thorax: Number = 1.91  # mmHg, by the height of the transducer
    suctions: Number = 0.0203  # the inlet at the wall
    suction_hours: Number = 0.159
    suction_gain: Number = 0.0556  # share of the flow
    zeroings: Number = 0.0497  # the console zeroes its estimate of LV pressure anew
    zeroing_step: Number = 4.84  # mmHg
    # sensors and estimates
    drift_hours: Number = 6.89  # time constant of the placement signal's drift
    lv_hours: Number = 150.0  # of the drift of the LV pressure estimate
    elastance_noise: Number = 0.036  # share
    elastance_hours: Number = 0.5  # of its wandering
    lvedp_noise: Number = 0.37  # mmHg
    flushes: Number = 0.007  # share of the samples during which the line was flushed
    current_noise: Number = 0.75  # mA
    flow_drift: Number = 0.019  # L/min
    flow_drift_hours: Number = 1.88
    head_error: Number = -0.105  # share by which the console misjudges the head of the pump
    lvedp_share: Number = 0.65  # of the error of LVEDP that the elastance estimate takes over
    pressure_share: Number = 0.402  # how far that estimate follows the mean pressure
    # the heart
    force_frequency: Number = 0.34  # contractility gained where the rate doubles
    beat_hours: Number = 0.143  # of the counted rate's quick wandering
    rate_hours: Number = 5.14  # time constant of the slow wandering of the rate
    volume_share: Number = 0.24  # of the boluses, losses and shifts of volume of version 1
    # practice
    pulse_ready: Number = 6.0  # mmHg above which a step down is considered
    lvedp_ready: Number = 18.0  # mmHg below which: a congested ventricle is not weaned
    alert: Number = 25.0  # times as likely is low pressure answered at P4 and below
    step_pace: Number = 4.16  # steps per hour on the way to a level that was decided
    strides: Number = 0.494  # share of the steps that take two levels at once


class Population(eqx.Module):
    """The distribution that patients are drawn from; defaults are the `guarded` preset."""

    # left ventricle
    nonrecoverers: Number = 0.22  # share whose heart does not come back
    elastance: Number = 1.27  # mmHg/mL, fully recovered
    elastance_spread: Number = 0.045
    dead_volume: Number = 31.1  # mL
    dead_volume_spread: Number = 11.3
    stiffness: Number = 0.60  # mmHg
    stiffness_spread: Number = 0.20
    curvature: Number = 0.022  # 1/mL
    curvature_spread: Number = 0.002
    # vessels and volume
    resistance: Number = 0.81  # mmHg s/mL
    resistance_spread: Number = 0.27
    compliance: Number = 0.96  # mL/mmHg
    compliance_spread: Number = 0.9
    root_resistance: Number = 0.0993  # mmHg s/mL
    root_resistance_spread: Number = 0.012
    pulmonary_resistance: Number = 0.08  # mmHg s/mL
    pulmonary_resistance_spread: Number = 0.25
    rv_elastance: Number = 0.65  # mmHg/mL
    rv_elastance_spread: Number = 0.20
    blood_volume: Number = 1090.0  # mL, stressed
    blood_volume_spread: Number = 175.0
    # rhythm
    rate: Number = 81.0  # /min
    rate_spread: Number = 15.0
    rate_wander: Number = 2.67  # sd of the slow wandering
    fibrillation_prone: Number = 0.30  # share of patients
    fibrillation_rise: Number = 24.0  # /min
    # pump
    pump_gain: Number = 0.985  # share of the profile's flow
    pump_gain_spread: Number = 0.0258
    # recovery
    recovery_start: Number = 0.487  # share
    recovery_start_spread: Number = 0.12
    recovery_rate: Number = 0.028  # 1/h
    recovery_rate_spread: Number = 0.55
    weakest: Number = 0.31  # contractility without any recovery, as a share
    relapse_rate: Number = 1 / 55  # 1/h
    injury_rate: Number = 0.035  # 1/h per unit of injury
    # ischemia: the weaning cliff
    ischemic_loss: Number = 0.65  # share of contractility lost in full ischemia
    ischemia_center: Number = 28.0  # mmHg of coronary perfusion pressure
    ischemia_center_spread: Number = 5.15
    ischemia_width: Number = 4.14  # mmHg, of the logistic around the center
    # vessels over hours, hidden drugs
    vasoplegic: Number = 0.40  # share of patients
    resistance_wander: Number = 0.0108  # sd of the logarithm of the slow wandering
    resistance_hours: Number = 11.0  # its time constant
    pressor_effect: Number = 0.45  # share that the full dose adds to the resistance
    pressor_target: Number = 70.6  # mmHg
    pressor_target_spread: Number = 4.0
    inotrope_effect: Number = 0.30  # share that the full dose adds to contractility
    # what the console reports
    pressure_offset: Number = 6.13  # mmHg, sd over patients, shared by all pressures
    pressure_offset_mean: Number = -2.7
    pressure_noise: Number = 1.4  # mmHg
    pulse_noise: Number = 0.0228  # share of the pulse
    rate_noise: Number = 1.24  # /min
    rate_slips: Number = 0.00284  # share of samples with a miscounted rate
    rate_slip_size: Number = 18.0  # /min
    lv_offset: Number = 10.6  # mmHg, sd over patients, of the LV pressure estimate
    lv_offset_mean: Number = 3.6
    lvedp_offset: Number = -7.8  # mmHg, of the end-diastolic estimate beside the mean's
    lv_drift: Number = 2.54  # mmHg, sd of the slow wandering of the LV pressure estimate
    lvedp_drift: Number = 8.0  # mmHg, of the end-diastolic estimate beside it
    elastance_bias: Number = 0.201  # sd over patients of the logarithm
    elastance_scale: Number = 0.87  # of the estimate, as a share of the largest P/V
    # practice
    caution: Number = -3.2  # shifts every clinician's thresholds, mmHg
    restlessness: Number = 0.76  # scales unprompted changes
    weaning_pace: Number = 0.9  # scales the chance of a step down
    rescue: Number = 0.06  # scales the chance of a step up when pressure is low
    oversupport: Number = 0.30  # chance per hour to give way to a low pulse
    start_high: Number = 0.25  # shifts the first level
    insight: Number = 0.0  # how far clinicians wean on a reading the records do not hold
    stay_hours: Number = 117.0  # median administrative length
    movement: Movement | None = Movement()  # None: version 1, whose patients move tamely


class Traits(eqx.Module):
    """What stays fixed in one patient."""

    elastance: Float[Array, ""]
    dead_volume: Float[Array, ""]
    stiffness: Float[Array, ""]
    curvature: Float[Array, ""]
    resistance: Float[Array, ""]
    compliance: Float[Array, ""]
    root_resistance: Float[Array, ""]
    pulmonary_resistance: Float[Array, ""]
    rv_elastance: Float[Array, ""]
    blood_volume: Float[Array, ""]
    rate: Float[Array, ""]
    fibrillation_prone: Float[Array, ""]
    pump_gain: Float[Array, ""]
    recovery_start: Float[Array, ""]
    recovery_rate: Float[Array, ""]
    recoverer: Float[Array, ""]
    relapse_rate: Float[Array, ""]
    ischemia_center: Float[Array, ""]
    vasoplegia_depth: Float[Array, ""]
    vasoplegia_start: Float[Array, ""]  # h
    vasoplegia_hours: Float[Array, ""]
    pressor_target: Float[Array, ""]
    reflex_rate: Float[Array, ""]  # /min per mmHg
    reflex_resistance: Float[Array, ""]  # share per mmHg
    reflex_set: Float[Array, ""]  # mmHg
    pressure_offset: Float[Array, ""]
    lv_offset: Float[Array, ""]
    elastance_bias: Float[Array, ""]
    current_bias: Float[Array, ""]
    stay_hours: Float[Array, ""]


class World(eqx.Module):
    """What all patients of a cohort share."""

    population: Population
    profile: PumpProfile
    dt: float = eqx.field(static=True, default=1 / 6)  # h, one tick


def preset(name: PresetName, version: Version = 2) -> Population:
    """The population of a preset, as arrays."""
    if name not in PRESETS:
        raise ValueError(
            f"expected a preset out of {', '.join(PRESETS)}, got {name!r}. Choose one of these."
        )
    changes = (VERSION_1 if version == 1 else {}) | PRESETS[name]
    population = dataclasses.replace(Population(), **changes)
    return jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), population)


PRESETS: dict[str, dict[str, float]] = {
    "guarded": {},
    "benign": {
        "ischemic_loss": 0.40,
        "pressor_effect": 0.70,
        "inotrope_effect": 0.45,
        "restlessness": 2.2,
    },
    "hidden": {"insight": 1.0},
}
VERSION_1: dict[str, Any] = {  # what version 2 changed
    "movement": None,
    "weakest": 0.33,
    "elastance": 1.365,
    "elastance_spread": 0.172,
    "dead_volume": 49.6,
    "dead_volume_spread": 12.0,
    "resistance": 0.736,
    "resistance_spread": 0.179,
    "compliance": 0.78,
    "compliance_spread": 0.323,
    "root_resistance": 0.0642,
    "blood_volume": 1148.0,
    "blood_volume_spread": 130.0,
    "rate": 82.2,
    "rate_spread": 13.9,
    "rate_wander": 4.0,
    "pump_gain": 0.973,
    "pump_gain_spread": 0.03,
    "resistance_wander": 0.0965,
    "resistance_hours": 5.0,
    "pressor_target": 71.0,
    "pressure_offset": 7.61,
    "pressure_offset_mean": -0.7,
    "pressure_noise": 2.9,
    "pulse_noise": 0.115,
    "rate_noise": 1.0,
    "rate_slips": 0.0233,
    "lv_offset": 9.1,
    "lv_offset_mean": 4.3,
    "lvedp_offset": -6.63,
    "lv_drift": 7.76,
    "lvedp_drift": 8.36,
    "elastance_bias": 0.19,
    "elastance_scale": 0.96,
    "caution": -3.8,
    "restlessness": 0.54,
    "weaning_pace": 0.66,
    "rescue": 0.177,
    "oversupport": 0.18,
    "stay_hours": 89.7,
}


class Luck(eqx.Module):
    """What chance brings to one function: uniform and standard normal numbers."""

    uniform: Float[Array, " uniforms"]
    normal: Float[Array, " normals"]


def draw_luck(*sizes: tuple[int, int], key: PRNGKeyArray) -> tuple[Luck, ...]:
    """One `Luck` for each pair of counts (uniforms, normals), from a single key."""
    numbers = jr.uniform(key, (sum(map(sum, sizes)),))
    inside = jnp.clip(2.0 * numbers - 1.0, -1.0 + 1e-6, 1.0 - 1e-6)  # within 4.9 sd
    normals = jnp.sqrt(2.0) * jax.lax.erf_inv(inside)
    lucks, first = [], 0
    for uniform, normal in sizes:
        middle, last = first + uniform, first + uniform + normal
        lucks.append(Luck(numbers[first:middle], normals[middle:last]))
        first = last
    return tuple(lucks)


def pick(uniform: Float[Array, ""], values: Array, shares: Float[Array, " n"]) -> Array:
    """One of `values` with the probabilities `shares`."""
    passed = jnp.sum(uniform > jnp.cumsum(shares))
    return values[jnp.minimum(passed, len(shares) - 1)]


def host_generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's generator, for what comes in any number: JAX would compile a program for each."""
    return np.random.default_rng(np.asarray(jr.key_data(key)).ravel())


def draw_traits(population: Population, luck: Luck) -> Traits:
    """One patient out of the population."""
    p, u, z = population, luck.uniform, luck.normal

    def around(median, spread, i):
        return median * jnp.exp(spread * z[i])

    recoverer = (u[0] > p.nonrecoverers).astype(float)
    recovering = around(p.recovery_rate, p.recovery_rate_spread, 13)
    compliance = around(p.compliance, p.compliance_spread, 5)
    depth = VASOPLEGIA_DEPTH + VASOPLEGIA_DEPTH_RANGE * u[3]
    return Traits(
        elastance=jnp.clip(around(p.elastance, p.elastance_spread, 0), *ELASTANCE_LIMITS),
        dead_volume=jnp.clip(p.dead_volume + p.dead_volume_spread * z[1], *DEAD_VOLUME_LIMITS),
        stiffness=around(p.stiffness, p.stiffness_spread, 2),
        curvature=jnp.clip(p.curvature + p.curvature_spread * z[3], *CURVATURE_LIMITS),
        resistance=around(p.resistance, p.resistance_spread, 4),
        compliance=compliance if p.movement is None else jnp.clip(compliance, *COMPLIANCE_LIMITS),
        root_resistance=jnp.clip(
            p.root_resistance + p.root_resistance_spread * z[6], *ROOT_RESISTANCE_LIMITS
        ),
        pulmonary_resistance=around(p.pulmonary_resistance, p.pulmonary_resistance_spread, 7),
        rv_elastance=around(p.rv_elastance, p.rv_elastance_spread, 8),
        blood_volume=jnp.clip(p.blood_volume + p.blood_volume_spread * z[9], *BLOOD_VOLUME_LIMITS),
        rate=jnp.clip(p.rate + p.rate_spread * z[10], *RATE_LIMITS),
        fibrillation_prone=(u[1] < p.fibrillation_prone).astype(float),
        pump_gain=jnp.clip(p.pump_gain + p.pump_gain_spread * z[11], *PUMP_GAIN_LIMITS),
        recovery_start=jnp.clip(
            p.recovery_start + p.recovery_start_spread * z[12], *RECOVERY_START_LIMITS
        ),
        recovery_rate=jnp.where(recoverer > 0, recovering, NONRECOVERER_PACE * recovering),
        recoverer=recoverer,
        relapse_rate=around(p.relapse_rate, RELAPSE_SPREAD, 14),
        ischemia_center=p.ischemia_center + p.ischemia_center_spread * z[15],
        vasoplegia_depth=jnp.where(u[2] < p.vasoplegic, depth, 0.0),
        vasoplegia_start=VASOPLEGIA_LATEST * u[4],
        vasoplegia_hours=VASOPLEGIA_HOURS + VASOPLEGIA_HOURS_RANGE * u[5],
        pressor_target=p.pressor_target + p.pressor_target_spread * z[16],
        reflex_rate=REFLEX_RATE + REFLEX_RATE_RANGE * u[6],
        reflex_resistance=REFLEX_RESISTANCE + REFLEX_RESISTANCE_RANGE * u[7],
        reflex_set=REFLEX_SET + REFLEX_SET_SD * z[17],
        pressure_offset=p.pressure_offset_mean + p.pressure_offset * z[18],
        lv_offset=p.lv_offset_mean + p.lv_offset * z[19],
        elastance_bias=jnp.exp(p.elastance_bias * z[20]) * p.elastance_scale,
        current_bias=CURRENT_BIAS_SD * z[21],
        stay_hours=around(p.stay_hours, STAY_SPREAD, 22),
    )
