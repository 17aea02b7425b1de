"""Physical units outside, z-scores inside: the one scale that models share.

A scale is fitted to train patients alone. It names the signals that it knows: one that is empty
in any train hour is left out, and a model that owns the scale never sees it. It also knows how the
signals go together, so that a patient who lacks some can still be answered (filling.py).
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stepdown.handover import Transitions, require_role
from stepdown.problem.filling import (
    Relations,
    absent_signals,
    blank_relations,
    expect_scores,
    fit_relations,
    keep_identities,
)
from stepdown.signals import LEVEL, LEVELS, MARKS, NAMES, REQUIRED

LEVEL_MEAN, LEVEL_SD = float(np.mean(LEVELS)), float(np.std(LEVELS))  # of the choice, not of use


class Scaler(eqx.Module):
    """Mean and standard deviation of each signal over the train patients' samples."""

    mean: Float[Array, " signals"]  # 0 where the signal is not present
    sd: Float[Array, " signals"]  # 1 where the signal is not present
    present: tuple[int, ...] = eqx.field(static=True)  # columns of the signals in use
    columns: tuple[str, ...] = eqx.field(static=True, default=NAMES)  # of signals.KNOWN
    relations: Relations | None = None  # None: of a scale made by hand, which fills nothing

    @property
    def names(self) -> tuple[str, ...]:
        """The signals in use."""
        return tuple(self.columns[i] for i in self.present)

    def to_scores(self, state: Float[Array, "steps columns"]) -> Float[Array, "steps used"]:
        """The present signals as z-scores, then the level on the same footing."""
        check_width(state, self.columns)
        used, (mean, sd) = self._used, self._scale
        return (state[:, used] - mean[None]) / sd[None]

    def to_units(self, scores: Float[Array, "steps used"]) -> Float[Array, "steps columns"]:
        """Back to a state in physical units; absent signals are NaN."""
        used, (mean, sd) = self._used, self._scale
        state = jnp.full((len(scores), len(self.columns) + 1), jnp.nan)
        return state.at[:, used].set(scores * sd[None] + mean[None])

    def fill(self, state: Float[Array, "steps columns"]) -> Float[Array, "steps columns"]:
        """The state with signals in use that are NaN filled from the others; all else as it is.

        A required signal stays NaN, and so does all that would be filled from it: `absent` refuses
        such a state in words.
        """
        check_width(state, self.columns)
        if self.relations is None:
            return state
        hour, level = state[:, :LEVEL], state[-1, LEVEL]
        place = np.arange(len(self.columns))
        used, needed = np.isin(place, self.present), np.isin(place, REQUIRED)
        gone = jnp.isnan(hour).any(0) & jnp.asarray(used & ~needed)
        scores = (hour - self.mean[None]) / self.sd[None]
        found = expect_scores(self.relations, scores, level, jnp.asarray(used) & ~gone)
        empty = jnp.isnan(hour) & gone[None]
        found = jnp.where(empty, found * self.sd[None] + self.mean[None], hour)
        found = keep_identities(found, gone, self.columns)
        return state.at[:, :LEVEL].set(jnp.where(empty, found, hour))

    def absent(self, states: Float[Array, "*n steps columns"]) -> tuple[str, ...]:
        """Signals in use that these states lack; refused where they cannot be filled."""
        check_width(states, self.columns)
        return absent_signals(states, self.columns, self.present)

    @property
    def _used(self) -> np.ndarray:
        return np.append(np.array(self.present), len(self.columns))

    @property
    def _scale(self):
        used = np.array(self.present)
        return jnp.append(self.mean[used], LEVEL_MEAN), jnp.append(self.sd[used], LEVEL_SD)


def blank_scaler(present: tuple[int, ...], columns: tuple[str, ...]) -> Scaler:
    """A scale of the right shape and any content, for what is about to be read."""
    count = len(columns)
    return Scaler(jnp.zeros(count), jnp.ones(count), present, columns, blank_relations(count))


def check_width(state: np.ndarray | Array, columns: tuple[str, ...]) -> None:
    """Refuse states of other columns than a model was made with."""
    if state.shape[-1] != len(columns) + 1:
        raise ValueError(
            f"expected states of {len(columns) + 1} columns ({', '.join(columns)}, level), got "
            f"{state.shape[-1]}. Pass hours as make_transitions makes them, of the recordings that "
            "the model was fitted on or of others with the same columns."
        )


def fit_scaler(hours: Transitions) -> Scaler:
    """The scale of train patients; anybody else is refused."""
    require_role(hours, "train")
    count = len(hours.columns)
    states = np.asarray(hours.hour, np.float64)
    samples = states[..., :LEVEL].reshape(-1, count)
    known = np.flatnonzero(np.isfinite(samples).all(0))
    present = tuple(int(i) for i in known if hours.columns[i] not in MARKS)
    if lacking := [NAMES[i] for i in REQUIRED if i not in present]:
        raise ValueError(
            f"expected {lacking[0]} in every train hour, got empty samples. "
            "Make the hours with make_transitions, which drops what cannot be used."
        )
    mean, sd = np.zeros(count), np.ones(count)
    used = list(present)
    mean[used], spread = samples[:, used].mean(0), samples[:, used].std(0)
    sd[used] = np.where(spread > 0, spread, 1.0)  # a constant signal carries no scale
    scores = np.zeros((*states.shape[:2], count))
    scores[..., used] = (states[..., used] - mean[used]) / sd[used]
    relations = fit_relations(scores, states[:, -1, LEVEL])
    mean, sd = (jnp.asarray(x, jnp.float32) for x in (mean, sd))
    return Scaler(mean, sd, present, hours.columns, relations)
