"""Two cohorts side by side: how different every number of theirs is, and how surely.

Levels, spreads, movement, tails, correlations, practice and records of both cohorts. Patients are
the unit: whole patients of either cohort are drawn anew, and the middle 95 % of the differences is
the interval. A draw gives exactly the numbers of a cohort in which these patients stand so often.

Numbers of many kinds are ranked by one size. Means and centiles differ by so many sd of the other
cohort's samples, spreads and movement by the logarithm of their ratio, correlations as they are,
shares by Cohen's h (twice the difference of the arcsines of their roots). A size of 0.1 is small in
each of them, 0.5 is not. What counts is what is left of a size for sure, for all numbers at once:
the size less 3.7 sd of its draws (Bonferroni's bound for some 230 numbers). Single intervals of
95 % would call a dozen of that many different by luck.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from stepdown.evaluation.compare import draw_counts
from stepdown.evaluation.movement import Moves, every_ten_minutes, hours_of, moves_from
from stepdown.handover import Cohort
from stepdown.problem.hours import check_cohort
from stepdown.signals import KNOWN, LEVELS, NAMES, REQUIRED, SAMPLE_MINUTES, STEPS

Scale = Literal["sd", "times", "r", "points"]
Group = Literal["levels", "movement", "tails", "correlations", "practice", "records"]
FEWEST = 5  # patients of a cohort
MOST = 0.9  # of the stays of both cohorts hold a signal that models are given
FLOOR = 0.01  # sd of a signal's samples; movement below is none
MATERIAL = 0.1  # size that is worth a word
SURE = 3.7  # sd of the draws: 5 % in all that any of 230 equal numbers is called different
DRAWS, MIDDLE = 200, (0.025, 0.975)
KNOWN_DRAWS = 0.9  # share of the draws that must give a number, for an interval
LEVEL_NAME = "level"

Watch = Callable[[float], None]
_RESAMPLE = "Resample the recordings."
_CHARTS = (
    "Charts cannot be compared sample by sample: `stepdown run --from-cohort` shows them beside "
    "the published cohort, and docs/all-results.md what they lose against a console."
)


class Pair(eqx.Module):
    """Two cohorts with the same columns, ten minutes between samples."""

    ours: Cohort
    theirs: Cohort
    shared: tuple[str, ...] = eqx.field(static=True)  # signals that both have measured
    used: tuple[str, ...] = eqx.field(static=True)  # ... in most stays: what models are given
    only_ours: tuple[str, ...] = eqx.field(static=True)
    only_theirs: tuple[str, ...] = eqx.field(static=True)


@dataclass(frozen=True)
class Difference:
    """One number of both cohorts, and how far apart they are."""

    group: Group
    measure: str  # in words
    what: str  # the signal, the pair of signals, or the size of a step
    unit: str
    ours: float
    theirs: float
    scale: Scale  # of the difference: sd of their samples, a ratio, as it is, percentage points
    difference: float
    low: float  # 95 % interval over patients
    high: float
    size: float  # on the scale that all numbers share
    sure: float  # what is left of it for sure, all numbers at once

    @property
    def material(self) -> bool:
        """Whether it is worth a word."""
        return self.sure >= MATERIAL


@dataclass(frozen=True)
class SideConfig:
    """How often patients are drawn."""

    draws: int = DRAWS

    def __post_init__(self):
        if self.draws < 20:
            raise ValueError(f"draws: expected at least 20, got {self.draws}.")


OFTEN = SideConfig()


def make_pair(ours: Cohort, theirs: Cohort) -> Pair:
    """Bring two cohorts onto common ground; what cannot be compared is refused in words."""
    one, other = (_checked(cohort) for cohort in (ours, theirs))
    every = dict.fromkeys((*one.columns, *other.columns))
    held = [_held(x) for x in (one, other)]
    common = tuple(name for name in one.columns if name in other.columns)
    one, other = (_with_columns(x, common) for x in (one, other))
    shares = np.minimum(*(_ever_measured(x).mean(0) for x in (one, other)))
    used = tuple(name for name, share in zip(common, shares, strict=True) if share >= MOST)
    for name in (NAMES[i] for i in REQUIRED):
        if name not in used:
            raise ValueError(
                f"expected {name} in at least {100 * MOST:.0f} % of the stays of both cohorts, got "
                "fewer. Leave out the stays that lack it."
            )
    return Pair(
        ours=one,
        theirs=other,
        shared=tuple(name for name in common if name in held[0] & held[1]),
        used=used,
        only_ours=tuple(name for name in every if name in held[0] - held[1]),
        only_theirs=tuple(name for name in every if name in held[1] - held[0]),
    )


def _checked(cohort: Cohort) -> Cohort:
    if len(cohort.patient) < FEWEST:
        raise ValueError(
            f"expected at least {FEWEST} patients in a cohort, got {len(cohort.patient)}: "
            "intervals are over patients. Import more stays."
        )
    check_cohort(cohort)
    every = SAMPLE_MINUTES / cohort.minutes
    if abs(every - round(every)) > 1e-6:
        raise ValueError(
            f"expected samples every {SAMPLE_MINUTES:g} min, or so often that some of them are, "
            f"got every {cohort.minutes:g} min. {_CHARTS if cohort.minutes > 10 else _RESAMPLE}"
        )
    thin = every_ten_minutes(cohort)
    if not hours_of(thin)[2].any():
        raise ValueError(
            "expected stays with a full hour of samples, got none. Record longer stays or look for "
            "gaps."
        )
    return thin


def _ever_measured(cohort: Cohort) -> Bool[np.ndarray, "patients signals"]:
    known = ~np.isnan(np.asarray(cohort.signals)) & np.asarray(cohort.seen)[..., None]
    return np.asarray(known.any(1))


def _held(cohort: Cohort) -> set[str]:
    """The signals that were measured in any stay."""
    return {cohort.columns[i] for i in np.flatnonzero(_ever_measured(cohort).any(0))}


def _with_columns(cohort: Cohort, columns: tuple[str, ...]) -> Cohort:
    places = [cohort.columns.index(name) for name in columns]
    signals = jnp.asarray(np.asarray(cohort.signals)[..., places])
    return replace(cohort, signals=signals, columns=columns)


# ── every number, and its differences ────────────────────────────────────────────────────────────


class _Name(NamedTuple):
    group: Group
    measure: str
    what: str
    unit: str
    scale: Scale


_Numbers = dict[_Name, Float[np.ndarray, " draws"]]  # the first is the cohort as it is


def compare_cohorts(
    pair: Pair,
    config: SideConfig = OFTEN,
    *,
    key: PRNGKeyArray,
    watch: Watch = lambda share: None,
) -> tuple[Difference, ...]:
    """Every number that both cohorts have, the surest large difference first."""
    sides = []
    for place, cohort in enumerate((pair.ours, pair.theirs)):
        patients = len(cohort.patient)
        # Both sides have draws of their own, also where they are the same patients.
        drawn = draw_counts(patients, config.draws, key=jr.fold_in(key, place))
        counts = np.concatenate([np.ones((1, patients)), drawn]).astype(int)

        def tell(share: float, done: int = place) -> None:
            watch((done + share) / 2)

        sides.append(dict(_numbers(cohort, pair.shared, counts, tell)))
    spreads = {name.what: values[0] for name, values in sides[1].items() if name.measure == SPREAD}
    found = []
    for name, ours in sides[0].items():
        made = _difference(name, ours, sides[1].get(name), spreads.get(name.what, math.nan))
        if made is not None:
            found.append(made)
    return tuple(sorted(found, key=lambda x: (-x.sure, -x.size)))


def _difference(
    name: _Name, ours: np.ndarray, theirs: np.ndarray | None, spread: float
) -> Difference | None:
    """None where one of the cohorts cannot say."""
    if theirs is None or not (math.isfinite(ours[0]) and math.isfinite(theirs[0])):
        return None
    shown, size = _apart(name.scale, ours, theirs, spread)
    low, high = _middle(shown[1:])
    sure = 0.0
    if math.isfinite(low):
        sure = max(float(abs(size[0]) - SURE * np.nanstd(size[1:], ddof=1)), 0.0)
    return Difference(
        *name[:4],
        ours=float(ours[0]),
        theirs=float(theirs[0]),
        scale=name.scale,
        difference=float(shown[0]),
        low=low,
        high=high,
        size=float(abs(size[0])),
        sure=sure,
    )


def _apart(
    scale: Scale, ours: np.ndarray, theirs: np.ndarray, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """The difference as it is shown, and on the scale that all numbers share."""
    if scale == "times":
        floor = FLOOR * spread if math.isfinite(spread) and spread > 0 else 1e-9
        ratio = np.maximum(ours, floor) / np.maximum(theirs, floor)
        return ratio, np.log(ratio)
    if scale == "points":
        one, other = (2 * np.arcsin(np.sqrt(np.clip(x / 100, 0, 1))) for x in (ours, theirs))
        return ours - theirs, one - other
    if scale == "sd":
        apart = (ours - theirs) / (spread if spread > 0 else 1.0)
        return apart, apart
    return ours - theirs, ours - theirs


def _middle(draws: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the draws that give a number; none where many do not."""
    known = draws[np.isfinite(draws)]
    if len(known) < KNOWN_DRAWS * len(draws):
        return math.nan, math.nan
    low, high = np.quantile(known, MIDDLE)
    return float(low), float(high)


