"""The section "Evidence beyond the twin": its tables, its files, what it adds to the first screen.

Tables are for people: cells in words, few digits. Everything else, and every digit, is in the CSV
files that the page names below each table.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Final

from stepdown.report.evidence import (
    Findings,
    Info,
    Row,
    agreement,
    gap_rows,
    in_order,
    mean_over,
    ranked,
    say_measured,
    table_rows,
    word_of,
)
from stepdown.report.grids import (
    DASH,
    Cell,
    Grid,
    apart,
    number,
    signed,
    span,
    to_csv,
    to_html,
    to_markdown,
)
from stepdown.report.labels import (
    CLINICIANS,
    ESTIMATORS,
    GROUPED,
    JUDGES,
    LEARNED,
    METRICS,
    TRUE_JUDGES,
    name_of,
)
from stepdown.report.page import show, source_of

NAN = float("nan")
GAMMA = 1.5
WORST: Final = "reward_worst_tenth"
LEAD = (
    "Policies were trained and chosen with models of the records. Here others judge them: the "
    "true patients, a second twin of other patients, the records alone, the paper's theorems; in "
    "subgroups, in the worst tenth of the episodes, and where patients or teams are different. "
    "All of it is about policies learned from recorded hours in our setting."
)
UNKNOWN = (
    "There is no truth behind recordings. Unknown here, and said by no table: the reward that a "
    "policy would really reach, the model-exploitation gap, which twin ranks rightly, the regret "
    "of a choice, subgroups by what was hidden, and transfer to other patients."
)
NO_TRUTH = (
    "There is no truth behind these recordings: whether the twin ranks the methods rightly, and "
    "what a policy would really reach, is unknown."
)
ALSO = {"records": "bounds", "gap": "second"}  # more numbers of the same table


def evidence_section(findings: Sequence[Findings], pictures: Mapping[str, bytes]) -> str:
    """The body of the section: the first cohort in full, others folded."""
    if not findings:
        return ""
    parts = [f"<p>{html.escape(LEAD)}</p>"]
    if len(findings) > 1:
        parts.append(to_html(cohorts_grid(findings)) + source_of("tables/evidence/cohorts"))
    for number_, one in enumerate(findings):
        body = _cohort(one, pictures, first=number_ == 0)
        if number_ == 0:
            parts.append(body)
        else:
            title = html.escape(f"The cohort {one.cohort}")
            parts.append(f"<details><summary>{title}</summary>\n{body}</details>")
    return "\n".join(parts)


def _cohort(findings: Findings, pictures: Mapping[str, bytes], *, first: bool) -> str:
    """All tables of one cohort, each with its picture before it and its file below."""
    grids = _grids(findings)
    parts = [] if findings.truth else [f'<p class="warn">{html.escape(UNKNOWN)}</p>']
    parts += [f'<p class="muted">Not told. {html.escape(x)}</p>' for x in findings.refusals()]
    pairs = {"gap": "ranks", "records": "records alone", "choice": "regret",
             "groups": "subgroups", "transfer": "elsewhere"}  # fmt: skip
    kept = table_rows(findings)
    for name, tables in grids.items():
        picture = _name(pairs.get(name, ""), findings, first)
        if picture in pictures:
            parts.append(show({picture: pictures[picture]}, "evidence"))
        if name == "choice":
            parts += [f"<p>{html.escape(x)}</p>" for x in say_choice(findings)]
        parts += [to_html(grid) for grid in tables]
        parts.append(source_of(place_of(findings, name)))
        if ALSO.get(name) in kept:
            parts.append(source_of(place_of(findings, ALSO[name])))
    return "\n".join(parts)


def named_pictures(
    findings: Sequence[Findings], drawn: Sequence[Mapping[str, bytes]]
) -> dict[str, bytes]:
    """Pictures of all cohorts under names of their own; those of the first have none added."""
    return {
        _name(name, one, place == 0): png
        for place, (one, pictures) in enumerate(zip(findings, drawn, strict=True))
        for name, png in pictures.items()
    }


def _name(picture: str, findings: Findings, first: bool) -> str:
    return picture if first else f"{picture}, {findings.cohort}"


def _grids(findings: Findings) -> dict[str, list[Grid]]:
    """The tables that the findings allow, by the file of their numbers."""
    grids = {"gap": [gap_grid(findings)]}
    if findings.records.get("policies"):
        grids["records"] = [records_grid(findings)]
    if findings.choice.get("choices"):
        grids["choice"] = [choice_grid(findings)]
    if findings.certificate.get("rows"):
        grids["certificate"] = [certificate_grid(findings)]
    if findings.groups.get("rows"):
        grids["groups"] = [
            groups_grid(findings, metric) for metric in ("reward", WORST, "unsafe_hours")
        ]
    if findings.transfer:
        metrics = ("reward_minus_clinicians", "charged")
        grids["transfer"] = [transfer_grid(findings, metric) for metric in metrics]
    return grids


def evidence_files(findings: Sequence[Findings]) -> dict[str, bytes]:
    """Every table as CSV and as Markdown, by its path in the run."""
    made: dict[str, bytes] = {}
    for one in findings:
        grids = _grids(one)
        for name, rows in table_rows(one).items():
            place = place_of(one, name)
            made[f"{place}.csv"] = to_csv(rows)
            if name in grids:
                text = "\n".join(to_markdown(grid) for grid in grids[name])
                made[f"{place}.md"] = text.encode()
    if len(findings) > 1:
        grid = cohorts_grid(findings)
        rows = [[cell.text for cell in row] for row in grid.rows]
        table = [dict(zip(grid.head, row, strict=True)) for row in rows]
        made["tables/evidence/cohorts.csv"] = to_csv(table, grid.head)
        made["tables/evidence/cohorts.md"] = to_markdown(grid).encode()
    return made


def place_of(findings: Findings, name: str) -> str:
    """Where a table is kept, without its ending."""
    return f"tables/evidence/{findings.cohort}/{name}"


def cohorts_grid(findings: Sequence[Findings]) -> Grid:
    """Rank correlation of the twins with the truth, and every rule's regret, cohort by cohort."""
    head = ("", *(one.cohort for one in findings))
    lines = []
    for name, words in (("twin", "twin and truth, Spearman"), ("second_twin", "second twin")):
        found = [agreement(gap_rows(one), name) for one in findings]
        cells = [Cell() if x is None else Cell(signed(x)) for x in found]
        lines.append((Cell(words), *cells))
    told = [_regrets(one) for one in findings]
    for rule in dict.fromkeys(x for one in told for x in one):
        lines.append((Cell(f"regret: {rule}"), *(_regret_cell(one.get(rule)) for one in told)))
    note = "Regret: true reward of the best candidate minus that of the chosen one, over seeds."
    groups = {0: "Who ranks as the truth does", 2: "What a choice without the truth costs"}
    return Grid("Cohort by cohort", head, tuple(lines), groups=groups, note=note)


