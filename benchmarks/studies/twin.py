"""Digital twins measured: the table, fresh patients, what a level does, speed.

    python -m benchmarks.studies.twin table --out table.json     all models, five seeds
    python -m benchmarks.studies.twin fresh --out fresh.json     the best twin, 2,000 new patients
    python -m benchmarks.studies.twin levels --out levels.json   forecast beside truth, each preset
    python -m benchmarks.studies.twin speed --out speed.json     windows per second, what-if

They need nothing beyond the numerical heart. `python -m benchmarks.documents.results` makes the
tables of what they and `benchmarks.studies.guardian_rates` wrote into docs/results.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.clocks import timed
from benchmarks.studies.guardian_rates import rates_table, shifts_table
from benchmarks.studies.level_effects import forecast_effects, slopes, true_effects
from benchmarks.tables import DOCS, make_table
from stepdown.artifacts import provenance
from stepdown.evaluation.compare import paired_difference
from stepdown.evaluation.forecast import (
    METRICS,
    compare_forecasts,
    grow_errors,
    score_forecasts,
    summarize,
    summarize_growth,
)
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import draw_starts
from stepdown.patients.population import PresetName
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.scaling import fit_scaler
from stepdown.records.split import split_patients
from stepdown.signals import LEVELS
from stepdown.twin.calibrated import CalibratedConfig
from stepdown.twin.fit import Twin, TwinConfig, fit_twin, fit_twins
from stepdown.twin.rollout import follow_plans
from stepdown.twin.twins import twin_config

MODELS = ("best", "persistence", "np", "mlp", "clmu", "ssm", "tdt", "rotary")
SHOWN = ("mae", "mae_z", "mae_map", "mae_static", "mae_changing", "trend", "crps", "crps_z")
SHOWN += ("coverage50", "coverage90")
COMPARED = ("mae", "mae_z", "mae_map", "mae_changing", "mae_z_changing", "crps", "crps_z")
SLIDING = HoursConfig(stride=30.0)
GROWN = ("best", "persistence", "tdt")  # whose errors are followed over six hours
FRESH_SEED = 90_001
PRESETS: tuple[PresetName, ...] = ("guarded", "benign", "hidden")
COLUMNS = ("mae", "mae_z", "mae_map", "mae_static", "mae_changing", "crps", "crps_z", "coverage90")
DIFFERENCES = ("mae", "mae_z", "mae_map", "mae_changing", "crps", "crps_z")


@dataclass(frozen=True)
class TwinBenchmark:
    """What was asked for."""

    stage: str
    patients: int
    seeds: int
    small: bool


def main() -> None:
    """Run one stage; its numbers are written with their provenance as they come."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=tuple(STAGES))
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    parser.add_argument("--patients", type=int, default=379)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="small networks, for a quick look")
    asked = parser.parse_args()
    if asked.out is None:
        parser.error("expected --out FILE.")
    config = TwinBenchmark(asked.stage, asked.patients, asked.seeds, asked.small)
    words = f"python -m benchmarks.studies.twin {asked.stage} --patients {asked.patients} "
    words += f"--seeds {asked.seeds}" + " --small" * asked.small
    about = provenance(config=config, command=words)
    start = time.perf_counter()
    for found in STAGES[asked.stage](config):
        about["seconds"] = time.perf_counter() - start
        asked.out.write_text(json.dumps({**found, "about": about}, indent=1), encoding="utf-8")


def cohort_of(preset: PresetName, seed: int, patients: int, minutes=10.0, hours=None):
    """A cohort as `stepdown simulate` makes it; simulated on the CPU, where small steps are."""
    recipe = CohortConfig(patients=patients, preset=preset, minutes=minutes, hours=hours)
    with jax.default_device(jax.devices("cpu")[0]):
        return recipe, *simulate_cohort(recipe, key=jr.split(jr.key(seed), 3)[0])


def parts_of(cohort: Cohort):
    """Hours to fit (sliding by 30 min), to choose and to report by."""
    train, select, test = split_patients(cohort, key=jr.key(0))
    return make_transitions(train, SLIDING), make_transitions(select), make_transitions(test)


def config_of(model: str, small: bool) -> TwinConfig:
    """The settings of a model at full size, or small."""
    return twin_config(model, "small" if small else "paper")


def table(config: TwinBenchmark) -> Iterator[dict]:
    """Every model, five seeds, scored on the test patients of the default cohort."""
    _, cohort, _ = cohort_of("guarded", 7, config.patients)
    train, select, test = parts_of(cohort)
    scaler = fit_scaler(train)
    models, best = {}, []
    patients = len(set(np.asarray(test.patient).tolist()))
    for model in MODELS:
        start = time.perf_counter()
        keys = jr.split(jr.key(100), config.seeds)
        twins, info = fit_twins(train, select, config_of(model, config.small), keys=keys)
        seconds = time.perf_counter() - start
        scores = [
            score_forecasts(t, test, scaler, key=jr.key(200 + i)) for i, t in enumerate(twins)
        ]
        best = best or scores
        rows = [summarize(one) for one in scores]
        models[model] = {
            "fit_seconds": seconds,
            "epochs": np.asarray(info.get("best_epoch", 0)).tolist(),
            "scores": {name: [row[name] for row in rows] for name in SHOWN},
            "trend_base": rows[0]["trend_base"],
            "signals": rows[0]["signals"],
            "best_minus_this": {name: compare_forecasts(best, scores, name) for name in COMPARED},
            "what_if_seconds": _what_if(twins[0], test.state[0]),
        }
        if model in GROWN:
            growth = grow_errors(twins[0], test, key=jr.key(300))
            models[model]["growth"] = summarize_growth(growth)
        print(model, f"{seconds:.1f} s", {k: round(rows[0][k], 4) for k in SHOWN}, flush=True)
        yield {"models": models, "hours": len(test.level), "patients": patients}


