"""Planning at decision time: try levels in a model for a few hours, take the best one.

At each decision every plan is played in the same dynamics, with the same luck for each: a level
within reach held for some hours, or such a level for an hour and then another. What a plan gains
over holding the present level is averaged over draws. Where the dynamics hold several models of
the same records (refits, members of an ensemble), a plan is judged by each of them, and its mean
gain is lowered by the spread among them: what the records cannot tell earns nothing. A change must
earn a margin. A guardian may charge levels or close them, and so may clinicians: a level that they
would hardly ever choose is closed. Holding is always open.

Nothing is learned here. A planner is a policy like any other, and it can say why (`weigh`).
"""

from dataclasses import dataclass
from itertools import product
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stepdown.handover import Dynamics, Penalty, Policy
from stepdown.policies.constraint import NEVER, REACH, masked
from stepdown.policies.networks import level_in_force
from stepdown.problem.clinical import PAPER, ClinicalConfig, normalized_reward
from stepdown.signals import HIGHEST, LEVELS, LOWEST

TIE = 1e-4  # reward for each level of a change: equal gains go to the smaller one

Hour = Float[Array, "steps columns"]
ByLevel = Float[Array, " 8"]


@dataclass(frozen=True)
class PlannerConfig:
    """How far, how often and how carefully is planned."""

    hours: int = 3  # ahead
    draws: int = 16  # of each model
    reach: int = REACH  # levels in one decision
    changes: int = 1  # of the level in a plan: 1, or 2 an hour apart
    caution: float = 1.0  # sd over the models by which a gain is lowered
    margin: float = 0.0  # reward that a change must earn
    charge: float = 0.0  # reward for one unit of the penalty
    closed_from: float = np.inf  # penalty of a level from which on it is closed
    least: float = 0.0  # probability under the clinicians below which a level is closed

    def __post_init__(self):
        for name in ("hours", "draws", "reach"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}.")
        if self.changes not in (1, 2):
            raise ValueError(f"changes: expected 1 or 2 in a plan, got {self.changes}.")
        if min(self.caution, self.margin, self.charge) < 0 or not 0 <= self.least < 1:
            raise ValueError(
                "expected caution, margin and charge of at least 0 and a probability below 1, got "
                f"{self.caution}, {self.margin}, {self.charge} and {self.least}."
            )


class Weighed(eqx.Module):
    """Why a planner chooses as it does, by level from P2 on; NaN where a level was not tried."""

    gain: ByLevel  # reward over the hours planned, above holding, mean over the models
    spread: ByLevel  # sd of the gain over the models
    penalty: ByLevel  # what the guardian says
    open: Bool[Array, " 8"]
    score: ByLevel  # what the choice is made by


class Planner(eqx.Module):
    """Levels P2..P9 by what a model says would come of them."""

    dynamics: Dynamics
    luck: PRNGKeyArray  # the same for every plan and every decision
    penalty: Penalty | None = None
    clinicians: Policy | None = None
    config: PlannerConfig = eqx.field(static=True, default=PlannerConfig())
    clinical: ClinicalConfig = eqx.field(static=True, default=PAPER)

    def __call__(self, state: Hour, /) -> Float[Array, " 8"]:
        """All weight on the level with the best score."""
        best = jnp.argmax(self.weigh(state).score)
        return masked(jnp.zeros(len(LEVELS)), jnp.arange(len(LEVELS)) == best)

    def weigh(self, state: Hour) -> Weighed:
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
        penalty, allowed = self._guarded(state)
        levels = jnp.arange(LOWEST, HIGHEST + 1)
        held = levels == now
        charged = config.charge * (penalty - penalty[now - LOWEST])
        score = jnp.max(tried, axis=1) - charged - TIE * jnp.abs(levels - now)
        score = jnp.where(held, score, score - config.margin)
        allowed = reachable & (allowed | held)
        return Weighed(
            gain=jnp.where(reachable, gain[best], jnp.nan),
            spread=jnp.where(reachable, spread[best], jnp.nan),
            penalty=penalty,
            open=allowed,
            score=jnp.where(allowed, score, NEVER),
        )

    def values(self, state: Hour, plans: Int[Array, "plans hours"]) -> Float[Array, "models plans"]:
        """Reward over the hours of each plan by each model, mean over the same draws."""
        keys = jr.split(self.luck, (self.config.draws, self.config.hours))

        def value(model: Dynamics, plan, luck):
            def hour(now, x):
                later = model(now, x[0], key=x[1])
                return later, normalized_reward(later, self.clinical)

            return jnp.sum(jax.lax.scan(hour, state, (plan, luck))[1])

        def by_model(number):
            model = model_of(self.dynamics, number)
            each = jax.vmap(jax.vmap(lambda p, k: value(model, p, k), (None, 0)), (0, None))
            return each(plans, keys).mean(1)

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


def count_models(dynamics: Dynamics) -> int:
    """Of the same records, side by side in one; dynamics without members are one."""
    return dynamics.members if isinstance(dynamics, Several) else 1


def model_of(dynamics: Dynamics, number: Int[Array, ""]) -> Dynamics:
    """One of them."""
    return dynamics.member(number) if isinstance(dynamics, Several) else dynamics
