"""A simulated cohort in a folder, with its truth, a card and a picture.

Everything is checked before the long work starts, and the folder appears complete or not at all.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax.random as jr
import numpy as np

from stepdown.artifacts import (
    CONFIG,
    Content,
    config_to_dict,
    provenance,
    require_free,
    write_folder,
)
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort, world_of
from stepdown.patients.population import PresetName
from stepdown.patients.recording import FaultConfig, corrupt
from stepdown.patients.waveforms import simulate_waveforms
from stepdown.records import files
from stepdown.report.card import dataset_card, digests
from stepdown.report.figures import draw_overview
from stepdown.report.progress import progress

MINUTES = {"10min": 10.0, "5min": 5.0, "30s": 0.5}
CARD, OVERVIEW = "card.md", "overview.png"


@dataclass(frozen=True)
class SimulateConfig:
    """Simulate a cohort of pump patients and write it to a folder."""

    out: Path  # new folder for the cohort
    patients: int = 379  # number of stays
    seed: int = 7  # same seed, same cohort
    preset: PresetName = "guarded"  # how dangerous low support is
    profile: str = "cp"  # pump profile
    hours: float | None = None  # length of every stay; by default each has its own
    every: Literal["10min", "5min", "30s"] = "10min"  # time between samples
    waveforms: int = 0  # stays that are also recorded at 25 Hz
    faults: bool = False  # add labelled recording faults


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
    extra: dict[str, Content] = {}
    if config.faults:
        extra[files.FAULTS] = files.to_parquet(files.fault_table(faults))
    world = world_of(recipe)
    for row in range(config.waveforms):
        name = f"waveforms/{cohort.patient[row]}.parquet"
        # Recorded when its turn to be written comes: one stay at 25 Hz has millions of samples.
        extra[name] = _recorder(clean, latents, world, row, jr.fold_in(k_waves, row))
    words = _extras(config, len(faults))
    write_cohort(config.out, (cohort, latents), recipe, config.seed, extra=extra, words=words)


def write_cohort(
    out: Path,
    simulated: tuple[Cohort, Latents],
    recipe: CohortConfig,
    seed: int,
    *,
    extra: dict[str, Content] | None = None,
    words: Sequence[str] = (),
) -> None:
    """A cohort and its truth as a folder; extra files are told in words on the card."""
    cohort, latents = simulated
    extra, outcome = extra or {}, np.asarray(latents.outcome)
    content: dict[str, Content] = {
        files.COHORT: files.to_parquet(files.cohort_table(cohort)),
        files.LATENTS: files.latents_to_bytes(latents),
        CONFIG: _json(config_to_dict(recipe)),
        OVERVIEW: lambda file: draw_overview(cohort, file, outcome),
        **extra,
    }
    named = [name for name in content if name.endswith((".parquet", ".safetensors"))]
    content[CARD] = lambda file: file.write_text(
        dataset_card(
            cohort,
            recipe,
            outcome,
            seed=seed,
            extras=words,
            hashes=digests(file.parent, named),
        ),
        encoding="utf-8",
    )
    about = provenance(config=recipe, seed=seed)
    about |= {"latents": files.JUDGING_ONLY, "faults": files.FAULTS in extra}
    write_folder(out, content, kind=files.KIND, about=about)


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
    return sentences


def _recorder(cohort, latents, world, row: int, key) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        wave = simulate_waveforms(cohort, latents, world, row, key=key)
        files.to_parquet(files.waveform_table(wave.recording))(file)

    return write


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
