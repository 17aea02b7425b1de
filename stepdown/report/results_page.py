"""The results of a run as one page: verdicts first, then tables, pictures, definitions, origin.

The page is one file without network. Every table names the CSV that holds its numbers, every
verdict is computed from the same numbers.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepdown.evaluation.compare import COLUMNS
from stepdown.report.comparison import (
    Comparison,
    across_rows,
    drop_rows,
    judges_of,
    penalty_rows,
    same_question,
    time_rows,
)
from stepdown.report.comparison_tables import (
    Trials,
    across_grid,
    changes_grid,
    claims_grid,
    cohorts_grid,
    drop_grid,
    heading,
    penalty_grid,
    safety_grid,
    search_grid,
    time_grid,
)
from stepdown.report.evidence import Findings
from stepdown.report.evidence_tables import evidence_files, evidence_section, first_screen
from stepdown.report.grids import Grid, to_csv, to_html, to_markdown
from stepdown.report.labels import DATA, METRICS, OURS, SETTINGS, metrics_of
from stepdown.report.model_tables import (
    Summaries,
    Windows,
    settings_grid,
    settings_rows,
    twin_grid,
    twin_rows,
)
from stepdown.report.page import (
    BANNER,
    Section,
    make_page,
    provenance_section,
    show,
    source_of,
)
from stepdown.report.paper_numbers import CAVEAT
from stepdown.report.summary import lead_of, say_across, say_comparisons, summary_html

STYLE = """
body { max-width: 80rem; } h1 + .lead { margin-top: .3rem; }
#summary h2 { display: none; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: .75rem; }
.card { background: var(--soft); border-left: .3rem solid var(--line); border-radius: .4rem;
  padding: .1rem .9rem; }
.warn { background: var(--warn); border-left: .3rem solid var(--bad); border-radius: .4rem;
  padding: .5rem .9rem; margin: .6rem 0 1rem; }
.headline { font-size: 1.1rem; font-weight: 600; margin: .6rem 0 1rem; padding-left: 1.2rem; }
.big { font-size: 1.7rem; font-weight: 700; } .card ul { margin: .2rem 0 .8rem; padding-left: 1rem;
  color: var(--muted); font-size: .92rem; }
.card h3 { margin: .6rem 0 .2rem; font-size: 1rem; } .card p { margin: .3rem 0 .6rem; }
.card.good { border-color: var(--good); } .card.bad { border-color: var(--bad); }
nav { font-size: .92rem; margin: 1rem 0 0; } nav a { margin-right: .9rem; color: inherit;
  white-space: nowrap; }
.names table { font-size: .8rem; } .names th, .names td { padding: .22rem .42rem; }
.names td small, .names th small { display: block; color: var(--muted); font-size: .85em; }
.names th[scope=row] { position: sticky; left: 0; background: var(--paper); font-weight: 400; }
.names th[scope=col]:first-child { position: sticky; left: 0; background: var(--paper); }
.names th[scope=col] { white-space: normal; }
.names th.above { text-align: center; border-bottom: 2px solid var(--line); }
.names tr.group span { position: sticky; left: .42rem; }
details .names th[scope=row], details .names th[scope=col]:first-child { background: var(--soft); }
figure { margin: 1.5rem 0; } figure img { width: auto; max-width: 100%; }
figcaption { color: var(--muted); font-size: .92rem; }
h3 { margin: 1.6rem 0 .3rem; }
@media (max-width: 40rem) { figure img { width: 52rem; max-width: none; }
  .names table { font-size: .74rem; }
  .names th[scope=row] { max-width: 7.5rem; } }
