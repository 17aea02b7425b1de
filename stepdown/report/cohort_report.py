"""A cohort at a glance: its card, its pictures, its section of the page.

Colors follow bedside habit (pressure red, rate green) in tones that read on white. Levels are
steps, limits are thin lines. Which stays to show is chosen by rule, so that nobody picks favorites.
"""

import dataclasses
import hashlib
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MultipleLocator

from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, world_of
from stepdown.patients.population import Population
from stepdown.problem.clinical import PAPER
from stepdown.report.figures import (
    BARS,
    DASHES,
    GRID,
    INK,
    LEVEL_COLOR,
    LIMIT,
    RARE,
    name_levels,
    to_png,
)
from stepdown.report.grids import minus, pipes, to_html
from stepdown.report.page import Section, picture, render_markdown
from stepdown.report.published_moments import (
    SOURCE,
    STAY_HOURS,
    Row,
    four_digits,
    hourly,
    moments_grid,
    summarize,
)
from stepdown.signals import FLOW, HIGHEST, HR, LEVELS, LOWEST, MAP, PULSATILITY, SIGNALS

WARNING = (
    "Simulated cohort, calibrated to published moments only; not evidence on patients; "
    "not for care."
)
FILES = (
    "`cohort.parquet`: one row per seen sample: `patient`, `minute` since the start of support, "
    "the signals below, `level` (P2 to P9).",
    "`latents.safetensors`: hourly snapshots of the hidden truth, for judging only. Nothing that "
    "fits or chooses may read it.",
    "`overview.png`: example stays, level against reward, rewards, lengths of stay.",
)
FATES = ("transferred or still on support", "explanted", "died")  # by outcome
TRANSFERRED, EXPLANTED, DEAD = 0, 1, 2
LOW_MAP = 60.0  # mmHg
SHORTEST, LONG = 12.0, 72.0  # h; a shorter stay shows little
ALT = (
    "Example stays over time with their levels, level against hourly reward with the rare region "
    "shaded, histograms of reward and length of stay"
)


@dataclass(frozen=True)
class Trace:
    """How a signal is drawn."""

    column: int
    words: str
    color: str
    axis: tuple[float, float]
    limit: float | None = None  # of a stable hour


TRACES = (
    Trace(MAP, "MAP\nmmHg", "#c8322b", (30.0, 125.0), PAPER.map_limit),
    Trace(PULSATILITY, "Pulsatility\nmmHg", "#8e44ad", (0.0, 90.0), PAPER.pulsatility_limit),
    Trace(HR, "Heart rate\n/min", "#1b7f3b", (30.0, 170.0), PAPER.hr_limit),
    Trace(FLOW, "Pump flow\nL/min", "#0072b2", (0.0, 5.0)),
)
LOW_LEVEL = 4  # P2 to P4 is little support
LOW_REWARD = -3.0  # about the worst quarter of the real hours (-3.1)
DEEPEST = -12  # rewards below share one row
TICKS, TICK_WORDS = (0, -3, -6, -9, -12.5), ("0", "−3", "−6", "−9", "< −12")


def cohort_section(rows: Sequence[Row], overview: bytes, card: str) -> Section:
    """The patients: a picture, the published moments, the card."""
    outside = [row for row in rows if row.bar is not None and not row.within]
    names = "; ".join(f"{row.group}, {row.what}" for row in outside[:6])
    more = f" and {len(outside) - 6} more, marked below" if len(outside) > 6 else ""
    misses = f" Not within: {names}{more}." if outside else ""
    return Section(
        "The patients",
        f"{picture(overview, ALT)}\n"
        f"<h3>Ours beside the real cohort</h3>\n<p>{summarize(rows)}.{html.escape(misses)} "
        f'<span class="muted">Published: {SOURCE}. A difference is counted in the unit of its bar; '
        f"numbers without a bar are shown for comparison.</span></p>\n{to_html(moments_grid(rows))}"
        f"<details><summary>Dataset card</summary>\n{render_markdown(card)}</details>",
    )


# ── the card ──────────────────────────────────────────────────────────────────────────────────────


