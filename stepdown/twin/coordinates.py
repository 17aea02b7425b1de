"""Free coordinates of a sample: whatever they are, the sample obeys what is known to hold.

Diastolic pressure is at most mean pressure, which is at most systolic pressure; pulsatility is
systolic less diastolic pressure; the pump turns at the speed of its level, its flow follows from
the head against it and its current from the flow, but for a scatter as recorded; nothing leaves its
hard range. A forecast that
knows the twelve signals by themselves breaks these rules now and then, and mending it afterwards
would bend its distribution. So twins forecast coordinates that are free of any rule, and signals
are made of them:

    mean pressure, pulsatility                 each within its range
    share of the pulse below the mean          within 0 to 1: diastolic and systolic pressure
    speed                                      off the level's, within two percent of it
    flow, current                              off the pump's map, within the recorded scatter
    all others                                 each within its range

`bend` takes a free number into a range. It is nearly the identity but for the last steps before an
edge, so errors keep their size. Where the usual values of a signal begin at the edge itself (a drug
that is not given), the edge is sharp: all that lies beyond it means the edge.

There is one coordinate for each signal in use, in the order of the columns; that of a signal which
the others determine is 0. Recorded samples that break a rule get the coordinates of a near sample
that obeys.

A network gives coordinates in a unit of their own: that which moves the signals, all taken
together, by one standard deviation. So an error weighs as it does in the signals: one of mean
pressure counts for three pressures, one of a current off the map for next to nothing.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.handover import Transitions
from stepdown.patients.pump import SPEED_TOLERANCE, PumpProfile, motor_current, pump_flow
from stepdown.signals import (
    CURRENT,
    DBP,
    FLOW,
    KNOWN,
    LOWEST,
    LVP,
    MAP,
    PULSATILITY,
    SBP,
    SPEED,
)

SOFT = 6.0  # softnesses from a hard limit to the first usual value
SHARE_EDGE = 0.02  # of the share of the pulse below the mean
SCATTER_EDGE = 0.005  # of the recorded scatter: sharp, so that recorded samples do not feel it
NEAREST = 1e-3  # softnesses from an edge at which a recorded value counts at most
LEAST_SCATTER = 1e-3  # mA, L/min: a scatter has some width
LEAST_EFFECT = 1e-2  # of a coordinate on the signals, in sd: none is left without a scale
WEIGHED = 1024  # hours over which the effect of a coordinate is a mean
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
    near = jnp.minimum(step, width - step)  # steps from the nearer edge
    moved = jnp.maximum(near, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(near)))  # softplus of both
    moved = soft * (moved - jnp.log1p(jnp.exp(near - width)))
    return jnp.where(step < width / 2, low + moved, high - moved)


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
    """The scale of the free coordinates over the train patients' samples, and of forecasts."""

    mean: Float[Array, " used"]
    sd: Float[Array, " used"]
    unit: Float[Array, " used"]  # of a network's answers, in sd
    scatter: Float[Array, "2 2"]  # least and most off the pump's map: flow, L/min; current, mA
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
        made |= self._pressures(given)
        made |= self._pump(given, made, levels, pump)
        empty = jnp.full(len(free), jnp.nan)
        return jnp.stack([made.get(i, empty) for i in range(len(self.columns))], axis=1)

    def plain(self, hour: Samples, levels: Levels, pump: PumpProfile) -> Free:
        """The coordinates before they are scaled."""
        given = {column: hour[:, column] for column in self.present}
        free = {
            column: straighten(given[column], usual_range(self.columns[column]))
            for column in self.alone
        }
        free |= self._free_pressures(given)
        free |= self._free_pump(given, levels, pump)
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
        tied |= {FLOW} if self.headed else set()
        return tuple(column for column in self.present if column not in tied)

    @property
    def headed(self) -> bool:
        """The head against which the pump works is known, and so is its flow."""
        return {FLOW, MAP, LVP} <= set(self.present)

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
        pulse = bend(given[PULSATILITY], pulse_range())
        share = bend(given[self.paired[0]], _share_range(mean, pulse))
        below = jnp.minimum(share * pulse, mean - KNOWN["dbp"].hard[0])  # but for rounding, it is
        low, high = mean - below, mean + (1 - share) * pulse
        made = {MAP: mean, SBP: high, DBP: low, PULSATILITY: high - low}
        return {column: made[column] for column in (MAP, PULSATILITY, *self.paired)}

    def _free_pressures(self, given: dict[int, Array]) -> dict[int, Array]:
        if not self.paired:
            return {}
        low = given[DBP] if DBP in given else given[SBP] - given[PULSATILITY]
        high = given[SBP] if SBP in given else low + given[PULSATILITY]
        mean = straighten(given[MAP], self.mean_pressure)
        pulse = straighten(high - low, pulse_range())
        at, wide = bend(mean, self.mean_pressure), bend(pulse, pulse_range())
        share = straighten((at - low) / wide, _share_range(at, wide))
        nothing = {column: jnp.zeros_like(share) for column in self.paired}
        return nothing | {MAP: mean, PULSATILITY: pulse, self.paired[0]: share}

    # ── the pump: speed off its level, flow and current off its map ──────────────────────────────

    def _pump(self, given, made, levels: Levels, pump: PumpProfile) -> dict[int, Array]:
        found = {}
        if SPEED in given:
            found[SPEED] = pump.speed[levels - LOWEST] * (1 + bend(given[SPEED], OFF_SPEED))
        if self.headed:
            off = bend(given[FLOW], self.off_map(FLOW))
            expected = mapped_flow(pump, levels, made[MAP] - made[LVP])
            found[FLOW] = bend(expected + off, usual_range("flow"))
        if CURRENT in given and FLOW in given:
            off = bend(given[CURRENT], self.off_map(CURRENT))
            expected = mapped_current(pump, levels, (made | found)[FLOW])
            found[CURRENT] = bend(expected + off, usual_range("current"))
        return found

    def _free_pump(self, given, levels: Levels, pump: PumpProfile) -> dict[int, Array]:
        found = {}
        if SPEED in given:
            found[SPEED] = straighten(given[SPEED] / pump.speed[levels - LOWEST] - 1, OFF_SPEED)
        for column, off in self.away(given, levels, pump).items():
            found[column] = straighten(off, self.off_map(column))
        return found

    def away(self, given, levels: Levels, pump: PumpProfile) -> dict[int, Array]:
        """How far recorded flow and current lie off the pump's map, as far as both are known."""
        found = {}
        if self.headed:
            pressure = self.mean_pressure if self.paired else usual_range("map")
            head = _obeying(given[MAP], pressure) - _obeying(given[LVP], usual_range("lvp"))
            flow = straighten(given[FLOW], usual_range("flow"))
            found[FLOW] = flow - mapped_flow(pump, levels, head)
        if CURRENT in given and FLOW in given:
            flow = _obeying(given[FLOW], usual_range("flow"))
            current = straighten(given[CURRENT], usual_range("current"))
            found[CURRENT] = current - mapped_current(pump, levels, flow)
        return found

    def off_map(self, column: int) -> Range:
        """From where to where a flow or a current may lie off the pump's map."""
        low, high = self.scatter[TIED.index(column)]
        return Range(low, high, (high - low) * SCATTER_EDGE)


