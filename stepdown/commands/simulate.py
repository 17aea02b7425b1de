"""`stepdown simulate`: a cohort in a folder, with its truth, a card and a picture.

Everything is checked before the long work starts, and the folder appears complete or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax.random as jr

from stepdown.artifacts import Content, require_free
from stepdown.experiment.cohort_folder import write_simulated
from stepdown.experiment.progress import progress
from stepdown.patients.charting import chart_cohort, record_drugs
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.population import PresetName, Version
from stepdown.patients.recording import FaultConfig, corrupt
from stepdown.patients.waveforms import simulate_waveforms
from stepdown.records import charted_tables, files

CHARTS = 1  # what the key of the patients is folded with for their charts
MINUTES = {"10min": 10.0, "5min": 5.0, "30s": 0.5}


@dataclass(frozen=True)
class SimulateConfig:
    """Simulate a cohort of pump patients and write it to a folder."""

    out: Path  # new folder for the cohort
    patients: int = 379  # number of stays
    seed: int = 7  # same seed, same cohort
    preset: PresetName = "guarded"  # how dangerous low support is
    profile: str = "cp"  # pump profile
    version: Version = 2  # of the patients; 1: as they were before they moved like real ones
    hours: float | None = None  # length of every stay; by default each has its own
    every: Literal["10min", "5min", "30s"] = "10min"  # time between samples
    waveforms: int = 0  # stays that are also recorded at 25 Hz
    faults: bool = False  # add labelled recording faults
    drugs: bool = False  # record the hidden drugs, too: columns nee and vis
    charted: bool = False  # also as nurses chart, in tables of CLIF and MIMIC-IV


def simulate(config: SimulateConfig) -> None:
    """Write a simulated cohort."""
    recipe = _checked(config)
    require_free(config.out)
    k_cohort, k_faults, k_waves = jr.split(jr.key(config.seed), 3)
    with progress("simulating patients") as watch:
        clean, latents = simulate_cohort(recipe, key=k_cohort, watch=watch)
    cohort, faults = clean, ()
    if config.faults:
        cohort, faults = corrupt(clean, FaultConfig(), key=k_faults)
    if config.drugs:
        cohort = record_drugs(cohort, latents)
    extra: dict[str, Content] = {}
    if config.faults:
        extra[files.FAULTS] = files.to_parquet(files.fault_table(faults))
    world = world_of(recipe)
    for row in range(config.waveforms):
        name = f"waveforms/{cohort.patient[row]}.parquet"
        # Recorded when its turn to be written comes: one stay at 25 Hz has millions of samples.
        extra[name] = _recorder(clean, latents, world, row, jr.fold_in(k_waves, row))
    if config.charted:
        stays = chart_cohort(clean, latents, key=jr.fold_in(k_cohort, CHARTS))
        extra |= _charted(stays)
    words = _extras(config, len(faults))
    write_simulated(config.out, (cohort, latents), recipe, config.seed, extra=extra, words=words)


def _checked(config: SimulateConfig) -> CohortConfig:
    """The cohort to simulate, or a sentence about what is wrong."""
    if config.patients < 1:
        raise ValueError(f"--patients: expected at least 1, got {config.patients}.")
    if not 0 <= config.waveforms <= config.patients:
        raise ValueError(
            f"--waveforms: expected 0 to {config.patients}, the number of patients, "
            f"got {config.waveforms}."
        )
    if not 0 <= config.seed < 2**32:
        raise ValueError(f"--seed: expected 0 to {2**32 - 1}, got {config.seed}.")
    recipe = CohortConfig(
        patients=config.patients,
        preset=config.preset,
        profile=config.profile,
        hours=config.hours,
        minutes=MINUTES[config.every],
        version=config.version,
    )
    world_of(recipe)  # refuses an unknown profile
    return recipe


def _extras(config: SimulateConfig, faults: int) -> list[str]:
    sentences = []
    if config.waveforms:
        sentences.append(
            f"`waveforms/`: the first stays ({config.waveforms}) at 25 Hz: `second`, "
            "`placement` in mmHg, `speed` in rpm, motor `current` in mA."
        )
    if config.faults:
        sentences.append(
            f"`faults.parquet`: {faults:,} recording faults that were added on purpose, by "
            "patient, first and last sample, signal and kind."
        )
    if config.charted:
        sentences.append(
            "`clif-3.0/`, `clif-2.1/`, `clif-2.1-rates/`, `mimic-iv/`: the same stays as nurses "
            "chart them, in the tables of these formats, with drugs, and with stays that a study "
            "has to leave out; `charted/` says what was charted."
        )
    return sentences


def _charted(stays) -> dict[str, Content]:
    """The charts in every format, and as they were."""
    tables = charted_tables
    folders = {
        "charted": (tables.truth_tables(stays), files.to_parquet, ".parquet"),
        "clif-3.0": (tables.clif_3(stays), files.to_parquet, ".parquet"),
        "clif-2.1": (tables.clif_2(stays), tables.to_csv, ".csv"),
        "clif-2.1-rates": (tables.clif_2(stays, rates=True), tables.to_csv, ".csv"),
        "mimic-iv": (tables.mimic_iv(stays), tables.to_csv_gz, ".csv.gz"),
    }
    return {
        f"{folder}/{name}{ending}": write(table)
        for folder, (content, write, ending) in folders.items()
        for name, table in content.items()
    }


def _recorder(cohort, latents, world, row: int, key) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        wave = simulate_waveforms(cohort, latents, world, row, key=key)
        files.to_parquet(files.waveform_table(wave.recording))(file)

    return write
