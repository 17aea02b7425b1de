"""`stepdown export`: the hours of a cohort as data sets for other people's learners."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax.random as jr

from stepdown.artifacts import provenance, require_free, write_folder
from stepdown.handover import Cohort
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.records.cleaning import split_patients
from stepdown.records.files import read_cohort


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
    try:
        from stepdown.problem.export import write_d4rl, write_minari
    except ModuleNotFoundError as error:
        raise ValueError(
            f"expected {error.name}, which is not installed. Run pip install 'stepdown[gym]'."
        ) from error
    if config.minari is None and config.d4rl is None:
        raise ValueError("expected --minari or --d4rl with a folder, got neither.")
    for folder in (config.minari, config.d4rl):
        if folder is not None:
            require_free(folder)
    parts = split_patients(read_cohort(config.cohort), key=jr.key(config.seed))
    weights = HoursConfig(jump_weight=config.jump_weight, weaning_weight=config.weaning_weight)
    about = {"jump_weight": config.jump_weight, "weaning_weight": config.weaning_weight}
    hours = [(part, make_transitions(part, weights)) for part in parts]

    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        if config.minari is not None:
            for part, rows in hours:
                write_minari(here / "minari", rows, patients=part.patient, about=about)
            _publish(config.minari, here / "minari", config, "minari")
        if config.d4rl is not None:
            (here / "d4rl").mkdir()
            for part, rows in hours:
                file = here / "d4rl" / f"{part.role}.hdf5"
                write_d4rl(file, rows, patients=part.patient, about=about)
            _publish(config.d4rl, here / "d4rl", config, "d4rl")
    for part, rows in hours:
        sys.stdout.write(_sentence(part, len(rows.level)))


def _publish(folder: Path, made: Path, config: ExportConfig, kind: str) -> None:
    """Move a finished export to its place, whole and with a manifest."""
    files = {
        file.relative_to(made).as_posix(): file.read_bytes()
        for file in sorted(made.rglob("*"))
        if file.is_file()
    }
    write_folder(folder, files, kind=kind, about=provenance(config=config, seed=config.seed))


def _sentence(part: Cohort, rows: int) -> str:
    return f"{part.role}: {rows:,} decisions of {len(part.patient):,} patients\n"
