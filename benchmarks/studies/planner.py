"""What does planning take of the room, in which model, how far ahead, with how much care?

    python -m benchmarks.studies.planner --preset guarded --seed 7 --version 2 --out found.json

One cohort is drawn, models are fitted to its train and select patients, and planners
(policies/planner.py) decide for fresh patients, six hours from each start, in the simulator itself.
Printed and written for each row: the share of the room (clinicians 0, two hours of look-ahead on
the true model 100), the reward and the unsafe hours minus the clinicians' with 95 % intervals over
the fresh patients, and ACP. These are development cohorts: features, horizon and care of the
planner may be chosen by them, so nothing is reported from them. Needs JAX, Equinox, Optax and NumPy
alone.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.artifacts import provenance
from stepdown.evaluation.compare import paired_difference
from stepdown.evaluation.judging import LookAhead
from stepdown.handover import Dynamics
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import Mode, OwnTeam, Starts, draw_starts, play
from stepdown.patients.population import World
from stepdown.policies.ensemble import fit_ensemble
from stepdown.policies.planner import Planner, PlannerConfig
from stepdown.policies.rules import RULES
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.metrics import score_episodes
from stepdown.records.split import split_patients
from stepdown.twin.fit import fit_twin
from stepdown.twin.twins import twin_config

FRESH = 50_000  # added to the seed: of the patients to judge by
ONE = {"caution": 0.0, "draws": 64}  # for models that are one
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "ridge": ("ridge", {}),
    "ridge, no care": ("ridge", {"caution": 0.0}),
    "ridge, 1 h, no care": ("ridge", {"hours": 1, "caution": 0.0}),
    "ridge, 2 h, no care": ("ridge", {"hours": 2, "caution": 0.0}),
    "ridge, 6 h, no care": ("ridge", {"hours": 6, "caution": 0.0}),
    "ridge, 4 draws": ("ridge", {"draws": 4}),
    "ridge, margin 0.05": ("ridge", {"margin": 0.05}),
    "ridge, two changes": ("ridge", {"changes": 2, "draws": 4}),
    "better twin": ("best", ONE),
    "better twin, 2 h": ("best", ONE | {"hours": 2}),
    "ensemble, 2 h": ("ensemble", ONE | {"hours": 2}),
}


def main() -> None:
    """Fit, plan, judge, write row by row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the numbers")
    parser.add_argument("--preset", default="guarded")
    parser.add_argument("--seed", type=int, default=7, help="of the cohort")
    parser.add_argument("--version", type=int, default=2, help="of the simulated patients")
    parser.add_argument("--patients", type=int, default=379)
    parser.add_argument("--fresh", type=int, default=400, help="patients to judge by")
    parser.add_argument("--starts", type=int, default=2000)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    asked = parser.parse_args()
    config = CohortConfig(asked.patients, preset=asked.preset, version=asked.version)
    found: dict[str, Any] = {"about": provenance(config=config, seed=asked.seed), "rows": {}}
    models = fit_models(config, asked.seed, {ROWS[name][0] for name in asked.rows})
    starts, world = judge_by(config, asked.seed, asked.fresh, asked.starts)
    team, ceiling = (scored(one, starts, world) for one in (OwnTeam(), LookAhead(world)))
    room = ceiling["reward"].mean() - team["reward"].mean()
    found["room"] = room
    deciders = {"hold": RULES["hold"]}
    for name in asked.rows:
        model, changes = ROWS[name]
        planned = PlannerConfig(**changes)
        deciders[name] = Planner(models[model], jnp.asarray(asked.seed), config=planned)
    for name, policy in deciders.items():
        begun = time.perf_counter()
        found["rows"][name] = row = told(scored(Mode(policy), starts, world), team, room, starts)
        row["seconds"] = time.perf_counter() - begun
        print(f"{name:24}", {k: np.round(x, 3).tolist() for k, x in row.items()}, flush=True)
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def fit_models(config: CohortConfig, seed: int, wanted: set[str]) -> dict[str, Dynamics]:
    """The models of one cohort's train and select patients."""
    with jax.default_device(jax.devices("cpu")[0]):  # where small steps are
        cohort, _ = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
    train, select, _ = split_patients(cohort, key=jr.key(0))
    hours, chosen = make_transitions(train), make_transitions(select)
    models: dict[str, Dynamics] = {}
    for name in sorted(wanted):
        if name == "ensemble":
            models[name] = fit_ensemble(hours, key=jr.key(seed))[0]
        else:
            twin = twin_config(name)
            sliding = make_transitions(train, HoursConfig(stride=twin.kind.stride))
            models[name] = fit_twin(sliding, chosen, twin, key=jr.key(seed))[0]
    return models


def judge_by(config: CohortConfig, seed: int, fresh: int, count: int) -> tuple[Starts, World]:
    """Hours of patients whom no model has met."""
    others = CohortConfig(fresh, preset=config.preset, version=config.version)
    with jax.default_device(jax.devices("cpu")[0]):
        cohort, latents = simulate_cohort(others, key=jr.key(seed + FRESH))
    return draw_starts(cohort, latents, count, key=jr.key(seed + FRESH)), world_of(config)


def scored(decider: Any, starts: Starts, world: World) -> dict[str, np.ndarray]:
    """Metrics by episode."""
    found = score_episodes(play(decider, starts, world))
    return {name: np.asarray(x, float) for name, x in found.items()}


def told(
    ours: dict[str, np.ndarray], team: dict[str, np.ndarray], room: float, starts: Starts
) -> dict[str, Any]:
    """One row: share of the room, and differences to the clinicians."""
    gain = paired_difference(ours["reward"], team["reward"], starts.row)
    unsafe = paired_difference(ours["unsafe_hours"], team["unsafe_hours"], starts.row)
    return {
        "room": 100 * gain[0] / room,
        "reward": gain,
        "unsafe": [100 * x for x in unsafe],
        "acp": float(ours["acp"].mean()),
    }


if __name__ == "__main__":
    main()
