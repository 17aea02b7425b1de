"""How sure: means over seeds, paired differences, intervals by a bootstrap over patients.

Patients, not episodes, set the width of an interval: whole patients are drawn, 2,000 times, always
with the same random numbers, and the middle 95 % of the means is the interval. Seeds are averaged
within each start first and are not drawn: an interval speaks of these trained policies on other
patients; how much another training would change is the sd over seeds beside it (0 where there is
one seed, as with rules). With fewer than two patients there is no interval (NaN).

A cohort is one draw of patients, of their clinicians and of every model fitted to them. Policies of
one cohort share an ensemble, so an interval over its patients cannot say what another cohort would
give. Over several cohorts each counts as one number, and the interval is Student's. Where many
methods are compared so, p-values are Holm's.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jax.scipy.special import betainc, ndtr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.handover import Judged
from stepdown.patients.population import host_generator

COLUMNS = ("method", "judge", "metric", "mean", "sd", "low", "high")
DRAWS, MIDDLE = 2000, (0.025, 0.975)
SURE, POWER = 0.95, 0.8  # of Student's interval; of a design
STEPS = 60  # halvings; more than a float needs

Row = dict[str, str | float]
Values = Float[np.ndarray, "seeds episodes"]
Others = Float[np.ndarray, "others episodes"]  # as many seeds, or one
Weights = Float[np.ndarray, "draws episodes"]


def summarize(judged: Mapping[str, Judged], judge: str, against: str | None = None) -> list[Row]:
    """Every method's metrics and, as "METRIC_minus_AGAINST", paired differences to one method.

    A difference is method minus `against`, start by start and seed by seed.
    """
    weights = resample(_shared_rows(judged.values()))
    values = {
        method: {metric: values_of(one, metric) for metric in one.scores}
        for method, one in judged.items()
    }
    asked = with_differences(values, against)
    # One product for all: a thousand small ones take half a minute.
    found = estimates([values for *_, values in asked], weights)
    return [_row(x, judge, name, one) for (x, name, _), one in zip(asked, found, strict=True)]


def with_differences(
    values: Mapping[str, Mapping[str, np.ndarray]], against: str | None
) -> list[tuple[str, str, np.ndarray]]:
    """Method, metric and values; after each metric its paired difference to one method.

    Methods may have been trained with different numbers of seeds.
    """
    asked = []
    for method, metrics in values.items():
        for metric, own in metrics.items():
            asked.append((method, metric, own))
            if against is not None and method != against:
                apart = difference(own, values[against][metric])
                asked.append((method, f"{metric}_minus_{against}", apart))
    return asked


def room_share(
    judged: Mapping[str, Judged], judge: str, clinicians: str, look_ahead: str
) -> list[Row]:
    """Reward as the share of the room between clinicians (0 %) and look-ahead (100 %).

    Metric "room_percent", a ratio of means. Where the room itself is not clearly above zero there
    is no share (NaN).
    """
    weights = resample(_shared_rows(judged.values()))
    floor = values_of(judged[clinicians], "reward")
    room = difference(values_of(judged[look_ahead], "reward"), floor)
    clear = estimate(room, weights)["low"] > 0
    rows = []
    for method, one in judged.items():
        if method in (clinicians, look_ahead):
            continue
        gain = difference(values_of(one, "reward"), floor)
        share = _percent(gain, room.mean(0, keepdims=True), weights) if clear else _NOTHING
        rows.append(_row(method, judge, "room_percent", share))
    return rows


def noise_drop(
    noiseless: Mapping[str, Judged], noisy: Mapping[str, Judged], judge: str
) -> list[Row]:
    """How much reward a method loses when it learns from noisy observations.

    "reward_drop" is noiseless minus noisy; "reward_drop_percent" is 100 times that over the size
    of the noiseless reward, as a ratio of means, or NaN where the latter is not clearly off zero.
    """
    both = [method for method in noiseless if method in noisy]
    if not both:
        raise ValueError("expected methods trained on both data sets, got none. Train one on both.")
    weights = resample(_shared_rows([part[x] for part in (noiseless, noisy) for x in both]))
    rows = []
    for method in both:
        clean = values_of(noiseless[method], "reward")
        drop = difference(clean, values_of(noisy[method], "reward"))
        rows.append(_row(method, judge, "reward_drop", estimate(drop, weights)))
        whole = estimate(clean, weights)
        off_zero = whole["low"] * whole["high"] > 0
        sign = np.sign(whole["mean"])
        percent = _percent(drop, sign * clean, weights) if off_zero else _NOTHING
        rows.append(_row(method, judge, "reward_drop_percent", percent))
    return rows


def spearman(
    ours: Sequence[float] | Float[np.ndarray, " n"],
    theirs: Sequence[float] | Float[np.ndarray, " n"],
) -> float:
    """Rank correlation, ties sharing their mean rank; NaN where one side is all ties."""
    ranks = [_ranks(np.asarray(x, float)) for x in (ours, theirs)]
    apart = [x - x.mean() for x in ranks]
    size = np.sqrt((apart[0] ** 2).sum() * (apart[1] ** 2).sum())
    return float((apart[0] * apart[1]).sum() / size) if size > 0 else float("nan")


def _ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[index]


def values_of(judged: Judged, metric: str) -> Values:
    """One metric of every seed and episode, in double precision."""
    return np.asarray(judged.scores[metric], np.float64)


def difference(ours: Values, theirs: Others) -> Float[np.ndarray, "more episodes"]:
    """Paired by start and, where both were trained as often, by seed; one seed meets all."""
    counts = len(ours), len(theirs)
    if counts[0] != counts[1] and 1 not in counts:
        raise ValueError(
            f"expected as many seeds of both methods, got {counts[0]} and {counts[1]}. "
            "Train both with the same seeds."
        )
    return ours - theirs


def paired_difference(
    ours: Float[Array, " n"] | Float[np.ndarray, " n"],
    theirs: Float[Array, " n"] | Float[np.ndarray, " n"],
    row: Int[Array, " n"] | Int[np.ndarray, " n"],
) -> tuple[float, float, float]:
    """Mean difference of paired episodes and its 95 % interval, by a bootstrap over patients.

    Both limits are the mean where all episodes are one patient's.

    >>> mean, low, high = sd.paired_difference(ours["reward"], theirs["reward"], starts.row)
    >>> low < mean < high
    True
    """
    apart = difference(*(np.asarray(x, float)[None] for x in (ours, theirs)))
    found = estimate(apart, draw_patients(np.asarray(row)))
    return found["mean"], found["low"], found["high"]


def resample(row: Int[np.ndarray, " episodes"], draws: int = DRAWS) -> Weights:
    """What `draw_patients` draws, or NaN: fewer than two patients tell nothing of others."""
    weights = draw_patients(row, draws)
    return weights if len(np.unique(row)) > 1 else np.full_like(weights, np.nan)


def draw_patients(row: Int[np.ndarray, " episodes"], draws: int = DRAWS) -> Weights:
    """Weights of the episodes in every draw of whole patients; each draw's add up to one."""
    patients, index = np.unique(row, return_inverse=True)
    number = len(patients)
    chosen = np.random.default_rng(0).integers(number, size=(draws, number))
    flat = chosen + number * np.arange(draws)[:, None]
    times = np.bincount(flat.ravel(), minlength=draws * number).reshape(draws, number)
    weights = times[:, index].astype(float)
    return weights / weights.sum(1, keepdims=True)


