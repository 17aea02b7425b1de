"""One ward of simulated patients for all who judge: it is simulated once."""

import jax.random as jr
import pytest

from stepdown.patients.cohort import CohortConfig, simulate_cohort

WARD = CohortConfig(patients=40, hours=24.0)


@pytest.fixture(scope="session")
def ward():
    """The recorded cohort and the truth behind it."""
    return simulate_cohort(WARD, key=jr.key(1))
