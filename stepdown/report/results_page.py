"""The results of a run as one page: verdicts first, then tables, pictures, definitions, origin.

The page is one file without network. Every table names the CSV that holds its numbers, every
verdict is computed from the same numbers. The first screen says how CORMPO does against the best
baseline before every judge, and who agrees: sentences are those of `evaluation.compare.verdicts`,
cards and headline show the same numbers for a quick look.
"""

import html
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepdown.evaluation.compare import (
    COLUMNS,
    against_best,
    difference,
    estimate,
    over_cohorts,
    ranking_agreement,
    resample,
    values_of,
)
from stepdown.handover import Judged
from stepdown.report.comparison import (
    ALL,
    PAIRED,
    Comparison,
    Margin,
    Trials,
    across_grid,
    across_rows,
    changes_grid,
    claim_rows,
    claims_grid,
    cohorts_grid,
    compared_rows,
    detectable_grid,
    drop_grid,
    drop_rows,
    heading,
    judges_of,
    margin_of,
    mean_of,
    pair_rows,
    paired,
    pairs_grid,
    penalty_grid,
    penalty_rows,
    safety_grid,
    same_question,
    search_grid,
    time_grid,
    time_rows,
    word_of,
)
from stepdown.report.evidence import (
    NO_TRUTH,
    Findings,
    evidence_section,
    evidence_tables,
    first_screen,
)
from stepdown.report.grids import chance, signed, span
from stepdown.report.labels import (
    BASELINES,
    CLINICIANS,
    DATA,
    DEFAULT,
    JUDGES,
    LEARNED,
    METRICS,
    OURS,
    PARTS,
    SETTINGS,
    TOLD,
    TRUE_JUDGES,
    TWIN_JUDGES,
    metrics_of,
    name_of,
)
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
    Table,
    files_of,
    make_page,
    provenance_section,
    show,
)
from stepdown.report.paper_numbers import CAVEAT

STYLE = """
body { max-width: 80rem; } h1 + .lead { margin-top: .3rem; }
#summary h2 { display: none; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); gap: .75rem; }
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
    "starts as the truth, with the same luck for every method. Ours is the better twin; the "
    "paper's, its Transformer with dropout, judges where it is asked to (--judge).",
    "Test and fresh patients": "the simulator itself: patients of the same cohort that nothing was "
    "fitted to or chosen on, and newly drawn ones. With recordings alone there is no such judge.",
    "Interval": "middle 95 % of 2,000 bootstrap draws of whole patients, seeds averaged; "
    "differences are paired by start and seed. ± is the sd over training seeds.",
    "Room": "reward between the clinicians (0 %) and a two-hour look-ahead on the true model "
    "(100 %), which nobody has at a bedside.",
    "Levels": "policies are judged by their most probable level; tables of drawn levels, by the "
    "policies' own probabilities, say so.",
    "Shaped": "the reward while learning also charges jumps (λ₁) and may reward weaning (λ₂).",
    "Disagreement": "a penalty by how far the ensemble's members lie apart, instead of by density.",
}

OF_TRUTH = ("Test and fresh patients", "Room")  # that recordings do not have


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
    took: str = ""  # how long the run took, leg by leg, in words
    banner: str = BANNER
    evidence: Sequence[Findings] = ()  # of `stepdown judge`, one for each cohort
    searches: Trials = ()  # before the trainings
    sampled: Sequence[Comparison] = ()  # the same rows, judged by drawn levels
    recorded: Sequence[Section] = ()  # of patients without a truth: protocol, what is missing
    allowed: str = ""  # what the protocol lets be said about them

    def __post_init__(self):
        if not self.comparisons:
            raise ValueError("expected at least one comparison, got none. Train and judge first.")

    @property
    def main(self) -> Comparison:
        """The comparison of the first screen."""
        return self.comparisons[0]

    def place(self, one: Comparison) -> str:
        """Where a comparison's table is kept; other cohorts than the first have a folder."""
        folder = "" if one.cohort == self.main.cohort else f"{one.cohort}/"
        return f"tables/{folder}{one.name}"


