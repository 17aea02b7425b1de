"""One twin for every network: physical units around z-scores, and one way of fitting them all.

A twin is fitted to train patients; the epoch that forecasts select patients best is kept. The
level column of a forecast is the chosen level, signals that the scale does not know are NaN, and
nothing leaves the range in which a value can be a measurement.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.artifacts import load_config, load_module, save_module
from stepdown.handover import Transitions
from stepdown.patients.pump import load_profile, profile_names
from stepdown.problem.persistence import RANGES, CarryForward
from stepdown.problem.scaling import LEVEL_MEAN, LEVEL_SD, Scaler
from stepdown.signals import LEVEL, LEVELS, NAMES
from stepdown.training import FitConfig, fit, member, stack
from stepdown.twin.baselines import MLP, MLPConfig, NeuralProcess, ProcessConfig, Residuals
from stepdown.twin.calibrated import SMALL_CALIBRATED, CalibratedConfig, blank, fit_calibrated
from stepdown.twin.recurrent import LegendreConfig, LegendreMemory, StateSpace, StateSpaceConfig
from stepdown.twin.transformer import (
    SMALL_TRANSFORMER,
    Fitted,
    Network,
    Transformer,
    TransformerConfig,
    fitted_loss,
)
from stepdown.twin.usable import check_hours, check_known

Model = Literal["tdt", "rotary", "mlp", "np", "clmu", "ssm", "persistence", "best"]
Base = Literal["direct", "last", "carried"]
State = Float[Array, "steps 13"]
Watch = Callable[[float], None]


@dataclass(frozen=True)
class TwinConfig:
    """Which twin, and how it is fitted; defaults are the paper's (Sec. 4.1)."""

    model: Model = "tdt"
    base: Base = "direct"  # what the network adds to: nothing, the last sample, persistence
    profile: str = "cp"  # pump that persistence knows
    errors: int = 4096  # hours of errors that persistence and the best twin draw from
    transformer: TransformerConfig = TransformerConfig()
    mlp: MLPConfig = MLPConfig()
    process: ProcessConfig = ProcessConfig()
    legendre: LegendreConfig = LegendreConfig()
    state_space: StateSpaceConfig = StateSpaceConfig()
    calibrated: CalibratedConfig = CalibratedConfig()
    fit: FitConfig = FitConfig()  # of all but the best twin, which brings its own

    def __post_init__(self):
        for name, value, known in (
            ("model", self.model, get_args(Model)),
            ("base", self.base, get_args(Base)),
            ("profile", self.profile, profile_names()),
        ):
            if value not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}.")
        if self.errors < 1:
            raise ValueError(f"errors: expected at least 1, got {self.errors}.")
        if self.transformer.positions != "sinusoidal":
            raise ValueError("expected sinusoidal positions; for rotary ones set model='rotary'.")


# Minutes on two cores.
SMALL_TWIN = TwinConfig(
    transformer=SMALL_TRANSFORMER, calibrated=SMALL_CALIBRATED, fit=FitConfig(epochs=12)
)


class Twin(eqx.Module):
    """Forecasts the coming hour under a level; physical units in, physical units out."""

    scaler: Scaler
    network: Network
    carry: CarryForward
    base: Base = eqx.field(static=True)
    steps: int = eqx.field(static=True)  # samples of a state

    def __call__(self, state: State, level: Int[Array, ""], *, key: PRNGKeyArray) -> State:
        """Draw one possible next hour."""
        latent = self.network.encode(self.scaler.to_scores(state))
        return self._hour(latent, state, level, key)

    def center(self, state: State, level: Int[Array, ""]) -> State:
        """The point forecast: no dropout, no noise."""
        latent = self.network.encode(self.scaler.to_scores(state))
        return self._hour(latent, state, level, None)

    def what_if(
        self, state: State, levels: Int[Array, " plans"], *, keys: Key[Array, " draws"]
    ) -> Float[Array, "plans draws steps 13"]:
        """Draws under several levels, the same luck for each; the history is encoded once."""
        latent = self.network.encode(self.scaler.to_scores(state))
        draws = jax.vmap(lambda level, key: self._hour(latent, state, level, key), (None, 0))
        return jax.vmap(draws, (0, None))(levels, keys)

    def base_scores(self, state: State, level: Int[Array, ""]) -> Float[Array, "steps signals"]:
        """What the network's output is added to, as z-scores."""
        before = self.scaler.to_scores(state)[:, :-1]
        if self.base == "direct":
            return jnp.zeros_like(before)
        last = jnp.broadcast_to(before[-1:], before.shape)
        if self.base == "last":
            return last
        carried = self.scaler.to_scores(self.carry(state, level))[:, :-1]
        return jnp.where(jnp.isnan(carried), last, carried)  # a current without a flow

    def _hour(self, latent, state: State, level: Int[Array, ""], key) -> State:
        score = level_score(level)
        hour = self.base_scores(state, level) + self.network.decode(latent, score, key=key)
        whole = jnp.concatenate([hour, jnp.full((self.steps, 1), score)], axis=1)
        state = jnp.clip(self.scaler.to_units(whole), RANGES[None, :, 0], RANGES[None, :, 1])
        return state.at[:, LEVEL].set(level.astype(float))


