"""Policy and guardian as ONNX graphs (onnx_graph.py)."""

from typing import Any

import numpy as np
from onnx import TensorProto

from stepdown.guardian.density import Conditional
from stepdown.guardian.flow import LOG_SCALE, FlowDensity
from stepdown.guardian.kde import Kde
from stepdown.guardian.density import Pairs
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Policy
from stepdown.policies.constraint import NEVER, REACH, Constrained
from stepdown.policies.networks import FARTHEST, LearnedPolicy
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.report.onnx_graph import (
    BATCH,
    CHOICE,
    Graph,
    Port,
    affine,
    flat,
    hour_ports,
    level_scores,
    log_sum,
    numbers,
    perceptron,
    signal_scores,
)
from stepdown.signals import HR, LEVELS, MAP, PULSATILITY
from stepdown.training import member

EIGHT = (BATCH, len(LEVELS))
POLICY_OUT = (
    Port("log_probability", "float32", EIGHT, "of P-2 to P-9, as the policy weighs them"),
    Port("allowed", "bool", EIGHT, "at most two levels away; none down after an unsafe hour"),
    Port("choice", "int64", (BATCH,), "the likeliest allowed P-level, 2 to 9"),
)
GUARDIAN_OUT = (
    Port("log_density", "float32", (BATCH,), "of the decision, nats"),
    Port("u", "float32", (BATCH,), "charge: threshold less log density within bounds, nats"),
    Port("p_value", "float32", (BATCH,), "share of recorded decisions as strange as this one"),
)


# ── policy ───────────────────────────────────────────────────────────────────────────────────────


def policy_graph(policy: Policy, steps: int, about: dict[str, str]) -> bytes:
    """Weights of the levels, the levels that are allowed, and the likeliest of these."""
    inner = policy.policy if isinstance(policy, Constrained) else policy
    if not isinstance(inner, LearnedPolicy):
        raise TypeError(f"expected a learned policy, got {type(inner).__name__}.")
    config = policy.config if isinstance(policy, Constrained) else PAPER
    graph = Graph()
    row = graph.add(
        "Concat",
        flat(graph, signal_scores(graph, inner.scaler)),
        level_scores(graph, "level"),
        axis=1,
    )
    weights = _network(graph, graph.add("Clip", row, -FARTHEST, FARTHEST), inner.network)
    weights = graph.add("LogSoftmax", weights, axis=-1)
    allowed = _allowed(graph, config)
    masked = graph.add("Where", allowed, weights, NEVER)
    if isinstance(policy, Constrained):
        weights = graph.add("LogSoftmax", masked, axis=-1)
    best = graph.add("ArgMax", masked, axis=1, keepdims=0)
    graph.call(weights, "log_probability")
    graph.call(allowed, "allowed")
    graph.call(graph.add("Add", best, LEVELS[0]), "choice")
    return graph.to_bytes("policy", [*hour_ports(steps)], [*POLICY_OUT], about)


def _network(graph: Graph, row: str, network: Any) -> str:
    *hidden, last = zip(network.weights, network.biases, strict=True)
    for weight, bias in hidden:
        row = graph.add("Relu", affine(graph, row, numbers(weight), numbers(bias)))
    return affine(graph, row, numbers(last[0]), numbers(last[1]))


def _allowed(graph: Graph, config: ClinicalConfig) -> str:
    """The constraint of policies/constraint.py, (batch, 8)."""
    level = graph.add("Unsqueeze", "level", np.array([1]))
    step = graph.add("Sub", np.array(LEVELS), level)
    near = graph.add("LessOrEqual", graph.add("Abs", step), REACH)
    upward = graph.add("GreaterOrEqual", step, 0)
    columns = np.array([MAP, HR, PULSATILITY])
    limits = np.array([config.map_limit, config.hr_limit, config.pulsatility_limit])
    judged = graph.add("Gather", "signals", columns, axis=2)
    known = graph.add("Where", graph.add("IsNaN", judged), np.inf, judged)
    lowest = graph.add("ReduceMin", known, axes=[1], keepdims=0)  # (batch, 3)
    above = graph.add("Greater", lowest, limits)
    seen = graph.add("Less", lowest, np.inf)  # a signal without any sample is not safe
    safe = graph.add("Cast", graph.add("And", above, seen), to=TensorProto.INT64)
    safe = graph.add("ReduceMin", safe, axes=[1], keepdims=1)
    stable = graph.add("Cast", safe, to=TensorProto.BOOL)
    return graph.add("And", near, graph.add("Or", upward, stable))


# ── guardian ─────────────────────────────────────────────────────────────────────────────────────


