"""Pictures of patients: a cohort at a glance, days of weaning, six hours under every policy.

Colors follow bedside habit (pressure red, rate green) in tones that read on white. Levels are
steps, limits are thin lines. At the bedside vital signs share one axis (mmHg, and beats a minute
for the heart rate), as on a monitor; dashed lines are the limits below which an hour is unsafe.
Which stays to show is chosen by rule, so that nobody picks favorites.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MultipleLocator

from stepdown.handover import Cohort, Episodes
from stepdown.problem.clinical import PAPER, stable_by_limits
from stepdown.problem.metrics import score_episodes
from stepdown.report.cohort_report import STAY_HOURS, hourly
from stepdown.report.figures import (
    BARS,
    DASHES,
    GRID,
    INK,
    LEVEL_COLOR,
    LIMIT,
    MUTED,
    RARE,
    hide,
    name_levels,
    to_png,
    words_of,
)
from stepdown.report.grids import minus, number
from stepdown.report.labels import BOLD, name_of
from stepdown.signals import FLOW, HIGHEST, HR, LEVELS, LOWEST, MAP, PULSATILITY, REQUIRED

TRANSFERRED, EXPLANTED, DEAD = 0, 1, 2  # outcomes
LOW_MAP = 60.0  # mmHg
SHORTEST, LONG = 12.0, 72.0  # h; a shorter stay shows little


@dataclass(frozen=True)
class Trace:
    """How a signal is drawn."""

    column: int
    color: str
    axis: tuple[float, float]
    limit: float = np.nan  # of a stable hour, if it has one
    dash: Any = "-"  # where it shares an axis


TRACES = {
    trace.column: trace
    for trace in (
        Trace(MAP, "#c8322b", (30.0, 125.0), PAPER.map_limit),
        Trace(PULSATILITY, "#8e44ad", (0.0, 90.0), PAPER.pulsatility_limit, (0, (2, 1))),
        Trace(HR, "#1b7f3b", (30.0, 170.0), PAPER.hr_limit, (0, (6, 1.5))),
        Trace(FLOW, "#0072b2", (0.0, 5.0)),
    )
}
VITALS = [TRACES[column] for column in REQUIRED]
CEILING = 150  # top of the common axis
LOW_LEVEL = 4  # P2 to P4 is little support
LOW_REWARD = -3.0  # about the worst quarter of the real hours (-3.1)
DEEPEST = -12  # rewards below share one row
TICKS, TICK_WORDS = (0, -3, -6, -9, -12.5), ("0", "−3", "−6", "−9", "< −12")
DAY = 24  # hours
WEANED = 2  # stays shown
WIDEST = 3  # changes of level beyond share the last class


# ── a cohort ──────────────────────────────────────────────────────────────────────────────────────


def draw_overview(cohort: Cohort, outcome: np.ndarray | None = None) -> bytes:
    """Example stays, where the hours lie, and how long and how well the stays went."""

    def draw(figure: Figure) -> None:
        grid = figure.add_gridspec(2, 1, height_ratios=(8, 4.6), hspace=0.03)
        _draw_examples(figure.add_subfigure(grid[0]), cohort, outcome)
        _draw_hours(figure.add_subfigure(grid[1]), cohort)

    return to_png(draw, (15.0, 13.5))


def draw_records(cohort: Cohort) -> bytes:
    """Where the recorded hours lie (Fig. 1), how they went, how long the stays were (App. B)."""
    return to_png(lambda figure: _draw_hours(figure, cohort), (15.0, 4.6))


def _draw_examples(figure: SubFigure | Figure, cohort: Cohort, outcome: np.ndarray | None) -> None:
    examples = pick_examples(cohort, outcome)
    rows = len(TRACES) + 1
    axes = figure.subplots(
        rows, len(examples), sharey="row", sharex="col", squeeze=False,
        height_ratios=(1.5, 1.2, 1.2, 1, 1.1),
    )  # fmt: skip
    figure.suptitle(
        "Example stays  (thin lines: limits of a stable hour)", x=0.01, ha="left", fontsize=13
    )
    for column, (row, words) in enumerate(examples):
        seen = np.flatnonzero(np.asarray(cohort.seen)[row])
        time = np.arange(seen[-1] + 1) * cohort.minutes / 60
        signals = np.asarray(cohort.signals)[row, : seen[-1] + 1]
        level = np.asarray(cohort.level)[row, : seen[-1] + 1].astype(float)
        level[~np.asarray(cohort.seen)[row, : seen[-1] + 1]] = np.nan
        axes[0, column].set_title(f"{cohort.patient[row]}\n{words}", fontweight="bold")
        for trace, axis in zip(TRACES.values(), axes[:-1, column], strict=True):
            _draw_trace(axis, time, signals, trace, first=column == 0)
        _draw_level(axes[-1, column], time, level, first=column == 0)
        axes[-1, column].set_xlim(0, time[-1])
    figure.align_ylabels(axes[:, 0])


def _draw_trace(axis: Axes, time, signals, trace: Trace, *, first: bool) -> None:
    values = np.clip(signals[:, trace.column], *trace.axis)
    axis.plot(time, values, color=trace.color, linewidth=1.1)
    axis.set_ylim(*trace.axis)
    axis.grid(axis="y", **GRID)
    axis.set_axisbelow(True)
    if np.isfinite(trace.limit):
        axis.axhline(trace.limit, color=LIMIT, linewidth=0.9, linestyle=DASHES)
        axis.text(1.0, trace.limit, f" {trace.limit:.0f}", color=LIMIT, fontsize=9, va="center",
                  transform=axis.get_yaxis_transform())  # fmt: skip
    if first:
        axis.set_ylabel(words_of(trace.column, "\n"), color=trace.color)


def _draw_level(axis: Axes, time, level, *, first: bool) -> None:
    axis.step(time, level, where="post", color=LEVEL_COLOR, linewidth=1.4)
    axis.fill_between(time, LOWEST - 0.5, level, step="post", color=LEVEL_COLOR, alpha=0.12)
    name_levels(axis)
    axis.set_xlabel("Hours of support")
    axis.xaxis.set_major_locator(MultipleLocator(12 if time[-1] <= 60 else 24))
    if first:
        axis.set_ylabel("Level\nP2 to P9", color=LEVEL_COLOR)


def _draw_hours(figure: SubFigure | Figure, cohort: Cohort) -> None:
    hours = hourly(cohort)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.6, 1, 1))
    _draw_sparsity(left, hours["level"], hours["reward"])
    _draw_rewards(middle, hours["reward"])
    _draw_stays(right, np.asarray(cohort.seen).sum(1) * cohort.minutes / 60)


def _draw_sparsity(axis: Axes, level: np.ndarray, reward: np.ndarray) -> None:
    """The paper's picture of sparse data: little support and a poor hour rarely meet."""
    edges = (np.arange(LOWEST, HIGHEST + 2) - 0.5, np.arange(DEEPEST - 1, 1))
    counts, *_ = np.histogram2d(level, np.clip(reward, DEEPEST - 0.5, 0), bins=edges)
    norm = LogNorm(0.3, max(counts.max(), 10))  # a single hour is still seen on white
    shown = np.ma.masked_equal(counts.T, 0)
    mesh = axis.pcolormesh(*edges, shown, cmap="Blues", norm=norm, edgecolors="white", lw=0.6)
    bar = axis.figure.colorbar(mesh, ax=axis, pad=0.02)
    bar.set_label("Hours (log scale)")
    bar.ax.set_ylim(1, norm.vmax)
    rare = (level <= LOW_LEVEL) & (reward < LOW_REWARD)
    corner, width = (LOWEST - 0.5, DEEPEST - 1), LOW_LEVEL + 1 - LOWEST
    height = LOW_REWARD - corner[1]
    axis.add_patch(Rectangle(corner, width, height, color=RARE, alpha=0.15, lw=0))
    axis.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=RARE, lw=1.6))
    words = f"rare: {100 * rare.mean():.1f} % of hours\n({rare.sum():,} of {rare.size:,})"
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 2}
    axis.text(2.0 + LOW_LEVEL / 4, -8, words, color="#8f1d18", fontweight="bold", ha="center",
              va="center", bbox=box)  # fmt: skip
    axis.set_xticks(LEVELS, [f"P{value}" for value in LEVELS])
    axis.set_yticks(TICKS, TICK_WORDS)
    axis.set_xlabel("Level over the hour")
    axis.set_ylabel("Raw reward of the hour (0 is best)")
    axis.set_title("Level against reward (shaded: little support, poor hour)")


