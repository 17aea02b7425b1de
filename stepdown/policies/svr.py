"""Supported value regularization: values outside the clinicians' support are pushed to the worst.

Reading (Mao et al., 2023). Their operator leaves the Bellman backup as it is where the behavior
policy has support, and gives every other level the least return possible, Q_min = r_min / (1 -
discount). They reach the second part with an importance weight, E_u[(Q - Q_min)²] minus
E_beta[u / beta (Q - Q_min)²], because their actions are continuous and the support cannot be
summed over. With eight levels it can: the mean of (Q - Q_min)² over the levels whose estimated
probability lies below a threshold is the same quantity without its variance. u is uniform, so no
level is left to chance. beta is estimated by behavior cloning, r_min is the least recorded reward.

All else is the actor-critic of the other methods (sac.py) on recorded rows alone, so a difference
in a table is a difference in the idea.
"""

from dataclasses import dataclass, field, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from stepdown.handover import Policy, Transitions
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.learning import (
    ALONE,
    Info,
    Shrink,
    Task,
    Watch,
    check_pace,
    check_pair,
    run_loop,
    split_seeds,
)
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.policies.networks import LearnedPolicy, Network, feature_count
from stepdown.policies.recorded import Setting, make_pace
from stepdown.policies.rows import View, make_shaping, recorded_rows
from stepdown.policies.sac import Batch, SACConfig, make_rates, unpack
from stepdown.problem.clinical import PAPER, ClinicalConfig


@dataclass(frozen=True)
class SVRConfig:
    """One training; beside the two of SVR, numbers are those of ModelBasedConfig."""

    updates: int = 30_000
    report_every: int = 1000  # updates; one epoch
    batch: int = 256
    widths: tuple[int, ...] = (256, 256)
    support: float = 0.01  # levels that are less probable lie outside
    weight: float = 1.0  # of the regularization
    jump_weight: float = 0.0  # lambda 1 of the shaped reward
    weaning_weight: float = 0.0  # lambda 2
    constrained: bool = False  # to the allowed levels (constraint.py)
    clinical: ClinicalConfig = PAPER
    sac: SACConfig = SACConfig()
    behavior: BCConfig = field(default_factory=BCConfig)

    def __post_init__(self):
        check_pace(self, "report_every")
        if not 0 <= self.support < 1 or not self.weight >= 0:
            raise ValueError(
                "expected a support below 1 and a weight of at least 0, got "
                f"{self.support:g} and {self.weight:g}."
            )

    def shrunk(self, size: Shrink) -> "SVRConfig":
        """The same for a quick look."""
        return replace(
            self,
            updates=size.updates,
            report_every=size.rollout_every,
            batch=size.batch,
            widths=size.widths,
            behavior=self.behavior.shrunk(size),
        )


class SupportTerm(eqx.Module):
    """The regularization, as `sac.update` takes it."""

    own: Network  # of the behavior: log-weights of the levels; leads with the seeds, if any
    threshold: Float[Array, ""]  # of the behavior's probability
    worst: Float[Array, ""]  # Q_min
    weight: Float[Array, ""]

    def __call__(self, critics: Float[Array, "2 n 8"], batch: Batch) -> Float[Array, ""]:
        """Weight times the mean of (Q - Q_min)² outside the support, summed over the critics."""
        likely = jax.nn.softmax(jax.vmap(self.own)(batch.now))
        outside = (likely < self.threshold)[None]
        cost = jnp.where(outside, (critics - self.worst) ** 2, 0.0)
        return 0.5 * self.weight * jnp.mean(jnp.sum(jnp.mean(cost, axis=-1), axis=0))


def learn_supported(
    task: Task, config: SVRConfig, *, keys: Key[Array, " seeds"], watch: Watch
) -> tuple[Policy, Info]:
    """The method of the table (methods.py); it learns from recorded hours alone."""
    return train_svr(task.hours, task.select, config, key=keys, watch=watch)


def like_others(base: ModelBasedConfig) -> SVRConfig:
    """The numbers that SVR shares with the other methods."""
    return SVRConfig(
        updates=base.updates,
        report_every=base.rollout_every,
        batch=base.batch,
        widths=base.widths,
        jump_weight=base.jump_weight,
        weaning_weight=base.weaning_weight,
        constrained=base.constrained,
        clinical=base.clinical,
        sac=base.sac,
    )


def train_svr(
    hours: Transitions,
    select: Transitions,
    config: SVRConfig = SVRConfig(),  # noqa: B008 (frozen)
    *,
    key: Key[Array, "*seeds"],
    watch: Watch = ALONE,
) -> tuple[Policy, Info]:
    """Clone the behavior, then train a policy (or one per key); `info` holds a row per epoch."""

    def make_loop(key: Key[Array, "*seeds"]) -> tuple[Setting, Key[Array, "*seeds"]]:
        k_behavior, k_train = split_seeds(key)
        behavior, _ = train_bc(hours, select, config.behavior, key=k_behavior)
        return prepare(hours, select, behavior, config), k_train

    return run_loop(make_loop, key=key, watch=watch)


def prepare(
    hours: Transitions, select: Transitions, behavior: LearnedPolicy, config: SVRConfig
) -> Setting:
    """Check the records and lay them out for the device."""
    scaler = check_pair(hours, select)
    inputs = feature_count(scaler, hours.state.shape[1])
    known = behavior.scaler.present, behavior.network.weights[0].shape[-2]
    if known != (scaler.present, inputs):
        raise ValueError(
            "expected a behavior policy of the same signals and samples, got another. "
            "Clone the same records."
        )
    shaping = make_shaping(config.jump_weight, config.weaning_weight)
    view = View(scaler, shaping, config.constrained, config.clinical)
    recorded = recorded_rows(hours, view)
    worst = jnp.min(unpack(recorded).reward) / (1.0 - config.sac.discount)
    numbers = (jnp.asarray(x, jnp.float32) for x in (config.support, worst, config.weight))
    term = SupportTerm(behavior.network, *numbers)
    rates = make_rates(config.sac, clinical=config.clinical)
    return Setting(recorded, term, view, rates, inputs, make_pace(config))
