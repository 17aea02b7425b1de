"""The Transformer digital twin (Sec. 4.1): attention over the samples of an hour.

Each sample is embedded and marked with its position; three self-attention layers read the hour.
Their tokens are laid side by side, which keeps what a mean over them would blur, and joined by the
levels of the coming samples; two fully connected layers give the next hour. Dropout lives in the
decoder alone and draws a forecast whenever a key is given; without one the forecast is the center.

Every network of this folder has the same three methods, `encode`, `decode` and `loss`. It reads and
gives free coordinates (coordinates.py), one for each signal, in standard deviations.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

Positions = Literal["sinusoidal", "rotary"]
Scores = Float[Array, "past used"]  # the signals in use, then the level in force
Levels = Float[Array, " steps"]  # z-scores of the levels of the coming samples
Hour = Float[Array, "steps signals"]

LONGEST_WAVE = 10_000.0  # of the positions, as in their first description


def check_dropout(rate: float) -> None:
    """Refuse a share of dropped units that is none."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: expected a share from 0 to below 1, got {rate:g}.")


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of the network.

    The paper gives the numbers of layers and the dropout, no sizes: those are ours
    (docs/definitions.md, section 15).
    """

    width: int = 256
    heads: int = 8
    layers: int = 3
    feedforward: int = 2048
    decoder: int = 512
    dropout: float = 0.1
    positions: Positions = "sinusoidal"

    def __post_init__(self):
        if min(self.width, self.heads, self.layers, self.feedforward, self.decoder) < 1:
            raise ValueError(f"expected sizes of at least 1, got {self}.")
        if self.width % (2 * self.heads):
            raise ValueError(
                "expected an even number of units in each head, "
                f"got {self.width} for {self.heads} heads. Make it a multiple of {2 * self.heads}."
            )
        check_dropout(self.dropout)


SMALL_TRANSFORMER = TransformerConfig(width=64, heads=4, feedforward=128, decoder=128)


class Attention(eqx.Module):
    """Every sample looks at every sample, with several heads."""

    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    out: eqx.nn.Linear
    heads: int = eqx.field(static=True)
    rotary: bool = eqx.field(static=True)

    def __init__(self, width: int, heads: int, *, rotary: bool, key: PRNGKeyArray):
        parts = [eqx.nn.Linear(width, width, key=k) for k in jr.split(key, 4)]
        self.query, self.key, self.value, self.out = parts
        self.heads, self.rotary = heads, rotary

    def __call__(self, tokens: Float[Array, "steps width"]) -> Float[Array, "steps width"]:
        """Softmax(q k / sqrt(d)) v in each head, then a linear map of all heads."""
        steps, width = tokens.shape
        split = (steps, self.heads, width // self.heads)
        query, key, value = (
            jax.vmap(part)(tokens).reshape(split) for part in (self.query, self.key, self.value)
        )
        if self.rotary:
            query, key = (jax.vmap(rotate, 1, 1)(x) for x in (query, key))
        match = jnp.einsum("ihd,jhd->hij", query, key) / np.sqrt(width // self.heads)
        seen = jnp.einsum("hij,jhd->ihd", jax.nn.softmax(match), value)
        return jax.vmap(self.out)(seen.reshape(steps, width))


class EncoderLayer(eqx.Module):
    """Attention, then two layers for each sample; norms come first, which needs no warm-up."""

    attention: Attention
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    widen: eqx.nn.Linear
    narrow: eqx.nn.Linear

    def __init__(self, config: TransformerConfig, *, key: PRNGKeyArray):
        k_attention, k_widen, k_narrow = jr.split(key, 3)
        width, rotary = config.width, config.positions == "rotary"
        self.attention = Attention(width, config.heads, rotary=rotary, key=k_attention)
        self.norms = (eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width))
        self.widen = eqx.nn.Linear(width, config.feedforward, key=k_widen)
        self.narrow = eqx.nn.Linear(config.feedforward, width, key=k_narrow)

    def __call__(self, tokens: Float[Array, "steps width"]) -> Float[Array, "steps width"]:
        """Each part adds to the tokens."""
        tokens = tokens + self.attention(jax.vmap(self.norms[0])(tokens))
        inner = jax.nn.relu(jax.vmap(self.widen)(jax.vmap(self.norms[1])(tokens)))
        return tokens + jax.vmap(self.narrow)(inner)


class Transformer(eqx.Module):
    """The paper's twin, in sizes of ours."""

    embed: eqx.nn.Linear
    layers: tuple[EncoderLayer, ...]
    norm: eqx.nn.LayerNorm
    hidden: eqx.nn.Linear
    out: eqx.nn.Linear
    steps: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    positions: Positions = eqx.field(static=True)

    def __init__(self, steps: int, signals: int, config: TransformerConfig, *, key: PRNGKeyArray):
        k_embed, k_layers, k_hidden, k_out = jr.split(key, 4)
        width = config.width
        self.embed = eqx.nn.Linear(signals + 1, width, key=k_embed)
        self.layers = tuple(EncoderLayer(config, key=k) for k in jr.split(k_layers, config.layers))
        self.norm = eqx.nn.LayerNorm(width)
        self.hidden = eqx.nn.Linear(steps * width + steps, config.decoder, key=k_hidden)
        self.out = eqx.nn.Linear(config.decoder, steps * signals, key=k_out)
        self.steps, self.dropout, self.positions = steps, config.dropout, config.positions

    def encode(self, scores: Scores) -> Float[Array, "steps width"]:
        """One token for each sample, all samples considered; no dropout here."""
        tokens = jax.vmap(self.embed)(scores)
        if self.positions == "sinusoidal":
            tokens = tokens + sinusoids(*tokens.shape)
        for layer in self.layers:
            tokens = layer(tokens)
        return jax.vmap(self.norm)(tokens)

    def decode(
        self,
        latent: Float[Array, "steps width"],
        levels: Levels,
        *,
        key: PRNGKeyArray | None,
    ) -> Hour:
        """The next hour under its levels; a key draws the dropout mask."""
        inner = jax.nn.relu(self.hidden(jnp.append(latent.ravel(), levels)))
        return self.out(drop(inner, self.dropout, key)).reshape(self.steps, -1)

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Mean squared error of one draw, or of the center without a key."""
        return squared_error(self, scores, levels, target, key)


@runtime_checkable
class Network(Protocol):
    """What every network of this folder can do; the latent is its own business."""

    def encode(self, scores: Scores) -> Any:
        """Read the hour once."""
        ...

    def decode(self, latent: Any, levels: Levels, *, key: PRNGKeyArray | None) -> Hour:
        """Forecast under the levels of the samples: one draw, or the center without a key."""
        ...

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """What fitting makes small; without a key, what is compared between epochs."""
        ...


class Fitted(eqx.Module):
    """A network while it is fitted; `inference` is set where rows are held out."""

    network: Any  # with a loss
    inference: bool = False


def fitted_loss(fitted: Fitted, row, *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Dropout and noise in training, none on held-out rows."""
    return fitted.network.loss(*row, key=None if fitted.inference else key)


