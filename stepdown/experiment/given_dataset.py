"""The job of a data set that somebody gave: apart, so that no training rests on its format."""

from dataclasses import dataclass
from pathlib import Path

from stepdown.artifacts import Content
from stepdown.experiment.datasets import store_hours
from stepdown.experiment.jobs import Desk


@dataclass(frozen=True)
class ReadDataset:
    """Hours of a data set of `stepdown export`, from a file or a Minari folder."""

    path: Path
    digest: str  # of its hours

    def make(self, desk: Desk) -> dict[str, Content]:
        """The hours by role."""
        from stepdown.export.datasets import read_dataset  # needs h5py

        return store_hours(*read_dataset(self.path))
