"""Tables and a figure of all cohorts of a run together; a cohort counts as one number."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stepdown.evaluation.compare import over_cohorts
from stepdown.report.comparison import (
    CEILING,
    CLINICIANS,
    JUDGES,
    LEARNED,
    OURS,
    REFERENCES,
    WORDS,
    Comparison,
    find,
    name_of,
)
from stepdown.report.comparison_figures import GRID, save
from stepdown.report.figures import INK
from stepdown.report.grids import Cell, Grid, number, signed, span

COLUMNS = ("cohorts", "method", "judge", "metric", "number", "mean", "low", "high")
METRICS = ("reward", "acp", "ws_gradient", "unsafe_hours")
TOLD = ("mbpo", "mbpo_shaped", "disagreement_shaped", CLINICIANS)  # in sentences
BESIDE = {"mbpo_twin": ("mbpo_shaped",), "cormpo_twin": ("mbpo_twin",)}  # what one change does
ALL = "all"
LOOKS = {"guarded": ("#0072b2", "o"), "benign": ("#009e73", "^"), "hidden": ("#d55e00", "s")}
OTHER = ("#7b5cb8", "D")


def preset_of(comparison: Comparison) -> str:
    """From "guarded-7" to "guarded"."""
    return comparison.cohort.rpartition("-")[0] or comparison.cohort


def same_question(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """One comparison of every cohort: recorded hours, our settings."""
    wanted = ("recorded", "ours", False)
    return [x for x in comparisons if (x.data, x.setting, x.sampled) == wanted]


def across_rows(comparisons: Sequence[Comparison]) -> list[dict[str, str | float]]:
    """Every method over all cohorts and over those of each preset, before every judge."""
    asked, rows = same_question(comparisons), []
    groups = {ALL: asked}
    for one in asked:
        groups.setdefault(preset_of(one), []).append(one)
    for group, members in groups.items():
        for judge in _judges(asked):
            for method in _methods(members):
                for metric in _metrics(method):
                    values = [_mean(x, judge, method, metric) for x in members]
                    found = over_cohorts(values)
                    if found["cohorts"]:
                        head = {"cohorts": group, "method": method, "judge": judge}
                        count = found.pop("cohorts")
                        rows.append(head | {"metric": metric, "number": count} | found)
    return rows


def _metrics(method: str) -> tuple[str, ...]:
    others = [x for x in (OURS, CLINICIANS, *BESIDE.get(method, ())) if x != method]
    return (*METRICS, *(f"{x}_minus_{y}" for y in others for x in METRICS), "room_percent")


def _judges(comparisons: Sequence[Comparison]) -> list[str]:
    return [x for x in JUDGES if any(x in one.judged for one in comparisons)]


def _methods(comparisons: Sequence[Comparison]) -> list[str]:
    seen = [x for one in comparisons for x in one.methods((*LEARNED, *REFERENCES))]
    return [x for x in (*LEARNED, *REFERENCES) if x in seen]


def _mean(comparison: Comparison, judge: str, method: str, metric: str) -> float:
    """Of seeds and episodes; all play the same ones, so a difference is that of the means."""
    plain, minus, other = metric.partition("_minus_")
    row = find(comparison.rows, method, judge, plain)
    own = math.nan if row is None else float(row["mean"])
    return own - _mean(comparison, judge, other, plain) if minus else own


def across_grid(comparisons: Sequence[Comparison], judge: str) -> Grid:
    """Each method minus CORMPO over all cohorts and by preset, before one judge."""
    rows = {(x["cohorts"], x["method"], x["metric"]): x for x in across_rows(comparisons)
            if x["judge"] == judge}  # fmt: skip
    presets = list(dict.fromkeys(preset_of(x) for x in same_question(comparisons)))
    reward, unsafe = (f"{x}_minus_{OURS}" for x in ("reward", "unsafe_hours"))
    lines = []
    for method in _methods(same_question(comparisons)):
        cells = [Cell(name_of(method)), _plain(rows.get((ALL, method, "room_percent")), 0)]
        cells += [_apart(rows.get((x, method, reward)), 2) for x in (ALL, *presets)]
        cells.append(_apart(rows.get((ALL, method, unsafe)), 1, 100.0))
        cells += [_plain(rows.get((ALL, method, x)), 2) for x in ("acp", "ws_gradient")]
        lines.append(tuple(cells))
    head = ("Method", "room, %", ALL, *presets, "unsafe hours", "ACP", "WS")
    above = (("", 2), ("reward minus CORMPO", 1 + len(presets)), ("minus CORMPO, points", 1),
             ("", 2))  # fmt: skip
    count = len(same_question(comparisons))
    return Grid(
        f"{count} cohorts together, {JUDGES[judge]}",
        head,
        tuple(lines),
        above,
        note="Means over cohorts, each with its own patients, clinicians and models; 95 % interval "
        "of Student's t over cohorts, bold where it excludes zero. Room: share of what lies "
        "between clinicians and look-ahead.",
    )


def _plain(row: Mapping[str, str | float] | None, digits: int) -> Cell:
    return Cell() if row is None else Cell(number(float(row["mean"]), digits))


def _apart(row: Mapping[str, str | float] | None, digits: int, scale: float = 1.0) -> Cell:
    if row is None:
        return Cell()
    mean, low, high = (scale * float(row[x]) for x in ("mean", "low", "high"))
    return Cell(signed(mean, digits), span(low, high, digits), strong=low > 0 or high < 0)


def say_across(comparisons: Sequence[Comparison]) -> list[str]:
    """CORMPO against what it adds density to, over all cohorts; nothing for a single cohort."""
    asked = same_question(comparisons)
    if len(asked) < 2:
        return []
    judge, said = _judges(asked)[-1], []
    for method in TOLD:
        pairs = []
        for metric, scale, digits in (("reward", -1.0, 2), ("unsafe_hours", -100.0, 1)):
            values = [scale * _mean(x, judge, method, f"{metric}_minus_{OURS}") for x in asked]
            found = over_cohorts(values)
            if found["cohorts"] > 1:
                between = span(found["low"], found["high"], digits)
                pairs.append(f"{signed(found['mean'], digits)} {between}")
        if len(pairs) == 2:
            said.append(
                f"Over {len(asked)} cohorts, CORMPO minus {name_of(method)} in {WORDS[judge]}: "
                f"reward {pairs[0]}, unsafe hours {pairs[1]} points."
            )
    return said


def draw_across(comparisons: Sequence[Comparison], path: Path) -> None:
    """Reward and unsafe hours minus the clinicians', a mark for every cohort, a bar for all."""
    asked = [x for x in same_question(comparisons) if CLINICIANS in x.methods()]
    judge = _judges(asked)[-1]
    methods = [x for x in _methods(asked) if x in (*LEARNED, "hold")]
    gains = {x: _gains(asked, judge, x, "reward") for x in (*methods, CEILING)}
    methods = sorted(methods, key=lambda x: float(np.nanmean(gains[x])))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.4, 1))
        shown = [*methods, CEILING] if np.isfinite(gains[CEILING]).any() else methods
        for axis, metric in ((left, "reward"), (right, "unsafe_hours")):
            _marks(axis, asked, [_gains(asked, judge, x, metric) for x in shown])
        left.set_yticks(range(len(shown)), [name_of(x) for x in shown])
        for label, method in zip(left.get_yticklabels(), shown, strict=True):
            label.set_fontweight("bold" if method == OURS else "normal")
        left.set_xlabel("Reward of 6 hours minus the clinicians' (right is better)")
        right.set_xlabel("Unsafe hours, points, minus the clinicians' (left is better)")
        left.set_title(f"{len(asked)} cohorts, {JUDGES[judge]}")
        known = list(dict.fromkeys(preset_of(x) for x in asked))
        handles = [Line2D([], [], ls="none", color=LOOKS.get(x, OTHER)[0],
                          marker=LOOKS.get(x, OTHER)[1], label=x) for x in known]  # fmt: skip
        handles.append(Line2D([], [], color=INK, marker="|", label="all: mean and 95 % interval"))
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)

    save(draw, path, (12.5, 1.9 + 0.4 * len(methods)))