def draw_counts(
    patients: int, draws: int, *, key: PRNGKeyArray
) -> Float[np.ndarray, "draws patients"]:
    """How often each patient is drawn, with replacement, where sums over patients are known.

    Estimates from records have a key of their own, which sets these draws.
    """
    chances = np.full(patients, 1 / patients)
    return host_generator(key).multinomial(patients, chances, size=draws).astype(float)


def estimate(values: Values, weights: Weights) -> dict[str, float]:
    """Mean over seeds and episodes, sd of the seeds' means, interval over patients."""
    return estimates([values], weights)[0]


def estimates(several: Sequence[np.ndarray], weights: Weights) -> list[dict[str, float]]:
    """The same for many at once, all drawn together."""
    drawn = weights @ np.stack([values.mean(0) for values in several], axis=1)
    return [
        describe(values.mean(), values.mean(1), own)
        for values, own in zip(several, drawn.T, strict=True)
    ]


def describe(
    mean: float, per_seed: Float[np.ndarray, " seeds"], draws: Float[np.ndarray, " draws"]
) -> dict[str, float]:
    """A mean with the sd over its seeds and the middle of its draws."""
    low, high = middle(draws)
    sd = per_seed.std(ddof=1) if len(per_seed) > 1 else 0.0
    return {"mean": float(mean), "sd": float(sd), "low": low, "high": high}


def middle(draws: Float[np.ndarray, " draws"]) -> tuple[float, float]:
    """The middle 95 % of draws."""
    low, high = np.quantile(draws, MIDDLE)
    return float(low), float(high)


def interval(draws: Float[np.ndarray, " draws"]) -> tuple[float, float]:
    """The same where every draw is known; one that knows nothing leaves no limit."""
    return middle(draws) if np.isfinite(draws).all() else (-np.inf, np.inf)


