"""Evidence beyond the twin: what further judges found about a run, as rows, tables and sentences.

`Findings` holds what the jobs of `stepdown judge` have left for one cohort, as plain numbers. What
was not asked is empty; what could not be told has a sentence under "refused". Tables are for
people: cells in words, few digits. Everything else, and every digit, is in the CSV files that the
page names below each table.
"""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from stepdown.evaluation.choosing import DEFAULT_RULE
from stepdown.evaluation.compare import (
    Weights,
    difference,
    estimate,
    resample,
    spearman,
    values_of,
)
from stepdown.guardian.guardians import DENSITIES
from stepdown.handover import Judged
from stepdown.report.comparison import Comparison
from stepdown.report.grids import DASH, Cell, Grid, apart, number, signed, span, valued
from stepdown.report.labels import (
    CEILING,
    CLINICIANS,
    CONTRASTS,
    ESTIMATORS,
    GROUPED,
    JUDGES,
    LEARNED,
    METRICS,
    REFERENCES,
    TRUE_JUDGES,
    name_of,
)
from stepdown.report.page import Table, show

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
PICTURES = {  # of a table
    "gap": "ranks",
    "records": "records alone",
    "choice": "regret",
    "groups": "subgroups",
    "transfer": "elsewhere",
}
REGRETS = tuple(f"regret_{judge}" for judge in TRUE_JUDGES)
GAMMA = 1.5
WORST: Final = "reward_worst_tenth"
LEAD = (
    "Policies were trained and chosen with models of the records. Here others judge them: {who}a "
    "second twin of other patients, the records alone, the paper's theorems; in subgroups{where}. "
    "All of it is about policies learned from recorded hours in our setting."
)
WHO = {True: "the true patients, ", False: ""}
WHERE = {
    True: ", in the worst tenth of the episodes, and where patients or teams are different",
    False: " and in the worst tenth of the episodes",
}
UNKNOWN = (
    "There is no truth behind recordings. Unknown here, and said by no table: the reward that a "
    "policy would really reach, the model-exploitation gap, which twin ranks rightly, the regret "
    "of a choice, subgroups by what was hidden, and transfer to other patients."
)
NO_TRUTH = (
    "There is no truth behind these recordings: whether the twin ranks the methods rightly, and "
    "what a policy would really reach, is unknown."
)


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
        return self.comparison.reward(method, self.truth or "")


def in_order(rows: Sequence[Any]) -> list[Any]:
    """Rows in the order of the tables."""
    order = ranked([x["method"] for x in rows])
    return sorted(rows, key=lambda x: order.index(x["method"]))


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
    shown = (*LEARNED, *(x for x in REFERENCES if x != CEILING), CONTRASTS[0])
    rows: list[Row] = [
        {
            "method": method,
            "second_twin": second.get(method),
            "twin": comparison.reward(method, "twin"),
            "truth": comparison.reward(method, "patients"),
            **_gap(method, twin, truth, weights),
        }
        for method in comparison.methods(shown)
    ]
    learned = [row for row in rows if row["method"] in LEARNED]
    for name in ("twin", "second_twin", "truth"):
        order = sorted((x for x in learned if x[name] is not None), key=lambda x: -x[name])
        for row in rows:
            row[f"rank_{name}"] = order.index(row) + 1 if row in order else None
    return rows


def _gap(method: str, twin: Judgments, truth: Judgments, weights: Weights | None) -> Row:
    """Twin minus truth, and the same beyond the clinicians'; None where either is missing."""
    gaps = {
        x: difference(values_of(twin[x], "reward"), values_of(truth[x], "reward"))
        for x in (method, CLINICIANS)
        if x in twin and x in truth
    }
    found: dict[str, Mapping[str, float]] = {}
    if weights is not None and method in gaps:
        found["gap"] = estimate(gaps[method], weights)
        if CLINICIANS in gaps and method != CLINICIANS:
            found["own_gap"] = estimate(difference(gaps[method], gaps[CLINICIANS]), weights)
    ends = {"": "mean", "_low": "low", "_high": "high"}
    return {f"{x}{y}": found.get(x, {}).get(z) for x in ("gap", "own_gap") for y, z in ends.items()}


