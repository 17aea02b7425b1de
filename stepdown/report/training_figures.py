"""Figures of policies: how their training went and which levels they choose."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from stepdown.report.comparison import JUDGES, LEARNED, OURS, Comparison, name_of
from stepdown.report.comparison_figures import GRID, look_of, save
from stepdown.report.figures import INK
from stepdown.signals import LEVELS

CURVES = {
    "reward": "Reward an hour, in the ensemble",
    "penalty": "Penalty an hour",
    "uncertainty": "What the penalty measures",
    "value": "Critics' value",
    "critic_loss": "Critics' loss",
    "entropy": "Entropy of the policy, nats",
    "temperature": "Temperature",
    "held_out": "Cross-entropy, held out (cloning)",
}


def draw_curves(comparison: Comparison, path: Path) -> None:
    """How training went: the mean over seeds, and their range for CORMPO."""
    methods = [x for x in LEARNED if x in comparison.curves]
    methods += [x for x in comparison.curves if x not in methods]
    shown = [x for x in CURVES if any(x in comparison.curves[y] for y in methods)]
    if not shown:
        raise ValueError("expected curves of a training, got none. Keep what training reports.")

    def draw(figure: Figure) -> None:
        columns = min(len(shown), 4)
        axes = figure.subplots(-(-len(shown) // columns), columns, squeeze=False)
        for axis, name in zip(axes.ravel(), shown, strict=False):
            known = [x for x in methods if name in comparison.curves[x]]
            for method in known:
                _curve(axis, comparison.curves[method][name], method)
            axis.set_ylim(*_limits([comparison.curves[x][name] for x in known]))
            axis.set_title(CURVES[name], fontsize=10)
            axis.set_xlabel("Epoch")
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axis.grid(axis="y", **GRID)
        for axis in axes.ravel()[len(shown) :]:
            axis.set_visible(False)
        handles = [
            Line2D([], [], label=name_of(x), **{**look_of(x), "marker": None}) for x in methods
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        words = (
            "Training, mean over seeds (shaded: all seeds of CORMPO; a first epoch may lie outside)"
        )
        figure.suptitle(words, x=0.01, ha="left", fontsize=11)

    rows = -(-len(shown) // min(len(shown), 4))
    save(draw, path, (14.0, 1.2 + 2.9 * rows))


def _curve(axis: Axes, values: np.ndarray, method: str) -> None:
    """Mean over the seeds that were still training."""
    values = np.asarray(values, float)
    epochs = np.arange(1, len(values) + 1)
    known = np.isfinite(values).any(1)
    kind = {**look_of(method), "marker": "o" if len(values) == 1 else None}
    axis.plot(epochs[known], np.nanmean(values[known], 1), **kind)
    if method == OURS:
        low, high = np.nanmin(values[known], 1), np.nanmax(values[known], 1)
        axis.fill_between(epochs[known], low, high, color=kind["color"], alpha=0.15, lw=0)


def _limits(curves: Sequence[np.ndarray]) -> tuple[float, float]:
    """Limits that fit all but the first epoch, in which nothing is learned yet."""
    means = [np.nanmean(np.asarray(x, float), 1)[1 if len(x) > 3 else 0 :] for x in curves]
    low, high = float(np.nanmin(np.hstack(means))), float(np.nanmax(np.hstack(means)))
    room = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
    return low - room, high + room


def draw_action_mix(comparison: Comparison, path: Path, judge: str | None = None) -> None:
    """Which levels were chosen, all episodes and hours of a judge; a bar for each method."""
    judge = judge or comparison.judges[-1]
    judged = comparison.before(judge)
    methods = [x for x in judged if not x.startswith("always")][::-1]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        shades = plt.get_cmap("viridis")(np.linspace(0.02, 0.98, len(LEVELS)))
        shares = 100 * np.array([judged[x].level_shares for x in methods])
        left = np.zeros(len(methods))
        for place, level in enumerate(LEVELS):
            bars = axis.barh(methods, shares[:, place], left=left, color=shades[place], ec="white",
                             lw=0.5, label=f"P{level}")  # fmt: skip
            words = [f"{x:.0f}" if x >= 6 else "" for x in shares[:, place]]
            axis.bar_label(bars, words, label_type="center", fontsize=8,
                           color="white" if place < 4 else INK)  # fmt: skip
            left += shares[:, place]
        axis.set_yticks(range(len(methods)), [name_of(x) for x in methods])
        for label, method in zip(axis.get_yticklabels(), methods, strict=True):
            label.set_fontweight("bold" if method == OURS else "normal")
        axis.margins(y=0.01)
        axis.set_xlim(0, 100)
        axis.set_xlabel("Share of the decisions, %")
        axis.set_title(f"Levels chosen, {JUDGES[judge]}")
        figure.legend(loc="outside right upper", frameon=False, reverse=True, title="Level")

    save(draw, path, (11.0, 1.6 + 0.34 * len(methods)))


def draw_training_mix(curves: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """How the levels that a policy sets in its own imagination change over training."""
    methods = [x for x in (*LEARNED, *curves) if "levels" in curves.get(x, {})]
    methods = list(dict.fromkeys(methods))
    if not methods:
        raise ValueError("expected curves named levels, got none. Train a model-based method.")

    def draw(figure: Figure) -> None:
        columns = min(len(methods), 4)
        rows = -(-len(methods) // columns)
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        shades = plt.get_cmap("viridis")(np.linspace(0.02, 0.98, len(LEVELS)))
        for axis, method in zip(axes.ravel(), methods, strict=False):
            shares = 100 * np.nanmean(np.asarray(curves[method]["levels"], float), axis=1)
            epochs = np.arange(1, len(shares) + 1)
            axis.stackplot(epochs, *shares.T, colors=shades, labels=[f"P{x}" for x in LEVELS],
                           edgecolor="white", linewidth=0.3)  # fmt: skip
            axis.set_title(name_of(method), fontsize=10)
            axis.margins(x=0, y=0)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        hide(axes, len(methods))
        figure.supxlabel("Epoch", fontsize=10)
        figure.supylabel("Share of the imagined decisions, %", fontsize=10)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper",
                      frameon=False, reverse=True, title="Level")  # fmt: skip

    save(draw, path, (13.0, 1.0 + 2.4 * -(-len(methods) // min(len(methods), 4))))


def hide(axes: np.ndarray, used: int) -> None:
    """Panels without a method; the one above such a panel shows its axis instead."""
    for place, axis in enumerate(axes.ravel()):
        axis.set_visible(place < used)
        axis.tick_params(labelbottom=place + axes.shape[1] >= used)
