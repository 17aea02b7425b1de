"""What is a longer history worth: to what a level does, to forecasts, to the planner?

    python -m benchmarks.studies.history                   a linear twin, in seconds
    python -m benchmarks.studies.history --part ridge      forecasts, and planning in truth
    python -m benchmarks.studies.history --part trees      forecasts by boosted trees
    python -m benchmarks.studies.history --part best       forecasts by the better twin

The plainest twin there is: next hour's means as a linear function of the last hours' means and
levels and of the level now chosen, fitted to hours through which the level was held. Iterated, it
answers what one level more, held for six hours, does to MAP. Writes docs/results/history.json;
`python -m benchmarks.documents.results` makes the tables of it.

The other parts were designed before any result, on two development cohorts that nobody had looked
at (`COHORTS`; development, because the default could have changed by them). Forecasts are scored on
the test patients of each cohort, and intervals are over these patients, all together. For the
ridge, the planner with its default settings decides for fresh patients in the simulator itself.
The rule: the ridge reads the shortest history whose mean share of the room lies within 2 points of
the best one, and whose unsafe hours, mean over the cohorts, lie at most 0.2 points above the
fewest; if none is both, the one with the highest share. The better twin is fitted in its small
size, which two cores manage.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.cohorts import FRESH, Line, add_lines, read_lines
from benchmarks.studies.independent import tell
from benchmarks.tables import DOCS, make_table
from stepdown.artifacts import provenance
from stepdown.evaluation.compare import paired_difference
from stepdown.evaluation.forecast import (
    DRAWS,
    METRICS,
    ForecastScores,
    score_drawn,
    score_forecasts,
)
from stepdown.evaluation.judging import (
    draw_judged_starts,
    judge_in_patients,
    judge_look_ahead,
    judge_team,
)
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.population import PresetName
from stepdown.policies.planner import Planner
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.scaling import fit_scaler
from stepdown.records.split import SPLIT, split_patients
from stepdown.signals import MAP
from stepdown.twin.fit import Twin, fit_twin
from stepdown.twin.trees import TreesConfig, fit_trees
from stepdown.twin.twins import Size, twin_config

HISTORIES = (1, 2, 3, 6)  # hours
HORIZON = 6
FILE = DOCS / "results/history.json"
LINES = DOCS / "results/history_cohorts.jsonl"
COHORTS = (("guarded", 2, 6001), ("hidden", 2, 6002))
READ = {"ridge": (1, 3, 6, 12), "trees": (1, 6), "best": (1, 6)}  # hours of history, by part
SCORED = ("mae", "mae_z", "mae_map", "crps", "crps_z")
WITHIN, UNSAFE = 2.0, 0.2  # the rule: % of the room, points of unsafe hours
FRESHLY, EPISODES = 300, 512
TINY = {"patients": 40, "hours": 30.0, "fresh": 24, "episodes": 64}


def main() -> None:
    """The linear twin, or one part of the cohorts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=tuple(READ))
    parser.add_argument("--history", type=int, nargs="+", help="of its histories, these alone")
    parser.add_argument("--seed", type=int, nargs="+", help="of the cohorts, these alone")
    parser.add_argument("--out", type=Path, default=LINES, help="JSON lines, one for each fit")
    parser.add_argument("--tiny", action="store_true", help="a few patients, to try the program")
    asked = parser.parse_args()
    if asked.part is None:
        study_levels()
        return
    tasks = [
        {"preset": preset, "version": version, "seed": seed, "part": asked.part}
        | {"history": history, "tiny": asked.tiny}
        for preset, version, seed in COHORTS
        for history in READ[asked.part]
        if seed in (asked.seed or [seed]) and history in (asked.history or [history])
    ]
    add_lines(asked.out, tasks, study_cohort, same=("seed", "part", "history"))


# ── forecasts and planning on two cohorts ────────────────────────────────────────────────────────


def study_cohort(preset: Any, version: Any, seed: int, part: str, history: int, tiny: bool) -> Line:
    """One fit to one cohort: its forecasts by patient, and for the ridge what planning gains."""
    begun = time.perf_counter()
    sizes = TINY if tiny else {}
    config = CohortConfig(
        sizes.get("patients", 379), preset=preset, version=version, hours=sizes.get("hours")
    )
    cohort, _ = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
    parts = split_patients(cohort, key=jr.key(SPLIT))
    found: Line = {"preset": preset, "version": version, "seed": seed}
    found |= {"part": part, "history": history}
    scores, twin = forecast(part, parts, history, "small" if part == "best" else "paper")
    found["forecast"] = by_patient(scores)
    if part == "ridge":
        assert twin is not None
        found["planned"] = plan(twin, config, seed, sizes)
    found["seconds"] = round(time.perf_counter() - begun, 1)
    words = f"python -m benchmarks.studies.history --part {part}"
    return found | {"about": provenance(config=config, seed=seed, command=words)}


