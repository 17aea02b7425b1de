"""`stepdown export`: what we have, for other people's programs.

The hours of a cohort go out as data sets for learners (Minari, D4RL), the models of a run as ONNX
graphs. A run holds its cohort, so either can be named for data sets; models need a run.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax.random as jr
from tyro.conf import Positional

from stepdown.artifacts import provenance, require_free, write_folder
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.records.files import read_cohort
from stepdown.records.split import split_patients

ModelName = Literal["policy", "twin", "guardian"]


@dataclass(frozen=True)
class ExportConfig:
    """Export the hours of a cohort, or the models of a run, for other people's programs."""

    source: Positional[
        Path
    ]  # cohort of `stepdown simulate` (or a Parquet file like it), or a finished run
    minari: Path | None = None  # new folder for Minari data sets (its MINARI_DATASETS_PATH)
    d4rl: Path | None = None  # new folder for D4RL-style HDF5 files
    onnx: Path | None = None  # new folder for the models of a run as ONNX files
    models: tuple[ModelName, ...] = ("policy", "twin", "guardian")  # that go to --onnx
    include_patient_data: bool = False  # a guardian by kernels holds recorded hours
    jump_weight: float = 0.0  # shaping: charge for a change of more than two levels
    weaning_weight: float = 0.0  # shaping: pay for weaning in stable hours
    seed: int = 7  # of the split into train, select and test patients

    def __post_init__(self):
        if self.minari is None and self.d4rl is None and self.onnx is None:
            raise ValueError(
                "expected --minari or --d4rl (the hours of a cohort) or --onnx (the models of a "
                "run) with a folder, got none of them."
            )
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError("--models: expected policy, twin or guardian, each at most once.")


def export(config: ExportConfig) -> None:
    """Write what was asked for; every folder appears whole or not at all."""
    wanted = {"minari": config.minari, "d4rl": config.d4rl}
    folders = {kind: folder for kind, folder in wanted.items() if folder is not None}
    for folder in (*folders.values(), *([config.onnx] if config.onnx else [])):
        require_free(folder)
    if folders:
        _export_hours(config, folders)
    if config.onnx is not None:
        _export_models(config, config.onnx)


def _export_models(config: ExportConfig, folder: Path) -> None:
    try:
        from stepdown.export.onnx_models import onnx_files
    except ModuleNotFoundError as error:
        raise ValueError(
            f"expected {error.name}, which is not installed. Run pip install 'stepdown[onnx]'."
        ) from error
    files = onnx_files(config.source, config.models, config.include_patient_data)
    write_folder(folder, files, kind="onnx", about=provenance(config=config))
    for name, data in files.items():
        sys.stdout.write(f"{name}: {len(data):,} bytes\n")


def _export_hours(config: ExportConfig, folders: dict[str, Path]) -> None:
    """Write train, select and test patients separately, each once."""
    writers = _writers()
    weights = HoursConfig(jump_weight=config.jump_weight, weaning_weight=config.weaning_weight)
    about = {"jump_weight": config.jump_weight, "weaning_weight": config.weaning_weight}
    cohort = read_cohort(_cohort_of(config.source))
    parts = split_patients(cohort, key=jr.key(config.seed))
    hours = [(part, make_transitions(part, weights)) for part in parts]
    for kind, folder in folders.items():
        with tempfile.TemporaryDirectory() as made:
            for part, rows in hours:
                writers[kind](Path(made), rows, patients=part.patient, about=about)
            _publish(folder, Path(made), config, kind)
    for part, rows in hours:
        sys.stdout.write(
            f"{part.role}: {len(rows.level):,} decisions of {len(part.patient):,} patients\n"
        )


def _cohort_of(source: Path) -> Path:
    """A cohort as it is; of a run, the cohort inside."""
    return source / "cohort" if (source / "cohort").is_dir() else source


def _writers():
    """Who writes which format; their libraries are an extra."""
    try:
        from stepdown.export.datasets import write_d4rl, write_minari
    except ModuleNotFoundError as error:
        raise ValueError(
            f"expected {error.name}, which is not installed. Run pip install 'stepdown[gym]'."
        ) from error
    return {"minari": write_minari, "d4rl": write_d4rl}


def _publish(folder: Path, made: Path, config: ExportConfig, kind: str) -> None:
    """Move a finished export to its place, whole and with a manifest."""
    files = {
        file.relative_to(made).as_posix(): file.read_bytes()
        for file in sorted(made.rglob("*"))
        if file.is_file()
    }
    write_folder(folder, files, kind=kind, about=provenance(config=config, seed=config.seed))
