"""Scores of forecasts on patients that the forecaster never saw (docs/definitions.md, Twin).

Every number of a table is a mean over rows, so the rows are kept: differences between forecasters
are paired row by row, and their intervals come from a bootstrap over patients. Point scores judge
`center`, probabilistic ones 50 draws. Mixed units are the paper's; z-scores use one scale, that of
the train patients, for all forecasters. A carried-forward sample counts like a measured one.

Where truth and m draws are exchangeable, the rank of the truth among them is uniform over its
m + 1 places. Bands and PIT are read off that rank, so a perfect forecaster covers exactly 90 % with
its 90 % band, for any m; the quantiles of so few draws would cover less.

How errors grow when a forecaster goes on from its own forecasts (App. E, error accumulation) is
seen from recorded hours with enough recorded hours behind them: the recorded levels are played in
the forecaster, sample by sample and draw by draw, and held against what was recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from stepdown.evaluation.compare import paired_difference
from stepdown.handover import Role, Transitions, advance, require_role
from stepdown.patients.cohort import in_groups
from stepdown.patients.population import host_generator
from stepdown.problem.clinical import slope
from stepdown.problem.hours import find_runs
from stepdown.problem.scaling import Scaler
from stepdown.signals import HORIZON, LEVEL, LEVELS, MAP, NAMES, REQUIRED

FEW, MANY = 64, 256  # rows of one compiled call; there are two programs at most
GROUP = 32  # starts of one compiled call
TRENDS = (-1, 0, 1)  # falling, flat, rising
TREND = 2.0  # mmHg per 10 min; MAP rises or falls from here on (App. E)
DRAWS = 50  # behind a probabilistic score (App. E)
BAND50, BAND90 = 0.50, 0.90
SHOWN = REQUIRED  # what the reward is made of
PUBLISHED = {"speed": 10.0, "flow": 0.01}  # rpm, L/min: units of the published errors

Numbers = Shaped[Array, "*shape"] | Shaped[np.ndarray, "*shape"]


@runtime_checkable
class Forecaster(Protocol):
    """Draws the coming hour under the level of each of its samples; knows its point forecast."""

    def __call__(
        self,
        state: Float[Array, "past columns"],
        level: Int[Array, " steps"],
        /,
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, "steps columns"]:
        """One possible hour."""
        ...

    def center(
        self, state: Float[Array, "past columns"], level: Int[Array, " steps"], /
    ) -> Float[Array, "steps columns"]:
        """The point forecast."""
        ...


class ForecastScores(eqx.Module):
    """How each hour was forecast; signals that the scale does not know are NaN."""

    absolute: Float[Array, "n signals"]  # |center − truth|, mean over the hour's samples
    squared: Float[Array, "n signals"]  # (center − truth)², mean over the samples
    crps: Float[Array, "n signals"]  # mean over the samples
    low: Float[Array, "n steps signals"]  # the truth's place among the draws: from
    high: Float[Array, "n steps signals"]  # ... to
    trend: Int[Array, " n"]  # of MAP in the point forecast: one of TRENDS
    true_trend: Int[Array, " n"]
    level: Int[Array, " n"]  # chosen for the hour
    static: Bool[Array, " n"]  # the level stays over the two hours
    inside: Bool[Array, " n"]  # the level changes inside the coming hour
    patient: Int[Array, " n"]  # the unit of any bootstrap
    scaler: Scaler  # of the train patients
    role: Role = eqx.field(static=True)


def score_forecasts(
    forecaster: Forecaster,
    hours: Transitions,
    scaler: Scaler,
    draws: int = DRAWS,
    *,
    role: Literal["test", "select"] = "test",
    key: PRNGKeyArray,
) -> ForecastScores:
    """Score the forecast of every row; each row has its own random numbers.

    Scores on select patients are for choosing, never for reporting.
    """
    require_role(hours, role)
    _require_signals(hours, scaler)
    rows = (hours.state, hours.levels, hours.next_state, np.arange(len(hours.level)))
    rows = jax.tree.map(np.asarray, rows)
    found = in_groups(_score_rows, (rows,), forecaster, key, draws, size=_group(hours))
    return _collect(found, hours, scaler)


def score_drawn(
    center: Float[np.ndarray, "n steps columns"],
    drawn: Float[np.ndarray, "n draws steps columns"],
    hours: Transitions,
    scaler: Scaler,
) -> ForecastScores:
    """The same scores of forecasts that were made elsewhere, such as by trees (twin/trees.py)."""
    require_role(hours, "test")
    _require_signals(hours, scaler)
    rows = (center, drawn, np.asarray(hours.next_state))
    return _collect(in_groups(_score_given, (rows,), size=_group(hours)), hours, scaler)


def _group(hours: Transitions) -> int:
    return FEW if len(hours.level) <= FEW else MANY


def _collect(found, hours: Transitions, scaler: Scaler) -> ForecastScores:
    known = np.isin(np.arange(len(scaler.columns)), scaler.present)
    _require_forecasts(found["absolute"][:, known], scaler)
    for name in ("absolute", "squared", "crps", "low", "high"):
        found[name][..., ~known] = np.nan
    return ForecastScores(
        **{name: jnp.asarray(values) for name, values in found.items()},
        level=hours.level,
        static=jnp.asarray(level_stays(hours)),
        inside=jnp.asarray(hours.changed),
        patient=hours.patient,
        scaler=scaler,
        role=hours.role,
    )


def _score_rows(rows, forecaster: Forecaster, key, draws: int):
    """A group of rows; the draws of a row never leave the compiled program."""

    def one(state, levels, truth, number):
        keys = jr.split(jr.fold_in(key, number), draws)
        drawn = jax.vmap(lambda k: forecaster(state, levels, key=k))(keys)
        return _score(forecaster.center(state, levels), drawn, truth)

    return jax.vmap(one)(*rows)


def _score_given(rows):
    return jax.vmap(_score)(*rows)


def _score(center, drawn, truth):
    """One hour's scores."""
    center, drawn, truth = (x[..., :LEVEL] for x in (center, drawn, truth))
    low, high = rank_place(drawn, truth)
    return {
        "absolute": jnp.mean(jnp.abs(center - truth), axis=0),
        "squared": jnp.mean((center - truth) ** 2, axis=0),
        "crps": jnp.mean(crps(drawn, truth), axis=0),
        "low": low,
        "high": high,
        "trend": trend_of(center[:, MAP]),
        "true_trend": trend_of(truth[:, MAP]),
    }


