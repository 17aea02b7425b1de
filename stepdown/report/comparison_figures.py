"""Figures of a comparison: what a twin promises and the truth keeps, scores of all episodes.

Methods differ in dash and marker as well as in color; CORMPO is always blue and thick, clinicians
are always black. What a twin says is orange and open, what is true is blue and filled.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from stepdown.evaluation.compare import Metric, difference, estimate, resample, values_of
from stepdown.report.comparison import (
    CLINICIANS,
    CONTRASTS,
    JUDGES,
    LEARNED,
    OURS,
    REFERENCES,
    WORDS,
    Comparison,
    name_of,
)
from stepdown.report.figures import INK, LIMIT, MUTED, STYLE

TWIN, TRUTH = "#d55e00", "#0072b2"
GRID: dict[str, Any] = {"color": "#e4e8eb", "linewidth": 0.6}
DPI = 110
LOOKS: dict[str, tuple[str, Any, str]] = {  # color, dash, marker
    "cormpo_kde": ("#0072b2", "-", "o"),
    "cormpo_flow": ("#56b4e9", (0, (6, 1.5)), "s"),
    "cormpo_unshaped": ("#0072b2", (0, (1, 1.2)), "^"),
    "bc": ("#8a6d00", (0, (5, 1.5, 1, 1.5)), "D"),
    "mbpo": ("#d55e00", (0, (5, 2)), "v"),
    "mbpo_shaped": ("#d55e00", (0, (1, 1.2)), "<"),
    "mopo": ("#009e73", (0, (5, 2)), "P"),
    "mopo_shaped": ("#009e73", (0, (1, 1.2)), "X"),
    "svr": ("#cc79a7", (0, (8, 2)), "h"),
    "disagreement": ("#7b5cb8", (0, (5, 2)), "p"),
    "disagreement_shaped": ("#7b5cb8", (0, (1, 1.2)), "*"),
    "mbpo_twin": ("#d55e00", "-", ">"),
    "cormpo_twin": ("#0072b2", (0, (3, 1, 1, 1)), "H"),
    "clinicians": ("#222222", "-", "o"),
    "expert": ("#5f6b76", (0, (3, 1)), "d"),
}
OTHER = ("#5f6b76", "-.", "x")
SCORES: dict[Metric, tuple[str, np.ndarray]] = {
    "reward": ("Reward of 6 h", np.linspace(-12, 4, 33)),
    "acp": ("ACP, levels", np.arange(-0.5, 13, 1)),
    "ws_gradient": ("Weaning score (gradient)", np.linspace(-1.0625, 2.0625, 26)),
    "unsafe_hours": ("Unsafe hours, %", np.arange(-100 / 12, 110, 100 / 6)),
}


def look_of(method: str) -> dict[str, Any]:
    """How a method's line is drawn everywhere."""
    color, dash, marker = LOOKS.get(method, OTHER)
    width = 2.4 if method in (OURS, CLINICIANS) else 1.5
    return {"color": color, "ls": dash, "marker": marker, "ms": 4.5, "lw": width}


def draw_exploitation(comparison: Comparison, path: Path) -> None:
    """What the twin promises for every method and what the truth keeps, best truth on top.

    Both are differences to the clinicians from the same starts, so that an interval speaks of the
    method and not of the patients; without clinicians, to holding the level, or to nothing.
    """
    last = comparison.judges[-1]
    judged = comparison.judged[last]
    known = [x for x in (CLINICIANS, "hold") if all(x in y for y in comparison.judged.values())]
    reference = known[0] if known else None
    wanted = [x for x in (*LEARNED, *REFERENCES, CONTRASTS[0]) if x in judged and x != reference]
    methods = sorted(wanted, key=lambda x: values_of(judged[x], "reward").mean())
    minus = f" minus {name_of(reference).lower()}'" if reference == CLINICIANS else ""
    minus = minus or (" minus that of holding the level" if reference else "")

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.6, 1))
        _dumbbells(left, comparison, methods, ("reward", reference))
        _dumbbells(right, comparison, methods, ("unsafe_hours", reference))
        left.set_yticks(range(len(methods)), [name_of(x) for x in methods])
        for label, method in zip(left.get_yticklabels(), methods, strict=True):
            label.set_fontweight("bold" if method == OURS else "normal")
        left.set_xlabel(f"Reward of 6 hours{minus} (right is better)")
        right.set_xlabel(f"Unsafe hours, %{minus} (left is better)")
        left.set_title(f"What the twin promises, what the truth keeps (ordered by {WORDS[last]})")
        handles = [_mark(judge) for judge in comparison.judges]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)

    save(draw, path, (12.5, 1.9 + 0.36 * len(methods)))


