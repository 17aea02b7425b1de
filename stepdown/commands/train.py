"""`stepdown train` and `stepdown search`: policies of one method, out of recorded hours.

Both are small plans of the jobs that `stepdown run` makes (experiment/training.py). While a
training runs, its jobs lie in OUT.jobs; the same command goes on from there, to bitwise the same
policies on a CPU. Other settings begin anew and leave what was begun in peace. At the end the
folder OUT appears whole and the other one goes. A search keeps its jobs in OUT itself.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax.random as jr
import numpy as np
from tyro.conf import Positional

from stepdown.artifacts import (
    MANIFEST,
    Content,
    check_folder,
    provenance,
    require_free,
    to_json,
    write_folder,
)
from stepdown.evaluation.judging import (
    draw_judged_starts,
    draw_moments,
    judge_in_patients,
    judge_in_twin,
    judge_plans,
    judge_team,
    moments_of,
)
from stepdown.experiment.datasets import FitEnsemble, Source
from stepdown.experiment.given_dataset import ReadDataset
from stepdown.experiment.jobs import Desk, Job, alone, files_of, jobs_of, run_jobs
from stepdown.experiment.legs import STOPPED
from stepdown.experiment.patients import ImportPatients
from stepdown.experiment.plan import search_job
from stepdown.experiment.presets import TINY_ENSEMBLE, TINY_TRAINING
from stepdown.experiment.progress import BOARD, SHOWN, Terminal, mix_words, write_board
from stepdown.experiment.readers import GivenModel, read_policies, read_twin
from stepdown.experiment.stopping import Stop, stoppable
from stepdown.experiment.training import METRICS, TrainPolicy, level_mix, read_lines
from stepdown.experiment.twins import FitTwin
from stepdown.guardian.fit import KIND as GUARDIAN
from stepdown.guardian.guardians import density_of, load_guardian
from stepdown.handover import Cohort, DataName, Judged, Policy, SettingName, Transitions
from stepdown.patients.cohort import world_of
from stepdown.patients.episodes import Starts
from stepdown.patients.population import World
from stepdown.policies.ensemble import ENSEMBLE, EnsembleConfig, load_ensemble
from stepdown.policies.learning import Recipe, check_hours, check_pair
from stepdown.policies.methods import METHODS, OURS_METHOD, make_recipe
from stepdown.policies.saved import POLICY, save_policy
from stepdown.problem.hours import make_transitions
from stepdown.problem.scaling import Scaler
from stepdown.records.files import LATENTS, read_cohort, read_latents, read_recipe
from stepdown.records.latents import latents_of
from stepdown.records.split import (
    NOTE,
    SPLIT,
    Note,
    Parts,
    read_note,
    read_parts,
    read_profile,
    require_same_split,
    save_fitted,
)
from stepdown.report.comparison import row_grid
from stepdown.report.grids import to_text
from stepdown.report.model_tables import training_text, trials_text
from stepdown.signals import NAMES
from stepdown.training import member
from stepdown.twin.fit import KIND as TWIN
from stepdown.twin.fit import check_state
from stepdown.twin.twins import TWINS, load_twin, twin_config

SHORT = {"cormpo": OURS_METHOD}  # another name for a method: the guardian says which density it has
if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[(*METHODS, *SHORT)]
Size = Literal["full", "pocket"]
KIND, SETTINGS, SUMMARY, TRIALS, JUDGED = (
    "trained policies",
    "settings.json",
    "summary.json",
    "trials.jsonl",
    "judged.txt",
)
EPISODES = {"full": 300, "pocket": 16}  # that judge what was trained


@dataclass(frozen=True)
class TrainConfig:
    """Train policies on the train patients of a cohort or data set."""

    method: Positional[MethodName]  # how to learn
    out: Path  # new folder for the policies; OUT.jobs beside it while they are trained
    cohort: Path | None = None  # folder of `stepdown simulate` or `import`
    dataset: Path | None = None  # instead: train.hdf5 or the Minari folder of `stepdown export`
    twin: Path | None = None  # of `stepdown twin fit`: expert's world, planner's if a ridge; judge
    guardian: Path | None = None  # folder of `stepdown guardian fit`, for cormpo
    ensemble: Path | None = None  # of an earlier training on the same records; else one is fitted
    seeds: int = 5  # number of policies
    first_seed: int = 0  # seeds are this and the following numbers
    setting: SettingName = "ours"  # all numbers: ours or the paper's
    data: DataName = "recorded"  # which of the paper's three settings
    size: Size = "full"  # pocket: seconds, to see that everything works
    updates: int | None = None  # gradient steps; by default the setting's
    penalty_weight: float | None = None  # lambda; by default the setting's
    shaped: bool = False  # shape the reward of a method that goes without, too
    jump_weight: float | None = None  # lambda 1 of the shaped reward; by default the setting's
    weaning_weight: float | None = None  # lambda 2
    constrained: bool = False  # at most two levels a decision, never down out of an unsafe hour
    save_seconds: float = 20.0  # least time between two saves, which come at the end of an epoch
    split: int = SPLIT  # seed of the split into train, select and test patients

    def __post_init__(self):
        if self.seeds < 1 or not 0 <= self.first_seed < 2**31:
            raise ValueError(
                "expected at least 1 seed and a first seed of at least 0, got "
                f"{self.seeds} and {self.first_seed}."
            )


@dataclass(frozen=True)
class SearchConfig:
    """Try a method's six settings on select patients, judged by the twin."""

    method: Positional[MethodName]  # how to learn
    twin: Path  # folder of `stepdown twin fit`, the judge
    out: Path  # folder of the trials; an unfinished search goes on there
    cohort: Path | None = None  # folder of `stepdown simulate` or `import`
    dataset: Path | None = None  # instead: train.hdf5 or the Minari folder of `stepdown export`
    guardian: Path | None = None  # folder of `stepdown guardian fit`, for cormpo
    ensemble: Path | None = None  # of an earlier training on the same records; else one is fitted
    setting: SettingName = "ours"  # the preset that trials change
    data: DataName = "recorded"  # which of the paper's three settings
    size: Size = "full"  # pocket: seconds, to see that everything works
    shaped: bool = False  # shape the reward of a method that goes without, too
    constrained: bool = False  # at most two levels a decision, never down out of an unsafe hour
    seed: int = 0  # of every trial
    split: int = SPLIT  # seed of the split into train, select and test patients


