"""Figures of comparisons: promise and truth, scores, levels, training, sensitivity, all cohorts.

Methods differ in dash and marker as well as in color; CORMPO is always blue and thick, clinicians
are always black. What a twin says is orange and open, what is true is blue and filled. Intervals
are over patients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from stepdown.evaluation.compare import (
    difference,
    estimate,
    over_cohorts,
    resample,
    values_of,
)
from stepdown.report.comparison import (
    Comparison,
    compared_rows,
    judges_of,
    mean_of,
    methods_of,
    paired,
    preset_of,
    same_question,
    word_of,
)
from stepdown.report.figures import (
    BARS,
    GRID,
    INK,
    LIMIT,
    MUTED,
    hide,
    legend_below,
    name_lines,
    plot_band,
    to_png,
)
from stepdown.report.grids import minus
from stepdown.report.labels import (
    BOLD,
    CEILING,
    CLINICIANS,
    CONSTANT,
    CONTRASTS,
    JUDGES,
    LEARNED,
    METRICS,
    OURS,
    PARAMETERS,
    PRESETS,
    REFERENCES,
    SCORED,
    SOURCES,
    TRUE_JUDGES,
    TRUTH,
    TWIN,
    TWIN_JUDGES,
    UNKNOWN_PRESET,
    line_of,
    look_of,
    name_of,
)
from stepdown.signals import LEVELS

BOTH: tuple[str, ...] = ("reward", "unsafe_hours")  # side by side
GOOD, BAD = "#14602f", "#a3261f"  # as on the page
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


@dataclass(frozen=True)
class SensitivityPoint:
    """One training with one number changed, minus the clinicians, before one judge."""

    parameter: str  # of PARAMETERS
    value: float | str
    judge: str
    metric: str
    mean: float
    low: float
    high: float
    chosen: bool = False  # the value of the comparison


def draw_comparison(comparison: Comparison) -> dict[str, bytes]:
    """All pictures that a comparison alone can give, by name."""
    values = constant_levels(comparison)
    kept = [one for one in comparison.curves.values() if any(x.ndim == 2 for x in one.values())]
    against = draw_against(comparison)
    pictures = {} if against is None else {"against": against}
    pictures |= {
        "exploitation": draw_exploitation(comparison),
        "scores": draw_score_distributions(comparison),
        "mix": draw_action_mix(comparison),
    }
    if values:
        first = next(iter(comparison.judged[comparison.twins[-1]].values()))
        pictures["levels"] = draw_constant_levels(values, first.row)
    if kept:
        pictures["curves"] = draw_curves(comparison)
    if any("levels" in one for one in comparison.curves.values()):
        pictures["training mix"] = draw_training_mix(comparison.curves)
    return pictures


# ── the first screen ──────────────────────────────────────────────────────────────────────────────


def draw_against(comparison: Comparison) -> bytes | None:
    """Reward and unsafe hours of each minus the clinicians', in truth; none without a truth.

    Filled: the interval does not include 0. Open and gray: undecided.
    """
    judge, truths = comparison.surest, comparison.truths
    judged = comparison.before(judge)
    if not truths or CLINICIANS not in judged:
        return None
    names = [x for x in compared_rows(comparison) if x in judged and x != CLINICIANS]
    names.sort(key=lambda x: values_of(judged[x], "reward").mean())
    weights = resample(judged[CLINICIANS].row)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharey=True, width_ratios=(1.25, 1))
        for axis, metric in zip(panels, BOTH, strict=True):
            shown = METRICS[metric]
            team = shown.scale * values_of(judged[CLINICIANS], metric)
            for place, name in enumerate(names):
                own = shown.scale * values_of(judged[name], metric)
                _against(axis, place, paired(own, team, weights), shown.sign)
            axis.axvline(0, color=INK, lw=1.2)
            better = "right" if shown.sign > 0 else "left"
            words = shown.words.replace(", %", ", points")
            axis.set_xlabel(f"{words}, minus the clinicians'\n({better} is better)")
            axis.grid(axis="x", **GRID)
            axis.set_axisbelow(True)
            axis.margins(x=0.16)  # room for the words behind an interval
        name_lines(panels[0], names)
        panels[0].set_ylim(-0.6, len(names) - 0.4)

    return to_png(draw, (10.5, 1.3 + 0.34 * len(names)))


def _against(axis: Axes, place: int, found: Mapping[str, float], sign: float) -> None:
    """One row: its interval and mean; green is better, red is worse, open gray is undecided."""
    word = word_of(found)
    color = {"above": GOOD, "below": BAD}.get(word, MUTED)
    if sign < 0 and word != "undecided":
        color = BAD if word == "above" else GOOD
    axis.plot([found["low"], found["high"]], [place] * 2, color=color, lw=2.2)
    fill = "white" if word == "undecided" else color
    marker = {"above": ">", "below": "<"}.get(word, "o")
    axis.plot(found["mean"], place, marker=marker, ms=7, color=color, mfc=fill, mew=1.6, zorder=3)
    if word == "undecided":
        axis.annotate("undecided", (found["high"], place), (9, 0), textcoords="offset points",
                      va="center", fontsize=8.5, color=MUTED, annotation_clip=False)  # fmt: skip


# ── what the twin promises, what the truth keeps ──────────────────────────────────────────────────


def draw_exploitation(comparison: Comparison) -> bytes:
    """What the twin promises for every method and what the truth keeps, best truth on top.

    Both are differences to the clinicians from the same starts, so that an interval speaks of the
    method and not of the patients; without clinicians, to holding the level, or to nothing.
    """
    last = comparison.surest
    judged = comparison.judged[last]
    known = [x for x in (CLINICIANS, "hold") if all(x in y for y in comparison.judged.values())]
    reference = known[0] if known else None
    wanted = [x for x in (*LEARNED, *REFERENCES, CONTRASTS[0]) if x in judged and x != reference]
    methods = sorted(wanted, key=lambda x: values_of(judged[x], "reward").mean())
    apart = f" minus {name_of(reference).lower()}'" if reference == CLINICIANS else ""
    apart = apart or (" minus that of holding the level" if reference else "")

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.6, 1))
        for axis, metric in zip((left, right), BOTH, strict=True):
            _dumbbells(axis, methods, _gains(comparison, methods, metric, reference))
            if reference is not None:
                axis.axvline(0, color=INK, lw=1.0)
            better = "right" if METRICS[metric].sign > 0 else "left"
            axis.set_xlabel(f"{METRICS[metric].words}{apart} ({better} is better)")
        name_lines(left, methods)
        words = f"ordered by {JUDGES[last].full}"
        left.set_title(f"What the twin promises, what the truth keeps ({words})")
        handles = [Line2D([], [], ls="none", label=JUDGES[judge].legend, **_look(judge))
                   for judge in comparison.judges]  # fmt: skip
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)

    return to_png(draw, (12.5, 1.9 + 0.36 * len(methods)))


def _dumbbells(
    axis: Axes, methods: Sequence[str], found: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> None:
    """One line per method: an arrow from a twin's value to the true one, with intervals."""
    truths = [judge for judge in found if judge in TRUE_JUDGES]
    twin = next((judge for judge in reversed(TWIN_JUDGES) if judge in found), None)
    for place, method in enumerate(methods):
        if method in BOLD:
            axis.axhspan(place - 0.5, place + 0.5, color=TRUTH, alpha=0.08, lw=0)
        own = {judge: found[judge][method] for judge in found if method in found[judge]}
        for judge, one in own.items():
            y, kind = place - 0.24 * (judge == "fresh" and len(truths) > 1), _look(judge)
            y += 0.24 * (judge != twin and judge in TWIN_JUDGES)
            axis.plot([one["low"], one["high"]], [y] * 2, color=kind["color"], lw=4.5, alpha=0.3,
                      solid_capstyle="butt")  # fmt: skip
            axis.plot(one["mean"], y, **kind, ls="none", zorder=3)
        if twin in own and truths and truths[0] in own:
            arrow = {"arrowstyle": "->", "color": MUTED, "lw": 1.1, "shrinkA": 5, "shrinkB": 5}
            end, start = own[truths[0]]["mean"], own[twin]["mean"]
            axis.annotate("", (end, place), (start, place), arrowprops=arrow)
    axis.grid(axis="x", **GRID)
    axis.set_axisbelow(True)
    axis.set_ylim(-0.6, len(methods) - 0.4)


