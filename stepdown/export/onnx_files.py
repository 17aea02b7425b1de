"""The models of a finished run as ONNX files in one folder, with a README and a manifest.

A kernel density is a copy of its patients' hours, so a guardian that holds one leaves only with a
flag. A flow holds weights, and the sorted log densities of select patients.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from stepdown import __version__
from stepdown.artifacts import MANIFEST, check_folder
from stepdown.export.onnx_graph import OPSET, TYPES
from stepdown.export.onnx_models import guardian_graph, policy_graph, twin_graph
from stepdown.guardian.fit import PATIENT_DATA
from stepdown.guardian.guardians import load_guardian
from stepdown.policies.saved import load_policy
from stepdown.signals import KNOWN, LEVELS, columns_with
from stepdown.twin.baselines import Residuals
from stepdown.twin.calibrated import Calibrated
from stepdown.twin.twins import load_twin

README = "README.json"
BANNER = "Research tool, not for patient care."


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


def _about(path: Path, kind: str, **told: object) -> dict[str, str]:
    """Where a graph comes from; every value is text."""
    seal = json.loads((path / MANIFEST).read_bytes())["sha256"]
    known = {"kind": kind, "stepdown": __version__, "made_from_sha256": seal, "use": BANNER}
    return known | {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in told.items()
    }


def _policy(path: Path) -> _Made:
    policy, saved = load_policy(path)
    about = _about(
        path,
        "policy",
        method=saved.method,
        constrained=saved.constrained,
        contains_patient_data=False,
    )
    return _Made(policy_graph(policy, saved.steps, about), saved.columns)


def _twin(path: Path) -> _Made:
    twin, config = load_twin(path)
    held = {Calibrated: "select", Residuals: "train"}.get(type(twin.network))
    kept = f"hours of forecast errors of {held} patients, without states, names or times"
    about = _about(
        path,
        "twin",
        model=config.kind.name,
        contains_patient_data=False,
        holds=kept if held else "weights alone",
    )
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
    signals = len(saved.present)
    steps = (saved.coordinates - 2) // signals
    about = _about(
        path,
        "guardian",
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
        "files": {name: _describe(data) for name, data in files.items()},
    }
    return (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode()


def _describe(data: bytes) -> dict[str, Any]:
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