TIED = (FLOW, CURRENT)  # to the pump's map


def pulse_range() -> Range:
    """Of the pulse whose ends are the pressures; their difference may round up."""
    low, high, soft = usual_range("pulsatility")
    return Range(low, high * INSIDE, soft)


def _share_range(mean: Array, pulse: Array) -> Range:
    """How much of a pulse may lie below the mean, for both ends to stay in their ranges."""
    pulse = jnp.maximum(pulse, LEAST_PULSE)
    low = jnp.maximum(0.0, 1 - INSIDE * (KNOWN["sbp"].hard[1] - mean) / pulse)
    high = jnp.minimum(1.0, INSIDE * (mean - KNOWN["dbp"].hard[0]) / pulse)
    return Range(low, high, SHARE_EDGE)


def _obeying(value: Float[Array, " steps"], within: Range) -> Float[Array, " steps"]:
    """The value that a recorded one becomes on its way through the coordinates."""
    return bend(straighten(value, within), within)


def mapped_flow(pump: PumpProfile, levels: Levels, head: Float[Array, " steps"]):
    """What the pump's map says about flow against a head, L/min."""
    return jax.vmap(lambda level, head: pump_flow(pump, level, head))(levels, head)


def mapped_current(pump: PumpProfile, levels: Levels, flow: Float[Array, " steps"]):
    """What the pump's map says about current at a flow, mA."""
    return jax.vmap(lambda level, flow: motor_current(pump, level, flow))(levels, flow)