def dataset_card(
    cohort: Cohort,
    config: CohortConfig,
    outcome: np.ndarray,
    *,
    seed: int,
    extras: Sequence[str],
    hashes: Mapping[str, str],
) -> str:
    """The card; `extras` are sentences on files that not every cohort has."""
    world = world_of(config)
    parts = [
        "# Dataset card: simulated pump patients",
        f"**{WARNING}**",
        *_nature(cohort),
        "## Files",
        "\n".join(f"- {sentence}" for sentence in (*FILES, *extras)),
        _table(("signal", "unit", "meaning"), [(f"`{s.name}`", s.unit, s.label) for s in SIGNALS]),
        "## Stays",
        _stays(cohort, outcome),
        "## How it was made",
        _recipe(config, seed),
        f"Pump profile `{world.profile.name}`. {world.profile.source}",
        "Versions, commit, device and date are in `manifest.json`.",
        "## Fingerprints (SHA-256)",
        _table(("file", "digest"), [(f"`{name}`", f"`{hashes[name]}`") for name in hashes]),
        "## The population",
        "Medians or means and spreads that patients are drawn from; units and meaning stand "
        "beside each number in `stepdown/patients/population.py`.",
        _population(world.population),
    ]
    return "\n\n".join(parts) + "\n"


def _nature(cohort: Cohort) -> list[str]:
    hours = float(np.sum(cohort.seen)) * cohort.minutes / 60
    return [
        "## What it is",
        f"{len(cohort.patient):,} simulated stays on a micro-axial heart pump, {hours:,.0f} hours "
        f"in all, one sample every {cohort.minutes:g} min. Each patient is a beat-resolved "
        "circulation with slow courses (recovery, ischemia, vessel tone, volume, rhythm, hidden "
        "drugs), treated by a simulated team that sees the noisy console.",
        "## What it is not",
        "- Not recordings, and not derived from any patient's recording.\n"
        "- Not a validated model of an individual patient or of a marketed pump.\n"
        "- Not a basis for treatment or device settings.\n"
        "- Not closer to real patients than the calibration table of a run says.",
    ]


def _stays(cohort: Cohort, outcome: np.ndarray) -> str:
    hours = np.asarray(cohort.seen).sum(1) * cohort.minutes / 60
    counts = np.bincount(np.asarray(outcome), minlength=len(FATES))
    span = f"{four_digits(float(hours.min()))} to {four_digits(float(hours.max()))}"
    rows = [(fate, f"{count:,}") for fate, count in zip(FATES, counts, strict=True)]
    rows += [("mean length, h", four_digits(float(hours.mean()))), ("shortest to longest, h", span)]
    return _table(("stays", "number"), rows)


def _recipe(config: CohortConfig, seed: int) -> str:
    length = "each to its own end" if config.hours is None else f"exactly {config.hours:g} h"
    settings = {
        "preset": config.preset,
        "pump profile": config.profile,
        "patients": f"{config.patients:,}",
        "length of a stay": length,
        "seed": str(seed),
    }
    return _table(("setting", "value"), list(settings.items()))


def _population(population: Population) -> str:
    names = [field.name for field in dataclasses.fields(population)]
    return _table(
        ("number", "value"),
        [(f"`{name}`", f"{float(getattr(population, name)):.4g}") for name in names],
    )


def digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of files that have been written already."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(pipes, [head, ["---"] * len(head), *rows]))


# ── pictures ──────────────────────────────────────────────────────────────────────────────────────


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
        for trace, axis in zip(TRACES, axes[:-1, column], strict=True):
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
    if trace.limit is not None:
        axis.axhline(trace.limit, color=LIMIT, linewidth=0.9, linestyle=DASHES)
        axis.text(1.0, trace.limit, f" {trace.limit:.0f}", color=LIMIT, fontsize=9, va="center",
                  transform=axis.get_yaxis_transform())  # fmt: skip
    if first:
        axis.set_ylabel(trace.words, color=trace.color)


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
    facts: dict[str, list[float]] = {}
    per_hour = round(60 / cohort.minutes)
    for row in range(len(cohort.patient)):
        seen = np.asarray(cohort.seen)[row]
        level = np.asarray(cohort.level)[row][seen].astype(float)
        pressure = np.asarray(cohort.signals)[row, :, MAP][seen]
        one = {
            "hours": len(level) / per_hour,
            "last_level": level[-1],
            "late_level": level[-24 * per_hour :].mean(),
            "drop": level.max() - level[-1],
            "rescue": _largest_rescue(level, pressure, per_hour),
        }
        for name, value in one.items():
            facts.setdefault(name, []).append(value)
    return {name: np.asarray(values) for name, values in facts.items()}


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