SPREAD = "standard deviation"
MOVES: dict[str, tuple[Group, str]] = {  # of movement.Moves
    "inside": ("movement", "sd inside the hour, median"),
    "inside_tail": ("tails", "sd inside the hour, 90th centile"),
    "change_robust": ("movement", "change from hour to hour, robust sd"),
    "change_sd": ("movement", "change from hour to hour, sd"),
    "change_kurtosis": ("tails", "change from hour to hour, kurtosis (normal: 3)"),
    "largest": ("tails", "largest 1 % of the steps inside the hour"),
}
CENTILES = {"1st centile": 0.01, "99th centile": 0.99}


def _numbers(
    cohort: Cohort, shared: tuple[str, ...], counts: np.ndarray, watch: Watch
) -> Iterator[tuple[_Name, np.ndarray]]:
    """Every number of a cohort in every draw of its patients."""
    yield from _practice(cohort, counts)
    yield from _records(cohort, shared, counts)
    yield from _correlations(cohort, shared, counts)
    for done, name in enumerate(shared):
        yield from _signal(cohort, name, counts)
        watch((done + 1) / len(shared))


def _signal(cohort: Cohort, name: str, counts: np.ndarray) -> Iterator[tuple[_Name, np.ndarray]]:
    """Moments, centiles and movement of one signal."""
    unit, place = KNOWN[name].unit, cohort.columns.index(name)
    values = np.asarray(cohort.signals)[..., place].astype(float)
    samples = _ByPatient(values, np.asarray(cohort.seen) & ~np.isnan(values))
    every = [samples.drawn(own) for own in counts]
    yield _Name("levels", "mean", name, unit, "sd"), np.array([x.mean() for x in every])
    yield _Name("levels", SPREAD, name, unit, "times"), np.array([x.std() for x in every])
    ends = np.array([np.quantile(x, list(CENTILES.values())) for x in every])
    for words, own in zip(CENTILES, ends.T, strict=True):
        yield _Name("tails", words, name, unit, "sd"), own
    signals, _, full = hours_of(cohort)
    hours = signals[..., place].astype(float)
    known = full & ~np.isnan(hours).any(-1)
    both = known[:, 1:] & known[:, :-1]
    if not both.any():
        return
    means = np.where(known, hours.sum(-1) / STEPS, 0.0)
    parts = (
        _ByPatient(hours.std(-1), known),
        _ByPatient(np.diff(means, axis=1), both),
        _ByPatient(np.abs(np.diff(hours, axis=-1)), known),
    )
    moves = [_moves_drawn(parts, own) for own in counts]
    for field in fields(Moves):
        group, words = MOVES[field.name]
        heavy = field.name == "change_kurtosis"
        # A ratio needs a number above zero: the kurtosis itself, not what exceeds a normal one's.
        own = np.array([getattr(x, field.name) + 3.0 * heavy for x in moves])
        yield _Name(group, words, name, "" if heavy else unit, "times"), own


