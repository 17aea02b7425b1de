"""The kernel density against textbook versions in double precision; its laws; its refusals."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import gaussian_kde, norm

from stepdown.guardian.kde import Kde, KdeConfig, check_query, fit_kde
from tests.guardian.decisions import ROWS, ward

TRAIN, TEST = ward("train"), ward("test", seed=2)
NEIGHBORS = 20
CONFIG = KdeConfig(neighbors=NEIGHBORS)


@pytest.fixture(scope="module")
def kde() -> Kde:
    return fit_kde(TRAIN, CONFIG)


@eqx.filter_jit
def log_densities(kde: Kde, states, levels):
    return kde.log_densities(states, levels)


@eqx.filter_jit
def at(kde: Kde, queries):
    return kde.log_density_at(queries)


def points_of(kde: Kde, hours) -> np.ndarray:
    return np.asarray(jax.vmap(kde.pairs)(hours.state, hours.level), np.float64)


def slow_log_density(points, query, bandwidth, neighbors) -> float:
    """The definition, in double precision: sort the distances, add up the kernels."""
    squared = np.sort(((points - query) ** 2).sum(1))[:neighbors]
    size = points.shape[1]
    kernels = -squared / (2 * bandwidth**2) - size / 2 * np.log(2 * np.pi * bandwidth**2)
    return float(logsumexp(kernels) - np.log(len(points)))


def in_space(points, neighbors: int | None = None, bandwidth: float = 1.0) -> Kde:
    """A density over any points; asked at points, it needs no decisions."""
    pairs = fit_kde(TRAIN, CONFIG).pairs
    return Kde(jnp.asarray(points, jnp.float32), pairs, jnp.asarray(bandwidth), neighbors)


# ── the density ──────────────────────────────────────────────────────────────────────────────────


def test_all_neighbors_give_the_mean_of_normal_densities():
    kde = fit_kde(TRAIN, KdeConfig(neighbors=None, bandwidth=0.8, action_weight=1.0))
    found = log_densities(kde, TEST.state, TEST.level)
    points, queries = points_of(kde, TRAIN), points_of(kde, TEST)
    for row in range(0, ROWS, 40):
        each = norm.logpdf(points, queries[row], 0.8).sum(1)
        assert float(found[row]) == pytest.approx(logsumexp(each) - np.log(ROWS), rel=1e-5)


def test_nearest_neighbors_match_the_definition_with_repeated_hours_too(kde):
    twice = dataclasses.replace(
        TRAIN,
        state=TRAIN.state.at[100:].set(TRAIN.state[:100]),
        level=TRAIN.level.at[100:].set(TRAIN.level[:100]),
    )
    repeated = fit_kde(twice, dataclasses.replace(CONFIG, neighbors=21))
    for density, hours in ((kde, TRAIN), (repeated, twice)):
        found = log_densities(density, TEST.state, TEST.level)
        points, queries = points_of(density, hours), points_of(density, TEST)
        expected = [slow_log_density(points, q, 1.0, density.neighbors) for q in queries]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_thousands_of_points_match_the_definition():
    draw = np.random.default_rng(1)
    points = draw.normal(size=(9000, 5))
    queries = draw.normal(size=(70, 5)) * np.linspace(0.5, 3, 70)[:, None]
    kde = in_space(points, 100, 0.5)
    found = at(kde, jnp.asarray(queries, jnp.float32))
    expected = [slow_log_density(points, query, 0.5, 100) for query in queries]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_it_equals_scipy_in_two_dimensions():
    points = np.random.default_rng(3).normal(size=(60, 2))
    oracle = gaussian_kde(points.T)
    # SciPy shapes its kernel by the covariance; in whitened axes that is ours.
    axes = np.linalg.inv(np.linalg.cholesky(oracle.covariance))
    queries = np.random.default_rng(4).normal(size=(40, 2))
    found = at(in_space(points @ axes.T), jnp.asarray(queries @ axes.T, jnp.float32))
    volume = np.log(np.linalg.det(axes))
    np.testing.assert_allclose(found + volume, oracle.logpdf(queries.T), rtol=1e-5, atol=1e-5)


def test_all_neighbors_integrate_to_one_and_fewer_to_less():
    draw = np.random.default_rng(5)
    line = np.linspace(-9, 9, 721)
    flat = np.stack(np.meshgrid(line[::12], line[::12]), -1).reshape(-1, 2)
    for size, grid, cell in ((1, line[:, None], 0.025), (2, flat, 0.3**2)):
        points = draw.normal(size=(40, size))
        whole, part = (
            float(
                jnp.exp(at(in_space(points, k, 0.7), jnp.asarray(grid, jnp.float32))).sum() * cell
            )
            for k in (None, 10)
        )
        assert whole == pytest.approx(1.0, abs=1e-4)
        assert part < 0.99


def test_the_constant_is_all_that_separates_kernels_from_a_density(kde):
    itself = in_space(np.zeros((1, 3)), 1, 0.5)
    assert float(itself.log_mean_kernel_at(jnp.zeros((1, 3)))[0]) == pytest.approx(0.0, abs=1e-6)
    assert float(itself.log_constant) == pytest.approx(-1.5 * np.log(2 * np.pi * 0.25), rel=1e-6)
    assert float(kde.log_constant) == pytest.approx(-37 * np.log(2 * np.pi), rel=1e-6)


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────


def test_order_of_rows_and_size_of_chunks_change_nothing(kde):
    whole = log_densities(kde, TEST.state, TEST.level)
    shuffled = np.random.default_rng(6).permutation(ROWS)
    for other in (
        dataclasses.replace(kde, points=kde.points[shuffled]),
        dataclasses.replace(kde, chunk=7),
        dataclasses.replace(kde, chunk=ROWS),
    ):
        np.testing.assert_allclose(
            log_densities(other, TEST.state, TEST.level), whole, rtol=1e-6, atol=2e-5
        )
    np.testing.assert_allclose(
        log_densities(kde, TEST.state[shuffled], TEST.level[shuffled]), whole[shuffled], rtol=1e-6
    )


def test_one_decision_equals_its_place_in_the_batch(kde):
    batch = log_densities(kde, TEST.state, TEST.level)
    alone = eqx.filter_jit(lambda k, s, a: k.log_density(s, a))(kde, TEST.state[3], TEST.level[3])
    assert float(alone) == pytest.approx(float(batch[3]), rel=1e-6)
    vmapped = eqx.filter_jit(lambda k, s, a: jax.vmap(k.log_density)(s, a))
    np.testing.assert_allclose(vmapped(kde, TEST.state, TEST.level), batch, rtol=1e-6)


def test_stacked_densities_equal_a_loop_over_them(kde):
    config = dataclasses.replace(CONFIG, bandwidth=0.5, action_weight=1.0)
    each = [kde, fit_kde(ward("train", seed=9), config)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    together = eqx.filter_vmap(log_densities, in_axes=(eqx.if_array(0), None, None))(
        stacked, TEST.state, TEST.level
    )
    for row, alone in zip(together, each, strict=True):
        np.testing.assert_allclose(
            row, log_densities(alone, TEST.state, TEST.level), rtol=1e-6, atol=2e-5
        )


def test_it_runs_inside_a_scan(kde):
    @eqx.filter_jit
    def rolled(kde, states, levels):
        def step(total, drift):
            return total + kde.log_densities(states + drift, levels).sum(), None

        return jax.lax.scan(step, 0.0, jnp.array([0.0, 1.0]))[0]

    parts = [log_densities(kde, TEST.state + drift, TEST.level).sum() for drift in (0.0, 1.0)]
    assert float(rolled(kde, TEST.state, TEST.level)) == pytest.approx(float(sum(parts)), rel=1e-5)


def test_slopes_are_those_of_the_nearest_kernels():
    draw = np.random.default_rng(7)
    points, query = draw.normal(size=(50, 3)), draw.normal(size=3)
    kde = in_space(points, 10, 0.7)
    point = jnp.asarray(query, jnp.float32)
    slope = jax.jit(jax.grad(lambda q: kde.log_density_at(q[None])[0]))(point)
    nearest = points[np.argsort(((points - query) ** 2).sum(1))[:10]]
    weights = np.exp(-((nearest - query) ** 2).sum(1) / (2 * 0.49))
    expected = (weights[:, None] * (nearest - query)).sum(0) / weights.sum() / 0.49
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-4)


def test_slopes_are_finite_far_away_and_on_a_recorded_decision(kde):
    slope = eqx.filter_jit(jax.grad(lambda s, k, a: k.log_density(s, a)))
    for state in (TRAIN.state[0], TRAIN.state[0] + 1e3):
        assert np.isfinite(slope(state, kde, TRAIN.level[0])).all()


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


def test_wrong_settings_and_patients_are_refused():
    for name, wrong in (("bandwidth", 0.0), ("bandwidth", np.nan), ("neighbors", 0), ("chunk", 0)):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            dataclasses.replace(CONFIG, **{name: wrong})
    with pytest.raises(ValueError, match="expected train patients, got select"):
        fit_kde(ward("select"), CONFIG)
    with pytest.raises(ValueError, match="at least 201 recorded decisions.*got 200"):
        fit_kde(TRAIN, KdeConfig(neighbors=ROWS + 1))


def test_empty_samples_and_other_shapes_are_refused(kde):
    hole = TRAIN.state.at[5, 2, 0].set(jnp.nan)
    check_query(kde, TEST.state, TEST.level)
    for states, levels, words in (
        (hole, TRAIN.level, "finite map"),
        (TEST.state[:, :5], TEST.level, "6 samples x 13 columns"),
        (TEST.state[..., :12], TEST.level, "6 samples x 13 columns"),
        (TEST.state, TEST.level[:-1], "one level per state"),
        (TEST.state, TEST.level.at[0].set(1), "levels 2 to 9, got 1"),
    ):
        with pytest.raises(ValueError, match=words):
            check_query(kde, states, levels)