"""
DEFINITIONS = {
    **dict(METRICS[name].definition for x in ("safety", "changes") for name in metrics_of(x)),
    "Twin": "a learned model of the next hour, fitted on train patients. It judges from the same "
    "starts as the truth, with the same luck for every method.",
    "Test and fresh patients": "the simulator itself: patients of the same cohort that nothing was "
    "fitted to or chosen on, and newly drawn ones. With recordings alone there is no such judge.",
    "Interval": "middle 95 % of 2,000 bootstrap draws of whole patients, seeds averaged; "
    "differences are paired by start and seed. ± is the sd over training seeds.",
    "Room": "reward between the clinicians (0 %) and a two-hour look-ahead on the true model "
    "(100 %), which nobody has at a bedside.",
    "Shaped": "the reward while learning also charges jumps (λ₁) and may reward weaning (λ₂).",
    "Disagreement": "a penalty by how far the ensemble's members lie apart, instead of by density.",
}


@dataclass(frozen=True)
class Results:
    """All that the page shows; the first comparison is the main one."""

    title: str
    comparisons: Sequence[Comparison]
    about: Mapping[str, Any]  # artifacts.provenance, with a seed
    twins: Summaries = field(default_factory=dict)
    windows: Windows = field(default_factory=dict)
    pictures: Mapping[str, bytes] = field(default_factory=dict)  # PNG by name, see page.CAPTIONS
    sections: Sequence[Section] = ()  # more chapters, before the definitions
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds
    banner: str = BANNER
    evidence: Sequence[Findings] = ()  # of `stepdown judge`, one for each cohort
    searches: Trials = ()  # before the trainings

    def __post_init__(self):
        if not self.comparisons:
            raise ValueError("expected at least one comparison, got none. Train and judge first.")

    @property
    def main(self) -> Comparison:
        """The comparison of the first screen."""
        return self.comparisons[0]

    @property
    def pairs(self) -> list[tuple[Comparison, Comparison]]:
        """Noiseless and noisy comparisons that belong together."""
        found = {(one.cohort, one.setting, one.sampled, one.data): one for one in self.comparisons}
        return [
            (one, found[*key[:3], "noisy"])
            for key, one in found.items()
            if key[3] == "noiseless" and (*key[:3], "noisy") in found
        ]

    def place(self, one: Comparison) -> str:
        """Where a comparison's table is kept; other cohorts than the first have a folder."""
        folder = "" if one.cohort == self.main.cohort else f"{one.cohort}/"
        return f"tables/{folder}{one.name}"


def make_tables(results: Results) -> dict[str, bytes]:
    """Every table as tidy CSV and as Markdown, by its path in the run."""
    made: dict[str, bytes] = {}

    def add(path: str, table: bytes, *grids: Grid) -> None:
        made[f"{path}.csv"] = table
        made[f"{path}.md"] = "\n".join(to_markdown(grid) for grid in grids).encode()

    for one in results.comparisons:
        add(results.place(one), to_csv(one.rows), safety_grid(one), changes_grid(one))
    if grids := _cohorts(results):
        add("tables/cohorts", to_csv(across_rows(results.comparisons)), *grids)
    recorded = _recorded(results)
    if recorded is not None:
        add("tables/penalty", to_csv(penalty_rows(recorded)), penalty_grid(recorded))
    for pair in results.pairs:
        path = results.place(pair[1]).replace("noisy", "drop")
        add(path, to_csv(drop_rows(*pair), COLUMNS), drop_grid(*pair))
    for name, rows, grid in (
        ("time", time_rows(results.comparisons), lambda: time_grid(results.comparisons)),
        ("twin", twin_rows(results.twins), lambda: twin_grid(results.twins)),
        ("settings", settings_rows(results.windows), lambda: settings_grid(results.windows)),
        ("search", results.searches, lambda: search_grid(results.searches)),
    ):
        if rows:
            add(f"tables/{name}", to_csv(rows), grid())
    return made | evidence_files(results.evidence)


def results_page(results: Results) -> str:
    """The whole page."""
    chapters = [
        Section("Promise and truth", show(results.pictures, "truth"), "truth"),
        Section(
            "Evidence beyond the twin",
            evidence_section(results.evidence, results.pictures),
            "evidence",
        ),
        Section("The comparison", _comparison(results), "comparison"),
        Section("Episodes", show(results.pictures, "scores"), "scores"),
        Section("At the bedside", show(results.pictures, "bedside"), "bedside"),
        Section("Learning", _learning(results), "learning"),
        Section("The twin", _twin(results), "twin"),
        Section("The guardian", show(results.pictures, "guardian"), "guardian"),
        Section("The records", show(results.pictures, "records"), "records"),
        *results.sections,
        Section("More pictures", show(results.pictures, "more"), "more"),
        Section("Definitions", _definitions(), "definitions"),
    ]
    kept = [*(one for one in chapters if one.body.strip()), _origin(results)]
    summary = Section("Summary", _summary(results, kept), "summary")
    return make_page(results.title, _lead(results), [summary, *kept], results.banner, style=STYLE)


