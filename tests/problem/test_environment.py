"""The environments: Gymnasium's contract, exact seeds, one and many alike, the truth behind."""

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from stepdown.handover import Episodes
from stepdown.patients.episodes import Mode, play
from stepdown.policies.rules import RULES
from stepdown.problem.clinical import (
    shaped_reward,
    stable_by_both,
    stable_by_gradient,
    stable_by_limits,
)
from stepdown.problem.environment import (
    PatientWard,
    WeaningEnv,
    WeaningVectorEnv,
    known_columns,
    make_twin,
    simulated_ward,
    twin_ward,
)
from stepdown.problem.metrics import METRICS, score_episodes
from stepdown.signals import LEVEL, LEVELS, MAP, SIGNALS, TAU

NAMES = ("stepdown/Patients-v0", "stepdown/Twin-v0")
MANY = 4
PLANS = st.lists(st.integers(0, 7), min_size=6, max_size=6)


@pytest.fixture(scope="module", params=NAMES)
def env(request):
    return gymnasium.make(request.param).unwrapped


@pytest.fixture(scope="module", params=NAMES)
def pair(request):
    """The same problem for one patient and for many."""
    one = gymnasium.make(request.param).unwrapped
    return one, gymnasium.make_vec(request.param, num_envs=MANY)


def played(env, plan, seed, options=None):
    """Observations, rewards and infos of one episode."""
    observation, info = env.reset(seed=seed, options=options)
    steps = [(observation, 0.0, False, False, info)]
    for action in plan:
        steps.append(env.step(action))
        if steps[-1][2]:  # died
            break
    return steps


def test_gymnasium_finds_nothing_to_complain_about(env):
    check_env(env)


def test_the_observation_is_the_hour_in_physical_units(env):
    observation, info = env.reset(seed=3)
    assert observation.shape == (78,)
    hour = observation.reshape(6, 13)
    low, high = SIGNALS[MAP].soft
    assert low < np.median(hour[:, MAP]) < high
    assert np.all(hour[:, LEVEL] == info["level"])
    assert info["level"] in LEVELS
    for column, signal in enumerate(SIGNALS):
        assert env.observation_space.low.reshape(6, 13)[0, column] == np.float32(signal.hard[0])
        assert env.observation_space.high.reshape(6, 13)[0, column] == np.float32(signal.hard[1])


def test_an_episode_is_six_decisions(env):
    steps = played(env, [6] * 6, seed=5)
    assert [step[2] for step in steps[1:]] == [False] * 6
    assert [step[3] for step in steps[1:]] == [False] * 5 + [True]
    with pytest.raises(ResetNeeded, match="Call reset"):
        env.step(0)


@settings(max_examples=8)
@given(plan=PLANS, seed=st.integers(0, 2**31 - 1))
def test_the_same_seed_gives_the_same_episode(env, plan, seed):
    first, again = played(env, plan, seed), played(env, plan, seed)
    for before, after in zip(first, again, strict=True):
        assert np.array_equal(before[0], after[0])
        assert before[1:] == after[1:]


def test_another_seed_and_another_episode_begin_elsewhere(env):
    first = env.reset(seed=1)[0]
    assert not np.array_equal(first, env.reset()[0])
    assert not np.array_equal(first, env.reset(seed=2)[0])
    assert np.array_equal(first, env.reset(seed=1)[0])
    assert np.array_equal(env.reset(options={"start": 7})[0], env.reset(options={"start": 7})[0])


def test_action_i_sets_level_i_plus_two_and_every_level_is_reachable(env):
    for action, level in enumerate(LEVELS):
        env.reset(seed=action)
        observation, *_, info = env.step(action)
        assert info["level"] == level
        assert np.all(observation.reshape(6, 13)[:, LEVEL] == level)


@settings(max_examples=8)
@given(plan=PLANS, seed=st.integers(0, 1000))
def test_info_ends_with_the_scores_of_the_episode(env, plan, seed):
    steps = played(env, plan, seed)
    whole = steps + [steps[-1]] * (7 - len(steps))  # the dead stay as they are
    state = jnp.stack([step[0].reshape(6, 13) for step in whole])
    episode = Episodes(
        state=state,
        level=jnp.asarray([step[4]["level"] for step in whole]),
        alive=jnp.asarray([step[4]["alive"] for step in whole[1:]]),
    )
    scores = score_episodes(jax.tree.map(lambda x: x[None], episode))
    for name in [x for x in METRICS if x != "reward"]:
        assert steps[-1][4][name] == pytest.approx(float(scores[name][0]), abs=1e-5)
    assert sum(step[1] for step in steps) == pytest.approx(float(scores["reward"][0]), abs=1e-4)


