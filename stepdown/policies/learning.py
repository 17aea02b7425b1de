"""One trainer for every method: watched, saved, stopped and gone on with, one policy per seed.

A method learns by a function `learn(task, config, *, keys, watch)`. Methods that improve networks
update by update describe themselves as a `Loop`, and `run_loop` drives it: seeds side by side on a
GPU, in turn on a CPU, where a call takes a second or two, so that a signal need not wait. A
training state is a plain tree of arrays, and all randomness follows from the key and the number of
updates done: a saved state goes on to the same result.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key

from stepdown.handover import (
    Dynamics,
    Look,
    Penalty,
    Policy,
    Transitions,
    hours_read,
    require_one_hour,
    require_role,
    shown,
)
from stepdown.policies.constraint import Constrained
from stepdown.policies.half_done import load_training, save_training
from stepdown.policies.networks import LearnedPolicy
from stepdown.policies.penalties import PenaltyName
from stepdown.policies.rows import View
from stepdown.policies.sac import Learner
from stepdown.problem.scaling import Scaler, check_width, fit_scaler
from stepdown.signals import HIGHEST, LEVELS, LOWEST

CHUNK = 250  # updates in one call on a CPU: one or two seconds
AT_ONCE = 8  # seeds rolled out at a time, so that memory stays small

Info = dict[str, np.ndarray]
Config = TypeVar("Config")


Changes = Mapping[str, Any]  # of a recipe, by field, such as "sac.discount"


@dataclass(frozen=True)
class Shrink:
    """Smaller trainings for a quick look; the settings themselves stay."""

    updates: int
    rollout_every: int  # updates of an epoch
    batch: int
    widths: tuple[int, ...]
    rollouts: int  # rows started per rollout
    epochs: int  # of cloning


@runtime_checkable
class Recipe(Protocol):
    """The config of a method: any frozen dataclass that can be made small."""

    @property
    def constrained(self) -> bool:
        """Whether the policy is held to the allowed levels (constraint.py)."""
        ...

    def shrunk(self, size: Shrink) -> "Recipe":
        """The same for a quick look."""
        ...


def as_it_is(base: Any) -> Any:
    """The numbers of a setting, unchanged."""
    return base


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to learn a policy: a row of the table (methods.py)."""

    name: str
    words: str = shown()  # in tables
    look: Look = shown()  # in figures
    group: Literal["paper", "parts", "peers", "twin", "planning", "expert"] = (
        shown()
    )  # of the tables
    learn: Callable[..., tuple[Policy, Info]]  # learn(task, config, *, keys, watch)
    recipe: Callable[[Any], Recipe] = as_it_is  # its config, from the numbers of a setting
    trials: tuple[Changes, ...] = shown(({},))  # of a search, which tells each; first: the recipe
    dynamics: Literal["ensemble", "twin", "ridge"] | None = "ensemble"  # to learn or plan in
    penalty: PenaltyName = "none"
    weight: float | None = None  # lambda, where it is not that of the setting
    density: str | None = None  # of the guardian that it needs
    shaped: bool = False  # the reward charges jumps


def apply_changes(recipe: Config, changes: Changes) -> Config:
    """The recipe with some fields changed; "sac.discount" is a field of its field `sac`."""
    known = {field.name for field in fields(recipe)} if is_dataclass(recipe) else set()
    made: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        if first not in known:
            raise ValueError(f"expected one of {', '.join(sorted(known))}, got {first!r}.")
        if rest:
            inner.setdefault(first, {})[rest] = value
        else:
            made[first] = value
    made |= {first: apply_changes(getattr(recipe, first), own) for first, own in inner.items()}
    return replace(recipe, **made)  # pyright: ignore[reportArgumentType]


class Task(eqx.Module):
    """What a policy is learned from; a method that needs no model is given none.

    >>> task = sd.Task(train, select, dynamics=ensemble, guardian=guardian)
    """

    hours: Transitions  # of train patients
    select: Transitions
    dynamics: Dynamics | None = None  # what would happen: an ensemble, or a twin
    guardian: Penalty | None = None  # have we seen this?
    penalty: PenaltyName = eqx.field(static=True, default="none")  # what a choice is charged for


@dataclass(frozen=True)
class Epoch:
    """What one epoch brought; leaves lead with the seeds if there are several."""

    seeds: tuple[int, ...]  # their places among all
    number: int  # from 1
    updates: int  # done so far
    share: float  # of the whole training of these seeds
    info: Info
    policies: Policy

    def of(self, place: int) -> tuple[Info, Policy]:
        """The numbers and the policy of one of the seeds."""
        if len(self.seeds) == 1:
            return self.info, self.policies
        return jax.tree.map(lambda x: x[place], (self.info, self.policies))


class TrainingStoppedError(Exception):
    """Somebody asked a training to end; what was done is saved."""


