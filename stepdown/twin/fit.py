"""One twin for every network: physical units outside, and one way of fitting them all.

A network reads free coordinates of the last hour, or of the last hours, and gives those of the
coming one, which the twin turns into signals that obey their identities (coordinates.py). A twin is
fitted to train patients; the epoch that forecasts select patients best is kept. A level may be one
for the coming hour, as a decision is, or one for each of its samples, as it was recorded. The level
column of a forecast is the level of the hour as a whole; signals that the scale does not know are
NaN.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from stepdown.artifacts import config_to_dict, load_module, save_module
from stepdown.handover import Look, Transitions, advance, require_role, shown
from stepdown.patients.pump import load_profile, profile_names
from stepdown.problem.persistence import CarryForward, hour_level
from stepdown.problem.scaling import LEVEL_MEAN, LEVEL_SD, Scaler, blank_scaler, fit_scaler
from stepdown.signals import LEVEL, LEVELS, NAMES
from stepdown.training import FitConfig, fit, member, stack
from stepdown.twin.coordinates import Coordinates, blank_coordinates, fit_coordinates
from stepdown.twin.transformer import Fitted, Network, fitted_loss

KIND = "twin"
GIVES = "free coordinates of a pump on its map"  # older twins gave others, or z-scores
Base = Literal["direct", "last", "carried"]
State = Float[Array, "steps columns"]  # an hour
Past = Float[Array, "past columns"]  # the hours that a network reads, or more
Watch = Callable[[float], None]
Info = dict[str, np.ndarray]
Levels = Int[Array, "*samples"]  # one for the hour, or one for each sample
Rows = tuple[Float[Array, "n past used"], Float[Array, "n steps"], Float[Array, "n steps signals"]]


@dataclass(frozen=True, kw_only=True)
class TwinKind:
    """A kind of twin: a row of the table (twins.py)."""

    name: str
    words: str = shown()  # in tables
    look: Look = shown()  # in figures
    sizes: Any  # config of its network: the paper's where it gives any, else ours
    small: Any  # the same for two cores
    make: Callable[..., Network]  # make(steps, signals, sizes, *, key): one that knows nothing yet
    fit: Callable[
        ..., tuple[Sequence[Network], Info]
    ]  # fit(networks, rows, config, *, patients, ...)
    base: Base = "direct"  # what the network adds to: nothing, the last sample, persistence
    settle: Callable[..., Any] | None = None  # settle(twin, select, *, key): a last adjustment
    stride: float = 30.0  # min between two windows that it is fitted to


@dataclass(frozen=True)
class TwinConfig:
    """Which twin, and how it is fitted, by default as in the paper (Sec. 4.1)."""

    kind: TwinKind
    sizes: Any = None  # of its network; None: the kind's own
    base: Base | None = None  # what the network adds to; None: as usual for the kind
    profile: str = "cp"  # pump that persistence knows
    fit: FitConfig = FitConfig()  # of networks that bring none of their own

    def __post_init__(self):
        if self.sizes is None:
            object.__setattr__(self, "sizes", self.kind.sizes)
        if self.base is None:
            object.__setattr__(self, "base", self.kind.base)
        for name, value, known in (
            ("base", self.base, get_args(Base)),
            ("profile", self.profile, profile_names()),
        ):
            if value not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}.")

    @property
    def history(self) -> int:
        """Hours of a state that its network reads."""
        return getattr(self.sizes, "history", 1)


class Twin(eqx.Module):
    """Forecasts the coming hour under its levels; physical units in, physical units out.

    It reads one hour or several (`history`), and gives one: `handover.advance` goes on from there.
    """

    scaler: Scaler  # names the signals in use, and says how they vary
    coordinates: Coordinates  # of what the network reads and gives
    network: Network
    carry: CarryForward
    base: Base = eqx.field(static=True)
    steps: int = eqx.field(static=True)  # samples of an hour
    history: int = eqx.field(static=True, default=1)  # hours of a state that the network reads

    def __call__(self, state: Past, level: Levels, *, key: PRNGKeyArray) -> State:
        """Draw one possible next hour."""
        latent = self.network.encode(self.read(state))
        return self._hour(latent, state, level, key)

    def center(self, state: Past, level: Levels) -> State:
        """The point forecast: no dropout, no noise."""
        latent = self.network.encode(self.read(state))
        return self._hour(latent, state, level, None)

    def what_if(
        self, state: Past, levels: Int[Array, " plans *samples"], *, keys: Key[Array, " draws"]
    ) -> Float[Array, "plans draws steps columns"]:
        """Draws under several levels, the same luck for each; the history is encoded once."""
        latent = self.network.encode(self.read(state))
        draws = jax.vmap(lambda level, key: self._hour(latent, state, level, key), (None, 0))
        return jax.vmap(draws, (0, None))(levels, keys)

    @property
    def members(self) -> int:
        """How many models of the same records can be asked one by one; most networks are one."""
        return getattr(self.network, "members", 1) if hasattr(self.network, "member") else 1

    def member(self, number: Int[Array, ""]) -> "Twin":
        """The twin by one of them alone."""
        pick = getattr(self.network, "member", None)
        return self if pick is None else replace(self, network=pick(number))

    def ahead(
        self, seen: Float[Array, "past used"], level: Levels, *, key: PRNGKeyArray
    ) -> Float[Array, "past used"]:
        """What a network will see an hour later, from what it sees now (`read`).

        Whoever looks several hours ahead stays among coordinates and is shown samples where they
        are wanted.
        """
        levels = self.each(level)
        added = self.network.decode(self.network.encode(seen), level_score(levels), key=key)
        if self.base == "carried":
            base = self.base_free(self.shown(seen), levels)
        else:
            last = seen[-1:, :-1]
            base = last if self.base == "last" else jnp.zeros_like(last)
        free = base + self.coordinates.unit[None] * added
        return advance(seen, jnp.concatenate([free, level_score(levels)[:, None]], axis=1))

    def shown(self, seen: Float[Array, "past used"]) -> State:
        """The samples of the last hour that a network sees: `read` undone."""
        seen = seen[-self.steps :]
        levels = jnp.round(seen[:, -1] * LEVEL_SD + LEVEL_MEAN).astype(int)
        signals = self.coordinates.to_samples(seen[:, :-1], levels, self.carry.profile)
        column = jnp.broadcast_to(hour_level(levels), (self.steps, 1))
        return jnp.concatenate([signals, column], axis=1)

    def read(self, state: Past) -> Float[Array, "read used"]:
        """What a network sees of its hours: free coordinates, and the level of each sample.

        Of a longer state it reads the last hours.
        """
        if len(state) < self.history * self.steps:
            raise ValueError(
                f"expected a state of {self.history} h, which this twin reads, got "
                f"{len(state)} samples. Make the hours with a history of {self.history}."
            )
        state = state[-self.history * self.steps :]
        before = self.carry.levels_in_force(state)
        free = self.free(state, before)
        return jnp.concatenate([free, level_score(before)[:, None]], axis=1)

    def free(self, hour: Past, levels: Int[Array, " past"]) -> Float[Array, "past signals"]:
        """Free coordinates of an hour, each sample under its level."""
        return self.coordinates.to_free(hour, levels, self.carry.profile)

    def base_free(self, state: Past, level: Levels) -> Float[Array, "steps signals"]:
        """What the network's output is added to, as free coordinates."""
        levels = self.each(level)
        if self.base == "direct":
            return jnp.zeros((self.steps, len(self.scaler.present)))
        last = jnp.broadcast_to(self.read(state)[-1:, :-1], (self.steps, len(self.scaler.present)))
        if self.base == "last":
            return last
        carried = self.free(self.carry(state[-self.steps :], levels), levels)
        return jnp.where(jnp.isnan(carried), last, carried)  # a current without a flow

    def each(self, level: Levels) -> Int[Array, " steps"]:
        """The level of each coming sample."""
        return jnp.broadcast_to(level, (self.steps,))

    def _hour(self, latent, state: Past, level: Levels, key) -> State:
        levels = self.each(level)
        free = self.base_free(state, levels)
        added = self.network.decode(latent, level_score(levels), key=key)
        free = free + self.coordinates.unit[None] * added
        signals = self.coordinates.to_samples(free, levels, self.carry.profile)
        column = jnp.broadcast_to(hour_level(levels), (self.steps, 1))
        return jnp.concatenate([signals, column], axis=1)


