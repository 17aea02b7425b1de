"""What does choosing without the truth cost? `python -m benchmarks.studies.choosing --cohorts 10`.

Cohort by cohort (each preset, seeds from `--first` on) patients are simulated and split. Train
patients teach a small twin, an ensemble, a guardian and candidates: cloning, MBPO, MBPO shaped,
MOPO, and CORMPO at three penalties, two seeds each; beside them stand rules and the clinicians
themselves. Select patients give the second twin and all evidence. Then every candidate is judged in
truth, in test patients and in fresh ones. `--tables FILE` prints what the file says, and with
`--measured stepdown/report/measured_regret.json` renews what every report says about choosing.
`--workers` runs processes side by side, each on one core. CPU only.

Regret is what a rule's choice loses in fresh patients against the best candidate there, which only
the truth knows. The best is found among noisy means, so every regret is a little too large, by the
same for all rules. Intervals are 95 %: of means by a bootstrap over cohorts, of paired differences
Student's over cohorts, where a cohort counts as one number.
"""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is loaded, here and in every process

import jax.random as jr
import numpy as np

from benchmarks.cohorts import (
    DEATH,
    KDE,
    SIZES,
    Line,
    Patients,
    Sizes,
    Teachers,
    add_lines,
    fresh_patients,
    learn,
    read_lines,
    simulate,
)
from benchmarks.tables import DOCS, make_table, student
from stepdown.artifacts import provenance
from stepdown.evaluation.choosing import (
    CHOICE_RULES,
    DEFAULT_RULE,
    TEAM,
    Evidence,
    Models,
    Span,
    call_witnesses,
    gather_evidence,
    pessimistic,
    regret,
    team_evidence,
)
from stepdown.evaluation.compare import estimate, resample, spearman, values_of
from stepdown.evaluation.forecast import score_forecasts, summarize
from stepdown.evaluation.importance import point_one_way
from stepdown.evaluation.judging import (
    draw_judged_starts,
    judge_in_patients,
    judge_in_twin,
    judge_team,
    moments_of,
)
from stepdown.evaluation.second_twin import fit_second_twin
from stepdown.guardian.fit import fit_guardian
from stepdown.guardian.threshold import RECORDED
from stepdown.handover import Cohort, Dynamics, Judged, Moments, Policy
from stepdown.patients.cohort import CohortConfig, Latents, world_of
from stepdown.patients.population import PresetName
from stepdown.policies.ensemble import fit_ensemble
from stepdown.policies.learning import apply_changes
from stepdown.policies.methods import make_recipe
from stepdown.policies.rules import RULES
from stepdown.problem.scaling import fit_scaler
from stepdown.records.latents import latents_of
from stepdown.signals import LEVELS
from stepdown.twin.fit import fit_twin

PRESETS = ("guarded", "benign", "hidden")
PENALTIES = (0.02, 0.08, 0.15)  # lambda of CORMPO
CONSTANT = tuple(f"always P{level}" for level in LEVELS)
NAMES = ("hold", "taper", *CONSTANT)
SETS: dict[str, Callable[[str], bool]] = {
    "all candidates": lambda name: True,
    "learned ones, hold and the clinicians": lambda name: "#" in name or name in ("hold", TEAM),
}
CLEAR = 0.1  # reward, of a gain in truth whose sign matters
WITNESSES = {  # who must see a gain of the same sign
    "overlap": (),
    "overlap; WIS and WDR agree": ("wis", "wdr"),
    "overlap; WIS, WDR and the twin agree": ("wis", "wdr", "twin"),
    "overlap; WIS, WDR and both twins agree (the word)": ("wis", "wdr", "twin", "second"),
}
KINDS: dict[str, Callable[[Evidence], float]] = {
    "reward in the twin": lambda e: e.twin.value,
    "reward in the second twin": lambda e: e.second.value,
    "smaller of both": lambda e: min(e.twin.value, e.second.value),
    "pessimistic twin": pessimistic,
    "minus mean u": lambda e: -e.u,
    "minus mean u+": lambda e: -e.u_plus,
    "FQE": lambda e: e.fqe.value,
    "WIS": lambda e: e.wis.value,
    "FQE and WDR": lambda e: e.joint.value,
    "minus unsafe hours in the twin": lambda e: -e.unsafe,
    "minus unsupported share": lambda e: -e.unsupported,
}


