"""Do estimates from records alone cover the truth? `python benchmarks/off_policy.py --cohorts 100`.

Policies are fixed beforehand: rules, and BC fitted to patients of their own; an ensemble fitted to
those is the model in MAGIC. Their true values come from fresh patients of the same population
(`--truth` groups of 379). Then, for cohort after cohort, every estimator sees the records alone.
Each group and each cohort is a line of the JSON file as soon as it is done; a second call goes on
where the first stopped. `--workers` runs processes side by side, each on one core. The tables are
printed by `benchmarks/off_policy_tables.py`. CPU only.
"""

import argparse
import functools
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is loaded, here and in every process

import jax.random as jr
import numpy as np
from known_teams import true_behavior

from stepdown.evaluation.behavior import check_calibration, fit_behavior
from stepdown.evaluation.compare import interval
from stepdown.evaluation.decisions import make_decisions
from stepdown.evaluation.judging import score_episodes
from stepdown.evaluation.off_policy import (
    Estimates,
    How,
    OffPolicyConfig,
    estimate_off_policy,
    prepare_records,
)
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import Mode, Sampled, draw_starts, play
from stepdown.patients.population import PresetName
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.ensemble import EnsembleConfig, fit_ensemble
from stepdown.policies.rules import RULES
from stepdown.problem.hours import make_transitions
from stepdown.records.split import split_patients
from stepdown.training import FitConfig

BC = BCConfig(widths=(64, 64), fit=FitConfig(30, 256, 1e-3, patience=5))
ENSEMBLE = EnsembleConfig(members=3, elites=3, width=128, depth=2, fit=FitConfig(20, 256))
NAMES = ("hold", "taper", "always P2", "always P9", "blind stepping down", "random")
SAMPLED = ("random", "sampled BC")  # all others are judged by their mode
ESTIMATORS = ("wis", "fqe", "wdr", "magic", "model")  # and joint, made of the second and third
# Seeds. Cohorts below 5,000 were looked at while limits and the joint interval were chosen.
FIXED, TRUTH, COHORTS = 999_000, 777_000, 5_000
STARTS = 1024  # episodes of a group of fresh patients


@functools.cache  # once in every process; the seed makes them the same everywhere
def fixed(preset: PresetName):
    """Policies, and an ensemble, from patients that are used for nothing else."""
    k_cohort, k_split, k_bc, k_ensemble = jr.split(jr.key(FIXED), 4)
    cohort, _ = simulate_cohort(CohortConfig(preset=preset), key=k_cohort)
    train, select, _ = split_patients(cohort, key=k_split)
    hours = make_transitions(train)
    bc, _ = train_bc(hours, make_transitions(select), BC, key=k_bc)
    ensemble, _ = fit_ensemble(hours, ENSEMBLE, key=k_ensemble)
    return {name: RULES[name] for name in NAMES} | {"sampled BC": bc}, ensemble


def true_values(preset: PresetName, seed: int, starts: int = STARTS) -> dict[str, Any]:
    """Sums over patients of one group: rewards of every policy and of its difference to hold."""
    k_cohort, k_starts = jr.split(jr.key(seed))
    config = CohortConfig(preset=preset)
    cohort, latents = simulate_cohort(config, key=k_cohort)
    moments = draw_starts(cohort, latents, starts, key=k_starts)
    return play_all(preset, moments, config)


def play_all(preset: PresetName, moments, config: CohortConfig) -> dict[str, Any]:
    """Every policy from the same moments; what a cluster-robust mean needs."""
    row, found = np.asarray(moments.row), {}
    for name, policy in fixed(preset)[0].items():
        decider = Sampled(policy) if name in SAMPLED else Mode(policy)
        scores = score_episodes(play(decider, moments, world_of(config)))
        found[name] = np.asarray(scores.reward, float)
    count = np.bincount(row)
    sums = {}
    for name, reward in found.items():
        for kind, values in (("value", reward), ("gain", reward - found["hold"])):
            total = np.bincount(row, values)
            sums[f"{name}|{kind}"] = [
                float(x.sum()) for x in (total, count, total**2, total * count, count * count)
            ]
    return sums


