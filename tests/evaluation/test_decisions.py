"""Stays as decisions: what counts as one, where it ends, what death does."""

import numpy as np
import pytest

from stepdown.evaluation.decisions import CONTEXT, follow_stays, make_decisions
from stepdown.evaluation.importance import make_paths
from stepdown.problem.hours import cut_stays
from stepdown.signals import LEVEL
from tests.evaluation.stays import hourly_reward, hours, make_cohort


def test_a_decision_is_the_first_level_of_an_hour_and_held_if_no_other_follows():
    inside = np.concatenate([hours(6, 6), [6, 6, 6, 8, 8, 8], hours(8)])
    found = make_decisions(make_cohort([inside, hours(5, 4, 4, 4)]))
    assert found.level.tolist() == [6, 6, 8, 4, 4, 4]
    assert found.held.tolist() == [True, False, True, True, True, True]
    assert found.moved[1].tolist() == [False, False, True, False, False]
    assert found.follows.tolist() == [True, True, False, True, True, False]
    assert found.patient.tolist() == [0, 0, 0, 1, 1, 1]
    # the state's level is that of the hour: a mean of 7 after the raise
    assert found.state[:, -1, LEVEL].tolist() == [6, 6, 7, 5, 4, 4]
    held = found.held
    assert found.reward[held] == pytest.approx(hourly_reward(found.level[held]), abs=1e-5)


def test_windows_know_where_they_begin_also_behind_a_gap():
    gap = np.concatenate([hours(6, 6), [6, 6], np.zeros(7, int), hours(5, 5, 5)])
    cohort = make_cohort([gap, hours(7, 7)])
    cut = cut_stays(cohort)
    assert cut.start.tolist() == [0, 21, 27, 0]
    assert cut.patient.tolist() == [0, 0, 0, 1]
    found = make_decisions(cohort)
    assert found.follows.tolist() == [False, True, False, False]


def test_episodes_stop_where_a_stay_does_and_never_cross_patients():
    found = make_decisions(make_cohort([hours(6, 6, 6), hours(*[5] * 9)]))
    paths = make_paths(found, 6)
    assert paths.known.sum(1).tolist() == [2, 1, 6, 6, 6, 5, 4, 3, 2, 1]
    assert paths.patient.tolist() == [0, 0] + 8 * [1]
    for row, known, start in zip(paths.row, paths.known, np.arange(10), strict=True):
        last = int(known.sum()) - 1
        assert row.tolist() == [start + min(i, last) for i in range(6)]


def test_hours_from_death_on_score_the_minimum():
    """The patient of two whole hours dies twenty minutes into the third."""
    dies = np.concatenate([hours(6, 6), [6, 6]])
    cohort = make_cohort([dies, hours(5, 5)])
    found = make_decisions(cohort, np.array([True, False]))
    assert found.dead.tolist() == [False, True, False]
    assert found.start.tolist() == [True, False, True]  # no whole hour follows: not a start
    assert found.reward[1] == -2.0
    paths = make_paths(found, 4)
    assert paths.known.tolist() == [[True] * 4, [True, False, False, False]]
    assert paths.gone.tolist() == [[False, False, True, True], [False] * 4]
    # at the very end of a whole hour: that hour is the last
    found = make_decisions(make_cohort([hours(6, 6, 6)]), np.array([True]))
    assert found.dead.tolist() == [False, True]
    assert found.reward[1] == -2.0
    # nobody told: an end like any other
    assert not make_decisions(cohort).dead.any()


def test_the_past_is_read_off_the_stay():
    past = follow_stays(make_cohort([np.concatenate([hours(6, 6), [6, 6, 4, 4, 4, 4], hours(4)])]))
    ends = np.array([6, 12, 18, 24]) - 1
    assert past.unchanged[0, ends] == pytest.approx([1.0, 2.0, 4 / 6, 10 / 6])
    assert past.hours[0, ends] == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert past.jump[0, ends].tolist() == [0, 0, -2, -2]
    assert past.lowest[0, ends].tolist() == [6, 6, 4, 4]
    assert past.changes[0, ends].tolist() == [0, 0, 1, 1]


def test_what_cannot_be_used_is_refused():
    with pytest.raises(ValueError, match="no policy was trained on, got train"):
        make_decisions(make_cohort([hours(6, 6)], role="train"))
    with pytest.raises(ValueError, match="expected stays with two whole hours"):
        make_decisions(make_cohort([hours(6)]))
    with pytest.raises(ValueError, match="expected one flag for each of 1 patients, got 2"):
        make_decisions(make_cohort([hours(6, 6)]), np.array([True, False]))
    with pytest.raises(ValueError, match="expected levels P0 to P9, got 11"):
        make_decisions(make_cohort([hours(6, 11, 6)]))


def test_every_column_of_the_context_has_a_name():
    stay = np.concatenate([hours(6, 6), [6, 6, 4, 4, 4, 4], hours(4, 4)])
    found = make_decisions(make_cohort([stay, hours(*[8] * 6)]))
    assert found.context.shape[1] == len(CONTEXT) == len(set(CONTEXT))
    column = dict(zip(CONTEXT, found.next_context.T, strict=True))
    after = found.next_state
    # one scale for all: higher means more
    assert np.argsort(column["mean map"]).tolist() == np.argsort(after[:, :, 0].mean(1)).tolist()
    assert column["at P8"].argmax() >= 4
    assert (column["last change"][1:4] < column["last change"][4:].min()).all()
    assert np.allclose(column["mean tau"], 0.0)  # nobody measured it