def _regrets(findings: Findings) -> dict[str, list[float]]:
    key = f"regret_{findings.truth}"
    choices = findings.choice.get("choices", ())
    return {x["rule"]: x[key] for x in choices if key in x}


def say_choice(findings: Findings) -> list[str]:
    """What the default rule chooses, and its measured regret or that nobody knows it."""
    choice = findings.choice
    for one in choice.get("choices", ()):
        if one["rule"] != choice["default"]:
            continue
        said = f"Without the truth, the default rule ({one['rule']}) chooses "
        said += say_chosen(one["chosen"])
        lost = one.get(f"regret_{findings.truth}")
        if lost is None:
            return [f"{said}; what that costs in truth is unknown."]
        seeds = f", {number(min(lost))} to {number(max(lost))} over seeds" if len(lost) > 1 else ""
        where = JUDGES[findings.truth or "patients"].full
        return [f"{said}: regret {number(mean_over(lost))} reward in {where}{seeds}."]
    return []


def say_records(findings: Findings) -> list[str]:
    """For how many learned methods the records alone say anything."""
    policies = findings.records.get("policies", ())
    learned = [x for x in policies if x["method"] in LEARNED]
    if not learned:
        return []
    told = [x for x in learned if x["informative"] == x["seeds"]]
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
    """Truth, twin and second twin side by side, ranks, and the model-exploitation gap."""
    rows = sorted(gap_rows(findings), key=_from_the_best)
    lines = []
    for row in rows:
        ranks = [Cell(str(row[f"rank_{x}"] or DASH)) for x in ("truth", "twin", "second_twin")]
        rewards = [Cell(number(_or_nan(row[x]))) for x in ("truth", "twin", "second_twin")]
        gaps = [_span_cell(row, x) for x in ("gap", "own_gap")]
        lines.append((Cell(name_of(row["method"])), *rewards, *ranks, *gaps))
    head = (
        "Method",
        *2 * ("truth", "twin", "second twin"),
        "twin minus truth",
        "beyond clinicians'",
    )
    above = (("", 1), ("Reward of 6 hours", 3), ("Rank among learned", 3), ("Gap", 2))
    note = (
        "Test patients, the same starts for all. Gap: what exists in the model alone, paired by "
        "start, with the 95 % interval over patients; bold where it excludes zero. Beyond the "
        "clinicians': less the gap of the recorded decisions, which no policy can be blamed for. "
        "The second twin is built differently and was fitted to select patients. "
        f"{_say_correlations(rows)}"
    )
    known = "Truth beside twin, and the model-exploitation gap" if findings.truth else "Two twins"
    title = f"{known} ({findings.cohort})"
    return Grid(title, head, tuple(lines), above, note=note)


