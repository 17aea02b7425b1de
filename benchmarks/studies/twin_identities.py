"""Do draws obey the identities among signals, and do bands hold for six hours?

    python -m benchmarks.studies.twin_identities --small --patients 200 --out found.json

Twins are fitted to a simulated cohort and judged on its test patients. Written for each twin:

* its errors, overall, where the level is held through the hour and where it changes inside;
* how many of a million drawn samples, six hours on, break an identity; nothing is done to a draw
  before it is counted;
* how far current lies from the pump's map at its flow, and flow from the map at its head, in the
  draws and in the recordings;
* the coverage of its 90 % bands at each hour ahead, after calm and after restless hours.

Only what every version of the twins offers is called, so a copy of this file beside an older
package says what was before. It needs nothing beyond the numerical heart.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stepdown.artifacts import provenance
from stepdown.evaluation.forecast import (
    BAND90,
    METRICS,
    HorizonConfig,
    grow_errors,
    inside,
    score_forecasts,
)
from stepdown.handover import Transitions
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.patients.pump import level_of_speed, load_profile, motor_current, pump_flow
from stepdown.problem.hours import HoursConfig, find_runs, make_transitions
from stepdown.problem.scaling import Scaler
from stepdown.records.split import split_patients
from stepdown.signals import (
    CURRENT,
    DBP,
    FLOW,
    HORIZON,
    LEVEL,
    LEVELS,
    LOWEST,
    LVP,
    MAP,
    NAMES,
    PULSATILITY,
    SBP,
    SPEED,
    hard_ranges,
)
from stepdown.twin.fit import Twin, fit_twin
from stepdown.twin.twins import twin_config

ERRORS = ("mae", "mae_z", "mae_map", "crps", "crps_z", "coverage90")
SAMPLES = 1_000_000
GROUP = 64  # starts of one compiled call
NEAR = 0.02  # of a level's speed
SHOWN = (0.5, 2.5, 50.0, 97.5, 99.5)  # percentiles of a scatter


@dataclass(frozen=True)
class IdentityStudy:
    """What was asked for."""

    models: tuple[str, ...]
    patients: int
    seed: int
    small: bool


def main() -> None:
    """Fit, judge and write, twin by twin."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the numbers")
    parser.add_argument("--models", nargs="+", default=["best", "persistence", "tdt"])
    parser.add_argument("--patients", type=int, default=379)
    parser.add_argument("--seed", type=int, default=7, help="of the cohort")
    parser.add_argument("--small", action="store_true", help="small networks, for a quick look")
    asked = parser.parse_args()
    config = IdentityStudy(tuple(asked.models), asked.patients, asked.seed, asked.small)
    found = {"about": provenance(config=config, command="benchmarks.studies.twin_identities")}
    train, select, test = hours_of(config)
    for model in config.models:
        size = "small" if config.small else "paper"
        twin, _ = fit_twin(train, select, twin_config(model, size), key=jr.key(100))
        found[model] = judge(twin, test)
        asked.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(model, json.dumps(found[model]), flush=True)


def hours_of(config: IdentityStudy) -> tuple[Transitions, Transitions, Transitions]:
    """Half-hourly windows to fit on, hours to choose and to report by."""
    recipe = CohortConfig(patients=config.patients)
    with jax.default_device(jax.devices("cpu")[0]):  # where small steps are
        cohort, _ = simulate_cohort(recipe, key=jr.split(jr.key(config.seed), 3)[0])
    train, select, test = split_patients(cohort, key=jr.key(0))
    return (
        make_transitions(train, HoursConfig(stride=30.0)),
        make_transitions(select),
        make_transitions(test),
    )


def judge(twin: Twin, test: Transitions, samples: int = SAMPLES) -> dict:
    """All numbers of one twin."""
    drawn, levels = six_hours(twin, test, samples)
    return {
        "errors": errors(twin, test),
        "violations": violations(drawn, levels),
        "scatter": {"drawn": scatter(drawn, levels), "recorded": scatter(*recorded(test))},
        "coverage90": coverage(twin, test),
    }


def errors(twin: Twin, test: Transitions) -> dict[str, dict[str, float]]:
    """Means over test hours: all, those whose level is held, those in which it changes."""
    scores = score_forecasts(twin, test, twin.scaler, key=jr.key(200))
    changed = np.asarray(test.changed)
    rows = {name: METRICS[name](scores) for name in ERRORS}
    parts = {"all": np.ones_like(changed), "held": ~changed, "inside": changed}
    return {
        part: {"rows": int(which.sum())}
        | {name: float(x[which].mean()) for name, x in rows.items() if which.any()}
        for part, which in parts.items()
    }