def fit_twin(
    train: Transitions,
    select: Transitions,
    config: TwinConfig,
    *,
    key: PRNGKeyArray,
    watch: Watch = lambda share: None,
) -> tuple[Twin, dict[str, np.ndarray]]:
    """Fit to train patients, keep the epoch that select patients prefer.

    `info` holds the losses of each epoch and the mean squared error (z) on select patients.
    """
    twins, info = fit_twins(train, select, config, keys=key[None], watch=watch)
    return twins[0], {name: values[..., 0] for name, values in info.items()}


def fit_twins(
    train: Transitions,
    select: Transitions,
    config: TwinConfig,
    *,
    keys: Key[Array, " members"],
    watch: Watch = lambda share: None,
) -> tuple[list[Twin], dict[str, np.ndarray]]:
    """Twins side by side, one for each key; each comes out as if it had been fitted alone."""
    scaler = check_hours(train, select)
    steps = train.state.shape[-2]
    pairs = jax.vmap(jr.split)(keys)
    made = [make_twin(scaler, steps, config, key=k) for k in pairs[:, 0]]
    if (
        config.model == "best"
    ):  # a decision is held for its hour, so hours that changed are no lesson
        train, select = _held(train), _held(select)
    rows = twin_rows(made[0], train), twin_rows(made[0], select)
    if config.model == "persistence":
        made, info = [_remember(made[0], rows[0], config.errors, k) for k in pairs[:, 1]], {}
    elif config.model == "best":
        networks, info = fit_calibrated(
            rows, config.calibrated, config.errors, keys=pairs, watch=watch
        )
        made = [replace(made[0], network=network) for network in networks]
    else:
        start = stack([Fitted(twin.network) for twin in made])
        best, info = fit(start, fitted_loss, rows, config.fit, key=pairs[:, 1], watch=watch)
        networks = [member(best, i).network for i in range(len(keys))]
        made = [replace(twin, network=x) for twin, x in zip(made, networks, strict=True)]
    errors = [_select_error(twin.network, rows[1]) for twin in made]
    return made, info | {"select_mse": np.asarray(errors)}


def _held(hours: Transitions) -> Transitions:
    """The hours through which the chosen level was held."""
    kept = np.flatnonzero(~np.asarray(hours.changed))
    return jax.tree.map(lambda x: x[kept], hours)


def make_twin(scaler: Scaler, steps: int, config: TwinConfig, *, key: PRNGKeyArray) -> Twin:
    """A twin that has learned nothing yet."""
    sizes = steps, len(scaler.present)
    carry = CarryForward(load_profile(config.profile))
    base: Base = "carried" if config.model in ("persistence", "best") else config.base
    return Twin(scaler, _make_network(config, sizes, key), carry, base, steps)


