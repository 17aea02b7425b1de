"""Soft actor-critic for eight levels: exact expectations, two critics, a learned temperature.

One step is one loss and one gradient: the critics move to the soft Bellman target, the actor to the
levels that the critics value, the temperature to the wanted entropy, all from the networks before
the step. Both critics are trained, the smaller value counts. Six hours end by truncation, so every
row bootstraps, but for those that end a life: what follows is worth the minimum for every hour to
come, so that dying early never pays. Actor and critics have one shape and are kept as one network
with three members, which makes few and large operations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stepdown.policies.constraint import masked
from stepdown.policies.networks import Network, make_network
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.signals import LEVELS

ACTIONS = len(LEVELS)
EXTRAS = 5  # columns of a packed row beside the features of both states


@dataclass(frozen=True)
class SACConfig:
    """Numbers of the update; another value needs no new program."""

    discount: float = 0.9  # the paper has 0.99, which costs reward over six hours
    learning_rate: float = 3e-4  # of actor, critics and temperature
    target_rate: float = 0.005  # of the target networks
    entropy_share: float = 0.1  # target entropy as a share of log 8
    temperature: float = 0.1  # at first

    def __post_init__(self):
        shares = (self.discount, self.target_rate, self.entropy_share)
        if not all(0 <= share <= 1 for share in shares) or self.discount == 1:
            raise ValueError(
                "expected a discount below 1, a target rate and an entropy share of 0 to 1, got "
                f"{self.discount:g}, {self.target_rate:g} and {self.entropy_share:g}."
            )
        if not (self.learning_rate > 0 and self.temperature > 0):
            raise ValueError(
                "expected a learning rate and a temperature above 0, got "
                f"{self.learning_rate:g} and {self.temperature:g}."
            )


class Rates(eqx.Module):
    """The numbers of the update as arrays, so that a sweep compiles once."""

    discount: Float[Array, ""]
    death: Float[Array, ""]  # value of a state that nobody lives in
    learning_rate: Float[Array, ""]
    target_rate: Float[Array, ""]
    target_entropy: Float[Array, ""]  # nats
    temperature: Float[Array, ""]  # at first
    temperature_rate: Float[Array, ""]  # learning rate of the temperature; 0 keeps it


def make_rates(
    config: SACConfig, fixed_temperature: bool = False, clinical: ClinicalConfig = PAPER
) -> Rates:
    """The numbers of a config as arrays."""
    numbers = {
        "discount": config.discount,
        "death": -clinical.reward_clip / (1.0 - config.discount),
        "learning_rate": config.learning_rate,
        "target_rate": config.target_rate,
        "target_entropy": config.entropy_share * np.log(ACTIONS),
        "temperature": config.temperature,
        "temperature_rate": 0.0 if fixed_temperature else config.learning_rate,
    }
    # With a type of their own: a weak type would turn strong on the way and compile all again.
    return Rates(**{name: jnp.asarray(value, jnp.float32) for name, value in numbers.items()})


class Batch(eqx.Module):
    """Decisions as the update reads them; states as features (networks.py)."""

    now: Float[Array, "n inputs"]
    later: Float[Array, "n inputs"]
    choice: Int[Array, " n"]  # index of the level
    reward: Float[Array, " n"]
    allowed: Bool[Array, "n 8"]  # levels that may be chosen now
    allowed_later: Bool[Array, "n 8"]
    died: Bool[Array, " n"]  # nobody lives on in the later state


def pack(batch: Batch) -> Float[Array, "n columns"]:
    """Decisions as rows of numbers, so that drawing some of them is one gather."""
    powers = jnp.asarray(2 ** np.arange(ACTIONS), jnp.float32)
    extras = [
        batch.choice.astype(jnp.float32),
        batch.reward,
        batch.allowed @ powers,
        batch.allowed_later @ powers,
        batch.died.astype(jnp.float32),
    ]
    return jnp.concatenate([batch.now, batch.later, jnp.stack(extras, axis=1)], axis=1)


def unpack(rows: Float[Array, "n columns"]) -> Batch:
    """Decisions back from rows."""
    inputs = (rows.shape[1] - EXTRAS) // 2
    choice, reward, allowed, allowed_later, died = rows[:, 2 * inputs :].T

    def bits(number):
        return (number.astype(int)[:, None] >> np.arange(ACTIONS)[None]) % 2 == 1

    return Batch(
        now=rows[:, :inputs],
        later=rows[:, inputs : 2 * inputs],
        choice=choice.astype(int),
        reward=reward,
        allowed=bits(allowed),
        allowed_later=bits(allowed_later),
        died=died > 0,
    )


class Learner(eqx.Module):
    """Everything that an update changes."""

    networks: Network  # leaves (3, ...): the actor and two critics
    targets: Network  # leaves (2, ...): slow copies of the critics
    log_temperature: Float[Array, ""]
    memory: optax.OptState  # of Adam

    @property
    def actor(self) -> Network:
        """The network that weighs the levels."""
        return jax.tree.map(lambda x: x[0], self.networks)


def begin_learner(
    inputs: int, widths: tuple[int, ...], rates: Rates, *, key: PRNGKeyArray
) -> Learner:
    """Fresh networks; the first policy is nearly uniform, the targets equal the critics."""
    sizes = (inputs, *widths, ACTIONS)
    made = [make_network(sizes, last=0.1, key=k) for k in jr.split(key, 3)]
    networks = jax.tree.map(lambda *xs: jnp.stack(xs), *made)
    log_temperature = jnp.log(rates.temperature)
    memory = _ADAM.init((networks, log_temperature))
    return Learner(networks, jax.tree.map(lambda x: x[1:], networks), log_temperature, memory)


_ADAM = optax.scale_by_adam()

CriticTerm = Callable[[Float[Array, "2 n 8"], Batch], Float[Array, ""]]


def update(
    learner: Learner, batch: Batch, rates: Rates, critic_term: CriticTerm | None = None
) -> tuple[Learner, dict[str, Array]]:
    """One step on a batch; `critic_term` adds a cost on the critics' values (2, n, 8)."""
    temperature = jnp.exp(learner.log_temperature)
    goal = _bellman_target(learner, batch, rates, temperature)
    taken = jax.nn.one_hot(batch.choice, ACTIONS)

    def loss(trained):
        networks, log_temperature = trained
        actor, first, second = _outputs(networks, batch.now)
        critics = jnp.stack([first, second])
        error = jnp.sum(critics * taken[None], axis=-1) - goal[None]
        critic_loss = 0.5 * jnp.mean(jnp.sum(error**2, axis=0))
        log_policy = jax.vmap(masked)(actor, batch.allowed)
        policy = jnp.exp(log_policy)
        values = jax.lax.stop_gradient(jnp.minimum(first, second))
        actor_loss = jnp.mean(jnp.sum(policy * (temperature * log_policy - values), axis=1))
        entropy = -jnp.mean(jnp.sum(policy * log_policy, axis=1))
        surplus = jax.lax.stop_gradient(entropy) - rates.target_entropy
        extra = 0.0 if critic_term is None else critic_term(critics, batch)
        total = critic_loss + actor_loss + log_temperature * surplus + extra
        value = jnp.mean(jnp.sum(jax.lax.stop_gradient(policy) * values, axis=1))
        info = {"critic_loss": critic_loss, "entropy": entropy, "value": value}
        return total, info | {"temperature": temperature}

    trained = (learner.networks, learner.log_temperature)
    gradient, info = jax.grad(loss, has_aux=True)(trained)
    moves: Any
    moves, memory = _ADAM.update(gradient, learner.memory)
    networks = jax.tree.map(
        lambda x, move: x - rates.learning_rate * move, learner.networks, moves[0]
    )
    targets = jax.tree.map(
        lambda slow, fast: slow + rates.target_rate * (fast[1:] - slow), learner.targets, networks
    )
    log_temperature = learner.log_temperature - rates.temperature_rate * moves[1]
    return Learner(networks, targets, log_temperature, memory), info


