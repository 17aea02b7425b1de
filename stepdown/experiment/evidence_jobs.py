"""Evidence beyond the twin: records alone, a second twin, choosing, bounds, other patients.

Every job reads what a finished run has left and adds a table; nothing is trained here. What needs
the truth is left out where there is none. What the data do not allow, such as estimates from two
patients, is kept as a sentence in place of numbers, for the report to print.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.evaluation.behavior import check_calibration, fit_behavior
from stepdown.evaluation.certificate import (
    Certificate,
    CertificateConfig,
    HeldOut,
    certify,
    recorded_hours,
    redraw_hours,
)
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
from stepdown.evaluation.compare import (
    estimate,
    resample,
    summarize,
    values_of,
    with_differences,
)
from stepdown.evaluation.decisions import Decisions, make_decisions
from stepdown.evaluation.importance import point_one_way
from stepdown.evaluation.judging import (
    draw_judged_starts,
    judge_in_patients,
    judge_in_twin,
    judge_plans,
    judge_team,
)
from stepdown.evaluation.off_policy import (
    Estimate,
    Estimates,
    How,
    OffPolicyConfig,
    estimate_off_policy,
    join,
    make_estimate,
    prepare_records,
)
from stepdown.evaluation.second_twin import SECOND, fit_second_twin
from stepdown.evaluation.subgroups import recorded_groups, summarize_groups, true_groups
from stepdown.evaluation.transfer import SHIFTS, Shift, charged, simulate_shifted
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.experiment.judging import TEAM, Bench, Trained, read_judged, read_ruled
from stepdown.experiment.patients import on_cpu, read_hours, read_parts, read_truth
from stepdown.experiment.readers import read_ensemble, read_guardian, read_policies, read_twin
from stepdown.experiment.training import TrainPolicy
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Cohort, Dynamics, Judged, Policy, Role
from stepdown.patients.cohort import CohortConfig
from stepdown.policies.rules import RULES
from stepdown.records.latents import latents_of
from stepdown.signals import HORIZON
from stepdown.training import member
from stepdown.twin.fit import Twin
from stepdown.twin.ridge import RidgeConfig

RECORDS_KEY, CHOICE_KEY, BOUND_KEY = 3, 4, 5
SHIFT_SEED = 80_000  # added to the seed of a cohort, for patients under every shift
ESTIMATORS = ("wis", "fqe", "wdr", "joint", "magic", "model")
LENT = "kde"  # whose u is measured along policies that were charged by no density
REFERENCE = "hold"  # estimates from records are also shown as differences to it
WITNESSES = ("wis", "wdr", "model")  # of such a difference
CANDIDATES = ("hold",)  # rules that are candidates beside every method and the clinicians
TRUTHS = ("fresh", "patients")  # who tells what a choice was worth, the surest first


def read_part(desk: Desk, bench: Bench, role: Role) -> tuple[Cohort, np.ndarray | None]:
    """The recorded stays of a role and, for simulated patients, who died at their end."""
    (part,) = (x for x in read_parts(desk, bench.patients) if x.role == role)
    truth = read_truth(desk, bench.patients)
    if truth is None:
        return part, None
    return part, np.asarray(latents_of(truth.latents, truth.cohort, part).outcome) == 2


@dataclass(frozen=True)
class Judges:
    """What the jobs of this file have in common: who is judged, where, beside which rules."""

    bench: Bench
    trained: Mapping[str, Trained]  # by method
    ruled: Job  # the judged rules
    rules: tuple[str, ...]  # which of them to look at; constant levels are left out

    def seeds(self, desk: Desk) -> dict[str, list[Policy]]:
        """The policies of every method, one for each seed."""
        found = {}
        for name, one in self.trained.items():
            policies = read_policies(desk, one.train)
            seeds = len(next(iter(read_judged(desk, one.judge).values())).level)
            found[name] = [member(policies, seed) for seed in range(seeds)]
        return found

    def everybody(self, desk: Desk) -> dict[str, Policy]:
        """Rules, and methods with all their seeds."""
        rules = {name: RULES[name] for name in self.rules}
        return rules | {x: read_policies(desk, one.train) for x, one in self.trained.items()}

    def judged(
        self, desk: Desk, judge: str, rules: tuple[str, ...] | None = None
    ) -> dict[str, Judged]:
        """What one judge has seen: clinicians, rules, methods."""
        wanted = self.rules if rules is None else rules
        found = read_ruled(desk, self.ruled, judge, wanted)
        for name, one in self.trained.items():
            if (seen := read_judged(desk, one.judge).get(judge)) is not None:
                found[name] = seen
        return found


# ── from the records alone ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class EstimateFromRecords:
    """Every policy from the recorded hours of test patients, with the twin as MAGIC's model."""

    judges: Judges
    config: OffPolicyConfig = OffPolicyConfig()

    def make(self, desk: Desk) -> dict[str, Content]:
        """Estimates, overlap and the calibration of the behavior policy."""
        judges = self.judges
        wanted = {name: [RULES[name]] for name in judges.rules} | judges.seeds(desk)
        return arrays_and_info({}, estimate_all(desk, judges.bench, wanted, self.config))


