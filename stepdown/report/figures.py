"""Figures: a cohort at a glance.

Colors follow bedside habit (pressure red, rate green) in tones that read on white; no panel
needs color to be understood. Every axis names its unit, levels are steps, limits are thin lines.
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MultipleLocator

from stepdown.handover import Cohort
from stepdown.problem.clinical import PAPER
from stepdown.report.calibration import STAY_HOURS, hourly
from stepdown.report.examples import pick_examples
from stepdown.signals import FLOW, HIGHEST, HR, LEVELS, LOWEST, MAP, PULSATILITY

INK, MUTED, LIMIT, RARE = "#222222", "#5f6b76", "#b36b00", "#c8322b"
LEVEL_COLOR, BARS = "#3b4a59", "#5b8db8"
TRACES = (  # signal, words, color, axis, lower limit
    (MAP, "MAP\nmmHg", "#c8322b", (30, 125), PAPER.map_limit),
    (PULSATILITY, "Pulsatility\nmmHg", "#8e44ad", (0, 90), PAPER.pulsatility_limit),
    (HR, "Heart rate\n/min", "#1b7f3b", (30, 170), PAPER.hr_limit),
    (FLOW, "Pump flow\nL/min", "#0072b2", (0, 5), None),
)
LOW_LEVEL = 4  # P2 to P4 is little support
LOW_REWARD = -3.0  # about the worst quarter of the real hours (-3.1)
DEEPEST = -12  # rewards below share one row
TICKS, TICK_WORDS = (0, -3, -6, -9, -12.5), ("0", "−3", "−6", "−9", "< −12")

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
}


def draw_overview(cohort: Cohort, path: Path, outcome: np.ndarray | None = None) -> None:
    """Example stays, where the hours lie, and how long and how well the stays went."""
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(15, 13.5), layout="constrained")
        try:
            grid = figure.add_gridspec(2, 1, height_ratios=(8, 4.6), hspace=0.03)
            _draw_examples(figure.add_subfigure(grid[0]), cohort, outcome)
            draw_hours(figure.add_subfigure(grid[1]), cohort)
            # Dates and versions stay out of the file: same cohort, same bytes.
            figure.savefig(path, dpi=110, metadata={"Software": None}, format="png")
        finally:
            plt.close(figure)


def _draw_examples(figure: SubFigure | Figure, cohort: Cohort, outcome: np.ndarray | None) -> None:
    examples = pick_examples(cohort, outcome)
    rows = len(TRACES) + 1
    axes = figure.subplots(
        rows, len(examples), sharey="row", sharex="col", squeeze=False,
        height_ratios=(1.5, 1.2, 1.2, 1, 1.1),
    )  # fmt: skip
    figure.suptitle(
        "Example stays  (thin lines: limits of a stable hour)", x=0.01, ha="left", fontsize=13
    )
    for column, (row, words) in enumerate(examples):
        seen = np.flatnonzero(np.asarray(cohort.seen)[row])
        time = np.arange(seen[-1] + 1) * cohort.minutes / 60
        signals = np.asarray(cohort.signals)[row, : seen[-1] + 1]
        level = np.asarray(cohort.level)[row, : seen[-1] + 1].astype(float)
        level[~np.asarray(cohort.seen)[row, : seen[-1] + 1]] = np.nan
        axes[0, column].set_title(f"{cohort.patient[row]}\n{words}", fontweight="bold")
        for trace, axis in zip(TRACES, axes[:-1, column], strict=True):
            _draw_trace(axis, time, signals, trace, first=column == 0)
        _draw_level(axes[-1, column], time, level, first=column == 0)
        axes[-1, column].set_xlim(0, time[-1])
    figure.align_ylabels(axes[:, 0])


def _draw_trace(axis: Axes, time, signals, trace, *, first: bool) -> None:
    column, words, color, limits, limit = trace
    axis.plot(time, np.clip(signals[:, column], *limits), color=color, linewidth=1.1)
    axis.set_ylim(*limits)
    axis.grid(axis="y", color="#e4e8eb", linewidth=0.6)
    axis.set_axisbelow(True)
    if limit is not None:
        axis.axhline(limit, color=LIMIT, linewidth=0.9, linestyle=(0, (5, 3)))
        axis.text(1.0, limit, f" {limit:.0f}", color=LIMIT, fontsize=9, va="center",
                  transform=axis.get_yaxis_transform())  # fmt: skip
    if first:
        axis.set_ylabel(words, color=color)


def _draw_level(axis: Axes, time, level, *, first: bool) -> None:
    axis.step(time, level, where="post", color=LEVEL_COLOR, linewidth=1.4)
    axis.fill_between(time, LOWEST - 0.5, level, step="post", color=LEVEL_COLOR, alpha=0.12)
    axis.set_ylim(LOWEST - 0.5, HIGHEST + 0.5)
    axis.set_yticks([2, 4, 6, 8], ["P2", "P4", "P6", "P8"])
    axis.set_xlabel("Hours of support")
    axis.xaxis.set_major_locator(MultipleLocator(12 if time[-1] <= 60 else 24))
    if first:
        axis.set_ylabel("Level\nP2 to P9", color=LEVEL_COLOR)


def draw_hours(figure: SubFigure | Figure, cohort: Cohort) -> None:
    """Where the hours of a cohort lie, how they went, how long the stays were."""
    hours = hourly(cohort)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.6, 1, 1))
    _draw_sparsity(left, hours["level"], hours["reward"])
    _draw_rewards(middle, hours["reward"])
    _draw_stays(right, np.asarray(cohort.seen).sum(1) * cohort.minutes / 60)


def _draw_sparsity(axis: Axes, level: np.ndarray, reward: np.ndarray) -> None:
    """The paper's picture of sparse data: little support and a poor hour rarely meet."""
    edges = (np.arange(LOWEST, HIGHEST + 2) - 0.5, np.arange(DEEPEST - 1, 1))
    counts, *_ = np.histogram2d(level, np.clip(reward, DEEPEST - 0.5, 0), bins=edges)
    norm = LogNorm(0.3, max(counts.max(), 10))  # a single hour is still seen on white
    shown = np.ma.masked_equal(counts.T, 0)
    mesh = axis.pcolormesh(*edges, shown, cmap="Blues", norm=norm, edgecolors="white", lw=0.6)
    bar = axis.figure.colorbar(mesh, ax=axis, pad=0.02)
    bar.set_label("Hours (log scale)")
    bar.ax.set_ylim(1, norm.vmax)
    rare = (level <= LOW_LEVEL) & (reward < LOW_REWARD)
    corner, width = (LOWEST - 0.5, DEEPEST - 1), LOW_LEVEL + 1 - LOWEST
    height = LOW_REWARD - corner[1]
    axis.add_patch(Rectangle(corner, width, height, color=RARE, alpha=0.15, lw=0))
    axis.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=RARE, lw=1.6))
    words = f"rare: {100 * rare.mean():.1f} % of hours\n({rare.sum():,} of {rare.size:,})"
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 2}
    axis.text(2.0 + LOW_LEVEL / 4, -8, words, color="#8f1d18", fontweight="bold", ha="center",
              va="center", bbox=box)  # fmt: skip
    axis.set_xticks(LEVELS, [f"P{value}" for value in LEVELS])
    axis.set_yticks(TICKS, TICK_WORDS)
    axis.set_xlabel("Level over the hour")
    axis.set_ylabel("Raw reward of the hour (0 is best)")
    axis.set_title("Level against reward (shaded: little support, poor hour)")


