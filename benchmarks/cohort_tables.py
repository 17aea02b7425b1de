"""Write the tables of docs/cohort.md: `python benchmarks/cohort_tables.py [--starts 2048]`.

Calibration on five fresh seeds, no free lunch per preset, the true value of constant levels by
tertile of recovery, and the logged against the causal effect of the level on MAP.
"""

import argparse
import re
import time
from pathlib import Path

import jax
import jax.random as jr
import numpy as np

from stepdown.artifacts import provenance
from stepdown.evaluation.compare import paired_difference
from stepdown.evaluation.judging import LookAhead, score_episodes
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import OwnTeam, Sampled, draw_starts, play
from stepdown.patients.population import PRESETS
from stepdown.policies.rules import RULES
from stepdown.report.published_moments import describe_cohort
from stepdown.signals import LEVELS, MAP

PAGE = Path(__file__).parent.parent / "docs" / "cohort.md"
FRESH = (701, 702, 703, 704, 705)  # never used while tuning


def moments_table() -> str:
    """Every published number beside ours on fresh seeds."""
    cohorts = [simulate_cohort(CohortConfig(), key=jr.key(seed))[0] for seed in FRESH]
    tables = [describe_cohort(cohort) for cohort in cohorts]
    lines = [
        "| group | what | published | ours, mean of 5 seeds | lowest | highest | bar | kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rows in zip(*tables, strict=True):
        first, ours = rows[0], [row.ours for row in rows]
        kept = sum(bool(row.within) for row in rows)
        bar = "" if first.bar is None else f"{first.bar:g} {first.scale}"
        verdict = "" if first.bar is None else f"{kept} of {len(rows)}"
        lines.append(
            f"| {first.group} | {first.what} | {first.published:,.4g} | {np.mean(ours):,.4g} "
            f"| {min(ours):,.4g} | {max(ours):,.4g} | {bar} | {verdict} |"
        )
    return "\n".join(lines)


def judged(preset: str, count: int) -> tuple[str, str, str]:
    """No free lunch, constants by tertile, and the two effects of the level, for one preset."""
    config = CohortConfig(patients=1024, preset=preset)  # pyright: ignore[reportArgumentType]
    world = world_of(config)
    cohort, latents = simulate_cohort(config, key=jr.key(FRESH[0]))
    starts = draw_starts(cohort, latents, count, key=jr.key(1))
    rules = {name: Sampled(rule) for name, rule in RULES.items()}
    deciders = {"clinicians": OwnTeam(), **rules, "look-ahead": LookAhead(world)}
    episodes = {name: play(decider, starts, world) for name, decider in deciders.items()}
    scores = {name: jax.tree.map(np.asarray, score_episodes(e)) for name, e in episodes.items()}
    team = scores["clinicians"]
    lunch = [
        "| who decides | reward | minus clinicians, 95 % | ACP | WS | unsafe hours | died |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, s in scores.items():
        mean, low, high = paired_difference(s.reward, team.reward, starts.row)
        died = 1 - np.asarray(episodes[name].alive[:, -1]).mean()
        gap = "" if name == "clinicians" else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
        lunch.append(
            f"| {name} | {s.reward.mean():.3f} | {gap} | {s.acp.mean():.2f} "
            f"| {s.ws_gradient.mean():.3f} | {100 * s.unsafe_hours.mean():.1f} % "
            f"| {100 * died:.2f} % |"
        )
    recovery = np.asarray(starts.patient.course.recovery)
    third = np.digitize(recovery, np.quantile(recovery, [1 / 3, 2 / 3]))
    names = [*(f"always P{level}" for level in LEVELS), "clinicians", "look-ahead"]
    tertiles = ["| recovery | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for k, word in enumerate(("weakest third", "middle third", "most recovered third")):
        values = [f"{scores[name].reward[third == k].mean():.2f}" for name in names]
        tertiles.append(f"| {word} | " + " | ".join(values) + " |")
    seen = np.asarray(cohort.seen)
    logged = np.corrcoef(cohort.level[seen], np.asarray(cohort.signals)[..., MAP][seen])[0, 1]
    high, low = (np.asarray(episodes[f"always P{x}"].state[:, 1:, :, MAP]) for x in (9, 2))
    causal = (high.mean((1, 2)) - low.mean((1, 2))) / 7
    effect, below, above = paired_difference(causal, 0 * causal, starts.row)
    both = f"| {preset} | {logged:+.3f} | {effect:+.2f} [{below:+.2f}, {above:+.2f}] |"
    return "\n".join(lunch), "\n".join(tertiles), both


def fill(page: str, name: str, text: str) -> str:
    """Put a table between its two markers."""
    block = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not block.search(page):
        raise SystemExit(f"expected the markers of {name!r} in {PAGE.name}, found none.")
    return block.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page)


def main() -> None:
    """Rewrite the tables in place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=2048)
    args = parser.parse_args()
    start = time.perf_counter()
    page = PAGE.read_text(encoding="utf-8")
    page = fill(page, "moments", moments_table())
    effects = [
        "| preset | logged correlation of level and MAP | causal mmHg per level, 95 % |",
        "|---|---|---|",
    ]
    for preset in PRESETS:
        lunch, tertiles, both = judged(preset, args.starts)
        page = fill(page, f"lunch {preset}", lunch)
        page = fill(page, f"tertiles {preset}", tertiles)
        effects.append(both)
        print(preset, f"{time.perf_counter() - start:.0f} s", flush=True)
    page = fill(page, "effects", "\n".join(effects))
    about = provenance(
        config=CohortConfig(), seed=FRESH[0], command="python benchmarks/cohort_tables.py"
    )
    words = (
        f"Command: `python benchmarks/cohort_tables.py --starts {args.starts}`; calibration "
        f"seeds {', '.join(map(str, FRESH))}; judging on 1,024 fresh patients of seed "
        f"{FRESH[0]}, starts from seed 1; jax {jax.__version__}, {about['date'][:10]}."
    )
    PAGE.write_text(fill(page, "provenance", words), encoding="utf-8")
    print(f"wrote {PAGE.name} in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