def _kind(one: Comparison) -> tuple[str, str]:
    """What comparisons of several data sets share."""
    return one.cohort, one.setting


# ── tables ────────────────────────────────────────────────────────────────────────────────────────


def make_tables(results: Results) -> dict[str, bytes]:
    """Every table as tidy CSV and as Markdown, by its path in the run."""
    kinds = (_each, _pairs, _claims, _cohorts, _further, _learned, _models)
    own = [table for tables in kinds for table in tables(results)]
    return files_of([*own, *evidence_tables(results.evidence)])


def _each(results: Results) -> list[Table]:
    """One for every comparison, by the most probable levels and, where judged so, by drawn ones."""
    return [
        Table(results.place(one), one.rows, [safety_grid(one), changes_grid(one)])
        for one in (*results.comparisons, *results.sampled)
    ]


def _pairs(results: Results) -> list[Table]:
    """Every two rows of the main comparison before the surest judge."""
    main = results.main
    rows = pair_rows(main, main.surest)
    grids = [pairs_grid(main)] if len(compared_rows(main)) <= PAIRED else []
    return [Table("tables/pairs", rows, grids)] if rows else []


def _claims(results: Results) -> list[Table]:
    """The paper's claims on the patients of the main comparison, a table for each setting."""
    settings = dict.fromkeys((results.main.setting, *(x.setting for x in results.comparisons)))
    tables = []
    for setting in settings:
        own = [x for x in results.comparisons if _kind(x) == (results.main.cohort, setting)]
        if rows := claim_rows(own):
            name = "claims" if setting == "ours" else f"claims-{setting}"
            tables.append(Table(f"tables/{name}", rows, [claims_grid(own)]))
    return tables


def _cohorts(results: Results) -> list[Table]:
    """All cohorts together, then one by one, before every judge but a twin; one has none."""
    cohorts = same_question(results.comparisons)
    if len(cohorts) < 2:
        return []
    asked = judges_of(cohorts)
    judges = [x for x in asked if x in TRUE_JUDGES] or asked
    kinds = (detectable_grid, across_grid, cohorts_grid)
    grids = [make(cohorts, judge) for make in kinds for judge in judges]
    return [Table("tables/cohorts", across_rows(cohorts), grids)]


def _further(results: Results) -> list[Table]:
    """What noise costs, and the paper's table of penalty types."""
    tables = [
        Table(
            results.place(noisy).replace("noisy", "drop"),
            drop_rows(noisy),
            [drop_grid(noisy)],
            COLUMNS,
        )
        for noisy in results.comparisons
        if noisy.without_noise
    ]
    recorded = [x for x in results.comparisons if x.data == "recorded" and OURS in x.methods()]
    for one in recorded[:1]:
        tables.append(Table("tables/penalty", penalty_rows(one), [penalty_grid(one)]))
    return tables


def _learned(results: Results) -> list[Table]:
    """How long trainings took, and what was searched before them."""
    timed, trials = [x for x in results.comparisons if x.seconds], results.searches
    tables = [Table("tables/time", time_rows(timed), [time_grid(timed)])] if timed else []
    return [*tables, Table("tables/search", trials, [search_grid(trials)])] if trials else tables


def _models(results: Results) -> list[Table]:
    """How well twins forecast, and with other windows."""
    twins, windows = results.twins, results.windows
    tables = [Table("tables/twin", twin_rows(twins), [twin_grid(twins)])] if twins else []
    if windows:
        tables.append(Table("tables/settings", settings_rows(windows), [settings_grid(windows)]))
    return tables


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def results_page(results: Results) -> str:
    """The whole page."""
    pictures = results.pictures
    learned = "".join(part for table in _learned(results) for part in table.html)
    twins = ["".join(table.html) for table in _models(results)]
    evidence = evidence_section(results.evidence, pictures)
    chapters = [
        *results.recorded,
        Section("Promise and truth", show(pictures, "truth"), "truth"),
        Section("Evidence beyond the twin", evidence, "evidence"),
        Section("The comparison", _comparison(results), "comparison"),
        Section("Episodes", show(pictures, "scores"), "scores"),
        Section("At the bedside", show(pictures, "bedside"), "bedside"),
        Section("Learning", show(pictures, "learning") + learned, "learning"),
        Section("The twin", "\n".join([*twins, show(pictures, "twin")]), "twin"),
        Section("The guardian", show(pictures, "guardian"), "guardian"),
        Section("The records", show(pictures, "records"), "records"),
        *results.sections,
        Section("More pictures", show(pictures, "more"), "more"),
        Section("Definitions", _definitions(bool(results.recorded)), "definitions"),
    ]
    kept = [*(one for one in chapters if one.body.strip()), _origin(results)]
    main = results.main
    words = f"{DATA[main.data]} of the cohort {main.cohort}, {SETTINGS[main.setting]}"
    lead = f"Learned from {words}: {lead_of(main)}"
    sections = [Section("Summary", _summary(results, kept), "summary"), *kept]
    return make_page(results.title, lead, sections, results.banner, style=STYLE)


