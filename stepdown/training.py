"""The one compiled loop: fit any model to rows of data, keep the weights that held out best.

An epoch is one program: shuffle, scan over batches, score the held-out rows. A short loop on the
host reports and stops early. Several members (an ensemble, or seeds) are fitted side by side; each
has its own key, keeps its own best weights, stops learning from the held-out rows when its own
patience ends, and so comes out as if it had been fitted alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

Model = TypeVar("Model")
Loss = Callable[..., Float[Array, ""]]  # loss(model, row, key=key) of one row

CHUNK = 1024  # held-out rows scored at a time


@dataclass(frozen=True)
class FitConfig:
    """How a model is fitted; the learning rate is the paper's (App. E)."""

    epochs: int = 50
    batch: int = 64
    learning_rate: float = 1e-3
    patience: int = 10  # epochs without a better held-out loss
    decay: bool = False  # of the learning rate, along a cosine to zero
    weight_decay: float = 0.0  # of matrices; biases and scales are left alone

    def __post_init__(self):
        if min(self.epochs, self.batch, self.patience) < 1 or not self.learning_rate > 0:
            raise ValueError(
                "expected epochs, batch and patience of at least 1 and a learning rate above 0, "
                f"got {self.epochs}, {self.batch}, {self.patience} and {self.learning_rate:g}."
            )


class Progress(eqx.Module):
    """One member between two epochs."""

    model: PyTree  # arrays alone
    optimizer: PyTree
    best: PyTree
    best_loss: Float[Array, ""]
    best_epoch: Int[Array, ""]


class Aim(NamedTuple):
    """What all members share: what is minimized, what is not fitted, and how."""

    loss: Loss
    rest: PyTree  # of the models: what is no array
    config: FitConfig


def fit(
    models: Model,
    loss: Loss,
    rows: tuple[PyTree, PyTree],
    config: FitConfig,
    *,
    key: Key[Array, "*members"],
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Model, dict[str, np.ndarray]]:
    """Minimize the mean loss of the rows; `rows` are those to fit and those held out.

    The leaves of `models` lead with the members; `key` is one for all of them or one for each.
    Returned are each member's best weights, and the losses per epoch and member.
    """
    train, held = rows
    count = len(jax.tree.leaves(train)[0])
    arrays, rest = eqx.partition(models, eqx.is_inexact_array)
    members = len(jax.tree.leaves(arrays)[0])
    steps, aim = max(count // config.batch, 1), Aim(loss, rest, config)
    optimizer = _optimizer(config, steps)
    now = jax.vmap(lambda model: _begin(model, optimizer))(arrays)
    own = key if key.ndim else jax.vmap(jr.fold_in, (None, 0))(key, jnp.arange(members))
    curves = []
    for number in range(config.epochs):
        keys = jax.vmap(jr.fold_in, (0, None))(own, number)
        now, info = _epoch(now, keys, jnp.asarray(number, jnp.int32), train, held, aim)
        curves.append(jax.tree.map(np.asarray, info))
        watch((number + 1) / config.epochs)
        if np.all(number - np.asarray(now.best_epoch) >= config.patience):
            break
    watch(1.0)
    info = {name: np.stack([c[name] for c in curves]) for name in curves[0]}
    return eqx.combine(now.best, rest), info | {"best_epoch": np.asarray(now.best_epoch)}


def stack(models: list[Model]) -> Model:
    """Members side by side, as `fit` takes them."""
    arrays, rest = eqx.partition(models, eqx.is_array)
    return eqx.combine(jax.tree.map(lambda *xs: jnp.stack(xs), *arrays), rest[0])


def member(models: Model, index: int) -> Model:
    """One of the members."""
    arrays, rest = eqx.partition(models, eqx.is_array)
    return eqx.combine(jax.tree.map(lambda x: x[index], arrays), rest)


def _optimizer(config: FitConfig, steps: int) -> optax.GradientTransformation:
    rate = config.learning_rate
    if config.decay:
        rate = optax.cosine_decay_schedule(rate, config.epochs * steps)
    return optax.adamw(rate, weight_decay=config.weight_decay, mask=_matrices)


def _matrices(model: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x.ndim > 1, model)


def _begin(model, optimizer) -> Progress:
    worst = jnp.asarray(jnp.inf, jnp.float32)
    return Progress(model, optimizer.init(model), model, worst, jnp.zeros((), jnp.int32))


@eqx.filter_jit
def _epoch(now: Progress, keys, number, train, held, aim: Aim):
    """One pass over the data for every member; on a CPU one after another is faster."""

    def one(x):
        return _pass(x[0], x[1], number, train, held, aim)

    if jax.default_backend() == "cpu":
        return jax.lax.map(one, (now, keys))
    return jax.vmap(lambda now, key: one((now, key)))(now, keys)


def _pass(now: Progress, key, number, train, held, aim: Aim):
    loss, rest, config = aim
    k_order, k_steps, k_held = jr.split(key, 3)
    count = len(jax.tree.leaves(train)[0])
    batch, steps = min(config.batch, count), max(count // config.batch, 1)
    optimizer = _optimizer(config, steps)
    order = jr.permutation(k_order, count)[: steps * batch].reshape(steps, batch)

    def mean_loss(model, index, key):
        batched = jax.tree.map(lambda x: x[index], train)
        whole = eqx.combine(model, rest)
        each = jax.vmap(lambda row, k: loss(whole, row, key=k))
        return jnp.mean(each(batched, jr.split(key, batch)))

    def step(carry, x):
        model, memory = carry
        value, gradient = jax.value_and_grad(mean_loss)(model, *x)
        change, memory = optimizer.update(gradient, memory, model)
        return (optax.apply_updates(model, change), memory), value

    carry = (now.model, now.optimizer)
    (model, memory), losses = jax.lax.scan(step, carry, (order, jr.split(k_steps, steps)))
    score = _held_out(eqx.nn.inference_mode(eqx.combine(model, rest)), loss, held, k_held)
    patient = number - now.best_epoch <= config.patience  # alone, it would have stopped by then
    better = (score < now.best_loss) & patient
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), model, now.best)
    later = Progress(
        model=model,
        optimizer=memory,
        best=best,
        best_loss=jnp.where(better, score, now.best_loss),
        best_epoch=jnp.where(better, number, now.best_epoch),
    )
    return later, {"loss": jnp.mean(losses), "held_out": score}


def _held_out(model, loss: Loss, held, key) -> Float[Array, ""]:
    """Mean loss of the held-out rows, in chunks so that memory stays small."""
    count = len(jax.tree.leaves(held)[0])
    keys = jr.split(key, count)
    total = jax.lax.map(
        lambda x: loss(model, x[0], key=x[1]), (held, keys), batch_size=min(CHUNK, count)
    )
    return jnp.mean(total)
