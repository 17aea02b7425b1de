"""Part by part: is it the model, the planning, or the care? On development cohorts.

    python -m benchmarks.studies.parts --out docs/results/parts.jsonl

Cohorts and rows stand in `parts.json` beside this file, committed before any result. For each
cohort the ridge twin is fitted. The planner of the table of methods decides six hours for fresh
patients in the simulator itself, with one part changed at a time; an actor and critics (SAC, reward
shaped) learn in the same twin, free and held to the allowed levels (policies/constraint.py); a
network is cloned from the planner's choices. All play the same starts.
A line of JSON for each cohort; a second call goes on where the first ended. The sizes are small and
made for CPU cores: what the first design measured at full size on a GPU stands beside these rows
in the table, which `python -m benchmarks.documents.results` writes. Needs JAX, Equinox, Optax and
NumPy alone.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

from benchmarks.cohorts import FRESH, Line, add_lines, read_lines
from benchmarks.studies.independent import SAME, Models, cohorts_of, tell
from benchmarks.tables import DOCS, make_table, student
from stepdown.evaluation.judging import (
    draw_judged_starts,
    judge_in_patients,
    judge_look_ahead,
    judge_team,
)
from stepdown.handover import Policy, Transitions
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.policies.learning import Shrink

DESIGN = Path(__file__).with_name("parts.json")
FILE, FIRST = DOCS / "results/parts.jsonl", DOCS / "results/first-design"


def read_design() -> dict[str, Any]:
    """What was fixed before the results."""
    return json.loads(DESIGN.read_text(encoding="utf-8"))


def judge_cohort(preset: Any, version: Any, seed: int, rows: list[str], small: bool) -> Line:
    """Fit, learn or plan, and judge for one cohort."""
    begun, design = time.perf_counter(), read_design()
    sizes = design["tiny" if small else "sizes"]
    config = CohortConfig(sizes["patients"], preset=preset, version=version, hours=sizes["hours"])
    cohort, _ = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
    models = Models(cohort, design, version, small)
    if not small:
        models.shrink = Shrink(**design["learning"])
    fresh = CohortConfig(sizes["fresh"], preset=preset, version=version, hours=sizes["hours"])
    others = simulate_cohort(fresh, key=jr.key(FRESH + seed))
    starts, world = draw_judged_starts(*others, sizes["episodes"], key=jr.key(1)), world_of(config)
    judged = {
        "clinicians": judge_team(starts, world),
        "look-ahead": judge_look_ahead(starts, world),
    }
    seconds = {"patients": round(time.perf_counter() - begun, 1)}
    for name in rows:
        before = time.perf_counter()
        judged[name] = judge_in_patients(policy_of(name, models), starts, world)
        seconds[name] = round(time.perf_counter() - before, 1)
        print(preset, version, seed, name, seconds[name], flush=True)
    return {
        "preset": preset,
        "version": version,
        "seed": seed,
        "rows": {name: tell(one, judged["clinicians"]) for name, one in judged.items()},
        "seconds": seconds,
    }


def policy_of(name: str, models: Models) -> Policy:
    """A row of the design."""
    if name in models.design["learners"]:
        return models.learned("mbpo_shaped", **models.design["learners"][name])
    if name == "distilled":
        whole, count = (models.train, models.select), models.design["distilled"]
        models.train, models.select = (thinned(x, count) for x in whole)
        policy = models.learned("distilled", "ridge")
        models.train, models.select = whole  # other rows learn from all hours
        return policy
    return models.policy(name)


def thinned(hours: Transitions, count: int) -> Transitions:
    """At most so many, evenly."""
    return jax.tree.map(lambda x: x[:: -(-len(hours.level) // count)], hours)


Shown = dict[str, tuple[str, str | None]]  # words, and which row it is held against
ROWS: Shown = {
    "planner": ("Planner in the ridge twin: 3 h, care 0.5, lowering 0.02", None),
    "SAC": ("SAC learned in the ridge twin", "planner"),
    "SAC, held": ("..., held to the allowed levels", "SAC"),
    "distilled": ("Planner, distilled into a network", "planner"),
    "1 h": ("Planner, 1 h", "planner"),
    "6 h": ("Planner, 6 h", "planner"),
    "guardian charges": ("Planner, kernels charge 0.02 u", "planner"),
    "clinicians close": ("Planner, levels that clones choose below 1 % closed", "planner"),
    "hold": ("Hold the level", None),
}
DEFAULT = "care 0.5, lowering 0.02"
SHORT = "care 0.5, lowering 0.01"
CHOSEN: Shown = {  # of the development cohorts of design.json
    DEFAULT: ("Planner (its development cohorts)", None),
    "care 0, lowering 0.02": ("..., care 0", DEFAULT),
    "care 1, lowering 0.02": ("..., care 1", DEFAULT),
    "care 0.5, lowering 0": ("..., lowering 0", DEFAULT),
    SHORT: ("..., lowering 0.01", DEFAULT),
    f"{SHORT}, 2 h": ("..., lowering 0.01, 2 h", SHORT),
}
REPORTED: Shown = {  # of its test cohorts
    DEFAULT: ("Planner (its test cohorts)", None),
    "care 0, lowering 0": ("..., care 0, lowering 0", DEFAULT),
}
PLANNED, LEARNED = "ensemble, 2 h", "mbpo_shaped"
EARLIER: Shown = {  # of the first design
    PLANNED: ("Planner in the paper's ensemble, 2 h, care 0 (first design)", None),
    LEARNED: ("SAC in the paper's ensemble: MBPO, shaped (first design)", PLANNED),
    "cormpo_kde": ("CORMPO in the paper's ensemble (first design)", PLANNED),
    "ridge, 3 h, care 0": (
        "Planner in the earlier ridge twin, 3 h, care 0 (first design)",
        PLANNED,
    ),
}


def tables() -> dict[str, str]:
    """The table of docs/all-results.md, by its marker."""
    heads = ["row", "cohorts", "reward − clinicians", "unsafe hours −, points", "held against"]
    heads += ["reward − that row", "unsafe hours −, points"]
    results = DOCS / "results"
    told = [
        *_told(read_lines(FILE), ROWS),
        *_told(first_design(), EARLIER),
        *_told(read_lines(results / "independent_development.jsonl"), CHOSEN),
        *_told(read_lines(results / "independent_planned.jsonl"), REPORTED),
    ]
    return {"parts": make_table(heads, told)}


def first_design() -> list[Line]:
    """Its cohorts with planning and learning in the paper's ensemble, and planning in the ridge."""
    planned = {x["seed"]: x["rows"] for x in read_lines(FIRST / "planned.jsonl")}
    learned = read_lines(FIRST / "learned.jsonl")
    whole = [x | {"rows": planned[x["seed"]] | x["rows"]} for x in learned]
    return [x for x in whole if x["rows"].keys() >= EARLIER.keys()]


