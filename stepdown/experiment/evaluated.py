"""A policy that somebody brought, judged in a finished run as the run's own rows were.

What it is known by is its name and a digest of where it came from; the job is kept with the others,
so a run that is published anew shows it again. It is out of date with the patients or twins that it
was judged in, and then it is left out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepdown.artifacts import MANIFEST, Content
from stepdown.experiment.evidence_jobs import REFERENCE, estimate_all
from stepdown.experiment.jobs import INFO, Desk, Job, arrays_and_info
from stepdown.experiment.judging import Bench
from stepdown.handover import Policy, shown
from stepdown.policies.foreign import Foreign
from stepdown.policies.rules import RULES
from stepdown.training import member

FOLDER = "evaluated"  # of the jobs of a cohort


@dataclass(frozen=True)
class Given:
    """A policy, or one for each seed, that a run has not made."""

    policy: Policy
    seeds: int = 0  # that the leaves lead with; 0 for a single policy

    @property
    def each(self) -> list[Policy]:
        """One policy for each seed."""
        seeds = range(self.seeds)
        return [member(self.policy, seed) for seed in seeds] if self.seeds else [self.policy]

    def complain(self) -> None:
        """Raise what somebody's function did wrong while it was judged."""
        if isinstance(self.policy, Foreign):
            self.policy.asked.complain()


@dataclass(frozen=True)
class JudgeGiven:
    """A policy from outside before every judge, and what the records alone say of it."""

    bench: Bench
    name: str  # of its row
    digest: str  # of what it is made of
    given: Given | None = shown(None)  # not part of the fingerprint; needed to make the job

    def make(self, desk: Desk) -> dict[str, Content]:
        """What every judge has seen, and estimates from records beside those of holding."""
        assert self.given is not None
        arrays = self.bench.judge(desk, self.given.policy)
        self.given.complain()
        wanted = {self.name: self.given.each, REFERENCE: [RULES[REFERENCE]]}
        records = estimate_all(desk, self.bench, wanted)
        self.given.complain()
        told = {"name": self.name, "digest": self.digest, "records": records}
        return arrays_and_info(arrays, told)


def evaluated_job(cohort: str, work: JudgeGiven) -> Job:
    """The job of a row, in a folder of its name."""
    plain = "".join(x if x.isalnum() or x in "-_." else "-" for x in work.name)
    return Job(f"{cohort}/{FOLDER}/{plain}", work)


def find_evaluated(cohort: str, bench: Bench, desk: Desk) -> Iterator[tuple[str, Job, Any]]:
    """Rows that were judged on this very bench: name, job, what the records say."""
    for folder in sorted((desk.path / cohort / FOLDER).glob("*")):
        if not (folder / MANIFEST).is_file():
            continue
        info = json.loads((folder / INFO).read_bytes())
        job = evaluated_job(cohort, JudgeGiven(bench, info["name"], info["digest"]))
        if desk.is_done(job):
            yield info["name"], job, info["records"]