@dataclass(frozen=True)
class Watch:
    """What a training tells while it runs, where it keeps itself, and whether it should end."""

    tell: Callable[[Epoch], None] = lambda epoch: None
    stopping: Callable[[], bool] = lambda: False
    folder: Path | None = None  # for half-done trainings; None: they are not kept
    seconds: float = 20.0  # least time between two saves, which come at the end of an epoch

    def check(self) -> None:
        """Leave if somebody asked for it."""
        if self.stopping():
            raise TrainingStoppedError


ALONE = Watch()


@runtime_checkable
class Loop(Protocol):
    """A training in pieces; keys with an axis train that many seeds side by side."""

    @property
    def updates(self) -> int:
        """In all."""
        ...

    @property
    def every(self) -> int:
        """Updates of an epoch."""
        ...

    def begin(self, *, key: Key[Array, "*seeds"]) -> Any:
        """The state before the first update, with what an epoch reports in `tally`."""
        ...

    def advance(self, training: Any, done: int, *, key: Key[Array, "*seeds"]) -> tuple[Any, int]:
        """Some updates more; the old state is used up."""
        ...

    def finish(self, training: Any) -> Policy:
        """The policy as it is; its leaves lead with the seeds if there are several."""
        ...


class HalfDone(eqx.Module):
    """A training between two epochs, and the curves so far."""

    training: Any
    curves: Mapping[str, np.ndarray | Array]  # (epochs, ...)


def run_loop(
    make_loop: Callable[[Key[Array, "*seeds"]], tuple[Loop, Key[Array, "*seeds"]]],
    *,
    key: Key[Array, "*seeds"],
    watch: Watch = ALONE,
) -> tuple[Policy, Info]:
    """Train a policy, or one for each key; curves are (epochs,) or (epochs, seeds).

    `make_loop` is called with the keys that are trained together; it may keep some luck to itself
    and hands on the keys of the loop.
    """
    if not key.ndim:
        return _run(*make_loop(key), (0,), watch)
    if jax.default_backend() != "cpu" and len(key) > 1:
        key = spread_seeds(key) if len(key) <= AT_ONCE else key
        return _run(*make_loop(key), tuple(range(len(key))), watch)
    runs = [_run(*make_loop(one), (place,), watch) for place, one in enumerate(key)]
    policies = jax.tree.map(lambda *xs: jnp.stack(xs), *[policy for policy, _ in runs])
    curves = jax.tree.map(lambda *xs: np.stack(xs, axis=1), *[info for _, info in runs])
    return policies, curves


def _run(loop: Loop, key, seeds: tuple[int, ...], watch: Watch) -> tuple[Policy, Info]:
    """Train one seed, or several side by side, from the newest saved state."""
    folder = None if watch.folder is None else watch.folder / f"state-{seeds[0]}"
    state, done = _resume(loop, key, folder)
    training, curves = state.training, {name: np.array(x) for name, x in state.curves.items()}
    saved = time.monotonic()
    while done < loop.updates:
        training, done = loop.advance(training, done, key=key)
        jax.block_until_ready(training.tally)  # a signal must not wait for a queue of programs
        if done % loop.every == 0:
            number = done // loop.every
            for name, value in training.tally.items():
                curves[name][number - 1] = value
            now = {name: np.asarray(x[number - 1]) for name, x in curves.items()}
            share = done / loop.updates
            watch.tell(Epoch(seeds, number, done, share, now, loop.finish(training)))
        stopping, ended = watch.stopping(), done == loop.updates
        due = done % loop.every == 0 and time.monotonic() - saved >= watch.seconds
        if folder and (stopping or ended or due):
            save_training(folder, HalfDone(training, curves), done)
            saved = time.monotonic()
        if stopping:
            raise TrainingStoppedError
    return loop.finish(training), curves


def _resume(loop: Loop, key, folder: Path | None) -> tuple[HalfDone, int]:
    """The newest saved state, or a new one."""

    def begin() -> HalfDone:
        training = loop.begin(key=key)
        epochs = loop.updates // loop.every
        empty = {name: jnp.zeros((epochs, *x.shape)) for name, x in training.tally.items()}
        return HalfDone(training, empty)

    found = folder and load_training(folder, lambda: eqx.filter_eval_shape(begin))
    return found or (begin(), 0)


# ── seeds ────────────────────────────────────────────────────────────────────────────────────────


def fold_seeds(key: Key[Array, "*seeds"], number: int) -> Key[Array, "*seeds"]:
    """The key of a numbered epoch, for every seed."""
    return jax.vmap(lambda k: jr.fold_in(k, number))(key) if key.ndim else jr.fold_in(key, number)


def split_seeds(key: Key[Array, "*seeds"]) -> tuple[Key[Array, "*seeds"], Key[Array, "*seeds"]]:
    """Two keys out of one, for every seed."""
    pairs = jax.vmap(jr.split)(key) if key.ndim else jr.split(key)
    return pairs[..., 0], pairs[..., 1]


