"""`stepdown evaluate`: a policy from outside as a row beside a run's own.

The policy is a folder that `stepdown train` has left (or the `policy` of a run), an ONNX file, or a
NumPy function FILE.py:FUNCTION. It meets the starts and the chance of the run's rows, in the twin,
in the truth where there is one, and in the records; then the run's tables, figures and page are
written anew with the row in them. `stepdown.evaluate` does the same from Python.
"""

import hashlib
import importlib.util
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import numpy as np
from tyro.conf import Positional

from stepdown.artifacts import MANIFEST, check_folder
from stepdown.commands.run import (
    asked_for,
    fingerprint_of,
    plans_of,
    put_in_place,
    require_done,
)
from stepdown.commands.train import KIND as TRAINED
from stepdown.experiment.evaluated import Given, JudgeGiven, evaluated_job
from stepdown.experiment.jobs import Desk, in_order, run_job, say
from stepdown.experiment.judging import TEAM, read_judged
from stepdown.experiment.legs import at_work
from stepdown.experiment.patients import read_hours, read_parts
from stepdown.experiment.plan import Plan
from stepdown.experiment.publish import REPORT
from stepdown.handover import Judged, Policy
from stepdown.policies.foreign import ForeignPolicyError, HourlyFunction, make_foreign
from stepdown.policies.saved import POLICY, load_policy
from stepdown.records.split import NOTE, require_unseen
from stepdown.report.comparison import row_grid
from stepdown.report.grids import number, plain, span, to_text
from stepdown.report.labels import ESTIMATORS, RECOMMENDED
from stepdown.report.labels import METHODS as ROWS
from stepdown.training import stack

ONNX = ".onnx"
WHAT = "a folder of stepdown train, an ONNX file, or FILE.py:FUNCTION"


@dataclass(frozen=True)
class EvaluateConfig:
    """Judge a policy of your own in a finished run, as a row beside its own."""

    policy: Positional[str]  # folder of `stepdown train`, ONNX file, or FILE.py:FUNCTION
    run: Path  # folder of `stepdown run`, with its RUN.jobs beside it
    name: str | None = None  # of the row; by default told by the file


@dataclass(frozen=True)
class Evaluation:
    """What the judges of a run say of a policy; `print` shows it as a table."""

    name: str
    judged: Mapping[str, Judged]  # by judge: twin, patients (true test patients), fresh
    team: Mapping[str, Judged]  # the clinicians, from the same starts
    records: Mapping[str, Any]  # estimates from the records alone (evidence_jobs.py)
    report: Path

    def __str__(self) -> str:
        return evaluation_text(self)


def evaluate_policy(config: EvaluateConfig) -> None:
    """Judge, write the run anew, and print the row."""
    for one in _evaluate(config.policy, config.run, config.name):
        sys.stdout.write(f"{one}\n")
    sys.stdout.write(f"Beside the run's own rows: {config.run / REPORT}\n")


def evaluate(
    policy: str | Path | HourlyFunction | Policy, run: str | Path, name: str | None = None
) -> Evaluation:
    """Judge a policy in a finished run, as a row of its tables; of several cohorts the first.

    The policy is what `stepdown evaluate` takes, or a function: it is given the hours of many
    patients as one NumPy array, (n, samples, columns) in physical units with the level in force as
    the last column, and answers with n levels 2 to 9, or with (n, 8) scores of which the highest
    counts. A policy of stepdown is taken as it is.

    >>> def steady(hours):
    ...     return hours[:, -1, -1]  # the level in force, so it holds
    >>> steady(train.state).shape == train.level.shape
    True
    >>> found = sd.evaluate(steady, run="runs/demo")  # doctest: +SKIP
    >>> print(found)  # doctest: +SKIP
    """
    return _evaluate(policy, Path(run), name)[0]


def _evaluate(
    policy: str | Path | HourlyFunction | Policy, run: Path, name: str | None
) -> list[Evaluation]:
    asked = asked_for(run)
    plans = plans_of(asked)
    jobs = in_order([job for plan in plans for job in plan.jobs])
    open_policy, usual, digest = find_source(policy)
    name = _row_name(name or usual)
    found = []
    with at_work(run, "evaluate") as (desk, _):
        require_done([job for job in jobs if not desk.is_done(job)], len(jobs), asked)
        for plan in plans:
            say(f"judging {name} on {plan.name}: about a minute")
            given = open_policy(plan, desk)
            job = evaluated_job(plan.name, JudgeGiven(plan.bench, name, digest, given))
            run_job(job, desk)
            rules = read_judged(desk, plan.rules)
            judged = read_judged(desk, job)
            team = {x: rules[f"{TEAM}/{x}"] for x in judged if f"{TEAM}/{x}" in rules}
            records = desk.info(job)["records"]
            found.append(Evaluation(name, judged, team, records, run / REPORT))
        say("writing tables, figures and the page")
        put_in_place(asked, plans, desk, fingerprint_of(asked.preset, jobs))
    return found


def _row_name(name: str) -> str:
    if name in ROWS or not name.strip() or "/" in name or len(name) > 60:
        raise ValueError(
            f"--name: expected a name that no row of the tables has, of at most 60 letters without "
            f"/, got {name!r}. Choose another one."
        )
    return name


# ── where a policy comes from ────────────────────────────────────────────────────────────────────

Open = Callable[[Plan, Desk], Given]
Check = Callable[[Mapping[str, Any], Path], None]  # refuses a policy by its note of patients


