"""What all figures share: the style, the colors that are no method's, and how one becomes a PNG.

A figure is a function of numbers that gives the bytes of a PNG: same numbers, same bytes. No panel
needs color to be understood, every axis names its unit, limits are thin lines.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stepdown.evaluation.compare import Weights, estimate
from stepdown.report.labels import BOLD, name_of
from stepdown.signals import HIGHEST, LOWEST, MAP, SIGNALS

INK, MUTED, FAINT, LIMIT, RARE = "#222222", "#5f6b76", "#b9c0c6", "#b36b00", "#c8322b"
LEVEL_COLOR, BARS = "#3b4a59", "#5b8db8"
GRID: dict[str, Any] = {"color": "#e4e8eb", "linewidth": 0.6}
DASHES = (0, (5, 3))  # of limits
DPI = 110

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


def to_png(draw: Callable[[Figure], None], size: tuple[float, float], dpi: int = DPI) -> bytes:
    """Draw one figure of so many inches; dates and versions stay out of the file."""
    out = io.BytesIO()
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=size, layout="constrained")
        try:
            draw(figure)
            figure.savefig(out, dpi=dpi, metadata={"Software": None}, format="png")
        finally:
            plt.close(figure)
    return out.getvalue()


def name_lines(axis: Axes, methods: Sequence[str]) -> None:
    """Methods as lines, from below; CORMPO's name is bold."""
    axis.set_yticks(range(len(methods)), [name_of(x) for x in methods])
    for label, method in zip(axis.get_yticklabels(), methods, strict=True):
        label.set_fontweight("bold" if method in BOLD else "normal")


def name_levels(axis: Axes) -> None:
    """Levels as heights."""
    axis.set_ylim(LOWEST - 0.5, HIGHEST + 0.5)
    axis.set_yticks([2, 4, 6, 8], ["P2", "P4", "P6", "P8"])


def words_of(column: int, between: str = ", ") -> str:
    """One of the signals that every recording has, with its unit."""
    name = "MAP" if column == MAP else SIGNALS[column].label
    return f"{name}{between}{SIGNALS[column].unit}"


def plot_band(axis: Axes, x: Sequence[int], values: np.ndarray, weights: Weights, **look) -> None:
    """Means over starts as a line, a value for each `x`; shaded: 95 % intervals over patients."""
    found = [estimate(each[None], weights) for each in np.asarray(values, float).T]
    low, mean, high = ([one[name] for one in found] for name in ("low", "mean", "high"))
    axis.plot(x, mean, **look)
    axis.fill_between(x, low, high, color=look["color"], alpha=0.15, lw=0)


def legend_below(figure: Figure, axis: Axes, columns: int) -> None:
    """What the lines of an axis mean, below all panels."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns,
                  frameon=False)  # fmt: skip


def hide(axes: np.ndarray, used: int) -> None:
    """Panels without a method; the one above such a panel shows its axis instead."""
    for place, axis in enumerate(axes.ravel()):
        axis.set_visible(place < used)
        axis.tick_params(labelbottom=place + axes.shape[1] >= used)
