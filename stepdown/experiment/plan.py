"""The jobs of a run: patients, twins, data, models, policies, judges, and what else is shown."""

from dataclasses import dataclass
from functools import partial

from stepdown.experiment.jobs import Job
from stepdown.experiment.learning import Bench, JudgeJob, TrainJob
from stepdown.experiment.looks import Look, make_look_job
from stepdown.experiment.models import GuardianJob, Source, density_of, limits_of
from stepdown.experiment.presets import (
    OURS_ROW,
    ROWS,
    CohortChoice,
    ExperimentConfig,
    recipe_of,
)
from stepdown.experiment.searches import searched_train_job
from stepdown.experiment.sweeps import PERCENTILES, changes_of, make_window_job, windows_of
from stepdown.experiment.wiring import (
    JUDGES,
    PATIENTS,
    TWINS,
    Imported,
    ensemble_job,
    guardian_job,
    guardian_job_of,
    judge_job,
    make_sources,
    patients_job,
    rules_job,
    train_job,
    twin_job,
)
from stepdown.guardian.threshold import GuardianConfig
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.report.recipes import DataName, SettingName
from stepdown.twin.fit import Model

JUDGING_TWIN: Model = "best"


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
        """Everything that somebody reads in the end; first what most others wait for."""
        judged = [one.judge for rows in self.compared.values() for one in rows.values()]
        judged += [one.judge for one in self.sweep.values()]
        learned = [job for job in (self.expert, self.rules, self.look, *judged) if job]
        return [*learned, *self.guardians.values(), *self.twins.values(), *self.windows.values()]


def make_plan(
    config: ExperimentConfig, choice: CohortChoice, imported: Imported | None = None
) -> Plan:
    """The jobs of one cohort."""
    name = choice.name if imported is None else "imported"
    recipe, patients = patients_job(config, choice, imported, name)
    models: dict[Model, None] = dict.fromkeys((*config.twins, JUDGING_TWIN))
    twins = {model: twin_job(config, name, patients, model) for model in models}
    bench = Bench(patients, twins[JUDGING_TWIN], recipe)
    judging = JudgeJob(config.episodes, config.fresh, choice.seed)
    sources, expert = make_sources(config, name, patients, bench.twin)
    judged = expert and judge_job(f"{name}/judge/expert", bench, judging, expert)
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
        rules_job(config, name, bench, judging),
        compared,
        judged,
        look=_look(config, name, sources["recorded"], (bench, judging), first),
        windows=_windows(config, name, recipe, choice.seed),
        sweep=_sweep(config, name, sources["recorded"], (bench, judging), first.get(OURS_ROW)),
    )


def _look(config, name: str, source: Source, judges, rows: dict[str, Trained]) -> Job | None:
    """The numbers behind the figures of the recorded comparison in our setting."""
    bench, judging = judges
    ensemble, trained = ensemble_job(config, name, source), {}
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
    return Job(f"{name}/look", look, (*JUDGES, "experiment/looks.py"), make, needs)


def _windows(config: ExperimentConfig, name: str, cohort, seed: int) -> dict[str, Job]:
    """Other settings of the twin, for simulated patients."""
    if not config.windows or cohort is None:
        return {}
    jobs = {}
    for one in windows_of(cohort, seed, config.twin, config.twin_seeds):
        words = f"{one.window:g} min at {one.minutes * 60:g} s"
        where = f"{name}/window/{one.window:g}-{one.minutes:g}"
        parts = (*PATIENTS, *TWINS, "experiment/sweeps.py")
        jobs[words] = Job(where, one, parts, partial(make_window_job, settings=one))
    return jobs


def _sweep(
    config: ExperimentConfig, name: str, source: Source, judges, unchanged: Trained | None
) -> dict[tuple[str, float], Trained]:
    """CORMPO on recorded hours in our setting with one number changed.

    A value that is the setting's own is `unchanged`, and not trained again.
    """
    if not config.sweeps:
        return {}
    bench, judging = judges
    recipe = recipe_of(OURS_ROW, "ours", "recorded", config.shrink)
    assert isinstance(recipe, ModelBasedConfig)
    ensemble = ensemble_job(config, name, source)
    kernel = guardian_job(config, name, source, "ours", "kde")
    density = density_of("kde", "ours", config.flow)
    points = [(*change, kernel) for change in changes_of(recipe)]
    for percentile in PERCENTILES:
        limits = GuardianConfig(percentile=percentile)
        if limits == limits_of("recorded"):
            points.append(("tau", percentile, recipe, kernel))
            continue
        settings = GuardianJob(density, limits)
        moved = guardian_job_of(f"{name}/sweep/guardian-{percentile:g}", source, settings)
        points.append(("tau", percentile, recipe, moved))
    found = {}
    for parameter, value, changed, guardian in points:
        if unchanged is not None and (changed, guardian) == (recipe, kernel):
            found[parameter, value] = unchanged
            continue
        where = f"{name}/sweep/{parameter}-{value:g}"
        settings = TrainJob(OURS_ROW, changed, config.seeds)
        train = train_job(f"{where}/train", source, settings, ensemble, guardian)
        judge = judge_job(f"{where}/judge", bench, judging, train)
        found[parameter, value] = Trained(OURS_ROW, train, judge)
    return found


def _rows(
    config: ExperimentConfig, name: str, source: Source, setting: SettingName, judges
) -> tuple[dict[str, Trained], dict[str, Job]]:
    """Every learned row of one data set in one setting."""
    bench, judging = judges
    ensemble = ensemble_job(config, name, source)
    guardians = {
        density: guardian_job(config, name, source, setting, density) for density in ("kde", "flow")
    }
    rows, known = {}, {}
    for row in config.rows:
        recipe = recipe_of(row, setting, source.data, config.shrink)
        method, density, in_twin = ROWS[row].method, ROWS[row].density, ROWS[row].in_twin
        if same := known.get((method, density, in_twin, recipe)):
            rows[row] = same  # the paper shapes no reward of noisy data: both rows are one
            continue
        settings = TrainJob(row, recipe, config.seeds)
        guardian = guardians[density] if density else None
        model = bench.twin if in_twin else None if method in ("bc", "svr") else ensemble
        where = f"{source.data}/{setting}/{row}"
        if config.searches and not in_twin:  # the twin cannot say how well its own pupils do
            models = model, guardian, bench.twin
            train = searched_train_job((name, where), source, settings, models)
        else:
            train = train_job(f"{name}/train/{where}", source, settings, model, guardian)
        rows[row] = Trained(row, train, judge_job(f"{name}/judge/{where}", bench, judging, train))
        known[method, density, in_twin, recipe] = rows[row]
    used = {ROWS[row].density for row in config.rows}
    kept = {f"{density}, {setting}": job for density, job in guardians.items() if density in used}
    return rows, kept
