"""The section "Evidence beyond the twin", its files, and what it adds to the first screen."""

import html
from collections.abc import Mapping, Sequence

from stepdown.report.comparison import LEARNED, WORDS, name_of, to_csv
from stepdown.report.evidence_cells import mean_of, regret_cell
from stepdown.report.evidence_groups import groups_grid, transfer_grid
from stepdown.report.evidence_parts import Findings, agreement, gap_rows, table_rows
from stepdown.report.evidence_tables import (
    certificate_grid,
    choice_grid,
    gap_grid,
    records_grid,
    say_chosen,
)
from stepdown.report.grids import Cell, Grid, number, signed, to_html, to_markdown
from stepdown.report.measured_regret import say_measured
from stepdown.report.pictures import show

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
        parts.append(to_html(cohorts_grid(findings)) + _source("tables/evidence/cohorts"))
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
        parts.append(_source(place_of(findings, name)))
        if ALSO.get(name) in kept:
            parts.append(_source(place_of(findings, ALSO[name])))
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
    if (findings.records or {}).get("policies"):
        grids["records"] = [records_grid(findings)]
    if (findings.choice or {}).get("choices"):
        grids["choice"] = [choice_grid(findings)]
    if (findings.certificate or {}).get("rows"):
        grids["certificate"] = [certificate_grid(findings)]
    if (findings.groups or {}).get("rows"):
        metrics = ("reward", "reward_worst_tenth", "unsafe_hours")
        grids["groups"] = [groups_grid(findings, metric) for metric in metrics]
    if findings.transfer is not None:
        metrics = ("reward_minus_clinicians", "charged")
        grids["transfer"] = [transfer_grid(findings, metric) for metric in metrics]
    return grids


def evidence_files(findings: Sequence[Findings]) -> dict[str, bytes]:
    """Every table as CSV and as Markdown, by its path in the run."""
    made: dict[str, bytes] = {}
    for one in findings:
        grids = _grids(one)
        for name, rows in table_rows(one).items():
            place, columns = place_of(one, name), list(dict.fromkeys(x for y in rows for x in y))
            filled = [{x: _empty(row.get(x)) for x in columns} for row in rows]
            made[f"{place}.csv"] = to_csv(filled, columns)
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
        lines.append((Cell(f"regret: {rule}"), *(regret_cell(one.get(rule)) for one in told)))
    note = "Regret: true reward of the best candidate minus that of the chosen one, over seeds."
    groups = {0: "Who ranks as the truth does", 2: "What a choice without the truth costs"}
    return Grid("Cohort by cohort", head, tuple(lines), groups=groups, note=note)


def _regrets(findings: Findings) -> dict[str, list[float]]:
    key = f"regret_{findings.truth}"
    choices = (findings.choice or {}).get("choices", ())
    return {x["rule"]: x[key] for x in choices if key in x}


def say_choice(findings: Findings) -> list[str]:
    """What the default rule chooses, and its measured regret or that nobody knows it."""
    choice = findings.choice or {}
    for one in choice.get("choices", ()):
        if one["rule"] != choice["default"]:
            continue
        said = f"Without the truth, the default rule ({one['rule']}) chooses "
        said += say_chosen(one["chosen"])
        lost = one.get(f"regret_{findings.truth}")
        if lost is None:
            return [f"{said}; what that costs in truth is unknown."]
        seeds = f", {number(min(lost))} to {number(max(lost))} over seeds" if len(lost) > 1 else ""
        where = WORDS[findings.truth or "patients"]
        return [f"{said}: regret {number(mean_of(lost))} reward in {where}{seeds}."]
    return []


def say_records(findings: Findings) -> list[str]:
    """For how many learned methods the records alone say anything."""
    policies = (findings.records or {}).get("policies", ())
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


def _empty(value: object) -> object:
    return "" if value is None else value


def _source(path: str) -> str:
    return f'<p class="muted">Numbers: <code>{html.escape(path)}.csv</code></p>\n'
