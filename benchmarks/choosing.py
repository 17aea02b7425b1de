"""What does choosing without the truth cost? `python benchmarks/choosing.py --cohorts 10`.

Cohort by cohort (each preset, seeds from `--first` on) patients are simulated and split. Train
patients teach a small twin, an ensemble, a guardian and candidates: cloning, MBPO, MBPO shaped,
MOPO, and CORMPO at three penalties, two seeds each; beside them stand rules and the clinicians
themselves. Select patients give the second twin and all evidence. Then every candidate is judged in
truth, in test patients and in fresh ones. Each cohort is a line of the JSON file as soon as it is
done; a second call goes on where the first stopped. `--tables FILE` prints what the file says, and
with `--measured stepdown/report/measured_regret.json` renews what every report says about choosing.

Hours to fit on are drawn down to fixed numbers, so that all cohorts share compiled programs: set
JAX_COMPILATION_CACHE_DIR. `--workers` runs processes side by side, each on one core. CPU only.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is loaded, here and in every process

import jax.random as jr
import numpy as np
from choosing_cohort import SIZES, Patients, Sizes, simulate, train_candidates

from stepdown.artifacts import provenance
from stepdown.evaluation.choosing import (
    TEAM,
    Models,
    call_witnesses,
    gather_evidence,
    team_evidence,
)
from stepdown.evaluation.compare import estimate, resample, values_of
from stepdown.evaluation.forecast import ForecastConfig, score_forecasts, summarize
from stepdown.evaluation.judging import (
    Judged,
    Moments,
    draw_judged_starts,
    judge_in_patients,
    judge_in_twin,
    judge_team,
    latents_of,
    moments_of,
)
from stepdown.evaluation.second_twin import fit_second_twin
from stepdown.guardian.fit import DensityConfig, fit_guardian
from stepdown.guardian.threshold import RECORDED
from stepdown.handover import Cohort, Dynamics, Policy
from stepdown.patients.cohort import CohortConfig, Latents, simulate_cohort, world_of
from stepdown.patients.population import PresetName
from stepdown.policies.ensemble import fit_ensemble
from stepdown.policies.rules import RULES
from stepdown.problem.scaling import fit_scaler
from stepdown.signals import LEVELS
from stepdown.twin.fit import fit_twin

CONSTANT = tuple(f"always P{level}" for level in LEVELS)
NAMES = ("hold", "taper", *CONSTANT)
FRESH = 70_000  # added to the seed of a cohort, for patients that nobody has seen
DEATH = 2  # outcome of a stay


def judge_truth(
    candidates: Mapping[str, Policy], bench: tuple[Cohort, Latents], world, episodes: int
) -> dict[str, dict[str, float]]:
    """Every candidate and the clinicians in simulated patients, the same starts for all."""
    starts = draw_judged_starts(*bench, episodes, key=jr.key(1))
    judged = {name: judge_in_patients(one, starts, world) for name, one in candidates.items()}
    judged[TEAM] = judge_team(starts, world)
    return {name: _plain(one) for name, one in judged.items()}


def _plain(judged: Judged) -> dict[str, float]:
    found = estimate(values_of(judged, "reward"), resample(judged.row))
    names = ("acp", "unsafe_hours", "ws_limits")
    return {
        "reward": found["mean"],
        "low": found["low"],
        "high": found["high"],
        **{name: float(values_of(judged, name).mean()) for name in names},
    }


def constants(
    models: Mapping[str, Dynamics], bench: tuple[Cohort, Latents], episodes: int
) -> dict[str, list[float]]:
    """What each constant level is worth by every model, from the starts that truth is judged at."""
    starts = draw_judged_starts(*bench, episodes, key=jr.key(1))
    moments = moments_of(starts, key=jr.key(2))
    return {
        name: [_reward(RULES[x], one, moments) for x in CONSTANT] for name, one in models.items()
    }


def _reward(policy: Policy, dynamics: Dynamics, moments: Moments) -> float:
    return float(judge_in_twin(policy, dynamics, moments).scores.reward.mean())


def judge_cohort(preset: PresetName, seed: int, size: str) -> dict[str, Any]:
    """One line of the file."""
    sizes, clock = SIZES[size], _Clock()
    config = CohortConfig(patients=sizes.patients, preset=preset, hours=sizes.hours)
    patients = simulate(config, seed, sizes)
    whole, latents, (_, select, test) = patients.whole, patients.latents, patients.parts
    fresh = simulate_cohort(replace(config, patients=sizes.fresh), key=jr.key(FRESH + seed))
    clock("simulate")
    twin, _ = fit_twin(
        patients.sliding, patients.select, replace(sizes.twin, model="best"), key=jr.key(0)
    )
    scaler = fit_scaler(patients.sliding)
    second, _ = fit_second_twin(patients.select_sliding, scaler, key=jr.key(0))
    clock("twins")
    ensemble, _ = fit_ensemble(patients.train, sizes.ensemble, key=jr.key(0))
    clock("ensemble")
    guardian, _ = fit_guardian(
        patients.train, patients.select, DensityConfig("kde"), RECORDED, key=jr.key(0)
    )
    learned = train_candidates(patients, ensemble, guardian, sizes)
    candidates = learned | {name: RULES[name] for name in NAMES}
    clock("train")
    died = np.asarray(latents_of(latents, whole, select).outcome) == DEATH
    witnesses = call_witnesses(
        Models(twin, second, guardian), select, died, sizes.evidence, key=jr.key(3)
    )
    evidence = [team_evidence(witnesses)]
    evidence += [
        gather_evidence(name, policy, witnesses, key=jr.key(4))
        for name, policy in candidates.items()
    ]
    inside = {name: _reward(one, ensemble, witnesses.moments) for name, one in candidates.items()}
    clock("evidence")
    bench, world = (test, latents_of(latents, whole, test)), world_of(config)
    truth = {
        "test": judge_truth(candidates, bench, world, sizes.episodes),
        "fresh": judge_truth(candidates, fresh, world, sizes.episodes),
    }
    clock("truth")
    models = {"twin": twin, "second": second, "ensemble": ensemble}
    levels = constants(models, bench, sizes.episodes)
    forecasts = _accuracy(patients, {"twin": twin, "second": second}, sizes)
    clock("rest")
    return {
        "evidence": [asdict(one) for one in evidence],
        "ensemble": inside,
        "truth": truth,
        "constants": levels,
        "forecast": forecasts,
        "seconds": clock.found,
    }


def _accuracy(patients: Patients, twins: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """How well both twins and persistence forecast test patients."""
    config = replace(sizes.twin, model="persistence")
    twins["persistence"] = fit_twin(patients.sliding, patients.select, config, key=jr.key(0))[0]
    scaler, names = fit_scaler(patients.sliding), ("mae_z", "mae_map", "crps_z", "coverage90")
    few = ForecastConfig(draws=10)
    found = {
        name: summarize(score_forecasts(one, patients.test, scaler, few, key=jr.key(5)))
        for name, one in twins.items()
    }
    return {name: {x: one[x] for x in names} for name, one in found.items()}


class _Clock:
    """Wall and CPU seconds of each part."""

    def __init__(self):
        self.found: dict[str, list[float]] = {}
        self.last = (time.time(), time.process_time())

    def __call__(self, part: str) -> None:
        now = (time.time(), time.process_time())
        self.found[part] = [round(b - a, 1) for a, b in zip(self.last, now, strict=True)]
        self.last = now


def work(task: tuple[PresetName, int, str]) -> dict[str, Any]:
    """One cohort, as a line."""
    preset, seed, size = task
    return {"preset": preset, "seed": seed, "size": size, **judge_cohort(preset, seed, size)}


def main() -> None:
    """Do what is not in the file yet, or print what it says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=3)
    parser.add_argument("--first", type=int, default=7)
    parser.add_argument("--presets", default="guarded,benign,hidden")
    parser.add_argument("--size", choices=tuple(SIZES), default="demo")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("choosing.jsonl"))
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--measured", type=Path, help="JSON for what reports say, with --tables")
    args = parser.parse_args()
    if args.tables:
        import choosing_tables
        import choosing_truth

        print(choosing_tables.make_tables(args.tables))
        print("", choosing_truth.make_more_tables(args.tables), sep="\n")
        if args.measured:
            found = choosing_tables.measure(args.tables) | {
                "about": provenance(config=SIZES[args.size])
            }
            args.measured.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return
    lines = args.json.read_text().splitlines() if args.json.exists() else []
    done = {tuple(json.loads(line)[k] for k in ("preset", "seed", "size")) for line in lines}
    tasks = [
        (preset, seed, args.size)
        for seed in range(args.first, args.first + args.cohorts)
        for preset in args.presets.split(",")
        if (preset, seed, args.size) not in done
    ]
    with args.json.open("a") as file:
        for line in _results(tasks, args.workers):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(line["preset"], line["seed"], json.dumps(line["seconds"]), flush=True)


def _results(tasks: list, workers: int):
    """Lines as they come."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    single = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {single}".strip()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(work, task): task for task in tasks}
        for future in as_completed(futures):
            try:
                yield future.result()
            except Exception as error:  # noqa: BLE001 (the other cohorts go on; call again for this)
                print(*futures[future], f"failed: {error!r}", flush=True)


if __name__ == "__main__":
    main()
