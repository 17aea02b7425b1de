"""Twins as ONNX graphs: the center of the coming hour and one draw around it.

Luck is an input (`noise`, uniform between 0 and 1), so a graph always gives the same answer to
the same numbers. Persistence and the best twin draw one hour out of the errors that they keep;
the Transformer and the plain network drop units.
"""

from typing import Any

import numpy as np
from onnx import TensorProto

from stepdown.problem.persistence import RANGES
from stepdown.report.onnx_graph import (
    BATCH,
    CHOICE,
    Graph,
    Port,
    flat,
    hour_ports,
    level_index,
    level_scores,
    linear,
    numbers,
    perceptron,
    signal_scores,
)
from stepdown.report.onnx_pump import carry_forward
from stepdown.signals import LEVELS, NAMES
from stepdown.training import member
from stepdown.twin.baselines import MLP, Residuals
from stepdown.twin.calibrated import FARTHEST, LEAST, MOST, Calibrated
from stepdown.twin.fit import Twin
from stepdown.twin.transformer import LONGEST_WAVE, Transformer, sinusoids

EXPORTABLE = ("best", "persistence", "tdt", "rotary", "mlp")  # by their names in TwinConfig


def twin_graph(twin: Twin, about: dict[str, str]) -> bytes:
    """The coming hour under a level: `center` and `draw`, physical units."""
    graph, network = Graph(), twin.network
    decoders = {
        Calibrated: _calibrated,
        Residuals: _residuals,
        Transformer: _transformer,
        MLP: _plain,
    }
    if type(network) not in decoders:
        raise ValueError(
            f"expected a twin that can be exported ({', '.join(EXPORTABLE)}), got "
            f"{type(network).__name__}. Fit one of these, or leave the twin out: "
            "--models policy guardian."
        )
    base = _base(graph, twin)
    center, draw, luck = decoders[type(network)](graph, twin)
    for change, name in ((center, "center"), (draw, "draw")):
        hour = change if base is None else graph.add("Add", base, change)
        graph.call(_to_units(graph, twin, hour), name)
    hour_shape = (BATCH, twin.steps, len(NAMES))
    outputs = [
        Port("center", "float32", hour_shape, "the point forecast, columns as in `signals`"),
        Port("draw", "float32", hour_shape, "one possible hour, columns as in `signals`"),
    ]
    noise = Port("noise", "float32", luck[0], luck[1])
    return graph.to_bytes("twin", [*hour_ports(twin.steps), CHOICE, noise], outputs, about)


def _to_units(graph: Graph, twin: Twin, hour: str) -> str:
    """From z-scores to all twelve columns; those that the twin does not know are NaN."""
    scaler, used = twin.scaler, np.array(twin.scaler.present)
    hour = graph.add("Mul", hour, numbers(scaler.sd)[used])
    hour = graph.add("Add", hour, numbers(scaler.mean)[used])
    ranges = RANGES[used]
    hour = graph.add("Min", graph.add("Max", hour, ranges[:, 0]), ranges[:, 1])
    if len(used) == len(NAMES):
        return hour
    known = graph.add("Gather", hour, np.array([0]), axis=2)
    unknown = graph.add("Where", graph.add("IsNaN", known), np.nan, np.nan)
    place = [list(used).index(i) if i in used else len(used) for i in range(len(NAMES))]
    return graph.add("Gather", graph.add("Concat", hour, unknown, axis=2), np.array(place), axis=2)


# ── what the network's output is added to ────────────────────────────────────────────────────────


def _base(graph: Graph, twin: Twin) -> str | None:
    if twin.base == "direct":
        return None
    scores = signal_scores(graph, twin.scaler)
    last = graph.add("Slice", scores, np.array([-1]), np.array([2**31]), np.array([1]))
    if twin.base == "last":
        return last
    carried = carry_forward(graph, twin.carry.profile)
    carried = signal_scores(graph, twin.scaler, carried)
    return graph.add("Where", graph.add("IsNaN", carried), last, carried)


# ── the networks: center, draw, and what luck they need ──────────────────────────────────────────

Decoded = tuple[str, str, tuple[tuple[str | int, ...], str]]
ONE_HOUR = ((BATCH,), "uniform from 0 to below 1; chooses one of the kept hours of errors")


def _residuals(graph: Graph, twin: Twin) -> Decoded:
    errors = numbers(twin.network.errors)  # pyright: ignore[reportAttributeAccessIssue]
    draw = graph.add("Gather", errors, _pick(graph, 0, len(errors)), axis=0)
    return graph.add("Mul", draw, 0.0), draw, ONE_HOUR


