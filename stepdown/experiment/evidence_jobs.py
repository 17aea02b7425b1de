"""Evidence beyond the twin, job by job: the records alone, subgroups, other patients and teams.

Every job reads what a finished run has left and adds a table; nothing is trained here. What needs
the truth is left out where there is none. What the data do not allow, such as estimates from two
patients, is kept as a sentence in place of numbers, for the report to print.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.evaluation.behavior import check_calibration, fit_behavior
from stepdown.evaluation.compare import MIDDLE, difference, estimate, resample, values_of
from stepdown.evaluation.decisions import Decisions, make_decisions
from stepdown.evaluation.judging import (
    Judged,
    draw_judged_starts,
    judge_in_patients,
    judge_team,
    latents_of,
)
from stepdown.evaluation.off_policy import (
    Estimate,
    Estimates,
    How,
    OffPolicyConfig,
    estimate_off_policy,
    join,
    prepare_records,
)
from stepdown.evaluation.subgroups import recorded_groups, summarize_groups, true_groups
from stepdown.evaluation.transfer import SHIFTS, Shift, charged, simulate_shifted
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.experiment.kept import read_policies
from stepdown.experiment.learning import TEAM, Bench, JudgeJob, read_judged
from stepdown.experiment.models import read_guardian, read_twin
from stepdown.experiment.patients import SPLIT, on_cpu, read_patients, read_truth
from stepdown.handover import Cohort, Policy, Role
from stepdown.patients.cohort import CohortConfig
from stepdown.policies.rules import RULES
from stepdown.records.split import split_patients
from stepdown.report.progress import progress
from stepdown.signals import HORIZON
from stepdown.training import member

KEY = 3
SHIFT_SEED = 80_000  # added to the seed of a cohort, for patients under every shift
ESTIMATORS = ("wis", "fqe", "wdr", "joint", "magic", "model")
REFERENCE = "hold"  # estimates from records are also shown as differences to it

Trained = Mapping[str, tuple[Job, Job]]  # training and judging, by row


def policies_of(desk: Desk, trained: Trained) -> dict[str, list[Policy]]:
    """The policies of every row, one for each seed."""
    found = {}
    for row, (train, judge) in trained.items():
        policies = read_policies(desk.folder(train))
        seeds = len(next(iter(read_judged(desk, judge).values())).level)
        found[row] = [member(policies, seed) for seed in range(seeds)]
    return found


def read_part(desk: Desk, bench: Bench, role: Role) -> tuple[Cohort, np.ndarray | None]:
    """The recorded stays of a role and, for simulated patients, who died at their end."""
    folder = desk.folder(bench.patients)
    whole = read_patients(folder)
    parts = {part.role: part for part in split_patients(whole, key=jr.key(SPLIT))}
    if bench.cohort is None:
        return parts[role], None
    latents = latents_of(read_truth(folder, bench.cohort).latents, whole, parts[role])
    return parts[role], np.asarray(latents.outcome) == 2


# ── from the records alone ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RecordsJob:
    """Off-policy estimates on test patients."""

    rules: tuple[str, ...]
    config: OffPolicyConfig = OffPolicyConfig()


def make_records_job(
    desk: Desk, bench: Bench, settings: RecordsJob, trained: Trained
) -> dict[str, Content]:
    """Every policy from the recorded hours of test patients, with the twin as MAGIC's model."""
    cohort, died = read_part(desk, bench, "test")
    try:
        decisions = make_decisions(cohort, died)
        behavior = fit_behavior(decisions, key=jr.key(KEY))
    except ValueError as refusal:  # too few patients, or records without what is needed
        return arrays_and_info({}, {"refused": str(refusal), "policies": []})
    records = prepare_records(decisions, behavior, settings.config, key=jr.key(KEY + 1))
    twin, found = read_twin(desk, bench.twin), {}
    wanted = {name: [RULES[name]] for name in settings.rules} | policies_of(desk, trained)
    with progress("estimating from records") as watch:
        for number, (name, policies) in enumerate(wanted.items(), 1):
            how: How = "sampled" if name == "random" else "mode"
            found[name] = [
                estimate_off_policy(one, records, how=how, model=twin, key=jr.key(KEY + 2))
                for one in policies
            ]
            watch(number / len(wanted))
    check = check_calibration(behavior, decisions)
    about = {
        "patients": len(np.unique(decisions.patient)),
        "decisions": len(decisions.level),
        "too_short": _too_short(decisions),
        "deaths_known": died is not None,
        "calibration": {"log_loss": check.log_loss, "ece": check.ece, "brier": check.brier},
    }
    return arrays_and_info({}, about | {"policies": tell_policies(found)})


