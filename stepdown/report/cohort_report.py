"""A cohort as a report shows it: beside the real one, number by number, and its card.

The real recordings are private. Their authors published moments with the CORMPO paper, and the
small sample beside their code gives aggregates by level and in time; no row of it is used here.
Tau was not published. Hours are full hours of six samples, ten minutes apart; a finer cohort is
thinned to that first.
"""

import hashlib
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Bool, Float

from stepdown.evaluation.movement import (
    Moves,
    correlations_of,
    every_ten_minutes,
    hours_of,
    moves_of,
    practice_of,
)
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, in_groups, world_of
from stepdown.patients.population import Population
from stepdown.problem.clinical import (
    PAPER,
    STRICT_LIMITS,
    raw_reward,
    stable_by_gradient,
    stable_by_limits,
)
from stepdown.report.grids import DASH, Cell, Grid, minus, number, pipes, to_html, to_text
from stepdown.report.page import Section, picture, render_markdown
from stepdown.signals import KNOWN, LEVELS, REQUIRED, SAMPLE_MINUTES

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
ALT = (
    "Example stays over time with their levels, level against hourly reward with the rare region "
    "shaded, histograms of reward and length of stay"
)

SOURCE = "aggregates of 379 real stays, published with CORMPO"

# mean and standard deviation over all hours
MOMENTS = {
    "map": (73.87, 12.01),
    "speed": (40_363.0, 4_378.0),
    "current": (643.8, 164.8),
    "flow": (2.96, 0.56),
    "lvp": (39.34, 17.62),
    "lvedp": (9.46, 18.08),  # an estimate; it goes negative
    "hr": (86.61, 18.89),
    "sbp": (91.98, 17.96),
    "dbp": (61.15, 11.08),
    "pulsatility": (30.83, 15.02),
    "ese": (0.617, 0.206),
    "level": (6.42, 1.98),
    "reward": (-1.70, 2.66),  # raw, before normalizing
}
# correlation with the sample before, ten minutes ago
LAG_ONE = {"map": 0.956, "hr": 0.969, "pulsatility": 0.975, "flow": 0.995, "lvedp": 0.986}
CORRELATIONS = {
    ("map", "sbp"): 0.89,
    ("map", "dbp"): 0.93,
    ("map", "pulsatility"): 0.33,
    ("map", "lvp"): 0.58,
    ("lvp", "lvedp"): 0.79,
    ("level", "current"): 0.98,
    ("level", "flow"): 0.91,
    ("level", "map"): -0.07,
    ("level", "pulsatility"): -0.25,
    ("hr", "map"): 0.03,
    ("ese", "map"): 0.44,
}
# how signals move (second calibration): sd inside an hour, median and 90th centile; change of hour
# means, robust sd, sd and excess kurtosis; 99th centile of the steps between samples of an hour
MOVES = {
    "map": Moves(1.90, 5.11, 3.69, 5.07, 3.9, 14.6),
    "sbp": Moves(2.56, 7.02, 4.91, 6.99, 4.1, 19.4),
    "dbp": Moves(1.48, 3.92, 2.74, 4.03, 3.8, 10.9),
    "pulsatility": Moves(1.20, 3.92, 2.38, 3.95, 3.7, 10.4),
    "hr": Moves(1.41, 4.73, 2.49, 6.63, 19.7, 22.3),
    "lvp": Moves(1.60, 4.57, 3.52, 4.82, 4.4, 13.1),
    "lvedp": Moves(1.27, 4.09, 2.44, 4.43, 6.0, 12.2),
    "current": Moves(2.26, 19.8, 3.73, 35.2, 14.0, 90.8),
    "flow": Moves(0.016, 0.082, 0.032, 0.106, 9.0, 0.273),
    "ese": Moves(0.024, 0.068, 0.037, 0.065, 4.4, 0.205),
}
# correlations over samples; that of elastance and level was not given
PAIRS = {
    "map": {
        "current": -0.10,
        "flow": -0.17,
        "lvp": 0.58,
        "lvedp": 0.28,
        "hr": 0.05,
        "sbp": 0.88,
        "dbp": 0.93,
        "pulsatility": 0.31,
        "ese": 0.44,
        "level": -0.06,
    },
    "current": {
        "flow": 0.96,
        "lvp": 0.03,
        "lvedp": 0.14,
        "hr": 0.02,
        "sbp": -0.16,
        "dbp": 0.02,
        "pulsatility": -0.23,
        "ese": -0.21,
        "level": 0.98,
    },
    "flow": {
        "lvp": 0.12,
        "lvedp": 0.24,
        "hr": 0.08,
        "sbp": -0.21,
        "dbp": -0.06,
        "pulsatility": -0.23,
        "ese": -0.28,
        "level": 0.91,
    },
    "lvp": {
        "lvedp": 0.79,
        "hr": 0.21,
        "sbp": 0.52,
        "dbp": 0.54,
        "pulsatility": 0.19,
        "ese": 0.14,
        "level": -0.04,
    },
    "lvedp": {
        "hr": -0.02,
        "sbp": 0.23,
        "dbp": 0.28,
        "pulsatility": 0.03,
        "ese": -0.35,
        "level": 0.06,
    },
    "hr": {"sbp": -0.01, "dbp": 0.11, "pulsatility": -0.13, "ese": 0.28, "level": 0.00},
    "sbp": {"dbp": 0.67, "pulsatility": 0.71, "ese": 0.47, "level": -0.14},
    "dbp": {"pulsatility": -0.05, "ese": 0.32, "level": 0.06},
    "pulsatility": {"ese": 0.32, "level": -0.24},
}
CHANGED_INSIDE = 11.0  # percent of the coming hours
STEP_SIZES = (78.0, 19.0, 3.0)  # percent of 32 changes between samples: one, two, three levels
# mean over samples at P2..P9
BY_LEVEL = {
    "flow": (1.93, 1.96, 2.32, 2.47, 2.76, 3.12, 3.43, 3.60),
    "current": (331.0, 381.0, 441.0, 502.0, 576.0, 697.0, 781.0, 862.0),
}
# shares of hours, in percent
BY_LIMITS = {"limits, pulsatility 20": 62.5, "limits, pulsatility 10": 79.5}
STABLE = {**BY_LIMITS, "gradient": 72.5}
UNCHANGED = 90.0  # from one hour to the next
LEVEL_SHARES = (6.0, 4.0, 11.0, 7.0, 16.0, 17.0, 20.0, 19.0)  # of samples at P2..P9
STAY_HOURS = 65.5