def judge_cohort(preset: PresetName, seed: int, patients: int) -> dict[str, Any]:
    """All policies from the records of one cohort; beside it the truth about its overlap."""
    begin = clock()
    k_cohort, k_behavior, k_estimate, k_own = jr.split(jr.key(seed), 4)
    config = CohortConfig(patients=patients, preset=preset)
    cohort, latents = simulate_cohort(config, key=k_cohort)
    simulated = clock()
    policies, ensemble = fixed(preset)
    ready = clock()
    decisions = make_decisions(cohort, np.asarray(latents.outcome) == 2)
    behavior = fit_behavior(decisions, key=k_behavior)
    fitted = clock()
    k_draws, k_model = jr.split(k_estimate)
    records = prepare_records(decisions, behavior, key=k_draws)
    found = {
        name: estimate_off_policy(policy, records, how=how(name), model=ensemble, key=k_model)
        for name, policy in policies.items()
    }
    done = clock()
    known = true_behavior(cohort, latents, decisions, world_of(config))
    known = replace(known, goes_on=behavior.goes_on, fold=behavior.fold)
    quick = OffPolicyConfig(draws=2, gammas=(), floor=1e-6)
    records = prepare_records(decisions, known, quick, key=k_draws)
    honest = {
        name: estimate_off_policy(policy, records, how=how(name), key=k_model)
        for name, policy in policies.items()
    }
    own = play_all(preset, draw_starts(cohort, latents, STARTS, key=k_own), config)
    check = check_calibration(behavior, decisions)
    return {
        "rows": len(decisions.level),
        "log_loss": check.log_loss,
        "true_log_loss": check_calibration(known, decisions).log_loss,
        "ece": check.ece,
        "own": own,
        "policies": {name: _numbers(found[name], honest[name], found["hold"]) for name in policies},
        "seconds": {
            "simulate": (simulated - begin).tolist(),
            "behavior": (fitted - ready).tolist(),
            "estimate": (done - fitted).tolist(),
        },
    }


def clock() -> np.ndarray:
    """Wall and CPU seconds."""
    return np.array([time.time(), time.process_time()])


def how(name: str) -> How:
    """How a policy is judged."""
    return "sampled" if name in SAMPLED else "mode"


def _numbers(found: Estimates, honest: Estimates, hold: Estimates) -> dict[str, Any]:
    """Plain numbers of one policy."""
    out: dict[str, Any] = {
        "word": found.word,
        "true_word": honest.word,
        "patients": found.overlap.patients(),
        "seen": found.overlap.share_seen(),
        "true_patients": honest.overlap.patients(),
        "true_seen": honest.overlap.share_seen(),
        "unsupported": found.overlap.unsupported,
        "true_unsupported": honest.overlap.unsupported,
        "overlap": _by_hour(found),
        "true_overlap": _by_hour(honest),
        "bounds": [[b.gamma, b.lower, b.upper, b.low, b.high] for b in found.bounds],
        "known_wis": honest.wis.value,
        "known_wdr": honest.wdr.value,
    }
    for name in ESTIMATORS:
        one, base = getattr(found, name), getattr(hold, name)
        gain = one.draws - base.draws
        limits = (float(np.clip(x, -1e9, 1e9)) for x in interval(gain))  # JSON knows no infinity
        out[name] = [one.value, one.low, one.high]
        out[f"{name}|gain"] = [one.value - base.value, *limits]
    for kind in ("", "|gain"):
        pair = np.array([out[f"fqe{kind}"], out[f"wdr{kind}"]])
        low, high = pair[:, 1].min(), pair[:, 2].max()
        out[f"joint{kind}"] = [float(x) for x in (pair[:, 0].mean(), low, high)]
    return out


def _by_hour(found: Estimates) -> dict[str, list[float]]:
    names = ("effective", "seen", "largest", "tail", "recorded")
    return {name: getattr(found.overlap, name).tolist() for name in names}


def work(task: tuple[str, PresetName, int, int]) -> dict[str, Any]:
    """One line of the file."""
    kind, preset, seed, patients = task
    if kind == "truth":
        found = {"sums": true_values(preset, seed)}
    else:
        found = judge_cohort(preset, seed, patients)
    return {"kind": kind, "preset": preset, "seed": seed, "patients": patients, **found}


def main() -> None:
    """Do what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--truth", type=int, default=32)
    parser.add_argument("--patients", type=int, default=379)
    parser.add_argument("--preset", default="guarded")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("off_policy.jsonl"))
    args = parser.parse_args()
    lines = args.json.read_text().splitlines() if args.json.exists() else []
    done = {tuple(json.loads(line)[k] for k in ("kind", "preset", "seed")) for line in lines}
    seeds = [("truth", TRUTH + i) for i in range(args.truth)]
    seeds += [("cohort", COHORTS + args.first + i) for i in range(args.cohorts)]
    tasks = [
        (kind, args.preset, seed, args.patients if kind == "cohort" else 379)
        for kind, seed in seeds
        if (kind, args.preset, seed) not in done
    ]
    with args.json.open("a") as file:
        for line in _results(tasks, args.workers):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(line["kind"], line["seed"], line.get("seconds", ""), flush=True)


def _results(tasks: list, workers: int):
    """Lines as they come."""
    if workers <= 1:
        yield from map(work, tasks)
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    single = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {single}".strip()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for future in as_completed([pool.submit(work, task) for task in tasks]):
            yield future.result()


if __name__ == "__main__":
    main()
