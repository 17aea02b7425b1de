"""Free coordinates of samples as parts of an ONNX graph: the arithmetic of twin/coordinates.py.

Columns are (batch, samples) each, by their number; levels are indices into P2..P9, (batch, samples)
or (batch, 1). Coordinates are (batch, samples, signals in use).
"""

import numpy as np

from stepdown.export.onnx_graph import Graph, level_index, numbers
from stepdown.export.onnx_pump import current_at, flow_at, pump_at
from stepdown.patients.pump import PumpProfile
from stepdown.problem.persistence import NEAR
from stepdown.signals import CURRENT, DBP, FLOW, KNOWN, LVP, MAP, PULSATILITY, SBP, SPEED
from stepdown.twin.coordinates import (
    INSIDE,
    LEAST_PULSE,
    NEAREST,
    OFF_SPEED,
    SHARE_EDGE,
    Coordinates,
    Range,
    pulse_range,
    usual_range,
)

Columns = dict[int, str]
Edges = tuple[str | float, str | float, float]  # low, high, soft


def split_columns(graph: Graph, signals: str, columns: tuple[int, ...]) -> Columns:
    """Some columns of (batch, samples, all) by themselves."""
    return {i: graph.add("Gather", signals, i, axis=2) for i in columns}


def levels_in_force(graph: Graph, pump: PumpProfile) -> str:
    """Index of the level whose speed each sample shows, else of the stated one, (batch, steps)."""
    speed = graph.add("Gather", "signals", np.array([SPEED]), axis=2)
    off = graph.add("Abs", graph.add("Sub", graph.add("Div", speed, numbers(pump.speed)), 1.0))
    nearest = graph.add("ArgMin", off, axis=2, keepdims=0)
    near = graph.add("Less", graph.add("ReduceMin", off, axes=[2], keepdims=0), NEAR)
    stated = graph.add("Unsqueeze", level_index(graph, "level"), np.array([1]))
    return graph.add("Where", near, nearest, stated)


def to_free(graph: Graph, scale: Coordinates, given: Columns, index: str, pump: PumpProfile) -> str:
    """Coordinates of samples in physical units, each under its level."""
    free = {i: _straighten(graph, given[i], _usual(scale.columns[i])) for i in scale.alone}
    free |= _free_pressures(graph, scale, given)
    if SPEED in scale.present:
        table = graph.add("Gather", numbers(pump.speed), index, axis=0)
        off = graph.add("Sub", graph.add("Div", given[SPEED], table), 1.0)
        free[SPEED] = _straighten(graph, off, _edges(OFF_SPEED))
    for column, off in _away(graph, scale, given, index, pump).items():
        free[column] = _straighten(graph, off, _scatter(scale, column))
    parts = [graph.add("Unsqueeze", free[i], np.array([2])) for i in scale.present]
    plain = graph.add("Concat", *parts, axis=2)
    return graph.add("Div", graph.add("Sub", plain, numbers(scale.mean)), numbers(scale.sd))


def to_samples(graph: Graph, scale: Coordinates, free: str, index: str, pump: PumpProfile) -> str:
    """Samples of coordinates, all columns; those that are not in use are NaN."""
    plain = graph.add("Add", graph.add("Mul", free, numbers(scale.sd)), numbers(scale.mean))
    given = {
        column: graph.add("Gather", plain, place, axis=2)
        for place, column in enumerate(scale.present)
    }
    made = {i: _bend(graph, given[i], _usual(scale.columns[i])) for i in scale.alone}
    made |= _pressures(graph, scale, given)
    if SPEED in scale.present:
        table = graph.add("Gather", numbers(pump.speed), index, axis=0)
        share = graph.add("Add", _bend(graph, given[SPEED], _edges(OFF_SPEED)), 1.0)
        made[SPEED] = graph.add("Mul", table, share)
    at = pump_at(graph, pump, index)
    if scale.headed:
        off = _bend(graph, given[FLOW], _scatter(scale, FLOW))
        expected = flow_at(graph, pump, at, graph.add("Sub", made[MAP], made[LVP]))
        made[FLOW] = _bend(graph, graph.add("Add", expected, off), _usual("flow"))
    if CURRENT in scale.present and FLOW in scale.present:
        off = _bend(graph, given[CURRENT], _scatter(scale, CURRENT))
        current = graph.add("Add", current_at(graph, at, made[FLOW]), off)
        made[CURRENT] = _bend(graph, current, _usual("current"))
    unknown = graph.add("Where", graph.add("IsNaN", made[MAP]), np.nan, np.nan)
    every = [made.get(i, unknown) for i in range(len(scale.columns))]
    return graph.add("Concat", *(graph.add("Unsqueeze", x, np.array([2])) for x in every), axis=2)


def _usual(name: str) -> Edges:
    return _edges(usual_range(name))


def _edges(within: Range) -> Edges:
    low, high, soft = (float(x) for x in within)
    return low, high, soft


def _scatter(scale: Coordinates, column: int) -> Edges:
    return _edges(scale.off_map(column))


