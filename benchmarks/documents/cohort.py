"""Write the tables of docs/cohort.md.

    python -m benchmarks.documents.cohort tables [--starts 2048]
    python -m benchmarks.documents.cohort console
    python -m benchmarks.documents.cohort sensitivity [--only NAME ...]

tables: calibration on five fresh seeds, no free lunch per preset, the true value of constant levels
by tertile of recovery, and the logged against the causal effect of the level on MAP.
console: twelve fresh 24-hour stays (rows 0 to 11 of seed 2024, not chosen) are written at 25 Hz
with the default noise and artifacts, read by the console, and held against the noise-free truth of
each ten-minute block; also prints seconds for writing and reading one stay.
sensitivity: which conclusions hang on a judgment? Every number of the population without a
published source is moved by 20 % up and down; each time the degenerate habits are judged against
the clinicians again on the same seeds.
"""

import argparse
import dataclasses
import textwrap
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.tables import DOCS, fill, make_table
from stepdown.artifacts import provenance
from stepdown.evaluation.compare import paired_difference
from stepdown.evaluation.judging import LookAhead
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.console import extract_signals
from stepdown.patients.episodes import OwnTeam, Sampled, draw_starts, play
from stepdown.patients.population import PRESETS, Version, World
from stepdown.patients.waveforms import simulate_waveforms
from stepdown.policies.rules import RULES
from stepdown.problem.metrics import score_episodes
from stepdown.report.cohort_report import Row, describe_cohort, times_off
from stepdown.signals import LEVELS, MAP, SIGNALS

PAGE = DOCS / "cohort.md"
COMMAND = "python -m benchmarks.documents.cohort"
FRESH = (991, 992, 993, 994, 995)  # never used while tuning
STAYS, HOURS, STAYS_SEED = 12, 24.0, 2024
BARS = {"map": 1, "sbp": 2, "dbp": 2, "hr": 1, "flow": 0.05, "lvp": 4, "lvedp": 4, "tau": 15}
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


