"""RealNVP: the density of recorded decisions as a normal that was bent by affine couplings.

A point is whitened, then passes couplings that move one half of its coordinates by a scale and an
offset read from the other half (Dinh et al. 2017). Each step can be undone, and its change of
volume is a sum, so log p is exact.

Levels are whole numbers and some signals follow from others, so the data have no density as they
are. Fitting blurs them: levels uniformly over their own step, which keeps the mass of a level in
its step, and signals by a small normal. A query is read at the center of its level. The weight of
the chosen level only rescales a coordinate: it moves log p by a constant and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.guardian.density import Pairs
from stepdown.handover import Transitions, require_role
from stepdown.problem.scaling import LEVEL_SD, check_width, fit_scaler
from stepdown.training import FitConfig, fit, member, stack

CHUNK = 1024  # queries at a time
LOG_SCALE = 2.0  # largest, of one coupling


@dataclass(frozen=True)
class FlowConfig:
    """A normalizing flow over decisions."""

    layers: int = 6
    width: int = 64  # of the two hidden layers in a coupling
    blur: float = 0.3  # sd of the noise on signals while fitting, in z-scores
    action_weight: float = 1.0  # shifts log p by a constant
    fit: FitConfig = field(
        default_factory=lambda: FitConfig(epochs=40, batch=256, patience=6, weight_decay=1e-3)
    )

    def __post_init__(self):
        if self.layers < 2 or self.width < 1 or not (self.blur > 0 and self.action_weight > 0):
            raise ValueError(
                "expected at least 2 layers and 1 unit, and a blur and an action weight above 0, "
                f"got {self.layers}, {self.width}, {self.blur:g} and {self.action_weight:g}."
            )


class Coupling(eqx.Module):
    """Moves every second coordinate by what the others say."""

    network: eqx.nn.MLP

    def __init__(self, size: int, width: int, *, key: PRNGKeyArray):
        network = eqx.nn.MLP(size, 2 * size, width, 2, jax.nn.silu, key=key)
        last = network.layers[-1]
        # A coupling that starts as the identity: fitting begins at the whitened normal.
        self.network = eqx.tree_at(
            lambda net: (net.layers[-1].weight, net.layers[-1].bias),
            network,
            (jnp.zeros_like(last.weight), jnp.zeros(2 * size)),
        )

    def __call__(
        self, point: Float[Array, " d"], turn: Int[Array, ""]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The moved point and the log of the change of volume."""
        moves, log_scale, offset = self._read(point, turn)
        return jnp.where(moves, point * jnp.exp(log_scale) + offset, point), jnp.sum(log_scale)

    def inverse(self, point: Float[Array, " d"], turn: Int[Array, ""]) -> Float[Array, " d"]:
        """The point before it was moved."""
        moves, log_scale, offset = self._read(point, turn)
        return jnp.where(moves, (point - offset) * jnp.exp(-log_scale), point)

    def _read(self, point, turn):
        moves = (jnp.arange(len(point)) + turn) % 2 == 0
        raw, offset = jnp.split(self.network(jnp.where(moves, 0.0, point)), 2)
        log_scale = jnp.where(moves, LOG_SCALE * jnp.tanh(raw / LOG_SCALE), 0.0)
        return moves, log_scale, offset


