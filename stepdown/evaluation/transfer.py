"""Trained on one mix of patients and teams, judged on another, and whether the guardian notices.

A shift changes the population, the pump or the habits of the teams and nothing else; patients are
drawn anew with the same luck under every shift. Policies, twin and guardian stay as they are. The
guardian's answer is the share of decisions that it charges (u > 0), before and after the shift: of
what teams recorded there, and of what a policy would set first. A shift that costs reward while
the guardian stays calm is the one to fear. Shifts are fixed here, not chosen by who wins.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.evaluation.guardians import charge_all
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort, world_of
from stepdown.patients.population import Population, World
from stepdown.patients.pump import load_profile, profile_names


@dataclass(frozen=True)
class Shift:
    """What is different where a policy is used."""

    name: str
    words: str
    population: tuple[tuple[str, float], ...] = ()  # numbers of `Population` to replace
    other_pump: bool = False

    def __post_init__(self):
        known = Population.__dataclass_fields__
        if unknown := [name for name, _ in self.population if name not in known]:
            raise ValueError(
                f"expected numbers of the population, got {unknown[0]!r}. "
                "They are listed in patients/population.py."
            )


SAME = Shift("as trained", "patients and teams as those of the training, drawn anew")
SHIFTS = (
    SAME,
    Shift(
        "more non-recoverers",
        "60 % instead of 22 % of the hearts do not come back",
        (("nonrecoverers", 0.60),),
    ),
    Shift(
        "more vasoplegia", "90 % instead of 40 % of the patients lose tone", (("vasoplegic", 0.90),)
    ),
    Shift("another pump", "the other pump profile (the older, smaller pump)", other_pump=True),
    Shift(
        "another team",
        "teams wean twice as fast, at pressures 6 mmHg lower, and try levels four times as often",
        (("weaning_pace", 1.32), ("caution", -9.8), ("restlessness", 2.16)),
    ),
)


def shift_world(config: CohortConfig, shift: Shift) -> World:
    """The world of a cohort with the shift applied."""
    world = world_of(config)
    changed = {name: jnp.asarray(value, jnp.float32) for name, value in shift.population}
    profile = world.profile
    if shift.other_pump:
        (other,) = [x for x in profile_names() if x != config.profile][:1]
        profile = load_profile(other)
    return World(replace(world.population, **changed), profile, world.dt)


def simulate_shifted(
    config: CohortConfig, shift: Shift, *, key: PRNGKeyArray
) -> tuple[Cohort, Latents, World]:
    """Patients of the shifted world, recorded by its teams; nothing was fitted to them."""
    world = shift_world(config, shift)
    cohort, latents = simulate_cohort(config, key=key, world=world)
    return cohort, latents, world


def charged(
    guardian: Guardian,
    states: Float[Array, "n steps columns"] | Float[np.ndarray, "n steps columns"],
    levels: Int[Array, " n"] | Int[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """1 where the guardian charges a decision (u > 0), else 0."""
    return (charge_all(guardian, states, levels) > 0) * 1.0