def _pick(graph: Graph, first: str | int, count: str | int) -> str:
    """The row that the noise stands for: first + floor(noise * count)."""
    number = count if isinstance(count, int) else graph.add("Cast", count, to=TensorProto.FLOAT)
    place = graph.add("Mul", "noise", float(number) if isinstance(number, int) else number)
    row = graph.add("Cast", graph.add("Floor", place), to=TensorProto.INT64)
    last = count - 1 if isinstance(count, int) else graph.add("Sub", count, 1)
    row = graph.add("Max", graph.add("Min", row, last), 0)  # noise of exactly 1 is the last row
    return graph.add("Add", row, first)


def _calibrated(graph: Graph, twin: Twin) -> Decoded:
    network: Any = twin.network
    scores = signal_scores(graph, twin.scaler)
    levels = {name: level_scores(graph, name) for name in ("level", "choice")}
    far, wide = [], []
    for i in range(len(network.members.step)):
        seen = _seen(graph, scores, levels, network.members.step[i])
        away, spread = _member(graph, twin, seen, member(network.members, i))
        far.append(away)
        wide.append(spread)
    center = graph.add("Mean", *far)
    apart = [_squared(graph, graph.add("Sub", x, center)) for x in far]
    within = graph.add("Mean", *[_squared(graph, x) for x in wide])
    spread = graph.add("Sqrt", graph.add("Add", within, graph.add("Mean", *apart)))
    move = graph.add("Sign", graph.add("Sub", "choice", "level"))
    group = graph.add("Add", move, 1)  # down, the same, up
    first, count = (
        graph.add("Gather", np.asarray(x, np.int64), group, axis=0)
        for x in (network.first, network.count)
    )
    error = graph.add("Gather", numbers(network.errors), _pick(graph, first, count), axis=0)
    draw = graph.add("Add", center, graph.add("Mul", spread, error))
    return center, draw, ONE_HOUR


def _seen(graph: Graph, scores: str, levels: dict[str, str], step: Any) -> str:
    """The features of a member (twin/calibrated.py)."""
    earlier = graph.add("Slice", scores, np.array([0]), np.array([-1]), np.array([1]))
    last = graph.add("Slice", scores, np.array([-1]), np.array([2**31]), np.array([1]))
    way = graph.add("Div", graph.add("Sub", earlier, last), numbers(step))
    way = graph.add("Clip", way, -FARTHEST, FARTHEST)
    known = [
        graph.add("OneHot", level_index(graph, name), len(LEVELS), np.array([0.0, 1.0]), axis=1)
        for name in ("level", "choice")
    ]
    difference = graph.add("Sub", levels["choice"], levels["level"])
    numbers_ = [levels["level"], levels["choice"], difference]
    return graph.add("Concat", flat(graph, scores), flat(graph, way), *numbers_, *known, axis=1)


def _member(graph: Graph, twin: Twin, seen: str, one: Any) -> tuple[str, str]:
    signals = len(twin.scaler.present)
    out = perceptron(graph, seen, one.trunk.layers)
    out = graph.add("Reshape", out, np.array([0, 2, twin.steps, signals]))
    far, spread = (graph.add("Gather", out, i, axis=1) for i in (0, 1))
    spread = graph.add("Exp", graph.add("Clip", spread, LEAST, MOST))
    step = numbers(one.step)
    return graph.add("Mul", far, step), graph.add("Mul", spread, step)


def _squared(graph: Graph, value: str) -> str:
    return graph.add("Mul", value, value)


def _scores_with_level(graph: Graph, twin: Twin) -> str:
    """All columns that a network of the paper reads, (batch, steps, present + 1)."""
    scores = signal_scores(graph, twin.scaler)
    level = graph.add("Unsqueeze", level_scores(graph, "level"), np.array([2]))
    level = graph.add("Tile", level, np.array([1, twin.steps, 1]))
    return graph.add("Concat", scores, level, axis=2)


def _plain(graph: Graph, twin: Twin) -> Decoded:
    network: Any = twin.network
    row = flat(graph, _scores_with_level(graph, twin))
    row = graph.add("Concat", row, level_scores(graph, "choice"), axis=1)
    widths = [layer.weight.shape[0] for layer in network.hidden]
    center = draw = row
    for layer, end in zip(network.hidden, np.cumsum(widths), strict=True):
        start = int(end) - layer.weight.shape[0]
        center = graph.add("Relu", linear(graph, center, layer))
        inner = graph.add("Relu", linear(graph, draw, layer))
        draw = _dropped(graph, inner, network.dropout, (start, int(end)))
    hours = (_as_hour(graph, twin, linear(graph, x, network.out)) for x in (center, draw))
    center, draw = hours
    return center, draw, _masks(int(sum(widths)), network.dropout)


