"""How long does judging take? `python -m benchmarks.speed.judging`.

Two bars: 8 policies x 5 seeds x 1,000 episodes of six hours on the true patients within a minute on
two cores, and the whole off-policy suite (behavior policy by cross-fitting, then WIS, FQE, WDR,
MAGIC, bounds and 400 bootstrap draws) of those 8 policies on the test patients within two minutes.
Policies are untrained networks of the usual size, whose levels vary: the time does not depend on
what was learned. MAGIC's model is an ensemble of the usual size, not fitted. `--warm` runs all
once before the clock starts, so that compiling is left out; without it everything counts.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.clocks import clock
from benchmarks.cohorts import DEATH
from stepdown.evaluation.behavior import fit_behavior
from stepdown.evaluation.decisions import make_decisions
from stepdown.evaluation.judging import draw_judged_starts, judge_in_patients
from stepdown.evaluation.off_policy import estimate_off_policy, prepare_records
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.policies.ensemble import EnsembleConfig, fit_ensemble
from stepdown.policies.networks import LearnedPolicy, make_network
from stepdown.problem.hours import make_transitions
from stepdown.problem.scaling import fit_scaler
from stepdown.records.latents import latents_of
from stepdown.records.split import split_patients
from stepdown.training import FitConfig, member

CONFIG = CohortConfig()
WIDTHS = (256, 256)
BARS = {"truth": 60.0, "records": 120.0}  # seconds on two cores


def main() -> None:
    """Time both, print, and keep the numbers if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--warm", action="store_true", help="leave compiling out")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    asked = parser.parse_args()
    ward = simulate_cohort(CONFIG, key=jr.key(7))
    train, _, test = split_patients(ward[0], key=jr.key(7))
    hours = make_transitions(train)
    rows = [make_policies(hours, asked.seeds, number) for number in range(asked.policies)]
    found: dict[str, Any] = vars(asked) | {"device": str(jax.devices()[0]), "out": None}
    for name, seconds in (
        ("truth", time_truth(ward, test, rows, asked)),
        ("records", time_records(ward, test, hours, rows, asked)),
    ):
        found[name] = {"seconds": seconds[0], "cpu_seconds": seconds[1]}
        word = "within" if seconds[0] <= BARS[name] else "over"
        print(f"{name}: {seconds[0]:.1f} s ({seconds[1]:.1f} s of CPU), {word} the bar of "
              f"{BARS[name]:.0f} s", flush=True)  # fmt: skip
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def make_policies(hours, seeds: int, number: int) -> LearnedPolicy:
    """One policy for each seed, untrained, with lively levels."""
    scaler = fit_scaler(hours)
    size = hours.state.shape[1] * len(scaler.present) + 1
    keys = jr.split(jr.fold_in(jr.key(1), number), seeds)

    def one(key):
        return LearnedPolicy(scaler, make_network((size, *WIDTHS, 8), last=1.0, key=key))

    return jax.vmap(one)(keys)


def time_truth(ward, test, rows, asked) -> tuple[float, float]:
    """Seconds to judge all policies and seeds on the true test patients."""
    latents = latents_of(ward[1], ward[0], test)
    starts = draw_judged_starts(test, latents, asked.episodes, key=jr.key(2))
    world = world_of(CONFIG)
    if asked.warm:
        judge_in_patients(rows[0], starts, world)
    begin = clock()
    means = [float(judge_in_patients(one, starts, world).scores["reward"].mean()) for one in rows]
    seconds = clock() - begin
    assert np.isfinite(means).all()
    return float(seconds[0]), float(seconds[1])


def time_records(ward, test, hours, rows, asked) -> tuple[float, float]:
    """Seconds of the off-policy suite: the first seed of every policy on the test patients."""
    died = np.asarray(latents_of(ward[1], ward[0], test).outcome) == DEATH
    model, _ = fit_ensemble(hours, EnsembleConfig(fit=FitConfig(1, 4096)), key=jr.key(3))
    policies = [member(one, 0) for one in rows]

    def suite(policies) -> list[float]:
        decisions = make_decisions(test, died)
        records = prepare_records(decisions, fit_behavior(decisions, key=jr.key(4)), key=jr.key(5))
        return [
            estimate_off_policy(one, records, how="mode", model=model, key=jr.key(6)).joint.value
            for one in policies
        ]

    if asked.warm:
        suite(policies[:1])
    begin = clock()
    values = suite(policies)
    seconds = clock() - begin
    assert jnp.isfinite(jnp.asarray(values)).all()
    return float(seconds[0]), float(seconds[1])


if __name__ == "__main__":
    main()
