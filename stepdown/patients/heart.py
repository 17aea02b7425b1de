"""The circulation of one patient, resolved within the beat.

Two ventricles with time-varying elastance, systemic and pulmonary arteries and veins,
four diode valves and a pump from the left ventricle to the aorta. Six volumes are stepped
in phase with the beat (`STEPS_PER_BEAT` steps, so a beat always ends on a step) by
linearly implicit flows; every flow leaves one volume and enters another, so blood is
conserved to rounding. Pressures in mmHg, volumes in mL, flows in mL/s, times in s.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stepdown.patients.pump import PumpProfile, pump_flow

STEPS_PER_BEAT = 96  # about 7 ms; MAP within 0.12 mmHg of a 20 times finer step
IMPLICIT = 0.5  # share of the coming volume change that a flow already feels
LITERS_PER_MINUTE = 60.0 / 1000.0  # in one mL/s

# activation: systole shortens with the rate (docs/cohort.md); the numbers are set so that a
# published heart comes out with its mean LV pressure (Korakianitis and Shi; tests)
PEAK_TIME = 0.29  # of the elastance, times the square root of the period, s
TURN = 1.15  # of the time to the peak: there the raised cosine gives way to relaxation
LONGEST_TAU = 0.27  # of the time left in the beat: by its end the ventricle is relaxed

# suction (judgment): a ventricle near its dead volume gives the pump no more
SUCTION_STRETCH, SUCTION_WIDTH = 8.0, 4.0  # mL above the dead volume

CURVE_LIMITS = (-6.0, 4.0)  # of the exponent of the diastolic curve: guards the exponential

# where the blood is before it settles, as shares of the stressed volume
START_SHARES = {
    "lv": 0.14,
    "arteries": 0.045,
    "veins": 0.54,
    "rv": 0.12,
    "pulmonary_arteries": 0.065,
    "pulmonary_veins": 0.09,
}


class Circulation(eqx.Module):
    """What a heart and its vessels are like at one moment."""

    period: Float[Array, ""]  # s, one beat
    lv_elastance: Float[Array, ""]  # mmHg/mL at end systole
    lv_dead_volume: Float[Array, ""]  # mL
    lv_stiffness: Float[Array, ""]  # mmHg, scale of the diastolic curve
    lv_curvature: Float[Array, ""]  # 1/mL
    relaxation: Float[Array, ""]  # s, time constant of the pressure fall
    rv_elastance: Float[Array, ""]
    resistance: Float[Array, ""]  # systemic, mmHg s/mL
    arterial_compliance: Float[Array, ""]  # mL/mmHg
    root_resistance: Float[Array, ""]  # of the aortic root, mmHg s/mL
    pulmonary_resistance: Float[Array, ""]
    blood_volume: Float[Array, ""]  # mL, stressed
    pump_gain: Float[Array, ""]  # share of the profile's flow that this pump delivers
    # the same in all patients: usual values of lumped models of the circulation, judgment
    rv_dead_volume: Float[Array, ""] | float = 10.0  # mL
    rv_stiffness: Float[Array, ""] | float = 0.35  # mmHg
    rv_curvature: Float[Array, ""] | float = 0.023  # 1/mL
    venous_compliance: Float[Array, ""] | float = 70.0  # mL/mmHg
    pulmonary_artery_compliance: Float[Array, ""] | float = 6.0  # mL/mmHg
    pulmonary_vein_compliance: Float[Array, ""] | float = 10.0  # mL/mmHg
    aortic_valve: Float[Array, ""] | float = 0.010  # mmHg s/mL, as all valves
    mitral_valve: Float[Array, ""] | float = 0.012
    tricuspid_valve: Float[Array, ""] | float = 0.040  # with the venous return's own
    pulmonary_valve: Float[Array, ""] | float = 0.020  # with the pulmonary root's own


class Volumes(eqx.Module):
    """Where the blood is, and what flows into the root: the state of the circulation."""

    lv: Float[Array, ""]
    arteries: Float[Array, ""]
    veins: Float[Array, ""]
    rv: Float[Array, ""]
    pulmonary_arteries: Float[Array, ""]
    pulmonary_veins: Float[Array, ""]
    root_inflow: Float[Array, ""]  # mL/s, of the step before

    def total(self) -> Float[Array, ""]:
        """Stressed blood volume in mL."""
        systemic = self.lv + self.arteries + self.veins
        return systemic + self.rv + self.pulmonary_arteries + self.pulmonary_veins


class Moment(eqx.Module):
    """Pressures, flows and volumes at one step of a beat."""

    aortic: Float[Array, ""]  # mmHg at the root, where the pump measures
    lv: Float[Array, ""]
    pump: Float[Array, ""]  # L/min
    ejected: Float[Array, ""]  # L/min through the aortic valve
    lv_volume: Float[Array, ""]
    venous: Float[Array, ""]
    pulmonary_venous: Float[Array, ""]


class Beat(eqx.Module):
    """One beat in numbers."""

    map: Float[Array, ""]
    sbp: Float[Array, ""]
    dbp: Float[Array, ""]
    lvp: Float[Array, ""]  # mean
    lvedp: Float[Array, ""]  # at the last step of diastole
    flow: Float[Array, ""]  # pump, L/min
    output: Float[Array, ""]  # pump and valve together, L/min
    elastance: Float[Array, ""]  # largest P/V, what a console can estimate
    lv_largest: Float[Array, ""]
    lv_smallest: Float[Array, ""]
    venous: Float[Array, ""]  # mean central venous pressure
    pulmonary_venous: Float[Array, ""]


def start_volumes(blood_volume: Float[Array, ""]) -> Volumes:
    """A plausible distribution to settle from; sums to the stressed volume."""
    parts = {name: blood_volume * share for name, share in START_SHARES.items()}
    return Volumes(**parts, root_inflow=jnp.zeros_like(blood_volume))


def activation(
    phase: Float[Array, " n"], period: Float[Array, ""], relaxation: Float[Array, ""]
) -> Float[Array, " n"]:
    """Elastance between 0 and 1: a raised cosine to the peak, then exponential relaxation.

    The peak comes with the square root of the period, the usual shortening of systole with rate.
    The relaxation is capped so that the ventricle is relaxed when the next beat begins.
    """
    peak = PEAK_TIME * jnp.sqrt(period)
    turn = TURN * peak
    tau = jnp.minimum(relaxation, LONGEST_TAU * (period - turn))
    seconds = phase * period
    rise = 0.5 * (1.0 - jnp.cos(jnp.pi * jnp.minimum(seconds, turn) / peak))
    return rise * jnp.exp(-jnp.maximum(seconds - turn, 0.0) / tau)


def beat(
    volumes: Volumes,
    circulation: Circulation,
    level: Int[Array, ""],
    profile: PumpProfile,
    steps: int = STEPS_PER_BEAT,
) -> tuple[Volumes, Beat]:
    """One whole beat, summed up as it runs."""
    phases = (jnp.arange(steps) + 1.0) / steps
    active = activation(phases, circulation.period, circulation.relaxation)

    def body(carry, e):
        volumes, seen = carry
        volumes, moment = step(volumes, circulation, level, profile, e, steps)
        return (volumes, _watch(seen, moment)), None

    zero, high = jnp.zeros(()), jnp.full((), 1e6)
    nothing = Beat(zero, -high, high, zero, zero, zero, zero, zero, zero, high, zero, zero)
    (volumes, seen), _ = jax.lax.scan(body, (volumes, nothing), active)
    means = {
        name: getattr(seen, name) / steps
        for name in ("map", "lvp", "flow", "output", "venous", "pulmonary_venous")
    }
    return volumes, dataclasses.replace(seen, **means)


def _watch(seen: Beat, now: Moment) -> Beat:
    return Beat(
        map=seen.map + now.aortic,
        sbp=jnp.maximum(seen.sbp, now.aortic),
        dbp=jnp.minimum(seen.dbp, now.aortic),
        lvp=seen.lvp + now.lv,
        lvedp=now.lv,
        flow=seen.flow + now.pump,
        output=seen.output + now.pump + now.ejected,
        elastance=jnp.maximum(seen.elastance, now.lv / now.lv_volume),
        lv_largest=jnp.maximum(seen.lv_largest, now.lv_volume),
        lv_smallest=jnp.minimum(seen.lv_smallest, now.lv_volume),
        venous=seen.venous + now.venous,
        pulmonary_venous=seen.pulmonary_venous + now.pulmonary_venous,
    )


def step(
    volumes: Volumes,
    circulation: Circulation,
    level: Int[Array, ""],
    profile: PumpProfile,
    active: Float[Array, ""],
    steps: int = STEPS_PER_BEAT,
) -> tuple[Volumes, Moment]:
    """Advance by one `steps`-th of a beat under the elastance share `active`."""
    c = circulation
    dt = c.period / steps
    soft = IMPLICIT * dt
    stretch = volumes.lv - c.lv_dead_volume
    lv, lv_slope = _ventricle(stretch, active, c.lv_elastance, c.lv_stiffness, c.lv_curvature)
    rv, rv_slope = _ventricle(
        volumes.rv - c.rv_dead_volume, active, c.rv_elastance, c.rv_stiffness, c.rv_curvature
    )
    arterial = volumes.arteries / c.arterial_compliance
    venous = volumes.veins / c.venous_compliance
    pulmonary = volumes.pulmonary_arteries / c.pulmonary_artery_compliance
    pulmonary_venous = volumes.pulmonary_veins / c.pulmonary_vein_compliance
    root = arterial + c.root_resistance * volumes.root_inflow

    wanted = pump_flow(profile, level, root - lv) * c.pump_gain
    filled = jax.nn.sigmoid((stretch - SUCTION_STRETCH) / SUCTION_WIDTH)
    pump = wanted * filled / LITERS_PER_MINUTE

    def through(gap, resistance, up, down):
        return gap / (resistance + soft * (up + down))

    arterial_slope, venous_slope = 1 / c.arterial_compliance, 1 / c.venous_compliance
    artery_slope, vein_slope = 1 / c.pulmonary_artery_compliance, 1 / c.pulmonary_vein_compliance
    forward = jax.nn.relu(lv - arterial - c.root_resistance * pump)
    ejected = through(forward, c.aortic_valve + c.root_resistance, lv_slope, arterial_slope)
    filling = through(jax.nn.relu(pulmonary_venous - lv), c.mitral_valve, vein_slope, lv_slope)
    perfusion = through(arterial - venous, c.resistance, arterial_slope, venous_slope)
    returned = through(jax.nn.relu(venous - rv), c.tricuspid_valve, venous_slope, rv_slope)
    right = through(jax.nn.relu(rv - pulmonary), c.pulmonary_valve, rv_slope, artery_slope)
    lungs = through(pulmonary - pulmonary_venous, c.pulmonary_resistance, artery_slope, vein_slope)

    after = Volumes(
        lv=volumes.lv + dt * (filling - ejected - pump),
        arteries=volumes.arteries + dt * (ejected + pump - perfusion),
        veins=volumes.veins + dt * (perfusion - returned),
        rv=volumes.rv + dt * (returned - right),
        pulmonary_arteries=volumes.pulmonary_arteries + dt * (right - lungs),
        pulmonary_veins=volumes.pulmonary_veins + dt * (lungs - filling),
        root_inflow=ejected + pump,
    )
    moment = Moment(
        aortic=arterial + c.root_resistance * (ejected + pump),
        lv=lv,
        pump=pump * LITERS_PER_MINUTE,
        ejected=ejected * LITERS_PER_MINUTE,
        lv_volume=volumes.lv,
        venous=venous,
        pulmonary_venous=pulmonary_venous,
    )
    return after, moment


def _ventricle(stretch, active, elastance, stiffness, curvature):
    """Pressure and its slope with volume, between the systolic and the diastolic line."""
    curve = jnp.exp(jnp.clip(curvature * stretch, *CURVE_LIMITS))
    pressure = active * elastance * stretch + (1 - active) * stiffness * (curve - 1)
    slope = active * elastance + (1 - active) * stiffness * curvature * curve
    return pressure, slope
