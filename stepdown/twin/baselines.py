"""What the twin must beat: persistence, a plain network, a neural process (digital-twin appendix).

Two recurrent networks are in `recurrent.py`. All share the methods of the Transformer: `encode`
reads the hour once, `decode` forecasts under the coming levels, and a key makes it a draw.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from stepdown.twin.transformer import Hour, Levels, Scores, check_dropout, drop, squared_error

LEAST_SD = 0.01  # of a forecast, in z-scores, so that no density is infinite


@dataclass(frozen=True)
class PersistenceConfig:
    """What persistence remembers."""

    errors: int = 4096  # hours that a draw comes from

    def __post_init__(self):
        if self.errors < 1:
            raise ValueError(f"errors: expected at least 1, got {self.errors}.")


class Residuals(eqx.Module):
    """Persistence: nothing to add to the hour carried forward, but the errors it made before.

    A draw adds one whole hour of errors, so that samples and signals err together as they do.
    """

    errors: Float[Array, "rows steps signals"]  # of train patients

    def encode(self, scores: Scores) -> None:
        """Read nothing."""
        return

    def decode(self, latent: None, levels: Levels, *, key: PRNGKeyArray | None) -> Hour:
        """No change, or one recorded hour of errors."""
        if key is None:
            return jnp.zeros_like(self.errors[0])
        return self.errors[jr.randint(key, (), 0, len(self.errors))]

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Mean squared error of one draw, or of the center without a key."""
        return squared_error(self, scores, levels, target, key)


def make_residuals(
    steps: int,
    signals: int,
    config: PersistenceConfig = PersistenceConfig(errors=1),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray | None = None,
) -> Residuals:
    """Persistence that has made no errors yet."""
    return Residuals(jnp.zeros((config.errors, steps, signals)))


def remember_errors(
    networks: list, rows, config, *, patients, keys: Key[Array, "members 2"], watch
):
    """Some of persistence's errors on train patients, whole hours each."""
    errors, number = rows[0][2], config.sizes.errors
    count = len(errors)
    chosen = [jr.choice(key, count, (number,), replace=count < number) for key in keys[:, 1]]
    return [Residuals(errors[rows]) for rows in chosen], {}


@dataclass(frozen=True)
class MLPConfig:
    """Sizes of the plain network; defaults are the paper's."""

    hidden: tuple[int, ...] = (512, 256, 128)
    dropout: float = 0.2

    def __post_init__(self):
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden: expected sizes of at least 1, got {self.hidden}.")
        check_dropout(self.dropout)


class MLP(eqx.Module):
    """The flattened hour and the coming levels, through layers with dropout after each."""

    hidden: tuple[eqx.nn.Linear, ...]
    out: eqx.nn.Linear
    steps: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(self, steps: int, signals: int, config: MLPConfig, *, key: PRNGKeyArray):
        k_hidden, k_out = jr.split(key)
        self.hidden = dense((steps * (signals + 2), *config.hidden), key=k_hidden)
        self.out = eqx.nn.Linear(config.hidden[-1], steps * signals, key=k_out)
        self.steps, self.dropout = steps, config.dropout

    def encode(self, scores: Scores) -> Float[Array, " numbers"]:
        """The samples side by side."""
        return scores.ravel()

    def decode(
        self,
        latent: Float[Array, " numbers"],
        levels: Levels,
        *,
        key: PRNGKeyArray | None,
    ) -> Hour:
        """The next hour under its levels; a key draws the dropout masks."""
        inner = jnp.append(latent, levels)
        for layer, k in zip(self.hidden, split(key, len(self.hidden)), strict=True):
            inner = drop(jax.nn.relu(layer(inner)), self.dropout, k)
        return self.out(inner).reshape(self.steps, -1)

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Mean squared error of one draw, or of the center without a key."""
        return squared_error(self, scores, levels, target, key)


@dataclass(frozen=True)
class ProcessConfig:
    """Sizes of the neural process; defaults are the paper's."""

    latent: int = 128
    hidden: int = 256

    def __post_init__(self):
        if min(self.latent, self.hidden) < 1:
            raise ValueError(f"expected sizes of at least 1, got {self}.")