def _moves_drawn(parts: tuple["_ByPatient", ...], counts: np.ndarray) -> Moves:
    drawn = [part.drawn(counts) for part in parts]
    if min(map(len, drawn)) == 0:
        return Moves(*[math.nan] * len(fields(Moves)))
    return moves_from(*drawn)


class _ByPatient:
    """Some values of every patient, in one array."""

    def __init__(self, values: np.ndarray, which: Bool[np.ndarray, "patients times"]):
        self.values = values[which]
        self.patient = np.nonzero(which)[0]

    def drawn(self, counts: np.ndarray) -> np.ndarray:
        """Each patient's values as often as the patient was drawn."""
        return np.repeat(self.values, counts[self.patient], axis=0)


def _practice(cohort: Cohort, counts: np.ndarray) -> Iterator[tuple[_Name, np.ndarray]]:
    """How levels are set (movement.practice_of)."""
    _, levels, full = hours_of(cohort)
    rounded = np.floor(levels.mean(-1) + 0.5)
    both = full[:, 1:] & full[:, :-1]
    inside = (levels != levels[..., :1]).any(-1) & full
    unchanged = (rounded[:, 1:] == rounded[:, :-1]) & both
    seen, level = np.asarray(cohort.seen), np.asarray(cohort.level)
    step = np.abs(np.diff(level, axis=1)) * (seen[:, 1:] & seen[:, :-1])

    def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
        top, bottom = counts @ part.sum(1), counts @ whole.sum(1)
        return np.where(bottom > 0, 100 * top / np.maximum(bottom, 1), np.nan)

    def name(measure: str, what: str) -> _Name:
        return _Name("practice", measure, what, "%", "points")

    yield name("hours in which the level changes", ""), share(inside, full)
    yield name("hours at the level of the hour before", ""), share(unchanged, both)
    for size, words in ((1, "1 level"), (2, "2 levels"), (3, "3 levels")):
        yield name("changes by", words), share(step == size, step > 0)
    yield name("changes by", "4 levels or more"), share(step > 3, step > 0)
    for value in LEVELS:
        yield name("samples at", f"P{value}"), share((level == value) & seen, seen)
    low, high = (counts @ (x * seen).sum(1) for x in (level, level**2))
    mean = low / np.maximum(counts @ seen.sum(1), 1)
    spread = np.sqrt(np.maximum(high / np.maximum(counts @ seen.sum(1), 1) - mean**2, 0))
    yield _Name("levels", "mean", LEVEL_NAME, "P", "sd"), mean
    yield _Name("levels", SPREAD, LEVEL_NAME, "P", "times"), spread


