"""How honest draws are about what happens: CRPS, coverage, PIT (docs/definitions.md, Twin).

Where truth and m draws are exchangeable, the rank of the truth among them is uniform over its
m + 1 places. Bands and PIT are read off that rank, so a perfect forecaster covers exactly 90 % with
its 90 % band, for any m; the quantiles of so few draws would cover less.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

Numbers = Shaped[Array, "*shape"] | Shaped[np.ndarray, "*shape"]
BAND50, BAND90 = 0.50, 0.90


def crps(
    draws: Float[Array, " draws *shape"], truth: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """E|x − y| − ½ E|x − x′| in the unit of the signal; lower is better (App. E).

    x and x′ are two different draws, which makes the estimate unbiased ("fair"): it rates the
    forecaster, not the number of draws. All pairs are summed; at 50 draws this is five times
    faster than sorting them.
    """
    count = len(draws)
    off = draws - truth[None]  # small numbers: rpm would cost digits
    pairs = jax.lax.map(lambda one: jnp.sum(jnp.abs(off - one[None]), axis=0), off)
    spread = jnp.sum(pairs, axis=0) / (count * (count - 1))
    return jnp.mean(jnp.abs(off), axis=0) - spread / 2


def rank_place(
    draws: Float[Array, " draws *shape"], truth: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """From where to where the truth's place reaches on a scale of 0 to 1.

    A place is 1/(m + 1) wide; a truth that equals some draws shares their places.
    """
    places = len(draws) + 1
    below = jnp.sum(draws < truth[None], axis=0)
    equal = jnp.sum(draws == truth[None], axis=0)
    return below / places, (below + equal + 1) / places


def inside(low: Numbers, high: Numbers, nominal: float) -> np.ndarray:
    """How much of each place lies in the central band, 0 to 1; its mean is the coverage."""
    low, high = np.asarray(low), np.asarray(high)
    edge = (1 - nominal) / 2
    overlap = np.minimum(high, 1 - edge) - np.maximum(low, edge)
    return np.asarray(np.maximum(overlap, 0.0) / (high - low))


def pit_values(low: Numbers, high: Numbers, *, key: PRNGKeyArray) -> np.ndarray:
    """A random point of each place: uniform over 0 to 1 where the draws are honest."""
    low, high = np.asarray(low), np.asarray(high)
    # NumPy's generator: JAX would compile a program for every number of rows.
    draw = np.random.default_rng(np.asarray(jr.key_data(key)).ravel())
    return low + (high - low) * draw.random(low.shape)