def spread_seeds(key: Key[Array, " seeds"]) -> Key[Array, " seeds"]:
    """Lay the seeds over this machine's devices, over as many as share them evenly.

    What is computed from the keys follows them, so that no device waits for another; five seeds
    use five of eight GPUs, one of two.
    """
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if len(key) % n == 0)
    if count == 1:
        return key
    mesh = Mesh(np.asarray(devices[:count]), ("seeds",))
    return jax.device_put(key, NamedSharding(mesh, PartitionSpec("seeds")))


def updates_per_call(every: int) -> int:
    """Updates of one call out of an epoch of `every`; it does not change the result."""
    if jax.default_backend() != "cpu":
        return every
    return next(size for size in range(min(CHUNK, every), 0, -1) if every % size == 0)


def to_policy(learner: Learner, view: View) -> Policy:
    """The policy as it is; its leaves lead with the seeds if there are several."""

    def one(learner: Learner) -> Policy:
        learned = LearnedPolicy(view.scaler, learner.actor)
        return Constrained(learned, view.clinical) if view.constrained else learned

    several = learner.log_temperature.ndim > 0
    return jax.vmap(one)(learner) if several else one(learner)


# ── what cannot be learned from is refused in words, before any long work ────────────────────────


def check_hours(hours: Transitions, *, varied: bool = True, planned: bool = False) -> None:
    """Recorded hours of train patients with rewards and, if `varied`, more than one level.

    Only what is `planned` may read states of several hours.
    """
    require_role(hours, "train")
    if not planned:
        require_one_hour(hours, "a learned policy")
    if len(hours.level) == 0:
        raise ValueError("expected recorded hours, got none. Make transitions of longer stays.")
    levels = np.unique(np.asarray(hours.level))
    if odd := sorted(set(levels.tolist()) - set(LEVELS)):
        raise ValueError(f"expected levels {LOWEST} to {HIGHEST}, got {odd[0]}. Correct the level.")
    if varied and len(levels) < 2:
        raise ValueError(
            f"expected records with more than one level, got P{levels[0]} alone. "
            "Nothing can be learned about other levels."
        )
    if not np.isfinite(np.asarray(hours.unshaped)).all():
        raise ValueError(
            "expected finite rewards, got NaN or infinity. Drop the hours that lack a signal "
            "which the reward needs."
        )


def check_pace(config: Any, every: str) -> None:
    """Refuse updates that are none or no whole epochs; `every` names the updates of one epoch."""
    epoch = getattr(config, every)
    if min(config.updates, epoch, config.batch, *config.widths) < 1:
        raise ValueError(
            f"expected updates, {every}, batch and widths of at least 1, got "
            f"{config.updates}, {epoch}, {config.batch} and {config.widths}."
        )
    if config.updates % epoch:
        raise ValueError(
            f"expected whole epochs, got {config.updates} updates in epochs of {epoch}. "
            "Change one of them."
        )


def check_pair(hours: Transitions, select: Transitions, *, planned: bool = False) -> Scaler:
    """The scale of the train patients, if select patients can be read with it."""
    check_hours(hours, planned=planned)
    require_role(select, "select")
    if len(select.level) == 0:
        raise ValueError("expected hours of select patients, got none. Bring more patients.")
    if select.state.shape[1] != hours.state.shape[1]:
        raise ValueError(
            f"expected states of {hours.state.shape[1]} samples, as the train patients have, got "
            f"{select.state.shape[1]} from the select patients. Cut both in the same way."
        )
    scaler = fit_scaler(hours)
    if lacking := _lacking(select, scaler):
        raise ValueError(
            f"expected {lacking} in every select hour, as in the train hours, got empty "
            "samples. Drop these hours."
        )
    return scaler


def check_dynamics(dynamics: Dynamics, hours: Transitions) -> None:
    """Dynamics that know the signals of these hours and their number of samples."""
    steps = getattr(dynamics, "steps", None)
    if steps not in (None, hours.next_state.shape[1]):
        raise ValueError(
            f"expected hours of {steps} samples, which the dynamics use, got "
            f"{hours.next_state.shape[1]}. Fit the dynamics on the same records."
        )
    if hours_read(dynamics) != hours.history:
        raise ValueError(
            f"expected states of {hours_read(dynamics)} h, which the dynamics read, got states of "
            f"{hours.history} h. Make the hours with a history of {hours_read(dynamics)}."
        )
    scaler = getattr(dynamics, "scaler", None)
    if scaler is None:  # nothing was fitted, so any signals will do
        return
    check_width(hours.state, scaler.columns)
    if lacking := _lacking(hours, scaler):
        raise ValueError(
            f"expected hours with {lacking}, which the dynamics use, got empty samples. "
            "Fit the dynamics on the same records."
        )


def _lacking(hours: Transitions, scaler: Scaler) -> str | None:
    """The first signal of a scale that is empty somewhere in these hours."""
    known = np.asarray(np.isfinite(np.asarray(hours.state)).all((0, 1)))
    return next((scaler.columns[i] for i in scaler.present if not known[i]), None)
