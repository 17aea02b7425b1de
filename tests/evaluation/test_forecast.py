"""Scores of forecasts: pencil numbers, independent CRPS, honest bands, no leaks."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.stats
import scoringrules
from jaxtyping import Array, Float

from stepdown.evaluation.forecast import (
    ForecastScores,
    HorizonConfig,
    changed_before,
    compare_forecasts,
    crps,
    grow_errors,
    inside,
    level_stays,
    pit_values,
    rank_place,
    score_forecasts,
    summarize,
    summarize_growth,
    trend_of,
)
from stepdown.handover import Transitions
from stepdown.problem.hours import find_runs
from stepdown.problem.scaling import Scaler
from stepdown.signals import HR, LEVEL, MAP, PULSATILITY, SPEED

PATIENTS, HOURS = 12, 9
SD = jnp.full(12, 2.0).at[SPEED].set(1000.0)
SCALE = Scaler(jnp.zeros(12), SD, tuple(range(12)))


class Walk(eqx.Module):
    """The last sample for the whole hour, off by `bias`, with noise of its own."""

    bias: Float[Array, ""]
    sd: Float[Array, ""]

    def center(self, state, level):
        """The last sample and the bias."""
        hour = jnp.broadcast_to(state[-1:] + self.bias, state.shape)
        return hour.at[:, LEVEL].set(jnp.mean(level.astype(float)))

    def __call__(self, state, level, *, key):
        """One draw."""
        noise = self.sd * jr.normal(key, state.shape)
        return self.center(state, level) + noise.at[:, LEVEL].set(0.0)


def walk(bias: float = 0.0, sd: float = 1.0) -> Walk:
    return Walk(jnp.asarray(bias), jnp.asarray(sd))


def record(seed: int = 0) -> Transitions:
    """Hourly rows whose next hour is the last sample plus unit noise in every signal."""
    rng = np.random.default_rng(seed)
    state, later = [], []
    level = rng.integers(2, 10, (PATIENTS, HOURS + 1))
    level[:, 1::2] = level[:, ::2][:, : level[:, 1::2].shape[1]]  # every other hour it stays
    for row in range(PATIENTS):
        hour = np.full((6, 13), 70.0)
        for step in range(HOURS):
            hour[:, LEVEL] = level[row, step]
            state.append(hour)
            hour = hour[-1:] + rng.normal(size=(6, 13))
            hour[:, LEVEL] = level[row, step + 1]
            later.append(hour)
    count = PATIENTS * HOURS
    zero = jnp.zeros(count)
    return Transitions(
        state=jnp.asarray(state, jnp.float32),
        level=jnp.asarray(level[:, 1:].ravel()),
        levels=jnp.asarray(np.tile(level[:, 1:].reshape(-1, 1), (1, 6))),
        reward=zero,
        unshaped=zero,
        next_state=jnp.asarray(later, jnp.float32),
        last=jnp.asarray(np.tile(np.arange(HOURS) == HOURS - 1, PATIENTS)),
        died=jnp.zeros(count, bool),
        filled=jnp.zeros(count, bool),
        patient=jnp.asarray(np.repeat(np.arange(PATIENTS), HOURS)),
        role="test",
    )


@pytest.fixture(scope="module")
def hours() -> Transitions:
    return record()


def scored(forecaster, hours, key: int = 1) -> ForecastScores:
    return score_forecasts(forecaster, hours, SCALE, key=jr.key(key))


@pytest.fixture(scope="module")
def honest(hours) -> ForecastScores:
    return scored(walk(), hours)


def test_crps_agrees_with_scoringrules_and_with_the_double_sum():
    draws = np.array(jr.normal(jr.key(0), (50, 7)) * 3 + 40_000)
    truth = np.array(jr.normal(jr.key(1), (7,)) * 5 + 40_000)
    ours = np.asarray(crps(jnp.asarray(draws), jnp.asarray(truth)))
    theirs = scoringrules.crps_ensemble(
        truth.astype(float), draws.T.astype(float), estimator="fair"
    )
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-5, atol=1e-5)
    pairs = [abs(a - b) for i, a in enumerate(draws[:, 0]) for b in np.delete(draws[:, 0], i)]
    by_hand = np.mean(np.abs(draws[:, 0] - truth[0])) - 0.5 * np.mean(pairs)
    assert ours[0] == pytest.approx(by_hand, rel=1e-4)


def test_crps_of_two_draws_by_hand():
    """|0 − 1| and |4 − 1| have the mean 2; the two draws lie 4 apart; 2 − 4/2 = 0."""
    assert crps(jnp.array([0.0, 4.0]), jnp.array(1.0)) == pytest.approx(0.0)
    assert crps(jnp.array([3.0, 3.0]), jnp.array(1.0)) == pytest.approx(2.0)  # a point: its error


def test_crps_is_proper_where_rewarding_confidence_is_not():
    """For a standard normal truth the true sd wins, with the closed form as its value.

    Without the spread term, as where draws are only compared with the truth, the narrowest wins.
    """
    truth = jr.normal(jr.key(2), (4000,))
    noise = jr.normal(jr.key(3), (50, 4000))
    sds = [0.25, 0.5, 0.8, 1.0, 1.25, 2.0]
    ours = [float(jnp.mean(crps(sd * noise, truth))) for sd in sds]
    naive = [float(jnp.mean(jnp.abs(sd * noise - truth[None]))) for sd in sds]
    assert sds[int(np.argmin(ours))] == 1.0
    assert sds[int(np.argmin(naive))] == 0.25
    closed = np.mean(scoringrules.crps_normal(np.asarray(truth, float), 0.0, 1.0))
    assert ours[3] == pytest.approx(closed, abs=0.01)


@pytest.mark.parametrize("count", [2, 19, 50])
def test_bands_cover_what_they_say_when_truth_is_one_of_the_draws(count):
    """Summed over every rank the truth can have, the coverage is exact for any number of draws."""
    draws = jnp.linspace(0.0, 1.0, count)
    between = jnp.concatenate([draws[:1] - 1, (draws[1:] + draws[:-1]) / 2, draws[-1:] + 1])
    low, high = rank_place(jnp.broadcast_to(draws[:, None], (count, count + 1)), between)
    for nominal in (0.5, 0.9, 0.33):
        assert inside(low, high, nominal).mean() == pytest.approx(nominal, abs=1e-6)


def test_a_truth_that_equals_draws_shares_their_places():
    """Three equal draws and one above: ranks 0 to 3 of four, hence 0 to 4/5."""
    low, high = rank_place(jnp.array([5.0, 5.0, 5.0, 9.0]), jnp.array(5.0))
    assert (float(low), float(high)) == pytest.approx((0.0, 0.8))
    assert inside(low, high, 0.6) == pytest.approx(0.6 / 0.8)  # 0.2 to 0.8 of 0 to 0.8


def test_an_honest_forecaster_covers_and_its_pit_is_uniform(honest):
    found = summarize(honest)
    assert found["coverage50"] == pytest.approx(0.5, abs=0.02)
    assert found["coverage90"] == pytest.approx(0.9, abs=0.015)
    pit = pit_values(honest.low, honest.high, key=jr.key(5))
    assert pit.shape == (PATIENTS * HOURS, 6, 12)
    assert scipy.stats.kstest(pit.ravel(), "uniform").pvalue > 0.01
    over_confident = rank_place(jr.normal(jr.key(1), (50, 999)) / 3, jr.normal(jr.key(2), (999,)))
    narrow = pit_values(*over_confident, key=jr.key(3))
    assert scipy.stats.kstest(narrow, "uniform").pvalue < 1e-6


def test_point_scores_by_hand(hours):
    """Truth is 70 in every signal but MAP, which is 78 in the first half; the forecast is 71.

    MAP is off by 7 or 1. It falls by 4 · 9/17.5 = 2.06 mmHg per 10 min; the forecast is flat.
    """
    later = hours.next_state.at[:, :, :LEVEL].set(70.0).at[:, :3, MAP].set(78.0)
    state = hours.state.at[:, :, :LEVEL].set(70.0)
    flat = eqx.tree_at(lambda h: (h.state, h.next_state), hours, (state, later))
    found = summarize(scored(walk(bias=1.0, sd=0.0), flat))
    assert found["mae_map"] == pytest.approx((7 + 1) / 2)
    assert found["mse_map"] == pytest.approx((49 + 1) / 2)
    assert found["mae"] == pytest.approx((11 * 1 + 4) / 12)
    assert found["mae_published"] == pytest.approx((9 * 1 + 4 + 1 / 10 + 1 / 0.01) / 12)
    assert found["crps_published"] == pytest.approx(found["mae_published"])
    assert found["mae_z"] == pytest.approx((10 * 0.5 + 0.001 + 4 / 2) / 12)
    assert found["mse_z"] == pytest.approx((10 * 0.25 + 1e-6 + 25 / 4) / 12)
    assert found["crps"] == pytest.approx(found["mae"])  # all draws equal: a point forecast
    assert found["crps_z"] == pytest.approx(found["mae_z"])
    assert found["coverage90"] == found["coverage50"] == 0.0
    assert found["signals"]["map"]["mae"] == pytest.approx(4.0)
    assert found["signals"]["speed"] == pytest.approx(
        {"mae": 1.0, "mae_z": 1e-3, "mse": 1.0, "crps": 1.0, "crps_z": 1e-3}
        | {"coverage50": 0.0, "coverage90": 0.0}
    )
    assert (found["trend"], found["trend_base"]) == (0.0, 1.0)


def test_parts_add_up_to_the_whole(honest):
    found = summarize(honest)
    parts = [found["levels"][f"P{level}"] for level in range(2, 10)]
    for split in (parts, [found["static"], found["changing"]]):
        rows = np.array([part["rows"] for part in split])
        assert rows.sum() == found["rows"] == PATIENTS * HOURS
        for name in ("mae", "crps_z", "coverage90"):
            values = np.array([part[name] or 0.0 for part in split])
            assert values @ rows / rows.sum() == pytest.approx(found[name])
    for part in ("static", "changing"):
        for name in ("mae", "mae_z"):
            assert found[f"{name}_{part}"] == pytest.approx(found[part][name])
    assert found["coverage90_changing"] == pytest.approx(found["changing"]["coverage90"])
    for name in ("mae", "crps", "crps_z", "coverage50", "coverage90"):
        each = [one[name] for one in found["signals"].values()]
        assert np.mean(each) == pytest.approx(found[name], rel=1e-5)
    assert min(found["static"]["rows"], found["changing"]["rows"]) > 20
    json.dumps(found, allow_nan=False)


def test_hours_in_which_the_level_changes_have_their_own_scores(hours):
    """The forecaster says what the level of each sample is; where it moves, other rows are off."""
    moving = np.array(hours.levels)
    moving[::3, 4:] = 2 + (moving[::3, 4:] - 1) % 8
    moving = dataclasses.replace(hours, levels=jnp.asarray(moving))
    assert moving.changed.tolist() == [i % 3 == 0 for i in range(len(hours.level))]
    truth = hours.next_state.at[..., :LEVEL].set(moving.levels[..., None].astype(float))
    exact = summarize(scored(Told(), dataclasses.replace(moving, next_state=truth)))
    assert exact["mae"] == 0.0  # it was told the level of each sample
    found = summarize(scored(walk(), moving))
    assert found["inside"]["rows"] == moving.changed.sum()
    assert found["mae_z_inside"] == pytest.approx(found["inside"]["mae_z"])
    assert found["crps_z_inside"] == pytest.approx(found["inside"]["crps_z"])
    assert found["coverage90_inside"] == pytest.approx(found["inside"]["coverage90"])
    assert summarize(scored(walk(), hours))["mae_z_inside"] is None
    grown = grow_errors(
        Told(),
        dataclasses.replace(moving, next_state=truth, state=_chained(hours, truth)),
        HorizonConfig(hours=2, draws=2),
        key=jr.key(0),
    )
    assert np.all(grown.absolute == 0)  # the recorded sequences are played


def _chained(hours, truth):
    """States that are the next states of the rows before."""
    first = np.asarray(hours.state)[:1]
    state = np.concatenate([first, np.asarray(truth)[:-1]])
    begins = np.append(True, np.asarray(hours.last)[:-1])
    return jnp.where(begins[:, None, None], hours.state, state)


class Told(eqx.Module):
    """Every signal is the level of its sample."""

    def center(self, state, level):
        """As told."""
        return jnp.broadcast_to(level[:, None].astype(float), state.shape)

    def __call__(self, state, level, *, key):
        """The same for any key."""
        return self.center(state, level)


def test_a_level_that_nobody_chose_has_no_scores(hours):
    held = eqx.tree_at(lambda h: h.level, hours, jnp.full_like(hours.level, 4))
    found = summarize(scored(walk(), held))
    assert found["levels"]["P7"]["rows"] == 0
    assert found["levels"]["P7"]["mae"] is None
    assert found["levels"]["P4"]["mae"] == pytest.approx(found["mae"])


def levels_that_change(flags: list[bool]):
    """P5 throughout, but for the last sample of the hours that change inside."""
    return jnp.full((len(flags), 6), 5).at[:, -1].add(jnp.asarray(flags, int))


def test_levels_stay_only_if_nothing_changes_over_two_hours(hours):
    """Rows: stays; chosen differs; changes inside; first hour changed inside; another patient."""
    state = jnp.full((5, 6, 13), 5.0)  # every hour looks like the one before
    later = state
    rows = dataclasses.replace(
        jax.tree.map(lambda x: x[:5], hours),
        state=state,
        next_state=later,
        level=jnp.array([5, 6, 5, 5, 5]),
        levels=levels_that_change([False, False, True, True, False]),
        last=jnp.zeros(5, bool),
        patient=jnp.array([0, 0, 0, 0, 1]),
    )
    assert level_stays(rows).tolist() == [True, False, False, False, True]
    calm = dataclasses.replace(rows, levels=levels_that_change([False, False, True, False, False]))
    assert level_stays(calm).tolist() == [True, False, False, False, True]  # row 3 begins after 2
    assert changed_before(calm).tolist() == [False, False, False, True, False]
    gap = dataclasses.replace(calm, last=jnp.array([False, False, True, False, False]))
    assert level_stays(gap).tolist() == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("drift", "expected"), [(2.0, 1), (1.99, 0), (0.0, 0), (-1.99, 0), (-2.0, -1), (-5.0, -1)]
)
def test_trends_begin_at_two_mmhg_per_ten_minutes(drift, expected):
    line = 64.0 + drift * jnp.arange(6)
    assert int(trend_of(line)) == expected
    assert int(trend_of(64.0 + drift / 2 * jnp.arange(12))) == expected  # samples every 5 min


def test_a_better_forecaster_is_told_from_an_equal_one(hours, honest):
    worse = scored(walk(bias=0.7), hours)
    for metric in ("mae_z", "crps", "mae_map", "mae_changing"):
        difference, low, high = compare_forecasts(honest, worse, metric)
        assert difference < 0
        assert high < 0
        assert low <= difference <= high
    again = scored(walk(), hours, key=9)
    assert compare_forecasts(honest, again, "mae_z") == (0.0, 0.0, 0.0)  # the same center
    _, low, high = compare_forecasts(honest, again, "crps_z")
    assert low < 0 < high
    one = compare_forecasts(honest, worse, "crps_z")
    assert compare_forecasts([honest, honest], [worse], "crps_z") == pytest.approx(one)


def test_comparisons_need_the_same_rows_and_a_known_metric(hours, honest):
    other = scored(walk(), record(seed=1))
    with pytest.raises(ValueError, match="scored on the same rows"):
        compare_forecasts(honest, other, "mae")
    scale = dataclasses.replace(SCALE, sd=SD * 2)
    mine = score_forecasts(walk(), hours, scale, key=jr.key(0))
    with pytest.raises(ValueError, match="one scale for both"):
        compare_forecasts(honest, mine, "mae_z")
    with pytest.raises(ValueError, match="expected a metric out of mae, "):
        compare_forecasts(honest, honest, "speed")


@pytest.mark.parametrize("role", ["train", "select", "all"])
def test_patients_of_another_role_are_refused(hours, role):
    rows = dataclasses.replace(hours, role=role)
    with pytest.raises(ValueError, match=f"expected test patients, got {role} patients"):
        scored(walk(), rows)
    with pytest.raises(ValueError, match=f"expected test patients, got {role} patients"):
        grow_errors(walk(), rows, key=jr.key(0))


def test_select_patients_are_scored_only_when_asked_for(hours, honest):
    rows = dataclasses.replace(hours, role="select")
    found = score_forecasts(walk(), rows, SCALE, role="select", key=jr.key(1))
    assert found.role == "select"
    np.testing.assert_array_equal(found.crps, honest.crps)
    with pytest.raises(ValueError, match="expected select patients, got test patients"):
        score_forecasts(walk(), hours, SCALE, role="select", key=jr.key(1))


def test_signals_that_the_scale_does_not_know_are_left_out(hours, honest):
    few = dataclasses.replace(SCALE, present=(MAP, HR, PULSATILITY))
    empty = hours.next_state.at[:, :, SPEED].set(jnp.nan)
    rows = dataclasses.replace(hours, next_state=empty)
    found = score_forecasts(walk(), rows, few, key=jr.key(1))
    assert np.isnan(found.absolute[:, SPEED]).all()
    expected = np.asarray(honest.absolute)[:, [MAP, HR, PULSATILITY]].mean()
    assert summarize(found)["mae"] == pytest.approx(expected)
    assert list(summarize(found)["signals"]) == ["map", "hr", "pulsatility"]
    with pytest.raises(ValueError, match="expected speed in every scored hour"):
        scored(walk(), rows)


def test_a_forecaster_without_a_signal_is_refused(hours):
    with pytest.raises(ValueError, match="expected finite forecasts of map, got others"):
        scored(walk(bias=float("nan")), hours)


def test_runs_never_cross_the_end_of_a_record(hours):
    runs = find_runs(hours, 6)
    assert runs.tolist() == [p * HOURS + h for p in range(PATIENTS) for h in range(HOURS - 5)]
    assert find_runs(hours, 1).tolist() == list(range(PATIENTS * HOURS))
    with pytest.raises(ValueError, match="expected 11 recorded hours in a row"):
        find_runs(hours, 10)


def test_errors_of_a_random_walk_grow_with_the_root_of_time(hours):
    """Each hour adds a unit of variance at its end, and every sample one of its own.

    So hour h is off by a normal error of variance h on average: E|e| = sqrt(2 h / π). The draws
    grow alike, so the bands keep covering.
    """
    found = summarize_growth(
        grow_errors(walk(), hours, HorizonConfig(draws=50, starts=40), key=jr.key(4))
    )
    assert list(found) == ["map", "hr", "pulsatility"]
    mae = np.mean([found[name]["mae"] for name in found], axis=0)
    expected = np.sqrt(2 * np.arange(1, 7) / np.pi)
    np.testing.assert_allclose(mae, expected, rtol=0.25)
    cover = np.mean([found[name]["coverage90"] for name in found], axis=0)
    np.testing.assert_allclose(cover, 0.9, atol=0.08)
    for name in found:
        assert np.shape(found[name]["sd"]) == (6,)
        assert min(found[name]["sd"]) > 0


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="at least 1 hour, 1 start and 2 draws"):
        HorizonConfig(hours=0)
