"""What carries over from one cohort to another: a guardian's refusals, a twin's forecasts.

Models are given the signals that most stays of both cohorts hold; stays that lack one of them are
left out. They are fitted on train patients and set by select patients of one cohort. At home they
are judged on its test patients, abroad on patients of the other cohort that they have never seen,
whatever their names. The guardian refuses p-values up to 5 %, so 5 % at home is what it promises;
abroad the share says how much of the other cohort is strange to it. A twin is held against
persistence from the same patients, hour by hour; a twin fitted on the judged cohort itself, where
that has patients enough, says how much could be had.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.evaluation.compare import estimate, resample
from stepdown.evaluation.forecast import (
    METRICS,
    Forecaster,
    ForecastScores,
    compare_forecasts,
    score_forecasts,
)
from stepdown.evaluation.guardians import RATE
from stepdown.evaluation.side_by_side import Pair
from stepdown.guardian.fit import DensityConfig, fit_guardian
from stepdown.guardian.guardians import density_config
from stepdown.guardian.threshold import Guardian, score_decisions
from stepdown.handover import Cohort, Transitions
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.scaling import Scaler
from stepdown.records.split import Parts, make_parts, patient_digests
from stepdown.twin.fit import TwinConfig, fit_twin
from stepdown.twin.twins import twin_config

Side = Literal["ours", "theirs"]
ENOUGH = 30  # patients of a cohort that a model is fitted to
FEWEST = 5  # patients that can be split at all
SLIDING = HoursConfig(stride=30.0)  # windows that a twin is fitted to
PERSISTENCE, COVERED = "persistence", 90.0
ERRORS = ("mae_z", "crps_z")

Watch = Callable[[float], None]


@dataclass(frozen=True)
class CarryConfig:
    """Which models are carried over."""

    twin: TwinConfig
    density: DensityConfig = density_config("kde")
    draws: int = 50  # of a forecast


SMALL = CarryConfig(twin_config("best", "small"))


@dataclass(frozen=True)
class Share:
    """A share of hours in percent, with its 95 % interval over patients."""

    mean: float
    low: float
    high: float
    hours: int
    patients: int


@dataclass(frozen=True)
class Refusals:
    """What a guardian of one cohort refuses."""

    fitted_on: Side
    patients: int  # train and select
    at_home: Share  # of test patients
    abroad: Share


@dataclass(frozen=True)
class Forecasts:
    """How a twin forecasts, beside persistence; errors in sd of the home's train patients."""

    fitted_on: Side
    judged_on: Side
    patients: int  # train and select
    hours: int  # judged
    judged: int  # patients
    errors: Mapping[str, tuple[float, float]]  # of ERRORS: the twin's, persistence's
    gains: Mapping[str, tuple[float, float, float]]  # persistence minus twin, interval
    coverage: Share  # of the 90 % bands

    def percent(self, metric: str) -> float:
        """How much smaller the twin's error is than that of persistence."""
        own, base = self.errors[metric]
        return 100 * (1 - own / base)

    def verdict(self, metric: str = "mae_z") -> Literal["better", "no better", "worse"]:
        """Against persistence, as far as the interval tells."""
        _, low, high = self.gains[metric]
        if low > 0:
            return "better"
        return "worse" if high < 0 else "no better"


def for_models(cohort: Cohort, used: tuple[str, ...]) -> Cohort:
    """The stays that hold every used signal; the other signals are empty."""
    signals = np.array(cohort.signals)
    keeps = np.array([name in used for name in cohort.columns])
    signals[..., ~keeps] = np.nan
    known = ~np.isnan(signals[..., keeps]) & np.asarray(cohort.seen)[..., None]
    rows = np.flatnonzero(np.asarray(known.any(1)).all(1))
    return _rows(replace(cohort, signals=jnp.asarray(signals)), rows)


def _rows(cohort: Cohort, rows: np.ndarray) -> Cohort:
    arrays = {x: jnp.asarray(np.asarray(getattr(cohort, x))[rows]) for x in _ARRAYS}
    return replace(cohort, **arrays, patient=tuple(cohort.patient[row] for row in rows))


_ARRAYS = ("signals", "level", "seen")


def _with_hours(cohort: Cohort, words: str) -> Cohort:
    """The patients of whom decisions are recorded."""
    rows = np.unique(np.asarray(make_transitions(cohort).patient))
    if len(rows) < FEWEST:
        raise ValueError(
            f"expected at least {FEWEST} patients with two whole hours in a row of {words}, got "
            f"{len(rows)}. Bring longer stays."
        )
    return _rows(cohort, rows)


class Sides(eqx.Module):
    """Both cohorts as models see them."""

    ours: Cohort
    theirs: Cohort

    def cohort(self, side: Side) -> Cohort:
        """One of them."""
        return self.ours if side == "ours" else self.theirs


def make_sides(pair: Pair) -> Sides:
    """Both cohorts, reduced to what models can be given."""
    ours, theirs = (
        _with_hours(for_models(x, pair.used), words)
        for x, words in ((pair.ours, "the cohort"), (pair.theirs, "the other cohort"))
    )
    return Sides(ours, theirs)


