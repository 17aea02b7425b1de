"""What is fitted before anybody learns: twins, ensembles, guardians, the expert and its data."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.evaluation.forecast import (
    METRICS,
    grow_errors,
    score_forecasts,
    summarize,
    summarize_growth,
)
from stepdown.evaluation.shifts import score_shifts
from stepdown.experiment.jobs import Desk, Job, arrays_and_info, saved
from stepdown.experiment.kept import read_policies, save_policies
from stepdown.experiment.patients import Hours, read_hours
from stepdown.experiment.presets import DensityName
from stepdown.guardian.fit import DensityConfig, fit_guardian, load_guardian, save_guardian
from stepdown.guardian.flow import FlowConfig
from stepdown.guardian.kde import KdeConfig
from stepdown.guardian.threshold import RECORDED, SYNTHETIC, Guardian, GuardianConfig
from stepdown.handover import Role, Transitions
from stepdown.policies.checkpoints import load_ensemble, save_ensemble
from stepdown.policies.datasets import DatasetConfig, add_noise, make_noiseless
from stepdown.policies.ensemble import Ensemble, EnsembleConfig, fit_ensemble
from stepdown.policies.model_based import ModelBasedConfig, train_model_based
from stepdown.policies.penalties import Unpenalized
from stepdown.problem.scaling import fit_scaler
from stepdown.report.progress import progress
from stepdown.report.recipes import DataName, SettingName
from stepdown.training import member
from stepdown.twin.fit import Model, Twin, TwinConfig, fit_twins, load_twin, save_twin

COMPARED = ("mae", "mae_z", "mae_map", "mae_changing", "crps", "crps_z")
PAPERS = KdeConfig(action_weight=1.0)
KEY = 0  # of every fit; each splits it for its own ends


@dataclass(frozen=True)
class TwinJob:
    """One model, fitted some times."""

    model: Model
    config: TwinConfig
    seeds: int


def hours_of(desk: Desk, patients: Job) -> Hours:
    """The recorded hours of a run."""
    return read_hours(desk.folder(patients), patients.fingerprint)


def make_twin_job(desk: Desk, patients: Job, settings: TwinJob) -> dict[str, Content]:
    """Fit a model some times and score it on test patients; the first one is kept."""
    hours, config = hours_of(desk, patients), replace(settings.config, model=settings.model)
    keys = jr.split(jr.key(KEY), settings.seeds)
    with progress(f"fitting {settings.model}") as watch:
        twins, info = fit_twins(hours.sliding, hours.select, config, keys=keys, watch=watch)
    scaler = fit_scaler(hours.sliding)
    scores = [
        score_forecasts(twin, hours.test, scaler, key=jr.key(200 + i))
        for i, twin in enumerate(twins)
    ]
    growth = grow_errors(twins[0], hours.test, key=jr.key(300))
    found = {
        "seeds": [summarize(one) for one in scores],
        "growth": summarize_growth(growth),
        "epochs": np.asarray(info.get("best_epoch", 0)).tolist(),
    }
    rows = {name: np.stack([METRICS[name](one) for one in scores]) for name in COMPARED}
    rows["patient"] = np.asarray(scores[0].patient)
    return arrays_and_info(rows, found) | saved(
        lambda path: save_twin(path, twins[0], config, seed=KEY), "twin"
    )


def read_twin(desk: Desk, job: Job) -> Twin:
    """The twin that a job has kept."""
    return load_twin(desk.folder(job) / "twin")[0]


# ── the data sets ────────────────────────────────────────────────────────────────────────────────


def make_expert_job(
    desk: Desk, patients: Job, twin: Job, recipe: ModelBasedConfig
) -> dict[str, Content]:
    """The online expert: soft actor-critic in the twin, which is the whole world here."""
    hours = hours_of(desk, patients)
    policy, curves = train_model_based(
        hours.train, read_twin(desk, twin), Unpenalized(), recipe, key=jr.split(jr.key(KEY), 1)[0]
    )
    stacked = jax.tree.map(lambda x: x[None], policy)
    return arrays_and_info(curves, {}) | save_policies(stacked, "expert")


def make_data_job(
    desk: Desk, patients: Job, twin: Job, expert: Job, config: DatasetConfig
) -> dict[str, Content]:
    """What the expert did in the twin, from train and from select patients; noise comes later."""
    hours, world = hours_of(desk, patients), read_twin(desk, twin)
    policy, arrays = member(read_policies(desk.folder(expert)), 0), {}
    k_train, k_select = jr.split(jr.key(KEY))
    for part, key in ((hours.train, k_train), (hours.select, k_select)):
        made = make_noiseless(policy, world, part, config, key=key)
        arrays |= {f"{part.role}.{name}": getattr(made, name) for name in _STORED}
    return arrays_and_info(arrays, {"hours": config.hours})


_STORED = ("state", "level", "reward", "last", "patient", "next_state")


@dataclass(frozen=True)
class Source:
    """Where the hours of a data set come from."""

    data: DataName
    patients: Job
    synthetic: Job | None  # the expert's episodes; None for recorded hours
    config: DatasetConfig

    def hours(self, desk: Desk) -> tuple[Transitions, Transitions]:
        """The hours to learn from and to choose by."""
        recorded = hours_of(desk, self.patients)
        if self.synthetic is None:
            return recorded.train, recorded.select
        arrays = desk.arrays(self.synthetic)
        train, select = (_synthetic(arrays, role) for role in ("train", "select"))
        if self.data == "noiseless":
            return train, select
        scaler, (k_train, k_select) = fit_scaler(recorded.train), jr.split(jr.key(KEY))
        noisy = add_noise(train, scaler, self.config, key=k_train)
        return noisy, add_noise(select, scaler, self.config, key=k_select)


def _synthetic(arrays: dict[str, np.ndarray], role: Role) -> Transitions:
    part = {name: jnp.asarray(arrays[f"{role}.{name}"]) for name in _STORED}
    never = jnp.zeros(len(part["level"]), bool)
    return Transitions(**part, unshaped=part["reward"], changed=never, filled=never, role=role)


# ── dynamics and guardians to learn with ─────────────────────────────────────────────────────────


def make_ensemble_job(desk: Desk, source: Source, config: EnsembleConfig) -> dict[str, Content]:
    """The dynamics that policies learn in."""
    with progress(f"fitting the ensemble of {source.data} hours") as watch:
        ensemble, info = fit_ensemble(source.hours(desk)[0], config, key=jr.key(KEY), watch=watch)
    return arrays_and_info(info, {}) | saved(
        lambda path: save_ensemble(path, ensemble, config, seed=KEY), "ensemble"
    )


def read_ensemble(desk: Desk, job: Job) -> Ensemble:
    """The ensemble that a job has kept."""
    return load_ensemble(desk.folder(job) / "ensemble")[0]


def density_of(name: DensityName, setting: SettingName, flow: FlowConfig) -> DensityConfig:
    """The paper sees the chosen level with weight 1, we with weight 8; a flow weighs by itself."""
    if name == "flow":
        return DensityConfig("flow", flow=flow)
    return DensityConfig("kde", kde=PAPERS if setting == "paper" else KdeConfig())


@dataclass(frozen=True)
class GuardianJob:
    """A density and where its threshold lies."""

    density: DensityConfig
    limits: GuardianConfig


def limits_of(data: DataName) -> GuardianConfig:
    """The paper's percentiles."""
    return RECORDED if data == "recorded" else SYNTHETIC


def make_guardian_job(desk: Desk, source: Source, settings: GuardianJob) -> dict[str, Content]:
    """A guardian of a data set; on recorded hours, what it notices in test patients as well."""
    density, limits = settings.density, settings.limits
    with progress(f"fitting the {density.density} of {source.data} hours") as watch:
        guardian, _ = fit_guardian(
            *source.hours(desk), density, limits, key=jr.key(KEY), watch=watch
        )
    found = {}
    if source.data == "recorded":
        found, _ = score_shifts(guardian, hours_of(desk, source.patients).test, key=jr.key(KEY))
    # A run holds its recordings anyway, so a kernel density adds nothing that was private.
    return arrays_and_info({}, found) | saved(
        lambda path: save_guardian(
            path, guardian, density, limits, seed=KEY, contains_patient_data=True
        ),
        "guardian",
    )


def read_guardian(desk: Desk, job: Job) -> Guardian:
    """The guardian that a job has kept."""
    return load_guardian(desk.folder(job) / "guardian")[0]