def agreement(rows: Sequence[Row], name: str = "twin") -> float | None:
    """Spearman correlation of the learned methods' rewards with the truth, by twin or second."""
    both = [x for x in rows if x[f"rank_{name}"] is not None and x["rank_truth"] is not None]
    if len(both) < 2:
        return None
    return spearman([x[name] for x in both], [x["truth"] for x in both])


# ── tidy rows of the other tables ─────────────────────────────────────────────────────────────────


def record_rows(findings: Findings) -> list[Row]:
    """Every estimator of every method: value, interval, overlap, the word, the truth beside it."""
    return [
        {
            "method": one["method"],
            "estimator": estimator,
            **{name: value[name] for name in ("mean", "low", "high")},
            "minus_hold": one["apart"].get(estimator, {}).get("mean"),
            "minus_hold_low": one["apart"].get(estimator, {}).get("low"),
            "minus_hold_high": one["apart"].get(estimator, {}).get("high"),
            "truth": findings.true_reward(one["method"]),
            "word": word_of(one),
            "informative_seeds": one["informative"],
            "seeds": one["seeds"],
            "effective_patients": one["effective"],
            "share_seen": one["seen"],
            "unsupported": one["unsupported"],
            "largest_share": one["largest"],
            "tail_share": one["tail"],
        }
        for one in findings.records.get("policies", ())
        for estimator, value in one["estimates"].items()
    ]


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
    """Informative only if every seed is, and WIS, WDR and the twin see one sign beside holding."""
    enough = one["informative"] == one["seeds"]
    return "informative" if enough and one["agreed"] else "uninformative"


def choice_rows(findings: Findings) -> list[Row]:
    """Every rule and seed: what it chooses and what that loses in truth."""
    return [
        {"rule": one["rule"], "seed": seed, "chosen": chosen}
        | {x: one[x][seed] if x in one else None for x in REGRETS}
        for one in findings.choice.get("choices", ())
        for seed, chosen in enumerate(one["chosen"])
    ]


# ── what choosing without the truth costs, as measured on simulated cohorts ───────────────────────


@cache
def read_measured() -> dict[str, Any]:
    """Number of cohorts and candidates, and for every rule its regret.

    The file is written by
    `python -m benchmarks.studies.choosing --tables docs/results/choosing.jsonl --measured FILE`.
    """
    return json.loads(MEASURED.read_bytes())


def say_measured() -> str:
    """The measured regret of the default rule beside that of the twin's reward alone."""
    found = read_measured()
    own, plain = (found["rules"][x] for x in (DEFAULT_RULE, PLAIN))
    return (
        f"Choosing without the truth, measured on {found['cohorts']} simulated cohorts of "
        f"{found['candidates']} candidates: the rule '{DEFAULT_RULE}' (stepdown judge) lost "
        f"{_lost(own)} of the reward that the best candidate really has and was better than the "
        f"clinicians in {own['ahead']} of {found['cohorts']}; the twin's reward alone lost "
        f"{_lost(plain)}, better in {plain['ahead']}."
    )


def _lost(one: Mapping[str, int | float]) -> str:
    return f"{number(one['mean'])} [{number(one['low'])}, {number(one['high'])}]"


# ── the section of the page ───────────────────────────────────────────────────────────────────────


def evidence_section(findings: Sequence[Findings], pictures: Mapping[str, bytes]) -> str:
    """The body of the section: the first cohort in full, others folded."""
    if not findings:
        return ""
    first, *others = findings
    known = first.truth is not None
    parts = [f"<p>{html.escape(LEAD.format(who=WHO[known], where=WHERE[known]))}</p>"]
    if others:
        parts.append("".join(_side_by_side(findings).html))
    parts.append(_cohort(first, pictures, ""))
    for one in others:
        title, body = html.escape(f"The cohort {one.cohort}"), _cohort(one, pictures, _named(one))
        parts.append(f"<details><summary>{title}</summary>\n{body}</details>")
    return "\n".join(parts)


