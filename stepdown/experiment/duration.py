"""How long a run takes: said before it starts, and with every job how long is left.

Before the start it is told by the seconds that each job of the preset took where it was measured
(seconds.py, written by `python -m benchmarks.speed.run_seconds`). While the run goes on, what is
left is scaled by how fast this machine was so far.
"""

import time
from collections.abc import Sequence
from typing import Any

from stepdown.experiment.jobs import Job, jobs_words
from stepdown.experiment.seconds import MEASURED

SURE = 30.0  # s of jobs until this machine's own pace counts as much as the measured one


def stage_of(job: Job) -> str:
    """The name of a job without its cohort."""
    return job.name.partition("/")[2]


class Duration:
    """What the missing jobs of a run will take."""

    def __init__(self, preset: str, missing: Sequence[Job]):
        known: dict[str, Any] = MEASURED.get(preset, {})
        self._preset, self._how = preset, known.get("how", "")
        self._whole: float | None = known.get("seconds")  # where jobs were not measured one by one
        jobs: dict[str, float] = known.get("jobs", {})
        usual = sum(jobs.values()) / len(jobs) if jobs else 0.0
        self._open = {job.name: jobs.get(stage_of(job), usual) for job in missing}
        self._report: float = known.get("report", 0.0)
        self._count, self._begun, self._done = len(missing), time.monotonic(), 0.0

    def before(self) -> str:
        """A sentence for whoever starts the run."""
        head = f"{self._preset}: {jobs_words(self._count)} to make"
        if self._whole is not None and not any(self._open.values()):
            return f"{head}; all of them take about {span_of(self._whole)} {self._how}."
        if not any(self._open.values()):
            return f"{head}; how long they take is said once the first ones are made."
        whole = sum(self._open.values()) + self._report
        return f"{head} and a report: about {span_of(whole)} {self._how}."

    def finish(self, job: Job) -> None:
        """A job is made."""
        self._done += self._open.pop(job.name, 0.0)

    def left(self) -> str:
        """How long the rest will take, in words; nothing where nobody can know."""
        taken, rest = time.monotonic() - self._begun, sum(self._open.values())
        if rest or self._done:
            pace = (taken + SURE) / (self._done + SURE)
            return f"about {span_of(rest * pace + self._report)} left"
        made = self._count - len(self._open)
        if not made:
            return ""
        return f"about {span_of(taken / made * len(self._open))} left, going by the jobs so far"


def span_of(seconds: float) -> str:
    """A span of time as people say it."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
