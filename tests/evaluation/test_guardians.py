"""Shifts move what they say, and the scores of a shift equal their textbook definitions."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepdown.evaluation.guardians import (
    LEVEL_SHIFTS,
    STATE_SHIFTS,
    SearchConfig,
    auroc,
    score_shifts,
    search_guardian,
    shift_levels,
    shift_states,
    small_change_alarms,
    swap_levels,
)
from stepdown.guardian.threshold import Guardian, make_guardian
from stepdown.problem.scaling import fit_scaler
from tests.guardian.decisions import Normal, normal, ward

TRAIN, SELECT, TEST = ward("train"), ward("select", seed=1), ward("test", seed=2)


@pytest.fixture(scope="module")
def guardian() -> Guardian:
    return make_guardian(normal(TRAIN), SELECT)


@given(st.lists(st.integers(0, 6), min_size=1), st.lists(st.integers(0, 6), min_size=1))
def test_auroc_is_the_rank_statistic_with_half_ties(inside, outside):
    """SciPy's Mann-Whitney U over all pairs."""
    ids, odd = np.array(inside, float), np.array(outside, float)
    expected = stats.mannwhitneyu(ids, odd, method="asymptotic").statistic / (len(ids) * len(odd))
    assert auroc(ids, odd) == pytest.approx(expected)


def test_an_offset_moves_every_signal_by_its_sd_for_the_whole_hour():
    scaler = fit_scaler(TRAIN)
    moved = shift_states(TEST.state, scaler, 0.5, key=jr.key(0))
    change = np.asarray((moved - TEST.state)[..., :12]) / np.asarray(scaler.sd)
    np.testing.assert_allclose(np.abs(change), 0.5, rtol=1e-3)
    np.testing.assert_allclose(change, np.repeat(change[:, :1], 6, axis=1), rtol=1e-3)
    assert np.mean(change > 0) == pytest.approx(0.5, abs=0.05)
    np.testing.assert_array_equal(moved[..., 12], TEST.state[..., 12])


def test_noise_moves_every_sample_on_its_own():
    scaler = fit_scaler(TRAIN)
    moved = shift_states(TEST.state, scaler, 2.0, kind="noise", key=jr.key(0))
    change = np.asarray((moved - TEST.state)[..., :12]) / np.asarray(scaler.sd)
    assert change.std() == pytest.approx(2.0, rel=0.05)
    assert np.corrcoef(change[:, 0, 0], change[:, 1, 0])[0, 1] == pytest.approx(0.0, abs=0.2)
    np.testing.assert_array_equal(moved[..., 12], TEST.state[..., 12])


@pytest.mark.parametrize("size", [1, 3, 5])
def test_levels_move_by_as_many_within_the_range(size):
    levels = jnp.tile(jnp.arange(2, 10), 50)
    moved, possible = (np.asarray(x) for x in shift_levels(levels, size, key=jr.key(0)))
    before = np.asarray(levels)
    np.testing.assert_array_equal(np.abs(moved - before)[possible], size)
    assert moved.min() >= 2
    assert moved.max() <= 9
    np.testing.assert_array_equal(possible, (before + size <= 9) | (before - size >= 2))
    both = (before + size <= 9) & (before - size >= 2)
    if both.any():
        assert 0.2 < np.mean(moved[both] > before[both]) < 0.8


def test_swapped_levels_differ_and_follow_the_levels_in_use():
    levels = jnp.asarray([6] * 500 + [7] * 300 + [9] * 200)
    swapped = np.asarray(swap_levels(levels, key=jr.key(0)))
    assert np.all(swapped != np.asarray(levels))
    assert set(swapped) == {6, 7, 9}
    assert np.mean(swapped[:500] == 7) == pytest.approx(0.6, abs=0.08)
    with pytest.raises(ValueError, match="the same level in all"):
        swap_levels(jnp.full(5, 6), key=jr.key(0))


def test_scores_of_a_guardian(guardian):
    found, moved = score_shifts(guardian, TEST, key=jr.key(0))
    scores = np.asarray(normal(TRAIN).log_densities(TEST.state, TEST.level))
    np.testing.assert_allclose(moved[0].log_density, scores, rtol=1e-5)
    p = [(1 + np.sum(np.asarray(guardian.scores) <= s)) / 201 for s in moved[0].log_density]
    for row in found["false_alarms"]:
        assert row["real"] == pytest.approx(np.mean(np.array(p) <= row["asked"] + 1e-7))
    share = np.mean(moved[0].log_density < float(guardian.threshold))
    assert found["threshold_alarms"] == share
    kinds = [(row["kind"], row["size"]) for row in found["shifts"]]
    sizes = {"offset": STATE_SHIFTS, "noise": STATE_SHIFTS, "action": LEVEL_SHIFTS}
    assert kinds == [(kind, size) for kind, own in sizes.items() for size in own]
    by = dict(zip(kinds, found["shifts"], strict=True))
    assert by["offset", 4]["auroc"] > by["offset", 1]["auroc"] > 0.6
    assert by["offset", 4]["recall"] == 1.0
    assert found["patients"] == 10


def test_recorded_small_changes_are_counted_alone():
    before = np.round(np.asarray(TEST.state)[:, -1, 12])
    changed = np.asarray(TEST.level) != before
    p_value = np.where(changed, 0.04, 0.5)
    p_value[np.flatnonzero(changed)[:3]] = 0.06
    found = small_change_alarms(p_value, TEST, 0.05)
    assert found["decisions"] == changed.sum()
    assert found["refused"] == pytest.approx(1 - 3 / changed.sum())
    assert found["by_size"] == {"1": found["refused"], "2": None}


def test_the_search_prefers_a_guardian_that_sees_choices():
    """Of two weights the heavier one tells swaps apart; a blind one is not allowed."""

    def fit(weight: float, bandwidth: float) -> Normal:
        return normal(TRAIN, weight)

    config = SearchConfig(weights=(0.01, 3.0), bandwidths=(1.0,), shares=(1.0, 0.0), shift=4.0)
    best, trials = search_guardian(fit, SELECT, config, key=jr.key(0))
    assert [(one.weight, one.share) for one in trials] == [(0.01, 1), (0.01, 0), (3, 1), (3, 0)]
    assert trials[0].swapped == pytest.approx(0.5, abs=0.02)
    assert best == trials[2]  # joint, heavy; the conditional one does not look at states
    assert not trials[3].allowed
    # by hand: the joint density at weight 3, recorded against swapped choices
    swaps = swap_levels(SELECT.level, key=jr.split(jr.key(0))[0])
    density = normal(TRAIN, 3.0)
    recorded, swapped = (
        np.asarray(density.log_densities(SELECT.state, level)) for level in (SELECT.level, swaps)
    )
    wins = np.mean(recorded[:, None] > swapped[None]) + np.mean(recorded[:, None] == swapped) / 2
    assert best.swapped == pytest.approx(wins, abs=1e-3)


def test_wrong_input_is_refused(guardian):
    with pytest.raises(ValueError, match="expected test patients, got select"):
        score_shifts(guardian, SELECT, key=jr.key(0))
    holed = eqx.tree_at(lambda t: t.state, TEST, TEST.state.at[3, 2, 1].set(jnp.nan))
    with pytest.raises(ValueError, match="expected a finite log density for every test decision"):
        score_shifts(guardian, holed, key=jr.key(0))
    narrow = eqx.tree_at(lambda t: t.state, TEST, TEST.state[..., :12])
    with pytest.raises(ValueError, match="expected states of 13 columns .* got"):
        score_shifts(guardian, narrow, key=jr.key(0))
