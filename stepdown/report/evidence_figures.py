"""Figures of the evidence beyond the twin: ranks, records alone, regret, subgroups, elsewhere.

As in all figures, what is true is blue and filled, what a twin says orange and open.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stepdown.report.evidence import Findings, Row, gap_rows, mean_over, ranked, word_of
from stepdown.report.figures import FAINT, GRID, INK, LIMIT, MUTED, legend_below, to_png
from stepdown.report.grids import minus
from stepdown.report.labels import (
    BOLD,
    CLINICIANS,
    ESTIMATORS,
    JUDGES,
    PLOTTED,
    RECOMMENDED,
    TRUTH,
    look_of,
    name_of,
)

COLUMNS = {"twin": "by the twin", "truth": "by the truth", "second_twin": "by the second twin"}


def draw_evidence(findings: Findings) -> dict[str, bytes]:
    """Every figure that the findings allow, by name."""
    pictures = {}
    if findings.truth is not None:
        pictures["ranks"] = draw_ranks(gap_rows(findings))
    if findings.records.get("policies"):
        pictures["records alone"] = draw_from_records(findings)
    if findings.truth is not None and findings.choice.get("choices"):
        pictures["regret"] = draw_regret(findings)
    if findings.groups.get("rows"):
        pictures["subgroups"] = draw_subgroups(findings)
    if findings.transfer:
        pictures["elsewhere"] = draw_transfer(findings)
    return pictures


def draw_ranks(rows: Sequence[Row]) -> bytes:
    """The learned methods ranked by reward: by the twin, by the truth, by the second twin."""
    learned = [row for row in rows if row["rank_truth"] is not None]
    shown = [x for x in COLUMNS if all(row[f"rank_{x}"] is not None for row in learned)]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for row in learned:
            kind: dict[str, Any] = look_of(row["method"]) | {"ms": 7}
            places = [row[f"rank_{x}"] for x in shown]
            axis.plot(range(len(shown)), places, **kind)
            words = name_of(row["method"])
            bold = "bold" if row["method"] in BOLD else "normal"
            left, right = f"{words}  {row[shown[0]]:.2f}", f"{row[shown[-1]]:.2f}  {words}"
            axis.text(-0.06, places[0], minus(left), ha="right", va="center", fontweight=bold)
            axis.text(len(shown) - 0.94, places[-1], minus(right), ha="left", va="center",
                      fontweight=bold)  # fmt: skip
        axis.set_xticks(range(len(shown)), [f"Rank {COLUMNS[x]}" for x in shown])
        axis.set_xlim(-0.75, len(shown) - 0.25)
        axis.set_ylim(len(learned) + 0.6, 0.4)
        axis.set_yticks([])
        axis.spines[["left", "bottom"]].set_visible(False)
        axis.xaxis.set_ticks_position("top")
        axis.tick_params(length=0)

    return to_png(draw, (11.0, 1.3 + 0.38 * len(learned)))


def draw_from_records(findings: Findings) -> bytes:
    """Estimates from records alone beside the truth; gray where they are uninformative."""
    policies = {x["method"]: x for x in findings.records["policies"]}
    methods = ranked(list(policies))[::-1]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for place, method in enumerate(methods):
            _estimates(axis, place, policies[method])
            truth = findings.true_reward(method)
            if truth is not None:
                axis.plot([truth] * 2, [place - 0.42, place + 0.42], color=TRUTH, lw=3)
        followed = [f"{policies[x]['effective']:.0f} effective patients" for x in methods]
        names = [f"{name_of(x)}\n{y}" for x, y in zip(methods, followed, strict=True)]
        axis.set_yticks(range(len(methods)), names)
        axis.set_ylim(-0.6, len(methods) - 0.4)
        axis.set_xlim(*_limits(findings, policies))
        axis.set_xlabel("Reward of 6 hours (bars: 95 % intervals over patients)")
        axis.grid(axis="x", **GRID)
        for name, one in ESTIMATORS.items():
            words = one.words + " (recommended)" * (name == RECOMMENDED)
            axis.plot([], [], one.look.marker, color=one.look.color, label=words)
        if findings.truth is not None:
            axis.plot([], [], color=TRUTH, lw=3, label=JUDGES[findings.truth].full)
        axis.plot([], [], "o", color=FAINT, label="uninformative")
        figure.legend(loc="outside lower center", ncols=4, frameon=False)

    return to_png(draw, (11.0, 1.6 + 0.5 * len(methods)))


def _estimates(axis: Axes, place: int, one: Mapping[str, Any]) -> None:
    """All estimators of one method, below each other."""
    informative = word_of(one) == "informative"
    for number, (name, estimator) in enumerate(ESTIMATORS.items()):
        look = estimator.look
        value = one["estimates"].get(name)
        if value is None or value["mean"] is None:
            continue
        y, tone = place + 0.3 - 0.15 * number, look.color if informative else FAINT
        if value["low"] is not None and value["high"] is not None:
            axis.plot([value["low"], value["high"]], [y] * 2, color=tone, lw=1.6)
        axis.plot(value["mean"], y, look.marker, color=tone, ms=5)


def _limits(findings: Findings, policies: Mapping[str, Any]) -> tuple[float, float]:
    """Room for the truth and for all that is informative; the rest may leave the figure."""
    used = [x for x in policies.values() if word_of(x) == "informative"] or policies.values()
    spans = [y for x in used for y in x["estimates"].values() if y["mean"] is not None]
    values = [y["mean"] for y in spans]
    values += [y[x] for y in spans for x in ("low", "high") if y[x] is not None]
    values += [x for x in map(findings.true_reward, policies) if x is not None]
    return min(values) - 0.2, max(values) + 0.2


def draw_regret(findings: Findings) -> bytes:
    """What is lost in truth by each rule to choose without it, the least on top."""
    choice = findings.choice
    key = f"regret_{findings.truth}"
    choices = sorted(choice["choices"], key=lambda x: -mean_over(x[key]))

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for place, one in enumerate(choices):
            color = TRUTH if one["rule"] == choice["default"] else MUTED
            axis.plot([0, mean_over(one[key])], [place] * 2, color=color, lw=3, alpha=0.5)
            axis.plot(one[key], [place] * len(one[key]), "|", color=color, ms=11)
            axis.plot(mean_over(one[key]), place, "o", color=color, ms=7)
        axis.set_yticks(range(len(choices)), [x["rule"] for x in choices])
        for label, one in zip(axis.get_yticklabels(), choices, strict=True):
            label.set_fontweight("bold" if one["rule"] == choice["default"] else "normal")
        axis.axvline(0, color=INK, lw=1)
        axis.grid(axis="x", **GRID)
        judge = JUDGES[findings.truth or "patients"].full
        axis.set_xlabel(f"Regret in {judge}, reward of 6 hours (dot: mean; strokes: seeds)")

    return to_png(draw, (9.5, 1.2 + 0.36 * len(choices)))


def draw_subgroups(findings: Findings) -> bytes:
    """Reward and its worst tenth minus the clinicians', by subgroup and method."""
    judge = findings.truth or "twin"
    rows = [x for x in findings.groups["rows"] if x["judge"] == judge]
    groups = list(dict.fromkeys(x["group"] for x in rows))[::-1]
    methods = [x for x in PLOTTED if any(y["method"] == x for y in rows)]
    metrics = {"reward": "Mean reward", "reward_worst_tenth": "Worst tenth of the episodes"}

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (metric, words) in zip(axes, metrics.items(), strict=True):
            found = {(x["group"], x["method"]): x for x in rows
                     if x["metric"] == f"{metric}_minus_{CLINICIANS}"}  # fmt: skip
            _dots(axis, groups, methods, found)
            axis.set_title(f"{words}, minus the clinicians'")
        people = {x["group"]: x["patients"] for x in rows}
        axes[0].set_yticks(range(len(groups)), [f"{x} ({people[x]})" for x in groups])
        legend_below(figure, axes[0], 6)
        words = f"{JUDGES[judge].full.capitalize()}; in brackets the number of patients"
        figure.suptitle(words, x=0.01, ha="left", fontsize=11)

    return to_png(draw, (12.5, 2.0 + 0.5 * len(groups)))