HOURS_AT_ONCE = 8192  # of one compiled call
MEAN_BAR, SD_BAR, LAG_BAR, CORRELATION_BAR = 0.15, 20.0, 0.03, 0.15  # sd, %, r, r
STABLE_BAR, UNCHANGED_BAR, BY_LEVEL_BAR = 8.0, 5.0, 3.0  # points, points, %
INSIDE_BAR, TAIL_BAR, CHANGE_BAR, KURTOSIS_BAR = 15.0, 25.0, 15.0, 2.0  # %, %, %, times
CHANGED_BAR = 3.0  # points


@dataclass(frozen=True)
class Row:
    """One number of our cohort beside the published one."""

    group: str
    what: str
    unit: str
    ours: float
    published: float
    difference: float  # in the unit of the bar
    scale: str  # that unit: sd, %, r, points
    bar: float | None  # largest difference allowed; None where the number is only shown

    @property
    def within(self) -> bool | None:
        """Whether the bar is kept; a number that could not be computed keeps none."""
        return None if self.bar is None else bool(abs(self.difference) <= self.bar)

    @property
    def verdict(self) -> str:
        """Whether the bar is kept, in words."""
        if math.isnan(self.ours):
            return "no data"
        return {True: "within", False: "outside", None: "shown"}[self.within]

    @property
    def name(self) -> str:
        """What the number is, with its unit."""
        return self.what + (f" [{self.unit}]" if self.unit else "")


