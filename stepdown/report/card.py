"""The dataset card of a simulated cohort, in Markdown: what it is, is not, how it was made."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, world_of
from stepdown.patients.population import Population
from stepdown.report.tables import number
from stepdown.signals import SIGNALS

WARNING = (
    "Simulated cohort, calibrated to published moments only; not evidence on patients; "
    "not for care."
)
FILES = (
    "`cohort.parquet`: one row per seen sample: `patient`, `minute` since the start of support, "
    "the signals below, `level` (P2 to P9).",
    "`latents.safetensors`: hourly snapshots of the hidden truth, for judging only. Nothing that "
    "fits or chooses may read it.",
    "`overview.png`: example stays, level against reward, rewards, lengths of stay.",
)
FATES = ("transferred or still on support", "explanted", "died")


def dataset_card(
    cohort: Cohort,
    config: CohortConfig,
    outcome: np.ndarray,
    *,
    seed: int,
    extras: Sequence[str],
    hashes: Mapping[str, str],
) -> str:
    """The card; `extras` are sentences on files that not every cohort has."""
    world = world_of(config)
    parts = [
        "# Dataset card: simulated pump patients",
        f"**{WARNING}**",
        *_nature(cohort),
        "## Files",
        "\n".join(f"- {sentence}" for sentence in (*FILES, *extras)),
        _table(("signal", "unit", "meaning"), [(f"`{s.name}`", s.unit, s.label) for s in SIGNALS]),
        "## Stays",
        _stays(cohort, outcome),
        "## How it was made",
        _recipe(config, seed),
        f"Pump profile `{world.profile.name}`. {world.profile.source}",
        "Versions, commit, device and date are in `manifest.json`.",
        "## Fingerprints (SHA-256)",
        _table(("file", "digest"), [(f"`{name}`", f"`{hashes[name]}`") for name in hashes]),
        "## The population",
        "Medians or means and spreads that patients are drawn from; units and meaning stand "
        "beside each number in `stepdown/patients/population.py`.",
        _population(world.population),
    ]
    return "\n\n".join(parts) + "\n"


def _nature(cohort: Cohort) -> list[str]:
    hours = float(np.sum(cohort.seen)) * cohort.minutes / 60
    return [
        "## What it is",
        f"{len(cohort.patient):,} simulated stays on a micro-axial heart pump, {hours:,.0f} hours "
        f"in all, one sample every {cohort.minutes:g} min. Each patient is a beat-resolved "
        "circulation with slow courses (recovery, ischemia, vessel tone, volume, rhythm, hidden "
        "drugs), treated by a simulated team that sees the noisy console.",
        "## What it is not",
        "- Not recordings, and not derived from any patient's recording.\n"
        "- Not a validated model of an individual patient or of a marketed pump.\n"
        "- Not a basis for treatment or device settings.\n"
        "- Not closer to real patients than the calibration table of a run says.",
    ]


def _stays(cohort: Cohort, outcome: np.ndarray) -> str:
    hours = np.asarray(cohort.seen).sum(1) * cohort.minutes / 60
    counts = np.bincount(np.asarray(outcome), minlength=len(FATES))
    span = f"{number(float(hours.min()))} to {number(float(hours.max()))}"
    rows = [(fate, f"{count:,}") for fate, count in zip(FATES, counts, strict=True)]
    rows += [("mean length, h", number(float(hours.mean()))), ("shortest to longest, h", span)]
    return _table(("stays", "number"), rows)


def _recipe(config: CohortConfig, seed: int) -> str:
    length = "each to its own end" if config.hours is None else f"exactly {config.hours:g} h"
    settings = {
        "preset": config.preset,
        "pump profile": config.profile,
        "patients": f"{config.patients:,}",
        "length of a stay": length,
        "seed": str(seed),
    }
    return _table(("setting", "value"), list(settings.items()))


def _population(population: Population) -> str:
    names = [field.name for field in dataclasses.fields(population)]
    return _table(
        ("number", "value"),
        [(f"`{name}`", f"{float(getattr(population, name)):.4g}") for name in names],
    )


def digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of files that have been written already."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
