"""Figures of guardians: what they notice, where decisions lie, how the search went.

A figure is a function that writes a PNG, as saved folders take it. Lines differ in dash and marker
as well as in color.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stepdown.evaluation.guardian_search import SearchConfig, Trial
from stepdown.evaluation.shifts import Moved
from stepdown.guardian.threshold import Guardian
from stepdown.report.figures import INK, LIMIT, MUTED, STYLE

KINDS = {
    "offset": ("Signals moved, held over the hour", "Shift, sd of train patients"),
    "noise": ("Signals with noise in every sample", "Noise, sd of train patients"),
    "action": ("Chosen level moved", "Shift, levels"),
}
LOOKS = (("#c8322b", "-", "o"), ("#0072b2", "--", "s"), ("#1b7f3b", "-.", "^"))
LOOKS += (("#8e44ad", ":", "D"), ("#b36b00", (0, (5, 1)), "v"))

Draw = Callable[[Path], None]


def draw_shifts(found: Mapping[str, Any]) -> Draw:
    """AUROC and recall of every guardian by kind and size of the shift."""

    def draw(figure: Figure) -> None:
        rows = figure.subplots(2, len(KINDS), sharey="row", sharex="col", squeeze=False)
        for column, (kind, (title, axis_words)) in enumerate(KINDS.items()):
            for index, (name, one) in enumerate(found.items()):
                color, dash, marker = LOOKS[index % len(LOOKS)]
                points = [row for row in one["shifts"] if row["kind"] == kind]
                place = np.arange(len(points))
                for axis, metric in zip(rows[:, column], ("auroc", "recall"), strict=True):
                    axis.plot(place, [row[metric] for row in points], label=name, color=color,
                              ls=dash, marker=marker, ms=5, lw=1.6)  # fmt: skip
                    axis.set_xticks(place, [f"{row['size']:g}" for row in points])
            rows[0, column].set_title(title)
            rows[1, column].set_xlabel(axis_words)
        _finish_shifts(rows, next(iter(found.values()))["rate"])
        handles, labels = rows[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncol=5, frameon=False)

    return _saved(draw, (12.5, 7.2))


def _finish_shifts(rows: np.ndarray, rate: float) -> None:
    for axis in rows.ravel():
        axis.grid(axis="y", color="#e4e8eb", linewidth=0.6)
        axis.margins(x=0.08)
    for axis in rows[0]:
        axis.set_ylim(0.45, 1.03)
        axis.axhline(0.5, color=MUTED, lw=0.9, ls=(0, (2, 3)))
    for axis in rows[1]:
        axis.set_ylim(-0.03, 1.05)
        axis.axhline(rate, color=LIMIT, lw=0.9, ls=(0, (5, 3)))
    rows[0, 0].set_ylabel("AUROC, moved against recorded\n(0.5: cannot tell)")
    rows[1, 0].set_ylabel(f"Refused at {100 * rate:g} %, share\n(dashed: asked false alarms)")


def draw_densities(name: str, guardian: Guardian, moved: Sequence[Moved]) -> Draw:
    """Log densities of recorded decisions beside those of moved ones."""
    scores = np.asarray(guardian.scores)
    refuse = float(np.quantile(scores, 0.05))
    low = min(float(np.quantile(scores, 0.001)), refuse)
    low, high = low - 0.8 * (scores[-1] - low), float(scores[-1])
    bins = list(np.linspace(low, high + 0.02 * (high - low), 70))
    tallest = 100 * np.max(np.histogram(moved[0].log_density, bins)[0]) / len(moved[0].log_density)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(KINDS), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (kind, (title, _)) in zip(axes, KINDS.items(), strict=True):
            _histogram(axis, moved[0], bins, "#9aa7b2", "recorded", filled=True)
            shifts = [one for one in moved if one.kind == kind]
            shades = plt.get_cmap("plasma")(np.linspace(0.0, 0.85, len(shifts)))
            for one, color in zip(shifts, shades, strict=True):
                _histogram(axis, one, bins, color, size_words(kind, one.size))
            axis.set_title(title)
            axis.set_ylabel("% of decisions")
            axis.axvline(refuse, color=LIMIT, lw=1.2, ls=(0, (5, 3)))
            axis.axvline(float(guardian.threshold), color=INK, lw=1.0)
            axis.set_ylim(0, 1.15 * tallest)  # bars of what is far away may be cut
            axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
        axes[-1].set_xlabel(
            "Log density, nats; what lies further left is in the first bar, whose top may be cut\n"
            "(dashed: 5 % of select decisions lie left of it; solid: threshold of u)"
        )
        figure.suptitle(f"Where decisions of test patients lie: {name}", x=0.01, ha="left")

    return _saved(draw, (11.0, 9.5))


def size_words(kind: str, size: float) -> str:
    """The size of a shift with its unit."""
    if kind == "action":
        return f"{size:g} level" + ("" if size == 1 else "s")
    return f"{size:g} sd"


def _histogram(axis: Axes, one: Moved, bins, color, words: str, *, filled: bool = False) -> None:
    values = np.clip(one.log_density, bins[0], bins[-1])
    weights = np.full(len(values), 100 / max(len(values), 1))
    look: dict[str, Any] = {"color": color, "histtype": "stepfilled" if filled else "step"}
    axis.hist(values, bins, weights=weights, label=words, lw=1.5, **look)


def draw_search(best: Trial, trials: Sequence[Trial], config: SearchConfig) -> Draw:
    """How well swapped choices are told by weight, and what it costs; a line per setting."""
    settings = sorted({(one.share, one.bandwidth) for one in trials})
    panels = (
        ("swapped", "AUROC, recorded against swapped choices", None),
        ("small_changes", "Recorded changes of 1 or 2 levels refused, share", config.most_alarms),
        ("state_recall", f"Hours moved by {config.shift:g} sd refused, share", config.least_recall),
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 3)
        shades = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(config.shares)))
        colors = dict(zip(sorted(config.shares), shades, strict=True))
        for axis, (metric, words, bar) in zip(axes, panels, strict=True):
            for share, bandwidth in settings:
                line = [one for one in trials if (one.share, one.bandwidth) == (share, bandwidth)]
                dash, marker = LOOKS[sorted(config.bandwidths).index(bandwidth) % len(LOOKS)][1:]
                axis.plot([one.weight for one in line], [getattr(one, metric) for one in line],
                          color=colors[share], ls=dash, marker=marker, ms=4,
                          label=f"share {share:g}, bandwidth {bandwidth:g}")  # fmt: skip
            if bar is not None:
                axis.axhline(bar, color=LIMIT, lw=1.1, ls=(0, (5, 3)))
            axis.plot(best.weight, getattr(best, metric), "o", ms=13, mfc="none", mec="#c8322b",
                      mew=1.8)  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_xticks(config.weights, [f"{weight:g}" for weight in config.weights])
            axis.set_xlabel("Weight of the chosen level")
            axis.set_title(words)
            axis.grid(axis="y", color="#e4e8eb", linewidth=0.6)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncol=4, frameon=False)
        figure.suptitle(
            "Search on select patients  (circle: chosen; dashed: what a trial must keep to; "
            f"share of log p(s): 0 conditional, 1 joint; refused at {100 * config.rate:g} %)",
            x=0.01, ha="left",
        )  # fmt: skip

    return _saved(draw, (15.0, 6.0))


def _saved(draw: Callable[[Figure], None], size: tuple[float, float]) -> Draw:
    def save(path: Path) -> None:
        with plt.rc_context(STYLE):
            figure = plt.figure(figsize=size, layout="constrained")
            try:
                draw(figure)
                # Dates and versions stay out of the file: same numbers, same bytes.
                figure.savefig(path, dpi=110, metadata={"Software": None}, format="png")
            finally:
                plt.close(figure)

    return save
