"""The section on evidence beyond the twin: every number traced, disagreement said first."""

import csv
import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cohorts import read_lines
from benchmarks.studies.choosing import measure
from stepdown.artifacts import provenance
from stepdown.evaluation.choosing import CHOICE_RULES, DEFAULT_RULE, Evidence, Span
from stepdown.report.evidence import (
    PLAIN,
    agreement,
    bound_rows,
    certificate_grid,
    choice_grid,
    cohorts_grid,
    evidence_section,
    evidence_tables,
    first_screen,
    gap_rows,
    named_pictures,
    read_measured,
    records_grid,
    say_measured,
    word_of,
)
from stepdown.report.evidence_figures import draw_evidence
from stepdown.report.grids import DASH
from stepdown.report.page import files_of
from stepdown.report.results_page import (
    Results,
    make_tables,
    results_page,
    say_comparisons,
    say_ranking,
    summary_html,
)
from stepdown.training import FitConfig
from tests.report.comparisons import comparison
from tests.report.findings import CERTIFICATE, findings, policy, without_truth

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pictures():
    both = [findings(), without_truth()]
    return both, [draw_evidence(one) for one in both]


def test_the_gap_is_twin_minus_truth_and_ranks_are_of_the_learned():
    rows = {row["method"]: row for row in gap_rows(findings())}
    mbpo = rows["mbpo"]
    assert (mbpo["truth"], mbpo["twin"], mbpo["second_twin"]) == (0.5, 4.0, 1.0)
    assert mbpo["gap"] == pytest.approx(3.5)
    # the clinicians: 0 in the twin, 0 in truth on average, -1 and +1 in the two patients
    assert mbpo["own_gap"] == pytest.approx(3.5)
    assert (mbpo["own_gap_low"], mbpo["own_gap_high"]) == pytest.approx((2.5, 4.5))
    assert rows["clinicians"]["own_gap"] is None
    ranks = {x: [rows[y][f"rank_{x}"] for y in ("mbpo_shaped", "cormpo_kde", "bc", "mbpo")]
             for x in ("truth", "twin", "second_twin")}  # fmt: skip
    assert ranks == {"truth": [2, 1, 3, 4], "twin": [2, 3, 4, 1], "second_twin": [1, 2, 4, 3]}
    assert rows["hold"]["rank_truth"] is None
    # BC, MBPO, CORMPO, MBPO shaped have ranks 2, 1, 3.5, 3.5 in truth and 1, 4, 2, 3 in the twin
    assert agreement(list(rows.values())) == pytest.approx(-1.5 / math.sqrt(4.5 * 5.0))


def test_disagreement_of_twin_and_truth_is_said_before_anything_else():
    (said,) = say_ranking(comparison())
    assert said == (
        "Twin and true test patients disagree on the ranking: the twin puts MBPO first, the true "
        "test patients CORMPO (KDE); 2 of 6 pairs of methods are clearly the other way round."
    )
    page = summary_html(comparison(), more=["One more thing."])
    box = page.index('<p class="warn">Twin and true test patients disagree')
    assert box == 0 < page.index('<ul class="headline">')
    assert "<p>One more thing.</p>" in page


def test_agreement_is_no_warning():
    same = comparison()
    judged = {judge: same.judged["patients"] for judge in ("twin", "patients")}
    one = type(same)("guarded-7", "recorded", "ours", judged)
    (said,) = say_ranking(one)
    assert "agree on the ranking: both put CORMPO (KDE) first; 0 of 6 pairs" in said
    assert 'class="warn"' not in summary_html(one)


def test_every_comparison_is_asked_whether_twin_and_truth_agree():
    main = comparison()
    judged = {judge: main.judged["patients"] for judge in ("twin", "patients")}
    same = type(main)("hidden-8", "recorded", "ours", judged)
    assert say_comparisons([main, comparison("noisy"), same]) == [
        "Over all data sets, settings and cohorts, the twin puts another method first than the "
        "truth in 2 of 3 comparisons: recorded (guarded-7), noisy (guarded-7)."
    ]
    assert say_comparisons([main]) == []


def test_the_first_screen_prints_the_default_choice_and_its_regret():
    assert first_screen([findings()]) == [
        "Without the truth, the default rule (careful) chooses CORMPO (KDE) (1), MBPO, reward "
        "shaped (1): regret 0.25 reward in true test patients, 0.00 to 0.50 over seeds.",
        say_measured(),
        "The records alone are informative about 1 of 2 learned methods: BC (cloning).",
    ]
    said, unknown, measured = first_screen([without_truth()])
    assert said.startswith("There is no truth behind these recordings")
    assert unknown.endswith("what that costs in truth is unknown.")
    assert first_screen([]) == [measured] == [say_measured()]


def test_the_word_uninformative_stands_beside_what_nobody_followed():
    grid = records_grid(findings())
    lines = {row[0].text: row for row in grid.rows}
    assert lines["BC (cloning)"][-1].text == "informative"
    assert lines["MBPO"][-1].text == "uninformative"
    assert lines["MBPO"][-1].note == "1 of 2 seeds"
    assert lines["MBPO"][2].note == "no limit"  # WIS
    assert lines["MBPO"][6].text == "[+0.75, +1.25]"  # WIS under hidden confounding
    assert lines["MBPO"][7].text == "0.50"  # the truth
    within = {row["method"]: row["within"] for row in bound_rows(findings())}
    assert within == {"bc": False, "mbpo": False, "hold": False}
    assert "71 test patients and 4,321 decisions; 3 of them never have" in grid.note


