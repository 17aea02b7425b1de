"""Bounds under hidden confounding: by hand, against all corners, and in order."""

import itertools

import numpy as np
import pytest

from stepdown.evaluation.sensitivity import confounding_bounds, weight_range, worst_weights
from stepdown.evaluation.weighted import Paths, path_weights, wis

OWN = np.ones((1, 4))


def short_paths(hours: int = 1) -> Paths:
    row = np.arange(4 * hours).reshape(4, hours)
    known = np.ones((4, hours), bool)
    return Paths(row, known, ~known, np.arange(4), 4)


def test_one_hour_by_hand():
    """Weights of 2 each, odds of 1: with gamma 2 between 1.5 and 3; rewards 0, 0, 0, 1.

    The largest mean gives the 1 a weight of 3 and the others 1.5: 3 / 7.5 = 0.4; the least gives
    1.5 against 3: 1.5 / 10.5.
    """
    paths, reward = short_paths(), np.array([[0.0], [0.0], [0.0], [1.0]])
    ones = np.ones(4)
    weights = weight_range(paths, ones, 0.5 * ones, (ones, ones), 2.0)
    found = confounding_bounds(paths, weights, reward, 2.0, OWN)
    assert found.upper == pytest.approx(0.4)
    assert found.lower == pytest.approx(1.5 / 10.5)
    assert (found.low, found.high) == pytest.approx((found.lower, found.upper))


def test_no_corner_is_better_than_the_split():
    draw = np.random.default_rng(0)
    for _ in range(20):
        reward = draw.normal(size=(4, 1))
        low, high = np.sort(draw.random((2, 4, 1)), axis=0)
        corners = []
        for choice in itertools.product((0, 1), repeat=4):
            weight = np.where(np.array(choice)[:, None] == 1, high, low)
            corners.append((weight * reward).sum() / weight.sum())
        ours = worst_weights((low, high), reward)
        assert (ours * reward).sum() / ours.sum() == pytest.approx(max(corners))


def test_bounds_widen_with_gamma_and_start_at_wis():
    draw = np.random.default_rng(1)
    paths, reward = short_paths(3), draw.normal(size=(4, 3))
    policy, chance = draw.random((2, 12)) * 0.8 + 0.1
    ones = np.ones(12)
    plain = path_weights(paths, policy / chance, ones)
    value = wis(paths, plain, reward).values(OWN)[0]
    widths = []
    for gamma in (1.0, 1.3, 2.0, 5.0):
        weights = weight_range(paths, policy, chance, (ones, ones), gamma)
        found = confounding_bounds(paths, weights, reward, gamma, OWN)
        assert found.lower <= value + 1e-9
        assert found.upper >= value - 1e-9
        widths.append(found.upper - found.lower)
    assert widths[0] == pytest.approx(0.0, abs=1e-9)
    assert (np.diff(widths) > 0.01).all()


def test_gamma_below_one_and_nobody_followed():
    paths, ones = short_paths(), np.ones(4)
    with pytest.raises(ValueError, match="gamma: expected at least 1"):
        weight_range(paths, ones, ones, (ones, ones), 0.5)
    nothing = np.zeros((4, 1))
    found = confounding_bounds(paths, (nothing, nothing), nothing, 2.0, OWN)
    assert np.isnan(found.upper)
    assert found.low == -np.inf
