"""What a twin or an ensemble expects of a policy, at every recorded hour: the model in MAGIC.

From each recorded hour the policy is played in the dynamics, and once more with the recorded level
in the first hour. One throw each is enough: its noise is independent from row to row and small
beside the differences between patients.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.evaluation.decisions import Decisions
from stepdown.evaluation.fitted_q import Ahead
from stepdown.handover import Dynamics, Policy
from stepdown.policies.rows import step_rows
from stepdown.problem.clinical import PAPER, normalized_reward
from stepdown.signals import HORIZON, LOWEST

BLOCK = 4096  # rows at a time

Hours = Float[Array, "n steps 13"]


def imagine_values(
    policy: Policy,
    dynamics: Dynamics,
    decisions: Decisions,
    hours: int = HORIZON,
    *,
    mode: bool = False,
    key: PRNGKeyArray,
) -> Ahead:
    """Values of states, recorded decisions and next states by one throw of the dynamics each."""
    k_now, k_decision, k_end = jr.split(key, 3)
    free = np.full(len(decisions.level), -1, np.int32)
    now = _in_blocks(policy, dynamics, (decisions.state, free), (hours, mode), k_now)
    decision = _in_blocks(
        policy, dynamics, (decisions.state, decisions.level), (hours, mode), k_decision
    )
    ends = np.flatnonzero(~decisions.follows)
    tails = _in_blocks(
        policy, dynamics, (decisions.next_state[ends], free[ends]), (hours, mode), k_end
    )
    later = np.zeros_like(now)
    later[:, :-1] = now[:, 1:]
    later[:, ends] = tails
    shifted = np.concatenate([np.zeros((1, later.shape[1])), later[:-1]])
    gone = -PAPER.reward_clip * np.arange(hours)[:, None]
    return Ahead(decision, now, np.where(decisions.dead[None], gone, shifted))


def _in_blocks(policy: Policy, dynamics: Dynamics, rows, fixed, key) -> np.ndarray:
    """Sums of the rewards of 1, 2, ... hours from every row, in blocks of one size."""
    count = len(rows[1])
    found = []
    for number, first in enumerate(range(0, count, BLOCK)):
        index = np.minimum(np.arange(first, first + BLOCK), count - 1)
        block = tuple(x[index] for x in rows)
        sums = _play(policy, dynamics, block, fixed, jr.fold_in(key, number))
        found.append(np.asarray(sums)[:, : count - first])
    return np.concatenate(found, axis=1).astype(float)


@eqx.filter_jit
def _play(policy, dynamics, rows: tuple[Hours, Int[Array, " n"]], fixed, key):
    (states, first), (hours, mode) = rows, fixed

    def hour(states, now):
        number, key = now
        k_level, k_hour = jr.split(key)
        weights = jax.vmap(policy)(states)
        drawn = jnp.argmax(weights, 1) if mode else jr.categorical(k_level, weights)
        level = jnp.where((number == 0) & (first > 0), first, drawn + LOWEST).astype(jnp.int32)
        later = step_rows(dynamics, states, level, key=k_hour)
        return later, jax.vmap(normalized_reward)(later)

    _, rewards = jax.lax.scan(hour, states, (jnp.arange(hours), jr.split(key, hours)))
    return jnp.cumsum(rewards, axis=0)
