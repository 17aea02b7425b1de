"""Figures of guardians: what they notice, where decisions lie, how the search went.

Lines differ in dash and marker as well as in color.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stepdown.evaluation.guardians import Moved, SearchConfig, Trial
from stepdown.guardian.threshold import Guardian
from stepdown.report.figures import DASHES, GRID, INK, LIMIT, MUTED, RARE, to_png
from stepdown.report.labels import SHIFTS, Look, size_words

LOOKS = (
    Look(RARE, "-", "o"),
    Look("#0072b2", "--", "s"),
    Look("#1b7f3b", "-.", "^"),
    Look("#8e44ad", ":", "D"),
    Look("#b36b00", (0, (5, 1)), "v"),
)


def draw_shifts(found: Mapping[str, Any]) -> bytes:
    """AUROC and recall of every guardian by kind and size of the shift."""

    def draw(figure: Figure) -> None:
        rows = figure.subplots(2, len(SHIFTS), sharey="row", sharex="col", squeeze=False)
        for column, (kind, (title, words)) in enumerate(SHIFTS.items()):
            for index, (name, one) in enumerate(found.items()):
                look = LOOKS[index % len(LOOKS)]
                points = [row for row in one["shifts"] if row["kind"] == kind]
                place = np.arange(len(points))
                for axis, metric in zip(rows[:, column], ("auroc", "recall"), strict=True):
                    axis.plot(place, [row[metric] for row in points], label=name, color=look.color,
                              ls=look.dash, marker=look.marker, ms=5, lw=1.6)  # fmt: skip
                    axis.set_xticks(place, [f"{row['size']:g}" for row in points])
            rows[0, column].set_title(title)
            rows[1, column].set_xlabel(words)
        _finish_shifts(rows, next(iter(found.values()))["rate"])
        handles, labels = rows[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncol=5, frameon=False)

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
                look = LOOKS[sorted(config.bandwidths).index(bandwidth) % len(LOOKS)]
                axis.plot([one.weight for one in line], [getattr(one, metric) for one in line],
                          color=colors[share], ls=look.dash, marker=look.marker, ms=4,
                          label=f"share {share:g}, bandwidth {bandwidth:g}")  # fmt: skip
            if bar is not None:
                axis.axhline(bar, color=LIMIT, lw=1.1, ls=DASHES)
            axis.plot(best.weight, getattr(best, metric), "o", ms=13, mfc="none", mec=RARE,
                      mew=1.8)  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_xticks(config.weights, [f"{weight:g}" for weight in config.weights])
            axis.set_xlabel("Weight of the chosen level")
            axis.set_title(words)
            axis.grid(axis="y", **GRID)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncol=4, frameon=False)
        figure.suptitle(
            "Search on select patients  (circle: chosen; dashed: what a trial must keep to; "
            f"share of log p(s): 0 conditional, 1 joint; refused at {100 * config.rate:g} %)",
            x=0.01, ha="left",
        )  # fmt: skip

    return to_png(draw, (15.0, 6.0))