def main() -> None:
    """Do what is not in the file yet, or print what it says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=3)
    parser.add_argument("--first", type=int, default=7)
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--size", choices=tuple(SIZES), default="demo")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("choosing.jsonl"))
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--measured", type=Path, help="JSON for what reports say, with --tables")
    args = parser.parse_args()
    if args.tables:
        lines = read_lines(args.tables)
        print(make_tables(lines))
        print("", make_more_tables(lines), sep="\n")
        if args.measured:
            found = measure(lines) | {"about": provenance(config=SIZES[args.size])}
            args.measured.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return
    tasks = [
        {"preset": preset, "seed": seed, "size": args.size}
        for seed in range(args.first, args.first + args.cohorts)
        for preset in args.presets.split(",")
    ]
    same = ("preset", "seed", "size")
    add_lines(args.json, tasks, judge_cohort, same=same, workers=args.workers)


def judge_truth(
    candidates: Mapping[str, Policy], bench: tuple[Cohort, Latents], world, episodes: int
) -> dict[str, dict[str, float]]:
    """Every candidate and the clinicians in simulated patients, the same starts for all."""
    starts = draw_judged_starts(*bench, episodes, key=jr.key(1))
    judged = {name: judge_in_patients(one, starts, world) for name, one in candidates.items()}
    judged[TEAM] = judge_team(starts, world)
    return {name: _plain(one) for name, one in judged.items()}


def _plain(judged: Judged) -> dict[str, float]:
    found = estimate(values_of(judged, "reward"), resample(judged.row))
    names = ("acp", "unsafe_hours", "ws_limits")
    return {
        "reward": found["mean"],
        "low": found["low"],
        "high": found["high"],
        **{name: float(values_of(judged, name).mean()) for name in names},
    }


def value_levels(
    models: Mapping[str, Dynamics], bench: tuple[Cohort, Latents], episodes: int
) -> dict[str, list[float]]:
    """What each constant level is worth by every model, from the starts that truth is judged at."""
    starts = draw_judged_starts(*bench, episodes, key=jr.key(1))
    moments = moments_of(starts, key=jr.key(2))
    return {
        name: [_reward(RULES[x], one, moments) for x in CONSTANT] for name, one in models.items()
    }


def _reward(policy: Policy, dynamics: Dynamics, moments: Moments) -> float:
    return float(judge_in_twin(policy, dynamics, moments).scores["reward"].mean())


def judge_cohort(preset: PresetName, seed: int, size: str) -> dict[str, Any]:
    """One line of the file."""
    sizes, clock = SIZES[size], _Clock()
    config = CohortConfig(patients=sizes.patients, preset=preset, hours=sizes.hours)
    patients = simulate(config, seed, sizes)
    whole, latents, (_, select, test) = patients.whole, patients.latents, patients.parts
    fresh = fresh_patients(config, seed, sizes)
    clock("simulate")
    twin, _ = fit_twin(patients.sliding, patients.select, sizes.twin("best"), key=jr.key(0))
    scaler = fit_scaler(patients.sliding)
    second, _ = fit_second_twin(patients.select_sliding, scaler, key=jr.key(0))
    clock("twins")
    ensemble, _ = fit_ensemble(patients.train, sizes.ensemble, key=jr.key(0))
    clock("ensemble")
    guardian, _ = fit_guardian(patients.train, patients.select, KDE, RECORDED, key=jr.key(0))
    learned = train_candidates(patients, Teachers(ensemble, guardian), sizes)
    candidates = learned | {name: RULES[name] for name in NAMES}
    clock("train")
    died = np.asarray(latents_of(latents, whole, select).outcome) == DEATH
    witnesses = call_witnesses(
        Models(twin, second, guardian), select, died, sizes.evidence, key=jr.key(3)
    )
    evidence = [team_evidence(witnesses)]
    evidence += [
        gather_evidence(name, policy, witnesses, key=jr.key(4))
        for name, policy in candidates.items()
    ]
    inside = {name: _reward(one, ensemble, witnesses.moments) for name, one in candidates.items()}
    clock("evidence")
    bench, world = (test, latents_of(latents, whole, test)), world_of(config)
    truth = {
        "test": judge_truth(candidates, bench, world, sizes.episodes),
        "fresh": judge_truth(candidates, fresh, world, sizes.episodes),
    }
    clock("truth")
    models = {"twin": twin, "second": second, "ensemble": ensemble}
    levels = value_levels(models, bench, sizes.episodes)
    forecasts = _accuracy(patients, {"twin": twin, "second": second}, sizes)
    clock("rest")
    return {
        "preset": preset,
        "seed": seed,
        "size": size,
        "evidence": [asdict(one) for one in evidence],
        "ensemble": inside,
        "truth": truth,
        "constants": levels,
        "forecast": forecasts,
        "seconds": clock.found,
    }


def _accuracy(patients: Patients, twins: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """How well both twins and persistence forecast test patients."""
    config = sizes.twin("persistence")
    twins["persistence"] = fit_twin(patients.sliding, patients.select, config, key=jr.key(0))[0]
    scaler, names = fit_scaler(patients.sliding), ("mae_z", "mae_map", "crps_z", "coverage90")
    found = {
        name: summarize(score_forecasts(one, patients.test, scaler, draws=10, key=jr.key(5)))
        for name, one in twins.items()
    }
    return {name: {x: one[x] for x in names} for name, one in found.items()}


class _Clock:
    """Wall and CPU seconds of each part."""

    def __init__(self):
        self.found: dict[str, list[float]] = {}
        self.last = (time.time(), time.process_time())

    def __call__(self, part: str) -> None:
        now = (time.time(), time.process_time())
        self.found[part] = [round(b - a, 1) for a, b in zip(self.last, now, strict=True)]
        self.last = now


def train_candidates(patients: Patients, teachers: Teachers, sizes: Sizes) -> dict[str, Policy]:
    """Every learned candidate by name, one for each seed."""
    rows = [("bc", "bc", {}), ("mbpo", "mbpo", {}), ("mbpo shaped", "mbpo_shaped", {})]
    rows += [("mopo", "mopo", {})]
    rows += [(f"cormpo {x:g}", "cormpo_kde", {"penalty_weight": x}) for x in PENALTIES]
    found = {}
    for name, row, changes in rows:
        recipe = apply_changes(make_recipe(row, shrink=sizes.shrink), changes)
        learned = learn(row, recipe, patients.train, patients.select, teachers, sizes.seeds)
        found |= {f"{name} #{i}": policy for i, policy in enumerate(learned)}
    return found


# ── what the file says ───────────────────────────────────────────────────────────────────────────


def tables() -> dict[str, str]:
    """The tables of docs/all-results.md, by their markers."""
    lines, chosen = read_lines(DOCS / "results/choosing.jsonl"), SETS["all candidates"]
    found = {"informative": signs(lines), "constant levels": constants(lines, PRESETS)}
    return found | {
        "regret": regrets(lines, PRESETS, chosen),
        "gain": gains(lines, PRESETS, chosen),
    }


def make_tables(lines: list[Line]) -> str:
    """Everything that the file says."""
    presets = [preset for preset in PRESETS if any(x["preset"] == preset for x in lines)]
    parts = [_about(lines, presets)]
    for words, chosen in SETS.items():
        parts += [f"**Regret in truth: {words}**", regrets(lines, presets, chosen)]
    everybody = SETS["all candidates"]
    parts += ["**Gain over the clinicians in truth: all candidates**"]
    parts += [gains(lines, presets, everybody)]
    parts += ["**What each rule chose: all candidates**", choices(lines, presets, everybody)]
    parts += ['**What the word "informative" is worth**', signs(lines)]
    parts += ["**Rank correlation with the truth over all candidates**"]
    parts += [correlations(lines, presets)]
    parts += ["**Constant levels from the same moments of test patients**"]
    parts += [constants(lines, presets)]
    parts += ["**Forecasts of the next hour of test patients**", forecasts(lines, presets)]
    return "\n\n".join(parts)


def read_evidence(line: Line, chosen: Callable[[str], bool]) -> list[Evidence]:
    """The evidence of a cohort, for some of the candidates."""
    found = []
    for one in line["evidence"]:
        spans = {name: Span(**x) for name, x in one.items() if isinstance(x, dict)}
        word = one["informative"] and (one["name"] == TEAM or _agreed(one))
        found.append(Evidence(**(one | spans | {"informative": word})))
    return [one for one in found if chosen(one.name)]


def _agreed(one: Mapping[str, Any]) -> bool:
    """Whether WIS, WDR and both twins see gains of one sign; older lines know overlap alone."""
    fqe, wis, joint, twin, second = (
        one[f"{name}_gain"]["value"] for name in ("fqe", "wis", "joint", "twin", "second")
    )
    return point_one_way([wis, 2 * joint - fqe, twin, second])


def signs(lines: list[Line]) -> str:
    """How often an estimate has the wrong sign, by what is asked of the word "informative"."""
    found = [(x, one) for x in lines for one in x["evidence"] if one["name"] != TEAM]
    gain = [x["truth"]["fresh"][one["name"]]["reward"] - x["truth"]["fresh"][TEAM]["reward"]
            for x, one in found]  # fmt: skip
    seen = [
        {name: one[f"{name}_gain"]["value"] for name in ("wis", "fqe", "joint", "twin", "second")}
        for _, one in found
    ]
    seen = [x | {"wdr": 2 * x["joint"] - x["fqe"]} for x in seen]
    overlap, rows = [one["informative"] for _, one in found], []
    for name, asked in WITNESSES.items():
        kept = [
            i
            for i, x in enumerate(seen)
            if overlap[i] and (len(asked) < 2 or point_one_way(x[y] for y in asked))
        ]
        clear = [i for i in kept if abs(gain[i]) >= CLEAR]
        rows.append([name, str(len(kept))])
        for witness in ("wis", "wdr", "joint", "twin"):
            for some in (kept, clear):
                odd = [np.sign(seen[i][witness]) != np.sign(gain[i]) for i in some]
                rows[-1].append(f"{100 * np.mean(odd):.0f} %")
    heads = ["asked", "candidates"]
    for witness in ("WIS", "WDR", "FQE and WDR", "twin"):
        heads += [f"{witness}: wrong sign", f"of gains of {CLEAR:g} or more"]
    return make_table(heads, rows)


def truth_of(line: Line, chosen: Callable[[str], bool], judge: str = "fresh") -> dict[str, float]:
    """True rewards of the same candidates."""
    return {name: x["reward"] for name, x in line["truth"][judge].items() if chosen(name)}


def deciders(chosen: Callable[[str], bool]) -> dict[str, Callable[[Line], Sequence[str]]]:
    """Whom each rule picks in a cohort; references beside the rules."""

    def by_rule(rule):
        return lambda line: [rule(read_evidence(line, chosen))]

    def by_test(line: Line) -> list[str]:
        truth = truth_of(line, chosen, "test")
        return [max(truth, key=truth.__getitem__)]

    found: dict[str, Callable[[Line], Sequence[str]]] = {
        name + (" (default)" if name == DEFAULT_RULE else ""): by_rule(rule)
        for name, rule in CHOICE_RULES.items()
    }
    return found | {
        "*the clinicians, whatever is said*": lambda line: [TEAM],
        "*hold, whatever is said*": lambda line: ["hold"],
        "*any candidate, by lot*": lambda line: list(truth_of(line, chosen)),
        "*truth in test patients (nobody has it)*": by_test,
    }


def regrets(lines: list[Line], presets: Iterable[str], chosen) -> str:
    """Mean regret of every rule, least first within the rules."""

    def cost(line: Line, names: Sequence[str]) -> float:
        truth = truth_of(line, chosen)
        return float(np.mean([regret(truth, name) for name in names]))

    return _by_rule(lines, presets, chosen, cost)


def gains(lines: list[Line], presets: Iterable[str], chosen) -> str:
    """How much better than the clinicians the chosen one is in truth."""

    def gain(line: Line, names: Sequence[str]) -> float:
        truth = truth_of(line, chosen)
        return float(np.mean([truth[name] - truth[TEAM] for name in names]))

    return _by_rule(lines, presets, chosen, gain, worst=min)


def best_elsewhere(lines: list[Line], chosen) -> Callable[[Line], Sequence[str]]:
    """The rule of least regret over all other cohorts: what trusting this table would bring."""
    rules = CHOICE_RULES.items()
    picks = {name: [rule(read_evidence(x, chosen)) for x in lines] for name, rule in rules}
    truth = [truth_of(x, chosen) for x in lines]
    costs = np.array(
        [[regret(t, n) for t, n in zip(truth, x, strict=True)] for x in picks.values()]
    )
    names, number = list(picks), {(x["preset"], x["seed"]): i for i, x in enumerate(lines)}

    def decide(line: Line) -> list[str]:
        own = number[line["preset"], line["seed"]]
        best = int(np.argmin(np.delete(costs, own, axis=1).sum(1)))
        return [picks[names[best]][own]]

    return decide


def _by_rule(lines: list[Line], presets: Iterable[str], chosen, value, worst=max) -> str:
    rows, order = [], []
    known = deciders(chosen) | {"*the rule that is best elsewhere*": best_elsewhere(lines, chosen)}
    for name, decide in known.items():
        found = {p: [value(x, decide(x)) for x in lines if x["preset"] == p] for p in presets}
        every = [x for values in found.values() for x in values]
        cells = [_mean(x) for x in found.values()]
        bad = worst(np.mean(x) for x in found.values()), worst(every)
        rows.append([name, *cells, _mean(every), *[f"{x:.2f}" for x in bad]])
        order.append((name.startswith("*"), float(np.mean(every))))
    ranked = [rows[i] for i in sorted(range(len(rows)), key=order.__getitem__)]
    return make_table(["rule", *presets, "all", "worst preset", "worst cohort"], ranked)


def choices(lines: list[Line], presets: Iterable[str], chosen) -> str:
    """How often each kind of candidate was chosen."""
    rows = []
    for name, decide in deciders(chosen).items():
        if "by lot" in name:
            continue
        cells = []
        for preset in presets:
            picked = Counter(
                decide(x)[0].partition(" #")[0] for x in lines if x["preset"] == preset
            )
            cells.append(", ".join(f"{who} {count}" for who, count in picked.most_common()))
        rows.append([name, *cells])
    return make_table(["rule", *presets], rows)


def correlations(lines: list[Line], presets: Iterable[str]) -> str:
    """Spearman's, in each cohort, of every kind of evidence with the truth in fresh patients."""
    rows = []
    for name, value in KINDS.items():
        cells = []
        for preset in presets:
            found = [_correlation(x, value) for x in lines if x["preset"] == preset]
            cells.append(_mean([x for x in found if np.isfinite(x)], sign="+"))
        rows.append([name, *cells])
    learned = [[_in_ensemble(x) for x in lines if x["preset"] == p] for p in presets]
    rows.append(["reward in the ensemble", *[_mean(x, sign="+") for x in learned]])
    return make_table(["evidence", *presets], rows)


