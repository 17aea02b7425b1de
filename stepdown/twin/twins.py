"""The twins: one row for each kind, and twins from disk.

A twin is a file with the config of its network and the network itself (transformer.Network:
`encode`, `decode`, `loss`), and a row here.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from stepdown.artifacts import ArtifactError, config_from_dict, load_config
from stepdown.handover import Look
from stepdown.training import FitConfig
from stepdown.twin.baselines import (
    MLP,
    MLPConfig,
    NeuralProcess,
    PersistenceConfig,
    ProcessConfig,
    make_residuals,
    remember_errors,
)
from stepdown.twin.calibrated import (
    SMALL_CALIBRATED,
    CalibratedConfig,
    fit_calibrated,
    make_calibrated,
)
from stepdown.twin.fit import (
    GIVES,
    KIND,
    SavedTwin,
    Twin,
    TwinConfig,
    TwinKind,
    fit_networks,
    read_saved,
)
from stepdown.twin.horizon import fit_width
from stepdown.twin.recurrent import LegendreConfig, LegendreMemory, StateSpace, StateSpaceConfig
from stepdown.twin.ridge import RIDGE_BASE, RidgeConfig, fit_ridges, make_ridge
from stepdown.twin.transformer import SMALL_TRANSFORMER, Transformer, TransformerConfig

TWINS: dict[str, TwinKind] = {
    kind.name: kind
    for kind in (
        TwinKind(
            name="persistence",
            words="Persistence",
            look=Look("#5f6b76", (0, (1, 1.2)), "x"),
            sizes=PersistenceConfig(),
            small=PersistenceConfig(),
            make=make_residuals,
            fit=remember_errors,
            base="carried",
        ),
        TwinKind(
            name="np",
            words="Neural process",
            look=Look("#8a6d00", (0, (5, 1.5, 1, 1.5)), "D"),
            sizes=ProcessConfig(),
            small=ProcessConfig(),
            make=NeuralProcess,
            fit=fit_networks,
        ),
        TwinKind(
            name="mlp",
            words="MLP",
            look=Look("#cc79a7", (0, (8, 2)), "h"),
            sizes=MLPConfig(),
            small=MLPConfig(),
            make=MLP,
            fit=fit_networks,
        ),
        TwinKind(
            name="clmu",
            words="CLMU",
            look=Look("#009e73", (0, (5, 2)), "P"),
            sizes=LegendreConfig(),
            small=LegendreConfig(),
            make=LegendreMemory,
            fit=fit_networks,
        ),
        TwinKind(
            name="ssm",
            words="State-space model",
            look=Look("#7b5cb8", (0, (5, 2)), "p"),
            sizes=StateSpaceConfig(),
            small=StateSpaceConfig(),
            make=StateSpace,
            fit=fit_networks,
        ),
        TwinKind(
            name="tdt",
            words="Transformer (the paper's)",
            look=Look("#d55e00", (0, (5, 2)), "s"),
            sizes=TransformerConfig(),
            small=SMALL_TRANSFORMER,
            make=Transformer,
            fit=fit_networks,
        ),
        TwinKind(
            name="rotary",
            words="Transformer, rotary",
            look=Look("#e69f00", (0, (1, 1.2)), "v"),
            sizes=TransformerConfig(positions="rotary"),
            small=replace(SMALL_TRANSFORMER, positions="rotary"),
            make=Transformer,
            fit=fit_networks,
        ),
        TwinKind(
            name="ridge",
            words="Ridge with interactions (ours)",
            look=Look("#117733", (0, (3, 1, 1, 1)), "d"),
            sizes=RidgeConfig(),
            small=RidgeConfig(),
            make=make_ridge,
            fit=fit_ridges,
            base=RIDGE_BASE,
            stride=10.0,
        ),
        TwinKind(
            name="best",
            words="Better twin (ours)",
            look=Look("#0072b2", "-", "o"),
            sizes=CalibratedConfig(),
            small=SMALL_CALIBRATED,
            make=make_calibrated,
            fit=fit_calibrated,
            base="carried",
            settle=fit_width,
        ),
    )
}
JUDGING_TWIN, PAPER_TWIN = "best", "tdt"
Size = Literal["paper", "small"]


def twin_config(
    name: str, size: Size = "paper", profile: str = "cp", history: int = 1
) -> TwinConfig:
    """A twin of the table, at full size or small: minutes on two cores.

    The paper gives no sizes of its Transformer; there "paper" means ours (TransformerConfig).
    `history` is how many hours it reads; most read one.

    >>> small = sd.twin_config("mlp", "small")
    """
    if name not in TWINS:
        raise ValueError(f"expected a twin out of {', '.join(TWINS)}, got {name!r}.")
    kind = TWINS[name]
    sizes, fit = (
        (kind.sizes, FitConfig()) if size == "paper" else (kind.small, FitConfig(epochs=12))
    )
    if history != 1:
        if not hasattr(sizes, "history"):
            able = [x for x, other in TWINS.items() if hasattr(other.sizes, "history")]
            raise ValueError(
                f"history: expected 1 for {name}, which reads one hour, got {history}. "
                f"Take one of {', '.join(able)}."
            )
        sizes = replace(sizes, history=history)
    return TwinConfig(kind, sizes, profile=profile, fit=fit)


def load_twin(path: Path) -> tuple[Twin, TwinConfig]:
    """Load a twin; a damaged or foreign folder is refused."""
    about = load_config(path, SavedTwin, kind=KIND)
    if about.model not in TWINS:
        raise ArtifactError(
            f"{path}: expected a twin out of {', '.join(TWINS)}, got {about.model!r}. "
            "Fit it again with this version."
        )
    if about.gives != GIVES:
        raise ArtifactError(
            f"{path}: expected a twin that gives {GIVES}, got one that gives {about.gives}. "
            "Fit it again with this version."
        )
    config = config_of(about, TWINS[about.model], path)
    return read_saved(path, config, about), config


def config_of(about: SavedTwin, kind: TwinKind, path: Path) -> TwinConfig:
    """The config that a saved twin was fitted with."""
    sizes = config_from_dict(about.sizes, type(kind.sizes), str(path))
    return TwinConfig(kind, sizes, about.base, about.profile, about.fit)  # pyright: ignore[reportArgumentType]
