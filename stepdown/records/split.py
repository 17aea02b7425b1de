"""Train, select and test patients: a patient belongs to exactly one of them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.handover import Cohort, Role, require_role
from stepdown.patients.population import host_generator

SPLIT = 7  # seed of the split in every command, so that all see the same patients


def split_patients(
    cohort: Cohort,
    shares: tuple[float, float, float] = (0.65, 0.15, 0.20),
    *,
    key: PRNGKeyArray,
) -> tuple[Cohort, Cohort, Cohort]:
    """Train, select and test patients; every patient in exactly one of them."""
    require_role(cohort, "all")
    number = len(cohort.patient)
    if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"expected three shares above 0 that add up to 1, got {shares}.")
    if len(set(cohort.patient)) < number:
        raise ValueError("expected each patient once in a cohort, got one twice; join the stays.")
    exact = np.array(shares) * number
    sizes = np.floor(exact + 1e-9).astype(int)
    sizes[np.argsort(sizes - exact, kind="stable")[: number - sizes.sum()]] += 1
    if sizes.min() < 1:
        raise ValueError(
            f"expected enough patients for three parts, got {number}, of which "
            f"{' / '.join(map(str, sizes))} would train, select and test; bring more patients."
        )
    order = host_generator(key).permutation(number)
    ends = np.cumsum(sizes)
    parts = np.sort(order[: ends[0]]), np.sort(order[ends[0] : ends[1]]), np.sort(order[ends[1] :])
    train, select, test = parts
    return (
        _part(cohort, train, "train"),
        _part(cohort, select, "select"),
        _part(cohort, test, "test"),
    )


def _part(cohort: Cohort, rows: np.ndarray, role: Role) -> Cohort:
    return Cohort(
        signals=jnp.asarray(np.asarray(cohort.signals)[rows]),
        level=jnp.asarray(np.asarray(cohort.level)[rows]),
        seen=jnp.asarray(np.asarray(cohort.seen)[rows]),
        patient=tuple(cohort.patient[row] for row in rows),
        minutes=cohort.minutes,
        role=role,
    )
