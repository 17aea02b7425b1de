"""The jobs of a run: patients, twins, data, models, policies, judges, and what else is shown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepdown.experiment.datasets import FitEnsemble, ImagineHours, Source
from stepdown.experiment.evidence_jobs import (
    CANDIDATES,
    CertifyPolicies,
    ChooseWithoutTruth,
    CompareSubgroups,
    EstimateFromRecords,
    JudgeElsewhere,
    JudgeInSecondTwin,
    Judges,
)
from stepdown.experiment.figure_numbers import MakeFigureNumbers
from stepdown.experiment.guardians import FitGuardian
from stepdown.experiment.jobs import Desk, Job
from stepdown.experiment.judging import Bench, JudgePolicies, JudgeRules, Trained
from stepdown.experiment.patients import ImportPatients, SimulatePatients
from stepdown.experiment.presets import CohortChoice, ExperimentConfig, require_apart
from stepdown.experiment.training import EXPERT_KEY, ChooseTrial, TrainPolicy, Trial
from stepdown.experiment.twins import FitTwin, windows_of
from stepdown.guardian.fit import DensityConfig
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.kde import KdeConfig
from stepdown.guardian.threshold import RECORDED, SYNTHETIC, GuardianConfig
from stepdown.handover import DataName, SettingName
from stepdown.patients.cohort import CohortConfig
from stepdown.policies.learning import Method, apply_changes
from stepdown.policies.methods import METHODS, OURS_METHOD, make_recipe
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.twin.twins import JUDGING_TWIN, twin_config

PERCENTILES = (5.0, 20.0, 35.0, 50.0, 65.0)  # of tau
WEIGHTS, BONUSES = (0.0, 0.02, 0.08, 0.15, 0.3), (0.0, 0.1, 0.3)
SWEPT: dict[str, tuple[str, tuple[float, ...], dict[str, float]]] = {
    # parameter: field of the recipe, values, and what else is changed; the last two, and lambda 1
    # at our lambda 2 of 0, are where the paper looks (App. F)
    "lambda": ("penalty_weight", WEIGHTS, {}),
    "lambda1": ("jump_weight", (0.0, 0.25, 0.5, 1.0), {}),
    "lambda2": ("weaning_weight", BONUSES, {}),
    "lambda, anchored": ("penalty_weight", WEIGHTS, {"jump_weight": 0.0, "weaning_weight": 0.8}),
    "lambda2, anchored": ("weaning_weight", (*BONUSES, 0.8), {"jump_weight": 0.0}),
}
PERCENTILE, VARIANCE, NO_THRESHOLD = "percentile", "least variance", "none: p-value"  # rules of tau
WINDOWED = ("tdt", "best", "persistence")  # twins that are scored with other windows
# At the bedside a guardian that is sharper about choices and keeps half of what states say.
BEDSIDE = DensityConfig(DENSITIES["kde"], 0.5, KdeConfig(action_weight=4.0))
ELSEWHERE = (150, 300)  # patients and episodes of every shift, at most

Compared = dict[tuple[DataName, SettingName], dict[str, Trained]]  # by method


@dataclass(frozen=True)
class Plan:
    """All jobs of one cohort, by what they are for."""

    name: str
    patients: Job
    bench: Bench
    twins: dict[str, Job]
    ensembles: dict[DataName, Job]
    guardians: dict[str, Job]  # of the recorded hours
    bedside: Job  # the guardian that a run keeps
    rules: Job
    compared: Compared
    without_noise: dict[SettingName, dict[str, Trained]]  # rows of noisy data, but for the noise
    sampled: dict[tuple[DataName, SettingName], dict[str, Job]]  # judged by drawn levels
    searches: list[Job]
    experts: dict[SettingName, Job]  # their judging
    figures: Job | None  # numbers behind figures
    windows: dict[str, Job]  # other settings of the twin
    sweep: dict[tuple[str, float | str], Trained]  # CORMPO with one thing changed

    @property
    def jobs(self) -> list[Job]:
        """Everything that somebody reads in the end; first what most others wait for."""
        tables = [*self.compared.values(), *self.without_noise.values()]
        judged = [one.judge for rows in tables for one in rows.values()]
        judged += [one.judge for one in self.sweep.values()]
        judged += [job for rows in self.sampled.values() for job in rows.values()]
        several = (*self.experts.values(), self.rules, self.figures, *judged)
        learned = [job for job in several if job]
        guards = [*self.guardians.values(), self.bedside]
        return [*learned, *guards, *self.twins.values(), *self.windows.values()]

    @property
    def recorded(self) -> dict[str, Trained]:
        """What was learned from recorded hours in our setting."""
        return self.compared.get(("recorded", "ours"), {})


def make_plans(config: ExperimentConfig, imported: ImportPatients | None = None) -> list[Plan]:
    """The jobs of every cohort of a run, which share no patient; of recordings there is one."""
    if imported is not None:
        return [make_plan(config, config.cohorts[0], imported)]
    require_apart(config)
    return [make_plan(config, choice) for choice in config.cohorts]


def make_plan(
    config: ExperimentConfig, choice: CohortChoice, imported: ImportPatients | None = None
) -> Plan:
    """The jobs of one cohort."""
    return _Planner(config, choice, imported).plan()


class _Planner:
    """Makes each job of a cohort where it is first needed."""

    def __init__(
        self, config: ExperimentConfig, choice: CohortChoice, imported: ImportPatients | None
    ):
        self.config, self.choice = config, choice
        self.name = choice.name if imported is None else "imported"
        recipe = CohortConfig(
            patients=config.patients,
            preset=choice.preset,
            hours=config.hours,
            version=config.version,
        )
        self.patients = self.job("patients", imported or SimulatePatients(recipe, choice.seed))
        self.cohort = recipe if imported is None else None
        seeds = config.twin_seeds
        pump = recipe.profile if imported is None else imported.profile
        fitted = [replace(twin, profile=pump) for twin in config.fitted]
        self.twins = {
            twin.kind.name: self.job(f"twin/{twin.kind.name}", FitTwin(self.patients, twin, seeds))
            for twin in fitted
        }
        ridge = FitTwin(self.patients, twin_config("ridge", profile=pump), 1)
        self.ridge = self.job("ridge", ridge)  # to plan in, whatever twins the run compares
        self.ours = self.twins[JUDGING_TWIN]
        judging = {judge: self.twins[name] for judge, name in config.judging.items()}
        self.bench = Bench(self.patients, judging, config.episodes, config.fresh, choice.seed)
        self.recorded = Source("recorded", self.patients, None, config.dataset)
        rules = JudgeRules(self.bench, config.rules, config.look_ahead)
        self.rules = self.job("judge/rules", rules)
        self.searches: list[Job] = []

    def job(self, name: str, work: Any) -> Job:
        """A job of this cohort."""
        return Job(f"{self.name}/{name}", work)

    def plan(self) -> Plan:
        """All jobs."""
        config = self.config
        sources = {setting: self.sources(setting) for setting in config.settings}
        experts: dict[SettingName, Job] = {}
        if set(config.data) != {"recorded"}:
            experts |= {x: self.judge(*self.expert(x)) for x in config.settings}
        compared: Compared = {
            (data, setting): self.rows(sources[setting][data], setting)
            for data in config.data
            for setting in config.settings
        }
        used = dict.fromkeys(METHODS[name].density for name in config.methods)
        guardians = {
            f"{density}, {setting}": self.guardian(self.recorded, setting, density)
            for setting in config.settings
            for density in used
            if density and "recorded" in config.data
        }
        guardians.setdefault("kde, ours", self.guardian(self.recorded, "ours", "kde"))
        rows = compared.get(("recorded", "ours"), {})
        return Plan(
            self.name,
            self.patients,
            self.bench,
            self.twins,
            ensembles={x: self.ensemble(sources[config.settings[0]][x]) for x in config.data},
            guardians=guardians,
            bedside=self.job("guardian/bedside", FitGuardian(self.recorded, BEDSIDE, RECORDED)),
            rules=self.rules,
            compared=compared,
            without_noise={
                setting: self.without_noise(compared, sources[setting]["noiseless"], setting)
                for setting in config.settings
                if {"noiseless", "noisy"} <= set(config.data)
            },
            sampled={
                (data, setting): self.sampled(rows, f"{data}/{setting}")
                for (data, setting), rows in compared.items()
                if config.sampled
            },
            searches=self.searches,
            experts=experts,
            figures=self.figures(rows),
            windows=dict(self.windows()),
            sweep=dict(self.sweep(rows.get(OURS_METHOD))),
        )

    def judge(self, name: str, trained: Job) -> Job:
        """A training before all judges."""
        return self.job(f"judge/{name}", JudgePolicies(self.bench, trained))

    def sampled(self, rows: dict[str, Trained], where: str) -> dict[str, Job]:
        """The same trainings once more, their levels drawn by their own probabilities."""
        bench = replace(self.bench, sampled=True)
        return {
            name: self.job(f"judge/sampled/{where}/{name}", JudgePolicies(bench, one.train))
            for name, one in rows.items()
        }

    def sources(self, setting: SettingName) -> dict[DataName, Source]:
        """Where the hours of every data set come from in a setting."""
        config = self.config
        if set(config.data) == {"recorded"}:
            return {"recorded": self.recorded}
        name, expert = self.expert(setting)
        twin, place = self.twins[config.made_in(setting)], name.removesuffix("expert")
        work = ImagineHours(self.patients, twin, expert, config.dataset)
        stored = self.job(f"{place}data", work)
        noiseless = Source("noiseless", self.patients, stored, config.dataset, place)
        noisy = replace(noiseless, data="noisy")
        return {"recorded": self.recorded, "noiseless": noiseless, "noisy": noisy}

    def expert(self, setting: SettingName) -> tuple[str, Job]:
        """The online expert of the synthetic data sets, who learns in the twin they are made in."""
        made_in = self.config.made_in(setting)
        name = "expert" if made_in == JUDGING_TWIN else f"{made_in}/expert"
        recipe = make_recipe("expert", "ours", "noiseless", shrink=self.config.shrink)
        work = TrainPolicy(
            METHODS["expert"],
            recipe,
            (0,),
            self.recorded,
            dynamics=self.twins[made_in],
            key=EXPERT_KEY,
        )
        return name, self.job(name, work)

    def ensemble(self, source: Source) -> Job:
        """The dynamics that policies learn in."""
        where = f"{source.place}ensemble/{source.data}"
        return self.job(where, FitEnsemble(source, self.config.ensemble))

    def guardian(self, source: Source, setting: SettingName, density: str) -> Job:
        """The guardian of a data set in a setting, at the paper's percentile."""
        where, kind = f"{source.data}/{density}", DENSITIES[density]
        limits = RECORDED if source.data == "recorded" else SYNTHETIC
        settings = self.config.densities.get(density)
        if kind.paper is not None:  # others are the same in both settings
            where = f"{where}-{setting}"
            settings = kind.paper if setting == "paper" else settings
        config = DensityConfig(kind, settings=settings)
        return self.job(f"{source.place}guardian/{where}", FitGuardian(source, config, limits))

    def rows(self, source: Source, setting: SettingName) -> dict[str, Trained]:
        """Every learned method on one data set in one setting."""
        rows: dict[str, Trained] = {}
        known: list[tuple[Any, Trained]] = []
        for name in self.config.methods:
            method, data = METHODS[name], source.data
            if method.dynamics == "ridge" and data != "recorded":
                continue  # the ridge twin is fitted to windows of the patients' recordings
            recipe = make_recipe(name, setting, data, shrink=self.config.shrink)
            # The paper shapes no reward of noisy data: there the shaped method is the other one.
            what = (method.learn, method.penalty, method.density, method.dynamics, recipe)
            if same := next((one for other, one in known if other == what), None):
                rows[name] = same
                continue
            where = f"{data}/{setting}/{name}"
            seeds = tuple(range(self.config.seeds))
            models = self.models(method, source, setting)
            work = TrainPolicy(method, recipe, seeds, source, *models)
            if self.config.searches and method.dynamics not in ("twin", "ridge"):
                # The twin cannot say how well its own pupils do, so these are not searched; the
                # planner's numbers were fixed on development cohorts.
                work = replace(work, search=self.search(where, work))
            train = self.job(f"train/{where}", work)
            rows[name] = Trained(train, self.judge(where, train))
            known.append((what, rows[name]))
        return rows

    def models(
        self, method: Method, source: Source, setting: SettingName
    ) -> tuple[Job | None, Job | None]:
        """What a method learns in and is charged by, fitted to a data set."""
        dynamics = {
            "twin": self.ours,
            "ensemble": self.ensemble(source),
            "ridge": self.ridge,
            None: None,
        }
        density = method.density
        guardian = None if density is None else self.guardian(source, setting, density)
        return dynamics[method.dynamics], guardian

    def without_noise(
        self, compared: Compared, source: Source, setting: SettingName
    ) -> dict[str, Trained]:
        """Every row of the noisy data once more, with nothing changed but the noise.

        The drop by noise compares the two. The paper has other numbers for noiseless data, and a
        search may choose others; a noiseless row that has the same ones is taken as it is.
        """
        rows: dict[str, Trained] = {}
        known = list(compared["noiseless", setting].values())
        for name, one in compared["noisy", setting].items():
            work = one.train.work
            assert isinstance(work, TrainPolicy)
            dynamics, guardian = self.models(work.method, source, setting)
            clean = replace(work, source=source, dynamics=dynamics, guardian=guardian)
            same = next((x for x in known if x.train.work == clean), None)
            if same is None:
                where = f"drop/{setting}/{work.method.name}"
                train = self.job(f"train/{where}", clean)
                same = Trained(train, self.judge(where, train))
                known.append(same)
            rows[name] = same
        return rows

    def search(self, where: str, work: TrainPolicy) -> Job:
        """Six trials of a method, each a training of its own."""
        job = search_job(self.job, where, work, self.ours)
        self.searches.append(job)
        return job

    def figures(self, rows: dict[str, Trained]) -> Job | None:
        """The numbers behind the figures of the recorded comparison in our setting."""
        if not rows:
            return None
        ensemble = self.ensemble(self.recorded)
        work = MakeFigureNumbers(self.bench, rows, ensemble, OURS_METHOD, self.rules)
        return self.job("figures", work)

    def windows(self) -> Iterator[tuple[str, Job]]:
        """Other settings of the twin, for simulated patients."""
        if not self.config.windows or self.cohort is None:
            return
        known = {twin.kind.name: twin for twin in self.config.twins}
        twins = tuple(
            (known.get(name, twin_config(name)), self.config.twin_seeds if name == "tdt" else 1)
            for name in WINDOWED
        )
        for one in windows_of(self.cohort, self.choice.seed, twins):
            minutes = one.cohort.minutes
            words = f"{one.window:g} min at {minutes * 60:g} s"
            yield words, self.job(f"window/{one.window:g}-{minutes:g}", one)

    def sweep(self, unchanged: Trained | None) -> Iterator[tuple[tuple[str, float | str], Trained]]:
        """CORMPO on recorded hours in our setting with one number, or the rule of tau, changed.

        What is the setting's own is `unchanged`, and no training is made twice.
        """
        if not self.config.sweeps:
            return
        recipe = make_recipe(OURS_METHOD, "ours", "recorded", shrink=self.config.shrink)
        assert isinstance(recipe, ModelBasedConfig)
        kernel = self.guardian(self.recorded, "ours", "kde")
        seeds, ensemble = tuple(range(self.config.seeds)), self.ensemble(self.recorded)
        usual = TrainPolicy(METHODS[OURS_METHOD], recipe, seeds, self.recorded, ensemble, kernel)
        points: list[tuple[str, float | str, TrainPolicy]] = [
            (parameter, value, replace(usual, config=replace(recipe, **{name: value, **more})))
            for parameter, (name, values, more) in SWEPT.items()
            for value in values
        ]
        points += [("tau", x, replace(usual, guardian=self.moved(kernel, x))) for x in PERCENTILES]
        least = self.job(
            "sweep/guardian-variance", _limited(kernel, GuardianConfig(rule="variance"))
        )
        points += [
            ("rule", PERCENTILE, usual),
            ("rule", VARIANCE, replace(usual, guardian=least)),
            ("rule", NO_THRESHOLD, replace(usual, ranked=True)),
        ]
        known = [] if unchanged is None else [(usual, unchanged)]
        for parameter, value, work in points:
            made = next((one for other, one in known if other == work), None)
            if made is None:
                place = value if isinstance(value, str) else f"{value:g}"
                where = f"sweep/{parameter}-{place}".replace(": ", "-")
                where = where.replace(", ", "-").replace(" ", "-")
                train = self.job(f"{where}/train", work)
                judge = self.job(f"{where}/judge", JudgePolicies(self.bench, train))
                made = Trained(train, judge)
                known.append((work, made))
            yield (parameter, value), made

    def moved(self, kernel: Job, percentile: float) -> Job:
        """The kernel guardian with another threshold."""
        moved = _limited(kernel, GuardianConfig(percentile=percentile))
        return kernel if moved == kernel.work else self.job(f"sweep/guardian-{percentile:g}", moved)


