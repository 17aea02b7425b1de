"""What the theorems certify about a trained policy: constants, lower bounds, and their limits.

docs/theory.md derives the statements. Values are physiological rewards of an episode of six hours,
not discounted, the most probable level at each decision; the model is the one that the policy was
trained in, and u that of the density which it was charged by. Per hour with h hours to go after it,
a model error moves the value by at most reach · d, where reach = (h + 1) · half the range of an
hourly reward and d the metric of Assumption 2: d ≤ C · u₊ + ε. So

    value in truth ≥ value in the model − Σ over hours of reach · (C · E[u₊] + ε).

C and ε are estimated on held-out decisions from the value gap |G|, three ways: in the mean, at
every held-out decision, and at every decision with C as the training weight has it. "Estimated" is
the word: Assumption 2 speaks of all states, and imagined ones have no truth.

How wrong the model is about held-out decisions is measured twice, and neither is the paper's way.
The paper's metric is a supremum over all bounded functions of the next hour, which nobody can
estimate in 72 dimensions. The value gap |G| takes the one function that matters to a policy: the
reward of the hour plus the policy's value of what follows, fitted. A classifier that tells real
next hours from imagined ones bounds the metric from below: twice its share of right answers minus
one is at most the total variation.

In simulated patients the next hour is drawn anew as often as needed, for every level, from the
patient's hidden state. Recordings hold one next hour for the level that was set. |G| from a single
hour contains the hour's own chance, so it is too large, never too small on average.

The value is fitted too: the rewards to come are regressed on what an hour shows, for every number
of hours to go, by ridge regressions that leave out a fold of patients. Dead patients score the
least reward on.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stepdown.evaluation.compare import draw_patients, middle, spearman
from stepdown.evaluation.guardians import charge_all
from stepdown.guardian.threshold import Guardian
from stepdown.handover import (
    Dynamics,
    Episodes,
    Policy,
    Transitions,
    require_one_hour,
    require_role,
)
from stepdown.patients.cohort import in_groups
from stepdown.patients.episodes import Mode, Sampled, Starts, play
from stepdown.patients.population import World, host_generator
from stepdown.policies.rows import step_rows
from stepdown.policies.rules import Always, Chance
from stepdown.problem.clinical import PAPER, normalized_reward, reward_parts, slope
from stepdown.problem.metrics import score_episodes
from stepdown.signals import ESE, FLOW, HORIZON, LEVEL, LEVELS, NAMES, REQUIRED

DRAWS = 500  # of patients, for the interval of a line
TOLD = 4  # draws of a decision that the classifier sees of either side
FOLDS = 5  # of patients: nobody is judged by what was fitted to them
RIDGE = 10.0  # rows of nothing, against fitting chance
BLOCK = 4096  # rows of one compiled call
BENT = (*REQUIRED, FLOW, ESE)  # signals whose squares count as well
USUAL = {  # middle and scale of what the regressions see of an hour
    "map": (80.0, 15.0),
    "speed": (4e4, 6e3),
    "current": (500.0, 150.0),
    "flow": (3.0, 1.0),
    "lvp": (50.0, 20.0),
    "lvedp": (12.0, 8.0),
    "hr": (80.0, 18.0),
    "sbp": (95.0, 20.0),
    "dbp": (65.0, 14.0),
    "pulsatility": (30.0, 15.0),
    "tau": (50.0, 15.0),
    "ese": (1.5, 0.8),
    "level": (5.5, 2.0),
}

Decider = Callable[[None, Float[Array, "steps columns"], PRNGKeyArray], Int[Array, ""]]
Rows = Float[np.ndarray, "n steps columns"]
ByHour = Float[np.ndarray, "n hours"]
Vector = Float[np.ndarray, " n"]
ByTime = Float[np.ndarray, " hours"]


@dataclass(frozen=True)
class CertificateConfig:
    """What the bounds are asked about."""

    weight: float = 0.08  # lambda of the training: reward per nat; 0 if it charged no density
    draws: int = 32  # imagined next hours per held-out decision
    sampled: bool = False  # draw levels instead of taking the most probable

    def __post_init__(self):
        if self.weight < 0 or self.draws < 1:
            raise ValueError(
                "expected a weight of at least 0 and at least 1 draw, got "
                f"{self.weight:g} and {self.draws}."
            )


@dataclass(frozen=True)
class Constants:
    """Assumption 2, d ≤ slope · u₊ + rest, and the lower bound that follows."""

    slope: float  # C, per nat
    rest: float  # epsilon; d itself is at most 2
    bound: float  # on the value in truth (Theorem 1)


@dataclass(frozen=True)
class Certificate:
    """The theorems for one policy. Values: sums of hourly rewards over an episode."""

    weight: float  # lambda of the training
    reach: float  # c: half the range of what an episode can be worth
    floor: float  # least possible value: a bound below it says nothing
    value_in_model: float
    value_in_truth: float  # NaN for recordings
    charged: float  # E[u+], nats an hour, over the policy's hours in the model
    bonus: float  # E[|u-|], nats an hour
    largest_bonus: float  # sup |u-|, nats
    in_mean: Constants  # C and epsilon by least squares: the assumption holds on average
    everywhere: Constants  # the tightest pair that holds at every held-out decision
    as_trained: Constants  # C = weight / reach; epsilon so that it holds at every decision
    weight_asked: float  # lambda that covers the mean slope in the first hour: reach * C
    gap: float  # Theorem 2 (not discounted, not shaped), `as_trained`; budget: its own E[u+]
    in_mean_low: float  # lower 95 % limit of the first bound, patients drawn again
    error_known: float  # mean |G|, summed over an episode's hours, where u <= 0
    error_strange: float  # ... where u > 0; NaN without such decisions
    bias_known: float  # mean G there, with its sign: what is left when errors cancel
    rank_correlation: float  # of u+ and |G| over held-out decisions
    noise: float  # what chance alone adds to such a sum; NaN for single recorded hours
    value_fit: float  # R² of the fitted value function, mean over hours to go
    tv_known: float  # lower 95 % limit of total variation where u <= 0, by a classifier
    tv_all: float  # ... over all held-out decisions
    metric_ceiling: float  # no (C, epsilon) in the paper's own metric gives a higher lower bound
    decisions: int  # held out
    patients: int
    redrawn: bool  # next hours drawn anew from the simulator; else recorded, one each
    value_in_twin: float = float("nan")  # for whoever puts them side by side

    @property
    def is_vacuous(self) -> bool:
        """Whether even the assumption in the mean certifies nothing above the least value."""
        return self.in_mean.bound <= self.floor


class Truth(eqx.Module):
    """Where episodes can be played in simulated patients."""

    starts: Starts
    world: World


class HeldOut(eqx.Module):
    """Decisions of held-out patients, the hours that came of them, and where episodes begin."""

    state: Rows
    level: Int[np.ndarray, " n"]
    later: Float[np.ndarray, "n draws steps columns"]  # next hours under the level
    alive: Bool[np.ndarray, "n draws"]  # through that hour
    row: Int[np.ndarray, " n"]  # patient
    start: Float[np.ndarray, "m steps columns"]  # hours before the first decision of an episode
    start_row: Int[np.ndarray, " m"]  # patient
    truth: Truth | None = None  # None for recordings

    @property
    def fold(self) -> Int[np.ndarray, " n"]:
        """The fold of each decision's patient."""
        return fold_of(self.row, self.start_row)