def _bellman_target(learner: Learner, batch: Batch, rates: Rates, temperature):
    """Reward and the discounted soft value of the next state, by the smaller target critic.

    After a death that value is the minimum's, whatever a critic thinks.
    """
    slow = jax.tree.map(
        lambda fast, slow: jnp.concatenate([fast[:1], slow]), learner.networks, learner.targets
    )
    actor, first, second = _outputs(slow, batch.later)
    log_policy = jax.vmap(masked)(actor, batch.allowed_later)
    soft = jnp.minimum(first, second) - temperature * log_policy
    ahead = jnp.where(batch.died, rates.death, jnp.sum(jnp.exp(log_policy) * soft, axis=1))
    return batch.reward + rates.discount * ahead


def _outputs(networks: Network, rows: Float[Array, "n inputs"]) -> tuple[Array, Array, Array]:
    """Each network on all rows: one batched product on a GPU, separate ones on a CPU."""
    if jax.default_backend() == "cpu":
        one, two, three = (jax.tree.map(lambda x, i=i: x[i], networks) for i in range(3))
        return jax.vmap(one)(rows), jax.vmap(two)(rows), jax.vmap(three)(rows)
    out = jax.vmap(lambda network: jax.vmap(network)(rows))(networks)
    return out[0], out[1], out[2]
