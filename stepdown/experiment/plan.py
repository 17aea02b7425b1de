"""The jobs of a run, and what each needs: patients, twins, data, models, policies, judges."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepdown.experiment.jobs import Job
from stepdown.experiment.learning import (
    Bench,
    JudgeJob,
    TrainJob,
    make_judge_job,
    make_rules_job,
    make_train_job,
)
from stepdown.experiment.looks import Look, make_look_job
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
from stepdown.experiment.presets import (
    OURS_ROW,
    ROWS,
    CohortChoice,
    DensityName,
    ExperimentConfig,
    expert_recipe,
    recipe_of,
)
from stepdown.experiment.sweeps import PERCENTILES, changes_of, make_window_job, windows_of
from stepdown.guardian.threshold import GuardianConfig
from stepdown.patients.cohort import CohortConfig
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.report.recipes import DataName, SettingName

_PATIENTS = ("signals.py", "handover.py", "patients", "records/split.py", "experiment/patients.py")
_TWINS = ("problem", "training.py", "twin", "evaluation/forecast.py", "evaluation/horizon.py")
_POLICIES = ("problem", "training.py", "policies", "experiment/learning.py")
_GUARDIANS = ("problem", "training.py", "guardian", "evaluation/shifts.py")
_JUDGES = ("evaluation/judging.py", "evaluation/in_patients.py", "experiment/learning.py")
MODELS = "experiment/models.py"
JUDGING_TWIN = "best"


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


@dataclass(frozen=True)
class Trained:
    """A training and its judging."""

    row: str
    train: Job
    judge: Job


@dataclass(frozen=True)
class Plan:
    """All jobs of one cohort, by what they are for."""

    name: str
    patients: Job
    twins: dict[str, Job]
    guardians: dict[str, Job]  # of the recorded hours
    rules: Job
    compared: dict[tuple[DataName, SettingName], dict[str, Trained]]
    expert: Job | None  # its judging
    look: Job | None  # numbers behind figures
    windows: dict[str, Job]  # other settings of the twin
    sweep: dict[tuple[str, float], Trained]  # CORMPO with one number changed

    @property
    def jobs(self) -> list[Job]:
        """Everything that somebody reads in the end."""
        judged = [one.judge for rows in self.compared.values() for one in rows.values()]
        judged += [one.judge for one in self.sweep.values()]
        last = [job for job in (self.rules, *judged, self.expert, self.look) if job]
        return [*self.twins.values(), *self.windows.values(), *self.guardians.values(), *last]


def make_plan(
    config: ExperimentConfig, choice: CohortChoice, imported: Imported | None = None
) -> Plan:
    """The jobs of one cohort."""
    name = choice.name if imported is None else "imported"
    recipe, patients = _patients(config, choice, imported, name)
    twins = {}
    for model in dict.fromkeys((*config.twins, JUDGING_TWIN)):
        twin = TwinJob(model, config.twin, config.twin_seeds)
        make = partial(make_twin_job, patients=patients, settings=twin)
        twins[model] = Job(f"{name}/twin/{model}", twin, (*_TWINS, MODELS), make, (patients,))
    bench = Bench(patients, twins[JUDGING_TWIN], recipe)
    judging = JudgeJob(config.episodes, config.fresh, choice.seed)
    beside = (patients, bench.twin)
    rules = Job(
        f"{name}/judge/rules",
        judging,
        (*_JUDGES, "policies/rules.py"),
        partial(make_rules_job, bench=bench, settings=judging),
        beside,
    )
    sources, expert = _sources(config, name, patients, bench.twin)
    judged_expert = (
        None if expert is None else _judge(f"{name}/judge/expert", bench, judging, expert)
    )
    compared, guardians = {}, {}
    for data in config.data:
        for setting in config.settings:
            rows, densities = _rows(config, name, sources[data], setting, (bench, judging))
            compared[data, setting] = rows
            if data == "recorded":
                guardians |= densities
    first = compared.get(("recorded", "ours"), {})
    return Plan(
        name,
        patients,
        twins,
        guardians,
        rules,
        compared,
        judged_expert,
        look=_look(config, name, sources["recorded"], (bench, judging), first),
        windows=_windows(config, name, recipe, choice.seed),
        sweep=_sweep(config, name, sources["recorded"], (bench, judging)),
    )


def _look(config, name: str, source: Source, judges, rows: dict[str, Trained]) -> Job | None:
    """The numbers behind the figures of the recorded comparison in our setting."""
    bench, judging = judges
    ensemble, trained = _ensemble(config, name, source), {}
    for row, one in rows.items():
        trained[row] = (one.train, one.judge)
    if not trained:
        return None
    look = Look(judging)
    make = partial(make_look_job, bench=bench, look=look, trained=trained, ensemble=ensemble)
    needs = (
        bench.patients,
        bench.twin,
        ensemble,
        *(job for pair in trained.values() for job in pair),
    )
    return Job(f"{name}/look", look, (*_JUDGES, "experiment/looks.py"), make, needs)


def _windows(config: ExperimentConfig, name: str, cohort, seed: int) -> dict[str, Job]:
    """Other settings of the twin, for simulated patients."""
    if not config.windows or cohort is None:
        return {}
    jobs = {}
    for one in windows_of(cohort, seed, config.twin, config.twin_seeds):
        words = f"{one.window:g} min at {one.minutes * 60:g} s"
        where = f"{name}/window/{one.window:g}-{one.minutes:g}"
        parts = (*_PATIENTS, *_TWINS, "experiment/sweeps.py")
        jobs[words] = Job(where, one, parts, partial(make_window_job, settings=one))
    return jobs


def _sweep(
    config: ExperimentConfig, name: str, source: Source, judges
) -> dict[tuple[str, float], Trained]:
    """CORMPO on recorded hours in our setting with one number changed."""
    if not config.sweeps:
        return {}
    bench, judging = judges
    recipe = recipe_of(OURS_ROW, "ours", "recorded", config.shrink)
    assert isinstance(recipe, ModelBasedConfig)
    ensemble = _ensemble(config, name, source)
    kernel = _guardian(config, name, source, "ours", "kde")
    density = density_of("kde", "ours", config.flow)
    points = [(*change, kernel) for change in changes_of(recipe)]
    for percentile in PERCENTILES:
        settings = GuardianJob(density, GuardianConfig(percentile=percentile))
        moved = _fit_guardian(f"{name}/sweep/guardian-{percentile:g}", source, settings)
        points.append(("tau", percentile, recipe, moved))
    found = {}
    for parameter, value, changed, guardian in points:
        where = f"{name}/sweep/{parameter}-{value:g}"
        settings = TrainJob(OURS_ROW, changed, config.seeds)
        train = _train(f"{where}/train", source, settings, ensemble, guardian)
        judge = _judge(f"{where}/judge", bench, judging, train)
        found[parameter, value] = Trained(OURS_ROW, train, judge)
    return found


def _patients(config, choice, imported, name) -> tuple[CohortConfig | None, Job]:
    if imported is not None:
        make = partial(_import, path=imported.path)
        return None, Job(f"{name}/patients", imported, _PATIENTS, make)
    recipe = CohortConfig(patients=config.patients, preset=choice.preset, hours=config.hours)
    make = partial(_simulate, recipe=recipe, seed=choice.seed)
    return recipe, Job(f"{name}/patients", Simulated(recipe, choice.seed), _PATIENTS, make)


def _simulate(desk, recipe: CohortConfig, seed: int):
    return simulate_patients(recipe, seed)


def _import(desk, path: Path):
    return import_patients(path)


def _sources(
    config: ExperimentConfig, name: str, patients: Job, twin: Job
) -> tuple[dict[DataName, Source], Job | None]:
    """Where each data set comes from, and the expert of the synthetic ones."""
    recorded = Source("recorded", patients, None, config.dataset)
    if set(config.data) == {"recorded"}:
        return {"recorded": recorded}, None
    recipe = expert_recipe("ours", config.shrink)
    make = partial(make_expert_job, patients=patients, twin=twin, recipe=recipe)
    expert = Job(f"{name}/expert", recipe, (*_POLICIES, MODELS), make, (patients, twin))
    make = partial(
        make_data_job, patients=patients, twin=twin, expert=expert, config=config.dataset
    )
    parts = ("policies/datasets.py", "problem", MODELS)
    data = Job(f"{name}/data", config.dataset, parts, make, (patients, twin, expert))
    noiseless = Source("noiseless", patients, data, config.dataset)
    noisy = Source("noisy", patients, data, config.dataset)
    return {"recorded": recorded, "noiseless": noiseless, "noisy": noisy}, expert


def _rows(
    config: ExperimentConfig, name: str, source: Source, setting: SettingName, judges
) -> tuple[dict[str, Trained], dict[str, Job]]:
    """Every learned row of one data set in one setting."""
    bench, judging = judges
    ensemble = _ensemble(config, name, source)
    guardians = {
        density: _guardian(config, name, source, setting, density) for density in ("kde", "flow")
    }
    rows = {}
    for row in config.rows:
        recipe = recipe_of(row, setting, source.data, config.shrink)
        settings = TrainJob(row, recipe, config.seeds)
        method, density = ROWS[row].method, ROWS[row].density
        guardian = guardians[density] if density else None
        dynamics = None if method in ("bc", "svr") else ensemble
        where = f"{source.data}/{setting}/{row}"
        train = _train(f"{name}/train/{where}", source, settings, dynamics, guardian)
        rows[row] = Trained(row, train, _judge(f"{name}/judge/{where}", bench, judging, train))
    used = {ROWS[row].density for row in config.rows}
    kept = {f"{density}, {setting}": job for density, job in guardians.items() if density in used}
    return rows, kept


def _ensemble(config: ExperimentConfig, name: str, source: Source) -> Job:
    return Job(
        f"{name}/ensemble/{source.data}",
        config.ensemble,
        (*_POLICIES[:3], MODELS),
        partial(make_ensemble_job, source=source, config=config.ensemble),
        (source.patients, *([source.synthetic] if source.synthetic else [])),
    )


def _train(
    name: str, source: Source, settings: TrainJob, ensemble: Job | None, guardian: Job | None
) -> Job:
    make = partial(
        make_train_job, source=source, settings=settings, ensemble=ensemble, guardian=guardian
    )
    used = (source.patients, source.synthetic, ensemble, guardian)
    return Job(name, settings, _POLICIES, make, tuple(job for job in used if job))


def _guardian(
    config: ExperimentConfig, name: str, source: Source, setting: SettingName, density: DensityName
) -> Job:
    recipe = density_of(density, setting, config.flow)
    # A flow is the same in both settings; so is its folder.
    where = f"{source.data}/{density}" + ("" if density == "flow" else f"-{setting}")
    return _fit_guardian(
        f"{name}/guardian/{where}", source, GuardianJob(recipe, limits_of(source.data))
    )


def _fit_guardian(name: str, source: Source, settings: GuardianJob) -> Job:
    needs = (source.patients, *([source.synthetic] if source.synthetic else []))
    make = partial(make_guardian_job, source=source, settings=settings)
    return Job(name, settings, (*_GUARDIANS, MODELS), make, needs)


def _judge(name: str, bench: Bench, settings: JudgeJob, trained: Job) -> Job:
    make = partial(make_judge_job, bench=bench, settings=settings, trained=trained)
    return Job(name, settings, _JUDGES, make, (bench.patients, bench.twin, trained))
