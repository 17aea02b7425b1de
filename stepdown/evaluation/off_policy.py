"""Policies judged from records alone: WIS, FQE, WDR and MAGIC, with what must stand beside them.

The value is the physiological reward of six hours, not discounted, from a random recorded hour.
Records say something about a policy only where teams did what it would do. So every value comes
with how many patients really carry it, how much of what the policy does was seen at all, and the
word "uninformative" where that is too little. The limits are fields of the config, fixed before
anything was estimated. Intervals are bootstraps over patients, the same draws for every policy.
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.evaluation.behavior import Behavior
from stepdown.evaluation.compare import draw_counts, interval
from stepdown.evaluation.decisions import Decisions
from stepdown.evaluation.fitted_q import (
    Ahead,
    Counted,
    Lessons,
    count_patients,
    cross_fitted,
    fit_q,
    follow_policy,
    fqe_values,
    learn,
)
from stepdown.evaluation.importance import (
    Bounds,
    Chances,
    Limits,
    Overlap,
    Paths,
    PerHour,
    Ratios,
    Word,
    confounding_bounds,
    magic,
    make_paths,
    measure_overlap,
    path_weights,
    verdict,
    wdr,
    weight_range,
    wis,
)
from stepdown.handover import Dynamics, Policy
from stepdown.patients.cohort import batch_size, in_groups
from stepdown.policies.rows import step_rows
from stepdown.problem.clinical import PAPER, normalized_reward
from stepdown.signals import HORIZON, LEVELS, LOWEST

BLOCK = 4096  # rows imagined at a time

How = Literal["mode", "sampled"]


@dataclass(frozen=True)
class OffPolicyConfig:
    """Off-policy evaluation; the limits of "uninformative" are fixed beforehand."""

    hours: int = HORIZON
    draws: int = 400  # of the bootstrap over patients
    floor: float = 0.002  # no recorded level is taken as less likely than this
    rare: float = 0.003  # a level that teams choose less often here counts as unsupported
    ridge: float = 30.0  # of fitted Q, in decisions
    limits: Limits = Limits()  # below which the records say nothing
    gammas: tuple[float, ...] = (1.2, 1.5, 2.0)  # of the sensitivity bounds

    def __post_init__(self):
        if min(self.hours, self.draws) < 1:
            raise ValueError(
                f"expected at least 1 hour and 1 draw, got {self.hours} and {self.draws}."
            )
        if not 0 < self.floor < 1 or not 0 <= self.rare < 1 or self.ridge <= 0:
            raise ValueError(
                "expected a floor and a rare chance between 0 and 1 and a ridge above 0, got "
                f"{self.floor:g}, {self.rare:g} and {self.ridge:g}."
            )


class Estimate(eqx.Module):
    """A value with its 95 % interval; `draws` are paired over policies."""

    value: float
    low: float
    high: float
    draws: Float[np.ndarray, " draws"]


class Estimates(eqx.Module):
    """All that the records say about one policy."""

    wis: Estimate
    fqe: Estimate
    wdr: Estimate
    joint: Estimate  # FQE and WDR together: their mean, and all that either interval holds
    magic: Estimate | None  # where a model was given
    model: Estimate | None  # that model's own value of the same starts
    overlap: Overlap
    bounds: tuple[Bounds, ...]  # of WIS under hidden confounding
    word: Word = eqx.field(static=True)


class Records(eqx.Module):
    """The records of a cohort, made ready for any number of policies."""

    decisions: Decisions
    behavior: Behavior
    paths: Paths
    chance: Float[np.ndarray, " n"]  # the teams' chance of the recorded level
    lessons: Lessons
    draws: Counted  # bootstrap draws of patients
    folds: Counted  # all patients but one fold
    own: Counted  # all patients once
    config: OffPolicyConfig = eqx.field(static=True)

    @property
    def rewards(self) -> PerHour:
        """The reward of every hour of every episode; the least once a patient is gone."""
        recorded = self.decisions.reward[self.paths.row]
        return np.where(self.paths.gone, -PAPER.reward_clip, recorded).astype(float)


def prepare_records(
    decisions: Decisions,
    behavior: Behavior,
    config: OffPolicyConfig = OffPolicyConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
) -> Records:
    """Do what all policies share; they also share the bootstrap draws, so they can be paired."""
    if len(behavior.held) != len(decisions.level):
        raise ValueError("expected chances for these decisions, got others. Fit them again.")
    _require_known(decisions.level)
    rows = np.arange(len(decisions.level)), decisions.level - LOWEST
    recorded = np.exp(behavior.level[rows])
    _require_chances(recorded, behavior, decisions)
    paths = make_paths(decisions, config.hours)
    lessons = learn(decisions, behavior)
    fold = behavior.fold[np.unique(decisions.patient, return_index=True)[1]]
    apart = (fold[None] != np.arange(fold.max() + 1)[:, None]) * 1.0
    drawn = draw_counts(paths.patients, config.draws, key=key)
    once = np.ones((1, paths.patients))
    return Records(
        decisions=decisions,
        behavior=behavior,
        paths=paths,
        chance=np.maximum(recorded, config.floor),
        lessons=lessons,
        draws=count_patients(lessons, drawn, config.ridge),
        folds=count_patients(lessons, apart, config.ridge),
        own=count_patients(lessons, once, config.ridge),
        config=config,
    )


def estimate_off_policy(
    policy: Policy,
    records: Records,
    *,
    how: How = "sampled",
    model: Dynamics | None = None,
    key: PRNGKeyArray,
) -> Estimates:
    """Judge a policy from records; `how` says whether its levels are drawn or its mode is taken.

    The model must not have been fitted to these patients; the key is for its throws.
    """
    data, config = records.decisions, records.config
    now, later = (policy_chances(policy, s, how) for s in (data.state, data.next_state))
    chances = Chances(
        policy=now[np.arange(len(now)), data.level - LOWEST],
        team=records.chance,
        held=records.lessons.weight,
        goes_on=records.behavior.goes_on,
    )
    weight = path_weights(records.paths, chances.ratio, chances.goes_on)
    reward = records.rewards
    overlap = measure_overlap(records.paths, weight, _unsupported(now, records))
    fqe, ahead = _fitted_q(records, now, later)
    blend = own = None
    if model is not None:
        imagined = imagine_values(policy, model, data, config.hours, how=how, key=key)
        blend, own = _magic(records, weight, imagined)
    robust = _estimate(_corrected(records, weight, ahead), records)
    return Estimates(
        wis=_estimate(wis(records.paths, weight, reward), records),
        fqe=fqe,
        wdr=robust,
        joint=join(fqe, robust),
        magic=blend,
        model=own,
        overlap=overlap,
        bounds=tuple(_bounds(records, chances, reward, gamma) for gamma in config.gammas),
        word=verdict(overlap, config.limits),
    )


def estimate_recorded(records: Records) -> Estimate:
    """What the clinicians reached: the mean reward of every hour, over the hours recorded."""
    ones = np.ones(len(records.chance))
    weight = path_weights(records.paths, ones, records.behavior.goes_on)
    return _estimate(wis(records.paths, weight, records.rewards), records)


def _require_known(level: Int[np.ndarray, " n"]) -> None:
    """Refuse levels that no policy can choose; counted from P2 they would pass for others."""
    if odd := sorted(set(level.tolist()) - set(LEVELS)):
        raise ValueError(
            f"expected decisions for P{LEVELS[0]} to P{LEVELS[-1]}, got P{odd[0]}. Policies choose "
            "among these eight: leave out hours at other levels."
        )


def _require_chances(recorded: np.ndarray, behavior: Behavior, decisions: Decisions) -> None:
    """Refuse a behavior policy that calls impossible what was recorded."""
    used = decisions.held
    for name, chance in (("level", recorded), ("held", behavior.held)):
        if not (chance[used] > 0).all():
            raise ValueError(
                f"expected chances above 0 for all that was recorded ({name}), got 0 at "
                f"{int((~(chance[used] > 0)).sum())} decisions. A behavior policy that excludes "
                "recorded decisions is wrong: fit it on more patients or mix it with frequencies."
            )


def policy_chances(
    policy: Policy, states: Float[np.ndarray, "n steps columns"], how: How = "sampled"
) -> Float[np.ndarray, "n 8"]:
    """The chances of the eight levels at every state; by mode, 1 for the most probable."""

    def chances(states):
        return jax.vmap(policy)(states)

    logs = in_groups(chances, (states,), size=batch_size(len(states)))
    if logs.shape[1:] != (len(LEVELS),):
        raise ValueError(
            f"expected log-probabilities of the {len(LEVELS)} levels P{LEVELS[0]} to "
            f"P{LEVELS[-1]}, got {logs.shape[1:]}. Policies of other actions cannot be judged here."
        )
    if not np.isfinite(logs).all():
        raise ValueError(
            "expected finite log-probabilities of the levels, got others. "
            "Does the policy know all signals of these patients?"
        )
    if how == "mode":
        return (np.arange(len(LEVELS))[None] == logs.argmax(1)[:, None]) * 1.0
    return np.exp(logs.astype(float))


def _unsupported(now: np.ndarray, records: Records) -> float:
    rare = np.exp(records.behavior.level) < records.config.rare
    return float((now * rare)[records.decisions.start].sum(1).mean())


def _fitted_q(records: Records, now: np.ndarray, later: np.ndarray) -> tuple[Estimate, Ahead]:
    """FQE, refitted for every draw of patients, and its cross-fitted values at every row."""
    lessons, hours = records.lessons, records.config.hours
    course, expected = follow_policy(lessons, records.decisions, now, later)
    value, draws = (
        fqe_values(lessons, course, counted, hours) for counted in (records.own, records.draws)
    )
    apart = fit_q(lessons, course, records.folds, hours)
    ahead = cross_fitted(apart, lessons, expected, records.behavior.fold, records.decisions)
    return make_estimate(float(value[0]), draws), ahead


def join(one: Estimate, other: Estimate) -> Estimate:
    """The mean of two estimates of one thing, with all that either of their intervals holds.

    FQE errs where its features do not tell patients apart, WDR where few followed the policy.
    """
    return Estimate(
        value=(one.value + other.value) / 2,
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        draws=(one.draws + other.draws) / 2,
    )


def _corrected(records: Records, weight: PerHour, ahead: Ahead) -> Ratios:
    """A model's value of the starts and its weighted errors, hour by hour."""
    rows, hours = records.paths.row, weight.shape[1]
    left = np.arange(hours)[::-1][None]  # hours to go after each hour
    error = records.decisions.reward[rows] + ahead.later[left, rows] - ahead.decision[left, rows]
    error = np.where(records.paths.gone, 0.0, error)
    return wdr(records.paths, weight, ahead.now[-1][rows[:, 0]], error)


