"""Ridge with interactions: the textbook's numbers, and effects that depend on the patient."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.problem.scaling import LEVEL_SD
from stepdown.twin.fit import fit_twin, twin_rows
from stepdown.twin.ridge import (
    FREE,
    Ridge,
    RidgeConfig,
    add_up,
    choose_shares,
    features,
    fit_ridge,
    left_out_errors,
    left_out_loss,
    solve,
)
from tests.twin.toys import SELECT, SIGNALS, STEPS, TRAIN, pocket

describe = jax.jit(jax.vmap(features))


def rows_where_the_level_works_by_state(rows: int, seed: int):
    """To come: 0.5 · last + change · (0.2 + 0.3 · mean of the hour), and a little noise.

    The change counts from the level of the last sample, whatever the others of the hour had.
    """
    draw = np.random.default_rng(seed)
    scores = draw.normal(size=(rows, STEPS, SIGNALS + 1))
    scores[..., -1] = draw.integers(-3, 4, rows)[:, None] / 2.29
    levels = np.broadcast_to(draw.integers(-3, 4, rows)[:, None] / 2.29, (rows, STEPS))
    scores[:, : STEPS // 2, -1] += draw.integers(-1, 2, rows)[:, None] / 2.29
    change = (levels - scores[:, -1:, -1]) * 2.29
    mean = scores[:, :, :-1].mean(1, keepdims=True)
    target = 0.5 * scores[:, -1:, :-1] + change[..., None] * (0.2 + 0.3 * mean)
    target = target + 0.1 * draw.normal(size=target.shape)
    return tuple(jnp.asarray(x, jnp.float32) for x in (scores, levels, target))


def ward(rows: int, seed: int):
    """Inputs, outputs, patients and which hours count."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(rows, 12)), draw.normal(size=(rows, 3))
    return x, y, np.arange(rows) % 10, draw.random(rows) < 0.8


PRODUCTS = 3  # of the ward's features, the last


def textbook(x, y, shares):
    """Least squares with one row added for each feature, which pulls its weight to 0."""
    shrunk = [shares[1]] * (12 - FREE - PRODUCTS) + [shares[0]] * PRODUCTS
    charge = np.sqrt(np.append(np.full(FREE, 1e-3), np.array(shrunk) * len(x)))
    rows = np.concatenate([x, np.diag(charge)]), np.concatenate([y, np.zeros((12, 3))])
    return np.linalg.lstsq(*rows, rcond=None)[0]


def test_ridge_regression_is_least_squares_with_rows_added():
    x, y, who, counted = ward(50, 0)
    often = np.array([0, 1, 2, 1, 0, 3, 1, 1, 2, 0])
    again = np.repeat(np.arange(50), often[who] * counted)
    found = solve(add_up(x, y, who, counted, PRODUCTS), often, (0.02, 0.1))
    np.testing.assert_allclose(found, textbook(x[again], y[again], (0.02, 0.1)), atol=1e-9)


def test_errors_are_made_on_patients_left_out():
    x, y, who, counted = ward(60, 1)
    sums, fold = add_up(x, y, who, counted, PRODUCTS), np.arange(10) % 4
    shares = (0.001, 0.01)
    weights = [solve(sums, fold != one, shares) for one in range(4)]
    found = left_out_errors(x, y, fold[who], weights)
    for row in range(60):
        others = counted & (fold[who] != fold[who[row]])
        own = textbook(x[others], y[others], shares)
        np.testing.assert_allclose(found[row], y[row] - x[row] @ own, atol=1e-5)
    for judged in (counted, counted & (np.arange(60) % 3 == 0)):
        expected = np.mean(found[judged].astype(float) ** 2)
        own = add_up(x, y, who, judged, PRODUCTS)
        assert left_out_loss(sums, own, fold, shares) == pytest.approx(expected, rel=1e-5)


def test_products_are_shrunk_no_more_than_a_near_best_error_takes():
    """Where products carry the effect little is right, where they carry none all are alike."""
    x, y, who, counted = ward(400, 5)
    fold, config = np.arange(10) % 5, RidgeConfig(ridges=(1e-3,), products=(1e-3, 1e-1, 10.0))
    for effect, expected in ((2.0, 1e-3), (0.0, 10.0)):
        later = 0.3 * y + effect * x[:, -1:]
        if not effect:  # forty hours: what products fit is luck, and costs more than is near
            x, later, who, counted = x[:40], later[:40], who[:40], counted[:40]
        sums = add_up(x, later, who, counted, PRODUCTS)
        (products, rest), info = choose_shares(sums, sums, fold, config)
        assert (products, rest) == (expected, 1e-3)
        assert info["changed"][[1e-3, 1e-1, 10.0].index(expected)] <= 1.005 * info["changed"].min()
    nobody = add_up(x, later, who, np.zeros(40, bool), PRODUCTS)
    assert choose_shares(sums, nobody, fold, config)[0] == (10.0, 1e-3)


