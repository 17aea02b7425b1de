"""What further judges found about a run, as the page takes it, and as tidy rows.

`Findings` holds what the jobs of `stepdown judge` have left for one cohort, as plain numbers. What
was not asked is empty; what could not be told has a sentence under "refused".
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stepdown.evaluation.choosing import DEFAULT_RULE
from stepdown.evaluation.compare import (
    Weights,
    difference,
    estimate,
    resample,
    spearman,
    values_of,
)
from stepdown.evaluation.judging import Judged
from stepdown.report.comparison import Comparison
from stepdown.report.grids import number
from stepdown.report.labels import (
    CEILING,
    CLINICIANS,
    CONTRASTS,
    LEARNED,
    REFERENCES,
    TRUE_JUDGES,
)

Info = Mapping[str, Any]
Row = dict[str, Any]
Judgments = Mapping[str, Judged]
MEASURED = Path(__file__).with_name("measured_regret.json")
PLAIN = "twin reward"  # the paper's way to choose
KINDS = {
    "second": "The second twin",
    "records": "Estimates from records alone",
    "choice": "Choosing without truth",
    "certificate": "What the theorems certify",
    "groups": "Subgroups",
    "transfer": "Other patients and teams",
}


@dataclass(frozen=True)
class Findings:
    """Evidence beyond the twin about one cohort's policies."""

    comparison: Comparison  # learned from recorded hours in our setting
    second: Info = field(default_factory=dict)
    records: Info = field(default_factory=dict)
    choice: Info = field(default_factory=dict)
    certificate: Info = field(default_factory=dict)
    groups: Info = field(default_factory=dict)
    transfer: Info = field(default_factory=dict)

    @property
    def cohort(self) -> str:
        """Its name."""
        return self.comparison.cohort

    @property
    def truth(self) -> str | None:
        """The judge that stands for the truth, if there is one."""
        return next((x for x in TRUE_JUDGES if x in self.comparison.judged), None)

    def refusals(self) -> list[str]:
        """What could not be told, and why."""
        told = {words: getattr(self, kind) for kind, words in KINDS.items()}
        return [f"{x}: {y['refused']}" for x, y in told.items() if y.get("refused")]

    def true_reward(self, method: str) -> float | None:
        """Mean true reward, if known."""
        judged = self.comparison.judged.get(self.truth or "", {})
        return float(values_of(judged[method], "reward").mean()) if method in judged else None


def shown_methods(comparison: Comparison) -> list[str]:
    """Rows and references; of the contrasts, the first."""
    wanted = (*LEARNED, *(x for x in REFERENCES if x != CEILING), CONTRASTS[0])
    return comparison.methods(wanted)


def in_order(rows: Sequence[Any]) -> list[Any]:
    """Rows in the order of the tables."""
    place = {name: i for i, name in enumerate(ranked([x["method"] for x in rows]))}
    return sorted(rows, key=lambda x: place[x["method"]])


def ranked(methods: Sequence[str]) -> list[str]:
    """Learned methods first, in the order of the tables."""
    return [x for x in LEARNED if x in methods] + [x for x in methods if x not in LEARNED]


def mean_over(values: Sequence[float] | None) -> float:
    """The mean, or NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")


# ── truth beside twin ─────────────────────────────────────────────────────────────────────────────


def gap_rows(findings: Findings) -> list[Row]:
    """Reward by the truth, the twin and the second twin, ranks, and the gap: twin minus truth.

    "own" is the gap beyond that of the clinicians' decisions, which no policy can be blamed for.
    Gaps are paired by start, on test patients, where twin and truth begin in the same hours.
    """
    comparison = findings.comparison
    twin, truth = (comparison.judged.get(x, {}) for x in ("twin", "patients"))
    second = {
        x["method"]: x["mean"] for x in findings.second.get("rows", ()) if x["metric"] == "reward"
    }
    weights = resample(next(iter(truth.values())).row) if truth else None
    rows = []
    for method in shown_methods(comparison):
        row: Row = {"method": method, "second_twin": second.get(method)}
        for name, judged in (("twin", twin), ("truth", truth)):
            known = method in judged
            row[name] = float(values_of(judged[method], "reward").mean()) if known else None
        row |= _gap(method, twin, truth, weights)
        rows.append(row)
    learned = [row for row in rows if row["method"] in LEARNED]
    for name in ("twin", "second_twin", "truth"):
        order = sorted((x for x in learned if x[name] is not None), key=lambda x: -x[name])
        for row in rows:
            row[f"rank_{name}"] = order.index(row) + 1 if row in order else None
    return rows


def _gap(method: str, twin: Judgments, truth: Judgments, weights: Weights | None) -> Row:
    """Twin minus truth, and the same beyond the clinicians'; None where either is missing."""
    found: Row = {}
    if weights is not None and method in twin and method in truth:
        apart = _reward(twin, method), _reward(truth, method)
        gap = difference(*apart)
        found |= _named("gap", estimate(gap, weights))
        if CLINICIANS in twin and CLINICIANS in truth and method != CLINICIANS:
            theirs = difference(_reward(twin, CLINICIANS), _reward(truth, CLINICIANS))
            found |= _named("own_gap", estimate(difference(gap, theirs), weights))
    wanted = [f"{x}{y}" for x in ("gap", "own_gap") for y in ("", "_low", "_high")]
    return {name: found.get(name) for name in wanted}


