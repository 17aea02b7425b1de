"""Luck is what it says: uniform, normal, independent, never infinite, fair in its picks."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from stepdown.patients.population import draw_luck, pick


@pytest.fixture(scope="module")
def lucks():
    return jax.vmap(lambda key: draw_luck((3, 2), (1, 4), key=key))(jr.split(jr.key(0), 20_000))


def test_uniforms_are_uniform_and_normals_normal(lucks):
    for luck in lucks:
        for column in np.asarray(luck.uniform).T:
            assert stats.kstest(column, "uniform").pvalue > 1e-3
        for column in np.asarray(luck.normal).T:
            assert stats.kstest(column, "norm").pvalue > 1e-3


def test_numbers_do_not_know_each_other(lucks):
    columns = np.concatenate([np.asarray(x) for luck in lucks for x in jax.tree.leaves(luck)], 1)
    correlation = np.corrcoef(columns.T) - np.eye(columns.shape[1])
    assert np.abs(correlation).max() < 0.03
    assert np.isfinite(columns).all()


def test_picks_follow_their_shares(lucks):
    shares = jnp.array([0.2, 0.5, 0.3])
    picked = jax.vmap(lambda u: pick(u, jnp.array([2, 3, 4]), shares))(lucks[1].uniform[:, 0])
    found = [float(jnp.mean(picked == value)) for value in (2, 3, 4)]
    assert found == pytest.approx([0.2, 0.5, 0.3], abs=0.015)
    assert int(pick(jnp.asarray(1.0), jnp.array([2, 3, 4]), shares)) == 4