def _draw_rewards(axis: Axes, reward: np.ndarray) -> None:
    bins = [DEEPEST - 1, *np.arange(DEEPEST, 0.5, 0.5)]
    weights = np.full(reward.size, 100 / max(reward.size, 1))
    axis.hist(
        np.clip(reward, DEEPEST - 1, 0), bins, weights=weights, color=BARS, ec="white", lw=0.6
    )
    best = 100 * float(np.mean(reward == 0))
    mean = minus(f"{reward.mean():.2f}")
    axis.text(0.04, 0.95, f"nothing to fault: {best:.0f} %\nmean {mean}",
              transform=axis.transAxes, va="top")  # fmt: skip
    axis.set_xticks(TICKS, TICK_WORDS)
    axis.set_xlabel("Raw reward of the hour (0 is best)")
    axis.set_ylabel("% of hours")
    axis.set_title("How the hours went")


def _draw_stays(axis: Axes, hours: np.ndarray) -> None:
    counts, *_ = axis.hist(hours, np.arange(0, hours.max() + 12.1, 12), color=BARS, ec="white")
    axis.set_ylim(0, 1.3 * np.max(counts))  # room for the words above the bars
    axis.axvline(hours.mean(), ymax=0.82, color=INK, lw=1.4)
    axis.axvline(STAY_HOURS, ymax=0.82, color=LIMIT, lw=1.4, linestyle=DASHES)
    words = f"mean {hours.mean():.1f} h (solid line)\npublished {STAY_HOURS} h (dashed line)"
    axis.text(0.04, 0.95, words, transform=axis.transAxes, va="top")
    axis.xaxis.set_major_locator(MultipleLocator(24))
    axis.set_xlabel("Length of the stay, h")
    axis.set_ylabel("Patients")
    axis.set_title("How long they stayed")