def test_many_live_as_each_alone(pair):
    one, many = pair
    plan = np.random.default_rng(0).integers(0, 8, (14, MANY))
    together = [many.reset(seed=11)] + [many.step(actions) for actions in plan]
    for number in range(MANY):
        alone = [one.reset(seed=11 + number)]
        for actions in plan:
            begins = any(alone[-1][2:4]) if len(alone[-1]) == 5 else False  # the step after an end
            alone.append(one.reset() if begins else one.step(int(actions[number])))
        for single, shared in zip(alone, together, strict=True):
            assert np.allclose(single[0], shared[0][number], rtol=1e-3, atol=0.05)
            for name, value in single[-1].items():
                assert shared[-1][name][number] == pytest.approx(value, abs=2e-3)
                assert shared[-1][f"_{name}"][number]
            if len(single) == 5:
                assert single[1] == pytest.approx(shared[1][number], abs=2e-3)
                assert single[2:4] == (shared[2][number], shared[3][number])


def test_many_reset_together_in_the_step_after_truncation(pair):
    _, many = pair
    assert many.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.NEXT_STEP
    many.reset(seed=0)
    actions = np.full(MANY, 6)
    truncated = [many.step(actions)[3].all() for _ in range(7)]
    assert truncated == [False] * 5 + [True, False]
    _, rewards, _, _, infos = many.step(actions)
    assert np.all(infos["hour"] == 1)
    assert np.all(rewards != 0.0)


def test_replayed_patients_meet_the_fate_that_policies_are_judged_by():
    ward = simulated_ward()
    env = WeaningEnv(PatientWard(ward.starts, ward.world, replay=True))
    few = jax.tree.map(lambda x: x[:64], ward.starts)  # a size that other tests compile as well
    judged = play(Mode(RULES["always P4"]), few, ward.world)
    for start in range(MANY):
        steps = played(env, [2] * 6, seed=0, options={"start": start})
        states = np.stack([step[0].reshape(6, 13) for step in steps])
        assert np.allclose(states, judged.state[start], rtol=1e-3, atol=0.05)
        assert [step[4]["alive"] for step in steps[1:]] == judged.alive[start].tolist()


@pytest.fixture(scope="module")
def half_dead():
    """Patients who die in their first hour, and others at every second start."""
    ward = simulated_ward()
    alive = jnp.arange(len(ward.states)) % 2 * ward.starts.patient.course.alive
    starts = eqx.tree_at(lambda starts: starts.patient.course.alive, ward.starts, alive)
    return PatientWard(starts, ward.world)


def test_a_death_terminates_and_pays_for_the_hours_that_do_not_follow(half_dead):
    env = WeaningEnv(half_dead)
    steps = played(env, [3] * 6, seed=0, options={"start": 0})
    assert [(step[1], *step[2:4]) for step in steps[1:]] == [(-12.0, True, False)]
    assert steps[-1][4]["unsafe_hours"] == 1.0
    assert not steps[-1][4]["alive"]
    with pytest.raises(ResetNeeded, match="Call reset"):
        env.step(3)


def test_one_death_begins_one_place_anew_and_no_other(half_dead):
    many = WeaningVectorEnv(half_dead, MANY)
    many.reset(seed=3, options={"start": np.arange(MANY)})
    _, rewards, terminated, truncated, _ = many.step(np.full(MANY, 6))
    assert terminated.tolist() == [True, False] * 2
    assert (rewards[::2] == -12.0).all()
    assert (rewards[1::2] > -12.0).all()
    assert not truncated.any()
    observations, rewards, terminated, _, infos = many.step(np.full(MANY, 6))
    assert infos["hour"].tolist() == [0, 2, 0, 2]
    assert (rewards[::2] == 0.0).all()
    assert not terminated.any()
    alone = WeaningEnv(half_dead)
    alone.reset(seed=3)
    np.testing.assert_allclose(alone.reset()[0], observations[0])  # its second episode


def test_no_decision_after_death_counts_as_weaning():
    ward = simulated_ward()
    steady = jax.vmap(stable_by_both)(ward.states) & (ward.states[:, -1, LEVEL] > 2)
    start = int(jnp.argmax(steady))
    level = int(ward.states[start, -1, LEVEL])
    gone = jnp.zeros(len(ward.states))
    dead = eqx.tree_at(lambda starts: starts.patient.course.alive, ward.starts, gone)
    plan = [level - 1 - 2] * 6  # one step down while the patient seemed alive, then held
    steps = played(WeaningEnv(PatientWard(dead, ward.world)), plan, 0, {"start": start})
    for name in ("ws_gradient", "ws_limits", "ws_both"):
        assert [step[4][name] for step in steps] == [0.0, 1.0]


