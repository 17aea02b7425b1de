"""Jobs of judging: every training, the rules and the clinicians, in the twins and in the truth."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.evaluation.judging import (
    arrays_to_judged,
    draw_judged_starts,
    draw_moments,
    judge_in_patients,
    judge_in_twin,
    judge_look_ahead,
    judge_plans,
    judge_team,
    judged_to_arrays,
    moments_of,
)
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.experiment.patients import on_cpu, read_hours, read_parts, read_truth
from stepdown.experiment.readers import read_policies, read_twin
from stepdown.handover import Cohort, Judged, Moments, Policy
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort
from stepdown.patients.episodes import Starts
from stepdown.patients.population import World
from stepdown.policies.rules import RULES
from stepdown.records.latents import latents_of

TEAM, LOOK_AHEAD = "clinicians", "look-ahead"
FRESH_SEED = 70_000  # added to the seed of a cohort, for patients that nobody has seen
KEY = 1


@dataclass(frozen=True)
class Bench:
    """Where policies are judged: in twins and, of simulated patients, in the truth."""

    patients: Job
    twins: Mapping[str, Job]  # by judge: "tdt" is the paper's, "twin" ours
    episodes: int  # per seed and judge
    fresh: int = 0  # patients simulated anew to judge by
    seed: int = 0  # of the cohort
    sampled: bool = False  # draw levels instead of taking the most probable

    @property
    def first(self) -> str:
        """The judge whose twin the figures look into: ours, where it judges."""
        return "twin" if "twin" in self.twins else next(iter(self.twins))

    @property
    def twin(self) -> Job:
        """That judge's twin."""
        return self.twins[self.first]

    def starts(self, desk: Desk) -> dict[str, tuple[Starts, World]]:
        """Where episodes begin, by judge: in test patients and in fresh ones; none if imported."""
        return _draw_starts(desk.path, self.patients, self.episodes, self.fresh, self.seed)

    def moments(self, desk: Desk) -> Moments:
        """The same starts for the twin; of recordings, hours with six recorded ones ahead."""
        if (starts := self.starts(desk).get("patients")) is not None:
            return moments_of(starts[0], key=jr.key(KEY))
        return draw_moments(read_hours(desk, self.patients).test, self.episodes, key=jr.key(KEY))[0]

    def judge(self, desk: Desk, policies: Policy) -> dict[str, np.ndarray]:
        """One policy, or one per seed, before every judge."""
        moments, arrays = self.moments(desk), {}
        for judge, twin in self.twins.items():
            world = read_twin(desk, twin)
            found = judge_in_twin(policies, world, moments, sampled=self.sampled)
            arrays |= judged_to_arrays(judge, found)
        for judge, (starts, world) in self.starts(desk).items():
            found = judge_in_patients(policies, starts, world, sampled=self.sampled)
            arrays |= judged_to_arrays(judge, found)
        return arrays


def simulate_fresh(config: CohortConfig, seed: int) -> tuple[Cohort, Latents]:
    """Patients like those of the cohort of this seed, none of whom is in it."""
    return simulate_cohort(config, key=jr.key(FRESH_SEED + seed))


@functools.lru_cache(maxsize=2)  # a job knows what it depends on
def _draw_starts(
    path: Path, patients: Job, episodes: int, fresh: int, seed: int
) -> dict[str, tuple[Starts, World]]:
    desk = Desk(path)
    with on_cpu():
        whole = read_truth(desk, patients)
        if whole is None:
            return {}
        test = read_parts(desk, patients)[2]
        drawn = {"patients": (test, latents_of(whole.latents, whole.cohort, test))}
        if fresh:
            drawn["fresh"] = simulate_fresh(replace(whole.config, patients=fresh), seed)
        return {
            judge: (draw_judged_starts(*both, episodes, key=jr.key(KEY)), whole.world)
            for judge, both in drawn.items()
        }


@dataclass(frozen=True)
class JudgePolicies:
    """The policies of one training before all judges."""

    bench: Bench
    trained: Job

    def make(self, desk: Desk) -> dict[str, Content]:
        """What every judge has seen."""
        return arrays_and_info(self.bench.judge(desk, read_policies(desk, self.trained)), {})


@dataclass(frozen=True)
class Trained:
    """A training and its judging."""

    train: Job
    judge: Job


@dataclass(frozen=True)
class JudgeRules:
    """What needs no learning: rules, the clinicians themselves and the look-ahead."""

    bench: Bench
    rules: tuple[str, ...]
    look_ahead: bool  # judge the ceiling, too

    def make(self, desk: Desk) -> dict[str, Content]:
        """What every judge has seen, by rule and judge."""
        bench, arrays, plans = self.bench, {}, None
        for name in self.rules:
            found = bench.judge(desk, RULES[name])
            arrays |= {f"{name}/{key}": values for key, values in found.items()}
        moments = bench.moments(desk)
        for judge, (starts, world) in bench.starts(desk).items():
            with on_cpu():
                team = judge_team(starts, world)
                arrays |= judged_to_arrays(f"{TEAM}/{judge}", team)
                if self.look_ahead:
                    best = judge_look_ahead(starts, world)
                    arrays |= judged_to_arrays(f"{LOOK_AHEAD}/{judge}", best)
            if judge == "patients":
                plans = np.asarray(team.level[0, :, 1:], np.int32)
        if plans is None:  # recordings: what was set in the six hours after each start
            test = read_hours(desk, bench.patients).test
            moments, plans = draw_moments(test, bench.episodes, key=jr.key(KEY))
        for judge, twin in bench.twins.items():
            found = judge_plans(plans, read_twin(desk, twin), moments)
            arrays |= judged_to_arrays(f"{TEAM}/{judge}", found)
        return arrays_and_info(arrays, {})


def read_judged(desk: Desk, job: Job) -> dict[str, Judged]:
    """What a judging job found, by judge, or by rule and judge."""
    return arrays_to_judged(desk.arrays(job))


def read_ruled(desk: Desk, job: Job, judge: str, rules: tuple[str, ...]) -> dict[str, Judged]:
    """What one judge found about some rules and the clinicians; unknown ones are left out."""
    known = read_judged(desk, job)
    named = {name: f"{name}/{judge}" for name in (TEAM, *rules)}
    return {name: known[place] for name, place in named.items() if place in known}
