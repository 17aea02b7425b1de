"""The patients of a run: simulated with the truth behind them, or imported without one.

Kept as plain arrays, so that a machine with JAX alone can go on from here.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.handover import Cohort, Hours, Transitions
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort, world_of
from stepdown.patients.population import World
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.records.latents import arrays_to_latents, latents_to_arrays
from stepdown.records.split import SPLIT, split_patients

TRUTH = "truth."  # begins the names of what no bedside knows
SLIDING = HoursConfig(stride=30.0)  # hours that a twin is fitted to


class Truth(eqx.Module):
    """Simulated patients with the truth behind them."""

    cohort: Cohort
    latents: Latents
    world: World
    config: CohortConfig = eqx.field(static=True)


@dataclass(frozen=True)
class SimulatePatients:
    """Simulate a cohort, exactly as `stepdown simulate` does, and keep its truth."""

    cohort: CohortConfig
    seed: int

    def make(self, desk: Desk) -> dict[str, Content]:
        """The cohort and its truth."""
        with on_cpu():
            cohort, latents = simulate_cohort(self.cohort, key=jr.split(jr.key(self.seed), 3)[0])
        truth = {f"{TRUTH}{name}": x for name, x in latents_to_arrays(latents).items()}
        return _to_files(cohort, truth, SPLIT)


@dataclass(frozen=True)
class ImportPatients:
    """Keep somebody's own recordings; nobody knows the truth behind them."""

    path: Path
    digest: str  # of their manifest or file
    profile: str = "cp"  # of their pump
    split: int = SPLIT  # seed of the split into train, select and test patients

    def make(self, desk: Desk) -> dict[str, Content]:
        """The cohort."""
        from stepdown.records.files import read_cohort  # needs polars, which a GPU machine may lack

        return _to_files(read_cohort(self.path), {}, self.split)


def _to_files(cohort: Cohort, truth: dict[str, np.ndarray], split: int) -> dict[str, Content]:
    arrays = {name: np.asarray(getattr(cohort, name)) for name in ("signals", "level", "seen")}
    if cohort.died is not None:
        arrays["died"] = np.asarray(cohort.died)
    info = {"patient": list(cohort.patient), "minutes": cohort.minutes, "split": split}
    info["columns"] = list(cohort.columns)
    return arrays_and_info(arrays | truth, info)


def read_patients(desk: Desk, job: Job) -> Cohort:
    """The cohort of a finished job."""
    info, arrays = desk.info(job), desk.arrays(job)
    signals, level, seen = (jnp.asarray(arrays[name]) for name in ("signals", "level", "seen"))
    patients, columns = tuple(info["patient"]), tuple(info["columns"])
    died = jnp.asarray(arrays["died"]) if "died" in arrays else None
    return Cohort(signals, level, seen, patients, info["minutes"], columns=columns, died=died)


def read_parts(desk: Desk, job: Job) -> tuple[Cohort, Cohort, Cohort]:
    """Train, select and test patients of a finished job."""
    return split_patients(read_patients(desk, job), key=jr.key(desk.info(job)["split"]))


def read_hours(desk: Desk, job: Job) -> Hours:
    """The recorded hours of a finished job, by role."""
    return _read_hours(desk.path, job)


@functools.lru_cache(maxsize=2)  # a job knows what it depends on
def _read_hours(path: Path, job: Job) -> Hours:
    train, select, test = read_parts(Desk(path), job)
    return Hours(
        train=make_transitions(train),
        select=make_transitions(select),
        test=make_transitions(test),
        sliding=make_transitions(train, SLIDING),
    )


def read_sliding(desk: Desk, job: Job, stride: float) -> Transitions:
    """Windows of the train patients so many minutes apart."""
    if stride == SLIDING.stride:
        return read_hours(desk, job).sliding
    return make_transitions(read_parts(desk, job)[0], HoursConfig(stride=stride))


def read_truth(desk: Desk, job: Job) -> Truth | None:
    """The cohort with its truth, None if it was imported. For judging only: never fit with it."""
    if not isinstance(job.work, SimulatePatients):
        return None
    arrays = desk.arrays(job)
    truth = {name[len(TRUTH) :]: x for name, x in arrays.items() if name.startswith(TRUTH)}
    latents = arrays_to_latents(truth, job.work.cohort, str(desk.folder(job)))
    return Truth(read_patients(desk, job), latents, world_of(job.work.cohort), job.work.cohort)


def on_cpu():
    """Many small steps are faster there, even beside a GPU."""
    return jax.default_device(jax.devices("cpu")[0])
