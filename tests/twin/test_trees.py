"""Boosted trees as a row of forecasts: they learn, draw honest hours, read what they are told."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.forecast import score_drawn, score_forecasts, summarize
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import HR, MAP, PULSATILITY
from stepdown.twin.fit import fit_twin
from stepdown.twin.trees import Trees, TreesConfig, carried, fit_trees, tree_inputs
from tests.test_history import SELECT as REMEMBERED
from tests.test_history import TRAIN as REMEMBERING
from tests.test_history import last_hour
from tests.twin.toys import SELECT, TRAIN, pocket, toy_hours

FEW = {"rounds": 30, "leaves": 7}
TEST = toy_hours(96, "test", 2)


def only_map(hours):
    """MAP alone is forecast: seventy other trees would take a minute."""
    wanted = np.isin(np.arange(13), (MAP, HR, PULSATILITY, 12))  # and the level
    state, later = (
        jnp.where(wanted[None, None], x, jnp.nan) for x in (hours.state, hours.next_state)
    )
    return replace(hours, state=state, next_state=later)


def test_trees_beat_persistence_and_cover_what_they_say():
    train, select, test = (only_map(hours) for hours in (TRAIN, SELECT, TEST))
    trees = fit_trees(train, select, TreesConfig(**FEW))
    scores = score_drawn(
        trees.center(test), trees.draw(test, 50, key=jr.key(0)), test, fit_scaler(train)
    )
    found = summarize(scores)
    alone = np.abs(carried(test, "cp") - test.next_state)[..., MAP].mean()
    assert found["mae_map"] < 0.7 * alone
    assert 0.8 < found["coverage90"] < 0.97
    assert set(found["signals"]) == {"map", "hr", "pulsatility"}


def test_trees_read_earlier_hours():
    """Where MAP lies where the hour before last put it, trees of one hour cannot know."""
    error = {}
    for history in (1, 3):
        cut = (lambda hours: hours) if history == 3 else last_hour
        train, select = (only_map(cut(hours)) for hours in (REMEMBERING, REMEMBERED))
        trees = fit_trees(train, select, TreesConfig(history, **FEW))
        error[history] = np.abs(trees.center(select) - select.next_state)[..., MAP].mean()
        assert tree_inputs(train).shape[1] == 72 + 1 + 12 + 13 * (history - 1)
    assert error[3] < 0.6 * error[1]
    with pytest.raises(ValueError, match="expected states of 3 h, .* got states of 1 h"):
        trees.center(last_hour(select))
    with pytest.raises(ValueError, match="expected at least 1 round and 2 leaves"):
        TreesConfig(rounds=0)


def test_a_draw_is_the_center_and_a_whole_hour_of_errors():
    errors = np.arange(2 * 6 * 13, dtype=np.float32).reshape(2, 6, 13)
    trees = Trees({}, errors, TreesConfig())
    drawn = trees.draw(TEST, 7, key=jr.key(3))
    rest = drawn - carried(TEST, "cp")[:, None]
    away = np.abs(rest[:, :, None] - errors[None, None]).max((3, 4))  # from each of the two
    assert drawn.shape == (96, 7, 6, 13)
    assert (away.min(-1) < 0.5).all()
    assert (away.argmin(-1) == 0).any(axis=1).mean() > 0.9  # both are drawn
    assert (away.argmin(-1) == 1).any(axis=1).mean() > 0.9


def test_scores_are_the_same_however_forecasts_come():
    """A twin's draws handed over as numbers score as the twin does."""
    twin, _ = fit_twin(TRAIN, SELECT, pocket("persistence"), key=jr.key(0))
    scaler = fit_scaler(TRAIN)
    own = score_forecasts(twin, TEST, scaler, draws=5, key=jr.key(4))

    def one(state, levels, number):
        keys = jr.split(jr.fold_in(jr.key(4), number), 5)
        return jax.vmap(lambda key: twin(state, levels, key=key))(keys), twin.center(state, levels)

    drawn, center = jax.jit(jax.vmap(one))(TEST.state, TEST.levels, jnp.arange(96))
    given = score_drawn(np.asarray(center), np.asarray(drawn), TEST, scaler)
    np.testing.assert_allclose(given.crps, own.crps, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(given.absolute, own.absolute, rtol=1e-3, atol=1e-5)
