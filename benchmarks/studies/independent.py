"""Does the planner do better than CORMPO and than the clinicians, on cohorts that nobody has seen?

    python -m benchmarks.studies.independent --part test --group planning --out planned.jsonl
    python -m benchmarks.studies.independent --part test --group learning --out learned.jsonl

Which cohorts, which rows and how the default is chosen stand in `design.json` beside this file,
committed before any result. Every cohort is drawn from a seed of its own, so no two share a
patient. For each, models are fitted to its train and select patients, policies are learned or plan,
and all decide six hours for fresh patients in the simulator itself, from the same starts. A line of
JSON is written for each cohort as soon as it is done; a second call goes on where the first ended.
Planning is for CPU cores, as many side by side as there are (`--workers`); learning is for a GPU.
Needs JAX, Equinox, Optax and NumPy alone. independent_page.py says what came out.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.cohorts import FRESH, Line, add_lines
from stepdown.evaluation.compare import paired_difference
from stepdown.evaluation.judging import (
    draw_judged_starts,
    judge_in_patients,
    judge_look_ahead,
    judge_team,
)
from stepdown.experiment.presets import TINY_ENSEMBLE, TINY_TRAINING
from stepdown.guardian.fit import DensityConfig, fit_guardian
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.threshold import RECORDED
from stepdown.handover import Judged, Policy, Transitions
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.policies.ensemble import EnsembleConfig, fit_ensemble
from stepdown.policies.learning import ALONE, Shrink, Task, apply_changes
from stepdown.policies.methods import METHODS, make_recipe
from stepdown.policies.planner import Planner, PlannerConfig, gated
from stepdown.policies.rules import RULES
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.records.split import SPLIT, split_patients
from stepdown.training import member
from stepdown.twin.fit import fit_twin
from stepdown.twin.twins import twin_config

DESIGN = Path(__file__).with_name("design.json")
SAME = ("preset", "version", "seed")
TOLD = ("reward", "unsafe_hours", "acp", "total_change", "ws_gradient")


def as_many(hours: Transitions, count: int) -> Transitions:
    """All hours, and some of them once more, so that every cohort shares compiled programs."""
    number, draw = len(hours.level), np.random.default_rng(0)
    more = draw.choice(number, max(count - number, 0), replace=count > 2 * number)
    rows = np.sort(np.append(np.arange(number), more))
    return jax.tree.map(lambda x: x[rows], hours)


def read_design() -> dict[str, Any]:
    """What was fixed before the results."""
    return json.loads(DESIGN.read_text(encoding="utf-8"))


def cohorts_of(design: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """Preset, version and seed of every cohort of a part; the presets take turns."""
    seeds = design[part]["seeds"]
    named = [
        (number, {"preset": preset, "version": int(version), "seed": seed})
        for version, presets in seeds.items()
        for preset, own in presets.items()
        for number, seed in enumerate(own)
    ]
    return [one for _, one in sorted(named, key=lambda x: x[0])]


def judge_cohort(
    preset: Any, version: Any, seed: int, part: str, rows: list[str], small: bool
) -> Line:
    """Fit, learn or plan, and judge for one cohort."""
    begun = time.perf_counter()
    design = read_design()
    sizes = design["tiny" if small else "sizes"] | design[part].get("changed", {})
    config = CohortConfig(sizes["patients"], preset=preset, version=version, hours=sizes["hours"])
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        cohort, _ = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
        fresh = CohortConfig(sizes["fresh"], preset=preset, version=version, hours=sizes["hours"])
        starts = draw_judged_starts(
            *simulate_cohort(fresh, key=jr.key(FRESH + seed)), sizes["episodes"], key=jr.key(1)
        )
        world = world_of(config)
        judged = {"clinicians": judge_team(starts, world)}
        if "hold" in rows:
            judged["look-ahead"] = judge_look_ahead(starts, world)
    seconds = {"patients": round(time.perf_counter() - begun, 1)}
    models = Models(cohort, design, version, small)
    for name in rows:
        before = time.perf_counter()
        policy = models.policy(name)
        seconds[f"{name}, fitting"] = round(time.perf_counter() - before, 1)
        judged[name] = judge_in_patients(policy, starts, world)
        seconds[name] = round(time.perf_counter() - before, 1)
        print(preset, version, seed, name, seconds[name], flush=True)
    return {
        "preset": preset,
        "version": version,
        "seed": seed,
        "rows": {name: tell(one, judged["clinicians"]) for name, one in judged.items()},
        "device": jax.devices()[0].device_kind,
        "seconds": seconds,
    }


class Models:
    """What is fitted to one cohort, each when it is first asked for."""

    def __init__(self, cohort: Any, design: dict[str, Any], version: int, small: bool):
        self.parts = split_patients(cohort, key=jr.key(SPLIT))
        self.design, self.made = design, {}
        self.seeds: int = design["tiny" if small else "sizes"]["seeds"]
        self.shrink: Shrink | None = TINY_TRAINING if small else None
        self.ensemble = TINY_ENSEMBLE if small else EnsembleConfig()
        train, select, _ = self.parts
        self.train, self.select = (
            as_many(make_transitions(part), count)
            for part, count in zip((train, select), design["hours"][str(version)], strict=True)
        )

    def policy(self, name: str) -> Policy:
        """A row of the design: a rule, a method of the table, or a planner."""
        if name in RULES:
            return RULES[name]
        if name in self.design["planners"]:
            return self.planner(**self.design["planners"][name])
        return self.learned(name)

    def planner(
        self,
        model: str,
        guardian: bool = False,
        clinicians: bool = False,
        refused: float = 0.0,
        **changes: Any,
    ) -> Planner:
        """Planning in a model, with a guardian's charge or gate or cloned clinicians if asked."""
        made = Planner(
            self.model(model),
            jnp.asarray(0),
            penalty=self.model("kde") if guardian else None,
            clinicians=member(self.learned("bc"), 0) if clinicians else None,
            config=PlannerConfig(**changes),
        )
        return gated(made, self.model("kde"), refused) if refused else made

    def learned(self, method: str, model: str = "ensemble", **changes: Any) -> Policy:
        """The policies of a method, one for each training seed."""
        name = f"{method} in {model} {changes}"
        if name not in self.made:
            row, recipe = METHODS[method], make_recipe(method, shrink=self.shrink)
            dynamics = self.model(model) if row.dynamics else None
            guardian = self.model("kde") if row.density else None
            task = Task(self.train, self.select, dynamics, guardian, row.penalty)
            keys = jr.split(jr.key(1), self.seeds)
            recipe = apply_changes(recipe, changes)
            self.made[name] = row.learn(task, recipe, keys=keys, watch=ALONE)[0]
        return self.made[name]

    def model(self, name: str) -> Any:
        """A twin of the table, the ensemble or the kernel guardian."""
        if name not in self.made:
            if name == "ensemble":
                self.made[name] = fit_ensemble(self.train, self.ensemble, key=jr.key(0))[0]
            elif name == "kde":
                kernel = DensityConfig(DENSITIES["kde"])
                self.made[name] = fit_guardian(
                    self.train, self.select, kernel, RECORDED, key=jr.key(0)
                )[0]
            else:
                twin = twin_config(name)
                cut = HoursConfig(stride=twin.kind.stride)
                sliding = make_transitions(self.parts[0], cut)
                self.made[name] = fit_twin(sliding, self.select, twin, key=jr.key(0))[0]
        return self.made[name]


