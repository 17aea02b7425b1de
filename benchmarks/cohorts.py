"""Cohort after cohort: simulated, split, cut down to fixed numbers of hours, a line of JSON each.

Hours to fit on are drawn down to fixed numbers, so that all cohorts share compiled programs: set
JAX_COMPILATION_CACHE_DIR. Each cohort is a line of a study's file as soon as it is done; a second
call goes on where the first stopped.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

from stepdown.evaluation.choosing import EvidenceConfig
from stepdown.experiment.patients import SLIDING
from stepdown.experiment.presets import PRESETS
from stepdown.guardian.fit import DensityConfig
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Cohort, Policy, Transitions
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort
from stepdown.patients.population import PresetName
from stepdown.policies.ensemble import Ensemble, EnsembleConfig
from stepdown.policies.learning import ALONE, Recipe, Shrink, Task
from stepdown.policies.methods import METHODS
from stepdown.problem.hours import make_transitions
from stepdown.records.split import split_patients
from stepdown.training import member
from stepdown.twin.fit import TwinConfig

PRESET_NAMES: tuple[PresetName, ...] = ("guarded", "hidden", "benign")
FRESH = 70_000  # added to the seed of a cohort, for patients that nobody has seen
DEATH = 2  # outcome of a stay
KDE = DensityConfig(DENSITIES["kde"])

Arguments = dict[str, Any]  # of a study's work
Line = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much is done for one cohort."""

    patients: int = 379
    fresh: int = 300  # patients simulated anew to judge by
    hours: float | None = None  # of every stay
    episodes: int = 1024  # starts of each judge
    train: int = 14_000  # hours, of about 16,000
    sliding: int = 24_000  # half-hourly ones, for the twin
    select: int = 2_800  # hours of select patients
    seeds: int = 2
    shrink: Shrink = Shrink(8000, 1000, 128, (64, 64), 1000, 10)
    ensemble: EnsembleConfig = PRESETS["demo"].ensemble
    twins: tuple[TwinConfig, ...] = PRESETS["demo"].twins
    evidence: EvidenceConfig = EvidenceConfig()  # noqa: RUF009 (frozen)

    def twin(self, name: str) -> TwinConfig:
        """The twin of that kind."""
        return next(twin for twin in self.twins if twin.kind.name == name)


POCKET = PRESETS["pocket"]
assert POCKET.shrink is not None
SIZES = {
    "demo": Sizes(),
    "tiny": Sizes(
        patients=40,
        fresh=24,
        hours=30.0,
        episodes=64,
        train=500,
        sliding=700,
        select=120,
        shrink=POCKET.shrink,
        ensemble=POCKET.ensemble,
        twins=POCKET.twins,
        evidence=EvidenceConfig(starts=64),
    ),
}


@dataclass(frozen=True)
class Patients:
    """A simulated cohort by role, its truth and the hours to fit on."""

    whole: Cohort
    latents: Latents
    parts: tuple[Cohort, Cohort, Cohort]
    sliding: Transitions
    train: Transitions
    select: Transitions
    select_sliding: Transitions
    test: Transitions


def simulate(config: CohortConfig, seed: int, sizes: Sizes) -> Patients:
    """As `stepdown simulate` and `stepdown run` do it."""
    cohort, latents = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
    train, select, test = split_patients(cohort, key=jr.key(7))
    return Patients(
        cohort,
        latents,
        (train, select, test),
        some_hours(make_transitions(train, SLIDING), sizes.sliding, held=True),
        some_hours(make_transitions(train), sizes.train),
        some_hours(make_transitions(select), sizes.select, held=True),
        make_transitions(select, SLIDING),
        make_transitions(test),
    )


def some_hours(
    hours: Transitions, count: int, *, held: bool = False, among: np.ndarray | None = None
) -> Transitions:
    """So many rows in order, drawn; of some patients, or of those hours that kept their level."""
    kept = np.isin(np.asarray(hours.patient), np.asarray(hours.patient) if among is None else among)
    rows = np.flatnonzero(kept & ~np.asarray(hours.changed) if held else kept)
    draw = np.random.default_rng(0).choice(rows, count, replace=count > len(rows))
    return jax.tree.map(lambda x: x[np.sort(draw)], hours)


@dataclass(frozen=True)
class Teachers:
    """What candidates learn in, and what may charge them."""

    ensemble: Ensemble
    guardian: Guardian


def learn(
    name: str,
    recipe: Recipe,
    hours: Transitions,
    select: Transitions,
    teachers: Teachers,
    seeds: int,
) -> list[Policy]:
    """The policies of a method of the table, one for each seed."""
    method = METHODS[name]
    task = Task(hours, select, teachers.ensemble, teachers.guardian, method.penalty)
    keys = jr.split(jr.key(1), seeds)
    policies, _ = method.learn(task, recipe, keys=keys, watch=ALONE)
    return [member(policies, place) for place in range(seeds)]


def fresh_patients(config: CohortConfig, seed: int, sizes: Sizes) -> tuple[Cohort, Latents]:
    """Patients of the same population that nobody has seen, to judge by."""
    return simulate_cohort(replace(config, patients=sizes.fresh), key=jr.key(FRESH + seed))


def read_lines(path: Path) -> list[Line]:
    """What a study has found so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_lines(
    path: Path,
    tasks: list[Arguments],
    work: Callable[..., Line],
    *,
    same: tuple[str, ...],
    workers: int | None = None,
) -> None:
    """Call `work(**task)` for every task whose line is not in the file yet.

    Lines with equal values under the names of `same` belong to one task. With `workers` the tasks
    run in processes side by side, each on one core; without, here.
    """
    done = {tuple(line[name] for name in same) for line in read_lines(path)}
    left = [task for task in tasks if tuple(task[name] for name in same) not in done]
    with path.open("a") as file:
        for line in _here(left, work) if workers is None else _in_processes(left, work, workers):
            file.write(json.dumps(line) + "\n")
            file.flush()
            seconds = json.dumps(line["seconds"]) if "seconds" in line else ""
            print(*(line[name] for name in same), seconds, flush=True)


def _here(tasks: list[Arguments], work: Callable[..., Line]) -> Iterator[Line]:
    for task in tasks:
        yield work(**task)


def _in_processes(
    tasks: list[Arguments], work: Callable[..., Line], workers: int
) -> Iterator[Line]:
    """Lines as they come."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    single = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {single}".strip()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(work, **task): task for task in tasks}
        for future in as_completed(futures):
            try:
                yield future.result()
            except Exception as error:  # noqa: BLE001 (the other cohorts go on; call again for this)
                print(*futures[future].values(), f"failed: {error!r}", flush=True)
