"""`stepdown export`: the hours of a cohort as data sets for other people's learners."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax.random as jr

from stepdown.artifacts import provenance, require_free, write_folder
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.records.files import read_cohort
from stepdown.records.split import split_patients


@dataclass(frozen=True)
class ExportConfig:
    """Export the hours of a cohort for other people's learners."""

    cohort: Path  # folder of `stepdown simulate`, or a Parquet file of the same columns
    minari: Path | None = None  # new folder for Minari data sets (its MINARI_DATASETS_PATH)
    d4rl: Path | None = None  # new folder for D4RL-style HDF5 files
    jump_weight: float = 0.0  # shaping: charge for a change of more than two levels
    weaning_weight: float = 0.0  # shaping: pay for weaning in stable hours
    seed: int = 7  # of the split into train, select and test patients


def export(config: ExportConfig) -> None:
    """Write train, select and test patients separately, each once."""
    wanted = {"minari": config.minari, "d4rl": config.d4rl}
    folders = {kind: folder for kind, folder in wanted.items() if folder is not None}
    if not folders:
        raise ValueError("expected --minari or --d4rl with a folder, got neither.")
    writers = _writers()
    for folder in folders.values():
        require_free(folder)
    weights = HoursConfig(jump_weight=config.jump_weight, weaning_weight=config.weaning_weight)
    about = {"jump_weight": config.jump_weight, "weaning_weight": config.weaning_weight}
    parts = split_patients(read_cohort(config.cohort), key=jr.key(config.seed))
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


def _writers():
    """Who writes which format; their libraries are an extra."""
    try:
        from stepdown.problem.export import write_d4rl, write_minari
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
