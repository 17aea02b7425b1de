"""Nearest recorded hours: themselves first, in order, of distinct patients when asked."""

import dataclasses

import numpy as np
import pytest

from stepdown.guardian.kde import Kde, KdeConfig, fit_kde
from stepdown.guardian.nearest import nearest_hours
from tests.guardian.decisions import ROWS, ward

TRAIN = ward("train")
# Each patient's next hours can be told apart.
TRAIN = dataclasses.replace(
    TRAIN, next_state=TRAIN.next_state.at[:, :, 0].set(np.arange(ROWS)[:, None])
)
TEST = ward("test", seed=2)


@pytest.fixture(scope="module")
def kde() -> Kde:
    return fit_kde(TRAIN, KdeConfig(neighbors=20))


def test_a_recorded_decision_is_its_own_nearest_evidence(kde):
    found = nearest_hours(kde, TRAIN, TRAIN.state[47], TRAIN.level[47])
    assert int(found.row[0]) == 47
    assert float(found.distance[0]) == pytest.approx(0.0, abs=1e-5)
    assert float(found.distance[1]) > 1.0
    assert (int(found.patient[0]), int(found.hour[0])) == (2, 7)  # 20 hours a patient
    assert int(found.level[0]) == int(TRAIN.level[47])
    np.testing.assert_array_equal(found.state[0], TRAIN.state[47])
    assert float(found.next_state[0, 0, 0]) == 47.0


def test_evidence_is_what_sorting_all_distances_finds(kde):
    found = nearest_hours(kde, TRAIN, TEST.state[0], int(TEST.level[0]), 30)
    query = np.asarray(kde.pairs(TEST.state[0], TEST.level[0]), np.float64)
    distance = np.sqrt(((np.asarray(kde.points, np.float64) - query) ** 2).sum(1))
    np.testing.assert_array_equal(found.row, np.argsort(distance)[:30])
    np.testing.assert_allclose(found.distance, np.sort(distance)[:30], rtol=1e-5)


def test_distinct_patients_show_the_nearest_hour_of_each(kde):
    every = nearest_hours(kde, TRAIN, TEST.state[1], TEST.level[1], ROWS)
    found = nearest_hours(kde, TRAIN, TEST.state[1], TEST.level[1], ROWS, distinct=True)
    assert sorted(np.asarray(found.patient)) == list(range(10))
    for patient, distance in zip(found.patient, found.distance, strict=True):
        assert float(distance) == float(every.distance[every.patient == patient].min())
    assert (np.diff(found.distance) >= 0).all()


def test_other_hours_are_refused_as_evidence(kde):
    ask = (TEST.state[0], TEST.level[0])
    with pytest.raises(ValueError, match="expected train patients"):
        nearest_hours(kde, TEST, *ask)
    with pytest.raises(ValueError, match="the 200 hours that the density was fitted to"):
        nearest_hours(kde, ward("train", rows=100), *ask)
    with pytest.raises(ValueError, match="in the same order, got others"):
        nearest_hours(kde, ward("train", seed=5), *ask)
    with pytest.raises(ValueError, match="count: expected 1 to 200"):
        nearest_hours(kde, TRAIN, *ask, 201)
    with pytest.raises(ValueError, match="finite map"):
        nearest_hours(kde, TRAIN, ask[0].at[0, 0].set(np.nan), ask[1])