def test_estimates_that_disagree_are_called_uninformative_whoever_followed():
    one = policy("bc", 0.2, 2)
    assert word_of(one) == "informative"
    assert word_of(one | {"agreed": False}) == "uninformative"


def test_rules_are_ordered_by_regret_and_bounds_below_the_least_value_say_nothing():
    grid = choice_grid(findings())
    assert [row[0].text for row in grid.rows] == ["careful", "twin reward"]
    assert grid.rows[0][0].note == "the default"
    assert (grid.rows[1][2].text, grid.rows[1][2].note) == ("2.00", "1.50 to 2.50")
    (row,) = certificate_grid(findings()).rows
    assert [cell.note for cell in row[4:7]] == ["", "says nothing", "says nothing"]


def test_certificates_say_what_they_were_made_with_and_what_the_gap_assumes():
    ours = CERTIFICATE["rows"][0]
    lent = {"method": "bc", "weight": 0.0, "model_lent": True, "density_lent": True}
    rows = [ours, ours | lent | {"model": "ensemble"}]
    grid = certificate_grid(replace(findings(), certificate={"rows": rows}))
    said = {row[0].text: (row[0].note, row[7].text) for row in grid.rows}
    assert said == {
        "CORMPO (KDE)": ("λ 0.12; u: Kernels; in the twin", "41.50"),
        "BC (cloning)": ("charges no density; (u: Kernels); (in the ensemble)", DASH),
    }
    assert grid.head[7] == "gap at most"
    assert "It assumes the undiscounted, unshaped objective" in grid.note


def test_every_table_is_a_file_with_the_numbers_of_the_findings():
    made = files_of(evidence_tables([findings()]))
    place = "tables/evidence/guarded-7"
    shown = ("gap", "records", "choice", "certificate", "groups", "transfer")
    assert set(made) == {
        *(f"{place}/{x}.csv" for x in (*shown, "second", "bounds")),
        *(f"{place}/{x}.md" for x in shown),
    }
    rows = list(csv.DictReader(io.StringIO(made[f"{place}/records.csv"].decode())))
    assert len(rows) == 3 * 6
    (wis,) = (x for x in rows if (x["method"], x["estimator"]) == ("mbpo", "wis"))
    assert (wis["mean"], wis["low"], wis["truth"], wis["word"]) == ("1", "", "0.5", "uninformative")
    rows = list(csv.DictReader(io.StringIO(made[f"{place}/choice.csv"].decode())))
    assert [x["regret_patients"] for x in rows] == ["2.5", "1.5", "0.5", "0"]


def test_several_cohorts_are_put_side_by_side(pictures):
    grid = cohorts_grid([findings(), findings("hidden-8")])
    assert grid.head == ("", "guarded-7", "hidden-8")
    cells = {row[0].text: row[1].text for row in grid.rows}
    assert cells["regret: twin reward"] == "2.00"
    page = evidence_section([findings(), findings("hidden-8")], {})
    assert "<summary>The cohort hidden-8</summary>" in page
    assert "tables/evidence/cohorts.csv" in page
    named = named_pictures(pictures[0], pictures[1])
    assert "regret" in named
    assert "subgroups, imported" not in named  # nothing was found about groups there


def test_recordings_are_told_what_cannot_be_known(pictures):
    assert set(pictures[1][0]) == {"ranks", "records alone", "regret", "subgroups", "elsewhere"}
    assert set(pictures[1][1]) == set()
    page = evidence_section([without_truth()], {})
    assert "There is no truth behind recordings. Unknown here" in page
    assert "Not told. Estimates from records alone: expected 5 patients, got 2." in page
    assert "regret in" not in page
    assert "Without a truth nobody can say which twin ranks rightly." in page
    assert not re.search(r"<th[^>]*>(truth|twin minus truth|[^<]*regret[^<]*)<", page)
    assert "true patients" not in page


def test_the_page_holds_the_section_and_its_pictures(pictures):
    results = Results(
        "Stepping down", [comparison()], provenance(config=FitConfig(), seed=7),
        pictures=named_pictures([findings()], pictures[1][:1]), evidence=[findings()],
    )  # fmt: skip
    page = results_page(results)
    assert '<a href="#evidence">Evidence beyond the twin</a>' in page
    for words in ("model-exploitation gap", "Policies judged from records alone",
                  "Choosing without truth", "What the theorems certify", "by subgroup",
                  "Trained here, judged elsewhere", "The guardian elsewhere"):  # fmt: skip
        assert words in page, words
    assert page.count("data:image/png;base64,") == 5
    for path in make_tables(results):
        if path.startswith("tables/evidence") and path.endswith(".csv"):
            assert path in page, path


def test_measured_regrets_are_those_of_the_kept_cohorts():
    again = measure(read_lines(ROOT / "docs/results/choosing.jsonl"))
    kept = read_measured()
    assert set(kept["rules"]) == set(CHOICE_RULES)
    assert kept["cohorts"] == again["cohorts"]
    assert "--tables docs/results/choosing.jsonl" in kept["about"]["command"]  # for anybody
    for rule, found in again["rules"].items():
        assert kept["rules"][rule] == pytest.approx(found)


def read_evidence(kept: dict[str, Any]) -> Evidence:
    spans: dict[str, Any] = {x: Span(**y) for x, y in kept.items() if isinstance(y, dict)}
    return Evidence(**(kept | spans))


def test_the_measured_sentence_holds_both_rules_and_their_numbers():
    said, rules = say_measured(), read_measured()["rules"]
    assert DEFAULT_RULE in said
    for rule in (DEFAULT_RULE, PLAIN):
        assert f"lost {rules[rule]['mean']:.2f} [{rules[rule]['low']:.2f}" in said