class Values(eqx.Module):
    """A policy's value of a state with 0, 1, ... hours to go: ridge regressions without a fold."""

    weight: Float[np.ndarray, "folds hours p"]  # 0 for no hours to go
    fit: Float[np.ndarray, " hours"]  # R² on the fold that was left out; NaN for no hours to go


def certify(
    policy: Policy,
    dynamics: Dynamics,
    guardian: Guardian,
    held_out: HeldOut,
    config: CertificateConfig = CertificateConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
) -> Certificate:
    """Estimate the constants on held-out decisions and bound the policy's value in truth.

    `dynamics` are those that the policy was trained in, `guardian` and `config.weight` what charged
    it there. Make `held_out` once for all policies:
    by `redraw_hours` in simulated patients, by `recorded_hours` from recordings.
    """
    k_rollout, k_draws = jr.split(key)
    decider = (Sampled if config.sampled or isinstance(policy, Chance) else Mode)(policy)
    imagined = imagine_episodes(decider, dynamics, jnp.asarray(held_out.start), key=k_rollout)
    truth = held_out.truth
    played = imagined if truth is None else play(decider, truth.starts, truth.world)
    values = fit_values(played, held_out.start_row)
    drawn = imagine_hours(dynamics, held_out, config.draws, key=k_draws)
    gaps, chance = value_gaps(values, held_out, drawn)
    u = charge_all(guardian, held_out.state, held_out.level).astype(float)
    over = charge_all(guardian, imagined.state[:, :-1], imagined.level[:, 1:]).astype(float)
    plus, met = np.maximum(u, 0.0), np.maximum(over, 0.0).mean(0)
    found = _Measured(_value(imagined), met, plus, np.abs(gaps))
    in_mean, as_trained, reach = found.in_mean(), found.as_trained(config.weight), reaches()
    drawn_again = [found.in_mean(weight).bound for weight in draw_patients(held_out.row, DRAWS)]
    largest_bonus = max(0.0, -float(guardian.lowest))
    budget = float(met.sum())
    sizes, known = np.abs(gaps).sum(1), u <= 0
    right = tell_apart(held_out, drawn)
    tv_known, tv_all = (_least_tv(right, held_out.row, x) for x in (known, np.ones_like(known)))
    return Certificate(
        weight=config.weight,
        reach=float(reach[0]),
        floor=reward_range()[0] * len(reach),
        value_in_model=found.value,
        value_in_truth=float("nan") if truth is None else _value(played),
        charged=float(met.mean()),
        bonus=float(np.maximum(-over, 0.0).mean()),
        largest_bonus=largest_bonus,
        in_mean=in_mean,
        everywhere=found.everywhere(),
        as_trained=as_trained,
        weight_asked=in_mean.slope * float(reach[0]),
        gap=optimality_gap(reach, budget, as_trained.rest, config.weight, largest_bonus),
        in_mean_low=middle(np.array(drawn_again))[0],
        error_known=_mean(sizes[known]),
        error_strange=_mean(sizes[~known]),
        bias_known=_mean(gaps.sum(1)[known]),
        rank_correlation=spearman(plus, sizes),
        noise=float(np.sqrt(2.0 / np.pi) * np.sqrt(chance).sum(1).mean()),
        value_fit=float(np.nanmean(values.fit)),
        tv_known=tv_known,
        tv_all=tv_all,
        metric_ceiling=found.value - 2.0 * tv_known * float(reach.sum()),
        decisions=len(u),
        patients=len(np.unique(held_out.row)),
        redrawn=truth is not None,
    )


