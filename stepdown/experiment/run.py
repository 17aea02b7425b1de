"""`stepdown run`: every job of a preset, then tables, figures and one page to read.

Jobs are kept beside the results, in OUT.jobs, so that a stopped or changed run makes only what is
missing. The results themselves appear at once and whole.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stepdown.artifacts import (
    CONFIG,
    MANIFEST,
    Content,
    check_folder,
    provenance,
    require_free,
    write_folder,
)
from stepdown.experiment.beside import run_somewhere
from stepdown.experiment.jobs import Desk, Job, alone, in_order
from stepdown.experiment.plan import Plan, make_plan
from stepdown.experiment.presets import PRESETS, ExperimentConfig, RunPreset, sizes_of
from stepdown.experiment.published import REPORT, RESULTS, publish
from stepdown.experiment.wiring import Imported
from stepdown.records.files import KIND as COHORT

KIND = "run"


@dataclass(frozen=True)
class RunConfig:
    """Run the whole journey, from patients to a report."""

    preset: RunPreset  # size of the run
    out: Path  # folder for the results; OUT.jobs beside it keeps what they are made of
    from_cohort: Path | None = None  # imported recordings instead of simulated patients
    ray: str | None = None  # "auto" or the address of a Ray cluster: jobs run there
    workers: int = 1  # processes of this machine that make jobs side by side
    search: bool = True  # search first where the preset does; else train as its rows say

    @property
    def sizes(self) -> ExperimentConfig:
        """What is asked for."""
        return sizes_of(self.preset, search=self.search)


def run(config: RunConfig) -> None:
    """Run a preset, or go on with it, or show the finished run that the folder already holds."""
    plans = plans_of(config)
    jobs = in_order([job for plan in plans for job in plan.jobs])
    fingerprint = fingerprint_of(config.preset, jobs)
    if _found(config) != fingerprint:
        with alone(config.out) as desk:
            run_somewhere(jobs, desk, config.ray, config.workers)
            put_in_place(config, plans, desk, fingerprint)
    show(config.out)


def show(out: Path) -> None:
    """Print the short results of a finished run and where its page is."""
    sys.stdout.write((out / RESULTS).read_text(encoding="utf-8"))
    sys.stdout.write(f"\nReport: {out / REPORT}\n")


def plans_of(config: RunConfig) -> list[Plan]:
    """The jobs of every cohort of the run."""
    sizes = config.sizes
    imported = None if config.from_cohort is None else _imported(config.from_cohort)
    choices = sizes.cohorts if imported is None else sizes.cohorts[:1]
    return [make_plan(sizes, choice, imported) for choice in choices]


def put_in_place(config: RunConfig, plans: list[Plan], desk: Desk, fingerprint: str) -> None:
    """Put the results in place of older ones of the same preset, all at once."""
    out = config.out.resolve()
    new, old = out.with_name(f"{out.name}.new"), out.with_name(f"{out.name}.old")
    for rest in (new, old):  # of a publication that was stopped
        shutil.rmtree(rest, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        content: dict[str, Content] = {CONFIG: _json({"preset": config.preset})}
        content |= publish(config.sizes, plans, desk, Path(folder))
        about = provenance(config=config) | {"fingerprint": fingerprint, "preset": config.preset}
        write_folder(new, content, kind=KIND, about=about)
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _found(config: RunConfig) -> str | None:
    """The fingerprint of the finished run in the folder; another preset there is refused."""
    if not (config.out / MANIFEST).is_file():
        require_free(config.out)
        return None
    about = check_folder(config.out, KIND)["about"]
    if about["preset"] != config.preset:
        raise FileExistsError(
            f"expected a new folder or a run of {config.preset}, got {config.out}, which exists; "
            "choose another one or remove it first."
        )
    return about["fingerprint"]


def _imported(path: Path) -> Imported:
    if path.is_dir():
        return Imported(path, check_folder(path, COHORT)["sha256"])
    if not path.is_file():
        raise FileNotFoundError(
            f"--from-cohort: expected a folder of stepdown import, got {path}, which is missing."
        )
    with path.open("rb") as stream:
        return Imported(path, hashlib.file_digest(stream, "sha256").hexdigest())


def fingerprint_of(preset: RunPreset, jobs: list[Job]) -> str:
    """Everything that the results depend on, the sources of the report included."""
    drawn = Job("report", PRESETS[preset], ("report", "experiment", "evaluation"), lambda desk: {})
    known = [drawn.fingerprint, *(job.fingerprint for job in jobs)]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