def _magic(records: Records, weight: PerHour, imagined: Ahead) -> tuple[Estimate, Estimate]:
    """The blend of the model with its corrections, and the model alone."""
    corrected = _corrected(records, weight, imagined)
    draws, value, _ = magic(corrected, records.draws.counts)
    alone = Ratios(corrected.above[:, :1], corrected.below[:, :1])
    return make_estimate(value, draws), _estimate(alone, records)


def _bounds(records: Records, chances: Chances, reward: PerHour, gamma: float) -> Bounds:
    weights = weight_range(records.paths, chances, gamma)
    return confounding_bounds(records.paths, weights, reward, gamma, records.draws.counts)


def _estimate(ratios: Ratios, records: Records) -> Estimate:
    value = ratios.values(records.own.counts)[0]
    return make_estimate(float(value), ratios.values(records.draws.counts))


def make_estimate(value: float, draws: Float[np.ndarray, " draws"]) -> Estimate:
    """A value with the middle of its draws; without a limit where a draw followed nobody."""
    return Estimate(value, *interval(draws), draws)


# ── the model in MAGIC ───────────────────────────────────────────────────────────────────────────


def imagine_values(
    policy: Policy,
    dynamics: Dynamics,
    decisions: Decisions,
    hours: int = HORIZON,
    *,
    how: How,
    key: PRNGKeyArray,
) -> Ahead:
    """Values of states, recorded decisions and next states by one throw of the dynamics each.

    From each recorded hour the policy is played in the dynamics, and once more with the recorded
    level in the first hour. One throw is enough: its noise is independent from row to row and small
    beside the differences between patients.
    """
    k_now, k_decision, k_end = jr.split(key, 3)
    player = _Player(policy, dynamics, hours, how)
    free = np.full(len(decisions.level), -1, np.int32)
    now = _play_all(player, decisions.state, free, key=k_now)
    decision = _play_all(player, decisions.state, decisions.level, key=k_decision)
    ends = np.flatnonzero(~decisions.follows)
    later = np.zeros_like(now)
    later[:, :-1] = now[:, 1:]
    later[:, ends] = _play_all(player, decisions.next_state[ends], free[ends], key=k_end)
    shifted = np.concatenate([np.zeros((1, later.shape[1])), later[:-1]])
    gone = -PAPER.reward_clip * np.arange(hours)[:, None]
    return Ahead(decision, now, np.where(decisions.dead[None], gone, shifted))