def _cohort(findings: Findings, pictures: Mapping[str, bytes], named: str) -> str:
    """All tables of one cohort, each with its picture before it and its file below."""
    parts = [] if findings.truth else [f'<p class="warn">{html.escape(UNKNOWN)}</p>']
    parts += [f'<p class="muted">Not told. {html.escape(x)}</p>' for x in findings.refusals()]
    for name, table in _tables(findings).items():
        picture = f"{PICTURES.get(name, '')}{named}"
        if picture in pictures:
            parts.append(show({picture: pictures[picture]}, "evidence"))
        if name == "choice":
            parts += [f"<p>{html.escape(x)}</p>" for x in say_choice(findings)]
        parts += table.html
    return "\n".join(parts)


def named_pictures(
    findings: Sequence[Findings], drawn: Sequence[Mapping[str, bytes]]
) -> dict[str, bytes]:
    """Pictures of all cohorts under names of their own; those of the first have none added."""
    return {
        name if one is findings[0] else f"{name}{_named(one)}": png
        for one, pictures in zip(findings, drawn, strict=True)
        for name, png in pictures.items()
    }


def _named(findings: Findings) -> str:
    """What a picture's name has in addition."""
    return f", {findings.cohort}"


def evidence_tables(findings: Sequence[Findings]) -> list[Table]:
    """Every table of every cohort, then the cohorts side by side."""
    tables = [table for one in findings for table in _tables(one).values()]
    return [*tables, _side_by_side(findings)] if len(findings) > 1 else tables


def _tables(findings: Findings) -> dict[str, Table]:
    """What the findings allow, by the name of its file; some numbers have no table of their own."""
    groups = [partial(groups_grid, metric=x) for x in ("reward", WORST, "unsafe_hours")]
    found = {
        "gap": (gap_rows(findings), [gap_grid]),
        "second": (findings.second.get("rows"), []),
        "records": (record_rows(findings), [records_grid]),
        "bounds": (bound_rows(findings), []),
        "choice": (choice_rows(findings), [choice_grid]),
        "certificate": (findings.certificate.get("rows"), [certificate_grid]),
        "groups": (findings.groups.get("rows"), groups),
        "transfer": (findings.transfer.get("rows"), [transfer_grid, charged_grid]),
    }
    folder = f"tables/evidence/{findings.cohort}"
    return {
        name: Table(f"{folder}/{name}", rows, [make(findings) for make in grids])
        for name, (rows, grids) in found.items()
        if rows
    }


def _side_by_side(findings: Sequence[Findings]) -> Table:
    """All cohorts in one table."""
    grid = cohorts_grid(findings)
    rows = [dict(zip(grid.head, [cell.text for cell in row], strict=True)) for row in grid.rows]
    return Table("tables/evidence/cohorts", rows, [grid], grid.head)


def cohorts_grid(findings: Sequence[Findings]) -> Grid:
    """Rank correlation of the twins with the truth, and every rule's regret, cohort by cohort."""
    head = ("", *(one.cohort for one in findings))
    lines = []
    for name, words in (("twin", "twin and truth, Spearman"), ("second_twin", "second twin")):
        found = [agreement(gap_rows(one), name) for one in findings]
        lines.append((Cell(words), *(Cell() if x is None else Cell(signed(x)) for x in found)))
    told = [
        {x["rule"]: x.get(f"regret_{one.truth}") for x in one.choice.get("choices", ())}
        for one in findings
    ]
    for rule in dict.fromkeys(x for one in told for x, each in one.items() if each is not None):
        lines.append((Cell(f"regret: {rule}"), *(_regret_cell(one.get(rule)) for one in told)))
    note = "Regret: true reward of the best candidate minus that of the chosen one, over seeds."
    groups = {0: "Who ranks as the truth does", 2: "What a choice without the truth costs"}
    return Grid("Cohort by cohort", head, tuple(lines), groups=groups, note=note)