def describe_cohort(cohort: Cohort) -> tuple[Row, ...]:
    """Every published number beside ours; of rows an hour apart those that need no more."""
    cohort = every_ten_minutes(cohort)
    hours = _measure_hours(cohort)
    seen = np.asarray(cohort.seen)
    columns = dict(zip(cohort.columns, np.moveaxis(np.asarray(cohort.signals), -1, 0), strict=True))
    samples = {name: values[seen] for name, values in columns.items()}
    samples["level"] = np.asarray(cohort.level)[seen].astype(float)
    samples["reward"] = hours["reward"]
    fine = cohort.minutes <= SAMPLE_MINUTES
    return (
        *_moments(samples),
        *(_lags(columns, seen) if fine else ()),
        *_correlations(samples),
        *_decisions(hours, STABLE if fine else BY_LIMITS),
        *_by_level(samples),
        *(_movement(cohort) if fine else ()),
        *_shown(samples, seen.sum(1) * cohort.minutes / 60),
    )


def hourly(cohort: Cohort) -> dict[str, np.ndarray]:
    """Reward, level and stability of every full hour with what these need; flat arrays."""
    return _measure_hours(every_ten_minutes(cohort))


def _measure_hours(cohort: Cohort) -> dict[str, np.ndarray]:
    signals, levels, full = hours_of(cohort)
    full = full & ~np.isnan(signals[..., list(REQUIRED)]).all(2).any(-1)
    states = np.concatenate([signals, levels[..., None]], -1).astype(np.float32)[full]
    reward, strict, limits, gradient = in_groups(_score_hours, (states,), size=HOURS_AT_ONCE)
    level = np.floor(levels.mean(-1) + 0.5)
    follows = np.logical_and(full[:, 1:], full[:, :-1])
    return {
        "reward": reward,
        "level": level[full],
        "change": (level[:, 1:] - level[:, :-1])[follows],
        "limits, pulsatility 20": strict,
        "limits, pulsatility 10": limits,
        "gradient": gradient,
    }


def _score_hours(
    states: Float[jax.Array, "n steps columns"],
) -> tuple[Float[jax.Array, " n"], *tuple[Bool[jax.Array, " n"], ...]]:
    def one(state):
        return (
            raw_reward(state),
            stable_by_limits(state, STRICT_LIMITS),
            stable_by_limits(state, PAPER),
            stable_by_gradient(state, PAPER),
        )

    return jax.vmap(one)(states)


def _row(
    words: tuple[str, str, str], ours: float, published: float, scale: str, bar: float | None
) -> Row:
    """A number whose difference is counted in percent of the published one, or as it is."""
    difference = ours - published
    if scale == "%":
        difference = 100 * difference / published
    return Row(*words, ours, published, difference, scale, bar)


def _moments(samples: dict[str, np.ndarray]) -> Iterable[Row]:
    units = {name: KNOWN[name].unit for name in MOMENTS if name in KNOWN}
    units |= {"level": "P", "reward": ""}
    for name, (mean, sd) in MOMENTS.items():
        ours = _known(samples[name], np.mean)
        yield Row("mean", name, units[name], ours, mean, (ours - mean) / sd, "sd", MEAN_BAR)
    for name, (_, sd) in MOMENTS.items():
        ours = _known(samples[name], np.std)
        yield _row(("standard deviation", name, units[name]), ours, sd, "%", SD_BAR)


def _lags(columns: dict[str, np.ndarray], seen: np.ndarray) -> Iterable[Row]:
    pairs = seen[:, 1:] & seen[:, :-1]
    for name, published in LAG_ONE.items():
        ours = _correlation(columns[name][:, :-1][pairs], columns[name][:, 1:][pairs])
        yield _row(("lag-1 correlation", name, ""), ours, published, "r", LAG_BAR)


def _correlations(samples: dict[str, np.ndarray]) -> Iterable[Row]:
    for (one, other), published in CORRELATIONS.items():
        ours = _correlation(samples[one], samples[other])
        yield _row(("correlation", f"{one} – {other}", ""), ours, published, "r", CORRELATION_BAR)


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    known = ~(np.isnan(one) | np.isnan(other))
    one, other = one[known].astype(float), other[known].astype(float)
    if len(one) < 2 or one.std() == 0 or other.std() == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def _decisions(hours: dict[str, np.ndarray], stable: Mapping[str, float]) -> Iterable[Row]:
    ours, words = _percent(hours["change"] == 0), "level unchanged over the hour"
    yield _row(("decisions", words, "%"), ours, UNCHANGED, "points", UNCHANGED_BAR)
    for name, published in stable.items():
        ours = _percent(hours[name])
        yield _row(("stable hours", name, "%"), ours, published, "points", STABLE_BAR)


