"""RealNVP is a density: it integrates to one, inverts, and agrees with autodiff and FlowJAX."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flowjax import bijections, distributions
from hypothesis import given
from hypothesis import strategies as st
from paramax.utils import inv_softplus

from stepdown.guardian.density import Conditional
from stepdown.guardian.fit import DensityConfig, save_guardian
from stepdown.guardian.flow import LOG_SCALE, FlowConfig, Noise, RealNVP, fit_flow
from stepdown.guardian.guardians import DENSITIES, density_of, load_guardian
from stepdown.guardian.threshold import GuardianConfig, make_guardian
from stepdown.training import FitConfig
from tests.guardian.decisions import ward

SIZE, LAYERS = 4, 3
POCKET = FlowConfig(layers=2, width=8, fit=FitConfig(epochs=3, batch=64))


def bent(size: int, *, seed: int = 0) -> RealNVP:
    """A flow whose couplings all do something."""
    flow = RealNVP(size, LAYERS, 16, key=jr.key(seed))
    leaves, tree = jax.tree.flatten(eqx.filter(flow, eqx.is_inexact_array))
    keys = jr.split(jr.key(seed + 1), len(leaves))
    moved = [x + 0.3 * jr.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(tree, moved), flow)


@pytest.fixture(scope="module")
def fitted():
    return fit_flow(ward("train"), ward("select", seed=1), POCKET, key=jr.key(0))


@pytest.fixture(scope="module")  # not while tests are collected, which every process does
def flow():
    return bent(SIZE)


@eqx.filter_jit
def jacobian(flow, point):
    return jax.jacfwd(lambda x: flow.forward(x)[0])(point)


@eqx.filter_jit
def forward(flow, point):
    return flow.forward(point)


@eqx.filter_jit
def inverse(flow, point):
    return flow.inverse(point)


points = st.lists(st.floats(-3, 3, width=32), min_size=SIZE, max_size=SIZE).map(jnp.asarray)


@given(points)
def test_log_determinant_is_that_of_autodiff(flow, point):
    sign, expected = np.linalg.slogdet(np.asarray(jacobian(flow, point), float))
    assert sign == 1
    assert float(forward(flow, point)[1]) == pytest.approx(expected, abs=1e-4)


@given(points)
def test_the_flow_inverts(flow, point):
    back = inverse(flow, forward(flow, point)[0])
    np.testing.assert_allclose(back, point, atol=2e-3 * (1 + np.abs(point).max()))


def test_integrates_to_one_in_the_plane():
    grid, step = jnp.linspace(-15, 15, 601), 0.05
    plane = jnp.stack(jnp.meshgrid(grid, grid), -1).reshape(-1, 2)
    log_prob = bent(2, seed=3).log_prob
    density = jnp.exp(jax.jit(lambda points: jax.vmap(log_prob)(points))(plane))
    assert float(density.sum() * step**2) == pytest.approx(1.0, abs=1e-3)


def test_agrees_with_flowjax(flow):
    """The same networks, put together by somebody else's couplings, permutations and inverse."""
    theirs = distributions.Transformed(
        distributions.StandardNormal((SIZE,)),
        bijections.Invert(bijections.Chain([flowjax_layer(flow, turn) for turn in range(LAYERS)])),
    )
    points = 2 * jr.normal(jr.key(5), (20, SIZE))
    expected = jax.jit(lambda points: theirs.log_prob(points))(points)
    ours = jax.jit(lambda points: jax.vmap(flow.log_prob)(points))(points)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def flowjax_layer(flow: RealNVP, turn: int) -> bijections.Chain:
    moved = np.flatnonzero((np.arange(SIZE) + turn) % 2 == 0)
    kept = np.setdiff1d(np.arange(SIZE), moved)
    network = jax.tree.map(lambda x: x[turn] if eqx.is_array(x) else x, flow.couplings).network

    def conditioner(seen):
        raw, offset = jnp.split(network(jnp.zeros(SIZE).at[kept].set(seen)), 2)
        scale = jnp.exp(LOG_SCALE * jnp.tanh(raw[moved] / LOG_SCALE))
        return jnp.stack([offset[moved], inv_softplus(scale) - inv_softplus(1.0)], 1).ravel()

    layer = bijections.Coupling(
        jr.key(0),
        transformer=bijections.Affine(),
        untransformed_dim=len(kept),
        dim=SIZE,
        nn_width=1,
        nn_depth=1,
    )
    layer = eqx.tree_at(lambda x: x.conditioner, layer, conditioner)
    order = jnp.asarray(np.concatenate([kept, moved]))
    there = bijections.Permute(order)
    return bijections.Chain([there, layer, bijections.Invert(there)])