def say_choice(findings: Findings) -> list[str]:
    """What the default rule chooses, and its measured regret or that nobody knows it."""
    choice, said = findings.choice, []
    for one in (x for x in choice.get("choices", ()) if x["rule"] == choice["default"]):
        chosen = say_chosen(one["chosen"])
        words = f"Without the truth, the default rule ({one['rule']}) chooses {chosen}"
        regret = _regret_cell(one.get(f"regret_{findings.truth}"))
        if findings.truth is None or regret == Cell():
            said.append(f"{words}; what that costs in truth is unknown.")
            continue
        seeds = f", {regret.note} over seeds" if regret.note else ""
        where = JUDGES[findings.truth].full
        said.append(f"{words}: regret {regret.text} reward in {where}{seeds}.")
    return said


def say_records(findings: Findings) -> list[str]:
    """For how many learned methods the records alone say anything."""
    policies = findings.records.get("policies", ())
    learned = [x for x in policies if x["method"] in LEARNED]
    if not learned:
        return []
    told = [x for x in learned if word_of(x) == "informative"]
    names = f": {', '.join(name_of(x['method']) for x in told)}" if told else ""
    return [
        f"The records alone are informative about {len(told)} of {len(learned)} learned "
        f"methods{names}."
    ]


def first_screen(findings: Sequence[Findings]) -> list[str]:
    """Sentences for the summary: the default choice, what it costs, and what records tell."""
    if not findings:
        return [say_measured()]
    first = findings[0]
    said = [*say_choice(first), say_measured(), *say_records(first)]
    return said if first.truth else [NO_TRUTH, *said]


# ── truth, records, choices, theorems ─────────────────────────────────────────────────────────────


def gap_grid(findings: Findings) -> Grid:
    """Truth, twin and second twin side by side, ranks, and the model-exploitation gap.

    Without a truth there is no column of it.
    """
    rows, known = sorted(gap_rows(findings), key=_from_the_best), findings.truth is not None
    names = ("truth", "twin", "second_twin")[not known :]
    lines = []
    for row in rows:
        ranks = [Cell(str(row[f"rank_{x}"] or DASH)) for x in names]
        rewards = [Cell(number(row[x])) for x in names]
        gaps = [_span_cell(row, x) for x in ("gap", "own_gap") if known]
        lines.append((Cell(name_of(row["method"])), *rewards, *ranks, *gaps))
    several = tuple(name.replace("_", " ") for name in names)
    gaps = ("twin minus truth", "beyond clinicians'") if known else ()
    head = ("Method", *several, *several, *gaps)
    above = (("", 1), ("Reward of 6 hours", len(names)), ("Rank among learned", len(names)))
    above += (("Gap", 2),) * known
    note = (
        "Test patients, the same starts for all. "
        + _GAP * known
        + "The second twin is built differently and was fitted to select patients. "
        f"{_say_correlations(rows)}"
    )
    words = "Truth beside twin, and the model-exploitation gap" if known else "Two twins"
    return Grid(f"{words} ({findings.cohort})", head, tuple(lines), above, note=note)


_GAP = (
    "Gap: what exists in the model alone, paired by start, with the 95 % interval over patients; "
    "bold where it excludes zero. Beyond the clinicians': less the gap of the recorded decisions, "
    "which no policy can be blamed for. "
)


def _from_the_best(row: Row) -> float:
    """By the truth, or else by the twin; who is unknown to both comes last."""
    return next((-row[x] for x in ("truth", "twin") if row[x] is not None), 99.0)


def _say_correlations(rows: Sequence[Row]) -> str:
    names = {"twin": "the twin", "second_twin": "the second twin"}
    found = {words: agreement(rows, name) for name, words in names.items()}
    said = [f"{words} {signed(one)}" for words, one in found.items() if one is not None]
    if not said:
        return "Without a truth nobody can say which twin ranks rightly."
    return f"Spearman correlation with the truth over the learned methods: {', '.join(said)}."