def tell(ours: Judged, team: Judged) -> dict[str, Any]:
    """Means over seeds and episodes, and differences to the clinicians with patients' intervals."""
    told: dict[str, Any] = {}
    for metric in TOLD:
        own, theirs = (np.asarray(x.scores[metric], float).mean(0) for x in (ours, team))
        told[metric] = {
            "mean": float(own.mean()),
            "gain": list(paired_difference(own, theirs, ours.row)),
        }
    return told


def main() -> None:
    """Judge the cohorts of a part of the design."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("development", "test"), required=True)
    parser.add_argument("--group", choices=("planning", "learning"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each cohort")
    parser.add_argument(
        "--workers", type=int, help="processes side by side; default: this one alone"
    )
    parser.add_argument("--most", type=int, help="of the cohorts, the first so many")
    parser.add_argument("--backward", action="store_true", help="the last cohort first")
    parser.add_argument("--only", nargs="+", default=[], help="of the rows, these alone")
    parser.add_argument(
        "--tiny", action="store_true", help="a few small patients, to try the program"
    )
    asked = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    cohorts = cohorts_of(read_design(), asked.part)[:: -1 if asked.backward else 1][: asked.most]
    rows = [x for x in read_design()[asked.part][asked.group] if not asked.only or x in asked.only]
    what = {"part": asked.part, "rows": rows, "small": asked.tiny}
    tasks = [one | what for one in cohorts]
    add_lines(asked.out, tasks, judge_cohort, same=SAME, workers=asked.workers)


if __name__ == "__main__":
    main()