def _from_the_best(row: Row) -> float:
    """By the truth, or else by the twin; who is unknown to both comes last."""
    return next((-row[x] for x in ("truth", "twin") if row[x] is not None), 99.0)


def _say_correlations(rows: Sequence[Row]) -> str:
    said = []
    for name, words in (("twin", "the twin"), ("second_twin", "the second twin")):
        found = agreement(rows, name)
        if found is not None:
            said.append(f"{words} {signed(found)}")
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
        cells = [_interval_cell(one["estimates"].get(x)) for x in ESTIMATORS]
        cells.append(_bounds_cell(one))
        if truth is not None:
            cells.append(Cell(number(_or_nan(findings.true_reward(one["method"])))))
        cells += [Cell(number(one["effective"], 1)), Cell(number(100 * one["seen"], 0))]
        cells += [Cell(number(100 * one[x], 0)) for x in ("unsupported", "largest")]
        word = word_of(one)
        part = f"{one['informative']} of {one['seeds']} seeds" if one["seeds"] > 1 else ""
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
    known = {"patients": 0, "decisions": 0, "too_short": 0, "calibration": {"ece": NAN}}
    known |= dict(records)
    short = known["too_short"]
    stays = f"{short} of them never have" if short else "all of them have"
    return (
        f"From {known['patients']} test patients and {known['decisions']:,} decisions; {stays} "
        "six recorded hours in a row. Episodes count as far as they are recorded. Recommended is "
        "the first column: the mean of FQE and WDR with all that either interval holds. "
        f"Γ: what WIS could be if hidden knowledge changed the odds of levels by up to {GAMMA:g}. "
        "Patients: effective sample size, of patients. Seen: share of the policy's hours that "
        "records hold. Never done: share of its choices that teams practically never make. "
        "Largest: weight that one patient carries in an hour, at most. Uninformative: too few "
        "followed the policy for any of these numbers to mean much. Behavior policy by "
        "cross-fitting over patients; expected calibration error "
        f"{number(known['calibration']['ece'], 3)}. MAGIC has the twin as its model."
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
        "level, the clinicians. Evidence comes from select patients, without any truth. Regret: "
        "the best candidate's true reward minus the chosen one's; below it the least and the "
        "largest over seeds. The best is known only afterwards and by the same episodes, which "
        "makes regrets a little too large."
    )
    title = f"Choosing without truth, and what it costs ({findings.cohort})"
    return Grid(title, head, tuple(lines), note=note)


def say_chosen(chosen: Sequence[str]) -> str:
    """Who was chosen in how many fields."""
    names = sorted(dict.fromkeys(chosen), key=lambda x: -list(chosen).count(x))
    if len(names) == 1:
        return name_of(names[0])
    return ", ".join(f"{name_of(x)} ({list(chosen).count(x)})" for x in names)


