"""The behavior policy: how likely each level was where teams decided, from the records alone.

Patients are dealt into folds. The probabilities of a fold come from networks that saw none of its
patients: each of them is fitted to the other folds but one, which tells it when to stop. Two more
chances decide which hours are seen under a policy: that a level is held through its hour, and that
the record goes on after it. Both are logistic, from what was seen until then, dealt in the same
way, so that stays which break off for a reason can be weighed up.
"""

import itertools
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stepdown.evaluation.decisions import Decisions
from stepdown.patients.population import host_generator
from stepdown.policies.networks import Network, make_network
from stepdown.signals import LEVEL, LEVELS, LOWEST
from stepdown.training import FitConfig, fit

FOLDS = 5  # of patients: at least one to judge, one to stop, one to fit
RIDGE = 1.0  # of the two logistic chances
BLOCKS = 512, 4096  # rows are filled up to a multiple, so that few programs serve all cohorts
CHANGES = 2 * len(LEVELS) - 1  # from seven levels down to seven up
FLATTER = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)  # powers of the chances
BINS = 10  # of chances, to hold against what happened
MIXED = (0.003, 0.01, 0.02, 0.05, 0.1, 0.2)  # shares of plain frequencies; never none


@dataclass(frozen=True)
class BehaviorConfig:
    """Estimating the behavior policy."""

    widths: tuple[int, ...] = (64,)
    repeats: int = 2  # networks of each fold, whose probabilities are averaged
    fit: FitConfig = field(
        default_factory=lambda: FitConfig(
            epochs=40, batch=512, learning_rate=2e-3, patience=4, weight_decay=1e-3
        )
    )

    def __post_init__(self):
        if self.repeats < 1:
            raise ValueError(f"expected at least 1 repeat, got {self.repeats}.")


class Behavior(eqx.Module):
    """Chances at every recorded decision, each from other patients' records."""

    level: Float[np.ndarray, "n 8"]  # log-probabilities of P2..P9
    held: Float[np.ndarray, " n"]  # chance that the level was held through the hour
    goes_on: Float[np.ndarray, " n"]  # chance that the record goes on after the hour
    fold: Int[np.ndarray, " n"]


class Calibration(eqx.Module):
    """How honest the probabilities of recorded levels are, on patients that were not fitted."""

    log_loss: float  # nats per decision
    brier: float  # of holding
    ece: float  # expected calibration error over all levels


def fit_behavior(
    decisions: Decisions,
    config: BehaviorConfig = BehaviorConfig(),  # noqa: B008 (frozen)
    *,
    key: PRNGKeyArray,
) -> Behavior:
    """Estimate all three chances by cross-fitting over patients."""
    k_folds, k_fit = jr.split(key)
    fold = deal_patients(decisions.patient, FOLDS, key=k_folds)
    end = ~decisions.follows & ~decisions.dead
    risk = ~decisions.dead  # a death is an outcome, not an end of recording
    leaves = _logistic(decisions.next_context, end, fold, risk)
    return Behavior(
        level=_fit_levels(decisions, fold, config, key=k_fit),
        held=_fit_held(decisions, fold),
        goes_on=1.0 - np.where(risk, leaves, 0.0),
        fold=fold,
    )


def deal_patients(
    patient: Int[np.ndarray, " n"], folds: int, *, key: PRNGKeyArray
) -> Int[np.ndarray, " n"]:
    """The fold of every row; all rows of a patient share one."""
    patients, index = np.unique(patient, return_inverse=True)
    if len(patients) < folds:
        raise ValueError(
            f"expected at least one patient in each of {folds} folds, got {len(patients)} "
            "patients. Bring more patients or ask for fewer folds."
        )
    return (host_generator(key).permutation(len(patients)) % folds)[index].astype(np.int32)


class _Habit(eqx.Module):
    """One network, and the folds that it does not learn from."""

    network: Network
    apart: Float[Array, "*members"]  # the fold to judge; the next one says when to stop


def _fit_levels(decisions: Decisions, fold, config: BehaviorConfig, *, key) -> np.ndarray:
    """Log-probabilities of the levels at every row, from networks of other folds."""
    members = FOLDS * config.repeats
    sizes = (decisions.context.shape[1], *config.widths, CHANGES)
    k_start, k_fit = jr.split(key)
    networks = eqx.filter_vmap(lambda k: make_network(sizes, jax.nn.swish, last=0.1, key=k))(
        jr.split(k_start, members)
    )
    own = np.arange(members) % FOLDS
    rows = _filled(decisions, fold)
    pair = ((*rows, np.zeros_like(rows[1])), (*rows, np.ones_like(rows[1])))
    best, _ = fit(_Habit(networks, jnp.asarray(own, float)), _loss, pair, config.fit, key=k_fit)
    found = np.asarray(_log_levels(best.network, *rows[:2]))[:, : len(fold)]
    result = np.zeros((len(fold), len(LEVELS)))
    for one in range(FOLDS):
        chance = np.exp(found[own == one]).mean(0)
        stops = fold == (one + 1) % FOLDS
        result[fold == one] = _calibrated(chance, decisions, stops, fold == one)
    return np.log(result)


def _calibrated(
    chance: Float[np.ndarray, "n 8"],
    decisions: Decisions,
    advise: Bool[np.ndarray, " n"],
    wanted: Bool[np.ndarray, " n"],
) -> np.ndarray:
    """Chances of the wanted rows, flattened and mixed with plain frequencies as others advise.

    Networks think too little of what is rare, and importance weights divide by just that.
    """
    before, chosen = current_levels(decisions) - LOWEST, decisions.level - LOWEST
    plain = _frequencies(before[~wanted], chosen[~wanted])
    rows = np.arange(int(advise.sum())), chosen[advise]
    best, least = (1.0, MIXED[0]), np.inf
    for flat, share in itertools.product(FLATTER, MIXED):
        tried = _mix(chance[advise], plain[before[advise]], flat, share)
        loss = -np.mean(np.log(tried[rows]))
        best, least = ((flat, share), loss) if loss < least else (best, least)
    return _mix(chance[wanted], plain[before[wanted]], *best)