def _gains(
    comparison: Comparison, methods: Sequence[str], metric: str, reference: str | None
) -> dict[str, dict[str, dict[str, float]]]:
    """Means and intervals by judge and method, minus the reference's."""
    gains: dict[str, dict[str, dict[str, float]]] = {}
    for judge in comparison.judges:
        values = {
            method: METRICS[metric].scale * values_of(one, metric)
            for method, one in comparison.before(judge).items()
        }
        weights = resample(next(iter(comparison.judged[judge].values())).row)
        zero = np.zeros((1, weights.shape[1])) if reference is None else values[reference]
        gains[judge] = {
            x: estimate(difference(values[x], zero), weights) for x in methods if x in values
        }
    return gains


def _look(judge: str) -> dict[str, Any]:
    if judge in TWIN_JUDGES:
        shape = {"marker": "s", "ms": 7} if judge == "twin" else {"marker": "^", "ms": 5}
        return {"color": TWIN, "mfc": "white", "mew": 1.6, **shape}
    return {"color": TRUTH, "marker": "o" if judge == "patients" else "D",
            "ms": 7 if judge == "patients" else 4.5}  # fmt: skip


# ── scores and levels ─────────────────────────────────────────────────────────────────────────────


def draw_score_distributions(comparison: Comparison) -> bytes:
    """Reward, ACP, weaning and unsafe hours of all episodes, a row for each method (Fig. 4)."""
    judge = comparison.surest
    judged = comparison.judged[judge]
    shown = [x for x in SCORED if x in judged] or list(judged)[:4]
    metrics = {
        name: metric
        for name, metric in METRICS.items()
        if np.isfinite(values_of(judged[shown[0]], name)).all()  # it may not be defined
    }

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(shown), len(metrics), sharex="col", sharey="col", squeeze=False)
        for row, method in zip(axes, shown, strict=True):
            for axis, (name, metric) in zip(row, metrics.items(), strict=True):
                values = metric.scale * values_of(judged[method], name).ravel()
                _histogram(axis, values, metric.edges, look_of(method)["color"])
            row[0].set_ylabel(f"{name_of(method)}\n% of episodes")
        for axis, metric in zip(axes[-1], metrics.values(), strict=True):
            axis.set_xlabel(metric.axis)
            axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        words = f"Scores of all episodes, {JUDGES[judge].words} (line: mean)"
        figure.suptitle(words, x=0.01, ha="left")

    return to_png(draw, (13.5, 1.3 + 1.65 * len(shown)))


