"""Kernel density of recorded decisions over their nearest recorded neighbors (Sec. 4.2, App. F).

log p = log[(1/N) sum over the k nearest of N(x; x_i, h^2 I)], N the number of recorded decisions.
The neighbors are exact. With all neighbors (`neighbors=None`) it is a proper density; with fewer
it lies below that one. Distances come from one matrix product (q.x - |x|^2/2; |q|^2/2 is taken off
at the end), for some queries at a time, so that memory stays bounded for a million points.

A kernel density is made of its patients: the points are their hours. Saving one asks for a flag.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepdown.guardian.density import DEEPEST, Pairs
from stepdown.guardian.largest import full_width, log_sum_largest
from stepdown.handover import Transitions, require_role
from stepdown.problem.scaling import Scaler, fit_scaler
from stepdown.signals import HIGHEST, LEVEL, LOWEST

_CHUNK = {"cpu": 64}  # queries at a time; small matrices stay in the cache of a core
_LARGEST = 2**28  # queries x points of one matrix: 1 GiB
_NEVER = -1e30  # log kernel of a point that only fills up a row; finite, so that slopes are too


@dataclass(frozen=True)
class KdeConfig:
    """A kernel density; defaults are docs/definitions.md."""

    bandwidth: float = 1.0  # in z-scores
    neighbors: int | None = 100  # None: all recorded decisions
    action_weight: float = 8.0  # of the chosen level; 1 is the paper's, 0 is blind to it
    chunk: int | None = None  # queries at a time; None: by device and number of points

    def __post_init__(self):
        if not 0 < self.bandwidth < np.inf:
            raise ValueError(f"bandwidth: expected a number above 0, got {self.bandwidth:g}.")
        if self.neighbors is not None and self.neighbors < 1:
            raise ValueError(
                f"neighbors: expected at least 1, or None for all, got {self.neighbors}."
            )
        if not 0 <= self.action_weight < np.inf:
            raise ValueError(
                f"action_weight: expected a number of at least 0, got {self.action_weight:g}."
            )
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk: expected at least 1 query at a time, got {self.chunk}.")


OURS, PAPER = KdeConfig(), KdeConfig(action_weight=1.0)


class Kde(eqx.Module):
    """How densely the recorded decisions lie around a decision, in nats."""

    points: Float[Array, "points coordinates"]  # recorded decisions, in the order of the hours
    pairs: Pairs
    bandwidth: Float[Array, ""]
    neighbors: int | None = eqx.field(static=True, default=None)
    chunk: int | None = eqx.field(static=True, default=None)

    def log_density(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Log p of one decision. For many, `log_densities` bounds memory."""
        return self.log_density_at(self.pairs(state, level)[None])[0]

    def log_densities(
        self, states: Float[Array, "n steps columns"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """Log p of many decisions, some at a time."""
        return self.log_density_at(jax.vmap(self.pairs)(states, levels))

    def log_density_at(self, queries: Float[Array, "n coordinates"]) -> Float[Array, " n"]:
        """Log p at points that are decisions already (`pairs`)."""
        return self.log_mean_kernel_at(queries) + self.log_constant

    def log_mean_kernel_at(self, queries: Float[Array, "n coordinates"]) -> Float[Array, " n"]:
        """log[(1/N) sum exp(-|x - x_i|^2 / 2h^2)]: log p without its constant, at most 0."""
        prepared = _prepare(self.points, self.bandwidth, self.neighbors)
        scaled = queries / self.bandwidth
        sums = _in_chunks(
            lambda rows: _log_sums(rows, prepared, self.neighbors),
            jnp.concatenate([scaled, jnp.ones((len(queries), 1))], axis=1),
            _chunk(len(prepared), self.chunk),
        )
        return sums - 0.5 * jnp.sum(scaled**2, axis=1) - jnp.log(len(self.points))

    @property
    def log_constant(self) -> Float[Array, ""]:
        """Log p minus the log mean kernel: -(d/2) log(2 pi h^2)."""
        return -0.5 * self.points.shape[-1] * jnp.log(2 * jnp.pi * self.bandwidth**2)

    @property
    def shape(self) -> tuple[int, int]:
        """Recorded decisions inside, coordinates of a point."""
        return self.points.shape[0], self.points.shape[1]

    def floor(self) -> float:
        """The authors': a mean kernel of 1e-10."""
        return float(self.log_constant) - DEEPEST


def fit_kernels(
    train: Transitions, select: Transitions, config: KdeConfig, *, key, watch
) -> tuple[Kde, dict[str, np.ndarray]]:
    """A row of the table (guardians.py); nothing is chosen, so select patients stay unseen."""
    return fit_kde(train, config), {}


def blind_kernels(config: KdeConfig) -> KdeConfig:
    """The density of states alone."""
    return replace(config, action_weight=0.0)


def empty_kernels(config: KdeConfig, pairs: Pairs, shape: tuple[int, int]) -> Kde:
    """A density of the right shapes and any content."""
    return Kde(jnp.zeros(shape), pairs, jnp.zeros(()), config.neighbors, config.chunk)


def fit_kde(hours: Transitions, config: KdeConfig = OURS) -> Kde:
    """The density of train patients' decisions."""
    require_role(hours, "train")
    if len(hours.level) < (config.neighbors or 1):
        raise ValueError(
            f"expected at least {config.neighbors or 1} recorded decisions, as many as neighbors, "
            f"got {len(hours.level)}. Bring more patients or ask for fewer neighbors."
        )
    scaler = fit_scaler(hours)
    _check_signals(np.asarray(hours.state), scaler)
    pairs = Pairs(scaler, jnp.asarray(config.action_weight, jnp.float32))
    return Kde(
        points=to_points(pairs, hours.state, hours.level),
        pairs=pairs,
        bandwidth=jnp.asarray(config.bandwidth, jnp.float32),
        neighbors=config.neighbors,
        chunk=config.chunk,
    )


@eqx.filter_jit
def to_points(
    pairs: Pairs, states: Float[Array, "n steps columns"], levels: Int[Array, " n"]
) -> Float[Array, "n coordinates"]:
    """Many decisions as points."""
    return jax.vmap(pairs)(states, levels)


def check_query(kde: Kde, states: np.ndarray | Array, levels: np.ndarray | Array) -> None:
    """Refuse decisions that the density cannot judge: NaN, another width, no level."""
    states, levels = np.asarray(states), np.asarray(levels)
    signals = len(kde.pairs.scaler.present)
    steps = (kde.points.shape[-1] - 2) // signals
    columns = len(kde.pairs.scaler.columns) + 1
    if states.ndim < 2 or states.shape[-2:] != (steps, columns):
        raise ValueError(
            f"expected states of {steps} samples x {columns} columns, got {states.shape}. "
            "Pass hours as make_transitions makes them."
        )
    if levels.shape != states.shape[:-2]:
        raise ValueError(f"expected one level per state, {states.shape[:-2]}, got {levels.shape}.")
    wrong = levels[~((levels >= LOWEST) & (levels <= HIGHEST) & (levels == np.floor(levels)))]
    if wrong.size:
        raise ValueError(f"expected levels {LOWEST} to {HIGHEST}, got {wrong.flat[0]}.")
    _check_signals(states, kde.pairs.scaler)


def _check_signals(states: np.ndarray, scaler: Scaler) -> None:
    for column, name in zip(
        (*scaler.present, LEVEL), (*scaler.names, "level in force"), strict=True
    ):
        if not np.isfinite(states[..., column]).all():
            raise ValueError(
                f"expected a finite {name} in every sample, got NaN or infinity. "
                "Fill or drop such hours (make_transitions does), or fit without the signal."
            )


# ── the sum ──────────────────────────────────────────────────────────────────────────────────────


def _prepare(points, bandwidth, neighbors: int | None):
    """Points in bandwidths with their -|x|^2/2 beside them, filled up to a handy number."""
    scaled = points / bandwidth
    rows = jnp.concatenate([scaled, -0.5 * jnp.sum(scaled**2, axis=1, keepdims=True)], axis=1)
    short = 0 if neighbors is None else full_width(len(points), neighbors) - len(points)
    filling = jnp.zeros((short, rows.shape[1])).at[:, -1].set(_NEVER)
    return jnp.concatenate([rows, filling])


def _log_sums(queries, prepared, neighbors: int | None):
    """Log of the summed kernels, times exp(|q|^2/2)."""
    # Full precision: the fast modes of a GPU cost 5e-3 nats.
    scores = jnp.matmul(queries, prepared.T, precision=jax.lax.Precision.HIGHEST)
    if neighbors is None:
        return jax.nn.logsumexp(scores, axis=1)
    return log_sum_largest(scores, neighbors)


def _chunk(points: int, asked: int | None) -> int:
    usual = _CHUNK.get(jax.default_backend(), 2**14) if asked is None else asked
    return max(1, min(usual, _LARGEST // points))


def _in_chunks(function, rows, chunk: int):
    """Call a function of a chunk of rows over all of them; chunks are equal, the last filled up."""
    count = len(rows)
    parts = max(1, -(-count // chunk))
    if parts == 1:
        return function(rows)
    size = -(-count // parts)
    filled = jnp.pad(rows, ((0, parts * size - count), (0, 0)))
    return jax.lax.map(function, filled.reshape(parts, size, -1)).reshape(-1)[:count]
