"""Behavior cloning: how likely each level is where clinicians have decided.

Cross-entropy of the recorded level, fitted to train patients; the epoch that tells select
patients' levels best is kept, so the probabilities are calibrated to patients that were not
fitted. Beside being a baseline, it is the behavior policy that SVR needs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from stepdown.handover import Transitions, require_role
from stepdown.policies.networks import (
    LearnedPolicy,
    feature_count,
    features,
    level_index,
    make_network,
)
from stepdown.policies.seeds import fold_seeds, split_seeds
from stepdown.policies.usable import check_hours
from stepdown.problem.scaling import Scaler, fit_scaler
from stepdown.signals import LEVELS, NAMES
from stepdown.training import FitConfig, fit, stack


@dataclass(frozen=True)
class BCConfig:
    """Cloning; widths are those of the other policies, the paper names nothing."""

    widths: tuple[int, ...] = (256, 256)
    fit: FitConfig = FitConfig(epochs=100, batch=256, learning_rate=3e-4, patience=10)

    def __post_init__(self):
        if min(self.widths, default=0) < 1:
            raise ValueError(f"widths: expected at least one width above 0, got {self.widths}.")


def train_bc(
    hours: Transitions,
    select: Transitions,
    config: BCConfig = BCConfig(),  # noqa: B008 (frozen)
    *,
    key: Key[Array, "*seeds"],
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[LearnedPolicy, dict[str, np.ndarray]]:
    """Clone the recorded decisions; `info` holds the cross-entropies per epoch, in nats.

    A key with an axis clones once per key, side by side.
    """
    k_start, k_fit = split_seeds(key if key.ndim else key[None])
    scaler = check_pair(hours, select)
    sizes = (feature_count(scaler, hours.state.shape[1]), *config.widths, len(LEVELS))
    networks = stack([make_network(sizes, last=0.1, key=k) for k in k_start])
    rows = decision_rows(hours, scaler), decision_rows(select, scaler)
    best, info = fit(networks, _loss, rows, config.fit, key=fold_seeds(k_fit, 0), watch=watch)
    policies = jax.vmap(lambda network: LearnedPolicy(scaler, network))(best)
    if key.ndim:
        return policies, info
    return jax.tree.map(lambda x: x[0], policies), {name: x[..., 0] for name, x in info.items()}


def check_pair(hours: Transitions, select: Transitions) -> Scaler:
    """The scale of the train patients, if select patients can be read with it."""
    check_hours(hours)
    require_role(select, "select")
    if len(select.level) == 0:
        raise ValueError("expected hours of select patients, got none. Bring more patients.")
    if select.state.shape[1] != hours.state.shape[1]:
        raise ValueError(
            f"expected states of {hours.state.shape[1]} samples, as the train patients have, got "
            f"{select.state.shape[1]} from the select patients. Cut both in the same way."
        )
    scaler = fit_scaler(hours)
    known = np.asarray(np.isfinite(np.asarray(select.state)).all((0, 1)))
    if lacking := [NAMES[i] for i in scaler.present if not known[i]]:
        raise ValueError(
            f"expected {lacking[0]} in every select hour, as in the train hours, got empty "
            "samples. Drop these hours."
        )
    return scaler


@eqx.filter_jit
def decision_rows(hours: Transitions, scaler: Scaler):
    """What the network sees of every hour, and the index of the level that was set."""
    return jax.vmap(lambda state: features(scaler, state))(hours.state), level_index(hours.level)


def _loss(network, row, *, key: PRNGKeyArray) -> Float[Array, ""]:
    return -jax.nn.log_softmax(network(row[0]))[row[1]]