def _limited(guardian: Job, limits: GuardianConfig) -> FitGuardian:
    """The same density with another threshold."""
    assert isinstance(guardian.work, FitGuardian)
    return replace(guardian.work, limits=limits)


def search_job(job: Any, where: str, work: TrainPolicy, twin: Job) -> Job:
    """The choice among a method's trials; `job(name, work)` names the jobs."""
    trials = tuple(
        Trial(
            changes,
            job(
                f"trial/{where}-{number}",
                replace(work, config=apply_changes(work.config, changes), seeds=work.seeds[:1]),
            ),
        )
        for number, changes in enumerate(work.method.trials)
    )
    return job(f"search/{where}", ChooseTrial(work.method.name, trials, work.source, twin))


# ── what `stepdown judge` adds ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class EvidencePlan:
    """The further jobs of one cohort; what a run does not allow is None."""

    name: str
    second: Job | None = None
    records: Job | None = None
    choice: Job | None = None
    certificate: Job | None = None
    groups: Job | None = None
    transfer: Job | None = None

    @property
    def by_kind(self) -> dict[str, Job]:
        """Those that there are."""
        kinds = ("second", "records", "choice", "certificate", "groups", "transfer")
        each = {kind: getattr(self, kind) for kind in kinds}
        return {kind: job for kind, job in each.items() if job is not None}


