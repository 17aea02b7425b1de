"""How a cohort moves, against worked examples and a slow textbook version."""

import dataclasses

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.movement import correlations_of, excess_kurtosis, moves_of, practice_of
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.signals import HR, MAP


@pytest.fixture(scope="module")
def cohort():
    return simulate_cohort(CohortConfig(patients=12), key=jr.key(2))[0]


def by_hand(cohort: Cohort, column: int):
    """Hour by hour, one after another."""
    inside, changes, steps = [], [], []
    for signals, seen in zip(np.asarray(cohort.signals), np.asarray(cohort.seen), strict=True):
        before = None
        for first in range(0, len(seen) - 5, 6):
            hour = signals[first : first + 6, column].astype(float)
            if not seen[first : first + 6].all() or np.isnan(hour).any():
                before = None
                continue
            mean = sum(hour) / 6
            inside.append((sum((x - mean) ** 2 for x in hour) / 6) ** 0.5)
            steps += [abs(b - a) for a, b in zip(hour[:-1], hour[1:], strict=True)]
            if before is not None:
                changes.append(mean - before)
            before = mean
    return np.array(inside), np.array(changes), np.array(steps)


def test_moves_are_those_of_a_slow_count(cohort):
    holes = np.array(cohort.signals)
    holes[3, 40, MAP] = np.nan  # an hour that is left out, and two changes with it
    cohort = dataclasses.replace(cohort, signals=jnp.asarray(holes))
    moves = moves_of(cohort)
    for name, column in (("map", MAP), ("hr", HR)):
        inside, changes, steps = by_hand(cohort, column)
        found = moves[name]
        assert [found.inside, found.inside_tail] == pytest.approx(np.quantile(inside, [0.5, 0.9]))
        middle = sorted(abs(changes - np.median(changes)))
        assert found.change_robust == pytest.approx(1.4826 * np.median(middle))
        assert found.change_sd == pytest.approx(changes.std())
        assert found.largest == pytest.approx(np.quantile(steps, 0.99))


def test_kurtosis_of_known_values():
    assert excess_kurtosis(np.array([-1.0, 1.0])) == pytest.approx(-2.0)  # the least there is
    normal = np.random.default_rng(0).normal(size=200_000)
    assert excess_kurtosis(normal) == pytest.approx(0.0, abs=0.05)
    laplace = np.random.default_rng(0).laplace(size=500_000)
    assert excess_kurtosis(laplace) == pytest.approx(3.0, abs=0.2)
    assert np.isnan(excess_kurtosis(np.ones(4)))


def test_practice_of_a_stay_worked_by_hand():
    level = np.array([[8, 8, 8, 7, 7, 7, 7, 7, 7, 7, 7, 7, 5, 5, 5, 5, 5, 5]])
    stay = Cohort(
        signals=jnp.zeros((1, 18, 12)),
        level=jnp.asarray(level),
        seen=jnp.asarray(level > 0),
        patient=("p1",),
    )
    practice = practice_of(stay)
    assert practice.inside == pytest.approx(100 / 3)
    assert practice.unchanged == pytest.approx(0.0)  # 8 (7.5 rounds up), 7, 5
    assert practice.steps == pytest.approx((50, 50, 0, 0))
    assert practice.levels == pytest.approx((0, 0, 0, 100 * 6 / 18, 0, 50, 100 * 3 / 18, 0))


def test_correlations_leave_out_what_was_not_measured(cohort):
    holes = np.array(cohort.signals)
    holes[:, ::3, MAP] = np.nan
    found = correlations_of(dataclasses.replace(cohort, signals=jnp.asarray(holes)))
    seen = np.asarray(cohort.seen) & ~np.isnan(holes[..., MAP])
    pair = np.asarray(cohort.signals, float)[seen][:, [MAP, HR]]
    assert found["map", "hr"] == pytest.approx(np.corrcoef(pair.T)[0, 1])
    blank = np.full_like(holes, np.nan)
    assert np.isnan(
        correlations_of(dataclasses.replace(cohort, signals=jnp.asarray(blank)))["map", "hr"]
    )
