"""Selecting the largest entries of a row equals sorting it: plain, tied or crowded."""

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

from stepdown.guardian.largest import Way, log_sum_largest

ENTRIES, COUNT = (8, 20_000), 100  # wide enough that groups are formed


def rows_to_select_from() -> np.ndarray:
    """Plain rows, ties, repeated values, and an entry far above the rest."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=ENTRIES) * np.array([1, 3, 10, 0.01, 3, 3, 3, 3])[:, None]
    rows[4] = np.round(rows[4])  # thousands of ties at the last place
    rows[5] = 1.0  # nothing but ties
    rows[6, 17] = 90.0
    rows[7] = np.sort(rows[7])
    return rows.astype(np.float32)


def sorted_log_sum(rows: np.ndarray) -> np.ndarray:
    return np.asarray(logsumexp(np.sort(rows.astype(np.float64), axis=1)[:, -COUNT:], axis=1))


@pytest.fixture(scope="module")
def ways():
    def by(way: Way):
        return jax.jit(lambda rows: log_sum_largest(rows, COUNT, way))

    return [by("threshold"), by("groups"), by("sort")]


def test_every_way_of_selecting_equals_sorting(ways):
    rows = rows_to_select_from()
    for way in ways:
        np.testing.assert_allclose(way(rows), sorted_log_sum(rows), rtol=2e-6, atol=2e-6)


def test_selection_is_exact_where_the_largest_crowd_together(ways):
    crowded = rows_to_select_from()
    crowded[0, :: ENTRIES[1] // 200] += 5.0  # in step with any grouping by stride
    crowded[1, 300:420] += 9.0
    crowded[2, ::2048] += 40.0  # ten in one group, so that six are hidden at first
    crowded[3, ::1024] += 1.0
    for way in ways:
        np.testing.assert_allclose(way(crowded), sorted_log_sum(crowded), rtol=2e-6, atol=2e-6)


def test_selection_has_the_slopes_of_the_largest_entries_under_vmap_too():
    rows = rows_to_select_from()
    stacked = np.stack([rows, np.roll(rows, 1000, axis=1)])
    slopes = jax.jit(jax.vmap(jax.grad(lambda r: log_sum_largest(r, COUNT, "threshold").sum())))
    untied = [0, 1, 2, 3, 6, 7]
    for given, found in zip(stacked[:, untied], slopes(stacked)[:, untied], strict=True):
        last = np.sort(given, axis=1)[:, -COUNT, None]
        kernels = np.where(given >= last, np.exp(given - given.max(1, keepdims=True)), 0.0)
        np.testing.assert_allclose(found, kernels / kernels.sum(1, keepdims=True), atol=2e-6)