def test_fitting_goes_the_right_way_and_keeps_the_best_epoch(fitted):
    _, info = fitted
    held = info["held_out"][:, 0]
    assert held[-1] < held[0]
    assert info["best_epoch"][0] == np.argmin(held)


def test_recorded_decisions_are_denser_than_moved_ones(fitted):
    density, _ = fitted
    hours = ward("test", seed=2)
    score = eqx.filter_jit(density.log_densities)
    recorded = score(hours.state, hours.level)
    assert bool(jnp.isfinite(recorded).all())
    strange = score(hours.state.at[:, :, :12].add(20.0), hours.level)  # 4 sd
    assert float(jnp.mean(strange)) < float(jnp.min(recorded))
    assert float(jnp.mean(score(hours.state, 11 - hours.level))) < float(jnp.mean(recorded)) - 1


def test_rows_do_not_know_each_other(fitted):
    density, _ = fitted
    hours = ward("test", seed=2)
    score = eqx.filter_jit(density.log_densities)
    whole = score(hours.state, hours.level)
    order = np.random.default_rng(0).permutation(200)
    shuffled = score(hours.state[order], hours.level[order])
    np.testing.assert_allclose(shuffled, whole[order], rtol=1e-5, atol=1e-4)
    one = eqx.filter_jit(density.log_density)
    for row in (0, 7):
        alone = one(hours.state[row], hours.level[row])
        assert float(alone) == pytest.approx(float(whole[row]), rel=1e-5, abs=1e-4)


def test_the_action_weight_only_adds_a_constant(fitted):
    """Log p in a coordinate stretched by 4 is lower by log 4, so nothing else changes."""
    train, select, hours = ward("train"), ward("select", seed=1), ward("test", seed=2)
    config = dataclasses.replace(POCKET, action_weight=4.0)
    weighted, _ = fit_flow(train, select, config, key=jr.key(0))
    plain, other = (
        eqx.filter_jit(density.log_densities)(hours.state, hours.level)
        for density in (fitted[0], weighted)
    )
    np.testing.assert_allclose(plain - other, np.log(4.0), atol=2e-2)


def test_noise_keeps_a_level_in_its_step():
    noise = Noise(jnp.array([0.2, 0.4]), jnp.asarray(0.1))
    point = jnp.arange(5.0)
    moved = jax.vmap(lambda k: noise(point, key=k))(jr.split(jr.key(0), 2000)) - point[None]
    assert float(jnp.abs(moved[:, 3]).max()) == pytest.approx(0.2, rel=0.01)
    assert float(jnp.abs(moved[:, 4]).max()) == pytest.approx(0.4, rel=0.01)
    np.testing.assert_allclose(moved[:, :3].std(0), 0.1, rtol=0.1)


@pytest.mark.parametrize("share", [1.0, 0.33])
def test_a_saved_flow_guardian_comes_back_and_holds_no_hours(fitted, tmp_path, share):
    density, rule = DensityConfig(DENSITIES["flow"], share, POCKET), GuardianConfig()
    inner = fitted[0] if share == 1 else Conditional(fitted[0], None, jnp.asarray(share))
    guardian = make_guardian(inner, ward("select", seed=1), rule)
    save_guardian(tmp_path / "saved", guardian, density, rule, seed=0)
    loaded, about = load_guardian(tmp_path / "saved")
    assert density_of(about, tmp_path) == density
    assert (about.points, about.contains_patient_data) == (0, False)
    arrays = (eqx.filter(x, eqx.is_array) for x in (guardian, loaded))
    jax.tree.map(np.testing.assert_array_equal, *arrays)
    hours = ward("test", seed=2)
    np.testing.assert_array_equal(
        eqx.filter_jit(guardian.p_values)(hours.state, hours.level),
        eqx.filter_jit(loaded.p_values)(hours.state, hours.level),
    )


def test_wrong_input_is_refused():
    train, select = ward("train"), ward("select", seed=1)
    with pytest.raises(ValueError, match="expected train patients, got select"):
        fit_flow(select, select, POCKET, key=jr.key(0))
    with pytest.raises(ValueError, match="expected select patients, got train"):
        fit_flow(train, train, POCKET, key=jr.key(0))
    holed = eqx.tree_at(lambda t: t.state, select, select.state.at[3, 2, 1].set(jnp.nan))
    with pytest.raises(ValueError, match="expected finite select decisions"):
        fit_flow(train, holed, POCKET, key=jr.key(0))
    nobody = jax.tree.map(lambda x: x[:0], select)
    with pytest.raises(ValueError, match="got 0 rows"):
        fit_flow(train, nobody, POCKET, key=jr.key(0))
    with pytest.raises(ValueError, match="at least 2 layers"):
        FlowConfig(layers=1)
