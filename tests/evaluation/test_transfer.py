"""Transfer: a shift changes what it names and nothing else, and the guardian is asked."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.transfer import SAME, SHIFTS, Shift, charged, shift_world, simulate_shifted
from stepdown.guardian.threshold import Guardian
from stepdown.patients.cohort import world_of
from stepdown.signals import LEVEL
from tests.evaluation.conftest import WARD

NAMED = {shift.name: shift for shift in SHIFTS}


class Distance:
    """A density that falls with the size of a change."""

    pairs: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        return 0, 3

    def floor(self) -> None:
        return None

    def log_density(self, state, level):
        return -jnp.abs(level - state[-1, LEVEL])

    def log_densities(self, states, levels):
        return -jnp.abs(levels - states[:, -1, LEVEL])


def test_no_shift_is_the_world_of_the_training():
    same, own = shift_world(WARD, SAME), world_of(WARD)
    assert all(
        np.array_equal(one, other)
        for one, other in zip(jax.tree.leaves(same), jax.tree.leaves(own), strict=True)
    )
    shifted = shift_world(WARD, NAMED["more non-recoverers"])
    assert float(shifted.population.nonrecoverers) == pytest.approx(0.60)
    assert float(shifted.population.vasoplegic) == float(own.population.vasoplegic)
    assert shift_world(WARD, NAMED["another pump"]).profile.name == "2.5"
    assert own.profile.name == "cp"


def test_a_shift_reaches_the_patients_and_nobody_else(ward):
    usual, latents = ward
    cohort, shifted, world = simulate_shifted(WARD, NAMED["more non-recoverers"], key=jr.key(1))
    assert cohort.role == "all"
    before, after = (1 - np.asarray(x.patients.traits.recoverer) for x in (latents, shifted))
    assert after.mean() > before.mean() + 0.2
    assert (after >= before).all()  # the same luck: whoever did not recover still does not
    one, other = (np.asarray(x.patients.traits.resistance) for x in (latents, shifted))
    assert np.array_equal(one, other)
    assert world.profile.name == "cp"
    assert usual.signals.shape[0] == cohort.signals.shape[0]


def test_the_guardian_charges_what_lies_beyond_its_threshold():
    guardian = Guardian(
        Distance(), jnp.asarray(-1.5), jnp.asarray(-9.0), jnp.asarray(9.0), jnp.zeros(3)
    )
    states = np.zeros((4, 6, 13), np.float32)
    states[:, :, LEVEL] = 5.0
    assert charged(guardian, states, np.array([5, 6, 7, 2])).tolist() == [0.0, 0.0, 1.0, 1.0]


def test_a_shift_names_numbers_of_the_population():
    with pytest.raises(ValueError, match="expected numbers of the population, got 'luck'"):
        Shift("odd", "", (("luck", 1.0),))
