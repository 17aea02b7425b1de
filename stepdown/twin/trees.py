"""Boosted trees as a forecast: what a plain learner of tables makes of the same hours.

For every signal and sample of the coming hour, trees (LightGBM, absolute error) say how far it
will lie from persistence. They read the samples of the last hour, the level in force, the levels to
come, and of earlier hours the means. A draw adds one whole hour of errors that they made on select
patients. They are a row beside the twins: they do not know what holds between signals, run in NumPy
alone, and nobody plans in them. Needs the extra `trees`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stepdown.handover import Transitions
from stepdown.patients.pump import load_profile
from stepdown.problem.persistence import CarryForward
from stepdown.signals import LEVEL
from stepdown.twin.calibrated import check_longest, earlier_means
from stepdown.twin.fit import check_history, check_hours

ERRORS = 4096  # hours of select patients' errors, at most


@dataclass(frozen=True)
class TreesConfig:
    """How trees are grown; the numbers are LightGBM's own."""

    history: int = 1  # hours that they read
    rounds: int = 100
    leaves: int = 31
    rate: float = 0.1
    profile: str = "cp"  # pump that persistence knows

    def __post_init__(self):
        check_longest(self.history)
        if min(self.rounds, self.leaves - 1) < 1 or not self.rate > 0:
            raise ValueError(
                "expected at least 1 round and 2 leaves and a rate above 0, got "
                f"{self.rounds}, {self.leaves} and {self.rate}."
            )


@dataclass(frozen=True)
class Trees:
    """Fitted trees by signal and sample, and the errors that they made on select patients."""

    boosters: dict[tuple[int, int], Any]  # (sample, column)
    errors: Float[np.ndarray, "rows steps columns"]
    config: TreesConfig

    def center(self, hours: Transitions) -> Float[np.ndarray, "n steps columns"]:
        """The point forecast of every row."""
        check_history(self.config.history, hours)
        inputs, found = tree_inputs(hours), carried(hours, self.config.profile)
        for (step, column), booster in self.boosters.items():
            found[:, step, column] += booster.predict(inputs)
        return found

    def draw(
        self, hours: Transitions, draws: int, *, key: PRNGKeyArray
    ) -> Float[np.ndarray, "n draws steps columns"]:
        """Possible hours of every row: the center, and errors of other hours."""
        chosen = np.asarray(jr.randint(key, (len(hours.level), draws), 0, len(self.errors)))
        return self.center(hours)[:, None] + self.errors[chosen]


def fit_trees(train: Transitions, select: Transitions, config: TreesConfig) -> Trees:
    """Grow trees on train patients' hours, and keep their errors on select patients."""
    try:
        import lightgbm
    except ModuleNotFoundError as error:
        raise ValueError(
            "expected lightgbm, which is not installed. Run pip install 'stepdown[trees]'."
        ) from error
    scaler = check_hours(train, select)
    check_history(config.history, train)
    far = np.asarray(train.next_state) - carried(train, config.profile)
    settings = {"objective": "l1", "num_leaves": config.leaves, "learning_rate": config.rate}
    settings |= {"verbosity": -1, "seed": 0, "deterministic": True}
    table, boosters = lightgbm.Dataset(tree_inputs(train), free_raw_data=False), {}
    for step in range(far.shape[1]):
        for column in scaler.present:
            table.set_label(np.ascontiguousarray(far[:, step, column]))
            boosters[step, column] = lightgbm.train(settings, table, config.rounds)
    blind = Trees(boosters, np.zeros((1, *far.shape[1:]), np.float32), config)
    errors = np.asarray(select.next_state) - blind.center(select)
    errors[..., LEVEL] = 0.0  # known, never forecast
    kept = np.random.default_rng(0).permutation(len(errors))[:ERRORS]
    return Trees(boosters, errors[kept], config)


def tree_inputs(hours: Transitions) -> Float[np.ndarray, "n inputs"]:
    """The last hour, the levels, and the means of the hours before it."""
    return np.asarray(_inputs(hours.state, hours.levels))


@jax.jit
def _inputs(states: Float[Array, "n past columns"], levels) -> Float[Array, "n inputs"]:
    def one(state, levels):
        past, hour = state[: -len(levels)], state[-len(levels) :]
        before = hour[-1:, LEVEL]
        earlier = earlier_means(past, len(levels)).ravel()
        return jnp.concatenate([hour[:, :LEVEL].ravel(), before, levels, levels - before, earlier])

    return jax.vmap(one)(states, levels)


def carried(hours: Transitions, profile: str) -> Float[np.ndarray, "n steps columns"]:
    """Persistence of every row."""
    return np.array(_carried(CarryForward(load_profile(profile)), hours.hour, hours.levels))


@jax.jit
def _carried(carry: CarryForward, states, levels):
    return jax.vmap(carry)(states, levels)