def _percent(part: Values, whole: Others, weights: Weights) -> dict[str, float]:
    """100 times a ratio of means; both are drawn together."""
    ratios = (weights @ part.mean(0)) / (weights @ whole.mean(0))
    mean = 100 * part.mean() / whole.mean()
    with np.errstate(divide="ignore", invalid="ignore"):  # one seed's mean may be exactly 0
        per_seed = 100 * part.mean(1) / whole.mean(1)
    return describe(mean, per_seed, 100 * ratios)


_NOTHING = {name: float("nan") for name in ("mean", "sd", "low", "high")}


def _row(method: str, judge: str, metric: str, found: dict[str, float]) -> Row:
    return {"method": method, "judge": judge, "metric": metric, **found}


def _shared_rows(judged: Iterable[Judged]) -> Int[np.ndarray, " episodes"]:
    """The patients of the episodes, which must be the same for all who are compared."""
    first, *others = [one.row for one in judged]
    if not all(np.array_equal(first, row) for row in others):
        raise ValueError(
            "expected the same starts for every method, got others. Judge all methods together: "
            "differences are paired."
        )
    return first


def against_best(
    methods: Mapping[str, Judged],
    judge: str,
    ours: str,
    baselines: Sequence[str],
    others: Mapping[str, str],
) -> list[str]:
    """Ours against the baseline that this judge's mean reward puts first: reward, other metrics.

    Which baseline that is, is known only afterwards, and is said so.
    """
    known = [name for name in baselines if name in methods]
    if ours not in methods or not known:
        return []
    means = {name: values_of(methods[name], "reward").mean() for name in known}
    best = max(known, key=means.__getitem__)
    weights = resample(_shared_rows(methods.values()))
    apart = difference(values_of(methods[ours], "reward"), values_of(methods[best], "reward"))
    found, theirs = estimate(apart, weights), estimate(values_of(methods[best], "reward"), weights)
    percent = ""
    if theirs["low"] * theirs["high"] > 0:  # a share of almost nothing says nothing
        percent = f" ({_signed(100 * found['mean'] / abs(theirs['mean']), 0)} %)"
    above = int((apart.mean(1) > 0).sum())
    hindsight = f", the best of {len(known)} baselines here, known only afterwards"
    first = (
        f"{ours} against {best}{hindsight if len(known) > 1 else ''}, in the {judge}: "
        f"{_said(found, 'reward', percent)}; above it with {above} of {len(apart)} seeds."
    )
    parts = []
    for metric, words in others.items():
        apart = difference(values_of(methods[ours], metric), values_of(methods[best], metric))
        parts.append(_said(estimate(apart, weights), words, digits=3))
    return [first, f"Against the same {best}, in the {judge}: {'; '.join(parts)}."]


def ranking_agreement(judged: Mapping[str, Mapping[str, Judged]], methods: Sequence[str]) -> str:
    """How two judges' rankings by reward agree, and what choosing by the first costs."""
    first, other = judged
    compared = [x for x in methods if x in judged[first] and x in judged[other]]
    means = [[values_of(judged[j][x], "reward").mean() for x in compared] for j in (first, other)]
    chosen, best = (compared[int(np.argmax(x))] for x in means)
    said = (
        f"Ranked by reward, the {first} and the {other} have a Spearman correlation of "
        f"{_signed(spearman(*means))} over {len(compared)} methods; "
    )
    if chosen == best:
        return said + f"both would choose {best}."
    ours, theirs = judged[other][chosen], judged[other][best]
    apart = difference(values_of(ours, "reward"), values_of(theirs, "reward"))
    cost = _said(estimate(apart, resample(theirs.row)), "reward")
    return said + (
        f"the {first} would choose {chosen}, the {other} {best}. Choosing by the {first}, "
        f"judged in the {other}: {cost}."
    )


def _said(found: dict[str, float], words: str, percent: str = "", digits: int = 2) -> str:
    """A difference in words, with its interval."""
    mean, low, high = (_signed(found[name], digits) for name in ("mean", "low", "high"))
    size, span = f"{mean} {words}", f"[{low}, {high}]"
    if not np.isfinite(found["low"]):
        return f"{size}{percent}, too few patients for an interval"
    if found["low"] <= 0 <= found["high"]:
        return f"no clear difference, {size} {span}{percent}"
    return f"{size} {span}{percent}"


def _signed(value: float, digits: int = 2) -> str:
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("+-")


# ── over cohorts ─────────────────────────────────────────────────────────────────────────────────