def _other(side: Side) -> Side:
    return "theirs" if side == "ours" else "ours"


def _unseen(cohort: Cohort, parts: Parts) -> Cohort:
    """The patients that no model of these parts has met, to be judged."""
    met = {*patient_digests(parts.train), *patient_digests(parts.select)}
    rows = [i for i, own in enumerate(patient_digests(cohort)) if own not in met]
    if not rows:
        raise ValueError(
            "expected patients that the models have never seen, got none. Compare with a cohort of "
            "other patients."
        )
    return replace(_rows(cohort, np.array(rows)), role="test")


# ── the guardian ─────────────────────────────────────────────────────────────────────────────────


def refuse_abroad(
    sides: Sides, fitted_on: Side, config: CarryConfig = SMALL, *, key: PRNGKeyArray
) -> Refusals:
    """Fit a guardian on one side; what it refuses there and on the other."""
    parts = make_parts(sides.cohort(fitted_on))
    train, select = make_transitions(parts.train), make_transitions(parts.select)
    guardian, _ = fit_guardian(train, select, config.density, key=key)
    abroad = _unseen(sides.cohort(_other(fitted_on)), parts)
    return Refusals(
        fitted_on,
        len(parts.train.patient) + len(parts.select.patient),
        at_home=_refused(guardian, make_transitions(parts.test)),
        abroad=_refused(guardian, make_transitions(abroad)),
    )


def _refused(guardian: Guardian, hours: Transitions) -> Share:
    p_value = guardian.rank(jnp.asarray(score_decisions(guardian.density, hours)))
    return share_of(np.asarray(p_value) <= RATE, np.asarray(hours.patient))


def share_of(values: np.ndarray, patient: np.ndarray) -> Share:
    """The mean of flags or shares of hours in percent; no interval for a single patient."""
    found = estimate(100.0 * np.asarray(values, float)[None], resample(patient))
    sizes = len(patient), len(np.unique(patient))
    return Share(found["mean"], found["low"], found["high"], *sizes)


# ── the twin ─────────────────────────────────────────────────────────────────────────────────────


def forecast_abroad(
    sides: Sides,
    profiles: Mapping[Side, str],
    config: CarryConfig = SMALL,
    *,
    key: PRNGKeyArray,
    watch: Watch = lambda share: None,
) -> tuple[Forecasts, ...]:
    """Twins of the other cohort at home and on ours, and one of our own where patients allow.

    All that is judged on ours is judged on the same hours: of our test patients where we have
    patients enough for a twin of our own, else of everybody.
    """
    enough = len(sides.ours.patient) >= ENOUGH
    models = _fit(sides.theirs, "theirs", profiles, config, key, lambda x: watch(0.4 * x))
    here = sides.ours
    own = None
    if enough:
        own = _fit(sides.ours, "ours", profiles, config, key, lambda x: watch(0.4 + 0.4 * x))
        here = own.parts.test
    judged = make_transitions(_unseen(here, models.parts))
    home = make_transitions(models.parts.test)
    found = [models.judge("theirs", home, config, key=key)]
    watch(0.85)
    found.append(models.judge("ours", judged, config, key=key))
    watch(0.95)
    if own is not None:
        found.append(replace(own, scaler=models.scaler).judge("ours", judged, config, key=key))
    watch(1.0)
    return tuple(found)


@dataclass(frozen=True)
class _Fitted:
    """A twin and persistence of the same patients."""

    side: Side
    parts: Parts
    twin: Forecaster
    base: Forecaster
    scaler: Scaler  # of errors

    def judge(
        self, judged_on: Side, hours: Transitions, config: CarryConfig, *, key: PRNGKeyArray
    ) -> Forecasts:
        twin, base = (
            score_forecasts(model, hours, self.scaler, config.draws, key=key)
            for model in (self.twin, self.base)
        )
        patient = np.asarray(hours.patient)
        return Forecasts(
            fitted_on=self.side,
            judged_on=judged_on,
            patients=len(self.parts.train.patient) + len(self.parts.select.patient),
            hours=len(patient),
            judged=len(np.unique(patient)),
            errors={name: (_mean(twin, name), _mean(base, name)) for name in ERRORS},
            gains={name: compare_forecasts(base, twin, name) for name in ERRORS},
            coverage=share_of(METRICS["coverage90"](twin), patient),
        )


def _mean(scores: ForecastScores, metric: str) -> float:
    return float(np.mean(METRICS[metric](scores)))


def _fit(
    cohort: Cohort, side: Side, profiles: Mapping[Side, str], config: CarryConfig, key, watch: Watch
) -> _Fitted:
    parts = make_parts(cohort)
    train, select = make_transitions(parts.train, SLIDING), make_transitions(parts.select)
    recipe = replace(config.twin, profile=profiles[side])
    twin, _ = fit_twin(train, select, recipe, key=key, watch=watch)
    plain = twin_config(PERSISTENCE, profile=profiles[side])
    base, _ = fit_twin(train, select, plain, key=jr.fold_in(key, 1))
    jax.block_until_ready(eqx.filter(twin, eqx.is_array))
    return _Fitted(side, parts, twin, base, base.scaler)
