"""What recording does to the truth, on purpose and labelled: at 25 Hz, and on a cohort's grid.

`sense` turns an ideal recording into what the pump's sensors deliver: noise, drift, digits and
artifacts, each sample with the name of its artifact.

`corrupt` does to a clean cohort what real consoles and exports do; it is a separate layer, off
unless asked for. Every changed value is named by a label (patient, samples, signal, kind), and
stretches never overlap, so that what finds faults can be scored against what was done. Clocks are
not touched; an export's clock is the importer's.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float, Int8, PRNGKeyArray

from stepdown.handover import Cohort
from stepdown.patients.population import host_generator
from stepdown.signals import (
    CURRENT,
    DBP,
    ESE,
    LVEDP,
    LVP,
    MAP,
    NAMES,
    PULSATILITY,
    SBP,
    SPEED,
    TAU,
)

ARTIFACTS = ("none", "flush", "flat", "dropout")
# lengths and sizes: judgment
DRIFT_SECONDS, DRIFT_STEP = 60.0, 10.0  # s: correlation time of the pressure's drift, its knots
DRIFT_STEPS = 40  # after which the drift remembers nothing
ARTIFACT_SECONDS = {"flush": (1, 4), "flat": (3, 12), "dropout": (2, 20)}  # shortest and longest
FLUSH_PRESSURE = (240.0, 300.0)  # mmHg of the bag
DAMPED = 0.9  # share of the pulse that a flat stretch loses

LV_DERIVED = (LVP, LVEDP, TAU, ESE)  # the console infers these from pressure and motor current
LV_SHOWN_FROM = 4  # P-level; below it the console shows none of them
PLACEMENT = (MAP, SBP, DBP, PULSATILITY)  # read off one pressure line
UNIT_SLIPS = (
    ((*PLACEMENT, LVP, LVEDP), 0.1333224),  # mmHg written in kPa
    ((CURRENT,), 1e-3),  # mA written in A
    ((SPEED,), 1e-3),  # rpm written in thousands
)


@dataclass(frozen=True)
class SensorConfig:
    """Noise as sd, artifacts as counts per hour."""

    pressure_noise: float = 0.7  # mmHg, white
    pressure_drift: float = 0.3  # mmHg, over a minute or so
    pressure_digit: float = 0.25  # mmHg
    current_noise: float = 6.0  # mA, white
    speed_noise: float = 15.0  # rpm
    flushes: float = 1.5  # seconds of square high pressure
    flats: float = 1.5  # seconds of damped pressure
    dropouts: float = 1.0  # seconds without a sample in any channel


class Recording(eqx.Module):
    """Three channels at 25 Hz or faster, simulated or real; NaN where nothing was measured."""

    second: Float[np.ndarray, " samples"]  # since the start of support, increasing
    placement: Float[np.ndarray, " samples"]  # mmHg at the aortic root
    speed: Float[np.ndarray, " samples"]  # rpm
    current: Float[np.ndarray, " samples"]  # mA


def sense(
    ideal: Recording, config: SensorConfig, *, key: PRNGKeyArray
) -> tuple[Recording, Int8[np.ndarray, " samples"]]:
    """The recording with sensor errors, and for each sample its place in `ARTIFACTS`."""
    c = config
    k_noise, k_artifacts = jr.split(key)
    rng = host_generator(k_noise)
    noise = rng.standard_normal((3, len(ideal.second)), np.float32)
    pressure, artifact = _disturb(ideal, c, host_generator(k_artifacts))
    pressure += c.pressure_noise * noise[0] + c.pressure_drift * _drift(ideal.second, rng)
    pressure = c.pressure_digit * np.round(pressure / c.pressure_digit)
    speed = np.round(ideal.speed + c.speed_noise * noise[1])
    current = np.round(ideal.current + c.current_noise * noise[2])
    lost = artifact == ARTIFACTS.index("dropout")
    kept = [np.where(lost, np.nan, x).astype(np.float32) for x in (pressure, speed, current)]
    return Recording(ideal.second, *kept), artifact


def _drift(second, rng) -> np.ndarray:
    """A slow wandering of unit variance."""
    knots = np.arange(second[0], second[-1] + 2 * DRIFT_STEP, DRIFT_STEP)
    keep = np.exp(-DRIFT_STEP / DRIFT_SECONDS)
    kernel = np.sqrt(1 - keep**2) * keep ** np.arange(DRIFT_STEPS)
    white = rng.standard_normal(len(knots) + DRIFT_STEPS - 1)
    return np.interp(second, knots, np.convolve(white, kernel, mode="valid"))


def _disturb(ideal: Recording, config: SensorConfig, rng):
    """Put in flushes, flat stretches and dropouts at random times."""
    second, pressure = ideal.second, np.array(ideal.placement, float)
    artifact = np.zeros(len(second), np.int8)
    hours = (second[-1] - second[0]) / 3600
    rates = {"flush": config.flushes, "flat": config.flats, "dropout": config.dropouts}
    for name, rate in rates.items():
        count = rng.poisson(rate * hours)
        starts = rng.uniform(second[0], second[-1], count)
        ends = starts + rng.uniform(*ARTIFACT_SECONDS[name], count)
        heights = rng.uniform(*FLUSH_PRESSURE, count)
        for start, end, height in zip(starts, ends, heights, strict=True):
            part = slice(*np.searchsorted(second, (start, end)))
            artifact[part] = ARTIFACTS.index(name)
            if name == "flush":
                pressure[part] = height
            if name == "flat":
                pressure[part] += DAMPED * (pressure[part].mean() - pressure[part])
    return pressure, artifact


@dataclass(frozen=True)
class FaultConfig:
    """How often each fault starts, per patient and day of recording; zero turns it off."""

    gaps: float = 0.5  # nothing was recorded
    frozen: float = 0.5  # the LV-derived signals repeat their last value
    missing: float = 0.3  # the LV-derived signals are empty
    flat: float = 0.2  # the pressure line is flat: its mean stands still, no pulse
    unit_slips: float = 0.2  # a stretch in another unit
    hours: float = 1.5  # mean length of a stretch
    hide_low: bool = True  # no LV-derived signals below P-4, as on the console


@dataclass(frozen=True)
class Fault:
    """One signal that was changed over a stretch of samples, both ends included."""

    patient: str
    first: int  # sample on the cohort's grid
    last: int
    signal: str  # of signals.NAMES, or "all" where the sample itself is gone
    kind: str


def corrupt(
    cohort: Cohort, config: FaultConfig, *, key: PRNGKeyArray
) -> tuple[Cohort, tuple[Fault, ...]]:
    """A copy of the cohort with faults, and a label for everything that was changed."""
    draw = host_generator(key)
    signals, seen = np.array(cohort.signals), np.array(cohort.seen)
    level = np.array(cohort.level)
    faults: list[Fault] = []
    for row, patient in enumerate(cohort.patient):
        for kind, where in _plan(seen[row], level[row], cohort.minutes, config, draw):
            before = signals[row].copy()
            signals[row] = _damage(before, kind, where, draw)
            if kind == "gap":
                seen[row] &= ~where
                faults += [Fault(patient, *run, "all", kind) for run in _runs(where)]
            else:
                faults += _labels(patient, kind, before, signals[row])
    damaged = replace(
        cohort,
        signals=jnp.asarray(signals),
        level=jnp.asarray(np.where(seen, level, 0)),
        seen=jnp.asarray(seen),
    )
    return damaged, tuple(faults)


def _plan(seen, level, minutes: float, config: FaultConfig, draw: np.random.Generator):
    """Kinds with the samples they strike: what is hidden by level, then stretches by chance.

    Gaps come first, so that no other label speaks of a sample that is not there; a stretch that
    would touch an earlier one is left out.
    """
    stretches, free = [], seen.copy()
    for kind in ("gaps", "frozen", "missing", "flat", "unit_slips"):
        for _ in range(draw.poisson(getattr(config, kind) * seen.sum() * minutes / 1440)):
            length = 1 + int(draw.exponential(config.hours * 60 / minutes))
            where = np.zeros_like(seen)
            where[(start := int(draw.integers(len(seen)))) : start + length] = True
            if np.all(free[where]):
                free &= ~where
                stretches.append((kind.removesuffix("s"), where))
    gaps = [stretch for stretch in stretches if stretch[0] == "gap"]
    recorded = seen & ~np.any([where for _, where in gaps], axis=0) if gaps else seen
    hidden = recorded & (level < LV_SHOWN_FROM) & config.hide_low
    return [*gaps, ("hidden", hidden), *stretches[len(gaps) :]]


def _damage(signals, kind: str, where, draw: np.random.Generator):
    """The samples of one patient after one fault."""
    signals = signals.copy()
    if kind == "gap":
        signals[where] = np.nan
    elif kind in ("hidden", "missing"):
        signals[np.ix_(where, LV_DERIVED)] = np.nan
    elif kind == "frozen":
        for column in LV_DERIVED:
            shown = where & ~np.isnan(signals[:, column])
            signals[shown, column] = _last_before(signals[:, column], where)
    elif kind == "flat":
        signals[np.ix_(where, (MAP, SBP, DBP))] = _last_before(signals[:, MAP], where)
        signals[where, PULSATILITY] = 0.0
    else:
        columns, factor = UNIT_SLIPS[draw.integers(len(UNIT_SLIPS))]
        signals[np.ix_(where, columns)] *= np.float32(factor)
    return signals


def _last_before(values, where):
    """The last known value before a stretch, or its first where nothing came before."""
    first = int(np.argmax(where))
    earlier = values[:first][~np.isnan(values[:first])]
    return earlier[-1] if len(earlier) else values[first]


def _labels(patient: str, kind: str, before, after) -> list[Fault]:
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    return [
        Fault(patient, *run, name, kind)
        for column, name in enumerate(NAMES)
        for run in _runs(~same[:, column])
    ]


def _runs(mask) -> list[tuple[int, int]]:
    """First and last index of every run of true values."""
    edges = np.diff(np.concatenate([[0], mask.astype(int), [0]]))
    return [
        (int(first), int(end) - 1)
        for first, end in zip(np.nonzero(edges == 1)[0], np.nonzero(edges == -1)[0], strict=True)
    ]
