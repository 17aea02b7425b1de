"""A twin with the level's effect built in: ridge regression with interactions, in closed form.

How far the coming hour lies from the last sample is linear in the last hour, in the level and its
change, and in the hour's means times the change: what a level does depends on the patient. Without
these products a line would give every patient the same effect.

The change counts from the level of the last sample. A change that was made earlier in that hour has
already done to the last sample what it does at once; counted again, by however little, it would
teach that levels do less than they do (a third less pulsatility, on simulated patients).

What the level does by itself is not shrunk, because few recorded changes carry it. How strongly the
rest is shrunk is chosen by the error on patients left out, and the products by that of hours with a
change: the least that comes near the best error, since what is shrunk here is the answer itself.

With a longer history, the mean of each signal and of the level in every earlier hour join the
inputs, shrunk like the last hour's samples. The products are those of the last hour alone.

Records are few where levels change, so windows come as often as there are samples (`stride` of the
table of twins): every change then stands once at the beginning of an hour. Hours through which the
level was held carry the fit; what hours with a change inside leave over is laid to the levels of
their samples.

Refits on patients drawn anew stand beside the fit as members: where they disagree, records are too
few to tell. A draw adds one whole hour of errors that were made on patients left out, scaled by how
restless each signal was. These errors are as wide as they were for one hour, and too wide for six
(90 % bands cover more): planning does better with them than with narrowed ones (horizon.py).

All sums over hours are made once for each patient, so folds and refits cost next to nothing; it
fits in seconds on one core and also serves as a second twin (evaluation/second_twin.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from stepdown.problem.scaling import LEVEL_SD
from stepdown.signals import LEVELS
from stepdown.twin.calibrated import FARTHEST, check_longest, earlier_means
from stepdown.twin.transformer import Hour, Levels, Scores, squared_error

FREE = 4  # features that are not shrunk: one, the level, steps down, steps up
LEAST_SPREAD = 0.02  # of a signal over an hour
STILL = 0.05  # levels; one sample of six at another level makes 0.17, rounding next to nothing
RIDGE_BASE = "last"  # what its output is added to: the last sample (fit.py)
LEAST = 1e-3  # hours, the ridge of features that are not shrunk
NEAR = 5e-3  # of the best error: products are shrunk no more than it takes to come so near


@dataclass(frozen=True)
class RidgeConfig:
    """How the ridge twin is fitted."""

    ridges: tuple[float, ...] = (1e-2, 3e-2, 1e-1)  # tried, as a share of the hours
    products: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)  # the same for products with the change
    folds: int = 5  # of patients
    members: int = 8  # the fit itself and refits on patients drawn anew
    errors: int = 4096  # hours of errors that a draw comes from
    history: int = 1  # hours that it reads

    def __post_init__(self):
        check_longest(self.history)
        tried = (*self.ridges, *self.products)
        if self.folds < 2 or not self.ridges or not self.products or min(tried) <= 0:
            raise ValueError(
                "expected at least 2 folds, and ridges and products above 0, got "
                f"{self.folds}, {self.ridges} and {self.products}."
            )
        if min(self.members, self.errors) < 1:
            raise ValueError(
                f"expected members and errors of at least 1, got {self.members} and {self.errors}."
            )


class Ridge(eqx.Module):
    """A network of twin/transformer.py in one matrix for each member, and the errors it made."""

    weights: Float[Array, "members features outputs"]  # the first is the fit to all patients
    inside: Float[Array, "steps outputs"]  # what levels off the hour's mean add
    spread: Float[Array, "2 signals"]  # log of the usual error: one, restlessness
    errors: Float[Array, "rows steps signals"]  # scaled by the spread

    def encode(self, scores: Scores) -> Scores:
        """Read nothing ahead."""
        return scores

    def decode(self, latent: Scores, levels: Levels, *, key: PRNGKeyArray | None) -> Hour:
        """The center, or a draw around it."""
        center = features(latent, levels) @ self.weights[0]
        center = (center + (levels - jnp.mean(levels)) @ self.inside).reshape(len(levels), -1)
        if key is None:
            return center
        row = jr.randint(key, (), 0, len(self.errors))
        usual = usual_error(self.spread, latent[-len(levels) :])
        return center + usual[None] * self.errors[row]

    @property
    def members(self) -> int:
        """The fit itself and the refits."""
        return len(self.weights)

    def member(self, number: Int[Array, ""]) -> "Ridge":
        """One of them alone, with the errors of all."""
        return replace(self, weights=self.weights[number][None])

    def loss(
        self, scores: Scores, levels: Levels, target: Hour, *, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """Mean squared error of one draw, or of the center without a key."""
        return squared_error(self, scores, levels, target, key)


def features(scores: Scores, levels: Levels) -> Float[Array, " features"]:
    """What the center is linear in; the first `FREE` are not shrunk, the last are the products.

    `scores` end with the last hour; hours before it count by their means.
    """
    earlier, scores = scores[: -len(levels)], scores[-len(levels) :]
    signals, level = jnp.clip(scores[:, :-1], -FARTHEST, FARTHEST), jnp.mean(levels)
    change = (level - scores[-1, -1]) * LEVEL_SD  # in levels
    down, up = jnp.maximum(-change, 0.0), jnp.maximum(change, 0.0)
    index = jnp.round(level * LEVEL_SD + (len(LEVELS) - 1) / 2).astype(int)
    return jnp.concatenate(
        [
            jnp.stack([jnp.ones(()), level, down, up]),
            jnp.stack([(down + up > STILL) * 1.0, change**2, change * level]),
            jax.nn.one_hot(index, len(LEVELS)),
            signals.ravel(),
            jnp.clip(earlier_means(earlier, len(levels)), -FARTHEST, FARTHEST).ravel(),
            signals.mean(0) * change,
        ]
    )


def usual_error(spread: Float[Array, "2 signals"], scores: Scores) -> Float[Array, " signals"]:
    """How large errors usually are, by signal."""
    return jnp.exp(spread[0] + spread[1] * restlessness(scores))


def restlessness(scores: Scores) -> Float[Array, " signals"]:
    """Log of how far the samples of an hour scatter, by signal."""
    signals = jnp.clip(scores[:, :-1], -FARTHEST, FARTHEST)
    return jnp.log(jnp.std(signals, axis=0) + LEAST_SPREAD)


def make_ridge(steps: int, signals: int, config: RidgeConfig, *, key: PRNGKeyArray) -> Ridge:
    """A regression that has learned nothing and made no errors yet."""
    inputs = len(features(jnp.zeros((config.history * steps, signals + 1)), jnp.zeros(steps)))
    return Ridge(
        weights=jnp.zeros((config.members, inputs, steps * signals)),
        inside=jnp.zeros((steps, steps * signals)),
        spread=jnp.zeros((2, signals)),
        errors=jnp.zeros((config.errors, steps, signals)),
    )


def fit_ridges(
    networks: list,
    rows,
    config,
    *,
    patients: tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"]],
    keys: Key[Array, "twins 2"],
    watch: Callable[[float], None],
) -> tuple[list[Ridge], dict[str, np.ndarray]]:
    """Fit to the train patients; each twin deals and draws them by its own key."""
    found = [fit_ridge(rows[0], patients[0], config.sizes, key=key) for key in keys[:, 1]]
    watch(1.0)
    names = found[0][1]
    return [one for one, _ in found], {
        x: np.stack([info[x] for _, info in found], -1) for x in names
    }


def fit_ridge(
    rows, patient: Int[np.ndarray, " n"], config: RidgeConfig, *, key: PRNGKeyArray
) -> tuple[Ridge, dict[str, np.ndarray]]:
    """One regression from rows of fit.twin_rows.

    `info` holds the squared error of each ridge on patients left out, and that of each shrinkage of
    the products in hours with a change, in units of the coordinates.
    """
    scores, levels = (np.asarray(x) for x in rows[:2])
    inputs, restless = (np.asarray(x) for x in _describe(*rows[:2]))
    outputs = np.asarray(rows[2]).reshape(len(scores), -1)
    who = np.unique(patient, return_inverse=True)[1]
    held = np.ptp(levels, axis=1) == 0
    moved = held & (np.abs(levels[:, 0] - scores[:, -1, -1]) * LEVEL_SD > STILL)
    sums, moves = (add_up(inputs, outputs, who, x, scores.shape[-1] - 1) for x in (held, moved))
    count, draw = len(sums.hours), np.random.default_rng(np.asarray(jr.key_data(key)))
    if count < 2:
        raise ValueError("expected hours of at least 2 patients, got 1: none could be left out.")
    fold = draw.permutation(count) % min(config.folds, count)
    shares, info = choose_shares(sums, moves, fold, config)
    drawn = draw.multinomial(count, np.full(count, 1 / count), config.members - 1)
    weights = [solve(sums, often, shares) for often in (np.ones(count), *drawn)]
    errors = left_out_errors(inputs, outputs, fold[who], [
        solve(sums, fold != one, shares) for one in range(fold.max() + 1)
    ])  # fmt: skip
    off = levels - levels.mean(1, keepdims=True)
    inside = _least_squares(off[~held], errors[~held])
    kept = draw.choice(len(who), config.errors, replace=len(who) < config.errors)
    errors = (errors[kept] - off[kept] @ inside).reshape(len(kept), *rows[2].shape[1:])
    spread, scaled = _scaled(errors, restless[kept])
    network = Ridge(
        weights=jnp.asarray(np.stack(weights), jnp.float32),
        inside=jnp.asarray(inside, jnp.float32),
        spread=jnp.asarray(spread, jnp.float32),
        errors=jnp.asarray(scaled, jnp.float32),
    )
    return network, info


@eqx.filter_jit
def _describe(scores, levels):
    last = scores[:, -levels.shape[1] :]
    return jax.vmap(features)(scores, levels), jax.vmap(restlessness)(last)


class Sums(NamedTuple):
    """What a regression needs to know of each patient's hours."""

    inputs: Float[np.ndarray, "patients p p"]  # X'X
    cross: Float[np.ndarray, "patients p q"]  # X'Y
    square: Float[np.ndarray, " patients"]  # of all outputs
    hours: Int[np.ndarray, " patients"]
    products: int  # features at the end that are products with the change