def records_grid(findings: Findings) -> Grid:
    """What the records alone say, and whether that is anything."""
    records = findings.records
    policies = records.get("policies", ())
    truth = findings.truth
    head = (
        "Method", *(x.words for x in ESTIMATORS.values()), f"Γ = {GAMMA:g}",
        *["truth"] * (truth is not None),
        "patients", "seen, %", "never done, %", "largest, %", "word",
    )  # fmt: skip
    lines = []
    for one in in_order(policies):
        cells = [valued(one["estimates"].get(x)) for x in ESTIMATORS]
        cells.append(_bounds_cell(one))
        if truth is not None:
            cells.append(Cell(number(findings.true_reward(one["method"]))))
        cells += [Cell(number(one["effective"], 1)), Cell(number(100 * one["seen"], 0))]
        cells += [Cell(number(100 * one[x], 0)) for x in ("unsupported", "largest")]
        word = word_of(one)
        part = f"{one['informative']} of {one['seeds']} seeds" if one["seeds"] > 1 else ""
        part = part if one["agreed"] else "estimates disagree"
        word_cell = Cell(word, "" if word == "informative" else part, word == "uninformative")
        lines.append((Cell(name_of(one["method"])), *cells, word_cell))
    above = (
        ("", 1),
        ("Reward of 6 hours from records alone", len(ESTIMATORS) + 1 + (truth is not None)),
        ("How far the records follow it", 5),
    )
    title = f"Policies judged from records alone ({findings.cohort})"
    return Grid(title, head, tuple(lines), above, note=_records_note(records, truth))


def _bounds_cell(one: Info) -> Cell:
    """WIS under hidden confounding of one strength."""
    for bounds in one["bounds"]:
        if bounds["gamma"] == GAMMA:
            return Cell(span(bounds["lower"], bounds["upper"]))
    return Cell()


def _records_note(records: Info, truth: str | None) -> str:
    short = records["too_short"]
    stays = f"{short} of them never have" if short else "all of them have"
    return (
        f"From {records['patients']} test patients and {records['decisions']:,} decisions; {stays} "
        "six recorded hours in a row. Episodes count as far as they are recorded. Recommended is "
        "the first column: the mean of FQE and WDR with all that either interval holds. "
        f"Γ: what WIS could be if hidden knowledge changed the odds of levels by up to {GAMMA:g}. "
        "Patients: effective sample size, of patients. Seen: share of the policy's hours that "
        "records hold. Never done: share of its choices that teams practically never make. "
        "Largest: weight that one patient carries in an hour, at most. Uninformative: too few "
        "followed the policy for any of these numbers to mean much, or WIS, WDR and the twin do "
        "not point the same way from holding the level. Behavior policy by "
        "cross-fitting over patients; expected calibration error "
        f"{number(records['calibration']['ece'], 3)}. MAGIC has the twin as its model."
        + ("" if truth is None else f" Truth: {JUDGES[truth].full}.")
    )


def choice_grid(findings: Findings) -> Grid:
    """What each rule would choose without the truth, and what that loses."""
    choice = findings.choice
    judges = [x for x in TRUE_JUDGES if any(f"regret_{x}" in y for y in choice["choices"])]
    lines = []
    for one in sorted(choice["choices"], key=lambda x: mean_over(x.get(f"regret_{judges[0]}"))
                      if judges else 0.0):  # fmt: skip
        default = one["rule"] == choice["default"]
        name = Cell(one["rule"], "the default" if default else "", default)
        cells = [_regret_cell(one.get(f"regret_{x}")) for x in judges]
        lines.append((name, Cell(say_chosen(one["chosen"])), *cells))
    head = ("Rule", "chooses", *(f"regret in {JUDGES[x].full}" for x in judges))
    seeds = len(choice["choices"][0]["chosen"]) if choice["choices"] else 0
    note = (
        f"A field of candidates for each of {seeds} seeds: one policy of every row, holding the "
        "level, the clinicians. Evidence comes from select patients, without any truth."
        + _REGRET
        * bool(judges)
    )
    title = f"Choosing without truth{', and what it costs' * bool(judges)} ({findings.cohort})"
    return Grid(title, head, tuple(lines), note=note)


_REGRET = (
    " Regret: the best candidate's true reward minus the chosen one's; below it the least and the "
    "largest over seeds. The best is known only afterwards and by the same episodes, which makes "
    "regrets a little too large."
)


