"""Do draws obey the identities among signals, and do bands hold for six hours?

    python -m benchmarks.studies.twin_identities --small --version 2 --out found.json
    python -m benchmarks.studies.twin_identities --fill "before=old.json" "after=found.json"

Twins are fitted to a simulated cohort and judged on its test patients. Written for each twin:

* its errors, overall, where the level is held through the hour and where it changes inside;
* how many of a million drawn samples, six hours on, break an identity; nothing is done to a draw
  before it is counted;
* how far current lies from the pump's map at its flow, and flow from the map at its head, in the
  draws and in the recordings;
* the coverage of its 90 % bands at each hour ahead, after calm and after restless hours, with
  95 % intervals over patients.

Only what every version of the twins offers is called, so a copy of this file beside an older
package says what was before; `--cohort` gives it a cohort that it could not draw itself (a file of
`--keep`). Several files become the table of docs/definitions.md (`--fill`). It needs nothing
beyond the numerical heart.
"""

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float, Int

from benchmarks.tables import DOCS, fill, make_table
from stepdown.artifacts import provenance
from stepdown.evaluation.forecast import (
    BAND90,
    METRICS,
    HorizonConfig,
    grow_errors,
    inside,
    score_forecasts,
)
from stepdown.handover import Cohort, Transitions
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
from stepdown.twin.twins import JUDGING_TWIN, TWINS, twin_config

ERRORS = ("mae", "mae_z", "mae_map", "crps", "crps_z", "coverage90")
PAGE = DOCS / "definitions.md"
SAMPLES = 1_000_000
LUCK = 1000  # draws of patients behind an interval
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
    version: int
    samples: int


