import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.console import extract_signals
from stepdown.patients.pump import load_profile, motor_current, pump_flow
from stepdown.patients.recording import ARTIFACTS, Recording, SensorConfig
from stepdown.patients.waveforms import WaveformConfig, replay_stay, simulate_waveforms
from stepdown.signals import (
    DBP,
    FLOW,
    HR,
    LVEDP,
    LVP,
    MAP,
    PULSATILITY,
    SBP,
    SPEED,
    TAU,
)

# what a recording must give at the median over blocks: mmHg, /min, L/min, ms
BARS = {MAP: 1.0, SBP: 2.0, DBP: 2.0, HR: 1.0, FLOW: 0.05, LVP: 4.0, LVEDP: 4.0, TAU: 15.0}
HARDLY = 6.0  # mmHg of pulse; a heart that never opens its valve cannot calibrate the pump
IDEAL = SensorConfig(0.0, 0.0, 0.001, 0.0, 0.0, 0.0, 0.0, 0.0)
PROFILE = load_profile("cp")


@pytest.fixture(scope="session")
def stays():
    """Six hours of 256 patients, and who of them is special."""
    config = CohortConfig(patients=256, hours=6.0)
    cohort, latents = simulate_cohort(config, key=jr.key(3))
    fibrillating = np.asarray(latents.course.fibrillating)[:, :6].mean(axis=1)
    pulse = np.asarray(cohort.signals)[..., PULSATILITY].mean(axis=1)
    levels = np.asarray(cohort.level)
    special = {
        "fibrillating": int(fibrillating.argmax()),
        "hardly pulsing": int(np.abs(pulse - HARDLY).argmin()),
        "changed most": int((np.diff(levels, axis=1) != 0).sum(axis=1).argmax()),
        "least supported": int(levels.mean(axis=1).argmin()),
    }
    assert fibrillating.max() > 0.5
    assert pulse[special["hardly pulsing"]] < 10
    return cohort, latents, world_of(config), special


def record(stays, name, config=None, key=5):
    cohort, latents, world, special = stays
    config = config or WaveformConfig()
    return simulate_waveforms(cohort, latents, world, special[name], config, key=jr.key(key))


@pytest.fixture(scope="session")
def recorded(stays):
    return {name: record(stays, name) for name in stays[3]}


@pytest.fixture(scope="session")
def read(recorded):
    return {name: extract_signals(wave.recording, PROFILE) for name, wave in recorded.items()}


def errors(read, recorded):
    return np.concatenate([read[name].signals - recorded[name].truth for name in read])


def test_readings_lie_within_the_bars(recorded, read):
    wrong = np.abs(errors(read, recorded))
    assert np.isfinite(np.delete(wrong, TAU, axis=1)).all()
    assert np.isfinite(wrong[:, TAU]).mean() > 0.7  # a heart that hardly beats has no tau
    median = np.nanmedian(wrong, axis=0)
    for column, bar in BARS.items():
        assert median[column] <= bar


@pytest.mark.parametrize("name", ["fibrillating", "hardly pulsing"])
def test_hard_rhythms_are_read_too(recorded, read, name):
    median = np.nanmedian(np.abs(read[name].signals - recorded[name].truth), axis=0)
    for column in (MAP, SBP, DBP, HR, LVEDP, TAU):
        assert median[column] <= BARS[column]


def test_levels_are_read_from_the_speed(recorded, read):
    for name, wave in recorded.items():
        np.testing.assert_array_equal(read[name].level, wave.level)


def test_replay_is_the_recorded_stay(stays):
    cohort, latents, world, special = stays
    for patient in special.values():
        stay = replay_stay(cohort, latents, world, patient)
        np.testing.assert_array_equal(stay.level, cohort.level[patient])
        np.testing.assert_allclose(stay.signals, cohort.signals[patient], rtol=1e-4, atol=1e-3)


def test_block_truth_follows_the_ticks(stays, recorded):
    """A block's mean lies near the state that its tick leaves, which ends the block."""
    cohort, latents, world, special = stays
    patient = special["fibrillating"]
    stay = replay_stay(cohort, latents, world, patient)
    gap = np.abs(recorded["fibrillating"].truth - stay.truth)
    assert np.median(gap[:, MAP]) < 2
    assert np.median(gap[:, FLOW]) < 0.1


