"""Persistence: the patient repeats, the pump follows its level."""

import jax.numpy as jnp
import numpy as np

from stepdown.patients.pump import load_profile
from stepdown.problem.environment import simulated_ward
from stepdown.problem.persistence import CarryForward
from stepdown.signals import CURRENT, FLOW, LEVEL, SPEED


def test_carrying_forward_repeats_the_patient_and_moves_the_pump():
    state = simulated_ward().states[0]
    dynamics = CarryForward(load_profile("cp"))
    same = dynamics(state, jnp.round(state[-1, LEVEL]).astype(int))
    assert np.allclose(same, jnp.broadcast_to(state[-1], state.shape), rtol=1e-5)
    low, high = dynamics(state, jnp.asarray(2)), dynamics(state, jnp.asarray(9))
    moved = [SPEED, CURRENT, FLOW, LEVEL]
    others = [i for i in range(12) if i not in moved]
    assert np.array_equal(low[:, np.array(others)], high[:, np.array(others)])
    assert np.all(high[0, np.array(moved)] > low[0, np.array(moved)])


def test_the_level_of_the_last_sample_is_read_off_its_speed():
    profile = load_profile("cp")
    state = jnp.full((6, 13), 70.0).at[:, FLOW].set(3.0).at[:, CURRENT].set(500.0)
    state = state.at[:, SPEED].set(profile.speed[5 - 2]).at[:, LEVEL].set(6.0)  # P5 runs, mean P6
    assert np.allclose(CarryForward(profile)(state, jnp.asarray(5))[:, :12], state[:, :12])
    odd = state.at[:, SPEED].mul(1.03)  # no level's speed: the stated one holds
    assert np.allclose(CarryForward(profile)(odd, jnp.asarray(6))[:, :12], odd[:, :12])
