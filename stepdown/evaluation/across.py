"""What several cohorts say together.

A cohort is one draw of patients, of their clinicians and of every model fitted to them. Policies of
one cohort share an ensemble, so an interval over its patients cannot say what another cohort would
give. Here a cohort counts as one number, and the interval is Student's over cohorts.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from jax.scipy.special import betainc

MIDDLE = 0.95  # of the interval
STEPS = 60  # halvings; more than a float needs


def over_cohorts(values: Sequence[float]) -> dict[str, float]:
    """Mean over cohorts, its 95 % interval and their number; no interval for a single one."""
    known = np.asarray([x for x in values if math.isfinite(x)], np.float64)
    if not len(known):
        return {"cohorts": 0.0, "mean": math.nan, "low": math.nan, "high": math.nan}
    mean, half = float(known.mean()), math.nan
    if len(known) > 1:
        half = student(len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))
    return {"cohorts": float(len(known)), "mean": mean, "low": mean - half, "high": mean + half}


@functools.cache
def student(freedom: int) -> float:
    """The value that |t| stays below in 95 % of cases; by halving, since JAX has no quantile."""
    low, high = 0.0, 1000.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        beyond = float(betainc(freedom / 2, 0.5, freedom / (freedom + middle**2)))
        low, high = (middle, high) if beyond > 1 - MIDDLE else (low, middle)
    return (low + high) / 2
