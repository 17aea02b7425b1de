"""Seven Gaussian perceptrons that forecast the coming hour: the dynamics that policies learn in.

Each member predicts the change of the signals over an hour, mean and variance, in z-scores, from
the hour and the chosen level. A draw takes one of the five best members and noise for the whole
hour, correlated as the residuals of held-out patients are, because the reward looks at minima over
the hour. The level of the next hour is known, the reward is computed, neither is learned. Draws are
cut at the hard ranges of `signals.SIGNALS`, so a rollout cannot explode.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.artifacts import load_config, load_module, save_module
from stepdown.handover import Transitions, require_one_hour, require_role
from stepdown.patients.population import host_generator
from stepdown.policies.networks import Network, each, feature_count, features, make_network
from stepdown.problem.scaling import LEVEL_MEAN, LEVEL_SD, Scaler, blank_scaler, fit_scaler
from stepdown.signals import LEVEL, NAMES, hard_ranges
from stepdown.training import FitConfig, fit

ENSEMBLE = "ensemble"  # its kind of folder
BOUND_WEIGHT = 0.01  # how strongly the bounds of the variance are drawn together

Hour = Float[Array, "steps columns"]
Hours = Float[Array, "n steps columns"]
Level = Int[Array, ""]


@dataclass(frozen=True)
class EnsembleConfig:
    """The ensemble; defaults are the paper's (App. F) where it says.

    >>> tiny = sd.EnsembleConfig(members=3, elites=2, width=16, depth=1)
    """

    members: int = 7
    elites: int = 5  # members with the best held-out loss, used in rollouts
    width: int = 200
    depth: int = 4
    hold_out: float = 0.2  # share of the train patients
    correlated: bool = True  # noise of a whole hour at once
    fit: FitConfig = field(default_factory=lambda: FitConfig(epochs=100, batch=256, patience=5))

    def __post_init__(self):
        if not 1 <= self.elites <= self.members or min(self.width, self.depth) < 1:
            raise ValueError(
                "expected 1 to `members` elites and a width and depth of at least 1, got "
                f"{self.elites} of {self.members}, {self.width} and {self.depth}."
            )
        if not 0 < self.hold_out < 1:
            raise ValueError(f"hold_out: expected a share between 0 and 1, got {self.hold_out:g}.")


class Member(eqx.Module):
    """A Gaussian forecast of the change."""

    network: Network
    low: Float[Array, "*members outputs"]  # soft bounds of the log-variance
    high: Float[Array, "*members outputs"]

    def __call__(self, row: Float[Array, " inputs"], /) -> tuple[Array, Array]:
        """Mean and log-variance."""
        mean, raw = jnp.split(self.network(row), 2)
        raw = self.high - jax.nn.softplus(self.high - raw)
        return mean, self.low + jax.nn.softplus(raw - self.low)


class Ensemble(eqx.Module):
    """Dynamics from records; physical units in and out (handover.Dynamics)."""

    scaler: Scaler
    members: Member  # leaves lead with the members
    elites: Int[Array, " elites"]
    factor: Float[Array, "outputs outputs"]  # Cholesky factor of the noise correlation

    @property
    def steps(self) -> int:
        """Samples of a state."""
        return len(self.factor) // len(self.scaler.present)

    def __call__(self, state: Hour, level: Level, /, *, key: PRNGKeyArray) -> Hour:
        """Draw the coming hour from a random elite."""
        k_elite, k_noise = jr.split(key)
        chosen = jr.choice(k_elite, self.elites)
        one = jax.tree.map(lambda x: x[chosen], self.members)
        mean, log_variance = one(self._inputs(state, level))
        noise = self.factor @ jr.normal(k_noise, mean.shape)
        return self._land(state, level, mean + jnp.exp(0.5 * log_variance) * noise)

    def step_all(self, states: Hours, levels: Int[Array, " n"], *, key: PRNGKeyArray) -> Hours:
        """Draw a coming hour for every row; each elite serves a random fifth of the rows.

        Only the elite that a row has drawn is asked, which is four times as fast as asking all.
        """
        k_order, k_noise = jr.split(key)
        count, elites = len(levels), len(self.elites)
        size = -(-count // elites)
        order = jr.permutation(k_order, count)
        shares = order[jnp.arange(elites * size) % count].reshape(elites, size)
        inputs = jax.vmap(self._inputs)(states, levels)
        chosen = jax.tree.map(lambda x: x[self.elites], self.members)
        parts = each(lambda member, rows: jax.vmap(member)(rows), chosen, inputs[shares])
        place = jnp.zeros(count, int).at[order].set(jnp.arange(count))
        mean, log_variance = (part.reshape(elites * size, -1)[place] for part in parts)
        noise = jr.normal(k_noise, mean.shape) @ self.factor.T
        change = mean + jnp.exp(0.5 * log_variance) * noise
        return jax.vmap(self._land)(states, levels, change)

    def predict(self, state: Hour, level: Level) -> tuple[Array, Array]:
        """Mean and sd of the change by every member, (members, outputs), in z-scores."""
        row = self._inputs(state, level)
        mean, log_variance = jax.vmap(lambda member: member(row))(self.members)
        return mean, jnp.exp(0.5 * log_variance)

    def spread(self, state: Hour, level: Level) -> Float[Array, ""]:
        """Largest norm of the predicted sd over the members (MOPO's uncertainty)."""
        return jnp.max(jnp.linalg.norm(self.predict(state, level)[1], axis=-1))

    def disagreement(self, state: Hour, level: Level) -> Float[Array, ""]:
        """Largest distance of a member's mean to the mean of all."""
        mean = self.predict(state, level)[0]
        return jnp.max(jnp.linalg.norm(mean - jnp.mean(mean, axis=0, keepdims=True), axis=-1))

    def spreads(self, states: Hours, levels: Int[Array, " n"]) -> Float[Array, " n"]:
        """`spread` for many rows, member by member, which keeps memory small."""

        def norms(member, rows):
            return jnp.linalg.norm(jnp.exp(0.5 * jax.vmap(member)(rows)[1]), axis=-1)

        inputs = jax.vmap(self._inputs)(states, levels)
        return jnp.max(each(lambda member: norms(member, inputs), self.members), axis=0)

    def disagreements(self, states: Hours, levels: Int[Array, " n"]) -> Float[Array, " n"]:
        """`disagreement` for many rows."""
        inputs = jax.vmap(self._inputs)(states, levels)
        means = each(lambda member: jax.vmap(member)(inputs)[0], self.members)
        distance = jnp.linalg.norm(means - jnp.mean(means, axis=0, keepdims=True), axis=-1)
        return jnp.max(distance, axis=0)

    def _inputs(self, state: Hour, level: Level) -> Float[Array, " inputs"]:
        return _inputs(self.scaler, state, level)

    def _land(self, state: Hour, level: Level, change: Float[Array, " outputs"]) -> Hour:
        """The state after a change of its z-scores, inside the possible ranges."""
        scores = self.scaler.to_scores(state)
        moved = scores[:, :-1] + change.reshape(len(state), -1)
        later = self.scaler.to_units(jnp.concatenate([moved, scores[:, -1:]], axis=1))
        low, high = np.array(hard_ranges(self.scaler.columns), np.float32).T
        signals = jnp.clip(later[:, :LEVEL], low[None, :LEVEL], high[None, :LEVEL])
        column = jnp.full((len(state), 1), level, signals.dtype)
        return jnp.concatenate([signals, column], axis=1)


def _inputs(scaler: Scaler, state: Hour, level: Level) -> Float[Array, " inputs"]:
    """The features of the state and the chosen level, in z-scores."""
    choice = (level - LEVEL_MEAN) / LEVEL_SD
    return jnp.append(features(scaler, state), choice)


def fit_ensemble(
    hours: Transitions,
    config: EnsembleConfig = EnsembleConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Ensemble, dict[str, np.ndarray]]:
    """Fit all members to train patients, a share of whom is held out to stop and to choose elites.

    The members differ by their first weights and by the order of the rows. `info` holds the curves,
    and per member the held-out loss, R² and the sd of the standardized residuals (1 if honest).

    >>> ensemble, info = sd.fit_ensemble(train, tiny, key=jr.key(0))
    """
    require_role(hours, "train")
    require_one_hour(hours, "an ensemble")
    k_held, k_members, k_fit = jr.split(key, 3)
    held = _held_out_rows(np.asarray(hours.patient), config.hold_out, k_held)
    scaler = fit_scaler(hours)
    rows = _rows(hours, scaler)
    parts = tuple(jax.tree.map(lambda x, keep=keep: x[keep], rows) for keep in (~held, held))
    sizes = (rows[0].shape[1], *[config.width] * config.depth, 2 * rows[1].shape[1])
    members = eqx.filter_vmap(lambda k: _new_member(sizes, key=k))(
        jr.split(k_members, config.members)
    )
    members, info = fit(members, _loss, parts, config.fit, key=k_fit, watch=watch)
    loss, residuals, r2 = _judge(members, *parts[1])
    elites = np.argsort(np.asarray(loss), kind="stable")[: config.elites]
    standard = np.asarray(residuals, np.float64)[elites].reshape(-1, residuals.shape[-1])
    size = standard.shape[1]
    correlation = _correlation(standard) if config.correlated else np.eye(size)
    factor = jnp.asarray(np.linalg.cholesky(correlation), jnp.float32)
    ensemble = Ensemble(scaler, members, jnp.asarray(elites), factor)
    sd = np.asarray(residuals).std((1, 2))
    return ensemble, info | {"nll": np.asarray(loss), "r2": np.asarray(r2), "residual_sd": sd}


def _held_out_rows(patient: np.ndarray, share: float, key: PRNGKeyArray) -> np.ndarray:
    """Which rows belong to held-out patients."""
    patients = np.unique(patient)
    if len(patients) < 2:
        raise ValueError(
            f"expected at least 2 train patients, got {len(patients)}: one to fit and one to hold "
            "out. Bring more patients."
        )
    count = int(np.clip(round(share * len(patients)), 1, len(patients) - 1))
    return np.isin(patient, host_generator(key).permutation(patients)[:count])


@eqx.filter_jit
def _rows(hours: Transitions, scaler: Scaler):
    """Inputs and targets of every hour."""

    def one(state, level, later):
        change = scaler.to_scores(later)[:, :-1] - scaler.to_scores(state)[:, :-1]
        return _inputs(scaler, state, level), change.ravel()

    return jax.vmap(one)(hours.state, hours.level, hours.next_state)


def _new_member(sizes: tuple[int, ...], *, key: PRNGKeyArray) -> Member:
    outputs = sizes[-1] // 2
    network = make_network(sizes, jax.nn.swish, last=0.1, key=key)
    return Member(network, jnp.full(outputs, -8.0), jnp.full(outputs, 0.5))


def _loss(member: Member, row, *, key: PRNGKeyArray) -> Float[Array, ""]:
    bounds = jnp.mean(member.high - member.low)
    return _nll(member, row) + BOUND_WEIGHT * bounds


def _nll(member: Member, row) -> Float[Array, ""]:
    """Mean negative log-likelihood of one coordinate, in nats, without log √2π."""
    mean, log_variance = member(row[0])
    return 0.5 * jnp.mean(log_variance + (row[1] - mean) ** 2 * jnp.exp(-log_variance))


@eqx.filter_jit
def _judge(members: Member, inputs, targets):
    """Held-out loss, standardized residuals and R² (over all coordinates) of every member."""
    center = jnp.mean(targets, axis=0, keepdims=True)

    def one(member):
        mean, log_variance = jax.vmap(member)(inputs)
        loss = jnp.mean(jax.vmap(lambda x, y: _nll(member, (x, y)))(inputs, targets))
        error = targets - mean
        r2 = 1.0 - jnp.sum(error**2) / jnp.sum((targets - center) ** 2)
        return loss, error * jnp.exp(-0.5 * log_variance), r2

    return each(one, members)


def _correlation(residuals: np.ndarray, ridge: float = 1e-3) -> np.ndarray:
    """Correlation of the columns, drawn a little to independence so that it has a factor."""
    centered = residuals - residuals.mean(0)
    covariance = centered.T @ centered / len(residuals) + 1e-12 * np.eye(residuals.shape[1])
    sd = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(sd, sd)
    return (1 - ridge) * correlation + ridge * np.eye(len(sd))


# ── saved ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class SavedEnsemble:
    """What must be known to rebuild an ensemble."""

    config: EnsembleConfig
    present: tuple[int, ...]
    steps: int
    columns: tuple[str, ...] = NAMES  # of the recordings that it was fitted on


def save_ensemble(
    path: Path, ensemble: Ensemble, config: EnsembleConfig, *, seed: int | None = None
) -> None:
    """Save an ensemble with the config that it was fitted with."""
    scaler = ensemble.scaler
    about = SavedEnsemble(config, scaler.present, ensemble.steps, scaler.columns)
    save_module(path, ensemble, config=about, kind=ENSEMBLE, seed=seed)


def load_ensemble(path: Path) -> tuple[Ensemble, SavedEnsemble]:
    """A saved ensemble and what it says about itself."""
    about = load_config(path, SavedEnsemble, kind=ENSEMBLE)
    return load_module(path, eqx.filter_eval_shape(_blank, about), kind=ENSEMBLE), about


def _blank(about: SavedEnsemble) -> Ensemble:
    """An ensemble of the right shapes and any content."""
    config, scaler = about.config, blank_scaler(about.present, about.columns)
    outputs = about.steps * len(about.present)
    inputs = feature_count(scaler, about.steps) + 1
    sizes = (inputs, *[config.width] * config.depth, 2 * outputs)
    pairs = zip(sizes[:-1], sizes[1:], strict=True)
    weights = tuple(jnp.zeros((config.members, *pair)) for pair in pairs)
    biases = tuple(jnp.zeros((config.members, size)) for size in sizes[1:])
    bounds = jnp.zeros((config.members, outputs))
    members = Member(Network(weights, biases, jax.nn.swish), bounds, bounds)
    elites = jnp.asarray(np.arange(config.elites))
    return Ensemble(scaler, members, elites, jnp.zeros((outputs, outputs)))
