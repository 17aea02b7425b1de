"""`stepdown judge`: add the evidence beyond the twin to a finished run and publish it again."""

from dataclasses import dataclass
from pathlib import Path

from stepdown.artifacts import MANIFEST, check_folder
from stepdown.experiment.beside import run_somewhere
from stepdown.experiment.evidence import make_evidence
from stepdown.experiment.jobs import Job, alone, in_order
from stepdown.experiment.presets import PRESETS
from stepdown.experiment.run import (
    KIND,
    RunConfig,
    fingerprint_of,
    plans_of,
    put_in_place,
    show,
)


@dataclass(frozen=True)
class JudgeConfig:
    """Add evidence beyond the twin to a finished run."""

    run: Path  # folder of `stepdown run`, with its RUN.jobs beside it
    ray: str | None = None  # "auto" or the address of a Ray cluster: jobs run there
    workers: int = 1  # processes of this machine that make jobs side by side


def judge(config: JudgeConfig) -> None:
    """Judge a run by the records alone, by a second twin, by the truth and by the bound.

    What was judged before is not judged again; a stopped call goes on where it was.
    """
    asked = _asked(config.run)
    plans = plans_of(asked)
    jobs = in_order([job for plan in plans for job in plan.jobs])
    more = [job for plan in plans for job in make_evidence(plan).jobs]
    if not more:
        raise ValueError(
            f"{config.run}: expected policies learned from recorded hours in our setting, got "
            "none. Choose a preset with data 'recorded' and setting 'ours'."
        )
    with alone(config.run) as desk:
        _require_done([job for job in jobs if not desk.is_done(job)], len(jobs), asked)
        run_somewhere(more, desk, config.ray, config.workers)
        put_in_place(asked, plans, desk, fingerprint_of(asked.preset, jobs))
    show(config.run)


def _asked(run: Path) -> RunConfig:
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
    return RunConfig(about["preset"], run, own, search=asked.get("search", True))


def _require_done(missing: list[Job], count: int, asked: RunConfig) -> None:
    """Refuse to train anything: a run may have taken hours on another machine."""
    searched = "" if asked.search else " --no-search"
    if missing:
        raise ValueError(
            f"{asked.out}: expected a finished run of this version, got {len(missing)} of {count} "
            f"jobs that are missing or older, such as {missing[0].name}. Renew it first: "
            f"stepdown run {asked.preset} --out {asked.out}{searched}."
        )
