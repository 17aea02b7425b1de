"""Figures of a twin: forecasts at changes of level, growing errors, honesty of the bands.

Models differ in line style and marker as well as in color (Okabe and Ito's palette), so that no
panel needs color to be understood. Recorded values are black, the main twin is blue with its
bands; every axis names its unit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import equinox as eqx
import jax
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stepdown.evaluation.forecast import (
    SHOWN,
    ErrorGrowth,
    Forecaster,
    ForecastScores,
    changed_before,
    inside,
    pit_values,
    summarize_growth,
)
from stepdown.handover import Transitions, require_role
from stepdown.report.figures import INK, LEVEL_COLOR, LIMIT, MUTED, STYLE
from stepdown.signals import FLOW, HIGHEST, LEVEL, LOWEST, MAP, PULSATILITY, SIGNALS

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#5f6b76")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)), (0, (3, 1)), "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DRAWN = (MAP, FLOW, PULSATILITY)
WORDS = {MAP: "MAP, mmHg", FLOW: "Pump flow, L/min", PULSATILITY: "Pulsatility, mmHg"}
GRID = {"color": "#e4e8eb", "linewidth": 0.6}
NOMINAL = np.linspace(0.05, 0.95, 19)
USUAL = 2  # levels; most changes are not larger
DRAWS = 200  # behind a drawn band
BINS = [i / 20 for i in range(21)]  # of the PIT


class Style(NamedTuple):
    """How a model is told from the others."""

    color: str
    dash: Any
    marker: str


def styles(names: list[str]) -> dict[str, Style]:
    """One style per model, in their order; from the eighth on they repeat."""
    kinds = [Style(*kind) for kind in zip(COLORS, DASHES, MARKERS, strict=True)]
    return {name: kinds[i % len(kinds)] for i, name in enumerate(names)}


def draw_examples(
    models: Mapping[str, Forecaster], hours: Transitions, path: Path, number: int = 4
) -> None:
    """Test hours in which the level changed: the first model with its bands, the others as lines.

    Bands and median of the first model come from its draws; the others show their centers.
    """
    require_role(hours, "test")
    rows = pick_changes(hours, number)
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(3.4 * len(rows) + 1.2, 8.6), layout="constrained")
        axes = figure.subplots(
            len(DRAWN) + 1, len(rows), sharex=True, squeeze=False, height_ratios=(2, 2, 2, 1)
        )
        index = np.array(rows)
        cut = hours.state[index], hours.level[index]
        # compiled as a whole: operation by operation would take a minute
        centers = {name: np.asarray(_centers(model, *cut)) for name, model in models.items()}
        drawn = np.asarray(_draws(next(iter(models.values())), *cut))
        for column, row in enumerate(rows):
            window = jax.tree.map(lambda x, i=row: np.asarray(x[i]), hours)
            lines = {name: center[column] for name, center in centers.items()}
            _draw_window(axes[:, column], window, drawn[column], lines)
        for axis, words in zip(axes[:, 0], [*WORDS.values(), "Level"], strict=True):
            axis.set_ylabel(words)
        figure.align_ylabels(axes[:, 0])
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5),
                      frameon=False)  # fmt: skip
        _save(figure, path)


def pick_changes(hours: Transitions, number: int) -> list[int]:
    """Rows whose level changes at the decision and not inside an hour, drops and rises in turn.

    First the largest change each way, then usual ones (one or two levels), each of another patient.
    """
    before = np.rint(np.asarray(hours.state)[:, -1, LEVEL]).astype(int)
    inside_hours = np.asarray(hours.changed) | changed_before(hours)
    step = np.where(inside_hours, 0, np.asarray(hours.level) - before)
    patient = np.asarray(hours.patient)
    size = np.abs(step)
    chosen: list[int] = []
    for turn in range(number):
        wanted = np.where(turn % 2 == 0, step < 0, step > 0) & ~np.isin(patient, patient[chosen])
        wanted &= (size <= USUAL) | (turn < 2)
        if wanted.any():
            chosen.append(int(np.argmax(np.where(wanted, size, 0))))
    if not chosen:
        raise ValueError("expected hours in which the level changes, got none. Use longer stays.")
    return chosen


@eqx.filter_jit
def _centers(model: Forecaster, states, levels):
    return jax.vmap(model.center)(states, levels)


@eqx.filter_jit
def _draws(model: Forecaster, states, levels):
    """Draws of every row (rows, draws, steps, 13)."""
    keys = jr.split(jr.key(0), DRAWS)
    one = jax.vmap(lambda s, a, k: model(s, a, key=k), (None, None, 0))
    return jax.vmap(one, (0, 0, None))(states, levels, keys)


def _draw_window(axes, row: Transitions, drawn: np.ndarray, lines: dict[str, np.ndarray]) -> None:
    """One column: two hours of each signal; `drawn` belongs to the first of `lines`."""
    steps = row.state.shape[0]
    minutes = 60.0 / steps * (np.arange(2 * steps) - steps + 0.5)
    after, level, in_force = minutes[steps:], int(row.level), round(float(row.state[-1, LEVEL]))
    truth = np.concatenate([row.state, row.next_state])
    look = styles(list(lines))
    name, *others = lines
    axes[0].set_title(f"P{in_force} to P{level}", fontweight="bold")
    for axis, column in zip(axes, DRAWN, strict=False):
        if np.isnan(drawn[..., column]).any():  # the record lacks the signal
            continue
        for nominal, alpha in ((90, 0.16), (50, 0.3)):
            low, high = np.percentile(drawn[..., column], [50 - nominal / 2, 50 + nominal / 2], 0)
            axis.fill_between(after, low, high, color=look[name].color, alpha=alpha, lw=0,
                              label=f"{name}, {nominal} % band")  # fmt: skip
        axis.plot(after, np.median(drawn[..., column], 0), color=look[name].color, lw=2,
                  label=f"{name}, median")  # fmt: skip
        for other in others:
            kind = {"color": look[other].color, "ls": look[other].dash, "lw": 1.5}
            axis.plot(after, lines[other][:, column], label=other, **kind)
        axis.plot(minutes, truth[:, column], color=INK, lw=1.2, marker="o", ms=3.5,
                  label="recorded")  # fmt: skip
        axis.axvline(0, color=MUTED, lw=0.8)
        axis.grid(axis="y", **GRID)
        axis.set_axisbelow(True)
    _draw_levels(axes[-1], in_force, level)


def _draw_levels(axis: Axes, in_force: int, level: int) -> None:
    axis.step([-60, 0, 60], [in_force, level, level], where="post", color=LEVEL_COLOR, lw=1.6)
    axis.axvline(0, color=MUTED, lw=0.8)
    axis.set_ylim(LOWEST - 0.5, HIGHEST + 0.5)
    axis.set_yticks([2, 4, 6, 8], ["P2", "P4", "P6", "P8"])
    axis.set_xlim(-60, 60)
    axis.set_xticks([-60, -30, 0, 30, 60])
    axis.set_xlabel("Minutes from the decision")


def draw_growth(growths: Mapping[str, ErrorGrowth], path: Path) -> None:
    """The paper's error accumulation: MAE per hour ahead, and whether the bands keep covering."""
    look = styles(list(growths))
    found = {name: summarize_growth(growth) for name, growth in growths.items()}
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(11.5, 6.4), layout="constrained")
        axes = figure.subplots(2, len(SHOWN), sharex=True, height_ratios=(1.7, 1))
        for column, index in enumerate(SHOWN):
            signal = SIGNALS[index]
            for place, (name, one) in enumerate(found.items()):
                _draw_growing(axes[:, column], one[signal.name], look[name], name, shade=place == 0)
            axes[0, column].set_title(f"{signal.label}, {signal.unit}")
            axes[1, column].axhline(90, color=LIMIT, lw=1, ls=(0, (5, 3)))
            axes[1, column].set_xlabel("Hours ahead")
        axes[0, 0].set_ylabel("Mean absolute error")
        axes[1, 0].set_ylabel("Within the 90 % band, %")
        starts = len(next(iter(growths.values())).patient)
        figure.suptitle(
            f"Errors under the recorded levels, {starts:,} starts of test patients "
            f"(shaded: one sd over starts of {next(iter(growths))})", x=0.01, ha="left"
        )  # fmt: skip
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center",
                      ncols=6, frameon=False)  # fmt: skip
        _save(figure, path)