def train(config: TrainConfig) -> int:
    """Train, or go on; the exit code is 143 after SIGTERM and 130 after an interrupt."""
    given = _Given(config)
    work = given.training(tuple(range(config.first_seed, config.first_seed + config.seeds)))
    job = Job(f"train/{given.name}", work)
    settings = job.settings
    if _is_finished(config.out, job):
        sys.stderr.write(f"{config.out} holds this training already.\n")
        sys.stdout.write(summary_to_text(json.loads((config.out / SUMMARY).read_bytes())))
        sys.stdout.write((config.out / JUDGED).read_text(encoding="utf-8"))
        return 0
    require_free(config.out)
    jobs = jobs_of(config.out)
    hint = f"stopped; what is done is saved in {jobs}. Start the same command again to go on."
    with _at_work(jobs, hint) as (desk, stop):
        if code := _run(job, replace(desk, save_seconds=config.save_seconds), stop, hint):
            return code
        found = _summarize(job, desk, given)
        said = _judge(read_policies(desk, job), desk, given)
        files = _files(job, desk, given, found) | {SETTINGS: to_json(settings)}
        files[JUDGED] = said.encode()
    about = provenance(config=config) | {"fingerprint": job.fingerprint}
    write_folder(config.out, files, kind=KIND, about=about)
    shutil.rmtree(jobs, ignore_errors=True)
    sys.stdout.write(summary_to_text(found) + said)
    return 0


def search(config: SearchConfig) -> int:
    """Run the trials that are missing and print all; 143 after SIGTERM, 130 after an interrupt."""
    given = _Given(config)
    assert given.twin is not None
    job = search_job(Job, given.name, given.training((config.seed,)), given.twin)
    hint = f"stopped; finished trials are in {config.out}. Start the same command again to go on."
    with _at_work(config.out, hint) as (desk, stop):
        if (desk.folder(job) / MANIFEST).is_file() and not desk.is_done(job):
            raise FileExistsError(
                f"expected a new folder or this search, got {config.out}, which holds another; "
                "choose another one or remove it first."
            )
        if code := _run(job, desk, stop, hint):
            return code
        found = desk.info(job)
    lines = [json.dumps(one, sort_keys=True) + "\n" for one in found["trials"]]
    (config.out / TRIALS).write_text("".join(lines), encoding="utf-8")
    sys.stdout.write(trials_text(found))
    return 0


@contextmanager
def _at_work(folder: Path, hint: str) -> Iterator[tuple[Desk, Stop]]:
    with stoppable(hint) as stop, alone(folder, Terminal(), stop.asked) as desk:
        yield desk, stop