class Gaussian(eqx.Module):
    """Independent normal numbers."""

    mean: Float[Array, "*n"]
    sd: Float[Array, "*n"]

    def draw(self, key: PRNGKeyArray | None) -> Float[Array, "*n"]:
        """One draw, or the mean without a key."""
        if key is None:
            return self.mean
        return self.mean + self.sd * jr.normal(key, self.mean.shape)

    def surprise(self, values: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Negative log-density of each number, nats."""
        score = (values - self.mean) / self.sd
        return 0.5 * score**2 + jnp.log(self.sd) + 0.5 * np.log(2 * np.pi)


class NeuralProcess(eqx.Module):
    """A patient as a random function of time: samples give a belief about it, it gives the hour.

    Every sample is encoded with its time; their mean, the aggregate, gives a normal latent. The
    decoder turns a latent, a time and the level then into mean and sd of every signal.
    """

    encoder: tuple[eqx.nn.Linear, ...]
    aggregator: eqx.nn.Linear
    decoder: tuple[eqx.nn.Linear, ...]
    steps: int = eqx.field(static=True)

    def __init__(self, steps: int, signals: int, config: ProcessConfig, *, key: PRNGKeyArray):
        k_encoder, k_aggregator, k_decoder = jr.split(key, 3)
        wide = (config.hidden,) * 2
        self.encoder = dense((signals + 2, *wide, config.hidden), key=k_encoder)
        self.aggregator = eqx.nn.Linear(config.hidden, 2 * config.latent, key=k_aggregator)
        self.decoder = dense((config.latent + 2, *wide, 2 * signals), key=k_decoder)
        self.steps = steps

    def encode(self, scores: Scores) -> Gaussian:
        """What the hour tells about the latent."""
        return self.belief(self.codes(scores, self.times()))

    def decode(self, latent: Gaussian, levels: Levels, *, key: PRNGKeyArray | None) -> Hour:
        """The next hour under its levels; a key draws the latent and the noise of each number."""
        k_latent, k_noise = split(key, 2)
        return self.forecast(latent.draw(k_latent), levels).draw(k_noise)

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Negative evidence bound per number, nats; the belief that saw the target is drawn.

        Without a key the target stays unseen: surprise at the forecast from the mean latent.
        """
        codes = self.codes(scores, self.times())
        prior = self.belief(codes)
        if key is None:
            return jnp.mean(self.forecast(prior.mean, levels).surprise(target))
        coming = jnp.concatenate([target, levels[:, None]], axis=1)
        later = self.codes(coming, self.times() + 1)
        posterior = self.belief(jnp.concatenate([codes, later]))
        surprise = self.forecast(posterior.draw(key), levels).surprise(target)
        return jnp.mean(surprise) + divergence(posterior, prior) / target.size

    def times(self) -> Float[Array, " steps"]:
        """Times of the samples before the decision, which is at 0; a state has the length 1."""
        return (jnp.arange(self.steps) + 1 - self.steps) / self.steps

    def codes(self, scores: Scores, times: Float[Array, " steps"]) -> Float[Array, "steps hidden"]:
        """Each sample with its time, encoded alone."""
        return jax.vmap(lambda x, t: through(self.encoder, jnp.append(x, t)))(scores, times)

    def belief(self, codes: Float[Array, "samples hidden"]) -> Gaussian:
        """The latent as any number of encoded samples tell it."""
        mean, raw = jnp.split(self.aggregator(jax.nn.relu(jnp.mean(codes, axis=0))), 2)
        return Gaussian(mean, 0.1 + 0.9 * jax.nn.sigmoid(raw))  # bounded, as is usual

    def forecast(self, latent: Float[Array, " latent"], levels: Levels) -> Gaussian:
        """The next hour, if the latent were known."""

        def at(time, level):
            return through(self.decoder, jnp.concatenate([latent, jnp.stack([time, level])]))

        mean, raw = jnp.split(jax.vmap(at)(self.times() + 1, levels), 2, axis=1)
        return Gaussian(mean, LEAST_SD + jax.nn.softplus(raw))


def divergence(first: Gaussian, second: Gaussian) -> Float[Array, ""]:
    """Kullback-Leibler divergence of the first from the second, nats."""
    ratio, gap = first.sd / second.sd, (first.mean - second.mean) / second.sd
    return 0.5 * jnp.sum(ratio**2 + gap**2 - 1 - 2 * jnp.log(ratio))


def dense(sizes: tuple[int, ...], *, key: PRNGKeyArray) -> tuple[eqx.nn.Linear, ...]:
    """Linear layers from each size to the next."""
    keys = jr.split(key, len(sizes) - 1)
    return tuple(
        eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
    )


def through(
    layers: tuple[eqx.nn.Linear, ...], numbers: Float[Array, " inputs"]
) -> Float[Array, " outputs"]:
    """The layers one after another, ReLU between them."""
    for layer in layers[:-1]:
        numbers = jax.nn.relu(layer(numbers))
    return layers[-1](numbers)


def split(key: PRNGKeyArray | None, number: int) -> list[PRNGKeyArray | None]:
    """Keys out of one; nothing out of nothing."""
    return [None] * number if key is None else list(jr.split(key, number))