def _told(lines: Sequence[Line], shown: Shown) -> list[list[str]]:
    rows = []
    for name, (words, other) in shown.items():
        if not (own := [x for x in lines if name in x["rows"]]):
            continue
        cells = [words, str(len(own)), *_gains(own, name, None)]
        both = [x for x in own if other in x["rows"]]
        cells += [shown[other][0], *_gains(both, name, other)] if other else ["–"] * 3
        rows.append(cells)
    return rows


def _gains(lines: Sequence[Line], name: str, other: str | None) -> tuple[str, str]:
    """Reward and unsafe hours minus the clinicians', or minus another row's of the same cohorts."""

    def gain(line: Line, row: str, metric: str) -> float:
        return line["rows"][row][metric]["gain"][0]

    def apart(metric: str) -> list[float]:
        return [gain(x, name, metric) - (gain(x, other, metric) if other else 0) for x in lines]

    return student(apart("reward")), student(100 * np.array(apart("unsafe_hours")), 1)


def main() -> None:
    """Judge the cohorts of the design."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each cohort")
    parser.add_argument("--most", type=int, help="of the cohorts, the first so many")
    parser.add_argument(
        "--tiny", action="store_true", help="a few small patients, to try the program"
    )
    asked = parser.parse_args()
    design = read_design()
    what = {"rows": list(ROWS), "small": asked.tiny}
    tasks = [one | what for one in cohorts_of(design, "development")[: asked.most]]
    add_lines(asked.out, tasks, judge_cohort, same=SAME)


if __name__ == "__main__":
    main()
