"""The ledger: past forecasts scored by hand, and nothing of the future in them."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.app.gates import UNKNOWN
from stepdown.app.ledger import (
    ROWS,
    Book,
    Past,
    Scored,
    coverage_curve,
    keep_book,
    past_hours,
    skill_so_far,
)


@pytest.fixture(scope="module")
def stay(service):
    return next(iter(service.stays.values()))


@pytest.fixture(scope="module")
def book(engine, stay):
    return keep_book(engine, past_hours(stay, 6, engine.used))


def test_hours_are_those_of_the_recording(stay, book):
    past = book.past
    assert len(past.level) == 23
    np.testing.assert_array_equal(past.end, 10.0 * np.arange(11, 144, 6))
    np.testing.assert_allclose(past.state[3, :, 0], stay.signals[18:24, 0], rtol=1e-6)
    np.testing.assert_allclose(past.later[3, :, 0], stay.signals[24:30, 0], rtol=1e-6)
    levels = stay.level[24:30]
    assert past.level[3] == np.floor(levels.mean() + 0.5)
    assert past.changed[3] == (levels != levels[0]).any()


def test_scores_are_what_a_slow_count_gives(engine, book):
    past, scored = book.past, book.scored
    draws = jax.jit(jax.vmap(lambda s, p, k: engine.twin(s, p, key=k), (None, None, 0)))
    for row in (0, 7, 22):
        keys = jr.split(jr.fold_in(jr.key(0), row % ROWS), engine.draws)
        drawn = np.asarray(draws(jnp.asarray(past.state[row]), jnp.asarray(past.level[row]), keys))
        for column, index in enumerate((0, 6, 9)):
            low, middle, high = np.quantile(drawn[..., index], [0.05, 0.5, 0.95], axis=0)
            truth = past.later[row, :, index]
            assert scored.held[row, column] == (low[-1] <= truth[-1] <= high[-1])
            assert scored.error[row, column] == pytest.approx(
                np.abs(middle - truth).mean(), rel=1e-3
            )
            carried = np.abs(past.state[row, -1, index] - truth).mean()
            assert scored.carried[row, column] == pytest.approx(carried, rel=1e-3)


def test_skill_counts_the_hours_that_are_over():
    """By hand: four hours, one of them with a change inside."""
    ones = np.ones((4, 3), np.float32)
    held = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]], np.float32)
    scored = Scored(held=held, place=0.5 * ones, error=2 * ones, carried=4 * ones)
    past = past_like(end=[60.0, 120.0, 180.0, 240.0], changed=[False, False, True, False])
    book = Book(past, scored)
    found = skill_so_far(book, minute=185.0)
    assert (found["of"], found["left_out"], found["held"]) == (2, 1, 1)
    assert found["coverage90"] == 0.5
    assert found["vs_persistence"] == -0.5
    assert found["words"] == ("90 % band of MAP held 1 of 2 times; error 50 % below carry-forward.")
    late = skill_so_far(book, minute=240.0, hours=1.5)
    assert (late["of"], late["left_out"]) == (1, 1)  # 180 to 240, one of which changed
    early = skill_so_far(book, minute=30.0)
    assert early["coverage90"] is None
    assert early["words"] == "No forecast of this patient is over yet."


def past_like(end, changed):
    count = len(end)
    return Past(
        state=np.zeros((count, 6, 13), np.float32),
        level=np.full(count, 5, np.int32),
        later=np.zeros((count, 6, 13), np.float32),
        end=np.array(end),
        changed=np.array(changed),
    )


def test_the_future_of_a_recording_changes_nothing(engine, stay, book):
    """As a recording unfolds: the ledger at ten hours knows nothing of the eleventh."""
    cut = dataclasses.replace(stay, signals=stay.signals[:61], level=stay.level[:61])
    short = skill_so_far(keep_book(engine, past_hours(cut, 6, engine.used)), minute=600.0)
    assert short == skill_so_far(book, minute=600.0)
    assert short["of"] + short["left_out"] == 9


def test_hours_with_a_gap_are_left_out(engine, stay):
    signals, level = stay.signals.copy(), stay.level.copy()
    signals[20], level[20] = np.nan, UNKNOWN
    gappy = dataclasses.replace(stay, signals=signals, level=level)
    assert len(past_hours(gappy, 6, engine.used).level) == 21  # the hour before it and its own


def test_a_perfectly_placed_truth_gives_a_straight_curve():
    place = np.repeat(((np.arange(1000) + 0.5) / 1000)[:, None], 3, axis=1).astype(np.float32)
    empty = np.zeros_like(place)
    for one in coverage_curve(Scored(empty, place, empty, empty)):
        assert one["covered"] == pytest.approx(one["claimed"], abs=0.002)