def test_artifacts_hardly_move_readings(stays, recorded, read):
    sensors = dataclasses.replace(SensorConfig(), flushes=0.0, flats=0.0, dropouts=0.0)
    clean = record(stays, "changed most", WaveformConfig(sensors=sensors))
    dirty = recorded["changed most"]
    assert set(range(len(ARTIFACTS))) == set(np.unique(dirty.artifact))
    moved = np.abs(read["changed most"].signals - extract_signals(clean.recording, PROFILE).signals)
    for column, bar in BARS.items():
        assert np.nanmax(moved[:, column]) <= bar


def test_dropouts_leave_gaps_not_values(recorded, read):
    wave = recorded["changed most"].recording
    lost = (wave.second > 1300) & (wave.second < 2300)  # block 2 almost, block 3 mostly
    channels = [np.where(lost, np.nan, x) for x in (wave.placement, wave.speed, wave.current)]
    after = extract_signals(Recording(wave.second, *channels), PROFILE)
    np.testing.assert_array_equal(np.flatnonzero(~after.seen), [2, 3])
    assert np.isnan(after.signals[2:4]).all()
    assert (after.level[2:4] == 0).all()
    before = read["changed most"]
    np.testing.assert_array_equal(after.signals[:2], before.signals[:2])
    np.testing.assert_array_equal(after.signals[4:], before.signals[4:])


def test_samples_left_out_are_the_same_as_missing_values(recorded):
    wave = recorded["least supported"].recording
    lost = np.arange(len(wave.second)) % 97 == 5
    holes = [np.where(lost, np.nan, x) for x in (wave.placement, wave.speed, wave.current)]
    short = [x[~lost] for x in (wave.second, wave.placement, wave.speed, wave.current)]
    one = extract_signals(Recording(wave.second, *holes), PROFILE)
    two = extract_signals(Recording(*short), PROFILE)
    np.testing.assert_allclose(one.signals, two.signals, rtol=1e-6)


def test_a_missing_channel_costs_only_what_needs_it(recorded, read):
    wave = recorded["changed most"].recording
    nothing = np.full_like(wave.current, np.nan)
    got = extract_signals(
        Recording(wave.second, wave.placement, wave.speed, nothing), PROFILE
    ).signals
    assert np.isnan(got[:, [FLOW, LVP, LVEDP, TAU]]).all()
    gap = np.abs(got - read["changed most"].signals)
    for column in (MAP, SBP, DBP, HR):
        assert np.median(gap[:, column]) <= BARS[column] / 2


def test_fifty_hertz_reads_the_same(stays, recorded, read):
    wave = record(stays, "fibrillating", WaveformConfig(rate=50.0))
    assert len(wave.recording.second) == 2 * len(recorded["fibrillating"].recording.second)
    got = extract_signals(wave.recording, PROFILE).signals
    gap = np.abs(got - read["fibrillating"].signals)
    for column, bar in BARS.items():
        assert np.nanmedian(gap[:, column]) <= bar / 3


def synthetic(minutes=30.0, rate=25.0, beats=72.0):
    """A sinusoid of 100/60 mmHg at a given heart rate; no current."""
    second = np.arange(minutes * 60 * rate) / rate
    pressure = 80 - 20 * np.cos(2 * np.pi * beats / 60 * second)
    speed = np.full_like(second, 39_000.0)
    return Recording(second, pressure, speed, np.full_like(second, np.nan))


@pytest.mark.parametrize("beats", [48.0, 72.0, 75.0, 131.0])  # 75: in step with the samples
@pytest.mark.parametrize("rate", [25.0, 50.0, 125.0])
def test_a_sinusoid_is_read_as_what_it_is(beats, rate):
    got = extract_signals(synthetic(rate=rate, beats=beats), PROFILE)
    np.testing.assert_allclose(got.signals[:, MAP], 80, atol=0.1)
    np.testing.assert_allclose(got.signals[:, HR], beats, atol=0.1)
    np.testing.assert_allclose(got.signals[:, SBP], 100, atol=0.7)  # 25 Hz cuts the top
    np.testing.assert_allclose(got.signals[:, DBP], 60, atol=0.7)
    np.testing.assert_array_equal(got.level, 6)