def draw_transfer(findings: Findings) -> bytes:
    """Reward minus the clinicians' under every shift, and what the guardian charges."""
    info = findings.transfer
    shifts, rows = [name for name, _ in info["shifts"]][::-1], info["rows"]
    methods = [x for x in PLOTTED if any(y["method"] == x for y in rows)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, metric in zip(axes, (f"reward_minus_{CLINICIANS}", "charged"), strict=True):
            found = {(x["shift"], x["method"]): x for x in rows if x["metric"] == metric}
            own = [*methods, CLINICIANS] if metric == "charged" else methods
            _dots(axis, shifts, own, found, 100.0 if metric == "charged" else 1.0)
        axes[0].set_title("Reward of 6 hours, minus the clinicians'")
        axes[1].set_title("Decisions that the guardian charges (u > 0), %")
        axes[0].set_yticks(range(len(shifts)), shifts)
        legend_below(figure, axes[1], 7)

    return to_png(draw, (12.5, 1.8 + 0.62 * len(shifts)))


def _dots(
    axis: Axes,
    places: Sequence[str],
    methods: Sequence[str],
    found: Mapping[tuple[str, str], Row],
    scale: float = 1.0,
) -> None:
    """Means with intervals, a line for each place, methods below each other within it."""
    step = 0.8 / max(len(methods), 1)
    for number, method in enumerate(methods):
        kind, label = look_of(method), name_of(method)
        for place, name in enumerate(places):
            row = found.get((name, method))
            if row is None:
                continue
            y = place + 0.4 - step * (number + 0.5)
            low, mean, high = (scale * float(row[x]) for x in ("low", "mean", "high"))
            if np.isfinite(low) and np.isfinite(high):
                axis.plot([low, high], [y] * 2, color=kind["color"], lw=2, alpha=0.45)
            axis.plot(mean, y, marker=kind["marker"], color=kind["color"], ms=6, ls="none",
                      label=label)  # fmt: skip
            label = "_nolegend_"
    for place in range(1, len(places)):
        axis.axhline(place - 0.5, color=GRID["color"], lw=0.8)
    axis.axvline(0, color=INK if scale == 1.0 else LIMIT, lw=0.9)
    axis.grid(axis="x", **GRID)
    axis.set_ylim(-0.5, len(places) - 0.5)
