"""The whole journey in one function."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepdown.artifacts import require_free

RunPreset = Literal["demo", "pocket"]


@dataclass(frozen=True)
class SimulateConfig:
    """Simulate a cohort of pump patients and write it to a folder."""

    out: Path  # new folder for the cohort
    patients: int = 379  # number of stays
    seed: int = 7  # same seed, same cohort
    preset: Literal["guarded", "benign", "hidden"] = "guarded"  # how dangerous low support is
    profile: str = "cp"  # pump profile
    hours: float | None = None  # length of every stay; by default each has its own
    every: Literal["10min", "5min", "30s"] = "10min"  # time between samples
    waveforms: int = 0  # stays that are also recorded at 25 Hz
    faults: bool = False  # add labelled recording faults


@dataclass(frozen=True)
class RunConfig:
    """Run the whole journey, from patients to a report."""

    preset: RunPreset  # size of the run
    out: Path  # new folder for the results


def simulate(config: SimulateConfig) -> None:
    """Write a simulated cohort."""
    if config.patients < 1:
        raise ValueError(f"--patients: expected at least 1, got {config.patients}.")
    require_free(config.out)
    raise NotImplementedError


def run(config: RunConfig) -> None:
    """Run the journey of a preset."""
    require_free(config.out)
    raise NotImplementedError
