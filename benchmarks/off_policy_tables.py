"""Tables of `benchmarks/off_policy.py`: `python benchmarks/off_policy_tables.py off_policy.jsonl`.

Bias is against the true value of the population, and against the same cohort's own starts played
in truth ("own"), which is free of who happened to be in the cohort. A gain is the difference to
hold. "covers" and "gain" count 95 % intervals that hold the truth of the population. Markdown.
"""

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from stepdown.evaluation.importance import Limits

ESTIMATORS = ("wis", "fqe", "wdr", "joint", "magic", "model")
RECOMMENDED = "joint"


def read(path: Path, preset: str) -> tuple[dict[str, tuple[float, float]], list[dict[str, Any]]]:
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


def own_value(cohort: dict[str, Any], name: str) -> float:
    """What the policy does from this cohort's own starts."""
    return cohort["own"][name][0] / cohort["own"][name][1]


def estimator_rows(truth, cohorts: list[dict[str, Any]]) -> list[str]:
    """Bias, width and coverage of every estimator for every policy."""
    rows = [
        "| policy | truth | estimator | mean | bias | bias (own) | half-width | covers | gain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in cohorts[0]["policies"]:
        value, error = truth[f"{name}|value"]
        gain = truth[f"{name}|gain"][0]
        for estimator in ESTIMATORS:
            found = np.array([c["policies"][name][estimator] for c in cohorts], float)
            gains = np.array([c["policies"][name][f"{estimator}|gain"] for c in cohorts], float)
            own = np.array([own_value(c, f"{name}|value") for c in cohorts])
            covers = np.mean((found[:, 1] <= value) & (value <= found[:, 2]))
            gained = np.mean((gains[:, 1] <= gain) & (gain <= gains[:, 2]))
            half = np.mean(found[:, 2] - found[:, 1]) / 2
            rows.append(
                f"| {name} | {value:.2f} ± {error:.2f} | {estimator} | {found[:, 0].mean():.2f} | "
                f"{found[:, 0].mean() - value:+.2f} | {np.mean(found[:, 0] - own):+.2f} | "
                f"{half:.2f} | {covers:.0%} | {gained:.0%} |"
            )
    return rows


def word_rows(cohorts: list[dict[str, Any]]) -> list[str]:
    """What is said about overlap, and what is true."""
    rows = [
        "| policy | said so | truly | patients | truly | seen | truly | never done | truly |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
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
        rows.append(f"| {name} | {said:.0%} | {true:.0%} | {' | '.join(cells)} |")
    return rows


def adequate(cohorts: list[dict[str, Any]], limits: Limits) -> list[str]:
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


def verdicts(truth, cohorts: list[dict[str, Any]]) -> list[str]:
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
        for estimator in ESTIMATORS:
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


def bound_rows(truth, cohorts: list[dict[str, Any]]) -> list[str]:
    """How often the bounds under hidden confounding hold the truth."""
    gammas = [bound[0] for bound in cohorts[0]["policies"]["hold"]["bounds"]]
    head = " | ".join(f"Γ {gamma:g}" for gamma in gammas)
    rows = [f"| policy | {head} |", "|---" * (len(gammas) + 1) + "|"]
    for name in cohorts[0]["policies"]:
        value, cells = truth[f"{name}|value"][0], []
        for index in range(len(gammas)):
            bounds = np.array([c["policies"][name]["bounds"][index] for c in cohorts], float)
            inside = np.mean((bounds[:, 3] <= value) & (value <= bounds[:, 4]))
            cells.append(f"{inside:.0%} (± {np.mean(bounds[:, 4] - bounds[:, 3]) / 2:.1f})")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def rank_rows(truth, cohorts: list[dict[str, Any]]) -> list[str]:
    """Rank correlation with the truth over all policies, mean over cohorts."""
    names = list(cohorts[0]["policies"])
    real = _ranks([truth[f"{name}|value"][0] for name in names])
    rows = []
    for estimator in ESTIMATORS:
        each = [
            np.corrcoef(real, _ranks([c["policies"][name][estimator][0] for name in names]))[0, 1]
            for c in cohorts
        ]
        rows.append(f"* {estimator}: rank correlation {np.mean(each):+.2f}")
    return rows


WORDS = {
    "wis": "weighted importance sampling",
    "fqe": "fitted Q",
    "wdr": "doubly robust",
    "joint": "fitted Q and doubly robust jointly (recommended)",
    "magic": "MAGIC",
    "model": "the ensemble alone",
}
COLORS = ("#999999", "#0072b2", "#e69f00", "#222222", "#cc79a7", "#d55e00")


def draw(truth, cohorts: list[dict[str, Any]], path: Path) -> None:
    """Error and interval of every estimator for every policy: which of them to trust."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    having = adequate(cohorts, Limits())
    names = sorted(cohorts[0]["policies"], key=lambda name: name not in having)
    figure, axes = plt.subplots(figsize=(9, 0.4 + 0.95 * len(names)), layout="constrained")
    for place, name in enumerate(names):
        value = truth[f"{name}|value"][0]
        for number, estimator in enumerate(ESTIMATORS):
            found = np.array([c["policies"][name][estimator] for c in cohorts], float) - value
            y, error = place + 0.13 * (number - 2.5), found[:, 0].mean()
            covers = np.mean((found[:, 1] <= 0) & (found[:, 2] >= 0))
            half = np.mean(found[:, 2] - found[:, 1]) / 2
            thick = 2.6 if estimator == RECOMMENDED else 1.2
            label = WORDS[estimator] if place == 0 else None
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


def main() -> None:
    """Print everything about one preset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("--preset", default="guarded")
    parser.add_argument("--figure", type=Path, help="PNG to draw")
    args = parser.parse_args()
    truth, cohorts = read(args.json, args.preset)
    if args.figure is not None:
        draw(truth, cohorts, args.figure)
    seconds = {
        key: np.median([c["seconds"][key] for c in cohorts], axis=0)
        for key in cohorts[0]["seconds"]
    }
    parts = [
        [f"{len(cohorts)} cohorts of {cohorts[0]['patients']} patients, preset {args.preset}"],
        estimator_rows(truth, cohorts),
        word_rows(cohorts),
        verdicts(truth, cohorts),
        rank_rows(truth, cohorts),
        bound_rows(truth, cohorts),
        [f"median seconds {k}: wall {v[0]:.0f}, CPU {v[1]:.0f}" for k, v in seconds.items()],
    ]
    print("\n\n".join("\n".join(part) for part in parts))


if __name__ == "__main__":
    main()