def _gains(asked: Sequence[Comparison], judge: str, method: str, metric: str) -> np.ndarray:
    """A method minus the clinicians, one number for every cohort."""
    scale = 100.0 if metric == "unsafe_hours" else 1.0
    return scale * np.array(
        [_mean(x, judge, method, f"{metric}_minus_{CLINICIANS}") for x in asked]
    )


def _marks(axis: Axes, asked: Sequence[Comparison], gains: Sequence[np.ndarray]) -> None:
    for place, values in enumerate(gains):
        found = over_cohorts(values.tolist())
        axis.plot([found["low"], found["high"]], [place] * 2, color=INK, lw=2, alpha=0.75)
        axis.plot(found["mean"], place, "|", color=INK, ms=13, mew=2)
        for number_, (one, value) in enumerate(zip(asked, values, strict=True)):
            color, marker = LOOKS.get(preset_of(one), OTHER)
            y = place + 0.22 * (number_ / max(len(asked) - 1, 1) - 0.5) * 2
            axis.plot(value, y, marker, color=color, ms=5, alpha=0.8, mew=0, zorder=3)
    axis.axvline(0, color=INK, lw=1.0)
    axis.grid(axis="x", **GRID)
    axis.set_axisbelow(True)
    axis.set_ylim(-0.6, len(gains) - 0.4)