def _in_ensemble(line: Line) -> float:
    """Of the dynamics that candidates learned in."""
    truth = line["truth"]["fresh"]
    return spearman(list(line["ensemble"].values()), [truth[n]["reward"] for n in line["ensemble"]])


def _correlation(line: Line, value: Callable[[Evidence], float]) -> float:
    evidence = [e for e in read_evidence(line, lambda name: name != TEAM) if np.isfinite(value(e))]
    truth = line["truth"]["fresh"]
    rewards = [truth[e.name]["reward"] for e in evidence]
    return spearman([value(e) for e in evidence], rewards)


def constants(lines: list[Line], presets: Iterable[str]) -> str:
    """Means over the cohorts: what one level for all is worth over six hours, by every judge."""
    rows = []
    for preset in presets:
        own = [x for x in lines if x["preset"] == preset]
        truth = [[x["truth"]["test"][name]["reward"] for name in CONSTANT] for x in own]
        by = {"truth": truth} | {
            name: [x["constants"][name] for x in own] for name in ("ensemble", "twin", "second")
        }
        for name, values in by.items():
            who = "second twin" if name == "second" else name
            rows.append([preset, who, *[f"{x:.2f}" for x in np.mean(values, axis=0)]])
    return make_table(["preset", "judge", *[f"P{level}" for level in LEVELS]], rows)


