"""How large a run is: four presets of one config."""

from dataclasses import dataclass, field, replace
from typing import Literal

from stepdown.guardian.flow import FlowConfig
from stepdown.patients.population import PresetName
from stepdown.policies.bc import BCConfig
from stepdown.policies.datasets import DatasetConfig
from stepdown.policies.ensemble import EnsembleConfig
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.policies.rules import RULES
from stepdown.policies.svr import SVRConfig
from stepdown.report.recipes import DataName, Method, Recipe, SettingName, make_recipe
from stepdown.training import FitConfig
from stepdown.twin.calibrated import CalibratedConfig
from stepdown.twin.fit import SMALL_TWIN, Model, TwinConfig

RunPreset = Literal["pocket", "demo", "paper", "full"]
DensityName = Literal["kde", "flow"]


@dataclass(frozen=True)
class Row:
    """A learned row of the comparison."""

    method: Method
    shaped: bool  # the reward charges jumps
    density: DensityName | None = None  # of CORMPO's guardian
    in_twin: bool = False  # learns in the judging twin instead of the ensemble


ROWS: dict[str, Row] = {
    "bc": Row("bc", shaped=False),
    "mbpo": Row("mbpo", shaped=False),
    "mopo": Row("mopo", shaped=False),
    "svr": Row("svr", shaped=False),
    "cormpo_kde": Row("cormpo", shaped=True, density="kde"),
    "cormpo_flow": Row("cormpo", shaped=True, density="flow"),
    # What is density's own share? Each part of CORMPO without the other.
    "cormpo_unshaped": Row("cormpo", shaped=False, density="kde"),
    "mbpo_shaped": Row("mbpo", shaped=True),
    "mopo_shaped": Row("mopo", shaped=True),
    "disagreement": Row("disagreement", shaped=False),
    "disagreement_shaped": Row("disagreement", shaped=True),
    # What does a better model do? For recorded hours only: synthetic ones were made in the twin.
    "mbpo_twin": Row("mbpo", shaped=True, in_twin=True),
    "cormpo_twin": Row("cormpo", shaped=True, density="kde", in_twin=True),
}
OURS_ROW = "cormpo_kde"  # the one that others are compared with
EVERY_ROW = tuple(name for name, row in ROWS.items() if not row.in_twin)


@dataclass(frozen=True)
class CohortChoice:
    """Which simulated patients."""

    preset: PresetName = "guarded"
    seed: int = 7

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.preset}-{self.seed}"


@dataclass(frozen=True)
class Shrink:
    """Smaller trainings for a quick look; the settings themselves stay."""

    updates: int
    rollout_every: int
    batch: int
    widths: tuple[int, ...]
    rollouts: int  # rows started per rollout
    epochs: int  # of cloning


@dataclass(frozen=True)
class ExperimentConfig:
    """The whole experiment; defaults are the paper's sizes."""

    cohorts: tuple[CohortChoice, ...] = (CohortChoice(),)
    patients: int = 379
    hours: float | None = None  # of every stay; by default each has its own
    twins: tuple[Model, ...] = ("persistence", "np", "mlp", "clmu", "ssm", "tdt", "rotary", "best")
    twin: TwinConfig = TwinConfig()
    twin_seeds: int = 5  # of the table of twins; the first one judges
    windows: bool = True  # the paper's alternative settings of the twin
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    data: tuple[DataName, ...] = ("recorded", "noiseless", "noisy")
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    settings: tuple[SettingName, ...] = ("ours", "paper")
    rows: tuple[str, ...] = EVERY_ROW
    rules: tuple[str, ...] = tuple(RULES)
    look_ahead: bool = True  # judge the ceiling, too
    seeds: int = 5
    shrink: Shrink | None = None
    episodes: int = 1000  # per seed and judge
    fresh: int = 300  # patients simulated anew to judge by; 0 for none
    sweeps: bool = True  # sensitivity to tau, lambda, lambda 1 and lambda 2
    searches: bool = False  # six trials of every row but those learned in the twin come first