def test_a_change_counts_from_the_last_sample():
    """What was changed before it has already moved it, and would teach too small an effect."""
    scores = jnp.zeros((STEPS, SIGNALS + 1)).at[: STEPS - 1, -1].set(1.0)
    held = features(scores, jnp.zeros(STEPS))
    assert float(held[2]) == float(held[3]) == 0.0  # steps down, steps up
    up = features(scores, jnp.ones(STEPS))
    assert float(up[3]) == pytest.approx(LEVEL_SD)


def test_hours_with_a_change_inside_teach_what_levels_off_the_mean_add():
    """They do not enter the regression; what they leave over is laid to their samples' levels."""
    scores, levels, target = rows_where_the_level_works_by_state(1200, 4)
    inside = np.asarray(levels).copy()
    moved = np.arange(1200) % 3 == 0
    off = np.where(np.arange(STEPS) < STEPS // 2, -0.4, 0.4)
    inside[moved] += off
    later = np.asarray(target).copy()
    later[moved] += 0.7 * off[:, None]
    network, _ = fit_ridge(
        (scores, jnp.asarray(inside), jnp.asarray(later)),
        np.arange(1200) % 40,
        RidgeConfig(ridges=(1e-4,), members=1),
        key=jr.key(0),
    )
    change = network.decode(scores[0], jnp.asarray(inside[0]), key=None)
    flat = jnp.full(STEPS, inside[0].mean())
    held = network.decode(scores[0], flat, key=None)
    expected = np.broadcast_to(0.7 * off[:, None], (STEPS, SIGNALS))
    np.testing.assert_allclose(change - held, expected, atol=0.06)


def test_what_a_level_does_may_depend_on_the_patient():
    rows = rows_where_the_level_works_by_state(2000, 0)
    who = np.arange(2000) % 40
    config = RidgeConfig(ridges=(1e-4,), products=(1e-4,), members=3)
    network, info = fit_ridge(rows, who, config, key=jr.key(0))
    scores, levels, target = rows_where_the_level_works_by_state(500, 1)
    found = jax.jit(jax.vmap(lambda s, a: network.decode(s, a, key=None)))(scores, levels)
    assert float(jnp.std(found - target)) == pytest.approx(0.1, rel=0.15)
    assert info["held_out"][0] == pytest.approx(0.1**2, rel=0.3)


def test_members_are_refits_and_the_first_is_the_fit():
    rows = rows_where_the_level_works_by_state(600, 2)
    who = np.arange(600) % 30
    config = RidgeConfig(ridges=(1e-3,), members=6)
    network, _ = fit_ridge(rows, who, config, key=jr.key(0))
    alone, _ = fit_ridge(rows, who, RidgeConfig(ridges=(1e-3,), members=1), key=jr.key(5))
    assert network.members == 6
    np.testing.assert_allclose(network.weights[0], alone.weights[0], atol=1e-5)
    np.testing.assert_array_equal(network.member(jnp.asarray(2)).weights[0], network.weights[2])
    away = np.asarray(network.weights[1:] - network.weights[:1])
    assert np.abs(away).max() > 0.01
    inputs = np.asarray(describe(rows[0], rows[1]))
    apart = np.abs(inputs @ away).mean()
    assert 0.005 < apart < 0.1  # refits disagree by less than the noise


def test_a_draw_is_the_center_and_a_kept_error():
    twin, _ = fit_twin(TRAIN, SELECT, pocket("ridge"), key=jr.key(0))
    scores, levels, _ = twin_rows(twin, TRAIN)
    network = twin.network
    assert isinstance(network, Ridge)
    drawn = network.decode(scores[0], levels[0], key=jr.key(3))
    center = network.decode(scores[0], levels[0], key=None)
    rest = np.asarray(drawn - center)
    kept = np.asarray(network.errors)
    signals = [i for i in range(SIGNALS) if np.ptp(rest[:, i]) > 0]
    shape = rest[:, signals] / np.abs(rest[:, signals]).max(0)
    shapes = kept[:, :, signals] / np.maximum(
        np.abs(kept[:, :, signals]).max(1, keepdims=True), 1e-9
    )
    assert np.abs(shapes - shape).max((1, 2)).min() < 1e-3


def test_few_patients_and_odd_settings_are_refused_in_words():
    rows = rows_where_the_level_works_by_state(20, 3)
    with pytest.raises(ValueError, match="expected hours of at least 2 patients, got 1"):
        fit_ridge(rows, np.zeros(20, int), RidgeConfig(), key=jr.key(0))
    with pytest.raises(
        ValueError, match="expected at least 2 folds, and ridges and products above 0"
    ):
        RidgeConfig(folds=1)
    with pytest.raises(ValueError, match="expected members and errors of at least 1"):
        RidgeConfig(members=0)
