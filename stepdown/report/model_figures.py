"""Figures of models: what twins forecast and how sure they are, what guardians notice.

Models differ in dash and marker as well as in color, so that no panel needs color to be
understood. Recorded values are black, the main twin is blue with its bands; every axis names its
unit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from stepdown.evaluation.compare import resample
from stepdown.evaluation.forecast import NOMINAL, Examples
from stepdown.evaluation.guardians import Moved, SearchConfig, Trial
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Look
from stepdown.report.figures import (
    DASHES,
    GRID,
    INK,
    LEVEL_COLOR,
    LIMIT,
    MUTED,
    RARE,
    legend_below,
    name_levels,
    plot_band,
    to_png,
    words_of,
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
    SHIFTS,
    SKY,
    SOURCES,
    TWIN,
    line_of,
    size_words,
)
from stepdown.signals import FLOW, KNOWN, LEVEL, MAP, PULSATILITY
from stepdown.twin.twins import TWINS

TWIN_LOOKS = (
    Look(BLUE, "-", "o"),
    Look(ORANGE, (0, (5, 2)), "s"),
    Look(GREEN, (0, (1, 1.5)), "^"),
    Look(PINK, (0, (5, 1.5, 1, 1.5)), "D"),
    Look(OCHRE, (0, (8, 2)), "v"),
    Look(SKY, (0, (3, 1)), "P"),
    Look(GRAY, "-.", "X"),
)
GUARDIAN_LOOKS = (
    Look(RARE, "-", "o"),
    Look("#0072b2", "--", "s"),
    Look("#1b7f3b", "-.", "^"),
    Look("#8e44ad", ":", "D"),
    Look("#b36b00", (0, (5, 1)), "v"),
)
DRAWN = (MAP, FLOW, PULSATILITY)
HORIZONS = {
    "reward": "Reward, sum over the hours",
    "acp": METRICS["acp"].axis,
    "ws_gradient": METRICS["ws_gradient"].axis,
}


# ── twins ─────────────────────────────────────────────────────────────────────────────────────────


def _lines(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The line of every model: that of its kind, or another where its name is none of a kind."""
    others = iter(TWIN_LOOKS * len(names))
    return {name: line_of(TWINS[name].look if name in TWINS else next(others)) for name in names}


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
        for axis, words in zip(axes[:, 0], [*map(words_of, DRAWN), "Level"], strict=True):
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
    lines = _lines(list(examples))
    color = lines[name]["color"]
    axes[0].set_title(f"P{in_force} to P{level}", fontweight="bold")
    for axis, column in zip(axes, DRAWN, strict=False):
        if np.isnan(drawn[..., column]).any():  # the record lacks the signal
            continue
        for nominal, alpha in ((90, 0.16), (50, 0.3)):
            low, high = np.percentile(drawn[..., column], [50 - nominal / 2, 50 + nominal / 2], 0)
            axis.fill_between(after, low, high, color=color, alpha=alpha, lw=0,
                              label=f"{name}, {nominal} % band")  # fmt: skip
        axis.plot(after, np.median(drawn[..., column], 0), color=color, lw=2,
                  label=f"{name}, median")  # fmt: skip
        for other in others:
            line = lines[other] | {"marker": "", "lw": 1.5, "label": other}
            axis.plot(after, examples[other].center[row, :, column], **line)
        axis.plot(minutes, truth[:, column], color=INK, lw=1.2, marker="o", ms=3.5,
                  label="recorded")  # fmt: skip
        axis.axvline(0, color=MUTED, lw=0.8)
        axis.grid(axis="y", **GRID)
        axis.set_axisbelow(True)
    axes[-1].step([-60, 0, 60], [in_force, level, level], where="post", color=LEVEL_COLOR, lw=1.6)
    axes[-1].axvline(0, color=MUTED, lw=0.8)
    name_levels(axes[-1])
    axes[-1].set_xlim(-60, 60)
    axes[-1].set_xticks([-60, -30, 0, 30, 60])
    axes[-1].set_xlabel("Minutes from the decision")