# ── which stays to show ───────────────────────────────────────────────────────────────────────────


def pick_examples(cohort: Cohort, outcome: np.ndarray | None = None) -> list[tuple[int, str]]:
    """At most four rows of the cohort, with what happened in words.

    The fates are looked for in turn; each takes its most typical or clearest stay among those
    not yet taken. A cohort too small to hold one fills the place with its longest other stay.
    """
    facts = _facts(cohort)
    fate = np.full(len(cohort.patient), -1) if outcome is None else np.asarray(outcome)
    hours = facts["hours"]
    left_in_peace = (fate == EXPLANTED) if outcome is not None else (facts["last_level"] <= 3)
    usual = np.median(hours[left_in_peace]) if left_in_peace.any() else 0.0
    stuck = (fate <= TRANSFERRED) & (facts["late_level"] >= 7) & (hours >= LONG)
    wishes = (
        (left_in_peace & (facts["drop"] >= 4), -np.abs(hours - usual), "weaned"),
        ((fate != DEAD) & (facts["rescue"] >= 2), facts["rescue"] + hours / 1e3, "rescued"),
        (stuck, hours, "long support, no recovery"),
        (fate == DEAD, hours, "died on support"),
        (fate <= TRANSFERRED, -np.abs(hours - np.median(hours)), "on support to the end"),
    )
    ending = {EXPLANTED: "explanted", DEAD: "died", TRANSFERRED: "left on support"}
    taken: list[tuple[int, str]] = []
    for fits, score, words in wishes:
        free = fits & (hours >= min(SHORTEST, hours.max()))
        free[[row for row, _ in taken]] = False
        if free.any() and len(taken) < 4:
            row = int(np.argmax(np.where(free, score, -np.inf)))
            end = ending.get(int(fate[row]))
            known = end is None or "support" in words
            taken.append((row, words if known else f"{words}, {end}"))
    for row in np.argsort(-hours, kind="stable"):
        if len(taken) >= min(2, len(hours)):
            break
        if row not in [other for other, _ in taken]:
            taken.append((int(row), ending.get(int(fate[row]), "recorded")))
    return taken


def _facts(cohort: Cohort) -> dict[str, np.ndarray]:
    """What the choice looks at, one number per stay."""
    per_hour, facts = round(60 / cohort.minutes), []
    for row in range(len(cohort.patient)):
        seen = np.asarray(cohort.seen)[row]
        level = np.asarray(cohort.level)[row][seen].astype(float)
        pressure = np.asarray(cohort.signals)[row, :, MAP][seen]
        facts.append(
            {
                "hours": len(level) / per_hour,
                "last_level": level[-1],
                "late_level": level[-24 * per_hour :].mean(),
                "drop": level.max() - level[-1],
                "rescue": _largest_rescue(level, pressure, per_hour),
            }
        )
    return {name: np.asarray([one[name] for one in facts]) for name in facts[0]}


def _largest_rescue(level: np.ndarray, pressure: np.ndarray, per_hour: int) -> float:
    """Largest rise within two hours that met a low pressure.

    The level must have been held for three hours before, which a short turn-down test is not.
    """
    span, held = 2 * per_hour, 3 * per_hour
    rises = [
        level[now + span] - level[now]
        for now in range(held, len(level) - span)
        if np.nanmin(pressure[now : now + span], initial=np.inf) < LOW_MAP
        and np.ptp(level[now - held : now + 1]) == 0
    ]
    return max(rises, default=0.0)


