"""Two more judges of a finished run: a second twin, and rules to choose without the truth.

Evidence to choose by comes from select patients; what a choice was worth, where truth exists, from
test or fresh ones. Each seed is a field of candidates of its own: one policy of every row, holding
the level, and the clinicians. So the spread of a rule's regret is that over trainings.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.evaluation.choosing import (
    CHOICE_RULES,
    DEFAULT_RULE,
    Evidence,
    EvidenceConfig,
    Models,
    call_witnesses,
    gather_evidence,
    regret,
    team_evidence,
)
from stepdown.evaluation.compare import summarize, values_of
from stepdown.evaluation.judging import Judged, judge_in_twin, judge_plans
from stepdown.evaluation.second_twin import SecondTwinConfig, fit_second_twin
from stepdown.experiment.evidence_jobs import Trained, policies_of, read_part
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.experiment.kept import read_policies
from stepdown.experiment.learning import TEAM, Bench, JudgeJob, read_judged
from stepdown.experiment.models import hours_of, read_guardian, read_twin
from stepdown.policies.rules import RULES
from stepdown.report.progress import progress
from stepdown.twin.fit import Twin

KEY = 4
CANDIDATES = ("hold",)  # rules that are candidates beside every row and the clinicians
TRUTHS = ("fresh", "patients")  # who tells what a choice was worth, the surest first


def second_twin(desk: Desk, bench: Bench, config: SecondTwinConfig) -> Twin:
    """The second twin, fitted to select patients; it takes seconds, so it is not kept."""
    scaler = read_twin(desk, bench.twin).scaler
    select = hours_of(desk, bench.patients).select
    return fit_second_twin(select, scaler, config, key=jr.key(KEY))[0]


@dataclass(frozen=True)
class SecondJob:
    """Judged in the second twin, from the starts of the first."""

    judging: JudgeJob
    rules: tuple[str, ...]
    config: SecondTwinConfig = SecondTwinConfig()


def make_second_job(
    desk: Desk, bench: Bench, settings: SecondJob, trained: Trained, rules: Job
) -> dict[str, Content]:
    """All rows, rules and the clinicians' levels in a twin of other patients."""
    try:
        twin = second_twin(desk, bench, settings.config)
    except ValueError as refusal:  # too few patients
        return arrays_and_info({}, {"refused": str(refusal), "rows": []})
    moments = bench.moments(desk, settings.judging)
    plans = np.asarray(read_judged(desk, rules)[f"{TEAM}/twin"].level[0, :, 1:], np.int32)
    judged: dict[str, Judged] = {TEAM: judge_plans(plans, twin, moments)}
    wanted = {name: RULES[name] for name in settings.rules}
    wanted |= {row: read_policies(desk.folder(train)) for row, (train, _) in trained.items()}
    judged |= {name: judge_in_twin(policy, twin, moments) for name, policy in wanted.items()}
    return arrays_and_info({}, {"rows": summarize(judged, "second", TEAM)})


@dataclass(frozen=True)
class ChoiceJob:
    """Choose without the truth, then ask the truth."""

    second: SecondTwinConfig = SecondTwinConfig()
    config: EvidenceConfig = field(default_factory=EvidenceConfig)
    candidates: tuple[str, ...] = CANDIDATES
    rules: tuple[str, ...] = tuple(CHOICE_RULES)
    default: str = DEFAULT_RULE


def make_choice_job(
    desk: Desk, bench: Bench, settings: ChoiceJob, trained: Trained, others: tuple[Job, Job]
) -> dict[str, Content]:
    """Evidence about every candidate, what each rule chooses, what that costs in truth.

    `others` are the guardian and the judged rules.
    """
    guardian, rules = others
    select, died = read_part(desk, bench, "select")
    try:
        models = Models(
            twin=read_twin(desk, bench.twin),
            second=second_twin(desk, bench, settings.second),
            guardian=read_guardian(desk, guardian),
        )
        witnesses = call_witnesses(models, select, died, settings.config, key=jr.key(KEY))
    except ValueError as refusal:  # too few patients
        return arrays_and_info({}, {"refused": str(refusal), "choices": [], "candidates": []})
    key = jr.key(KEY + 1)
    fixed = [team_evidence(witnesses)]
    fixed += [gather_evidence(x, RULES[x], witnesses, key=key) for x in settings.candidates]
    learned = policies_of(desk, trained)
    fields: list[list[Evidence]] = []
    with progress("gathering evidence") as watch:
        seeds = len(next(iter(learned.values())))
        for seed in range(seeds):
            own = [gather_evidence(x, y[seed], witnesses, key=key) for x, y in learned.items()]
            fields.append([*fixed, *own])
            watch((seed + 1) / seeds)
    truth = _true_rewards(desk, trained, (rules, settings.candidates))
    info = {
        "candidates": [
            asdict(one) | {"seed": seed} for seed, own in enumerate(fields) for one in own
        ],
        "choices": [choose_in_fields(rule, fields, truth) for rule in settings.rules],
        "default": settings.default,
        "truth": next(iter(truth), None),
    }
    return arrays_and_info({}, _without_infinities(info))


def _true_rewards(
    desk: Desk, trained: Trained, rules: tuple[Job, tuple[str, ...]]
) -> dict[str, dict[str, np.ndarray]]:
    """Mean true reward of every candidate's seeds, by judge; empty for recordings."""
    known, found = read_judged(desk, rules[0]), {}
    for judge in TRUTHS:
        named = {x: f"{x}/{judge}" for x in (TEAM, *rules[1])}
        own = {x: known[place] for x, place in named.items() if place in known}
        for row, (_, job) in trained.items():
            if (one := read_judged(desk, job).get(judge)) is not None:
                own[row] = one
        if own:
            found[judge] = {x: values_of(one, "reward").mean(1) for x, one in own.items()}
    return found


def choose_in_fields(rule: str, fields: list[list[Evidence]], truth) -> dict[str, Any]:
    """What a rule chooses in every field and its regret before every true judge."""
    chosen = [CHOICE_RULES[rule](own) for own in fields]
    told: dict[str, Any] = {"rule": rule, "chosen": chosen}
    for judge, values in truth.items():
        each = []
        for seed, (own, name) in enumerate(zip(fields, chosen, strict=True)):
            worth = {x.name: float(_of_seed(values[x.name], seed)) for x in own if x.name in values}
            each.append(regret(worth, name))
        told[f"regret_{judge}"] = each
    return told


def _of_seed(values: np.ndarray, seed: int) -> float:
    return float(values[seed if len(values) > 1 else 0])


def _without_infinities(value: Any) -> Any:
    """JSON knows no infinity: limits that are none become null."""
    if isinstance(value, Mapping):
        return {name: _without_infinities(x) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(x) for x in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
