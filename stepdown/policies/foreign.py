"""A policy that somebody else wrote: a function of arrays, asked on the host.

It is given the hours of many patients at once, (n, samples, columns) in physical units, and answers
with a level for each, (n,), or with eight scores for each, (n, 8), of which the highest counts. The
wrapped function is a policy like any other, so every judge sees it as it sees ours. JAX asks the
function in the middle of a compiled program, where an error would be lost or wrapped; so it is kept
here, and whoever judges asks `complain` before a number is believed.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stepdown.policies.constraint import NEVER
from stepdown.signals import HIGHEST, LEVELS, LOWEST

HourlyFunction = Callable[[np.ndarray], Any]  # (n, samples, columns) to (n,) or (n, 8)
TRIED = 64  # hours that a function is tried on before it is judged


class ForeignPolicyError(ValueError):
    """A policy that cannot be judged, and why."""


class Asked:
    """A function with what it did wrong, if anything, while it was asked."""

    def __init__(self, function: HourlyFunction, name: str):
        self.function, self.name = function, name
        self.wrong: ForeignPolicyError | None = None

    def __call__(self, states: Any) -> np.ndarray:
        """Weights of the eight levels, (..., 8); of a wrong answer something harmless."""
        states = np.asarray(states, np.float64)
        rows = states.reshape(-1, *states.shape[-2:])
        try:
            weights = self.weigh(rows)
        except ForeignPolicyError as error:
            self.wrong = self.wrong or error
            weights = np.zeros((len(rows), len(LEVELS)), np.float32)
        return weights.reshape(*states.shape[:-2], len(LEVELS))

    def weigh(self, rows: np.ndarray) -> np.ndarray:
        """Weights of the eight levels, (n, 8), or an error that says what is wrong."""
        try:
            answer = self.function(rows.copy())
        except Exception as error:  # whatever somebody's function raises
            raise ForeignPolicyError(
                f"{self.name}: expected an answer, got {type(error).__name__}: {error}. The "
                f"function is given one array of shape {rows.shape}: hours, samples, columns."
            ) from error
        return to_weights(answer, len(rows), self.name)

    def complain(self) -> None:
        """Raise what was wrong, if anything: what was judged with it does not count."""
        if self.wrong is not None:
            raise self.wrong


class Foreign(eqx.Module):
    """Somebody's function as a policy."""

    asked: Asked = eqx.field(static=True)

    def __call__(self, state: Float[Array, "steps columns"], /) -> Float[Array, " 8"]:
        """What the function says of this hour."""
        shape = jax.ShapeDtypeStruct((len(LEVELS),), jnp.float32)
        return jax.pure_callback(self.asked, shape, state, vmap_method="broadcast_all")


def to_weights(answer: Any, hours: int, name: str) -> np.ndarray:
    """Log weights of the eight levels, (n, 8), out of levels (n,) or scores (n, 8)."""
    wanted = f"expected {hours} levels P{LOWEST} to P{HIGHEST}, or {len(LEVELS)} scores for each"
    try:
        values = np.asarray(answer)
    except ValueError as error:
        raise ForeignPolicyError(f"{name}: {wanted}, got lists of unlike lengths.") from error
    if values.dtype.kind not in "iuf":
        raise ForeignPolicyError(f"{name}: {wanted}, got {_kind_words(answer, values)}.")
    if values.shape == (hours, len(LEVELS)):
        return _scores(values.astype(np.float64), name)
    if values.shape != (hours,):
        raise ForeignPolicyError(
            f"{name}: {wanted}, got an array of shape {values.shape}. The function is given all "
            f"hours at once, of shape ({hours}, samples, columns), and answers for each of them."
        )
    whole = np.isfinite(values) & (values == np.round(values))
    inside = whole & (values >= LOWEST) & (values <= HIGHEST)
    if not inside.all():
        odd = values[~inside][0]
        raise ForeignPolicyError(
            f"{name}: expected levels P{LOWEST} to P{HIGHEST} as whole numbers {LOWEST} to "
            f"{HIGHEST}, got {odd:g} for {int((~inside).sum())} of {hours} hours."
        )
    chosen = np.array(LEVELS) == values[:, None]
    return np.where(chosen, 0.0, NEVER).astype(np.float32)


def _scores(values: np.ndarray, name: str) -> np.ndarray:
    """Scores as log-probabilities; an order is all that a judge by the mode needs."""
    if not np.isfinite(values).all():
        odd = int((~np.isfinite(values)).any(1).sum())
        raise ForeignPolicyError(
            f"{name}: expected finite scores, got others in {odd} of {len(values)} hours. A level "
            "that must not be chosen can have a very low score, such as -1e9."
        )
    best = values.argmax(1)
    logs = values - values.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    weights = np.maximum(logs, NEVER).astype(np.float32)
    # rounding to single precision must not make another level the first of the highest
    weights[np.arange(len(best)), best] = np.nextafter(weights.max(1), np.float32(1))
    return weights


def _kind_words(answer: Any, values: np.ndarray) -> str:
    if answer is None:
        return "nothing (does the function return?)"
    kinds = {"b": "true and false", "U": "words", "c": "complex numbers"}
    return kinds.get(values.dtype.kind, f"an array of {values.dtype}")


def make_foreign(
    function: HourlyFunction, states: Float[np.ndarray, "n ..."], name: str
) -> Foreign:
    """A function as a policy, after it was tried on some recorded hours.

    It must answer each hour by itself and the same way every time: rows are judged from the same
    starts with the same luck, so an answer that depends on the other hours or on chance would not
    be a policy's.
    """
    asked = Asked(function, name)
    tried = np.asarray(states[:: max(1, len(states) // TRIED)][:TRIED], np.float64)
    weights = asked.weigh(tried)
    again = asked.weigh(tried)
    _require_same(weights, again, f"{name}: expected the same answer to the same hours")
    turned = asked.weigh(tried[::-1])[::-1]
    _require_same(weights, turned, f"{name}: expected each hour to be answered by itself")
    one = asked.weigh(tried[:1])
    _require_same(weights[:1], one, f"{name}: expected each hour to be answered by itself")
    return Foreign(asked)


def _require_same(ours: np.ndarray, theirs: np.ndarray, words: str) -> None:
    apart = ours.argmax(1) != theirs.argmax(1)
    if apart.any():
        raise ForeignPolicyError(
            f"{words}, got another level for {int(apart.sum())} of {len(apart)} when asked again. "
            "Take chance, memory and means over patients out of the function."
        )
