"""What nurses chart of a console: points about once an hour, rounded, stored later, with drugs.

A stay is charted in rounds. A round writes what the screen shows at that moment, some of it not,
and the computer stores it minutes later, or hours later where somebody was busy. Levels are also
charted when they change. The simulator's hidden drugs, shares of a full dose, become infusions of
norepinephrine and dobutamine. Some stays hold what a study has to leave out: another pump, a second
support, no arterial line, no pump at all.

How often, how late and how many is judgment; the lag-1 slope that it gives is not fitted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.handover import Cohort
from stepdown.patients.cohort import Latents
from stepdown.patients.course import Course
from stepdown.patients.population import host_generator
from stepdown.signals import NAMES, columns_with

Kind = Literal["plain", "no pump", "right", "balloon", "ecmo", "5.5", "unnamed", "cuff"]

# What a nurse copies in one go, and the last digit of it.
GROUPS: tuple[Mapping[str, float], ...] = (
    {"map": 1.0, "sbp": 1.0, "dbp": 1.0},
    {"hr": 1.0},
    {"flow": 0.1, "speed": 100.0},
    {"lvedp": 1.0},
)
CUFF_EVERY, CUFF_SD = 4, 7.0  # rounds between two cuff pressures; mmHg off the line
FULL_DOSES = {"norepinephrine": 0.5, "dobutamine": 10.0}  # µg/kg/min at the full hidden dose
DOSE_DIGITS = {"norepinephrine": 0.01, "dobutamine": 0.5}  # µg/kg/min
DRUGS = ("nee", "vis")  # columns that the hidden drugs can be recorded as
WEIGHT, WEIGHT_SD, WEIGHTS = 82.0, 15.0, (45.0, 140.0)  # kg
FIRST_DAY, DAYS = datetime(2110, 1, 1), 30_000  # dates are shifted, as in MIMIC-IV


@dataclass(frozen=True)
class ChartingConfig:
    """How a unit charts, and which stays are not those of the study."""

    every: float = 60.0  # min between two rounds
    early_or_late: float = 6.0  # min, sd of a round's time
    skipped: float = 0.05  # share of what a round leaves out
    delay: float = 6.0  # min until an entry is stored, median
    late: float = 0.06  # share of the entries stored one to four hours later
    odd: float = 0.05  # share of the stays of each kind that a study leaves out


@dataclass(frozen=True)
class Line:
    """Entries of one kind, in order of chart time; minutes since the stay began."""

    minute: np.ndarray
    stored: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class Infusion:
    """One drug at one rate."""

    drug: str
    start: float  # min since the stay began
    end: float
    stored: float
    rate: float  # µg/kg/min


@dataclass(frozen=True)
class ChartedStay:
    """One stay as charted."""

    patient: str
    kind: Kind
    start: datetime  # as the clock of the unit says
    minutes: float  # length
    weight: float  # kg
    died: bool
    lines: Mapping[str, Line]  # signals, "level", and "cuff map", "cuff sbp", "cuff dbp"
    infusions: tuple[Infusion, ...]
    age: int | None = None  # years; the simulator has none


def chart_cohort(
    cohort: Cohort,
    latents: Latents,
    config: ChartingConfig = ChartingConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
) -> tuple[ChartedStay, ...]:
    """Every stay of a simulated cohort as its nurses charted it."""
    rng = host_generator(key)
    kinds = get_args(Kind)
    shares = [1 - config.odd * (len(kinds) - 1), *[config.odd] * (len(kinds) - 1)]
    drawn = rng.choice(len(kinds), len(cohort.patient), p=shares)
    return tuple(
        _chart_stay(cohort, latents, row, kinds[kind], config, rng)
        for row, kind in enumerate(drawn)
    )


def _chart_stay(cohort, latents, row: int, kind: Kind, config: ChartingConfig, rng) -> ChartedStay:
    steps = int(np.asarray(cohort.seen)[row].sum())
    signals = np.asarray(cohort.signals, float)[row, :steps]
    level = np.asarray(cohort.level)[row, :steps]
    length, outcome = steps * cohort.minutes, int(np.asarray(latents.outcome)[row])
    rounds = _rounds(length, config, rng)
    lines = {}
    for group in GROUPS:
        kept = rounds[rng.random(len(rounds)) >= config.skipped]
        stored = _stored(kept, config, rng)
        shown = signals[(kept / cohort.minutes).astype(int)]
        for name, digit in group.items():
            value = np.round(np.round(shown[:, NAMES.index(name)] / digit) * digit, 3)
            lines[name] = Line(kept, stored, value)
    lines |= _cuff(lines, config, rng)
    lines["level"] = _levels(level, rounds, cohort.minutes, outcome == 1, config, rng)
    if kind == "cuff":
        lines = {name: line for name, line in lines.items() if name not in GROUPS[0]}
    if kind == "no pump":
        gone = ("level", *GROUPS[2], *GROUPS[3])
        lines = {name: line for name, line in lines.items() if name not in gone}
    return ChartedStay(
        patient=cohort.patient[row],
        kind=kind,
        start=FIRST_DAY + timedelta(minutes=int(rng.integers(DAYS * 24 * 60))),
        minutes=length,
        weight=float(np.round(np.clip(rng.normal(WEIGHT, WEIGHT_SD), *WEIGHTS), 1)),
        died=outcome == 2,
        lines=lines,
        infusions=_infusions(latents, row, length, config, rng),
    )


def _rounds(length: float, config: ChartingConfig, rng) -> np.ndarray:
    """Whole minutes at which a nurse charts, in order, each once."""
    times = np.arange(config.every / 2, length, config.every)
    moved = np.rint(times + config.early_or_late * rng.standard_normal(len(times)))
    return np.unique(np.clip(moved, 0, length - 1))


def _stored(minute: np.ndarray, config: ChartingConfig, rng) -> np.ndarray:
    """When each entry reached the computer: never before it was charted."""
    delay = config.delay * np.exp(0.5 * rng.standard_normal(len(minute)))
    busy = rng.random(len(minute)) < config.late
    return minute + np.ceil(delay + busy * rng.uniform(60, 240, len(minute)))


def _cuff(lines: Mapping[str, Line], config: ChartingConfig, rng) -> dict[str, Line]:
    """Cuff pressures now and then, off those of the line."""
    out = {}
    for name in GROUPS[0]:
        minute = lines[name].minute[::CUFF_EVERY]
        off = CUFF_SD * rng.standard_normal(len(minute))
        value = np.maximum(np.rint(lines[name].value[::CUFF_EVERY] + off), 1.0)
        out[f"cuff {name}"] = Line(minute, _stored(minute, config, rng), value)
    return out


def _levels(level, rounds, minutes: float, explanted: bool, config, rng) -> Line:
    """The level at the start, in most rounds and at every change; P0 where the pump came out."""
    changed = (1 + np.flatnonzero(np.diff(level))) * minutes
    kept = rounds[rng.random(len(rounds)) >= config.skipped]
    minute = np.unique(np.concatenate([[0.0], kept, changed]))
    value = level[(minute / minutes).astype(int)].astype(float)
    if explanted:
        minute, value = np.append(minute, len(level) * minutes), np.append(value, 0.0)
    return Line(minute, _stored(minute, config, rng), value)


def doses_of(course: Course) -> dict[str, np.ndarray]:
    """The hidden drugs as infusions, µg/kg/min, in steps that a pump can be set to."""
    given = {"norepinephrine": course.pressor, "dobutamine": course.inotrope}
    return {
        drug: np.round(np.round(FULL_DOSES[drug] * np.asarray(share, float) / digit) * digit, 3)
        for drug, share in given.items()
        for digit in [DOSE_DIGITS[drug]]
    }


def drug_scores(course: Course) -> dict[str, np.ndarray]:
    """The same as norepinephrine equivalents and vasoactive-inotropic score."""
    doses = doses_of(course)
    nee = doses["norepinephrine"]
    return {"nee": nee, "vis": 100.0 * nee + doses["dobutamine"]}


def record_drugs(cohort: Cohort, latents: Latents, names: Collection[str] = DRUGS) -> Cohort:
    """A simulated cohort with its hidden drugs as columns: in each hour the rate at its start."""
    per_hour = round(60 / cohort.minutes)
    hour = np.arange(cohort.level.shape[1]) // per_hour
    found, columns = drug_scores(latents.course), [np.asarray(cohort.signals)]
    for name in DRUGS:
        if name in names:
            value = found[name][:, np.minimum(hour, found[name].shape[1] - 1)]
            columns.append(np.where(np.asarray(cohort.seen), value, np.nan)[..., None])
    signals = np.concatenate(columns, axis=-1, dtype=np.float32)
    return replace(cohort, signals=jnp.asarray(signals), columns=columns_with(names))


def _infusions(latents, row: int, length: float, config, rng) -> tuple[Infusion, ...]:
    """The hidden drugs, hour by hour, as stretches of one rate each."""
    hours, out = int(np.ceil(length / 60)), []
    for drug, doses in doses_of(latents.course).items():
        rate = doses[row, :hours]
        first = np.flatnonzero(np.diff(rate, prepend=-1.0))
        ends = np.append(60.0 * first[1:], length)
        stored = _stored(60.0 * first, config, rng)
        out += [
            Infusion(drug, 60.0 * begin, float(end), float(known), float(rate[begin]))
            for begin, end, known in zip(first, ends, stored, strict=True)
            if rate[begin] > 0
        ]
    return tuple(out)
