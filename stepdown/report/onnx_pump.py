"""The last sample carried forward with the pump at its new level, as ONNX nodes.

The arithmetic is that of problem/persistence.py and patients/pump.py; all values are (batch, 1).
"""

import numpy as np

from stepdown.patients.pump import BACKFLOW, PumpProfile
from stepdown.problem.persistence import NEAR
from stepdown.report.onnx_graph import Graph, level_index, numbers
from stepdown.signals import CURRENT, FLOW, NAMES, SPEED


def carry_forward(graph: Graph, pump: PumpProfile) -> str:
    """The last sample with the pump at its new level (problem/persistence.py), (batch, 1, 12)."""
    latest = graph.add("Slice", "signals", np.array([-1]), np.array([2**31]), np.array([1]))
    latest = graph.add("Squeeze", latest, np.array([1]))
    columns = {i: graph.add("Gather", latest, np.array([i]), axis=1) for i in range(len(NAMES))}
    before, after = (
        _in_force(graph, pump, columns[SPEED]),
        _column(graph, level_index(graph, "choice")),
    )
    old, new = (_pump_at(graph, pump, level) for level in (before, after))
    flow = columns[FLOW]
    moved = _flow_at(graph, pump, new, _head_at(graph, pump, old, flow))
    kept = graph.add("Equal", before, after)
    columns[FLOW] = graph.add("Where", kept, flow, moved)
    power = graph.add("Sub", _current_at(graph, new, columns[FLOW]), _current_at(graph, old, flow))
    columns[CURRENT] = graph.add("Add", columns[CURRENT], power)
    columns[SPEED] = graph.add("Mul", columns[SPEED], graph.add("Div", new["speed"], old["speed"]))
    row = graph.add("Concat", *columns.values(), axis=1)
    return graph.add("Unsqueeze", row, np.array([1]))


def _column(graph: Graph, value: str) -> str:
    return graph.add("Unsqueeze", value, np.array([1]))


def _in_force(graph: Graph, pump: PumpProfile, speed: str) -> str:
    """Index of the level whose speed a sample shows, else of the stated one, (batch, 1)."""
    off = graph.add("Sub", graph.add("Div", speed, numbers(pump.speed)), 1.0)
    off = graph.add("Abs", off)
    nearest = graph.add("ArgMin", off, axis=1, keepdims=1)
    near = graph.add("Less", graph.add("ReduceMin", off, axes=[1], keepdims=1), NEAR)
    stated = _column(graph, level_index(graph, "level"))
    return graph.add("Where", near, nearest, stated)


def _pump_at(graph: Graph, pump: PumpProfile, index: str) -> dict[str, str]:
    """What the tables of a pump say about a level, each (batch, 1)."""
    relative = numbers(pump.speed) / numbers(pump.reference_speed)
    tables = {
        "speed": numbers(pump.speed),
        "shutoff": numbers(pump.shutoff_head),
        "idle": numbers(pump.idle_current),
        "loss": numbers(pump.linear_loss) * relative,
        "slope": numbers(pump.current_per_flow) * relative,
    }
    return {name: graph.add("Gather", table, index, axis=0) for name, table in tables.items()}


def _head_at(graph: Graph, pump: PumpProfile, at: dict[str, str], flow: str) -> str:
    straight = graph.add("Mul", at["loss"], flow)
    square = graph.add("Mul", graph.add("Mul", flow, flow), float(pump.quadratic_loss))
    forward = graph.add("Add", straight, square)
    backward = graph.add("Div", straight, BACKFLOW)
    loss = graph.add("Where", graph.add("Greater", flow, 0.0), forward, backward)
    return graph.add("Sub", at["shutoff"], loss)


def _flow_at(graph: Graph, pump: PumpProfile, at: dict[str, str], head: str) -> str:
    """The positive root of the head-flow curve, or what flows back beyond shut-off."""
    k2 = float(pump.quadratic_loss)
    spare = graph.add("Sub", at["shutoff"], head)
    under = graph.add("Mul", graph.add("Max", spare, 0.0), 4 * k2)
    root = graph.add("Sqrt", graph.add("Add", graph.add("Mul", at["loss"], at["loss"]), under))
    forward = graph.add("Div", graph.add("Sub", root, at["loss"]), 2 * k2)
    beyond = graph.add("Mul", graph.add("Min", spare, 0.0), BACKFLOW)
    return graph.add("Add", forward, graph.add("Div", beyond, at["loss"]))


def _current_at(graph: Graph, at: dict[str, str], flow: str) -> str:
    return graph.add("Add", at["idle"], graph.add("Mul", at["slope"], flow))
