"""Which conclusions hang on a judgment? `python benchmarks/sensitivity.py` fills docs/cohort.md.

Every number of the population without a published source is moved by 20 % up and down; each
time the degenerate habits are judged against the clinicians again on the same seeds.
"""

import argparse
import dataclasses
import time

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from cohort_tables import PAGE, fill

from stepdown.evaluation.compare import paired_difference
from stepdown.evaluation.judging import score_episodes
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import OwnTeam, Sampled, draw_starts, play
from stepdown.patients.population import World
from stepdown.policies.rules import RULES

JUDGED = [
    "elastance_spread",
    "stiffness",
    "curvature",
    "resistance_spread",
    "compliance_spread",
    "root_resistance",
    "pulmonary_resistance",
    "rv_elastance",
    "blood_volume_spread",
    "rate_wander",
    "fibrillation_prone",
    "fibrillation_rise",
    "pump_gain_spread",
    "recovery_start",
    "recovery_rate",
    "recovery_rate_spread",
    "weakest",
    "relapse_rate",
    "injury_rate",
    "ischemic_loss",
    "ischemia_center",
    "ischemia_center_spread",
    "ischemia_width",
    "vasoplegic",
    "resistance_wander",
    "resistance_hours",
    "pressor_effect",
    "pressor_target_spread",
    "inotrope_effect",
    "pressure_offset",
    "restlessness",
    "weaning_pace",
    "rescue",
    "oversupport",
]
HABITS = ("always P2", "always P9", "random", "blind stepping down")


def gaps(world: World, config: CohortConfig) -> dict[str, tuple[float, float, float]]:
    """Each habit minus the clinicians, with its 95 % interval."""
    cohort, latents = simulate_cohort(config, key=jr.key(401), world=world)
    starts = draw_starts(cohort, latents, 512, key=jr.key(1))
    team = np.asarray(score_episodes(play(OwnTeam(), starts, world)).reward)
    found = {}
    for name in HABITS:
        reward = np.asarray(score_episodes(play(Sampled(RULES[name]), starts, world)).reward)
        found[name] = paired_difference(reward, team, np.asarray(starts.row))
    return found


def main() -> None:
    """Judge every variant and write the rows that changed a conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=JUDGED)
    args = parser.parse_args()
    start = time.perf_counter()
    config = CohortConfig(patients=256)
    base = world_of(config)
    rows = [("as it is", "", gaps(base, config))]
    for name in args.only:
        for factor in (0.8, 1.2):
            value = jnp.asarray(getattr(base.population, name) * factor)
            population = dataclasses.replace(base.population, **{name: value})
            world = World(population, base.profile, base.dt)
            rows.append((name, f"x {factor}", gaps(world, config)))
        print(name, f"{time.perf_counter() - start:.0f} s", flush=True)
    flipped = [row for row in rows[1:] if any(mean > 0 for mean, _, _ in row[2].values())]
    unsure = [row for row in rows[1:] if any(high > 0 for _, _, high in row[2].values())]
    chosen = "" if args.only == JUDGED else f" --only {' '.join(args.only)}"
    command = f"python benchmarks/sensitivity.py{chosen}"
    lines = [
        f"Of {len(rows) - 1} variants, {len(flipped)} turn a habit's mean above the clinicians and "
        f"{len(unsure)} let an interval reach 0 (256 patients, 512 starts, seed 401; "
        f"`{command}`). The rows with the smallest margin:",
        "",
        "| number | moved | " + " | ".join(HABITS) + " |",
        "|---|---" + "|---" * len(HABITS) + "|",
    ]
    worst = sorted(rows[1:], key=lambda row: -max(mean for mean, _, _ in row[2].values()))
    for name, moved, found in [rows[0], *worst[:10]]:
        cells = [f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]" for mean, low, high in found.values()]
        lines.append(f"| {name} | {moved} | " + " | ".join(cells) + " |")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(fill(page, "sensitivity", "\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