def _dumbbells(
    axis: Axes, comparison: Comparison, methods: Sequence[str], what: tuple[Metric, str | None]
) -> None:
    """One line per method: an arrow from the twin's value to the true one, with intervals."""
    truths = [judge for judge in comparison.judges if judge != "twin"]
    found = {judge: _gains(comparison, judge, methods, what) for judge in comparison.judges}
    for place, method in enumerate(methods):
        if method == OURS:
            axis.axhspan(place - 0.5, place + 0.5, color=TRUTH, alpha=0.08, lw=0)
        own = {judge: found[judge][method] for judge in found if method in found[judge]}
        for judge, one in own.items():
            y, kind = place - 0.24 * (judge == "fresh" and len(truths) > 1), _look(judge)
            axis.plot([one["low"], one["high"]], [y] * 2, color=kind["color"], lw=4.5, alpha=0.3,
                      solid_capstyle="butt")  # fmt: skip
            axis.plot(one["mean"], y, **kind, ls="none", zorder=3)
        if "twin" in own and truths and truths[0] in own:
            arrow = {"arrowstyle": "->", "color": MUTED, "lw": 1.1, "shrinkA": 5, "shrinkB": 5}
            end, start = own[truths[0]]["mean"], own["twin"]["mean"]
            axis.annotate("", (end, place), (start, place), arrowprops=arrow)
    if what[1] is not None:
        axis.axvline(0, color=INK, lw=1.0)
    axis.grid(axis="x", **GRID)
    axis.set_axisbelow(True)
    axis.set_ylim(-0.6, len(methods) - 0.4)


def _gains(
    comparison: Comparison, judge: str, methods: Sequence[str], what: tuple[Metric, str | None]
) -> dict[str, dict[str, float]]:
    """Means and intervals over patients before one judge, minus the reference's."""
    (metric, reference), judged = what, comparison.judged[judge]
    scale = 100.0 if metric == "unsafe_hours" else 1.0
    weights = resample(next(iter(judged.values())).row)
    gains = {}
    for method in (x for x in methods if x in judged):
        values = scale * values_of(judged[method], metric)
        if reference is not None:
            values = difference(values, scale * values_of(judged[reference], metric))
        gains[method] = estimate(values, weights)
    return gains


def _look(judge: str) -> dict[str, Any]:
    if judge == "twin":
        return {"color": TWIN, "marker": "s", "mfc": "white", "mew": 1.6, "ms": 7}
    return {"color": TRUTH, "marker": "o" if judge == "patients" else "D",
            "ms": 7 if judge == "patients" else 4.5}  # fmt: skip


def _mark(judge: str) -> Line2D:
    words = {
        "twin": "what the twin says (shaded: 95 % interval)",
        "patients": "true test patients (arrow: from the twin to here)",
        "fresh": "fresh patients",
    }
    return Line2D([], [], ls="none", label=words[judge], **_look(judge))


def draw_score_distributions(
    comparison: Comparison, path: Path, judge: str | None = None, methods: Sequence[str] = ()
) -> None:
    """Reward, ACP, weaning and unsafe hours of all episodes, a row for each method (Fig. 4)."""
    judge = judge or comparison.judges[-1]
    judged = comparison.judged[judge]
    usual = [x for x in (CLINICIANS, "mbpo", "mopo", OURS) if x in judged]
    shown = list(methods) or usual or list(judged)[:4]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(shown), len(SCORES), sharex="col", sharey="col", squeeze=False)
        for row, method in zip(axes, shown, strict=True):
            for axis, (metric, (_, bins)) in zip(row, SCORES.items(), strict=True):
                scale = 100.0 if metric == "unsafe_hours" else 1.0
                values = scale * values_of(judged[method], metric).ravel()
                _histogram(axis, values, bins, look_of(method)["color"])
            row[0].set_ylabel(f"{name_of(method)}\n% of episodes")
        for axis, (words, _) in zip(axes[-1], SCORES.values(), strict=True):
            axis.set_xlabel(words)
            axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        figure.suptitle(f"Scores of all episodes, {JUDGES[judge]} (line: mean)", x=0.01, ha="left")

    save(draw, path, (13.5, 1.3 + 1.65 * len(shown)))


def _histogram(axis: Axes, values: np.ndarray, bins: np.ndarray, color: str) -> None:
    weights = np.full(values.size, 100 / values.size)
    inside = np.clip(values, bins[0], bins[-1] - 1e-6)  # what lies beyond joins the last bar
    axis.hist(inside, bins.tolist(), weights=weights, color=color, ec="white", lw=0.4)
    axis.axvline(values.mean(), color=LIMIT, lw=1.6)
    words = f"mean {values.mean():.2f}".replace("-", "−")
    left = 2 * values.mean() > bins[0] + bins[-1]  # beside the line, not across it
    place, side = (0.04, "left") if left else (0.97, "right")
    axis.text(place, 0.93, words, transform=axis.transAxes, ha=side, va="top", fontsize=9)
    axis.grid(axis="y", **GRID)
    axis.set_axisbelow(True)
    axis.margins(y=0.3)  # room for the words


def save(draw: Callable[[Figure], None], path: Path, size: tuple[float, float]) -> None:
    """Draw and write one figure; dates and versions stay out: same numbers, same bytes."""
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=size, layout="constrained")
        try:
            draw(figure)
            figure.savefig(path, dpi=DPI, metadata={"Software": None}, format="png")
        finally:
            plt.close(figure)