def _frequencies(before: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """How often each level follows each level; changes never seen count a little."""
    counts = np.full((len(LEVELS), len(LEVELS)), 0.5)
    np.add.at(counts, (before, chosen), 1.0)
    return counts / counts.sum(1, keepdims=True)


def _mix(chance: np.ndarray, plain: np.ndarray, flat: float, share: float) -> np.ndarray:
    powered = np.maximum(chance, 1e-30) ** flat
    return (1 - share) * powered / powered.sum(1, keepdims=True) + share * plain


def _filled(decisions: Decisions, fold: np.ndarray):
    """Context, level in force, level chosen and fold, filled up with rows of no fold."""
    extra = -len(fold) % BLOCKS[len(fold) >= 4 * BLOCKS[1]]
    in_force = current_levels(decisions)

    def fill(values, by=0):
        return np.concatenate([values, np.full((extra, *values.shape[1:]), by, values.dtype)])

    index = (in_force - LOWEST).astype(np.int32), (decisions.level - LOWEST).astype(np.int32)
    return fill(decisions.context), fill(index[0]), fill(index[1]), fill(fold, -9)


def current_levels(decisions: Decisions) -> Int[np.ndarray, " n"]:
    """The level in force before each decision, as the state tells it."""
    return np.round(decisions.state[:, -1, LEVEL]).astype(np.int32)


def _loss(habit: _Habit, row, *, key) -> Float[Array, ""]:
    """Cross-entropy of one row where the member learns from it, or is judged by it to stop."""
    context, before, chosen, fold, judging = row
    stops = fold == jnp.mod(habit.apart + 1, FOLDS)
    learns = (fold >= 0) & (fold != habit.apart) & ~stops
    weight = jnp.where(judging > 0, stops, learns)
    return -1.0 * weight * _log_changes(habit.network, context, before)[chosen]


def _log_changes(network: Network, context, before) -> Float[Array, " 8"]:
    """Log-probabilities of the levels; the network weighs changes, which all levels share."""
    changes = network(context)
    return jax.nn.log_softmax(changes[jnp.arange(len(LEVELS)) - before + len(LEVELS) - 1])


@eqx.filter_jit
def _log_levels(networks: Network, context, before):
    rows = jax.vmap(_log_changes, (None, 0, 0))
    return jax.lax.map(lambda one: rows(one, context, before), networks)


def _fit_held(decisions: Decisions, fold: np.ndarray) -> np.ndarray:
    """Chance that no sample of the hour brought another level."""
    before = np.cumsum(decisions.moved, axis=1) - decisions.moved
    risk = before == 0
    rows, changes, clues = decisions.ticks.shape
    hazard = _logistic(
        decisions.ticks.reshape(rows * changes, clues),
        decisions.moved.ravel(),
        np.repeat(fold, changes),
        risk.ravel(),
    ).reshape(rows, changes)
    return np.prod(1.0 - np.where(risk, hazard, 0.0), axis=1)


def _logistic(
    features: Float[np.ndarray, "n f"],
    happened: Bool[np.ndarray, " n"],
    fold: Int[np.ndarray, " n"],
    risk: Bool[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """Chances by ridge logistic regression on the other folds, with Newton's steps."""
    inputs = np.concatenate([np.ones((len(features), 1)), features], axis=1).astype(float)
    charge = RIDGE * np.eye(inputs.shape[1])
    charge[0, 0] = 1e-6
    chances = np.zeros(len(features))
    for one in range(FOLDS):
        use = (fold != one) & risk
        x, y = inputs[use], happened[use].astype(float)
        rate = (y.sum() + 0.5) / (len(y) + 1.0)
        weights = np.zeros(inputs.shape[1])
        weights[0] = np.log(rate / (1 - rate))
        for _ in range(12):
            chance = _sigmoid(x @ weights)
            slope = x.T @ (y - chance) - charge @ weights
            curve = (x * (chance * (1 - chance))[:, None]).T @ x + charge
            step = np.linalg.solve(curve, slope)
            weights += step / max(1.0, np.abs(step).max())
        chances[fold == one] = _sigmoid(inputs[fold == one] @ weights)
    return chances


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0)))


def check_calibration(behavior: Behavior, decisions: Decisions) -> Calibration:
    """Compare chances with what happened, all eight levels of all decisions together.

    Bins hold equal shares of the chances above one in ten thousand; the error is weighted by them.
    """
    chance = np.exp(behavior.level)
    happened = np.arange(len(LEVELS))[None] == (decisions.level - LOWEST)[:, None]
    chosen = chance[happened]
    hold = current_levels(decisions) - LOWEST
    holding = chance[np.arange(len(hold)), hold]
    edges = np.quantile(chance[chance > 1e-4], np.linspace(0, 1, BINS + 1)[1:-1])
    place = np.searchsorted(edges, chance, side="right").ravel()
    count = np.bincount(place, minlength=BINS)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(place, chance.ravel(), minlength=BINS) / count
        observed = np.bincount(place, happened.ravel(), minlength=BINS) / count
    return Calibration(
        log_loss=float(-np.mean(np.log(chosen))),
        brier=float(np.mean((holding - (decisions.level - LOWEST == hold)) ** 2)),
        ece=float(np.nansum(count * np.abs(predicted - observed)) / count.sum()),
    )
