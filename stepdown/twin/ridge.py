"""A twin with the level's effect built in: ridge regression with interactions, in closed form.

How far the coming hour lies from persistence is linear in the last hour, in the level and its
change, and in the hour's means times both: what a level does depends on the patient. Without these
products a line would give every patient the same effect. What the level does by itself is not
shrunk, because few recorded changes carry it; how strongly the rest is shrunk is chosen by the
error on patients left out.

Refits on patients drawn anew stand beside the fit as members: where they disagree, records are too
few to tell. A draw adds one whole hour of errors that were made on patients left out, among hours
in which the level moved the same way, scaled by how restless each signal was.

It fits in seconds on one core, so it also serves as a second twin (evaluation/second_twin.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.problem.scaling import LEVEL_SD
from stepdown.signals import LEVELS
from stepdown.twin.calibrated import FARTHEST, FEWEST, moved, widen
from stepdown.twin.transformer import Hour, Levels, Scores, squared_error

FREE = 4  # features that are not shrunk: one, the level, steps down, steps up
LEAST_SPREAD = 0.02  # z-scores
STILL = 0.05  # levels; one sample of six at another level makes 0.17, rounding next to nothing
HINGE = 0.5  # z-scores below the mean from which on low values count by themselves
LEAST = 1e-3  # hours, the ridge of features that are not shrunk


@dataclass(frozen=True)
class RidgeConfig:
    """How the ridge twin is fitted."""

    ridges: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)  # tried, as a share of the hours
    folds: int = 5  # of patients
    members: int = 8  # the fit itself and refits on patients drawn anew
    errors: int = 4096  # hours of errors that a draw comes from

    def __post_init__(self):
        if self.folds < 2 or not self.ridges or min(self.ridges) <= 0:
            raise ValueError(
                f"expected at least 2 folds and ridges above 0, got {self.folds} and {self.ridges}."
            )
        if min(self.members, self.errors) < 1:
            raise ValueError(
                f"expected members and errors of at least 1, got {self.members} and {self.errors}."
            )


class Ridge(eqx.Module):
    """A network of twin/transformer.py in one matrix for each member, and the errors it made."""

    weights: Float[Array, "members features outputs"]  # the first is the fit to all patients
    spread: Float[Array, "3 signals"]  # log of the usual error: one, restlessness, change
    width: Float[Array, "2 signals"]  # of what lasts and of what passes of an error (horizon.py)
    errors: Float[Array, "rows steps signals"]  # scaled by the spread; sorted by group
    first: Int[Array, " 3"]  # row at which the errors of each group begin
    count: Int[Array, " 3"]

    def encode(self, scores: Scores) -> Scores:
        """Read nothing ahead."""
        return scores

    def decode(self, latent: Scores, levels: Levels, *, key: PRNGKeyArray | None) -> Hour:
        """The center, or a draw around it."""
        center = (features(latent, levels) @ self.weights[0]).reshape(len(latent), -1)
        if key is None:
            return center
        group = moved(latent, levels)
        row = self.first[group] + jr.randint(key, (), 0, self.count[group])
        usual = usual_error(self.spread, latent, levels)
        return center + usual[None] * widen(self.errors[row], self.width)

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
    """What the center is linear in; the first `FREE` are not shrunk."""
    signals, level = jnp.clip(scores[:, :-1], -FARTHEST, FARTHEST), jnp.mean(levels)
    change = (level - scores[-1, -1]) * LEVEL_SD  # in levels
    down, up = jnp.maximum(-change, 0.0), jnp.maximum(change, 0.0)
    middle = signals.mean(0)
    low = jnp.maximum(-middle - HINGE, 0.0)
    index = jnp.round(level * LEVEL_SD + (len(LEVELS) - 1) / 2).astype(int)
    return jnp.concatenate(
        [
            jnp.stack([jnp.ones(()), level, down, up]),
            jnp.stack([(down > STILL) * 1.0, (up > STILL) * 1.0, change**2, change * level]),
            jax.nn.one_hot(index, len(LEVELS)),
            levels - level,
            signals.ravel(),
            middle * change,
            middle * level,
            low,
            low * change,
        ]
    )


def usual_error(
    spread: Float[Array, "3 signals"], scores: Scores, levels: Levels
) -> Float[Array, " signals"]:
    """How large errors usually are, by signal."""
    return jnp.exp(jnp.einsum("ks,ks->s", spread, clues(scores, levels)))


def clues(scores: Scores, levels: Levels) -> Float[Array, "3 signals"]:
    """What the size of an error depends on: one, the signal's restlessness, the change."""
    signals = jnp.clip(scores[:, :-1], -FARTHEST, FARTHEST)
    restless = jnp.log(jnp.std(signals, axis=0) + LEAST_SPREAD)
    change = jnp.max(jnp.abs(levels - scores[-1, -1]))
    return jnp.stack([jnp.ones_like(restless), restless, jnp.full_like(restless, change)])