def certificate_grid(findings: Findings) -> Grid:
    """The theorems for every learned policy: constants, bounds, values."""
    rows = findings.certificate.get("rows", ())
    lines = []
    for row in in_order(rows):
        values = [Cell(number(_or_nan(row[f"value_in_{x}"]))) for x in ("truth", "twin", "model")]
        bounds = [
            Cell(number(_or_nan(row[f"{x}_bound"])), _say_bound(row, x))
            for x in ("in_mean", "everywhere", "as_trained")
        ]
        lines.append(
            (
                Cell(name_of(row["method"])),
                *values,
                *bounds,
                Cell(number(_or_nan(row["charged"]))),
                Cell(number(_or_nan(row["bonus"]))),
                Cell(number(_or_nan(row["in_mean_slope"]), 4)),
                Cell(number(_or_nan(row["in_mean_rest"]), 3)),
                Cell(number(_or_nan(row["tv_known"]))),
                Cell(number(_or_nan(row["rank_correlation"]))),
            )
        )
    head = (
        "Method", "truth", "twin", "ensemble", "in the mean", "everywhere", "as trained",
        "E[u₊]", "E[|u₋|]", "C", "ε", "TV at least", "u₊ and |G|",
    )  # fmt: skip
    above = (("", 1), ("Value", 3), ("Lower bound on the truth", 3), ("Estimated", 6))
    floor = rows[0]["floor"] if rows else NAN
    kind = "drawn anew from the simulator" if rows and rows[0]["redrawn"] else "as recorded"
    note = (
        "Theorem 1 with estimated constants, first seed of each row, held-out decisions of test "
        f"patients, next hours {kind}. In the mean: model error |G| against u₊ by least squares; "
        "everywhere: at every held-out decision; as trained: with the λ of the training. No value "
        f"lies below {number(floor, 0)}, so a lower bound says nothing. TV: what a classifier "
        "proves of the total variation between model and patients where u ≤ 0; the paper's metric "
        "cannot be estimated. Last: rank correlation of charge and model error."
    )
    title = f"What the theorems certify ({findings.cohort})"
    return Grid(title, head, tuple(lines), above, note=note)


def _say_bound(row: Row, kind: str) -> str:
    """That a bound is empty, or its own lower limit where that is known."""
    bound, low = row[f"{kind}_bound"], row.get(f"{kind}_low")
    if bound is None or bound <= row["floor"]:
        return "says nothing"
    return "" if low is None else f"95 %: {number(low)}"


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
            cells.append(Cell() if row is None else apart(row, one.digits, one.scale))
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


def transfer_grid(findings: Findings, metric: str) -> Grid:
    """Methods by shift: what they reach where patients or teams are different."""
    info = findings.transfer
    shifts = [name for name, _ in info["shifts"]]
    found = {(x["shift"], x["method"], x["metric"]): x for x in info["rows"]}
    methods = [x for x in dict.fromkeys(y["method"] for y in info["rows"]) if x != CLINICIANS]
    lines = []
    for method in [*ranked(methods), *[CLINICIANS] * (metric == "charged")]:
        cells = []
        for shift in shifts:
            row = found.get((shift, method, metric))
            if metric == "charged":
                cells.append(_share(row))
            else:
                cells.append(Cell() if row is None else apart(row))
        lines.append((Cell(name_of(method)), *cells))
    words = "; ".join(f"{x}: {y}" for x, y in info["shifts"])
    words = words[:1].upper() + words[1:]
    if metric != "charged":
        values = [found.get((shift, CLINICIANS, "reward")) for shift in shifts]
        lines.insert(0, (Cell("Clinicians, the reward itself"), *map(_value, values)))
    if metric == "charged":
        title = f"The guardian elsewhere: decisions that it charges (u > 0) ({findings.cohort})"
        note = (
            "Share of first decisions in new patients, by the KDE guardian of the training "
            "patients; the clinicians' row is what their teams set. A shift that costs reward "
            "while this share stays is one that the guardian does not see."
        )
    else:
        title = f"Trained here, judged elsewhere: reward minus the clinicians' ({findings.cohort})"
        note = f"True patients of every shift, the same luck; bold as above. {words}."
    return Grid(title, ("Method", *shifts), tuple(lines), note=note)


def _value(row: Row | None) -> Cell:
    return Cell() if row is None else Cell(number(row["mean"]), span(row["low"], row["high"]))


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


def _interval_cell(value: Info | None) -> Cell:
    """A value with its interval, which may have no limit."""
    if value is None or value["mean"] is None:
        return Cell()
    low, high = value["low"], value["high"]
    between = "no limit" if low is None or high is None else span(low, high)
    return Cell(number(value["mean"]), between)


def _or_nan(value: float | None) -> float:
    """None as NaN, which is shown as a dash."""
    return NAN if value is None else float(value)
