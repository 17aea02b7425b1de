"""The pump: inverses agree, more speed gives more flow, profiles hold what their source says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from stepdown.patients.pump import (
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
