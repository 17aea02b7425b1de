"""How large a run is: five presets of one config.

Who is compared in `full`, on which cohorts, and on which one `paper` is judged stands in
design.json beside this file, committed before the results.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stepdown.guardian.flow import FlowConfig
from stepdown.handover import DataName, SettingName
from stepdown.patients.population import PresetName, Version
from stepdown.policies.datasets import DatasetConfig
from stepdown.policies.ensemble import EnsembleConfig
from stepdown.policies.learning import Shrink
from stepdown.policies.methods import COMPARED, DEFAULT_METHOD, METHODS
from stepdown.policies.rules import RULES
from stepdown.training import FitConfig
from stepdown.twin.baselines import PersistenceConfig
from stepdown.twin.calibrated import CalibratedConfig
from stepdown.twin.fit import TwinConfig
from stepdown.twin.transformer import TransformerConfig
from stepdown.twin.twins import JUDGING_TWIN, PAPER_TWIN, TWINS, twin_config

RunPreset = Literal["pocket", "demo", "overnight", "paper", "full"]
JudgeName = Literal["tdt", "best", "both"]


@dataclass(frozen=True)
class CohortChoice:
    """Which simulated patients."""

    preset: PresetName = "guarded"
    seed: int = 7

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.preset}-{self.seed}"

    def drawn_from(self, version: Version) -> tuple[str, int]:
        """What decides who the patients are; in version 1 the seed did alone, whatever preset."""
        return (self.preset if version > 1 else ""), self.seed


@dataclass(frozen=True)
class ExperimentConfig:
    """The whole experiment; defaults are the paper's sizes."""

    cohorts: tuple[CohortChoice, ...] = (CohortChoice(),)
    patients: int = 379
    hours: float | None = None  # of every stay; by default each has its own
    version: Version = 2  # of the simulated patients
    twins: tuple[TwinConfig, ...] = tuple(map(twin_config, TWINS))  # our judging twin among them
    paper_twin: TwinConfig = field(default_factory=lambda: twin_config(PAPER_TWIN))
    judge: JudgeName = "best"  # whose twin judges: the paper's, ours, or both
    twin_seeds: int = 5  # of the table of twins; the first one judges
    windows: bool = True  # the paper's alternative settings of the twin
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    densities: dict[str, Any] = field(default_factory=dict)  # configs that are not the usual
    data: tuple[DataName, ...] = ("recorded", "noiseless", "noisy")
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    settings: tuple[SettingName, ...] = ("ours", "paper")
    methods: tuple[str, ...] = (*COMPARED, DEFAULT_METHOD)
    rules: tuple[str, ...] = tuple(RULES)
    look_ahead: bool = True  # judge the ceiling, too
    seeds: int = 5
    shrink: Shrink | None = None
    episodes: int = 1000  # per seed and judge
    fresh: int = 300  # patients simulated anew to judge by; 0 for none
    sampled: bool = False  # judge drawn levels, too, in tables beside those of the most probable
    sweeps: bool = True  # sensitivity to tau, lambda, lambda 1 and lambda 2
    searches: bool = False  # six trials of every method but those learned in a twin come first

    @property
    def fitted(self) -> tuple[TwinConfig, ...]:
        """The twins of the run; the paper's joins them where it judges."""
        known = {twin.kind.name for twin in self.twins}
        needed = self.judge != "best" and PAPER_TWIN not in known
        return (*self.twins, self.paper_twin) if needed else self.twins

    @property
    def judging(self) -> dict[str, str]:
        """The twin behind each judge that is one, by the judge's name in tables."""
        each = {"tdt": PAPER_TWIN, "twin": JUDGING_TWIN}
        wanted = {"tdt": ("tdt",), "best": ("twin",), "both": ("tdt", "twin")}[self.judge]
        return {judge: each[judge] for judge in wanted}

    def made_in(self, setting: SettingName) -> str:
        """The twin of the expert and the synthetic hours: the paper's settings have the paper's."""
        ours = self.judge == "best" or (self.judge == "both" and setting == "ours")
        return JUDGING_TWIN if ours else PAPER_TWIN


DESIGN: dict[str, Any] = json.loads(
    Path(__file__).with_name("design.json").read_text(encoding="utf-8")
)
_FULL = DESIGN["full"]


def designed_cohorts(version: Version) -> tuple[CohortChoice, ...]:
    """The cohorts of `full`, the presets by turns, so that a part of them is a part of each."""
    seeds: dict[PresetName, list[int]] = _FULL["seeds"][str(version)]
    each = [[CohortChoice(preset, seed) for seed in own] for preset, own in seeds.items()]
    return tuple(one for turn in zip(*each, strict=True) for one in turn)


