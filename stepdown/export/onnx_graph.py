"""ONNX graphs, written node by node from the numbers of a model.

Our models are small and few (perceptrons, attention over six samples, couplings, kernels), so the
graphs are written by hand: a converter of JAX programs would bring thirty packages and follow the
inside of one JAX version. A test holds every graph to its JAX original in onnxruntime.

Graphs take physical units and give physical units. `batch` is the only free size.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stepdown import __version__
from stepdown.problem.scaling import LEVEL_MEAN, LEVEL_SD, Scaler
from stepdown.signals import KNOWN, LEVELS

BANNER = "Research tool, not for patient care."
OPSET, IR = 17, 8  # old enough for runtimes of some years ago
BATCH = "batch"
TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}

Value = str | float | int | np.ndarray  # a name in the graph, or a constant


@dataclass(frozen=True)
class Port:
    """An input or output of a graph."""

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    meaning: str  # with its unit


def hour_ports(steps: int, scaler: Scaler) -> tuple[Port, Port]:
    """The hour before a decision, and the level in force: what every graph reads."""
    units = ", ".join(f"{name} {KNOWN[name].unit}" for name in scaler.columns)
    minutes = 60 / steps
    return (
        Port(
            "signals",
            "float32",
            (BATCH, steps, len(scaler.mean)),
            f"samples every {minutes:g} min, the newest last; columns: {units}",
        ),
        Port("level", "int64", (BATCH,), "P-level in force, 2 to 9"),
    )


CHOICE = Port("choice", "int64", (BATCH,), "P-level held through the coming hour, 2 to 9")


@dataclass
class Graph:
    """Nodes in the order of their computation."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op: str, *values: Value, outputs: int = 1, **attributes: Any) -> str:
        """Compute something; numbers and arrays become constants. Gives its (first) name."""
        name = f"{op.lower()}_{len(self.nodes)}"
        inputs = [x if isinstance(x, str) else self.constant(x) for x in values]
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(op, inputs, names, name=name, **attributes))
        return name

    def constant(self, value: float | int | np.ndarray) -> str:
        """A number or an array: whole ones as int64, others as float32."""
        array = np.asarray(value)
        if array.dtype != bool:
            whole = np.issubdtype(array.dtype, np.integer)
            array = array.astype(np.int64 if whole else np.float32)
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def call(self, value: Value, name: str) -> None:
        """Give a value the name of an output."""
        self.nodes.append(helper.make_node("Identity", [str(value)], [name], name=name))

    def to_bytes(
        self, title: str, inputs: list[Port], outputs: list[Port], about: dict[str, str]
    ) -> bytes:
        """The checked model; the same graph gives the same bytes."""
        ins, outs = ([_declare(port) for port in some] for some in (inputs, outputs))
        graph = helper.make_graph(self.nodes, title, ins, outs, self.constants)
        model = helper.make_model(
            graph,
            producer_name="stepdown",
            producer_version=__version__,
            doc_string=BANNER,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR,
        )
        told = {port.name: _say(port) for port in (*inputs, *outputs)}
        helper.set_model_props(model, dict(sorted((told | about).items())))
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString(deterministic=True)


def _say(port: Port) -> str:
    return f"{port.dtype} [{', '.join(str(size) for size in port.shape)}]: {port.meaning}"


def _declare(port: Port) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        port.name, TYPES[port.dtype], port.shape, doc_string=port.meaning
    )


def describe(data: bytes) -> dict[str, Any]:
    """Inputs, outputs and origin, read back from the graph itself."""
    model = onnx.load_from_string(data)
    sides = {"inputs": model.graph.input, "outputs": model.graph.output}
    ports = {side: {one.name: _port(one) for one in some} for side, some in sides.items()}
    names = {name for some in ports.values() for name in some}
    about = {one.key: one.value for one in model.metadata_props if one.key not in names}
    return ports | {"about": about}


def _port(value: onnx.ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    return {
        "dtype": {int(number): name for name, number in TYPES.items()}[tensor.elem_type],
        "shape": [one.dim_param or one.dim_value for one in tensor.shape.dim],
        "meaning": value.doc_string,
    }


# ── what the models share ────────────────────────────────────────────────────────────────────────


def numbers(array: Any) -> np.ndarray:
    """A JAX array on the host."""
    return np.asarray(array, np.float32)


def signal_scores(graph: Graph, scaler: Scaler, signals: str = "signals") -> str:
    """The present signals as z-scores, (batch, steps, present)."""
    used = np.array(scaler.present)
    kept = graph.add("Gather", signals, used, axis=2)
    centered = graph.add("Sub", kept, numbers(scaler.mean)[used])
    return graph.add("Div", centered, numbers(scaler.sd)[used])


def level_scores(graph: Graph, level: str) -> str:
    """A level as z-score, (batch, 1)."""
    number = graph.add("Cast", level, to=TensorProto.FLOAT)
    column = graph.add("Unsqueeze", number, np.array([1]))
    return graph.add("Div", graph.add("Sub", column, LEVEL_MEAN), LEVEL_SD)


def flat(graph: Graph, value: str) -> str:
    """All but the batch laid side by side."""
    return graph.add("Flatten", value, axis=1)


def affine(graph: Graph, value: str, weight: np.ndarray, bias: np.ndarray) -> str:
    """Multiply by (inputs, outputs) weights and add a bias."""
    return graph.add("Add", graph.add("MatMul", value, weight), bias)


def linear(graph: Graph, value: str, layer: Any) -> str:
    """An Equinox layer, whose weights are (outputs, inputs)."""
    return affine(graph, value, numbers(layer.weight).T, numbers(layer.bias))


def silu(graph: Graph, value: str) -> str:
    """A number times its logistic."""
    return graph.add("Mul", value, graph.add("Sigmoid", value))


def perceptron(graph: Graph, value: str, layers: Any) -> str:
    """Equinox layers with SiLU between them."""
    for layer in layers[:-1]:
        value = silu(graph, linear(graph, value, layer))
    return linear(graph, value, layers[-1])


def log_sum(graph: Graph, value: str) -> str:
    """Log of the summed exponentials over the last axis, which stays with size 1."""
    top = graph.add("ReduceMax", value, axes=[-1], keepdims=1)
    parts = graph.add("Exp", graph.add("Sub", value, top))
    total = graph.add("ReduceSum", parts, np.array([-1]), keepdims=1)
    return graph.add("Add", graph.add("Log", total), top)


def level_index(graph: Graph, level: str) -> str:
    """Where a level stands among the eight, (batch,): P-2 is 0."""
    return graph.add("Sub", level, LEVELS[0])
