"""Tables of the evidence beyond the twin, for people: cells in words, few digits.

Everything else, and every digit, is in the CSV files that the page names below each table.
"""

from collections.abc import Sequence

from stepdown.report.comparison import WORDS, name_of
from stepdown.report.evidence_cells import (
    NAN,
    first_known,
    in_order,
    interval_cell,
    mean_of,
    or_nan,
    rank_cell,
    regret_cell,
    span_cell,
)
from stepdown.report.evidence_parts import (
    TRUE_JUDGES,
    Findings,
    Info,
    Row,
    agreement,
    gap_rows,
    word_of,
)
from stepdown.report.grids import Cell, Grid, number, signed, span

GAMMA = 1.5
ESTIMATORS = {"joint": "FQE and WDR", "wis": "WIS", "fqe": "FQE", "wdr": "WDR", "magic": "MAGIC"}


def gap_grid(findings: Findings) -> Grid:
    """Truth, twin and second twin side by side, ranks, and the model-exploitation gap."""
    rows = gap_rows(findings)
    rows = sorted(rows, key=lambda x: -first_known(x["truth"], x["twin"], default=-99.0))
    lines = []
    for row in rows:
        ranks = [rank_cell(row[f"rank_{x}"]) for x in ("truth", "twin", "second_twin")]
        rewards = [Cell(number(or_nan(row[x]))) for x in ("truth", "twin", "second_twin")]
        gaps = [span_cell(row, x) for x in ("gap", "own_gap")]
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
    records = findings.records or {}
    policies = records.get("policies", ())
    truth = findings.truth
    head = (
        "Method", *ESTIMATORS.values(), f"Γ = {GAMMA:g}", *["truth"] * (truth is not None),
        "patients", "seen, %", "never done, %", "largest, %", "word",
    )  # fmt: skip
    lines = []
    for one in in_order(policies):
        cells = [interval_cell(one["estimates"].get(x)) for x in ESTIMATORS]
        cells.append(_bounds_cell(one))
        if truth is not None:
            cells.append(Cell(number(or_nan(findings.true_reward(one["method"])))))
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
        + ("" if truth is None else f" Truth: {WORDS[truth]}.")
    )


def choice_grid(findings: Findings) -> Grid:
    """What each rule would choose without the truth, and what that loses."""
    choice = findings.choice or {}
    judges = [x for x in TRUE_JUDGES if any(f"regret_{x}" in y for y in choice["choices"])]
    lines = []
    for one in sorted(choice["choices"], key=lambda x: mean_of(x.get(f"regret_{judges[0]}"))
                      if judges else 0.0):  # fmt: skip
        default = one["rule"] == choice["default"]
        name = Cell(one["rule"], "the default" if default else "", default)
        cells = [regret_cell(one.get(f"regret_{x}")) for x in judges]
        lines.append((name, Cell(say_chosen(one["chosen"])), *cells))
    head = ("Rule", "chooses", *(f"regret in {WORDS[x]}" for x in judges))
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
    rows = (findings.certificate or {}).get("rows", ())
    lines = []
    for row in in_order(rows):
        values = [Cell(number(or_nan(row[f"value_in_{x}"]))) for x in ("truth", "twin", "model")]
        bounds = [
            Cell(number(or_nan(row[f"{x}_bound"])), _say_bound(row, x))
            for x in ("in_mean", "everywhere", "as_trained")
        ]
        lines.append(
            (
                Cell(name_of(row["method"])),
                *values,
                *bounds,
                Cell(number(or_nan(row["charged"]))),
                Cell(number(or_nan(row["bonus"]))),
                Cell(number(or_nan(row["in_mean_slope"]), 4)),
                Cell(number(or_nan(row["in_mean_rest"]), 3)),
                Cell(number(or_nan(row["tv_known"]))),
                Cell(number(or_nan(row["rank_correlation"]))),
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