class _Measured(eqx.Module):
    """What was measured of one policy and its model, and the constants that follow."""

    value: float  # in the model
    met: ByTime  # E[u₊] at each of the policy's decisions
    plus: Vector  # u₊ at held-out decisions
    sizes: ByHour  # |G| there, by hours to go

    def in_mean(self, weight: Vector | None = None) -> Constants:
        """The assumption in the mean; decisions may be weighted."""
        typical = self.sizes.sum(1) / reaches().sum()
        return self._constants(*mean_line(typical, self.plus, weight))

    def everywhere(self) -> Constants:
        """The tightest pair that holds at every decision."""
        worst, reach = self._worst(), reaches()
        slope = tightest_cover(worst, self.plus, float((reach * self.met).sum() / reach.sum()))
        return self._constants(slope, cover(worst, self.plus, slope))

    def as_trained(self, weight: float) -> Constants:
        """With C as the training weight has it."""
        reach = reaches()
        slope = weight / float(reach[0])
        rest = cover(self._worst(), self.plus, slope)
        # The training charges every hour alike, the last ones more than their reach asks for.
        bound = self.value - weight * float(self.met.sum()) - rest * float(reach.sum())
        return Constants(slope, rest, bound)

    def _constants(self, slope: float, rest: float) -> Constants:
        bound = lower_bound(self.value, reaches(), self.met, slope, rest)
        return Constants(slope, rest, bound)

    def _worst(self) -> Vector:
        """In units of the reach; columns are hours to go, times the other way."""
        return (self.sizes / reaches()[None, ::-1]).max(1)