def _too_short(decisions: Decisions) -> int:
    """Patients whose longest recorded stretch is shorter than an episode."""
    longest: dict[int, int] = {}
    run = 0
    for patient, follows in zip(decisions.patient.tolist(), decisions.follows, strict=True):
        run += 1
        longest[patient] = max(longest.get(patient, 0), run)
        run = run if follows else 0
    return sum(length < HORIZON for length in longest.values())


def tell_policies(found: Mapping[str, list[Estimates]]) -> list[dict[str, Any]]:
    """Estimates and overlap of every policy, means over its seeds, as plain numbers."""
    usual = {name: _over_seeds(found[REFERENCE], name) for name in ESTIMATORS} \
        if REFERENCE in found else {}  # fmt: skip
    told = []
    for method, seeds in found.items():
        values = {name: _over_seeds(seeds, name) for name in ESTIMATORS}
        overlap = [one.overlap for one in seeds]
        told.append(
            {
                "method": method,
                "seeds": len(seeds),
                "informative": sum(one.word == "informative" for one in seeds),
                "effective": float(np.mean([one.patients() for one in overlap])),
                "seen": float(np.mean([one.share_seen() for one in overlap])),
                "unsupported": float(np.mean([one.unsupported for one in overlap])),
                "largest": float(np.mean([one.largest.max() for one in overlap])),
                "tail": float(np.mean([one.tail.max() for one in overlap])),
                "estimates": {name: _tell(one) for name, one in values.items()},
                "apart": {name: _tell(_minus(one, usual[name]))
                          for name, one in values.items() if name in usual},
                "bounds": [_tell_bounds(seeds, place) for place in range(len(seeds[0].bounds))],
            }
        )  # fmt: skip
    return told


def _over_seeds(seeds: list[Estimates], name: str) -> Estimate:
    """The mean over seeds, draw by draw; the joint one is made of the other two's means."""
    if name == "joint":
        return join(_over_seeds(seeds, "fqe"), _over_seeds(seeds, "wdr"))
    each = [getattr(one, name) for one in seeds]
    draws = np.mean([one.draws for one in each], axis=0)
    return _interval(float(np.mean([one.value for one in each])), draws)


def _minus(ours: Estimate, theirs: Estimate) -> Estimate:
    return _interval(ours.value - theirs.value, ours.draws - theirs.draws)


def _interval(value: float, draws: np.ndarray) -> Estimate:
    if not np.isfinite(draws).all():
        return Estimate(value, -np.inf, np.inf, draws)
    low, high = np.quantile(draws, MIDDLE)
    return Estimate(value, float(low), float(high), draws)


def _tell(one: Estimate) -> dict[str, float | None]:
    told = {"mean": one.value, "low": one.low, "high": one.high}
    return {name: float(x) if np.isfinite(x) else None for name, x in told.items()}


def _tell_bounds(seeds: list[Estimates], place: int) -> dict[str, float]:
    """Bounds of WIS under hidden confounding, means over the seeds."""
    names = ("gamma", "lower", "upper")
    each = [one.bounds[place] for one in seeds]
    return {name: float(np.mean([getattr(one, name) for one in each])) for name in names}


