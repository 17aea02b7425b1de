"""Random numbers of one moment, drawn at once and handed out.

A key per little draw would be the usual way, but each costs half a second to compile.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray


class Luck(eqx.Module):
    """What chance brings to one function: uniform and standard normal numbers."""

    uniform: Float[Array, " uniforms"]
    normal: Float[Array, " normals"]


def draw_luck(*sizes: tuple[int, int], key: PRNGKeyArray) -> tuple[Luck, ...]:
    """One `Luck` for each pair of counts (uniforms, normals), from a single key."""
    numbers = jr.uniform(key, (sum(map(sum, sizes)),))
    inside = jnp.clip(2.0 * numbers - 1.0, -1.0 + 1e-6, 1.0 - 1e-6)  # within 4.9 sd
    normals = jnp.sqrt(2.0) * jax.lax.erf_inv(inside)
    lucks, first = [], 0
    for uniform, normal in sizes:
        middle, last = first + uniform, first + uniform + normal
        lucks.append(Luck(numbers[first:middle], normals[middle:last]))
        first = last
    return tuple(lucks)


def pick(uniform: Float[Array, ""], values: Array, shares: Float[Array, " n"]) -> Array:
    """One of `values` with the probabilities `shares`."""
    passed = jnp.sum(uniform > jnp.cumsum(shares))
    return values[jnp.minimum(passed, len(shares) - 1)]