def _value(episodes: Episodes) -> float:
    return float(np.mean(np.asarray(score_episodes(episodes)["reward"])))


def _mean(values: Vector) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _least_tv(right: Vector, row: Int[np.ndarray, " n"], among: Bool[np.ndarray, " n"]) -> float:
    """Lower 95 % limit of 2 · right − 1 among some decisions; 0 if none is told."""
    if not among.any():
        return 0.0
    means = draw_patients(row[among]) @ (2.0 * right[among] - 1.0)
    return max(0.0, float(np.quantile(means, 0.05)))


# ── the theorems for an episode, and the constants of Assumption 2, as arithmetic ────────────────
#
# The metric d of Assumption 2 is bounded by slope · u₊ + rest (the paper's C and ε); a metric of 1
# at a decision moves the value by at most its reach (the paper's c).


def reaches() -> ByTime:
    """How much a metric of 1 can move the value at each decision: half the range of what is ahead.

    A decision at time t has its own hour and HORIZON − 1 − t more ahead.
    """
    low, high = reward_range()
    return 0.5 * (high - low) * np.arange(HORIZON, 0, -1)


def lower_bound(value: float, reach: ByTime, plus: ByTime, slope: float, rest: float) -> float:
    """Theorem 1: the value in truth is at least this. `plus` is E[u₊] at each decision."""
    return float(value - (reach * (slope * plus + rest)).sum())


def optimality_gap(
    reach: ByTime, budget: float, rest: float, weight: float, largest_bonus: float
) -> float:
    """Theorem 2: how far below the best policy within the budget the penalized optimum can lie.

    The optimum of an episode's reward minus weight · u, neither discounted nor shaped: a training
    that discounts or shapes has another optimum, of which this says nothing. The budget is on the
    sum of E[u₊] over an episode; weight ≥ slope · reach at every decision.
    """
    bonus = weight * largest_bonus * len(reach)
    return float(2.0 * weight * budget + 2.0 * rest * reach.sum() + bonus)


def cover(error: Vector, plus: Vector, slope: float) -> float:
    """The least rest with error ≤ slope · plus + rest at every decision."""
    return float(np.maximum(error - slope * plus, 0.0).max())


def tightest_cover(error: Vector, plus: Vector, where: float) -> float:
    """The slope for which slope · where + rest is least while every error is covered.

    The sum is convex in the slope, and no slope beyond the steepest error helps.
    """
    low, high = 0.0, float((error / np.maximum(plus, 1e-9))[plus > 0].max(initial=0.0))
    for _ in range(80):
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        costs = [slope * where + cover(error, plus, slope) for slope in (left, right)]
        low, high = (low, right) if costs[0] <= costs[1] else (left, high)
    return low


def mean_line(error: Vector, plus: Vector, weight: Vector | None = None) -> tuple[float, float]:
    """Slope and rest of the least-squares line, neither below zero; decisions may be weighted."""
    mean = functools.partial(np.average, weights=weight)
    apart = plus - mean(plus)
    spread = float(mean(apart**2))
    slope = max(float(mean(apart * error)) / spread if spread > 0 else 0.0, 0.0)
    rest = float(mean(error) - slope * mean(plus))
    if rest >= 0:
        return slope, rest
    return float(mean(plus * error) / mean(plus**2)), 0.0