def make_ridge(steps: int, signals: int, config: RidgeConfig, *, key: PRNGKeyArray) -> Ridge:
    """A regression that has learned nothing and made no errors yet."""
    inputs = len(features(jnp.zeros((steps, signals + 1)), jnp.zeros(steps)))
    none = jnp.zeros(3, int)
    return Ridge(
        weights=jnp.zeros((config.members, inputs, steps * signals)),
        spread=jnp.zeros((3, signals)),
        width=jnp.ones((2, signals)),
        errors=jnp.zeros((config.errors, steps, signals)),
        first=none,
        count=none,
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

    `info` holds the squared error of each ridge on patients left out, in units of the coordinates.
    """
    scores, levels, target = rows
    inputs, tips, group = (np.asarray(x) for x in _describe(scores, levels))
    inputs = inputs.astype(np.float64)
    outputs = np.asarray(target, np.float64).reshape(len(target), -1)
    draw = np.random.default_rng(np.asarray(jr.key_data(key)).astype(np.uint64))
    _, who = np.unique(np.asarray(patient), return_inverse=True)
    count = int(who.max()) + 1
    if count < 2:
        raise ValueError("expected hours of at least 2 patients, got 1: none could be left out.")
    fold = (draw.permutation(count) % min(config.folds, count))[who]
    tried = [_left_out(inputs, outputs, fold, share) for share in config.ridges]
    loss = np.array([np.mean(error**2) for error in tried])
    best = config.ridges[int(np.argmin(loss))]
    weights = [_solve(inputs, outputs, np.ones(len(who)), best)]
    for _ in range(config.members - 1):
        often = np.bincount(draw.integers(0, count, count), minlength=count)
        weights.append(_solve(inputs, outputs, often[who].astype(float), best))
    kept = draw.choice(len(who), config.errors, replace=len(who) < config.errors)
    errors = tried[int(np.argmin(loss))].reshape(target.shape)[kept]
    network = _with_errors(np.stack(weights), errors, tips[kept], group[kept])
    return network, {"held_out": loss}


@eqx.filter_jit
def _describe(scores, levels):
    return tuple(jax.vmap(f)(scores, levels) for f in (features, clues, moved))


def _solve(
    inputs: Float[np.ndarray, "n p"],
    outputs: Float[np.ndarray, "n q"],
    often: Float[np.ndarray, " n"],
    share: float,
) -> Float[np.ndarray, "p q"]:
    """Ridge regression of rows that count so often; the first features are free."""
    charge = np.full(inputs.shape[1], share * often.sum())
    charge[:FREE] = LEAST
    weighed = inputs * often[:, None]
    return np.linalg.solve(inputs.T @ weighed + np.diag(charge), weighed.T @ outputs)


def _left_out(inputs, outputs, fold: Int[np.ndarray, " n"], share: float) -> np.ndarray:
    """Errors of every row by the fit without its patient's fold."""
    errors = np.zeros_like(outputs)
    for one in np.unique(fold):
        apart = fold == one
        weights = _solve(inputs, outputs, (~apart).astype(float), share)
        errors[apart] = outputs[apart] - inputs[apart] @ weights
    return errors


def _with_errors(weights: np.ndarray, errors: np.ndarray, tips: np.ndarray, group: np.ndarray):
    """Errors of patients left out, scaled and sorted by how the level moved.

    A group that is too small to speak for itself draws from all.
    """
    size = np.log(np.mean(np.abs(errors), axis=1) + LEAST_SPREAD)  # (rows, signals)
    spread = np.stack(
        [np.linalg.lstsq(tips[:, :, s], size[:, s], rcond=None)[0] for s in range(size.shape[1])],
        axis=1,
    )
    scale = np.exp(np.einsum("ks,nks->ns", spread, tips))
    count = np.bincount(group, minlength=3)
    small = count < FEWEST
    order = np.argsort(group, kind="stable")
    return Ridge(
        weights=jnp.asarray(weights, jnp.float32),
        spread=jnp.asarray(spread, jnp.float32),
        width=jnp.ones((2, errors.shape[-1])),
        errors=jnp.asarray((errors / scale[:, None])[order], jnp.float32),
        first=jnp.asarray(np.where(small, 0, np.cumsum(count) - count)),
        count=jnp.asarray(np.where(small, len(group), count)),
    )