def _draw_growing(axes, one: dict[str, list[float]], look: Style, name: str, *, shade: bool):
    ahead = np.arange(1, len(one["mae"]) + 1)
    mean, sd = np.array(one["mae"]), np.array(one["sd"])
    kind = {"color": look.color, "ls": look.dash, "marker": look.marker, "ms": 4.5, "lw": 1.6}
    axes[0].plot(ahead, mean, label=name, **kind)
    if shade:
        axes[0].fill_between(ahead, np.maximum(mean - sd, 0), mean + sd, color=look.color,
                             alpha=0.15, lw=0)  # fmt: skip
    axes[1].plot(ahead, 100 * np.array(one["coverage90"]), **kind)
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylim(0, 102)
    for axis in axes:
        axis.grid(axis="y", **GRID)
        axis.set_xticks(ahead)


def draw_calibration(scores: Mapping[str, ForecastScores], path: Path) -> None:
    """Nominal against true coverage, all signals together, and the PIT of each model."""
    look = styles(list(scores))
    with plt.rc_context(STYLE):
        columns = min(len(scores), 3)
        rows = -(-len(scores) // columns)
        figure = plt.figure(figsize=(5.4 + 2.6 * columns, max(4.8, 2.1 * rows)),
                            layout="constrained")  # fmt: skip
        grid = figure.add_gridspec(1, 2, width_ratios=(5.0, 2.4 * columns))
        _draw_curve(figure.add_subplot(grid[0]), scores, look)
        cells = grid[1].subgridspec(rows, columns)
        first = None  # one height for all, or a flat one would look uneven
        for place, (name, one) in enumerate(scores.items()):
            axis = figure.add_subplot(cells[place // columns, place % columns], sharey=first)
            first = first or axis
            _draw_pit(axis, one, look[name], name)
            if place + columns >= len(scores):
                axis.set_xlabel("PIT")
            if place % columns == 0:
                axis.set_ylabel("Density")
        _save(figure, path)


def _draw_curve(axis: Axes, scores: Mapping[str, ForecastScores], look: dict[str, Style]) -> None:
    axis.plot([0, 100], [0, 100], color=MUTED, lw=1, label="honest")
    for name, one in scores.items():
        used = list(one.scaler.present)
        low, high = np.asarray(one.low)[..., used], np.asarray(one.high)[..., used]
        covered = [100 * inside(low, high, float(share)).mean() for share in NOMINAL]
        kind = look[name]
        axis.plot(100 * NOMINAL, covered, color=kind.color, ls=kind.dash, marker=kind.marker,
                  ms=4, lw=1.6, label=name)  # fmt: skip
    axis.set_xlim(0, 100)
    axis.set_ylim(0, 100)
    axis.set_aspect("equal")
    axis.grid(**GRID)
    axis.set_xlabel("Central band, % of the forecast")
    axis.set_ylabel("Truth within the band, %")
    axis.set_title("Coverage (below the line: over-confident)")
    axis.legend(loc="upper left", frameon=False)


def _draw_pit(axis: Axes, one: ForecastScores, look: Style, name: str) -> None:
    used = list(one.scaler.present)
    low, high = np.asarray(one.low)[..., used], np.asarray(one.high)[..., used]
    values = pit_values(low, high, key=jr.key(0)).ravel()
    axis.hist(values, BINS, density=True, color=look.color, ec="white", lw=0.4)
    axis.axhline(1, color=INK, lw=1)
    axis.set_xlim(0, 1)
    axis.set_title(name)


def _save(figure: Figure, path: Path) -> None:
    """Dates and versions stay out of the file: same twin, same bytes."""
    try:
        figure.savefig(path, dpi=110, metadata={"Software": None}, format="png")
    finally:
        plt.close(figure)