def _reward(judged: Judgments, method: str) -> np.ndarray:
    return values_of(judged[method], "reward")


def _named(name: str, found: Mapping[str, float]) -> Row:
    return {name: found["mean"], f"{name}_low": found["low"], f"{name}_high": found["high"]}


def agreement(rows: Sequence[Row], name: str = "twin") -> float | None:
    """Spearman correlation of the learned methods' rewards with the truth, by twin or second."""
    both = [x for x in rows if x[f"rank_{name}"] is not None and x["rank_truth"] is not None]
    if len(both) < 2:
        return None
    return spearman([x[name] for x in both], [x["truth"] for x in both])


# ── tidy rows of the other tables ─────────────────────────────────────────────────────────────────


def record_rows(findings: Findings) -> list[Row]:
    """Every estimator of every method: value, interval, overlap, the word, the truth beside it."""
    rows = []
    for one in findings.records.get("policies", ()):
        word = word_of(one)
        for estimator, value in one["estimates"].items():
            apart = one["apart"].get(estimator, {})
            rows.append(
                {
                    "method": one["method"],
                    "estimator": estimator,
                    "mean": value["mean"],
                    "low": value["low"],
                    "high": value["high"],
                    "minus_hold": apart.get("mean"),
                    "minus_hold_low": apart.get("low"),
                    "minus_hold_high": apart.get("high"),
                    "truth": findings.true_reward(one["method"]),
                    "word": word,
                    "informative_seeds": one["informative"],
                    "seeds": one["seeds"],
                    "effective_patients": one["effective"],
                    "share_seen": one["seen"],
                    "unsupported": one["unsupported"],
                    "largest_share": one["largest"],
                    "tail_share": one["tail"],
                }
            )
    return rows


def bound_rows(findings: Findings) -> list[Row]:
    """What WIS could be if teams knew more than the records hold, and whether the truth is within.

    Gamma is the factor by which hidden knowledge may have changed the odds of a recorded level.
    """
    rows = []
    for one in findings.records.get("policies", ()):
        truth = findings.true_reward(one["method"])
        for bounds in one["bounds"]:
            within = None
            if truth is not None:
                within = bool(bounds["lower"] <= truth <= bounds["upper"])
            rows.append({"method": one["method"], **bounds, "truth": truth, "within": within})
    return rows


def word_of(one: Info) -> str:
    """Informative only if every seed is."""
    return "informative" if one["informative"] == one["seeds"] else "uninformative"


def choice_rows(findings: Findings) -> list[Row]:
    """Every rule and seed: what it chooses and what that loses in truth."""
    rows = []
    for one in findings.choice.get("choices", ()):
        for seed, chosen in enumerate(one["chosen"]):
            row: Row = {"rule": one["rule"], "seed": seed, "chosen": chosen}
            for judge in TRUE_JUDGES:
                lost = one.get(f"regret_{judge}")
                row[f"regret_{judge}"] = None if lost is None else lost[seed]
            rows.append(row)
    return rows


def table_rows(findings: Findings) -> dict[str, list[Row]]:
    """Every table of the section that has rows, by the name of its file."""
    tables = {
        "gap": gap_rows(findings),
        "records": record_rows(findings),
        "bounds": bound_rows(findings),
        "choice": choice_rows(findings),
        "certificate": list(findings.certificate.get("rows", ())),
        "groups": list(findings.groups.get("rows", ())),
        "transfer": list(findings.transfer.get("rows", ())),
        "second": list(findings.second.get("rows", ())),
    }
    return {name: rows for name, rows in tables.items() if rows}


# ── what choosing without the truth costs, as measured on simulated cohorts ───────────────────────


@functools.cache
def read_measured() -> dict[str, Any]:
    """Number of cohorts and candidates, and for every rule its regret.

    The file is written by
    `python benchmarks/choosing.py --tables docs/results/choosing.jsonl --measured FILE`.
    """
    return json.loads(MEASURED.read_bytes())


def say_measured(rule: str = DEFAULT_RULE) -> str:
    """The measured regret of a rule beside that of choosing by the twin's reward alone."""
    found = read_measured()
    own, plain = (found["rules"][x] for x in (rule, PLAIN))
    return (
        f"Choosing without the truth, measured on {found['cohorts']} simulated cohorts of "
        f"{found['candidates']} candidates: the rule '{rule}' (stepdown judge) lost {_lost(own)} "
        f"of the reward that the best candidate really has and was better than the clinicians in "
        f"{own['ahead']} of {found['cohorts']}; the twin's reward alone lost {_lost(plain)}, "
        f"better in {plain['ahead']}."
    )


def _lost(one: Mapping[str, int | float]) -> str:
    return f"{number(one['mean'])} [{number(one['low'])}, {number(one['high'])}]"
