"""The better twin: an ensemble that corrects persistence, and errors as they really happen.

Each member says how far the coming hour will lie from persistence and how sure it is (a Laplace
likelihood: its center is the median, which is what an absolute error rewards). The spread of a
forecast joins what the members expect and how far they disagree. A draw adds one whole hour of
scaled errors that the ensemble made on a select patient, so that samples and signals err
together, extremes are as frequent as they are, and bands cover what they claim. Errors are drawn
among hours in which the level moved the same way.

It learns from hours through which the chosen level was held, as a decision is; recorded hours with
a change inside would teach it that the pump may answer half an hour late.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.problem.scaling import LEVEL_SD
from stepdown.signals import LEVELS
from stepdown.training import FitConfig, fit, member, stack
from stepdown.twin.transformer import (
    Fitted,
    Hour,
    Scores,
    check_dropout,
    drop,
    fitted_loss,
    squared_error,
)

FARTHEST = 6.0  # usual steps: samples farther from the last one look alike
LEAST, MOST = -5.0, 6.0  # log of the spread, in usual steps
FEWEST = 50  # hours of errors that a group must hold to be drawn from on its own


@dataclass(frozen=True)
class CalibratedConfig:
    """Sizes of the better twin."""

    members: int = 5
    width: int = 512
    depth: int = 3
    dropout: float = 0.1  # of the inputs, in training alone
    errors: int = 4096  # hours of select patients' errors that a draw comes from
    fit: FitConfig = FitConfig(epochs=40, batch=256, patience=8, decay=True, weight_decay=0.1)

    def __post_init__(self):
        if min(self.members, self.width, self.depth, self.errors) < 1:
            raise ValueError(
                "expected members, width, depth and errors of at least 1, got "
                f"{self.members}, {self.width}, {self.depth} and {self.errors}."
            )
        check_dropout(self.dropout)


SMALL_CALIBRATED = CalibratedConfig(  # a minute on two cores
    members=3,
    width=128,
    depth=2,
    fit=FitConfig(epochs=20, batch=256, patience=8, decay=True, weight_decay=0.1),
)


class Member(eqx.Module):
    """How far from persistence the hour will lie, and how surely."""

    trunk: eqx.nn.MLP
    step: Float[Array, " signals"]  # usual error of persistence where the level stays, z-scores
    dropout: float = eqx.field(static=True)

    def __init__(
        self,
        step: Float[Array, " signals"],
        steps: int,
        config: CalibratedConfig,
        *,
        key: PRNGKeyArray,
    ):
        signals = len(step)
        inputs = (2 * steps - 1) * signals + 3 + 2 * len(LEVELS)
        self.trunk = eqx.nn.MLP(
            inputs, 2 * steps * signals, config.width, config.depth, jax.nn.silu, key=key
        )
        self.step, self.dropout = step, config.dropout

    def expect(
        self, scores: Scores, level: Float[Array, ""], key: PRNGKeyArray | None = None
    ) -> tuple[Hour, Hour]:
        """Distance from persistence and spread, z-scores."""
        step = jax.lax.stop_gradient(self.step)[None]
        seen = drop(self._features(scores, level, step), self.dropout, key=key)
        far, spread = self.trunk(seen).reshape(2, scores.shape[0], -1)
        return far * step, jnp.exp(jnp.clip(spread, LEAST, MOST)) * step

    def _features(self, scores: Scores, level, step) -> Float[Array, " features"]:
        """The hour, its way to the last sample in usual steps, both levels, their difference."""
        signals, before = scores[:, :-1], scores[-1, -1]
        way = jnp.clip((signals[:-1] - signals[-1:]) / step, -FARTHEST, FARTHEST)
        levels = jnp.stack([before, level, level - before])
        number = len(LEVELS)
        known = [jax.nn.one_hot(_number(x), number) for x in (before, level)]
        return jnp.concatenate([signals.ravel(), way.ravel(), levels, *known])

    def loss(
        self, scores: Scores, level: Float[Array, ""], target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Negative log-likelihood of Laplace's distribution, without its constant."""
        far, spread = self.expect(scores, level, key)
        return jnp.mean(jnp.abs(target - far) / spread + jnp.log(spread))