def _make_network(config: TwinConfig, sizes: tuple[int, int], key: PRNGKeyArray) -> Network:
    rotary = replace(config.transformer, positions="rotary")
    makers: dict[Model, Callable[[], Network]] = {
        "tdt": lambda: Transformer(*sizes, config.transformer, key=key),
        "rotary": lambda: Transformer(*sizes, rotary, key=key),
        "mlp": lambda: MLP(*sizes, config.mlp, key=key),
        "np": lambda: NeuralProcess(*sizes, config.process, key=key),
        "clmu": lambda: LegendreMemory(*sizes, config.legendre, key=key),
        "ssm": lambda: StateSpace(*sizes, config.state_space, key=key),
        "persistence": lambda: Residuals(jnp.zeros((config.errors, *sizes))),
        "best": lambda: blank(*sizes, config.errors, config.calibrated),
    }
    return makers[config.model]()


Rows = tuple[Float[Array, "n steps columns"], Float[Array, " n"], Float[Array, "n steps signals"]]


@eqx.filter_jit
def twin_rows(twin: Twin, hours: Transitions) -> Rows:
    """All a network is fitted to, in z-scores: the hour, the chosen level, what is to be added."""

    def one(state, level, later):
        target = twin.scaler.to_scores(later)[:, :-1] - twin.base_scores(state, level)
        return twin.scaler.to_scores(state), level_score(level), target

    return jax.vmap(one)(hours.state, hours.level, hours.next_state)


def level_score(level: Int[Array, ""]) -> Float[Array, ""]:
    """The z-score of a chosen level."""
    return (level - LEVEL_MEAN) / LEVEL_SD


@eqx.filter_jit
def _select_error(network: Network, rows: Rows) -> Float[Array, ""]:
    """Mean squared error of the center, z-scores."""

    def one(row):
        scores, level, target = row
        return jnp.mean((network.decode(network.encode(scores), level, key=None) - target) ** 2)

    return jnp.mean(jax.lax.map(one, rows, batch_size=min(1024, len(rows[1]))))


def _remember(twin: Twin, rows: Rows, number: int, key: PRNGKeyArray) -> Twin:
    """Persistence with some of its errors on train patients, whole hours each."""
    count = len(rows[2])
    chosen = jr.choice(key, count, (number,), replace=count < number)
    return replace(twin, network=Residuals(rows[2][chosen]))


def check_state(twin: Twin, state: np.ndarray | Array, wanted: tuple[str, ...] = ()) -> None:
    """Refuse, on the host, what the twin would answer with NaN: compiled code cannot complain.

    `wanted` names signals that the forecast must hold.
    """
    shape = (twin.steps, LEVEL + 1)
    if state.shape[-2:] != shape:
        raise ValueError(
            f"expected a state of {shape[0]} samples and {shape[1]} columns, got "
            f"{tuple(state.shape)}. Cut the window as for fitting."
        )
    known = [NAMES[i] for i in twin.scaler.present]
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(
            f"expected signals that the twin was fitted on ({', '.join(known)}), got "
            f"{unknown[0]}. Fit a twin on recordings that hold it."
        )
    check_known(np.asarray(state), twin.scaler.present, "the patient")
    levels = np.asarray(state)[..., LEVEL]
    if not np.isin(levels, LEVELS).all():
        odd = levels[~np.isin(levels, LEVELS)][0]
        raise ValueError(f"expected whole levels 2 to 9 in force, got {odd:g}. Round the level.")


@dataclass(frozen=True)
class SavedTwin:
    """What must be known to rebuild a twin before its numbers are read."""

    config: TwinConfig
    steps: int
    present: tuple[int, ...]


def save_twin(path: Path, twin: Twin, config: TwinConfig, *, seed: int | None = None) -> None:
    """Save a twin with the config that it was fitted with."""
    saved = SavedTwin(config, twin.steps, twin.scaler.present)
    save_module(path, twin, config=saved, kind="twin", seed=seed)


def load_twin(path: Path) -> tuple[Twin, TwinConfig]:
    """Load a twin; a damaged or foreign folder is refused."""
    saved = load_config(path, SavedTwin, kind="twin")

    def empty():
        scaler = Scaler(jnp.zeros(LEVEL), jnp.ones(LEVEL), saved.present)
        return make_twin(scaler, saved.steps, saved.config, key=jr.key(0))

    return load_module(path, eqx.filter_eval_shape(empty), kind="twin"), saved.config