def test_shaped_rewards_are_those_of_the_definitions():
    env, states, levels, rewards = make_twin(jump_weight=0.5, weaning_weight=0.3), [], [], []
    for seed in range(40):
        before = env.reset(seed=seed)[0].reshape(6, 13)
        level = max(int(before[-1, LEVEL]) - 1 - seed % 4, 2)
        after, reward, *_ = env.step(level - 2)
        states.append((before, after.reshape(6, 13)))
        levels.append(level)
        rewards.append(reward)
    before, after = jnp.asarray(states).swapaxes(0, 1)
    shaped = jax.vmap(lambda *row: shaped_reward(*row, jump_weight=0.5, weaning_weight=0.3))
    assert np.allclose(rewards, shaped(before, jnp.asarray(levels), after), atol=1e-5)
    limits, slopes = jax.vmap(stable_by_limits)(before), jax.vmap(stable_by_gradient)(before)
    assert (limits != slopes).any()  # shaping asks for the limits alone


def test_any_dynamics_are_drawn_anew_cut_at_the_ranges_and_told_the_level():
    def wild(state, level, /, *, key):
        return 1e5 * jax.random.normal(key, state.shape)

    env = make_twin(dynamics=wild)
    env.reset(seed=0)
    first, again = env.step(3), env.step(3)
    for step in (first, again):
        assert env.observation_space.contains(step[0])
        assert step[4]["level"] == 5
        assert np.all(step[0].reshape(6, 13)[:, LEVEL] == 5)
    assert not np.array_equal(first[0], again[0])


def test_shaping_weights_change_the_reward_alone():
    plain, shaped = make_twin(), make_twin(jump_weight=0.5, weaning_weight=0.3)
    for plan in ([7, 0, 1, 0, 0, 0], [0, 7, 6, 4, 4, 4]):
        for before, after in zip(played(plain, plan, 4), played(shaped, plan, 4), strict=True):
            assert np.array_equal(before[0], after[0])
            assert before[1] == after[4]["unshaped"]
    *_, last = played(shaped, [7, 0, 0, 0, 0, 0], 4)
    total = sum(step[1] - step[4]["unshaped"] for step in played(shaped, [7, 0, 0, 0, 0, 0], 4)[1:])
    jumps = last[4]["acp"]
    assert jumps >= 7.0
    assert total <= -0.5 * jumps + 0.3 * 2 * 6


def test_absent_signals_have_no_place_in_the_observation():
    states = simulated_ward().states.at[:, :, TAU].set(jnp.nan)
    env = make_twin(states=states)
    assert env.reset(seed=0)[0].shape == (72,)
    assert np.isfinite(env.step(4)[0]).all()


def test_the_picture_shows_the_episode_so_far():
    env = make_twin(render_mode="rgb_array")
    env.reset(seed=0)
    start = env.render()
    assert start is not None
    for action in (7, 0, 7):
        env.step(action)
    later = env.render()
    assert later is not None
    assert later.shape == start.shape == (192, 260, 3)
    half = start.shape[1] // 2
    assert np.array_equal(start[:, :40], later[:, :40])  # the first hour stays
    assert (later[:, :half] != start[:, :half]).any()
    assert np.array_equal(start[:, 160:], later[:, 160:])  # the future is empty


@pytest.mark.parametrize("action", [8, -1, 2.5, None, [1, 2], "P4"])
def test_wrong_actions_are_refused_in_words(env, action):
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"0 to 7 of shape \(\), which mean P2 to P9"):
        env.step(action)


def test_wrong_input_is_refused_in_words(env):
    states = simulated_ward().states
    with pytest.raises(ValueError, match=r"shape \(starts, steps, 13\), got \(1024, 6, 12\)"):
        known_columns(np.asarray(states[..., :12]))
    with pytest.raises(ValueError, match="Pass physical units"):
        make_twin(states=(states - 60.0) / 20.0)
    with pytest.raises(ValueError, match="expected map in every start state, got NaN"):
        make_twin(states=states.at[0, 0, MAP].set(jnp.nan))
    with pytest.raises(ValueError, match="expected whole levels 2 to 9 in force, got 11"):
        make_twin(states=states.at[:, :, LEVEL].set(11.0))
    with pytest.raises(ValueError, match="start: expected a number from 0 to 1023, got 5000"):
        env.reset(options={"start": 5000})
    with pytest.raises(ValueError, match="expected rgb_array or None"):
        make_twin(render_mode="human")
    with pytest.raises(ValueError, match="seed: expected 2 numbers, got 1"):
        WeaningVectorEnv(twin_ward(), 2).reset(seed=[1])

    def broken(state, level, /, *, key):
        return state * jnp.nan

    wrong = make_twin(dynamics=broken)
    wrong.reset(seed=0)
    with pytest.raises(ValueError, match="expected finite values from the dynamics"):
        wrong.step(0)
