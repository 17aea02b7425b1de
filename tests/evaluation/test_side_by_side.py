"""Two cohorts side by side: exact numbers, planted differences, classifiers, models abroad."""

from dataclasses import replace
from math import erf

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.carried_over import (
    CarryConfig,
    Side,
    for_models,
    forecast_abroad,
    make_sides,
    refuse_abroad,
    share_of,
)
from stepdown.evaluation.movement import correlations_of, moves_of, practice_of
from stepdown.evaluation.side_by_side import SideConfig, compare_cohorts, make_pair
from stepdown.evaluation.told_apart import area, tell_apart
from stepdown.handover import Cohort
from stepdown.signals import HR, LVEDP, MAP, TAU
from stepdown.training import FitConfig
from stepdown.twin.twins import twin_config
from tests.evaluation.invented import USED, invented

EVERYBODY = slice(None)
FEW = SideConfig(draws=40)
QUICK = CarryConfig(replace(twin_config("mlp", "small"), fit=FitConfig(epochs=2)), draws=5)
PUMPS: dict[Side, str] = {"ours": "cp", "theirs": "cp"}


def hourly_noise(patients, seed, shift) -> Cohort:
    """Hours that are draws of their own: MAP has an sd of 4 mmHg over hours, all else is constant.

    So the AUC of hour means is that of two normal distributions.
    """
    draw = np.random.default_rng(seed)
    cohort = invented(patients, 40, seed)
    signals = np.array(cohort.signals)
    for column, center in zip(USED, (75.0, 85.0, 30.0, 12.0), strict=True):
        own = draw.normal(center, 4.0, (patients, 40)) + (shift if column == MAP else 0.0)
        signals[..., column] = np.repeat(own, 6, axis=1)
    return replace(cohort, signals=jnp.asarray(signals))


def by_name(found, measure, what=""):
    (one,) = [x for x in found if (x.measure, x.what) == (measure, what)]
    return one


def test_every_number_is_the_one_that_reports_show(ward):
    cohort = ward[0]
    ours = replace(cohort, patient=tuple(f"a{x}" for x in cohort.patient))
    found = compare_cohorts(make_pair(ours, invented()), FEW, key=jr.key(0))
    moves, practice = moves_of(cohort), practice_of(cohort)
    together = correlations_of(cohort)
    one = by_name(found, "sd inside the hour, median", "map")
    assert one.ours == pytest.approx(moves["map"].inside)
    heavy = by_name(found, "change from hour to hour, kurtosis (normal: 3)", "hr")
    assert heavy.ours == pytest.approx(moves["hr"].change_kurtosis + 3)
    largest = by_name(found, "largest 1 % of the steps inside the hour", "lvedp")
    assert largest.ours == pytest.approx(moves["lvedp"].largest)
    same = by_name(found, "hours at the level of the hour before")
    assert same.ours == pytest.approx(practice.unchanged)
    inside = by_name(found, "hours in which the level changes")
    assert inside.ours == pytest.approx(practice.inside)
    assert by_name(found, "changes by", "2 levels").ours == pytest.approx(practice.steps[1])
    assert by_name(found, "samples at", "P8").ours == pytest.approx(practice.levels[6])
    pair = by_name(found, "correlation", "map – hr")
    assert pair.ours == pytest.approx(together["map", "hr"], abs=1e-6)
    pair = by_name(found, "correlation", "pulsatility – level")
    assert pair.ours == pytest.approx(together["pulsatility", "level"], abs=1e-6)


def test_a_doubled_movement_is_ranked_first_and_nothing_else_stands_out():
    pair = make_pair(invented(seed=1, moves=2.0), invented(seed=2))
    found = compare_cohorts(pair, FEW, key=jr.key(0))
    first = found[0]
    assert first.what == "lvedp"
    assert (first.scale, first.group) in {("times", "movement"), ("times", "tails")}
    assert first.difference == pytest.approx(2.0, abs=0.15)
    assert first.low < 2.0 < first.high
    about = {x.what for x in found if x.material}
    assert about == {"lvedp"}
    one = by_name(found, "sd inside the hour, median", "lvedp")
    assert one.size == pytest.approx(np.log(one.difference))
    assert 0 < one.sure < one.size


