"""Conservative Q-learning: values of levels that nobody chose are pushed below those chosen.

Reading (Kumar et al., 2020, the form with entropy, for discrete actions). To each critic's squared
error the weight times log sum exp of its values over the levels is added, minus its value of the
recorded level. The first part presses on whatever level looks best, the second holds up what
clinicians did; where both meet, a level that is chosen more often than its value alone would have
it is worth a little more, one that is chosen less often is worth less, and one that nobody ever
chose has no floor. Nothing is estimated: no model, no clone, no density.

All else is the actor-critic of the other methods (sac.py) on recorded rows alone, so a difference
in a table is a difference in the idea.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from stepdown.handover import Policy, Transitions
from stepdown.policies.constraint import NEVER
from stepdown.policies.learning import (
    Info,
    Shrink,
    Task,
    Watch,
    check_pace,
    check_pair,
    run_loop,
)
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.policies.networks import feature_count
from stepdown.policies.recorded import Setting, make_pace
from stepdown.policies.rows import View, make_shaping, recorded_rows
from stepdown.policies.sac import ACTIONS, Batch, SACConfig, make_rates
from stepdown.problem.clinical import PAPER, ClinicalConfig


@dataclass(frozen=True)
class CQLConfig:
    """One training; beside the weight, numbers are those of ModelBasedConfig."""

    updates: int = 30_000
    report_every: int = 1000  # updates; one epoch
    batch: int = 256
    widths: tuple[int, ...] = (256, 256)
    weight: float = 1.0  # alpha, of the conservative term
    jump_weight: float = 0.0  # lambda 1 of the shaped reward
    weaning_weight: float = 0.0  # lambda 2
    constrained: bool = False  # to the allowed levels (constraint.py)
    clinical: ClinicalConfig = PAPER
    sac: SACConfig = SACConfig()

    def __post_init__(self):
        check_pace(self, "report_every")
        if not self.weight >= 0:
            raise ValueError(f"weight: expected at least 0, got {self.weight:g}.")

    def shrunk(self, size: Shrink) -> "CQLConfig":
        """The same for a quick look."""
        return replace(
            self,
            updates=size.updates,
            report_every=size.rollout_every,
            batch=size.batch,
            widths=size.widths,
        )


class ConservativeTerm(eqx.Module):
    """The regularization, as `sac.update` takes it."""

    weight: Float[Array, ""]
    own: None = None  # nothing belongs to a seed

    def __call__(self, critics: Float[Array, "2 n 8"], batch: Batch) -> Float[Array, ""]:
        """Weight times the mean of log sum exp Q minus Q of the recorded level, over the critics.

        A recorded level counts among the levels even where a constraint would forbid it now.
        """
        taken = jax.nn.one_hot(batch.choice, ACTIONS)
        counted = jnp.where(batch.allowed | (taken > 0), critics, NEVER)
        above = jax.nn.logsumexp(counted, axis=-1) - jnp.sum(critics * taken[None], axis=-1)
        return self.weight * jnp.mean(jnp.sum(above, axis=0))


def learn_conservative(
    task: Task, config: CQLConfig, *, keys: Key[Array, " seeds"], watch: Watch
) -> tuple[Policy, Info]:
    """The method of the table (methods.py); it learns from recorded hours alone."""
    setting = prepare(task.hours, task.select, config)
    return run_loop(lambda key: (setting, key), key=keys, watch=watch)


def like_everybody(base: ModelBasedConfig) -> CQLConfig:
    """The numbers that CQL shares with the other methods."""
    return CQLConfig(
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


def prepare(hours: Transitions, select: Transitions, config: CQLConfig) -> Setting:
    """Check the records and lay them out for the device."""
    scaler = check_pair(hours, select)
    shaping = make_shaping(config.jump_weight, config.weaning_weight)
    view = View(scaler, shaping, config.constrained, config.clinical)
    return Setting(
        recorded=recorded_rows(hours, view),
        term=ConservativeTerm(jnp.asarray(config.weight, jnp.float32)),
        view=view,
        rates=make_rates(config.sac, clinical=config.clinical),
        inputs=feature_count(scaler, hours.state.shape[1]),
        pace=make_pace(config),
    )
