"""How errors grow when a forecaster goes on from its own forecasts (App. E, error accumulation).

From recorded hours with enough recorded hours behind them, the recorded levels are played in the
forecaster, draw by draw, and held against what was recorded.
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stepdown.evaluation.calibration import BAND90, inside, rank_place
from stepdown.evaluation.forecast import Forecaster
from stepdown.handover import Transitions, require_role
from stepdown.patients.cohort import in_groups
from stepdown.problem.hours import require_order
from stepdown.signals import HORIZON, HR, LEVEL, MAP, NAMES, PULSATILITY

SHOWN = (MAP, HR, PULSATILITY)  # what the reward is made of
GROUP = 32  # starts of one compiled call


@dataclass(frozen=True)
class HorizonConfig:
    """How far and how often; defaults are the paper's."""

    hours: int = HORIZON
    starts: int = 500  # at most
    draws: int = 50
    role: Literal["test", "select"] = "test"

    def __post_init__(self):
        if min(self.hours, self.starts) < 1 or self.draws < 2:
            raise ValueError(
                "expected at least 1 hour, 1 start and 2 draws, "
                f"got {self.hours}, {self.starts} and {self.draws}."
            )


PAPER_HORIZON = HorizonConfig()


class ErrorGrowth(eqx.Module):
    """Errors of the mean path and the truth's place among the draws, hour by hour."""

    absolute: Float[Array, "starts hours 12"]  # mean over the hour's samples
    low: Float[Array, "starts hours steps 12"]
    high: Float[Array, "starts hours steps 12"]
    patient: Int[Array, " starts"]


def grow_errors(
    forecaster: Forecaster,
    hours: Transitions,
    config: HorizonConfig = PAPER_HORIZON,
    *,
    key: PRNGKeyArray,
) -> ErrorGrowth:
    """Play the recorded levels from random starts; `hours` are hourly rows in order."""
    require_role(hours, config.role)
    k_starts, k_draws = jr.split(key)
    start = find_runs(hours, config.hours)
    if len(start) > config.starts:
        draw = np.random.default_rng(np.asarray(jr.key_data(k_starts)).ravel())
        start = np.sort(draw.choice(start, config.starts, replace=False))
    run = start[:, None] + np.arange(config.hours)
    state, level, later = (np.asarray(x) for x in (hours.state, hours.level, hours.next_state))
    rows = (state[start], level[run], later[run], np.arange(len(start)))
    absolute, low, high = in_groups(
        _play_rows, (rows,), forecaster, k_draws, config.draws, size=GROUP
    )
    places = (jnp.asarray(x) for x in (absolute, low, high))
    return ErrorGrowth(*places, patient=hours.patient[start])


def find_runs(hours: Transitions, length: int) -> Int[np.ndarray, " runs"]:
    """Rows from which `length` recorded hours follow one another."""
    require_order(hours)
    goes_on = ~np.asarray(hours.last)
    fits = np.ones(len(goes_on), bool)
    for ahead in range(length - 1):
        fits &= np.append(goes_on[ahead:], np.zeros(ahead, bool))
    if not fits.any():
        raise ValueError(
            f"expected {length + 1} recorded hours in a row, got fewer. Use longer stays."
        )
    return np.flatnonzero(fits)


def _play_rows(rows, forecaster: Forecaster, key, draws: int):
    def one(state, levels, truth, number):
        keys = jr.split(jr.fold_in(key, number), (len(levels), draws))
        start = jnp.broadcast_to(state[None], (draws, *state.shape))

        def hour(now, x):
            level, keys = x
            now = jax.vmap(lambda s, k: forecaster(s, level, key=k))(now, keys)
            return now, now[..., :LEVEL]

        _, drawn = jax.lax.scan(hour, start, (levels, keys))  # (hours, draws, steps, 12)
        truth = truth[..., :LEVEL]
        low, high = jax.vmap(rank_place)(drawn, truth)
        return jnp.mean(jnp.abs(jnp.mean(drawn, axis=1) - truth), axis=1), low, high

    return jax.vmap(one)(*rows)


def summarize_growth(growth: ErrorGrowth) -> dict[str, dict[str, list[float]]]:
    """Per hour: MAE of MAP, HR and pulsatility, its sd over starts, coverage of the 90 % band."""
    absolute = np.asarray(growth.absolute, float)[..., list(SHOWN)]
    covered = inside(growth.low, growth.high, BAND90).mean((0, 2))
    return {
        NAMES[column]: {
            "mae": absolute[..., i].mean(0).tolist(),
            "sd": absolute[..., i].std(0).tolist(),
            "coverage90": covered[:, column].tolist(),
        }
        for i, column in enumerate(SHOWN)
    }