def trend_of(pressure: Float[Array, " steps"]) -> Int[Array, ""]:
    """1 rising, −1 falling, 0 flat, by the least-squares slope over the hour, limits included.

    The paper prints "≤ 2" for falling; a slope cannot rise and fall at once, so −2 is meant.
    """
    drift = slope(pressure)
    return (drift >= TREND).astype(int) - (drift <= -TREND).astype(int)


def level_stays(hours: Transitions) -> Bool[np.ndarray, " n"]:
    """Whether one level held for both hours of a row, as far as is known.

    The level in force must be the chosen one, and must not change inside either hour.
    """
    in_force = np.rint(np.asarray(hours.state)[:, -1, LEVEL]).astype(int)
    return (
        (in_force == np.asarray(hours.level)) & ~np.asarray(hours.changed) & ~changed_before(hours)
    )


def changed_before(hours: Transitions) -> Bool[np.ndarray, " n"]:
    """Whether the level changed inside the first hour; known where the row before covers it."""
    state, later = np.asarray(hours.hour)[1:], np.asarray(hours.next_state)[:-1]
    patient = np.asarray(hours.patient)
    follows = (patient[1:] == patient[:-1]) & ~np.asarray(hours.last)[:-1]
    same = ((state == later) | (np.isnan(state) & np.isnan(later))).all((1, 2))
    return np.append(False, follows & same & np.asarray(hours.changed)[:-1])


