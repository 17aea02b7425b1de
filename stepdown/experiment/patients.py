"""The patients of a run: simulated with the truth behind them, or imported without one.

Kept as plain arrays, so that a machine with JAX alone can go on from here.
"""

import functools
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.artifacts import Content, arrays_from_bytes
from stepdown.experiment.jobs import ARRAYS, INFO, arrays_and_info
from stepdown.handover import Cohort, Transitions
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort, world_of
from stepdown.patients.population import World
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.records.latents import arrays_to_latents, latents_to_arrays
from stepdown.records.split import split_patients

TRUTH = "truth."  # begins the names of what no bedside knows
SPLIT = 7  # seed of the split, as in every command
SLIDING = HoursConfig(stride=30.0)  # hours that a twin is fitted to


class Hours(eqx.Module):
    """The recorded hours of a run by role; `sliding` are the twin's."""

    sliding: Transitions
    train: Transitions
    select: Transitions
    test: Transitions


class Truth(eqx.Module):
    """Simulated patients with the truth behind them."""

    cohort: Cohort
    latents: Latents
    world: World


def simulate_patients(config: CohortConfig, seed: int) -> dict[str, Content]:
    """Simulate a cohort, exactly as `stepdown simulate` does, and keep its truth."""
    with on_cpu():
        cohort, latents = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
    truth = {f"{TRUTH}{name}": x for name, x in latents_to_arrays(latents).items()}
    return _to_files(cohort, truth)


def import_patients(path: Path) -> dict[str, Content]:
    """Keep an imported cohort; nobody knows the truth behind it."""
    from stepdown.records.files import read_cohort  # needs polars, which a GPU machine may lack

    return _to_files(read_cohort(path), {})


def _to_files(cohort: Cohort, truth: dict[str, np.ndarray]) -> dict[str, Content]:
    arrays = {name: np.asarray(getattr(cohort, name)) for name in ("signals", "level", "seen")}
    info = {"patient": list(cohort.patient), "minutes": cohort.minutes, "truth": bool(truth)}
    return arrays_and_info(arrays | truth, info)


def read_patients(folder: Path) -> Cohort:
    """The cohort of a finished job."""
    info = json.loads((folder / INFO).read_bytes())
    arrays = arrays_from_bytes((folder / ARRAYS).read_bytes())
    signals, level, seen = (jnp.asarray(arrays[name]) for name in ("signals", "level", "seen"))
    return Cohort(signals, level, seen, tuple(info["patient"]), info["minutes"])


@functools.lru_cache(maxsize=2)
def read_hours(folder: Path, fingerprint: str) -> Hours:
    """The hours of a finished job; the fingerprint is there to notice a new one."""
    train, select, test = split_patients(read_patients(folder), key=jr.key(SPLIT))
    return Hours(
        make_transitions(train, SLIDING),
        make_transitions(train),
        make_transitions(select),
        make_transitions(test),
    )


def read_truth(folder: Path, config: CohortConfig) -> Truth:
    """The cohort with its truth. For judging only: never fit or choose with it."""
    saved = arrays_from_bytes((folder / ARRAYS).read_bytes())
    truth = {name[len(TRUTH) :]: x for name, x in saved.items() if name.startswith(TRUTH)}
    latents = arrays_to_latents(truth, config, str(folder / ARRAYS))
    return Truth(read_patients(folder), latents, world_of(config))


def on_cpu():
    """Many small steps are faster there, even beside a GPU."""
    return jax.default_device(jax.devices("cpu")[0])
