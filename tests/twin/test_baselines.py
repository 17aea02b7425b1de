"""The networks to beat, each against an independent account of what it should do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from stepdown.twin.baselines import (
    MLP,
    Gaussian,
    MLPConfig,
    NeuralProcess,
    ProcessConfig,
    Residuals,
    divergence,
)
from stepdown.twin.recurrent import (
    LegendreConfig,
    LegendreLayer,
    LegendreMemory,
    StateSpace,
    StateSpaceConfig,
    legendre_step,
)
from tests.twin.toys import SIGNALS, STEPS

SCORES = jr.normal(jr.key(1), (STEPS, SIGNALS + 1))
TARGET = jr.normal(jr.key(2), (STEPS, SIGNALS))
LEVELS = jnp.asarray([0.7, 0.7, 0.7, 0.3, 0.3, -0.1])
SIZE = STEPS * SIGNALS


def double(x) -> np.ndarray:
    return np.asarray(x, np.float64)


def linear(layer: eqx.nn.Linear, x: np.ndarray) -> np.ndarray:
    bias = 0.0 if layer.bias is None else double(layer.bias)
    return double(layer.weight) @ x + bias


def draws_of(network, number: int, latent=None) -> np.ndarray:
    latent = network.encode(SCORES) if latent is None else latent
    draw = jax.jit(jax.vmap(lambda k: network.decode(latent, LEVELS, key=k)))
    return double(draw(jr.split(jr.key(3), number)))


# ── persistence ──────────────────────────────────────────────────────────────────────────────────


def test_errors_are_drawn_by_the_hour_and_evenly():
    errors = jr.normal(jr.key(4), (8, STEPS, SIGNALS))
    draws = draws_of(Residuals(errors), 4000)
    which = np.argmin(np.abs(draws[:, None] - double(errors)).sum((2, 3)), axis=1)
    assert np.array_equal(draws, double(errors)[which])  # whole hours, never a mixture
    assert scipy.stats.chisquare(np.bincount(which, minlength=8)).pvalue > 0.01
    assert not Residuals(errors).decode(None, LEVELS, key=None).any()


# ── plain network ────────────────────────────────────────────────────────────────────────────────


def test_the_plain_network_sees_the_flat_hour_and_the_levels():
    network = MLP(STEPS, SIGNALS, MLPConfig((64, 32, 16)), key=jr.key(5))
    inner = np.append(double(SCORES).ravel(), double(LEVELS))
    for layer in network.hidden:
        inner = np.maximum(linear(layer, inner), 0)
    expected = linear(network.out, inner).reshape(STEPS, SIGNALS)
    center = network.decode(network.encode(SCORES), LEVELS, key=None)
    assert np.allclose(center, expected, atol=1e-5)


def test_a_fifth_is_dropped_after_each_hidden_layer():
    network = MLP(STEPS, SIGNALS, MLPConfig((SIZE,) * 3), key=jr.key(6))
    first, *others = network.hidden
    ones, same, none = jnp.ones(SIZE), jnp.eye(SIZE), jnp.zeros(SIZE)
    network = eqx.tree_at(  # every unit is 1 and is handed on unchanged
        lambda n: [x for layer in (*n.hidden, n.out) for x in (layer.weight, layer.bias)],
        network,
        [jnp.zeros_like(first.weight), ones] + [same, none] * (len(others) + 1),
    )
    draws = draws_of(network, 400)
    kept = draws > 0
    assert kept.mean() == pytest.approx(0.8**3, abs=0.015)  # 28,800 units: se 0.003
    assert np.allclose(draws[kept], 1 / 0.8**3)


# ── neural process ───────────────────────────────────────────────────────────────────────────────


def test_the_divergence_is_the_integral():
    def integrand(z):
        first, second = (scipy.stats.norm.logpdf(z, *p) for p in ((0.3, 0.5), (-0.2, 0.8)))
        return np.exp(first) * (first - second)

    expected, _ = scipy.integrate.quad(integrand, -6, 6)
    pair = [Gaussian(jnp.full(3, m), jnp.full(3, s)) for m, s in ((0.3, 0.5), (-0.2, 0.8))]
    assert divergence(*pair) == pytest.approx(3 * expected, rel=1e-5)
    assert divergence(pair[0], pair[0]) == 0.0


def test_the_loss_is_the_evidence_bound():
    """With one latent number, log p(target) and the true posterior are integrals on a line.

    The mean of the loss must exceed -log p(target) by KL(belief, true posterior), exactly.
    """
    network = NeuralProcess(STEPS, SIGNALS, ProcessConfig(latent=1, hidden=16), key=jr.key(7))
    network = eqx.tree_at(lambda n: n.decoder[0].weight, network, replace_fn=lambda w: 3 * w)
    prior = network.encode(SCORES)
    grid = np.linspace(-6, 6, 2001)
    forecast = jax.vmap(lambda z: network.forecast(z[None], LEVELS))(jnp.asarray(grid, jnp.float32))
    mean, sd = double(forecast.mean), double(forecast.sd)
    likelihood = scipy.stats.norm.logpdf(double(TARGET), mean, sd).sum((1, 2))
    joint = likelihood + scipy.stats.norm.logpdf(grid, prior.mean, prior.sd)
    width = grid[1] - grid[0]
    evidence = scipy.special.logsumexp(joint) + np.log(width)

    later = jnp.concatenate([TARGET, LEVELS[:, None]], axis=1)
    times = jnp.arange(1 - STEPS, STEPS + 1) / STEPS
    codes = network.codes(jnp.concatenate([SCORES, later]), times)
    belief = network.belief(codes)
    seen = scipy.stats.norm.logpdf(grid, belief.mean, belief.sd)
    gap = np.sum(np.exp(seen) * (seen - (joint - evidence))) * width

    keys = jr.split(jr.key(8), 4000)
    losses = jax.jit(jax.vmap(lambda k: network.loss(SCORES, LEVELS, TARGET, key=k)))(keys)
    bound = SIZE * double(losses)
    assert gap > 0.05
    error = bound.std() / np.sqrt(len(keys))
    assert bound.mean() == pytest.approx(gap - evidence, abs=4 * error)


def test_without_a_key_the_loss_never_sees_the_target_before_it_forecasts():
    network = NeuralProcess(STEPS, SIGNALS, ProcessConfig(latent=4, hidden=16), key=jr.key(9))
    forecast = network.forecast(network.encode(SCORES).mean, LEVELS)
    expected = scipy.stats.norm.logpdf(double(TARGET), double(forecast.mean), double(forecast.sd))
    loss = network.loss(SCORES, LEVELS, TARGET, key=None)
    assert loss == pytest.approx(-expected.mean(), rel=1e-5)


def test_draws_of_the_process_have_the_forecast_moments():
    network = NeuralProcess(STEPS, SIGNALS, ProcessConfig(latent=4, hidden=16), key=jr.key(10))
    latent = jnp.asarray([0.5, -1.0, 0.2, 0.0])
    forecast = network.forecast(latent, LEVELS)
    draws = draws_of(network, 4000, Gaussian(latent, jnp.zeros(4)))
    assert np.allclose(draws.mean(0), forecast.mean, atol=0.08)  # 4.5 standard errors of 0.016
    assert np.allclose(draws.std(0), forecast.sd, rtol=0.06)
    wide = draws_of(network, 4000, Gaussian(latent, jnp.full(4, 3.0)))
    assert np.all(wide.std(0).mean() > 1.02 * draws.std(0).mean())  # the latent is drawn too


# ── Legendre memory ──────────────────────────────────────────────────────────────────────────────


def test_the_memory_gives_the_past_back():
    """Legendre polynomials of the memory reproduce the input of any time in the window."""
    order, every = 12, 400
    shift, entry = legendre_step(order, 1 / every)
    past = np.sin(2 * np.arange(3 * every) / every)
    memory = np.zeros(order)
    for value in past:
        memory = shift @ memory + entry * value
    for delay in (0.1, 0.3, 0.5, 0.8, 1.0):
        weights = scipy.special.eval_sh_legendre(np.arange(order), delay)
        assert weights @ memory == pytest.approx(past[-1 - round(delay * every)], abs=0.01)


def test_the_paper_size_memory_is_stable_and_knows_constants():
    shift, entry = legendre_step(64, 1 / STEPS)
    assert np.abs(np.linalg.eigvals(shift)).max() < 1
    memory = np.zeros(64)
    for _ in range(60):
        memory = shift @ memory + entry * 1.0
    assert np.allclose(memory, np.eye(64)[0], atol=1e-6)  # a constant is the first polynomial
    half, part = legendre_step(64, 0.5 / STEPS)
    assert np.allclose(half @ half, shift, atol=1e-8)
    assert np.allclose(half @ part + part, entry, atol=1e-8)


def test_a_memory_layer_matches_its_loops():
    config = LegendreConfig(memory=8, hidden=16)
    layer = LegendreLayer(SIGNALS + 1, config, key=jr.key(11))
    shift, entry = legendre_step(8, 1 / STEPS)
    hidden, memory, expected = np.zeros(16), np.zeros(8), []
    for row in double(SCORES):
        written = linear(layer.write, np.concatenate([row, hidden, memory]))
        memory = 0.9 * memory + 0.1 * (shift @ memory + entry * written)
        hidden = np.tanh(linear(layer.read, np.concatenate([row, hidden, memory])))
        expected.append(hidden)
    assert np.allclose(layer(SCORES), expected, atol=1e-5)


def test_the_level_reaches_the_memory_network_by_its_own_projection():
    network = LegendreMemory(STEPS, SIGNALS, LegendreConfig(memory=8, hidden=16), key=jr.key(12))
    deaf = eqx.tree_at(lambda n: n.level.weight, network, replace_fn=jnp.zeros_like)
    latent = network.encode(SCORES)
    changes = [
        np.abs(net.decode(latent, LEVELS, key=None) - net.decode(latent, -LEVELS, key=None)).max()
        for net in (network, deaf)
    ]
    assert changes[0] > 0.01
    assert changes[1] == 0


# ── state space ──────────────────────────────────────────────────────────────────────────────────


def test_the_state_space_matches_its_loops():
    network = StateSpace(STEPS, SIGNALS, StateSpaceConfig(state=16, hidden=32), key=jr.key(13))
    transition = double(network.transition)
    state, expected = np.zeros(16), []
    for row in double(SCORES):
        state = transition @ state + linear(network.sample, row)
    for level in double(LEVELS):
        state = transition @ state + linear(network.level, np.array([level]))
        expected.append(linear(network.out, np.maximum(linear(network.hidden, state), 0)))
    center = network.decode(network.encode(SCORES), LEVELS, key=None)
    assert np.allclose(center, expected, atol=1e-5)


def test_transition_noise_grows_as_the_transition_says():
    config = StateSpaceConfig(state=SIGNALS, hidden=SIGNALS, dropout=0.0)
    network = StateSpace(STEPS, SIGNALS, config, key=jr.key(14))
    show = [jnp.eye(SIGNALS), jnp.full(SIGNALS, 50.0), jnp.eye(SIGNALS), jnp.full(SIGNALS, -50.0)]
    network = eqx.tree_at(  # the forecast is the state itself
        lambda n: [n.hidden.weight, n.hidden.bias, n.out.weight, n.out.bias], network, show
    )
    draws = draws_of(network, 4000)
    transition, spread = double(network.transition), np.zeros((SIGNALS, SIGNALS))
    for step in range(STEPS):
        spread = transition @ spread @ transition.T + 0.01**2 * np.eye(SIGNALS)
        assert np.allclose(draws[:, step].std(0), np.sqrt(np.diag(spread)), rtol=0.06)


def test_the_paper_size_transition_starts_stable():
    radius = [
        np.abs(np.linalg.eigvals(StateSpace(STEPS, SIGNALS, StateSpaceConfig(), key=k).transition))
        for k in jr.split(jr.key(15), 5)
    ]
    assert np.max(radius) < 1.03  # by the letter of the paper it would be about 1.7
