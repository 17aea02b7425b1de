"""`stepdown run` and `stepdown judge`: every job of a preset, then tables, figures and one page.

Jobs are kept beside the results, in OUT.jobs, so that a stopped or changed run makes only what is
missing. The results themselves appear at once and whole.
"""

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from stepdown.artifacts import (
    CONFIG,
    MANIFEST,
    Content,
    check_folder,
    provenance,
    require_free,
    to_json,
    write_folder,
)
from stepdown.experiment.duration import Duration
from stepdown.experiment.jobs import Desk, Job, in_order, jobs_of, say
from stepdown.experiment.legs import STOPPED, at_work, ended, legs_words, read_legs
from stepdown.experiment.patients import ImportPatients
from stepdown.experiment.plan import Plan, make_evidence, make_plans
from stepdown.experiment.presets import (
    PRESETS,
    ExperimentConfig,
    JudgeName,
    RunPreset,
    sizes_of,
)
from stepdown.experiment.processes import run_somewhere
from stepdown.experiment.publish import REPORT, RESULTS, publish
from stepdown.experiment.sources import digest_of
from stepdown.patients.population import Version
from stepdown.records.files import KIND as COHORT
from stepdown.records.split import read_profile

KIND = "run"


@dataclass(frozen=True)
class RunConfig:
    """Run the whole journey of the paper, from patients to a report."""

    preset: Positional[RunPreset]  # size of the run
    out: Path  # folder for the results; OUT.jobs beside it keeps what they are made of
    from_cohort: Path | None = None  # imported recordings instead of simulated patients
    ray: str | None = None  # "auto" or the address of a Ray cluster: jobs run there
    workers: int = 1  # processes of this machine that make jobs side by side
    minutes: float | None = None  # to end after; the same command goes on from there
    search: bool = False  # six trials of every row first; else train as the design says
    version: Version = 2  # of the simulated patients; 1: as before they moved like real ones
    judge: JudgeName = "best"  # whose twin judges: the paper's, ours, or both side by side

    @property
    def sizes(self) -> ExperimentConfig:
        """What is asked for."""
        return sizes_of(self.preset, search=self.search, version=self.version, judge=self.judge)


@dataclass(frozen=True)
class JudgeConfig:
    """Add evidence beyond the twin to a finished run."""

    run: Positional[Path]  # folder of `stepdown run`, with its RUN.jobs beside it
    ray: str | None = None  # "auto" or the address of a Ray cluster: jobs run there
    workers: int = 1  # processes of this machine that make jobs side by side
    minutes: float | None = None  # to end after; the same command goes on from there


def run(config: RunConfig) -> int:
    """Run a preset, or go on with it, or show the finished run that the folder already holds.

    The exit code is 75 where the minutes are over, 143 after SIGTERM, 130 after an interrupt.
    """
    plans = plans_of(config)
    jobs = in_order([job for plan in plans for job in plan.jobs])
    fingerprint = fingerprint_of(config.preset, jobs)
    if _found(config) != fingerprint:
        with at_work(config.out, "run", config.workers, config.minutes) as (desk, stop):
            clock = Duration(config.preset, [job for job in jobs if not desk.is_done(job)])
            say(clock.before())
            try:
                run_somewhere(jobs, desk, config.ray, config.workers, clock)
            except STOPPED:
                return ended(stop)
            say("writing tables, figures and the page")
            put_in_place(config, plans, desk, fingerprint)
    show(config.out)
    sys.stdout.write(next_words(config))
    return 0


def judge(config: JudgeConfig) -> int:
    """Judge a run by the records alone, by a second twin, by the truth and by the bound.

    What was judged before is not judged again; a stopped call goes on where it was.
    """
    asked = asked_for(config.run)
    if asked.judge == "tdt":
        raise ValueError(
            f"{config.run}: expected a run that our twin has judged, got --judge tdt. Run it with "
            "--judge both or best first."
        )
    plans = plans_of(asked)
    jobs = in_order([job for plan in plans for job in plan.jobs])
    more = [job for plan in plans for job in make_evidence(plan).by_kind.values()]
    if not more:
        raise ValueError(
            f"{config.run}: expected policies learned from recorded hours in our setting, got "
            "none. Choose a preset with data 'recorded' and setting 'ours'."
        )
    with at_work(config.run, "judge", config.workers, config.minutes) as (desk, stop):
        require_done([job for job in jobs if not desk.is_done(job)], len(jobs), asked)
        clock = Duration(asked.preset, [job for job in more if not desk.is_done(job)])
        say(clock.before())
        try:
            run_somewhere(more, desk, config.ray, config.workers, clock)
        except STOPPED:
            return ended(stop)
        put_in_place(asked, plans, desk, fingerprint_of(asked.preset, jobs))
    show(config.run)
    return 0


