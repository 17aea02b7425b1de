"""Two recurrent networks that the twin must beat (digital-twin appendix), in z-scores.

The conditional Legendre memory unit keeps the past hour as coefficients of Legendre polynomials;
the state-space model carries a latent state through the hour and on into the next.
"""

import functools
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stepdown.twin.baselines import split
from stepdown.twin.transformer import Hour, Levels, Scores, check_dropout, drop, squared_error


@dataclass(frozen=True)
class LegendreConfig:
    """Sizes of the Legendre memory network; defaults are the paper's."""

    layers: int = 2
    memory: int = 64
    hidden: int = 128
    window: float = 1.0  # that the memory spans, in lengths of the input; the paper's theta
    decay: float = 0.9  # share of the old memory that an update keeps
    dropout: float = 0.1

    def __post_init__(self):
        if min(self.layers, self.memory, self.hidden) < 1 or not self.window > 0:
            raise ValueError(f"expected sizes of at least 1 and a window above 0, got {self}.")
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay: expected a share from 0 to below 1, got {self.decay:g}.")
        check_dropout(self.dropout)


class LegendreLayer(eqx.Module):
    """One memory unit: what is written to the memory, and what is made of it."""

    write: eqx.nn.Linear
    read: eqx.nn.Linear
    config: LegendreConfig = eqx.field(static=True)

    def __init__(self, inputs: int, config: LegendreConfig, *, key: PRNGKeyArray):
        k_write, k_read = jr.split(key)
        numbers = inputs + config.hidden + config.memory
        self.write = eqx.nn.Linear(numbers, 1, use_bias=False, key=k_write)
        self.read = eqx.nn.Linear(numbers, config.hidden, key=k_read)
        self.config = config

    def __call__(self, inputs: Float[Array, "steps inputs"]) -> Float[Array, "steps hidden"]:
        """Write each sample as one number, shift the memory by one sample, read it."""
        config = self.config
        shift, entry = legendre_step(config.memory, 1 / (len(inputs) * config.window))
        shift, entry = jnp.asarray(shift, jnp.float32), jnp.asarray(entry, jnp.float32)

        def step(carry, x):
            hidden, memory = carry
            written = self.write(jnp.concatenate([x, hidden, memory]))
            moved = shift @ memory + entry * written
            memory = config.decay * memory + (1 - config.decay) * moved  # exponential smoothing
            hidden = jnp.tanh(self.read(jnp.concatenate([x, hidden, memory])))
            return (hidden, memory), hidden

        start = jnp.zeros(config.hidden), jnp.zeros(config.memory)
        return jax.lax.scan(step, start, inputs)[1]


