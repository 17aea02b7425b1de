"""Somebody's function as a policy: what it says counts, what it does wrong is told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepdown.policies.foreign import ForeignPolicyError, make_foreign, to_weights
from stepdown.policies.rules import Hold
from stepdown.signals import LEVEL, LEVELS

STATES = np.random.default_rng(0).uniform(60, 90, (40, 6, 13)).astype(np.float32)
STATES[..., LEVEL] = np.arange(40)[:, None] % 8 + 2


def holding(hours):
    return hours[:, -1, LEVEL]


def by_scores(hours):
    return -((np.arange(2, 10) - hours[:, -1, LEVEL][:, None]) ** 2)


@pytest.mark.parametrize("function", [holding, by_scores])
def test_levels_and_scores_choose_what_the_function_says(function):
    policy = make_foreign(function, STATES, "mine")
    levels = np.asarray(jax.jit(jax.vmap(policy))(jnp.asarray(STATES))).argmax(1) + 2
    assert levels.tolist() == STATES[:, -1, LEVEL].tolist()
    np.testing.assert_array_equal(
        levels, np.asarray(jax.vmap(Hold())(jnp.asarray(STATES))).argmax(1) + 2
    )


def test_scores_that_differ_by_less_than_single_precision_keep_their_order():
    scores = np.zeros((1, 8))
    scores[0, 5], scores[0, 2] = 1.0, 1.0 - 1e-12
    weights = to_weights(scores, 1, "mine")
    assert weights.argmax(1).tolist() == [5]
    np.testing.assert_allclose(np.exp(weights.astype(float)).sum(), 1.0, atol=1e-6)


def ones(hours):
    return np.full(len(hours), 1)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda hours: np.full(len(hours), 10), "whole numbers 2 to 9, got 10 for 40 of 40"),
        (ones, "whole numbers 2 to 9, got 1 for"),
        (lambda hours: hours[:, -1, LEVEL] + 0.5, "whole numbers 2 to 9, got 2.5 for 40"),
        (lambda hours: np.zeros((len(hours), 10)), r"got an array of shape \(40, 10\)"),
        (lambda hours: 5, r"got an array of shape \(\)"),
        (lambda hours: None, r"got nothing \(does the function return\?\)"),
        (lambda hours: ["P5"] * len(hours), "got words"),
        (lambda hours: hours[:, -1, LEVEL] > 5, "got true and false"),
        (lambda hours: np.full((len(hours), 8), np.nan), "finite scores, got others in 40"),
        (lambda hours: 1 / 0, "got ZeroDivisionError: division by zero"),
        (lambda hours: np.random.randint(2, 10, len(hours)), "same answer to the same hours"),
        (
            lambda hours: np.sort(np.round(hours[:, -1, LEVEL])),
            "each hour to be answered by itself",
        ),
    ],
)
def test_what_a_function_does_wrong_is_told_before_it_is_judged(function, sentence):
    with pytest.raises(ForeignPolicyError, match=sentence):
        make_foreign(function, STATES, "mine")


def test_an_error_while_it_is_judged_is_kept_and_told():
    def late(hours):
        if (hours[:, -1, 0] > 1000).any():
            raise RuntimeError("never seen such a pressure")
        return np.full(len(hours), 5)

    policy = make_foreign(late, STATES, "mine")
    policy.asked.complain()  # nothing yet
    high = STATES.copy()
    high[3, -1, 0] = 2000
    jax.block_until_ready(jax.vmap(policy)(jnp.asarray(high)))
    with pytest.raises(ForeignPolicyError, match="RuntimeError: never seen such a pressure"):
        policy.asked.complain()


def test_a_function_cannot_change_what_others_see():
    def greedy(hours):
        hours[:] = 0
        return np.full(len(hours), 5)

    before = STATES.copy()
    policy = make_foreign(greedy, STATES, "mine")
    jax.block_until_ready(jax.vmap(policy)(jnp.asarray(STATES)))
    np.testing.assert_array_equal(STATES, before)
    assert len(LEVELS) == 8