def guardian_graph(guardian: Guardian, steps: int, about: dict[str, str]) -> bytes:
    """Log density, charge and p-value of a decision."""
    graph = Graph()
    density = _density(graph, guardian.density)  # (batch, 1)
    away = graph.add("Sub", numbers(guardian.threshold), density)
    charge = graph.add("Clip", away, numbers(guardian.lowest), numbers(guardian.highest))
    below = graph.add("LessOrEqual", numbers(guardian.scores), density)
    count = graph.add("Cast", below, to=TensorProto.FLOAT)
    count = graph.add("ReduceSum", count, np.array([1]), keepdims=1)
    share = graph.add("Div", graph.add("Add", count, 1.0), 1.0 + len(guardian.scores))
    for value, port in zip((density, charge, share), GUARDIAN_OUT, strict=True):
        graph.call(graph.add("Squeeze", value, np.array([1])), port.name)
    return graph.to_bytes("guardian", [*hour_ports(steps), CHOICE], [*GUARDIAN_OUT], about)


def _density(graph: Graph, density: Any) -> str:
    """Log density of the choice, (batch, 1)."""
    if not isinstance(density, Conditional):
        return _joint(graph, density, _point(graph, density.pairs))
    joint = _joint(graph, density.joint, _point(graph, density.joint.pairs))
    if density.states is not None:
        known = _joint(graph, density.states, _point(graph, density.states.pairs))
    else:
        each = [
            _joint(graph, density.joint, _point(graph, density.joint.pairs, level))
            for level in LEVELS
        ]
        known = log_sum(graph, graph.add("Concat", *each, axis=1))
    return graph.add("Sub", joint, graph.add("Mul", known, 1.0 - float(density.share)))


def _point(graph: Graph, pairs: Pairs, level: int | None = None) -> str:
    """A decision as a point (guardian/pairs.py); `level` instead of the choice."""
    choice = CHOICE.name
    if level is not None:  # the same for everybody
        choice = graph.add("Add", graph.add("Mul", "level", 0), level)
    weighted = graph.add("Mul", level_scores(graph, choice), float(pairs.action_weight))
    hour = flat(graph, signal_scores(graph, pairs.scaler))
    return graph.add("Concat", hour, level_scores(graph, "level"), weighted, axis=1)


def _joint(graph: Graph, density: Any, point: str) -> str:
    makers = {FlowDensity: _flow, Kde: _kernels}
    if type(density) not in makers:
        raise TypeError(f"expected a flow or a kernel density, got {type(density).__name__}.")
    return makers[type(density)](graph, density, point)


def _flow(graph: Graph, density: FlowDensity, point: str) -> str:
    """Whitened, bent by the couplings, a normal at the end."""
    whitening = density.whitening
    point = graph.add("Sub", point, numbers(whitening.center))
    point = graph.add("MatMul", point, numbers(whitening.matrix).T)
    network = density.flow.couplings.network
    size = len(numbers(whitening.center))
    constant = float(whitening.log_volume) - 0.5 * size * np.log(2 * np.pi)
    total = graph.constant(np.full((1, 1), constant))
    for turn in range(len(network.layers[0].weight)):
        layers = member(network.layers, turn)
        moves = (np.arange(size) + turn) % 2 == 0
        read = perceptron(graph, graph.add("Where", moves, 0.0, point), layers)
        halves = [np.arange(size), np.arange(size, 2 * size)]
        raw, offset = (graph.add("Gather", read, half, axis=1) for half in halves)
        bent = graph.add("Mul", graph.add("Tanh", graph.add("Div", raw, LOG_SCALE)), LOG_SCALE)
        scale = graph.add("Where", moves, bent, 0.0)
        moved = graph.add("Add", graph.add("Mul", point, graph.add("Exp", scale)), offset)
        point = graph.add("Where", moves, moved, point)
        volume = graph.add("ReduceSum", scale, np.array([1]), keepdims=1)
        total = graph.add("Add", total, volume)
    return graph.add("Sub", total, graph.add("Mul", _squares(graph, point), 0.5))


def _kernels(graph: Graph, kde: Kde, point: str) -> str:
    """The nearest recorded decisions, added up as kernels (guardian/kde.py)."""
    points = numbers(kde.points) / float(kde.bandwidth)
    sizes = -0.5 * np.sum(np.square(points), axis=1)
    scaled = graph.add("Div", point, float(kde.bandwidth))
    match = affine(graph, scaled, points.T, sizes)
    if kde.neighbors is not None:
        match = graph.add("TopK", match, np.array([kde.neighbors]), outputs=2, axis=1)
    constant = float(kde.log_constant) - np.log(len(points))
    away = graph.add("Mul", _squares(graph, scaled), 0.5)
    return graph.add("Add", graph.add("Sub", log_sum(graph, match), away), constant)


def _squares(graph: Graph, value: str) -> str:
    return graph.add("ReduceSum", graph.add("Mul", value, value), np.array([1]), keepdims=1)
