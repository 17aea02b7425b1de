"""The jobs that `stepdown judge` adds to a run: evidence beyond the twin, cohort by cohort.

They look at what was learned from recorded hours in our setting, and at the rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from stepdown.experiment.bound_jobs import BoundJob, make_bound_job
from stepdown.experiment.choice_jobs import (
    CANDIDATES,
    ChoiceJob,
    SecondJob,
    make_choice_job,
    make_second_job,
)
from stepdown.experiment.evidence_jobs import (
    GroupsJob,
    RecordsJob,
    TransferJob,
    make_groups_job,
    make_records_job,
    make_transfer_job,
)
from stepdown.experiment.jobs import Desk, Job
from stepdown.experiment.learning import Bench, JudgeJob, RulesJob
from stepdown.experiment.plan import JUDGING_TWIN, Plan
from stepdown.experiment.wiring import JUDGES, PATIENTS, Simulated
from stepdown.patients.cohort import CohortConfig

OWN, CHOICE, BOUND = (f"experiment/{x}_jobs.py" for x in ("evidence", "choice", "bound"))
SECOND = ("evaluation/second_twin.py", "evaluation/compare.py")
CHOOSING = ("evaluation/choosing.py", "evaluation/shifts.py")
THEOREMS = tuple(
    f"evaluation/{name}.py" for name in ("certificate", "compare", "model_error", "shifts")
)
RECORDS = tuple(
    f"evaluation/{name}.py"
    for name in ("behavior", "compare", "decisions", "fitted_q", "importance", "off_policy")
)
GUARDIAN = "kde, ours"
TRANSFER = (150, 300)  # patients and episodes of every shift, at most


@dataclass(frozen=True)
class EvidencePlan:
    """The further jobs of one cohort; what a run does not allow is None."""

    name: str
    second: Job | None = None
    records: Job | None = None
    choice: Job | None = None
    certificate: Job | None = None
    groups: Job | None = None
    transfer: Job | None = None

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        each = (self.second, self.records, self.choice, self.certificate)
        return [job for job in (*each, self.groups, self.transfer) if job]


@dataclass(frozen=True)
class _Run:
    """What the further jobs of one cohort have in common."""

    plan: Plan
    bench: Bench
    trained: dict[str, tuple[Job, Job]]
    rules: tuple[str, ...]  # constant levels are left out
    judging: JudgeJob

    def job(self, name: str, settings, parts: Sequence[str], make, *more: Job) -> Job:
        """A job that needs the patients, the twin, the policies and, it may be, `more`."""
        used = (job for pair in self.trained.values() for job in pair)
        needs = (self.bench.patients, self.bench.twin, *used, *more)
        make = partial(make, settings=settings, trained=self.trained)
        return Job(f"{self.plan.name}/evidence/{name}", settings, tuple(parts), make, needs)


def make_evidence(plan: Plan) -> EvidencePlan:
    """The further jobs of one cohort of a run."""
    rows = plan.compared.get(("recorded", "ours"), {})
    if not rows:
        return EvidencePlan(plan.name)
    settings, simulated = plan.rules.settings, plan.patients.settings
    assert isinstance(settings, RulesJob)
    recipe = simulated.cohort if isinstance(simulated, Simulated) else None
    run = _Run(
        plan,
        Bench(plan.patients, plan.twins[JUDGING_TWIN], recipe),
        {name: (row.train, row.judge) for name, row in rows.items()},
        tuple(name for name in settings.rules if not name.startswith("always")),
        settings.judging,
    )
    guardian = plan.guardians.get(GUARDIAN)
    return EvidencePlan(
        plan.name,
        second=_second(run),
        records=_records(run),
        choice=guardian and _choice(run, guardian),
        certificate=guardian and plan.look and _certificate(run, guardian, plan.look),
        groups=_groups(run),
        transfer=guardian and recipe and _transfer(run, guardian, recipe),
    )


def _second(run: _Run) -> Job:
    settings = SecondJob(run.judging, run.rules)
    make = partial(make_second_job, bench=run.bench, rules=run.plan.rules)
    return run.job("second", settings, (*JUDGES, *SECOND, CHOICE), make, run.plan.rules)


def _records(run: _Run) -> Job:
    make = partial(make_records_job, bench=run.bench)
    return run.job("records", RecordsJob(run.rules), (*RECORDS, OWN), make)


def _choice(run: _Run, guardian: Job) -> Job:
    make = partial(make_choice_job, bench=run.bench, others=(guardian, run.plan.rules))
    parts = (*RECORDS, *JUDGES, *SECOND, *CHOOSING, OWN, CHOICE)
    settings = ChoiceJob(candidates=tuple(x for x in CANDIDATES if x in run.rules))
    return run.job("choice", settings, parts, make, guardian, run.plan.rules)


def _certificate(run: _Run, guardian: Job, look: Job) -> Job:
    """The ensemble that policies learned in is among what the look needs."""
    (ensemble,) = (job for job in look.needs if job.name.endswith("/ensemble/recorded"))
    others = (ensemble, guardian)
    make = partial(make_bound_job, bench=run.bench, others=others)
    settings = BoundJob(run.judging)
    return run.job("certificate", settings, (*JUDGES, *THEOREMS, BOUND), make, *others)


def _groups(run: _Run) -> Job:
    settings = GroupsJob(run.judging, run.rules)
    make = partial(make_groups_job, bench=run.bench, rules=run.plan.rules)
    parts = (*JUDGES, "evaluation/subgroups.py", "evaluation/compare.py", OWN)
    return run.job("groups", settings, parts, make, run.plan.rules)


def _transfer(run: _Run, guardian: Job, recipe: CohortConfig) -> Job:
    patients, episodes = TRANSFER
    settings = TransferJob(
        replace(recipe, patients=min(recipe.patients, patients)),
        min(run.judging.episodes, episodes),
        run.judging.seed,
        run.rules,
    )
    make = partial(make_transfer_job, guardian=guardian)
    used = (f"evaluation/{name}.py" for name in ("transfer", "shifts", "compare"))
    parts = (*PATIENTS, *JUDGES, *used, OWN)
    return run.job("transfer", settings, parts, make, guardian)


def finished(plans: Sequence[Plan], desk: Desk) -> list[EvidencePlan]:
    """The evidence that a run already has; jobs that are missing or outdated are left out."""
    found = []
    for plan in map(make_evidence, plans):
        kept = {
            name: job
            for name in EvidencePlan.__dataclass_fields__
            if isinstance(job := getattr(plan, name), Job) and desk.is_done(job)
        }
        if kept:
            found.append(EvidencePlan(plan.name, **kept))
    return found
