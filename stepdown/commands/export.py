"""`stepdown export`: what we have, for other people's programs.

The hours of a cohort go out as data sets for learners (Minari, D4RL), the models of a run as ONNX
graphs. A run holds its cohort, so either can be named for recorded hours; what the expert did in
the twin, with noise and without, and models need a run.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax.random as jr
from tyro.conf import Positional

from stepdown.artifacts import provenance, require_free, write_folder
from stepdown.commands.run import asked_for, plans_of
from stepdown.experiment.jobs import Desk, in_order, jobs_of
from stepdown.experiment.patients import read_parts
from stepdown.experiment.training import TrainPolicy
from stepdown.handover import DataName, SettingName, Transitions
from stepdown.problem.hours import HoursConfig, make_transitions, shape_rewards
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
    data: DataName = "recorded"  # of a run also its synthetic hours: noiseless or noisy
    setting: SettingName = "ours"  # of synthetic hours: whose twin they were made in
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
    about |= {"data": config.data}
    if config.data == "recorded":
        cohort = read_cohort(_cohort_of(config.source))
        parts = split_patients(cohort, key=jr.key(config.seed))
        hours = [(part.patient, make_transitions(part, weights)) for part in parts]
    else:
        hours = [(names, shape_rewards(x, weights)) for names, x in _imagined(config)]
        about |= {"setting": config.setting}
    for kind, folder in folders.items():
        with tempfile.TemporaryDirectory() as made:
            for names, rows in hours:
                writers[kind](Path(made), rows, patients=names, about=about)
            _publish(folder, Path(made), config, kind)
    for names, rows in hours:
        sys.stdout.write(f"{rows.role}: {len(rows.level):,} decisions of {len(names):,} patients\n")


def _imagined(config: ExportConfig) -> list[tuple[tuple[str, ...], Transitions]]:
    """What the expert did in the twin of a run, from its train and from its select patients."""
    plan = plans_of(asked_for(config.source))[0]
    trained = plan.compared.get((config.data, config.setting))
    if not trained:
        known = ", ".join(f"{data} ({setting})" for data, setting in plan.compared)
        raise ValueError(
            f"{config.source}: expected a run with {config.data} hours in the setting "
            f"{config.setting}, got one with {known}. Choose another --data or --setting."
        )
    work, desk = next(iter(trained.values())).train.work, Desk(jobs_of(config.source))
    assert isinstance(work, TrainPolicy)
    stored = work.source.stored
    assert stored is not None
    if missing := [job.name for job in in_order([stored]) if not desk.is_done(job)]:
        raise ValueError(
            f"{config.source}: expected its jobs beside it, in {desk.path}, got none for "
            f"{missing[0]}. Renew the run, or bring the folder."
        )
    parts = read_parts(desk, plan.patients)
    both = work.source.hours(desk)
    return [(part.patient, rows) for part, rows in zip(parts[:2], both, strict=True)]


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