def forecast(
    part: str, parts: tuple[Cohort, Cohort, Cohort], history: int, size: Size
) -> tuple[ForecastScores, Twin | None]:
    """Fit to train and select patients, score on the test patients."""
    train, select, test = parts
    hourly = HoursConfig(history=history)
    choose, judge = (make_transitions(one, hourly) for one in (select, test))
    scaler = fit_scaler(make_transitions(train))
    if part == "trees":
        trees = fit_trees(make_transitions(train, hourly), choose, TreesConfig(history))
        drawn = trees.draw(judge, DRAWS, key=jr.key(1))
        return score_drawn(trees.center(judge), drawn, judge, scaler), None
    config = twin_config(part, size, history=history)
    sliding = make_transitions(train, HoursConfig(stride=config.kind.stride, history=history))
    twin, _ = fit_twin(sliding, choose, config, key=jr.key(0))
    return score_forecasts(twin, judge, scaler, key=jr.key(1)), twin


def by_patient(scores: ForecastScores) -> dict[str, list[float]]:
    """Mean of each metric over every patient's hours, and how many these are."""
    patient = np.unique(np.asarray(scores.patient), return_inverse=True)[1]
    count = np.bincount(patient)
    told = {name: np.bincount(patient, METRICS[name](scores)) / count for name in SCORED}
    return {name: x.round(6).tolist() for name, x in told.items()} | {"hours": count.tolist()}


