"""One verb for every guardian: fit a density to train patients, set its scale by select patients.

A kernel density is a copy of its patients' hours, so a guardian that holds one is saved only by a
caller who says so. A flow holds weights alone; the guardian's sorted select scores are log
densities without names, times or signals.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.artifacts import load_config, load_module, save_module
from stepdown.guardian.conditional import Conditional, Density
from stepdown.guardian.flow import FlowConfig, FlowDensity, RealNVP, Whitening, fit_flow
from stepdown.guardian.kde import PATIENT_DATA, Kde, KdeConfig, fit_kde
from stepdown.guardian.pairs import Pairs
from stepdown.guardian.threshold import DEEPEST, Guardian, GuardianConfig, make_guardian
from stepdown.handover import Transitions
from stepdown.problem.scaling import Scaler
from stepdown.signals import SIGNALS

KIND = "guardian"
DensityName = Literal["kde", "flow", "conditional"]


@dataclass(frozen=True)
class DensityConfig:
    """Which density, and how much of log p(s) it keeps (guardian/conditional.py)."""

    density: DensityName = "kde"  # conditional: by kernels
    share: float | None = None  # of log p(s); None: 1, and 0 for conditional
    kde: KdeConfig = field(default_factory=KdeConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)

    def __post_init__(self):
        if self.share is not None and not 0 <= self.share <= 1:
            raise ValueError(f"share: expected 0 to 1, got {self.share:g}.")

    @property
    def kept(self) -> float:
        """The share of log p(s) that is kept."""
        return float(self.density != "conditional") if self.share is None else self.share

    @property
    def holds_patients(self) -> bool:
        """Whether the density is made of recorded hours."""
        return self.density != "flow"


@dataclass(frozen=True)
class SavedGuardian:
    """What a saved guardian says about itself in its manifest."""

    density: DensityConfig
    guardian: GuardianConfig
    coordinates: int
    points: int  # recorded decisions inside; 0 for a flow
    scores: int  # select decisions that set the scale
    present: tuple[int, ...]  # columns of the signals in use
    contains_patient_data: bool
    warning: str


def fit_guardian(
    train: Transitions,
    select: Transitions,
    density: DensityConfig,
    guardian: GuardianConfig,
    *,
    key: PRNGKeyArray,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Guardian, dict[str, np.ndarray]]:
    """A guardian and what fitting reported."""
    fitted, info = fit_density(train, select, density, key=key, watch=watch)
    # The authors' floor belongs to a kernel density; others are bounded by their threshold.
    floor = float(fitted.log_constant) - DEEPEST if isinstance(fitted, Kde) else None
    return make_guardian(fitted, select, guardian, floor=floor), info


def fit_density(
    train: Transitions,
    select: Transitions,
    config: DensityConfig,
    *,
    key: PRNGKeyArray,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Density, dict[str, np.ndarray]]:
    """The density of train patients' decisions; select patients stop the fitting of a flow."""
    share = jnp.asarray(config.kept, jnp.float32)
    if config.density == "flow":
        flow, info = fit_flow(train, select, config.flow, key=key, watch=watch)
        return (flow if config.kept == 1 else Conditional(flow, None, share)), info
    kde = fit_kde(train, config.kde)
    if config.kept == 1:
        return kde, {}
    blind = fit_kde(train, replace(config.kde, action_weight=0.0), kde.pairs.scaler)
    return Conditional(kde, blind, share), {}


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
    require_flag(density, contains_patient_data)
    joint = guardian.density
    joint = joint.joint if isinstance(joint, Conditional) else joint
    if isinstance(joint, Kde):
        points, coordinates = joint.points.shape
    elif isinstance(joint, FlowDensity):
        points, coordinates = 0, len(joint.whitening.center)
    else:
        raise TypeError(f"expected a kernel density or a flow, got {type(joint).__name__}.")
    about = SavedGuardian(
        density=density,
        guardian=config,
        coordinates=coordinates,
        points=points,
        scores=len(guardian.scores),
        present=joint.pairs.scaler.present,
        contains_patient_data=density.holds_patients,
        warning=PATIENT_DATA if density.holds_patients else "",
    )
    save_module(path, guardian, config=about, kind=KIND, seed=seed)


def require_flag(density: DensityConfig, contains_patient_data: bool) -> None:
    """Refuse to save patients' hours by accident."""
    if density.holds_patients and not contains_patient_data:
        raise ValueError(
            f"expected --contains-patient-data for a {density.density} guardian, got none. It "
            "holds every recorded hour that it was fitted to, so whoever gets the folder gets "
            "the records. Give the flag if that is meant, or fit a flow, which holds no hours."
        )


def load_guardian(path: Path) -> tuple[Guardian, SavedGuardian]:
    """A saved guardian and what it says about itself."""
    about = load_config(path, SavedGuardian, kind=KIND)
    like = eqx.filter_eval_shape(_blank, about)
    return load_module(path, like, kind=KIND), about


def _blank(about: SavedGuardian) -> Guardian:
    """A guardian of the right shapes and any content."""
    zero, signals = jnp.zeros(()), jnp.zeros(len(SIGNALS))
    pairs = Pairs(Scaler(signals, signals, about.present), zero)
    size, flow = about.coordinates, about.density.flow
    if about.density.density == "flow":
        whitening = Whitening(jnp.zeros(size), jnp.zeros((size, size)))
        network = RealNVP(size, flow.layers, flow.width, key=jr.key(0))
        density: Density = FlowDensity(pairs, whitening, network)
        states = None
    else:
        kde = about.density.kde
        points = jnp.zeros((about.points, size))
        density = states = Kde(points, pairs, zero, kde.neighbors, kde.chunk)
    if about.density.kept < 1:
        density = Conditional(density, states, zero)
    return Guardian(density, zero, zero, zero, jnp.zeros(about.scores))