def _histogram(axis: Axes, values: np.ndarray, bins: np.ndarray, color: str) -> None:
    weights = np.full(values.size, 100 / values.size)
    inside = np.clip(values, bins[0], bins[-1] - 1e-6)  # what lies beyond joins the last bar
    axis.hist(inside, bins.tolist(), weights=weights, color=color, ec="white", lw=0.4)
    axis.axvline(values.mean(), color=LIMIT, lw=1.6)
    words = minus(f"mean {values.mean():.2f}")
    left = 2 * values.mean() > bins[0] + bins[-1]  # beside the line, not across it
    place, side = (0.04, "left") if left else (0.97, "right")
    axis.text(place, 0.93, words, transform=axis.transAxes, ha=side, va="top", fontsize=9)
    axis.grid(axis="y", **GRID)
    axis.set_axisbelow(True)
    axis.margins(y=0.3)  # room for the words


def constant_levels(comparison: Comparison) -> dict[str, Float[np.ndarray, "n levels"]]:
    """Reward of every start under P2 to P9, by the twin and in the true test patients."""
    found = {}
    twins = dict.fromkeys(comparison.twins[-1:], "twin")
    for judge, who in (twins | {"patients": "truth"}).items():
        judged = comparison.judged.get(judge, {})
        if all(name in judged for name in CONSTANT):
            found[who] = np.stack([values_of(judged[x], "reward").mean(0) for x in CONSTANT], 1)
    return found


def draw_constant_levels(
    values: Mapping[str, Float[np.ndarray, "n levels"]],
    row: Int[np.ndarray, " n"],
    recorded: Float[np.ndarray, " levels"] | None = None,
) -> bytes:
    """What holding each level for six hours is worth: true, and as models believe.

    Each start's mean over the eight levels is taken off, so that the intervals speak of levels and
    not of patients; it stands in the legend. Where models rise and the truth falls, learning
    without a guardian is led astray. `recorded` is the share of recorded hours at each level.
    """
    weights = resample(row)

    def draw(figure: Figure) -> None:
        heights = (3.2,) if recorded is None else (3.2, 1)
        axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        top, last = axes[0, 0], axes[-1, 0]
        for who, source in SOURCES.items():
            if who in values:
                each = np.asarray(values[who], float)
                words = minus(f"{source.words} (mean {each.mean():.2f})")
                apart = each - each.mean(1, keepdims=True)
                plot_band(top, LEVELS, apart, weights, lw=2, label=words, **line_of(source.look))
        top.axhline(0, color=INK, lw=0.8)
        top.set_ylabel("Reward of 6 hours, minus the mean of the eight levels")
        top.set_title("The same patients, one level held for six hours (shaded: 95 % intervals)")
        top.legend(frameon=False)
        top.grid(axis="y", **GRID)
        if recorded is not None:
            last.bar(LEVELS, 100 * recorded, color=BARS, width=0.7)
            last.set_ylabel("% of recorded\nhours")
        last.set_xticks(LEVELS, [f"P{level}" for level in LEVELS])
        last.set_xlabel("Level held")

    return to_png(draw, (8.0, 6.2))