class LegendreMemory(eqx.Module):
    """The conditional Legendre memory unit: the levels have a projection of their own."""

    layers: tuple[LegendreLayer, ...]
    level: eqx.nn.Linear
    hidden: eqx.nn.Linear
    out: eqx.nn.Linear
    steps: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(self, steps: int, signals: int, config: LegendreConfig, *, key: PRNGKeyArray):
        k_layers, k_level, k_hidden, k_out = jr.split(key, 4)
        size = config.hidden
        inputs = (signals + 1,) + (size,) * (config.layers - 1)
        keys = jr.split(k_layers, config.layers)
        pairs = zip(inputs, keys, strict=True)
        self.layers = tuple(LegendreLayer(n, config, key=k) for n, k in pairs)
        self.level = eqx.nn.Linear(steps, size, key=k_level)
        self.hidden = eqx.nn.Linear(2 * size, size, key=k_hidden)
        self.out = eqx.nn.Linear(size, steps * signals, key=k_out)
        self.steps, self.dropout = steps, config.dropout

    def encode(self, scores: Scores) -> Float[Array, " hidden"]:
        """What the last layer holds after the last sample."""
        for layer in self.layers:
            scores = layer(scores)
        return scores[-1]

    def decode(
        self, latent: Float[Array, " hidden"], levels: Levels, *, key: PRNGKeyArray | None
    ) -> Hour:
        """The next hour under its levels; a key draws the mask of the output projection."""
        both = jnp.concatenate([latent, jax.nn.relu(self.level(levels))])
        inner = drop(jax.nn.relu(self.hidden(both)), self.dropout, key)
        return self.out(inner).reshape(self.steps, -1)

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Mean squared error of one draw, or of the center without a key."""
        return squared_error(self, scores, levels, target, key)


@functools.cache
def legendre_step(order: int, time: float) -> tuple[np.ndarray, np.ndarray]:
    """How the memory moves in a time given as a share of its window, input held constant.

    The memory are coefficients of shifted Legendre polynomials of the past (Voelker et al. 2019):
    m' = A m + B u, with A and B as below, is solved exactly over the time.
    """
    row = np.arange(order)[:, None]
    column = row.T
    rate = np.where(row < column, -1.0, (-1.0) ** (row - column + 1)) * (2 * row + 1)
    entry = (-1.0) ** row * (2 * row + 1)
    block = np.zeros((order + 1, order + 1))  # the exponential of [[A, B], [0, 0]] holds both
    block[:order, :order], block[:order, order:] = rate, entry
    whole = _exponential(time * block)
    return whole[:order, :order], whole[:order, order]


def _exponential(matrix: np.ndarray) -> np.ndarray:
    """Matrix exponential in double precision: a Taylor series of a small part, squared up."""
    halvings = max(int(np.ceil(np.log2(np.linalg.norm(matrix, 1) + 1e-30))) + 1, 0)
    part = matrix / 2.0**halvings
    term = total = np.eye(len(matrix))
    for power in range(1, 20):
        term = term @ part / power
        total = total + term
    for _ in range(halvings):
        total = total @ total
    return total


@dataclass(frozen=True)
class StateSpaceConfig:
    """Sizes of the state-space model; defaults are the paper's."""

    state: int = 64
    hidden: int = 128
    dropout: float = 0.1
    noise: float = 0.01  # sd of each transition of the forecast

    def __post_init__(self):
        if min(self.state, self.hidden) < 1 or not self.noise >= 0:
            raise ValueError(f"expected sizes of at least 1 and no negative noise, got {self}.")
        check_dropout(self.dropout)


class StateSpace(eqx.Module):
    """A linear latent state driven by the samples, then by the levels; two layers observe it.

    The paper starts the transition at 0.9 I + 0.1 N(0, 1) "to ensure stability". Taken by the
    letter, 64 states grow 1.7-fold a step; the noise is divided by the root of their number,
    which keeps every eigenvalue near the unit circle at most.
    """

    transition: Float[Array, "state state"]
    sample: eqx.nn.Linear
    level: eqx.nn.Linear
    hidden: eqx.nn.Linear
    out: eqx.nn.Linear
    steps: int = eqx.field(static=True)
    config: StateSpaceConfig = eqx.field(static=True)

    def __init__(self, steps: int, signals: int, config: StateSpaceConfig, *, key: PRNGKeyArray):
        k_transition, k_sample, k_level, k_hidden, k_out = jr.split(key, 5)
        size = config.state
        noise = jr.normal(k_transition, (size, size)) / np.sqrt(size)
        self.transition = 0.9 * jnp.eye(size) + 0.1 * noise
        self.sample = eqx.nn.Linear(signals + 1, size, key=k_sample)
        self.level = eqx.nn.Linear(1, size, key=k_level)
        self.hidden = eqx.nn.Linear(size, config.hidden, key=k_hidden)
        self.out = eqx.nn.Linear(config.hidden, signals, key=k_out)
        self.steps, self.config = steps, config

    def encode(self, scores: Scores) -> Float[Array, " state"]:
        """The latent state after the last sample."""

        def step(state, x):
            return self.transition @ state + self.sample(x), None

        return jax.lax.scan(step, jnp.zeros(self.config.state), scores)[0]

    def decode(
        self, latent: Float[Array, " state"], levels: Levels, *, key: PRNGKeyArray | None
    ) -> Hour:
        """The next hour under its levels; a key draws the noise of each step and dropout masks."""

        def step(state, now):
            level, key = now
            k_noise, k_drop = split(key, 2)
            state = self.transition @ state + self.level(level[None])
            if k_noise is not None:
                state = state + self.config.noise * jr.normal(k_noise, state.shape)
            inner = drop(jax.nn.relu(self.hidden(state)), self.config.dropout, k_drop)
            return state, self.out(inner)

        keys = None if key is None else jr.split(key, self.steps)
        return jax.lax.scan(step, latent, (levels, keys))[1]

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Mean squared error of one draw, or of the center without a key."""
        return squared_error(self, scores, levels, target, key)