def main() -> None:
    """Fit, judge and write, twin by twin."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    parser.add_argument("--models", nargs="+", default=["best", "persistence", "tdt"])
    parser.add_argument("--patients", type=int, default=379)
    parser.add_argument("--seed", type=int, default=7, help="of the cohort")
    parser.add_argument("--version", type=int, default=2, help="of the simulated patients")
    parser.add_argument("--small", action="store_true", help="small networks, for a quick look")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="drawn")
    parser.add_argument("--keep", type=Path, help="write the cohort to this .npz")
    parser.add_argument("--cohort", type=Path, help="take the cohort from such a file")
    parser.add_argument("--fill", nargs="+", metavar="WORDS=FILE", help="write the table alone")
    asked = parser.parse_args()
    if asked.fill:
        fill(PAGE, {"twin bands": table([x.rpartition("=")[::2] for x in asked.fill])})
        return
    numbers = asked.patients, asked.seed, asked.small, asked.version, asked.samples
    config = IdentityStudy(tuple(asked.models), *numbers)
    cohort = read_cohort(asked.cohort) if asked.cohort else draw_cohort(config)
    if asked.keep:
        arrays = (np.asarray(x) for x in (cohort.signals, cohort.level, cohort.seen))
        kept = dict(zip(("signals", "level", "seen"), arrays, strict=True))
        np.savez(asked.keep, patient=np.array(cohort.patient), allow_pickle=False, **kept)
    train, select, test = hours_of(cohort)
    found = {"about": provenance(config=config, command="benchmarks.studies.twin_identities")}
    found["recorded"] = scatter(*recorded(train, select, test))
    for model in config.models:
        size = "small" if config.small else "paper"
        twin, _ = fit_twin(train, select, twin_config(model, size), key=jr.key(100))
        found[model] = judge(twin, test, config.samples)
        asked.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(model, json.dumps(found[model]), flush=True)


def draw_cohort(config: IdentityStudy) -> Cohort:
    """Simulated patients; older packages know version 1 alone and have no name for it."""
    asked: dict[str, Any] = {"patients": config.patients, "version": config.version}
    known = {name: x for name, x in asked.items() if name in CohortConfig.__dataclass_fields__}
    with jax.default_device(jax.devices("cpu")[0]):  # where small steps are
        return simulate_cohort(CohortConfig(**known), key=jr.split(jr.key(config.seed), 3)[0])[0]


def read_cohort(path: Path) -> Cohort:
    """Patients that another run kept."""
    with np.load(path) as kept:
        arrays = [jnp.asarray(kept[name]) for name in ("signals", "level", "seen")]
        return Cohort(*arrays, patient=tuple(map(str, kept["patient"])))


def hours_of(cohort: Cohort) -> tuple[Transitions, Transitions, Transitions]:
    """Half-hourly windows to fit on, hours to choose and to report by."""
    train, select, test = split_patients(cohort, key=jr.key(0))
    return (
        make_transitions(train, HoursConfig(stride=30.0)),
        make_transitions(select),
        make_transitions(test),
    )


def judge(twin: Twin, test: Transitions, samples: int = SAMPLES) -> dict[str, dict]:
    """All numbers of one twin."""
    drawn, levels = six_hours(twin, test, samples)
    return {
        "errors": errors(twin, test),
        "violations": violations(drawn, levels),
        "scatter": scatter(drawn, levels),
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


def recorded(*parts: Transitions) -> tuple[np.ndarray, np.ndarray]:
    """Recorded samples of all patients whose speed tells their level, and that level."""
    states = [np.asarray(part.next_state).reshape(-1, part.next_state.shape[-1]) for part in parts]
    samples = np.concatenate(states)
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


def coverage(twin: Twin, test: Transitions) -> dict[str, dict[str, list[float]]]:
    """Of the 90 % band at each hour ahead: all starts, those after calm and restless hours.

    Then by signal.
    """
    runs = find_runs(test, HORIZON)
    growth = grow_errors(twin, test, HorizonConfig(starts=len(runs)), key=jr.key(400))
    patient = np.asarray(test.patient)[runs]
    used = list(twin.scaler.present)
    covered = inside(growth.low, growth.high, BAND90).mean(2)[..., used]  # (starts, hours, signals)
    moving = movement(np.asarray(test.state)[runs], twin.scaler)
    calm = moving <= np.median(moving)
    parts = {"all": np.ones_like(calm), "calm": calm, "restless": ~calm}
    each = {k: over_patients(covered[which].mean(2), patient[which]) for k, which in parts.items()}
    for place, i in enumerate(used):
        each[twin.scaler.columns[i]] = over_patients(covered[..., place], patient)
    return each


def over_patients(
    rows: Float[np.ndarray, "starts hours"], patient: Int[np.ndarray, " starts"]
) -> dict[str, list[float]]:
    """Mean over the starts, and its 95 % interval over draws of patients."""
    _, who = np.unique(patient, return_inverse=True)
    count = np.bincount(who)
    total = np.stack([np.bincount(who, hour) for hour in rows.T], axis=1)
    luck = np.random.default_rng(0).integers(0, len(count), (LUCK, len(count)))
    means = total[luck].sum(1) / count[luck].sum(1)[:, None]
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return {"mean": rows.mean(0).tolist(), "low": low.tolist(), "high": high.tolist()}


def movement(states: np.ndarray, scaler: Scaler) -> np.ndarray:
    """How much the samples of an hour differ, sd of train patients, mean over the signals."""
    used = list(scaler.present)
    return (states[..., :LEVEL].std(1)[:, used] / np.asarray(scaler.sd)[used]).mean(1)


# ── the table ────────────────────────────────────────────────────────────────────────────────────

HEADS = (
    "run and twin",
    "`mae_z`, `crps_z` (sd)",
    "`mae_z` where the level is held",
    "`mae_map` (mmHg)",
    "coverage of the 90 % band by hour ahead, 1 to 6, and half its interval",
    "after calm hours",
    "after restless hours",
    "samples that break a pressure rule",
    "current off the map, mA: sd, least to most",
    "flow off the map, L/min: sd, least to most",
)


def table(runs: Sequence[tuple[str, str]]) -> str:
    """One row for each twin of each file, below the recordings that it is held against."""
    rows, sizes = [], []
    for words, path in runs:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        config = found["about"]["config"]
        rows.append([f"{words}: recorded", *[""] * 7, *away(found["recorded"])])
        rows += [row(f"{words}: `{name}`", found[name]) for name in found if name in TWINS]
        sizes.append(
            f"{words}: {config['patients']} patients of version {config['version']}, seed "
            f"{config['seed']}, {'small' if config['small'] else 'full'} networks, "
            f"{config['samples']:,} samples"
        )
    told = f"Runs: {'; '.join(sizes)}. {over_runs(runs)}"
    told = textwrap.fill(told.rstrip(), 120, break_on_hyphens=False)
    return f"{make_table(HEADS, rows)}\n\n{told}"


def over_runs(runs: Sequence[tuple[str, str]]) -> str:
    """The bands of the judging twin over all runs but those of before."""
    files = [
        json.loads(Path(path).read_text("utf-8")) for words, path in runs if "before" not in words
    ]
    each = [one[JUDGING_TWIN]["coverage90"]["all"]["mean"] for one in files if JUDGING_TWIN in one]
    if not each:
        return ""
    means = ", ".join(f"{100 * x:.1f}" for x in np.mean(each, axis=0))
    return (
        f"Over the {len(each)} runs that are not of before, the bands of `{JUDGING_TWIN}` cover "
        f"{means} % at hours 1 to 6; the least share of a run is {100 * np.min(each):.1f} %, the "
        f"largest {100 * np.max(each):.1f} %."
    )


def row(words: str, found: dict) -> list[str]:
    """The numbers of one twin."""
    errors, covered, broken = found["errors"]["all"], found["coverage90"], found["violations"]
    rules = ("dbp_above_map", "map_above_sbp", "pulsatility_is_not_sbp_less_dbp")
    ends = covered["all"]["low"], covered["all"]["high"]
    widest = max(high - low for low, high in zip(*ends, strict=True))
    return [
        words,
        f"{errors['mae_z']:.4f}, {errors['crps_z']:.4f}",
        f"{found['errors']['held']['mae_z']:.4f}",
        f"{errors['mae_map']:.3f}",
        f"{by_hour(covered['all'])}, ± {widest / 2:.3f} at most",
        by_hour(covered["calm"]),
        by_hour(covered["restless"]),
        " / ".join(f"{broken[rule]:,}" for rule in rules),
        *away(found["scatter"]),
    ]


def by_hour(covered: dict[str, list[float]]) -> str:
    """Six shares."""
    return " ".join(f"{share:.3f}" for share in covered["mean"])


def away(found: dict[str, dict[str, float]]) -> list[str]:
    """Both distances from the pump's map."""
    return [
        f"{found[name]['sd']:.{digits}f}, {found[name]['least']:.{digits}f} to "
        f"{found[name]['most']:.{digits}f}"
        for name, digits in (("current_mA", 1), ("flow_L_min", 2))
    ]


if __name__ == "__main__":
    main()