class RealNVP(eqx.Module):
    """Couplings in a row; a standard normal at the end."""

    couplings: Coupling  # leaves (layers, ...)

    def __init__(self, size: int, layers: int, width: int, *, key: PRNGKeyArray):
        if size < 2:
            raise ValueError(f"expected at least 2 coordinates to couple, got {size}.")
        make = eqx.filter_vmap(lambda k: Coupling(size, width, key=k))
        self.couplings = make(jr.split(key, layers))

    def forward(self, point: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """To the normal, with the log of the change of volume."""

        def step(point, x):
            return x[0](point, x[1])

        point, logs = self._scan(step, point)
        return point, jnp.sum(logs)

    def inverse(self, point: Float[Array, " d"]) -> Float[Array, " d"]:
        """From the normal back to the data."""

        def step(point, x):
            return x[0].inverse(point, x[1]), None

        return self._scan(step, point, reverse=True)[0]

    def log_prob(self, point: Float[Array, " d"]) -> Float[Array, ""]:
        """Nats."""
        end, log_volume = self.forward(point)
        return log_volume - 0.5 * jnp.sum(end**2) - 0.5 * len(point) * jnp.log(2 * jnp.pi)

    def _scan(self, step, point, *, reverse: bool = False):
        arrays, rest = eqx.partition(self.couplings, eqx.is_array)
        turns = jnp.arange(len(jax.tree.leaves(arrays)[0]))

        def body(point, x):
            return step(point, (eqx.combine(x[0], rest), x[1]))

        return jax.lax.scan(body, point, (arrays, turns), reverse=reverse)


class Whitening(eqx.Module):
    """Centers, decorrelates and scales; the last coordinate answers to the chosen level alone."""

    center: Float[Array, " d"]
    matrix: Float[Array, "d d"]  # lower triangle

    def __call__(self, point: Float[Array, " d"]) -> Float[Array, " d"]:
        """The point in units of the spread that its predecessors leave."""
        return self.matrix @ (point - self.center)

    @property
    def log_volume(self) -> Float[Array, ""]:
        """Log of the change of volume, the same everywhere."""
        return jnp.sum(jnp.log(jnp.diagonal(self.matrix)))


class FlowDensity(eqx.Module):
    """log p of a decision under the flow; holds no patient's hour."""

    pairs: Pairs
    whitening: Whitening
    flow: RealNVP

    @property
    def shape(self) -> tuple[int, int]:
        """No recorded decision inside; coordinates of a point."""
        return 0, len(self.whitening.center)

    def floor(self) -> None:
        """None: the guardian bounds it by its threshold."""
        return

    def log_density(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Nats, at the center of the level."""
        point = self.whitening(self.pairs(state, level))
        return self.flow.log_prob(point) + self.whitening.log_volume

    def log_densities(
        self, states: Float[Array, "n steps columns"], levels: Int[Array, " n"], /
    ) -> Float[Array, " n"]:
        """Nats, row by row in chunks."""

        def one(row):
            return self.log_density(*row)

        return jax.lax.map(one, (states, levels), batch_size=min(CHUNK, len(levels)))


def fit_flow(
    train: Transitions,
    select: Transitions,
    config: FlowConfig,
    *,
    key: PRNGKeyArray,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[FlowDensity, dict[str, np.ndarray]]:
    """A flow fitted to train patients; kept are the weights with the best select likelihood."""
    require_role(train, "train")
    require_role(select, "select")
    pairs = Pairs(fit_scaler(train), jnp.asarray(config.action_weight, jnp.float32))
    points, held = (_points(pairs, hours) for hours in (train, select))
    noise = Noise(_half_step(pairs), jnp.asarray(config.blur, jnp.float32))
    whitening = _whiten(np.asarray(points, np.float64), config)
    k_flow, k_fit = jr.split(key)
    flow = RealNVP(points.shape[1], config.layers, config.width, key=k_flow)
    loss = _NegativeLogLikelihood(noise, whitening)
    flows, info = fit(stack([flow]), loss, (points, held), config.fit, key=k_fit, watch=watch)
    return FlowDensity(pairs, whitening, member(flows, 0)), info


def empty_flow(config: FlowConfig, pairs: Pairs, shape: tuple[int, int]) -> FlowDensity:
    """A density of the right shapes and any content."""
    size = shape[1]
    whitening = Whitening(jnp.zeros(size), jnp.zeros((size, size)))
    return FlowDensity(pairs, whitening, RealNVP(size, config.layers, config.width, key=jr.key(0)))


class Noise(eqx.Module):
    """Blurs a point while fitting: the two levels uniformly, the signals normally."""

    half_step: Float[Array, " 2"]  # of the level in force and of the choice, in coordinates
    sd: Float[Array, ""]

    def __call__(self, point: Float[Array, " d"], *, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Another point that means the same decision."""
        k_signals, k_levels = jr.split(key)
        signals = self.sd * jr.normal(k_signals, (len(point) - 2,))
        levels = self.half_step * jr.uniform(k_levels, (2,), minval=-1.0, maxval=1.0)
        return point + jnp.concatenate([signals, levels])


class _NegativeLogLikelihood(eqx.Module):
    noise: Noise
    whitening: Whitening

    def __call__(self, flow: RealNVP, point, *, key):
        blurred = self.whitening(self.noise(point, key=key))
        return -flow.log_prob(blurred) - self.whitening.log_volume


def _half_step(pairs: Pairs) -> Float[Array, " 2"]:
    return 0.5 / LEVEL_SD * jnp.stack([jnp.ones(()), pairs.action_weight])


def _points(pairs: Pairs, hours: Transitions) -> Float[Array, "n d"]:
    check_width(hours.state, pairs.scaler.columns)
    points = jax.jit(lambda states, levels: jax.vmap(pairs)(states, levels))(
        hours.state, hours.level
    )
    if len(points) == 0 or not bool(jnp.isfinite(points).all()):
        raise ValueError(
            f"expected finite {hours.role} decisions, got {len(points):,} rows"
            f"{' with empty samples' if len(points) else ''}. Make the hours with "
            "make_transitions, from patients that have the signals of the train patients."
        )
    return points


def _whiten(points: Float[np.ndarray, "n d"], config: FlowConfig) -> Whitening:
    """The whitening of the blurred train points; the blur keeps it well posed."""
    step = np.array([1.0, config.action_weight]) / LEVEL_SD
    blur = np.append(np.full(points.shape[1] - 2, config.blur**2), step**2 / 12)
    spread = np.cov(points.T) + np.diag(blur)
    matrix = np.linalg.inv(np.linalg.cholesky(spread))
    center = points.mean(0)
    return Whitening(jnp.asarray(center, jnp.float32), jnp.asarray(matrix, jnp.float32))
