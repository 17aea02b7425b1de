"""Networks of the policies: one plain perceptron, and the policy that wraps it in physical units.

A state enters as z-scores, sample by sample, with the level in force once: 73 numbers for twelve
signals and six samples. Networks are written for one row; several of them (critics, members,
seeds) are one network whose leaves lead with another axis.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from stepdown.problem.scaling import Scaler
from stepdown.signals import LEVEL, LOWEST, STEPS

FARTHEST = 20.0  # z-scores; beyond it nothing is told apart, and nothing overflows


class Network(eqx.Module):
    """A perceptron; the last layer is linear."""

    weights: tuple[Float[Array, "*members _inputs _outputs"], ...]
    biases: tuple[Float[Array, "*members _outputs"], ...]
    activation: Callable = eqx.field(static=True)

    def __call__(self, row: Float[Array, " inputs"], /) -> Float[Array, " outputs"]:
        """One row through all layers."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            row = self.activation(row @ weight + bias)
        return row @ self.weights[-1] + self.biases[-1]


def make_network(
    sizes: tuple[int, ...],
    activation: Callable = jax.nn.relu,
    *,
    last: float = 1.0,
    key: PRNGKeyArray,
) -> Network:
    """Random weights of variance 2 / inputs, the last layer's 1 / inputs and times `last`."""
    pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
    scales = [(2.0 / inputs) ** 0.5 for inputs, _ in pairs[:-1]] + [last / pairs[-1][0] ** 0.5]
    keys = jr.split(key, len(pairs))
    weights = [
        scale * jr.truncated_normal(k, -2.0, 2.0, pair)
        for k, pair, scale in zip(keys, pairs, scales, strict=True)
    ]
    return Network(tuple(weights), tuple(jnp.zeros(pair[1]) for pair in pairs), activation)


class LearnedPolicy(eqx.Module):
    """Log-probabilities of the eight levels; physical units in (handover.Policy).

    Signals that the patient lacks are filled from the others (problem/filling.py).
    """

    scaler: Scaler
    network: Network

    def __call__(self, state: Float[Array, "steps columns"], /) -> Float[Array, " 8"]:
        """Weigh the levels P2..P9."""
        return jax.nn.log_softmax(self.network(features(self.scaler, self.scaler.fill(state))))


def features(scaler: Scaler, state: Float[Array, "steps columns"]) -> Float[Array, " inputs"]:
    """The signals sample by sample and the level in force once, in z-scores within ±20."""
    scores = scaler.to_scores(state)
    row = jnp.concatenate([scores[:, :-1].ravel(), scores[-1, -1:]])
    return jnp.clip(row, -FARTHEST, FARTHEST)


def feature_count(scaler: Scaler, steps: int = STEPS) -> int:
    """How many numbers `features` gives: 73 for twelve signals and six samples."""
    return steps * len(scaler.present) + 1


def level_in_force(state: Float[Array, "steps columns"]) -> Int[Array, ""]:
    """The level before the decision."""
    return jnp.round(state[-1, LEVEL]).astype(int)


def level_index(level: Int[Array, "*n"]) -> Int[Array, "*n"]:
    """Where a level stands among the eight: P2 is 0."""
    return level - LOWEST


def each(function: Callable, *stacked: PyTree) -> Any:
    """Call a function for every member; side by side on a GPU, in turn on a CPU (faster there)."""
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda xs: function(*xs), stacked)
    return jax.vmap(function)(*stacked)