def _run(job: Job, desk: Desk, stop: Stop, hint: str) -> int:
    """Make a job and what it needs; not 0 if somebody has stopped it."""
    try:
        run_jobs([job], desk)
    except STOPPED:
        sys.stderr.write(f"\nstepdown: {hint}\n")
        return stop.code
    return 0


# ── what a training is given: checked before any work ────────────────────────────────────────────


class _Given:
    """Recorded hours and models, as jobs; models must have been fitted on the same patients.

    A data set does not tell whose hours it holds, so there only the signals of a model are
    compared.
    """

    def __init__(self, config: TrainConfig | SearchConfig):
        self.config, self.name = config, SHORT.get(config.method, config.method)
        self.parts: Parts | None = None
        self.source, self.train, self.select, self.digest = self._hours()
        self.recipe = _read_recipe(config, self.name)
        self._check_method()
        self.twin = self._twin(config.twin)
        self.guardian = self._guardian(config.guardian)
        self.ensemble = self._ensemble(config.ensemble)

    def training(self, seeds: tuple[int, ...]) -> TrainPolicy:
        """The training that was asked for."""
        method = METHODS[self.name]
        known = {"twin": self.twin, "ensemble": self.ensemble, None: None}
        dynamics = self._ridge() if method.dynamics == "ridge" else known[method.dynamics]
        guardian = self.guardian if method.density else None
        watcher = self.twin if isinstance(self.config, TrainConfig) else None
        return TrainPolicy(
            method, self.recipe, seeds, self.source, dynamics, guardian, watcher=watcher
        )

    @property
    def seen(self) -> Parts | Note:
        """Whom a model has seen, as `save_fitted` notes it."""
        if self.parts is not None:
            return self.parts
        # A data set has no stays whose first hour could be recognized.
        return {"cohort": self.digest, "split": None, "patients": []}

    def _hours(self) -> tuple[Source, Transitions, Transitions, str]:
        config = self.config
        if (config.cohort is None) == (config.dataset is None):
            got = "neither" if config.cohort is None else "both"
            raise ValueError(f"expected --cohort or --dataset, got {got}.")
        if config.cohort is not None:
            self.parts = parts = read_parts(config.cohort, config.split)
            profile = read_profile(config.cohort, None)
            own = ImportPatients(config.cohort, parts.digest, profile, config.split)
            train, select = make_transitions(parts.train), make_transitions(parts.select)
            return Source(config.data, Job("patients", own)), train, select, parts.digest
        assert config.dataset is not None
        train, select = _read_dataset(config.dataset)
        digest = _digest(train, select)
        stored = Job("hours", ReadDataset(config.dataset, digest))
        return Source(config.data, None, stored), train, select, digest

    def _check_method(self) -> None:
        """Refuse, before any work, what the method cannot learn from."""
        method = METHODS[self.name]
        asked = self.config.method
        if method.dynamics == "twin" and self.config.twin is None:
            raise ValueError(f"expected --twin for {asked}, got none. {_FIT.format('twin')}")
        if method.density and self.config.guardian is None:
            raise ValueError(
                f"expected --guardian for {asked}, got none. {_FIT.format('guardian')}"
            )
        online = getattr(self.recipe, "real_share", 1.0) == 0
        check_hours(self.train, varied=not online)
        if not online:
            check_pair(self.train, self.select)

    def _twin(self, path: Path | None) -> Job | None:
        if path is None:
            return None
        self._require_same_patients(path, TWIN)
        twin, config = load_twin(path)
        for hours in (self.select, self.train):
            check_state(twin, hours.state)
        return Job(TWIN, GivenModel(path, TWIN, _seal(path, TWIN), config=config))

    def _ridge(self) -> Job:
        """The ridge twin that planners plan in: the one that is given, or one as in a run."""
        given = None if self.twin is None else self.twin.work
        if isinstance(given, GivenModel) and getattr(given.config, "kind", None) == TWINS["ridge"]:
            assert self.twin is not None
            return self.twin
        if (patients := self.source.patients) is None:
            got = "none" if self.twin is None else "another"
            raise ValueError(
                f"expected --twin with a ridge for {self.config.method}, which plans in it, got "
                f"{got}. Fit one with stepdown twin fit --model ridge."
            )
        assert isinstance(patients.work, ImportPatients)
        ridge = twin_config("ridge", profile=patients.work.profile)
        return Job("ridge", FitTwin(patients, ridge, 1))

    def _guardian(self, path: Path | None) -> Job | None:
        if path is None:
            return None
        self._require_same_patients(path, GUARDIAN)
        guardian, about = load_guardian(path)
        steps = (about.coordinates - 2) // len(about.present)
        self._require_signals(path, guardian.density.pairs.scaler, steps)
        density, method = density_of(about, path), METHODS[self.name]
        if self.config.method not in SHORT and method.density not in (None, about.density):
            raise ValueError(
                f"{path}: expected a guardian of {method.density} for {self.name}, got one of "
                f"{about.density}. Say cormpo to take a guardian as it is."
            )
        return Job(GUARDIAN, GivenModel(path, GUARDIAN, _seal(path, GUARDIAN), density=density))

    def _ensemble(self, path: Path | None) -> Job:
        if path is None:
            size = TINY_ENSEMBLE if self.config.size == "pocket" else EnsembleConfig()
            return Job(ENSEMBLE, FitEnsemble(self.source, size))
        note = check_folder(path, ENSEMBLE)["about"].get(NOTE, {})
        if note.get("cohort") != self.digest:
            raise ValueError(
                f"{path}: expected an ensemble fitted on these records, got one of others. "
                "Leave --ensemble out to fit one."
            )
        ensemble, _ = load_ensemble(path)
        self._require_signals(path, ensemble.scaler, ensemble.steps)
        return Job(ENSEMBLE, GivenModel(path, ENSEMBLE, _seal(path, ENSEMBLE)))

    def _require_same_patients(self, path: Path, kind: str) -> None:
        note = read_note(path, kind)
        if self.parts is not None:
            require_same_split(note, self.parts, path)

    def _require_signals(self, path: Path, scaler: Scaler, steps: int) -> None:
        """Refuse a model of other signals or of hours of another length."""
        if steps != self.train.state.shape[1]:
            raise ValueError(
                f"{path}: expected a model of {self.train.state.shape[1]} samples an hour, got one "
                f"of {steps}. Fit it on the same records."
            )
        if scaler.columns != self.train.columns:
            raise ValueError(
                f"{path}: expected a model of the columns {', '.join(self.train.columns)}, got one "
                f"of {', '.join(scaler.columns)}. Fit it on the same records."
            )
        for part in (self.train, self.select):
            known = np.asarray(np.isfinite(np.asarray(part.state)).all((0, 1)))
            if lacking := [part.columns[i] for i in scaler.present if not known[i]]:
                raise ValueError(
                    f"{path}: expected {lacking[0]} in every {part.role} hour, as the model needs, "
                    "got empty samples. Fit it on the same records."
                )


