"""Do estimates from records alone cover the truth?

    python -m benchmarks.studies.off_policy --cohorts 100         judge cohort after cohort
    python -m benchmarks.studies.off_policy --tables FILE         print what the file says

Policies are fixed beforehand: rules, and BC fitted to patients of their own; an ensemble fitted to
those is the model in MAGIC. Their true values come from fresh patients of the same population
(`--truth` groups of 379). Then, for cohort after cohort, every estimator sees the records alone.
Each group and each cohort is a line of the file as soon as it is done; a second call goes on where
the first stopped. `--workers` runs processes side by side, each on one core. CPU only.

Bias is against the true value of the population, and against the same cohort's own starts played
in truth ("own"), which is free of who happened to be in the cohort. A gain is the difference to
hold. "covers" and "gain" count 95 % intervals that hold the truth of the population. Markdown.
"""

import argparse
import functools
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is loaded, here and in every process

import jax.random as jr
import numpy as np

from benchmarks.clocks import clock
from benchmarks.cohorts import DEATH, Line, add_lines
from benchmarks.studies.known_teams import true_behavior
from benchmarks.tables import DOCS, make_table
from stepdown.evaluation.behavior import check_calibration, fit_behavior
from stepdown.evaluation.decisions import make_decisions
from stepdown.evaluation.importance import Limits
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
from stepdown.problem.metrics import score_episodes
from stepdown.records.split import split_patients
from stepdown.training import FitConfig

BC = BCConfig(widths=(64, 64), fit=FitConfig(30, 256, 1e-3, patience=5))
ENSEMBLE = EnsembleConfig(members=3, elites=3, width=128, depth=2, fit=FitConfig(20, 256))
NAMES = ("hold", "taper", "always P2", "always P9", "blind stepping down", "random")
SAMPLED = ("random", "sampled BC")  # all others are judged by their mode
ESTIMATORS = ("wis", "fqe", "wdr", "magic", "model")  # and joint, made of the second and third
SHOWN = {
    "wis": "weighted importance sampling",
    "fqe": "fitted Q",
    "wdr": "doubly robust",
    "joint": "fitted Q and doubly robust jointly (recommended)",
    "magic": "MAGIC",
    "model": "the ensemble alone",
}
RECOMMENDED = "joint"
COLORS = ("#999999", "#0072b2", "#e69f00", "#222222", "#cc79a7", "#d55e00")
# Seeds. Cohorts below 5,000 were looked at while limits and the joint interval were chosen.
FIXED, TRUTH, COHORTS = 999_000, 777_000, 5_000
STARTS = 1024  # episodes of a group of fresh patients

Truth = dict[str, tuple[float, float]]  # value and its standard error