def main() -> None:
    """Rewrite some tables in place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("tables", "console", "sensitivity"))
    parser.add_argument("--starts", type=int, default=2048, help="of the tables")
    parser.add_argument("--only", nargs="*", default=JUDGED, help="of the sensitivity")
    args = parser.parse_args()
    if args.what == "tables":
        tables(args.starts)
    elif args.what == "console":
        console()
    else:
        sensitivity(args.only)


def tables(count: int) -> None:
    """The published beside the simulated, and who wins in truth."""
    start = time.perf_counter()
    by_version = {version: described(version) for version in (1, 2)}
    made = {"moments": moments_table(by_version[2]), "versions": versions_table(by_version)}
    effects = []
    for preset in PRESETS:
        made[f"lunch {preset}"], made[f"tertiles {preset}"], both = judged(preset, count)
        effects.append(both)
        print(preset, f"{time.perf_counter() - start:.0f} s", flush=True)
    heads = ["preset", "logged correlation of level and MAP", "causal mmHg per level, 95 %"]
    made["effects"] = make_table(heads, effects)
    about = provenance(config=CohortConfig(), seed=FRESH[0], command=f"{COMMAND} tables")
    made["provenance"] = (
        f"Command: `{COMMAND} tables --starts {count}`; calibration "
        f"seeds {', '.join(map(str, FRESH))}; judging on 1,024 fresh patients of seed "
        f"{FRESH[0]}, starts from seed 1; jax {jax.__version__}, {about['date'][:10]}."
    )
    fill(PAGE, made)
    print(f"wrote {PAGE.name} in {time.perf_counter() - start:.0f} s")


def described(version: Version) -> list[tuple[Row, ...]]:
    """The published numbers beside ours, on every fresh seed."""
    config = CohortConfig(version=version)
    return [describe_cohort(simulate_cohort(config, key=jr.key(seed))[0]) for seed in FRESH]


def versions_table(tables: dict[int, list[tuple[Row, ...]]]) -> str:
    """How many bars of each group are kept, by version: of five cohorts, and of their mean."""
    barred = {
        version: [rows for rows in zip(*seeds, strict=True) if rows[0].bar is not None]
        for version, seeds in tables.items()
    }
    lines = []
    for group in dict.fromkeys(rows[0].group for rows in barred[1]):
        parts = [[rows for rows in found if rows[0].group == group] for found in barred.values()]
        cells = []
        for part in parts:
            kept = [sum(bool(row.within) for row in rows) for rows in zip(*part, strict=True)]
            means = sum(bool(mean_row(rows).within) for rows in part)
            cells += [f"{min(kept)} to {max(kept)}", f"{means}"]
        lines.append([group, str(len(parts[0])), *cells])
    heads = ["group", "bars", "version 1, a cohort", "the mean of 5", "version 2, a cohort"]
    return make_table([*heads, "the mean of 5"], lines)


def mean_row(rows: Sequence[Row]) -> Row:
    """The number of several cohorts as one."""
    ours = float(np.mean([row.ours for row in rows]))
    off = float(np.mean([row.difference for row in rows]))  # in proportion to the number itself
    if rows[0].scale == "times":
        off = times_off(ours, rows[0].published)
    return dataclasses.replace(rows[0], ours=ours, difference=off)


def moments_table(tables: list[tuple[Row, ...]]) -> str:
    """Every published number beside ours on fresh seeds."""
    lines = []
    for rows in zip(*tables, strict=True):
        first, ours = rows[0], [row.ours for row in rows]
        kept = sum(bool(row.within) for row in rows)
        bar = "" if first.bar is None else f"{first.bar:g} {first.scale}"
        verdict = "" if first.bar is None else f"{kept} of {len(rows)}"
        numbers = (first.published, np.mean(ours), min(ours), max(ours))
        cells = [f"{number:,.4g}" for number in numbers]
        lines.append([first.group, first.what, *cells, bar, verdict])
    heads = ["group", "what", "published", "ours, mean of 5 seeds", "lowest", "highest"]
    return make_table([*heads, "bar", "kept"], lines)


def judged(preset: str, count: int) -> tuple[str, str, list[str]]:
    """No free lunch, constants by tertile, and the two effects of the level, for one preset."""
    config = CohortConfig(patients=1024, preset=preset)  # pyright: ignore[reportArgumentType]
    world = world_of(config)
    cohort, latents = simulate_cohort(config, key=jr.key(FRESH[0]))
    starts = draw_starts(cohort, latents, count, key=jr.key(1))
    rules = {name: Sampled(rule) for name, rule in RULES.items()}
    deciders = {"clinicians": OwnTeam(), **rules, "look-ahead": LookAhead(world)}
    episodes = {name: play(decider, starts, world) for name, decider in deciders.items()}
    scores = {name: jax.tree.map(np.asarray, score_episodes(e)) for name, e in episodes.items()}
    team = scores["clinicians"]["reward"]
    lunch = []
    for name, s in scores.items():
        mean, low, high = paired_difference(s["reward"], team, starts.row)
        died = 1 - np.asarray(episodes[name].alive[:, -1]).mean()
        gap = "" if name == "clinicians" else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
        acp, weaning, unsafe = (s[x].mean() for x in ("acp", "ws_gradient", "unsafe_hours"))
        cells = [f"{s['reward'].mean():.3f}", gap, f"{acp:.2f}", f"{weaning:.3f}"]
        lunch.append([name, *cells, f"{100 * unsafe:.1f} %", f"{100 * died:.2f} %"])
    recovery = np.asarray(starts.patient.course.recovery)
    third = np.digitize(recovery, np.quantile(recovery, [1 / 3, 2 / 3]))
    names = [*(f"always P{level}" for level in LEVELS), "clinicians", "look-ahead"]
    tertiles = []
    for k, word in enumerate(("weakest third", "middle third", "most recovered third")):
        tertiles.append(
            [word, *(f"{scores[name]['reward'][third == k].mean():.2f}" for name in names)]
        )
    seen = np.asarray(cohort.seen)
    logged = np.corrcoef(cohort.level[seen], np.asarray(cohort.signals)[..., MAP][seen])[0, 1]
    high, low = (np.asarray(episodes[f"always P{x}"].state[:, 1:, :, MAP]) for x in (9, 2))
    causal = (high.mean((1, 2)) - low.mean((1, 2))) / 7
    effect, below, above = paired_difference(causal, 0 * causal, starts.row)
    both = [preset, f"{logged:+.3f}", f"{effect:+.2f} [{below:+.2f}, {above:+.2f}]"]
    heads = ["who decides", "reward", "minus clinicians, 95 %", "ACP", "WS", "unsafe hours", "died"]
    return make_table(heads, lunch), make_table(["recovery", *names], tertiles), both


def console() -> None:
    """Write, read, compare."""
    config = CohortConfig(patients=STAYS, hours=HOURS)
    cohort, latents = simulate_cohort(config, key=jr.key(STAYS_SEED))
    world = world_of(config)
    errors, wrong, blocks = [], 0, 0
    for row in range(STAYS):
        start = time.perf_counter()
        wave = simulate_waveforms(cohort, latents, world, row, key=jr.key(row))
        written = time.perf_counter()
        found = extract_signals(wave.recording, world.profile)
        read = time.perf_counter()
        print(
            f"stay {row}: {len(wave.recording.second):,} samples written in "
            f"{written - start:.2f} s, read in {read - written:.2f} s",
            flush=True,
        )
        errors.append(np.abs(found.signals - wave.truth))
        wrong += int(np.sum((found.level != wave.level) & (found.level > 0)))
        blocks += len(found.level)
    error = np.concatenate(errors)
    rows = []
    for i, signal in enumerate(SIGNALS):
        bar = str(BARS.get(signal.name, ""))
        middle, tail = np.nanquantile(error[:, i], [0.5, 0.9])
        empty = int(np.isnan(error[:, i]).sum())
        cells = [f"{middle:.3g}", f"{tail:.3g}", str(empty)]
        rows.append([signal.name, signal.unit, bar, *cells])
    heads = ["signal", "unit", "bar", "median error", "90th percentile", "blocks without a value"]
    told = f"{blocks:,} blocks, {wrong} with a wrong level. `{COMMAND} console`."
    table = f"{make_table(heads, rows)}\n\n{told}"
    fill(PAGE, {"console": table})
    print(table)


def sensitivity(only: list[str]) -> None:
    """Judge every variant and write the rows that changed a conclusion."""
    start = time.perf_counter()
    config = CohortConfig(patients=256)
    base = world_of(config)
    rows = [("as it is", "", gaps(base, config))]
    for name in only:
        for factor in (0.8, 1.2):
            value = jnp.asarray(getattr(base.population, name) * factor)
            population = dataclasses.replace(base.population, **{name: value})
            world = World(population, base.profile, base.dt)
            rows.append((name, f"x {factor}", gaps(world, config)))
        print(name, f"{time.perf_counter() - start:.0f} s", flush=True)
    flipped = [row for row in rows[1:] if any(mean > 0 for mean, _, _ in row[2].values())]
    unsure = [row for row in rows[1:] if any(high > 0 for _, _, high in row[2].values())]
    chosen = "" if only == JUDGED else f" --only {' '.join(only)}"
    told = (
        f"Of {len(rows) - 1} variants, {len(flipped)} turn a habit's mean above the clinicians and "
        f"{len(unsure)} let an interval reach 0 (256 patients, 512 starts, seed 401; "
        f"`{COMMAND} sensitivity{chosen}`). The rows with the smallest margin:"
    )
    lines = []
    worst = sorted(rows[1:], key=lambda row: -max(mean for mean, _, _ in row[2].values()))
    for name, moved, found in [rows[0], *worst[:10]]:
        cells = [f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]" for mean, low, high in found.values()]
        lines.append([name, moved, *cells])
    table = make_table(["number", "moved", *HABITS], lines)
    told = textwrap.fill(told, 120, break_long_words=False, break_on_hyphens=False)
    fill(PAGE, {"sensitivity": f"{told}\n\n{table}"})


def gaps(world: World, config: CohortConfig) -> dict[str, tuple[float, float, float]]:
    """Each habit minus the clinicians, with its 95 % interval."""
    cohort, latents = simulate_cohort(config, key=jr.key(401), world=world)
    starts = draw_starts(cohort, latents, 512, key=jr.key(1))
    team = np.asarray(score_episodes(play(OwnTeam(), starts, world))["reward"])
    found = {}
    for name in HABITS:
        reward = np.asarray(score_episodes(play(Sampled(RULES[name]), starts, world))["reward"])
        found[name] = paired_difference(reward, team, np.asarray(starts.row))
    return found


if __name__ == "__main__":
    main()