class Calibrated(eqx.Module):
    """Members side by side, and the errors they made on select patients."""

    members: Member  # leaves lead with the members
    errors: Float[Array, "rows steps signals"]  # scaled by the spread; sorted by group
    first: Int[Array, " 3"]  # row at which the errors of each group begin
    count: Int[Array, " 3"]

    def encode(self, scores: Scores) -> Scores:
        """Read nothing ahead."""
        return scores

    def decode(self, latent: Scores, level: Float[Array, ""], *, key: PRNGKeyArray | None) -> Hour:
        """The center, or a draw around it."""
        center, spread = expect(self.members, latent, level)
        if key is None:
            return center
        group = moved(latent, level)
        row = self.first[group] + jr.randint(key, (), 0, self.count[group])
        return center + spread * self.errors[row]

    def loss(
        self, scores: Scores, level: Float[Array, ""], target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Mean squared error of one draw, or of the center without a key."""
        return squared_error(self, scores, level, target, key)


def expect(members: Member, scores: Scores, level: Float[Array, ""]) -> tuple[Hour, Hour]:
    """Center and spread of the whole ensemble; members that disagree widen it."""
    far, spread = eqx.filter_vmap(lambda one: one.expect(scores, level))(members)
    return jnp.mean(far, axis=0), jnp.sqrt(jnp.mean(spread**2, axis=0) + jnp.var(far, axis=0))


def moved(scores: Scores, level: Float[Array, ""]) -> Int[Array, ""]:
    """0 where the level is lowered, 1 where it stays, 2 where it is raised."""
    return jnp.sign(_number(level) - _number(scores[-1, -1])).astype(int) + 1


def _number(level: Float[Array, ""]) -> Int[Array, ""]:
    """Index of the level that a z-score stands for."""
    middle = (len(LEVELS) - 1) / 2
    return jnp.round(level * LEVEL_SD + middle).astype(int)


def fit_calibrated(
    networks: list, rows, config, *, keys: Key[Array, "ensembles 2"], watch: Callable[[float], None]
) -> tuple[list[Calibrated], dict[str, np.ndarray]]:
    """Fit the members of all ensembles side by side, then keep each ensemble's own errors.

    `rows` are those of train and those of select patients, `config.sizes` a `CalibratedConfig`.
    """
    sizes, (train, select) = config.sizes, rows
    step, number = usual_step(*train), sizes.members
    starts, fits = (jax.vmap(lambda k: jr.split(k, number + 1))(k) for k in keys.T)
    made = [Member(step, train[0].shape[1], sizes, key=k) for k in starts[:, :number].ravel()]
    start = stack([Fitted(one) for one in made])
    best, info = fit(start, fitted_loss, rows, sizes.fit, key=fits[:, :number].ravel(), watch=watch)
    made = []
    for index, k_errors in enumerate(fits[:, number]):
        own = [member(best, i).network for i in range(index * number, (index + 1) * number)]
        made.append(calibrate(stack(own), select, sizes.errors, key=k_errors))
    shape = (len(keys), number)
    return made, {k: x.reshape(*x.shape[:-1], *shape).mean(-1) for k, x in info.items()}


def usual_step(scores, levels, targets) -> Float[Array, " signals"]:
    """Robust sd of persistence's error per signal over the train hours whose level stays."""
    stays = jax.vmap(moved)(scores, levels) == 1
    size = jnp.where(stays[:, None, None], jnp.abs(targets), jnp.nan)
    return jnp.maximum(1.4826 * jnp.nanmedian(size, axis=(0, 1)), 1e-3)


def make_calibrated(
    steps: int, signals: int, config: CalibratedConfig, *, key: PRNGKeyArray
) -> Calibrated:
    """An ensemble that has learned nothing and made no errors yet."""
    keys = jr.split(key, config.members)
    members = stack([Member(jnp.ones(signals), steps, config, key=key) for key in keys])
    none = jnp.zeros(3, int)
    return Calibrated(members, jnp.zeros((config.errors, steps, signals)), none, none)


@eqx.filter_jit
def calibrate(members: Member, rows, number: int, *, key: PRNGKeyArray) -> Calibrated:
    """Keep `number` whole hours of scaled errors of select patients, group by group.

    A group that is too small to speak for itself draws from all.
    """

    def error(row):
        hour, level, target = row
        center, spread = expect(members, hour, level)
        return (target - center) / spread, moved(hour, level)

    count = len(rows[1])
    chosen = jr.choice(key, count, (number,), replace=count < number)
    kept = jax.tree.map(lambda x: x[chosen], rows)
    errors, group = jax.lax.map(error, kept, batch_size=min(1024, number))
    size = jnp.bincount(group, length=3)
    small = size < FEWEST
    return Calibrated(
        members=members,
        errors=errors[jnp.argsort(group, stable=True)],
        first=jnp.where(small, 0, jnp.cumsum(size) - size),
        count=jnp.where(small, number, size),
    )