@pytest.mark.parametrize("tau", [0.030, 0.050, 0.080])
def test_a_known_ventricle_is_read_through_the_pump(tau):
    """From 12 mmHg up to 90 within 70 ms, from 250 ms on down towards 5 at `tau`; valve closed."""
    second = np.arange(20 * 60 * 25) / 25.0
    period = 60 / 71.3
    since = second % period
    rise = 12 + 78 * np.sin(np.pi / 2 * np.clip(since / 0.07, 0, 1)) ** 2
    fall = 5 + 85 * np.exp(-np.maximum(since - 0.25, 0) / tau)
    filling = 12 - 20 * (period - since)
    ventricle = np.where(since < 0.25, rise, np.maximum(fall, filling))
    aortic = 95 + 3 * np.sin(2 * np.pi * (since / period - 0.1))
    level = jnp.asarray(7)

    def current(head):
        return motor_current(PROFILE, level, 0.965 * pump_flow(PROFILE, level, head))

    drawn = np.asarray(jax.vmap(current)(jnp.asarray(aortic - ventricle, jnp.float32)))
    speed = np.full_like(second, 42_000.0)
    got = extract_signals(Recording(second, aortic, speed, drawn), PROFILE).signals
    np.testing.assert_allclose(got[:, LVP], ventricle.mean(), atol=0.5)
    np.testing.assert_allclose(got[:, LVEDP], 12, atol=1.5)
    np.testing.assert_allclose(got[:, TAU], 1000 * tau, rtol=0.1)


def test_a_speed_between_steps_has_no_level():
    wave = synthetic()
    step = 1 + 0.019 * np.sign(np.sin(wave.second))  # on a step within 2 %
    for speed, expected in ((39_000.0 * step, 6), (38_000.0, 0), (40_500.0, 0), (20_000.0, 0)):
        rpm = np.broadcast_to(speed, wave.second.shape)
        got = extract_signals(Recording(wave.second, wave.placement, rpm, wave.current), PROFILE)
        np.testing.assert_array_equal(got.level, expected)
        np.testing.assert_allclose(got.signals[:, SPEED], np.mean(speed), rtol=1e-3)


def test_a_level_that_is_given_is_not_read(recorded):
    wave = recorded["changed most"]
    silent = np.full_like(wave.recording.speed, np.nan)
    blind = Recording(
        wave.recording.second, wave.recording.placement, silent, wave.recording.current
    )
    assert np.isnan(extract_signals(blind, PROFILE).signals[:, FLOW]).all()
    told = extract_signals(blind, PROFILE, wave.level)
    assert np.median(np.abs(told.signals - wave.truth)[:, LVP]) <= BARS[LVP]


@pytest.fixture(scope="session")
def ideal(stays):
    """Without noise, in lanes of ten minutes."""
    return record(stays, "changed most", WaveformConfig(sensors=IDEAL)).recording


def test_lanes_join_without_a_seam(stays, ideal):
    """Twenty-minute lanes have no border where every second ten-minute lane begins."""
    config = WaveformConfig(lane=1200.0, sensors=IDEAL)
    other = record(stays, "changed most", config).recording
    np.testing.assert_allclose(ideal.placement, other.placement, atol=0.01)
    np.testing.assert_allclose(ideal.current, other.current, atol=1.01)  # digits of 1 mA


def test_no_beat_is_repeated(ideal):
    pressure = ideal.placement[: 25 * 600]
    windows = np.lib.stride_tricks.sliding_window_view(pressure, 25)
    gaps = np.abs(windows[25:] - windows[100]).max(axis=1)
    assert np.delete(gaps, np.arange(40, 111)).min() > 0.02  # no second is seen again


def test_same_key_same_recording(stays, recorded):
    again = record(stays, "least supported").recording
    np.testing.assert_array_equal(again.placement, recorded["least supported"].recording.placement)


def test_bad_recordings_are_refused():
    good = synthetic(minutes=1.0)
    slow = Recording(*(x[::2] for x in (good.second, good.placement, good.speed, good.current)))
    with pytest.raises(ValueError, match=r"25 Hz or faster, got 12.5 Hz"):
        extract_signals(slow, PROFILE)
    back = Recording(good.second[::-1], good.placement, good.speed, good.current)
    with pytest.raises(ValueError, match="each later than the one before"):
        extract_signals(back, PROFILE)
    with pytest.raises(ValueError, match="each of 1 blocks, got 3 levels"):
        extract_signals(good, PROFILE, np.array([5, 5, 5]))


def test_a_recording_begins_in_the_middle_of_a_beat(recorded):
    for wave in recorded.values():
        usual = np.nanmedian(wave.recording.placement)
        assert np.nanmin(wave.recording.placement[:25]) > 0.4 * usual
