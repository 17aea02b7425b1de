"""Figures of a twin: forecasts at changes of level, growing errors, honest bands, its rewards.

Models differ in line style and marker as well as in color (Okabe and Ito's palette), so that no
panel needs color to be understood. Recorded values are black, the main twin is blue with its
bands; every axis names its unit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from stepdown.evaluation.compare import estimate, resample
from stepdown.evaluation.forecast import NOMINAL, SHOWN, Examples
from stepdown.handover import Look
from stepdown.report.figures import (
    DASHES,
    GRID,
    INK,
    LEVEL_COLOR,
    LIMIT,
    MUTED,
    name_levels,
    to_png,
)
from stepdown.report.grids import minus
from stepdown.report.labels import (
    BLUE,
    GRAY,
    GREEN,
    METRICS,
    OCHRE,
    ORANGE,
    PINK,
    SKY,
    SOURCES,
    TWIN,
)
from stepdown.signals import FLOW, LEVEL, MAP, PULSATILITY, SIGNALS
from stepdown.twin.twins import TWINS

LOOKS = (
    Look(BLUE, "-", "o"),
    Look(ORANGE, (0, (5, 2)), "s"),
    Look(GREEN, (0, (1, 1.5)), "^"),
    Look(PINK, (0, (5, 1.5, 1, 1.5)), "D"),
    Look(OCHRE, (0, (8, 2)), "v"),
    Look(SKY, (0, (3, 1)), "P"),
    Look(GRAY, "-.", "X"),
)
DRAWN = (MAP, FLOW, PULSATILITY)
WORDS = {MAP: "MAP, mmHg", FLOW: "Pump flow, L/min", PULSATILITY: "Pulsatility, mmHg"}
HORIZONS = {
    "reward": "Reward, sum over the hours",
    "acp": METRICS["acp"].axis,
    "ws_gradient": METRICS["ws_gradient"].axis,
}


def _looks(names: Sequence[str]) -> dict[str, Look]:
    """The look of every model: that of its kind, or another where its name is none of a kind."""
    others = iter(LOOKS * len(names))
    return {name: TWINS[name].look if name in TWINS else next(others) for name in names}


def draw_examples(examples: Mapping[str, Examples]) -> bytes:
    """The first model with its bands, the others as lines.

    Bands and median of the first model come from its draws; the others show their centers.
    """
    count = len(next(iter(examples.values())).level)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(
            len(DRAWN) + 1, count, sharex=True, squeeze=False, height_ratios=(2, 2, 2, 1)
        )
        for column in range(count):
            _draw_window(axes[:, column], examples, column)
        for axis, words in zip(axes[:, 0], [*WORDS.values(), "Level"], strict=True):
            axis.set_ylabel(words)
        figure.align_ylabels(axes[:, 0])
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5),
                      frameon=False)  # fmt: skip

    return to_png(draw, (3.4 * count + 1.2, 8.6))


def _draw_window(axes: np.ndarray, examples: Mapping[str, Examples], row: int) -> None:
    """One column: two hours of each signal."""
    name, *others = examples
    first = examples[name]
    state, level, drawn = first.state[row], int(first.level[row]), first.drawn[row]
    steps = len(state)
    minutes = 60.0 / steps * (np.arange(2 * steps) - steps + 0.5)
    after, in_force = minutes[steps:], round(float(state[-1, LEVEL]))
    truth = np.concatenate([state, first.next_state[row]])
    look = _looks(list(examples))
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
            axis.plot(after, examples[other].center[row, :, column], label=other, **kind)
        axis.plot(minutes, truth[:, column], color=INK, lw=1.2, marker="o", ms=3.5,
                  label="recorded")  # fmt: skip
        axis.axvline(0, color=MUTED, lw=0.8)
        axis.grid(axis="y", **GRID)
        axis.set_axisbelow(True)
    _draw_levels(axes[-1], in_force, level)


def _draw_levels(axis: Axes, in_force: int, level: int) -> None:
    axis.step([-60, 0, 60], [in_force, level, level], where="post", color=LEVEL_COLOR, lw=1.6)
    axis.axvline(0, color=MUTED, lw=0.8)
    name_levels(axis)
    axis.set_xlim(-60, 60)
    axis.set_xticks([-60, -30, 0, 30, 60])
    axis.set_xlabel("Minutes from the decision")


def draw_growth(found: Mapping[str, Mapping[str, Any]], starts: int) -> bytes:
    """The paper's error accumulation: MAE per hour ahead, and whether the bands keep covering.

    `found` is what `summarize_growth` tells about every model.
    """
    look = _looks(list(found))

    def draw(figure: Figure) -> None:
        axes = figure.subplots(2, len(SHOWN), sharex=True, height_ratios=(1.7, 1))
        for column, index in enumerate(SHOWN):
            signal = SIGNALS[index]
            for place, (name, one) in enumerate(found.items()):
                _draw_growing(axes[:, column], one[signal.name], look[name], name, shade=place == 0)
            axes[0, column].set_title(f"{signal.label}, {signal.unit}")
            axes[1, column].axhline(90, color=LIMIT, lw=1, ls=DASHES)
            axes[1, column].set_xlabel("Hours ahead")
        axes[0, 0].set_ylabel("Mean absolute error")
        axes[1, 0].set_ylabel("Within the 90 % band, %")
        figure.suptitle(
            f"Errors under the recorded levels, {starts:,} starts of test patients "
            f"(shaded: one sd over starts of {next(iter(found))})", x=0.01, ha="left"
        )  # fmt: skip
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center",
                      ncols=6, frameon=False)  # fmt: skip

    return to_png(draw, (11.5, 6.4))


def _draw_growing(axes, one: dict[str, list[float]], look: Look, name: str, *, shade: bool):
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


def draw_honesty(found: Mapping[str, Mapping[str, list[float]]]) -> bytes:
    """Nominal against true coverage, all signals together, and the PIT of each model.

    `found` is what `describe_honesty` tells about every model.
    """
    look, columns = _looks(list(found)), min(len(found), 3)
    rows = -(-len(found) // columns)

    def draw(figure: Figure) -> None:
        grid = figure.add_gridspec(1, 2, width_ratios=(5.0, 2.4 * columns))
        axis = figure.add_subplot(grid[0])
        for name, one in found.items():
            _draw_curve(axis, one["covered"], look[name], name)
        _finish_curve(axis)
        cells = grid[1].subgridspec(rows, columns)
        first = None  # one height for all, or a flat one would look uneven
        for place, (name, one) in enumerate(found.items()):
            axis = figure.add_subplot(cells[place // columns, place % columns], sharey=first)
            first = first or axis
            _draw_pit(axis, one["pit"], look[name], name)
            if place + columns >= len(found):
                axis.set_xlabel("PIT")
            if place % columns == 0:
                axis.set_ylabel("Density")

    return to_png(draw, (5.4 + 2.6 * columns, max(4.8, 2.1 * rows)))


def _draw_curve(axis: Axes, covered: list[float], look: Look, name: str) -> None:
    nominal = 100 * np.array(NOMINAL)
    axis.plot(nominal, 100 * np.array(covered), color=look.color, ls=look.dash, ms=4, lw=1.6,
              marker=look.marker, label=name)  # fmt: skip


def _finish_curve(axis: Axes) -> None:
    axis.plot([0, 100], [0, 100], color=MUTED, lw=1, label="honest", zorder=0)
    axis.set_xlim(0, 100)
    axis.set_ylim(0, 100)
    axis.set_aspect("equal")
    axis.grid(**GRID)
    axis.set_xlabel("Central band, % of the forecast")
    axis.set_ylabel("Truth within the band, %")
    axis.set_title("Coverage (below the line: over-confident)")
    axis.legend(loc="upper left", frameon=False)


def _draw_pit(axis: Axes, density: list[float], look: Look, name: str) -> None:
    width = 1 / len(density)
    axis.bar(width * (np.arange(len(density)) + 0.5), density, width, color=look.color,
             ec="white", lw=0.4)  # fmt: skip
    axis.axhline(1, color=INK, lw=1)
    axis.set_xlim(0, 1)
    axis.set_title(name)


def draw_predicted_rewards(
    recorded: Float[np.ndarray, " n"], predicted: Float[np.ndarray, " n"]
) -> bytes:
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
                      label=minus(f"{words}, mean {values.mean():.2f}"))  # fmt: skip
        left.set_xlabel("Reward of an hour (at most 0.64)")
        left.set_ylabel("% of hours")
        left.legend(frameon=False, loc="upper left")
        left.set_title("All test hours")
        mesh = right.hist2d(recorded, predicted, [bins, bins], cmap="Blues", norm=LogNorm(0.5))
        right.plot([-2, 0.64], [-2, 0.64], color=LIMIT, lw=1.2, ls=DASHES)
        right.set_xlabel("Recorded reward")
        right.set_ylabel("Forecast reward")
        right.set_title("Hour by hour (dashed: equal)")
        figure.colorbar(mesh[3], ax=right, label="Hours (log scale)")

    return to_png(draw, (12.0, 4.6))


def draw_horizons(
    hours: Sequence[int],
    found: Mapping[str, Mapping[str, Float[np.ndarray, "n horizons"]]],
    row: Int[np.ndarray, " n"],
) -> bytes:
    """The clinicians' decisions, in the twin and in the records, by horizon (App. F).

    `found` is by who ("records", "twin"), then by metric, one number per start and horizon.
    """
    weights = resample(row)
    metrics = [x for x in HORIZONS if any(x in one for one in found.values())]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(metrics), squeeze=False)[0]
        for axis, metric in zip(axes, metrics, strict=True):
            for who, source in SOURCES.items():
                if metric not in found.get(who, {}):
                    continue
                color = source.look.color
                each = np.asarray(found[who][metric], float).T
                one = [estimate(values[None], weights) for values in each]
                low, mean, high = ([x[name] for x in one] for name in ("low", "mean", "high"))
                axis.plot(
                    hours,
                    mean,
                    color=color,
                    ls=source.look.dash,
                    marker=source.look.marker,
                    label=source.words,
                    ms=4 if who == "records" else 6.5,
                    mfc="white" if who == "twin" else color,
                )
                axis.fill_between(hours, low, high, color=color, alpha=0.15, lw=0)
            axis.set_title(HORIZONS[metric])
            axis.set_xlabel("Horizon, hours")
            axis.set_xticks(hours)
            axis.grid(axis="y", **GRID)
        axes[0].legend(frameon=False)

    return to_png(draw, (13.0, 4.0))
