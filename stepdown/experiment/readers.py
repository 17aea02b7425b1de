"""Models that jobs have left, read back by the jobs that need them.

Reading rests on the shape of a model, not on the tables of models: a new row renews nobody. A job
is renewed with the job whose model it reads.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from stepdown.artifacts import Content, load_config
from stepdown.experiment.jobs import Desk, Job, files_of
from stepdown.guardian.fit import KIND as GUARDIAN
from stepdown.guardian.fit import DensityConfig, SavedGuardian
from stepdown.guardian.fit import read_saved as read_saved_guardian
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Policy
from stepdown.policies.ensemble import ENSEMBLE, Ensemble, load_ensemble
from stepdown.policies.saved import POLICIES, load_policies
from stepdown.twin.fit import KIND as TWIN
from stepdown.twin.fit import SavedTwin, Twin, TwinConfig, read_saved


@dataclass(frozen=True)
class GivenModel:
    """A twin, guardian or ensemble that somebody has fitted before."""

    path: Path
    kind: str
    digest: str
    config: TwinConfig | None = None  # of a twin
    density: DensityConfig | None = None  # of a guardian

    def make(self, desk: Desk) -> dict[str, Content]:
        """Its files as they are."""
        return files_of(self.path, self.kind)


def read_twin(desk: Desk, job: Job) -> Twin:
    """The twin that a job has kept."""
    path, work = desk.folder(job) / TWIN, cast(Any, job.work)  # FitTwin or GivenModel
    return read_saved(path, work.config, load_config(path, SavedTwin, kind=TWIN))


def read_guardian(desk: Desk, job: Job) -> Guardian:
    """The guardian that a job has kept."""
    path, work = desk.folder(job) / GUARDIAN, cast(Any, job.work)  # FitGuardian or GivenModel
    about = load_config(path, SavedGuardian, kind=GUARDIAN)
    return read_saved_guardian(path, work.density, about)


def read_ensemble(desk: Desk, job: Job) -> Ensemble:
    """The ensemble that a job has kept."""
    return load_ensemble(desk.folder(job) / ENSEMBLE)[0]


def read_policies(desk: Desk, job: Job) -> Policy:
    """The policies that a training has kept; leaves lead with the seeds."""
    return load_policies(desk.folder(job) / POLICIES)
