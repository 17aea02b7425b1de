"""How much of a search is luck? `python -m benchmarks.studies.search_luck --cohorts 2`.

Cohort by cohort the six trials of MBPO and of CORMPO are trained with five seeds each (short
trainings, small twin and ensemble). Every policy is scored as a search scores it, in the twin from
hours of select patients, and judged in fresh patients. The tables then ask what a search with
fewer seeds or fewer starts would have chosen, over all ways to draw the seeds. Each cohort is a
line of the file as soon as it is done; a second call goes on where the first stopped. `--tables
FILE` prints what the file says. CPU only; set JAX_COMPILATION_CACHE_DIR.
"""

import argparse
import functools
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is loaded

import jax.random as jr
import numpy as np
from matplotlib.figure import Figure

from benchmarks.cohorts import (
    KDE,
    PRESET_NAMES,
    SIZES,
    Line,
    Teachers,
    add_lines,
    fresh_patients,
    learn,
    read_lines,
    simulate,
)
from benchmarks.tables import DOCS, make_table, student
from stepdown.evaluation.compare import values_of
from stepdown.evaluation.judging import draw_judged_starts, judge_in_patients, judge_team
from stepdown.guardian.fit import fit_guardian
from stepdown.guardian.threshold import RECORDED
from stepdown.patients.cohort import CohortConfig, world_of
from stepdown.patients.population import PresetName
from stepdown.policies.ensemble import fit_ensemble
from stepdown.policies.learning import apply_changes
from stepdown.policies.methods import METHODS, make_recipe
from stepdown.policies.model_based import OURS
from stepdown.policies.search import make_rule
from stepdown.report.figures import GRID, INK, to_png
from stepdown.report.labels import TRUTH, TWIN, name_of
from stepdown.twin.fit import fit_twin

SEARCHED = ("mbpo", "cormpo_kde")
STARTS, SEEDS = (256, 2048), 5


def judge_cohort(preset: PresetName, seed: int, size: str) -> Line:
    """One line: of every trial and seed the score by few and by many starts, and the truth."""
    sizes, begin = SIZES[size], time.time()
    config = CohortConfig(patients=sizes.patients, preset=preset, hours=sizes.hours)
    patients, world = simulate(config, seed, sizes), world_of(config)
    fresh = fresh_patients(config, seed, sizes)
    starts = draw_judged_starts(*fresh, sizes.episodes, key=jr.key(1))
    twin, _ = fit_twin(patients.sliding, patients.select, sizes.twin("best"), key=jr.key(0))
    ensemble, _ = fit_ensemble(patients.train, sizes.ensemble, key=jr.key(0))
    guardian, _ = fit_guardian(patients.train, patients.select, KDE, RECORDED, key=jr.key(0))
    teachers = Teachers(ensemble, guardian)
    rules = [make_rule(twin, patients.select, number, key=jr.key(3)) for number in STARTS]
    found: dict[str, Any] = {
        "preset": preset,
        "seed": seed,
        "team": _reward(judge_team(starts, world)),
    }
    for row in SEARCHED:
        found[row] = []
        for changes in METHODS[row].trials:
            recipe, trial = apply_changes(make_recipe(row, shrink=sizes.shrink), changes), []
            for policy in learn(row, recipe, patients.train, patients.select, teachers, SEEDS):
                truth = _reward(judge_in_patients(policy, starts, world))
                trial.append([*(rule(policy) for rule in rules), truth])
            found[row].append(trial)
    return found | {"seconds": time.time() - begin}


def _reward(judged) -> float:
    return float(values_of(judged, "reward").mean())


def tables() -> dict[str, str]:
    """The tables of docs/all-results.md, by their markers."""
    lines = read_lines(DOCS / "results/search_luck.jsonl")
    presets = (("guarded", "hidden"), ("benign",))
    weights = trials_table(lines, "cormpo_kde", presets)
    return {"search luck": luck_table(lines), "guardian weight": weights}


def make_tables(path: Path) -> str:
    """What searches of several sizes would have promised and kept; means over cohorts."""
    lines = read_lines(path)
    presets = (("guarded", "hidden"), ("guarded",), ("hidden",), ("benign",))
    each = [f"**{row}**\n\n{trials_table(lines, row, presets)}" for row in SEARCHED]
    return "\n\n".join([f"{len(lines)} cohorts.", luck_table(lines), *each])


