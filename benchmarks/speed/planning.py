"""How fast is planning? `python -m benchmarks.speed.planning core` (one core: taskset -c 0).

Three bars: the ridge twin is fitted to a cohort of 379 patients in at most 5 s, and the planner of
the table of methods decides in at most 30 ms, both on one core and after compilation (`core`);
1,000 episodes of six of its decisions are judged in the true patients in at most 60 s on two
cores (`judge`). The first call compiles. On a shared machine the wall tells how busy it was, and
the CPU seconds what was done. Prints a Markdown table.
"""

import argparse
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.clocks import clock, machine
from stepdown.evaluation.judging import draw_judged_starts, judge_in_patients
from stepdown.guardian.fit import fit_guardian
from stepdown.guardian.guardians import density_config
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.policies.planner import Planner, gated
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.records.latents import latents_of
from stepdown.records.split import split_patients
from stepdown.twin.fit import fit_twin
from stepdown.twin.twins import twin_config

CONFIG = CohortConfig()
EPISODES, DECISIONS = 1000, 200


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("core", "judge"))
    asked = parser.parse_args()
    print(f"{machine()}\n\n| what | bar | first call, s | then, median | slowest | CPU |")
    print("|---" * 6 + "|")
    cohort, latents = simulate_cohort(CONFIG, key=jr.key(7))
    train, select, test = split_patients(cohort, key=jr.key(7))
    twin = twin_config("ridge")
    hours = make_transitions(train, HoursConfig(stride=twin.kind.stride))
    chosen = make_transitions(select)
    if asked.what == "core":
        words = f"fit of the ridge twin, {len(hours.level):,} windows, s"
        tell(words, "5", lambda: fit_twin(hours, chosen, twin, key=jr.key(0))[0], 4, 1)
    planner = Planner(fit_twin(hours, chosen, twin, key=jr.key(0))[0], jnp.asarray(0))
    if asked.what == "judge":
        own = latents_of(latents, cohort, test)
        starts, world = draw_judged_starts(test, own, EPISODES, key=jr.key(2)), world_of(CONFIG)
        words = f"{EPISODES:,} episodes of six decisions judged in truth, s"
        tell(words, "60", lambda: judge_in_patients(planner, starts, world).scores, 3, 1)
        return
    kernels = density_config("kde")
    guardian = fit_guardian(make_transitions(train), chosen, kernels, key=jr.key(0))[0]
    decide = eqx.filter_jit(lambda one, state: one.weigh(state))
    state, gate = chosen.state[0], gated(planner, guardian)
    tell("one decision, ms", "30", lambda: decide(planner, state), DECISIONS, 1000)
    tell("the same with the guardian's gate, ms", "", lambda: decide(gate, state), DECISIONS, 1000)


def tell(words: str, bar: str, work: Callable[[], Any], calls: int, factor: float) -> None:
    """The first call, and the median and the slowest of those after it; seconds, or ms."""
    times = []
    for _ in range(calls):
        before = clock()
        jax.block_until_ready(work())
        times.append(clock() - before)
    wall, busy = factor * np.array(times[1:]).T
    then = f"{np.median(wall):.2f} | {wall.max():.2f} | {np.median(busy):.2f}"
    print(f"| {words} | {bar} | {times[0][0]:.1f} | {then} |", flush=True)


if __name__ == "__main__":
    main()
