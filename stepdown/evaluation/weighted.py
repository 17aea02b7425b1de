"""Importance-weighted estimators on ragged episodes: WIS, WDR and MAGIC, patient by patient.

An episode is weighted at each hour by how much more likely the policy was than the team to come
that far, over all episodes recorded that far (per decision, self-normalized). Every estimator here
is a sum over hours of ratios of sums over patients, so a bootstrap over patients needs nothing but
the patients' sums.

WDR is written as the model's value of the starts plus, hour by hour, the weighted mean of what the
model got wrong (its temporal differences). Where all episodes have full length this equals the form
of Thomas & Brunskill (2016). Where a record stops, the model's value of the last hour stands for
what was not recorded. MAGIC blends the sums that stop correcting after 0, 1, ... hours.
"""

import itertools

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.evaluation.decisions import Decisions
from stepdown.signals import HORIZON

PerHour = Float[np.ndarray, "episodes hours"]
Sums = Float[np.ndarray, "patients hours"]


class Paths(eqx.Module):
    """Episodes of at most so many recorded decisions; the axes are episode and hour."""

    row: Int[np.ndarray, "episodes hours"]  # of the decisions; of the last one where none is known
    known: Bool[np.ndarray, "episodes hours"]  # the decision was recorded, or the patient was dead
    gone: Bool[np.ndarray, "episodes hours"]  # the patient had died before this hour
    patient: Int[np.ndarray, " episodes"]  # counted from 0 without gaps
    patients: int


class Ratios(eqx.Module):
    """Sums of every patient, whose quotients over all patients add up to a value."""

    above: Float[np.ndarray, "patients terms"]
    below: Float[np.ndarray, "patients terms"]

    def values(self, counts: Float[np.ndarray, "draws patients"]) -> Float[np.ndarray, " draws"]:
        """The value when each patient counts so many times; NaN where nobody was followed."""
        return self.terms(counts).sum(1)

    def terms(self, counts: Float[np.ndarray, "draws patients"]) -> Float[np.ndarray, "draws n"]:
        """The quotients that add up to the value."""
        below = counts @ self.below
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(below > 0, (counts @ self.above) / below, np.nan)


def make_paths(decisions: Decisions, hours: int = HORIZON) -> Paths:
    """An episode from every start, followed as far as its stay was recorded."""
    start = np.flatnonzero(decisions.start)
    row, known, gone = [start], [np.ones(len(start), bool)], [np.zeros(len(start), bool)]
    for _ in range(hours - 1):
        lost = gone[-1] | (decisions.dead[row[-1]] & known[-1])
        on = known[-1] & decisions.follows[row[-1]] & ~lost
        row.append(np.where(on, row[-1] + 1, row[-1]))
        known.append(on | lost)
        gone.append(lost)
    patients, index = np.unique(decisions.patient[start], return_inverse=True)
    return Paths(
        row=np.stack(row, 1),
        known=np.stack(known, 1),
        gone=np.stack(gone, 1),
        patient=index,
        patients=len(patients),
    )


def path_weights(
    paths: Paths, ratio: Float[np.ndarray, " n"], goes_on: Float[np.ndarray, " n"]
) -> PerHour:
    """Cumulative weights; 0 where nothing is known.

    `ratio` belongs to each decision, `goes_on` is the chance that the record goes on after it.
    """
    each = np.where(paths.gone, 1.0, ratio[paths.row])
    kept = np.where(paths.gone[:, 1:], 1.0, 1.0 / goes_on[paths.row[:, :-1]])
    each[:, 1:] *= kept
    return np.where(paths.known, np.cumprod(each, axis=1), 0.0)


def patient_sums(paths: Paths, values: PerHour) -> Sums:
    """Sums over the episodes of each patient."""
    sums = np.zeros((paths.patients, values.shape[1]))
    np.add.at(sums, paths.patient, values)
    return sums


def wis(paths: Paths, weight: PerHour, reward: PerHour) -> Ratios:
    """Per-decision weighted importance sampling: the weighted mean reward of every hour, added."""
    return Ratios(patient_sums(paths, weight * reward), patient_sums(paths, weight))


def wdr(paths: Paths, weight: PerHour, value: Float[np.ndarray, " episodes"], error: PerHour):
    """The mean `value` of the starts, then the weighted mean of the model's `error` of each hour.

    The error of an hour is reward + value of the next hour − value of the decision, in the model.
    """
    ones = np.ones((len(value), 1))
    first = patient_sums(paths, value[:, None]), patient_sums(paths, ones)
    rest = patient_sums(paths, weight * error), patient_sums(paths, weight)
    return Ratios(*(np.concatenate(pair, axis=1) for pair in zip(first, rest, strict=True)))


def magic(
    corrected: Ratios, counts: Float[np.ndarray, "draws patients"]
) -> tuple[Float[np.ndarray, " draws"], float, Float[np.ndarray, " terms"]]:
    """Blend a model's value with 0, 1, ... hours of correction (Thomas & Brunskill 2016, Sec. 8).

    The blend minimizes the estimated squared bias plus variance. Variance comes from the bootstrap
    over patients. The bias of a partial sum is its distance to the middle half of the full sum's
    draws. Returns the draws of the blend, its value and the shares of the partial sums.
    """
    one = np.ones((1, corrected.above.shape[0]))
    partial = np.cumsum(corrected.terms(counts), axis=1)
    center = np.cumsum(corrected.terms(one), axis=1)[0]
    low, high = np.nanquantile(partial[:, -1], [0.25, 0.75])
    bias = np.maximum(low - center, 0.0) + np.maximum(center - high, 0.0)
    known = partial[np.isfinite(partial).all(1)]
    if len(known) < 2 or not np.isfinite(center).all():
        shares = np.zeros(len(center))
        shares[0] = 1.0  # nothing can be corrected: the model alone
    else:
        error = np.atleast_2d(np.cov(known.T)) + np.outer(bias, bias)
        shares = simplex_minimum(error)
    used = shares > 0
    return partial[:, used] @ shares[used], float(center[used] @ shares[used]), shares


def simplex_minimum(matrix: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """Shares (at least 0, together 1) with the least x'Ax, by trying every set of positive ones."""
    size = len(matrix)
    ridge = matrix + 1e-9 * (np.trace(matrix) / size + 1e-12) * np.eye(size)
    best, least = np.zeros(size), np.inf
    for number in range(1, size + 1):
        for used in itertools.combinations(range(size), number):
            part = ridge[np.ix_(used, used)]
            x = np.linalg.solve(part, np.ones(number))
            x = x / x.sum()
            score = x @ part @ x
            if (x >= -1e-12).all() and score < least:
                best, least = np.zeros(size), score
                best[list(used)] = np.maximum(x, 0.0)
    return best / best.sum()


def resample(patients: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """How often each patient is drawn, with replacement, in every bootstrap draw."""
    return rng.multinomial(patients, np.full(patients, 1 / patients), size=draws).astype(float)