# ── subgroups and the worst tenth ────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class GroupsJob:
    """Outcomes by subgroup."""

    judging: JudgeJob
    rules: tuple[str, ...]


def make_groups_job(
    desk: Desk, bench: Bench, settings: GroupsJob, trained: Trained, rules: Job
) -> dict[str, Content]:
    """Every method in every subgroup, before every judge; minus the clinicians, paired."""
    starts = {judge: one for judge, (one, _) in bench.starts(desk, settings.judging).items()}
    states = {"twin": bench.moments(desk, settings.judging).state}
    states |= {judge: one.state for judge, one in starts.items()}
    rows = []
    for judge, state in states.items():
        groups = recorded_groups(np.asarray(state))
        truth = starts.get("patients" if judge == "twin" else judge)
        groups |= {} if truth is None else true_groups(truth)
        judged = _judged_by(desk, judge, trained, (rules, settings.rules))
        found = summarize_groups(judged, groups, TEAM if TEAM in judged else None)
        rows += [row | {"judge": judge} for row in found]
    return arrays_and_info({}, {"rows": rows, "truth": bool(starts)})


def _judged_by(
    desk: Desk, judge: str, trained: Trained, rules: tuple[Job, tuple[str, ...]]
) -> dict[str, Judged]:
    known = read_judged(desk, rules[0])
    named = {name: f"{name}/{judge}" for name in (TEAM, *rules[1])}
    found = {name: known[place] for name, place in named.items() if place in known}
    for row, (_, job) in trained.items():
        judged = read_judged(desk, job)
        if judge in judged:
            found[row] = judged[judge]
    return found


# ── other patients, another pump, another team ───────────────────────────────────────────────────


@dataclass(frozen=True)
class TransferJob:
    """Judged where patients or teams are different."""

    cohort: CohortConfig  # how patients are drawn, and how many
    episodes: int
    seed: int
    rules: tuple[str, ...]
    shifts: tuple[Shift, ...] = SHIFTS


def make_transfer_job(
    desk: Desk, settings: TransferJob, trained: Trained, guardian: Job
) -> dict[str, Content]:
    """Rows and rules in the true patients of every shift, and what the guardian says there."""
    guard, rows = read_guardian(desk, guardian), []
    wanted = {name: RULES[name] for name in settings.rules}
    wanted |= {row: read_policies(desk.folder(train)) for row, (train, _) in trained.items()}
    with progress("judging elsewhere") as watch:
        for number, shift in enumerate(settings.shifts, 1):
            rows += _judge_shift(settings, shift, wanted, guard)
            watch(number / len(settings.shifts))
    words = [[shift.name, shift.words] for shift in settings.shifts]  # a mapping loses its order
    return arrays_and_info({}, {"rows": rows, "shifts": words})


def _judge_shift(settings: TransferJob, shift: Shift, wanted: Mapping[str, Policy], guard):
    k_patients, k_starts = jr.split(jr.key(SHIFT_SEED + settings.seed))
    with on_cpu():
        cohort, latents, world = simulate_shifted(settings.cohort, shift, key=k_patients)
        starts = draw_judged_starts(cohort, latents, settings.episodes, key=k_starts)
        team = judge_team(starts, world)
    judged = {TEAM: team} | {
        name: judge_in_patients(policies, starts, world) for name, policies in wanted.items()
    }
    weights, rows = resample(np.asarray(starts.row)), []
    for method, one in judged.items():
        for metric in ("reward", "unsafe_hours"):
            own = values_of(one, metric)
            rows.append((method, metric, estimate(own, weights)))
            if method != TEAM:
                apart = difference(own, values_of(team, metric))
                rows.append((method, f"{metric}_minus_{TEAM}", estimate(apart, weights)))
        alarm = np.stack([charged(guard, starts.state, seed[:, 1]) for seed in one.level])
        rows.append((method, "charged", estimate(alarm, weights)))
    return [{"shift": shift.name, "method": x, "metric": y, **found} for x, y, found in rows]