def test_patients_of_one_distribution_differ_in_nothing_for_sure():
    for seed in (10, 20, 30):
        pair = make_pair(invented(seed=seed), invented(seed=seed + 1))
        found = compare_cohorts(pair, FEW, key=jr.key(seed))
        assert [x for x in found if x.material] == []
        outside = [
            x for x in found if x.low > (x.scale == "times") or x.high < (x.scale == "times")
        ]
        assert outside  # single intervals do exclude it now and then


def test_a_shifted_mean_is_told_in_sd_of_the_other_cohort():
    ours, theirs = invented(seed=1, shift=15.0), invented(seed=2)
    found = compare_cohorts(make_pair(ours, theirs), FEW, key=jr.key(0))
    one = by_name(found, "mean", "map")
    values = [np.asarray(x.signals)[..., MAP].astype(float) for x in (ours, theirs)]
    assert one.difference == pytest.approx((values[0].mean() - values[1].mean()) / values[1].std())
    assert one.low > 1
    assert found[0].what == "map"


def test_a_cohort_beside_itself_differs_in_nothing():
    cohort = invented(seed=3)
    found = compare_cohorts(make_pair(cohort, cohort), FEW, key=jr.key(0))
    assert [x.sure for x in found] == [0.0] * len(found)
    assert {x.size for x in found} == {0.0}
    told = [tell_apart(make_pair(cohort, cohort), v, key=jr.key(0)) for v in ("levels", "movement")]
    assert [x.auc for x in told] == [0.5, 0.5]
    assert not any(x.clear for x in told)


def test_intervals_are_over_patients_not_hours():
    """Ten times the hours of the same patients leave the interval of a mean as wide."""
    widths = []
    for hours in (4, 40):
        pair = make_pair(invented(12, hours, 4), invented(12, hours, 5))
        one = by_name(compare_cohorts(pair, SideConfig(100), key=jr.key(0)), "mean", "hr")
        widths.append((one.high - one.low) * np.asarray(pair.theirs.signals)[..., HR].std())
    assert widths[1] > 0.5 * widths[0]


@pytest.mark.parametrize("shift", [2.0, 6.0])
def test_the_classifier_has_the_auc_of_two_normal_distributions(shift):
    pair = make_pair(hourly_noise(60, 1, shift), hourly_noise(60, 2, 0.0))
    found = tell_apart(pair, "levels", key=jr.key(0))
    exact = (1 + erf(shift / 4.0 / 2)) / 2  # of N(shift, 4²) above N(0, 4²)
    assert found.auc == pytest.approx(exact, abs=0.025)
    assert found.clear
    assert found.uses[0].what == "map"
    assert found.uses[0].lost == pytest.approx(exact - 0.5, abs=0.06)
    assert found.hours == (2400, 2400)


def test_hours_of_one_distribution_are_not_told_apart():
    pair = make_pair(hourly_noise(60, 1, 0.0), hourly_noise(60, 2, 0.0))
    found = tell_apart(pair, "levels", key=jr.key(0))
    assert found.low <= 0.5 <= found.high
    assert not found.clear


def test_movement_is_seen_where_levels_are_alike():
    pair = make_pair(invented(seed=1, moves=2.0), invented(seed=2))
    found = tell_apart(pair, "movement", key=jr.key(0))
    assert found.low > 0.8
    assert found.uses[0].what == "lvedp"


def test_area_counts_ties_half_and_patients_as_often_as_drawn():
    score, label = np.array([1.0, 2.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0, 1.0])
    assert area(score, label) == (1 + 0.5 + 1 + 1) / 4
    assert area(score, label, np.array([1.0, 3.0, 1.0, 0.0])) == (1 + 3 * 0.5) / 4


def without(cohort: Cohort, column: int, rows: slice | list[int] = EVERYBODY) -> Cohort:
    signals = np.array(cohort.signals)
    signals[rows, :, column] = np.nan
    return replace(cohort, signals=jnp.asarray(signals))


def test_a_signal_that_one_cohort_lacks_is_named_and_left_out():
    extra = np.array(invented().signals)
    extra[..., TAU] = 40.0 + np.random.default_rng(0).normal(size=extra.shape[:2])
    ours = replace(invented(), signals=jnp.asarray(extra))
    pair = make_pair(ours, invented(seed=1))
    assert (pair.only_ours, pair.only_theirs) == (("tau",), ())
    assert "tau" not in (*pair.used, *pair.shared)
    pair = make_pair(invented(), without(invented(seed=1), LVEDP))
    assert pair.only_ours == ("lvedp",)
    assert {x.what for x in compare_cohorts(pair, FEW, key=jr.key(0))}.isdisjoint({"lvedp"})