def _draw_rewards(axis: Axes, reward: np.ndarray) -> None:
    bins = [DEEPEST - 1, *np.arange(DEEPEST, 0.5, 0.5)]
    weights = np.full(reward.size, 100 / max(reward.size, 1))
    axis.hist(
        np.clip(reward, DEEPEST - 1, 0), bins, weights=weights, color=BARS, ec="white", lw=0.6
    )
    best = 100 * float(np.mean(reward == 0))
    mean = f"{reward.mean():.2f}".replace("-", "−")
    axis.text(0.04, 0.95, f"nothing to fault: {best:.0f} %\nmean {mean}",
              transform=axis.transAxes, va="top")  # fmt: skip
    axis.set_xticks(TICKS, TICK_WORDS)
    axis.set_xlabel("Raw reward of the hour (0 is best)")
    axis.set_ylabel("% of hours")
    axis.set_title("How the hours went")


def _draw_stays(axis: Axes, hours: np.ndarray) -> None:
    counts, *_ = axis.hist(hours, np.arange(0, hours.max() + 12.1, 12), color=BARS, ec="white")
    axis.set_ylim(0, 1.3 * np.max(counts))  # room for the words above the bars
    axis.axvline(hours.mean(), ymax=0.82, color=INK, lw=1.4)
    axis.axvline(STAY_HOURS, ymax=0.82, color=LIMIT, lw=1.4, linestyle=(0, (5, 3)))
    words = f"mean {hours.mean():.1f} h (solid line)\npublished {STAY_HOURS} h (dashed line)"
    axis.text(0.04, 0.95, words, transform=axis.transAxes, va="top")
    axis.xaxis.set_major_locator(MultipleLocator(24))
    axis.set_xlabel("Length of the stay, h")
    axis.set_ylabel("Patients")
    axis.set_title("How long they stayed")