def say_chosen(chosen: Sequence[str]) -> str:
    """Who was chosen in how many fields."""
    names = sorted(dict.fromkeys(chosen), key=lambda x: -list(chosen).count(x))
    if len(names) == 1:
        return name_of(names[0])
    return ", ".join(f"{name_of(x)} ({list(chosen).count(x)})" for x in names)


def certificate_grid(findings: Findings) -> Grid:
    """The theorems for every learned policy: constants, bounds, values."""
    rows = findings.certificate["rows"]
    values = {"truth": "truth", "twin": "twin", "model": "its model"}
    if findings.truth is None:
        del values["truth"]
    lines = [
        (
            Cell(name_of(row["method"]), _say_used(row)),
            *(Cell(number(row[f"value_in_{x}"])) for x in values),
            *(_bound_cell(row, x) for x in ("in_mean", "everywhere", "as_trained")),
            Cell(number(row["gap"])) if row["weight"] > 0 else Cell(),
            *(Cell(number(row[x])) for x in ("charged", "bonus")),
            Cell(number(row["in_mean_slope"], 4)),
            Cell(number(row["in_mean_rest"], 3)),
            *(Cell(number(row[x])) for x in ("tv_known", "rank_correlation")),
        )
        for row in in_order(rows)
    ]
    head = (
        "Method", *values.values(), "in the mean", "everywhere", "as trained",
        "gap at most", "E[u₊]", "E[|u₋|]", "C", "ε", "TV at least", "u₊ and |G|",
    )  # fmt: skip
    above = (
        ("", 1), ("Value", len(values)), ("Lower bound on the truth", 3), ("Theorem 2", 1),
        ("Estimated", 6),
    )  # fmt: skip
    kind = "drawn anew from the simulator" if rows[0]["redrawn"] else "as recorded"
    note = (
        "Theorem 1 with estimated constants, first seed of each row, held-out decisions of test "
        f"patients, next hours {kind}. Below each method: λ, the density of u and the model that "
        "its policy was trained with, λ as a search chose it where there was one; in parentheses "
        "what is lent to a method that learned without. In the mean: model error |G| against u₊ by "
        "least squares; everywhere: at every held-out decision; as trained: with the λ of the "
        f"training. No value lies below {number(rows[0]['floor'], 0)}, so a lower bound says "
        "nothing. Gap: how far the optimum of the penalized reward can lie below the best policy "
        "with the same E[u₊], for rows that charge density. It assumes the undiscounted, unshaped "
        "objective, six hours of reward minus λu, and a policy that maximizes it. Trainings "
        "discount, and most rows shape the reward: about those the gap promises nothing. TV: what "
        "a classifier proves of the total variation between model and patients where u ≤ 0; the "
        "paper's metric cannot be estimated. Last: rank correlation of charge and model error."
    )
    title = f"What the theorems certify ({findings.cohort})"
    return Grid(title, head, tuple(lines), above, note=note)


def _say_used(row: Row) -> str:
    """Lambda, density and model of a training; what was lent in parentheses."""
    names = {"density": f"u: {DENSITIES[row['density']].words}", "model": f"in the {row['model']}"}
    said = [f"({x})" if row[f"{name}_lent"] else x for name, x in names.items()]
    weight = f"λ {row['weight']:g}" if row["weight"] > 0 else "charges no density"
    return "; ".join([weight, *said])


def _bound_cell(row: Row, kind: str) -> Cell:
    """A bound, and that it is empty, or its own lower limit where that is known."""
    bound, low = row[f"{kind}_bound"], row.get(f"{kind}_low")
    if bound is None or bound <= row["floor"]:
        return Cell(number(bound), "says nothing")
    return Cell(number(bound), "" if low is None else f"95 %: {number(low)}")


# ── subgroups and transfer ────────────────────────────────────────────────────────────────────────


