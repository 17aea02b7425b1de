"""The bounds of docs/theory.md hold in problems where everything is exact; printed ones do not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from stepdown.evaluation.bounds import lower_bound, optimality_gap
from tests.evaluation.random_mdps import all_policies, draw_policy, draw_problem, leak

SEEDS = integers(0, 10**6)
SLOPES = floats(0.0, 2.0)
HOURS = 6
CERTAIN = 1e-9  # rounding


def split(u):
    return np.maximum(u, 0.0), np.maximum(-u, 0.0)


def rest_of(problem, slope: float) -> float:
    """Epsilon: the least with which Assumption 2 holds everywhere."""
    return float(np.maximum(problem.metric - slope * split(problem.u)[0], 0.0).max())


# ── discounted, forever ──────────────────────────────────────────────────────────────────────────


@given(SEEDS, SEEDS)
def test_the_error_of_a_value_is_the_sum_of_gaps(seed, other):
    problem = draw_problem(seed)
    policy = draw_policy(problem, other)
    error = problem.value(problem.model, policy) - problem.value(problem.truth, policy)
    assert error == pytest.approx((problem.occupancy(policy) * problem.gap(policy)).sum())
    assert (np.abs(problem.gap(policy)) <= problem.reach * problem.metric + CERTAIN).all()


@settings(max_examples=300)
@given(SEEDS, SEEDS, SLOPES, floats(0.0, 30.0))
def test_theorem_1_is_never_violated(seed, other, slope, weight):
    problem = draw_problem(seed)
    policy = draw_policy(problem, other)
    visits, (plus, minus) = problem.occupancy(policy), split(problem.u)
    rest = rest_of(problem, slope)
    bound = (
        problem.value(problem.model, policy, weight)  # in the penalized model, bonus and all
        + (weight - problem.reach * slope) * (visits * plus).sum()
        - weight * (visits * minus).sum()
        - problem.reach * rest / (1 - problem.discount)
    )
    assert problem.value(problem.truth, policy) >= bound - CERTAIN


@given(SEEDS, SLOPES, floats(0.0, 5.0))
def test_theorem_2_is_never_violated(seed, slope, extra):
    problem = draw_problem(seed)
    needed = problem.reach * slope
    weight = needed + extra
    rest = problem.reach * rest_of(problem, slope) / (1 - problem.discount)
    plus, minus = split(problem.u)
    chosen = problem.value(problem.truth, problem.best(weight))
    bonus = weight * minus.max() / (1 - problem.discount)
    for policy in all_policies(problem):
        budget = (problem.occupancy(policy) * plus).sum()
        gap = (weight + needed) * budget + 2 * rest + bonus
        assert chosen >= problem.value(problem.truth, policy) - gap - CERTAIN


# ── six hours, not discounted: as the certificate computes it ────────────────────────────────────


@settings(max_examples=300)
@given(SEEDS, SEEDS, SLOPES)
def test_the_bound_of_an_episode_is_never_violated(seed, other, slope):
    problem = draw_problem(seed)
    policy = draw_policy(problem, other)
    model, truth = (problem.short_values(t, policy, HOURS) for t in (problem.model, problem.truth))
    visits = problem.short_visits(policy, HOURS)
    gaps = [(problem.model - problem.truth) @ (problem.arriving + later) for later in truth[:-1]]
    error = sum((now * gap).sum() for now, gap in zip(visits, gaps[::-1], strict=True))
    assert problem.start @ (model[-1] - truth[-1]) == pytest.approx(error)
    spread = np.ptp(problem.choosing) + np.ptp(problem.arriving)
    reach = 0.5 * spread * np.arange(HOURS, 0, -1)
    plus = (visits * split(problem.u)[0]).sum((1, 2))
    bound = lower_bound(problem.start @ model[-1], reach, plus, slope, rest_of(problem, slope))
    assert problem.start @ truth[-1] >= bound - CERTAIN


@given(SEEDS, SLOPES)
def test_the_gap_of_an_episode_is_never_violated(seed, slope):
    problem = draw_problem(seed)
    plus, minus = split(problem.u)
    reach = 0.5 * (np.ptp(problem.choosing) + np.ptp(problem.arriving)) * np.arange(HOURS, 0, -1)
    weight, policies = slope * reach[0], all_policies(problem)
    visits = [problem.short_visits(policy, HOURS) for policy in policies]
    model, truth = (
        np.array([problem.start @ problem.short_values(t, p, HOURS)[-1] for p in policies])
        for t in (problem.model, problem.truth)
    )
    best = np.argmax(model - weight * np.array([(now * problem.u).sum() for now in visits]))
    for value, now in zip(truth, visits, strict=True):
        budget, rest = float((now * plus).sum()), rest_of(problem, slope)
        gap = optimality_gap(reach, budget, rest, weight, float(minus.max()))
        assert truth[best] >= value - gap - CERTAIN


# ── what the paper prints ────────────────────────────────────────────────────────────────────────


def leaking(discount, **how):
    """The problem, the model's optimum, what it loses in truth, and the largest metric."""
    problem = leak(discount, **how)
    first, second = (np.eye(2)[[i, i]] for i in (0, 1))
    assert np.array_equal(problem.best(0.0)[0], first[0])
    worse, better = (problem.value(problem.truth, policy) for policy in (first, second))
    return problem, first, better - worse, problem.metric.max()


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_printed_theorem_2_lacks_an_epsilon(discount):
    problem, _, lost, rest = leaking(discount)  # u = 0: all that remains is epsilon
    printed = discount * problem.reach * rest / (1 - discount)
    assert lost > 1.9 * printed
    assert lost <= 2 * printed


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_printed_theorem_2_needs_visits_that_do_not_sum_to_one(discount):
    problem, _, lost, slope = leaking(discount, u=1.0)  # epsilon = 0
    weight = discount * problem.reach * slope
    assert lost > 1.9 * weight / (1 - discount)
    assert 2 * weight < lost <= 2 * weight / (1 - discount)  # E[u₊] = 1, or 1 / (1 − discount)


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_the_sign_that_changes_midway_matters_for_small_weights(discount):
    problem, policy, _, slope = leaking(discount, u=1.0)
    value = problem.value(problem.truth, policy)
    in_model, needed = problem.value(problem.model, policy), discount * problem.reach * slope
    weight = 0.5 * needed
    penalized = in_model - weight / (1 - discount)
    printed = penalized - (weight - needed) / (1 - discount)
    ours = penalized + (weight - needed) / (1 - discount)
    assert ours <= value < penalized < printed


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99])
def test_printed_theorem_1_fails_when_rewards_are_paid_on_arrival(discount):
    problem, policy, _, slope = leaking(discount, u=1.0, on_arrival=True)
    value, in_model = (problem.value(t, policy) for t in (problem.truth, problem.model))
    charge = problem.reach * slope / (1 - discount)
    assert in_model - charge <= value < in_model - discount * charge


