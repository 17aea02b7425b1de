"""Jobs of what policies learn from: hours, recorded or an expert's, and the ensemble."""

from dataclasses import dataclass

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.experiment.jobs import Desk, Job, arrays_and_info, saved
from stepdown.experiment.patients import read_hours
from stepdown.experiment.readers import read_policies, read_twin
from stepdown.handover import DataName, Role, Transitions
from stepdown.policies.datasets import DatasetConfig, add_noise, make_noiseless
from stepdown.policies.ensemble import ENSEMBLE, EnsembleConfig, fit_ensemble, save_ensemble
from stepdown.problem.scaling import fit_scaler
from stepdown.training import member

KEY = 0  # of every fit; each splits it for its own ends
STORED = ("state", "level", "reward", "unshaped", "last", "died", "patient", "next_state")


@dataclass(frozen=True)
class ImagineHours:
    """What the expert did in the twin, from train and from select patients; noise comes later."""

    patients: Job
    twin: Job
    expert: Job
    config: DatasetConfig

    def make(self, desk: Desk) -> dict[str, Content]:
        """The hours by role."""
        hours, world = read_hours(desk, self.patients), read_twin(desk, self.twin)
        policy = member(read_policies(desk, self.expert), 0)
        made = [
            make_noiseless(policy, world, part, self.config, key=key)
            for part, key in zip((hours.train, hours.select), jr.split(jr.key(KEY)), strict=True)
        ]
        return store_hours(*made)


def store_hours(*parts: Transitions) -> dict[str, Content]:
    """Hours as a job keeps them, each name after the role of its patients."""
    arrays = {f"{part.role}.{name}": getattr(part, name) for part in parts for name in STORED}
    info = {"roles": [part.role for part in parts], "columns": list(parts[0].columns)}
    return arrays_and_info(arrays, info)


def _restored(arrays: dict[str, np.ndarray], role: Role, columns: list[str]) -> Transitions:
    part = {name: jnp.asarray(arrays[f"{role}.{name}"]) for name in STORED}
    levels = jnp.broadcast_to(part["level"][:, None], part["state"].shape[:2])  # decisions, held
    never = jnp.zeros(len(levels), bool)
    return Transitions(**part, levels=levels, filled=never, role=role, columns=tuple(columns))


@dataclass(frozen=True)
class Source:
    """Where the hours of a data set come from."""

    data: DataName
    patients: Job | None  # None: a data set that does not tell whose hours it holds
    stored: Job | None = None  # hours of a job; None: the patients' recorded ones
    config: DatasetConfig = DatasetConfig()
    place: str = ""  # before the names of jobs, where hours come out of another twin than ours

    def hours(self, desk: Desk) -> tuple[Transitions, Transitions]:
        """The hours to learn from and to choose by."""
        if self.stored is None:
            assert self.patients is not None
            recorded = read_hours(desk, self.patients)
            return recorded.train, recorded.select
        arrays, columns = desk.arrays(self.stored), desk.info(self.stored)["columns"]
        train, select = (_restored(arrays, role, columns) for role in ("train", "select"))
        if self.data != "noisy" or self.patients is None:
            return train, select
        scaler = fit_scaler(read_hours(desk, self.patients).train)
        k_train, k_select = jr.split(jr.key(KEY))
        noisy = add_noise(train, scaler, self.config, key=k_train)
        return noisy, add_noise(select, scaler, self.config, key=k_select)


@dataclass(frozen=True)
class FitEnsemble:
    """The dynamics that policies learn in."""

    source: Source
    config: EnsembleConfig

    def make(self, desk: Desk) -> dict[str, Content]:
        """The ensemble and its curves."""
        hours, _ = self.source.hours(desk)
        with desk.teller.progress(f"fitting the ensemble of {self.source.data} hours") as watch:
            ensemble, info = fit_ensemble(hours, self.config, key=jr.key(KEY), watch=watch)
        return arrays_and_info(info, {}) | saved(
            lambda path: save_ensemble(path, ensemble, self.config, seed=KEY), ENSEMBLE
        )
