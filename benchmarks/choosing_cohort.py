"""Patients, sizes and candidates of `benchmarks/choosing.py`."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.evaluation.choosing import EvidenceConfig
from stepdown.experiment.patients import SLIDING
from stepdown.experiment.presets import PRESETS, Shrink, recipe_of
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Cohort, Policy, Transitions
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.ensemble import Ensemble, EnsembleConfig
from stepdown.policies.model_based import ModelBasedConfig, train_model_based
from stepdown.policies.penalties import DensityPenalty, SpreadPenalty, Unpenalized
from stepdown.problem.hours import make_transitions
from stepdown.records.split import split_patients
from stepdown.training import member
from stepdown.twin.fit import TwinConfig

PENALTIES = (0.02, 0.08, 0.15)  # lambda of CORMPO


@dataclass(frozen=True)
class Sizes:
    """How much is done for one cohort."""

    patients: int = 379
    fresh: int = 300  # patients simulated anew to judge by
    hours: float | None = None  # of every stay
    episodes: int = 1024  # starts of each judge
    train: int = 14_000  # hours, of about 16,000
    sliding: int = 24_000  # half-hourly ones, for the twin
    select: int = 2_800  # hours of select patients
    seeds: int = 2
    shrink: Shrink = Shrink(8000, 1000, 128, (64, 64), 1000, 10)
    ensemble: EnsembleConfig = PRESETS["demo"].ensemble
    twin: TwinConfig = PRESETS["demo"].twin
    evidence: EvidenceConfig = EvidenceConfig()  # noqa: RUF009 (frozen)


POCKET = PRESETS["pocket"]
assert POCKET.shrink is not None
SIZES = {
    "demo": Sizes(),
    "tiny": Sizes(
        patients=40,
        fresh=24,
        hours=30.0,
        episodes=64,
        train=500,
        sliding=700,
        select=120,
        shrink=POCKET.shrink,
        ensemble=POCKET.ensemble,
        twin=POCKET.twin,
        evidence=EvidenceConfig(starts=64),
    ),
}


@dataclass(frozen=True)
class Patients:
    """A simulated cohort by role, its truth and the hours to fit on."""

    whole: Cohort
    latents: Latents
    parts: tuple[Cohort, Cohort, Cohort]
    sliding: Transitions
    train: Transitions
    select: Transitions
    select_sliding: Transitions
    test: Transitions


def simulate(config: CohortConfig, seed: int, sizes: Sizes) -> Patients:
    """As `stepdown simulate` and `stepdown run` do it."""
    cohort, latents = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
    train, select, test = split_patients(cohort, key=jr.key(7))
    return Patients(
        cohort,
        latents,
        (train, select, test),
        some_hours(make_transitions(train, SLIDING), sizes.sliding, held=True),
        some_hours(make_transitions(train), sizes.train),
        some_hours(make_transitions(select), sizes.select, held=True),
        make_transitions(select, SLIDING),
        make_transitions(test),
    )


def some_hours(
    hours: Transitions, count: int, *, held: bool = False, among: np.ndarray | None = None
) -> Transitions:
    """So many rows in order, drawn; of some patients, or of those hours that kept their level."""
    kept = np.isin(np.asarray(hours.patient), np.asarray(hours.patient) if among is None else among)
    rows = np.flatnonzero(kept & ~np.asarray(hours.changed) if held else kept)
    draw = np.random.default_rng(0).choice(rows, count, replace=count > len(rows))
    return jax.tree.map(lambda x: x[np.sort(draw)], hours)


def train_candidates(
    patients: Patients, ensemble: Ensemble, guardian: Guardian, sizes: Sizes
) -> dict[str, Policy]:
    """Every learned candidate by name, one for each seed."""
    keys, found = jr.split(jr.key(1), sizes.seeds), {}
    rows = [("bc", "bc", None), ("mbpo", "mbpo", None), ("mbpo shaped", "mbpo_shaped", None)]
    rows += [("mopo", "mopo", None)]
    rows += [(f"cormpo {weight:g}", "cormpo_kde", weight) for weight in PENALTIES]
    for name, row, weight in rows:
        recipe = recipe_of(row, "ours", "recorded", sizes.shrink)
        if isinstance(recipe, BCConfig):
            policies, _ = train_bc(patients.train, patients.select, recipe, key=keys)
            found |= {f"{name} #{i}": member(policies, i) for i in range(sizes.seeds)}
            continue
        assert isinstance(recipe, ModelBasedConfig)
        charge = jnp.asarray(recipe.penalty_weight if weight is None else weight, jnp.float32)
        penalty = {
            "mopo": SpreadPenalty(ensemble, charge),
            "cormpo_kde": DensityPenalty(guardian, charge),
        }.get(row, Unpenalized())
        for i, key in enumerate(keys):
            policy, _ = train_model_based(patients.train, ensemble, penalty, recipe, key=key)
            found[f"{name} #{i}"] = policy
    return found