def draw_curves(comparison: Comparison) -> bytes:
    """How training went: the mean over seeds, and their range for CORMPO."""
    methods = [x for x in LEARNED if x in comparison.curves]
    methods += [x for x in comparison.curves if x not in methods]
    shown = [x for x in CURVES if any(x in comparison.curves[y] for y in methods)]
    if not shown:
        raise ValueError("expected curves of a training, got none. Keep what training reports.")
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(rows, columns, squeeze=False)
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

    return to_png(draw, (14.0, 1.2 + 2.9 * rows))


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


def draw_action_mix(comparison: Comparison) -> bytes:
    """Which levels were chosen, all episodes and hours of a judge; a bar for each method."""
    judged = comparison.before(comparison.surest)
    methods = [x for x in judged if x not in CONSTANT][::-1]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        shades = matplotlib.colormaps["viridis"](np.linspace(0.02, 0.98, len(LEVELS)))
        shares = 100 * np.array([judged[x].level_shares for x in methods])
        left = np.zeros(len(methods))
        for place, level in enumerate(LEVELS):
            bars = axis.barh(methods, shares[:, place], left=left, color=shades[place], ec="white",
                             lw=0.5, label=f"P{level}")  # fmt: skip
            words = [f"{x:.0f}" if x >= 6 else "" for x in shares[:, place]]
            axis.bar_label(bars, words, label_type="center", fontsize=8,
                           color="white" if place < 4 else INK)  # fmt: skip
            left += shares[:, place]
        name_lines(axis, methods)
        axis.margins(y=0.01)
        axis.set_xlim(0, 100)
        axis.set_xlabel("Share of the decisions, %")
        axis.set_title(f"Levels chosen, {JUDGES[comparison.surest].words}")
        figure.legend(loc="outside right upper", frameon=False, reverse=True, title="Level")

    return to_png(draw, (11.0, 1.6 + 0.34 * len(methods)))


