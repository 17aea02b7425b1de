"""Recordings read on a Ray cluster: each file is a job, its stays are kept for the import.

The import finds them in its work folder, as it finds those of an interrupted call, and reads by
itself what was refused here, so that a refusal has the same words and exit code everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepdown.artifacts import Content
from stepdown.experiment.cluster import run_on_ray
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.records.importer import ImportConfig, keep_file
from stepdown.records.mapping import Columns
from stepdown.records.readers import RecordingError


@dataclass(frozen=True)
class KeepFile:
    """The stays of one file."""

    file: Path
    place: Path  # named by the content of the file and every setting
    columns: Columns = field(metadata={"shown": True})
    config: ImportConfig = field(metadata={"shown": True})  # may hold a secret

    def make(self, desk: Desk) -> Mapping[str, Content]:
        """How many there are; a refusal is left to the import."""
        try:
            return arrays_and_info({}, {"stays": keep_file(self.file, self.place, self.columns,
                                                           self.config)})  # fmt: skip
        except RecordingError:
            return arrays_and_info({}, {"stays": 0})


def read_on_ray(
    address: str, columns: Columns, config: ImportConfig, work: Path
) -> Callable[[Sequence[tuple[Path, Path]]], None]:
    """Who reads files on that cluster; all nodes see recordings and `work` under the same path."""

    def read(left: Sequence[tuple[Path, Path]]) -> None:
        desk = Desk(work.resolve() / "jobs")
        desk.path.mkdir(parents=True, exist_ok=True)
        jobs = [
            Job(f"import/{place.stem}", KeepFile(file.resolve(), place.resolve(), columns, config))
            for file, place in left
        ]
        run_on_ray(jobs, desk, address)

    return read