def _require_signals(hours: Transitions, scaler: Scaler) -> None:
    used = list(scaler.present)
    for rows in (hours.state, hours.next_state):
        empty = np.isnan(np.asarray(rows)[..., used]).any((0, 1))
        if empty.any():
            raise ValueError(
                f"expected {scaler.names[int(empty.argmax())]} in every scored hour, as in the "
                "train hours, got empty samples. Leave out the stays that lack it."
            )


def _require_forecasts(absolute: np.ndarray, scaler: Scaler) -> None:
    odd = ~np.isfinite(absolute).all(0)
    if odd.any():
        raise ValueError(
            f"expected finite forecasts of {scaler.names[int(odd.argmax())]}, got others. "
            "Score a model that was fitted on this signal."
        )


# One value per row; NaN where a row does not count. The means of these are the scores.
METRICS: dict[str, Callable[[ForecastScores], np.ndarray]] = {
    "mae": lambda s: _mean(s.absolute, s),
    "mae_published": lambda s: _mean(_in_published(s.absolute, s), s),
    "mae_z": lambda s: _mean(_in_sd(s.absolute, s), s),
    "mae_map": lambda s: np.asarray(s.absolute)[:, MAP],
    "mae_static": lambda s: _where(s.static, _mean(s.absolute, s)),
    "mae_changing": lambda s: _where(~s.static, _mean(s.absolute, s)),
    "mae_published_static": lambda s: _where(s.static, _mean(_in_published(s.absolute, s), s)),
    "mae_published_changing": lambda s: _where(~s.static, _mean(_in_published(s.absolute, s), s)),
    "mae_z_static": lambda s: _where(s.static, _mean(_in_sd(s.absolute, s), s)),
    "mae_z_changing": lambda s: _where(~s.static, _mean(_in_sd(s.absolute, s), s)),
    "mae_z_inside": lambda s: _where(s.inside, _mean(_in_sd(s.absolute, s), s)),
    "mse_z": lambda s: _mean(_in_sd(_in_sd(s.squared, s), s), s),
    "mse_map": lambda s: np.asarray(s.squared)[:, MAP],
    "trend": lambda s: _where(has_trend(s), np.asarray(s.trend == s.true_trend, float)),
    "crps": lambda s: _mean(s.crps, s),
    "crps_published": lambda s: _mean(_in_published(s.crps, s), s),
    "crps_z": lambda s: _mean(_in_sd(s.crps, s), s),
    "crps_z_inside": lambda s: _where(s.inside, _mean(_in_sd(s.crps, s), s)),
    "crps_map": lambda s: np.asarray(s.crps)[:, MAP],
    "coverage50": lambda s: _covered(s, BAND50),
    "coverage90": lambda s: _covered(s, BAND90),
    "coverage90_changing": lambda s: _where(~s.static, _covered(s, BAND90)),
    "coverage90_inside": lambda s: _where(s.inside, _covered(s, BAND90)),
}


def summarize(scores: ForecastScores) -> dict:
    """Plain numbers: overall, per signal, per chosen level, where the level stays and changes.

    `changing` is all that does not stay; `inside` is where the level changes inside the hour.

    A number that no row speaks of is None. `trend_base` is what the most frequent trend would get.
    """
    counts = [int(np.sum(np.asarray(scores.true_trend) == trend)) for trend in TRENDS]
    static, level = np.asarray(scores.static), np.asarray(scores.level)
    rows = {name: metric(scores) for name, metric in METRICS.items()}
    overall = {name: _plain(values) for name, values in rows.items()}
    frequent = max(counts) / max(sum(counts), 1)
    overall |= {"trend_base": frequent if has_trend(scores) else None}
    overall |= {"rows": len(static), "patients": len(np.unique(scores.patient))}
    return overall | {
        "signals": {scores.scaler.columns[i]: _signal(scores, i) for i in scores.scaler.present},
        "levels": {f"P{value}": _part(rows, level == value) for value in LEVELS},
        "static": _part(rows, static),
        "changing": _part(rows, ~static),
        "inside": _part(rows, np.asarray(scores.inside)),
    }


