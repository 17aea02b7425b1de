"""Absent signals: the conditional mean by the textbook, identities, and what is refused."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepdown.problem.filling import (
    RIDGE,
    SUBSETS,
    Relations,
    expect_scores,
    filled_words,
    fit_relations,
)
from stepdown.problem.hours import keep_signals
from stepdown.problem.scaling import Scaler, fit_scaler
from stepdown.signals import (
    DBP,
    ESE,
    HR,
    KNOWN,
    LEVEL,
    LEVELS,
    LVEDP,
    MAP,
    NAMES,
    PULSATILITY,
    REQUIRED,
    SBP,
    TAU,
)
from tests.twin.toys import SELECT, TRAIN

SIGNALS, STEPS = 12, 6
SCALER = fit_scaler(TRAIN)
fill_one = eqx.filter_jit(SCALER.fill)
fill_many = jax.jit(jax.vmap(SCALER.fill))


def some_relations(seed: int) -> Relations:
    draw = np.random.default_rng(seed)
    between, within = (x @ x.T / 20 for x in draw.normal(size=(2, SIGNALS, 20)))
    parts = draw.normal(size=(len(LEVELS), SIGNALS)), between, 0.3 * within
    return Relations(*(jnp.asarray(x, jnp.float32) for x in parts))


def textbook(relations: Relations, scores: np.ndarray, level: int, known: np.ndarray) -> np.ndarray:
    """All samples of the hour in one normal vector, conditioned by np.linalg."""
    by_level, between, within = (
        np.asarray(x, np.float64) for x in (relations.by_level, relations.between, relations.within)
    )
    between, within = (x + RIDGE * np.diag(np.diagonal(x)) for x in (between, within))
    every, mean = np.ones((STEPS, STEPS)), np.tile(by_level[level - 2], STEPS)
    whole = np.kron(every, between - within / STEPS) + np.kron(np.eye(STEPS), within)
    told = np.tile(known, STEPS)
    weights = np.linalg.solve(whole[np.ix_(told, told)], (scores.ravel() - mean)[told])
    found = mean + whole[:, told] @ weights
    return found.reshape(STEPS, SIGNALS)


@given(st.integers(0, 10_000))
def test_what_is_expected_is_the_conditional_mean_of_a_normal_hour(seed):
    draw = np.random.default_rng(seed)
    relations, level = some_relations(seed % 7), int(draw.integers(2, 10))
    known = draw.random(SIGNALS) < 0.6
    known[list(REQUIRED)] = True
    scores = draw.normal(size=(STEPS, SIGNALS)).astype(np.float32)
    seen = jnp.asarray(np.where(known, scores, np.nan))
    found = jax.jit(expect_scores)(relations, seen, jnp.asarray(float(level)), jnp.asarray(known))
    expected = textbook(relations, scores, level, known)
    np.testing.assert_allclose(found[:, ~known], expected[:, ~known], atol=2e-4)


def test_relations_are_moments_of_the_hours():
    draw = np.random.default_rng(3)
    level = np.repeat([3.0, 6.0], 4000)
    own = draw.normal(size=(8000, 1, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    scores = own + 0.5 * draw.normal(size=(8000, STEPS, 2)) + (level == 6)[:, None, None]
    found = fit_relations(scores, level)
    np.testing.assert_allclose(np.asarray(found.by_level)[[1, 4]], [[0, 0], [1, 1]], atol=0.05)
    alike = np.array([[1.0, 0.8], [0.8, 1.0]])
    np.testing.assert_allclose(found.between, alike + 0.25 / STEPS * np.eye(2), atol=0.05)
    np.testing.assert_allclose(found.within, 0.25 * 5 / 6 * np.eye(2), atol=0.01)


def test_levels_without_hours_lean_on_the_line_through_the_others():
    level = np.repeat([4.0, 6.0], 100)
    scores = np.repeat(level, STEPS).reshape(200, STEPS, 1)
    found = fit_relations(scores, level)
    np.testing.assert_allclose(found.by_level[:, 0], LEVELS, atol=1e-5)


def test_a_signal_that_follows_from_others_is_found_again():
    state = np.array(TRAIN.state)
    state[..., LVEDP] = 0.5 * state[..., HR] - 0.2 * state[..., MAP]
    scaler = fit_scaler(dataclasses.replace(TRAIN, state=jnp.asarray(state)))
    gone = jnp.asarray(state[:50]).at[..., LVEDP].set(jnp.nan)
    found = jax.vmap(scaler.fill)(gone)[..., LVEDP]
    spread = float(scaler.sd[LVEDP])
    np.testing.assert_allclose(found, state[:50, :, LVEDP], atol=0.02 * spread)


def test_nothing_is_changed_where_nothing_is_missing():
    np.testing.assert_array_equal(fill_many(SELECT.state), SELECT.state)


@pytest.mark.parametrize("count", SUBSETS)
def test_only_what_is_absent_is_filled(count):
    poorer = keep_signals(SELECT, SUBSETS[count]).state
    found = np.asarray(fill_many(poorer))
    kept = ~np.isnan(np.asarray(poorer))
    np.testing.assert_array_equal(found[kept], np.asarray(SELECT.state)[kept])
    assert np.isfinite(found).all()
    ranges = np.array([KNOWN[name].hard for name in NAMES])
    assert ((found[..., :LEVEL] >= ranges[:, 0]) & (found[..., :LEVEL] <= ranges[:, 1])).all()


@pytest.mark.parametrize("gone", [(SBP,), (DBP,), (SBP, DBP)])
def test_filled_pressures_keep_mean_and_pulsatility(gone):
    state = SELECT.state.at[..., np.array(gone)].set(jnp.nan)
    found = np.asarray(fill_many(state))
    pulse = found[..., SBP] - found[..., DBP]
    np.testing.assert_allclose(pulse, np.asarray(state)[..., PULSATILITY], atol=1e-4)
    assert (found[..., DBP] <= found[..., MAP] + 1e-4).all()
    assert (found[..., MAP] <= found[..., SBP] + 1e-4).all()
    if len(gone) == 1:
        np.testing.assert_allclose(found, SELECT.state, atol=1e-3)


def test_subsets_hold_what_is_required_and_shrink():
    for count, names in SUBSETS.items():
        assert len(names) == len(set(names)) == count
        assert {NAMES[i] for i in REQUIRED} <= set(names) <= set(NAMES)
    ordered = list(SUBSETS.values())
    assert all(set(few) < set(many) for many, few in zip(ordered, ordered[1:], strict=False))


def test_what_is_absent_is_named_and_said():
    poorer = keep_signals(SELECT, SUBSETS[9]).state
    assert SCALER.absent(poorer) == ("lvp", "tau", "ese")
    assert SCALER.absent(SELECT.state) == ()
    assert filled_words(("lvp", "tau", "ese")) == (
        "Mean LV pressure, LV relaxation constant and End-systolic elastance were absent and "
        "filled with what the other signals let expect."
    )
    assert filled_words(("tau",)).startswith("LV relaxation constant was absent and filled")


def test_a_scale_without_a_signal_does_not_ask_for_it():
    refitted = fit_scaler(keep_signals(TRAIN, SUBSETS[7]))
    assert refitted.names == SUBSETS[7]
    poorer = keep_signals(SELECT, SUBSETS[7]).state
    assert refitted.absent(poorer) == ()
    np.testing.assert_array_equal(jax.vmap(refitted.fill)(poorer), poorer)


def test_what_cannot_be_filled_is_refused_in_words():
    for column in REQUIRED:
        state = SELECT.state[0].at[:, column].set(jnp.nan)
        with pytest.raises(ValueError, match=f"expected {NAMES[column]}, got none"):
            SCALER.absent(state)
        assert np.isnan(fill_one(state.at[:, TAU].set(jnp.nan))[:, [column, TAU]]).all()
    with pytest.raises(ValueError, match="expected tau in every sample or in none"):
        SCALER.absent(SELECT.state[0].at[2, TAU].set(jnp.nan))
    with pytest.raises(ValueError, match="expected hr among the signals"):
        keep_signals(SELECT, ("map", "pulsatility"))
    with pytest.raises(ValueError, match="got 'lactat'"):
        keep_signals(SELECT, ("map", "hr", "pulsatility", "lactat"))


def test_a_scale_made_by_hand_fills_nothing():
    scaler = Scaler(jnp.zeros(12), jnp.ones(12), tuple(range(12)))
    state = SELECT.state[0].at[:, ESE].set(jnp.nan)
    np.testing.assert_array_equal(scaler.fill(state), state)