_FIT = "Fit one with stepdown {} fit."


def _seal(path: Path, kind: str) -> str:
    return check_folder(path, kind)["sha256"]


def _read_recipe(config: TrainConfig | SearchConfig, name: str) -> Recipe:
    """The numbers of the method with what was said on the command line."""
    shrink = TINY_TRAINING if config.size == "pocket" else None
    shaped = METHODS[name].shaped or config.shaped
    recipe: Any = make_recipe(name, config.setting, config.data, shrink=shrink, shaped=shaped)
    if isinstance(config, SearchConfig):
        return replace(recipe, constrained=config.constrained)
    if config.penalty_weight is not None and METHODS[name].penalty == "none":
        charging = [x for x, method in METHODS.items() if method.penalty != "none"]
        raise ValueError(
            f"--penalty-weight: expected one of {', '.join(charging)}, got {config.method}, "
            "which has no penalty. Leave the option out."
        )
    words = ("updates", "penalty_weight", "jump_weight", "weaning_weight")
    said = {x: value for x in words if (value := getattr(config, x)) is not None}
    if odd := [x for x in said if not hasattr(recipe, x)]:
        raise ValueError(
            f"--{odd[0].replace('_', '-')}: expected a method that has it, got another. "
            "Leave the option out."
        )
    return replace(recipe, constrained=config.constrained, **said)


def _read_dataset(path: Path) -> tuple[Transitions, Transitions]:
    try:
        from stepdown.export.datasets import read_dataset
    except ModuleNotFoundError as error:
        raise ValueError(
            f"expected {error.name}, which is not installed. Run pip install 'stepdown[gym]'."
        ) from error
    return read_dataset(path)


def _digest(*parts: Transitions) -> str:
    told = hashlib.sha256()
    for hours in parts:
        for name in ("state", "level", "unshaped", "next_state", "patient"):
            told.update(np.ascontiguousarray(getattr(hours, name)).tobytes())
    return told.hexdigest()


# ── what it leaves ───────────────────────────────────────────────────────────────────────────────


def _is_finished(out: Path, job: Job) -> bool:
    """Whether the folder holds the result of these settings."""
    if not (out / MANIFEST).is_file():
        return False
    return check_folder(out, KIND)["about"].get("fingerprint") == job.fingerprint


