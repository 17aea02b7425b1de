"""A second twin, built differently and fitted to other patients: a judge that users can have.

Policies are learned and chosen with models of the train patients. Whatever those models got wrong
by chance, a second model of the select patients gets wrong differently. It must do with few
patients, so it is a ridge regression: how far the coming hour lies from persistence is linear in
the last hour, the level and the change, and in the last samples times both; a level that changes
inside the hour counts by its mean and by how each sample lies off it. What the level does by itself
is not shrunk, because few recorded changes carry it. How strongly the rest is shrunk is
chosen by the error on patients left out.

A draw adds one whole hour of errors that were made on patients left out, among hours in which
the level moved the same way, scaled by how restless each signal was. As every twin it forecasts
free coordinates (twin/coordinates.py).

It learns from the same kind of records as the first: what all records lack or confound, it lacks
and confounds too.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.evaluation.behavior import deal_patients
from stepdown.handover import Transitions, require_role
from stepdown.patients.pump import load_profile
from stepdown.problem.persistence import CarryForward
from stepdown.problem.scaling import LEVEL_SD, Scaler
from stepdown.signals import LEVELS
from stepdown.twin.baselines import make_residuals
from stepdown.twin.calibrated import FEWEST, moved
from stepdown.twin.coordinates import fit_coordinates
from stepdown.twin.fit import Twin, check_known, twin_rows
from stepdown.twin.transformer import Hour, Levels, Scores, squared_error

FARTHEST = 6.0  # z-scores; a line must not run away with what was never seen
FREE = 4  # features that are not shrunk: one, the level, steps down, steps up
LEAST_SPREAD = 0.02  # z-scores


@dataclass(frozen=True)
class SecondTwinConfig:
    """How the second twin is fitted."""

    ridges: tuple[float, ...] = (1.0, 10.0, 100.0, 1000.0)  # tried, in hours
    folds: int = 5  # of patients
    profile: str = "cp"  # pump that persistence knows

    def __post_init__(self):
        if self.folds < 2 or not self.ridges or min(self.ridges) <= 0:
            raise ValueError(
                f"expected at least 2 folds and ridges above 0, got {self.folds} and {self.ridges}."
            )


class Linear(eqx.Module):
    """A network of twin/transformer.py in one matrix, and the errors it made."""

    weights: Float[Array, "features outputs"]
    spread: Float[Array, "3 signals"]  # log of the usual error: one, restlessness, change
    errors: Float[Array, "rows steps signals"]  # scaled by the spread; sorted by group
    first: Int[Array, " 3"]  # row at which the errors of each group begin
    count: Int[Array, " 3"]

    def encode(self, scores: Scores) -> Scores:
        """Read nothing ahead."""
        return scores

    def decode(self, latent: Scores, levels: Levels, *, key: PRNGKeyArray | None) -> Hour:
        """The center, or a draw around it."""
        center = (features(latent, levels) @ self.weights).reshape(len(latent), -1)
        if key is None:
            return center
        group = moved(latent, levels)
        row = self.first[group] + jr.randint(key, (), 0, self.count[group])
        return center + usual_error(self.spread, latent, levels)[None] * self.errors[row]

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
    last, middle = signals[-1], signals.mean(0)
    index = jnp.round(level * LEVEL_SD + (len(LEVELS) - 1) / 2).astype(int)
    return jnp.concatenate(
        [
            jnp.stack([jnp.ones(()), level, down, up]),
            jnp.stack([down > 0, up > 0]) * 1.0,
            jax.nn.one_hot(index, len(LEVELS)),
            levels - level,
            signals.ravel(),
            last * down,
            last * up,
            middle * level,
            last**2,
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


def fit_second_twin(
    select: Transitions,
    scaler: Scaler,
    config: SecondTwinConfig = SecondTwinConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
) -> tuple[Twin, dict[str, np.ndarray]]:
    """Fit to select patients; the scale names the signals and lends their units, nothing more.

    `info` holds the ridges and the squared error of each on patients left out, in standard
    deviations of the coordinates.
    """
    require_role(select, "select")
    for hours in (select.state, select.next_state):
        check_known(np.asarray(hours), scaler, "select patients")
    pump, steps = load_profile(config.profile), select.state.shape[1]
    coordinates = fit_coordinates(select, scaler.present, pump)
    nothing = make_residuals(steps, len(scaler.present))
    carried = Twin(scaler, coordinates, nothing, CarryForward(pump), "carried", steps)
    scores, levels, target = twin_rows(carried, select)
    inputs, tips, group = (np.asarray(x) for x in _describe(scores, levels))
    outputs = np.asarray(target, float).reshape(len(target), -1)
    fold = deal_patients(np.asarray(select.patient), config.folds, key=key)
    tried = [_left_out(inputs, outputs, fold, ridge) for ridge in config.ridges]
    loss = np.array([np.mean(error**2) for error in tried])
    best = int(np.argmin(loss))
    network = _with_errors(
        _solve(inputs, outputs, config.ridges[best]),
        tried[best].reshape(target.shape),
        tips,
        group,
    )
    info = {"ridge": np.asarray(config.ridges), "held_out": loss, "best": np.asarray(best)}
    return replace(carried, network=network), info


@eqx.filter_jit
def _describe(scores, levels):
    return tuple(jax.vmap(f)(scores, levels) for f in (features, clues, moved))


def _solve(
    inputs: Float[np.ndarray, "n p"], outputs: Float[np.ndarray, "n q"], ridge: float
) -> Float[np.ndarray, "p q"]:
    """Ridge regression; the first features are free."""
    x = inputs.astype(float)
    charge = np.full(x.shape[1], ridge)
    charge[:FREE] = 1e-3
    return np.linalg.solve(x.T @ x + np.diag(charge), x.T @ outputs)


def _left_out(inputs, outputs, fold: Int[np.ndarray, " n"], ridge: float) -> np.ndarray:
    """Errors of every row by the fit without its patient's fold."""
    errors = np.zeros_like(outputs)
    for one in np.unique(fold):
        apart = fold == one
        errors[apart] = outputs[apart] - inputs[apart] @ _solve(
            inputs[~apart], outputs[~apart], ridge
        )
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
    return Linear(
        weights=jnp.asarray(weights, jnp.float32),
        spread=jnp.asarray(spread, jnp.float32),
        errors=jnp.asarray((errors / scale[:, None])[order], jnp.float32),
        first=jnp.asarray(np.where(small, 0, np.cumsum(count) - count)),
        count=jnp.asarray(np.where(small, len(group), count)),
    )