def luck_table(lines: list[Line]) -> str:
    """Promised and kept, by how many starts and seeds a trial has."""
    rows = []
    for row in SEARCHED:
        for place, starts in enumerate(STARTS):
            for seeds in (1, 2, 3, SEEDS):
                kept = [_search(np.array(line[row]), place, seeds) for line in lines]
                cells = [student([x[i] for x in kept], 3) for i in range(2)]
                rows.append([name_of(row), f"{starts:,}", str(seeds), *cells])
        best = [float(np.mean(line[row], 1)[:, 2].max() - np.mean(line[row][0], 0)[2])
                for line in lines]  # fmt: skip
        rows.append([name_of(row), "truth", str(SEEDS), "", student(best, 3)])
    heads = ("row", "starts", "seeds of a trial", "promised over the preset")
    return make_table([*heads, "kept in fresh patients"], rows)


def trials_table(lines: list[Line], row: str, presets: Sequence[Sequence[str]]) -> str:
    """Every trial minus the preset, by many starts in the twin and in truth, all seeds."""
    trials = [
        ", ".join(f"{x.split('.')[-1]} {y:g}" for x, y in changes.items())
        for changes in METHODS[row].trials
    ]
    trials = [x.replace("penalty_weight", "λ") for x in trials]
    rows = []
    for some in presets:
        own = [np.mean(line[row], 1) for line in lines if line["preset"] in some]
        for who, place in (("twin", 1), ("truth", 2)) if own else ():
            gains = np.array([x[:, place] - x[0, place] for x in own])
            cells = [student(x) for x in gains[:, 1:].T]
            rows.append([f"{' and '.join(some)} ({len(own)})", who, *cells])
    return make_table(["cohorts", "by", *trials[1:]], rows)


def draw_weights(path: Path, picture: Path) -> None:
    """What a weaker or stronger guardian is worth, by the twin and in truth."""
    lines = read_lines(path)
    preset = OURS.penalty_weight
    weights = [x.get("penalty_weight", preset) for x in METHODS["cormpo_kde"].trials]
    order = np.argsort(weights)
    places = range(len(order))
    names = [x for x in PRESET_NAMES if any(line["preset"] == x for line in lines)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(names), sharey=True, squeeze=False)
        for axis, name in zip(axes.flat, names, strict=True):
            own = [np.mean(x["cormpo_kde"], 1) for x in lines if x["preset"] == name]
            shown = ((1, "twin, from select patients", TWIN), (2, "truth, fresh patients", TRUTH))
            for place, who, color in shown:
                gains = np.array([(x[:, place] - x[0, place])[order] for x in own])
                axis.plot(places, gains.T, color=color, lw=0.8, alpha=0.45)
                axis.plot(places, gains.mean(0), color=color, lw=2.5, marker="o", label=who)
            axis.set_xticks(places, [f"{weights[i]:g}" for i in order])
            axis.axhline(0, color=INK, lw=1)
            axis.set_title(f"{name}, {len(own)} cohorts")
            axis.set_xlabel("λ, weight of the guardian")
            axis.grid(axis="y", **GRID)
        figure.axes[0].set_ylabel(f"Reward of 6 hours minus that at λ = {preset:g}")
        known = figure.axes[0].get_legend_handles_labels()
        figure.legend(*known, loc="outside lower center", ncols=2, frameon=False)

    picture.write_bytes(to_png(draw, (12.5, 4.6)))


def _search(trials: np.ndarray, place: int, seeds: int) -> tuple[float, float]:
    """Promised and kept gain, over all sets of seeds that such a search could have drawn."""
    truth, gains = trials[:, :, 2].mean(1), []
    for drawn in itertools.combinations(range(trials.shape[1]), seeds):
        scores = trials[:, drawn, place].mean(1)
        best = int(scores.argmax())
        gains.append((scores[best] - scores[0], truth[best] - truth[0]))
    promised, kept = np.mean(gains, 0)
    return float(promised), float(kept)


def main() -> None:
    """Do what is not in the file yet, or print what it says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=2)
    parser.add_argument("--first", type=int, default=7)
    parser.add_argument("--presets", nargs="+", default=PRESET_NAMES, choices=PRESET_NAMES)
    parser.add_argument("--size", default="demo", choices=SIZES)
    parser.add_argument("--json", type=Path, default=Path("search_luck.jsonl"))
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--picture", type=Path, help="with --tables: a figure of lambda")
    args = parser.parse_args()
    if args.tables:
        print(make_tables(args.tables))
        if args.picture:
            draw_weights(args.tables, args.picture)
        return
    seeds = range(args.first, args.first + args.cohorts)
    tasks = [{"preset": preset, "seed": seed} for seed in seeds for preset in args.presets]
    work = functools.partial(judge_cohort, size=args.size)
    add_lines(args.json, tasks, work, same=("preset", "seed"))


if __name__ == "__main__":
    main()