def fresh(config: TwinBenchmark) -> Iterator[dict]:
    """Bands of the best twin on patients that nobody has seen, five seeds of the twin."""
    _, cohort, _ = cohort_of("guarded", 7, config.patients)
    train, select, _ = parts_of(cohort)
    number = 2000 if config.patients == 379 else 2 * config.patients
    _, others, _ = cohort_of("guarded", FRESH_SEED, number)
    hours = make_transitions(replace(others, role="test"))
    scaler = fit_scaler(train)
    keys = jr.split(jr.key(100), config.seeds)
    twins, _ = fit_twins(train, select, config_of("best", config.small), keys=keys)
    rows = []
    for index, twin in enumerate(twins):
        scores = score_forecasts(twin, hours, scaler, key=jr.key(400 + index))
        covered, static = METRICS["coverage90"](scores), np.asarray(scores.static)
        level = np.asarray(scores.level)
        rows.append(
            {
                "overall": float(covered.mean()),
                "coverage50": float(METRICS["coverage50"](scores).mean()),
                "changing": float(covered[~static].mean()),
                "by_level": {f"P{i}": float(covered[level == i].mean()) for i in LEVELS},
                "hours": {f"P{i}": int((level == i).sum()) for i in LEVELS},
            }
        )
        print(rows[-1], flush=True)
        yield {"patients": number, "hours": len(hours.level), "seeds": rows}


def levels(config: TwinBenchmark) -> Iterator[dict]:
    """What each level does, twin beside simulator, from the same moments of the test patients."""
    found: dict[str, Any] = {}
    for preset in PRESETS:
        recipe, cohort, latents = cohort_of(preset, 7, config.patients)
        train, select, _ = parts_of(cohort)
        with jax.default_device(jax.devices("cpu")[0]):
            _, others, truth_of = cohort_of(preset, FRESH_SEED, config.patients)
            starts = draw_starts(others, truth_of, 1024, key=jr.key(2))
            truth = true_effects(starts, world_of(recipe))
        found[preset] = {"truth": _describe(truth, truth)}
        for model in ("best", "tdt", "persistence"):
            twin, _ = fit_twin(train, select, config_of(model, config.small), key=jr.key(100))
            effects = forecast_effects(twin, starts, keys=jr.split(jr.key(8), 4))
            found[preset][model] = _describe(effects, truth)
            print(preset, model, found[preset][model], flush=True)
            yield {"presets": found, "starts": 1024}


def _describe(effects, truth) -> dict:
    names = ("flow", "map", "late_map")
    differences = {
        name: paired_difference(
            slopes(getattr(effects, name)), slopes(getattr(truth, name)), truth.row
        )
        for name in names
    }
    return {
        "slope": {name: float(slopes(getattr(effects, name)).mean()) for name in names},
        "slope_minus_truth": differences,
        "value": effects.value.mean(0).tolist(),
    }


def speed(config: TwinBenchmark) -> Iterator[dict]:
    """Windows per second of fitting and of drawing, and the what-if of the app."""
    _, cohort, _ = cohort_of("guarded", 7, config.patients)
    train, select, test = parts_of(cohort)
    found = {}
    for model in ("tdt", "best"):
        chosen = config_of(model, config.small)
        start = time.perf_counter()
        twin, info = fit_twin(train, select, chosen, key=jr.key(100))
        seconds, epochs = time.perf_counter() - start, len(info["held_out"])
        own = chosen.sizes
        members = own.members if isinstance(own, CalibratedConfig) else 1
        found[model] = {
            "fit_seconds": seconds,
            "fit_windows_per_second": epochs * len(train.level) * members / seconds,
            "draws_per_second": _draw_rate(twin, test.state, test.level),
            "what_if_seconds": _what_if(twin, test.state[0]),
        }
        print(model, found[model], flush=True)
        yield found


def _draw_rate(twin: Twin, states, levels, draws: int = 50) -> float:
    """Possible hours drawn per second, 50 for each window."""

    @eqx.filter_jit
    def all_draws(twin, states, levels, key):
        keys = jr.split(key, draws)
        one = lambda s, a: jax.vmap(lambda k: twin(s, a, key=k))(keys).sum()  # noqa: E731
        return jax.vmap(one)(states, levels)

    rows, keys = min(512, len(levels)), map(jr.key, itertools.count())
    times = timed(lambda: all_draws(twin, states[:rows], levels[:rows], next(keys)), 6)
    return rows * draws / min(times[1:])