def main() -> None:
    """Do what is not in the file yet, or print what it says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cohorts", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--truth", type=int, default=32)
    parser.add_argument("--patients", type=int, default=379)
    parser.add_argument("--preset", default="guarded")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("off_policy.jsonl"))
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--figure", type=Path, help="PNG to draw, with --tables")
    args = parser.parse_args()
    if args.tables:
        truth, cohorts = read(args.tables, args.preset)
        print(make_tables(truth, cohorts))
        if args.figure is not None:
            draw(truth, cohorts, args.figure)
        return
    seeds = [("truth", TRUTH + i) for i in range(args.truth)]
    seeds += [("cohort", COHORTS + args.first + i) for i in range(args.cohorts)]
    tasks = [
        {
            "kind": kind,
            "preset": args.preset,
            "seed": seed,
            "patients": args.patients if kind == "cohort" else 379,
        }
        for kind, seed in seeds
    ]
    workers = args.workers if args.workers > 1 else None
    add_lines(args.json, tasks, work, same=("kind", "preset", "seed"), workers=workers)


def work(kind: str, preset: PresetName, seed: int, patients: int) -> Line:
    """One line of the file."""
    if kind == "truth":
        found = {"sums": true_values(preset, seed)}
    else:
        found = judge_cohort(preset, seed, patients)
    return {"kind": kind, "preset": preset, "seed": seed, "patients": patients, **found}


@functools.cache  # once in every process; the seed makes them the same everywhere
def fixed(preset: PresetName):
    """Policies, and an ensemble, from patients that are used for nothing else."""
    k_cohort, k_split, k_bc, k_ensemble = jr.split(jr.key(FIXED), 4)
    cohort, _ = simulate_cohort(CohortConfig(preset=preset, version=1), key=k_cohort)
    train, select, _ = split_patients(cohort, key=k_split)
    hours = make_transitions(train)
    bc, _ = train_bc(hours, make_transitions(select), BC, key=k_bc)
    ensemble, _ = fit_ensemble(hours, ENSEMBLE, key=k_ensemble)
    return {name: RULES[name] for name in NAMES} | {"sampled BC": bc}, ensemble


def true_values(preset: PresetName, seed: int, starts: int = STARTS) -> dict[str, Any]:
    """Sums over patients of one group: rewards of every policy and of its difference to hold."""
    k_cohort, k_starts = jr.split(jr.key(seed))
    config = CohortConfig(preset=preset, version=1)
    cohort, latents = simulate_cohort(config, key=k_cohort)
    moments = draw_starts(cohort, latents, starts, key=k_starts)
    return play_all(preset, moments, config)


def play_all(preset: PresetName, moments, config: CohortConfig) -> dict[str, Any]:
    """Every policy from the same moments; what a cluster-robust mean needs."""
    row, found = np.asarray(moments.row), {}
    for name, policy in fixed(preset)[0].items():
        decider = Sampled(policy) if name in SAMPLED else Mode(policy)
        scores = score_episodes(play(decider, moments, world_of(config)))
        found[name] = np.asarray(scores["reward"], float)
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
    config = CohortConfig(patients=patients, preset=preset, version=1)
    cohort, latents = simulate_cohort(config, key=k_cohort)
    simulated = clock()
    policies, ensemble = fixed(preset)
    ready = clock()
    decisions = make_decisions(cohort, np.asarray(latents.outcome) == DEATH)
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
        limits = np.quantile(gain, [0.025, 0.975]) if np.isfinite(gain).all() else [-1e9, 1e9]
        out[name] = [one.value, one.low, one.high]
        out[f"{name}|gain"] = [one.value - base.value, *map(float, limits)]
    for kind in ("", "|gain"):
        pair = np.array([out[f"fqe{kind}"], out[f"wdr{kind}"]])
        low, high = pair[:, 1].min(), pair[:, 2].max()
        out[f"joint{kind}"] = [float(x) for x in (pair[:, 0].mean(), low, high)]
    return out


def _by_hour(found: Estimates) -> dict[str, list[float]]:
    names = ("effective", "seen", "largest", "tail", "recorded")
    return {name: getattr(found.overlap, name).tolist() for name in names}


# ── what the file says ───────────────────────────────────────────────────────────────────────────


def read(path: Path, preset: str) -> tuple[Truth, list[Line]]:
    """The truth with its standard error, and the cohorts."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        lines = [json.loads(line) for line in file]
    lines = [line for line in lines if line["preset"] == preset]
    groups = [line["sums"] for line in lines if line["kind"] == "truth"]
    cohorts = [line for line in lines if line["kind"] == "cohort"]
    truth = {}
    for name in groups[0] if groups else ():
        total, count, square, cross, counts = np.sum([group[name] for group in groups], axis=0)
        mean = total / count
        spread = square - 2 * mean * cross + mean**2 * counts
        truth[name] = float(mean), float(spread**0.5 / count)
    return truth, cohorts


def make_tables(truth: Truth, cohorts: list[Line]) -> str:
    """Everything about one preset."""
    seconds = {
        key: np.median([c["seconds"][key] for c in cohorts], axis=0)
        for key in cohorts[0]["seconds"]
    }
    first = cohorts[0]
    parts = [
        f"{len(cohorts)} cohorts of {first['patients']} patients, preset {first['preset']}",
        estimator_table(truth, cohorts),
        word_table(cohorts),
        "\n".join(verdicts(truth, cohorts)),
        "\n".join(ranks(truth, cohorts)),
        bound_table(truth, cohorts),
        "\n".join(
            f"median seconds {k}: wall {v[0]:.0f}, CPU {v[1]:.0f}" for k, v in seconds.items()
        ),
    ]
    return "\n\n".join(parts)


def tables() -> dict[str, str]:
    """The tables of docs/all-results.md, by their markers."""
    guarded = read(DOCS / "results/off_policy.jsonl.gz", "guarded")
    hidden = read(DOCS / "results/off_policy_hidden.jsonl.gz", "hidden")
    return {"off-policy": coverage_table(*guarded), "off-policy hidden": bias_table(*hidden)}


def coverage_table(truth: Truth, cohorts: list[Line]) -> str:
    """What is said of overlap, and how often each estimator's interval holds the truth."""
    rows = []
    for name in cohorts[0]["policies"]:
        each, (value, error) = [c["policies"][name] for c in cohorts], truth[f"{name}|value"]
        words = [np.mean([x[key] == "informative" for x in each]) for key in ("word", "true_word")]
        shares = [f"{x:.0%}" for x in (*words, *(_held(each, e, value) for e in SHOWN))]
        rows.append([name, f"{value:.2f} ± {error:.2f}", *shares])
    heads = ("policy", "true value", "called informative", "truly")
    return make_table([*heads, *(f"covers: {x}" for x in SHOWN.values())], rows)