def _summary(results: Results, chapters: Sequence[Section]) -> str:
    links = " ".join(
        f'<a href="#{x.anchor}">{html.escape(x.title)}</a>' for x in chapters if x.anchor
    )
    caveat = f'<p class="muted">{html.escape(CAVEAT)}</p>'
    first = say_across(results.comparisons)
    more = [*say_comparisons(results.comparisons), *first_screen(results.evidence)]
    claims = "".join(part for table in _claims(results) for part in table.html)
    told = "".join(f"<p>{html.escape(x)}</p>" for x in say_clinicians(results.main))
    picture = show(results.pictures, "first")
    words = f"{NO_TRUTH} {results.allowed}".strip()
    warned = f'<p class="warn">{html.escape(words)}</p>' if results.recorded else ""
    summary = summary_html(results.main, first, [x for x in more if x != NO_TRUTH])
    return f"{warned}{picture}{told}{summary}<nav>{links}</nav>\n{claims}{caveat}"


def _comparison(results: Results) -> str:
    main, *others = ("".join(table.html) for table in _each(results))
    parts = [main, *("".join(table.html) for table in _pairs(results))]
    more = (*results.comparisons[1:], *results.sampled)
    for one, tables in zip(more, others, strict=True):
        title = html.escape(heading(one).capitalize())
        parts.append(f"<details><summary>{title}</summary>\n{tables}</details>")
    parts += [part for table in _cohorts(results) for part in table.html]
    parts += ["".join(table.html) for table in _further(results)]
    return "\n".join(parts)


