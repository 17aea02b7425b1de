"""Figures that hold models and policies beside the records, and constant levels beside the truth.

All take plain arrays. Intervals are over patients where a patient's row is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from stepdown.evaluation.compare import estimate, resample, values_of
from stepdown.handover import Cohort
from stepdown.report.comparison import JUDGES, OURS, Comparison, name_of
from stepdown.report.comparison_figures import GRID, TRUTH, TWIN, save
from stepdown.report.figures import BARS, INK, LIMIT, MUTED, draw_hours
from stepdown.report.training_figures import hide
from stepdown.signals import LEVELS

WHO = {  # words, color, dash, marker
    "truth": ("true patients", TRUTH, "-", "o"),
    "twin": ("twin", TWIN, (0, (5, 2)), "s"),
    "ensemble": ("ensemble that policies learn in", "#009e73", (0, (1, 1.2)), "^"),
    "records": ("records", INK, "-", "o"),
}
HORIZON_METRICS = {
    "reward": "Reward, sum over the hours",
    "acp": "ACP, levels",
    "ws_gradient": "Weaning score (gradient)",
}
PARAMETERS = {
    "tau": "Threshold: percentile of select hours",
    "lambda": "Weight of the penalty, λ",
    "lambda1": "Charge for jumps, λ₁",
    "lambda2": "Bonus for weaning, λ₂",
}
SENSITIVE = {
    "reward": ("Reward of 6 h", 1.0),
    "acp": ("ACP, levels", 1.0),
    "ws_gradient": ("Weaning score", 1.0),
    "unsafe_hours": ("Unsafe hours, %", 100.0),
}
WIDEST = 3  # changes of level beyond share the last class


@dataclass(frozen=True)
class SensitivityPoint:
    """One training with one number changed, before one judge."""

    parameter: str  # tau, lambda, lambda1 or lambda2
    value: float
    judge: str
    metric: str
    mean: float
    low: float
    high: float
    chosen: bool = False  # the value of the comparison


def draw_records(cohort: Cohort, path: Path) -> None:
    """Where the recorded hours lie (Fig. 1), how they went, how long the stays were (App. B)."""
    save(lambda figure: draw_hours(figure, cohort), path, (15.0, 4.6))


def constant_levels(comparison: Comparison) -> dict[str, Float[np.ndarray, "n 8"]]:
    """Reward of every start under P2 to P9, by the twin and in the true test patients."""
    names, found = [f"always P{level}" for level in LEVELS], {}
    for judge, who in (("twin", "twin"), ("patients", "truth")):
        judged = comparison.judged.get(judge, {})
        if all(name in judged for name in names):
            found[who] = np.stack([values_of(judged[x], "reward").mean(0) for x in names], 1)
    return found


def draw_constant_levels(
    values: Mapping[str, Float[np.ndarray, "n 8"]],
    row: Int[np.ndarray, " n"],
    path: Path,
    recorded: Float[np.ndarray, " 8"] | None = None,
) -> None:
    """What holding each level for six hours is worth: true, and as models believe.

    Each start's mean over the eight levels is taken off, so that the intervals speak of levels and
    not of patients; it stands in the legend. Where models rise and the truth falls, learning
    without a guardian is led astray. `recorded` is the share of recorded hours at each level.
    """
    weights = resample(row)

    def draw(figure: Figure) -> None:
        top, *below = figure.subplots(
            1 if recorded is None else 2, 1, sharex=True, squeeze=False,
            height_ratios=(3.2,) if recorded is None else (3.2, 1),
        )[:, 0]  # fmt: skip
        for who in (x for x in WHO if x in values):
            words, color, dash, marker = WHO[who]
            each = np.asarray(values[who], float)
            apart = each - each.mean(1, keepdims=True)
            words = f"{words} (mean {each.mean():.2f})".replace("-", "−")
            found = [estimate(one[None], weights) for one in apart.T]
            low, mean, high = ([one[name] for one in found] for name in ("low", "mean", "high"))
            top.plot(LEVELS, mean, color=color, ls=dash, marker=marker, lw=2, label=words)
            top.fill_between(LEVELS, low, high, color=color, alpha=0.15, lw=0)
        top.axhline(0, color=INK, lw=0.8)
        top.set_ylabel("Reward of 6 hours, minus the mean of the eight levels")
        top.set_title("The same patients, one level held for six hours (shaded: 95 % intervals)")
        top.legend(frameon=False)
        top.grid(axis="y", **GRID)
        if recorded is not None:
            below[0].bar(LEVELS, 100 * recorded, color=BARS, width=0.7)
            below[0].set_ylabel("% of recorded\nhours")
        (below or [top])[0].set_xticks(LEVELS, [f"P{level}" for level in LEVELS])
        (below or [top])[0].set_xlabel("Level held")

    save(draw, path, (8.0, 6.2))


def draw_predicted_rewards(
    recorded: Float[np.ndarray, " n"], predicted: Float[np.ndarray, " n"], path: Path
) -> None:
    """Normalized rewards of recorded hours and of the twin's forecasts of the same (App. B)."""
    bins = np.linspace(-2, 0.64, 34)

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.4, 1))
        for values, words, color, filled in (
            (recorded, "recorded", MUTED, True),
            (predicted, "forecast by the twin", TWIN, False),
        ):
            share = np.full(len(values), 100 / len(values))
            left.hist(np.clip(values, bins[0], bins[-1]), bins.tolist(), weights=share, color=color,
                      histtype="stepfilled" if filled else "step", lw=1.8,
                      alpha=0.45 if filled else 1,
                      label=f"{words}, mean {values.mean():.2f}".replace("-", "−"))  # fmt: skip
        left.set_xlabel("Reward of an hour (at most 0.64)")
        left.set_ylabel("% of hours")
        left.legend(frameon=False, loc="upper left")
        left.set_title("All test hours")
        mesh = right.hist2d(recorded, predicted, [bins, bins], cmap="Blues", norm=LogNorm(0.5))
        right.plot([-2, 0.64], [-2, 0.64], color=LIMIT, lw=1.2, ls=(0, (5, 3)))
        right.set_xlabel("Recorded reward")
        right.set_ylabel("Forecast reward")
        right.set_title("Hour by hour (dashed: equal)")
        figure.colorbar(mesh[3], ax=right, label="Hours (log scale)")

    save(draw, path, (12.0, 4.6))