def bias_table(truth: Truth, cohorts: list[Line]) -> str:
    """How far off each estimator is, how often it holds the truth, and how often bounds do."""
    three, rows = ("wis", "fqe", "wdr"), []
    gammas = [bound[0] for bound in cohorts[0]["policies"]["hold"]["bounds"]]
    for name in cohorts[0]["policies"]:
        each, value = [c["policies"][name] for c in cohorts], truth[f"{name}|value"][0]
        bias = [f"{np.mean([x[e][0] for x in each]) - value:+.2f}" for e in three]
        held = [f"{_held(each, e, value):.0%}" for e in (*three, RECOMMENDED)]
        ends = np.array([[bound[3:5] for bound in x["bounds"]] for x in each], float)
        inside = np.mean((ends[..., 0] <= value) & (value <= ends[..., 1]), axis=0)
        rows.append([name, f"{value:.2f}", *bias, *held, *(f"{x:.0%}" for x in inside)])
    heads = [*(f"bias: {SHOWN[e]}" for e in three)]
    heads += [f"covers: {SHOWN[e]}" for e in (*three, RECOMMENDED)]
    return make_table(["policy", "true value", *heads, *(f"Γ {x:g}" for x in gammas)], rows)


def _held(each: list[dict[str, Any]], estimator: str, value: float) -> float:
    """The share of cohorts whose interval holds a value."""
    return float(np.mean([x[estimator][1] <= value <= x[estimator][2] for x in each]))


def own_value(cohort: Line, name: str) -> float:
    """What the policy does from this cohort's own starts."""
    return cohort["own"][name][0] / cohort["own"][name][1]


def estimator_table(truth: Truth, cohorts: list[Line]) -> str:
    """Bias, width and coverage of every estimator for every policy."""
    rows = []
    for name in cohorts[0]["policies"]:
        value, error = truth[f"{name}|value"]
        gain = truth[f"{name}|gain"][0]
        for estimator in SHOWN:
            found = np.array([c["policies"][name][estimator] for c in cohorts], float)
            gains = np.array([c["policies"][name][f"{estimator}|gain"] for c in cohorts], float)
            own = np.array([own_value(c, f"{name}|value") for c in cohorts])
            covers = np.mean((found[:, 1] <= value) & (value <= found[:, 2]))
            gained = np.mean((gains[:, 1] <= gain) & (gain <= gains[:, 2]))
            half = np.mean(found[:, 2] - found[:, 1]) / 2
            mean = found[:, 0].mean()
            cells = [f"{value:.2f} ± {error:.2f}", estimator, f"{mean:.2f}", f"{mean - value:+.2f}"]
            cells += [f"{np.mean(found[:, 0] - own):+.2f}", f"{half:.2f}"]
            rows.append([name, *cells, f"{covers:.0%}", f"{gained:.0%}"])
    heads = ("policy", "truth", "estimator", "mean", "bias", "bias (own)", "half-width", "covers")
    return make_table([*heads, "gain"], rows)


def word_table(cohorts: list[Line]) -> str:
    """What is said about overlap, and what is true."""
    rows = []
    for name in cohorts[0]["policies"]:
        each = [c["policies"][name] for c in cohorts]
        said = np.mean([one["word"] == "informative" for one in each])
        true = np.mean([one["true_word"] == "informative" for one in each])
        cells = [
            f"{np.median([one[key] for one in each]):.{digits}f}"
            for key, digits in (
                ("patients", 0),
                ("true_patients", 0),
                ("seen", 2),
                ("true_seen", 2),
                ("unsupported", 2),
                ("true_unsupported", 2),
            )
        ]
        rows.append([name, f"{said:.0%}", f"{true:.0%}", *cells])
    pairs = ("said so", "truly", "patients", "truly", "seen", "truly", "never done", "truly")
    return make_table(["policy", *pairs], rows)


def adequate(cohorts: list[Line], limits: Limits) -> list[str]:
    """Policies whose overlap under the true chances is within the limits, in the median cohort."""
    found = []
    for name in cohorts[0]["policies"]:
        patients, seen, never = (
            np.median([c["policies"][name][f"true_{key}"] for c in cohorts])
            for key in ("patients", "seen", "unsupported")
        )
        enough = patients >= limits.patients and seen >= limits.seen
        if enough and never <= limits.unsupported:
            found.append(name)
    return found


