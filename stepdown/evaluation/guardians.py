"""What a guardian notices, and what it should look at.

Decisions of test patients are scored as recorded and moved away by degrees. A state is moved in one
of two ways. `offset`: every signal goes up or down by so many sd of the train patients, by a sign
of its own that holds for the hour, as if it were somebody else's hour; it stays as smooth as it
was. `noise`: every sample of every signal gets its own normal noise of that sd, which is far easier
to see. The level in force stays. A choice is moved by so many levels up or down, by a coin where
both lie within P2..P9; decisions that cannot be moved are left out.

What a kernel density looks at is chosen on select patients alone. A trial tells recorded from
swapped choices (AUROC). It counts only if the guardian stays usable and does not go blind: recorded
changes of one or two levels are refused in at most a quarter of cases, and hours moved by 1 sd in
at least nine of ten, both at 5 %. Without the second rule the conditional density always wins, and
it hardly looks at the state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stepdown.guardian.density import Density
from stepdown.guardian.threshold import Guardian, log_densities, p_values, score_decisions
from stepdown.handover import Transitions, require_role
from stepdown.patients.cohort import in_groups
from stepdown.problem.scaling import Scaler
from stepdown.signals import HIGHEST, LEVEL, LEVELS, LOWEST

Kind = Literal["offset", "noise"]
KINDS: tuple[Kind, ...] = get_args(Kind)
STATE_SHIFTS = (0.1, 0.5, 1.0, 2.0, 4.0)  # sd of train patients
LEVEL_SHIFTS = (1, 2, 3, 5)
RATE = 0.05  # refuse p-values up to this
RATES = (0.01, 0.05, 0.20)  # whose false alarms are counted
SMALL_CHANGES = (1, 2)  # levels; a guardian that refuses these is of no use
BLOCK = 2048  # decisions charged at a time


class Moved(eqx.Module):
    """Log densities of decisions, as recorded or moved."""

    kind: str = eqx.field(static=True)  # recorded, offset, noise or action
    size: float = eqx.field(static=True)  # sd, or levels
    log_density: Float[np.ndarray, " n"]


def score_shifts(
    guardian: Guardian, test: Transitions, *, key: PRNGKeyArray
) -> tuple[dict[str, Any], tuple[Moved, ...]]:
    """False alarms, AUROC and recall by shift as plain numbers, and the log densities behind."""
    require_role(test, "test")
    recorded = score_decisions(guardian.density, test)
    shifted = _shift_decisions(guardian.density, test, key)
    p_value = np.asarray(guardian.rank(jnp.asarray(recorded)))
    found = {
        "decisions": len(p_value),
        "patients": len(np.unique(np.asarray(test.patient))),
        "rate": RATE,
        "false_alarms": [
            {"asked": rate, "real": float(np.mean(p_value <= rate))} for rate in RATES
        ],
        "threshold_alarms": float(np.mean(recorded < float(guardian.threshold))),
        "small_changes": small_change_alarms(p_value, test, RATE),
        "shifts": [
            {
                "kind": one.kind,
                "size": one.size,
                "decisions": len(one.log_density),
                "auroc": auroc(recorded, one.log_density),
                "recall": float(np.mean(guardian.rank(jnp.asarray(one.log_density)) <= RATE)),
            }
            for one in shifted
        ],
    }
    return found, (Moved("recorded", 0.0, recorded), *shifted)


def _shift_decisions(density: Density, hours: Transitions, key: PRNGKeyArray) -> list[Moved]:
    """Log densities of the decisions after every shift."""
    found, k_states, k_levels = [], *jr.split(key)
    for k_kind, kind in zip(jr.split(k_states, len(KINDS)), KINDS, strict=True):
        for k_size, size in zip(jr.split(k_kind, len(STATE_SHIFTS)), STATE_SHIFTS, strict=True):
            states = shift_states(hours.state, density.pairs.scaler, size, kind=kind, key=k_size)
            found.append(Moved(kind, size, log_densities(density, states, hours.level)))
    for size in LEVEL_SHIFTS:
        levels, possible = shift_levels(hours.level, size, key=jr.fold_in(k_levels, size))
        scores = log_densities(density, hours.state, levels)
        found.append(Moved("action", float(size), scores[np.asarray(possible)]))
    return found


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
    states: Float[Array, "*n steps columns"] | Float[np.ndarray, "*n steps columns"],
    levels: Int[Array, "*n"] | Int[np.ndarray, "*n"],
) -> Float[np.ndarray, "*n"]:
    """The guardian's u of many decisions, such as all of some episodes, nats, on the host."""
    rows = np.asarray(states, np.float32), np.asarray(levels, np.int32)
    flat = rows[0].reshape(-1, *states.shape[-2:]), rows[1].ravel()
    return in_groups(_penalties, flat, guardian, size=BLOCK).reshape(levels.shape)


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


