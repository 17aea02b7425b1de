"""The results page: verdicts first, all numbers traced to a file, nothing from the network."""

import re
from dataclasses import replace

import pytest

from stepdown.artifacts import provenance
from stepdown.report.comparison import Comparison, pair_rows, pairs_grid, safety_grid
from stepdown.report.grids import to_markdown
from stepdown.report.page import CAPTIONS, Section, make_page
from stepdown.report.results_page import (
    Results,
    find_verdicts,
    headline,
    lead_of,
    make_tables,
    results_page,
    say_clinicians,
    summary_html,
)
from stepdown.training import FitConfig
from tests.report.comparisons import comparison, judged, noisy


@pytest.fixture(scope="module")
def results(drawn) -> Results:
    main = comparison()
    others = [comparison("noiseless"), noisy()]
    others += [comparison(setting="paper"), comparison(cohort="hidden-8")]
    return Results(
        "Stepping down",
        [main, *others],
        provenance(config=FitConfig(), seed=7),
        {"tdt": [{"mae": 5.0}]},
        {"60 min at 600 s": {"tdt": {"mse_z": [0.2], "mse_map": [20.0]}}},
        drawn | {"something new, of mine": drawn["mix"]},
        [Section("The patients", "<p>Who they are.</p>", "patients")],
        {"twin": 1.5, "train": 2.0},
    )


@pytest.fixture(scope="module")
def page(results) -> str:
    return results_page(results)


def test_verdicts_are_those_by_hand():
    twin, patients = find_verdicts(comparison())
    ours = twin.reward
    assert (ours.best, ours.found["mean"], ours.percent) == ("mbpo", -3.0, -75.0)
    assert not (ours.per_seed > 0).any()
    assert twin.word == "behind"
    assert (patients.reward.best, patients.reward.found["mean"]) == ("bc", 2.0)
    assert patients.reward.per_seed.tolist() == [1.5, 2.5]
    assert patients.word == "ahead of"
    assert patients.reward.percent is None  # BC's own interval reaches zero
    assert patients.others["acp"].found["mean"] == 0.0


def test_the_headline_says_who_is_ahead():
    assert headline(comparison()) == [
        "CORMPO is behind the best baseline in the twin; "
        "ahead of the best baseline in true test patients.",
        "CORMPO is behind the best method without density in the twin; not clearly different "
        "from the best method without density in true test patients.",
    ]
    assert "Spearman correlation" in summary_html(comparison())


def test_the_first_screen_speaks_of_the_default_first():
    """In truth 5 beside CORMPO's 3 and the clinicians' 0, in the twin 3 beside 1 and 0."""
    plain = comparison()
    planned = {"twin": judged([[3.0] * 4] * 2), "patients": judged([[5.0] * 4] * 2)}
    both = {x: {**known, "planner": planned[x]} for x, known in plain.judged.items()}
    one = replace(plain, judged=both)
    said = headline(one)
    assert said[:2] == [
        "Planner, the default, is ahead of the clinicians in the twin and in true test patients.",
        "Planner, the default, is ahead of CORMPO in the twin and in true test patients.",
    ]
    assert said[2:] == headline(plain)  # CORMPO keeps its story
    page = summary_html(one)
    first, second = page.index("Planner, in true test patients"), page.index("CORMPO, in the twin")
    assert first < second
    card = page[first:second]
    assert "+5.00" in card
    assert "against the clinicians; ahead with 2 of 2 seeds" in card
    assert "minus CORMPO, reward: +2.000" in card
    (line,) = [x for x in to_markdown(safety_grid(one)).splitlines() if "Planner" in x]
    assert line.startswith("| **Planner** |")


def test_the_first_screen_says_who_is_above_the_clinicians_and_what_is_undecided(page):
    """In truth hold and cloning lie [0, 2] around the clinicians' [-1, 1]: the pairs are +1, +1."""
    (said,) = say_clinicians(comparison())
    assert said == (
        "Reward minus the clinicians', in true test patients, above: Look-ahead (ceiling) +4.00 "
        "[+4.00, +4.00], CORMPO (KDE) +3.00 [+3.00, +3.00], MBPO, reward shaped +3.00 "
        "[+3.00, +3.00], BC (cloning) +1.00 [+1.00, +1.00], Hold the level +1.00 [+1.00, +1.00]; "
        "undecided: MBPO +0.50 [−0.50, +1.50]."
    )
    first = page[: page.index("<nav>")]
    assert first.index("<img") < first.index("in true test patients, above")
    assert say_clinicians(replace(comparison(), judged={"twin": comparison().judged["twin"]})) == []


