"""What a classifier sees: can the hours of two cohorts be told apart, and by what?

A logistic regression learns to tell hours of one cohort from hours of the other, both weighed
alike, and is judged on patients that it has not seen: patients are dealt into five folds, and one
who stands in both cohorts is in one fold. The AUC is the chance that it gives an hour of ours a
higher score than one of theirs: 0.5 if nothing tells them apart, 1 if everything does. Its interval
is over patients of both cohorts.

There are two views. `levels` sees the mean of each signal over the hour and the level, their
squares and products, so means, spreads and correlations. `movement` sees how much a signal moves:
sd inside the hour, largest step, change from the hour before, changes of the level; their
logarithms and squares. What it uses most is found by shuffling: a signal that matters costs AUC
when its values are dealt to other hours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from stepdown.evaluation.compare import draw_counts, middle
from stepdown.evaluation.movement import hours_of
from stepdown.evaluation.side_by_side import FLOOR, LEVEL_NAME, Pair
from stepdown.handover import Cohort
from stepdown.patients.population import host_generator
from stepdown.records.split import patient_digests
from stepdown.signals import STEPS

View = Literal["levels", "movement"]
VIEWS: tuple[View, ...] = ("levels", "movement")
FOLDS = 5
STEPS_OF_NEWTON, TOLERANCE = 25, 1e-6
DIGITS = 9  # of log-odds: the same hour twice may differ by rounding, and is a tie
FARTHEST = 5.0  # sd; what lies further out counts as this far, lest one hour outweigh a thousand

Watch = Callable[[float], None]


@dataclass(frozen=True)
class ClassifierConfig:
    """A logistic regression and how it is judged."""

    ridge: float = 1e-2  # on the weights of standardized features, per hour
    draws: int = 300  # of patients


LOGISTIC = ClassifierConfig()


@dataclass(frozen=True)
class Use:
    """How much the classifier rests on something."""

    what: str  # signal or level
    lost: float  # AUC that is lost when its values are shuffled among the hours


@dataclass(frozen=True)
class ToldApart:
    """How well hours can be told apart."""

    view: View
    auc: float
    low: float
    high: float
    hours: tuple[int, int]  # ours, theirs
    uses: tuple[Use, ...]  # most used first

    @property
    def clear(self) -> bool:
        """Whether the classifier is surely better than a coin."""
        return self.low > 0.5


def tell_apart(
    pair: Pair,
    view: View,
    config: ClassifierConfig = LOGISTIC,
    *,
    key: PRNGKeyArray,
    watch: Watch = lambda share: None,
) -> ToldApart:
    """Judge a classifier of hours on patients that it has not seen."""
    sides = [_features(cohort, pair.used, view) for cohort in (pair.ours, pair.theirs)]
    for words, (values, _) in zip(("ours", "theirs"), sides, strict=True):
        if len(values) < FOLDS:
            raise ValueError(
                f"expected hours in which {', '.join(pair.used)} were measured, got {len(values)} "
                f"of {words}. Bring longer stays."
            )
    names = feature_names(pair.used, view)
    features = np.concatenate([values for values, _ in sides])
    label = np.repeat([1.0, 0.0], [len(values) for values, _ in sides])
    luck = host_generator(key)
    folds = _deal(pair, luck)
    patient = np.concatenate([sides[0][1], sides[1][1] + len(pair.ours.patient)])
    fold = np.concatenate(folds)[patient]
    score = np.zeros(len(label))
    shuffled = np.zeros((len(names), len(label)))
    for now in range(FOLDS):
        held = fold == now
        if not held.any():
            continue
        model = fit_logistic(features[~held], label[~held], view, config.ridge)
        score[held] = model(features[held])
        for place, columns in enumerate(names.values()):
            mixed = features[held].copy()
            mixed[:, columns] = mixed[luck.permutation(len(mixed))][:, columns]
            shuffled[place, held] = model(mixed)
        watch((now + 1) / FOLDS)
    auc = area(score, label)
    lost = [auc - area(own, label) for own in shuffled]
    uses = sorted((Use(*x) for x in zip(names, lost, strict=True)), key=lambda x: -x.lost)
    low, high = _interval(score, label, patient, pair, config.draws, key)
    return ToldApart(view, auc, low, high, (len(sides[0][0]), len(sides[1][0])), tuple(uses))


def feature_names(used: tuple[str, ...], view: View) -> dict[str, list[int]]:
    """Columns of the features by what they are made of."""
    count = len(used)
    if view == "levels":
        return {name: [i] for i, name in enumerate((*used, LEVEL_NAME))}
    own = {name: [i, count + i, 2 * count + i] for i, name in enumerate(used)}
    return own | {LEVEL_NAME: [3 * count, 3 * count + 1]}


def _features(
    cohort: Cohort, used: tuple[str, ...], view: View
) -> tuple[Float[np.ndarray, "hours features"], Int[np.ndarray, " hours"]]:
    """What is seen of each hour in which everything was measured, and whose hour it is."""
    signals, levels, full = hours_of(cohort)
    hours = signals[..., [cohort.columns.index(name) for name in used]].astype(float)
    known = full & ~np.isnan(hours).any((2, 3))
    means = np.where(known[..., None], hours.sum(2) / STEPS, 0.0)
    if view == "levels":
        values = np.concatenate([means, levels.mean(-1)[..., None]], -1)
        return values[known], np.nonzero(known)[0]
    both = known[:, 1:] & known[:, :-1]
    later = hours[:, 1:]
    level = levels[:, 1:]
    change = np.abs(level.mean(-1) - levels[:, :-1].mean(-1))
    parts = (
        later.std(2),
        np.abs(np.diff(later, axis=2)).max(2),
        np.abs(means[:, 1:] - means[:, :-1]),
        np.abs(np.diff(level, axis=-1)).sum(-1)[..., None].astype(float),
        change[..., None],
    )
    return np.concatenate(parts, -1)[both], np.nonzero(both)[0]


def _deal(pair: Pair, luck: np.random.Generator) -> list[np.ndarray]:
    """A fold for every patient of both cohorts; who stands in both is in one fold."""
    known: dict[str, int] = {}
    folds = []
    for cohort in (pair.ours, pair.theirs):
        digests = patient_digests(cohort)
        new = [x for x in dict.fromkeys(digests) if x not in known]
        turns = luck.permutation(np.arange(len(new)) % FOLDS)
        known |= dict(zip(new, turns.tolist(), strict=True))
        folds.append(np.array([known[x] for x in digests]))
    return folds


# ── the classifier ───────────────────────────────────────────────────────────────────────────────


def fit_logistic(
    features: Float[np.ndarray, "hours features"],
    label: Float[np.ndarray, " hours"],
    view: View,
    ridge: float,
) -> Callable[[np.ndarray], np.ndarray]:
    """Log-odds of label 1, both labels weighed alike; by Newton's method."""
    spread = features.std(0)
    floor = np.where(spread > 0, FLOOR * spread, 1.0)

    def bent(values: np.ndarray) -> np.ndarray:
        return np.log(values + floor) if view == "movement" else values

    center, scale = bent(features).mean(0), bent(features).std(0)
    scale = np.where(scale > 0, scale, 1.0)

    def expand(values: np.ndarray) -> np.ndarray:
        scores = np.clip((bent(values) - center) / scale, -FARTHEST, FARTHEST)
        first, second = np.triu_indices(scores.shape[1])
        if view == "movement":  # squares alone: there are many features
            first = second = np.arange(scores.shape[1])
        products = scores[:, first] * scores[:, second]
        return np.concatenate([np.ones((len(scores), 1)), scores, products / 2], 1)

    rows = expand(features)
    weight = np.where(label > 0, 0.5 / max(label.sum(), 1), 0.5 / max((1 - label).sum(), 1))
    pull = np.full(rows.shape[1], ridge)
    pull[0] = 1e-9  # the constant is free
    beta = np.zeros(rows.shape[1])
    for _ in range(STEPS_OF_NEWTON):
        chance = 1 / (1 + np.exp(-np.clip(rows @ beta, -30, 30)))
        slope = rows.T @ (weight * (label - chance)) - pull * beta
        bend = (rows * (weight * chance * (1 - chance))[:, None]).T @ rows + np.diag(pull)
        step = np.linalg.solve(bend, slope)
        beta = beta + step / max(1.0, float(np.abs(step).max()) / 2)  # no wild first steps
        if np.abs(step).max() < TOLERANCE:
            break
    return lambda values: np.round(expand(values) @ beta, DIGITS)


def area(
    score: Float[np.ndarray, " hours"],
    label: Float[np.ndarray, " hours"],
    weight: Float[np.ndarray, " hours"] | None = None,
) -> float:
    """The AUC: chance that an hour of label 1 has the higher score; ties count half."""
    weight = np.ones(len(score)) if weight is None else weight
    _, place = np.unique(score, return_inverse=True)
    ours, theirs = (np.bincount(place, weight * x) for x in (label, 1 - label))
    below = np.cumsum(theirs) - theirs / 2
    whole = ours.sum() * theirs.sum()
    return float(ours @ below / whole) if whole > 0 else float("nan")


def _interval(score, label, patient, pair: Pair, draws: int, key) -> tuple[float, float]:
    """Over draws of patients, each cohort's own."""
    sizes = len(pair.ours.patient), len(pair.theirs.patient)
    counts = np.concatenate([draw_counts(n, draws, key=key) for n in sizes], axis=1)
    found = np.array([area(score, label, own[patient]) for own in counts])
    return middle(found[np.isfinite(found)])