def over_cohorts(values: Sequence[float]) -> dict[str, float]:
    """Mean over cohorts, their sd and number, the mean's 95 % interval and its p-value against 0.

    A single cohort has neither sd nor interval nor p-value.
    """
    known = np.asarray([x for x in values if math.isfinite(x)], np.float64)
    nothing = dict.fromkeys(("mean", "sd", "low", "high", "p"), math.nan)
    found = {"cohorts": float(len(known))} | nothing
    if not len(known):
        return found
    mean = float(known.mean())
    if len(known) < 2:
        return found | {"mean": mean}
    sd = float(known.std(ddof=1))
    return (
        found | {"mean": mean, "sd": sd} | _sure(mean, sd / math.sqrt(len(known)), len(known) - 1)
    )


def between_cohorts(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The difference of two means over cohorts, each method on cohorts of its own: Welch's.

    For methods that were not made on the same cohorts; where they were, their paired difference
    goes through `over_cohorts`. Two cohorts of each are needed for an interval.
    """
    each = [over_cohorts(x) for x in (ours, theirs)]
    mean = each[0]["mean"] - each[1]["mean"]
    parts = [x["sd"] ** 2 / x["cohorts"] if x["cohorts"] else math.nan for x in each]
    found = {"mean": mean} | dict.fromkeys(("low", "high", "p"), math.nan)
    if not all(math.isfinite(x) for x in parts):
        return found
    weighed = sum(x**2 / (one["cohorts"] - 1) for x, one in zip(parts, each, strict=True))
    freedom = sum(parts) ** 2 / weighed if weighed else math.inf
    return found | _sure(mean, math.sqrt(sum(parts)), freedom)


def _sure(mean: float, error: float, freedom: int | float) -> dict[str, float]:
    """Student's interval and p-value of a mean."""
    if not error:
        return {"low": mean, "high": mean, "p": float(mean == 0)}
    half = student(freedom) * error
    return {"low": mean - half, "high": mean + half, "p": _beyond(abs(mean) / error, freedom)}


@functools.cache
def student(freedom: int | float, sure: float = SURE) -> float:
    """The value that |t| stays below in 95 % of cases; by halving, since JAX has no quantile."""
    low, high = 0.0, 1000.0
    for _ in range(STEPS):
        half = (low + high) / 2
        low, high = (half, high) if _beyond(half, freedom) > 1 - sure else (low, half)
    return (low + high) / 2


def _beyond(size: float, freedom: int | float) -> float:
    """How often |t| is larger than this."""
    return float(betainc(freedom / 2, 0.5, freedom / (freedom + size**2)))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values of one family of comparisons; what is not known stays so.

    The smallest is multiplied by their number, the next by one less and so on, and none may be
    below one before it. Where all that is called different has one of at most 5 %, anything is
    called so wrongly in at most 5 % of families, however the comparisons depend on each other.
    """
    adjusted, least = [math.nan] * len(values), 0.0
    order = sorted(
        (x for x in range(len(values)) if math.isfinite(values[x])), key=lambda x: values[x]
    )
    for number, place in enumerate(order):
        least = max(least, min(1.0, (len(order) - number) * values[place]))
        adjusted[place] = least
    return adjusted


def detectable(sd: float, cohorts: int, *, sure: float = SURE, power: float = POWER) -> float:
    """The difference that a design finds with 80 % power, at the 5 % level, by Student's t.

    `sd` is that of the paired difference over cohorts. A family of m comparisons is bounded by
    sure = 1 - 0.05 / m, which Holm's correction never falls short of. NaN for a single cohort.
    """
    if cohorts < 2 or not math.isfinite(sd):
        return math.nan
    return _needed(cohorts - 1, sure, power) * sd / math.sqrt(cohorts)


@functools.cache
def _needed(freedom: int, sure: float, power: float) -> float:
    """The same in standard errors; by halving, as Student's quantile."""
    edge, low, high = student(freedom, sure), 0.0, 1000.0
    for _ in range(STEPS):
        half = (low + high) / 2
        low, high = (half, high) if _found(half, edge, freedom) < power else (low, half)
    return (low + high) / 2


def _found(shift: float, edge: float, freedom: int) -> float:
    """How often t lies beyond the edge if the mean is `shift` standard errors off zero.

    The estimated sd is taken for every value that it may have, by the density of a chi.
    """
    width = np.linspace(0.001, 6.0, 4000)  # of the estimated sd, in true ones
    log = (freedom - 1) * np.log(width) - freedom * width**2 / 2
    weight = np.exp(log - log.max())
    return float(np.average(np.asarray(ndtr(shift - edge * width)), weights=weight))
