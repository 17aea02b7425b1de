"""The models of a finished run as ONNX files (onnx_graph.py), with a README.

A kernel density is a copy of its patients' hours, so a guardian that holds one leaves only with a
flag. A flow holds weights, and the sorted log densities of select patients.

A twin gives the center of the coming hour and one draw around it. Luck is an input (`noise`,
uniform between 0 and 1), so a graph always gives the same answer to the same numbers. Persistence
and the best twin draw one hour out of the errors that they keep; the Transformer and the plain
network drop units.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from stepdown import __version__
from stepdown.artifacts import MANIFEST, check_folder
from stepdown.export.onnx_coordinates import (
    Columns,
    levels_in_force,
    split_columns,
    to_free,
    to_samples,
)
from stepdown.export.onnx_graph import (
    BANNER,
    BATCH,
    CHOICE,
    OPSET,
    Graph,
    Port,
    affine,
    describe,
    flat,
    hour_ports,
    level_index,
    level_scores,
    linear,
    log_sum,
    numbers,
    perceptron,
    signal_scores,
)
from stepdown.export.onnx_pump import current_at, flow_at, head_at, pump_at
from stepdown.guardian.density import Conditional, Pairs
from stepdown.guardian.fit import PATIENT_DATA
from stepdown.guardian.flow import LOG_SCALE, FlowDensity
from stepdown.guardian.guardians import load_guardian
from stepdown.guardian.kde import Kde
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Policy
from stepdown.patients.pump import PumpProfile
from stepdown.policies.constraint import NEVER, REACH, Constrained
from stepdown.policies.networks import FARTHEST as FARTHEST_INPUT
from stepdown.policies.networks import LearnedPolicy
from stepdown.policies.saved import load_policy
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.problem.scaling import LEVEL_MEAN, LEVEL_SD
from stepdown.signals import (
    CURRENT,
    FLOW,
    HR,
    KNOWN,
    LEVELS,
    MAP,
    SPEED,
    columns_with,
)
from stepdown.training import member
from stepdown.twin.baselines import MLP, Residuals
from stepdown.twin.calibrated import FARTHEST, LEAST, MOST, Calibrated
from stepdown.twin.fit import Twin
from stepdown.twin.ridge import LEAST_SPREAD, STILL, Ridge
from stepdown.twin.transformer import LONGEST_WAVE, Transformer, sinusoids
from stepdown.twin.twins import load_twin

EXPORTABLE = (
    "best",
    "ridge",
    "persistence",
    "tdt",
    "rotary",
    "mlp",
)  # by their names in TwinConfig
README = "README.json"
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


# ── the files of a run ───────────────────────────────────────────────────────────────────────────


def onnx_files(run: Path, models: Sequence[str], include_patient_data: bool) -> dict[str, bytes]:
    """The files of an export by name: one graph for each model, and what they are in JSON."""
    _require_models(run, models)
    makers: dict[str, Callable[[], _Made]] = {
        "policy": lambda: _policy(run / "policy"),
        "twin": lambda: _twin(run / "twin"),
        "guardian": lambda: _guardian(run / "guardian", include_patient_data),
    }
    made = {f"{name}.onnx": makers[name]() for name in models}
    files = {name: one.graph for name, one in made.items()}
    columns = columns_with(name for one in made.values() for name in one.columns)
    return files | {README: _readme(files, columns)}


@dataclass(frozen=True)
class _Made:
    """A graph, and the columns of the recordings that its model was fitted on."""

    graph: bytes
    columns: tuple[str, ...]


def _require_models(run: Path, models: Sequence[str]) -> None:
    if (run / MANIFEST).is_file():
        check_folder(run, "run")
    for name in models:
        if not (run / name).is_dir():
            there = [x for x in ("policy", "twin", "guardian") if (run / x).is_dir()]
            hint = f"Name what is there: --models {' '.join(there)}." if there else (
                "Make one with stepdown run demo --out runs/demo."
            )  # fmt: skip
            raise ValueError(f"{run}: expected a finished run with {name}/, found none. {hint}")


def _require_one_hour(history: int, what: str) -> None:
    if history > 1:
        raise ValueError(
            f"expected a {what} that reads one hour, which a graph takes, got one that reads "
            f"{history} h. Fit it with a history of 1, or leave it out (--models)."
        )


def _about(path: Path, **told: object) -> dict[str, str]:
    """Where a graph comes from; every value is text."""
    seal = json.loads((path / MANIFEST).read_bytes())["sha256"]
    known = {"kind": path.name, "stepdown": __version__, "made_from_sha256": seal, "use": BANNER}
    return known | {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in told.items()
    }


def _policy(path: Path) -> _Made:
    policy, saved = load_policy(path)
    _require_one_hour(saved.history, "policy")
    told = {"method": saved.method, "constrained": saved.constrained}
    about = _about(path, **told, contains_patient_data=False)
    return _Made(policy_graph(policy, saved.steps, about), saved.columns)


def _twin(path: Path) -> _Made:
    twin, config = load_twin(path)
    _require_one_hour(twin.history, "twin")
    held = {Calibrated: "select", Residuals: "train", Ridge: "train"}.get(type(twin.network))
    kept = f"hours of forecast errors of {held} patients, without states, names or times"
    kept = kept if held else "weights alone"
    about = _about(path, model=config.kind.name, contains_patient_data=False, holds=kept)
    return _Made(twin_graph(twin, about), twin.scaler.columns)


def _guardian(path: Path, include_patient_data: bool) -> _Made:
    guardian, saved = load_guardian(path)
    if saved.contains_patient_data and not include_patient_data:
        raise ValueError(
            f"{path}: expected --include-patient-data for a guardian by kernels, got none. It "
            "holds every recorded hour that it was fitted to, so whoever gets the file gets the "
            "records. Give the flag if that is meant, leave the guardian out (--models policy "
            "twin), or fit a flow, which holds no hours (stepdown guardian fit --density flow)."
        )
    steps = (saved.coordinates - 2) // len(saved.present)
    about = _about(
        path,
        density=saved.density,
        share=saved.share,
        contains_patient_data=saved.contains_patient_data,
        holds=PATIENT_DATA if saved.contains_patient_data else (
            "weights, and the sorted log densities of select patients' decisions"
        ),
    )  # fmt: skip
    return _Made(guardian_graph(guardian, steps, about), saved.columns)


def _readme(files: dict[str, bytes], columns: tuple[str, ...]) -> bytes:
    """What the files are, for people and programs that have nothing of ours."""
    table: dict[str, Any] = {
        "use": BANNER,
        "stepdown": __version__,
        "opset": OPSET,
        "signals": [
            {"name": x.name, "label": x.label, "unit": x.unit, "ucum": x.ucum}
            for x in (KNOWN[name] for name in columns)
        ],
        "levels": list(LEVELS),
        "missing": "Inputs are finite; a column that the model does not know may be NaN.",
        "files": {name: describe(data) for name, data in files.items()},
    }
    return (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode()


# ── twin ─────────────────────────────────────────────────────────────────────────────────────────


def twin_graph(twin: Twin, about: dict[str, str]) -> bytes:
    """The coming hour under a level: `center` and `draw`, physical units."""
    graph, network = Graph(), twin.network
    decoders = {
        Calibrated: _calibrated,
        Residuals: _residuals,
        Transformer: _transformer,
        MLP: _plain,
        Ridge: _ridge,
    }
    if type(network) not in decoders:
        raise ValueError(
            f"expected a twin that can be exported ({', '.join(EXPORTABLE)}), got another. "
            "Fit one of these, or leave the twin out: "
            "--models policy guardian."
        )
    seen = _read(graph, twin)
    base = _base(graph, twin, seen)
    decoded = decoders[type(network)](graph, twin, seen)
    chosen, pump = _column(graph, level_index(graph, "choice")), twin.carry.profile
    for change, name in ((decoded.center, "center"), (decoded.draw, "draw")):
        change = graph.add("Mul", change, numbers(twin.coordinates.unit))
        free = change if base is None else graph.add("Add", base, change)
        graph.call(to_samples(graph, twin.coordinates, free, chosen, pump), name)
    hour_shape = (BATCH, twin.steps, len(twin.scaler.mean))
    outputs = [
        Port("center", "float32", hour_shape, "the point forecast, columns as in `signals`"),
        Port("draw", "float32", hour_shape, "one possible hour, columns as in `signals`"),
    ]
    inputs = [*hour_ports(twin.steps, twin.scaler), CHOICE, decoded.noise]
    return graph.to_bytes("twin", inputs, outputs, about)


@dataclass(frozen=True)
class _Seen:
    """What a network reads, by names in the graph."""

    free: str  # (batch, steps, signals in use)
    index: str  # of the level in force at each sample, (batch, steps)
    level: str  # the same as z-scores
    before: str  # z-score of the last one, (batch, 1)
    choice: str  # z-score of the chosen one for each coming sample, (batch, steps)


def _read(graph: Graph, twin: Twin) -> _Seen:
    index = levels_in_force(graph, twin.carry.profile)
    given = split_columns(graph, "signals", twin.scaler.present)
    free = to_free(graph, twin.coordinates, given, index, twin.carry.profile)
    number = graph.add("Add", graph.add("Cast", index, to=TensorProto.FLOAT), float(LEVELS[0]))
    level = graph.add("Div", graph.add("Sub", number, LEVEL_MEAN), LEVEL_SD)
    choice = graph.add("Tile", level_scores(graph, "choice"), np.array([1, twin.steps]))
    return _Seen(free, index, level, _last(graph, level), choice)


def _last(graph: Graph, value: str) -> str:
    """The last sample; the axis of samples stays."""
    return graph.add("Slice", value, np.array([-1]), np.array([2**31]), np.array([1]))


# ── what the network's output is added to ────────────────────────────────────────────────────────


def _base(graph: Graph, twin: Twin, seen: _Seen) -> str | None:
    if twin.base == "direct":
        return None
    if twin.base == "last":
        return _last(graph, seen.free)
    pump = twin.carry.profile
    carried = _carry_forward(graph, pump, twin.scaler.present, _last(graph, seen.index))
    chosen = _column(graph, level_index(graph, "choice"))
    return to_free(graph, twin.coordinates, carried, chosen, pump)


# ── the networks: center, draw, and what luck they need ──────────────────────────────────────────

ONE_HOUR = Port(
    "noise",
    "float32",
    (BATCH,),
    "uniform from 0 to below 1; chooses one of the kept hours of errors",
)


@dataclass(frozen=True)
class Decoded:
    """What a network says about the coming hour, by names in the graph."""

    center: str
    draw: str
    noise: Port  # the luck of the draw


def _residuals(graph: Graph, twin: Twin, seen: _Seen) -> Decoded:
    errors = numbers(twin.network.errors)  # pyright: ignore[reportAttributeAccessIssue]
    draw = graph.add("Gather", errors, _pick(graph, 0, len(errors)), axis=0)
    return Decoded(graph.add("Mul", draw, 0.0), draw, ONE_HOUR)


def _pick(graph: Graph, first: str | int, count: str | int) -> str:
    """The row that the noise stands for: first + floor(noise * count)."""
    number = count if isinstance(count, int) else graph.add("Cast", count, to=TensorProto.FLOAT)
    place = graph.add("Mul", "noise", float(number) if isinstance(number, int) else number)
    row = graph.add("Cast", graph.add("Floor", place), to=TensorProto.INT64)
    last = count - 1 if isinstance(count, int) else graph.add("Sub", count, 1)
    row = graph.add("Max", graph.add("Min", row, last), 0)  # noise of exactly 1 is the last row
    return graph.add("Add", row, first)


def _calibrated(graph: Graph, twin: Twin, seen: _Seen) -> Decoded:
    network: Any = twin.network
    walk = numbers(network.members.walk[0])
    earlier = graph.add("Slice", seen.free, np.array([0]), np.array([-1]), np.array([1]))
    way = graph.add("Div", graph.add("Sub", earlier, _last(graph, seen.free)), walk)
    way = graph.add("Clip", way, -FARTHEST, FARTHEST)
    told = _features(graph, seen, way)
    far, wide = [], []
    for i in range(len(network.members.step)):
        away, spread = _member(graph, twin, told, member(network.members, i))
        far.append(away)
        wide.append(spread)
    middle = graph.add("Mean", *far)
    apart = [_squared(graph, graph.add("Sub", x, middle)) for x in far]
    within = graph.add("Mean", *[_squared(graph, x) for x in wide])
    spread = graph.add("Sqrt", graph.add("Add", within, graph.add("Mean", *apart)))
    usual = graph.add("Clip", told, -FARTHEST, FARTHEST)
    line = _as_hour(graph, twin, graph.add("MatMul", usual, numbers(network.line)))
    center = graph.add("Add", line, middle)
    group = _group(graph, seen, way, float(network.calm))
    first, count = (
        graph.add("Gather", np.asarray(x, np.int64), group, axis=0)
        for x in (network.first, network.count)
    )
    error = _error(graph, network, first, count)
    draw = graph.add("Add", center, graph.add("Mul", spread, error))
    return Decoded(center, draw, ONE_HOUR)


def _error(graph: Graph, network: Any, first: str | int, count: str | int) -> str:
    """One of the kept hours of errors, what lasts and what passes as wide as they are."""
    error = graph.add("Gather", numbers(network.errors), _pick(graph, first, count), axis=0)
    lasting, passing = numbers(network.width)
    middle = graph.add("ReduceMean", error, axes=[1], keepdims=1)
    rest = graph.add("Mul", graph.add("Sub", error, middle), passing)
    return graph.add("Add", graph.add("Mul", middle, lasting), rest)


def _ridge(graph: Graph, twin: Twin, seen: _Seen) -> Decoded:
    """Levels are held through the coming hour, so what lies inside it adds nothing."""
    network: Any = twin.network
    signals = graph.add("Clip", seen.free, -FARTHEST, FARTHEST)
    told = _interactions(graph, seen, signals)
    center = _as_hour(graph, twin, graph.add("MatMul", told, numbers(network.weights[0])))
    away = _squared(graph, graph.add("Sub", signals, _middle(graph, signals)))
    restless = graph.add("Sqrt", graph.add("ReduceMean", away, axes=[1], keepdims=1))
    restless = graph.add("Log", graph.add("Add", restless, LEAST_SPREAD))
    usual, slope = numbers(network.spread)
    size = graph.add("Exp", graph.add("Add", graph.add("Mul", restless, slope), usual))
    row = _pick(graph, 0, len(network.errors))
    error = graph.add("Gather", numbers(network.errors), row, axis=0)
    return Decoded(center, graph.add("Add", center, graph.add("Mul", size, error)), ONE_HOUR)


def _middle(graph: Graph, signals: str) -> str:
    """The mean over the samples; their axis stays."""
    return graph.add("ReduceMean", signals, axes=[1], keepdims=1)


def _interactions(graph: Graph, seen: _Seen, signals: str) -> str:
    """The features of the ridge regression (twin/ridge.py)."""
    level = graph.add("ReduceMean", seen.choice, axes=[1], keepdims=1)
    change = graph.add("Mul", graph.add("Sub", level, seen.before), LEVEL_SD)
    down, up = graph.add("Relu", graph.add("Neg", change)), graph.add("Relu", change)
    far = graph.add("Greater", graph.add("Add", down, up), STILL)
    moved = graph.add("Cast", far, to=TensorProto.FLOAT)
    one = graph.add("Add", graph.add("Mul", level, 0.0), 1.0)
    known = graph.add(
        "OneHot", level_index(graph, "choice"), len(LEVELS), np.array([0.0, 1.0]), axis=1
    )
    middle = graph.add("Squeeze", _middle(graph, signals), np.array([1]))
    parts = [one, level, down, up, moved, _squared(graph, change), graph.add("Mul", change, level)]
    parts += [known, flat(graph, signals), graph.add("Mul", middle, change)]
    return graph.add("Concat", *parts, axis=1)


def _group(graph: Graph, seen: _Seen, way: str, calm: float) -> str:
    """0 lowered, 1 calm and 2 restless at the same level, 3 raised, (batch,)."""
    last = graph.add("Squeeze", _last(graph, seen.index), np.array([1]))
    turn = graph.add("Sign", graph.add("Sub", level_index(graph, "choice"), last))
    moving = graph.add("ReduceMean", graph.add("Abs", way), axes=[1, 2], keepdims=0)
    restless = graph.add("Cast", graph.add("Greater", moving, calm), to=TensorProto.INT64)
    changed = graph.add("Where", graph.add("Less", turn, 0), 0, 3)
    same = graph.add("Equal", turn, 0)
    return graph.add("Where", same, graph.add("Add", restless, 1), changed)


def _features(graph: Graph, seen: _Seen, way: str) -> str:
    """The features of a member (twin/calibrated.py)."""
    last = graph.add("Squeeze", _last(graph, seen.index), np.array([1]))
    known = [
        graph.add("OneHot", index, len(LEVELS), np.array([0.0, 1.0]), axis=1)
        for index in (last, level_index(graph, "choice"))
    ]
    difference = graph.add("Sub", seen.choice, seen.before)
    numbers_ = [seen.before, seen.choice, difference]
    return graph.add("Concat", flat(graph, seen.free), flat(graph, way), *numbers_, *known, axis=1)


def _member(graph: Graph, twin: Twin, seen: str, one: Any) -> tuple[str, str]:
    signals = len(twin.scaler.present)
    out = perceptron(graph, seen, one.trunk.layers)
    out = graph.add("Reshape", out, np.array([0, 2, twin.steps, signals]))
    far, spread = (graph.add("Gather", out, i, axis=1) for i in (0, 1))
    spread = graph.add("Exp", graph.add("Clip", spread, LEAST, MOST))
    step = numbers(one.step)
    spread = graph.add("Where", step > 0, graph.add("Mul", spread, step), 1.0)
    return graph.add("Mul", far, step), spread


def _squared(graph: Graph, value: str) -> str:
    return graph.add("Mul", value, value)


def _with_level(graph: Graph, seen: _Seen) -> str:
    """All columns that a network of the paper reads, (batch, steps, signals in use + 1)."""
    level = graph.add("Unsqueeze", seen.level, np.array([2]))
    return graph.add("Concat", seen.free, level, axis=2)


def _plain(graph: Graph, twin: Twin, seen: _Seen) -> Decoded:
    network: Any = twin.network
    row = flat(graph, _with_level(graph, seen))
    row = graph.add("Concat", row, seen.choice, axis=1)
    widths = [layer.weight.shape[0] for layer in network.hidden]
    center = draw = row
    for layer, end in zip(network.hidden, np.cumsum(widths), strict=True):
        start = int(end) - layer.weight.shape[0]
        center = graph.add("Relu", linear(graph, center, layer))
        inner = graph.add("Relu", linear(graph, draw, layer))
        draw = _dropped(graph, inner, network.dropout, slice(start, int(end)))
    center, draw = (_as_hour(graph, twin, linear(graph, x, network.out)) for x in (center, draw))
    return Decoded(center, draw, _masks(int(sum(widths)), network.dropout))


def _dropped(graph: Graph, units: str, rate: float, part: slice) -> str:
    """Units whose noise is below the share that is kept, scaled up; the others are zero."""
    start, stop = (np.array([x]) for x in (part.start, part.stop))
    noise = graph.add("Slice", "noise", start, stop, np.array([1]))
    kept = graph.add("Less", noise, 1 - rate)
    return graph.add("Where", kept, graph.add("Div", units, 1 - rate), 0.0)


def _masks(units: int, rate: float) -> Port:
    meaning = f"uniform from 0 to below 1; units at {1 - rate:g} or above are dropped"
    return Port("noise", "float32", (BATCH, units), meaning)


def _as_hour(graph: Graph, twin: Twin, value: str) -> str:
    return graph.add("Reshape", value, np.array([0, twin.steps, len(twin.scaler.present)]))


def _transformer(graph: Graph, twin: Twin, seen: _Seen) -> Decoded:
    network: Any = twin.network
    tokens = linear(graph, _with_level(graph, seen), network.embed)
    width = network.embed.weight.shape[0]
    if network.positions == "sinusoidal":
        tokens = graph.add("Add", tokens, numbers(sinusoids(twin.steps, width)))
    for layer in network.layers:
        tokens = _layer(graph, tokens, layer, twin.steps)
    row = flat(graph, _norm(graph, tokens, network.norm))
    row = graph.add("Concat", row, seen.choice, axis=1)
    inner = graph.add("Relu", linear(graph, row, network.hidden))
    units = network.hidden.weight.shape[0]
    dropped = _dropped(graph, inner, network.dropout, slice(0, units))
    center, draw = (_as_hour(graph, twin, linear(graph, x, network.out)) for x in (inner, dropped))
    return Decoded(center, draw, _masks(units, network.dropout))


def _norm(graph: Graph, value: str, norm: Any) -> str:
    return graph.add(
        "LayerNormalization", value, numbers(norm.weight), numbers(norm.bias), epsilon=norm.eps
    )


def _layer(graph: Graph, tokens: str, layer: Any, steps: int) -> str:
    seen = _attend(graph, _norm(graph, tokens, layer.norms[0]), layer.attention, steps)
    tokens = graph.add("Add", tokens, seen)
    inner = graph.add("Relu", linear(graph, _norm(graph, tokens, layer.norms[1]), layer.widen))
    return graph.add("Add", tokens, linear(graph, inner, layer.narrow))


def _attend(graph: Graph, tokens: str, attention: Any, steps: int) -> str:
    width = attention.out.weight.shape[0]
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


# ── the last sample carried forward ──────────────────────────────────────────────────────────────
#
# The arithmetic is that of problem/persistence.py and patients/pump.py; all values are (batch, 1).


def _carry_forward(
    graph: Graph, pump: PumpProfile, present: tuple[int, ...], before: str
) -> Columns:
    """The last sample with the pump at its new level, columns (batch, 1)."""
    latest = _last(graph, "signals")
    columns = split_columns(graph, latest, tuple({*present, SPEED, FLOW, CURRENT}))
    after = _column(graph, level_index(graph, "choice"))
    old, new = (pump_at(graph, pump, level) for level in (before, after))
    flow = columns[FLOW]
    moved = flow_at(graph, pump, new, head_at(graph, pump, old, flow))
    kept = graph.add("Equal", before, after)
    columns[FLOW] = graph.add("Where", kept, flow, moved)
    power = graph.add("Sub", current_at(graph, new, columns[FLOW]), current_at(graph, old, flow))
    current = graph.add("Add", columns[CURRENT], power)
    unknown = graph.add("IsNaN", current)  # a current without a flow stays
    columns[CURRENT] = graph.add("Where", unknown, columns[CURRENT], current)
    columns[SPEED] = graph.add("Mul", columns[SPEED], graph.add("Div", new["speed"], old["speed"]))
    return columns


def _column(graph: Graph, value: str) -> str:
    return graph.add("Unsqueeze", value, np.array([1]))


# ── policy ───────────────────────────────────────────────────────────────────────────────────────


def policy_graph(policy: Policy, steps: int, about: dict[str, str]) -> bytes:
    """Weights of the levels, the levels that are allowed, and the likeliest of these."""
    inner = policy.policy if isinstance(policy, Constrained) else policy
    if not isinstance(inner, LearnedPolicy):
        raise ValueError(
            "expected a learned policy, got a planner, which holds a whole model. Leave the policy "
            "out (--models twin guardian), or train one: stepdown train."
        )
    config = policy.config if isinstance(policy, Constrained) else PAPER
    graph = Graph()
    row = graph.add(
        "Concat",
        flat(graph, signal_scores(graph, inner.scaler)),
        level_scores(graph, "level"),
        axis=1,
    )
    weights = _network(
        graph, graph.add("Clip", row, -FARTHEST_INPUT, FARTHEST_INPUT), inner.network
    )
    weights = graph.add("LogSoftmax", weights, axis=-1)
    allowed = _allowed(graph, config)
    masked = graph.add("Where", allowed, weights, NEVER)
    if isinstance(policy, Constrained):
        weights = graph.add("LogSoftmax", masked, axis=-1)
    best = graph.add("ArgMax", masked, axis=1, keepdims=0)
    graph.call(weights, "log_probability")
    graph.call(allowed, "allowed")
    graph.call(graph.add("Add", best, LEVELS[0]), "choice")
    return graph.to_bytes("policy", [*hour_ports(steps, inner.scaler)], [*POLICY_OUT], about)


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
    columns = np.array([MAP, HR])
    limits = np.array([config.map_limit, config.hr_limit])
    judged = graph.add("Gather", "signals", columns, axis=2)
    known = graph.add("Where", graph.add("IsNaN", judged), np.inf, judged)
    lowest = graph.add("ReduceMin", known, axes=[1], keepdims=0)  # (batch, 2)
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
    inputs = [*hour_ports(steps, guardian.density.pairs.scaler), CHOICE]
    return graph.to_bytes("guardian", inputs, [*GUARDIAN_OUT], about)


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
        raise TypeError("expected a flow or a kernel density, got one of another kind.")
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