def estimate_all(
    desk: Desk,
    bench: Bench,
    wanted: Mapping[str, list[Policy]],
    config: OffPolicyConfig = OffPolicyConfig(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """What the records of test patients say of policies, by name one for each seed."""
    cohort, died = read_part(desk, bench, "test")
    try:
        decisions = make_decisions(cohort, died)
        behavior = fit_behavior(decisions, key=jr.key(RECORDS_KEY))
    except ValueError as refusal:  # too few patients, or records without what is needed
        return {"refused": str(refusal), "policies": []}
    records = prepare_records(decisions, behavior, config, key=jr.key(RECORDS_KEY + 1))
    twin, found = read_twin(desk, bench.twin), {}
    with desk.teller.progress("estimating from records") as watch:
        for number, (name, policies) in enumerate(wanted.items(), 1):
            how: How = "sampled" if name == "random" else "mode"
            found[name] = [
                estimate_off_policy(one, records, how=how, model=twin, key=jr.key(RECORDS_KEY + 2))
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
    return about | {"policies": tell_policies(found)}


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
        apart = {name: _minus(one, usual[name]) for name, one in values.items() if name in usual}
        compared = bool(apart) and method != REFERENCE
        overlap = [one.overlap for one in seeds]
        told.append(
            {
                "method": method,
                "seeds": len(seeds),
                "informative": sum(one.word == "informative" for one in seeds),  # by overlap
                "agreed": not compared or point_one_way(apart[x].value for x in WITNESSES),
                "effective": float(np.mean([one.patients() for one in overlap])),
                "seen": float(np.mean([one.share_seen() for one in overlap])),
                "unsupported": float(np.mean([one.unsupported for one in overlap])),
                "largest": float(np.mean([one.largest.max() for one in overlap])),
                "tail": float(np.mean([one.tail.max() for one in overlap])),
                "estimates": {name: _tell(one) for name, one in values.items()},
                "apart": {name: _tell(one) for name, one in apart.items()},
                "bounds": [_tell_bounds(seeds, place) for place in range(len(seeds[0].bounds))],
            }
        )
    return told


def _over_seeds(seeds: list[Estimates], name: str) -> Estimate:
    """The mean over seeds, draw by draw; the joint one is made of the other two's means."""
    if name == "joint":
        return join(_over_seeds(seeds, "fqe"), _over_seeds(seeds, "wdr"))
    each = [getattr(one, name) for one in seeds]
    draws = np.mean([one.draws for one in each], axis=0)
    return make_estimate(float(np.mean([one.value for one in each])), draws)


def _minus(ours: Estimate, theirs: Estimate) -> Estimate:
    return make_estimate(ours.value - theirs.value, ours.draws - theirs.draws)


def _tell(one: Estimate) -> dict[str, float | None]:
    told = {"mean": one.value, "low": one.low, "high": one.high}
    return {name: float(x) if np.isfinite(x) else None for name, x in told.items()}


def _tell_bounds(seeds: list[Estimates], place: int) -> dict[str, float]:
    """Bounds of WIS under hidden confounding, means over the seeds."""
    names = ("gamma", "lower", "upper")
    each = [one.bounds[place] for one in seeds]
    return {name: float(np.mean([getattr(one, name) for one in each])) for name in names}


# ── a second twin, and choosing without the truth ────────────────────────────────────────────────


def second_twin(desk: Desk, bench: Bench, config: RidgeConfig) -> Twin:
    """The second twin, fitted to select patients; it takes seconds, so it is not kept."""
    first, select = read_twin(desk, bench.twin), read_hours(desk, bench.patients).select
    pump = first.carry.profile.name
    return fit_second_twin(select, first.scaler, config, pump, key=jr.key(CHOICE_KEY))[0]


@dataclass(frozen=True)
class JudgeInSecondTwin:
    """Methods, rules and the clinicians' levels in a twin of other patients, same starts."""

    judges: Judges
    config: RidgeConfig = SECOND

    def make(self, desk: Desk) -> dict[str, Content]:
        """Means and differences to the clinicians."""
        bench = self.judges.bench
        try:
            twin = second_twin(desk, bench, self.config)
        except ValueError as refusal:  # too few patients
            return arrays_and_info({}, {"refused": str(refusal), "rows": []})
        moments = bench.moments(desk)
        team = read_ruled(desk, self.judges.ruled, "twin", ())[TEAM]
        plans = np.asarray(team.level[0, :, 1:], np.int32)
        judged: dict[str, Judged] = {TEAM: judge_plans(plans, twin, moments)}
        for name, policy in self.judges.everybody(desk).items():
            judged[name] = judge_in_twin(policy, twin, moments)
        return arrays_and_info({}, {"rows": summarize(judged, "second", TEAM)})


@dataclass(frozen=True)
class ChooseWithoutTruth:
    """Evidence about every candidate, what each rule chooses, what that costs in truth.

    Evidence to choose by comes from select patients; what a choice was worth, where truth exists,
    from test or fresh ones. Each seed is a field of candidates of its own: one policy of every
    method, holding the level, and the clinicians. So the spread of a rule's regret is that over
    trainings.
    """

    judges: Judges
    guardian: Job
    second: RidgeConfig = SECOND
    config: EvidenceConfig = field(default_factory=EvidenceConfig)
    candidates: tuple[str, ...] = CANDIDATES
    rules: tuple[str, ...] = tuple(CHOICE_RULES)
    default: str = DEFAULT_RULE

    def make(self, desk: Desk) -> dict[str, Content]:
        """Candidates, choices and regrets."""
        bench = self.judges.bench
        select, died = read_part(desk, bench, "select")
        try:
            models = Models(
                twin=read_twin(desk, bench.twin),
                second=second_twin(desk, bench, self.second),
                guardian=read_guardian(desk, self.guardian),
            )
            witnesses = call_witnesses(models, select, died, self.config, key=jr.key(CHOICE_KEY))
        except ValueError as refusal:  # too few patients
            return arrays_and_info({}, {"refused": str(refusal), "choices": [], "candidates": []})
        key = jr.key(CHOICE_KEY + 1)
        fixed = [team_evidence(witnesses)]
        fixed += [gather_evidence(x, RULES[x], witnesses, key=key) for x in self.candidates]
        learned = self.judges.seeds(desk)
        fields: list[list[Evidence]] = []
        with desk.teller.progress("gathering evidence") as watch:
            seeds = len(next(iter(learned.values())))
            for seed in range(seeds):
                own = [gather_evidence(x, y[seed], witnesses, key=key) for x, y in learned.items()]
                fields.append([*fixed, *own])
                watch((seed + 1) / seeds)
        truth = self._true_rewards(desk)
        info = {
            "candidates": [
                asdict(one) | {"seed": seed} for seed, own in enumerate(fields) for one in own
            ],
            "choices": [choose_in_fields(rule, fields, truth) for rule in self.rules],
            "default": self.default,
            "truth": next(iter(truth), None),
        }
        return arrays_and_info({}, _without_infinities(info))

    def _true_rewards(self, desk: Desk) -> dict[str, dict[str, np.ndarray]]:
        """Mean true reward of every candidate's seeds, by judge; empty for recordings."""
        found = {x: self.judges.judged(desk, x, self.candidates) for x in TRUTHS}
        return {
            judge: {x: values_of(one, "reward").mean(1) for x, one in own.items()}
            for judge, own in found.items()
            if own
        }


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


# ── what the theorems certify ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class AsTrained:
    """What the theorems speak of: model, charge and lambda of one training."""

    dynamics: Dynamics
    guardian: Guardian
    weight: float  # lambda, as a search chose it; 0 where no density was charged
    model: str  # "ensemble" or "twin"
    density: str  # a row of DENSITIES
    lent: tuple[str, ...]  # "model", "density": what the method did without


def read_as_trained(desk: Desk, train: Job, ensemble: Job, guardian: Job) -> AsTrained:
    """What a policy was trained with; who did without a model or a density is lent these."""
    work = train.work
    assert isinstance(work, TrainPolicy)
    method, model = work.method, work.learned_in(desk)
    charges = method.penalty == "density"
    lent = {"model": model is None, "density": method.density is None}
    return AsTrained(
        dynamics=read_ensemble(desk, ensemble) if model is None else model,
        guardian=read_guardian(desk, work.guardian or guardian),
        weight=float(work.config_used(desk).penalty_weight) if charges else 0.0,
        model=method.dynamics or "ensemble",
        density=method.density or LENT,
        lent=tuple(name for name, is_lent in lent.items() if is_lent),
    )


@dataclass(frozen=True)
class CertifyPolicies:
    """The paper's theorems with numbers, for the first seed of every method.

    Each row has the lambda, the density and the model that its policy was trained with. Held-out
    decisions are those of the test patients: with their next hours drawn anew where patients are
    simulated, as recorded elsewhere.
    """

    judges: Judges
    ensemble: Job  # lent to methods that learn in no model
    guardian: Job  # of the density LENT, lent to methods that have none
    moments: int = 128  # starts at which every level's next hour is drawn anew
    config: CertificateConfig = field(default_factory=CertificateConfig)

    def make(self, desk: Desk) -> dict[str, Content]:
        """Constants and lower bounds."""
        rows, trained = [], self.judges.trained
        try:
            with desk.teller.progress("bounding") as watch, on_cpu():  # patients: many small steps
                held_out = self._held_out(desk)
                for number, (name, one) in enumerate(trained.items(), 1):
                    policy = member(read_policies(desk, one.train), 0)
                    used = read_as_trained(desk, one.train, self.ensemble, self.guardian)
                    config = replace(self.config, weight=used.weight)
                    key = jr.key(BOUND_KEY)
                    found = certify(policy, used.dynamics, used.guardian, held_out, config, key=key)
                    reward = values_of(read_judged(desk, one.judge)["twin"], "reward")[0]
                    found = replace(found, value_in_twin=float(reward.mean()))
                    rows.append({"method": name} | _tell_used(used) | _tell_certificate(found))
                    watch(number / len(trained))
        except ValueError as refusal:  # too few patients
            return arrays_and_info({}, {"refused": str(refusal), "rows": []})
        return arrays_and_info({}, {"rows": rows})

    def _held_out(self, desk: Desk) -> HeldOut:
        bench = self.judges.bench
        starts = bench.starts(desk).get("patients")
        if starts is None:
            test = read_hours(desk, bench.patients).test
            return recorded_hours(test, episodes=bench.episodes, key=jr.key(BOUND_KEY))
        return redraw_hours(*starts, self.moments, self.config.draws, key=jr.key(BOUND_KEY))


def _tell_used(used: AsTrained) -> dict[str, Any]:
    """Model and density by name, and whether the method did without; lambda is told elsewhere."""
    told = {"model": used.model, "density": used.density}
    return told | {f"{name}_lent": name in used.lent for name in told}


def _tell_certificate(one: Certificate) -> dict[str, Any]:
    """A flat row of numbers; what is no number is None."""
    flat: dict[str, Any] = {"vacuous": one.is_vacuous}
    for name, value in asdict(one).items():
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        flat |= {f"{name}_{part}" if part else name: x for part, x in parts}
    odd = (name for name, x in flat.items() if isinstance(x, float) and not np.isfinite(x))
    return flat | dict.fromkeys(odd)


# ── subgroups and the worst tenth ────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class CompareSubgroups:
    """Every method in every subgroup, before every judge; minus the clinicians, paired."""

    judges: Judges

    def make(self, desk: Desk) -> dict[str, Content]:
        """A row for every method, subgroup and judge."""
        bench = self.judges.bench
        starts = {judge: one for judge, (one, _) in bench.starts(desk).items()}
        states = {"twin": bench.moments(desk).state}
        states |= {judge: one.state for judge, one in starts.items()}
        rows = []
        for judge, state in states.items():
            groups = recorded_groups(np.asarray(state))
            truth = starts.get("patients" if judge == "twin" else judge)
            groups |= {} if truth is None else true_groups(truth)
            judged = self.judges.judged(desk, judge)
            found = summarize_groups(judged, groups, TEAM if TEAM in judged else None)
            rows += [row | {"judge": judge} for row in found]
        return arrays_and_info({}, {"rows": rows, "truth": bool(starts)})


# ── other patients, another pump, another team ───────────────────────────────────────────────────


@dataclass(frozen=True)
class JudgeElsewhere:
    """Methods and rules in the true patients of every shift, and what the guardian says there."""

    judges: Judges
    guardian: Job
    cohort: CohortConfig  # how patients are drawn, and how many
    episodes: int
    shifts: tuple[Shift, ...] = SHIFTS

    def make(self, desk: Desk) -> dict[str, Content]:
        """A row for every shift, method and metric."""
        guard, wanted, rows = read_guardian(desk, self.guardian), self.judges.everybody(desk), []
        with desk.teller.progress("judging elsewhere") as watch:
            for number, shift in enumerate(self.shifts, 1):
                rows += self._judge(shift, wanted, guard)
                watch(number / len(self.shifts))
        words = [[shift.name, shift.words] for shift in self.shifts]  # a mapping loses its order
        return arrays_and_info({}, {"rows": rows, "shifts": words})

    def _judge(self, shift: Shift, wanted: Mapping[str, Policy], guard) -> list[dict[str, Any]]:
        k_patients, k_starts = jr.split(jr.key(SHIFT_SEED + self.judges.bench.seed))
        with on_cpu():
            cohort, latents, world = simulate_shifted(self.cohort, shift, key=k_patients)
            starts = draw_judged_starts(cohort, latents, self.episodes, key=k_starts)
            team = judge_team(starts, world)
        judged = {TEAM: team} | {
            name: judge_in_patients(policies, starts, world) for name, policies in wanted.items()
        }
        weights, rows = resample(np.asarray(starts.row)), []
        usual = {metric: values_of(team, metric) for metric in ("reward", "unsafe_hours")}
        for method, one in judged.items():
            own = {metric: values_of(one, metric) for metric in ("reward", "unsafe_hours")}
            alarm = np.stack([charged(guard, starts.state, seed[:, 1]) for seed in one.level])
            told = with_differences({TEAM: usual, method: own}, TEAM)
            told = [x for x in told if x[0] == method]
            rows += [*told, (method, "charged", alarm)]
        return [
            {"shift": shift.name, "method": x, "metric": y, **estimate(values, weights)}
            for x, y, values in rows
        ]
