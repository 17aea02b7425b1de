"""Several hours in a state: windows by hand, models that read them, and who refuses them."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepdown.app.recordings import require_one_hour as require_one_hour_of_a_run
from stepdown.artifacts import ArtifactError, load_config
from stepdown.evaluation.judging import draw_moments, judge_in_patients, judge_in_twin
from stepdown.evaluation.second_twin import fit_second_twin
from stepdown.export.datasets import write_d4rl
from stepdown.export.onnx_models import onnx_files
from stepdown.guardian.fit import DensityConfig, fit_guardian
from stepdown.guardian.guardians import DENSITIES
from stepdown.handover import Role, Transitions, advance, require_one_hour
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import Mode, draw_starts, play
from stepdown.policies.bc import BCConfig, clone
from stepdown.policies.constraint import Constrained
from stepdown.policies.ensemble import fit_ensemble
from stepdown.policies.learning import ALONE, Task
from stepdown.policies.planner import Planner, PlannerConfig, make_planner, walk_in
from stepdown.policies.saved import load_policy, save_policy
from stepdown.problem.clinical import normalized_reward
from stepdown.problem.environment import twin_ward
from stepdown.problem.hours import (
    HoursConfig,
    add_noise,
    count_decisions,
    cut_stays,
    find_runs,
    make_transitions,
)
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import CURRENT, HR, LEVEL, LOWEST, MAP, SPEED
from stepdown.twin.fit import KIND, SavedTwin, Twin, check_state, fit_twin, save_twin
from stepdown.twin.ridge import RidgeConfig, features
from stepdown.twin.rollout import follow_plans, roll_out
from stepdown.twin.twins import load_twin, twin_config
from tests.problem.test_hours import PATIENTS, STEPS, runs, ward
from tests.twin.toys import SIGNALS, pocket, toy_samples

HISTORY = 3
THREE = HoursConfig(history=HISTORY)


# ── windows ──────────────────────────────────────────────────────────────────────────────────────


def hours_begin(hours: Transitions) -> list[list[int]]:
    """The first sample of each hour of each state, read off the counting signal."""
    counted = np.asarray(hours.state[..., CURRENT]).reshape(len(hours.level), -1, 6) - 300
    assert np.array_equal(counted, counted[..., :1] + np.arange(6))  # whole hours in order
    return counted[..., 0].astype(int).tolist()


def test_windows_worked_out_by_hand():
    """40 samples hold five decisions; the first hour stands for those that were not recorded."""
    level = np.full((PATIENTS, STEPS), 8)
    level[:, 6:12], level[:, 12:] = 5, 4
    hours = make_transitions(ward(level=level), THREE)
    assert hours.history == 3
    assert hours.state.shape == (15, 18, 13)
    assert hours.next_state.shape == (15, 6, 13)
    by_hand = [[0, 0, 0], [0, 0, 6], [0, 6, 12], [6, 12, 18], [12, 18, 24]]
    assert hours_begin(hours) == by_hand * PATIENTS
    assert np.asarray(hours.next_state[:5, 0, CURRENT]).tolist() == [306, 312, 318, 324, 330]
    column = np.asarray(hours.state[:5, ::6, LEVEL]).astype(int).tolist()
    assert column == [[8, 8, 8], [8, 8, 5], [8, 5, 4], [5, 4, 4], [4, 4, 4]]


def test_a_gap_begins_a_new_past():
    seen = np.ones((PATIENTS, STEPS), bool)
    seen[0, 13:15] = False
    hours = make_transitions(ward(seen=seen), THREE)
    mine = [begin for begin, row in zip(hours_begin(hours), hours.patient, strict=True) if row == 0]
    assert mine == [[0, 0, 0], [15, 15, 15], [15, 15, 21], [15, 21, 27]]


@given(runs, st.sampled_from([60.0, 30.0, 10.0]))
def test_no_state_crosses_patients_or_gaps(gaps, stride):
    seen = np.ones((PATIENTS, STEPS), bool)
    for row, start, length in gaps:
        seen[row, start : start + length] = False
    windows = cut_stays(ward(seen=seen), stride=stride, history=HISTORY)
    whole = np.concatenate([windows.earlier, windows.state], axis=1)
    assert np.array_equal(whole[..., SPEED] - 30_000, np.repeat(windows.patient[:, None], 18, 1))
    begin = whole[:, ::6, CURRENT].astype(int) - 300
    for row, (first, second, last) in zip(windows.patient, begin, strict=True):
        assert {second - first, last - second} <= {0, 6}
        assert second == first or last > second  # what is not there lies at the beginning
        assert seen[row, first : last + 12].all()
        earlier = seen[row, max(first - 6, 0) : first]
        # an hour is left out only where it was not recorded whole on this grid
        assert last - first == 12 or len(earlier) < 6 or not earlier.all()


def test_every_history_has_the_rows_of_one_hour():
    cohort = ward()
    one, three = make_transitions(cohort), make_transitions(cohort, THREE)
    assert one.history == 1
    for name in ("level", "levels", "reward", "unshaped", "next_state", "last", "patient", "died"):
        np.testing.assert_array_equal(getattr(one, name), getattr(three, name))
    np.testing.assert_array_equal(three.hour, one.state)
    assert count_decisions(cohort, THREE) == count_decisions(cohort)
    assert np.array_equal(find_runs(three, 3), find_runs(one, 3))
    scales = [fit_scaler(hours) for hours in (one, three)]
    assert all(map(np.array_equal, jax.tree.leaves(scales[0]), jax.tree.leaves(scales[1])))
    with pytest.raises(ValueError, match="history: expected at least 1 hour, got 0"):
        HoursConfig(history=0)


def test_a_state_goes_on_by_an_hour():
    state, hour = jnp.arange(18.0)[:, None], jnp.full((6, 1), 99.0)
    assert np.asarray(advance(state, hour))[:, 0].tolist() == [*range(6, 18), *[99] * 6]
    assert advance(hour, state[:6]) is state[:6] or np.array_equal(
        advance(hour, state[:6]), state[:6]
    )


# ── a world that remembers ───────────────────────────────────────────────────────────────────────

MMHG = 8.0  # of a z-score of MAP
REMEMBERED = 2.0  # z-scores by z-score of the hour before last
EFFECT = 0.5  # z-scores by level


def remembering(rows: int, role: Role, seed: int) -> Transitions:
    """MAP of the coming hour lies where the hour before last and the level put it."""
    draw = np.random.default_rng(seed)
    past = 0.1 * draw.normal(size=(rows, HISTORY, 6, SIGNALS))
    past[..., MAP] += draw.normal(size=(rows, HISTORY, 1))
    in_force, level = draw.integers(4, 8, rows), draw.integers(2, 10, rows)
    later = 0.1 * draw.normal(size=(rows, 6, SIGNALS))
    later[..., MAP] += (EFFECT * (level - 5) + REMEMBERED * past[:, -2, :, MAP].mean(1))[:, None]
    return as_hours(past, in_force, level, later, role)


def as_hours(past, in_force, level, later, role: Role) -> Transitions:
    rows = len(level)

    def states(scores, levels):
        each = np.broadcast_to(levels[:, None], scores.shape[:2])
        return jnp.asarray(
            np.concatenate([toy_samples(scores, each), each[..., None]], -1), jnp.float32
        )

    flags = jnp.zeros(rows, bool)
    return Transitions(
        state=states(past.reshape(rows, -1, SIGNALS), in_force),
        level=jnp.asarray(level, jnp.int32),
        levels=jnp.asarray(np.repeat(level[:, None], 6, 1), jnp.int32),
        reward=jnp.zeros(rows),
        unshaped=jnp.zeros(rows),
        next_state=states(later, level),
        last=~flags,
        died=flags,
        filled=flags,
        patient=jnp.asarray(np.arange(rows) % 16, jnp.int32),
        role=role,
    )


TRAIN, SELECT = remembering(600, "train", 0), remembering(160, "select", 1)


def last_hour(hours: Transitions) -> Transitions:
    return replace(hours, state=hours.hour)


def fitted(history: int) -> Twin:
    sizes = RidgeConfig(ridges=(1e-4,), products=(1e-4,), members=2, errors=64, history=history)
    train, select = (x if history > 1 else last_hour(x) for x in (TRAIN, SELECT))
    return fit_twin(train, select, pocket("ridge", sizes=sizes), key=jr.key(0))[0]


@pytest.fixture(scope="module")
def twin() -> Twin:
    return fitted(HISTORY)


def remembered_state(before: float):
    """At P-5 and 80 mmHg; in the hour before, so many z-scores above."""
    past = np.zeros((1, HISTORY, 6, SIGNALS))
    past[0, -2, :, MAP] = before
    return as_hours(past, np.array([5]), np.array([5]), np.zeros((1, 6, SIGNALS)), "test").state[0]


def optimum(state, before: float) -> int:
    """The level within two whose hour, as the world makes it, is rewarded best."""
    best = {}
    for level in range(3, 8):
        pressure = 80 + MMHG * (EFFECT * (level - 5) + REMEMBERED * before)
        hour = state[-6:].at[:, MAP].set(pressure)
        best[level] = float(normalized_reward(hour)) - 1e-4 * abs(level - 5)
    return max(best, key=lambda level: best[level])


def test_what_was_an_hour_ago_decides_where_the_world_remembers(twin):
    config = PlannerConfig(hours=1, draws=16, caution=0.0, lowering=0.0)
    remembers = Planner(twin, jnp.asarray(0), config=config)
    forgets = Planner(fitted(1), jnp.asarray(0), config=config)
    assert (remembers.history, forgets.history) == (3, 1)
    decide = eqx.filter_jit(lambda planner, state: jnp.argmax(planner(state)) + LOWEST)
    states = {before: remembered_state(before) for before in (-1.6, 0.0, 1.8)}
    best = [optimum(state, before) for before, state in states.items()]
    assert best == [7, 5, 4]
    assert [int(decide(remembers, state)) for state in states.values()] == best
    one = {int(decide(forgets, state[-6:])) for state in states.values()}
    assert len(one) == 1  # whatever was an hour ago


def test_earlier_hours_join_the_inputs_by_their_means():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(18, 13)), jnp.float32)
    levels = jnp.full(6, 0.3)
    found, plain = features(scores, levels), features(scores[12:], levels)
    products = SIGNALS
    place = len(plain) - products
    np.testing.assert_array_equal(found[:place], plain[:place])
    np.testing.assert_array_equal(found[-products:], plain[-products:])
    means = np.asarray(scores[:12]).reshape(2, 6, 13).mean(1).ravel()
    np.testing.assert_allclose(found[place:-products], means, atol=1e-6)


def test_the_better_twin_may_read_history_too():
    sizes = replace(pocket("best").sizes, history=HISTORY)
    better, _ = fit_twin(TRAIN, SELECT, pocket("best", sizes=sizes), key=jr.key(0))
    assert better.history == HISTORY
    center = jax.jit(jax.vmap(better.center))(SELECT.state, SELECT.level)
    error = float(jnp.abs(center - SELECT.next_state)[..., MAP].mean())
    assert error < 5  # mmHg; without it, MAP scatters by 16


def test_a_twin_reads_the_last_hours_and_no_fewer(twin):
    state, level = SELECT.state[0], SELECT.level[0]
    longer = jnp.concatenate([state[:6] + 1.0, state])
    draw = jax.jit(lambda state: twin(state, level, key=jr.key(1)))
    assert draw(state).shape == (6, 13)
    np.testing.assert_array_equal(draw(state), draw(longer))
    with pytest.raises(ValueError, match="expected a state of 3 h, which this twin reads, got 6"):
        twin(state[-6:], level, key=jr.key(1))
    with pytest.raises(ValueError, match=r"expected a state of 18 samples \(3 h\)"):
        check_state(twin, state[-6:])
    with pytest.raises(ValueError, match="expected states of 3 h, .* got states of 1 h"):
        fit_twin(last_hour(TRAIN), last_hour(SELECT), pocket("ridge", sizes=RidgeConfig(history=3)),
                 key=jr.key(0))  # fmt: skip


def by_hand(twin: Twin, state, levels, keys):
    """Hour by hour, the window shifted with plain slices."""
    step, hours = jax.jit(lambda s, a, k: twin(s, a, key=k)), [state[-6:]]
    for level, key in zip(levels, keys, strict=True):
        hours.append(step(state, jnp.asarray(level), key))
        state = jnp.concatenate([state[6:], hours[-1]])
    return np.stack(hours)


def test_the_window_shifts_in_a_twin_however_it_is_played(twin):
    state, plan = SELECT.state[3], [4, 6, 5, 5]
    keys = jr.split(jr.key(4), 4)

    def decide(patient, state, key):
        count = jnp.sum(state[:6, MAP] > 80).astype(int)  # of the oldest hour
        return 3 + count

    played = roll_out(decide, twin, state[None], 4, keys=jr.key(4)[None])
    hours = by_hand(twin, state, played.level[0, 1:], [jr.split(k)[1] for k in keys])
    np.testing.assert_allclose(played.state[0], hours, rtol=1e-4, atol=1e-3)
    window = np.concatenate([np.asarray(state)[:12], *np.asarray(played.state[0])])
    asked = [3 + int((window[6 * i : 6 * i + 6, MAP] > 80).sum()) for i in range(4)]
    assert np.asarray(played.level[0, 1:]).tolist() == asked

    luck = jr.split(jr.key(9), 1)
    drawn = follow_plans(twin, state, jnp.asarray([plan]), keys=luck)[0, 0]
    slow = by_hand(twin, state, plan, jr.split(luck[0], 4))
    np.testing.assert_allclose(drawn, slow[1:], rtol=1e-4, atol=1e-3)

    walk = walk_in(twin)
    ahead = jax.jit(lambda now, level, key: walk.ahead(now, level, key=key))
    now = eqx.filter_jit(walk.read)(state)
    for level, key in zip(plan, jr.split(luck[0], 4), strict=True):
        now = ahead(now, jnp.asarray(level), key)
    np.testing.assert_allclose(eqx.filter_jit(walk.shown)(now), slow[-1], rtol=1e-3, atol=0.05)


class Remembers(eqx.Module):
    """A policy that reads the oldest of three hours."""

    @property
    def history(self) -> int:
        return HISTORY

    def __call__(self, state):
        assert state.shape[0] == 18
        return jax.nn.one_hot(jnp.round(jnp.mean(state[:6, MAP])).astype(int) % 8, 8)


def test_the_window_shifts_among_simulated_patients():
    """The same starts for every history, the same episodes by either way of playing."""
    config = CohortConfig(patients=64)
    cohort, latents = simulate_cohort(config, key=jr.key(2))
    one = draw_starts(cohort, latents, 64, key=jr.key(0))
    starts = draw_starts(cohort, latents, 64, history=HISTORY, key=jr.key(0))
    np.testing.assert_array_equal(starts.state[:, -6:], one.state)
    np.testing.assert_array_equal(starts.tick, one.tick)
    young = np.asarray(starts.tick) == 6  # one hour was recorded: it stands for all
    np.testing.assert_array_equal(starts.state[young, :6], starts.state[young, -6:])
    row, tick = int(starts.row[~young][0]), int(starts.tick[~young][0])
    signals = np.asarray(cohort.signals)[row, max(tick - 12, 0) : tick - 6]
    np.testing.assert_array_equal(np.asarray(starts.state)[~young][0, 6:12, :LEVEL], signals)
    episodes = play(Mode(Remembers()), starts, world_of(config))
    assert episodes.state.shape == (64, 7, 6, 13)
    before = np.asarray(starts.state)[:, :12].reshape(64, 2, 6, 13)
    window = np.concatenate([before, np.asarray(episodes.state)], axis=1)
    asked = np.round(window[:, :6, :, MAP].mean(2)).astype(int) % 8 + LOWEST
    agree = asked == np.asarray(episodes.level[:, 1:])
    assert agree.mean() > 0.99  # a mean may lie on the edge of two whole numbers
    judged = judge_in_patients(Remembers(), starts, world_of(config))
    assert (judged.level[0] == np.asarray(episodes.level)).mean() > 0.99


def test_a_planner_with_history_is_judged_in_its_twin(twin):
    rows = np.arange(160)
    hours = replace(SELECT, role="test", last=jnp.asarray(rows % 20 == 19))
    follow = hours.state.at[1:, -6:].set(hours.next_state[:-1])  # rows that follow one another
    hours = replace(hours, state=follow, patient=jnp.asarray(rows // 20, jnp.int32))
    moments, plans = draw_moments(hours, 8, key=jr.key(0))
    assert moments.state.shape == (8, 18, 13)
    planner = Planner(twin, jnp.asarray(0), config=PlannerConfig(hours=1, draws=2))
    judged = judge_in_twin(planner, twin, moments)
    assert judged.level.shape == (1, 8, 7)
    assert plans.shape == (8, 6)
    assert np.isfinite(np.asarray(judged.scores["reward"])).all()


# ── saved, and refused ───────────────────────────────────────────────────────────────────────────


def test_a_twin_and_a_planner_keep_their_history(twin, tmp_path):
    config = pocket("ridge", sizes=RidgeConfig(members=2, errors=64, history=HISTORY))
    save_twin(tmp_path / "twin", twin, config)
    assert load_config(tmp_path / "twin", SavedTwin, kind=KIND).sizes["history"] == HISTORY
    loaded, about = load_twin(tmp_path / "twin")
    assert (loaded.history, about.history) == (HISTORY, HISTORY)
    assert eqx.tree_equal(loaded, twin)
    planner = Planner(twin, jnp.asarray(3), config=PlannerConfig(hours=1, draws=2))
    save_policy(tmp_path / "policy", planner, "planner")
    policy, told = load_policy(tmp_path / "policy")
    assert told.history == HISTORY
    assert isinstance(policy, Planner)
    assert policy.history == HISTORY
    assert eqx.tree_equal(policy, planner)


def test_a_constraint_asks_about_the_last_hour_alone():
    """A low pressure two hours ago forbids nothing now; one in the last hour does."""
    calm = np.tile(np.asarray(SELECT.state[0, -1:]), (18, 1))
    calm[:, MAP], calm[:, HR], calm[:, LEVEL] = 80.0, 75.0, 5.0
    long_ago, just_now = calm.copy(), calm.copy()
    long_ago[:6, MAP], just_now[12:, MAP] = 40.0, 40.0
    bound = Constrained(Flat())
    assert bound.history == HISTORY
    for state, open_levels in ((long_ago, {3, 4, 5, 6, 7}), (just_now, {5, 6, 7})):
        chances = np.exp(np.asarray(bound(jnp.asarray(state))))
        assert set((np.flatnonzero(chances > 1e-6) + LOWEST).tolist()) == open_levels


class Flat(eqx.Module):
    """All levels alike, after three hours."""

    @property
    def history(self) -> int:
        return HISTORY

    def __call__(self, state):
        return jnp.zeros(8)


def test_a_planner_wants_the_hours_that_its_twin_reads(twin):
    made = make_planner(Task(TRAIN, SELECT, dynamics=twin), PlannerConfig(), jr.key(0))
    assert made.history == HISTORY
    task = Task(last_hour(TRAIN), last_hour(SELECT), dynamics=twin)
    with pytest.raises(ValueError, match="expected states of 3 h, which the dynamics read"):
        make_planner(task, PlannerConfig(), jr.key(0))


def test_the_second_twin_refuses_hours_that_it_was_not_told_of():
    scaler = fit_scaler(TRAIN)
    with pytest.raises(ValueError, match="expected states of 1 h, .* got states of 3 h"):
        fit_second_twin(SELECT, scaler, key=jr.key(0))


REFUSALS = {
    "a guardian": lambda path: fit_guardian(
        TRAIN, SELECT, DensityConfig(DENSITIES["kde"]), key=jr.key(0)
    ),
    "an ensemble": lambda path: fit_ensemble(TRAIN, key=jr.key(0)),
    "a learned policy": lambda path: clone(
        Task(TRAIN, SELECT), BCConfig(), keys=jr.split(jr.key(0), 1), watch=ALONE
    ),
    "the noisy data set": lambda path: add_noise(TRAIN, fit_scaler(TRAIN), key=jr.key(0)),
    "an exported data set": lambda path: write_d4rl(path, TRAIN, patients=(), about={}),
    "anybody": lambda path: require_one_hour(TRAIN, "anybody"),
}


@pytest.mark.parametrize("who", REFUSALS)
def test_whoever_reads_one_hour_says_so(who, tmp_path):
    with pytest.raises(ValueError, match=f"expected states of one hour, .* {who} reads, got 3"):
        REFUSALS[who](tmp_path)


def test_graphs_and_the_app_read_one_hour(twin, tmp_path):
    config = pocket("ridge", sizes=RidgeConfig(members=2, errors=64, history=HISTORY))
    save_twin(tmp_path / "twin", twin, config)
    with pytest.raises(ValueError, match="expected a twin that reads one hour, .* reads 3 h"):
        onnx_files(tmp_path, ["twin"], include_patient_data=False)
    with pytest.raises(ArtifactError, match="expected a policy that reads one hour, .* reads 3 h"):
        require_one_hour_of_a_run(tmp_path / "policy", HISTORY)
    require_one_hour_of_a_run(tmp_path / "policy", 1)


def test_histories_that_nobody_reads_are_refused(twin):
    with pytest.raises(ValueError, match="history: expected 1 to 12 hours, got 13"):
        RidgeConfig(history=13)
    with pytest.raises(ValueError, match="history: expected 1 for mlp, which reads one hour, got"):
        twin_config("mlp", history=6)
    assert twin_config("ridge", history=6).history == 6
    assert twin_config("best", "small", history=6).history == 6
    with pytest.raises(ValueError, match="expected dynamics that read one hour, got .* 3 h"):
        twin_ward(twin, SELECT.hour)
