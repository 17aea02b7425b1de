"""Single jobs of a run: their names, what they rest on, what they need."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepdown.experiment.jobs import Job
from stepdown.experiment.learning import (
    Bench,
    JudgeJob,
    RulesJob,
    TrainJob,
    make_judge_job,
    make_rules_job,
    make_train_job,
)
from stepdown.experiment.models import (
    GuardianJob,
    Source,
    TwinJob,
    density_of,
    limits_of,
    make_data_job,
    make_ensemble_job,
    make_expert_job,
    make_guardian_job,
    make_twin_job,
)
from stepdown.experiment.patients import import_patients, simulate_patients
from stepdown.experiment.presets import CohortChoice, DensityName, ExperimentConfig, expert_recipe
from stepdown.patients.cohort import CohortConfig
from stepdown.report.recipes import DataName, SettingName
from stepdown.twin.fit import Model

PATIENTS = ("signals.py", "handover.py", "patients", "records/split.py", "experiment/patients.py")
TWINS = ("problem", "training.py", "twin", "evaluation/forecast.py")
POLICIES = ("problem", "training.py", "policies", "experiment/learning.py")
GUARDIANS = ("problem", "training.py", "guardian", "evaluation/shifts.py")
JUDGES = ("evaluation/judging.py", "experiment/learning.py")
MODELS = "experiment/models.py"


@dataclass(frozen=True)
class Imported:
    """Somebody's own recordings."""

    path: Path
    digest: str  # of their manifest or file


@dataclass(frozen=True)
class Simulated:
    """Which patients to simulate."""

    cohort: CohortConfig
    seed: int


def patients_job(
    config: ExperimentConfig, choice: CohortChoice, imported: Imported | None, name: str
) -> tuple[CohortConfig | None, Job]:
    """The patients, and how they are simulated; None for imported ones."""
    if imported is not None:
        make = partial(_import, path=imported.path)
        return None, Job(f"{name}/patients", imported, PATIENTS, make)
    recipe = CohortConfig(patients=config.patients, preset=choice.preset, hours=config.hours)
    make = partial(_simulate, recipe=recipe, seed=choice.seed)
    return recipe, Job(f"{name}/patients", Simulated(recipe, choice.seed), PATIENTS, make)


def _simulate(desk, recipe: CohortConfig, seed: int):
    return simulate_patients(recipe, seed)


def _import(desk, path: Path):
    return import_patients(path)


def make_sources(
    config: ExperimentConfig, name: str, patients: Job, twin: Job
) -> tuple[dict[DataName, Source], Job | None]:
    """Where each data set comes from, and the expert of the synthetic ones."""
    recorded = Source("recorded", patients, None, config.dataset)
    if set(config.data) == {"recorded"}:
        return {"recorded": recorded}, None
    recipe = expert_recipe("ours", config.shrink)
    make = partial(make_expert_job, patients=patients, twin=twin, recipe=recipe)
    expert = Job(f"{name}/expert", recipe, (*POLICIES, MODELS), make, (patients, twin))
    make = partial(
        make_data_job, patients=patients, twin=twin, expert=expert, config=config.dataset
    )
    parts = ("policies/datasets.py", "problem", MODELS)
    data = Job(f"{name}/data", config.dataset, parts, make, (patients, twin, expert))
    noiseless = Source("noiseless", patients, data, config.dataset)
    noisy = Source("noisy", patients, data, config.dataset)
    return {"recorded": recorded, "noiseless": noiseless, "noisy": noisy}, expert


def twin_job(config: ExperimentConfig, name: str, patients: Job, model: Model) -> Job:
    """One model of the table of twins."""
    settings = TwinJob(model, config.twin, config.twin_seeds)
    make = partial(make_twin_job, patients=patients, settings=settings)
    return Job(f"{name}/twin/{model}", settings, (*TWINS, MODELS), make, (patients,))


def rules_job(config: ExperimentConfig, name: str, bench: Bench, judging: JudgeJob) -> Job:
    """What needs no learning."""
    settings = RulesJob(judging, config.rules, config.look_ahead)
    make = partial(make_rules_job, bench=bench, settings=settings)
    needs = (bench.patients, bench.twin)
    return Job(f"{name}/judge/rules", settings, (*JUDGES, "policies/rules.py"), make, needs)


def ensemble_job(config: ExperimentConfig, name: str, source: Source) -> Job:
    """The dynamics that policies learn in."""
    return Job(
        f"{name}/ensemble/{source.data}",
        config.ensemble,
        (*POLICIES[:3], MODELS),
        partial(make_ensemble_job, source=source, config=config.ensemble),
        (source.patients, *([source.synthetic] if source.synthetic else [])),
    )


def train_job(
    name: str, source: Source, settings: TrainJob, model: Job | None, guardian: Job | None
) -> Job:
    """All seeds of one row."""
    make = partial(make_train_job, source=source, settings=settings, model=model, guardian=guardian)
    used = (source.patients, source.synthetic, model, guardian)
    return Job(name, settings, POLICIES, make, tuple(job for job in used if job))


def guardian_job(
    config: ExperimentConfig, name: str, source: Source, setting: SettingName, density: DensityName
) -> Job:
    """The guardian of a data set in a setting."""
    recipe = density_of(density, setting, config.flow)
    # A flow is the same in both settings; so is its folder.
    where = f"{source.data}/{density}" + ("" if density == "flow" else f"-{setting}")
    return guardian_job_of(
        f"{name}/guardian/{where}", source, GuardianJob(recipe, limits_of(source.data))
    )


def guardian_job_of(name: str, source: Source, settings: GuardianJob) -> Job:
    """Any guardian."""
    needs = (source.patients, *([source.synthetic] if source.synthetic else []))
    make = partial(make_guardian_job, source=source, settings=settings)
    return Job(name, settings, (*GUARDIANS, MODELS), make, needs)


def judge_job(name: str, bench: Bench, settings: JudgeJob, trained: Job) -> Job:
    """A training before all judges."""
    make = partial(make_judge_job, bench=bench, settings=settings, trained=trained)
    return Job(name, settings, JUDGES, make, (bench.patients, bench.twin, trained))