def test_pairs_whose_interval_includes_zero_are_printed_as_undecided():
    rows = {(x["method"], x["minus"], x["metric"]): x for x in pair_rows(comparison(), "patients")}
    one = rows["mbpo", "clinicians", "reward"]
    assert (one["mean"], one["low"], one["high"], one["word"]) == (0.5, -0.5, 1.5, "undecided")
    assert rows["bc", "hold", "reward"]["word"] == "undecided"  # they are the same
    assert rows["bc", "clinicians", "reward"]["word"] == "above"
    table = to_markdown(pairs_grid(comparison())).splitlines()
    (clinicians,) = [line for line in table if line.startswith("| Clinicians")]
    assert clinicians.count("undecided") == 1
    assert clinicians.count("−1.00") == 2
    assert "−4.00" in clinicians


def test_the_lead_counts_methods_seeds_and_patients():
    said = lead_of(comparison())
    assert said.startswith("4 methods")
    assert "4 paired episodes of six hours: in the twin, in 2 test patients." in said


def test_the_page_needs_no_network(page):
    assert "http" not in re.sub(r"base64,[^\"]+", "", page)
    assert not re.findall(r"<(?:script|link|iframe)\b", page)
    sources = re.findall(r'src="([^"]{0,30})', page)
    assert len(sources) == 7  # six of the comparison, and one that nobody has a caption for
    assert all(source.startswith("data:image/png;base64,") for source in sources)


def test_the_first_screen_holds_the_verdicts(page):
    first = page[: page.index("<nav>")]
    assert "<h2>Summary" in first
    assert "Twin and true test patients disagree on the ranking: the twin puts MBPO first" in first
    assert '<span class="big">−3.00</span> reward (−75 %) [−3.00, −3.00]' in first
    assert "against BC (cloning), the best baseline here (known only afterwards)" in first
    assert "Choosing by the twin, judged in the true test patients" in first


def test_links_lead_somewhere(page):
    links = re.findall(r'href="#([^"]+)"', page)
    assert set(links) <= set(re.findall(r'<section id="([^"]+)"', page))
    assert {"truth", "comparison", "twin", "patients", "definitions", "origin"} <= set(links)


def test_every_table_of_the_page_is_a_file(results, page):
    tables = make_tables(results)
    named = set(re.findall(r"<code>(tables/[^<]+)</code>", page))
    assert named <= set(tables)
    assert set(tables) == {
        f"tables/{name}.{kind}"
        for name in ("recorded", "noiseless", "noisy", "recorded-paper", "hidden-8/recorded",
                     "cohorts", "pairs", "drop", "penalty", "time", "twin", "settings",
                         "claims",
                         "claims-paper")
        for kind in ("csv", "md")
    }  # fmt: skip
    head = b"method,judge,metric,mean,sd,low,high\n"
    for name in ("recorded", "noiseless", "noisy", "drop", "penalty"):
        assert tables[f"tables/{name}.csv"].startswith(head)
    assert b"| MBPO | **4.00** (+3.00 [+3.00, +3.00]) |" in tables["tables/recorded.md"]


def test_provenance_and_times_are_told(page):
    origin = page[page.index('id="origin"') :]
    assert "<th>seed</th><td><code>7</code>" in origin
    assert '<th>train</th><td class="number">2.0</td>' in origin
    assert '<th>all</th><td class="number">3.5</td>' in origin


def test_imported_recordings_have_a_page_without_truth():
    """The twin alone, one seed, one method, no curves."""
    alone = Comparison("mine", "recorded", "ours", {"twin": {"bc": judged([[1, 1, 2, 2]])}})
    page = results_page(Results("Mine", [alone], provenance(config=FitConfig(), seed=0)))
    assert "No verdict" in page
    assert "1 method, one seed each" in page
    assert ">1.50<" in page


def test_results_need_a_comparison():
    with pytest.raises(ValueError, match="at least one comparison"):
        Results("Nothing", [], {})


def test_captions_belong_to_chapters():
    known = {
        "first",
        "truth",
        "scores",
        "bedside",
        "learning",
        "twin",
        "guardian",
        "records",
        "evidence",
    }
    assert {caption.chapter for caption in CAPTIONS.values()} == known


def test_pages_without_a_style_or_anchors_are_as_before():
    page = make_page("T", "L", [Section("A", "<p>b</p>")])
    assert "<section><h2>A</h2>\n<p>b</p></section>" in page
    assert page.count("<style>") == 1
