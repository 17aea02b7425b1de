"""Transitions: aligned, never across patients or gaps, of one role, with honest rewards."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepdown.handover import Cohort, Role, Transitions
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.clinical import PAPER, normalized_reward
from stepdown.problem.hours import (
    HoursConfig,
    NoiseConfig,
    add_noise,
    cut_stays,
    make_transitions,
)
from stepdown.problem.scaling import Scaler, fit_scaler
from stepdown.signals import CURRENT, HR, LEVEL, LEVELS, MAP, PULSATILITY, SPEED, TAU

PATIENTS, STEPS = 3, 40  # one shape for all laws


def ward(*, seen=None, level=None, role: Role = "train") -> Cohort:
    """Comfortable stays; motor current counts the samples, speed tells the patients apart."""
    shape = (PATIENTS, STEPS)
    signals = np.full((*shape, 12), 20.0, np.float32)
    for column, value in {
        MAP: 80.0,
        HR: 75.0,
        PULSATILITY: 30.0,
        7: 95.0,
        8: 65.0,
        11: 1.5,
    }.items():
        signals[..., column] = value
    signals[..., 3] = 3.0
    signals[..., TAU] = 45.0
    signals[..., CURRENT] = 300.0 + np.arange(STEPS)
    signals[..., SPEED] = 30_000.0 + np.arange(PATIENTS)[:, None]
    seen = np.ones(shape, bool) if seen is None else np.array(seen)
    level = np.full(shape, 6, np.int32) if level is None else np.asarray(level, np.int32)
    return Cohort(
        signals=jnp.asarray(np.where(seen[..., None], signals, np.nan)),
        level=jnp.asarray(np.where(seen, level, 0)),
        seen=jnp.asarray(seen),
        patient=tuple("abc"[:PATIENTS]),
        role=role,
    )


def put(cohort: Cohort, where, value) -> Cohort:
    return dataclasses.replace(cohort, signals=cohort.signals.at[where].set(value))


def first_samples(hours, states=None):
    """When each state began, read off the counting signal."""
    states = hours.state if states is None else states
    return np.asarray(states[:, 0, CURRENT]) - 300.0


# ── alignment ────────────────────────────────────────────────────────────────────────────────────


def test_hours_follow_one_another_sample_by_sample():
    hours = make_transitions(ward())
    counter = np.asarray(hours.state[..., CURRENT]) - 300.0
    assert first_samples(hours).tolist() == [0, 6, 12, 18, 24] * PATIENTS  # 40 samples: six hours
    assert np.array_equal(counter, counter[:, :1] + np.arange(6))
    assert np.array_equal(hours.next_state[..., CURRENT], hours.state[..., CURRENT] + 6)
    assert np.asarray(hours.last).tolist() == [False, False, False, False, True] * PATIENTS
    assert np.asarray(hours.patient).tolist() == [0] * 5 + [1] * 5 + [2] * 5


def test_a_death_ends_the_last_hour_behind_which_none_was_lived():
    """40 samples: the fifth row ends four samples before death. 36: its own hour was fatal."""
    seen = np.ones((PATIENTS, STEPS), bool)
    seen[1, 36:] = False
    seen[2, 27:] = False
    whole = ward(seen=seen)
    died = dataclasses.replace(whole, died=jnp.array([True, True, False]))
    plain, hours = make_transitions(whole), make_transitions(died)
    assert not plain.died.any()
    rows = np.flatnonzero(np.asarray(hours.last))
    assert np.flatnonzero(np.asarray(hours.died)).tolist() == rows[:2].tolist()
    np.testing.assert_array_equal(hours.next_state, plain.next_state)  # nothing is made up
    reward, before = np.asarray(hours.unshaped), np.asarray(plain.unshaped)
    assert reward[rows[1]] == -2.0 < before[rows[1]]
    others = np.arange(len(reward)) != rows[1]
    np.testing.assert_array_equal(reward[others], before[others])


def test_a_death_long_after_the_last_whole_hour_ends_nothing():
    """A sensor failed an hour before the end: what was lived in between is not known."""
    cohort = dataclasses.replace(ward(), died=jnp.array([True, False, False]))
    seen = np.array(cohort.seen)
    seen[0, 28:39] = False  # 12 samples from the last whole hour to the last sample
    hours = make_transitions(dataclasses.replace(cohort, seen=jnp.asarray(seen)))
    assert not hours.died.any()


def test_simulated_deaths_are_those_of_the_truth():
    cohort, latents = simulate_cohort(CohortConfig(patients=64), key=jr.key(2))
    hours = make_transitions(cohort)
    dead = np.flatnonzero(np.asarray(latents.outcome) == 2)
    assert 0 < len(dead) < 64
    assert np.asarray(hours.patient)[np.asarray(hours.died)].tolist() == dead.tolist()
    assert np.asarray(hours.last)[np.asarray(hours.died)].all()


def test_the_level_column_holds_the_hours_level_in_all_rows():
    level = np.full((PATIENTS, STEPS), 8)
    level[:, 6:] = 5
    hours = make_transitions(ward(level=level))
    assert np.all(np.asarray(hours.state[:5, :, LEVEL]) == [[8]] + 4 * [[5]])
    assert np.all(np.asarray(hours.next_state[..., LEVEL]) == np.asarray(hours.level)[:, None])
    assert not np.asarray(hours.changed).any()  # it changed between two hours


@pytest.mark.parametrize(
    ("samples", "mean", "mode"),
    [
        ([8, 8, 8, 8, 8, 4], 7, 8),  # 7.33
        ([6, 6, 6, 5, 5, 5], 6, 5),  # 5.5 goes up; of two equally frequent the lower
        ([7, 7, 7, 6, 6, 6], 7, 6),  # 6.5 goes up as well, not to the even one
        ([9, 9, 2, 2, 2, 2], 4, 2),  # 4.33
        ([3, 3, 3, 3, 3, 3], 3, 3),
        ([6, 6, 2, 6, 6, 6], 5, 6),  # 5.33; it ends as it began, and yet it changed
    ],
)
def test_a_recorded_hour_has_the_rounded_mean_or_the_most_frequent_level(samples, mean, mode):
    level = np.full((PATIENTS, STEPS), 6)
    level[:, 6:12] = samples
    by_mean = make_transitions(ward(level=level))
    by_mode = make_transitions(ward(level=level), HoursConfig(level="mode"))
    assert (by_mean.level[0], by_mode.level[0]) == (mean, mode)
    assert bool(by_mean.changed[0]) == (len(set(samples)) > 1)
    assert not np.asarray(by_mean.changed[1:5]).any()


@given(st.permutations(LEVELS), st.integers(0, 5))
def test_every_level_can_be_chosen(levels, offset):
    level = np.repeat(np.roll(levels, offset)[:6], 7)[:STEPS]
    level = np.broadcast_to(np.repeat(level[::7], 6)[:36], (PATIENTS, 36))
    level = np.pad(level, ((0, 0), (0, STEPS - 36)), mode="edge")
    hours = make_transitions(ward(level=level))
    assert np.asarray(hours.level[:5]).tolist() == level[0, 6:36:6].tolist()


def test_half_hourly_windows_slide():
    hours = make_transitions(ward(), HoursConfig(stride=30.0))
    assert first_samples(hours)[:10].tolist() == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]
    assert np.array_equal(hours.next_state[..., CURRENT], hours.state[..., CURRENT] + 6)


def test_windows_of_another_length_follow_one_another():
    rows = make_transitions(ward(), HoursConfig(stride=120.0, window=120.0))
    assert rows.state.shape == (3 * 2, 12, 13)  # 40 samples hold two pairs of two hours each
    counted = np.asarray(jnp.concatenate([rows.state, rows.next_state], 1))[..., CURRENT]
    assert np.array_equal(counted[0], 300.0 + np.arange(24))
    with pytest.raises(ValueError, match="window: expected at least 6 samples, got 3"):
        make_transitions(ward(), HoursConfig(window=30.0))


# ── gaps ─────────────────────────────────────────────────────────────────────────────────────────

runs = st.lists(st.tuples(st.integers(0, 1), st.integers(0, STEPS), st.integers(2, 9)), max_size=6)


@given(runs, st.sampled_from([60.0, 30.0, 10.0]))
def test_windows_never_cross_patients_or_gaps(gaps, stride):
    seen = np.ones((PATIENTS, STEPS), bool)
    for row, start, length in gaps:
        seen[row, start : start + length] = False
    windows = cut_stays(ward(seen=seen), stride=stride)  # what transitions are made of
    start, row = first_samples(windows).astype(int), windows.patient
    both = np.concatenate([windows.state, windows.next_state], axis=1)
    assert np.array_equal(both[..., SPEED], np.broadcast_to(30_000 + row[:, None], (len(row), 12)))
    assert np.array_equal(both[..., CURRENT], 300 + start[:, None] + np.arange(12))
    assert all(seen[r, s : s + 12].all() for r, s in zip(row, start, strict=True))


def test_a_gap_ends_a_record_and_the_hours_begin_anew_behind_it():
    seen = np.ones((PATIENTS, STEPS), bool)
    seen[0, 13:15] = False
    hours = make_transitions(ward(seen=seen))
    mine = np.asarray(hours.patient) == 0
    assert first_samples(hours)[mine].tolist() == [0, 15, 21, 27]
    assert np.asarray(hours.last)[mine].tolist() == [True, False, False, True]


@pytest.mark.parametrize("off", [0, 1])
def test_a_pump_that_is_off_ends_a_window(off):
    level = np.full((PATIENTS, STEPS), 6)
    level[0, 14] = off
    hours = make_transitions(ward(level=level))
    mine = np.asarray(hours.patient) == 0
    assert first_samples(hours)[mine].tolist() == [0, 15, 21, 27]


def test_nothing_is_carried_out_of_a_time_without_the_pump():
    level = np.full((PATIENTS, STEPS), 6)
    level[0, 14] = 1
    hours = make_transitions(put(ward(level=level), (0, 15, MAP), jnp.nan))
    assert first_samples(hours)[np.asarray(hours.patient) == 0].tolist() == [0, 21, 27]


@pytest.mark.parametrize("step", [6, 8, 11])
def test_one_empty_sample_is_carried_forward_for_models_alone(step):
    cohort = put(ward(), (0, step, MAP), jnp.nan)
    cohort = put(cohort, (0, step - 1, MAP), 50.0)  # what is carried
    hours = make_transitions(cohort)
    assert hours.next_state[0, step - 6, MAP] == 50.0
    assert np.isfinite(np.asarray(hours.state)).all()
    low = (1.7018 - 3.5) / 2.6621  # ten below 60 mmHg, in the hour of the sample before
    expected = low if step > 6 else 1.7018 / 2.6621
    assert hours.unshaped[0] == pytest.approx(expected, abs=1e-5)
    assert np.asarray(hours.filled[:5]).tolist() == [True, True, False, False, False]


def test_two_empty_samples_drop_the_hour():
    cohort = put(put(ward(), (0, 7, HR), jnp.nan), (0, 10, HR), jnp.nan)
    hours = make_transitions(cohort)
    assert first_samples(hours)[np.asarray(hours.patient) == 0].tolist() == [12, 18, 24]
    apart = put(put(ward(), (0, 7, HR), jnp.nan), (0, 10, MAP), jnp.nan)  # one in each signal
    assert first_samples(make_transitions(apart))[:5].tolist() == [0, 6, 12, 18, 24]


def test_a_value_is_carried_for_ten_minutes_at_most():
    cohort = put(
        put(ward(), (0, 11, HR), jnp.nan), (0, 12, HR), jnp.nan
    )  # one in each of two hours
    hours = make_transitions(cohort)
    assert first_samples(hours)[np.asarray(hours.patient) == 0].tolist() == [0, 18, 24]


def test_one_missing_row_is_an_empty_sample_of_every_signal():
    seen = np.ones((PATIENTS, STEPS), bool)
    seen[0, 8] = False
    hours = make_transitions(ward(seen=seen))
    assert first_samples(hours)[:5].tolist() == [0, 6, 12, 18, 24]
    assert np.asarray(hours.next_state[0, :, CURRENT] - 300).tolist() == [6, 7, 7, 9, 10, 11]


def test_nothing_is_carried_into_a_stay():
    hours = make_transitions(put(ward(), (0, 0, MAP), jnp.nan))
    assert first_samples(hours)[np.asarray(hours.patient) == 0].tolist() == [6, 12, 18, 24]


def test_a_signal_that_was_never_measured_stays_empty():
    cohort = put(ward(), (slice(None), slice(None), TAU), jnp.nan)
    hours = make_transitions(cohort)
    assert len(hours.level) == 15
    assert np.isnan(np.asarray(hours.state[..., TAU])).all()
    scaler = fit_scaler(hours)
    assert scaler.present == tuple(i for i in range(12) if i != TAU)
    assert scaler.to_scores(hours.state[0]).shape == (6, 12)
    one = put(ward(), (1, slice(None), MAP), jnp.nan)  # a stay without MAP is no decision problem
    assert set(np.asarray(make_transitions(one).patient).tolist()) == {0, 2}


# ── rewards ──────────────────────────────────────────────────────────────────────────────────────


def test_shaping_is_charged_and_paid_as_defined():
    level = np.full((PATIENTS, STEPS), 9)
    level[:, 6:], level[:, 12:] = 5, 4  # a jump of four, then one step
    hours = make_transitions(ward(level=level), HoursConfig(jump_weight=0.5, weaning_weight=0.3))
    best = 1.7018 / 2.6621
    assert np.asarray(hours.reward[:3]) == pytest.approx([best - 2.0, best + 0.3, best], abs=1e-5)
    assert np.asarray(hours.unshaped) == pytest.approx(best, abs=1e-5)


def test_rewards_follow_the_clinical_settings():
    level = np.full((PATIENTS, STEPS), 8)
    level[:, 6:] = 7
    clinical = dataclasses.replace(PAPER, reward_sd=2 * PAPER.reward_sd, jump=0)
    hours = make_transitions(ward(level=level), HoursConfig(jump_weight=0.5, clinical=clinical))
    half = 1.7018 / 2.6621 / 2
    assert np.asarray(hours.unshaped) == pytest.approx(half, abs=1e-5)
    assert np.asarray(hours.reward[:2]) == pytest.approx([half - 0.5, half], abs=1e-5)


pressures = st.lists(st.floats(31.0, 149.0, width=32), min_size=STEPS, max_size=STEPS)


@given(pressures, st.lists(st.sampled_from(LEVELS), min_size=STEPS, max_size=STEPS))
def test_without_weights_the_reward_is_physiological(pressure, level):
    cohort = ward(level=np.broadcast_to(level, (PATIENTS, STEPS)))
    cohort = put(cohort, (0, slice(None), MAP), jnp.asarray(pressure))
    hours = make_transitions(cohort)
    assert np.array_equal(hours.reward, hours.unshaped)
    direct = jax.vmap(normalized_reward)(hours.next_state)
    assert np.allclose(hours.reward, direct, atol=1e-5)


# ── roles, noise, scale ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("role", ["train", "select", "test", "all"])
def test_hours_have_the_role_of_their_patients(role):
    hours = make_transitions(ward(role=role))
    assert hours.role == role
    if role != "train":
        with pytest.raises(ValueError, match="expected train patients"):
            fit_scaler(hours)


def test_scores_have_mean_zero_and_sd_one_and_go_back():
    noise = jr.normal(jr.key(0), (PATIENTS, STEPS, 12)) * 3.0
    cohort = ward()
    hours = make_transitions(dataclasses.replace(cohort, signals=cohort.signals + noise))
    scaler = fit_scaler(hours)
    scores = jax.vmap(scaler.to_scores)(hours.state)
    flat = np.asarray(scores[..., :12]).reshape(-1, 12)
    assert np.allclose(flat.mean(0), 0.0, atol=2e-3)
    assert np.allclose(flat.std(0), 1.0, atol=2e-3)
    assert np.allclose(jax.vmap(scaler.to_units)(scores), hours.state, rtol=1e-5, atol=1e-2)


class Blurred(NamedTuple):
    clean: Transitions
    noisy: Transitions
    scaler: Scaler

    def moved(self, name: str) -> np.ndarray:
        """By how many train sd each sample of each signal moved."""
        before, after = (
            np.asarray(getattr(x, name))[..., :LEVEL] for x in (self.clean, self.noisy)
        )
        return (after - before) / np.asarray(self.scaler.sd)


@pytest.fixture(scope="module")
def blurred() -> Blurred:
    """600 hours, each signal with a spread of its own; MAP is where noise would move the reward."""
    cohort = put(ward(), (slice(None), slice(None), MAP), 58.0)
    wiggle = jr.normal(jr.key(1), cohort.signals.shape) * jnp.geomspace(0.5, 20.0, 12)[None, None]
    hours = make_transitions(dataclasses.replace(cohort, signals=cohort.signals + wiggle))
    hours = jax.tree.map(lambda x: jnp.concatenate([x] * 40), hours)
    scaler = fit_scaler(hours)
    return Blurred(hours, add_noise(hours, scaler, key=jr.key(2)), scaler)


def test_noise_hits_four_of_five_states_as_a_whole(blurred):
    moved = np.abs(blurred.moved("state"))
    hit = moved.max((1, 2)) > 0
    assert 0.74 < hit.mean() < 0.86  # 600 states, 0.8 expected, sd 0.016
    assert (moved[hit] > 0).mean() > 0.99  # a few are lost to rounding


def test_noise_is_a_fifth_of_a_train_sd_in_every_signal(blurred):
    moved = blurred.moved("state")
    moved = moved[np.abs(moved).max((1, 2)) > 0]
    assert moved.std((0, 1)) == pytest.approx(np.full(12, 0.2), rel=0.07)  # 5 sd of 2,880 draws
    assert moved.mean((0, 1)) == pytest.approx(np.zeros(12), abs=0.02)
    # independent over samples and signals
    together = np.corrcoef(moved.reshape(len(moved), -1).T) - np.eye(72)
    assert np.abs(together).max() < 0.25  # 5 sd of 480 rows


def test_noise_spares_the_level(blurred):
    for name in ("state", "next_state"):
        before, after = (
            np.asarray(getattr(x, name))[..., LEVEL] for x in (blurred.clean, blurred.noisy)
        )
        assert np.array_equal(after, before)
    assert np.array_equal(blurred.noisy.level, blurred.clean.level)


def test_rewards_stay_those_of_the_clean_hours(blurred):
    for name in ("reward", "unshaped", "last", "changed", "filled", "patient"):
        assert np.array_equal(getattr(blurred.noisy, name), getattr(blurred.clean, name))
    anew = jax.vmap(normalized_reward)(blurred.noisy.next_state)
    assert (np.abs(anew - blurred.clean.reward) > 0.01).mean() > 0.5  # it would have shown


def test_the_next_state_of_a_noisy_row_is_the_state_of_the_row_after_it(blurred):
    rows = np.flatnonzero(~np.asarray(blurred.clean.last))
    assert np.array_equal(blurred.noisy.next_state[rows], blurred.noisy.state[rows + 1])


def test_the_end_of_a_record_draws_noise_of_its_own(blurred):
    last = np.asarray(blurred.clean.last)
    ends, states = blurred.moved("next_state")[last], blurred.moved("state")
    hit = np.abs(ends).max((1, 2)) > 0
    assert 0.66 < hit.mean() < 0.94  # 120 ends, 0.8 expected, sd 0.037
    assert ends[hit].std() == pytest.approx(0.2, rel=0.05)
    for other in (states[last], np.roll(states, -1, axis=0)[last]):  # their own row, the next one
        assert abs(np.corrcoef(ends.ravel(), other.ravel())[0, 1]) < 0.1


@pytest.mark.parametrize("none", [NoiseConfig(share=0.0), NoiseConfig(sd=0.0)])
def test_no_share_or_no_sd_is_no_noise(blurred, none):
    calm = add_noise(blurred.clean, blurred.scaler, none, key=jr.key(2))
    assert np.array_equal(calm.state, blurred.clean.state)
    assert np.array_equal(calm.next_state, blurred.clean.next_state)


def test_noise_refuses_rows_out_of_order():
    sliding = make_transitions(ward(), HoursConfig(stride=30.0))
    with pytest.raises(ValueError, match="one hour apart"):
        add_noise(sliding, fit_scaler(sliding), key=jr.key(0))


# ── wrong input ──────────────────────────────────────────────────────────────────────────────────


def test_wrong_input_is_refused_in_words():
    good = ward()
    scores = dataclasses.replace(good, signals=(good.signals - 50.0) / 30.0)
    with pytest.raises(ValueError, match=r"expected map in mmHg.* Pass physical units"):
        make_transitions(scores)
    with pytest.raises(ValueError, match="got infinity"):
        make_transitions(put(good, (0, 0, MAP), jnp.inf))
    with pytest.raises(ValueError, match="expected hr, got none"):
        make_transitions(put(good, (slice(None), slice(None), HR), jnp.nan))
    with pytest.raises(ValueError, match="expected levels P0 to P9, got 12"):
        make_transitions(ward(level=np.full((PATIENTS, STEPS), 12)))
    with pytest.raises(ValueError, match="two whole hours in a row, got none"):
        make_transitions(ward(seen=np.arange(STEPS)[None].repeat(3, 0) < 11))
    with pytest.raises(ValueError, match="multiple of the 10 min"):
        make_transitions(good, HoursConfig(stride=25.0))
    with pytest.raises(ValueError, match="every 10 min or a fraction"):
        make_transitions(dataclasses.replace(good, minutes=20.0))
    with pytest.raises(ValueError, match="minutes above 0"):
        HoursConfig(stride=0.0)
    with pytest.raises(ValueError, match="share of 0 to 1"):
        NoiseConfig(share=1.5)