def draw_growth(found: Mapping[str, Mapping[str, Any]], starts: int) -> bytes:
    """The paper's error accumulation: MAE per hour ahead, and whether the bands keep covering.

    `found` is what `summarize_growth` tells about every model.
    """
    first, lines = next(iter(found)), _lines(list(found))
    signals = [name for name in KNOWN if name in found[first]]
    ahead = np.arange(1, len(found[first][signals[0]]["mae"]) + 1)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(2, len(signals), sharex=True, height_ratios=(1.7, 1))
        for (top, below), signal in zip(axes.T, signals, strict=True):
            for name, one in found.items():
                line = lines[name] | {"ms": 4.5, "lw": 1.6}
                mae, sd = (np.array(one[signal][x]) for x in ("mae", "sd"))
                top.plot(ahead, mae, label=name, **line)
                if name == first:
                    top.fill_between(ahead, np.maximum(mae - sd, 0), mae + sd, color=line["color"],
                                     alpha=0.15, lw=0)  # fmt: skip
                below.plot(ahead, 100 * np.array(one[signal]["coverage90"]), **line)
            top.set_title(f"{KNOWN[signal].label}, {KNOWN[signal].unit}")
            top.set_ylim(bottom=0)
            below.set_ylim(0, 102)
            below.axhline(90, color=LIMIT, lw=1, ls=DASHES)
            below.set_xlabel("Hours ahead")
            for axis in (top, below):
                axis.grid(axis="y", **GRID)
                axis.set_xticks(ahead)
        axes[0, 0].set_ylabel("Mean absolute error")
        axes[1, 0].set_ylabel("Within the 90 % band, %")
        figure.suptitle(
            f"Errors under the recorded levels, {starts:,} starts of test patients "
            f"(shaded: one sd over starts of {first})", x=0.01, ha="left"
        )  # fmt: skip
        legend_below(figure, axes[0, 0], 6)

    return to_png(draw, (11.5, 6.4))