def forecasts(lines: list[Line], presets: Iterable[str]) -> str:
    """Accuracy of both twins and of persistence."""
    rows, names = [], ("mae_z", "mae_map", "crps_z", "coverage90")
    for preset in presets:
        own = [x["forecast"] for x in lines if x["preset"] == preset]
        for who in ("persistence", "twin", "second"):
            means = [np.mean([x[who][name] for x in own]) for name in names]
            rows.append([preset, who, *[f"{x:.3f}" for x in means]])
    heads = ["preset", "who", "MAE (z)", "MAE of MAP, mmHg", "CRPS (z)", "in the 90 % band"]
    return make_table(heads, rows)


def _about(lines: list[Line], presets: Iterable[str]) -> str:
    counts = ", ".join(f"{p} {sum(x['preset'] == p for x in lines)}" for p in presets)
    seeds = sorted({x["seed"] for x in lines})
    seconds = [np.sum(list(x["seconds"].values()), axis=0) for x in lines]
    wall, cpu = np.mean(seconds, axis=0)
    number = len(lines[0]["evidence"])
    return (
        f"Cohorts: {counts}; seeds {seeds[0]} to {seeds[-1]}; {number} candidates each; "
        f"{wall:.0f} s and {cpu:.0f} CPU seconds a cohort."
    )


