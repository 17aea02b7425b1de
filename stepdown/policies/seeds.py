"""What the training loops share: keys by number, the size of one call, policies out of learners.

A key or a learner with a leading axis stands for several seeds side by side.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Key

from stepdown.handover import Policy
from stepdown.policies.constraint import Constrained
from stepdown.policies.networks import LearnedPolicy
from stepdown.policies.rows import View
from stepdown.policies.sac import Learner

CHUNK = 250  # updates in one call on a CPU: one or two seconds

Info = dict[str, np.ndarray]
Train = Callable[[Key[Array, "*seeds"]], tuple[Policy, Info]]


def fold_seeds(key: Key[Array, "*seeds"], number: int) -> Key[Array, "*seeds"]:
    """The key of a numbered epoch, for every seed."""
    return jax.vmap(lambda k: jr.fold_in(k, number))(key) if key.ndim else jr.fold_in(key, number)


def split_seeds(key: Key[Array, "*seeds"]) -> tuple[Key[Array, "*seeds"], Key[Array, "*seeds"]]:
    """Two keys out of one, for every seed."""
    pairs = jax.vmap(jr.split)(key) if key.ndim else jr.split(key)
    return pairs[..., 0], pairs[..., 1]


def updates_per_call(every: int) -> int:
    """Updates of one call out of an epoch of `every`; it does not change the result."""
    if jax.default_backend() != "cpu":
        return every
    return next(size for size in range(min(CHUNK, every), 0, -1) if every % size == 0)


def train_each(train: Train, keys: Key[Array, " seeds"]) -> tuple[Policy, Info]:
    """One policy per key; side by side on a GPU, in turn on a CPU. Curves are (epochs, seeds)."""
    if jax.default_backend() != "cpu":
        return train(keys)
    runs = [train(key) for key in keys]
    policies = jax.tree.map(lambda *xs: jnp.stack(xs), *[policy for policy, _ in runs])
    curves = jax.tree.map(lambda *xs: np.stack(xs, axis=1), *[info for _, info in runs])
    return policies, curves


def to_policy(learner: Learner, view: View) -> Policy:
    """The policy as it is; its leaves lead with the seeds if there are several."""

    def one(learner: Learner) -> Policy:
        learned = LearnedPolicy(view.scaler, learner.actor)
        return Constrained(learned, view.clinical) if view.constrained else learned

    several = learner.log_temperature.ndim > 0
    return jax.vmap(one)(learner) if several else one(learner)