def _definitions(recorded: bool) -> str:
    lines = (
        f"<li><strong>{html.escape(name)}</strong>: {html.escape(words)}</li>"
        for name, words in DEFINITIONS.items()
        if not recorded or name not in OF_TRUTH
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
    took = f"<p>Up to this page the run took {html.escape(results.took)}</p>"
    return Section(known.title, known.body + took * bool(results.took) + table, "origin")


# ── the first screen ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Verdict:
    """A method minus the rival with the best reward before one judge."""

    judge: str
    reward: Margin
    others: dict[str, Margin]  # to the same baseline

    @property
    def word(self) -> str:
        """Ahead, behind, or not to be told."""
        return _word(self.reward.found)


def find_verdicts(
    comparison: Comparison, rivals: Sequence[str] = BASELINES, method: str = OURS
) -> list[Verdict]:
    """One verdict for every judge that has seen the method, by default CORMPO, and a rival."""
    found = []
    for judge in comparison.judges:
        reward = margin_of(comparison, judge, "reward", rivals, method)
        if reward is not None:
            others: dict[str, Margin] = {
                metric: one
                for metric in METRICS
                if metric != "reward"
                if (one := margin_of(comparison, judge, metric, [reward.best], method))
                and np.isfinite(one.found["mean"])  # a score may not be defined (metrics.py)
            }
            found.append(Verdict(judge, reward, others))
    return found


def headline(comparison: Comparison) -> list[str]:
    """Plain sentences that the numbers below bear out: the default's first, then CORMPO's."""
    asked = (
        (DEFAULT, "the clinicians", (CLINICIANS,)),
        (DEFAULT, "CORMPO", (OURS,)),
        (OURS, "the best baseline", BASELINES),
        (OURS, "the best method without density", PARTS),
    )
    said = []
    for method, words, rivals in asked:
        places: dict[str, list[str]] = {}
        for one in find_verdicts(comparison, rivals, method):
            places.setdefault(one.word, []).append(JUDGES[one.judge].place)
        parts = [f"{word} {words} {' and '.join(where)}" for word, where in places.items()]
        if parts:
            who = "CORMPO" if method == OURS else f"{name_of(method)}, the default,"
            said.append(f"{who} is {'; '.join(parts)}.")
    return said


def say_clinicians(comparison: Comparison) -> list[str]:
    """One sentence: whose reward in truth is above the clinicians', below it, or undecided."""
    judge = comparison.surest
    judged = comparison.before(judge)
    if judge not in TRUE_JUDGES or CLINICIANS not in judged:
        return []
    weights, team = resample(judged[CLINICIANS].row), values_of(judged[CLINICIANS], "reward")
    said: dict[str, list[str]] = {"above": [], "below": [], "undecided": []}
    for name in sorted(
        (x for x in compared_rows(comparison) if x in judged and x != CLINICIANS),
        key=lambda x: -values_of(judged[x], "reward").mean(),
    ):
        found = paired(values_of(judged[name], "reward"), team, weights)
        between = span(found["low"], found["high"])
        said[word_of(found)].append(f"{name_of(name)} {signed(found['mean'])} {between}")
    parts = [f"{word}: {', '.join(names)}" for word, names in said.items() if names]
    place = JUDGES[judge].place
    return [f"Reward minus the clinicians', {place}, {'; '.join(parts)}."] if parts else []


def say_ranking(comparison: Comparison) -> list[str]:
    """Whether a twin ranks the learned methods as each truth does; disagreement is said first."""
    said: dict[bool, list[str]] = {False: [], True: []}
    for twin, truth in itertools.product(comparison.twins, comparison.truths):
        first = {x: _first(comparison, x) for x in (twin, truth)}
        if None in first.values():
            continue
        wrong, pairs = _reversed_pairs(comparison, twin, truth)
        names, full = {x: name_of(str(y)) for x, y in first.items()}, JUDGES[twin].full
        same = first[twin] == first[truth] and not wrong
        best = (
            f"both put {names[truth]} first"
            if first[twin] == first[truth]
            else f"the {full} puts {names[twin]} first, the {JUDGES[truth].full} {names[truth]}"
        )
        word = "agree" if same else "disagree"
        said[same].append(
            f"{full.capitalize()} and {JUDGES[truth].full} {word} on the ranking: {best}; {wrong} "
            f"of {pairs} pairs of methods are clearly the other way round."
        )
    return [*said[False], *said[True]]


def say_comparisons(comparisons: Sequence[Comparison]) -> list[str]:
    """In how many comparisons a twin puts another method first than the surest truth does."""
    said = []
    for twin in TWIN_JUDGES:
        known = [x for x in comparisons if twin in x.judged and x.truths]
        asked = [x for x in known if _first(x, x.surest) is not None]
        if len(asked) < 2:
            continue
        apart = [x for x in asked if _first(x, twin) != _first(x, x.surest)]
        names = ", ".join(f"{x.name} ({x.cohort})" for x in apart)
        said.append(
            f"Over all data sets, settings and cohorts, the {JUDGES[twin].full} puts another "
            f"method first than the truth in {len(apart)} of {len(asked)} "
            f"comparisons{': ' if apart else ''}{names}."
        )
    return said


def _reversed_pairs(comparison: Comparison, twin: str, truth: str) -> tuple[int, int]:
    """Pairs of learned methods that both judges tell apart clearly, in opposite order; and all."""
    both = [comparison.before(x) for x in (twin, truth)]
    learned = [x for x in LEARNED if all(x in judged for judged in both)]
    pairs, words = list(itertools.combinations(learned, 2)), []
    for judged in both:
        weights = resample(next(iter(judged.values())).row)
        values = {x: values_of(judged[x], "reward") for x in learned}
        apart = [estimate(difference(values[x], values[y]), weights) for x, y in pairs]
        words.append([_word(found) for found in apart])
    wrong = sum({one, other} == {"ahead of", "behind"} for one, other in zip(*words, strict=True))
    return wrong, len(pairs)


def summary_html(
    comparison: Comparison, first: Sequence[str] = (), more: Sequence[str] = ()
) -> str:
    """Whether twin and truth agree, headline, a card for each judge, and all in full sentences.

    `first` are sentences about all cohorts, `more` those of the evidence beyond the twin.
    """
    ranking = say_ranking(comparison)
    warned = any("disagree" in x for x in ranking)
    told = " ".join(map(html.escape, ranking))
    box = f'<p class="{"warn" if warned else "muted"}">{told}</p>' if told else ""
    lines = "".join(f"<li>{html.escape(x)}</li>" for x in (*first, *headline(comparison)))
    team, beside = (find_verdicts(comparison, [x], DEFAULT) for x in (CLINICIANS, OURS))
    others = {one.judge: one.reward.found for one in beside}
    cards = "".join(_default_card(one, others.get(one.judge)) for one in team)
    cards += "".join(_cormpo_card(one) for one in find_verdicts(comparison))
    if not cards:
        return "<p>No verdict: CORMPO and its baselines were not both judged.</p>"
    sentences = [
        x
        for baselines in (BASELINES, PARTS)
        for judge in comparison.judges
        for x in say_against(comparison, judge, baselines)
    ]
    ranks = "".join(f"<p>{html.escape(x)}</p>" for x in (*more, *say_agreement(comparison)))
    full = "".join(f"<li>{html.escape(x)}</li>" for x in sentences)
    return (
        f'{box}<ul class="headline">{lines}</ul>\n<div class="cards">{cards}</div>\n{ranks}\n'
        f"<details><summary>The same in full sentences, and against the methods without density"
        f"</summary><ul>{full}</ul></details>\n"
    )


def _default_card(one: Verdict, beside: dict[str, float] | None) -> str:
    """The default minus the clinicians, and its reward minus CORMPO's."""
    title = f"{name_of(DEFAULT)}, {JUDGES[one.judge].place}"
    lines = [] if beside is None else [f"minus CORMPO, {_line('reward', beside)}"]
    return _card(one, title, "against the clinicians", lines)


def _cormpo_card(one: Verdict) -> str:
    best = f"against {name_of(one.reward.best)}, the best baseline here (known only afterwards)"
    return _card(one, f"CORMPO, {JUDGES[one.judge].place}", best)


def _card(one: Verdict, title: str, against: str, lines: Sequence[str] = ()) -> str:
    reward, seeds = one.reward, len(one.reward.per_seed)
    percent = "" if reward.percent is None else f" ({signed(reward.percent, 0)} %)"
    kind = {"ahead of": "good", "behind": "bad"}.get(one.word, "")
    lines = [*(_line(x, y.found) for x, y in one.others.items()), *lines]
    others = "".join(f"<li>{html.escape(x)}</li>" for x in lines)
    above = int((reward.per_seed > 0).sum())
    ahead = f"ahead with {above} of {seeds} seeds" if seeds > 1 else "one seed"
    return (
        f'<div class="card {kind}"><h3>{html.escape(title)}</h3>'
        f'<p><span class="big">{signed(reward.found["mean"])}</span> reward{percent} '
        f"{_span(reward.found)}<br>{html.escape(against)}; {ahead}</p><ul>{others}</ul></div>"
    )


def _line(metric: str, found: dict[str, float]) -> str:
    """A difference with its interval; better or worse only where it is clear."""
    better = {"ahead of": 1.0, "behind": -1.0}.get(_word(found), 0.0) * METRICS[metric].sign
    same, word = "≈ " if better == 0 else "", {1.0: ", better", -1.0: ", worse"}.get(better, "")
    return f"{METRICS[metric].said}: {same}{signed(found['mean'], 3)} {_span(found, 3)}{word}"


def _span(found: dict[str, float], digits: int = 2) -> str:
    words = span(found["low"], found["high"], digits)
    return words if words.startswith("[") else "(too few patients for an interval)"


def _word(found: dict[str, float]) -> str:
    if found["low"] > 0:
        return "ahead of"
    return "behind" if found["high"] < 0 else "not clearly different from"


def _first(comparison: Comparison, judge: str) -> str | None:
    """The learned method that a judge's mean reward puts first."""
    judged = {x: one for x, one in comparison.before(judge).items() if x in LEARNED}
    means = {x: values_of(one, "reward").mean() for x, one in judged.items()}
    return max(means, key=means.__getitem__) if len(means) > 1 else None


def lead_of(comparison: Comparison) -> str:
    """What was learned, from what, and who judged."""
    judged = comparison.judged[comparison.judges[0]]
    learned = comparison.methods(LEARNED)
    one = judged[next((x for x in learned if x in judged), next(iter(judged)))]
    seeds, episodes = one.level.shape[:2]
    where = []
    for judge in comparison.judges:
        patients = len(set(next(iter(comparison.judged[judge].values())).row.tolist()))
        words = JUDGES[judge].words
        twin = judge in TWIN_JUDGES
        where.append(JUDGES[judge].place if twin else f"in {patients:,} {words}")
    count = "1 method" if len(learned) == 1 else f"{len(learned)} methods"
    return (
        f"{count}, {'one seed' if seeds == 1 else f'{seeds} seeds'} each, judged "
        f"over {episodes:,} paired episodes of six hours: {', '.join(where)}."
    )


def say_against(comparison: Comparison, judge: str, baselines: Sequence[str]) -> list[str]:
    """Two sentences: CORMPO's reward against the best of these, and the other metrics."""
    against = [name_of(x) for x in baselines]
    named = _named(comparison, judge)
    others = {
        name: metric.said
        for name, metric in METRICS.items()
        if name != "reward"
        if all(np.isfinite(values_of(x, name)).all() for x in named.values())
    }
    return against_best(named, JUDGES[judge].full, name_of(OURS), against, others)


def say_agreement(comparison: Comparison) -> list[str]:
    """Whether a twin ranks the learned methods as the truth does, a sentence for each truth."""
    if len(comparison.methods(LEARNED)) < 2:
        return []
    names = [name_of(OURS), *(name_of(x) for x in LEARNED if x != OURS)]
    return [
        ranking_agreement({JUDGES[x].full: _named(comparison, x) for x in both}, names)
        for both in itertools.product(comparison.twins, comparison.truths)
    ]


def _named(comparison: Comparison, judge: str) -> dict[str, Judged]:
    return {name_of(x): one for x, one in comparison.before(judge).items()}


def say_across(comparisons: Sequence[Comparison]) -> list[str]:
    """The default, and CORMPO against what it adds density to, over all cohorts if several."""
    asked = same_question(comparisons)
    if len(asked) < 2:
        return []
    judge, said = judges_of(asked)[-1], []
    rows = {(x["method"], x["metric"]): x for x in across_rows(asked)
            if (x["judge"], x["cohorts"]) == (judge, ALL)}  # fmt: skip
    told = [(DEFAULT, CLINICIANS, 1), (DEFAULT, OURS, 1), *((x, OURS, -1) for x in TOLD)]
    for method, other, sign in told:  # with -1 it is told the other way round
        pairs = []
        for metric in ("reward", "unsafe_hours"):
            shown, minus = METRICS[metric], f"{metric}_minus_{other}"
            scale = sign * shown.scale
            found = over_cohorts([scale * mean_of(x, judge, method, minus) for x in asked])
            if found["cohorts"] > 1:
                between = span(found["low"], found["high"], shown.digits)
                p = chance(float(rows[method, minus]["p_holm"]))
                pairs.append(f"{signed(found['mean'], shown.digits)} {between}, p {p}")
        if len(pairs) == 2:
            names = [name_of(x) if x != OURS else "CORMPO" for x in (method, other)][::sign]
            said.append(
                f"Over {len(asked)} cohorts, {' minus '.join(names)} in "
                f"{JUDGES[judge].full}: reward {pairs[0]}; unsafe hours, points, {pairs[1]}."
            )
    return said
