"""Who is helped and who is harmed: outcomes by subgroup, and of the worst tenth of the episodes.

A mean hides who pays for it. Groups are told by the start of an episode: by what was recorded (the
level in force, pressure, pulse), which every cohort has, and by the truth (hearts that do not come
back, vasoplegia), which simulated patients alone have. The worst tenth is a conditional value at
risk: the mean reward of the tenth of a method's own episodes that went worst. Intervals are
bootstraps over the patients of a group, all methods with the same draws.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.evaluation.compare import (
    Row,
    Values,
    Weights,
    describe,
    estimates,
    resample,
    values_of,
    with_differences,
)
from stepdown.handover import Judged
from stepdown.patients.episodes import Starts
from stepdown.signals import LEVEL, MAP, PULSATILITY

METRICS = ("reward", "unsafe_hours")
WORST = "reward_worst_tenth"
TENTH = 0.1
TAIL_DRAWS = 500  # of the bootstrap of the worst tenth, which takes longer than a mean
BANDS = {"P2 to P4": (2, 4), "P5 and P6": (5, 6), "P7 to P9": (7, 9)}
LOW_MAP, LOW_PULSE = 65.0, 20.0  # mmHg, means of the hour before the start

Groups = dict[str, Bool[np.ndarray, " episodes"]]
Patients = Int[np.ndarray, " episodes"]
OfMethods = Mapping[str, Mapping[str, np.ndarray]]  # by method, then by metric
Found = tuple[str, str, dict[str, float]]  # method, metric, what is said of it


def recorded_groups(state: Float[np.ndarray, "n steps columns"]) -> Groups:
    """Everybody, bands of the level in force, low pressure, low pulse; the last two may overlap."""
    level = np.round(state[:, -1, LEVEL]).astype(int)
    bands = {
        f"level {name}": (level >= low) & (level <= high) for name, (low, high) in BANDS.items()
    }
    return {
        "all": np.ones(len(level), bool),
        **bands,
        f"MAP below {LOW_MAP:g} mmHg": state[..., MAP].mean(1) < LOW_MAP,
        f"pulsatility below {LOW_PULSE:g} mmHg": state[..., PULSATILITY].mean(1) < LOW_PULSE,
    }


def true_groups(starts: Starts) -> Groups:
    """What only the truth tells: whether the heart comes back, whether tone is lost just now."""
    traits, hours = starts.patient.traits, np.asarray(starts.patient.course.hours)
    recovers = np.asarray(traits.recoverer) > 0
    begin, depth = np.asarray(traits.vasoplegia_start), np.asarray(traits.vasoplegia_depth)
    within = (hours >= begin) & (hours < begin + np.asarray(traits.vasoplegia_hours))
    plegic = (depth > 0) & within
    return {
        "non-recoverers": ~recovers,
        "recoverers": recovers,
        "vasoplegia": plegic,
        "no vasoplegia": ~plegic,
    }


def summarize_groups(
    judged: Mapping[str, Judged], groups: Groups, reference: str | None = None
) -> list[Row]:
    """Reward, unsafe hours and the worst tenth of every method in every group that is not empty.

    "METRIC_minus_REFERENCE" are paired differences to one method; that of the worst tenth is a
    difference of two tails, each its method's own. With fewer than two patients there is no
    interval (NaN).
    """
    rows: list[Row] = []
    for group, own in groups.items():
        if not own.any():
            continue
        values = {
            method: {metric: values_of(one, metric)[:, own] for metric in METRICS}
            for method, one in judged.items()
        }
        row = next(iter(judged.values())).row[own]
        found = [*_means(values, row, reference), *_tails(values, row, reference)]
        counts = {"patients": len(np.unique(row)), "episodes": len(row)}
        rows += [
            {"method": method, "group": group, "metric": metric, **one, **counts}
            for method, metric, one in found
        ]
    return rows


def _means(values: OfMethods, row: Patients, reference: str | None) -> Iterator[Found]:
    asked = with_differences(values, reference)
    means = estimates([one for *_, one in asked], resample(row))
    for (method, metric, _), found in zip(asked, means, strict=True):
        yield method, metric, found


def _tails(values: OfMethods, row: Patients, reference: str | None) -> Iterator[Found]:
    weights = resample(row, TAIL_DRAWS)
    tails = {method: tail_means(own["reward"], weights) for method, own in values.items()}
    for method, (own, draws) in tails.items():
        yield method, WORST, describe(own.mean(), own, draws)
        if reference is not None and method != reference:
            theirs, drawn = tails[reference]
            apart = own - theirs.mean()
            yield method, f"{WORST}_minus_{reference}", describe(apart.mean(), apart, draws - drawn)


def tail_means(
    values: Values, weights: Weights, share: float = TENTH
) -> tuple[Float[np.ndarray, " seeds"], Float[np.ndarray, " draws"]]:
    """Mean of the lowest `share` of the episodes: of every seed, and of every draw, seeds averaged.

    The episode at the border counts with the part of it that lies within the share.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share: expected a number above 0 and up to 1, got {share:g}.")
    even = np.full((1, values.shape[1]), 1.0 / values.shape[1])
    own = np.array([_tail(one, even, share)[0] for one in values])
    return own, np.mean([_tail(one, weights, share) for one in values], axis=0)


def _tail(values: Float[np.ndarray, " n"], weights: Weights, share: float) -> np.ndarray:
    order = np.argsort(values, kind="stable")
    sorted_weights = weights[:, order]
    before = np.cumsum(sorted_weights, axis=1) - sorted_weights
    inside = np.clip(share - before, 0.0, sorted_weights)
    return inside @ values[order] / share
