"""How patients move within the hour: bouts over a calm ground (version 2 of the cohorts).

Real signals are calm most of the time and jump when they jump. What makes them jump is told here as
bouts that come by chance and fade: coughing, drug boluses, runs of arrhythmia, turning, suction at
the pump's inlet, a console that zeroes its estimate anew. A bout acts on the circulation (vessel
tone, contractility, heart rate, venous return, pump) or on the height and the zero of a sensor,
never on a reported number alone, so that all signals answer together as the physics has it.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from stepdown.patients.population import Luck, Movement

KINDS = 5  # of bouts: coughing, boluses, runs, turns, suction
STIR_LUCK = (2 * KINDS + 2, 5)  # uniforms, normals
MOST = 4.0  # average bouts that act at once: a limit against a rare heap
FULLEST = 0.6  # share of the flow that suction may take


class Stir(eqx.Module):
    """What stirs one patient at this moment."""

    bouts: Float[Array, " kinds"]  # in bouts of average size; either sign
    tone: Float[Array, ""]  # the calm ground
    drive: Float[Array, ""]
    thorax: Float[Array, ""]
    pulse: Float[Array, ""]
    zero: Float[Array, ""]  # mmHg that the last zeroing put upon the LV pressure estimate
    flow: Float[Array, ""]  # L/min, drift of the console's flow


class Push(eqx.Module):
    """What that does to the circulation and to the height of the sensors."""

    tone: Float[Array, ""]  # log of the resistance
    drive: Float[Array, ""]  # log of the contractility
    rate: Float[Array, ""]  # /min
    volume: Float[Array, ""]  # mL of venous return
    thorax: Float[Array, ""]  # mmHg on every pressure in the chest
    gain: Float[Array, ""]  # share of the pump's flow that is left


def calm() -> Stir:
    """A patient whom nothing stirs."""
    zero = jnp.zeros(())
    return Stir(jnp.zeros(KINDS), zero, zero, zero, zero, zero, zero)


def stir(now: Stir, m: Movement, dt: float, luck: Luck) -> Stir:
    """One tick: bouts fade, new ones come, the ground wanders."""
    u, z = luck.uniform, luck.normal
    rates = (m.coughs, m.boluses, m.runs, m.turns, m.suctions)
    lengths = (m.cough_hours, m.bolus_hours, m.run_hours, m.turn_hours, m.suction_hours)
    per_hour, hours = (jnp.stack([jnp.asarray(x) for x in row]) for row in (rates, lengths))
    come = u[:KINDS] < 1 - jnp.exp(-per_hour * dt)
    fresh = come * laplace(u[KINDS : 2 * KINDS])
    zeroed = u[2 * KINDS] < 1 - jnp.exp(-m.zeroings * dt)

    def wander(value, sd, hours, i):
        keep = jnp.exp(-dt / hours)
        return keep * value + sd * jnp.sqrt(1 - keep**2) * z[i]

    return Stir(
        bouts=jnp.clip(now.bouts * jnp.exp(-dt / hours) + fresh, -MOST, MOST),
        tone=wander(now.tone, m.tone_ground, m.ground_hours, 0),
        drive=wander(now.drive, m.drive_ground, m.drive_hours, 1),
        thorax=wander(now.thorax, m.thorax_ground, m.ground_hours, 2),
        pulse=wander(now.pulse, m.pulse_ground, m.ground_hours, 3),
        zero=jnp.where(zeroed, m.zeroing_step * laplace(u[2 * KINDS + 1]), now.zero),
        flow=wander(now.flow, m.flow_drift, m.flow_drift_hours, 4),
    )


def laplace(uniform: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """A size of either sign, 1 on average: small ones often, large ones now and then."""
    side = 2 * uniform - 1
    return -jnp.sign(side) * jnp.log(jnp.maximum(1 - jnp.abs(side), 1e-6))


def push(now: Stir, m: Movement) -> Push:
    """What bouts and ground do together."""
    cough, bolus, run, turn, suction = now.bouts
    return Push(
        tone=now.tone,
        drive=now.drive + m.bolus_drive * bolus - m.run_drive * jnp.abs(run),
        rate=m.cough_rate * cough + m.run_rate * run,
        volume=m.turn_volume * turn,
        thorax=now.thorax + m.cough_thorax * cough + m.turn_thorax * turn,
        gain=1 - jnp.minimum(m.suction_gain * jnp.abs(suction), FULLEST),
    )