def _known(values: np.ndarray, measure: Callable) -> float:
    """A mean or spread of what is known."""
    known = values[~np.isnan(values)]
    return float(measure(known, dtype=float)) if known.size else float("nan")


def _percent(flags: np.ndarray) -> float:
    return 100 * float(flags.mean()) if flags.size else float("nan")


def _by_level(samples: dict[str, np.ndarray]) -> Iterable[Row]:
    for name, means in BY_LEVEL.items():
        for level, published in zip(LEVELS, means, strict=True):
            ours = _known(samples[name][samples["level"] == level], np.mean)
            words = (f"{name} by level", f"P{level}", KNOWN[name].unit)
            yield _row(words, ours, published, "%", BY_LEVEL_BAR)


def _movement(cohort: Cohort) -> Iterable[Row]:
    """The second calibration."""
    ours, unknown = moves_of(cohort), Moves(*[float("nan")] * len(fields(Moves)))
    for field, words, bar in MOVEMENT_WORDS:
        for name, published in MOVES.items():
            unit = "" if field == "change_kurtosis" else KNOWN[name].unit
            found = getattr(ours.get(name, unknown), field), getattr(published, field)
            if field == "change_kurtosis":
                times = times_off(*found)
                yield Row(words, name, "", *found, times, "times", KURTOSIS_BAR)
            else:
                yield _row((words, name, unit), *found, "%", bar)
    together = correlations_of(cohort)
    for one, others in PAIRS.items():
        for other, published in others.items():
            found = together.get((one, other), together.get((other, one), float("nan")))
            words = ("correlation, all pairs", f"{one} – {other}", "")
            yield _row(words, found, published, "r", CORRELATION_BAR)
    practice = practice_of(cohort)
    words = ("decisions", "level changes inside the hour", "%")
    yield _row(words, practice.inside, CHANGED_INSIDE, "points", CHANGED_BAR)
    for size, found, published in zip((1, 2, 3), practice.steps, STEP_SIZES, strict=False):
        words = ("decisions", f"changes by {size} level{'s' * (size > 1)}", "%")
        yield _row(words, found, published, "points", None)


MOVEMENT_WORDS = (
    ("inside", "sd inside the hour, median", INSIDE_BAR),
    ("inside_tail", "sd inside the hour, 90th centile", TAIL_BAR),
    ("change_robust", "change of hour means, robust sd", CHANGE_BAR),
    ("change_sd", "change of hour means, sd", None),
    ("change_kurtosis", "change of hour means, excess kurtosis", KURTOSIS_BAR),
    ("largest", "largest 1 % of the steps inside the hour", None),
)


def times_off(ours: float, published: float) -> float:
    """How many times too large, or (as a negative number) too small; infinite below zero."""
    if math.isnan(ours) or ours <= 0:
        return -math.inf if ours <= 0 else math.nan
    return ours / published if ours >= published else -published / ours


def _shown(samples: dict[str, np.ndarray], hours: Float[np.ndarray, " stays"]) -> Iterable[Row]:
    """Numbers without a bar: they follow from practice, not from physiology."""
    for level, published in zip(LEVELS, LEVEL_SHARES, strict=True):
        ours = _percent(samples["level"] == level)
        yield _row(("share of levels", f"P{level}", "%"), ours, published, "points", None)
    yield _row(("record", "mean length", "h"), float(hours.mean()), STAY_HOURS, "%", None)


# ── the table ────────────────────────────────────────────────────────────────────────────────────

HEAD = ("number", "ours", "published", "difference", "bar", "verdict")
KINDS = ("", "number", "number", "number", "bar number", "")


def summarize(rows: Sequence[Row]) -> str:
    """How many bars are kept."""
    judged = [row for row in rows if row.bar is not None]
    kept = sum(row.within is True for row in judged)
    return f"{kept} of {len(judged)} published numbers within their bar"


def moments_text(rows: Sequence[Row]) -> str:
    """The table for a terminal, and what it says."""
    lines = tuple((Cell(f"{row.group}, {row.name}"), *_cells(row)) for row in rows)
    return f"{to_text(Grid('', HEAD, lines, kinds=KINDS))}\n{summarize(rows)}."


