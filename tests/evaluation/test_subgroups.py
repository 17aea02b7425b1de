"""Subgroups and the worst tenth: by hand, paired, honest about empty groups."""

import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.subgroups import (
    WORST,
    recorded_groups,
    summarize_groups,
    tail_means,
    true_groups,
)
from stepdown.patients.episodes import draw_starts
from stepdown.signals import LEVEL, MAP, PULSATILITY
from tests.report.comparisons import judged

ROW = np.repeat(np.arange(4), 10)  # four patients, ten episodes each


def slow_tail(values, weights, share):
    """The textbook: repeat every episode, sort, take the lowest share."""
    times = np.round(np.asarray(weights) * 4000).astype(int)
    worst = np.sort(np.repeat(values, times))[: round(share * times.sum())]
    return worst.mean()


def test_the_worst_tenth_is_the_mean_of_the_lowest_episodes():
    draw = np.random.default_rng(0)
    values = draw.normal(size=(2, 40))
    weights = np.array([np.full(40, 1 / 40), np.where(ROW == 1, 0.05, 0.5 / 30)])
    weights[1] /= weights[1].sum()
    own, drawn = tail_means(values, weights, 0.1)
    assert own == pytest.approx(np.sort(values, axis=1)[:, :4].mean(1))
    assert drawn[0] == pytest.approx(own.mean())
    slow = np.mean([slow_tail(one, weights[1], 0.1) for one in values])
    assert drawn[1] == pytest.approx(slow, abs=2e-2)
    # a share that ends within an episode takes that part of it; all of it is the mean
    assert tail_means(np.arange(4.0)[None], np.full((1, 4), 0.25), 0.375)[0] == pytest.approx(
        [1 / 3]
    )
    assert tail_means(values, weights, 1.0)[0] == pytest.approx(values.mean(1))
    with pytest.raises(ValueError, match="above 0 and up to 1"):
        tail_means(values, weights, 0.0)


def test_groups_are_told_by_the_hour_before():
    state = np.zeros((4, 6, 13), np.float32)
    state[:, :, LEVEL] = np.array([2, 5, 7, 9])[:, None]
    state[:, :, MAP] = np.array([64.0, 65.0, 80.0, 50.0])[:, None]
    state[:, :, PULSATILITY] = np.array([30.0, 19.0, 30.0, 30.0])[:, None]
    groups = recorded_groups(state)
    assert {name: own.tolist() for name, own in groups.items()} == {
        "all": [True] * 4,
        "level P2 to P4": [True, False, False, False],
        "level P5 and P6": [False, True, False, False],
        "level P7 to P9": [False, False, True, True],
        "MAP below 65 mmHg": [True, False, False, True],
        "pulsatility below 20 mmHg": [False, True, False, False],
    }


def test_the_truth_tells_who_recovers_and_who_has_lost_tone(ward):
    cohort, latents = ward
    starts = draw_starts(cohort, latents, 64, key=jr.key(2))
    groups = true_groups(starts)
    assert np.array_equal(groups["recoverers"], ~groups["non-recoverers"])
    assert 0 < groups["non-recoverers"].mean() < 0.5  # 22 % of the patients
    plegic = groups["vasoplegia"]
    assert plegic.any()
    # whoever has lost tone has lost some resistance: the depth is above zero
    assert np.asarray(starts.patient.traits.vasoplegia_depth)[plegic].min() >= 0.12
    hours = np.asarray(starts.patient.course.hours)
    begin = np.asarray(starts.patient.traits.vasoplegia_start)
    assert (hours >= begin)[plegic].all()


def test_differences_are_paired_within_a_group():
    theirs = np.random.default_rng(1).normal(size=(1, 40)) * 5
    methods = {
        "clinicians": judged(theirs, ROW),
        "better": judged(np.repeat(theirs, 2, 0) + np.where(ROW < 2, 1.0, -3.0)[None], ROW),
    }  # two seeds against one
    first, nobody = ROW < 2, np.zeros(40, bool)
    rows = summarize_groups(methods, {"first": first, "nobody": nobody}, "clinicians")
    assert {row["group"] for row in rows} == {"first"}  # an empty group is left out
    found = {(row["method"], row["metric"]): row for row in rows}
    apart = found["better", "reward_minus_clinicians"]
    assert (apart["mean"], apart["low"], apart["high"]) == pytest.approx((1.0, 1.0, 1.0))
    assert (apart["patients"], apart["episodes"]) == (2, 20)
    worst = np.sort(theirs[0, :20])[:2].mean()
    assert found["clinicians", WORST]["mean"] == pytest.approx(worst, abs=1e-5)
    # every episode is better by one, so the worst tenth is, in every draw
    tail = found["better", f"{WORST}_minus_clinicians"]
    assert (tail["mean"], tail["low"], tail["high"]) == pytest.approx((1.0, 1.0, 1.0), abs=1e-5)


def test_one_patient_has_no_interval():
    rows = summarize_groups(
        {"hold": judged(np.zeros((1, 3)), np.full(3, 5))}, {"all": np.ones(3, bool)}
    )
    assert all(np.isnan(row["low"]) and np.isnan(row["high"]) for row in rows)
    assert [row["mean"] for row in rows] == [0.0, 0.25, 0.0]