def groups_grid(findings: Findings, metric: str) -> Grid:
    """Subgroups by methods before the surest judge: differences to the clinicians, paired."""
    rows = findings.groups.get("rows", ())
    judge = findings.truth or "twin"
    own = [x for x in rows if x["judge"] == judge]
    found = {(x["group"], x["method"], x["metric"]): x for x in own}
    methods = [x for x in GROUPED if any(y["method"] == x for y in own)]
    one = METRICS["reward" if metric == WORST else metric]
    lines = []
    for group in dict.fromkeys(x["group"] for x in own):
        base = found[group, CLINICIANS, metric]
        few = " (few)" if base["patients"] < 10 else ""
        cells = [
            Cell(f"{base['patients']}{few}"),
            Cell(number(one.scale * base["mean"], one.digits)),
        ]
        for method in methods:
            row = found.get((group, method, f"{metric}_minus_{CLINICIANS}"))
            cells.append(apart(row, one.digits, one.scale))
        lines.append((Cell(group), *cells))
    words = "Reward in the worst tenth of the episodes" if metric == WORST else one.words
    head = ("Start of the episode", "patients", "clinicians", *(name_of(x) for x in methods))
    above = (("", 2), ("value", 1), ("minus the clinicians'", len(methods)))
    note = (
        f"{JUDGES[judge].full.capitalize()}; all methods and judges are in the CSV. Bold where the "
        "95 % interval over the patients of the group excludes zero."
        + ("" if findings.truth else " Groups that only the truth tells are unknown here.")
    )
    title = f"{words} by subgroup ({findings.cohort})"
    return Grid(title, head, tuple(lines), above if methods else (), note=note)


def transfer_grid(findings: Findings) -> Grid:
    """Methods by shift: what they reach where patients or teams are different."""
    shifts, methods, found = _shifted(findings)
    theirs = [found.get((shift, CLINICIANS, "reward")) for shift in shifts]
    lines = [(Cell("Clinicians, the reward itself"), *map(valued, theirs))]
    for method in methods:
        rows = (found.get((shift, method, f"reward_minus_{CLINICIANS}")) for shift in shifts)
        lines.append((Cell(name_of(method)), *map(apart, rows)))
    words = "; ".join(f"{x}: {y}" for x, y in findings.transfer["shifts"])
    note = (
        "True patients of every shift, the same luck; bold as above. "
        f"{words[:1].upper()}{words[1:]}."
    )
    title = f"Trained here, judged elsewhere: reward minus the clinicians' ({findings.cohort})"
    return Grid(title, ("Method", *shifts), tuple(lines), note=note)


def charged_grid(findings: Findings) -> Grid:
    """Methods by shift: how often the guardian charges them there."""
    shifts, methods, found = _shifted(findings)
    lines = [
        (Cell(name_of(x)), *(_share(found.get((shift, x, "charged"))) for shift in shifts))
        for x in (*methods, CLINICIANS)
    ]
    note = (
        "Share of first decisions in new patients, by the KDE guardian of the training "
        "patients; the clinicians' row is what their teams set. A shift that costs reward "
        "while this share stays is one that the guardian does not see."
    )
    title = f"The guardian elsewhere: decisions that it charges (u > 0) ({findings.cohort})"
    return Grid(title, ("Method", *shifts), tuple(lines), note=note)


def _shifted(findings: Findings) -> tuple[list[str], list[str], dict[tuple[str, ...], Row]]:
    """The names of the shifts, the methods beside the clinicians, and what was found."""
    info = findings.transfer
    methods = dict.fromkeys(x["method"] for x in info["rows"] if x["method"] != CLINICIANS)
    found = {(x["shift"], x["method"], x["metric"]): x for x in info["rows"]}
    return [name for name, _ in info["shifts"]], ranked(list(methods)), found


def _share(row: Row | None) -> Cell:
    if row is None:
        return Cell()
    low, high = (100 * row[x] for x in ("low", "high"))
    return Cell(f"{number(100 * row['mean'], 0)} %", span(low, high, 0).replace("+", ""))


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────


def _regret_cell(each: Sequence[float] | None) -> Cell:
    """The mean over seeds, and below it the least and the largest."""
    if not each:
        return Cell()
    between = f"{number(min(each))} to {number(max(each))}" if len(each) > 1 else ""
    return Cell(number(mean_over(each)), between)


def _span_cell(row: Row, name: str) -> Cell:
    """A gap with its interval; strong where that excludes zero."""
    if row[name] is None:
        return Cell()
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return apart({"mean": row[name], "low": low, "high": high})