def plan(twin: Twin, config: CohortConfig, seed: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """What the planner gains in fresh patients, from the same starts for every history."""
    fresh = CohortConfig(
        sizes.get("fresh", FRESHLY),
        preset=config.preset,
        version=config.version,
        hours=config.hours,
    )
    cohort, latents = simulate_cohort(fresh, key=jr.key(FRESH + seed))
    episodes, world = sizes.get("episodes", EPISODES), world_of(config)
    starts = draw_judged_starts(cohort, latents, episodes, history=twin.history, key=jr.key(1))
    team = judge_team(starts, world)
    planner = Planner(twin, jnp.asarray(0))
    found = {"planner": tell(judge_in_patients(planner, starts, world), team)}
    return found | {"look-ahead": tell(judge_look_ahead(starts, world), team)}


def forecasts_table(lines: list[Line]) -> str:
    """Scores of every row over all patients, and each minus the ridge with one hour."""
    rows = []
    base = pooled(lines, "ridge", 1)
    for part, histories in READ.items():
        for history in histories:
            if (own := pooled(lines, part, history)) is None or base is None:
                continue
            cells = [f"{np.average(own[x], weights=own['hours']):.3f}" for x in SCORED]
            apart = [_apart(own, base, x) for x in ("mae", "mae_z", "crps")]
            rows.append([part, str(history), *cells, *(apart if own is not base else ["–"] * 3)])
    heads = ["twin", "history, h", "MAE", "MAE, z", "MAE of MAP", "CRPS", "CRPS, z"]
    heads += [f"{x} minus the ridge's with 1 h" for x in ("MAE", "MAE, z", "CRPS")]
    return make_table(heads, rows)


def lines_of(lines: list[Line], part: str, history: int) -> list[Line]:
    """A row's lines in the order of the cohorts."""
    own = [one for one in lines if (one["part"], one["history"]) == (part, history)]
    return sorted(own, key=lambda line: line["seed"])


def pooled(lines: list[Line], part: str, history: int) -> dict[str, np.ndarray] | None:
    """A row's patients of all cohorts; None unless every cohort has it."""
    found = [one["forecast"] for one in lines_of(lines, part, history)]
    if len(found) < len(COHORTS):
        return None
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _apart(own: dict[str, np.ndarray], base: dict[str, np.ndarray], metric: str) -> str:
    """A difference with its interval by a bootstrap over patients, hours weighing alike."""
    row = np.repeat(np.arange(len(own["hours"])), own["hours"])
    mean, low, high = paired_difference(own[metric][row], base[metric][row], row)
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def planned_table(lines: list[Line]) -> str:
    """What the planner takes of the room, cohort by cohort, and what the rule says."""
    rows = []
    for history, (room, unsafe) in planned_means(lines).items():
        each = [_planned(line) for line in lines_of(lines, "ridge", history)]
        cells = [f"{share:.1f} ({harm:+.1f})" for share, harm in each]
        rows.append([str(history), *cells, f"{room:.1f}", f"{unsafe:+.2f}"])
    names = [f"{preset}, version {version}" for preset, version, _ in COHORTS]
    heads = ["history, h", *names, "mean, %", "unsafe hours, points"]
    words = f"By the rule fixed before, among these: {chosen(lines)} h." if rows else "Not run yet."
    return f"{make_table(heads, rows)}\n\n{words}"


def _planned(line: Line) -> tuple[float, float]:
    """Share of the room, and unsafe hours minus the clinicians' in points."""
    own, ceiling = line["planned"]["planner"], line["planned"]["look-ahead"]
    share = 100 * own["reward"]["gain"][0] / ceiling["reward"]["gain"][0]
    return share, 100 * own["unsafe_hours"]["gain"][0]


def planned_means(lines: list[Line]) -> dict[int, tuple[float, float]]:
    """Both, mean over the cohorts, of each history that every cohort has."""
    found = {}
    for history in READ["ridge"]:
        own = lines_of(lines, "ridge", history)
        if len(own) == len(COHORTS):
            room, unsafe = np.mean([_planned(line) for line in own], axis=0)
            found[history] = (float(room), float(unsafe))
    return found


def chosen(lines: list[Line]) -> int:
    """The history that the rule takes."""
    found = planned_means(lines)
    best, fewest = max(x for x, _ in found.values()), min(x for _, x in found.values())
    good = [
        history
        for history, (room, unsafe) in found.items()
        if room >= best - WITHIN and unsafe <= fewest + UNSAFE
    ]
    return min(good) if good else max(found, key=lambda history: found[history][0])


# ── the linear twin ──────────────────────────────────────────────────────────────────────────────


def study_levels() -> None:
    """One row per preset and length of the history."""
    found = []
    presets: tuple[PresetName, ...] = ("guarded", "benign", "hidden")
    for preset in presets:
        config = CohortConfig(preset=preset, version=1)
        cohort, _ = simulate_cohort(config, key=jr.split(jr.key(7), 3)[0])
        train, _, _ = split_patients(cohort, key=jr.key(0))
        signals, level, held = hourly_means(train)
        for history in HISTORIES:
            past, later = rows(signals, level, held, history)
            weights, fitted = fit(past, later)
            told = {"preset": preset, "history": history, "hours": len(past), "fitted": fitted}
            found.append(told | {"answer": answer(weights, history)})
            print(found[-1], flush=True)
    about = provenance(config={"presets": presets, "seed": 7, "version": 1})
    FILE.write_text(json.dumps({"rows": found, "about": about}, indent=1), encoding="utf-8")


def tables() -> dict[str, str]:
    """The tables of docs/all-results.md, by their markers."""
    told = read_lines(LINES)
    lines = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    heads = ("preset", "history, h", "hours", "R² of MAP")
    made = [
        [x["preset"], str(x["history"]), f"{x['hours']:,}", f"{x['fitted']:.3f}"]
        + [" ".join(f"{slope:+.2f}" for slope in x["answer"])]
        for x in lines
    ]
    return {
        "history": make_table([*heads, "MAP per level after 1, 2, ... 6 h, mmHg"], made),
        "history forecasts": forecasts_table(told),
        "history planned": planned_table(told),
    }


def hourly_means(cohort: Cohort) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signals and levels hour by hour, NaN where unseen, and where the level was held."""
    hours = cohort.level.shape[1] // 6
    cut = [np.asarray(x)[:, : 6 * hours] for x in (cohort.signals, cohort.level, cohort.seen)]
    signals, level, seen = (x.reshape(len(x), hours, 6, *x.shape[2:]) for x in cut)
    means = np.where(np.expand_dims(seen.all(2), -1), signals.mean(2), np.nan)
    return means, level.mean(2), level.min(2) == level.max(2)


def rows(signals, level, held, history: int) -> tuple[np.ndarray, np.ndarray]:
    """What was known and what came: hours of the past, their levels, the level now, a one."""
    past, later = [], []
    for hour in range(history, signals.shape[1]):
        before = slice(hour - history, hour)
        known = [signals[:, before].reshape(len(signals), -1), level[:, before]]
        known += [level[:, hour, None], np.ones((len(signals), 1))]
        past.append(np.concatenate(known, axis=1)[held[:, hour]])
        later.append(signals[held[:, hour], hour])
    inputs, outputs = np.concatenate(past), np.concatenate(later)
    known = np.isfinite(inputs).all(1) & np.isfinite(outputs).all(1)
    return inputs[known], outputs[known]


def fit(past: np.ndarray, later: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares, and the explained share of MAP's variance."""
    weights = np.linalg.lstsq(past, later, rcond=None)[0]
    residual = (later - past @ weights)[:, MAP]
    return weights, 1 - residual.var() / later[:, MAP].var()


def answer(weights: np.ndarray, history: int) -> list[float]:
    """What one level more, held from now on, does to MAP hour after hour."""
    signals, levels, found = np.zeros((history, weights.shape[1])), np.zeros(history), []
    for _ in range(HORIZON):
        change = np.concatenate([signals.ravel(), levels, [1.0, 0.0]]) @ weights
        found.append(float(change[MAP]))
        signals, levels = np.vstack([signals[1:], change]), np.append(levels[1:], 1.0)
    return found


if __name__ == "__main__":
    main()
