"""Free coordinates of a sample: whatever they are, the sample obeys what is known to hold.

Diastolic pressure is at most mean pressure, which is at most systolic pressure; pulsatility is
systolic less diastolic pressure; the pump turns at the speed of its level, and its current follows
from flow and level but for a scatter as recorded; nothing leaves its hard range. A forecast that
knows the twelve signals by themselves breaks these rules now and then, and mending it afterwards
would bend its distribution. So twins forecast coordinates that are free of any rule, and signals
are made of them:

    mean pressure, pulsatility                 each within its range
    share of the pulse below the mean          within 0 to 1: diastolic and systolic pressure
    speed                                      off the level's, within two percent of it
    flow                                       within its range
    current                                    off the pump's map, within the recorded scatter
    all others                                 each within its range

`bend` takes a free number into a range. It is nearly the identity but for the last steps before an
edge, so errors keep their size. Where the usual values of a signal begin at the edge itself (a drug
that is not given), the edge is sharp: all that lies beyond it means the edge.

There is one coordinate for each signal in use, in the order of the columns; that of a signal which
the others determine is 0. Recorded samples that break a rule get the coordinates of a near sample
that obeys.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.handover import Transitions
from stepdown.patients.pump import SPEED_TOLERANCE, PumpProfile, motor_current
from stepdown.signals import (
    CURRENT,
    DBP,
    FLOW,
    KNOWN,
    LOWEST,
    MAP,
    PULSATILITY,
    SBP,
    SPEED,
)

SOFT = 6.0  # softnesses from a hard limit to the first usual value
SHARE_EDGE = 0.02  # of the share of the pulse below the mean
NEAREST = 1e-3  # softnesses from an edge at which a recorded value counts at most
WIDER = 0.1  # of the recorded range of the scatter, allowed on either side
LEAST_PULSE = 1e-3  # mmHg, to divide by
INSIDE = 1 - 1e-6  # a share that rounding cannot carry beyond its edge

Samples = Float[Array, "steps columns"]
Levels = Int[Array, " steps"]
Free = Float[Array, "steps used"]


class Range(NamedTuple):
    """Two edges, and over what distance a number slows down before one; 0: not at all."""

    low: Array | float
    high: Array | float
    soft: Array | float


def bend(free: Float[Array, "*n"], within: Range) -> Float[Array, "*n"]:
    """A free number taken between two edges: itself far from both, ever slower near one."""
    low, high, soft = within
    if isinstance(soft, float) and soft == 0.0:
        return jnp.clip(free, low, high)
    step, width = (free - low) / soft, (high - low) / soft
    up = jax.nn.softplus(step) - jax.nn.softplus(step - width)
    down = jax.nn.softplus(width - step) - jax.nn.softplus(-step)
    return jnp.where(step < width / 2, low + soft * up, high - soft * down)


def straighten(value: Float[Array, "*n"], within: Range) -> Float[Array, "*n"]:
    """`bend` undone; a value at an edge or beyond counts as one just inside."""
    low, high, soft = within
    if isinstance(soft, float) and soft == 0.0:
        return jnp.clip(value, low, high)
    width = (high - low) / soft
    least = jnp.minimum(NEAREST, width / 4)
    step = jnp.clip((value - low) / soft, least, width - least)
    step = step + jnp.log(-jnp.expm1(-step)) - jnp.log(-jnp.expm1(step - width))
    return low + soft * step


def usual_range(name: str) -> Range:
    """Hard limits of a column, and edges so soft that usual values do not feel them."""
    (low, high), (first, last) = KNOWN[name].hard, KNOWN[name].soft
    return Range(low, high, min(first - low, high - last) / SOFT)


OFF_SPEED = Range(-SPEED_TOLERANCE, SPEED_TOLERANCE, SPEED_TOLERANCE / SOFT)


class Coordinates(eqx.Module):
    """The scale of the free coordinates over the train patients' samples."""

    mean: Float[Array, " used"]
    sd: Float[Array, " used"]
    scatter: Float[Array, " 2"]  # mA, least and most that a current lies off the pump's map
    present: tuple[int, ...] = eqx.field(static=True)  # columns of the signals in use
    columns: tuple[str, ...] = eqx.field(static=True)  # of signals.KNOWN

    def to_free(self, hour: Samples, levels: Levels, pump: PumpProfile) -> Free:
        """The coordinates of samples in physical units, each under its level."""
        return (self.plain(hour, levels, pump) - self.mean[None]) / self.sd[None]

    def to_samples(self, free: Free, levels: Levels, pump: PumpProfile) -> Samples:
        """The samples of coordinates; signals that are not in use are NaN."""
        plain = free * self.sd[None] + self.mean[None]
        given = {column: plain[:, place] for place, column in enumerate(self.present)}
        made = {
            column: bend(given[column], usual_range(self.columns[column])) for column in self.alone
        }
        made |= self._pressures(given) | self._pump(given, made, levels, pump)
        empty = jnp.full(len(free), jnp.nan)
        return jnp.stack([made.get(i, empty) for i in range(len(self.columns))], axis=1)

    def plain(self, hour: Samples, levels: Levels, pump: PumpProfile) -> Free:
        """The coordinates before they are scaled."""
        given = {column: hour[:, column] for column in self.present}
        free = {
            column: straighten(given[column], usual_range(self.columns[column]))
            for column in self.alone
        }
        free |= self._free_pressures(given) | self._free_pump(given, free, levels, pump)
        return jnp.stack([free[column] for column in self.present], axis=1)

    @property
    def paired(self) -> tuple[int, ...]:
        """Systolic and diastolic pressure, as far as they are in use."""
        return tuple(column for column in (SBP, DBP) if column in self.present)

    @property
    def alone(self) -> tuple[int, ...]:
        """The signals with a range of their own and no tie to others."""
        tied = {SBP, DBP, SPEED}
        tied |= {MAP, PULSATILITY} if self.paired else set()
        tied |= {CURRENT} if FLOW in self.present else set()
        return tuple(column for column in self.present if column not in tied)

    @property
    def mean_pressure(self) -> Range:
        """A diastolic pressure may be as high as the mean, so the stricter limit holds for both."""
        low, high, soft = usual_range("map")
        return Range(low, min(high, KNOWN["dbp"].hard[1]), soft)

    # ── pressures: mean, pulse, and the share of the pulse below the mean ────────────────────────

    def _pressures(self, given: dict[int, Array]) -> dict[int, Array]:
        if not self.paired:
            return {}
        mean = bend(given[MAP], self.mean_pressure)
        pulse = bend(given[PULSATILITY], usual_range("pulsatility"))
        share = bend(given[self.paired[0]], _share_range(mean, pulse))
        low, high = mean - share * pulse, mean + (1 - share) * pulse
        made = {MAP: mean, SBP: high, DBP: low, PULSATILITY: high - low}
        return {column: made[column] for column in (MAP, PULSATILITY, *self.paired)}

    def _free_pressures(self, given: dict[int, Array]) -> dict[int, Array]:
        if not self.paired:
            return {}
        low = given[DBP] if DBP in given else given[SBP] - given[PULSATILITY]
        high = given[SBP] if SBP in given else low + given[PULSATILITY]
        mean = straighten(given[MAP], self.mean_pressure)
        pulse = straighten(high - low, usual_range("pulsatility"))
        at, wide = bend(mean, self.mean_pressure), bend(pulse, usual_range("pulsatility"))
        share = straighten((at - low) / wide, _share_range(at, wide))
        nothing = {column: jnp.zeros_like(share) for column in self.paired}
        return nothing | {MAP: mean, PULSATILITY: pulse, self.paired[0]: share}

    # ── the pump: speed off its level, current off its map ───────────────────────────────────────

    def _pump(self, given, made, levels: Levels, pump: PumpProfile) -> dict[int, Array]:
        found = {}
        if SPEED in given:
            found[SPEED] = pump.speed[levels - LOWEST] * (1 + bend(given[SPEED], OFF_SPEED))
        if CURRENT in given and FLOW in given:
            off = bend(given[CURRENT], self._off_map)
            found[CURRENT] = bend(_mapped(pump, levels, made[FLOW]) + off, usual_range("current"))
        return found

    def _free_pump(self, given, free, levels: Levels, pump: PumpProfile) -> dict[int, Array]:
        found = {}
        if SPEED in given:
            found[SPEED] = straighten(given[SPEED] / pump.speed[levels - LOWEST] - 1, OFF_SPEED)
        if CURRENT in given and FLOW in given:
            flow = bend(free[FLOW], usual_range("flow"))
            off = off_map(given[CURRENT], flow, levels, pump)
            found[CURRENT] = straighten(off, self._off_map)
        return found

    @property
    def _off_map(self) -> Range:
        low, high = self.scatter
        return Range(low, high, (high - low) / (4 * SOFT))