def make_evidence(plan: Plan) -> EvidencePlan:
    """The further jobs of one cohort: they look at what was learned from records in our setting.

    They hold it beside our twin, so there are none where the paper's judges alone.
    """
    rows, rules = plan.recorded, plan.rules.work
    if not rows or "twin" not in plan.bench.twins:
        return EvidencePlan(plan.name)
    assert isinstance(rules, JudgeRules)
    looked_at = tuple(name for name in rules.rules if not name.startswith("always"))
    judges = Judges(plan.bench, rows, plan.rules, looked_at)
    guardian = plan.guardians["kde, ours"]

    def job(kind: str, work: Any) -> Job:
        return Job(f"{plan.name}/evidence/{kind}", work)

    candidates = tuple(x for x in CANDIDATES if x in looked_at)
    choice = ChooseWithoutTruth(judges, guardian, candidates=candidates)
    certified = CertifyPolicies(judges, plan.ensembles["recorded"], guardian)
    patients, transfer = plan.patients.work, None
    if isinstance(patients, SimulatePatients):
        count, episodes = (
            min(own, most)
            for own, most in zip(
                (patients.cohort.patients, plan.bench.episodes), ELSEWHERE, strict=True
            )
        )
        cohort = replace(patients.cohort, patients=count)
        transfer = job("transfer", JudgeElsewhere(judges, guardian, cohort, episodes))
    return EvidencePlan(
        plan.name,
        second=job("second", JudgeInSecondTwin(judges)),
        records=job("records", EstimateFromRecords(judges)),
        choice=job("choice", choice),
        certificate=job("certificate", certified),
        groups=job("groups", CompareSubgroups(judges)),
        transfer=transfer,
    )


def finished_evidence(plans: Sequence[Plan], desk: Desk) -> list[EvidencePlan]:
    """The evidence that a run already has; jobs that are missing or outdated are left out."""
    found = []
    for plan in map(make_evidence, plans):
        kept = {kind: job for kind, job in plan.by_kind.items() if desk.is_done(job)}
        if kept:
            found.append(EvidencePlan(plan.name, **kept))
    return found