def show(out: Path) -> None:
    """Print the short results of a finished run and where its page is."""
    sys.stdout.write((out / RESULTS).read_text(encoding="utf-8"))
    sys.stdout.write(f"\nReport: {out / REPORT}\n")


def next_words(config: RunConfig) -> str:
    """What a finished run took, and what can be done with it."""
    out, legs = config.out, read_legs(jobs_of(config.out))
    took = f"What was made is in {out}" + (f"; it took {legs_words(legs)}" if legs else ".")
    steps = [
        (f"open {out / REPORT}", "the page: who gains over the clinicians, first"),
        (f"stepdown evaluate FILE.py:FUNCTION --run {out}", "a policy of yours in the same tables"),
        (f"stepdown app {out}", "what-if forecasts on this machine"),
    ]
    if config.preset in ("pocket", "demo"):
        larger = ("stepdown run overnight --out runs/overnight", "every method, on a CPU")
        steps.append(larger)
    else:
        steps.append((f"stepdown judge {out}", "evidence beyond the twin"))
    width = max(len(command) for command, _ in steps)
    lines = "".join(f"  {command.ljust(width)}  # {words}\n" for command, words in steps)
    return f"\n{took}\nNext:\n{lines}"


def plans_of(config: RunConfig) -> list[Plan]:
    """The jobs of every cohort of the run."""
    imported = None if config.from_cohort is None else _imported(config.from_cohort)
    return make_plans(config.sizes, imported)


def put_in_place(config: RunConfig, plans: list[Plan], desk: Desk, fingerprint: str) -> None:
    """Put the results in place of older ones of the same preset, all at once."""
    out = config.out.resolve()
    new, old = out.with_name(f"{out.name}.new"), out.with_name(f"{out.name}.old")
    for rest in (new, old):  # of a publication that was stopped
        shutil.rmtree(rest, ignore_errors=True)
    content: dict[str, Content] = {CONFIG: to_json({"preset": config.preset})}
    content |= publish(config.sizes, plans, desk)
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


def _imported(path: Path) -> ImportPatients:
    if path.is_dir():
        digest = check_folder(path, COHORT)["sha256"]
        return ImportPatients(path, digest, read_profile(path, None))
    if not path.is_file():
        raise FileNotFoundError(
            f"--from-cohort: expected a folder of stepdown import, got {path}, which is missing."
        )
    raise ValueError(
        f"--from-cohort: expected a folder of stepdown import, got the file {path}. "
        "Import it first: stepdown import FILE --out DIR."
    )


def fingerprint_of(preset: RunPreset, jobs: list[Job]) -> str:
    """Everything that the results depend on, the sources of the report included."""
    known = [preset, digest_of([publish.__module__]), *(job.fingerprint for job in jobs)]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def asked_for(run: Path) -> RunConfig:
    """What a finished run was asked for."""
    if not (run / MANIFEST).is_file():
        raise FileNotFoundError(
            f"{run}: expected the folder of a finished stepdown run, got none. "
            "Run it first: stepdown run PRESET --out DIR."
        )
    about = check_folder(run, KIND)["about"]
    if about["preset"] not in PRESETS:
        raise ValueError(f"{run}: expected a preset out of {', '.join(PRESETS)}, got another.")
    asked = about["config"]
    recorded = asked.get("from_cohort")
    own = None if recorded is None else Path(recorded)
    version = asked.get("version", 1)  # runs before version 2 do not say theirs
    return RunConfig(
        about["preset"],
        run,
        own,
        search=asked.get("search", False),
        version=version,
        judge=asked.get("judge", "best"),
    )


def require_done(missing: list[Job], count: int, asked: RunConfig) -> None:
    """Refuse to train anything: a run may have taken hours on another machine."""
    searched = " --search" if asked.search else ""
    searched += f" --version {asked.version} --judge {asked.judge}"
    if missing:
        raise ValueError(
            f"{asked.out}: expected a finished run of this version, got {len(missing)} of {count} "
            f"jobs that are missing or older, such as {missing[0].name}. Renew it first: "
            f"stepdown run {asked.preset} --out {asked.out}{searched}."
        )