class _Player(eqx.Module):
    """A policy in a model for so many hours."""

    policy: Policy
    dynamics: Dynamics
    hours: int = eqx.field(static=True)
    how: How = eqx.field(static=True)


def _play_all(player: _Player, states: np.ndarray, first: np.ndarray, *, key) -> np.ndarray:
    """Sums of the rewards of 1, 2, ... hours from every row.

    `first` is the level of the first hour, or −1 where the policy chooses.
    """
    return in_groups(_play, (states, first), player, size=BLOCK, key=key).T.astype(float, order="C")


def _play(states, first, player: _Player, key) -> Float[Array, "n hours"]:
    def hour(states, now):
        number, key = now
        k_level, k_hour = jr.split(key)
        weights = jax.vmap(player.policy)(states)
        certain = player.how == "mode"
        drawn = jnp.argmax(weights, 1) if certain else jr.categorical(k_level, weights)
        level = jnp.where((number == 0) & (first > 0), first, drawn + LOWEST).astype(jnp.int32)
        later = step_rows(player.dynamics, states, level, key=k_hour)
        return later, jax.vmap(normalized_reward)(later)

    keys = jr.split(key, player.hours)
    _, rewards = jax.lax.scan(hour, states, (jnp.arange(player.hours), keys))
    return jnp.cumsum(rewards, axis=0).T