def test_a_stay_that_lacks_a_usual_signal_is_left_out_of_models():
    ours = without(invented(), LVEDP, rows=[3])  # one of 24: still usual
    pair = make_pair(ours, invented(seed=1))
    assert "lvedp" in pair.used
    kept = for_models(pair.ours, pair.used)
    assert set(pair.ours.patient) - set(kept.patient) == {"0-3"}
    found = compare_cohorts(pair, FEW, key=jr.key(0))
    missing = by_name(found, "samples without a value", "lvedp")
    assert (missing.ours, missing.theirs) == (pytest.approx(100 / 24), 0.0)


def test_finer_samples_are_thinned_and_odd_ones_refused():
    fine = replace(invented(), minutes=5.0)
    assert make_pair(fine, invented()).ours.seen.shape == (24, 60)
    with pytest.raises(ValueError, match=r"got every 4 min\. Resample the recordings"):
        make_pair(replace(invented(), minutes=4.0), invented())
    with pytest.raises(ValueError, match=r"got every 60 min\. Charts cannot be compared"):
        make_pair(replace(invented(), minutes=60.0), invented())


def test_too_few_patients_are_refused_in_words():
    with pytest.raises(ValueError, match="expected at least 5 patients in a cohort, got 4"):
        make_pair(invented(4), invented())
    half = without(invented(), HR, rows=slice(0, 12))
    with pytest.raises(ValueError, match=r"expected hr in at least 90 % of the stays of both"):
        make_pair(half, invented())


# ── models abroad ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def strange():
    """Patients far from the others in MAP."""
    return make_sides(make_pair(invented(30, seed=1, shift=40.0), invented(30, seed=2)))


def test_a_guardian_refuses_hours_from_far_away_and_few_at_home(strange):
    found = refuse_abroad(strange, "theirs", QUICK, key=jr.key(0))
    assert found.abroad.mean > 90
    assert found.at_home.mean < 40  # its promise, with six test patients
    assert (found.abroad.patients, found.patients) == (30, 24)
    assert found.abroad.hours == 30 * 19


def test_twins_are_judged_on_the_same_unseen_hours(strange):
    home, abroad, own = forecast_abroad(strange, PUMPS, QUICK, key=jr.key(0))
    assert [(x.fitted_on, x.judged_on) for x in (home, abroad, own)] == [
        ("theirs", "theirs"),
        ("theirs", "ours"),
        ("ours", "ours"),
    ]
    assert (abroad.hours, abroad.judged) == (own.hours, own.judged) == (6 * 19, 6)
    assert abroad.verdict() == "worse"  # a network that reads pressures it has never seen
    assert abroad.errors["mae_z"][0] > 1.5 * home.errors["mae_z"][0]
    assert abroad.errors["mae_z"][1] == pytest.approx(home.errors["mae_z"][1], rel=0.2)
    assert abroad.coverage.mean < 90
    assert (abroad.coverage.hours, abroad.coverage.patients) == (abroad.hours, abroad.judged)
    gain, low, high = abroad.gains["mae_z"]
    assert low <= gain <= high
    assert gain == pytest.approx(abroad.errors["mae_z"][1] - abroad.errors["mae_z"][0], rel=1e-3)


def test_nobody_is_judged_whom_a_model_has_met():
    cohort = invented(30, seed=6)
    sides = make_sides(make_pair(cohort, cohort))
    found = refuse_abroad(sides, "theirs", QUICK, key=jr.key(0))
    assert found.abroad == found.at_home  # test patients alone are left to judge
    small = make_sides(make_pair(invented(6, seed=6), invented(30, seed=7)))
    told = forecast_abroad(small, PUMPS, QUICK, key=jr.key(0))
    assert [x.fitted_on for x in told] == ["theirs", "theirs"]  # six patients: no twin of their own
    assert told[1].judged == 6


def test_a_share_has_no_interval_for_one_patient():
    found = share_of(np.array([1.0, 0.0]), np.array([4, 4]))
    assert (found.mean, found.hours, found.patients) == (50.0, 2, 1)
    assert np.isnan(found.low)
