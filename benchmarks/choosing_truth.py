"""More tables of `benchmarks/choosing.py --tables FILE`: paired differences over cohorts.

A cohort counts as one number; intervals are Student's over cohorts, 95 %.
"""

import json
from pathlib import Path

import numpy as np
from choosing_tables import SETS, Line, make_table, read_evidence, student, truth_of

from stepdown.evaluation.choosing import CHOICE_RULES, DEFAULT_RULE, TEAM, regret

EVERYBODY = SETS["all candidates"]


def make_more_tables(path: Path) -> str:
    """The default against other rules, and kinds of candidates against each other."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    parts = ["**The default against every other rule: all candidates**", against_default(lines)]
    return "\n\n".join([*parts, "**Kinds of candidates in truth**", kinds(lines)])


def against_default(lines: list[Line]) -> str:
    """The default's regret minus each rule's, and unsafe hours of what each chooses."""
    picks = {n: [r(read_evidence(x, EVERYBODY)) for x in lines] for n, r in CHOICE_RULES.items()}
    truth = [truth_of(x, EVERYBODY) for x in lines]
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
            for value, digits in ((_reward, 2), (_unsafe, 1)):
                cells.append(student([value(x, first) - value(x, other) for x in lines], digits))
        rows.append([name, *cells])
    heads = ["reward minus the clinicians'", "unsafe hours, points"]
    return make_table(
        ["candidate", *heads, f"{ours} minus it: reward", "unsafe hours, points"], rows
    )


def _reward(line: Line, kind: str) -> float:
    return _of_kind(line, kind, "reward")


def _unsafe(line: Line, kind: str) -> float:
    return 100 * _of_kind(line, kind, "unsafe_hours")


def _of_kind(line: Line, kind: str, what: str) -> float:
    """Of one candidate, or the mean over the seeds of a kind."""
    truth = line["truth"]["fresh"]
    return float(np.mean([x[what] for n, x in truth.items() if kind in (n, n.partition(" #")[0])]))