def fit_twin(
    train: Transitions,
    select: Transitions,
    config: TwinConfig,
    *,
    key: PRNGKeyArray,
    watch: Watch = lambda share: None,
) -> tuple[Twin, Info]:
    """Fit to train patients, keep the epoch that select patients prefer.

    `info` holds the losses of each epoch and the mean squared error on select patients, in units
    of the free coordinates.

    >>> twin, info = sd.fit_twin(train, select, small, key=jr.key(0))
    >>> level = train.level[0]
    >>> twin(train.state[0], level, key=jr.key(1)).shape  # one possible next hour under this level
    (6, 13)
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
) -> tuple[list[Twin], Info]:
    """Twins side by side, one for each key; each comes out as if it had been fitted alone."""
    scaler = check_hours(train, select)
    check_history(config.history, train)
    steps = train.next_state.shape[-2]
    pairs = jax.vmap(jr.split)(keys)
    coordinates = fit_coordinates(train, scaler.present, load_profile(config.profile))
    made = [make_twin(scaler, coordinates, steps, config, key=k) for k in pairs[:, 0]]
    rows = twin_rows(made[0], train), twin_rows(made[0], select)
    patients = np.asarray(train.patient), np.asarray(select.patient)  # of the rows
    networks, info = config.kind.fit(
        [twin.network for twin in made], rows, config, patients=patients, keys=pairs, watch=watch
    )
    fitted = [replace(twin, network=x) for twin, x in zip(made, networks, strict=True)]
    if config.kind.settle is not None:
        pairs = zip(fitted, pairs[:, 1], strict=True)
        fitted = [config.kind.settle(twin, select, key=jr.fold_in(k, 1)) for twin, k in pairs]
    errors = [_select_error(twin.network, rows[1]) for twin in fitted]
    return fitted, info | {"select_mse": np.asarray(errors)}


def fit_networks(
    networks: list[Network],
    rows: tuple[Any, Any],  # of train and of select patients
    config: TwinConfig,
    *,
    patients: Any,
    keys: Key[Array, "members 2"],
    watch: Watch,
) -> tuple[list[Network], Info]:
    """How most networks are fitted: by their loss, all side by side."""
    start = stack([Fitted(network) for network in networks])
    best, info = fit(start, fitted_loss, rows, config.fit, key=keys[:, 1], watch=watch)
    return [member(best, i).network for i in range(len(keys))], info


def make_twin(
    scaler: Scaler, coordinates: Coordinates, steps: int, config: TwinConfig, *, key: PRNGKeyArray
) -> Twin:
    """A twin that has learned nothing yet."""
    network = config.kind.make(steps, len(scaler.present), config.sizes, key=key)
    assert config.base is not None
    carry = CarryForward(load_profile(config.profile))
    return Twin(scaler, coordinates, network, carry, config.base, steps, config.history)


@eqx.filter_jit
def twin_rows(twin: Twin, hours: Transitions) -> Rows:
    """All a network is fitted to: the hour it reads, the coming levels, what is to be added."""

    def one(state, levels, later):
        target = twin.free(later, levels) - twin.base_free(state, levels)
        return twin.read(state), level_score(levels), target / twin.coordinates.unit[None]

    return jax.vmap(one)(hours.state, hours.levels, hours.next_state)


def level_score(level: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """The z-score of a level."""
    return (level - LEVEL_MEAN) / LEVEL_SD


@eqx.filter_jit
def _select_error(network: Network, rows: Rows) -> Float[Array, ""]:
    """Mean squared error of the center, in units of the coordinates."""

    def one(row):
        scores, levels, target = row
        return jnp.mean((network.decode(network.encode(scores), levels, key=None) - target) ** 2)

    return jnp.mean(jax.lax.map(one, rows, batch_size=min(1024, len(rows[1]))))


# ── what cannot be forecast from is refused in words ─────────────────────────────────────────────


def check_hours(train: Transitions, select: Transitions) -> Scaler:
    """The scale of the train patients, if every row of both can be used with it."""
    require_role(train, "train")
    require_role(select, "select")
    for hours in (train, select):
        if not hours.level.size:
            raise ValueError(f"expected hours of {hours.role} patients, got none. Bring more.")
    widths = train.state.shape[-2], select.state.shape[-2]
    if widths[0] != widths[1]:
        raise ValueError(
            f"expected states of {widths[0]} samples, as the train patients have, got "
            f"{widths[1]} from the select patients. Cut both in the same way."
        )
    scaler = fit_scaler(train)
    for hours in (train, select):
        for part in (hours.state, hours.next_state):
            check_known(np.asarray(part), scaler, f"{hours.role} patients")
    return scaler


def check_history(history: int, hours: Transitions) -> None:
    """Refuse states of more or fewer hours than a twin is to read."""
    if history != hours.history:
        raise ValueError(
            f"expected states of {history} h, which the twin is to read, got states of "
            f"{hours.history} h. Make the hours with a history of {history}."
        )


def check_known(states: np.ndarray, scaler: Scaler, whose: str) -> None:
    """Refuse states with a gap in a signal that is needed, or without it."""
    for column, name in zip((*scaler.present, LEVEL), (*scaler.names, "level"), strict=True):
        if np.isnan(states[..., column]).all():
            raise ValueError(
                f"expected {name} in the hours of {whose}, got none. "
                "A twin needs every signal that it is fitted on; fit it without this one."
            )
        if not np.isfinite(states[..., column]).all():
            raise ValueError(
                f"expected finite {name} in every sample of {whose}, got NaN or infinity. "
                "Drop these hours or carry the last value forward."
            )


def check_state(twin: Twin, state: np.ndarray | Array, wanted: tuple[str, ...] = ()) -> None:
    """Refuse, on the host, what the twin would answer with NaN: compiled code cannot complain.

    `wanted` names signals that the forecast must hold.
    """
    shape = (twin.history * twin.steps, len(twin.scaler.columns) + 1)
    if state.shape[-2:] != shape:
        raise ValueError(
            f"expected a state of {shape[0]} samples ({twin.history} h) and {shape[1]} columns, "
            f"got {tuple(state.shape)}. Cut the window as for fitting."
        )
    known = twin.scaler.names
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(
            f"expected signals that the twin was fitted on ({', '.join(known)}), got "
            f"{unknown[0]}. Fit a twin on recordings that hold it."
        )
    check_known(np.asarray(state), twin.scaler, "the patient")
    levels = np.asarray(state)[..., LEVEL]
    if not np.isin(levels, LEVELS).all():
        odd = levels[~np.isin(levels, LEVELS)][0]
        raise ValueError(f"expected whole levels 2 to 9 in force, got {odd:g}. Round the level.")


# ── saved ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class SavedTwin:
    """What must be known to rebuild a twin before its numbers are read."""

    model: str  # name of its kind
    sizes: dict[str, Any]
    base: str
    profile: str
    fit: FitConfig
    steps: int
    present: tuple[int, ...]  # columns of the signals in use
    gives: str = GIVES  # what the numbers of its network mean
    columns: tuple[str, ...] = NAMES  # of the recordings that it was fitted on


def save_twin(path: Path, twin: Twin, config: TwinConfig, *, seed: int | None = None) -> None:
    """Save a twin with the config that it was fitted with."""
    saved = SavedTwin(
        model=config.kind.name,
        sizes=config_to_dict(config.sizes),
        base=twin.base,
        profile=config.profile,
        fit=config.fit,
        steps=twin.steps,
        present=twin.scaler.present,
        columns=twin.scaler.columns,
    )
    save_module(path, twin, config=saved, kind=KIND, seed=seed)


def read_saved(path: Path, config: TwinConfig, about: SavedTwin) -> Twin:
    """The numbers of a saved twin into the shape that it says it has."""

    def empty() -> Twin:
        scaler = blank_scaler(about.present, about.columns)
        coordinates = blank_coordinates(about.present, about.columns)
        return make_twin(scaler, coordinates, about.steps, config, key=jr.key(0))

    return load_module(path, eqx.filter_eval_shape(empty), kind=KIND)
