"""Are six-hour risks what they say? Recorded six hours, forecast under the levels that were set.

From hours of unseen patients with six recorded ones ahead, the twin draws courses under the
recorded levels. The share of courses that leave a limit is the risk that is said; whether the
patient left it is what happened. In bins of what is said both should agree.
"""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from stepdown.evaluation.compare import draw_patients
from stepdown.handover import Transitions, require_role
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.problem.hours import find_runs
from stepdown.signals import HORIZON, HR, MAP, PULSATILITY
from stepdown.twin.fit import Twin
from stepdown.twin.rollout import follow_plans

WINDOWS, COURSES = 400, 100
BINS = (0.0, 0.03, 0.07, 0.13, 0.3, 0.6, 1.0)  # of the share of courses
COLUMNS = {"map": MAP, "hr": HR, "pulsatility": PULSATILITY}
ENDS = (0.025, 0.975)  # of an interval over patients


def calibrate_risks(
    twin: Twin, hours: Transitions, config: ClinicalConfig = PAPER, *, key: PRNGKeyArray
) -> list[dict[str, Any]]:
    """Rows of a table: by limit and by what was said, how often it happened, with an interval."""
    require_role(hours, "test")
    try:
        runs = find_runs(hours, HORIZON)
    except ValueError:  # no stay is so long
        return []
    start = runs[np.unique(np.linspace(0, len(runs) - 1, WINDOWS).astype(int))]
    ahead = start[:, None] + np.arange(HORIZON)
    limits = jnp.asarray([config.map_limit, config.hr_limit, config.pulsatility_limit])
    states, plans = np.asarray(hours.state)[start], np.asarray(hours.level)[ahead]
    said = np.asarray(
        _said(twin, jnp.asarray(states), jnp.asarray(plans), limits, jr.split(key, COURSES))
    )
    later = np.asarray(hours.next_state)[ahead][..., list(COLUMNS.values())]
    happened: np.ndarray = np.any(later <= np.asarray(limits), axis=(1, 2))  # NaN is not outside
    happened = np.concatenate([happened, happened.any(-1, keepdims=True)], axis=1)
    patient = np.asarray(hours.patient)[start]
    return [
        _row(name, low, high, said[:, i], happened[:, i], patient)
        for i, name in enumerate((*COLUMNS, "any"))
        for low, high in itertools.pairwise(BINS)
    ]


@eqx.filter_jit
def _said(
    twin: Twin,
    states: Float[Array, "n steps columns"],
    plans: Int[Array, "n hours"],
    limits: Float[Array, " 3"],
    keys: Key[Array, " courses"],
) -> Float[Array, "n 4"]:
    """Share of courses that leave each limit, and any of them."""

    def one(moment):
        state, plan = moment
        drawn = follow_plans(twin, state, plan[None], keys=keys)[0]
        left = jnp.any(drawn[..., np.array(list(COLUMNS.values()))] <= limits, axis=(1, 2))
        return jnp.append(left.mean(0), left.any(-1).mean())

    return jax.lax.map(one, (states, plans), batch_size=8)


def _row(
    name: str,
    low: float,
    high: float,
    said: Float[np.ndarray, " n"],
    happened: Bool[np.ndarray, " n"],
    patient: Int[np.ndarray, " n"],
) -> dict[str, Any]:
    last = high == BINS[-1]
    rows = np.flatnonzero((said >= low) & ((said <= high) if last else (said < high)))
    told: dict[str, Any] = {"limit": name, "from": low, "to": high, "windows": len(rows)}
    if not len(rows):
        return told | {"said": None, "happened": None, "low": None, "high": None}
    drawn = np.sort(np.asarray(draw_patients(patient[rows])) @ happened[rows].astype(float))
    ends = (float(drawn[round(x * (len(drawn) - 1))]) for x in ENDS)
    least, most = ends
    return told | {
        "said": float(said[rows].mean()),
        "happened": float(happened[rows].mean()),
        "low": least,
        "high": most,
    }