def compare_forecasts(
    ours: ForecastScores | Sequence[ForecastScores],
    theirs: ForecastScores | Sequence[ForecastScores],
    metric: str,
) -> tuple[float, float, float]:
    """Mean of ours minus theirs over the same rows, and its 95 % interval over patients.

    Several scores of one forecaster (seeds) are averaged row by row first.
    """
    if metric not in METRICS:
        raise ValueError(f"expected a metric out of {', '.join(METRICS)}, got {metric!r}.")
    mine, other = ([s] if isinstance(s, ForecastScores) else list(s) for s in (ours, theirs))
    first = mine[0]
    for scores in [*mine[1:], *other]:
        _require_pairs(first, scores)
    means = [np.mean([METRICS[metric](s) for s in group], axis=0) for group in (mine, other)]
    counts = ~np.isnan(means[0])
    if not counts.any():
        raise ValueError(f"expected rows that {metric} speaks of, got none. Score more patients.")
    patient = np.asarray(first.patient)[counts]
    return paired_difference(means[0][counts], means[1][counts], patient)


def _require_pairs(ours: ForecastScores, theirs: ForecastScores) -> None:
    same = ("patient", "level", "static", "inside", "true_trend")
    if not all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in same):
        raise ValueError(
            "expected two forecasters scored on the same rows, got different rows. "
            "Score both on the same transitions."
        )
    if ours.scaler.present != theirs.scaler.present or not np.array_equal(
        ours.scaler.sd, theirs.scaler.sd
    ):
        raise ValueError("expected one scale for both forecasters, got two. Pass the same scaler.")


def has_trend(scores: ForecastScores) -> bool:
    """Whether an hour has a slope: one that is a single row has none."""
    return scores.low.shape[1] > 1


def _mean(values, scores: ForecastScores) -> np.ndarray:
    return np.asarray(values, float)[:, list(scores.scaler.present)].mean(1)


def _in_sd(values, scores: ForecastScores) -> np.ndarray:
    return np.asarray(values, float) / np.asarray(scores.scaler.sd)[None]


def _in_published(values, scores: ForecastScores) -> np.ndarray:
    """In the units of the published errors: speed in 10 rpm, flow in 0.01 L/min."""
    scale = [PUBLISHED.get(name, 1.0) for name in scores.scaler.columns]
    return np.asarray(values, float) / np.array(scale)[None]


def _where(rows, values: np.ndarray) -> np.ndarray:
    return np.where(np.asarray(rows), values, np.nan)


def _covered(scores: ForecastScores, nominal: float) -> np.ndarray:
    return _mean(inside(scores.low, scores.high, nominal).mean(1), scores)


def _signal(scores: ForecastScores, column: int) -> dict[str, float | None]:
    """Scores of one signal, in its unit and in sd of the train patients."""
    sd = float(scores.scaler.sd[column])
    columns = (scores.absolute, scores.squared, scores.crps, scores.low, scores.high)
    mae, mse, score, low, high = (np.asarray(x)[..., column] for x in columns)
    values = {"mae": mae, "mae_z": mae / sd, "mse": mse, "crps": score, "crps_z": score / sd}
    bands = {"coverage50": inside(low, high, BAND50), "coverage90": inside(low, high, BAND90)}
    return {name: _plain(value) for name, value in (values | bands).items()}


PART = ("mae", "mae_published", "mae_z", "mae_map", "crps", "crps_z", "coverage50", "coverage90")


def _part(rows: dict[str, np.ndarray], chosen: np.ndarray) -> dict[str, float | int | None]:
    return {"rows": int(chosen.sum()), **{name: _plain(rows[name][chosen]) for name in PART}}


