"""Several cohorts together: Student's interval over cohorts."""

import math

import numpy as np
import pytest
import scipy.stats

from stepdown.evaluation.across import over_cohorts, student


@pytest.mark.parametrize("freedom", [1, 2, 8, 40])
def test_the_quantile_is_students(freedom):
    assert student(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-4)


def test_the_interval_is_that_of_a_t_test():
    values = [0.1, -0.2, 0.4, 0.3, math.nan]
    found = over_cohorts(values)
    theirs = scipy.stats.ttest_1samp(values[:4], 0.0).confidence_interval(0.95)
    assert found["cohorts"] == 4
    assert found["mean"] == pytest.approx(0.15)
    assert (found["low"], found["high"]) == pytest.approx((theirs.low, theirs.high), rel=1e-4)


def test_one_cohort_has_no_interval_and_none_has_no_mean():
    one = over_cohorts([2.0])
    assert one["mean"] == 2.0
    assert math.isnan(one["low"])
    assert over_cohorts([])["cohorts"] == 0


def test_the_interval_covers_as_often_as_it_says():
    draw = np.random.default_rng(0).normal(1.0, 2.0, size=(2000, 5))
    found = [over_cohorts(row.tolist()) for row in draw]
    assert np.mean([x["low"] < 1.0 < x["high"] for x in found]) == pytest.approx(0.95, abs=0.015)
