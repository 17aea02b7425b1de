"""Stays of four signals, made by chance, with planted differences: two cohorts to tell apart."""

import jax.numpy as jnp
import numpy as np

from stepdown.handover import Cohort
from stepdown.signals import HR, LVEDP, MAP, NAMES, PULSATILITY

USED = (MAP, HR, PULSATILITY, LVEDP)


def invented(patients=24, hours=20, seed=0, *, shift=0.0, moves=1.0) -> Cohort:
    """Stays of four independent signals: a patient's own level, and noise around it.

    MAP is shifted by so many mmHg; LVEDP moves so many times as much.
    """
    draw = np.random.default_rng(seed)
    shape = (patients, 6 * hours)
    signals = np.full((*shape, len(NAMES)), np.nan, np.float32)
    for column, center in zip(USED, (75.0, 85.0, 30.0, 12.0), strict=True):
        noise = draw.normal(0, 2.0, shape)
        size = moves if column == LVEDP else 1.0
        signals[..., column] = center + draw.normal(0, 5.0, (patients, 1)) + size * noise
    signals[..., MAP] += shift
    level = np.repeat(draw.integers(3, 9, (patients, hours)), 6, axis=1).astype(np.int32)
    seen = np.ones(shape, bool)
    return Cohort(
        jnp.asarray(signals),
        jnp.asarray(level),
        jnp.asarray(seen),
        tuple(f"{seed}-{i}" for i in range(patients)),
    )
