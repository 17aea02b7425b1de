"""Refuse what cannot be learned from, in words, before any long work."""

import numpy as np

from stepdown.handover import Dynamics, Transitions, require_role
from stepdown.signals import HIGHEST, LEVELS, LOWEST, NAMES


def check_hours(hours: Transitions, *, varied: bool = True) -> None:
    """Recorded hours of train patients with rewards and, if `varied`, more than one level."""
    require_role(hours, "train")
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


def check_dynamics(dynamics: Dynamics, hours: Transitions) -> None:
    """Dynamics that know the signals of these hours and their number of samples."""
    steps = getattr(dynamics, "steps", None)
    if steps not in (None, hours.state.shape[1]):
        raise ValueError(
            f"expected hours of {steps} samples, which the dynamics use, got "
            f"{hours.state.shape[1]}. Fit the dynamics on the same records."
        )
    scaler = getattr(dynamics, "scaler", None)
    if scaler is None:  # nothing was fitted, so any signals will do
        return
    known = np.asarray(np.isfinite(np.asarray(hours.state)).all((0, 1)))
    if lacking := [NAMES[i] for i in scaler.present if not known[i]]:
        raise ValueError(
            f"expected hours with {lacking[0]}, which the dynamics use, got empty samples. "
            "Fit the dynamics on the same records."
        )
