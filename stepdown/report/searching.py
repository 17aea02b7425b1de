"""`stepdown search`: the same number of trials for every method, judged on select patients.

Each finished trial is a line of `trials.jsonl`. A search that was stopped, or killed, skips these
and goes on inside the trial that it was at.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax.random as jr

from stepdown.artifacts import config_to_dict
from stepdown.evaluation.policy_search import (
    STARTS,
    Changes,
    Trial,
    apply_changes,
    make_rule,
    search_policy,
)
from stepdown.handover import Policy
from stepdown.policies.checkpoints import load_policy
from stepdown.report.diary import read_metrics
from stepdown.report.parts import SPLIT
from stepdown.report.recipes import (
    DataName,
    Method,
    SettingName,
    Size,
    make_ensemble_config,
    make_recipe,
)
from stepdown.report.stopping import Stop, StoppedError, stoppable
from stepdown.report.training import check_method, opened
from stepdown.report.training_loop import Job, own_ensemble, policy_folder, train_all
from stepdown.report.training_parts import read_hours, read_models

TRIALS = "trials.jsonl"


@dataclass(frozen=True)
class SearchConfig:
    """Try a method's six settings on select patients, judged by the twin."""

    method: Method  # how to learn
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


def search_policies(config: SearchConfig) -> int:
    """Run the trials that are missing and print all; 143 after SIGTERM, 130 after an interrupt."""
    hours = read_hours(config.cohort, config.dataset, config.split)
    check_method(config.method, hours, twin=config.twin, guardian=config.guardian)
    models, digests = read_models(
        hours, twin=config.twin, guardian=config.guardian, ensemble=config.ensemble
    )
    recipe = make_recipe(
        config.method,
        config.setting,
        config.data,
        size=config.size,
        shaped=config.shaped,
        constrained=config.constrained,
    )
    assert models.twin is not None
    job = Job(
        hours=hours,
        models=models,
        rule=None,
        method=config.method,
        seeds=(config.seed,),
        recipe=recipe,
        ensemble=make_ensemble_config(config.size),
        constrained=config.constrained,
        work=config.out.resolve(),
        save_seconds=20.0,
    )
    rule = make_rule(models.twin, hours.select, key=jr.key(0))
    settings = {"method": config.method, "seed": config.seed, "inputs": digests}
    settings |= {"records": hours.digest, "recipe": config_to_dict(recipe), "starts": STARTS}
    hint = f"stopped; finished trials are in {job.work}. Start the same command again to go on."
    with opened(job.work, settings), stoppable(hint) as stop:
        try:
            best, trials = _search(job, rule, stop)
        except StoppedError as stopped:
            sys.stderr.write(f"\nstepdown: {hint}\n")
            return stopped.code
    sys.stdout.write(trials_to_text(best, trials))
    return 0


def _search(job: Job, rule: Any, stop: Stop) -> tuple[Trial, tuple[Trial, ...]]:
    if job.method in ("mbpo", "mopo", "disagreement", "cormpo") and job.models.ensemble is None:
        job = replace(job, models=replace(job.models, ensemble=own_ensemble(job, stop)))
    file = job.work / TRIALS
    finished = [Trial(**line) for line in read_metrics(file)]
    draft = file.with_suffix(".draft")  # without a line that a sudden end has cut short
    draft.write_text("".join(map(_line, finished)), encoding="utf-8")
    draft.replace(file)

    def train(changes: Changes) -> Policy:
        folder = job.work / "trial"
        _forget_other(folder, changes)
        recipe = apply_changes(job.recipe, changes)
        train_all(replace(job, recipe=recipe, work=folder), stop)
        return load_policy(policy_folder(folder, job.seeds[0]))[0]

    def keep(trial: Trial) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(_line(trial))
        shutil.rmtree(job.work / "trial", ignore_errors=True)

    return search_policy(job.method, train, rule, finished=finished, keep=keep)


def _line(trial: Trial) -> str:
    return json.dumps(asdict(trial)) + "\n"


def _forget_other(folder: Path, changes: Changes) -> None:
    """The folder of this trial; what another trial has left there goes."""
    label = folder / "changes.json"
    if not (label.is_file() and json.loads(label.read_bytes()) == dict(changes)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        label.write_text(json.dumps(dict(changes)), encoding="utf-8")


def trials_to_text(best: Trial, trials: tuple[Trial, ...]) -> str:
    """A line per trial, the best one marked."""
    lines = ["reward in the twin, select patients  change of the preset"]
    for one in trials:
        mark = "  <" if one == best else ""
        lines.append(f"{one.score:35.3f}  {changes_words(one.changes)}{mark}")
    return "\n".join(lines) + "\n"


def changes_words(changes: Mapping[str, float | int]) -> str:
    """Such as "sac.discount 0.95"."""
    return ", ".join(f"{name} {value:g}" for name, value in changes.items()) or "none"
