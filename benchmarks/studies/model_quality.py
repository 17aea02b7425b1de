"""When does the guardian pay? `python -m benchmarks.studies.model_quality --cohorts 3`.

Cohort by cohort the same rows (MBPO, MBPO shaped, CORMPO; two seeds, short trainings) learn in
three ensembles: the paper's, a small one that was fitted briefly, and the paper's fitted on a
quarter of the train patients. The guardian sees the same hours as the ensemble. All are judged in
fresh patients from the same starts, beside the clinicians. Each cohort is a line of the file as
soon as it is done; a second call goes on where the first stopped. `--tables FILE` prints what the
file says. CPU only; set JAX_COMPILATION_CACHE_DIR, for all cohorts share compiled programs.
"""

import argparse
import functools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is loaded

import jax.random as jr
import numpy as np

from benchmarks.cohorts import (
    KDE,
    PRESET_NAMES,
    SIZES,
    Line,
    Patients,
    Teachers,
    add_lines,
    fresh_patients,
    learn,
    read_lines,
    simulate,
    some_hours,
)
from benchmarks.tables import make_table, student
from stepdown.evaluation.compare import values_of
from stepdown.evaluation.judging import (
    draw_judged_starts,
    judge_in_patients,
    judge_in_twin,
    judge_team,
    moments_of,
)
from stepdown.experiment.presets import PRESETS
from stepdown.guardian.fit import fit_guardian
from stepdown.guardian.threshold import RECORDED
from stepdown.handover import Transitions
from stepdown.patients.cohort import CohortConfig, world_of
from stepdown.patients.population import PresetName
from stepdown.policies.ensemble import EnsembleConfig, fit_ensemble
from stepdown.policies.methods import make_recipe
from stepdown.policies.rules import RULES
from stepdown.signals import LEVELS

ROWS = {"MBPO": "mbpo", "MBPO shaped": "mbpo_shaped", "CORMPO": "cormpo_kde"}
KINDS = {  # ensemble, and the share of train patients it is fitted on
    "the paper's ensemble": (EnsembleConfig(), 1.0),
    "a small one, fitted briefly": (PRESETS["demo"].ensemble, 1.0),
    "the paper's, a quarter of the patients": (EnsembleConfig(), 0.25),
}


def hours_of(patients: Patients, share: float, count: int) -> Transitions:
    """The hours of some of the train patients, a fixed number of them."""
    if share == 1:
        return patients.train
    known = np.unique(np.asarray(patients.train.patient))
    chosen = np.random.default_rng(0).permutation(known)[: round(share * len(known))]
    return some_hours(patients.train, round(share * count), among=chosen)


def judge_cohort(preset: PresetName, seed: int, size: str) -> Line:
    """One line of the file."""
    sizes, begin = SIZES[size], time.time()
    config = CohortConfig(patients=sizes.patients, preset=preset, hours=sizes.hours)
    patients, world = simulate(config, seed, sizes), world_of(config)
    fresh = fresh_patients(config, seed, sizes)
    starts = draw_judged_starts(*fresh, sizes.episodes, key=jr.key(1))
    moments = moments_of(starts, key=jr.key(2))
    found: dict[str, Any] = {
        "preset": preset,
        "seed": seed,
        "team": _plain(judge_team(starts, world)),
    }
    levels = [f"always P{level}" for level in LEVELS]
    found["levels"] = [_plain(judge_in_patients(RULES[x], starts, world))[0] for x in levels]
    for kind, (ensemble_config, share) in KINDS.items():
        hours = hours_of(patients, share, sizes.train)
        ensemble, _ = fit_ensemble(hours, ensemble_config, key=jr.key(0))
        guardian, _ = fit_guardian(hours, patients.select, KDE, RECORDED, key=jr.key(0))
        teachers = Teachers(ensemble, guardian)
        one: dict[str, Any] = {
            "levels": [_plain(judge_in_twin(RULES[x], ensemble, moments))[0] for x in levels]
        }
        for name, row in ROWS.items():
            recipe, one[name] = make_recipe(row, shrink=sizes.shrink), []
            for policy in learn(row, recipe, hours, patients.select, teachers, sizes.seeds):
                truth = _plain(judge_in_patients(policy, starts, world))
                inside = _plain(judge_in_twin(policy, ensemble, moments))
                one[name].append([*truth, *inside])
        found[kind] = one
    return found | {"seconds": time.time() - begin}