def verdicts(truth: Truth, cohorts: list[Line]) -> list[str]:
    """The numbers that must hold."""
    having = adequate(cohorts, Limits())
    rows = [f"* with overlap in truth (median cohort): {', '.join(having)}"]
    pairs = [(name, one) for c in cohorts for name, one in c["policies"].items()]
    lacking = [one["word"] for name, one in pairs if name not in having]
    share = np.mean([word == "uninformative" for word in lacking])
    rows.append(f"* policies without overlap: called uninformative {share:.1%} of {len(lacking)}")
    for title, chosen in (
        ("policies with overlap", lambda name, one: name in having),
        ("called informative", lambda name, one: one["word"] == "informative"),
        ("truly informative", lambda name, one: one["true_word"] == "informative"),
    ):
        for estimator in SHOWN:
            inside = []
            for name, one in pairs:
                low, high = one[estimator][1:]
                if chosen(name, one):
                    inside.append(low <= truth[f"{name}|value"][0] <= high)
            rows.append(
                f"* {title}: {estimator} covers {np.mean(inside):.1%} of {len(inside)}"
                + (" (recommended)" if estimator == RECOMMENDED else "")
            )
    return rows


def bound_table(truth: Truth, cohorts: list[Line]) -> str:
    """How often the bounds under hidden confounding hold the truth."""
    gammas = [bound[0] for bound in cohorts[0]["policies"]["hold"]["bounds"]]
    rows = []
    for name in cohorts[0]["policies"]:
        value, cells = truth[f"{name}|value"][0], []
        for index in range(len(gammas)):
            bounds = np.array([c["policies"][name]["bounds"][index] for c in cohorts], float)
            inside = np.mean((bounds[:, 3] <= value) & (value <= bounds[:, 4]))
            cells.append(f"{inside:.0%} (± {np.mean(bounds[:, 4] - bounds[:, 3]) / 2:.1f})")
        rows.append([name, *cells])
    return make_table(["policy", *(f"Γ {gamma:g}" for gamma in gammas)], rows)


def ranks(truth: Truth, cohorts: list[Line]) -> list[str]:
    """Rank correlation with the truth over all policies, mean over cohorts."""
    names = list(cohorts[0]["policies"])
    real = _ranks([truth[f"{name}|value"][0] for name in names])
    rows = []
    for estimator in SHOWN:
        each = [
            np.corrcoef(real, _ranks([c["policies"][name][estimator][0] for name in names]))[0, 1]
            for c in cohorts
        ]
        rows.append(f"* {estimator}: rank correlation {np.mean(each):+.2f}")
    return rows


def draw(truth: Truth, cohorts: list[Line], path: Path) -> None:
    """Error and interval of every estimator for every policy: which of them to trust."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    having = adequate(cohorts, Limits())
    names = sorted(cohorts[0]["policies"], key=lambda name: name not in having)
    figure, axes = plt.subplots(figsize=(9, 0.4 + 0.95 * len(names)), layout="constrained")
    for place, name in enumerate(names):
        value = truth[f"{name}|value"][0]
        for number, estimator in enumerate(SHOWN):
            found = np.array([c["policies"][name][estimator] for c in cohorts], float) - value
            y, error = place + 0.13 * (number - 2.5), found[:, 0].mean()
            covers = np.mean((found[:, 1] <= 0) & (found[:, 2] >= 0))
            half = np.mean(found[:, 2] - found[:, 1]) / 2
            thick = 2.6 if estimator == RECOMMENDED else 1.2
            label = SHOWN[estimator] if place == 0 else None
            axes.errorbar(
                error, y, xerr=half, fmt="o", ms=4, color=COLORS[number], lw=thick, label=label
            )
            axes.text(2.95, y, f"{covers:.0%}", color=COLORS[number], va="center", fontsize=7)
    axes.axhline(len(having) - 0.5, color="#5f6b76", lw=0.8)
    axes.text(-2.95, len(having) - 0.53, "enough overlap", va="bottom", color="#5f6b76")
    axes.text(-2.95, len(having) - 0.47, "too little overlap", va="top",
              color="#5f6b76")  # fmt: skip
    axes.axvline(0, color="#222222", lw=0.8)
    axes.set(
        yticks=range(len(names)),
        yticklabels=names,
        ylim=(len(names) - 0.45, -0.55),
        xlim=(-3, 3.2),
        xlabel="estimate minus true value of six hours (reward)\n"
        "bars: mean 95 % interval; right: how often it holds the truth",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.45, 1.12), frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def _ranks(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(np.nan_to_num(values, nan=-99.0)))


if __name__ == "__main__":
    main()
