"""The ends of the journey: a cohort in a folder, and the whole journey as one report.

Everything is checked before the long work starts, and a result folder appears complete or not
at all. Progress goes to stderr, results to stdout.
"""

import functools
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import jax.random as jr
import numpy as np

from stepdown.artifacts import (
    CONFIG,
    MANIFEST,
    Content,
    check_folder,
    config_to_dict,
    provenance,
    require_free,
    write_folder,
)
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.faults import FaultConfig, corrupt
from stepdown.patients.population import PresetName
from stepdown.patients.waveforms import simulate_waveforms
from stepdown.records import files
from stepdown.report.calibration import describe_cohort
from stepdown.report.card import dataset_card, digests
from stepdown.report.figures import draw_overview
from stepdown.report.page import cohort_section, make_page, provenance_section
from stepdown.report.parts import read_parts
from stepdown.report.progress import progress
from stepdown.report.stages import guardian_stage, twin_stage
from stepdown.report.tables import to_csv, to_text
from stepdown.training import FitConfig
from stepdown.twin.calibrated import CalibratedConfig
from stepdown.twin.fit import SMALL_TWIN, Model, TwinConfig

RunPreset = Literal["demo", "pocket"]
MINUTES = {"10min": 10.0, "5min": 5.0, "30s": 0.5}
CARD, OVERVIEW = "card.md", "overview.png"
REPORT, RESULTS = "report.html", "results.txt"


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


@dataclass(frozen=True)
class RunConfig:
    """Run the whole journey, from patients to a report."""

    preset: RunPreset  # size of the run
    out: Path  # new folder for the results


@dataclass(frozen=True)
class RunSize:
    """How large a run is."""

    patients: int
    seed: int
    hours: float | None  # of every stay; by default each has its own
    twins: tuple[Model, ...]  # the last one is the main one
    twin: TwinConfig


_TINY = FitConfig(epochs=2, batch=32)
RUNS: dict[RunPreset, RunSize] = {
    "demo": RunSize(379, 7, None, ("persistence", "tdt", "best"), SMALL_TWIN),
    "pocket": RunSize(
        patients=8,
        seed=7,
        hours=24.0,
        twins=("persistence", "best"),
        twin=replace(
            SMALL_TWIN, errors=64, calibrated=CalibratedConfig(members=2, width=16, fit=_TINY)
        ),
    ),
}


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
    outcome = np.asarray(latents.outcome)

    content: dict[str, Content] = {
        files.COHORT: files.to_parquet(files.cohort_table(cohort)),
        files.LATENTS: files.latents_to_bytes(latents),
        CONFIG: _json(config_to_dict(recipe)),
        OVERVIEW: lambda file: draw_overview(cohort, file, outcome),
    }
    if config.faults:
        content[files.FAULTS] = files.to_parquet(files.fault_table(faults))
    world = world_of(recipe)
    for row in range(config.waveforms):
        name = f"waveforms/{cohort.patient[row]}.parquet"
        # Recorded when its turn to be written comes: one stay at 25 Hz has millions of samples.
        content[name] = _recorder(clean, latents, world, row, jr.fold_in(k_waves, row))
    named = [name for name in content if name.endswith((".parquet", ".safetensors"))]
    content[CARD] = lambda file: file.write_text(
        dataset_card(
            cohort,
            recipe,
            outcome,
            seed=config.seed,
            extras=_extras(config, len(faults)),
            hashes=digests(file.parent, named),
        ),
        encoding="utf-8",
    )
    about = provenance(config=recipe, seed=config.seed)
    about |= {"latents": files.JUDGING_ONLY, "faults": config.faults}
    write_folder(config.out, content, kind=files.KIND, about=about)


def run(config: RunConfig) -> None:
    """Run the journey of a preset, or show the finished run that the folder already holds."""
    fingerprint = _fingerprint(config.preset)
    if not _is_finished(config.out, fingerprint):
        require_free(config.out)
        with tempfile.TemporaryDirectory() as folder:
            content = _journey(config.preset, Path(folder) / "cohort")
            about = provenance(config=_settings(config.preset, Path("cohort")))
            about |= {"fingerprint": fingerprint}
            write_folder(config.out, content, kind="run", about=about)
    sys.stdout.write((config.out / RESULTS).read_text(encoding="utf-8"))
    sys.stdout.write(f"\nReport: {config.out / REPORT}\n")


def _journey(preset: RunPreset, folder: Path) -> dict[str, Content]:
    """Every file of a run; the cohort is made in `folder` exactly as `simulate` makes it."""
    settings = _settings(preset, folder)
    simulate(settings)
    cohort = files.read_cohort(folder)
    rows = describe_cohort(cohort)
    stays, hours = len(cohort.patient), float(np.sum(cohort.seen)) * cohort.minutes / 60
    lead = (
        f"{stays:,} simulated stays on a micro-axial heart pump, {hours:,.0f} hours "
        f"(preset {settings.preset}, seed {settings.seed})."
    )
    manifest = check_folder(folder, files.KIND)
    parts, size = read_parts(folder), RUNS[preset]
    twins = twin_stage(parts, size.twins, size.twin, folder.parent)
    guardians = guardian_stage(parts, folder.parent)
    sections = (
        cohort_section(rows, (folder / OVERVIEW).read_bytes(), (folder / CARD).read_text("utf-8")),
        twins.section,
        guardians.section,
        provenance_section(manifest["about"]),
    )
    text = "\n".join([to_text(rows), "", twins.text, guardians.text])
    content: dict[str, Content] = {
        f"cohort/{name}": (folder / name).read_bytes() for name in [*manifest["files"], MANIFEST]
    }
    return (
        content
        | twins.files
        | guardians.files
        | {
            CONFIG: _json({"preset": preset}),
            "tables/cohort.csv": to_csv(rows),
            RESULTS: f"{lead}\n\n{text}\n".encode(),
            REPORT: make_page("Stepping down, on simulated patients", lead, sections).encode(),
        }
    )


def _settings(preset: RunPreset, out: Path) -> SimulateConfig:
    size = RUNS[preset]
    return SimulateConfig(out=out, patients=size.patients, seed=size.seed, hours=size.hours)


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


def _is_finished(out: Path, fingerprint: str) -> bool:
    """Whether the folder holds this very run, complete and undamaged."""
    if not (out / MANIFEST).is_file():
        return False
    return check_folder(out, "run")["about"]["fingerprint"] == fingerprint


def _fingerprint(preset: RunPreset) -> str:
    """Digest of the settings, the versions and our own sources: what the result depends on."""
    settings = _settings(preset, Path("cohort"))
    known = [config_to_dict(settings), config_to_dict(RUNS[preset])]
    known += [provenance(config=settings)["versions"], _sources()]
    return hashlib.sha256(_json(known)).hexdigest()


@functools.cache  # the sources as they were loaded, should somebody edit them meanwhile
def _sources() -> dict[str, str]:
    here = Path(__file__).parent
    found = [file for file in sorted(here.rglob("*")) if file.suffix in (".py", ".json")]
    return digests(here, [file.relative_to(here).as_posix() for file in found])


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