def _plain(judged) -> list[float]:
    return [float(values_of(judged, x).mean()) for x in ("reward", "unsafe_hours", "acp")]


def make_tables(path: Path) -> str:
    """Means over cohorts with Student's interval: minus the clinicians, in fresh patients."""
    lines = read_lines(path)
    presets = [x for x in PRESET_NAMES if any(line["preset"] == x for line in lines)]
    heads = ["learned in", "row", "promised by the ensemble", "reward in truth", *presets,
             "unsafe hours, points"]  # fmt: skip
    rows = []
    for kind in KINDS:
        own = {name: _means(lines, kind, name) for name in ROWS}
        for name, values in own.items():
            rows.append([kind, name, *_cells(values - _team(lines), lines, presets)])
        for name in ("MBPO", "MBPO shaped"):
            cells = _cells(own["CORMPO"] - own[name], lines, presets)
            rows.append([kind, f"*CORMPO minus {name}*", *cells])
    counts = ", ".join(f"{p} {sum(x['preset'] == p for x in lines)}" for p in presets)
    return "\n\n".join([f"Cohorts: {counts}.", make_table(heads, rows), _curves(lines, presets)])


def difference(lines: list[Line], kind: str, name: str, other: str) -> tuple[str, str]:
    """One row minus another in truth: reward, and points of unsafe hours."""
    apart = _means(lines, kind, name) - _means(lines, kind, other)
    return student(apart[:, 0]), student(100 * apart[:, 1], 1)


def _means(lines: list[Line], kind: str, name: str) -> np.ndarray:
    """Of both seeds: true reward and unsafe hours, and the reward that the ensemble promises."""
    return np.array([np.mean(line[kind][name], axis=0)[[0, 1, 3]] for line in lines])


def _team(lines: list[Line]) -> np.ndarray:
    return np.array([[line["team"][i] for i in (0, 1, 0)] for line in lines])


def _cells(values: np.ndarray, lines: list[Line], presets: Sequence[str]) -> list[str]:
    kinds = np.array([line["preset"] for line in lines])
    each = [f"{values[kinds == x, 0].mean():+.2f}" for x in presets]
    return [student(values[:, 2]), student(values[:, 0]), *each, student(100 * values[:, 1], 1)]


def _curves(lines: list[Line], presets: Sequence[str]) -> str:
    """What one level for all is worth, in truth and by each ensemble."""
    rows = []
    for preset in presets:
        those = [x for x in lines if x["preset"] == preset]
        by = {"truth": [x["levels"] for x in those]}
        by |= {kind: [x[kind]["levels"] for x in those] for kind in KINDS}
        rows += [[preset, who, *[f"{v:.2f}" for v in np.mean(x, 0)]] for who, x in by.items()]
    return make_table(["preset", "who", *[f"P{x}" for x in LEVELS]], rows)


def main() -> None:
    """Do what is not in the file yet, or print what it says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=3)
    parser.add_argument("--first", type=int, default=7)
    parser.add_argument("--size", default="demo", choices=SIZES)
    parser.add_argument("--json", type=Path, default=Path("model_quality.jsonl"))
    parser.add_argument("--tables", type=Path)
    args = parser.parse_args()
    if args.tables:
        print(make_tables(args.tables))
        return
    seeds = range(args.first, args.first + args.cohorts)
    tasks = [{"preset": preset, "seed": seed} for seed in seeds for preset in PRESET_NAMES]
    work = functools.partial(judge_cohort, size=args.size)
    add_lines(args.json, tasks, work, same=("preset", "seed"))


if __name__ == "__main__":
    main()