def _plain(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


# ── how honest draws are: CRPS, coverage, PIT ────────────────────────────────────────────────────


def crps(
    draws: Float[Array, " draws *shape"], truth: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """E|x − y| − ½ E|x − x′| in the unit of the signal; lower is better (App. E).

    x and x′ are two different draws, which makes the estimate unbiased ("fair"): it rates the
    forecaster, not the number of draws. All pairs are summed; at 50 draws this is five times
    faster than sorting them.
    """
    count = len(draws)
    off = draws - truth[None]  # small numbers: rpm would cost digits
    pairs = jax.lax.map(lambda one: jnp.sum(jnp.abs(off - one[None]), axis=0), off)
    spread = jnp.sum(pairs, axis=0) / (count * (count - 1))
    return jnp.mean(jnp.abs(off), axis=0) - spread / 2


def rank_place(
    draws: Float[Array, " draws *shape"], truth: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """From where to where the truth's place reaches on a scale of 0 to 1.

    A place is 1/(m + 1) wide; a truth that equals some draws shares their places.
    """
    places = len(draws) + 1
    below = jnp.sum(draws < truth[None], axis=0)
    equal = jnp.sum(draws == truth[None], axis=0)
    return below / places, (below + equal + 1) / places


def inside(low: Numbers, high: Numbers, nominal: float) -> np.ndarray:
    """How much of each place lies in the central band, 0 to 1; its mean is the coverage."""
    low, high = np.asarray(low), np.asarray(high)
    edge = (1 - nominal) / 2
    overlap = np.minimum(high, 1 - edge) - np.maximum(low, edge)
    return np.asarray(np.maximum(overlap, 0.0) / (high - low))


def pit_values(low: Numbers, high: Numbers, *, key: PRNGKeyArray) -> np.ndarray:
    """A random point of each place: uniform over 0 to 1 where the draws are honest."""
    low, high = np.asarray(low), np.asarray(high)
    return low + (high - low) * host_generator(key).random(low.shape)


# ── how errors grow ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class HorizonConfig:
    """How far and how often; defaults are the paper's."""

    hours: int = HORIZON
    starts: int = 500  # at most
    draws: int = DRAWS
    role: Literal["test", "select"] = "test"

    def __post_init__(self):
        if min(self.hours, self.starts) < 1 or self.draws < 2:
            raise ValueError(
                "expected at least 1 hour, 1 start and 2 draws, "
                f"got {self.hours}, {self.starts} and {self.draws}."
            )


PAPER_HORIZON = HorizonConfig()


class ErrorGrowth(eqx.Module):
    """Errors of the mean path and the truth's place among the draws, hour by hour."""

    absolute: Float[Array, "starts hours signals"]  # mean over the hour's samples
    low: Float[Array, "starts hours steps signals"]
    high: Float[Array, "starts hours steps signals"]
    patient: Int[Array, " starts"]


def grow_errors(
    forecaster: Forecaster,
    hours: Transitions,
    config: HorizonConfig = PAPER_HORIZON,
    *,
    key: PRNGKeyArray,
) -> ErrorGrowth:
    """Play the recorded levels from random starts; `hours` are hourly rows in order."""
    require_role(hours, config.role)
    k_starts, k_draws = jr.split(key)
    start = find_runs(hours, config.hours)
    if len(start) > config.starts:
        chosen = host_generator(k_starts).choice(start, config.starts, replace=False)
        start = np.sort(chosen)
    run = start[:, None] + np.arange(config.hours)
    state, levels, later = (np.asarray(x) for x in (hours.state, hours.levels, hours.next_state))
    rows = (state[start], levels[run], later[run], np.arange(len(start)))
    absolute, low, high = in_groups(
        _play_rows, (rows,), forecaster, k_draws, config.draws, size=GROUP
    )
    places = (jnp.asarray(x) for x in (absolute, low, high))
    return ErrorGrowth(*places, patient=hours.patient[start])


def _play_rows(rows, forecaster: Forecaster, key, draws: int):
    def one(state, levels, truth, number):
        keys = jr.split(jr.fold_in(key, number), (len(levels), draws))
        start = jnp.broadcast_to(state[None], (draws, *state.shape))

        def hour(now, x):
            each, keys = x  # the levels of the hour's samples
            later = jax.vmap(lambda s, k: forecaster(s, each, key=k))(now, keys)
            return advance(now, later), later[..., :LEVEL]

        _, drawn = jax.lax.scan(hour, start, (levels, keys))  # (hours, draws, steps, signals)
        truth = truth[..., :LEVEL]
        low, high = jax.vmap(rank_place)(drawn, truth)
        return jnp.mean(jnp.abs(jnp.mean(drawn, axis=1) - truth), axis=1), low, high

    return jax.vmap(one)(*rows)


def summarize_growth(growth: ErrorGrowth) -> dict[str, dict[str, list[float]]]:
    """Per hour: MAE of MAP, HR and pulsatility, its sd over starts, coverage of the 90 % band."""
    absolute = np.asarray(growth.absolute, float)[..., list(SHOWN)]
    covered = inside(growth.low, growth.high, BAND90).mean((0, 2))
    return {
        NAMES[column]: {
            "mae": absolute[..., i].mean(0).tolist(),
            "sd": absolute[..., i].std(0).tolist(),
            "coverage90": covered[:, column].tolist(),
        }
        for i, column in enumerate(SHOWN)
    }


# ── for figures ──────────────────────────────────────────────────────────────────────────────────

NOMINAL = tuple(round(0.05 * i, 2) for i in range(1, 20))  # central bands whose coverage is shown
PIT_BINS = 20
EXAMPLES, USUAL, BEHIND = 4, 2, 200  # hours shown; levels of a usual change; draws of a band


def describe_honesty(scores: ForecastScores, *, key: PRNGKeyArray) -> dict[str, list[float]]:
    """Share of the truth within every central band, and the density of the PIT, over 20 bins."""
    used = list(scores.scaler.present)
    low, high = np.asarray(scores.low)[..., used], np.asarray(scores.high)[..., used]
    values = pit_values(low, high, key=key).ravel()
    density, _ = np.histogram(values, PIT_BINS, (0.0, 1.0), density=True)
    covered = [float(inside(low, high, share).mean()) for share in NOMINAL]
    return {"covered": covered, "pit": density.tolist()}


class Examples(eqx.Module):
    """Test hours in which the level changes, and what a forecaster says about them."""

    state: Float[np.ndarray, "rows steps columns"]
    level: Int[np.ndarray, " rows"]
    next_state: Float[np.ndarray, "rows steps columns"]
    center: Float[np.ndarray, "rows steps columns"]
    drawn: Float[np.ndarray, "rows draws steps columns"]


def forecast_examples(
    forecaster: Forecaster, hours: Transitions, *, key: PRNGKeyArray
) -> Examples | None:
    """Forecasts of some hours in which the level changes; None where it never does."""
    require_role(hours, "test")
    rows = np.array(pick_changes(hours, EXAMPLES), int)
    if not len(rows):
        return None
    state, level, later = (x[rows] for x in (hours.state, hours.level, hours.next_state))
    # compiled as a whole: operation by operation would take a minute
    center, drawn = _forecast(forecaster, state, hours.levels[rows], jr.split(key, BEHIND))
    hour = hours.hour[rows]
    return Examples(*(np.asarray(x) for x in (hour, level, later, center, drawn)))


@eqx.filter_jit
def _forecast(forecaster: Forecaster, states, levels, keys):
    one = jax.vmap(lambda s, a, k: forecaster(s, a, key=k), (None, None, 0))
    return jax.vmap(forecaster.center)(states, levels), jax.vmap(one, (0, 0, None))(
        states, levels, keys
    )


def pick_changes(hours: Transitions, number: int) -> list[int]:
    """Rows whose level is another than in the hour before, drops and rises in turn.

    First the largest change each way, then usual ones (one or two levels), each of another patient.
    """
    before = np.rint(np.asarray(hours.state)[:, -1, LEVEL]).astype(int)
    step = np.asarray(hours.level) - before
    patient = np.asarray(hours.patient)
    size = np.abs(step)
    chosen: list[int] = []
    for turn in range(number):
        wanted = np.where(turn % 2 == 0, step < 0, step > 0) & ~np.isin(patient, patient[chosen])
        wanted &= (size <= USUAL) | (turn < 2)
        if wanted.any():
            chosen.append(int(np.argmax(np.where(wanted, size, 0))))
    return chosen
