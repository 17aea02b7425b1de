"""Figures at the bedside: six hours under every policy from the same start, weaning, agreement.

Vital signs share one axis (mmHg, and beats a minute for the heart rate), as on a monitor; dashed
lines are the limits below which an hour is unsafe. The level stands below them as steps.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from stepdown.handover import Cohort, Episodes
from stepdown.problem.clinical import PAPER
from stepdown.problem.metrics import score_episodes
from stepdown.report.cohort_report import TRACES
from stepdown.report.figures import (
    GRID,
    INK,
    LEVEL_COLOR,
    MUTED,
    RARE,
    hide,
    name_levels,
    to_png,
)
from stepdown.report.grids import minus
from stepdown.report.labels import OURS, name_of
from stepdown.signals import HR, LOWEST, MAP, PULSATILITY

VITALS = {  # name, limit, dash
    MAP: ("MAP, mmHg", PAPER.map_limit, "-"),
    HR: ("Heart rate, /min", PAPER.hr_limit, (0, (6, 1.5))),
    PULSATILITY: ("Pulsatility, mmHg", PAPER.pulsatility_limit, (0, (2, 1))),
}
COLORS = {trace.column: trace.color for trace in TRACES}
CEILING = 150  # top of the common axis
DAY = 24  # hours
WIDEST = 3  # changes of level beyond share the last class


def draw_rollouts(cases: Mapping[str, Mapping[str, Episodes]]) -> bytes:
    """Six hours of every method from one start; a case such as "high reward" is a row.

    Episodes hold one start each: state (times, steps, columns), level (times,), alive (times - 1,).
    """
    columns = max(len(methods) for methods in cases.values())

    def draw(figure: Figure) -> None:
        parts = np.atleast_1d(np.array(figure.subfigures(len(cases), 1)))
        for part, (words, methods) in zip(parts, cases.items(), strict=True):
            _draw_case(part, words, methods, columns)
        figure.legend(handles=_vital_handles(), loc="outside lower center", ncols=6, frameon=False)

    return to_png(draw, (1.0 + 2.55 * columns, 0.5 + 4.3 * len(cases)))


def _draw_case(
    figure: SubFigure, words: str, methods: Mapping[str, Episodes], columns: int
) -> None:
    axes = figure.subplots(
        2, columns, sharex=True, sharey="row", height_ratios=(2, 1), squeeze=False
    )
    figure.suptitle(words, x=0.01, ha="left", fontsize=12, fontweight="bold")
    for column, (method, episode) in enumerate(methods.items()):
        _draw_episode(axes[:, column], episode)
        axes[0, column].set_title(
            f"{name_of(method)}\n{_score_words(episode)}",
            fontsize=9,
            fontweight="bold" if method == OURS else "normal",
        )
    for axis in axes[:, len(methods) :].ravel():
        axis.set_visible(False)
    axes[0, 0].set_ylabel("mmHg; beats/min")
    axes[1, 0].set_ylabel("Level", color=LEVEL_COLOR)


def _score_words(episode: Episodes) -> str:
    scores = score_episodes(jax.tree.map(lambda x: jnp.asarray(x)[None], episode))
    reward, acp, weaning, unsafe = (
        float(scores[x][0]) for x in ("reward", "acp", "ws_gradient", "unsafe_hours")
    )
    parts = (
        f"reward {reward:.2f}, ACP {acp:.0f}",
        f"WS {weaning:.2f}, unsafe {100 * unsafe:.0f} %",
    )
    return minus("\n".join(parts))


def _draw_episode(axes: np.ndarray, episode: Episodes) -> None:
    """Hour 0 is the first decision; what came before it was recorded."""
    states, levels = np.asarray(episode.state), np.asarray(episode.level)
    alive = np.append(True, np.asarray(episode.alive))
    times, steps = states.shape[:2]
    hours = (np.arange(times * steps) + 0.5) / steps - 1
    samples = np.where(
        np.repeat(alive, steps)[:, None], states.reshape(-1, states.shape[2]), np.nan
    )
    axes[0].axvspan(-1, 0, color=MUTED, alpha=0.08, lw=0)
    _draw_vitals(axes[0], hours, samples)
    unsafe = _unsafe(states) | ~alive
    for hour in np.flatnonzero(unsafe):
        axes[0].axvspan(hour - 1, hour, ymin=0.965, color=RARE, lw=0)
    _draw_steps(axes[1], np.arange(-1, times), levels)
    axes[1].set_xlim(-1, times - 1)
    axes[1].set_xticks(range(0, times, 2))
    axes[1].set_xlabel("Hours")


def _unsafe(states: Float[np.ndarray, "times steps columns"]) -> Bool[np.ndarray, " times"]:
    """Hours outside the limits, as the unsafe hours count them (docs/definitions.md)."""
    lowest = np.stack([np.nanmin(states[..., column], axis=1) for column in VITALS])
    limits = np.array([limit for _, limit, _ in VITALS.values()])
    return np.any(lowest <= limits[:, None], axis=0)


def _draw_vitals(axis: Axes, hours: np.ndarray, samples: np.ndarray) -> None:
    for column, (words, limit, dash) in VITALS.items():
        values = np.clip(samples[:, column], 0, CEILING)
        axis.plot(hours, values, color=COLORS[column], ls=dash, lw=1.5, label=words)
        axis.axhline(limit, color=COLORS[column], lw=0.8, ls=(0, (1, 2)))
    axis.set_ylim(0, CEILING)
    axis.grid(axis="y", **GRID)
    axis.set_axisbelow(True)


def _draw_steps(
    axis: Axes, hours: np.ndarray, levels: Int[np.ndarray, " n"] | Float[np.ndarray, " n"]
) -> None:
    """Levels held from one edge to the next; there is one edge more than levels."""
    axis.stairs(levels, hours, baseline=LOWEST - 0.5, fill=True, color=LEVEL_COLOR, alpha=0.15)
    axis.step(hours, np.append(levels, levels[-1]), where="post", color=LEVEL_COLOR, lw=1.6)
    name_levels(axis)
    axis.grid(axis="y", **GRID)


def _vital_handles() -> list[Line2D]:
    lines = [
        Line2D([], [], color=COLORS[column], ls=dash, lw=1.5, label=words)
        for column, (words, _, dash) in VITALS.items()
    ]
    limit = Line2D([], [], color=MUTED, lw=0.8, ls=(0, (1, 2)), label="limit of a safe hour")
    bar = Line2D([], [], color=RARE, lw=4, label="unsafe hour, or dead")
    before = Line2D([], [], color=MUTED, lw=8, alpha=0.15, label="recorded hour before")
    return [*lines, limit, bar, before]


def pick_weaning(cohort: Cohort, number: int = 2) -> list[tuple[int, int]]:
    """Stays with the most weaning within a day: the patient's row and the first sample.

    Weaning is what the level falls from the start to the end of 24 recorded hours, less every rise
    in between, so that steady step-downs come first. Each stay is taken once.
    """
    level, seen = np.asarray(cohort.level, float), np.asarray(cohort.seen)
    width = round(DAY * 60 / cohort.minutes)
    if level.shape[1] < width:
        raise ValueError(f"expected stays of {DAY} hours, got shorter ones. Use longer stays.")
    found = []
    for row, (levels, known) in enumerate(zip(level, seen, strict=True)):
        rises = np.cumsum(np.append(0.0, np.maximum(np.diff(levels), 0)))
        whole = np.convolve(known, np.ones(width), "valid") == width
        starts = np.arange(len(levels) - width + 1)
        ends = starts + width - 1
        gain = levels[starts] - levels[ends] - (rises[ends] - rises[starts])
        gain = np.where(whole & (levels[ends] >= LOWEST), gain, -np.inf)
        best = int(np.argmax(gain))
        found.append((gain[best], row, best))
    found.sort(key=lambda one: (-one[0], one[1]))
    return [(row, start) for gain, row, start in found[:number] if gain > 0]


def draw_weaning(cohort: Cohort, picked: Sequence[tuple[int, int]] = ()) -> bytes:
    """Days on which teams weaned (App. B): vital signs and level over 24 hours."""
    picked = list(picked) or pick_weaning(cohort)
    if not picked:
        raise ValueError("expected a stay in which the level falls, got none. Use more patients.")
    width = round(DAY * 60 / cohort.minutes)
    hours = np.arange(width) * cohort.minutes / 60

    def draw(figure: Figure) -> None:
        axes = figure.subplots(
            2, len(picked), sharex=True, sharey="row", height_ratios=(2, 1), squeeze=False
        )
        for column, (row, start) in zip(axes.T, picked, strict=True):
            part = slice(start, start + width)
            _draw_vitals(column[0], hours, np.asarray(cohort.signals)[row, part])
            edges = np.append(hours, DAY)
            _draw_steps(column[1], edges, np.asarray(cohort.level, float)[row, part])
            first = start * cohort.minutes / 60
            column[0].set_title(f"{cohort.patient[row]}, from hour {first:.0f} of the stay")
            column[1].set_xlim(0, DAY)
            column[1].set_xticks(range(0, DAY + 1, 4))
            column[1].set_xlabel("Hours")
        axes[0, 0].set_ylabel("mmHg; beats/min")
        axes[1, 0].set_ylabel("Level", color=LEVEL_COLOR)
        handles = _vital_handles()[:-2]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)

    return to_png(draw, (1.0 + 5.6 * len(picked), 5.6))


def agreement(
    chosen: Int[np.ndarray, " n"], recorded: Int[np.ndarray, " n"], before: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "changes changes"]:
    """Share (%) of each chosen change (columns) among hours with a recorded change (rows).

    Changes are counted from the level in force, from −3 and below to +3 and above. A row without
    hours is NaN.
    """
    sides = [np.clip(x - before, -WIDEST, WIDEST) + WIDEST for x in (recorded, chosen)]
    counts = np.zeros((2 * WIDEST + 1, 2 * WIDEST + 1))
    np.add.at(counts, tuple(sides), 1.0)
    total = counts.sum(1, keepdims=True)
    return np.where(total > 0, 100 * counts / np.maximum(total, 1), np.nan)


def draw_agreement(
    chosen: Mapping[str, Int[np.ndarray, " n"]],
    recorded: Int[np.ndarray, " n"],
    before: Int[np.ndarray, " n"],
) -> bytes:
    """Which change a policy would have made where clinicians made theirs, test hours."""
    words = ["≤ −3", "−2", "−1", "0", "+1", "+2", "≥ +3"]
    change = np.clip(recorded - before, -WIDEST, WIDEST) + WIDEST
    hours = np.bincount(change, minlength=len(words))
    rows = -(-len(chosen) // 4)
    columns = -(-len(chosen) // rows)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis, (method, levels) in zip(axes.ravel(), chosen.items(), strict=False):
            table = agreement(levels, recorded, before)
            axis.imshow(table, cmap="Blues", vmin=0, vmax=100, origin="lower", aspect="auto")
            for y, x in np.argwhere(table >= 0.5):
                axis.text(x, y, f"{table[y, x]:.0f}", ha="center", va="center", fontsize=8,
                          color="white" if table[y, x] > 55 else INK)  # fmt: skip
            same = 100 * np.mean(levels == recorded)
            near = 100 * np.mean(np.abs(levels - recorded) <= 1)
            axis.set_title(f"{name_of(method)}\nsame {same:.0f} %, within one {near:.0f} %",
                           fontsize=10)  # fmt: skip
            axis.set_xticks(range(len(words)), words, fontsize=8)
            named = [f"{x}  ({n:,} h)" for x, n in zip(words, hours, strict=True)]
            axis.set_yticks(range(len(words)), named, fontsize=8)
        hide(axes, len(chosen))
        figure.supxlabel("Change that the policy would make, levels", fontsize=10)
        figure.supylabel("Recorded change, levels (hours)", fontsize=10)
        figure.suptitle("% of the hours with this recorded change", x=0.01, ha="left", fontsize=11)

    return to_png(draw, (1.8 + 3.1 * columns, 0.9 + 3.1 * rows))