def add_up(
    inputs: Float[np.ndarray, "n p"],
    outputs: Float[np.ndarray, "n q"],
    who: Int[np.ndarray, " n"],
    counted: Bool[np.ndarray, " n"],
    products: int,
) -> Sums:
    """The sums over each patient's counted hours; `who` numbers the patients from 0 on."""
    parts = []
    for one in range(who.max() + 1):
        own = counted & (who == one)
        x, y = inputs[own].astype(np.float64), outputs[own].astype(np.float64)
        parts.append((x.T @ x, x.T @ y, np.sum(y**2), len(x)))
    square, cross, total, hours = (np.array(part) for part in zip(*parts, strict=True))
    return Sums(square, cross, total, hours, products)


Shares = tuple[float, float]  # ridges as a share of the hours: of the products, of the rest


def choose_shares(
    sums: Sums, moves: Sums, fold: Int[np.ndarray, " patients"], config: RidgeConfig
) -> tuple[Shares, dict[str, np.ndarray]]:
    """The ridge with the least error; then the least one of the products that comes near the best.

    `moves` are the sums over hours that begin with a change. Without any, products are shrunk most.
    """
    tried = sorted(config.products)
    most = tried[-1]
    loss = np.array([left_out_loss(sums, sums, fold, (most, share)) for share in config.ridges])
    share = config.ridges[int(np.argmin(loss))]
    moved = np.array([left_out_loss(sums, moves, fold, (one, share)) for one in tried])
    near = np.flatnonzero(moved <= (1 + NEAR) * moved.min())
    return (tried[near[0]] if len(near) else most, share), {"held_out": loss, "changed": moved}


