"""The guardian's threshold, bounds and p-values, on densities that can be checked by hand."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepdown.guardian.density import DEEPEST, Conditional
from stepdown.guardian.kde import KdeConfig, fit_kde
from stepdown.guardian.threshold import (
    RECORDED,
    SYNTHETIC,
    Guardian,
    GuardianConfig,
    PValuePenalty,
    make_guardian,
    split_penalty,
)
from stepdown.handover import Penalty
from tests.guardian.decisions import Normal, normal, ward

TRAIN, SELECT, TEST = ward("train"), ward("select", seed=1), ward("test", seed=2)


@pytest.fixture(scope="module")
def density() -> Normal:
    return normal(TRAIN)


@pytest.fixture(scope="module")
def guardian(density) -> Guardian:
    return make_guardian(density, SELECT)


def log_densities(density, hours) -> np.ndarray:
    return np.asarray(density.log_densities(hours.state, hours.level))


def test_the_threshold_is_the_percentile_of_select_patients(density):
    scores = log_densities(density, SELECT)
    for config, share in ((RECORDED, 0.35), (SYNTHETIC, 0.20)):
        found = make_guardian(density, SELECT, config)
        assert float(found.threshold) == pytest.approx(np.quantile(scores, share), rel=1e-6)
        assert np.mean(scores < float(found.threshold)) == pytest.approx(share, abs=0.005)


def test_u_is_signed_and_stays_within_fixed_bounds(density, guardian):
    scores = log_densities(density, SELECT)
    inside = guardian.penalties(SELECT.state, SELECT.level)
    assert float(inside.min()) == pytest.approx(float(guardian.threshold) - scores.max(), rel=1e-5)
    assert float(inside.min()) < 0 < float(inside.max())
    expected = np.clip(float(guardian.threshold) - scores, float(inside.min()), DEEPEST)
    np.testing.assert_allclose(inside, expected, rtol=1e-5, atol=1e-4)
    far = guardian(SELECT.state[0] + 1e4, SELECT.level[0])
    assert float(far) == pytest.approx(DEEPEST)
    densest = jnp.full((6, 13), 5.5).at[:, :12].set(density.pairs.scaler.mean[None])
    assert float(guardian(densest, jnp.asarray(6))) == float(guardian.lowest)


def test_the_floor_of_a_density_bounds_u(density):
    threshold = float(make_guardian(density, SELECT).threshold)
    found = make_guardian(dataclasses.replace(density, bottom=threshold - 7.5), SELECT)
    assert float(found.highest) == pytest.approx(7.5, rel=1e-4)
    # A floor above the threshold would forgive everything, so it cannot be meant.
    found = make_guardian(dataclasses.replace(density, bottom=threshold + 1.0), SELECT)
    assert float(found.highest) == pytest.approx(DEEPEST)


def test_kernels_are_bounded_by_the_authors_floor():
    """A mean kernel of 1e-10, which lies far below the threshold of nearby hours."""
    kernels = fit_kde(TRAIN, KdeConfig(neighbors=None, bandwidth=4.0))
    found = make_guardian(kernels, SELECT)
    floor = float(kernels.log_constant) - DEEPEST
    assert floor < float(found.threshold)
    assert float(found.highest) == pytest.approx(float(found.threshold) - floor, rel=1e-4)


def test_clipping_drops_the_bonus_and_parts_add_up(density, guardian):
    positive = make_guardian(density, SELECT, GuardianConfig(clip="positive"))
    u = guardian.penalties(TEST.state, TEST.level)
    charge, bonus = split_penalty(u)
    np.testing.assert_allclose(positive.penalties(TEST.state, TEST.level), charge, atol=1e-5)
    np.testing.assert_array_equal(charge + bonus, u)
    assert float(bonus.max()) == 0.0 == float(charge.min())


def test_one_row_equals_its_place_in_a_batch(guardian):
    order = np.random.default_rng(0).permutation(len(TEST.level))
    u, p = (np.asarray(f(TEST.state, TEST.level)) for f in (guardian.penalties, guardian.p_values))
    shuffled = guardian.penalties(TEST.state[order], TEST.level[order])
    np.testing.assert_allclose(shuffled, u[order], rtol=1e-5)
    one = jax.jit(lambda s, a: (guardian(s, a), guardian.p_value(s, a)))
    for row in (0, 99):
        alone = one(TEST.state[row], TEST.level[row])
        np.testing.assert_allclose(alone, (u[row], p[row]), rtol=1e-5)
    assert isinstance(guardian, Penalty)


def test_p_values_count_the_select_decisions_that_are_as_strange(density, guardian):
    scores = log_densities(density, SELECT)
    queries = log_densities(density, TEST)
    expected = [(1 + np.sum(scores <= query)) / (1 + len(scores)) for query in queries]
    np.testing.assert_allclose(guardian.p_values(TEST.state, TEST.level), expected, rtol=1e-6)
    np.testing.assert_allclose(guardian.rank(guardian.scores[:3]), np.array([2, 3, 4]) / 201)
    assert float(guardian.rank(jnp.asarray(jnp.inf))) == 1.0
    assert float(guardian.rank(jnp.asarray(-jnp.inf))) == pytest.approx(1 / 201)


def test_what_is_no_number_is_as_strange_as_can_be(guardian):
    empty = TEST.state[0].at[2, 1].set(jnp.nan)
    assert float(guardian.p_value(empty, TEST.level[0])) == pytest.approx(1 / 201)


@given(st.integers(0, 2**31), st.sampled_from([0.01, 0.05, 0.2]))
def test_p_values_are_uniform_on_exchangeable_scores(seed, rate):
    """Over draws of both parts, refusing at a rate refuses that share, up to 1/(n + 1)."""
    draw = np.random.default_rng(seed)
    scores = np.sort(draw.gumbel(size=(400, 99)), axis=1)
    new = draw.gumbel(size=(400, 1))
    # the very rule of the guardian, on 400 small guardians
    p = jax.vmap(ranked)(jnp.asarray(scores), jnp.asarray(new[:, 0]))
    share = float(np.mean(np.asarray(p) <= rate + 1e-6))
    assert share == pytest.approx(rate, abs=4.5 * np.sqrt(rate * (1 - rate) / 400))


@jax.jit
def ranked(scores, new):
    zero = jnp.zeros(())
    return Guardian(normal(TRAIN), zero, zero, zero, scores).rank(new)


def test_the_penalty_without_threshold_averages_one_nat(guardian):
    penalty = PValuePenalty(guardian)
    own = penalty.penalties(SELECT.state, SELECT.level)
    n = len(SELECT.level)
    assert float(own.mean()) == pytest.approx(-np.mean(np.log(np.arange(2, n + 2) / (n + 1))))
    assert float(own.mean()) == pytest.approx(1.0, abs=0.05)
    far = penalty(SELECT.state[0] + 1e4, SELECT.level[0])
    assert float(far) == pytest.approx(np.log(n + 1))


def test_least_variance_is_searched_over_percentiles(density):
    scores = log_densities(density, SELECT)
    cuts = {q: np.percentile(scores, q) for q in (1, 2, 5, 10, 15, 20)}
    best = min(cuts, key=lambda q: np.var([x for x in scores if x >= cuts[q]]))
    found = make_guardian(density, SELECT, GuardianConfig(rule="variance"))
    assert float(found.threshold) == pytest.approx(cuts[best], rel=1e-6)


def test_the_conditional_density_weighs_choices_in_their_state(density):
    """By hand: with independent coordinates only the choice's own term is left."""
    blind = normal(TRAIN, action_weight=0.0)
    found = Conditional(density, blind, jnp.asarray(0.0))
    choice = (np.asarray(TEST.level) - 5.5) / np.std(range(2, 10))
    np.testing.assert_allclose(log_densities(found, TEST), -(choice**2) / 2, atol=2e-3)
    joint = Conditional(density, blind, jnp.asarray(1.0))
    np.testing.assert_allclose(log_densities(joint, TEST), log_densities(density, TEST), rtol=1e-5)
    one = found.log_density(TEST.state[3], TEST.level[3])
    assert float(one) == pytest.approx(-(choice[3] ** 2) / 2, abs=2e-3)


