"""Learning from recorded rows alone: the loop of the methods that imagine nothing (SVR, CQL).

It is the actor-critic of the other methods (sac.py) on batches of recorded rows; what makes a
method is the term that it adds to the critics' cost. The loop comes in pieces (`Setting`), which
learning.py drives.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, Key

from stepdown.handover import Policy
from stepdown.policies.learning import fold_seeds, to_policy, updates_per_call
from stepdown.policies.rows import View
from stepdown.policies.sac import Batch, Learner, Rates, begin_learner, unpack, update

NUMBERS = ("critic_loss", "entropy", "value", "temperature")


@runtime_checkable
class Term(Protocol):
    """What a method adds to the critics' cost, as `sac.update` takes it."""

    own: Any  # what belongs to one seed; leads with the seeds if there are several

    def __call__(self, critics: Float[Array, "2 n 8"], batch: Batch, /) -> Float[Array, ""]:
        """The cost of these values."""
        ...


@dataclass(frozen=True)
class Pace:
    """How much is learned."""

    updates: int
    every: int  # updates of an epoch
    batch: int
    widths: tuple[int, ...]


def make_pace(config: Any) -> Pace:
    """The pace of a config that has these numbers."""
    return Pace(config.updates, config.report_every, config.batch, config.widths)


class Setting(eqx.Module):
    """Everything that stays as it is during a training."""

    recorded: Float[Array, "recorded columns"]  # packed rows (sac.py)
    term: Term
    view: View
    rates: Rates
    inputs: int = eqx.field(static=True)
    pace: Pace = eqx.field(static=True)

    @property
    def updates(self) -> int:
        """In all."""
        return self.pace.updates

    @property
    def every(self) -> int:
        """Updates of an epoch."""
        return self.pace.every

    def begin(self, *, key: Key[Array, "*seeds"]) -> "Training":
        """Fresh networks, as they are before the first update."""
        return _begin(self, fold_seeds(key, 0))

    def advance(
        self, training: "Training", done: int, *, key: Key[Array, "*seeds"]
    ) -> tuple["Training", int]:
        """Some updates more; `done` counts the updates so far. The old state is used up."""
        number, first = divmod(done, self.every)
        count = min(updates_per_call(self.every), self.every - first)
        lesson = _Lesson(self, jnp.asarray(first), fold_seeds(key, number + 1))
        return _improve(lesson, training, count), done + count

    def finish(self, training: "Training") -> Policy:
        """The policy as it is; its leaves lead with the seeds if there are several."""
        return to_policy(training.learner, self.view)


class Training(eqx.Module):
    """Everything that a training changes."""

    learner: Learner
    tally: dict[str, Array]  # means over the epoch so far


@eqx.filter_jit
def _begin(setting: Setting, key) -> Training:
    def one(key):
        learner = begin_learner(setting.inputs, setting.pace.widths, setting.rates, key=key)
        return Training(learner, {name: jnp.zeros(()) for name in NUMBERS})

    return jax.vmap(one)(key) if key.ndim else one(key)


class _Lesson(eqx.Module):
    """Updates to make."""

    setting: Setting
    first: Int[Array, ""]  # update of the epoch
    key: Key[Array, "*seeds"]


@eqx.filter_jit(donate="all-except-first")
def _improve(lesson: _Lesson, training: Training, count: int) -> Training:
    setting, key, first = lesson.setting, lesson.key, lesson.first
    every, rows = setting.every, len(setting.recorded)

    def one(training, key, own):
        term: Any = replace(setting.term, own=own)  # pyright: ignore[reportArgumentType]
        table: Int[Array, "updates batch"] = jr.randint(key, (every, setting.pace.batch), 0, rows)
        chosen = jax.lax.dynamic_slice_in_dim(table, first, count)

        def step(learner, index):
            batch = unpack(setting.recorded[index])
            return update(learner, batch, setting.rates, term)

        learner, infos = jax.lax.scan(step, training.learner, chosen)
        kept = first > 0  # an epoch begins with an empty tally
        tally = {
            name: kept * old + jnp.sum(infos[name]) / every for name, old in training.tally.items()
        }
        return Training(learner, tally)

    parts = training, key, setting.term.own
    return jax.vmap(one)(*parts) if key.ndim else one(*parts)
