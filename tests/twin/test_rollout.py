"""Episodes in a twin: who decides is obeyed, luck is shared, plans begin at one history."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.patients.episodes import Mode
from stepdown.patients.pump import load_profile
from stepdown.policies.rules import RULES
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import LEVEL, MAP
from stepdown.twin.coordinates import fit_coordinates
from stepdown.twin.fit import make_twin
from stepdown.twin.rollout import follow_plans, roll_out
from tests.twin.toys import STEPS, TRAIN, pocket, put

IN_FORCE = np.array([2, 4, 6, 8, 9])
STATES = put(TRAIN, "state", (np.arange(5), ..., LEVEL), IN_FORCE[:, None]).state[:5]
KEYS = jr.split(jr.key(1), 5)


def drift(state, level, *, key):
    """MAP rises by what the level was lowered; a little luck."""
    risen = state[:, MAP] + state[:, LEVEL] - level + 0.01 * jr.normal(key)
    return state.at[:, MAP].set(risen).at[:, LEVEL].set(level.astype(float))


def test_a_decider_is_obeyed_hour_by_hour():
    episodes = roll_out(Mode(RULES["blind stepping down"]), drift, STATES, 3, keys=KEYS)
    assert episodes.state.shape == (5, 4, STEPS, 13)
    assert np.array_equal(
        episodes.level, [[2, 2, 2, 2], [4, 3, 2, 2], [6, 5, 4, 3], [8, 7, 6, 5], [9, 8, 7, 6]]
    )
    risen = np.asarray(episodes.state[:, -1, 0, MAP] - episodes.state[:, 0, 0, MAP])
    assert np.allclose(risen, [0, 2, 3, 3, 3], atol=0.1)
    assert np.asarray(episodes.alive).all()


def test_a_start_alone_comes_out_as_among_others():
    p4 = Mode(RULES["always P4"])
    together = roll_out(p4, drift, STATES, 3, keys=KEYS)
    alone = roll_out(p4, drift, STATES[2:3], 3, keys=KEYS[2:3])
    assert np.array_equal(alone.state[0], together.state[2])


def test_all_who_decide_meet_the_same_luck():
    one = roll_out(Mode(RULES["always P4"]), drift, STATES, 2, keys=KEYS)
    other = roll_out(Mode(RULES["always P7"]), drift, STATES, 2, keys=KEYS)
    apart = np.asarray(one.state[..., MAP] - other.state[..., MAP])
    assert np.allclose(apart[:, 1:], 3.0, atol=1e-4)


def test_plans_follow_the_twin_hour_by_hour():
    scaler = fit_scaler(TRAIN)
    scale = fit_coordinates(TRAIN, scaler.present, load_profile("cp"))
    twin = make_twin(scaler, scale, STEPS, pocket("tdt"), key=jr.key(0))
    plans = jnp.array([[3, 3, 5], [8, 7, 6]])
    keys = jr.split(jr.key(4), 2)
    followed = follow_plans(twin, STATES[0], plans, keys=keys)
    assert followed.shape == (2, 2, 3, STEPS, 13)
    step = jax.jit(twin.__call__)
    for number, plan in enumerate(plans):
        for draw, key in enumerate(keys):
            state = STATES[0]
            for hour, (level, k_hour) in enumerate(zip(plan, jr.split(key, 3), strict=True)):
                state = step(state, level, key=k_hour)
                assert np.allclose(followed[number, draw, hour], state, rtol=1e-4, atol=1e-3)
