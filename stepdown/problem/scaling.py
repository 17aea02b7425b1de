"""Physical units outside, z-scores inside: the one scale that models share.

A scale is fitted to train patients alone. It names the signals that it knows: one that is empty
in any train hour is left out, and a model that owns the scale never sees it.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stepdown.handover import Transitions, require_role
from stepdown.signals import LEVEL, LEVELS, NAMES, REQUIRED

LEVEL_MEAN, LEVEL_SD = float(np.mean(LEVELS)), float(np.std(LEVELS))  # of the choice, not of use


class Scaler(eqx.Module):
    """Mean and standard deviation of each signal over the train patients' samples."""

    mean: Float[Array, " 12"]  # 0 where the signal is not present
    sd: Float[Array, " 12"]  # 1 where the signal is not present
    present: tuple[int, ...] = eqx.field(static=True)  # columns of the signals in use

    def to_scores(self, state: Float[Array, "steps 13"]) -> Float[Array, "steps columns"]:
        """The present signals as z-scores, then the level on the same footing."""
        used = np.array(self.present)
        mean, sd = jnp.append(self.mean[used], LEVEL_MEAN), jnp.append(self.sd[used], LEVEL_SD)
        return (state[:, np.append(used, LEVEL)] - mean[None]) / sd[None]

    def to_units(self, scores: Float[Array, "steps columns"]) -> Float[Array, "steps 13"]:
        """Back to a state in physical units; absent signals are NaN."""
        used = np.array(self.present)
        mean, sd = jnp.append(self.mean[used], LEVEL_MEAN), jnp.append(self.sd[used], LEVEL_SD)
        state = jnp.full((len(scores), LEVEL + 1), jnp.nan)
        return state.at[:, np.append(used, LEVEL)].set(scores * sd[None] + mean[None])


def fit_scaler(hours: Transitions) -> Scaler:
    """The scale of train patients; anybody else is refused."""
    require_role(hours, "train")
    samples = np.asarray(hours.state, np.float64)[..., :LEVEL].reshape(-1, LEVEL)
    present = tuple(int(i) for i in np.flatnonzero(np.isfinite(samples).all(0)))
    if lacking := [NAMES[i] for i in REQUIRED if i not in present]:
        raise ValueError(
            f"expected {lacking[0]} in every train hour, got empty samples. "
            "Make the hours with make_transitions, which drops what cannot be used."
        )
    mean, sd = np.zeros(LEVEL), np.ones(LEVEL)
    used = list(present)
    mean[used], spread = samples[:, used].mean(0), samples[:, used].std(0)
    sd[used] = np.where(spread > 0, spread, 1.0)  # a constant signal carries no scale
    return Scaler(jnp.asarray(mean, jnp.float32), jnp.asarray(sd, jnp.float32), present)
