"""A policy that comes as an ONNX file: one of ours (onnx_models.py), or anybody's.

Anybody's has one input, the hours, (n, samples, columns) with the level in force as the last
column, and its first output holds a level for each hour, (n,), or eight scores, (n, 8). One whose
input is flat, (n, numbers), speaks as our Gymnasium environments do: samples one after the other,
and action i for P(i+2). Ours has the signals and the level in force as two inputs; its weights are
those before the bedside's limits.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from stepdown.policies.foreign import HourlyFunction
from stepdown.signals import LOWEST

OURS_IN, OURS_OUT = {"signals", "level"}, "log_probability"


def read_onnx_policy(path: Path) -> HourlyFunction:
    """The graph of a file as a function of hours."""
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has no class of its own for a file that is no graph
        raise ValueError(f"{path}: expected an ONNX graph, got {error}.") from error
    inputs = {x.name: x for x in session.get_inputs()}
    outputs = [x.name for x in session.get_outputs()]
    if set(inputs) == OURS_IN:
        if OURS_OUT not in outputs:
            raise ValueError(
                f"{path}: expected the output {OURS_OUT}, got {', '.join(outputs)}. Of stepdown "
                "export --onnx it is policy.onnx that can be evaluated."
            )
        return _ours(session)
    if len(inputs) != 1:
        raise ValueError(
            f"{path}: expected one input (hours, samples, columns), or those of stepdown export "
            f"--onnx, got {', '.join(inputs)}. Give the graph a single input."
        )
    (port,) = inputs.values()
    kind = np.float64 if "double" in port.type else np.float32
    flat = len(port.shape) == 2

    def ask(states: np.ndarray) -> Any:
        given = states.reshape(len(states), -1) if flat else states
        answer = np.asarray(session.run(outputs[:1], {port.name: given.astype(kind)})[0])
        return answer + LOWEST if flat and answer.ndim == 1 else answer

    return ask


def _ours(session: onnxruntime.InferenceSession) -> HourlyFunction:
    """A policy of `stepdown export --onnx`."""

    def ask(states: np.ndarray) -> Any:
        given = {
            "signals": states[..., :-1].astype(np.float32),
            "level": np.round(states[:, -1, -1]).astype(np.int64),
        }
        return session.run([OURS_OUT], given)[0]

    return ask
