"""The types that folders hand to one another, with shapes. Physical units throughout.

What is made of one folder's own parts stays there: a simulated patient and the starts that hold
one, a fitted twin, a guardian.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from stepdown.signals import HIGHEST, LOWEST, NAMES

Arrays = Array | np.ndarray
Role = Literal["all", "train", "select", "test"]
DataName = Literal["recorded", "noiseless", "noisy"]  # what policies learn from
SettingName = Literal["ours", "paper"]  # whose numbers they learn with


@dataclass(frozen=True)
class Look:
    """How a line of a figure is drawn."""

    color: str
    dash: Any = "-"  # as Matplotlib has it
    marker: str = "o"


def shown(default: Any = dataclasses.MISSING) -> Any:
    """A field of a table's row that only people see: no result depends on it."""
    return dataclasses.field(default=default, metadata={"shown": True})


class Cohort(eqx.Module):
    """Recorded stays on one regular time grid."""

    signals: Float[Array, "patients steps signals"]  # `columns`; NaN where nothing was measured
    level: Int[Array, "patients steps"]  # P-level in force during the sample
    seen: Bool[Array, "patients steps"]  # the stay covers this sample
    patient: tuple[str, ...] = eqx.field(static=True)  # pseudonyms
    minutes: float = eqx.field(static=True, default=10.0)  # between two samples
    role: Role = eqx.field(static=True, default="all")
    columns: tuple[str, ...] = eqx.field(static=True, default=NAMES)  # of signals.KNOWN
    died: Bool[Array, " patients"] | None = None  # at the end of the stay; None: nobody told


class Transitions(eqx.Module):
    """Hours of care: what was seen, what was set, what came next.

    A state is one hour of samples, or several in a row, the newest last; `next_state` is always the
    one hour that came. `advance` makes the next longer state of both.
    """

    state: Float[Array, "*n past columns"]  # `columns` and the level in force in each hour
    level: Int[Array, "*n"]  # P-level 2..9 of the coming hour as a whole: the decision
    levels: Int[Array, "*n steps"]  # in force during each sample of the coming hour
    reward: Float[Array, "*n"]  # shaped, to learn from
    unshaped: Float[Array, "*n"]  # physiological, to report
    next_state: Float[Array, "*n steps columns"]
    last: Bool[Array, "*n"]  # the record ends, or breaks off, with this hour
    died: Bool[Array, "*n"]  # ... for the patient died in this hour or in the next: no hour follows
    filled: Bool[Array, "*n"]  # a sample of either state was carried forward
    patient: Int[Array, "*n"]  # row of the cohort
    role: Role = eqx.field(static=True)
    columns: tuple[str, ...] = eqx.field(static=True, default=NAMES)  # of signals.KNOWN

    @property
    def history(self) -> int:
        """How many hours a state holds."""
        return self.state.shape[-2] // self.next_state.shape[-2]

    @property
    def hour(self) -> Float[Array, "*n steps columns"]:
        """The last hour of every state."""
        return self.state[..., -self.next_state.shape[-2] :, :]

    @property
    def changed(self) -> Bool[np.ndarray, "*n"]:
        """Whether the level changed inside the coming hour."""
        levels = np.asarray(self.levels)
        return (levels != levels[..., :1]).any(-1)


class Hours(eqx.Module):
    """The recorded hours of a cohort, by the role of their patients."""

    train: Transitions
    select: Transitions
    test: Transitions
    sliding: Transitions  # of train patients, every half hour: what twins are fitted to


class Episodes(eqx.Module):
    """Decisions played out hour by hour from given starts."""

    state: Float[Array, "*n times steps columns"]  # state[0] is the hour before the first decision
    level: Int[Array, "*n times"]  # level[0] was in force before the first decision
    alive: Bool[Array, "*n times-1"]  # through the hour that followed the decision


# How episodes went, by metric of problem/metrics.py.
Scores = Mapping[str, Array | np.ndarray]


class Judged(eqx.Module):
    """One method's episodes; rules, clinicians and the look-ahead have one seed."""

    scores: Scores  # leaves (seeds, episodes), on the host
    level: Int[np.ndarray, "seeds episodes times"]  # level[..., 0] was in force before
    row: Int[np.ndarray, " episodes"]  # patient: the unit of any bootstrap

    @property
    def level_shares(self) -> Float[np.ndarray, " 8"]:
        """Share of the decisions for each level P2..P9."""
        chosen = self.level[..., 1:].ravel().astype(int)
        return np.bincount(chosen - LOWEST, minlength=HIGHEST - LOWEST + 1) / len(chosen)


class Moments(eqx.Module):
    """Recorded hours from which episodes in a twin begin, each with its own luck."""

    state: Float[Array, "n past columns"]
    row: Int[Array, " n"]  # patient
    key: Key[Array, " n"]


@runtime_checkable
class Policy(Protocol):
    """Log-probabilities of the eight levels P2..P9 for one state."""

    def __call__(self, state: Float[Array, "past columns"], /) -> Float[Array, " 8"]:
        """Weigh the levels."""
        ...


@runtime_checkable
class Dynamics(Protocol):
    """One possible next hour under a level.

    Twins also take one level for each sample of the hour; whoever decides hands one. Dynamics that
    read more than the last hour of a state say how many as `history` (`hours_read`).
    """

    def __call__(
        self, state: Float[Array, "past columns"], level: Int[Array, ""], /, *, key: PRNGKeyArray
    ) -> Float[Array, "steps columns"]:
        """Draw the hour."""
        ...


@runtime_checkable
class Penalty(Protocol):
    """What it costs to choose this level here."""

    def __call__(
        self, state: Float[Array, "steps columns"], level: Int[Array, ""], /
    ) -> Float[Array, ""]:
        """Charge the choice."""
        ...


def hours_read(model: Any) -> int:
    """How many hours of a state a policy or dynamics read; one, unless they say otherwise."""
    return getattr(model, "history", 1)


def advance(
    state: Float[Arrays, "*n past columns"], hour: Float[Arrays, "*n steps columns"]
) -> Float[Arrays, "*n past columns"]:
    """The state an hour later: the hour comes in, the oldest one leaves."""
    if state.shape[-2] == hour.shape[-2]:
        return hour
    return jnp.concatenate([state[..., hour.shape[-2] :, :], hour], axis=-2)


def require_one_hour(data: Transitions, who: str) -> None:
    """Refuse states of several hours where nobody reads more than the last."""
    if data.history > 1:
        raise ValueError(
            f"expected states of one hour, which is all that {who} reads, got {data.history} "
            "hours. Make the transitions with a history of 1."
        )


def require_role(data: Cohort | Transitions, role: Role) -> None:
    """Refuse patients that must not be seen here."""
    if data.role != role:
        raise ValueError(
            f"expected {role} patients, got {data.role} patients. "
            "Using them here would leak into the reported scores."
        )