def moments_grid(rows: Sequence[Row]) -> Grid:
    """The table for a page, group by group."""
    lines = tuple((Cell(row.name), *_cells(row)) for row in rows)
    starts, groups = 0, {}
    for group, members in groupby(rows, lambda row: row.group):
        groups[starts] = group.capitalize()
        starts += len(list(members))
    return Grid("", HEAD, lines, groups=groups, kinds=KINDS, names=False)


def moment_rows(rows: Sequence[Row]) -> list[dict[str, str | float | None]]:
    """The table as tidy rows."""
    return [asdict(row) | {"verdict": row.verdict} for row in rows]


def _cells(row: Row) -> list[Cell]:
    scale = "" if row.scale == "r" else f" {row.scale}"
    digits = {"r": 3, "sd": 2}.get(row.scale, 1)
    difference = DASH if math.isnan(row.ours) else _signed(row.difference, digits) + scale
    bar = DASH if row.bar is None else f"± {row.bar:g}{scale}"
    kind = {"no data": "none"}.get(row.verdict, row.verdict)
    numbers = (four_digits(row.ours), four_digits(row.published), difference, bar)
    return [*map(Cell, numbers), Cell(row.verdict, kind=kind)]


def _signed(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}"
    return minus(text if float(text) else text.replace("-", "+"))


def four_digits(value: float) -> str:
    """About four digits, as a reader needs them; a dash where there is nothing."""
    size = abs(value)
    return number(value, 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3)


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
    world, signals = world_of(config), [KNOWN[name] for name in cohort.columns]
    total = float(np.sum(cohort.seen)) * cohort.minutes / 60
    parts = [
        "# Dataset card: simulated pump patients",
        f"**{WARNING}**",
        "## What it is",
        f"{len(cohort.patient):,} simulated stays on a micro-axial heart pump, {total:,.0f} hours "
        f"in all, one sample every {cohort.minutes:g} min. Each patient is a beat-resolved "
        "circulation with slow courses (recovery, ischemia, vessel tone, volume, rhythm, hidden "
        "drugs), treated by a simulated team that sees the noisy console.",
        "## What it is not",
        "- Not recordings, and not derived from any patient's recording.\n"
        "- Not a validated model of an individual patient or of a marketed pump.\n"
        "- Not a basis for treatment or device settings.\n"
        "- Not closer to real patients than the calibration table of a run says.",
        "## Files",
        "\n".join(f"- {sentence}" for sentence in (*FILES, *extras)),
        _table(("signal", "unit", "meaning"), [(f"`{s.name}`", s.unit, s.label) for s in signals]),
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
        _table(
            ("number", "value"),
            [(f"`{name}`", f"{x:.4g}") for name, x in _numbers(world.population)],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _numbers(population: Population) -> Iterable[tuple[str, float]]:
    """Every number of the population by its name; those of its movement too, if it has one."""
    for part in (population, population.movement):
        for name, value in vars(part).items() if part is not None else ():
            if name != "movement":
                yield name, float(value)


def _stays(cohort: Cohort, outcome: np.ndarray) -> str:
    hours = np.asarray(cohort.seen).sum(1) * cohort.minutes / 60
    counts = np.bincount(np.asarray(outcome), minlength=len(FATES))
    rows = [(fate, f"{count:,}") for fate, count in zip(FATES, counts, strict=True)]
    mean, shortest, longest = map(four_digits, (hours.mean(), hours.min(), hours.max()))
    rows += [("mean length, h", mean), ("shortest to longest, h", f"{shortest} to {longest}")]
    return _table(("stays", "number"), rows)


def _recipe(config: CohortConfig, seed: int) -> str:
    length = "each to its own end" if config.hours is None else f"exactly {config.hours:g} h"
    settings = {
        "version of the patients": str(config.version),
        "preset": config.preset,
        "pump profile": config.profile,
        "patients": f"{config.patients:,}",
        "length of a stay": length,
        "seed": str(seed),
    }
    return _table(("setting", "value"), list(settings.items()))


def digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of files that have been written already."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(pipes, [head, ["---"] * len(head), *rows]))
