"""`stepdown train`: policies out of recorded hours, one per seed; it can be stopped.

While it runs, everything lies in `OUT.training`: the settings, the ensemble, the newest state, the
curves, the policies that are finished. The same command goes on from there, to bitwise the same
policies on a CPU; other settings are refused. At the end the folder OUT appears whole and the other
one goes. Seeds are trained side by side on a GPU and one after another on a CPU.
"""

import contextlib
import fcntl
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

from stepdown.artifacts import (
    MANIFEST,
    check_folder,
    config_to_dict,
    provenance,
    require_free,
    write_folder,
)
from stepdown.evaluation.policy_search import make_rule
from stepdown.policies.bc import check_pair
from stepdown.policies.checkpoints import ENSEMBLE, load_policy
from stepdown.policies.usable import check_hours
from stepdown.report.diary import BOARD, METRICS, SHOWN, mix_words, read_metrics
from stepdown.report.parts import SPLIT
from stepdown.report.recipes import (
    DataName,
    Method,
    Recipe,
    SettingName,
    Size,
    make_ensemble_config,
    make_recipe,
    with_words,
)
from stepdown.report.stopping import StoppedError, stoppable
from stepdown.report.training_loop import PENALTIES, Job, level_mix, policy_folder, train_all
from stepdown.report.training_parts import Hours, read_hours, read_models

KIND = "trained policies"
SETTINGS, SUMMARY = "settings.json", "summary.json"
STARTS = 256  # select hours from which the twin judges every epoch; a curve, no verdict


@dataclass(frozen=True)
class TrainConfig:
    """Train policies on the train patients of a cohort or data set."""

    method: Method  # how to learn
    out: Path  # new folder for the policies; OUT.training beside it while they are trained
    cohort: Path | None = None  # folder of `stepdown simulate` or `import`
    dataset: Path | None = None  # instead: train.hdf5 or the Minari folder of `stepdown export`
    twin: Path | None = None  # folder of `stepdown twin fit`: the expert's world, others' judge
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


def train(config: TrainConfig) -> int:
    """Train, or go on; the exit code is 143 after SIGTERM and 130 after an interrupt."""
    recipe = read_recipe(config)
    out = config.out.resolve()
    hours = read_hours(config.cohort, config.dataset, config.split)
    check_method(config.method, hours, twin=config.twin, guardian=config.guardian)
    models, digests = read_models(
        hours, twin=config.twin, guardian=config.guardian, ensemble=config.ensemble
    )
    settings = _settings(config, recipe, {"records": hours.digest, **digests})
    work = out.with_name(f"{out.name}.training")
    if _is_finished(out, settings):
        shutil.rmtree(work, ignore_errors=True)
        sys.stderr.write(f"{config.out} holds this training already.\n")
        sys.stdout.write(summary_to_text(json.loads((out / SUMMARY).read_bytes())))
        return 0
    require_free(out)
    rule = make_rule(models.twin, hours.select, STARTS, key=jr.key(0)) if models.twin else None
    job = Job(
        hours,
        models,
        rule,
        config.method,
        tuple(range(config.first_seed, config.first_seed + config.seeds)),
        recipe,
        make_ensemble_config(config.size),
        config.constrained,
        work,
        config.save_seconds,
    )
    with opened(work, settings):
        code = _run(job)
        if code:
            return code
        found = _summary(job)
        _publish(job, config, settings, found)
    shutil.rmtree(work, ignore_errors=True)
    sys.stdout.write(summary_to_text(found))
    return 0


def _run(job: Job) -> int:
    """Train all seeds; not 0 if somebody has stopped it."""
    hint = f"stopped; what is done is saved in {job.work}. Start the same command again to go on."
    with stoppable(hint) as stop:
        try:
            train_all(job, stop)
        except StoppedError as stopped:
            sys.stderr.write(f"\nstepdown: {hint}\n")
            return stopped.code
    return 0


def read_recipe(config: TrainConfig) -> Recipe:
    """The preset of the method with what was said on the command line."""
    if config.penalty_weight is not None and config.method not in PENALTIES:
        raise ValueError(
            f"--penalty-weight: expected one of {', '.join(PENALTIES)}, got {config.method}, "
            "which has no penalty. Leave the option out."
        )
    recipe = make_recipe(
        config.method,
        config.setting,
        config.data,
        size=config.size,
        shaped=config.shaped,
        constrained=config.constrained,
    )
    return with_words(
        recipe,
        updates=config.updates,
        penalty_weight=config.penalty_weight,
        jump_weight=config.jump_weight,
        weaning_weight=config.weaning_weight,
    )


