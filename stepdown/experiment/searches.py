"""Searches: the same number of trials for every row, judged in the twin from select patients.

Every trial is a training of its own, kept like any other. The search compares them by a rule that a
user with real data could apply; the row is then trained with all seeds as the best trial was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax.random as jr

from stepdown.artifacts import Content
from stepdown.evaluation.policy_search import TRIALS, apply_changes, make_rule
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.experiment.kept import read_policies
from stepdown.experiment.learning import TrainJob, make_train_job
from stepdown.experiment.models import Source, hours_of, read_twin
from stepdown.experiment.presets import ROWS
from stepdown.experiment.wiring import POLICIES, train_job
from stepdown.report.search_table import COLUMNS, PRESET
from stepdown.training import member

PARTS = ("experiment/searches.py", "evaluation/policy_search.py", "evaluation/judging.py")
KEY = 3


@dataclass(frozen=True)
class SearchJob:
    """What is compared."""

    row: str


def searched_train_job(
    names: tuple[str, str], source: Source, settings: TrainJob, models: tuple[Job | None, ...]
) -> Job:
    """Training of a row after a search; `models` are ensemble, guardian and judging twin."""
    (cohort, where), (ensemble, guardian, twin) = names, models
    assert twin is not None
    trials = tuple(
        train_job(
            f"{cohort}/trial/{where}-{number}",
            source,
            replace(settings, recipe=apply_changes(settings.recipe, changes), seeds=1),
            ensemble,
            guardian,
        )
        for number, changes in enumerate(TRIALS[ROWS[settings.row].method])
    )
    search = Job(
        f"{cohort}/search/{where}",
        SearchJob(settings.row),
        PARTS,
        partial(make_search_job, source=source, twin=twin, trials=trials, row=settings.row),
        (source.patients, twin, *trials),
    )
    make = partial(make_chosen_job, source=source, settings=settings, models=models, search=search)
    used = (source.patients, source.synthetic, ensemble, guardian, search)
    needs = tuple(job for job in used if job)
    return Job(f"{cohort}/train/{where}", settings, (*POLICIES, PARTS[0]), make, needs)


def make_search_job(
    desk: Desk, source: Source, twin: Job, trials: tuple[Job, ...], row: str
) -> dict[str, Content]:
    """Play every trial from the same select hours in the twin; the best mean reward is chosen."""
    select = hours_of(desk, source.patients).select
    rule = make_rule(read_twin(desk, twin), select, key=jr.key(KEY))
    scores = [rule(member(read_policies(desk.folder(trial)), 0)) for trial in trials]
    best = max(range(len(scores)), key=scores.__getitem__)
    changes = TRIALS[ROWS[row].method]
    found = [{"changes": dict(c), "score": s} for c, s in zip(changes, scores, strict=True)]
    return arrays_and_info({}, {"row": row, "trials": found, "chosen": dict(changes[best])})


def make_chosen_job(
    desk: Desk, source: Source, settings: TrainJob, models: tuple[Job | None, ...], search: Job
) -> dict[str, Content]:
    """Train all seeds as the best trial was."""
    recipe = apply_changes(settings.recipe, desk.info(search)["chosen"])
    return make_train_job(desk, source, replace(settings, recipe=recipe), models[0], models[1])


def search_rows(jobs: Sequence[Job], desk: Desk) -> list[dict[str, str | float]]:
    """Every trial of the searches among the jobs: what was changed, what it scored."""
    rows: list[dict[str, str | float]] = []
    for job in jobs:
        if not isinstance(job.settings, SearchJob):
            continue
        found, (cohort, _, data, setting, method) = desk.info(job), job.name.split("/")
        for one in found["trials"]:
            changes = (f"{name} {value:g}" for name, value in one["changes"].items())
            chosen = "yes" if one["changes"] == found["chosen"] else "no"
            words = ", ".join(changes) or PRESET
            values = (cohort, data, setting, method, words, one["score"], chosen)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows
