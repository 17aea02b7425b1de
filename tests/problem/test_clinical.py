"""Clinical numbers by pencil and paper, and the laws that they obey (docs/definitions.md)."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array

from stepdown.handover import Episodes, Transitions
from stepdown.problem.clinical import (
    PAPER,
    STRICT_LIMITS,
    action_change,
    cardiac_power,
    fit_reward_scale,
    normalized_reward,
    raw_reward,
    reward_parts,
    shaped_reward,
    slope,
    stable_by_both,
    stable_by_gradient,
    stable_by_limits,
    staircase_parts,
    staircase_score,
    weaned,
)
from stepdown.problem.metrics import score_episode
from stepdown.signals import HR, LEVEL, LVEDP, MAP, PULSATILITY

BEST = 1.7018 / 2.6621  # 0.639, an hour without any charge
NAN = float("nan")
Samples = float | Sequence[float]


def hour(
    pressure: Samples = 80.0,
    rate: Samples = 75.0,
    pulse: Samples = 30.0,
    lvedp: Samples = NAN,
    level: int = 8,
    steps: int = 6,
) -> Array:
    """One hour; a number holds for all samples, a list gives each of them."""
    state = np.full((steps, 13), NAN, np.float32)
    state[:, [MAP, HR, PULSATILITY, LVEDP, LEVEL]] = np.transpose(
        [np.broadcast_to(values, steps) for values in (pressure, rate, pulse, lvedp, level)]
    )
    return jnp.array(state)


def line(start, step, steps=6):
    return [start + step * k for k in range(steps)]


SCORE = eqx.filter_jit(score_episode)
CALM, LOW = hour(), hour(pressure=55.0)


def score(states, levels, alive=None, config=PAPER):
    alive = jnp.ones(len(levels) - 1, bool) if alive is None else alive
    return SCORE(Episodes(states, levels, alive), config)


def weaning(levels, stable: list[bool]):
    """The weaning score after hours that are within the limits, or are not."""
    calm = jnp.array([*stable, True])[:, None, None]
    return score(jnp.where(calm, CALM[None], LOW[None]), levels)["ws_limits"]


def levels_of(*levels):
    return jnp.array(levels)


reward_of = jax.jit(normalized_reward)
gradient_of = jax.jit(jax.grad(lambda state: normalized_reward(state) + raw_reward(state)))
both_sides = dataclasses.replace(PAPER, both_sides=True)
samples = st.lists(st.floats(0, 250, width=32), min_size=6, max_size=6)
paths = st.lists(st.integers(2, 9), min_size=7, max_size=7)


# ── reward by hand ───────────────────────────────────────────────────────────────────────────────


def test_a_comfortable_hour_costs_nothing_and_scores_the_maximum():
    assert raw_reward(hour()) == 0.0
    assert normalized_reward(hour()) == pytest.approx(0.639, abs=5e-4)


def test_hypotension_is_charged_by_the_lowest_sample():
    parts = reward_parts(hour(pressure=[80, 80, 40, 80, 80, 80]))
    assert parts.hypotension == pytest.approx(7.0)  # 7 · (60 − 40) / 20
    assert reward_parts(hour(pressure=60.0)).hypotension == 0.0


def test_hypertension_starts_at_106_not_115():
    assert reward_parts(hour(pressure=106.0)).hypertension == 0.0
    assert reward_parts(hour(pressure=115.0)).hypertension == pytest.approx(0.5)  # 9 / 18
    one_peak = reward_parts(hour(pressure=[100, 100, 100, 100, 100, 136]))  # mean 106
    assert one_peak.hypertension == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("rate", [59.2, 75.0, 90.8])
def test_heart_rate_is_free_from_59_2_to_90_8(rate):
    assert reward_parts(hour(rate=rate)).heart_rate == 0.0


@pytest.mark.parametrize(
    ("rate", "charge"),
    [(59.0, 0.024), (91.0, 0.024), (50.0, 1.5), (100.0, 1.5), (25.0, 9.0)],
)
def test_heart_rate_is_charged_outside_even_within_50_to_100(rate, charge):
    assert reward_parts(hour(rate=rate)).heart_rate == pytest.approx(charge, abs=1e-5)


def test_only_the_slowest_heart_rate_counts_unless_both_sides_do():
    racing = hour(rate=[80, 80, 125, 125, 125, 125])
    assert reward_parts(racing).heart_rate == 0.0
    assert reward_parts(racing, both_sides).heart_rate == pytest.approx(9.0)  # 50² / 250 − 1
    swinging = hour(rate=[50, 75, 75, 75, 75, 100])
    assert reward_parts(swinging, both_sides).heart_rate == pytest.approx(3.0)  # 1.5 + 1.5


@pytest.mark.parametrize("rate", [40.0, 125.0])
def test_both_sides_charge_a_constant_rate_once(rate):
    state = hour(rate=rate)
    assert reward_parts(state, both_sides).heart_rate == reward_parts(state).heart_rate > 0.0


@pytest.mark.parametrize(
    ("pulse", "low", "high"), [(10.0, 3.5, 0.0), (20.0, 0.0, 0.0), (50.0, 0.0, 0.0), (60.0, 0, 0.5)]
)
def test_pulsatility_is_free_from_20_to_50(pulse, low, high):
    parts = reward_parts(hour(pulse=pulse))
    assert parts.low_pulsatility == pytest.approx(low)
    assert parts.high_pulsatility == pytest.approx(high)


def test_pulsatility_is_charged_by_the_lowest_sample():
    dip, peak = hour(pulse=[30, 30, 15, 30, 30, 30]), hour(pulse=[30, 30, 70, 30, 30, 30])
    assert reward_parts(dip).low_pulsatility == pytest.approx(1.75)  # 7 · (20 − 15) / 20
    assert reward_parts(peak).high_pulsatility == 0.0


def test_charges_add_up_and_are_normalized_by_the_paper():
    state = hour(pressure=58.0, rate=50.0, pulse=18.0)  # 0.7 + 1.5 + 0.7
    assert raw_reward(state) == pytest.approx(-2.9, abs=1e-5)
    assert normalized_reward(state) == pytest.approx((1.7018 - 2.9) / 2.6621, abs=1e-5)
    assert normalized_reward(hour(pressure=20.0)) == -2.0  # raw −14, far below the clip


def test_reward_scale_can_be_fitted_to_train_patients_only():
    states = jnp.stack([hour(), hour(pressure=40.0)])  # raw 0 and −7
    hours = Transitions(
        state=states,
        level=levels_of(8, 8),
        levels=jnp.full((2, 6), 8),
        reward=jnp.zeros(2),
        unshaped=jnp.zeros(2),
        next_state=states,
        last=jnp.array([False, True]),
        died=jnp.array([False, False]),
        filled=jnp.array([False, False]),
        patient=levels_of(0, 0),
        role="train",
    )
    config = fit_reward_scale(hours)
    assert (config.reward_mean, config.reward_sd) == pytest.approx((-3.5, 3.5))
    assert normalized_reward(hour(), config) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="expected train patients"):
        fit_reward_scale(dataclasses.replace(hours, role="test"))
    same = dataclasses.replace(hours, next_state=jnp.stack([hour(), hour()]))
    with pytest.raises(ValueError, match="different rewards"):
        fit_reward_scale(same)


# ── missing samples ──────────────────────────────────────────────────────────────────────────────


def test_a_missing_sample_is_left_out():
    state = hour(pressure=[NAN, 50, 70, 90, 110, 130], rate=[75, NAN, 75, 75, 75, 75])
    assert raw_reward(state) == pytest.approx(-3.5)  # minimum 50; mean 90
    assert slope(state[:, MAP]) == pytest.approx(20.0)
    assert not stable_by_limits(state)
    slopes = jax.grad(normalized_reward)(state)
    assert jnp.isfinite(slopes).all()
    assert slopes[0, MAP] == 0.0


@pytest.mark.parametrize("column", [MAP, HR, PULSATILITY])
def test_an_unseen_signal_is_never_praised(column):
    state = hour().at[:, column].set(jnp.nan)
    assert jnp.isnan(normalized_reward(state))
    assert jnp.isnan(staircase_score(state))
    assert not stable_by_limits(state)
    assert not stable_by_gradient(state)
    assert score(jnp.stack([hour(), state]), levels_of(8, 8))["unsafe_hours"] == 1.0


def test_one_sample_has_no_slope_and_is_not_steady():
    alone = [NAN] * 5 + [80.0]
    assert not stable_by_gradient(hour(pressure=alone))


# ── stability by hand ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "state",
    [
        hour(pressure=[80, 80, 80, 60, 80, 80]),
        hour(rate=[75, 75, 50, 75, 75, 75]),
        hour(pulse=[30, 10, 30, 30, 30, 30]),
    ],
)
def test_a_minimum_exactly_at_a_limit_is_not_stable(state):
    assert stable_by_limits(hour(pressure=60.1, rate=50.1, pulse=10.1))
    assert not stable_by_limits(state)


def test_strict_limits_ask_for_a_pulsatility_above_20():
    state = hour(pulse=15.0)
    assert stable_by_limits(state)
    assert not stable_by_limits(state, STRICT_LIMITS)
    assert stable_by_limits(hour(pulse=20.1), STRICT_LIMITS)


@pytest.mark.parametrize(("column", "threshold"), [(MAP, 1.36), (HR, 2.16), (PULSATILITY, 1.95)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_slopes_below_their_thresholds_are_steady(column, threshold, sign):
    slower, faster = (jnp.array(line(80.0, sign * (threshold + by))) for by in (-0.01, 0.01))
    assert stable_by_gradient(hour().at[:, column].set(slower))
    assert not stable_by_gradient(hour().at[:, column].set(faster))


def test_slope_is_that_of_least_squares():
    # Times −2.5 .. 2.5, Σt² = 17.5; a single 35 at the end adds 2.5 · 35.
    assert slope(jnp.array([0.0, 0.0, 0.0, 0.0, 0.0, 35.0])) == pytest.approx(5.0)


def test_slope_of_twelve_and_of_four_samples_by_hand():
    # 12 samples, 5 min apart: times −27.5 .. 27.5 min, Σt² = 2 · 25 · (0.5² + 1.5² + … + 5.5²)
    # = 3575 min². A single 65 at the end: 27.5 · 65 / 3575 = 0.5 per min, 5 per 10 min.
    assert slope(jnp.array([0.0] * 11 + [65.0])) == pytest.approx(5.0)
    # 4 samples, 15 min apart: times −22.5, −7.5, 7.5, 22.5 min, Σt² = 1125 min²; the values give
    # 22.5 · 4 + 7.5 · 2 + 7.5 · 2 + 22.5 · 4 = 210, so 0.18667 per min.
    assert slope(jnp.array([-4.0, -2.0, 2.0, 4.0])) == pytest.approx(28 / 15)
    # The same without its second sample: times 0, 30, 45 around 25, values −4, 2, 4 around 2/3:
    # Σt·x = 25 · 14/3 + 5 · 4/3 + 20 · 10/3 = 190, Σt² = 1050.
    assert slope(jnp.array([-4.0, NAN, 2.0, 4.0])) == pytest.approx(1900 / 1050)


@pytest.mark.parametrize("steps", [3, 6, 12])
def test_slopes_are_per_ten_minutes_for_any_sampling_of_the_hour(steps):
    drift = 1.8  # mmHg per 10 min
    values = line(70.0, drift * 6 / steps, steps)
    assert slope(jnp.array(values)) == pytest.approx(drift, rel=1e-4)
    assert not stable_by_gradient(hour(pressure=values, steps=steps))
    assert stable_by_gradient(hour(rate=values, steps=steps))


def test_steady_and_safe_are_different_questions():
    low, falling = hour(pressure=45.0), hour(pressure=line(90.0, -4.0))
    assert stable_by_gradient(low)
    assert not stable_by_limits(low)
    assert stable_by_limits(falling)
    assert not stable_by_gradient(falling)
    assert stable_by_both(hour())
    assert not stable_by_both(low)
    assert not stable_by_both(falling)


def test_unsafe_hours_are_a_share():
    states = jnp.stack([hour(), hour(), hour(pressure=55.0), hour(), hour(rate=45.0)])
    levels = levels_of(*[8] * 5)
    assert score(states, levels)["unsafe_hours"] == 0.5
    dying = jnp.array([True, True, False, False])
    assert score(states, levels, dying)["unsafe_hours"] == 0.75


# ── changes of level by hand ─────────────────────────────────────────────────────────────────────


def test_acp_of_8_7_4_6_6_is_3_and_the_total_change_6():
    levels = levels_of(8, 7, 4, 6, 6)
    assert action_change(levels) == 3.0
    assert action_change(levels, threshold=0) == 6.0


def test_a_change_of_exactly_two_is_not_above_two():
    assert action_change(levels_of(8, 6)) == 0.0
    assert action_change(levels_of(6, 8)) == 0.0
    assert action_change(levels_of(8, 5)) == 3.0
    assert action_change(levels_of(8, 6), threshold=1) == 2.0


def test_acp_counts_the_change_from_the_level_in_force():
    assert action_change(levels_of(3, 8, 8, 8, 8, 8, 8)) == 5.0  # the paper's own example


@pytest.mark.parametrize(
    ("drop", "gain"), [(-7, -1), (-2, -1), (-1, -1), (0, 0), (1, 1), (2, 2), (3, 0), (7, 0)]
)
def test_small_drops_are_rewarded_and_every_rise_costs_one(drop, gain):
    assert weaned(jnp.array(drop)) == gain


def test_weaning_score_averages_stable_decisions_only():
    levels = levels_of(8, 7, 4, 6, 6)  # weaned 1, 0, −1, 0
    assert weaning(levels, [True] * 4) == 0.0
    assert weaning(levels, [True, True, False, False]) == 0.5
    assert weaning(levels, [False, False, True, False]) == -1.0


def test_weaning_score_without_a_stable_hour_is_zero():
    assert weaning(levels_of(8, 7, 6), [False, False]) == 0.0


def test_weaning_score_can_exceed_one():
    assert weaning(levels_of(8, 6, 4, 2), [True] * 3) == 2.0


# ── shaping by hand ──────────────────────────────────────────────────────────────────────────────


def test_shaping_charges_a_jump_and_pays_for_weaning():
    shaped = partial(shaped_reward, jump_weight=0.5, weaning_weight=0.3)
    jump = shaped(hour(level=8), jnp.array(5), hour(level=5))
    drop = shaped(hour(level=8), jnp.array(6), hour(level=6))
    rise = shaped(hour(level=6), jnp.array(7), hour(level=7))
    assert jump == pytest.approx(BEST - 0.5 * 3)
    assert drop == pytest.approx(BEST + 0.3 * 2)
    assert rise == pytest.approx(BEST - 0.3)


def test_shaping_reads_stability_before_and_reward_after_the_decision():
    shaped = partial(shaped_reward, jump_weight=0.0, weaning_weight=0.3)
    unstable, safe = hour(pressure=50.0), hour()  # 50 mmHg: raw −3.5
    assert shaped(unstable, jnp.array(7), safe) == pytest.approx(BEST)
    after = shaped(safe, jnp.array(7), unstable)
    assert after == pytest.approx((1.7018 - 3.5) / 2.6621 + 0.3)


def test_shaping_uses_limits_not_gradients():
    falling = hour(pressure=line(90.0, -4.0))
    shaped = shaped_reward(falling, jnp.array(7), hour(), jump_weight=0.0, weaning_weight=1.0)
    assert shaped == pytest.approx(BEST + 1.0)


def test_shaping_follows_its_settings():
    def shaped(**settings):
        config = dataclasses.replace(PAPER, **settings)
        weights = {"jump_weight": 0.5, "weaning_weight": 0.3}
        return shaped_reward(hour(level=8), jnp.array(7), hour(level=7), **weights, config=config)

    assert shaped() == pytest.approx(BEST + 0.3)
    assert shaped(jump=0) == pytest.approx(BEST - 0.5 + 0.3)
    assert shaped(map_limit=85.0) == pytest.approx(BEST)  # the hour before is not stable then
    assert shaped(reward_sd=2 * 2.6621) == pytest.approx(BEST / 2 + 0.3)


# ── staircase by hand ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pressure", "points"),
    [(60.0, 0), (59.9, 1), (50.0, 1), (49.9, 3), (40.0, 3), (39.9, 7)],
)
def test_staircase_of_mean_and_minimum_pressure(pressure, points):
    parts = staircase_parts(hour(pressure=pressure))
    assert parts.mean_map == parts.min_map == points
    dip = staircase_parts(hour(pressure=[pressure, 90, 90, 90, 90, 90]))
    assert (dip.mean_map, dip.min_map) == (0, points)


@pytest.mark.parametrize(("low", "points"), [(0, 0), (1, 1), (2, 1), (3, 3), (5, 3), (6, 7)])
def test_staircase_of_the_time_below_60(low, points):
    pressure = [59.0] * low + [80.0] * (100 - low)  # a sample is one percent of the hour
    assert staircase_parts(hour(pressure=pressure, steps=100)).time_below == points


@pytest.mark.parametrize(("pulse", "points"), [(20.1, 0), (20.0, 5), (10.0, 5), (9.9, 7)])
def test_staircase_of_pulsatility(pulse, points):
    assert staircase_parts(hour(pulse=pulse)).pulsatility == points


@pytest.mark.parametrize(("rate", "points"), [(49.9, 3), (50.0, 0), (100.0, 0), (100.1, 3)])
def test_staircase_of_heart_rate(rate, points):
    assert staircase_parts(hour(rate=rate)).heart_rate == points


@pytest.mark.parametrize(
    ("lvedp", "points"), [(20.1, 7), (20.0, 4), (15.0, 4), (14.9, 3), (NAN, 0)]
)
def test_staircase_of_lvedp(lvedp, points):
    assert staircase_parts(hour(lvedp=lvedp)).lvedp == points


def test_cardiac_power_is_pressure_times_output_over_451():
    assert cardiac_power(jnp.array(90.2), jnp.array(5.0)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("output", "points"), [(5.1, 0), (4.9, 1), (3.1, 1), (2.9, 3), (2.6, 3), (2.4, 5)]
)
def test_staircase_of_cardiac_power(output, points):
    state = hour(pressure=90.2)  # 1 W needs 5 L/min, 0.6 W 3, 0.5 W 2.5
    assert staircase_parts(state, jnp.array(output)).power == points


def test_unknown_cardiac_output_counts_nothing():
    assert staircase_parts(hour()).power == 0
    assert staircase_parts(hour(), jnp.array(NAN)).power == 0


def test_staircase_adds_its_rows():
    assert staircase_score(hour()) == 0
    assert staircase_score(hour(lvedp=10.0)) == 3  # as printed, a low LVEDP still costs three
    worst = hour(pressure=30.0, rate=130.0, pulse=5.0, lvedp=30.0)
    assert staircase_score(worst, jnp.array(2.0)) == 43


# ── episodes ─────────────────────────────────────────────────────────────────────────────────────


def test_an_episode_scores_at_most_3_836_and_at_least_minus_12():
    held = levels_of(*[8] * 7)
    best = score(jnp.stack([hour()] * 7), held)
    worst = score(jnp.stack([hour(pressure=20.0)] * 7), held)
    assert best["reward"] == pytest.approx(3.836, abs=5e-4)
    assert worst["reward"] == pytest.approx(-12.0)
    assert (best["unsafe_hours"], worst["unsafe_hours"]) == (0.0, 1.0)


def test_an_episode_is_scored_by_hand():
    drifting = hour(pressure=line(90.0, -4.0))  # 90 .. 70: within limits, not steady
    low = hour(pressure=55.0)  # steady, outside the limits; raw −1.75
    states = jnp.stack([hour(), drifting, low, hour()])
    scores = score(states, levels_of(8, 7, 5, 9))  # weaned 1, 2, −1
    assert scores["reward"] == pytest.approx(2 * BEST + (1.7018 - 1.75) / 2.6621, abs=1e-5)
    assert scores["acp"] == 4.0
    assert scores["total_change"] == 7.0
    assert scores["ws_gradient"] == 0.0  # hours 0 and 2: (1 − 1) / 2
    assert scores["ws_limits"] == 1.5  # hours 0 and 1: (1 + 2) / 2
    assert scores["ws_both"] == 1.0  # hour 0
    assert scores["unsafe_hours"] == pytest.approx(1 / 3)


def test_the_first_hour_earns_nothing_and_the_last_decides_nothing():
    low = hour(pressure=55.0)
    levels = levels_of(8, 7, 6)
    before = score(jnp.stack([low, hour(), hour()]), levels)
    after = score(jnp.stack([hour(), hour(), low]), levels)
    assert before["reward"] == pytest.approx(2 * BEST)
    assert before["unsafe_hours"] == 0.0
    assert after["ws_limits"] == 1.0
    assert after["unsafe_hours"] == 0.5


def test_hours_after_death_score_the_minimum_and_wean_nobody():
    states = jnp.stack([hour()] * 4).at[2:].set(jnp.nan)
    levels = levels_of(8, 7, 7, 6)
    dead = score(states, levels, jnp.array([True, False, False]))
    assert dead["reward"] == pytest.approx(BEST - 4.0)
    assert dead["unsafe_hours"] == pytest.approx(2 / 3)
    assert dead["ws_gradient"] == dead["ws_limits"] == dead["ws_both"] == 0.5  # weaned 1, 0
    flat = score(jnp.stack([hour()] * 4), levels, jnp.array([True, False, False]))
    assert flat["ws_gradient"] == 0.5  # a flat line is not steadiness


def test_unsurvived_numbers_do_not_matter():
    states, levels = jnp.stack([hour()] * 4), levels_of(8, 7, 6, 5)
    dying = jnp.array([False, False, False])
    shown = score(states, levels, dying)
    hidden = score(states.at[1:].set(jnp.nan), levels, dying)
    assert jax.tree.leaves(shown) == jax.tree.leaves(hidden)


def test_an_episode_follows_its_settings():
    states, levels = jnp.stack([hour()] * 3), levels_of(8, 7, 6)

    def scores(alive=None, **settings):
        return score(states, levels, alive, dataclasses.replace(PAPER, **settings))

    usual, strict = scores(), scores(map_limit=85.0)
    assert (usual["ws_limits"], usual["ws_both"], usual["unsafe_hours"]) == (1.0, 1.0, 0.0)
    assert (strict["ws_limits"], strict["ws_both"], strict["unsafe_hours"]) == (0.0, 0.0, 1.0)
    assert strict["ws_gradient"] == usual["ws_gradient"] == 1.0
    never = scores(map_slope=0.0)
    assert (never["ws_gradient"], never["ws_both"], never["ws_limits"]) == (0.0, 0.0, 1.0)
    assert (usual["acp"], scores(jump=0)["acp"]) == (0.0, 2.0)
    assert scores(reward_sd=2 * 2.6621)["reward"] == pytest.approx(BEST)  # half of both hours
    dead = scores(jnp.array([False, False]), reward_clip=1.0)
    assert dead["reward"] == -2.0  # the minimum is then −1 an hour


def test_episodes_can_be_scored_in_a_batch():
    states, levels = jnp.stack([hour()] * 7), levels_of(8, 7, 6, 6, 2, 3, 3)
    batch = jax.vmap(score)(jnp.stack([states] * 2), jnp.stack([levels] * 2))
    assert batch["acp"].tolist() == [4.0] * 2
    assert batch["ws_gradient"].tolist() == pytest.approx([1 / 6] * 2)  # 1 + 1 + 0 + 0 − 1 + 0


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────


@given(samples, samples, samples)
def test_reward_is_bounded(pressure, rate, pulse):
    assert -2.0 <= reward_of(hour(pressure, rate, pulse)) <= 0.6393


@given(samples, samples, samples, st.permutations(range(6)))
def test_reward_ignores_the_order_of_samples(pressure, rate, pulse, order):
    state = hour(pressure, rate, pulse)
    shuffled = state[jnp.array(order)]
    assert reward_of(shuffled) == pytest.approx(float(reward_of(state)), abs=1e-5)


@given(
    st.lists(st.floats(20, 100, width=32), min_size=6, max_size=6),
    st.lists(st.floats(0, 50, width=32), min_size=6, max_size=6),
    st.integers(0, 5),
    st.floats(0, 50, width=32),
    st.sampled_from([MAP, PULSATILITY]),
)
def test_a_deeper_pressure_deficit_never_raises_the_reward(pressure, pulse, step, deeper, column):
    state = hour(pressure, 75.0, pulse)
    worse = state.at[step, column].add(-deeper)
    assert reward_of(worse) <= reward_of(state)


@given(samples, samples, samples)
def test_reward_gradients_are_finite(pressure, rate, pulse):
    state = hour(pressure, rate, pulse)
    slopes = gradient_of(state)
    assert jnp.isfinite(slopes).all()


def test_reward_gradients_point_to_the_lowest_sample():
    slopes = jax.grad(normalized_reward)(hour(pressure=[80, 80, 50, 80, 80, 80]))
    assert slopes[2, MAP] == pytest.approx(7 / 20 / 2.6621)
    assert jnp.count_nonzero(slopes) == 1


@given(samples, samples, samples)
def test_both_sides_never_charge_less(pressure, rate, pulse):
    state = hour(pressure, rate, pulse)
    assert raw_reward(state, both_sides) <= raw_reward(state)


@given(paths)
def test_acp_ignores_direction(path):
    levels = jnp.array(path)
    assert action_change(levels) == action_change(levels[::-1])
    assert 0.0 <= action_change(levels) <= action_change(levels, 0) <= 42.0


@given(paths, st.lists(st.booleans(), min_size=6, max_size=6))
def test_weaning_score_lies_between_minus_one_and_two(path, stable):
    assert -1.0 <= weaning(jnp.array(path), stable) <= 2.0


@given(samples, samples, st.integers(2, 9), st.integers(2, 9))
def test_shaping_without_weights_is_the_physiological_reward(before, after, level, choice):
    state, following = hour(before, level=level), hour(after, level=choice)
    shaped = shaped_reward(state, jnp.array(choice), following, jump_weight=0.0, weaning_weight=0.0)
    assert shaped == normalized_reward(following)


@given(samples, st.floats(-100, 100, width=32))
def test_slope_ignores_a_constant_offset(values, offset):
    values = jnp.array(values)
    assert slope(values + offset) == pytest.approx(float(slope(values)), abs=1e-3)


@given(
    st.lists(st.integers(60, 75), min_size=6, max_size=6),
    st.integers(-40, 40),
    st.sampled_from([MAP, HR, PULSATILITY]),
)
def test_gradient_stability_ignores_a_constant_offset(values, offset, column):
    state = hour(values, values, values)
    moved = state.at[:, column].add(float(offset))
    assert stable_by_gradient(moved) == stable_by_gradient(state)