def _lead(results: Results) -> str:
    main = results.main
    words = f"{DATA[main.data]} of the cohort {main.cohort}, {SETTINGS[main.setting]}"
    return f"Learned from {words}: {lead_of(main)}"


def _summary(results: Results, chapters: Sequence[Section]) -> str:
    main = results.main
    links = " ".join(
        f'<a href="#{x.anchor}">{html.escape(x.title)}</a>' for x in chapters if x.anchor
    )
    beside = [
        one
        for one in results.comparisons
        if (one.cohort, one.setting, one.sampled) == (main.cohort, main.setting, main.sampled)
    ]
    caveat = f'<p class="muted">{html.escape(CAVEAT)}</p>'
    first = say_across(results.comparisons)
    more = [*say_comparisons(results.comparisons), *first_screen(results.evidence)]
    claims = to_html(claims_grid(beside))
    return f"{summary_html(main, first, more)}<nav>{links}</nav>\n{claims}{caveat}"


def _comparison(results: Results) -> str:
    parts = [_tables(results, results.main)]
    for one in results.comparisons[1:]:
        title = html.escape(heading(one).capitalize())
        parts.append(f"<details><summary>{title}</summary>\n{_tables(results, one)}</details>")
    parts += [to_html(grid) for grid in _cohorts(results)]
    if len(parts) > len(results.comparisons):
        parts.append(source_of("tables/cohorts"))
    for pair in results.pairs:
        path = results.place(pair[1]).replace("noisy", "drop")
        parts.append(to_html(drop_grid(*pair)) + source_of(path))
    recorded = _recorded(results)
    if recorded is not None:
        parts.append(to_html(penalty_grid(recorded)) + source_of("tables/penalty"))
    return "\n".join(parts)


def _cohorts(results: Results) -> list[Grid]:
    """All cohorts together, then one by one, before every judge but the twin; one has none."""
    cohorts = same_question(results.comparisons)
    judges = judges_of(cohorts)
    kinds = (across_grid, cohorts_grid) if len(cohorts) > 1 else ()
    return [make(cohorts, judge) for make in kinds for judge in judges[1:] or judges]


def _tables(results: Results, one: Comparison) -> str:
    return to_html(safety_grid(one)) + to_html(changes_grid(one)) + source_of(results.place(one))


def _recorded(results: Results) -> Comparison | None:
    """The comparison of the table of penalty types."""
    recorded = [x for x in results.comparisons if x.data == "recorded" and OURS in x.methods()]
    return recorded[0] if recorded else None


def _learning(results: Results) -> str:
    timed = [x for x in results.comparisons if x.seconds]
    table = to_html(time_grid(timed)) + source_of("tables/time") if timed else ""
    if results.searches:
        table += to_html(search_grid(results.searches)) + source_of("tables/search")
    return show(results.pictures, "learning") + table


def _twin(results: Results) -> str:
    parts = []
    if results.twins:
        parts.append(to_html(twin_grid(results.twins)) + source_of("tables/twin"))
    if results.windows:
        parts.append(to_html(settings_grid(results.windows)) + source_of("tables/settings"))
    return "\n".join([*parts, show(results.pictures, "twin")])


def _definitions() -> str:
    lines = (
        f"<li><strong>{html.escape(name)}</strong>: {html.escape(words)}</li>"
        for name, words in DEFINITIONS.items()
    )
    return f"<ul>{''.join(lines)}</ul>"


def _origin(results: Results) -> Section:
    """Provenance, and how long each stage took."""
    known = provenance_section(results.about)
    rows = "".join(
        f'<tr><th>{html.escape(name)}</th><td class="number">{seconds:,.1f}</td></tr>'
        for name, seconds in results.stages.items()
    )
    total = f'<tr><th>all</th><td class="number">{sum(results.stages.values()):,.1f}</td></tr>'
    table = f"<h3>Time of each stage, s</h3><table>{rows}{total}</table>" if rows else ""
    return Section(known.title, known.body + table, "origin")