def check_method(method: Method, hours: Hours, *, twin: Path | None, guardian: Path | None) -> None:
    """Refuse, before any work, what the method cannot learn from."""
    for needy, option, given in (("expert", "twin", twin), ("cormpo", "guardian", guardian)):
        if method == needy and given is None:
            raise ValueError(
                f"expected --{option} for {method}, got none. Fit one with stepdown {option} fit."
            )
    check_hours(hours.train, varied=method != "expert")
    if method != "expert":
        check_pair(hours.train, hours.select)


def _settings(config: TrainConfig, recipe: Recipe, inputs: dict[str, Any]) -> dict[str, Any]:
    """Everything that the result depends on."""
    return {
        "method": config.method,
        "seeds": config.seeds,
        "first seed": config.first_seed,
        "constrained": config.constrained,
        "recipe": config_to_dict(recipe),
        "ensemble recipe": config_to_dict(make_ensemble_config(config.size)),
        "device": jax.default_backend(),
        "inputs": inputs,
    }


@contextlib.contextmanager
def opened(work: Path, settings: dict[str, Any]) -> Iterator[None]:
    """The working folder, for this process alone; that of another training is refused."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{work}: expected nobody at work there, got another run.") from None
        file = work / SETTINGS
        if not file.is_file():
            draft = file.with_suffix(".draft")
            draft.write_bytes(_json(settings))
            draft.replace(file)
        odd = _difference(json.loads(file.read_bytes()), json.loads(_json(settings)))
        if odd:
            raise ValueError(
                f"{work}: expected the settings that this training was begun with ({odd[0]}: "
                f"{odd[1]}), got {odd[2]}. Give the same settings or another --out, or remove "
                "the folder."
            )
        yield


def _difference(begun: Any, given: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """The first setting that differs."""
    if not (isinstance(begun, dict) and isinstance(given, dict)):
        return None if begun == given else (name.strip("."), begun, given)
    for key in sorted({*begun, *given}):
        if odd := _difference(begun.get(key), given.get(key), f"{name}.{key}"):
            return odd
    return None


def _is_finished(out: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds the result of these settings."""
    if not (out / MANIFEST).is_file():
        return False
    check_folder(out, KIND)
    return json.loads((out / SETTINGS).read_bytes()) == json.loads(_json(settings))


def _summary(job: Job) -> dict[str, Any]:
    """How every seed ended, and the levels that its policy sets on select patients."""
    lines = read_metrics(job.work / METRICS)
    rows = []
    for seed in job.seeds:
        last = [line for line in lines if line["seed"] == seed][-1]
        policy, _ = load_policy(policy_folder(job.work, seed))
        mix = level_mix(policy, job.hours.select.state)
        numbers = {k: x for k, x in last.items() if k not in ("time", "epoch", "levels")}
        rows.append(numbers | {"levels": [round(float(x), 4) for x in mix]})
    return {"method": job.method, "seeds": rows}


def summary_to_text(found: dict[str, Any]) -> str:
    """An aligned table, one line per seed, and the mean over seeds."""
    rows = found["seeds"]
    names = [name for name in ("updates", *SHOWN) if name in rows[0]]
    lines = [["seed", *names]]
    lines += [[str(row["seed"]), *(_cell(row[name]) for name in names)] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    table = ["  ".join(map(str.rjust, line, widths)) for line in lines]
    table[0] += "  levels on select patients"
    for number, row in enumerate(rows, 1):
        table[number] += f"  {mix_words(row['levels'])}"
    if "twin_reward" in names:
        scores = np.array([row["twin_reward"] for row in rows])
        table.append(
            f"\n{found['method']}: reward in the twin, select patients: {scores.mean():.3f} "
            f"± {scores.std():.3f} over {len(rows)} seeds"
        )
    return "\n".join(table) + "\n"


def _cell(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _publish(job: Job, config: TrainConfig, settings: dict, found: dict) -> None:
    """The finished folder, whole and with a manifest."""
    folders = [policy_folder(job.work, seed) for seed in job.seeds]
    folders += [job.work / BOARD, job.work / ENSEMBLE]
    files = {
        file.relative_to(job.work).as_posix(): file.read_bytes()
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    files |= {
        METRICS: (job.work / METRICS).read_bytes(),
        SETTINGS: _json(settings),
        SUMMARY: _json(found),
    }
    write_folder(config.out, files, kind=KIND, about=provenance(config=config))


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()