def fit_coordinates(hours: Transitions, present: tuple[int, ...], pump: PumpProfile) -> Coordinates:
    """The scale over the hours that followed the decisions, whose levels are known by sample."""
    scale = blank_coordinates(present, hours.columns)
    scatter = np.array(scale.scatter)
    for column, away in _all_away(scale, hours, pump).items():
        low, high = float(away.min()), float(away.max())
        room = max(LEAST_SCATTER - (high - low), 0.0) / 2
        scatter[TIED.index(column)] = low - room, high + room
    scale = eqx.tree_at(lambda x: x.scatter, scale, jnp.asarray(scatter))
    plain = np.asarray(_all_plain(scale, hours, pump), np.float64).reshape(-1, len(present))
    mean, spread = plain.mean(0), plain.std(0)
    sd = np.where(spread > 1e-6 * (1 + np.abs(mean)), spread, 1.0)  # a constant carries no scale
    mean, sd = (jnp.asarray(x, jnp.float32) for x in (mean, sd))
    scale = Coordinates(mean, sd, scale.unit, scale.scatter, present, hours.columns)
    return eqx.tree_at(lambda x: x.unit, scale, fit_unit(scale, hours, pump))


def fit_unit(scale: Coordinates, hours: Transitions, pump: PumpProfile) -> Float[Array, " used"]:
    """One over the root of the summed squares of what a coordinate moves, in sd of the signals."""
    chosen = np.unique(np.linspace(0, len(hours.level) - 1, WEIGHED).astype(int))
    used = np.array(scale.present)
    spread = np.asarray(hours.next_state, np.float64)[..., used].std((0, 1))
    spread = jnp.asarray(np.where(spread > 0, spread, 1.0), jnp.float32)
    moves = _effects(scale, hours.next_state[chosen], hours.levels[chosen], pump)
    effect = jnp.sqrt(jnp.sum(jnp.mean((moves / spread[None, :, None]) ** 2, axis=0), axis=0))
    return jnp.where(effect > 0, 1 / jnp.maximum(effect, LEAST_EFFECT), 1.0)


@eqx.filter_jit
def _effects(scale: Coordinates, hours, levels, pump: PumpProfile) -> Float[Array, "n used used"]:
    """By how much each signal of an hour's last sample moves with each coordinate."""
    used = np.array(scale.present)

    def one(hour, levels):
        now = scale.to_free(hour[-1:], levels[-1:], pump)[0]
        sample = lambda free: scale.to_samples(free[None], levels[-1:], pump)[0, used]  # noqa: E731
        return jax.jacfwd(sample)(now)

    return jax.vmap(one)(hours, levels)


@eqx.filter_jit
def _all_away(scale: Coordinates, hours: Transitions, pump: PumpProfile):
    def one(hour, levels):
        return scale.away({column: hour[:, column] for column in scale.present}, levels, pump)

    return jax.vmap(one)(hours.next_state, hours.levels)


@eqx.filter_jit
def _all_plain(coordinates: Coordinates, hours: Transitions, pump: PumpProfile):
    one = lambda hour, levels: coordinates.plain(hour, levels, pump)  # noqa: E731
    return jax.vmap(one)(hours.next_state, hours.levels)


def blank_coordinates(present: tuple[int, ...], columns: tuple[str, ...]) -> Coordinates:
    """A scale of the right shape and any content, for what is about to be read."""
    count = len(present)
    scatter = jnp.broadcast_to(jnp.asarray([-1.0, 1.0]), (len(TIED), 2))
    return Coordinates(
        jnp.zeros(count), jnp.ones(count), jnp.ones(count), scatter, present, columns
    )
