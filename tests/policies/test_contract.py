"""What every method of the table and every rule keeps: the same tests for all rows."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stepdown.handover import Policy
from stepdown.policies import model_based, svr
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.constraint import Constrained
from stepdown.policies.ensemble import fit_ensemble
from stepdown.policies.learning import (
    ALONE,
    Epoch,
    Recipe,
    Shrink,
    Task,
    TrainingStoppedError,
    Watch,
    apply_changes,
)
from stepdown.policies.methods import METHODS as TABLE
from stepdown.policies.methods import make_recipe, train_policy
from stepdown.policies.model_based import OURS
from stepdown.policies.penalties import PENALTIES, Unpenalized, charge
from stepdown.policies.rules import RULES
from stepdown.policies.saved import load_policy, save_policy
from stepdown.policies.svr import SVRConfig
from stepdown.signals import LEVELS
from stepdown.training import FitConfig, member
from stepdown.twin.fit import fit_twin
from stepdown.twin.ridge import RidgeConfig
from stepdown.twin.twins import twin_config
from tests.documented import documented
from tests.policies.toys import (
    ENSEMBLE,
    POCKET,
    ROWS,
    MoreIsBetter,
    Support,
    make_hours,
    random_states,
)

TINY = Shrink(updates=200, rollout_every=100, batch=64, widths=(32, 32), rollouts=64, epochs=2)
CLONING = BCConfig(widths=(32,), fit=FitConfig(epochs=2, batch=128))
REGULARIZED = SVRConfig(
    updates=200, report_every=200, batch=64, widths=(32, 32), sac=POCKET.sac, behavior=CLONING
)
KEYS = jr.split(jr.key(3), 1)
EXAMPLE = documented("A learner")
METHODS = {**TABLE, EXAMPLE.name: EXAMPLE}
SHAPES = ("bc", "svr", "mbpo", "cormpo_kde", EXAMPLE.name)  # one of every kind of program
PLANNED = ("planner",)  # they choose within reach, and learn nothing


@functools.cache
def hours(role: str):
    """Records of all levels from P3 to P7."""
    draw = np.random.default_rng(len(role))
    before, levels = draw.integers(3, 8, ROWS), draw.integers(3, 8, ROWS)
    later = random_states(ROWS, levels, seed=1)
    return dataclasses.replace(make_hours(random_states(ROWS, before, 0), levels, later), role=role)


@functools.cache
def ensemble():
    return fit_ensemble(hours("train"), ENSEMBLE, key=jr.key(9))[0]


@functools.cache
def ridge():
    config = twin_config("ridge")
    sizes = RidgeConfig(members=2, errors=64)
    return fit_twin(
        hours("train"), hours("select"), dataclasses.replace(config, sizes=sizes), key=jr.key(9)
    )[0]


def task_of(name: str, rows=None) -> Task:
    """What the method asks for, and nothing else."""
    method = METHODS[name]
    models = {"ensemble": ensemble, "twin": MoreIsBetter, "ridge": ridge, None: lambda: None}
    dynamics = models[method.dynamics]()
    guardian = Support(jnp.array([3, 4, 5])) if method.density else None
    train = hours("train") if rows is None else rows
    return Task(train, hours("select"), dynamics, guardian, method.penalty)


def preset(name: str) -> Recipe:
    return make_recipe(name) if name in TABLE else METHODS[name].recipe(OURS)


def recipe_of(name: str, *, constrained: bool = False) -> Recipe:
    recipe = preset(name).shrunk(TINY)
    return dataclasses.replace(recipe, constrained=constrained)  # pyright: ignore[reportArgumentType]


def learn(name: str, keys=KEYS, watch: Watch = ALONE, *, constrained: bool = False, rows=None):
    recipe = recipe_of(name, constrained=constrained)
    return METHODS[name].learn(task_of(name, rows), recipe, keys=keys, watch=watch)


EVERYBODY = [*METHODS, *RULES]


@functools.cache
def learned(name: str):
    return learn(name)


def made(name: str) -> Policy:
    return member(learned(name)[0], 0) if name in METHODS else RULES[name]


@functools.cache
def held_to_small_steps(name: str) -> Policy:
    return member(learn(name, constrained=True)[0], 0)


@eqx.filter_jit
def weigh(policy, states):
    return jax.vmap(policy)(states)


@pytest.mark.parametrize("name", EVERYBODY)
def test_log_probabilities_sum_to_one(name):
    scores = np.asarray(weigh(made(name), hours("train").state[:64]), np.float64)
    assert scores.shape == (64, 8)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(np.exp(scores).sum(1), 1.0, atol=1e-5)


@pytest.mark.parametrize("name", ["bc", "cormpo_kde"])
def test_training_by_name_is_the_method_of_the_table(name):
    """The penalty is the method's own, whatever the task says; changes are those of the recipe."""
    sizes = dataclasses.asdict(TINY)
    if name == "bc":
        changes = {"widths": sizes["widths"], "fit__epochs": sizes["epochs"]}
    else:
        changes = {x: sizes[x] for x in ("updates", "rollout_every", "batch", "widths")}
        changes["rollouts__starts"] = sizes["rollouts"]
    plain = dataclasses.replace(task_of(name), penalty="none")
    one, _ = train_policy(name, plain, key=KEYS[0], **changes)
    jax.tree.map(np.testing.assert_array_equal, one, made(name))
    for asked, task, sentence in (
        ("cormpo", plain, "expected a method out of bc, mbpo"),
        ("mbpo", Task(plain.hours, plain.select), "expected dynamics for mbpo"),
        ("cormpo_kde", dataclasses.replace(plain, dynamics=ensemble(), guardian=None),
         "expected a guardian for cormpo_kde"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            train_policy(asked, task, key=KEYS[0])


@pytest.mark.parametrize("name", [x for x in METHODS if x not in PLANNED])
def test_every_level_is_reachable(name):
    scores = np.asarray(weigh(made(name), hours("train").state[:64]))
    assert scores.min() > np.log(1e-12)


@pytest.mark.parametrize("name", PLANNED)
def test_a_planner_chooses_one_level_within_reach(name):
    states = hours("train").state[:64]
    chances = np.exp(np.asarray(weigh(made(name), states), np.float64))
    np.testing.assert_allclose(chances.max(1), 1.0, atol=1e-6)
    step = np.argmax(chances, axis=1) + 2 - np.asarray(states)[:, -1, -1]
    assert np.abs(step).max() == 2


@pytest.mark.parametrize("name", SHAPES)
def test_a_constrained_policy_reaches_what_is_allowed_and_nothing_else(name):
    states = hours("train").state[:64]
    scores = np.asarray(weigh(held_to_small_steps(name), states))
    step = np.array(LEVELS)[None] - np.asarray(states)[:, -1, -1:]
    rising = (step >= 0) & (step <= 2)
    assert scores[rising].min() > np.log(1e-12)
    assert scores[np.abs(step) > 2].max() < -1e6


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("name", EVERYBODY)
@settings(max_examples=25)
@given(state=arrays(np.float32, (6, 13), elements=numbers))
def test_any_finite_state_is_answered(name, state):
    scores = np.asarray(weigh(made(name), jnp.asarray(state)[None]), np.float64)
    assert np.isfinite(scores).all()
    assert np.exp(scores).sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_key_gives_the_same_policy_and_another_key_another(name):
    again, other = (member(learn(name, keys)[0], 0) for keys in (KEYS, jr.split(jr.key(4), 1)))
    for mine, same in zip(jax.tree.leaves(made(name)), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(mine, same)
    states = hours("train").state[:64]
    assert not np.allclose(weigh(made(name), states), weigh(other, states), atol=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_reports_a_row_per_epoch_and_seed(name):
    _, curves = learned(name)
    epochs = 1 if name in PLANNED else 2
    assert {x.shape[:2] for x in curves.values()} == {(epochs, 1)}
    assert all(np.isfinite(x).all() for x in curves.values())
    if METHODS[name].penalty == "none":
        assert not np.any(curves.get("penalty", 0.0))
    else:
        weight = getattr(recipe_of(name), "penalty_weight")  # noqa: B009
        np.testing.assert_allclose(curves["penalty"], weight * curves["uncertainty"], rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_six_trials_of_its_own_numbers(name):
    recipe = preset(name)
    trials = [apply_changes(recipe, changes) for changes in METHODS[name].trials]
    assert trials[0] == recipe
    assert len(trials) == 6
    assert all(one not in trials[:place] for place, one in enumerate(trials))


class StopLater:
    """Asks a training to end after some looks."""

    def __init__(self, looks: int):
        self.left = looks

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("name", SHAPES)
def test_a_stopped_training_goes_on_to_the_same_policy(name, tmp_path):
    told: list[Epoch] = []
    with pytest.raises(TrainingStoppedError):
        learn(name, watch=Watch(told.append, StopLater(0), tmp_path))
    policies, curves = learn(name, watch=Watch(told.append, folder=tmp_path))
    for again, once in zip(
        jax.tree.leaves((policies, curves)), jax.tree.leaves(learned(name)), strict=True
    ):
        np.testing.assert_array_equal(again, once)
    if told:  # cloning tells nothing while it learns, and begins again
        assert [(one.number, one.updates) for one in told] == [(1, 100), (2, 200)]
        assert [one.share for one in told] == [0.5, 1.0]
        assert told[1].info["value"] == curves["value"][1, 0]


@pytest.mark.parametrize("name", EVERYBODY)
def test_compiled_and_not_compiled_agree(name):
    state = hours("train").state[7]
    compiled = weigh(made(name), state[None])[0]
    np.testing.assert_allclose(made(name)(state), compiled, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("name", [*SHAPES, *PLANNED])
def test_a_saved_policy_is_the_same_policy(name, constrained, tmp_path: Path):
    policy = held_to_small_steps(name) if constrained else made(name)
    save_policy(tmp_path / "policy", policy, name, seed=3)
    loaded, about = load_policy(tmp_path / "policy")
    assert (about.method, about.constrained) == (name, constrained)
    states = hours("train").state[:64]
    np.testing.assert_array_equal(weigh(loaded, states), weigh(policy, states))


@pytest.mark.parametrize("name", PENALTIES)
def test_every_penalty_charges_its_weight_times_an_uncertainty(name):
    weight, states = jnp.asarray(0.3), hours("train").state[:16]
    penalty = PENALTIES[name](ensemble(), Support(jnp.array([3, 4, 5])), weight)
    levels = jnp.full(16, 8)
    charged, uncertain = charge(penalty, states, levels)
    np.testing.assert_allclose(charged, weight * uncertain, rtol=1e-5)
    alone = jax.vmap(penalty)(states, levels)
    np.testing.assert_allclose(alone, charged, rtol=1e-4, atol=1e-6)
    assert (np.asarray(charged) == 0).all() == (name == "none")


def states_of(setting):
    """Before and after one epoch of a loop in pieces."""
    before = setting.begin(key=jr.key(0))
    kept = jax.tree.map(np.array, before.learner)
    training, done = before, 0
    while done < setting.every:
        training, done = setting.advance(training, done, key=jr.key(0))
    return kept, training.learner


def settings_of(name: str) -> Any:
    train, select = hours("train"), hours("select")
    if name == "svr":
        behavior, _ = train_bc(train, select, CLONING, key=jr.key(3))
        return svr.prepare(train, select, behavior, REGULARIZED)
    one_epoch = dataclasses.replace(POCKET, updates=200)
    return model_based.prepare(train, ensemble(), Unpenalized(), one_epoch)


@pytest.mark.parametrize("name", ["svr", "mbpo"])
def test_both_critics_move_and_their_targets_lag(name):
    before, after = states_of(settings_of(name))
    for old, new in zip(before.networks.weights, after.networks.weights, strict=True):
        moved = np.abs(np.asarray(new) - old).max((1, 2))
        assert moved.shape == (3,)
        assert (moved > 1e-3).all()
    for fast, slow in zip(after.networks.weights, after.targets.weights, strict=True):
        assert np.abs(fast[1:] - slow).max() > 1e-4  # still behind
    first, second = after.networks.weights[0][1:]
    assert not np.allclose(first, second)


def test_the_constraint_changes_nothing_but_forbidden_levels():
    free = made("mbpo")
    bound = Constrained(free)
    states = hours("train").state[:64]
    scores, limited = np.asarray(weigh(free, states)), np.asarray(weigh(bound, states))
    allowed = limited > -1e6
    odds = np.where(allowed, limited - scores, np.nan)
    np.testing.assert_allclose(np.nanmax(odds, axis=1), np.nanmin(odds, axis=1), atol=1e-4)


@pytest.mark.parametrize("name", [x for x in METHODS if x != "expert"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"role": "test"}, "expected train patients, got test"),
        ({"level": jnp.full(ROWS, 4)}, "more than one level, got P4 alone"),
        ({"level": jnp.full(ROWS, 1)}, "expected levels 2 to 9, got 1"),
        ({"unshaped": jnp.full(ROWS, jnp.nan)}, "expected finite rewards"),
        ({}, "expected recorded hours, got none"),
    ],
)
def test_unusable_records_are_refused(name, change, message):
    rows = dataclasses.replace(hours("train"), **change)
    if not change:
        rows = jax.tree.map(lambda x: x[:0], rows)
    with pytest.raises(ValueError, match=message):
        learn(name, rows=rows)


@pytest.mark.parametrize("name", ["svr", "mbpo"])
def test_no_key_is_used_twice(name):
    setting = settings_of(name)
    with jax.debug_key_reuse(True):
        training = setting.begin(key=jr.key(0))
        _, done = setting.advance(training, 0, key=jr.key(0))
    assert done > 0
