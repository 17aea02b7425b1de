"""Free coordinates: a bijection onto samples that obey every rule, and nothing else."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jaxtyping import Array

from stepdown.patients.pump import load_profile, motor_current, pump_flow, pump_head
from stepdown.signals import (
    CURRENT,
    DBP,
    FLOW,
    KNOWN,
    LEVEL,
    LVP,
    MAP,
    NAMES,
    PULSATILITY,
    SBP,
    SPEED,
    TAU,
    columns_with,
    hard_ranges,
)
from stepdown.twin.coordinates import (
    Range,
    bend,
    blank_coordinates,
    fit_coordinates,
    straighten,
    usual_range,
)
from tests.twin.toys import SELECT, SIGNALS, STEPS, TRAIN

PUMP = load_profile("cp")
ALL = tuple(range(SIGNALS))
SCALE = fit_coordinates(TRAIN, ALL, PUMP)
RANGES = {name: usual_range(name) for name in KNOWN}


@eqx.filter_jit
def made(scale, free, levels):
    return scale.to_samples(free, levels, PUMP)


@eqx.filter_jit
def undone(scale, hour, levels):
    return scale.to_free(hour, levels, PUMP)


def textbook_bend(x: float, low: float, high: float, soft: float) -> float:
    """The integral of how fast a number may still go: one logistic at either edge."""
    grid = np.linspace(x - 400 * soft - abs(x - low), x, 200_001)
    speed = 1 / (1 + np.exp(-np.clip((grid - low) / soft, -700, 700)))
    speed = speed - 1 / (1 + np.exp(-np.clip((grid - high) / soft, -700, 700)))
    return low + float(np.sum((speed[1:] + speed[:-1]) / 2 * np.diff(grid)))


@pytest.mark.parametrize("x", [-20.0, -1.0, 0.0, 3.0, 40.0, 99.0, 101.0, 130.0])
def test_bending_is_the_integral_of_a_window(x):
    found = bend(jnp.asarray(x), Range(0.0, 100.0, 2.0))
    assert found == pytest.approx(textbook_bend(x, 0.0, 100.0, 2.0), abs=1e-3)


@pytest.mark.parametrize("name", KNOWN)
def test_usual_values_hardly_feel_the_edges(name):
    first, last = KNOWN[name].soft
    usual = jnp.linspace(first, last, 50)
    soft = RANGES[name].soft
    assert np.all(np.abs(bend(usual, RANGES[name]) - usual) <= 0.003 * soft + 1e-5 * abs(last))
    beyond = jnp.asarray([-1e9, 1e9, -jnp.inf, jnp.inf], jnp.float32)
    low, high = KNOWN[name].hard
    assert np.allclose(bend(beyond, RANGES[name]), [low, high, low, high])


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("value", [-np.inf, -1e6, 1e6, np.inf])
def test_artifacts_beyond_the_range_get_finite_coordinates(name, value):
    found = straighten(jnp.asarray(value, jnp.float32), RANGES[name])
    assert np.isfinite(found)
    low, high = KNOWN[name].hard
    assert low <= float(bend(found, RANGES[name])) <= high


FREE = arrays(np.float32, (STEPS, SIGNALS), elements=st.floats(-50, 50, width=32))
LEVELS = arrays(np.int32, (STEPS,), elements=st.integers(2, 9))


def check_identities(hour: np.ndarray, levels: np.ndarray) -> None:
    """In the numbers as they are stored, to the last bit."""
    assert np.isfinite(hour).all()
    assert np.all(hour[:, DBP] <= hour[:, MAP])
    assert np.all(hour[:, MAP] <= hour[:, SBP])
    assert np.array_equal(hour[:, PULSATILITY], hour[:, SBP] - hour[:, DBP])
    low, high = np.array(hard_ranges(NAMES)[:-1], np.float32).T
    assert np.all((hour >= low) & (hour <= high))
    table = np.asarray(PUMP.speed)[levels - 2]
    assert np.all(np.abs(hour[:, SPEED] / table - 1) <= 0.02 + 1e-6)


@settings(max_examples=300, deadline=None)
@given(free=FREE, levels=LEVELS)
def test_whatever_the_coordinates_the_sample_obeys(free, levels):
    hour = np.asarray(made(SCALE, jnp.asarray(free), jnp.asarray(levels)))
    check_identities(hour, levels)
    again = made(SCALE, undone(SCALE, jnp.asarray(hour), jnp.asarray(levels)), jnp.asarray(levels))
    check_identities(np.asarray(again), levels)


@settings(max_examples=100, deadline=None)
@given(
    free=arrays(np.float32, (STEPS, SIGNALS), elements=st.floats(-2.5, 2.5, width=32)),
    levels=LEVELS,
)
def test_coordinates_of_a_sample_are_those_it_was_made_of(free, levels):
    free[:, DBP] = 0.0  # the others determine it
    found = undone(SCALE, made(SCALE, jnp.asarray(free), jnp.asarray(levels)), jnp.asarray(levels))
    assert np.allclose(found, free, atol=0.02)  # float32: a speed has 0.004 rpm


def test_samples_that_obey_come_back_as_they_were():
    free = jax.vmap(lambda hour, levels: SCALE.to_free(hour, levels, PUMP))
    back = jax.vmap(lambda free, levels: SCALE.to_samples(free, levels, PUMP))
    hours = SELECT.next_state[..., :LEVEL]
    again = back(free(hours, SELECT.levels), SELECT.levels)
    assert np.allclose(again, hours, rtol=2e-5, atol=1e-3)


def test_coordinates_by_hand():
    """MAP 80, SBP 110 and DBP 60: the pulse is 50, two fifths of it below the mean.

    At P6 and 3 L/min the map says 121 + 194.6 · 39/46 · 3 = 615.96 mA, and 39,000 rpm; it gives
    2.8 L/min against the head, 0.2 L/min less than flows.
    """
    hour = np.array(SELECT.state[0, :, :LEVEL])
    hour[:, [MAP, SBP, DBP, PULSATILITY]] = [80.0, 110.0, 60.0, 50.0]
    hour[:, [SPEED, FLOW, CURRENT]] = [39_039.0, 3.0, 618.96]
    hour[:, LVP] = 80.0 - float(pump_head(PUMP, jnp.asarray(6), jnp.asarray(2.8)))
    levels = jnp.full(STEPS, 6)
    plain = np.asarray(SCALE.plain(jnp.asarray(hour), levels, PUMP))
    assert np.allclose(plain[:, [MAP, PULSATILITY]], [80.0, 50.0], atol=1e-3)
    assert np.allclose(plain[:, SBP], 0.4, atol=1e-5)
    assert np.all(plain[:, DBP] == 0)
    assert np.allclose(plain[:, FLOW], 0.2, atol=1e-2)
    assert np.allclose(plain[:, CURRENT], 3.0, atol=0.02)
    assert np.allclose(plain[:, SPEED], 0.001, atol=1e-5)


@pytest.mark.parametrize(
    "gone", [(SBP,), (DBP,), (SBP, DBP), (FLOW,), (LVP,), (CURRENT,), (SPEED,), (TAU,)]
)
def test_what_is_not_recorded_is_left_out_and_the_rest_still_obeys(gone):
    present = tuple(i for i in ALL if i not in gone)
    train = dataclasses.replace(
        TRAIN, next_state=TRAIN.next_state.at[..., np.array(gone)].set(np.nan)
    )
    scale = fit_coordinates(train, present, PUMP)
    draw = np.random.default_rng(0)
    levels = jnp.asarray(draw.integers(2, 10, STEPS))
    free = jnp.asarray(30 * draw.normal(size=(STEPS, len(present))), jnp.float32)
    hour = np.asarray(made(scale, free, levels))
    assert np.isnan(hour[:, list(gone)]).all()
    assert np.isfinite(hour[:, list(present)]).all()
    low, high = np.array(hard_ranges(NAMES)[:-1], np.float32).T
    assert np.all(((hour >= low) & (hour <= high))[:, list(present)])
    sbp = hour[:, DBP] + hour[:, PULSATILITY] if SBP in gone else hour[:, SBP]
    dbp = hour[:, SBP] - hour[:, PULSATILITY] if DBP in gone else hour[:, DBP]
    if gone != (SBP, DBP):
        assert np.all((dbp <= hour[:, MAP] + 1e-4) & (hour[:, MAP] <= sbp + 1e-4))
    rows = TRAIN.next_state[0].at[:, np.array(gone)].set(np.nan)
    again = made(scale, undone(scale, rows, TRAIN.levels[0]), TRAIN.levels[0])
    assert np.allclose(
        again[:, np.array(present)], rows[:, np.array(present)], rtol=1e-4, atol=1e-2
    )


@pytest.mark.parametrize(
    "values",
    [
        {MAP: 130.0},  # above the systolic pressure
        {MAP: 20.0},  # below the diastolic one
        {SBP: 50.0},  # below the diastolic one
        {MAP: 0.0, SBP: 0.0, DBP: 0.0},
        {MAP: 250.0, SBP: 300.0, DBP: 200.0},
        {SPEED: 0.0, FLOW: 9.0, CURRENT: 0.0},
    ],
)
def test_recorded_samples_that_break_a_rule_get_a_near_one_that_obeys(values):
    hour = np.array(SELECT.state[0, :, :LEVEL])
    for column, value in values.items():
        hour[:, column] = value
    levels = jnp.full(STEPS, 5)
    free = undone(SCALE, jnp.asarray(hour), levels)
    assert np.isfinite(free).all()
    check_identities(np.asarray(made(SCALE, free, levels)), np.full(STEPS, 5))


def test_a_drug_that_is_not_given_stays_at_exactly_nothing():
    columns = columns_with(["norepinephrine"])
    scale = blank_coordinates(tuple(range(len(columns))), columns)
    hour = jnp.concatenate([SELECT.state[0, :, :LEVEL], jnp.zeros((STEPS, 1))], axis=1)
    free = undone(scale, hour, jnp.full(STEPS, 5))
    assert np.all(made(scale, free.at[:, -1].add(-0.3), jnp.full(STEPS, 5))[:, -1] == 0)
    assert np.allclose(made(scale, free.at[:, -1].add(0.3), jnp.full(STEPS, 5))[:, -1], 0.3)


def off_map(hours: Array, levels: Array) -> tuple[np.ndarray, np.ndarray]:
    """Flow off the map at its head, current off the map at its flow."""
    flow = jax.vmap(lambda *x: pump_flow(PUMP, *x))(levels, hours[:, MAP] - hours[:, LVP])
    current = jax.vmap(lambda *x: motor_current(PUMP, *x))(levels, hours[:, FLOW])
    return np.asarray(hours[:, FLOW] - flow), np.asarray(hours[:, CURRENT] - current)


def test_the_scatter_about_the_pump_map_is_that_of_the_train_patients():
    """However far out coordinates are: no draw lies farther off the map than a recording does."""
    samples, levels = TRAIN.next_state[..., :LEVEL].reshape(-1, SIGNALS), TRAIN.levels.ravel()
    recorded = off_map(samples, levels)
    free = undone(SCALE, samples, levels)
    luck = 20 * np.random.default_rng(0).normal(size=(len(levels), 2))
    free = free.at[:, np.array([FLOW, CURRENT])].add(jnp.asarray(luck, jnp.float32))
    drawn = off_map(made(SCALE, free, levels), levels)
    for ours, theirs, least in zip(
        drawn, recorded, (0.01, 3.0), strict=True
    ):  # the last steps before 0 mA
        assert np.ptp(theirs) > 5 * least
        assert theirs.min() - least < ours.min() < theirs.min() + least
        assert theirs.max() - least < ours.max() < theirs.max() + least


def test_errors_of_coordinates_weigh_as_those_of_signals():
    """A step of one unit moves the signals, squared and summed, by one sd."""
    samples, levels = TRAIN.next_state[..., :LEVEL], TRAIN.levels
    spread = np.asarray(samples).std((0, 1))
    free = jax.vmap(lambda hour, levels: undone(SCALE, hour, levels))(samples, levels)
    for column in (MAP, FLOW, CURRENT, SBP, PULSATILITY, TAU):
        step = 0.01 * SCALE.unit[column]
        moved = [
            jax.vmap(lambda x, levels: made(SCALE, x, levels))(free.at[..., column].add(x), levels)
            for x in (step, -step)
        ]
        size = (np.asarray(moved[0]) - np.asarray(moved[1])) / 0.02 / spread
        assert np.sqrt((size**2).mean((0, 1)).sum()) == pytest.approx(1.0, abs=0.1)
    assert SCALE.unit[MAP] < 1 / np.sqrt(2.5)  # it moves three pressures
    assert SCALE.unit[CURRENT] > 5  # most of a current is the level's
    assert SCALE.unit[SPEED] == pytest.approx(100)  # nearly all of a speed is; no unit is larger