# ── held-out decisions ───────────────────────────────────────────────────────────────────────────


def redraw_hours(
    starts: Starts, world: World, moments: int = 128, draws: int = 32, *, key: PRNGKeyArray
) -> HeldOut:
    """Every level at some starts in simulated patients, each next hour drawn many times anew.

    No policy enters, so one call serves all policies. The luck is the same for every level.
    """
    count = min(moments, len(starts.row))
    index = np.repeat(np.arange(count), draws)
    starts = jax.tree.map(_on_host, starts)
    again = jax.tree.map(lambda x: x[index], starts)
    again = eqx.tree_at(lambda x: x.key, again, jr.split(key, len(index)))
    played = [play(Mode(Always(jnp.asarray(level))), again, world, 1) for level in LEVELS]
    later = np.stack([np.asarray(one.state[:, 1]) for one in played])
    alive = np.stack([np.asarray(one.alive[:, 0]) for one in played])
    state, row = np.asarray(starts.state), np.asarray(starts.row)
    shape = (len(LEVELS) * count, draws)
    return HeldOut(
        state=np.tile(state[:count], (len(LEVELS), 1, 1)),
        level=np.repeat(np.array(LEVELS, np.int32), count),
        later=later.reshape(*shape, *later.shape[2:]),
        alive=alive.reshape(shape),
        row=np.tile(row[:count], len(LEVELS)),
        start=state,
        start_row=row,
        truth=Truth(starts, world),
    )