_TINY = FitConfig(epochs=2, batch=32)
PRESETS: dict[RunPreset, ExperimentConfig] = {
    "paper": ExperimentConfig(),
    "full": ExperimentConfig(
        cohorts=tuple(
            CohortChoice(preset, seed)
            for seed in (7, 8, 9)
            for preset in ("guarded", "benign", "hidden")
        ),
        twins=("persistence", "best"),
        twin_seeds=1,
        windows=False,
        data=("recorded",),
        settings=("ours",),
        rows=tuple(ROWS),
        sweeps=False,
        searches=True,
    ),
    "demo": ExperimentConfig(
        twins=("persistence", "tdt", "best"),
        twin=replace(SMALL_TWIN, fit=FitConfig(epochs=6)),
        twin_seeds=1,
        windows=False,
        ensemble=EnsembleConfig(width=64, depth=2, fit=FitConfig(epochs=8, learning_rate=1e-3)),
        flow=FlowConfig(layers=4, width=32, fit=FitConfig(epochs=6, learning_rate=1e-3)),
        dataset=DatasetConfig(episodes=1000, select_episodes=200),
        settings=("ours",),
        seeds=2,
        shrink=Shrink(1600, 400, 128, (64, 64), 1000, 10),
        episodes=300,
        fresh=0,
        sweeps=False,
    ),
    "pocket": ExperimentConfig(
        patients=8,
        hours=24.0,
        twins=("persistence", "best"),
        twin=replace(
            SMALL_TWIN, errors=64, calibrated=CalibratedConfig(members=2, width=16, fit=_TINY)
        ),
        twin_seeds=1,
        windows=False,
        ensemble=EnsembleConfig(members=2, elites=2, width=16, depth=1, fit=_TINY),
        flow=FlowConfig(layers=2, width=8, fit=_TINY),
        data=("recorded",),
        dataset=DatasetConfig(episodes=20, select_episodes=8),
        settings=("ours",),
        rows=("bc", "mbpo", "cormpo_kde"),
        rules=("hold", "always P2", "always P9"),
        look_ahead=False,
        seeds=2,
        shrink=Shrink(20, 10, 16, (16, 16), 32, 2),
        episodes=16,
        fresh=0,
        sweeps=False,
    ),
}


def sizes_of(preset: RunPreset, *, search: bool = True) -> ExperimentConfig:
    """A preset, with its searches or without."""
    sizes = PRESETS[preset]
    return replace(sizes, searches=sizes.searches and search)


def recipe_of(name: str, setting: SettingName, data: DataName, shrink: Shrink | None) -> Recipe:
    """The numbers that a row of the comparison is trained with."""
    row = ROWS[name]
    recipe = make_recipe(row.method, setting, data, shaped=row.shaped)
    if isinstance(recipe, ModelBasedConfig) and not row.shaped:
        recipe = replace(recipe, jump_weight=0.0, weaning_weight=0.0)
    return recipe if shrink is None else _shrunk(recipe, shrink)


def expert_recipe(setting: SettingName, shrink: Shrink | None) -> ModelBasedConfig:
    """The online expert of the synthetic data sets, who learns in the twin."""
    recipe = make_recipe("expert", setting, "noiseless")
    assert isinstance(recipe, ModelBasedConfig)
    shrunk = recipe if shrink is None else _shrunk(recipe, shrink)
    assert isinstance(shrunk, ModelBasedConfig)
    return shrunk


def _shrunk(recipe: Recipe, size: Shrink) -> Recipe:
    if isinstance(recipe, BCConfig):
        fit = replace(recipe.fit, epochs=size.epochs)
        return replace(recipe, widths=size.widths, fit=fit)
    if isinstance(recipe, SVRConfig):
        behavior = _shrunk(recipe.behavior, size)
        assert isinstance(behavior, BCConfig)
        return replace(
            recipe,
            updates=size.updates,
            report_every=size.rollout_every,
            batch=size.batch,
            widths=size.widths,
            behavior=behavior,
        )
    rollouts = replace(recipe.rollouts, starts=size.rollouts)
    return replace(
        recipe,
        updates=size.updates,
        rollout_every=size.rollout_every,
        batch=size.batch,
        widths=size.widths,
        rollouts=rollouts,
    )
