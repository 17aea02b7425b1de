"""Which limit was broken: the hard constraint by rule, for a planner and for simple policies.

    python -m benchmarks.studies.constraint --preset guarded --seed 441

It draws a development cohort, fits the ridge twin and a clone of the clinicians, and lets each
policy decide for fresh patients in the simulator itself under each rule of when a step down is
forbidden; a line of docs/results/constraint.jsonl. `python -m benchmarks.documents.results` writes
the table.
"""

import argparse
import json
import time
from typing import Any, Literal, assert_never

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.cohorts import Line, read_lines
from benchmarks.studies.planner import fit_models, judge_by, scored
from benchmarks.tables import DOCS, make_table
from stepdown.evaluation.compare import paired_difference
from stepdown.handover import Policy
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.patients.episodes import Mode, OwnTeam
from stepdown.policies.bc import BCConfig, clone
from stepdown.policies.constraint import REACH, masked, pressure_or_rate_low
from stepdown.policies.learning import ALONE, Task
from stepdown.policies.networks import level_in_force
from stepdown.policies.planner import Planner
from stepdown.policies.rules import RULES
from stepdown.problem.clinical import PAPER, stable_by_limits
from stepdown.problem.hours import make_transitions
from stepdown.records.split import split_patients
from stepdown.signals import LEVELS
from stepdown.training import member

FILE = DOCS / "results/constraint.jsonl"
Rule = Literal["none", "reach", "any limit", "map or hr", "map or hr, no rise"]
RULES_ASKED: dict[Rule, str] = {
    "none": "no constraint",
    "reach": "at most two levels",
    "any limit": "..., never down after an hour with MAP, HR or pulsatility below its limit",
    "map or hr": "..., never down after an hour with MAP or HR below its limit",
    "map or hr, no rise": "..., nor up after an hour with pulsatility alone below its limit",
}
POLICIES = {
    "planner": "Planner (ridge twin)",
    "clone": "Clinicians, cloned",
    "protocol": "Protocol",
    "blind stepping down": "Blind stepping down",
}


class Ruled(eqx.Module):
    """A policy under one rule."""

    policy: Policy
    rule: Rule = eqx.field(static=True)

    def __call__(self, state, /):
        """The policy's weights; what the rule forbids has no chance."""
        step = np.array(LEVELS) - level_in_force(state)
        low, outside = pressure_or_rate_low(state), ~stable_by_limits(state, PAPER)
        near, down = abs(step) <= REACH, step < 0
        match self.rule:
            case "none":
                allowed = jnp.ones(len(LEVELS), bool)
            case "reach":
                allowed = near
            case "any limit":
                allowed = near & ~(down & outside)
            case "map or hr":
                allowed = near & ~(down & low)
            case "map or hr, no rise":
                allowed = near & ~(down & low) & ~((step > 0) & outside & ~low)
            case _:
                assert_never(self.rule)
        return masked(self.policy(state), jnp.asarray(allowed))


def judge(preset: Any, seed: int, patients: int, fresh: int, starts: int) -> Line:
    """Every policy under every rule, and how often a rule speaks."""
    begun = time.perf_counter()
    config = CohortConfig(patients, preset=preset)
    twin = fit_models(config, seed, {"ridge"})["ridge"]
    with jax.default_device(jax.devices("cpu")[0]):
        cohort, _ = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
    train, select, _ = (make_transitions(x) for x in split_patients(cohort, key=jr.key(0)))
    cloned, _ = clone(Task(train, select), BCConfig(), keys=jr.split(jr.key(seed), 1), watch=ALONE)
    policies = {
        "planner": Planner(twin, jnp.asarray(seed)),
        "clone": member(cloned, 0),
        "protocol": RULES["protocol"],
        "blind stepping down": RULES["blind stepping down"],
    }
    some, world = judge_by(config, seed, fresh, starts)
    team = scored(OwnTeam(), some, world)
    low, stable = (
        np.asarray(jax.vmap(x)(some.state)) for x in (pressure_or_rate_low, stable_by_limits)
    )
    rows: dict[str, Any] = {}
    for name, policy in policies.items():
        by_rule = {x: scored(Mode(Ruled(policy, x)), some, world) for x in RULES_ASKED}
        rows[name] = {
            rule: {
                metric: {
                    "team": paired_difference(found[metric], team[metric], some.row),
                    "reach": paired_difference(found[metric], by_rule["reach"][metric], some.row),
                    "map or hr": paired_difference(
                        found[metric], by_rule["map or hr"][metric], some.row
                    ),
                }
                for metric in ("reward", "unsafe_hours", "acp")
            }
            for rule, found in by_rule.items()
        }
        print(preset, seed, name, round(time.perf_counter() - begun), flush=True)
    return {
        "preset": preset,
        "seed": seed,
        "starts": starts,
        "low": float(low.mean()),
        "pulsatility_alone": float((~stable & ~low).mean()),
        "rows": rows,
    }


def tables() -> dict[str, str]:
    """The table of docs/all-results.md, by its marker: every policy under every rule."""
    lines = read_lines(FILE)
    heads = ["policy", "never down", "cohort"]
    heads += ["reward − clinicians", "reward − at most two levels", "unsafe hours −, points"]
    rows = [
        [
            POLICIES[name],
            words,
            f"{line['preset']}, {line['seed']}",
            _told(line["rows"][name][rule]["reward"]["team"]),
            _told(line["rows"][name][rule]["reward"]["reach"]),
            _told(line["rows"][name][rule]["unsafe_hours"]["reach"], 100, 1),
        ]
        for name in POLICIES
        for rule, words in RULES_ASKED.items()
        if rule != "none"  # as "reach": none of these policies leaps
        for line in lines
    ]
    return {"constraint": make_table(heads, rows)}


def _told(found: list[float], scale: float = 1, digits: int = 2) -> str:
    mean, low, high = (f"{scale * x:+.{digits}f}" for x in found)
    return f"{mean} [{low}, {high}]"


def main() -> None:
    """Judge a cohort."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="guarded")
    parser.add_argument("--seed", type=int, default=441)
    parser.add_argument("--patients", type=int, default=379)
    parser.add_argument("--fresh", type=int, default=256, help="patients to judge by")
    parser.add_argument("--starts", type=int, default=512)
    asked = parser.parse_args()
    line = judge(asked.preset, asked.seed, asked.patients, asked.fresh, asked.starts)
    with FILE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