def test_summed_over_levels_the_conditional_density_is_a_distribution(density):
    found = Conditional(density, None, jnp.asarray(0.0))
    state = TEST.state[:5]
    each = [np.exp(found.log_densities(state, jnp.full(5, level))) for level in range(2, 10)]
    np.testing.assert_allclose(np.sum(each, axis=0), 1.0, rtol=1e-5)
    one = found.log_density(state[0], jnp.asarray(4))
    assert float(one) == pytest.approx(float(np.log(each[2][0])), rel=1e-3)


def test_wrong_input_is_refused(density):
    with pytest.raises(ValueError, match="expected select patients, got test"):
        make_guardian(density, TEST)
    with pytest.raises(ValueError, match="expected decisions of select patients, got none"):
        make_guardian(density, jax.tree.map(lambda x: x[:0], SELECT))
    holed = eqx.tree_at(lambda t: t.state, SELECT, SELECT.state.at[3, 2, 1].set(jnp.nan))
    with pytest.raises(ValueError, match="expected a finite log density"):
        make_guardian(density, holed)
    narrow = eqx.tree_at(lambda t: t.state, SELECT, SELECT.state[..., :12])
    with pytest.raises(ValueError, match="expected states of 13 columns .* got"):
        make_guardian(density, narrow)
    with pytest.raises(ValueError, match="percentile: expected"):
        dataclasses.replace(RECORDED, percentile=0.0)