def solve(
    sums: Sums, often: Float[np.ndarray, " patients"] | np.ndarray, shares: Shares
) -> Float[np.ndarray, "p q"]:
    """Ridge regression of patients who count so often; the first features are free."""
    often = np.asarray(often, float)
    features = sums.inputs.shape[1]
    charge = np.full(features, shares[1])
    charge[features - sums.products :] = shares[0]
    charge *= often @ sums.hours
    charge[:FREE] = LEAST
    square = np.tensordot(often, sums.inputs, 1) + np.diag(charge)
    return np.linalg.solve(square, np.tensordot(often, sums.cross, 1))


def left_out_loss(
    sums: Sums, judged: Sums, fold: Int[np.ndarray, " patients"], shares: Shares
) -> float:
    """Mean squared error in the judged hours of each fold by the fit to the others."""
    total, hours = 0.0, judged.hours.sum()
    if not hours:
        return float("nan")
    for one in range(fold.max() + 1):
        apart = fold == one
        weights = solve(sums, ~apart, shares)
        inputs, cross = judged.inputs[apart].sum(0), judged.cross[apart].sum(0)
        total += np.sum((inputs @ weights - 2 * cross) * weights) + judged.square[apart].sum()
    return float(total / (hours * judged.cross.shape[-1]))


def left_out_errors(
    inputs: Float[np.ndarray, "n p"],
    outputs: Float[np.ndarray, "n q"],
    fold: Int[np.ndarray, " n"],
    weights: list[Float[np.ndarray, "p q"]],
) -> Float[np.ndarray, "n q"]:
    """Errors of every row by the fit without its patient's fold."""
    errors = np.empty(outputs.shape, np.float32)
    for one, own in enumerate(weights):
        apart = fold == one
        errors[apart] = outputs[apart] - inputs[apart] @ own.astype(np.float32)
    return errors


def _least_squares(inputs: np.ndarray, outputs: np.ndarray) -> Float[np.ndarray, "p q"]:
    """With a ridge of an hour; nothing is known where there are no rows."""
    square = inputs.T.astype(np.float64) @ inputs + np.eye(inputs.shape[1])
    return np.linalg.solve(square, inputs.T @ outputs)


def _scaled(errors: Float[np.ndarray, "n steps signals"], restless: Float[np.ndarray, "n signals"]):
    """How the size of errors depends on restlessness, by signal; and the errors in usual ones."""
    size = np.log(np.mean(np.abs(errors), axis=1) + LEAST_SPREAD)
    away = restless - restless.mean(0)
    slope = np.sum(away * size, axis=0) / (np.sum(away**2, axis=0) + 1e-6 * len(away))
    spread = np.stack([size.mean(0) - slope * restless.mean(0), slope])
    return spread, errors / np.exp(spread[0] + spread[1] * restless)[:, None]
