"""Tables of `benchmarks/choosing.py --tables FILE`, in Markdown.

Regret is what a rule's choice loses in fresh patients against the best candidate there, which only
the truth knows. The best is found among noisy means, so every regret is a little too large, by the
same for all rules. Intervals are 95 %, by a bootstrap over cohorts.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepdown.evaluation.choosing import (
    CHOICE_RULES,
    DEFAULT_RULE,
    TEAM,
    Evidence,
    Span,
    pessimistic,
    regret,
)
from stepdown.evaluation.compare import over_cohorts, paired_difference, spearman
from stepdown.signals import LEVELS

PRESETS = ("guarded", "benign", "hidden")
CONSTANT = tuple(f"always P{level}" for level in LEVELS)
SETS: dict[str, Callable[[str], bool]] = {
    "all candidates": lambda name: True,
    "learned ones, hold and the clinicians": lambda name: "#" in name or name in ("hold", TEAM),
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

Line = dict[str, Any]


def make_tables(path: Path) -> str:
    """Everything that the file says."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    presets = [preset for preset in PRESETS if any(x["preset"] == preset for x in lines)]
    parts = [_about(lines, presets)]
    for words, chosen in SETS.items():
        parts += [f"**Regret in truth: {words}**", regrets(lines, presets, chosen)]
    everybody = SETS["all candidates"]
    parts += ["**Gain over the clinicians in truth: all candidates**"]
    parts += [gains(lines, presets, everybody)]
    parts += ["**What each rule chose: all candidates**", choices(lines, presets, everybody)]
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
        found.append(Evidence(**(one | spans)))
    return [one for one in found if chosen(one.name)]


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


def measure(path: Path) -> dict[str, Any]:
    """What reports say about every rule: mean regret, and how often it beat the clinicians."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
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
    kept = np.sort(values)  # so that the order of the file does not matter
    _, low, high = paired_difference(kept, np.zeros_like(kept), np.arange(len(kept)))
    return low, high


def _mean(values: Sequence[float], sign: str = "") -> str:
    """Mean and its 95 % interval over cohorts."""
    if not len(values):
        return "–"
    low, high = _between(values)
    return f"{np.mean(values):{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"


def student(values: Iterable[float], digits: int = 2) -> str:
    """The mean over cohorts with Student's interval, in words."""
    found = over_cohorts([float(x) for x in values])
    mean, low, high = (f"{found[x]:+.{digits}f}" for x in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines)
