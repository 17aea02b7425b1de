"""One verb for every guardian: fit a density to train patients, set its scale by select patients.

A density that is made of its patients' hours is saved only by a caller who says so. Others hold
weights alone; the guardian's sorted select scores are log densities without names, times or
signals.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.artifacts import config_to_dict, load_module, save_module
from stepdown.guardian.density import Conditional, Density, Pairs
from stepdown.guardian.threshold import RECORDED, Guardian, GuardianConfig, make_guardian
from stepdown.handover import Look, Transitions, require_one_hour, shown
from stepdown.problem.scaling import blank_scaler
from stepdown.signals import NAMES

KIND = "guardian"
PATIENT_DATA = "The points are the recorded hours of patients. Treat this folder like the records."


@dataclass(frozen=True, kw_only=True)
class DensityKind:
    """A kind of density: a row of the table (guardians.py)."""

    name: str
    words: str = shown()  # in tables
    look: Look = shown()  # in figures
    config: Any  # its own, with defaults
    fit: Callable[..., tuple[Density, dict[str, np.ndarray]]]  # fit(train, select, config, *, ...)
    empty: Callable[..., Density]  # empty(config, pairs, shape): to be filled with saved numbers
    holds_patients: bool  # it is made of recorded hours
    share: float = 1.0  # of log p(s) that is kept (density.py), unless something else is said
    paper: Any = None  # its config in the paper's setting; None: the same as in ours
    blind: Callable[[Any], Any] | None = None  # config of log p(s); None: a sum over the levels
    explain: Callable[..., Any] | None = None  # recorded hours behind an answer (nearest.py)


@dataclass(frozen=True)
class DensityConfig:
    """Which density, how it is fitted, and how much of log p(s) it keeps (density.py)."""

    kind: DensityKind
    share: float | None = None  # of log p(s); None: as usual for the kind
    settings: Any = None  # the kind's own config; None: its defaults

    def __post_init__(self):
        if self.share is not None and not 0 <= self.share <= 1:
            raise ValueError(f"share: expected 0 to 1, got {self.share:g}.")
        if self.settings is None:
            object.__setattr__(self, "settings", self.kind.config)

    @property
    def kept(self) -> float:
        """The share of log p(s) that is kept."""
        return self.kind.share if self.share is None else self.share


@dataclass(frozen=True)
class SavedGuardian:
    """What a saved guardian says about itself."""

    density: str  # name of its kind
    share: float  # of log p(s)
    settings: dict[str, Any]  # of the density
    guardian: GuardianConfig
    coordinates: int
    points: int  # recorded decisions inside
    scores: int  # select decisions that set the scale
    present: tuple[int, ...]  # columns of the signals in use
    contains_patient_data: bool
    warning: str
    columns: tuple[str, ...] = NAMES  # of the recordings that it was fitted on


def fit_guardian(
    train: Transitions,
    select: Transitions,
    density: DensityConfig,
    guardian: GuardianConfig = RECORDED,
    *,
    key: PRNGKeyArray,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Guardian, dict[str, np.ndarray]]:
    """A guardian and what fitting reported.

    >>> guardian, info = sd.fit_guardian(train, select, kernels, key=jr.key(0))
    >>> float(guardian(train.state[0], level)) < 0  # it has been seen: no charge, a bonus
    True
    """
    fitted, info = fit_density(train, select, density, key=key, watch=watch)
    return make_guardian(fitted, select, guardian), info


def fit_density(
    train: Transitions,
    select: Transitions,
    config: DensityConfig,
    *,
    key: PRNGKeyArray,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Density, dict[str, np.ndarray]]:
    """The density of train patients' decisions; select patients may stop its fitting."""
    for hours in (train, select):
        require_one_hour(hours, "a guardian")
    kind = config.kind
    joint, info = kind.fit(train, select, config.settings, key=key, watch=watch)
    if config.kept == 1:
        return joint, info
    states = None
    if kind.blind is not None:
        states, _ = kind.fit(train, select, kind.blind(config.settings), key=key, watch=watch)
    return Conditional(joint, states, jnp.asarray(config.kept, jnp.float32)), info


def save_guardian(
    path: Path,
    guardian: Guardian,
    density: DensityConfig,
    config: GuardianConfig,
    *,
    seed: int | None = None,
    contains_patient_data: bool = False,
) -> None:
    """Save a guardian; one made of patients' hours asks for the flag."""
    require_flag(density.kind, contains_patient_data)
    points, coordinates = guardian.density.shape
    about = SavedGuardian(
        density=density.kind.name,
        share=density.kept,
        settings=config_to_dict(density.settings),
        guardian=config,
        coordinates=coordinates,
        points=points,
        scores=len(guardian.scores),
        present=guardian.density.pairs.scaler.present,
        columns=guardian.density.pairs.scaler.columns,
        contains_patient_data=density.kind.holds_patients,
        warning=PATIENT_DATA if density.kind.holds_patients else "",
    )
    save_module(path, guardian, config=about, kind=KIND, seed=seed)


def require_flag(kind: DensityKind, contains_patient_data: bool) -> None:
    """Refuse to save patients' hours by accident."""
    if kind.holds_patients and not contains_patient_data:
        raise ValueError(
            f"expected --contains-patient-data for a {kind.name} guardian, got none. It "
            "holds every recorded hour that it was fitted to, so whoever gets the folder gets "
            "the records. Give the flag if that is meant, or fit a flow, which holds no hours."
        )


def read_saved(path: Path, density: DensityConfig, about: SavedGuardian) -> Guardian:
    """The numbers of a saved guardian into the shape that it says it has."""

    def empty() -> Guardian:
        zero = jnp.zeros(())
        pairs = Pairs(blank_scaler(about.present, about.columns), zero)
        shape = about.points, about.coordinates
        made = density.kind.empty(density.settings, pairs, shape)
        if density.kept < 1:
            states = None
            if (blind := density.kind.blind) is not None:
                states = density.kind.empty(blind(density.settings), pairs, shape)
            made = Conditional(made, states, zero)
        return Guardian(made, zero, zero, zero, jnp.zeros(about.scores))

    return load_module(path, eqx.filter_eval_shape(empty), kind=KIND)