def find_source(policy: str | Path | HourlyFunction | Policy) -> tuple[Open, str, str]:
    """How to open a policy beside a run, the usual name of its row, and a digest of it."""
    if isinstance(policy, eqx.Module) and callable(policy):
        return (lambda plan, desk: Given(policy)), "policy of Python", secrets.token_hex(16)
    if callable(policy):
        own, function = getattr(policy, "__name__", "function"), cast(HourlyFunction, policy)
        return _opener(function, own), f"{own} of Python", secrets.token_hex(16)
    text = str(policy)
    path, colon, function = text.rpartition(":")
    if colon and path.endswith(".py"):
        file = _file(Path(path))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        own = _load_function(file, function)
        return _opener(own, text), f"{function} of {file.name}", digest
    if text.endswith(".py"):
        raise ValueError(
            f"{text}: expected the name of a function behind a colon, got none. Write "
            f"{text}:FUNCTION."
        )
    if text.endswith(ONNX):
        file = _file(Path(text))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return _opener(_read_onnx(file), file.name), file.name, digest
    return _trained(Path(text))


def _file(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"expected {WHAT}, got {path}, which is missing.")
    return path


def _opener(function: HourlyFunction, name: str) -> Open:
    """Try somebody's function on recorded hours of the run before it is judged there."""

    def open_there(plan: Plan, desk: Desk) -> Given:
        states = np.asarray(read_hours(desk, plan.patients).test.state)
        return Given(make_foreign(function, states, name))

    return open_there


def _load_function(file: Path, name: str) -> HourlyFunction:
    """A function of somebody's file, which is run for it."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever somebody's file raises
        raise ForeignPolicyError(
            f"{file}: expected a file that Python can run, got {type(error).__name__}: {error}."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [x for x, y in vars(module).items() if callable(y) and not x.startswith("_")]
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise ForeignPolicyError(f"{file}: expected a function {name!r}, got none; {there}.")
    return function


def _read_onnx(file: Path) -> HourlyFunction:
    try:
        from stepdown.export.onnx_policy import read_onnx_policy
    except ModuleNotFoundError as error:
        raise ValueError(
            f"expected {error.name}, which is not installed. Run pip install 'stepdown[onnx]'."
        ) from error
    return read_onnx_policy(file)


def find_policy(policy: str, states: np.ndarray, check: Check) -> tuple[Given, str]:
    """A policy without a run, tried on these hours, and its digest; see `find_source`."""
    text, (path, colon, function) = policy, policy.rpartition(":")
    if colon and path.endswith(".py"):
        file = _file(Path(path))
        own = make_foreign(_load_function(file, function), states, text)
        return Given(own), hashlib.sha256(file.read_bytes()).hexdigest()
    if text.endswith(ONNX):
        file = _file(Path(text))
        own = make_foreign(_read_onnx(file), states, file.name)
        return Given(own), hashlib.sha256(file.read_bytes()).hexdigest()
    folders, digest = _folders(Path(text))
    return _read_trained(folders, check), digest


def _trained(path: Path) -> tuple[Open, str, str]:
    """The policies of a folder of `stepdown train`, or the one policy of a run."""
    folders, digest = _folders(path)

    def open_there(plan: Plan, desk: Desk) -> Given:
        test = read_parts(desk, plan.patients)[2]

        def unseen(note: Mapping[str, Any], folder: Path) -> None:
            require_unseen({"patients": note.get("patients", [])}, test, folder)

        return _read_trained(folders, unseen)

    return open_there, path.resolve().name, digest


def _read_trained(folders: list[Path], check: Check) -> Given:
    """Saved policies, one for each seed, that have not seen the patients who judge them."""
    for folder in folders:
        check(check_folder(folder, POLICY)["about"].get(NOTE, {}), folder)
    policies = [load_policy(folder)[0] for folder in folders]
    return Given(stack(policies), len(policies)) if len(policies) > 1 else Given(policies[0])


def _folders(path: Path) -> tuple[list[Path], str]:
    """The folders of saved policies, and their digest."""
    if not (path / MANIFEST).is_file():
        raise FileNotFoundError(f"expected {WHAT}, got {path}, which is none of them.")
    if any(path.glob("policy-*")):
        digest = check_folder(path, TRAINED)["sha256"]
        folders = sorted(path.glob("policy-*"), key=lambda x: int(x.name.rpartition("-")[2]))
    else:
        digest, folders = check_folder(path, POLICY)["sha256"], [path]
    return folders, digest


# ── what is printed ──────────────────────────────────────────────────────────────────────────────


def evaluation_text(found: Evaluation) -> str:
    """The row before every judge, minus the clinicians; then what the records say."""
    grid = to_text(row_grid(found.name, found.judged, found.team))
    return f"{grid}{plain(records_words(found))}\n"


def records_words(found: Evaluation) -> str:
    """What the records alone say of the row."""
    if refused := found.records.get("refused"):
        return f"From the records alone nothing can be told: {refused}"
    (own,) = [x for x in found.records["policies"] if x["method"] == found.name]
    value = own["estimates"][RECOMMENDED]
    limits = [value["low"], value["high"]]
    between = "no limit" if None in limits else span(*limits)
    informative = own["informative"] == own["seeds"]
    word = "informative" if informative else "uninformative: too few patients were treated like it"
    return (
        f"From the records of {found.records['patients']} test patients alone "
        f"({ESTIMATORS[RECOMMENDED].words}): reward {number(value['mean'])} {between}, {word}."
    )
