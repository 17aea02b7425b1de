"""A network that has learned what a planner would do: planning ahead of time.

A planner (planner.py) decides in every recorded hour of the train patients, and the network is
fitted to its choices as cloning is to the clinicians' (bc.py). It answers in microseconds, is
exported like any learned policy, and holds no model of the patients. What the planner knows about
states that nobody recorded is lost.
"""

from dataclasses import dataclass, field, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from stepdown.handover import Policy, Transitions
from stepdown.policies.bc import BCConfig, clone
from stepdown.policies.learning import Info, Shrink, Task, Watch
from stepdown.policies.planner import Planner, PlannerConfig, make_planner
from stepdown.signals import LOWEST

SIDE_BY_SIDE = 64  # hours decided in one call


@dataclass(frozen=True)
class DistilledConfig:
    """How is planned, and how the plans are learned."""

    planner: PlannerConfig = field(default_factory=PlannerConfig)
    cloning: BCConfig = field(default_factory=BCConfig)
    constrained: bool = False  # to the allowed levels (constraint.py), once it has learned

    def shrunk(self, size: Shrink) -> "DistilledConfig":
        """The same for a quick look."""
        return replace(self, planner=self.planner.shrunk(size), cloning=self.cloning.shrunk(size))


def like_a_planner(base: object) -> DistilledConfig:
    """Planning has its own numbers, whatever those of the learners are."""
    return DistilledConfig()


def distil(
    task: Task, config: DistilledConfig, *, keys: Key[Array, " seeds"], watch: Watch
) -> tuple[Policy, Info]:
    """The method of the table (methods.py); all seeds learn from one planner."""
    planner = make_planner(task, config.planner, keys[0])
    taught = replace(task, hours=decided(planner, task.hours), select=decided(planner, task.select))
    cloning = replace(config.cloning, constrained=config.constrained)
    return clone(taught, cloning, keys=keys, watch=watch)


def decided(planner: Planner, hours: Transitions) -> Transitions:
    """The same hours with the levels that the planner would set."""
    return replace(hours, level=_choices(planner, hours.state))


@eqx.filter_jit
def _choices(planner: Planner, states) -> Int[Array, " n"]:
    def one(state):
        return jnp.argmax(planner(state)).astype(jnp.int32) + LOWEST

    return jax.lax.map(one, states, batch_size=min(SIDE_BY_SIDE, len(states)))