# ── at the bedside ────────────────────────────────────────────────────────────────────────────────


def draw_rollouts(cases: Mapping[str, Mapping[str, Episodes]]) -> bytes:
    """Six hours of every method from one start; a case such as "high reward" is a row.

    Episodes hold one start each: state (times, steps, columns), level (times,), alive (times - 1,).
    """
    columns = max(len(methods) for methods in cases.values())

    def draw(figure: Figure) -> None:
        parts = np.atleast_1d(np.array(figure.subfigures(len(cases), 1)))
        for part, (words, methods) in zip(parts, cases.items(), strict=True):
            axes = part.subplots(
                2, columns, sharex=True, sharey="row", height_ratios=(2, 1), squeeze=False
            )
            part.suptitle(words, x=0.01, ha="left", fontsize=12, fontweight="bold")
            for column, (method, episode) in zip(axes.T, methods.items(), strict=False):
                _draw_episode(column, episode)
                weight = "bold" if method in BOLD else "normal"
                title = f"{name_of(method)}\n{_score_words(episode)}"
                column[0].set_title(title, fontsize=9, fontweight=weight)
            for axis in axes[:, len(methods) :].ravel():
                axis.set_visible(False)
            axes[0, 0].set_ylabel("mmHg; beats/min")
            axes[1, 0].set_ylabel("Level", color=LEVEL_COLOR)
        wide = 6 if columns > 3 else 3  # narrow figures would cut the line
        figure.legend(
            handles=_vital_handles(), loc="outside lower center", ncols=wide, frameon=False
        )

    return to_png(draw, (1.0 + 2.55 * columns, 0.5 + 4.3 * len(cases)))


def _score_words(episode: Episodes) -> str:
    several = score_episodes(jax.tree.map(lambda x: jnp.asarray(x)[None], episode))
    one = jax.tree.map(lambda x: float(x[0]), several)
    return minus(
        f"reward {one['reward']:.2f}, ACP {one['acp']:.0f}\n"
        f"WS {number(one['ws_gradient'])}, unsafe {100 * one['unsafe_hours']:.0f} %"
    )


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
    safe = np.asarray(jax.vmap(stable_by_limits)(episode.state)) & alive
    for hour in np.flatnonzero(~safe):
        axes[0].axvspan(hour - 1, hour, ymin=0.965, color=RARE, lw=0)
    _draw_steps(axes[1], np.arange(-1, times), levels)
    axes[1].set_xlim(-1, times - 1)
    axes[1].set_xticks(range(0, times, 2))
    axes[1].set_xlabel("Hours")


def _draw_vitals(axis: Axes, hours: np.ndarray, samples: np.ndarray) -> None:
    for trace in VITALS:
        values = np.clip(samples[:, trace.column], 0, CEILING)
        axis.plot(hours, values, color=trace.color, ls=trace.dash, lw=1.5)
        axis.axhline(trace.limit, color=trace.color, lw=0.8, ls=(0, (1, 2)))
    axis.set_ylim(0, CEILING)
    axis.grid(axis="y", **GRID)
    axis.set_axisbelow(True)


def _draw_steps(axis: Axes, hours: np.ndarray, levels: np.ndarray) -> None:
    """Levels held from one edge to the next; there is one edge more than levels."""
    axis.stairs(levels, hours, baseline=LOWEST - 0.5, fill=True, color=LEVEL_COLOR, alpha=0.15)
    axis.step(hours, np.append(levels, levels[-1]), where="post", color=LEVEL_COLOR, lw=1.6)
    name_levels(axis)
    axis.grid(axis="y", **GRID)


def _vital_handles() -> list[Line2D]:
    lines = [
        Line2D([], [], color=trace.color, ls=trace.dash, lw=1.5, label=words_of(trace.column))
        for trace in VITALS
    ]
    limit = Line2D([], [], color=MUTED, lw=0.8, ls=(0, (1, 2)), label="limit of a safe hour")
    bar = Line2D([], [], color=RARE, lw=4, label="unsafe hour, or dead")
    before = Line2D([], [], color=MUTED, lw=8, alpha=0.15, label="recorded hour before")
    return [*lines, limit, bar, before]


def pick_weaning(cohort: Cohort) -> list[tuple[int, int]]:
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
    return [(row, start) for gain, row, start in found[:WEANED] if gain > 0]


def draw_weaning(cohort: Cohort) -> bytes:
    """Days on which teams weaned (App. B): vital signs and level over 24 hours."""
    picked = pick_weaning(cohort)
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
