"""The pump: inverses agree, more speed gives more flow, profiles hold what their source says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from stepdown.patients.pump import (
    OFF,
    UNKNOWN,
    level_of_speed,
    load_profile,
    profile_names,
    pump_flow,
    pump_head,
)
from stepdown.signals import LEVELS

PROFILES = {name: load_profile(name) for name in profile_names()}


@given(sampled_from(sorted(PROFILES)), integers(2, 9), floats(-40, 140))
def test_head_and_flow_are_inverse(name, level, head):
    profile, level = PROFILES[name], jnp.asarray(level)
    flow = pump_flow(profile, level, jnp.asarray(head))
    assert float(pump_head(profile, level, flow)) == pytest.approx(head, abs=0.02)


@pytest.mark.parametrize("name", sorted(PROFILES))
@pytest.mark.parametrize("head", [20.0, 40.0, 60.0])
def test_every_level_pumps_more_than_the_one_below(name, head):
    flows = jax.vmap(lambda level: pump_flow(PROFILES[name], level, jnp.asarray(head)))(
        jnp.array(LEVELS)
    )
    assert np.all(np.diff(flows) > 0)


def test_the_small_pump_gives_the_flows_its_manual_prints():
    low = [0.8, 1.1, 1.3, 1.5, 1.7, 1.8, 2.1, 2.1]
    high = [1.5, 1.7, 1.8, 1.9, 2.1, 2.2, 2.4, 2.5]
    flows = jax.vmap(lambda p: pump_flow(PROFILES["2.5"], p, jnp.asarray(40.0)))(jnp.array(LEVELS))
    assert np.all((np.asarray(flows) >= low) & (np.asarray(flows) <= high))


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_read_within_two_percent_of_its_speed_only(level):
    """I11; the limit itself belongs to the level."""
    profile = PROFILES["cp"]
    speed = float(profile.speed[level - 2])
    near = speed * np.array([0.98, 0.99, 1.0, 1.01, 1.02])
    assert np.all(level_of_speed(profile, near) == level)
    beyond = speed * np.array([0.9795, 1.0205])
    assert np.all(level_of_speed(profile, beyond) == UNKNOWN)
    assert np.all(level_of_speed(profile, beyond, tolerance=0.021) == level)


def test_between_two_levels_a_speed_belongs_to_none():
    steps = np.asarray(PROFILES["cp"].speed, float)
    odd = [20_000.0, 60_000.0, np.nan, np.inf]
    speeds = np.concatenate([(steps[1:] + steps[:-1]) / 2, odd])
    assert np.all(level_of_speed(PROFILES["cp"], speeds) == UNKNOWN)


def test_a_pump_that_stands_is_off_and_not_unknown():
    found = level_of_speed(PROFILES["cp"], np.array([[0.0, 999.0], [1000.0, 46_000.0]]))
    np.testing.assert_array_equal(found, [[OFF, OFF], [UNKNOWN, 9]])


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_speed_of_a_profile_is_read_as_its_own_level(name):
    """Two levels of the small pump are 2 % apart, each within the tolerance of the other."""
    found = [int(level_of_speed(PROFILES[name], float(x))) for x in PROFILES[name].speed]
    assert found == list(LEVELS)
