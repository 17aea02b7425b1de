"""The pump's map as parts of an ONNX graph: the arithmetic of patients/pump.py."""

from stepdown.export.onnx_graph import Graph, numbers
from stepdown.patients.pump import BACKFLOW, PumpProfile


def pump_at(graph: Graph, pump: PumpProfile, index: str) -> dict[str, str]:
    """What the tables of a pump say about a level, each like the levels."""
    relative = numbers(pump.speed) / numbers(pump.reference_speed)
    tables = {
        "speed": numbers(pump.speed),
        "shutoff": numbers(pump.shutoff_head),
        "idle": numbers(pump.idle_current),
        "loss": numbers(pump.linear_loss) * relative,
        "slope": numbers(pump.current_per_flow) * relative,
    }
    return {name: graph.add("Gather", table, index, axis=0) for name, table in tables.items()}


def head_at(graph: Graph, pump: PumpProfile, at: dict[str, str], flow: str) -> str:
    """The head at a flow: `flow_at` inverted."""
    straight = graph.add("Mul", at["loss"], flow)
    square = graph.add("Mul", graph.add("Mul", flow, flow), float(pump.quadratic_loss))
    forward = graph.add("Add", straight, square)
    backward = graph.add("Div", straight, BACKFLOW)
    loss = graph.add("Where", graph.add("Greater", flow, 0.0), forward, backward)
    return graph.add("Sub", at["shutoff"], loss)


def flow_at(graph: Graph, pump: PumpProfile, at: dict[str, str], head: str) -> str:
    """The positive root of the head-flow curve, or what flows back beyond shut-off."""
    k2 = float(pump.quadratic_loss)
    spare = graph.add("Sub", at["shutoff"], head)
    under = graph.add("Mul", graph.add("Max", spare, 0.0), 4 * k2)
    root = graph.add("Sqrt", graph.add("Add", graph.add("Mul", at["loss"], at["loss"]), under))
    forward = graph.add("Div", graph.add("Sub", root, at["loss"]), 2 * k2)
    beyond = graph.add("Mul", graph.add("Min", spare, 0.0), BACKFLOW)
    return graph.add("Add", forward, graph.add("Div", beyond, at["loss"]))


def current_at(graph: Graph, at: dict[str, str], flow: str) -> str:
    """The current at a flow."""
    return graph.add("Add", at["idle"], graph.add("Mul", at["slope"], flow))