_TINY = FitConfig(epochs=2, batch=32)
_POCKET_TWINS = (
    TwinConfig(TWINS["persistence"], PersistenceConfig(errors=64)),
    TwinConfig(TWINS["best"], CalibratedConfig(members=2, width=16, errors=64, fit=_TINY)),
)
_POCKET_PAPER_TWIN = TwinConfig(
    TWINS[PAPER_TWIN],
    TransformerConfig(width=8, heads=2, layers=1, feedforward=16, decoder=16),
    fit=_TINY,
)
TINY_ENSEMBLE = EnsembleConfig(members=2, elites=2, width=16, depth=1, fit=_TINY)
TINY_TRAINING = Shrink(20, 10, 16, (16, 16), 32, 2)
PRESETS: dict[RunPreset, ExperimentConfig] = {
    "paper": ExperimentConfig(
        cohorts=(CohortChoice(DESIGN["paper"]["preset"], DESIGN["paper"]["seed"]),),
        methods=(*COMPARED, *(name for name, x in METHODS.items() if x.group == "planning")),
        sampled=True,
    ),
    "full": ExperimentConfig(
        cohorts=designed_cohorts(2),
        patients=_FULL["patients"],
        twins=tuple(map(twin_config, ("persistence", "best"))),
        twin_seeds=1,
        windows=False,
        data=("recorded",),
        settings=("ours",),
        methods=tuple(_FULL["rows"]),
        rules=tuple(_FULL["rules"]),
        seeds=_FULL["training_seeds"],
        episodes=_FULL["episodes"],
        fresh=_FULL["fresh"],
        sweeps=False,
        searches=_FULL["searched"],
    ),
    "demo": ExperimentConfig(
        twins=tuple(
            replace(twin_config(name, "small"), fit=FitConfig(epochs=6))
            for name in ("persistence", "best")
        ),
        paper_twin=replace(twin_config(PAPER_TWIN, "small"), fit=FitConfig(epochs=6)),
        twin_seeds=1,
        windows=False,
        ensemble=EnsembleConfig(width=64, depth=2, fit=FitConfig(epochs=8, learning_rate=1e-3)),
        data=("recorded",),
        settings=("ours",),
        methods=("bc", "mbpo", "cormpo_kde", DEFAULT_METHOD),
        rules=("hold",),
        seeds=1,
        shrink=Shrink(4000, 500, 256, (64, 64), 2000, 20),
        episodes=600,
        fresh=150,
        sweeps=False,
    ),
    "overnight": ExperimentConfig(  # what `paper` compares, for two cores and a night
        cohorts=(CohortChoice(DESIGN["paper"]["preset"], DESIGN["paper"]["seed"]),),
        twins=(
            twin_config("persistence"),
            replace(twin_config("tdt", "small"), fit=FitConfig(epochs=20)),
            twin_config("best"),
        ),
        twin_seeds=1,
        windows=False,
        dataset=DatasetConfig(episodes=2000, select_episodes=400),
        settings=("ours",),
        methods=(*COMPARED, *(name for name, x in METHODS.items() if x.group == "planning")),
        seeds=2,
        sweeps=False,
    ),
    "pocket": ExperimentConfig(
        patients=8,
        hours=24.0,
        twins=_POCKET_TWINS,
        paper_twin=_POCKET_PAPER_TWIN,
        twin_seeds=1,
        windows=False,
        ensemble=TINY_ENSEMBLE,
        densities={"flow": FlowConfig(layers=2, width=8, fit=_TINY)},
        dataset=DatasetConfig(episodes=20, select_episodes=8),
        methods=("bc", "cormpo_kde"),
        rules=("hold", "always P2", "always P9"),
        look_ahead=False,
        seeds=2,
        shrink=TINY_TRAINING,
        episodes=16,
        fresh=0,
        sweeps=False,
    ),
}


def require_apart(config: ExperimentConfig) -> None:
    """Refuse cohorts that share patients: over cohorts, each counts as an independent one."""
    known: dict[tuple[str, int], CohortChoice] = {}
    for one in config.cohorts:
        other = known.setdefault(one.drawn_from(config.version), one)
        if other is not one:
            raise ValueError(
                f"expected cohorts that share no patient, got {other.name} and {one.name}, which "
                f"draw theirs from the same seed, {one.seed} (version {config.version} of the "
                "patients). Give every cohort a seed of its own."
            )


def sizes_of(
    preset: RunPreset,
    *,
    search: bool = False,
    version: Version = 2,
    judge: JudgeName = "best",
) -> ExperimentConfig:
    """A preset on patients of a version, before these twins; `search` for every row first."""
    sizes = PRESETS[preset]
    cohorts = designed_cohorts(version) if preset == "full" else sizes.cohorts
    searches = sizes.searches or search
    return replace(sizes, cohorts=cohorts, searches=searches, version=version, judge=judge)