def _share_range(mean: Array, pulse: Array) -> Range:
    """How much of a pulse may lie below the mean, for both ends to stay in their ranges."""
    pulse = jnp.maximum(pulse, LEAST_PULSE)
    low = jnp.maximum(0.0, 1 - INSIDE * (KNOWN["sbp"].hard[1] - mean) / pulse)
    high = jnp.minimum(1.0, INSIDE * (mean - KNOWN["dbp"].hard[0]) / pulse)
    return Range(low, high, SHARE_EDGE)


def _mapped(pump: PumpProfile, levels: Levels, flow: Float[Array, " steps"]):
    return jax.vmap(lambda level, flow: motor_current(pump, level, flow))(levels, flow)


def off_map(
    current: Float[Array, " steps"],
    flow: Float[Array, " steps"],
    levels: Levels,
    pump: PumpProfile,
) -> Float[Array, " steps"]:
    """How far a current lies off the pump's map, mA, before it meets the edges of its range."""
    return straighten(current, usual_range("current")) - _mapped(pump, levels, flow)


def fit_coordinates(hours: Transitions, present: tuple[int, ...], pump: PumpProfile) -> Coordinates:
    """The scale over the hours that followed the decisions, whose levels are known by sample."""
    blank = blank_coordinates(present, hours.columns)
    if CURRENT in present and FLOW in present:
        away = np.asarray(_all_off_map(hours, pump))
        margin = WIDER * max(float(np.ptp(away)), 1.0)
        scatter = jnp.asarray([away.min() - margin, away.max() + margin], jnp.float32)
        blank = eqx.tree_at(lambda x: x.scatter, blank, scatter)
    plain = np.asarray(_all_plain(blank, hours, pump), np.float64).reshape(-1, len(present))
    mean, spread = plain.mean(0), plain.std(0)
    sd = np.where(spread > 1e-6 * (1 + np.abs(mean)), spread, 1.0)  # a constant carries no scale
    mean, sd = (jnp.asarray(x, jnp.float32) for x in (mean, sd))
    return Coordinates(mean, sd, blank.scatter, present, hours.columns)


@eqx.filter_jit
def _all_off_map(hours: Transitions, pump: PumpProfile):
    def one(hour, levels):
        flow = straighten(hour[:, FLOW], usual_range("flow"))
        flow = bend(flow, usual_range("flow"))
        return off_map(hour[:, CURRENT], flow, levels, pump)

    return jax.vmap(one)(hours.next_state, hours.levels)


@eqx.filter_jit
def _all_plain(coordinates: Coordinates, hours: Transitions, pump: PumpProfile):
    one = lambda hour, levels: coordinates.plain(hour, levels, pump)  # noqa: E731
    return jax.vmap(one)(hours.next_state, hours.levels)


def blank_coordinates(present: tuple[int, ...], columns: tuple[str, ...]) -> Coordinates:
    """A scale of the right shape and any content, for what is about to be read."""
    count = len(present)
    scatter = jnp.asarray([-1.0, 1.0])
    return Coordinates(jnp.zeros(count), jnp.ones(count), scatter, present, columns)
