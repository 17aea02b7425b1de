"""The densities that a guardian can be made of: one row for each, and guardians from disk.

A density is a file with its config, an `eqx.Module` (density.Density), a function that fits it and
one that gives its empty shape, and a row here.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from stepdown.artifacts import ArtifactError, config_from_dict, load_config
from stepdown.guardian.fit import KIND, DensityConfig, DensityKind, SavedGuardian, read_saved
from stepdown.guardian.flow import FlowConfig, empty_flow, fit_flow
from stepdown.guardian.kde import KdeConfig, blind_kernels, empty_kernels, fit_kernels
from stepdown.guardian.nearest import nearest_hours
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Look

DENSITIES: dict[str, DensityKind] = {
    kind.name: kind
    for kind in (
        DensityKind(
            name="kde",
            words="Kernels",
            look=Look("#c8322b", "-", "o"),
            config=KdeConfig(),
            fit=fit_kernels,
            empty=empty_kernels,
            holds_patients=True,
            paper=KdeConfig(action_weight=1.0),
            blind=blind_kernels,
            explain=nearest_hours,
        ),
        DensityKind(
            name="flow",
            words="Flow (RealNVP)",
            look=Look("#0072b2", "--", "s"),
            config=FlowConfig(),
            fit=fit_flow,
            empty=empty_flow,
            holds_patients=False,
        ),
        DensityKind(
            name="conditional",
            words="Kernels, given the state",
            look=Look("#1b7f3b", "-.", "^"),
            config=KdeConfig(),
            fit=fit_kernels,
            empty=empty_kernels,
            holds_patients=True,
            share=0.0,
            paper=KdeConfig(action_weight=1.0),
            blind=blind_kernels,
            explain=nearest_hours,
        ),
    )
}


def density_config(name: str, share: float | None = None, **settings: Any) -> DensityConfig:
    """A density of the table, with some of its settings changed.

    >>> kernels = sd.density_config("kde", neighbors=50)
    """
    if name not in DENSITIES:
        raise ValueError(f"expected a density out of {', '.join(DENSITIES)}, got {name!r}.")
    kind = DENSITIES[name]
    return DensityConfig(kind, share, replace(kind.config, **settings))


def load_guardian(path: Path) -> tuple[Guardian, SavedGuardian]:
    """A saved guardian and what it says about itself."""
    about = load_config(path, SavedGuardian, kind=KIND)
    if about.density not in DENSITIES:
        raise ArtifactError(
            f"{path}: expected a guardian of {', '.join(DENSITIES)}, got one of {about.density!r}. "
            "Fit it again with this version."
        )
    return read_saved(path, density_of(about, path), about), about


def density_of(about: SavedGuardian, path: Path) -> DensityConfig:
    """The density that a saved guardian was made of."""
    kind = DENSITIES[about.density]
    settings = config_from_dict(about.settings, type(kind.config), str(path))
    return DensityConfig(kind, about.share, settings)