def test_the_inequality_of_the_main_text_does_not_follow():
    problem, policy, _, rest = leaking(0.9)
    slope = 0.5  # any below 1; u₊ = 0, so Assumption 2 is metric ≤ epsilon
    gap = np.abs((problem.model - problem.truth) @ problem.values(problem.truth, policy)).max()
    assert gap > problem.reach * slope * (0.0 + rest)
    assert gap <= problem.reach * (slope * 0.0 + rest)


# ── what nobody records ──────────────────────────────────────────────────────────────────────────


@given(SEEDS, SEEDS)
def test_the_mirrored_identity_holds_with_a_hidden_trait(seed, other):
    """The model's values and visits in truth, where two kinds of patients look alike."""
    problem, kinds = draw_problem(seed), (draw_problem(seed).truth, draw_problem(seed + 1).truth)
    policy = draw_policy(problem, other)
    later = problem.short_values(problem.model, policy, HOURS)
    errors, values = [], []
    for truth in kinds:
        visits = problem._replace(model=truth).short_visits(policy, HOURS)
        gaps = [(truth - problem.model) @ (problem.arriving + value) for value in later[:-1]]
        errors.append(sum((now * gap).sum() for now, gap in zip(visits, gaps[::-1], strict=True)))
        values.append(problem.start @ problem.short_values(truth, policy, HOURS)[-1])
    mixed = 0.4 * values[0] + 0.6 * values[1]
    assert mixed - problem.start @ later[-1] == pytest.approx(0.4 * errors[0] + 0.6 * errors[1])
