"""What the jobs of a run have found, as the report takes it."""

from collections.abc import Mapping

from stepdown.evaluation.compare import METRICS, estimate, resample, values_of
from stepdown.evaluation.judging import Judged
from stepdown.experiment.jobs import Desk, Job
from stepdown.experiment.learning import read_judged
from stepdown.experiment.plan import Plan
from stepdown.report.comparison import Comparison
from stepdown.report.labels import EXPERT

Judgments = dict[str, dict[str, Judged]]  # by judge, then by method


def read_comparisons(plan: Plan, desk: Desk) -> list[Comparison]:
    """Every data set in every setting, learned rows and rules side by side."""
    rules = _by_judge(read_judged(desk, plan.rules))
    if plan.expert is not None:
        for judge, found in read_judged(desk, plan.expert).items():
            rules.setdefault(judge, {})[EXPERT] = found
    found = []
    for (data, setting), rows in plan.compared.items():
        judged: Judgments = {judge: dict(methods) for judge, methods in rules.items()}
        for name, row in rows.items():
            for judge, one in read_judged(desk, row.judge).items():
                judged.setdefault(judge, {})[name] = one
        curves = {name: desk.arrays(row.train) for name, row in rows.items()}
        seconds = {name: float(desk.about(row.train)["seconds"]) for name, row in rows.items()}
        found.append(Comparison(plan.name, data, setting, judged, curves, seconds))
    return found


SWEPT = ("parameter", "value", "judge", "metric", "mean", "sd", "low", "high")


def sweep_rows(plan: Plan, desk: Desk) -> list[dict[str, object]]:
    """CORMPO with one number changed: every metric before every judge."""
    rows: list[dict[str, object]] = []
    for (parameter, value), one in plan.sweep.items():
        for judge, judged in read_judged(desk, one.judge).items():
            weights = resample(judged.row)
            for metric in METRICS:
                found = estimate(values_of(judged, metric), weights)
                point = {"parameter": parameter, "value": value, "judge": judge, "metric": metric}
                rows.append({**point, **found})
    return rows


def stage_seconds(jobs: list[Job], desk: Desk) -> dict[str, float]:
    """How long the jobs of each kind took together."""
    seconds: dict[str, float] = {}
    for job in jobs:
        stage = "/".join(job.name.split("/")[:4][: -1 if job.name.count("/") > 2 else None])
        seconds[stage] = seconds.get(stage, 0.0) + float(desk.about(job)["seconds"])
    return seconds


def _by_judge(found: Mapping[str, Judged]) -> Judgments:
    """From "hold/twin" to judge, then method."""
    judged: Judgments = {}
    for name, one in found.items():
        method, judge = name.rsplit("/", 1)
        judged.setdefault(judge, {})[method] = one
    return judged