def measure(lines: list[Line]) -> dict[str, Any]:
    """What reports say about every rule: mean regret, and how often it beat the clinicians."""
    rules = {}
    for name, rule in CHOICE_RULES.items():
        lost, ahead = [], 0
        for line in lines:
            truth = truth_of(line, SETS["all candidates"])
            picked = rule(read_evidence(line, SETS["all candidates"]))
            lost.append(regret(truth, picked))
            ahead += truth[picked] > truth[TEAM]
        low, high = _between(lost)
        rules[name] = {"mean": float(np.mean(lost)), "low": low, "high": high, "ahead": ahead}
    return {"cohorts": len(lines), "candidates": len(lines[0]["evidence"]), "rules": rules}


def _between(values: Sequence[float]) -> tuple[float, float]:
    draw = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
    kept = np.sort(values)  # so that the order of the file does not matter
    low, high = np.quantile(kept[draw].mean(1), [0.025, 0.975])
    return float(low), float(high)


def _mean(values: Sequence[float], sign: str = "") -> str:
    """Mean and its 95 % interval over cohorts."""
    if not len(values):
        return "–"
    low, high = _between(values)
    return f"{np.mean(values):{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"


# ── paired differences over cohorts ──────────────────────────────────────────────────────────────


def make_more_tables(lines: list[Line]) -> str:
    """The default against other rules, and kinds of candidates against each other."""
    parts = ["**The default against every other rule: all candidates**", against_default(lines)]
    return "\n\n".join([*parts, "**Kinds of candidates in truth**", kinds(lines)])