def squared_error(
    network: Network, scores: Scores, levels: Levels, target: Hour, key
) -> Float[Array, ""]:
    """Mean squared error in standard deviations, the loss of the paper."""
    forecast = network.decode(network.encode(scores), levels, key=key)
    return jnp.mean((forecast - target) ** 2)


def drop(
    units: Float[Array, " units"], rate: float, key: PRNGKeyArray | None
) -> Float[Array, " units"]:
    """Set a share of the units to zero and scale the others up; nothing without a key."""
    if key is None:
        return units
    kept = jr.bernoulli(key, 1 - rate, units.shape)
    return jnp.where(kept, units / (1 - rate), 0.0)


def sinusoids(steps: int, width: int) -> Float[Array, "steps width"]:
    """Positions as sines (even columns) and cosines (odd ones) of waves of growing length."""
    angle = np.arange(steps)[:, None] / LONGEST_WAVE ** (np.arange(0, width, 2) / width)
    waves = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(steps, width)
    return jnp.asarray(waves, jnp.float32)


def rotate(vectors: Float[Array, "steps units"]) -> Float[Array, "steps units"]:
    """Turn each pair of units by an angle that grows with the position (rotary positions).

    The product of two turned vectors depends on how far apart they are, not on where they are.
    """
    steps, units = vectors.shape
    angle = np.arange(steps)[:, None] / LONGEST_WAVE ** (np.arange(0, units, 2) / units)
    cosine, sine = jnp.asarray(np.cos(angle)), jnp.asarray(np.sin(angle))
    even, odd = vectors[:, 0::2], vectors[:, 1::2]
    turned = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return turned.reshape(steps, units)
