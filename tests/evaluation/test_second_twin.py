"""The second twin: right where the world is linear, honest about patients it has not seen."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.judging import judge_in_twin
from stepdown.evaluation.second_twin import fit_second_twin
from stepdown.handover import Dynamics, Moments
from stepdown.policies.rules import RULES
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import CURRENT, DBP, FLOW, LEVEL, NAMES, PULSATILITY, SBP, SPEED, TAU
from stepdown.twin.ridge import Ridge, RidgeConfig
from stepdown.twin.transformer import Network
from tests.twin.toys import RESPONSE, SD, TRAIN, empty_column, toy_hours, toy_samples

ROWS, PATIENTS = 600, 30
ONE = RidgeConfig(
    ridges=(1e-4,), members=1, errors=ROWS
)  # where how strongly to shrink is not the question
SCALER = fit_scaler(TRAIN)
# Flow turns by the pump's curve, which this linear world does not know; the others are derived.
BODY = [i for i in range(len(NAMES)) if i not in (SPEED, CURRENT, FLOW, SBP, DBP)]
BODY_SD = SD[BODY]


def with_patients(hours, offset: float = 0.0):
    """Rows dealt to patients in turn; each patient's next hours lie off by their own amount."""
    patient = np.arange(len(hours.level)) % PATIENTS
    off = offset * np.random.default_rng(3).normal(size=(PATIENTS, 1, 12))[patient] * SD
    later = np.asarray(hours.next_state).copy()
    later[..., :LEVEL] += off
    return dataclasses.replace(
        hours, patient=jnp.asarray(patient, jnp.int32), next_state=jnp.asarray(later, jnp.float32)
    )


@pytest.fixture(scope="module")
def select():
    return with_patients(toy_hours(ROWS, "select", 1))


@pytest.fixture(scope="module")
def second(select):
    return fit_second_twin(select, SCALER, ONE, key=jr.key(0))[0]


@jax.jit
def centers(twin, hours):
    return jax.vmap(twin.center)(hours.state, hours.levels)


def test_a_linear_world_is_found_and_its_noise_too(second):
    test = toy_hours(ROWS, "test", 2)
    error = (np.asarray(centers(second, test)) - np.asarray(test.next_state))[..., BODY] / BODY_SD
    assert np.sqrt(np.mean(error**2)) < 1.2 * 0.1  # the world's own noise
    keys = jr.split(jr.key(4), ROWS)
    drawn = jax.jit(jax.vmap(lambda s, a, k: second(s, a, key=k)))(test.state, test.levels, keys)
    spread = (np.asarray(drawn) - np.asarray(centers(second, test)))[..., BODY] / BODY_SD
    assert spread.std() == pytest.approx(0.1, rel=0.2)
    assert np.array_equal(np.asarray(drawn)[:, 0, LEVEL], np.asarray(test.level))


def test_the_answer_to_a_level_is_not_shrunk(second):
    usual = toy_samples(np.zeros((6, len(NAMES))), np.full(6, 5))
    state = jnp.asarray(np.concatenate([usual, np.full((6, 1), 5.0)], 1), jnp.float32)
    one = jax.tree.map(lambda x: x[:2], TRAIN)
    levels = jnp.tile(jnp.asarray([[7], [4]]), (1, 6))
    both = dataclasses.replace(one, state=jnp.stack([state] * 2), levels=levels)
    up, down = centers(second, both)
    slope = (np.asarray(up - down)[:, BODY] / BODY_SD).mean(0) / 3
    np.testing.assert_allclose(slope, RESPONSE[BODY], atol=0.03)


def test_errors_are_those_of_patients_left_out():
    """Where patients differ by their own offset, nobody's own hours may tell it."""
    few = with_patients(toy_hours(ROWS // 4, "select", 1), offset=0.5)  # hours can be remembered
    config = RidgeConfig(members=1, errors=ROWS // 4)
    twin, info = fit_second_twin(few, SCALER, config, key=jr.key(0))
    unit = np.asarray(twin.coordinates.unit)[BODY]
    assert info["held_out"].min() > 0.9 * (0.5**2 + 0.1**2) * np.mean(1 / unit**2) / 2
    assert isinstance(twin.network, Ridge)
    assert len(twin.network.errors) == ROWS // 4


def test_the_pressures_obey_their_identity(second, select):
    found = np.asarray(centers(second, select))
    np.testing.assert_array_equal(found[..., PULSATILITY], found[..., SBP] - found[..., DBP])


def test_it_judges_as_any_twin(second, select):
    assert isinstance(second.network, Network)
    assert isinstance(second, Dynamics)
    moments = Moments(select.state[:8], select.patient[:8], jr.split(jr.key(0), 8))
    judged = [judge_in_twin(RULES["hold"], second, moments).scores["reward"] for _ in range(2)]
    assert np.isfinite(judged[0]).all()
    assert np.array_equal(judged[0], judged[1])


def test_a_change_inside_the_hour_moves_the_pump_from_its_sample_on(second, select):
    levels = jnp.full(6, 4).at[3:].set(8)
    later = np.asarray(second.center(select.state[0], levels))
    table = np.asarray(second.carry.profile.speed)[np.asarray(levels) - 2]
    assert np.all(np.abs(later[:, SPEED] / table - 1) < 0.02)
    assert np.all(later[3:, CURRENT] > later[:3, CURRENT].max() + 50)


def test_a_signal_that_the_scale_does_not_know_is_left_out(select):
    scaler = fit_scaler(empty_column(TRAIN, TAU))
    twin, _ = fit_second_twin(empty_column(select, TAU), scaler, ONE, key=jr.key(0))
    later = np.asarray(centers(twin, select))[0]
    assert np.isnan(later[:, TAU]).all()
    assert np.isfinite(np.delete(later, TAU, 1)).all()


def test_what_cannot_be_used_is_refused_in_words(select):
    with pytest.raises(ValueError, match="expected select patients, got train patients"):
        fit_second_twin(TRAIN, SCALER, key=jr.key(0))
    with pytest.raises(ValueError, match="expected tau in the hours of select patients, got none"):
        fit_second_twin(empty_column(select, TAU), SCALER, key=jr.key(0))