def draw_sensitivity(points: Sequence[SensitivityPoint], path: Path, minus: str = "") -> None:
    """What changes with one number of CORMPO, all others kept (App. F); intervals over patients.

    Points may be paired differences, whose intervals are far narrower: `minus` then says to what,
    such as "clinicians'".
    """
    parameters = [x for x in PARAMETERS if any(point.parameter == x for point in points)]
    metrics = [x for x in SENSITIVE if any(point.metric == x for point in points)]
    if not parameters or not metrics:
        raise ValueError(
            f"expected points for {', '.join(PARAMETERS)}, got none. Name the parameter so."
        )

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(metrics), len(parameters), sharex="col", sharey="row",
                               squeeze=False)  # fmt: skip
        for row, metric in zip(axes, metrics, strict=True):
            for axis, parameter in zip(row, parameters, strict=True):
                own = [x for x in points if (x.parameter, x.metric) == (parameter, metric)]
                _sensitivity(axis, own, SENSITIVE[metric][1])
            against = f"\nminus {minus}" if minus else ""
            row[0].set_ylabel(SENSITIVE[metric][0] + against)
        for axis, parameter in zip(axes[-1], parameters, strict=True):
            axis.set_xlabel(PARAMETERS[parameter])
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        words = f"{name_of(OURS)} with one number changed (ring: as in the tables)"
        figure.suptitle(words, x=0.01, ha="left", fontsize=11)

    save(draw, path, (1.2 + 3.3 * len(parameters), 1.5 + 2.1 * len(metrics)))


def _sensitivity(axis: Axes, points: Sequence[SensitivityPoint], scale: float) -> None:
    """Values evenly spaced: they are chosen by hand, some are zero."""
    values = sorted({point.value for point in points})
    judges = [judge for judge in JUDGES if any(point.judge == judge for point in points)]
    for number, judge in enumerate(judges):
        own = sorted((x for x in points if x.judge == judge), key=lambda x: x.value)
        shift = 0.1 * (number - (len(judges) - 1) / 2)
        place = np.array([values.index(x.value) for x in own]) + shift
        mean, low, high = (scale * np.array([getattr(x, y) for x in own])
                           for y in ("mean", "low", "high"))  # fmt: skip
        _, color, dash, marker = WHO["twin" if judge == "twin" else "truth"]
        kind = {"color": color, "ls": dash, "marker": "D" if judge == "fresh" else marker}
        kind["mfc"] = color if judge == "patients" else "white"
        axis.errorbar(place, mean, [mean - low, high - mean], ms=5, lw=1.4, elinewidth=1.1,
                      label=JUDGES[judge], **kind)  # fmt: skip
        chosen = [x.chosen for x in own]
        axis.plot(place[chosen], mean[chosen], "o", ms=12, mfc="none", mec=LIMIT, mew=1.6)
    axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axis.grid(axis="y", **GRID)