def six_hours(twin: Twin, test: Transitions, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """So many drawn samples, each going on from its own draw, and the level of each."""
    runs = find_runs(test, HORIZON)
    played = np.asarray(getattr(test, "levels", test.level))  # older packages know one an hour
    per_start = HORIZON * twin.steps
    repeats = -(-samples // (per_start * len(runs)))
    start = np.tile(runs, repeats)[: -(-samples // per_start)]
    keys = jr.split(jr.key(300), len(start))
    drawn, levels = [], []
    for first in range(0, len(start), GROUP):
        rows = start[np.minimum(np.arange(first, first + GROUP), len(start) - 1)]
        luck = keys[np.minimum(np.arange(first, first + GROUP), len(start) - 1)]
        plan = played[rows[:, None] + np.arange(HORIZON)]
        found = np.asarray(_play(twin, test.state[rows], jnp.asarray(plan), luck))
        each = plan[..., None] if plan.ndim == 2 else plan
        drawn.append(found[: len(start) - first])
        levels.append(np.broadcast_to(each, found.shape[:-1])[: len(start) - first])
    drawn, levels = np.concatenate(drawn), np.concatenate(levels)
    return drawn.reshape(-1, drawn.shape[-1])[:samples], levels.ravel()[:samples]


@eqx.filter_jit
def _play(twin: Twin, states, plans, keys):
    def one(state, plan, key):
        def hour(now, x):
            now = twin(now, x[0], key=x[1])
            return now, now

        return jax.lax.scan(hour, state, (plan, jr.split(key, len(plan))))[1]

    return jax.vmap(one)(states, plans, keys)


def violations(drawn: np.ndarray, levels: np.ndarray) -> dict[str, int]:
    """How many samples break each rule."""
    low, high = np.array(hard_ranges(NAMES), np.float32).T
    speed = np.asarray(load_profile("cp").speed)[levels - LOWEST]
    with np.errstate(invalid="ignore"):
        return {
            "samples": len(drawn),
            "dbp_above_map": int((drawn[:, DBP] > drawn[:, MAP]).sum()),
            "map_above_sbp": int((drawn[:, MAP] > drawn[:, SBP]).sum()),
            "pulsatility_is_not_sbp_less_dbp": int(
                (drawn[:, PULSATILITY] != drawn[:, SBP] - drawn[:, DBP]).sum()
            ),
            "speed_of_another_level": int((np.abs(drawn[:, SPEED] / speed - 1) > NEAR).sum()),
            "outside_hard_ranges": int(((drawn < low) | (drawn > high)).any(1).sum()),
            "not_finite": int((~np.isfinite(drawn)).any(1).sum()),
        }


def recorded(test: Transitions) -> tuple[np.ndarray, np.ndarray]:
    """Recorded samples whose speed tells their level, and that level."""
    samples = np.asarray(test.next_state).reshape(-1, test.next_state.shape[-1])
    levels = level_of_speed(load_profile("cp"), samples[:, SPEED])
    known = np.isin(levels, LEVELS)
    return samples[known], levels[known]


def scatter(samples: np.ndarray, levels: np.ndarray) -> dict[str, dict[str, float]]:
    """How far from the pump's map: current at the same flow, flow at the same head."""
    pump, level = load_profile("cp"), jnp.asarray(levels)
    flow, head = (jnp.asarray(x) for x in (samples[:, FLOW], samples[:, MAP] - samples[:, LVP]))
    at_each = lambda f, *values: jax.vmap(lambda *x: f(pump, *x))(*values)  # noqa: E731
    away = {
        "current_mA": samples[:, CURRENT] - np.asarray(at_each(motor_current, level, flow)),
        "flow_L_min": samples[:, FLOW] - np.asarray(at_each(pump_flow, level, head)),
    }
    return {
        name: {"sd": float(x.std()), "least": float(x.min()), "most": float(x.max())}
        | {f"p{share:g}": float(np.percentile(x, share)) for share in SHOWN}
        for name, x in away.items()
    }


def coverage(twin: Twin, test: Transitions) -> dict[str, list[float]]:
    """Of the 90 % band at each hour ahead: all starts, and those after calm and restless hours."""
    runs = find_runs(test, HORIZON)
    growth = grow_errors(twin, test, HorizonConfig(starts=len(runs)), key=jr.key(400))
    used = list(twin.scaler.present)
    low, high = (np.asarray(x)[..., used] for x in (growth.low, growth.high))
    covered = inside(low, high, BAND90).mean((2, 3))  # (starts, hours)
    moving = movement(np.asarray(test.state)[runs], twin.scaler)
    calm = moving <= np.median(moving)
    parts = {"all": np.ones_like(calm), "calm": calm, "restless": ~calm}
    each = {name: covered[which].mean(0).tolist() for name, which in parts.items()}
    for i in used:
        one = inside(growth.low[..., i], growth.high[..., i], BAND90).mean((0, 2))
        each[twin.scaler.columns[i]] = one.tolist()
    return each


def movement(states: np.ndarray, scaler: Scaler) -> np.ndarray:
    """How much the samples of an hour differ, sd of train patients, mean over the signals."""
    used = list(scaler.present)
    return (states[..., :LEVEL].std(1)[:, used] / np.asarray(scaler.sd)[used]).mean(1)


if __name__ == "__main__":
    main()
