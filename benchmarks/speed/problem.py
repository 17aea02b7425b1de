"""How fast the decision problem is: `python -m benchmarks.speed.problem` (one core: taskset -c 0).

Prints transitions of a 379-patient cohort, metrics of 1,000 episodes, and patient-hours per
second of `Patients-v0`, stepped for everybody in one compiled call.
"""

from collections.abc import Callable

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.clocks import machine, timed
from stepdown.handover import Episodes
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.environment import make_patients_vector
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.metrics import score_episodes
from stepdown.problem.stays import score_stays
from stepdown.signals import HORIZON


def main() -> None:
    """Measure and print a Markdown table."""
    print(f"{machine()}\n")
    print("| what | first call, s | then, s | rate |\n|---|---|---|---|")
    cohort, _ = simulate_cohort(CohortConfig(hours=65.0), key=jr.key(0))
    show("transitions, 379 patients x 65 h", lambda: make_transitions(cohort).state)
    sliding = HoursConfig(stride=30.0)
    show("the same, a window every 30 min", lambda: make_transitions(cohort, sliding).state)
    show("scores of 379 stays", lambda: score_stays(cohort)["reward"])

    hours = make_transitions(cohort)
    starts = np.arange(1000) * 20  # any hours will do
    states = jnp.stack([hours.state[starts + hour] for hour in range(HORIZON + 1)], axis=1)
    levels = jnp.round(states[:, :, -1, -1]).astype(int)
    episodes = Episodes(states, levels, jnp.ones((1000, HORIZON), bool))
    show("metrics of 1,000 episodes", lambda: score_episodes(episodes)["reward"])

    for patients in (256, 1024):
        env = make_patients_vector(patients)
        env.reset(seed=0)
        actions = np.tile(np.arange(8), patients)[:patients]

        def episode(env=env, actions=actions) -> None:
            env.reset()
            for _ in range(HORIZON):
                env.step(actions)

        show(f"Patients-v0, {patients} at once, 6 h", episode, patients * HORIZON)


def show(words: str, work: Callable[[], object], hours: int | None = None) -> None:
    """Print one row."""
    first, *others = timed(work, 6)
    then = float(np.median(others))
    rate = f"{hours / then:,.0f} patient-hours/s" if hours else ""
    print(f"| {words} | {first:.2f} | {then:.3f} | {rate} |")


if __name__ == "__main__":
    main()
