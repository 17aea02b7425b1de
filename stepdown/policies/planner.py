"""Planning at decision time: try levels in a model for a few hours, take the best one.

At each decision every plan is played in the same dynamics, with the same luck for each: a level
within reach held for some hours, or such a level for an hour and then another. What a plan gains
over holding the present level is averaged over draws. Where the dynamics hold several models of
the same records (refits, members of an ensemble), a plan is judged by each of them, and its mean
gain is lowered by the spread among them: what the records cannot tell earns nothing. A change must
earn a margin, and a lower level a charge besides: clinicians step down in patients who recover, for
reasons that the records hold only in part, so what follows a step down looks better than it is. A
guardian may charge levels or close them, and so may clinicians: a level that they
would hardly ever choose is closed. Holding is always open, so a planner whose guardian refuses all
else holds (`gated`).

Nothing is learned here. A planner is a policy like any other, and it can say why (`weigh`).
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from stepdown.guardian.threshold import Guardian, PValuePenalty
from stepdown.handover import Dynamics, Penalty, Policy, advance, hours_read
from stepdown.policies.constraint import NEVER, REACH, Constrained, masked
from stepdown.policies.learning import Info, Shrink, Task, Watch, check_dynamics, check_pair
from stepdown.policies.networks import level_in_force
from stepdown.problem.clinical import PAPER, ClinicalConfig, normalized_reward
from stepdown.signals import HIGHEST, LEVELS, LOWEST
from stepdown.training import stack

TIE = 1e-4  # reward for each level of a change: equal gains go to the smaller one
REFUSED = 0.05  # p-value of a decision, up to which `gated` refuses it
LOOKED_AT = 256  # select hours by which a planner tells what it expects

Hour = Float[Array, "steps columns"]
Past = Float[Array, "past columns"]  # the hours that the dynamics read
ByLevel = Float[Array, " 8"]


@dataclass(frozen=True)
class PlannerConfig:
    """How far, how often and how carefully is planned."""

    hours: int = 3  # ahead
    draws: int = 16  # of each model
    reach: int = REACH  # levels in one decision
    changes: int = 1  # of the level in a plan: 1, or 2 an hour apart
    caution: float = 0.5  # sd over the models by which a gain is lowered
    margin: float = 0.0  # reward that a change must earn
    lowering: float = 0.02  # reward that each level down must earn besides, in an hour planned
    charge: float = 0.0  # reward for one unit of the penalty
    closed_from: float = 1e9  # penalty of a level from which on it is closed
    least: float = 0.0  # probability under the clinicians below which a level is closed
    constrained: bool = False  # to the allowed levels (constraint.py)

    def __post_init__(self):
        for name in ("hours", "draws", "reach"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}.")
        if self.changes not in (1, 2):
            raise ValueError(f"changes: expected 1 or 2 in a plan, got {self.changes}.")
        weights = (self.caution, self.margin, self.lowering, self.charge)
        if min(weights) < 0 or not 0 <= self.least < 1:
            raise ValueError(
                "expected caution, margin, lowering and charge of at least 0 and a probability "
                f"below 1, got {', '.join(map(str, weights))} and {self.least}."
            )

    def shrunk(self, size: Shrink) -> "PlannerConfig":
        """The same for a quick look."""
        return replace(self, draws=min(self.draws, size.epochs))


class Weighed(eqx.Module):
    """Why a planner chooses as it does, by level from P2 on; NaN where a level was not tried."""

    gain: ByLevel  # reward over the hours planned, above holding, mean over the models
    spread: ByLevel  # sd of the gain over the models
    penalty: ByLevel  # what the guardian says
    open: Bool[Array, " 8"]
    score: ByLevel  # what the choice is made by

    @property
    def refused(self) -> Bool[Array, " 8"]:
        """Levels within reach that a guardian or the clinicians closed."""
        return jnp.isfinite(self.gain) & ~self.open


class Planner(eqx.Module):
    """Levels P2..P9 by what a model says would come of them."""

    dynamics: Dynamics
    luck: Int[Array, ""]  # a seed, the same for every plan and every decision
    penalty: Penalty | None = None
    clinicians: Policy | None = None
    config: PlannerConfig = eqx.field(static=True, default=PlannerConfig())
    clinical: ClinicalConfig = eqx.field(static=True, default=PAPER)

    @property
    def history(self) -> int:
        """Hours of a state that it reads: those of what it plans in."""
        return hours_read(self.dynamics)

    def __call__(self, state: Past, /) -> Float[Array, " 8"]:
        """All weight on the level with the best score."""
        best = jnp.argmax(self.weigh(state).score)
        return masked(jnp.zeros(len(LEVELS)), jnp.arange(len(LEVELS)) == best)

    def weigh(self, state: Past) -> Weighed:
        """All that the choice rests on."""
        now, config = level_in_force(state), self.config
        plans = jnp.clip(now + plan_offsets(config), LOWEST, HIGHEST)
        values = self.values(state, plans)  # (models, plans)
        gains = values - values[:, jnp.argmax(jnp.all(plan_offsets(config) == 0, axis=1))][:, None]
        gain, spread = gains.mean(0), gains.std(0)
        first = plans[:, 0] - LOWEST
        lowered = gain - config.caution * spread
        tried = jnp.where(jnp.arange(len(LEVELS))[:, None] == first[None], lowered[None], -jnp.inf)
        best = jnp.argmax(tried, axis=1)  # plan by level
        reachable = jnp.isfinite(jnp.max(tried, axis=1))
        penalty, allowed = self._guarded(state[-(len(state) // self.history) :])
        levels = jnp.arange(LOWEST, HIGHEST + 1)
        held = levels == now
        charged = config.charge * (penalty - penalty[now - LOWEST])
        score = jnp.max(tried, axis=1) - charged - TIE * jnp.abs(levels - now)
        score = score - config.lowering * config.hours * jnp.maximum(now - levels, 0)
        score = jnp.where(held, score, score - config.margin)
        allowed = reachable & (allowed | held)
        return Weighed(
            gain=jnp.where(reachable, gain[best], jnp.nan),
            spread=jnp.where(reachable, spread[best], jnp.nan),
            penalty=penalty,
            open=allowed,
            score=jnp.where(allowed, score, NEVER),
        )

    def values(self, state: Past, plans: Int[Array, "plans hours"]) -> Float[Array, "models plans"]:
        """Reward over the hours of each plan by each model, mean over the same draws."""
        keys = jr.split(jr.key(self.luck), (self.config.draws, self.config.hours))

        def by_model(number):
            walk = walk_in(model_of(self.dynamics, number))
            start = walk.read(state)

            def value(plan, luck):
                def hour(now, x):
                    later = walk.ahead(now, x[0], key=x[1])
                    return later, normalized_reward(walk.shown(later), self.clinical)

                return jnp.sum(jax.lax.scan(hour, start, (plan, luck))[1])

            return jax.vmap(jax.vmap(value, (None, 0)), (0, None))(plans, keys).mean(1)

        return jax.vmap(by_model)(jnp.arange(count_models(self.dynamics)))

    def _guarded(self, state: Hour) -> tuple[ByLevel, Bool[Array, " 8"]]:
        """What the guardian charges for each level, and which levels are not closed."""
        levels = jnp.arange(LOWEST, HIGHEST + 1)
        allowed = jnp.ones(len(LEVELS), bool)
        penalty = jnp.zeros(len(LEVELS))
        if (charge := self.penalty) is not None:
            penalty = jax.vmap(lambda level: charge(state, level))(levels)
            allowed &= penalty < self.config.closed_from
        if self.clinicians is not None:
            allowed &= jnp.exp(self.clinicians(state)) >= self.config.least
        return penalty, allowed


def gated(planner: Planner, guardian: Guardian, rate: float = REFUSED) -> Planner:
    """The same planner, which holds where the guardian refuses all else.

    A level is refused where at most the share `rate` of recorded decisions is as strange.
    """
    config = replace(planner.config, closed_from=-math.log(rate))
    return replace(planner, penalty=PValuePenalty(guardian), config=config)


def plan_offsets(config: PlannerConfig) -> Int[np.ndarray, "plans hours"]:
    """Plans as levels from the present one; holding is among them."""
    near = range(-config.reach, config.reach + 1)
    if config.changes == 1 or config.hours == 1:
        return np.array([[one] * config.hours for one in near])
    pairs = product(near, near)
    return np.array([[one, *[one + other] * (config.hours - 1)] for one, other in pairs])


@runtime_checkable
class Several(Dynamics, Protocol):
    """Dynamics that hold several models of the same records."""

    @property
    def members(self) -> int:
        """How many."""
        ...

    def member(self, number: Int[Array, ""], /) -> Dynamics:
        """One of them alone."""
        ...


@runtime_checkable
class Walk(Protocol):
    """Dynamics that look ahead hour by hour in coordinates of their own, which is faster."""

    def read(self, state: Past, /) -> Any:
        """The state in these coordinates."""
        ...

    def ahead(self, now: Any, level: Int[Array, ""], /, *, key: PRNGKeyArray) -> Any:
        """A possible state an hour later in them."""
        ...

    def shown(self, now: Any, /) -> Hour:
        """Its last hour in physical units."""
        ...


class _Plain(eqx.Module):
    """Any dynamics, hour by hour in physical units."""

    dynamics: Dynamics

    def read(self, state: Past, /) -> Past:
        return state

    def ahead(self, now: Past, level: Int[Array, ""], /, *, key: PRNGKeyArray) -> Past:
        return advance(now, self.dynamics(now, level, key=key))

    def shown(self, now: Past, /) -> Hour:
        return now[-(len(now) // hours_read(self.dynamics)) :]


def walk_in(dynamics: Dynamics) -> Walk:
    """The way to look several hours ahead."""
    return dynamics if isinstance(dynamics, Walk) else _Plain(dynamics)


def count_models(dynamics: Dynamics) -> int:
    """Of the same records, side by side in one; dynamics without members are one."""
    return dynamics.members if isinstance(dynamics, Several) else 1


def model_of(dynamics: Dynamics, number: Int[Array, ""]) -> Dynamics:
    """One of them."""
    return dynamics.member(number) if isinstance(dynamics, Several) else dynamics


# ── as methods of the table ──────────────────────────────────────────────────────────────────────


def like_no_learner(base: object) -> PlannerConfig:
    """Planning has its own numbers, whatever those of the learners are."""
    return PlannerConfig()


def plan(
    task: Task, config: PlannerConfig, *, keys: Key[Array, " seeds"], watch: Watch
) -> tuple[Policy, Info]:
    """The method of the table (methods.py): one planner for each key, with luck of its own.

    `info` holds the reward that each expects to gain over holding, mean over some select hours.
    """
    each = [make_planner(task, config, key) for key in keys]
    some = task.select.state[:: -(-len(task.select.state) // LOOKED_AT)]
    expected = np.array([_expects(one, some) for one in each])
    if config.constrained:
        return stack([Constrained(one) for one in each]), {"gain": expected[None]}
    return stack(each), {"gain": expected[None]}


def make_planner(task: Task, config: PlannerConfig, key: PRNGKeyArray) -> Planner:
    """A planner in the task's dynamics."""
    check_pair(task.hours, task.select, planned=True)
    assert task.dynamics is not None
    check_dynamics(task.dynamics, task.hours)
    return Planner(task.dynamics, jr.randint(key, (), 0, 2**31 - 1), config=config)


@eqx.filter_jit
def _expects(planner: Planner, states: Float[Array, "n steps columns"]) -> Float[Array, ""]:
    """What the chosen levels gain over holding."""

    def one(state):
        weighed = planner.weigh(state)
        return weighed.gain[jnp.argmax(weighed.score)]

    return jnp.mean(jax.lax.map(one, states))
