"""Learning and judging: every row of the comparison, five seeds, in the twin and in the truth."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.evaluation.judging import (
    Judged,
    Moments,
    arrays_to_judged,
    draw_judged_starts,
    draw_moments,
    judge_in_patients,
    judge_in_twin,
    judge_look_ahead,
    judge_plans,
    judge_team,
    judged_to_arrays,
    latents_of,
    moments_of,
)
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.experiment.kept import read_policies, save_policies
from stepdown.experiment.models import Source, hours_of, read_ensemble, read_guardian, read_twin
from stepdown.experiment.patients import SPLIT, on_cpu, read_truth
from stepdown.experiment.presets import ROWS
from stepdown.handover import Penalty, Policy
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.patients.episodes import Starts
from stepdown.patients.population import World
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.model_based import ModelBasedConfig, train_model_based
from stepdown.policies.penalties import (
    DensityPenalty,
    DisagreementPenalty,
    SpreadPenalty,
    Unpenalized,
)
from stepdown.policies.rules import RULES
from stepdown.policies.seeds import train_each
from stepdown.policies.svr import SVRConfig, train_svr
from stepdown.records.split import split_patients
from stepdown.report.progress import progress
from stepdown.report.recipes import Recipe

TEAM, LOOK_AHEAD = "clinicians", "look-ahead"
FRESH_SEED = 70_000  # added to the seed of a cohort, for patients that nobody has seen
KEY = 1


@dataclass(frozen=True)
class TrainJob:
    """A row of the comparison in one setting."""

    row: str
    recipe: Recipe
    seeds: int


def make_train_job(
    desk: Desk, source: Source, settings: TrainJob, model: Job | None, guardian: Job | None
) -> dict[str, Content]:
    """Train all seeds, in the ensemble or the twin; the curves are kept."""
    hours, select = source.hours(desk)
    recipe, keys = settings.recipe, jr.split(jr.key(KEY), settings.seeds)
    with progress(f"training {settings.row}, {source.data}") as watch:
        if isinstance(recipe, BCConfig):
            policies, curves = train_bc(hours, select, recipe, key=keys, watch=watch)
        elif isinstance(recipe, SVRConfig):
            count = _count(recipe, settings.seeds, watch)
            train = partial(train_svr, hours, select, recipe, watch=count)
            policies, curves = train_each(lambda key: train(key=key), keys)
        else:
            assert model is not None
            read = read_twin if ROWS[settings.row].in_twin else read_ensemble
            dynamics = read(desk, model)
            penalty = _penalty(desk, settings, dynamics, guardian)
            parts = hours, dynamics, penalty, recipe
            count = _count(recipe, settings.seeds, watch)
            train = partial(train_model_based, *parts, watch=count)
            policies, curves = train_each(lambda key: train(key=key), keys)
    kept = {name: x for name, x in curves.items() if np.ndim(x) > 1}
    return arrays_and_info(kept, {"row": settings.row}) | save_policies(policies, settings.row)


def _count(
    recipe: SVRConfig | ModelBasedConfig, seeds: int, watch: Callable[[float], None]
) -> Callable[[object], None]:
    """Tell the share of all epochs that are done; on a CPU seeds come in turn."""
    every = recipe.report_every if isinstance(recipe, SVRConfig) else recipe.rollout_every
    runs = 1 if jax.default_backend() != "cpu" else seeds
    done = itertools.count(1)
    return lambda info: watch(next(done) * every / (recipe.updates * runs))


def _penalty(desk: Desk, settings: TrainJob, ensemble, guardian: Job | None) -> Penalty:
    """The one thing that model-based methods differ by."""
    weight = jnp.asarray(getattr(settings.recipe, "penalty_weight"), jnp.float32)  # noqa: B009
    method = ROWS[settings.row].method
    if method == "cormpo":
        assert guardian is not None
        return DensityPenalty(read_guardian(desk, guardian), weight)
    if method == "mbpo":
        return Unpenalized()
    kinds = {"mopo": SpreadPenalty, "disagreement": DisagreementPenalty}
    return kinds[method](ensemble, weight)


# ── judging ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class JudgeJob:
    """How many episodes, on whom."""

    episodes: int
    fresh: int  # patients
    seed: int  # of the cohort
    sampled: bool = False  # draw levels instead of taking the most probable


@dataclass(frozen=True)
class Bench:
    """What judging needs: the twin and, for simulated patients, the truth."""

    patients: Job
    twin: Job
    cohort: CohortConfig | None  # None if imported: there is no truth

    def starts(self, desk: Desk, settings: JudgeJob) -> dict[str, tuple[Starts, World]]:
        """Where episodes begin, by judge: in test patients and in fresh ones."""
        if self.cohort is None:
            return {}
        folder = desk.folder(self.patients)
        return _draw_starts(folder, self.patients.fingerprint, self.cohort, settings)

    def moments(self, desk: Desk, settings: JudgeJob) -> Moments:
        """The same starts for the twin; of recordings, hours with six recorded ones ahead."""
        if self.cohort is not None:
            return moments_of(self.starts(desk, settings)["patients"][0], key=jr.key(KEY))
        test = hours_of(desk, self.patients).test
        return draw_moments(test, settings.episodes, key=jr.key(KEY))[0]


@functools.lru_cache(maxsize=2)
def _draw_starts(
    folder: Path, fingerprint: str, config: CohortConfig, settings: JudgeJob
) -> dict[str, tuple[Starts, World]]:
    """The fingerprint is there to notice new patients."""
    with on_cpu():
        whole = read_truth(folder, config)
        _, _, test = split_patients(whole.cohort, key=jr.key(SPLIT))
        benches = {"patients": (test, latents_of(whole.latents, whole.cohort, test))}
        if settings.fresh:
            key = jr.key(FRESH_SEED + settings.seed)
            recipe = replace(config, patients=settings.fresh)
            benches["fresh"] = simulate_cohort(recipe, key=key)
        return {
            judge: (draw_judged_starts(*bench, settings.episodes, key=jr.key(KEY)), whole.world)
            for judge, bench in benches.items()
        }


def make_judge_job(
    desk: Desk, bench: Bench, settings: JudgeJob, trained: Job
) -> dict[str, Content]:
    """Judge the policies of one training."""
    return arrays_and_info(
        _judge_all(desk, bench, settings, read_policies(desk.folder(trained))), {}
    )


@dataclass(frozen=True)
class RulesJob:
    """What is judged without learning."""

    judging: JudgeJob
    rules: tuple[str, ...]
    look_ahead: bool


def make_rules_job(desk: Desk, bench: Bench, settings: RulesJob) -> dict[str, Content]:
    """Judge what needs no learning: rules, the clinicians themselves and the look-ahead."""
    judging, arrays = settings.judging, {}
    for name in settings.rules:
        found = _judge_all(desk, bench, judging, RULES[name])
        arrays |= {f"{name}/{key}": values for key, values in found.items()}
    moments = bench.moments(desk, judging)
    plans = None
    for judge, (starts, world) in bench.starts(desk, judging).items():
        with on_cpu():
            team = judge_team(starts, world)
            arrays |= judged_to_arrays(f"{TEAM}/{judge}", team)
            if settings.look_ahead:
                best = judge_look_ahead(starts, world)
                arrays |= judged_to_arrays(f"{LOOK_AHEAD}/{judge}", best)
        if judge == "patients":
            plans = np.asarray(team.level[0, :, 1:], np.int32)
    if plans is None:  # recordings: what was set in the six hours after each start
        test = hours_of(desk, bench.patients).test
        moments, plans = draw_moments(test, judging.episodes, key=jr.key(KEY))
    in_twin = judge_plans(plans, read_twin(desk, bench.twin), moments)
    return arrays_and_info(arrays | judged_to_arrays(f"{TEAM}/twin", in_twin), {})


def _judge_all(
    desk: Desk, bench: Bench, settings: JudgeJob, policies: Policy
) -> dict[str, np.ndarray]:
    """One policy, or one per seed, before every judge."""
    moments, twin = bench.moments(desk, settings), read_twin(desk, bench.twin)
    arrays = judged_to_arrays(
        "twin", judge_in_twin(policies, twin, moments, sampled=settings.sampled)
    )
    for judge, (starts, world) in bench.starts(desk, settings).items():
        found = judge_in_patients(policies, starts, world, sampled=settings.sampled)
        arrays |= judged_to_arrays(judge, found)
    return arrays


def read_judged(desk: Desk, job: Job) -> dict[str, Judged]:
    """What a judging job found, by judge, or by rule and judge."""
    return arrays_to_judged(desk.arrays(job))