def draw_horizons(
    hours: Sequence[int],
    found: Mapping[str, Mapping[str, Float[np.ndarray, "n horizons"]]],
    row: Int[np.ndarray, " n"],
    path: Path,
) -> None:
    """The clinicians' decisions, in the twin and in the records, by horizon (App. F).

    `found` is by who ("records", "twin"), then by metric, one number per start and horizon.
    """
    weights = resample(row)
    metrics = [x for x in HORIZON_METRICS if any(x in one for one in found.values())]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(metrics), squeeze=False)[0]
        for axis, metric in zip(axes, metrics, strict=True):
            for who in (x for x in WHO if metric in found.get(x, {})):
                words, color, dash, marker = WHO[who]
                each = np.asarray(found[who][metric], float).T
                one = [estimate(values[None], weights) for values in each]
                low, mean, high = ([x[name] for x in one] for name in ("low", "mean", "high"))
                axis.plot(
                    hours,
                    mean,
                    color=color,
                    ls=dash,
                    marker=marker,
                    label=words,
                    ms=4 if who == "records" else 6.5,
                    mfc="white" if who == "twin" else color,
                )
                axis.fill_between(hours, low, high, color=color, alpha=0.15, lw=0)
            axis.set_title(HORIZON_METRICS[metric])
            axis.set_xlabel("Horizon, hours")
            axis.set_xticks(hours)
            axis.grid(axis="y", **GRID)
        axes[0].legend(frameon=False)

    save(draw, path, (13.0, 4.0))


def agreement(
    chosen: Int[np.ndarray, " n"], recorded: Int[np.ndarray, " n"], before: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "7 7"]:
    """Share (%) of each chosen change (columns) among hours with a recorded change (rows).

    Changes are counted from the level in force, from −3 and below to +3 and above. A row without
    hours is NaN.
    """
    sides = [np.clip(x - before, -WIDEST, WIDEST) + WIDEST for x in (recorded, chosen)]
    counts = np.zeros((2 * WIDEST + 1, 2 * WIDEST + 1))
    np.add.at(counts, tuple(sides), 1.0)
    total = counts.sum(1, keepdims=True)
    return np.where(total > 0, 100 * counts / np.maximum(total, 1), np.nan)


def draw_agreement(
    chosen: Mapping[str, Int[np.ndarray, " n"]],
    recorded: Int[np.ndarray, " n"],
    before: Int[np.ndarray, " n"],
    path: Path,
) -> None:
    """Which change a policy would have made where clinicians made theirs, test hours."""
    words = ["≤ −3", "−2", "−1", "0", "+1", "+2", "≥ +3"]
    change = np.clip(recorded - before, -WIDEST, WIDEST) + WIDEST
    hours = np.bincount(change, minlength=len(words))
    rows = -(-len(chosen) // 4)
    columns = -(-len(chosen) // rows)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis, (method, levels) in zip(axes.ravel(), chosen.items(), strict=False):
            table = agreement(levels, recorded, before)
            axis.imshow(table, cmap="Blues", vmin=0, vmax=100, origin="lower", aspect="auto")
            for y, x in np.argwhere(table >= 0.5):
                axis.text(x, y, f"{table[y, x]:.0f}", ha="center", va="center", fontsize=8,
                          color="white" if table[y, x] > 55 else INK)  # fmt: skip
            same = 100 * np.mean(levels == recorded)
            near = 100 * np.mean(np.abs(levels - recorded) <= 1)
            axis.set_title(f"{name_of(method)}\nsame {same:.0f} %, within one {near:.0f} %",
                           fontsize=10)  # fmt: skip
            axis.set_xticks(range(len(words)), words, fontsize=8)
            named = [f"{x}  ({n:,} h)" for x, n in zip(words, hours, strict=True)]
            axis.set_yticks(range(len(words)), named, fontsize=8)
        hide(axes, len(chosen))
        figure.supxlabel("Change that the policy would make, levels", fontsize=10)
        figure.supylabel("Recorded change, levels (hours)", fontsize=10)
        figure.suptitle("% of the hours with this recorded change", x=0.01, ha="left", fontsize=11)

    save(draw, path, (1.8 + 3.1 * columns, 0.9 + 3.1 * rows))