def _records(
    cohort: Cohort, shared: tuple[str, ...], counts: np.ndarray
) -> Iterator[tuple[_Name, np.ndarray]]:
    """How long stays are, and what is missing in them."""
    seen = np.asarray(cohort.seen)
    hours = seen.sum(1) * cohort.minutes / 60
    every = np.array([np.quantile(np.repeat(hours, own), [0.1, 0.5, 0.9]) for own in counts])
    for words, own in zip(("10th centile", "median", "90th centile"), every.T, strict=True):
        yield _Name("records", "recorded hours of a stay", words, "h", "times"), own
    for name in shared:
        empty = np.isnan(np.asarray(cohort.signals)[..., cohort.columns.index(name)]) & seen
        share = 100 * (counts @ empty.sum(1)) / np.maximum(counts @ seen.sum(1), 1)
        yield _Name("records", "samples without a value", name, "%", "points"), share


def _correlations(
    cohort: Cohort, shared: tuple[str, ...], counts: np.ndarray
) -> Iterator[tuple[_Name, np.ndarray]]:
    """Of every two signals, the level among them, from sums over each patient's samples."""
    seen, names = np.asarray(cohort.seen), (*shared, LEVEL_NAME)
    places = [cohort.columns.index(name) for name in shared]
    signals = np.asarray(cohort.signals)[..., places].astype(float)
    samples = np.concatenate([signals, np.asarray(cohort.level)[..., None]], -1)
    samples = np.where(seen[..., None], samples, np.nan)
    samples = samples - np.nanmean(samples, axis=(0, 1))  # small numbers: rpm would cost digits
    known = ~np.isnan(samples)
    filled, known = np.where(known, samples, 0.0), known.astype(float)
    sums = [
        counts @ np.einsum("pti,ptj->pij", one, other).reshape(len(counts[0]), -1)
        for one, other in (
            (known, known),
            (filled, known),
            (filled**2, known),
            (filled, filled),
        )
    ]
    number, first, square, cross = (x.reshape(len(counts), len(names), -1) for x in sums)
    number = np.maximum(number, 1)
    for i, j in combinations(range(len(names)), 2):
        total = number[:, i, j]
        means = first[:, i, j] / total, first[:, j, i] / total
        spreads = (
            square[:, i, j] / total - means[0] ** 2,
            square[:, j, i] / total - means[1] ** 2,
        )
        together = cross[:, i, j] / total - means[0] * means[1]
        whole = np.sqrt(np.maximum(spreads[0] * spreads[1], 0))
        steady = np.minimum(*spreads) < 1e-12
        value = np.where(steady, np.nan, together / np.where(steady, 1, whole))
        words = f"{names[i]} – {names[j]}"
        yield _Name("correlations", "correlation", words, "", "r"), np.clip(value, -1, 1)