def _away(
    graph: Graph, scale: Coordinates, given: Columns, index: str, pump: PumpProfile
) -> Columns:
    """How far recorded flow and current lie off the pump's map."""
    at, found = pump_at(graph, pump, index), {}
    if scale.headed:
        pressure = scale.mean_pressure if scale.paired else usual_range("map")
        mean = _obeying(graph, given[MAP], _edges(pressure))
        head = graph.add("Sub", mean, _obeying(graph, given[LVP], _usual("lvp")))
        flow = _straighten(graph, given[FLOW], _usual("flow"))
        found[FLOW] = graph.add("Sub", flow, flow_at(graph, pump, at, head))
    if CURRENT in scale.present and FLOW in scale.present:
        flow = _obeying(graph, given[FLOW], _usual("flow"))
        current = _straighten(graph, given[CURRENT], _usual("current"))
        found[CURRENT] = graph.add("Sub", current, current_at(graph, at, flow))
    return found


def _obeying(graph: Graph, value: str, within: Edges) -> str:
    return _bend(graph, _straighten(graph, value, within), within)


# ── between two edges ────────────────────────────────────────────────────────────────────────────


def _bend(graph: Graph, free: str, within: Edges) -> str:
    low, high, soft = within
    if soft == 0.0:
        return graph.add("Min", graph.add("Max", free, low), high)
    step = graph.add("Div", graph.add("Sub", free, low), soft)
    width = graph.add("Div", graph.add("Sub", high, low), soft)
    beyond = graph.add("Sub", step, width)
    up = graph.add("Sub", graph.add("Softplus", step), graph.add("Softplus", beyond))
    down = graph.add(
        "Sub",
        graph.add("Softplus", graph.add("Neg", beyond)),
        graph.add("Softplus", graph.add("Neg", step)),
    )
    return graph.add(
        "Where",
        graph.add("Less", step, graph.add("Div", width, 2.0)),
        graph.add("Add", graph.add("Mul", up, soft), low),
        graph.add("Sub", high, graph.add("Mul", down, soft)),
    )


def _straighten(graph: Graph, value: str, within: Edges) -> str:
    low, high, soft = within
    if soft == 0.0:
        return graph.add("Min", graph.add("Max", value, low), high)
    width = graph.add("Div", graph.add("Sub", high, low), soft)
    least = graph.add("Min", graph.add("Div", width, 4.0), NEAREST)
    step = graph.add("Div", graph.add("Sub", value, low), soft)
    step = graph.add("Min", graph.add("Max", step, least), graph.add("Sub", width, least))
    above = _log_rest(graph, graph.add("Neg", step))
    below = _log_rest(graph, graph.add("Sub", step, width))
    step = graph.add("Sub", graph.add("Add", step, above), below)
    return graph.add("Add", graph.add("Mul", step, soft), low)


def _log_rest(graph: Graph, value: str) -> str:
    """log(1 - exp(x)) of a number below 0."""
    return graph.add("Log", graph.add("Sub", 1.0, graph.add("Exp", value)))


# ── pressures ────────────────────────────────────────────────────────────────────────────────────


def _pressures(graph: Graph, scale: Coordinates, given: Columns) -> Columns:
    if not scale.paired:
        return {}
    mean = _bend(graph, given[MAP], _edges(scale.mean_pressure))
    pulse = _bend(graph, given[PULSATILITY], _edges(pulse_range()))
    share = _bend(graph, given[scale.paired[0]], _share_range(graph, mean, pulse))
    low = graph.add("Sub", mean, graph.add("Mul", share, pulse))
    high = graph.add("Add", mean, graph.add("Mul", graph.add("Sub", 1.0, share), pulse))
    made = {MAP: mean, SBP: high, DBP: low, PULSATILITY: graph.add("Sub", high, low)}
    return {i: made[i] for i in (MAP, PULSATILITY, *scale.paired)}


def _free_pressures(graph: Graph, scale: Coordinates, given: Columns) -> Columns:
    if not scale.paired:
        return {}
    pulse = given[PULSATILITY]
    low = given[DBP] if DBP in scale.paired else graph.add("Sub", given[SBP], pulse)
    high = given[SBP] if SBP in scale.paired else graph.add("Add", low, pulse)
    mean = _straighten(graph, given[MAP], _edges(scale.mean_pressure))
    wide = _straighten(graph, graph.add("Sub", high, low), _edges(pulse_range()))
    at = _bend(graph, mean, _edges(scale.mean_pressure))
    size = _bend(graph, wide, _edges(pulse_range()))
    share = graph.add("Div", graph.add("Sub", at, low), size)
    share = _straighten(graph, share, _share_range(graph, at, size))
    nothing = {i: graph.add("Mul", mean, 0.0) for i in scale.paired}
    return nothing | {MAP: mean, PULSATILITY: wide, scale.paired[0]: share}


def _share_range(graph: Graph, mean: str, pulse: str) -> Edges:
    pulse = graph.add("Max", pulse, LEAST_PULSE)
    most = graph.add("Div", graph.add("Sub", KNOWN["sbp"].hard[1], mean), pulse)
    low = graph.add("Max", graph.add("Sub", 1.0, graph.add("Mul", most, INSIDE)), 0.0)
    least = graph.add("Div", graph.add("Sub", mean, KNOWN["dbp"].hard[0]), pulse)
    high = graph.add("Min", graph.add("Mul", least, INSIDE), 1.0)
    return low, high, SHARE_EDGE