# ── what a kernel density looks at ───────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class SearchConfig:
    """What is tried, and what a trial must hold."""

    weights: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)  # of the chosen level
    bandwidths: tuple[float, ...] = (0.5, 1.0)  # z-scores
    shares: tuple[float, ...] = (0.0, 0.33, 0.5, 1.0)  # of log p(s); 0 conditional, 1 joint
    rate: float = 0.05  # refuse p-values up to this
    most_alarms: float = 0.25  # on recorded changes of one or two levels
    least_recall: float = 0.9  # of hours moved by `shift`
    shift: float = 1.0  # sd

    def __post_init__(self):
        if not (self.weights and self.bandwidths and self.shares):
            raise ValueError("expected at least one weight, bandwidth and share, got none.")
        if min(*self.weights, *self.bandwidths, 1.0) <= 0 or not 0 < self.rate < 1:
            raise ValueError("expected weights and bandwidths above 0 and a rate within 0 and 1.")
        if not all(0 <= share <= 1 for share in self.shares):
            raise ValueError(f"expected shares of 0 to 1, got {self.shares}.")


@dataclass(frozen=True)
class Trial:
    """One setting and what it does on select patients."""

    weight: float
    bandwidth: float
    share: float
    swapped: float  # AUROC of recorded against swapped choices
    small_changes: float  # share of recorded changes of one or two levels that are refused
    state_auroc: float  # hours moved by 1 sd
    state_recall: float
    allowed: bool


Fit = Callable[[float, float], Density]  # weight (0: blind to the choice), bandwidth


class _Scores(NamedTuple):
    """Log densities of select decisions as recorded, with swapped choices, in moved hours."""

    recorded: np.ndarray
    swapped: np.ndarray
    moved: np.ndarray


def search_guardian(
    fit: Fit,
    select: Transitions,
    config: SearchConfig,
    *,
    key: PRNGKeyArray,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Trial, tuple[Trial, ...]]:
    """The best allowed trial and all of them; every trial sees the same swaps and shifts."""
    require_role(select, "select")
    trials: list[Trial] = []
    total = len(config.bandwidths) * (1 + len(config.weights))
    for done, bandwidth in enumerate(config.bandwidths):
        watch(done / len(config.bandwidths))
        states = _score(fit(0.0, bandwidth), select, config, key)
        for number, weight in enumerate(config.weights):
            joint = _score(fit(weight, bandwidth), select, config, key)
            for share in config.shares:
                kept = (x - (1 - share) * y for x, y in zip(joint, states, strict=True))
                told = _judge(_Scores(*kept), select, config)
                trials.append(Trial(weight, bandwidth, share, **told))
            watch((done * (1 + len(config.weights)) + number + 2) / total)
    allowed = [trial for trial in trials if trial.allowed]
    return max(allowed or trials, key=lambda trial: trial.swapped), tuple(trials)


def _score(density: Density, select: Transitions, config: SearchConfig, key) -> _Scores:
    k_swap, k_shift = jr.split(key)
    states = shift_states(select.state, density.pairs.scaler, config.shift, key=k_shift)
    swaps = swap_levels(select.level, key=k_swap)
    return _Scores(
        recorded=score_decisions(density, select),
        swapped=log_densities(density, select.state, swaps),
        moved=log_densities(density, states, select.level),
    )


def _judge(scores: _Scores, select: Transitions, config: SearchConfig) -> dict[str, Any]:
    """All of a trial but its setting."""
    ascending = jnp.sort(jnp.asarray(scores.recorded))
    refused = np.asarray(p_values(ascending, jnp.asarray(scores.moved)) <= config.rate)
    p_value = np.asarray(p_values(ascending, jnp.asarray(scores.recorded)))
    small = small_change_alarms(p_value, select, config.rate)["refused"] or 0.0
    recall = float(np.mean(refused))
    return {
        "swapped": auroc(scores.recorded, scores.swapped),
        "small_changes": small,
        "state_auroc": auroc(scores.recorded, scores.moved),
        "state_recall": recall,
        "allowed": small <= config.most_alarms and recall >= config.least_recall,
    }
