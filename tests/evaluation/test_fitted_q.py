"""Fitted Q evaluation: exact on a tabular patient, whatever decisions were recorded."""

import numpy as np
import pytest

from stepdown.evaluation.fitted_q import (
    KEY_COLUMNS,
    Course,
    Lessons,
    count_patients,
    decision_features,
    expected_features,
    fit_q,
    fqe_values,
)
from stepdown.signals import LOWEST
from tests.evaluation.tabular import (
    HOURS,
    NEXT,
    POLICY,
    REWARD,
    START,
    exact_decisions,
    exact_values,
)

TRUTH = float(START @ exact_values()[-1])


def tabular(recorded: np.ndarray, deadly: float = 0.0) -> tuple[Lessons, Course]:
    """Sums of an infinite cohort: one feature for each condition and treatment.

    `recorded` is how often each of the four was seen; a share `deadly` of condition 1 under
    treatment 0 is not survived and scores -2 from then on.
    """
    lives = np.array([1.0, 1.0, 1 - deadly, 1.0])
    after = np.einsum("sat,tb->satb", NEXT, POLICY).reshape(4, 4)
    pay = REWARD.ravel() * lives - 2.0 * (1 - lives)
    lessons = Lessons(
        table=np.zeros((0, 4)),
        weight=np.zeros(0),
        square=np.diag(recorded)[None],
        reward=(recorded * pay)[None],
        lost=(recorded * (1 - lives))[None],
        floor=-2.0,
    )
    course = Course(
        ahead=(np.diag(recorded * lives) @ after)[None],
        start=(START[:, None] * POLICY).reshape(1, 4),
        starts=np.ones(1),
    )
    return lessons, course


@pytest.mark.parametrize("recorded", [(0.25, 0.25, 0.25, 0.25), (0.9, 0.05, 0.04, 0.01)])
def test_values_are_those_of_dynamic_programming(recorded):
    lessons, course = tabular(1e6 * np.array(recorded))
    counted = count_patients(lessons, np.ones((1, 1)), 1e-6)
    found = fit_q(lessons, course, counted, HOURS)[0]
    assert found == pytest.approx(exact_decisions().reshape(HOURS, 4), abs=1e-6)
    assert fqe_values(lessons, course, counted, HOURS)[0] == pytest.approx(TRUTH, abs=1e-6)


def test_hours_after_death_score_the_minimum():
    """By hand: treatment 0 of condition 1 is never survived, so -2 for every hour to go."""
    lessons, course = tabular(np.full(4, 1e6), deadly=1.0)
    counted = count_patients(lessons, np.ones((1, 1)), 1e-6)
    found = fit_q(lessons, course, counted, HOURS)[0].reshape(HOURS, 2, 2)
    assert found[:, 1, 0] == pytest.approx([-2.0, -4.0, -6.0], abs=1e-5)


def test_a_patient_counted_twice_is_two_patients():
    draw = np.random.default_rng(0)
    parts = [tabular(1e4 * draw.random(4)) for _ in range(3)]

    def join(order):
        def stack(side, name):
            return np.concatenate([getattr(parts[i][side], name) for i in order])

        sums = {name: stack(0, name) for name in ("square", "reward", "lost")}
        own = np.array([1.0, 0.8, 1.3])[list(order)][:, None]  # patients differ
        sums["reward"] = sums["reward"] * own
        lessons = Lessons(np.zeros((0, 4)), np.zeros(0), **sums, floor=0.0)
        return lessons, Course(*(stack(1, name) for name in ("ahead", "start", "starts")))

    once, twice = join((0, 1, 2)), join((0, 1, 2, 1))
    ours = fqe_values(*once, count_patients(once[0], np.array([[1.0, 2.0, 1.0]]), 1.0))
    theirs = fqe_values(*twice, count_patients(twice[0], np.ones((1, 4)), 1.0))
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9)


def test_features_tell_levels_and_changes_apart():
    context = np.zeros((3, 20), np.float32)
    context[:, KEY_COLUMNS[0]] = 2.0
    now = np.array([6, 6, 6])
    table = decision_features(context, now, np.array([6, 4, 7]))
    one, seen, ways, levels, joined = np.split(table, [1, 21, 25, 33], axis=1)
    assert one.tolist() == [[1], [1], [1]]
    assert seen == pytest.approx(context)
    assert ways.tolist() == [[0, 0, 0, 0], [2, 0, 1, 0], [0, 1, 0, 1]]  # down, up, any down, any up
    assert levels.argmax(1).tolist() == [6 - LOWEST, 4 - LOWEST, 7 - LOWEST]
    assert levels.sum(1).tolist() == [1, 1, 1]
    keys = sum(column < 20 for column in KEY_COLUMNS)
    assert joined.shape == (3, 3 * keys)
    first = joined[:, ::keys]  # the first key column times down, up and the level, from P5.5
    assert first == pytest.approx(2.0 * np.array([[0, 0, 0.25], [2, 0, -0.75], [0, 1, 0.75]]))
    # a policy that throws between two levels has the mean of their features
    half = np.zeros((3, 8))
    half[:, [0, 4]] = 0.5
    mean = decision_features(context, now, now) + decision_features(context, now, now - 4)
    assert expected_features(context, now, half) == pytest.approx(mean / 2)
