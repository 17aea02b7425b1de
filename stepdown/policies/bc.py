"""Behavior cloning: how likely each level is where clinicians have decided.

Cross-entropy of the recorded level, fitted to train patients; the epoch that tells select
patients' levels best is kept, so the probabilities are calibrated to patients that were not
fitted. Beside being a baseline, it is the behavior policy that SVR needs.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key, PRNGKeyArray

from stepdown.handover import Policy, Transitions
from stepdown.policies.constraint import Constrained
from stepdown.policies.learning import (
    ALONE,
    Info,
    Shrink,
    Task,
    Watch,
    check_pair,
    fold_seeds,
    split_seeds,
)
from stepdown.policies.networks import (
    LearnedPolicy,
    feature_count,
    features,
    level_index,
    make_network,
)
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.problem.scaling import Scaler
from stepdown.signals import LEVELS
from stepdown.training import FitConfig, fit, stack


@dataclass(frozen=True)
class BCConfig:
    """Cloning; widths are those of the other policies, the paper names nothing."""

    widths: tuple[int, ...] = (256, 256)
    constrained: bool = False  # to the allowed levels (constraint.py), once it has learned
    clinical: ClinicalConfig = PAPER
    fit: FitConfig = FitConfig(epochs=100, batch=256, learning_rate=3e-4, patience=10)

    def __post_init__(self):
        if min(self.widths, default=0) < 1:
            raise ValueError(f"widths: expected at least one width above 0, got {self.widths}.")

    def shrunk(self, size: Shrink) -> "BCConfig":
        """The same for a quick look."""
        return replace(self, widths=size.widths, fit=replace(self.fit, epochs=size.epochs))


def clone(
    task: Task, config: BCConfig, *, keys: Key[Array, " seeds"], watch: Watch
) -> tuple[Policy, Info]:
    """The method of the table (methods.py); it takes a minute, so a stopped one begins again."""
    policies, info = train_bc(task.hours, task.select, config, key=keys, watch=watch)
    curves = {name: info[name] for name in ("loss", "held_out")}
    if not config.constrained:
        return policies, curves
    return jax.vmap(lambda policy: Constrained(policy, config.clinical))(policies), curves


def like_nobody(base: object) -> BCConfig:
    """Cloning has its own numbers, whatever those of the other methods are."""
    return BCConfig()


def train_bc(
    hours: Transitions,
    select: Transitions,
    config: BCConfig = BCConfig(),  # noqa: B008 (frozen)
    *,
    key: Key[Array, "*seeds"],
    watch: Watch = ALONE,
) -> tuple[LearnedPolicy, Info]:
    """Clone the recorded decisions; `info` holds the cross-entropies per epoch, in nats.

    A key with an axis clones once per key, side by side.
    """
    k_start, k_fit = split_seeds(key if key.ndim else key[None])
    scaler = check_pair(hours, select)
    sizes = (feature_count(scaler, hours.state.shape[1]), *config.widths, len(LEVELS))
    networks = stack([make_network(sizes, last=0.1, key=k) for k in k_start])
    rows = decision_rows(hours, scaler), decision_rows(select, scaler)
    best, info = fit(
        networks,
        _loss,
        rows,
        config.fit,
        key=fold_seeds(k_fit, 0),
        watch=lambda share: watch.check(),
    )
    policies = jax.vmap(lambda network: LearnedPolicy(scaler, network))(best)
    if key.ndim:
        return policies, info
    return jax.tree.map(lambda x: x[0], policies), {name: x[..., 0] for name, x in info.items()}


@eqx.filter_jit
def decision_rows(hours: Transitions, scaler: Scaler):
    """What the network sees of every hour, and the index of the level that was set."""
    return jax.vmap(lambda state: features(scaler, state))(hours.state), level_index(hours.level)


def _loss(network, row, *, key: PRNGKeyArray) -> Float[Array, ""]:
    return -jax.nn.log_softmax(network(row[0]))[row[1]]
