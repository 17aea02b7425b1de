"""What a guardian notices: decisions of test patients, as recorded and moved away by degrees.

A state is moved in one of two ways. `offset`: every signal goes up or down by so many sd of the
train patients, by a sign of its own that holds for the hour, as if it were somebody else's hour;
it stays as smooth as it was. `noise`: every sample of every signal gets its own normal noise of
that sd, which is far easier to see. The level in force stays. A choice is moved by so many levels
up or down, by a coin where both lie within P2..P9; decisions that cannot be moved are left out.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stepdown.guardian.density import Density
from stepdown.guardian.threshold import Guardian, log_densities, score_decisions
from stepdown.handover import Transitions, require_role
from stepdown.patients.cohort import in_groups
from stepdown.problem.scaling import Scaler
from stepdown.signals import HIGHEST, LEVEL, LEVELS, LOWEST

Kind = Literal["offset", "noise"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RECORDED = "recorded"
BLOCK = 2048  # decisions charged at a time
SMALL_CHANGES = (1, 2)  # levels; a guardian that refuses these is of no use


@dataclass(frozen=True)
class ShiftConfig:
    """How far decisions are moved, and when the guardian refuses."""

    states: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 4.0)  # sd of train patients
    levels: tuple[int, ...] = (1, 2, 3, 5)
    rate: float = 0.05  # refuse p-values up to this
    rates: tuple[float, ...] = (0.01, 0.05, 0.20)  # whose false alarms are counted

    def __post_init__(self):
        if not all(0 < rate < 1 for rate in (self.rate, *self.rates)):
            raise ValueError(f"expected rates between 0 and 1, got {self.rate}, {self.rates}.")
        if not all(1 <= size < len(LEVELS) for size in self.levels):
            raise ValueError(
                f"expected shifts of 1 to {len(LEVELS) - 1} levels, got {self.levels}."
            )


GRADED = ShiftConfig()


class Moved(eqx.Module):
    """Log densities of decisions, as recorded or moved."""

    kind: str = eqx.field(static=True)  # recorded, offset, noise or action
    size: float = eqx.field(static=True)  # sd, or levels
    log_density: Float[np.ndarray, " n"]


def score_shifts(
    guardian: Guardian,
    test: Transitions,
    config: ShiftConfig = GRADED,
    *,
    key: PRNGKeyArray,
) -> tuple[dict[str, Any], tuple[Moved, ...]]:
    """False alarms, AUROC and recall by shift as plain numbers, and the log densities behind."""
    require_role(test, "test")
    moved = move_decisions(guardian.density, test, config, key=key)
    recorded = moved[0].log_density
    p_value = np.asarray(guardian.rank(jnp.asarray(recorded)))
    found = {
        "decisions": len(p_value),
        "patients": len(np.unique(np.asarray(test.patient))),
        "rate": config.rate,
        "false_alarms": [
            {"asked": rate, "real": float(np.mean(p_value <= rate))} for rate in config.rates
        ],
        "threshold_alarms": float(np.mean(recorded < float(guardian.threshold))),
        "small_changes": small_change_alarms(p_value, test, config.rate),
        "shifts": [
            {
                "kind": one.kind,
                "size": one.size,
                "decisions": len(one.log_density),
                "auroc": auroc(recorded, one.log_density),
                "recall": float(
                    np.mean(guardian.rank(jnp.asarray(one.log_density)) <= config.rate)
                ),
            }
            for one in moved[1:]
        ],
    }
    return found, moved


def move_decisions(
    density: Density, hours: Transitions, config: ShiftConfig, *, key: PRNGKeyArray
) -> tuple[Moved, ...]:
    """Log densities of the decisions as recorded, then of every shift."""
    scaler = density.pairs.scaler
    found = [Moved(RECORDED, 0.0, score_decisions(density, hours))]
    k_states, k_levels = jr.split(key)
    for k_kind, kind in zip(jr.split(k_states, len(KINDS)), KINDS, strict=True):
        for k_size, size in zip(jr.split(k_kind, len(config.states)), config.states, strict=True):
            states = shift_states(hours.state, scaler, size, kind=kind, key=k_size)
            found.append(Moved(kind, float(size), log_densities(density, states, hours.level)))
    for size in config.levels:
        levels, possible = shift_levels(hours.level, size, key=jr.fold_in(k_levels, size))
        scores = log_densities(density, hours.state, levels)
        found.append(Moved("action", float(size), scores[np.asarray(possible)]))
    return tuple(found)


def shift_states(
    states: Float[Array, "n steps columns"],
    scaler: Scaler,
    size: float,
    *,
    kind: Kind = "offset",
    key: PRNGKeyArray,
) -> Float[Array, "n steps columns"]:
    """States moved by `size` sd of train patients; the level in force stays."""
    rows, steps, _ = states.shape
    if kind == "offset":
        move = jr.rademacher(key, (rows, 1, len(scaler.columns)), float)
    else:
        move = jr.normal(key, (rows, steps, len(scaler.columns)))
    return states.at[:, :, :LEVEL].add(size * scaler.sd[None, None] * move)


def shift_levels(
    levels: Int[Array, " n"], size: int, *, key: PRNGKeyArray
) -> tuple[Int[Array, " n"], Bool[Array, " n"]]:
    """Choices moved by `size` levels, and whether that was possible."""
    up, down = levels + size <= HIGHEST, levels - size >= LOWEST
    rises = jnp.where(up & down, jr.bernoulli(key, 0.5, levels.shape), up)
    moved = levels + size * jnp.where(rises, 1, -1)
    return jnp.where(up | down, moved, levels), up | down


def swap_levels(levels: Int[Array, " n"], *, key: PRNGKeyArray) -> Int[Array, " n"]:
    """For every decision the level of a random other one that chose differently."""
    counts = jnp.sum(levels[:, None] == jnp.asarray(LEVELS)[None], axis=0)
    others = jnp.asarray(LEVELS)[None] != levels[:, None]
    logits = jnp.where(others & (counts > 0)[None], jnp.log(counts + 0.0)[None], -jnp.inf)
    if len(np.unique(np.asarray(levels))) < 2:
        raise ValueError("expected decisions for different levels, got the same level in all.")
    return jnp.asarray(LEVELS)[jr.categorical(key, logits)]


def charge_all(
    guardian: Guardian,
    states: Float[Array, "n steps columns"] | Float[np.ndarray, "n steps columns"],
    levels: Int[Array, " n"] | Int[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """The guardian's u of many decisions, nats, on the host."""
    rows = (np.asarray(states, np.float32), np.asarray(levels, np.int32))
    return in_groups(_penalties, rows, guardian, size=BLOCK)


def _penalties(states, levels, guardian: Guardian):
    return guardian.penalties(states, levels)


def auroc(inside: Float[np.ndarray, " n"], outside: Float[np.ndarray, " m"]) -> float:
    """Chance that a moved decision is less dense than a recorded one; ties count half."""
    inside = np.sort(inside)
    below = np.searchsorted(inside, outside, "left") + np.searchsorted(inside, outside, "right")
    return float(1 - np.mean(below) / (2 * len(inside)))


def small_change_alarms(
    p_value: Float[np.ndarray, " n"], hours: Transitions, rate: float
) -> dict[str, Any]:
    """How often recorded changes of one or two levels are refused; None where there were none."""
    before = np.round(np.asarray(hours.state)[:, -1, LEVEL]).astype(int)
    change = np.abs(np.asarray(hours.level) - before)

    def refused(rows: np.ndarray) -> float | None:
        return float(np.mean(p_value[rows] <= rate)) if rows.any() else None

    small = np.isin(change, SMALL_CHANGES)
    by_size = {str(size): refused(change == size) for size in SMALL_CHANGES}
    return {"decisions": int(small.sum()), "refused": refused(small), "by_size": by_size}