def _summarize(job: Job, desk: Desk, given: _Given) -> dict[str, Any]:
    """How every seed ended, and the levels that its policy sets on select patients."""
    lines, policies, rows = read_lines(desk.folder(job) / METRICS), read_policies(desk, job), []
    for row, seed in enumerate(desk.info(job)["seeds"]):
        last = [line for line in lines if line["seed"] == seed][-1]
        mix = level_mix(member(policies, row), given.select.state)
        numbers = {k: x for k, x in last.items() if k not in ("time", "epoch", "levels")}
        rows.append(numbers | {"levels": [round(float(x), 4) for x in mix]})
    return {"method": given.config.method, "seeds": rows}


def _judge(policies: Policy, desk: Desk, given: _Given) -> str:
    """The policies on test patients: in truth where they are simulated, in the twin if given.

    All seeds as one row, beside the clinicians from the same starts.
    """
    config, parts = given.config, given.parts
    hint = "A finished run judges it beside others: stepdown evaluate FOLDER --run RUN.\n"
    if config.cohort is None or parts is None:
        return f"Not judged: a data set does not hold its patients. {hint}"
    test, count, key = parts.test, EPISODES[config.size], jr.key(1)
    judged: dict[str, Judged] = {}
    team: dict[str, Judged] = {}
    try:
        starts, world = _truth(config.cohort, test, count) or (None, None)
        if starts is not None and world is not None:
            judged["patients"] = judge_in_patients(policies, starts, world)
            team["patients"] = judge_team(starts, world)
            moments, plans = moments_of(starts, key=key), team["patients"].level[0, :, 1:]
        else:
            moments, plans = draw_moments(make_transitions(test), count, key=key)
        if given.twin is not None:
            twin = read_twin(desk, given.twin)
            judged["twin"] = judge_in_twin(policies, twin, moments)
            team["twin"] = judge_plans(np.asarray(plans, np.int32), twin, moments)
    except ValueError as refusal:  # too few patients, or stays too short for an episode
        return f"Not judged: {refusal}\n"
    if not judged:
        return f"Not judged: these patients have no truth, and no --twin was given. {hint}"
    words = f"{config.method} on {len(test.patient)} test patients"
    return f"\n{to_text(row_grid(words, judged, team))}"


def _truth(path: Path, test: Cohort, count: int) -> tuple[Starts, World] | None:
    """Starts in simulated test patients; none for recordings, or as nurses have charted them."""
    if not (path / LATENTS).is_file():
        return None
    recipe = read_recipe(path)
    if (test.minutes, test.columns) != (recipe.minutes, NAMES):
        return None
    latents = latents_of(read_latents(path), read_cohort(path), test)
    return draw_judged_starts(test, latents, count, key=jr.key(1)), world_of(recipe)


def _files(job: Job, desk: Desk, given: _Given, found: dict[str, Any]) -> dict[str, Content]:
    """Policies one by one, the ensemble, the record and its curves."""
    files: dict[str, Content] = {SUMMARY: to_json(found)}
    files[METRICS] = (desk.folder(job) / METRICS).read_bytes()
    lines, policies = read_lines(desk.folder(job) / METRICS), read_policies(desk, job)
    made = desk.path / "made"
    shutil.rmtree(made, ignore_errors=True)
    for row, seed in enumerate(desk.info(job)["seeds"]):
        policy, folder = member(policies, row), made / f"policy-{seed}"

        def save(path: Path, policy=policy, seed: int = seed) -> None:
            save_policy(path, policy, given.config.method, seed=seed)

        save_fitted(folder, save, given.seen, kind=POLICY, model=given.config.method)
        write_board(made, seed, [line for line in lines if line["seed"] == seed])
        files |= files_of(folder, folder.name)
    files |= files_of(made / BOARD, BOARD)
    if METHODS[given.name].dynamics == "ensemble" and given.config.ensemble is None:
        own = desk.folder(given.ensemble) / ENSEMBLE

        def copy(path: Path) -> None:
            shutil.copytree(own, path)

        save_fitted(made / ENSEMBLE, copy, given.seen, kind=ENSEMBLE, model=ENSEMBLE)
        files |= files_of(made / ENSEMBLE, ENSEMBLE)
    return files


def summary_to_text(found: dict[str, Any]) -> str:
    """A line for every seed, and the mean over seeds."""
    mixes = [mix_words(row["levels"]) for row in found["seeds"]]
    return training_text(found, ("updates", *SHOWN), mixes)
