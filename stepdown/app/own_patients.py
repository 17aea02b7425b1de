"""Patients of one's own: any cohort, or recordings that are read anew whenever they grow.

A cohort folder or table is read as it is. Recordings are imported in memory through the same
mapping and by the same code as `stepdown import`; a stay that needs action is left out, and the
rest is shown. What is shown changes only when all was read: a file that is being written keeps the
patients of a moment ago.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepdown.app.recordings import Loaded, Stay, read_stays
from stepdown.app.request import pump_of_table
from stepdown.artifacts import ArtifactError
from stepdown.handover import Cohort
from stepdown.records.files import read_cohort
from stepdown.records.importer import ImportConfig, import_cohort
from stepdown.records.mapping import MappingError, read_mapping
from stepdown.records.readers import RecordingError, list_recordings
from stepdown.records.split import read_note, read_profile, require_unseen

EVERY = 0.5  # s between looks at files that may have grown
LOG = logging.getLogger("stepdown.app")
Problem = ArtifactError | MappingError | RecordingError | ValueError | OSError
PROBLEMS = (ArtifactError, MappingError, RecordingError, ValueError, OSError)


@dataclass(frozen=True)
class Own:
    """Where the patients come from."""

    path: Path  # cohort folder or table; with `columns` a recording or a folder of them
    columns: Path | None = None  # mapping file

    def read(self, table: str) -> Cohort:
        """All patients; `table` is the pump profile of the models."""
        if self.columns is None:
            if not self.path.exists():
                raise ValueError(f"--patients: expected a cohort, got no {self.path}.")
            return read_cohort(self.path)
        config = ImportConfig(table, leave_out=True)
        return import_cohort(self.path, read_mapping(self.columns), config).cohort

    def pump(self, table: str) -> str:
        """The pump type of the patients."""
        folder = self.path if self.columns is None and self.path.is_dir() else None
        return pump_of_table(read_profile(folder, None) if folder else table)

    def signature(self) -> tuple[tuple[str, int, int], ...]:
        """What changes when a file grows, comes or goes."""
        if self.columns is not None:
            files = list_recordings(self.path)
        else:
            files = sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]
        seen = [(file, file.stat()) for file in files]
        return tuple((str(file), one.st_size, one.st_mtime_ns) for file, one in seen)


def read_own(own: Own, run: Path, table: str, steps: int) -> dict[str, Stay]:
    """The stays of one's own patients; refused if a model has seen them or cannot read them."""
    cohort = own.read(table)
    if abs(steps * cohort.minutes - 60) > 1e-6:
        raise ValueError(
            f"{own.path}: expected a sample every {60 / steps:g} min, as the models read them, got "
            f"one every {cohort.minutes:g} min."
        )
    for kind in ("twin", "guardian"):
        require_unseen(read_note(run / kind, kind), cohort, own.path)
    return read_stays(cohort, own.pump(table))


def changed(old: dict[str, Stay], new: dict[str, Stay]) -> set[str]:
    """Patients who are new, gone or longer, or whose recording was mended."""

    def same(one: Stay, other: Stay) -> bool:
        return (
            one.columns == other.columns
            and np.array_equal(one.level, other.level)
            and np.array_equal(one.signals, other.signals, equal_nan=True)
        )

    both = old.keys() & new.keys()
    return (old.keys() ^ new.keys()) | {name for name in both if not same(old[name], new[name])}


def follow(own: Own, read: Callable[[], None], stopped: threading.Event) -> None:
    """Call `read` whenever a file has changed, until stopped."""
    known = _signature(own)
    while not stopped.wait(EVERY):
        now = _signature(own)
        if now != known:
            known = now
            read()


def _signature(own: Own) -> tuple[tuple[str, int, int], ...]:
    try:
        return own.signature()
    except PROBLEMS:
        return ()  # a file that goes while it is looked at: again in a moment


def available(stay: Stay) -> set[str]:
    """Signals of which the patient has any sample."""
    there = np.any(np.isfinite(stay.signals), axis=0)
    return {name for name, has in zip(stay.columns, there, strict=True) if has}


def serving(runs: list[Loaded], names: set[str]) -> Loaded:
    """The models that read most signals, all of which are there; else the first, which fill."""
    able = [one for one in runs if set(one.engine.names) <= names]
    return max(able, key=lambda one: len(one.engine.names), default=runs[0])


def in_columns(stay: Stay, columns: tuple[str, ...]) -> Stay:
    """The stay with the columns that models expect; what was not recorded is missing."""
    if stay.columns == columns:
        return stay
    signals = np.full((len(stay.level), len(columns)), np.nan)
    for index, name in enumerate(columns):
        if name in stay.columns:
            signals[:, index] = stay.signals[:, stay.columns.index(name)]
    return Stay(stay.patient, signals, stay.level, stay.minutes, stay.pump, columns)