def _dropped(graph: Graph, units: str, rate: float, part: tuple[int, int]) -> str:
    """Units whose noise is below the share that is kept, scaled up; the others are zero."""
    start, end = (np.array([x]) for x in part)
    noise = graph.add("Slice", "noise", start, end, np.array([1]))
    kept = graph.add("Less", noise, 1 - rate)
    return graph.add("Where", kept, graph.add("Div", units, 1 - rate), 0.0)


def _masks(units: int, rate: float) -> tuple[tuple[str | int, ...], str]:
    return (BATCH, units), f"uniform from 0 to below 1; units at {1 - rate:g} or above are dropped"


def _as_hour(graph: Graph, twin: Twin, value: str) -> str:
    return graph.add("Reshape", value, np.array([0, twin.steps, len(twin.scaler.present)]))


def _transformer(graph: Graph, twin: Twin) -> Decoded:
    network: Any = twin.network
    tokens = linear(graph, _scores_with_level(graph, twin), network.embed)
    width = network.embed.weight.shape[0]
    if network.positions == "sinusoidal":
        tokens = graph.add("Add", tokens, numbers(sinusoids(twin.steps, width)))
    for layer in network.layers:
        tokens = _layer(graph, tokens, layer, (twin.steps, width))
    row = flat(graph, _norm(graph, tokens, network.norm))
    row = graph.add("Concat", row, level_scores(graph, "choice"), axis=1)
    inner = graph.add("Relu", linear(graph, row, network.hidden))
    units = network.hidden.weight.shape[0]
    dropped = _dropped(graph, inner, network.dropout, (0, units))
    center, draw = (_as_hour(graph, twin, linear(graph, x, network.out)) for x in (inner, dropped))
    return center, draw, _masks(units, network.dropout)


def _norm(graph: Graph, value: str, norm: Any) -> str:
    return graph.add(
        "LayerNormalization", value, numbers(norm.weight), numbers(norm.bias), epsilon=norm.eps
    )


def _layer(graph: Graph, tokens: str, layer: Any, sizes: tuple[int, int]) -> str:
    seen = _attend(graph, _norm(graph, tokens, layer.norms[0]), layer.attention, sizes)
    tokens = graph.add("Add", tokens, seen)
    inner = graph.add("Relu", linear(graph, _norm(graph, tokens, layer.norms[1]), layer.widen))
    return graph.add("Add", tokens, linear(graph, inner, layer.narrow))


def _attend(graph: Graph, tokens: str, attention: Any, sizes: tuple[int, int]) -> str:
    steps, width = sizes
    units = width // attention.heads
    split = np.array([0, steps, attention.heads, units])

    def heads(part: Any) -> str:
        value = graph.add("Reshape", linear(graph, tokens, part), split)
        return graph.add("Transpose", value, perm=[0, 2, 1, 3])

    query, key, value = (heads(x) for x in (attention.query, attention.key, attention.value))
    if attention.rotary:
        query, key = (_rotated(graph, x, steps, units) for x in (query, key))
    match = graph.add("MatMul", query, graph.add("Transpose", key, perm=[0, 1, 3, 2]))
    match = graph.add("Softmax", graph.add("Div", match, float(np.sqrt(units))), axis=-1)
    seen = graph.add("Transpose", graph.add("MatMul", match, value), perm=[0, 2, 1, 3])
    return linear(graph, graph.add("Reshape", seen, np.array([0, steps, width])), attention.out)


def _rotated(graph: Graph, value: str, steps: int, units: int) -> str:
    """Pairs of units turned by their position: x cos + (x turned by a right angle) sin."""
    angle = np.arange(steps)[:, None] / LONGEST_WAVE ** (np.arange(0, units, 2) / units)
    cosine, sine = (np.repeat(x, 2, axis=1) for x in (np.cos(angle), np.sin(angle)))
    quarter = np.kron(np.eye(units // 2), np.array([[0.0, 1.0], [-1.0, 0.0]]))
    turned = graph.add("MatMul", value, quarter)
    return graph.add("Add", graph.add("Mul", value, cosine), graph.add("Mul", turned, sine))
