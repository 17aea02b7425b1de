"""Figures of comparisons: their size, and the numbers that they draw."""

import numpy as np
import pytest

from stepdown.report.comparison import Comparison
from stepdown.report.comparison_figures import (
    SensitivityPoint,
    constant_levels,
    draw_across,
    draw_constant_levels,
    draw_curves,
    draw_exploitation,
    draw_score_distributions,
    draw_sensitivity,
)
from stepdown.report.labels import look_of
from stepdown.signals import LEVELS
from tests.report.comparisons import KNOWN, ROW, comparison, judged, together
from tests.report.pixels import has, inches


def test_the_exploitation_has_a_line_for_each_method(drawn):
    # six methods beside the clinicians, whom they are compared with
    assert inches(drawn["exploitation"]) == pytest.approx((12.5, 1.9 + 0.36 * 6), abs=0.02)
    assert has(drawn["exploitation"], "#d55e00")  # the twin
    assert has(drawn["exploitation"], "#0072b2")  # the truth


def test_the_exploitation_works_without_truth_and_clinicians():
    alone = Comparison("c", "recorded", "ours", {"twin": {"bc": judged([[1, 1, 2, 2]])}})
    png = draw_exploitation(alone)
    assert inches(png)[0] == pytest.approx(12.5, abs=0.02)
    assert not has(png, "#0072b2")


def test_scores_have_a_row_for_each_method():
    known = comparison().judged["patients"]
    two = {x: known[x] for x in ("bc", "mbpo", "cormpo_kde")}  # BC has no room there
    png = draw_score_distributions(Comparison("c", "recorded", "ours", {"patients": two}))
    assert inches(png) == pytest.approx((13.5, 1.3 + 1.65 * 2), abs=0.02)
    assert has(png, look_of("mbpo")["color"])


def test_curves_skip_seeds_that_stopped(drawn):
    assert inches(drawn["curves"]) == pytest.approx((14.0, 1.2 + 2.9), abs=0.02)
    bare = Comparison("c", "recorded", "ours", comparison().judged)
    with pytest.raises(ValueError, match="expected curves"):
        draw_curves(bare)


def test_mixes_of_levels_are_drawn(drawn):
    assert inches(drawn["mix"])[0] == pytest.approx(11.0, abs=0.02)
    assert inches(drawn["training mix"]) == pytest.approx((13.0, 3.4), abs=0.02)


def test_constant_levels_come_out_of_the_rules():
    rules = {f"always P{x}": judged([[x, x, 2 * x, 2 * x]], level=x) for x in LEVELS}
    one = Comparison("c", "recorded", "ours", {"twin": rules, "patients": rules})
    found = constant_levels(one)
    assert found["truth"].tolist() == found["twin"].tolist()
    assert found["truth"][0].tolist() == list(LEVELS)
    assert found["truth"][3].tolist() == [2 * x for x in LEVELS]
    png = draw_constant_levels(found, ROW, np.full(8, 1 / 8))
    assert inches(png) == pytest.approx((8.0, 6.2), abs=0.02)
    assert constant_levels(comparison()) == {}


def test_sensitivity_has_a_panel_for_each_parameter():
    points = [
        SensitivityPoint(parameter, value, judge, "reward", value, value - 1, value + 1, value == 1)
        for parameter in ("tau", "lambda")
        for value in (0.0, 1.0, 2.0)
        for judge in ("twin", "patients", "fresh")
    ]
    assert inches(draw_sensitivity(points)) == pytest.approx((1.2 + 3.3 * 2, 1.5 + 2.1), abs=0.02)
    with pytest.raises(ValueError, match="expected points for tau"):
        draw_sensitivity([])


def test_the_figure_of_all_cohorts_shows_the_numbers():
    """The same numbers give the same bytes, others give another picture."""
    whole, again, two = (
        draw_across([together(x) for x in cohorts])
        for cohorts in (KNOWN, KNOWN, ("guarded-7", "guarded-8"))
    )
    assert whole.startswith(b"\x89PNG")
    assert whole == again != two
