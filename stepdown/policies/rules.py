"""Rules that learn nothing, as policies: hold, taper, a protocol, chance, one level for all.

Each gives log-probabilities, so a rule is judged, charged and compared as any policy is. A certain
choice has log-probability 0 and every other level a finite number near minus a billion, so drawing
from it (`patients.episodes.Sampled`) and taking its mode are the same. Chance must be drawn: the
mode of eight equal levels is always P2.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.handover import Policy
from stepdown.patients.clinicians import (
    CEILING,
    MAP_LOW,
    MAP_READY,
    MAP_SINKING,
    PROTOCOL,
    PULSATILITY_READY,
    RATE_READY,
    RESCUE_SIZE,
    STEP_SIZE,
)
from stepdown.policies.constraint import masked
from stepdown.policies.networks import level_in_force
from stepdown.problem.clinical import PAPER, ClinicalConfig, stable_by_limits
from stepdown.signals import HIGHEST, HR, LEVELS, LOWEST, MAP, PULSATILITY

TAPER = 2  # levels at a time, as the instructions for use have it

Hour = Float[Array, "steps columns"]
Weights = Float[Array, " 8"]


class Always(eqx.Module):
    """One level, whoever the patient."""

    level: Int[Array, ""]

    def __call__(self, state: Hour, /) -> Weights:
        """Ignore the patient."""
        return certain(self.level)


class Hold(eqx.Module):
    """Leave the level as it is."""

    def __call__(self, state: Hour, /) -> Weights:
        """The level in force."""
        return certain(level_in_force(state))


class StepDown(eqx.Module):
    """Blind weaning: one level down every hour."""

    def __call__(self, state: Hour, /) -> Weights:
        """One below the level in force."""
        return certain(level_in_force(state) - 1)


class Taper(eqx.Module):
    """The instructions for use: two levels down after an hour within the limits, else hold."""

    config: ClinicalConfig = eqx.field(static=True, default=PAPER)

    def __call__(self, state: Hour, /) -> Weights:
        """Two below the level in force, or the same."""
        drop = jnp.where(stable_by_limits(state, self.config), TAPER, 0)
        return certain(level_in_force(state) - drop)


class Protocol(eqx.Module):
    """The protocol team of the simulated clinicians, without its memory.

    The thresholds are the teams' means without the cohort's shift (`Population.caution`), read from
    the last hour. Time since the last change, time of day, chance, a team's own lowest level and
    its tests are left out: a ready hour is a step. A rescue goes no higher than P8.
    """

    map_ready: float = MAP_READY  # mmHg above which a step down is considered
    pulsatility_ready: float = PULSATILITY_READY  # mmHg
    rate_ready: float = RATE_READY  # /min below which
    map_low: float = MAP_LOW  # mmHg below which support is raised by two
    map_sinking: float = MAP_SINKING  # mmHg below which it is raised by one

    def __call__(self, state: Hour, /) -> Weights:
        """Down by two when calm, up when the pressure sinks, else hold."""
        now = level_in_force(state)
        pressure, pulse, rate = (jnp.nanmean(state[:, i]) for i in (MAP, PULSATILITY, HR))
        calm = (pressure > self.map_ready) & (pulse > self.pulsatility_ready)
        calm &= rate < self.rate_ready
        rise = jnp.where(pressure < self.map_low, RESCUE_SIZE[PROTOCOL], 1)
        raised = jnp.maximum(now, jnp.minimum(now + rise, CEILING[PROTOCOL]))
        steady = jnp.where(calm, now - STEP_SIZE[PROTOCOL], now)
        return certain(jnp.where(pressure < self.map_sinking, raised, steady))


class Chance(eqx.Module):
    """Any level, all alike."""

    def __call__(self, state: Hour, /) -> Weights:
        """One eighth each."""
        return jnp.full(len(LEVELS), -jnp.log(len(LEVELS)))


def certain(level: Int[Array, ""]) -> Weights:
    """All weight on one level, the nearest that exists."""
    chosen = jnp.clip(level, LOWEST, HIGHEST)
    return masked(jnp.zeros(len(LEVELS)), np.array(LEVELS) == chosen)


RULES: dict[str, Policy] = {
    "hold": Hold(),
    "taper": Taper(),
    "protocol": Protocol(),
    "random": Chance(),
    "blind stepping down": StepDown(),
    **{f"always P{level}": Always(jnp.asarray(level)) for level in LEVELS},
}