def _on_host(x):
    """Rows of host arrays are taken many times faster; keys stay where they are."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def recorded_hours(
    hours: Transitions, decisions: int = 1024, episodes: int = 1000, *, key: PRNGKeyArray
) -> HeldOut:
    """Recorded decisions of test patients, each with the one hour that followed."""
    require_role(hours, "test")
    require_one_hour(hours, "a certificate")
    draw, count = host_generator(key), len(hours.level)
    chosen = draw.permutation(count)[:decisions]
    begin = draw.choice(count, episodes, replace=episodes > count)
    state, later, row = (np.asarray(x) for x in (hours.state, hours.next_state, hours.patient))
    return HeldOut(
        state=state[chosen],
        level=np.asarray(hours.level, np.int32)[chosen],
        later=later[chosen][:, None],
        alive=np.ones((len(chosen), 1), bool),
        row=row[chosen],
        start=state[begin],
        start_row=row[begin],
    )


# ── errors of the model ──────────────────────────────────────────────────────────────────────────


@eqx.filter_jit
def imagine_episodes(
    decider: Decider,
    dynamics: Dynamics,
    states: Float[Array, "n steps columns"],
    *,
    key: PRNGKeyArray,
) -> Episodes:
    """Somebody decides for six hours in the model, from every state; nobody dies there."""

    def hour(states, key):
        k_level, k_hour = jr.split(key)
        keys = jr.split(k_level, len(states))
        levels = jax.vmap(lambda state, key: decider(None, state, key))(states, keys)
        later = step_rows(dynamics, states, levels, key=k_hour)
        return later, (later, levels)

    _, (later, levels) = jax.lax.scan(hour, states, jr.split(key, HORIZON))
    before = jnp.round(states[:, -1, LEVEL]).astype(levels.dtype)
    return Episodes(
        state=jnp.concatenate([states[:, None], jnp.moveaxis(later, 0, 1)], axis=1),
        level=jnp.concatenate([before[:, None], levels.T], axis=1),
        alive=jnp.ones(levels.T.shape, bool),
    )


def imagine_hours(
    dynamics: Dynamics, held_out: HeldOut, draws: int, *, key: PRNGKeyArray
) -> Float[np.ndarray, "n draws steps columns"]:
    """Next hours of the same decisions in the model."""
    count, *shape = held_out.state.shape
    index = np.repeat(np.arange(count), draws)
    rows = held_out.state[index], held_out.level[index]
    return in_groups(_step, rows, dynamics, size=BLOCK, key=key).reshape(count, draws, *shape)


def _step(states, levels, dynamics: Dynamics, key):
    return step_rows(dynamics, states, levels, key=key)


def value_gaps(
    values: Values, held_out: HeldOut, imagined: Float[np.ndarray, "n many steps columns"]
) -> tuple[ByHour, ByHour]:
    """G, model minus truth, for 0, 1, ... hours to go, and the variance that chance gives it.

    The variance is NaN on the side of a single draw.
    """
    hours = values.weight.shape[1]
    lost = -PAPER.reward_clip * (1.0 + np.arange(hours))
    means, spread = [], np.zeros((len(held_out.level), hours))
    for side in (imagined, held_out.later):
        draws = side.shape[1]
        fold = np.repeat(held_out.fold, draws)
        found = worth(values, side.reshape(-1, *side.shape[2:]), fold).reshape(-1, draws, hours)
        if side is held_out.later:
            found = np.where(held_out.alive[..., None], found, lost[None, None])
        means.append(found.mean(1))
        spread += found.var(1, ddof=1) / draws if draws > 1 else np.nan
    return means[0] - means[1], spread


def tell_apart(
    held_out: HeldOut, imagined: Float[np.ndarray, "n many steps columns"]
) -> Float[np.ndarray, " n"]:
    """Share of right answers, at each decision, of a classifier fitted to other patients' hours.

    It is linear in hour, level, change, squared change and roughness. A better one would find a
    larger total variation, so what follows from its answers is a lower bound.
    """
    draws = min(TOLD, held_out.later.shape[1], imagined.shape[1])
    sides = [_clues(held_out, side[:, :draws]) for side in (held_out.later, imagined)]
    table = np.concatenate(sides)
    middle, scale = table.mean(0), table.std(0)
    scores = np.clip((table - middle) / np.where(scale > 0, scale, 1.0), -6.0, 6.0)
    table = np.concatenate([np.ones((len(table), 1)), scores], axis=1)
    real = np.repeat([1.0, -1.0], len(sides[0]))
    fold = np.tile(np.repeat(held_out.fold, draws), 2)
    guess = np.zeros(len(real))
    for left_out in np.unique(fold):
        weight = ridge(table[fold != left_out], real[fold != left_out])
        guess[fold == left_out] = table[fold == left_out] @ weight
    return (guess * real > 0).reshape(2, -1, draws).mean((0, 2))


def _clues(held_out: HeldOut, later: np.ndarray) -> np.ndarray:
    """What the classifier sees of every draw."""
    count, draws = later.shape[:2]
    before = np.repeat(held_out.state[:, None, :, :LEVEL], draws, axis=1)
    level = np.repeat(held_out.level[:, None, None] * 1.0, draws, axis=1)
    signals = later[..., :LEVEL]
    change = signals - before
    rough = np.abs(np.diff(signals, axis=2))
    parts = [before, change, change**2, rough]
    flat = [np.nan_to_num(part.reshape(count, draws, -1)) for part in parts]
    return np.concatenate([*flat, level], axis=2).reshape(count * draws, -1)


# ── a policy's value of an hour ──────────────────────────────────────────────────────────────────


def fit_values(episodes: Episodes, row: Int[np.ndarray, " n"]) -> Values:
    """Regress the rewards to come on the hour; every hour of an episode is a start."""
    count, times = np.asarray(episodes.level).shape
    table, reward = _look(np.asarray(episodes.state).reshape(-1, *episodes.state.shape[2:]))
    table, reward = table.reshape(count, times, -1), reward.reshape(count, times)[:, 1:]
    alive = np.asarray(episodes.alive)
    reward = np.where(alive, reward, -PAPER.reward_clip)
    living = np.concatenate([np.ones((count, 1), bool), alive], axis=1)
    sums = np.concatenate([np.zeros((count, 1)), reward.cumsum(1)], axis=1)
    fold = fold_of(row, row)
    weight = np.zeros((fold.max() + 1, HORIZON, table.shape[-1]))
    fit = np.full(HORIZON, np.nan)
    for ahead in range(1, HORIZON):
        known = living[:, : times - ahead]
        x, y = table[:, : times - ahead][known], (sums[:, ahead:] - sums[:, :-ahead])[known]
        of = np.broadcast_to(fold[:, None], known.shape)[known]
        for left_out in range(len(weight)):
            weight[left_out, ahead] = ridge(x[of != left_out], y[of != left_out])
        missed = y - np.einsum("np,np->n", x, weight[of, ahead])
        fit[ahead] = 1.0 - missed.var() / max(float(y.var()), 1e-12)
    return Values(weight, fit)


def worth(values: Values, states: Rows, fold: Int[np.ndarray, " n"]) -> ByHour:
    """Reward of an hour plus the value of what follows, for 0, 1, ... hours to go after it."""
    table, reward = _look(states)
    ahead = np.arange(values.weight.shape[1])[None]
    later = np.einsum("np,nhp->nh", table, values.weight[fold])
    low, high = reward_range()
    return reward[:, None] + np.clip(later, low * ahead, high * ahead)


def reward_range() -> tuple[float, float]:
    """The least and the greatest reward of an hour."""
    best = min((0.0 - PAPER.reward_mean) / PAPER.reward_sd, PAPER.reward_clip)
    return -PAPER.reward_clip, best


def fold_of(row: Int[np.ndarray, " n"], among: Int[np.ndarray, " m"]) -> Int[np.ndarray, " n"]:
    """Folds of patients, as even as can be; at least two patients are needed."""
    patients = np.unique(among)
    if len(patients) < 2:
        raise ValueError(
            f"expected at least 2 held-out patients, got {len(patients)}: what is fitted to some "
            "is judged on others. Hold out more patients."
        )
    return np.searchsorted(patients, row) % min(FOLDS, len(patients))


def _look(states: Rows) -> tuple[np.ndarray, np.ndarray]:
    """What the regressions see of every hour, and its reward."""
    table, reward = in_groups(_features, (np.asarray(states, np.float32),), size=BLOCK)
    return np.nan_to_num(table).astype(float), reward.astype(float)


def _features(states: Float[Array, "n steps columns"]):
    middle, scale = (jnp.array([USUAL[name][i] for name in (*NAMES, "level")]) for i in (0, 1))

    def one(state):
        common = jnp.append(state[:, : len(NAMES)], state[:, LEVEL:], axis=1)  # no further columns
        scores = jnp.clip((common - middle[None]) / scale[None], -6.0, 6.0)
        mean, reward = jnp.mean(scores, axis=0), normalized_reward(state)
        parts = [
            jnp.ones(1),
            mean,
            jnp.stack([jnp.min(scores[:, i]) for i in REQUIRED]),
            jnp.stack([scores[-1, i] for i in BENT]),
            jnp.stack([slope(scores[:, i]) for i in REQUIRED]),
            jnp.stack([mean[i] ** 2 for i in (*BENT, LEVEL)]),
            jnp.stack([mean[i] * mean[LEVEL] for i in BENT]),
            jnp.minimum(jnp.stack(jax.tree.leaves(reward_parts(state))), 6.0),
            reward[None],
        ]
        return jnp.concatenate(parts), reward

    return jax.vmap(one)(states)


def ridge(table: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Coefficients of a ridge regression; the first column is not held back."""
    charge = RIDGE * np.eye(table.shape[1])
    charge[0, 0] = 1e-6
    return np.linalg.solve(table.T @ table + charge, table.T @ target)