def _what_if(twin: Twin, state) -> float:
    """Eight levels, 50 draws, six hours."""
    plans = jnp.broadcast_to(jnp.asarray(LEVELS)[:, None], (8, 6))
    keys = map(jr.key, itertools.count())
    times = timed(lambda: follow_plans(twin, state, plans, keys=jr.split(next(keys), 50)), 6)
    return min(times[1:])


# ── the tables of docs/all-results.md ─────────────────────────────────────────────────────────────


def tables() -> dict[str, str]:
    """The tables of docs/all-results.md, by their markers."""
    results = DOCS / "results"
    return {
        name: make(json.loads((results / file).read_text(encoding="utf-8")))
        for name, (file, make) in TABLES.items()
    }


def twins_table(found: dict[str, Any]) -> str:
    """Scores by model, then the best twin minus each other one."""
    models = found["models"]
    rows = [
        [name, *(_mean_sd(one["scores"][key]) for key in COLUMNS)] for name, one in models.items()
    ]
    apart = [
        [name, *(_interval(one["best_minus_this"][key]) for key in DIFFERENCES)]
        for name, one in models.items()
        if name != "best"
    ]
    parts = [
        make_table(["model", *COLUMNS], rows),
        "Best minus the other, 95 % interval by a bootstrap over patients:",
        make_table(["against", *DIFFERENCES], apart),
        _about(found),
    ]
    return "\n\n".join(parts)


def growth_table(found: dict[str, Any]) -> str:
    """Error over six hours."""
    rows = []
    for name, one in found["models"].items():
        for signal, values in one.get("growth", {}).items():
            cells = [f"{x:.2f} ({100 * c:.0f} %)" for x, c in
                     zip(values["mae"], values["coverage90"], strict=True)]  # fmt: skip
            rows.append([name, signal, *cells])
    return make_table(["model", "signal", *(f"{h} h" for h in range(1, 7))], rows)


def fresh_table(found: dict[str, Any]) -> str:
    """Coverage of the 90 % band."""
    seeds = found["seeds"]
    parts = {
        "all hours": [s["overall"] for s in seeds],
        "level changes": [s["changing"] for s in seeds],
    }
    for level in seeds[0]["by_level"]:
        parts[level] = [s["by_level"][level] for s in seeds]
    rows = []
    for name, values in parts.items():
        count = seeds[0]["hours"].get(name, found["hours"] if name == "all hours" else "")
        shown = f"{count:,}" if count else ""
        rows.append([name, f"{100 * np.mean(values):.1f} %", shown])
    heads = ["hours", "coverage of the 90 % band", "number of hours"]
    return f"{make_table(heads, rows)}\n\n{_about(found)}"


def levels_table(found: dict[str, Any]) -> str:
    """Slopes per level and the value of constant levels, forecast beside truth."""
    heads = ["preset", "who", "flow, L/min", "MAP after 1 h, mmHg", "MAP after 6 h, mmHg"]
    heads += ["value of P2, P3, ... P9 over six hours"]
    lines = []
    for preset, rows in found["presets"].items():
        for who, one in rows.items():
            cells = [f"{one['slope'][k]:+.2f}" for k in ("flow", "map", "late_map")]
            if who != "truth":
                cells = [
                    f"{cell} [{one['slope_minus_truth'][k][1]:+.2f}, "
                    f"{one['slope_minus_truth'][k][2]:+.2f}]"
                    for cell, k in zip(cells, ("flow", "map", "late_map"), strict=True)
                ]
            lines.append([preset, who, *cells, " ".join(f"{x:.2f}" for x in one["value"])])
    return f"{make_table(heads, lines)}\n\n{_about(found)}"


def guardians_table(found: dict[str, Any]) -> str:
    """False alarms and what is noticed, over fresh cohorts."""
    count = len(next(iter(found.values())))
    parts = [f"{count} cohorts.", rates_table(found), "AUROC / recall at 5 %:", shifts_table(found)]
    return "\n\n".join(parts)


def _mean_sd(values: list[float]) -> str:
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.3f}"


def _interval(values: list[float]) -> str:
    return f"{values[0]:+.3f} [{values[1]:+.3f}, {values[2]:+.3f}]"


def _about(found: dict[str, Any]) -> str:
    about = found["about"]
    return (
        f"`{about['command']}`, {about['device']}, jax {about['versions']['jax']}, "
        f"Python {about['versions']['python']}, {about['date'][:10]}, {about['seconds']:.0f} s."
    )


STAGES = {
    "table": table,
    "fresh": fresh,
    "levels": levels,
    "speed": speed,
}
TABLES = {
    "twins": ("twins.json", twins_table),
    "growth": ("twins.json", growth_table),
    "fresh": ("fresh.json", fresh_table),
    "levels": ("levels.json", levels_table),
    "guardians": ("guardians.json", guardians_table),
}

if __name__ == "__main__":
    main()
