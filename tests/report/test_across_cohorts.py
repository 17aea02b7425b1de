"""All cohorts of a run together: a cohort counts as one number."""

import math

from stepdown.evaluation.compare import student
from stepdown.report.across_cohorts import (
    across_grid,
    across_rows,
    draw_across,
    same_question,
    say_across,
)
from stepdown.report.comparison import Comparison
from tests.report.comparisons import ROW, comparison, judged

KNOWN = {"guarded-7": (1.0, 0.5), "guarded-8": (2.0, 0.0), "hidden-7": (6.0, 1.0)}


def one(cohort: str) -> Comparison:
    """CORMPO and clinicians at 0, MBPO ahead by a number that differs between cohorts."""
    gain, unsafe = KNOWN[cohort]
    before = {
        "cormpo_kde": judged([[0.0] * 4], ROW, unsafe=0.0),
        "clinicians": judged([[0.0] * 4], ROW, unsafe=0.0),
        "mbpo": judged([[gain] * 4], ROW, unsafe=unsafe),
        "mbpo_shaped": judged([[0.5] * 4], ROW, unsafe=0.0),
        "mbpo_twin": judged([[gain - 1.0] * 4], ROW, unsafe=0.0),
    }
    return Comparison(cohort, "recorded", "ours", {"twin": before, "fresh": before})


def test_rows_are_means_over_cohorts_with_students_interval():
    rows = across_rows([one(x) for x in KNOWN])
    found = {
        (x["cohorts"], x["metric"]): x
        for x in rows
        if x["method"] == "mbpo" and x["judge"] == "fresh"
    }
    whole = found["all", "reward_minus_cormpo_kde"]
    half = student(2) * math.sqrt(7.0) / math.sqrt(3)  # sd of 1, 2 and 6 is the root of 7
    assert (whole["number"], whole["mean"]) == (3, 3.0)
    assert math.isclose(float(whole["high"]), 3.0 + half, rel_tol=1e-6)
    assert found["guarded", "reward_minus_cormpo_kde"]["mean"] == 1.5
    assert found["all", "unsafe_hours_minus_cormpo_kde"]["mean"] == 0.5


def test_what_the_twin_taught_stands_beside_what_the_ensemble_did():
    rows = across_rows([one(x) for x in KNOWN])
    found = {(x["method"], x["metric"]): x["mean"] for x in rows
             if (x["cohorts"], x["judge"]) == ("all", "fresh")}  # fmt: skip
    assert found["mbpo_twin", "reward_minus_mbpo_shaped"] == 1.5  # 0, 1 and 5, minus 0.5
    assert found["mbpo_twin", "reward_minus_clinicians"] == 2.0
    assert ("mbpo", "reward_minus_mbpo_shaped") not in found


def test_other_data_and_settings_do_not_count():
    more = [comparison("noisy"), comparison(setting="paper")]
    assert [x.cohort for x in same_question([one("guarded-7"), *more])] == ["guarded-7"]
    assert say_across([one("guarded-7"), *more]) == []


def test_sentences_say_the_difference_the_other_way_round():
    said = say_across([one(x) for x in KNOWN])
    assert said[0].startswith("Over 3 cohorts, CORMPO minus MBPO in fresh patients: reward −3.00 [")
    assert "unsafe hours −50.0 [" in said[0]


def test_the_table_has_a_column_for_every_preset():
    grid = across_grid([one(x) for x in KNOWN], "fresh")
    assert grid.head[2:5] == ("all", "guarded", "hidden")
    (line,) = (x for x in grid.rows if x[0].text == "MBPO")
    assert [cell.text for cell in line[2:5]] == ["+3.00", "+1.50", "+6.00"]


def test_the_figure_shows_the_numbers(tmp_path):
    """The same numbers give the same bytes, others give another picture."""
    for name, cohorts in (("all", KNOWN), ("again", KNOWN), ("two", ("guarded-7", "guarded-8"))):
        draw_across([one(x) for x in cohorts], tmp_path / name)
    drawn = [(tmp_path / name).read_bytes() for name in ("all", "again", "two")]
    assert drawn[0].startswith(b"\x89PNG")
    assert drawn[0] == drawn[1] != drawn[2]