def draw_honesty(found: Mapping[str, Mapping[str, list[float]]]) -> bytes:
    """Nominal against true coverage, all signals together, and the PIT of each model.

    `found` is what `describe_honesty` tells about every model.
    """
    lines, columns = _lines(list(found)), min(len(found), 3)
    rows = -(-len(found) // columns)

    def draw(figure: Figure) -> None:
        grid = figure.add_gridspec(1, 2, width_ratios=(5.0, 2.4 * columns))
        curves, cells = figure.add_subplot(grid[0]), grid[1].subgridspec(rows, columns)
        first = None  # one height for all, or a flat one would look uneven
        for place, (name, one) in enumerate(found.items()):
            covered = 100 * np.array(one["covered"])
            curves.plot(100 * np.array(NOMINAL), covered, ms=4, lw=1.6, label=name, **lines[name])
            axis = figure.add_subplot(cells[place // columns, place % columns], sharey=first)
            first = first or axis
            width = 1 / len(one["pit"])
            axis.bar(width * (np.arange(len(one["pit"])) + 0.5), one["pit"], width, ec="white",
                     color=lines[name]["color"], lw=0.4)  # fmt: skip
            axis.axhline(1, color=INK, lw=1)
            axis.set_xlim(0, 1)
            axis.set_title(name)
            if place + columns >= len(found):
                axis.set_xlabel("PIT")
            if place % columns == 0:
                axis.set_ylabel("Density")
        _finish_curves(curves)

    return to_png(draw, (5.4 + 2.6 * columns, max(4.8, 2.1 * rows)))


def _finish_curves(axis: Axes) -> None:
    axis.plot([0, 100], [0, 100], color=MUTED, lw=1, label="honest", zorder=0)
    axis.set_xlim(0, 100)
    axis.set_ylim(0, 100)
    axis.set_aspect("equal")
    axis.grid(**GRID)
    axis.set_xlabel("Central band, % of the forecast")
    axis.set_ylabel("Truth within the band, %")
    axis.set_title("Coverage (below the line: over-confident)")
    axis.legend(loc="upper left", frameon=False)


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
                if metric in found.get(who, {}):
                    look = line_of(source.look) | {"label": source.words}
                    look |= {"ms": 6.5, "mfc": "white"} if who == "twin" else {"ms": 4}
                    plot_band(axis, hours, found[who][metric], weights, **look)
            axis.set_title(HORIZONS[metric])
            axis.set_xlabel("Horizon, hours")
            axis.set_xticks(hours)
            axis.grid(axis="y", **GRID)
        axes[0].legend(frameon=False)

    return to_png(draw, (13.0, 4.0))


# ── guardians ─────────────────────────────────────────────────────────────────────────────────────


def draw_shifts(found: Mapping[str, Any]) -> bytes:
    """AUROC and recall of every guardian by kind and size of the shift."""

    def draw(figure: Figure) -> None:
        rows = figure.subplots(2, len(SHIFTS), sharey="row", sharex="col", squeeze=False)
        for column, (kind, (title, words)) in enumerate(SHIFTS.items()):
            for index, (name, one) in enumerate(found.items()):
                palette = GUARDIAN_LOOKS[index % len(GUARDIAN_LOOKS)]
                line = line_of(DENSITIES[name].look if name in DENSITIES else palette)
                points = [row for row in one["shifts"] if row["kind"] == kind]
                place = np.arange(len(points))
                for axis, metric in zip(rows[:, column], ("auroc", "recall"), strict=True):
                    values = [row[metric] for row in points]
                    axis.plot(place, values, label=name, ms=5, lw=1.6, **line)
                    axis.set_xticks(place, [f"{row['size']:g}" for row in points])
            rows[0, column].set_title(title)
            rows[1, column].set_xlabel(words)
        _finish_shifts(rows, next(iter(found.values()))["rate"])
        legend_below(figure, rows[0, 0], 5)

    return to_png(draw, (12.5, 7.2))


def _finish_shifts(rows: np.ndarray, rate: float) -> None:
    for axis in rows.ravel():
        axis.grid(axis="y", **GRID)
        axis.margins(x=0.08)
    for axis in rows[0]:
        axis.set_ylim(0.45, 1.03)
        axis.axhline(0.5, color=MUTED, lw=0.9, ls=(0, (2, 3)))
    for axis in rows[1]:
        axis.set_ylim(-0.03, 1.05)
        axis.axhline(rate, color=LIMIT, lw=0.9, ls=DASHES)
    rows[0, 0].set_ylabel("AUROC, moved against recorded\n(0.5: cannot tell)")
    rows[1, 0].set_ylabel(f"Refused at {100 * rate:g} %, share\n(dashed: asked false alarms)")


def draw_densities(name: str, guardian: Guardian, moved: Sequence[Moved]) -> bytes:
    """Log densities of recorded decisions beside those of moved ones."""
    scores = np.asarray(guardian.scores)
    refuse = float(np.quantile(scores, 0.05))
    low = min(float(np.quantile(scores, 0.001)), refuse)
    low, high = low - 0.8 * (scores[-1] - low), float(scores[-1])
    bins = list(np.linspace(low, high + 0.02 * (high - low), 70))
    tallest = 100 * np.max(np.histogram(moved[0].log_density, bins)[0]) / len(moved[0].log_density)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(SHIFTS), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (kind, (title, _)) in zip(axes, SHIFTS.items(), strict=True):
            _histogram(axis, moved[0], bins, "#9aa7b2", "recorded", filled=True)
            shifts = [one for one in moved if one.kind == kind]
            shades = matplotlib.colormaps["plasma"](np.linspace(0.0, 0.85, len(shifts)))
            for one, color in zip(shifts, shades, strict=True):
                _histogram(axis, one, bins, color, size_words(kind, one.size))
            axis.set_title(title)
            axis.set_ylabel("% of decisions")
            axis.axvline(refuse, color=LIMIT, lw=1.2, ls=DASHES)
            axis.axvline(float(guardian.threshold), color=INK, lw=1.0)
            axis.set_ylim(0, 1.15 * tallest)  # bars of what is far away may be cut
            axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
        axes[-1].set_xlabel(
            "Log density, nats; what lies further left is in the first bar, whose top may be cut\n"
            "(dashed: 5 % of select decisions lie left of it; solid: threshold of u)"
        )
        figure.suptitle(f"Where decisions of test patients lie: {name}", x=0.01, ha="left")

    return to_png(draw, (11.0, 9.5))


def _histogram(axis: Axes, one: Moved, bins, color, words: str, *, filled: bool = False) -> None:
    values = np.clip(one.log_density, bins[0], bins[-1])
    weights = np.full(len(values), 100 / max(len(values), 1))
    look: dict[str, Any] = {"color": color, "histtype": "stepfilled" if filled else "step"}
    axis.hist(values, bins, weights=weights, label=words, lw=1.5, **look)


def draw_search(best: Trial, trials: Sequence[Trial], config: SearchConfig) -> bytes:
    """How well swapped choices are told by weight, and what it costs; a line per setting."""
    settings = sorted({(one.share, one.bandwidth) for one in trials})
    panels = (
        ("swapped", "AUROC, recorded against swapped choices", None),
        ("small_changes", "Recorded changes of 1 or 2 levels refused, share", config.most_alarms),
        ("state_recall", f"Hours moved by {config.shift:g} sd refused, share", config.least_recall),
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 3)
        shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(config.shares)))
        colors = dict(zip(sorted(config.shares), shades, strict=True))
        for axis, (metric, words, bar) in zip(axes, panels, strict=True):
            for share, bandwidth in settings:
                line = [one for one in trials if (one.share, one.bandwidth) == (share, bandwidth)]
                place = sorted(config.bandwidths).index(bandwidth) % len(GUARDIAN_LOOKS)
                look = line_of(GUARDIAN_LOOKS[place]) | {"color": colors[share], "ms": 4}
                axis.plot([one.weight for one in line], [getattr(one, metric) for one in line],
                          label=f"share {share:g}, bandwidth {bandwidth:g}", **look)  # fmt: skip
            if bar is not None:
                axis.axhline(bar, color=LIMIT, lw=1.1, ls=DASHES)
            axis.plot(best.weight, getattr(best, metric), "o", ms=13, mfc="none", mec=RARE,
                      mew=1.8)  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_xticks(config.weights, [f"{weight:g}" for weight in config.weights])
            axis.set_xlabel("Weight of the chosen level")
            axis.set_title(words)
            axis.grid(axis="y", **GRID)
        legend_below(figure, axes[0], 4)
        figure.suptitle(
            "Search on select patients  (circle: chosen; dashed: what a trial must keep to; "
            f"share of log p(s): 0 conditional, 1 joint; refused at {100 * config.rate:g} %)",
            x=0.01, ha="left",
        )  # fmt: skip

    return to_png(draw, (15.0, 6.0))
