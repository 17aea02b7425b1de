"""Jobs of guardians: fit one to the hours of a data set, and see what it notices."""

from dataclasses import dataclass

import jax.random as jr

from stepdown.artifacts import Content
from stepdown.evaluation.guardians import score_shifts
from stepdown.experiment.datasets import Source
from stepdown.experiment.jobs import Desk, arrays_and_info, saved
from stepdown.experiment.patients import read_hours
from stepdown.guardian.fit import KIND, DensityConfig, fit_guardian, save_guardian
from stepdown.guardian.threshold import GuardianConfig

KEY = 0


@dataclass(frozen=True)
class FitGuardian:
    """A guardian of a data set; on recorded hours, what it notices in test patients as well."""

    source: Source
    density: DensityConfig
    limits: GuardianConfig  # where its threshold lies

    def make(self, desk: Desk) -> dict[str, Content]:
        """The guardian and its scores."""
        density, limits, source = self.density, self.limits, self.source
        with desk.teller.progress(
            f"fitting the {density.kind.name} of {source.data} hours"
        ) as watch:
            guardian, _ = fit_guardian(
                *source.hours(desk), density, limits, key=jr.key(KEY), watch=watch
            )
        found = {}
        if source.data == "recorded" and source.patients is not None:
            test = read_hours(desk, source.patients).test
            found, _ = score_shifts(guardian, test, key=jr.key(KEY))
        # A run holds its recordings anyway, so a kernel density adds nothing that was private.
        return arrays_and_info({}, found) | saved(
            lambda path: save_guardian(
                path, guardian, density, limits, seed=KEY, contains_patient_data=True
            ),
            KIND,
        )
