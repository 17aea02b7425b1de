"""The Transformer against textbook loops; positions, dropout and their absence."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.twin.transformer import (
    Attention,
    Transformer,
    TransformerConfig,
    rotate,
    sinusoids,
)
from tests.twin.toys import SIGNALS, STEPS

CONFIG = TransformerConfig(16, 2, 2, 32, 64)
ROTARY = TransformerConfig(16, 2, 2, 32, 64, positions="rotary")
NETWORKS = {
    name: Transformer(STEPS, SIGNALS, config, key=jr.key(0))
    for name, config in {"sinusoidal": CONFIG, "rotary": ROTARY}.items()
}
SCORES = jr.normal(jr.key(1), (STEPS, SIGNALS + 1))
LEVELS = jnp.asarray([0.7, 0.7, 0.7, 0.3, 0.3, -0.1])
ORDER = np.array([3, 0, 5, 1, 4, 2])


def double(x) -> np.ndarray:
    return np.asarray(x, np.float64)


def linear(layer: eqx.nn.Linear, x: np.ndarray) -> np.ndarray:
    assert layer.bias is not None
    return double(layer.weight) @ x + double(layer.bias)


def textbook_attention(attention: Attention, tokens: np.ndarray) -> np.ndarray:
    """Head by head, sample by sample; rotary positions turn pairs as complex numbers."""
    steps, width = tokens.shape
    size = width // attention.heads
    turn = 10_000.0 ** (-2 * np.arange(size // 2) / size)
    rows = []
    for i in range(steps):
        heads = []
        for h in range(attention.heads):
            part = slice(h * size, (h + 1) * size)
            query = linear(attention.query, tokens[i])[part]
            keys = [linear(attention.key, token)[part] for token in tokens]
            values = [linear(attention.value, token)[part] for token in tokens]
            if attention.rotary:
                pair = (query[0::2] + 1j * query[1::2]) * np.exp(1j * i * turn)
                pairs = [
                    (k[0::2] + 1j * k[1::2]) * np.exp(1j * j * turn) for j, k in enumerate(keys)
                ]
                match = np.array([np.sum(pair * p.conj()).real for p in pairs])
            else:
                match = np.array([query @ k for k in keys])
            weight = np.exp(match / np.sqrt(size))
            heads.append(np.array(values).T @ (weight / weight.sum()))
        rows.append(linear(attention.out, np.concatenate(heads)))
    return np.array(rows)


def normalized(norm: eqx.nn.LayerNorm, x: np.ndarray) -> np.ndarray:
    return double(norm.weight) * (x - x.mean()) / np.sqrt(x.var() + norm.eps) + double(norm.bias)


def textbook_encoder(network: Transformer, scores: np.ndarray) -> np.ndarray:
    tokens = np.array([linear(network.embed, row) for row in scores])
    if network.positions == "sinusoidal":
        tokens = tokens + textbook_positions(*tokens.shape)
    for layer in network.layers:
        normed = np.array([normalized(layer.norms[0], token) for token in tokens])
        tokens = tokens + textbook_attention(layer.attention, normed)
        for i, token in enumerate(tokens):
            inner = np.maximum(linear(layer.widen, normalized(layer.norms[1], token)), 0)
            tokens[i] = token + linear(layer.narrow, inner)
    return np.array([normalized(network.norm, token) for token in tokens])


def textbook_positions(steps: int, width: int) -> np.ndarray:
    """Vaswani et al.: sin(p / 10000^(2i/d)) at 2i, the cosine at 2i + 1."""
    table = np.zeros((steps, width))
    for position in range(steps):
        for column in range(width):
            angle = position / 10_000.0 ** (2 * (column // 2) / width)
            table[position, column] = np.cos(angle) if column % 2 else np.sin(angle)
    return table


@pytest.mark.parametrize("name", NETWORKS)
def test_attention_matches_its_loops(name):
    attention = NETWORKS[name].layers[0].attention
    tokens = jr.normal(jr.key(2), (STEPS, 16))
    expected = textbook_attention(attention, double(tokens))
    assert np.allclose(attention(tokens), expected, atol=2e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_encoder_matches_its_loops(name):
    expected = textbook_encoder(NETWORKS[name], double(SCORES))
    assert np.allclose(NETWORKS[name].encode(SCORES), expected, atol=1e-5)


def test_the_decoder_is_two_layers_over_all_tokens_and_the_levels():
    network = NETWORKS["sinusoidal"]
    latent = network.encode(SCORES)
    joined = np.append(double(latent).ravel(), double(LEVELS))
    inner = np.maximum(linear(network.hidden, joined), 0)
    expected = linear(network.out, inner).reshape(STEPS, SIGNALS)
    assert np.allclose(network.decode(latent, LEVELS, key=None), expected, atol=1e-5)


def test_positions_are_the_published_sines():
    assert np.allclose(sinusoids(30, 16), textbook_positions(30, 16), atol=1e-6)


def test_rotary_scores_depend_on_distance_alone():
    query, key = (jnp.tile(jr.normal(jr.key(i), (1, 8)), (STEPS, 1)) for i in (3, 4))
    match = double(rotate(query) @ rotate(key).T)
    for lag in range(1 - STEPS, STEPS):
        assert np.ptp(np.diagonal(match, lag)) < 1e-5
    assert match[0, 0] == pytest.approx(double(query[0]) @ double(key[0]), rel=1e-5)
    assert np.ptp(match[0]) > 0.1  # and distance does matter


@pytest.mark.parametrize("name", NETWORKS)
def test_the_order_of_samples_reaches_the_tokens(name):
    network = NETWORKS[name]
    tokens = network.encode(SCORES)
    assert not np.allclose(network.encode(SCORES[ORDER]), tokens[ORDER], atol=1e-2)
    plain = NETWORKS["sinusoidal"].layers[0]  # without positions the order would be lost
    inputs = jr.normal(jr.key(5), (STEPS, 16))
    assert np.allclose(plain(inputs[ORDER]), plain(inputs)[ORDER], atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_order_of_samples_changes_the_forecast(name):
    network = NETWORKS[name]
    center = network.decode(network.encode(SCORES), LEVELS, key=None)
    shuffled = network.decode(network.encode(SCORES[ORDER]), LEVELS, key=None)
    assert np.abs(center - shuffled).max() > 0.01


def transparent() -> Transformer:
    """A network whose forecast shows each hidden unit of its decoder, all of them active."""
    config = TransformerConfig(16, 2, 1, 32, STEPS * SIGNALS)
    network = Transformer(STEPS, SIGNALS, config, key=jr.key(6))
    show = [jnp.full(STEPS * SIGNALS, 50.0), jnp.eye(STEPS * SIGNALS), jnp.zeros(STEPS * SIGNALS)]
    return eqx.tree_at(lambda n: [n.hidden.bias, n.out.weight, n.out.bias], network, show)


def test_a_key_drops_a_tenth_of_the_decoder_and_nothing_else():
    network = transparent()
    latent = network.encode(SCORES)
    center = double(network.decode(latent, LEVELS, key=None))
    draw = jax.jit(jax.vmap(lambda k: network.decode(latent, LEVELS, key=k)))
    draws = double(draw(jr.split(jr.key(7), 500)))
    dropped = draws == 0
    assert dropped.mean() == pytest.approx(0.1, abs=0.005)  # 36,000 units: se 0.0016
    assert np.abs(dropped.mean(0) - 0.1).max() < 0.07  # no unit is special
    kept = np.broadcast_to(center, draws.shape)[~dropped]
    assert np.allclose(draws[~dropped], kept / 0.9, rtol=1e-5)


def test_draws_scatter_around_the_center():
    network = NETWORKS["sinusoidal"]
    latent = network.encode(SCORES)
    draw = jax.jit(jax.vmap(lambda k: network.decode(latent, LEVELS, key=k)))
    draws = double(draw(jr.split(jr.key(8), 4000)))
    center = double(network.decode(latent, LEVELS, key=None))
    error = (draws.mean(0) - center) / (draws.std(0) / np.sqrt(4000))
    assert np.abs(error).max() < 4.5  # of 72 numbers, many correlated
    assert draws.std(0).min() > 0.005


def test_dropout_stays_on_in_inference_mode():
    network = NETWORKS["sinusoidal"]
    quiet = eqx.nn.inference_mode(network)
    latent = network.encode(SCORES)
    one, other = (network.decode(latent, LEVELS, key=jr.key(i)) for i in (0, 1))
    assert np.array_equal(quiet.decode(latent, LEVELS, key=jr.key(0)), one)
    assert np.abs(one - other).max() > 0.01


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="multiple of 16"):
        TransformerConfig(width=24, heads=8)
    with pytest.raises(ValueError, match="got 1"):
        TransformerConfig(dropout=1.0)
    with pytest.raises(ValueError, match="at least 1"):
        TransformerConfig(layers=0)


def test_the_transformers_sizes_are_called_ours_and_are_those_of_the_document():
    """The paper gives none."""
    page = (Path(__file__).parents[2] / "docs/definitions.md").read_text("utf-8")
    said = " ".join(page[page.index("* *Transformer.*") :].split())
    own = TransformerConfig()
    assert said.startswith(
        "* *Transformer.* The paper prints three layers, two decoder layers and the dropout, and "
        f"no sizes. These are ours (`TransformerConfig`): {own.width} wide, {own.heads} heads, "
        f"feed-forward {own.feedforward:,}, decoder {own.decoder}."
    )
    assert (own.layers, own.dropout) == (3, 0.1)  # the paper's
    assert "no sizes: those are ours" in " ".join((TransformerConfig.__doc__ or "").split())
