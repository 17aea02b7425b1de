"""Tables of subgroups and of transfer: who is helped, and what holds elsewhere."""

from stepdown.report.comparison import CLINICIANS, OURS, WORDS, name_of
from stepdown.report.evidence_cells import apart_cell, ranked
from stepdown.report.evidence_parts import Findings, Row
from stepdown.report.grids import Cell, Grid, number, span

GROUPED = ("bc", "mbpo", "mopo", "svr", OURS, "disagreement_shaped", "hold")


def groups_grid(findings: Findings, metric: str) -> Grid:
    """Subgroups by methods before the surest judge: differences to the clinicians, paired."""
    rows = (findings.groups or {}).get("rows", ())
    judge = findings.truth or "twin"
    own = [x for x in rows if x["judge"] == judge]
    found = {(x["group"], x["method"], x["metric"]): x for x in own}
    methods = [x for x in GROUPED if any(y["method"] == x for y in own)]
    scale, digits = (100.0, 1) if metric == "unsafe_hours" else (1.0, 2)
    lines = []
    for group in dict.fromkeys(x["group"] for x in own):
        base = found[group, CLINICIANS, metric]
        few = " (few)" if base["patients"] < 10 else ""
        cells = [Cell(f"{base['patients']}{few}"), Cell(number(scale * base["mean"], digits))]
        for method in methods:
            row = found.get((group, method, f"{metric}_minus_{CLINICIANS}"))
            cells.append(apart_cell(row, scale, digits))
        lines.append((Cell(group), *cells))
    words = {"reward": "Reward of 6 hours", "unsafe_hours": "Unsafe hours, %",
             "reward_worst_tenth": "Reward in the worst tenth of the episodes"}[metric]  # fmt: skip
    head = ("Start of the episode", "patients", "clinicians", *(name_of(x) for x in methods))
    above = (("", 2), ("value", 1), ("minus the clinicians'", len(methods)))
    note = (
        f"{WORDS[judge].capitalize()}; all methods and judges are in the CSV. Bold where the 95 % "
        "interval over the patients of the group excludes zero."
        + ("" if findings.truth else " Groups that only the truth tells are unknown here.")
    )
    title = f"{words} by subgroup ({findings.cohort})"
    return Grid(title, head, tuple(lines), above if methods else (), note=note)


def transfer_grid(findings: Findings, metric: str) -> Grid:
    """Methods by shift: what they reach where patients or teams are different."""
    info = findings.transfer or {}
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
                cells.append(apart_cell(row, 1.0, 2))
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