def draw_training_mix(curves: Mapping[str, Mapping[str, np.ndarray]]) -> bytes:
    """How the levels that a policy sets in its own imagination change over training."""
    order = dict.fromkeys((*LEARNED, *curves))
    methods = [x for x in order if "levels" in curves.get(x, {})]
    columns = min(len(methods), 4)
    rows = -(-len(methods) // columns)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        shades = matplotlib.colormaps["viridis"](np.linspace(0.02, 0.98, len(LEVELS)))
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

    return to_png(draw, (13.0, 1.0 + 2.4 * rows))


def draw_sensitivity(points: Sequence[SensitivityPoint]) -> bytes:
    """What changes with one number of CORMPO, all others kept (App. F); intervals over patients.

    Points are paired differences to the clinicians, whose intervals are far narrower.
    """
    parameters = [x for x in PARAMETERS if any(point.parameter == x for point in points)]
    metrics: list[str] = [x for x in METRICS if any(point.metric == x for point in points)]
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
                _sensitivity(axis, own, METRICS[metric].scale)
            row[0].set_ylabel(f"{METRICS[metric].short}\nminus clinicians'")
        for axis, parameter in zip(axes[-1], parameters, strict=True):
            axis.set_xlabel(PARAMETERS[parameter])
        legend_below(figure, axes[0, 0], 4)
        words = f"{name_of(OURS)} with one number changed (ring: as in the tables)"
        figure.suptitle(words, x=0.01, ha="left", fontsize=11)

    return to_png(draw, (1.2 + 3.3 * len(parameters), 1.5 + 2.1 * len(metrics)))


def _sensitivity(axis: Axes, points: Sequence[SensitivityPoint], scale: float) -> None:
    """Values evenly spaced: they are chosen by hand, some are zero; words as they come."""
    values = list(dict.fromkeys(point.value for point in points))
    if not any(isinstance(x, str) for x in values):
        values.sort()
    judges = [judge for judge in JUDGES if any(point.judge == judge for point in points)]
    for number, judge in enumerate(judges):
        own = [x for x in points if x.judge == judge]
        own.sort(key=lambda x: values.index(x.value))
        shift = 0.1 * (number - (len(judges) - 1) / 2)
        place = np.array([values.index(x.value) for x in own]) + shift
        mean, low, high = (scale * np.array([getattr(x, y) for x in own])
                           for y in ("mean", "low", "high"))  # fmt: skip
        look = SOURCES["twin" if judge in TWIN_JUDGES else "truth"].look
        kind = {"color": look.color, "ls": look.dash}
        kind["marker"] = {"fresh": "D", "tdt": "^"}.get(judge, look.marker)
        kind["mfc"] = look.color if judge == "patients" else "white"
        axis.errorbar(place, mean, [mean - low, high - mean], ms=5, lw=1.4, elinewidth=1.1,
                      label=JUDGES[judge].words, **kind)  # fmt: skip
        chosen = [x.chosen for x in own]
        axis.plot(place[chosen], mean[chosen], "o", ms=12, mfc="none", mec=LIMIT, mew=1.6)
    words = [x.replace(" ", "\n") if isinstance(x, str) else f"{x:g}" for x in values]
    axis.set_xticks(range(len(values)), words)
    axis.grid(axis="y", **GRID)


def draw_across(comparisons: Sequence[Comparison]) -> bytes:
    """Reward and unsafe hours minus the clinicians', a mark for every cohort, a bar for all."""
    asked = [x for x in same_question(comparisons) if CLINICIANS in x.methods()]
    judge = judges_of(asked)[-1]
    methods = [x for x in methods_of(asked) if x in (*LEARNED, "hold")]
    gains = {x: _cohort_gains(asked, judge, x, "reward") for x in (*methods, CEILING)}
    methods = sorted(methods, key=lambda x: float(np.nanmean(gains[x])))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.4, 1))
        shown = [*methods, CEILING] if np.isfinite(gains[CEILING]).any() else methods
        for axis, metric in zip((left, right), BOTH, strict=True):
            _marks(axis, asked, [_cohort_gains(asked, judge, x, metric) for x in shown])
        name_lines(left, shown)
        left.set_xlabel("Reward of 6 hours minus the clinicians' (right is better)")
        right.set_xlabel("Unsafe hours, points, minus the clinicians' (left is better)")
        left.set_title(f"{len(asked)} cohorts, {JUDGES[judge].words}")
        looks = {preset_of(x): PRESETS.get(preset_of(x), UNKNOWN_PRESET) for x in asked}
        handles = [Line2D([], [], ls="none", color=look.color, marker=look.marker, label=words)
                   for words, look in looks.items()]  # fmt: skip
        handles.append(Line2D([], [], color=INK, marker="|", label="all: mean and 95 % interval"))
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)

    return to_png(draw, (12.5, 1.9 + 0.4 * len(methods)))


def _cohort_gains(asked: Sequence[Comparison], judge: str, method: str, metric: str) -> np.ndarray:
    """A method minus the clinicians, one number for every cohort."""
    each = [mean_of(x, judge, method, f"{metric}_minus_{CLINICIANS}") for x in asked]
    return METRICS[metric].scale * np.array(each)


def _marks(axis: Axes, asked: Sequence[Comparison], gains: Sequence[np.ndarray]) -> None:
    for place, values in enumerate(gains):
        found = over_cohorts(values.tolist())
        axis.plot([found["low"], found["high"]], [place] * 2, color=INK, lw=2, alpha=0.75)
        axis.plot(found["mean"], place, "|", color=INK, ms=13, mew=2)
        for number, (one, value) in enumerate(zip(asked, values, strict=True)):
            look = PRESETS.get(preset_of(one), UNKNOWN_PRESET)
            y = place + 0.22 * (number / max(len(asked) - 1, 1) - 0.5) * 2
            axis.plot(value, y, look.marker, color=look.color, ms=5, alpha=0.8, mew=0, zorder=3)
    axis.axvline(0, color=INK, lw=1.0)
    axis.grid(axis="x", **GRID)
    axis.set_axisbelow(True)
    axis.set_ylim(-0.6, len(gains) - 0.4)