def against_default(lines: list[Line]) -> str:
    """The default's regret minus each rule's, and unsafe hours of what each chooses."""
    picks = {
        n: [r(read_evidence(x, SETS["all candidates"])) for x in lines]
        for n, r in CHOICE_RULES.items()
    }
    truth = [truth_of(x, SETS["all candidates"]) for x in lines]
    lost = {n: np.array([regret(t, p) for t, p in zip(truth, x, strict=True)])
            for n, x in picks.items()}  # fmt: skip
    rows = []
    for name, picked in picks.items():
        unsafe = [_unsafe(x, p) - _unsafe(x, TEAM) for x, p in zip(lines, picked, strict=True)]
        rows.append([name, student(lost[DEFAULT_RULE] - lost[name]), student(unsafe, 1)])
    return make_table(
        ["rule", "default minus it", "unsafe hours minus the clinicians', points"], rows
    )


def kinds(lines: list[Line], ours: str = "cormpo 0.08") -> str:
    """Learned candidates minus the clinicians, and CORMPO minus them."""
    names = dict.fromkeys(x.partition(" #")[0] for x in lines[0]["truth"]["fresh"] if "#" in x)
    rows = []
    for name in names:
        cells = []
        for other in (TEAM, name):
            first = name if other == TEAM else ours
            for value, digits in ((_true_reward, 2), (_unsafe, 1)):
                cells.append(student([value(x, first) - value(x, other) for x in lines], digits))
        rows.append([name, *cells])
    heads = ["reward minus the clinicians'", "unsafe hours, points"]
    return make_table(
        ["candidate", *heads, f"{ours} minus it: reward", "unsafe hours, points"], rows
    )


def difference(lines: list[Line], name: str, other: str) -> tuple[str, str]:
    """One kind of candidate minus another in truth: reward, and points of unsafe hours."""
    pairs = ((_true_reward, 2), (_unsafe, 1))
    reward, unsafe = (
        student([value(x, name) - value(x, other) for x in lines], digits)
        for value, digits in pairs
    )
    return reward, unsafe


def _true_reward(line: Line, kind: str) -> float:
    return _of_kind(line, kind, "reward")


def _unsafe(line: Line, kind: str) -> float:
    return 100 * _of_kind(line, kind, "unsafe_hours")


def _of_kind(line: Line, kind: str, what: str) -> float:
    """Of one candidate, or the mean over the seeds of a kind."""
    truth = line["truth"]["fresh"]
    return float(np.mean([x[what] for n, x in truth.items() if kind in (n, n.partition(" #")[0])]))


if __name__ == "__main__":
    main()
