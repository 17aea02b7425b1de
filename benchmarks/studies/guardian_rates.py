"""What guardians promise and notice: `python -m benchmarks.studies.guardian_rates`.

Freshly simulated cohorts, each split by patient: false alarms on unseen patients at 1, 5 and 20 %
(asked against real, mean and spread between cohorts), AUROC and recall by shift, and refusals of
recorded changes of one or two levels. `--ceiling 20000` adds a flow fitted to so many fresh
patients, scored on the same test patients: what more data would allow. Needs JAX, Equinox, Optax
and NumPy alone.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.tables import make_table
from stepdown.evaluation.guardians import score_shifts
from stepdown.guardian.density import Conditional
from stepdown.guardian.fit import DensityConfig, fit_guardian
from stepdown.guardian.flow import FlowConfig
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.kde import PAPER, KdeConfig
from stepdown.guardian.threshold import RECORDED, Guardian, make_guardian
from stepdown.handover import Transitions
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.hours import make_transitions
from stepdown.records.split import split_patients
from stepdown.training import FitConfig

FIRST = 9001  # seeds of the cohorts, never used elsewhere
SHARE = 0.33  # of log p(s) in a flow between joint and conditional
KERNELS = {
    "kde, weight 1 (the paper's)": DensityConfig(DENSITIES["kde"], settings=PAPER),
    "kde, weight 8": DensityConfig(DENSITIES["kde"]),
    "conditional kde, weight 8": DensityConfig(DENSITIES["conditional"]),
    "kde, weight 4, share 0.5": DensityConfig(DENSITIES["kde"], 0.5, KdeConfig(action_weight=4.0)),
}
BIG = FlowConfig(layers=10, width=256, fit=FitConfig(epochs=60, batch=2048, patience=6, decay=True))

Parts = tuple[Transitions, Transitions, Transitions]


def main() -> None:
    """Print the tables and write all numbers if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=20)
    parser.add_argument("--first", type=int, default=FIRST)
    parser.add_argument("--ceiling", type=int, default=0, help="fresh patients for a larger flow")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}", flush=True)
    ceiling = _fit_ceiling(args.ceiling, args.first - 1) if args.ceiling else None
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in range(args.first, args.first + args.cohorts):
        start = time.perf_counter()
        for name, one in _score_cohort(_parts(seed), seed, ceiling):
            found.setdefault(name, []).append(one)
        print(f"cohort {seed}: {time.perf_counter() - start:.1f} s", flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(rates_table(found), shifts_table(found), sep="\n\n")


def _parts(seed: int, patients: int = 379) -> Parts:
    with jax.default_device(jax.devices("cpu")[0]):  # many small steps: faster there
        cohort, _ = simulate_cohort(CohortConfig(patients=patients), key=jr.key(seed))
        train, select, test = split_patients(cohort, key=jr.key(seed))
        return make_transitions(train), make_transitions(select), make_transitions(test)


def _score_cohort(
    parts: Parts, seed: int, ceiling: Guardian | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    train, select, test = parts
    k_fit, k_shift = jr.split(jr.key(seed))

    def score(guardian: Guardian) -> dict[str, Any]:
        return score_shifts(guardian, test, key=k_shift)[0]

    for name, config in KERNELS.items():
        yield name, score(fit_guardian(train, select, config, RECORDED, key=k_fit)[0])
    flow = DensityConfig(DENSITIES["flow"])
    joint, _ = fit_guardian(train, select, flow, RECORDED, key=k_fit)
    yield "flow", score(joint)
    yield f"flow, share {SHARE}", score(_between(joint, select))
    if ceiling is not None:
        yield "flow of many patients", score(make_guardian(ceiling.density, select))
        yield f"flow of many patients, share {SHARE}", score(_between(ceiling, select))


def _between(joint: Guardian, select: Transitions) -> Guardian:
    """The same flow with a stronger eye for choices; its weights need no second fit."""
    return make_guardian(Conditional(joint.density, None, jnp.asarray(SHARE)), select)


def _fit_ceiling(patients: int, seed: int) -> Guardian:
    start = time.perf_counter()
    train, select, _ = _parts(seed, patients)
    config = DensityConfig(DENSITIES["flow"], settings=BIG)
    guardian, info = fit_guardian(train, select, config, RECORDED, key=jr.key(seed))
    held = np.asarray(info["held_out"])[:, 0]
    print(
        f"ceiling: {len(train.level):,} decisions of {patients:,} patients, best epoch "
        f"{int(np.argmin(held))} of {len(held)}, held-out {held.min():.2f} nats, "
        f"{time.perf_counter() - start:.0f} s",
        flush=True,
    )
    return guardian


def rates_table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Real false alarms beside those asked for: mean, sd between cohorts, range."""
    rates = [row["asked"] for row in next(iter(found.values()))[0]["false_alarms"]]
    heads = ["guardian", *(f"asked {100 * rate:g} %" for rate in rates)]
    heads += ["small changes refused at 5 %", "below the threshold of u (35 %)"]
    rows = []
    for name, cohorts in found.items():
        cells = [name]
        for index in range(len(rates)):
            real = [100 * one["false_alarms"][index]["real"] for one in cohorts]
            cells.append(_spread(real))
        cells.append(_spread([100 * one["small_changes"]["refused"] for one in cohorts]))
        cells.append(_spread([100 * one["threshold_alarms"] for one in cohorts]))
        rows.append(cells)
    return make_table(heads, rows)


def shifts_table(found: dict[str, list[dict[str, Any]]]) -> str:
    """AUROC / recall at 5 %, means over cohorts."""
    shifts = [(row["kind"], row["size"]) for row in next(iter(found.values()))[0]["shifts"]]
    lines = []
    for index, (kind, size) in enumerate(shifts):
        unit = "sd" if kind != "action" else "level" if size == 1 else "levels"
        cells = [f"{kind} {size:g} {unit}"]
        for cohorts in found.values():
            rows = [one["shifts"][index] for one in cohorts]
            mean = [float(np.mean([row[x] for row in rows])) for x in ("auroc", "recall")]
            cells.append(f"{mean[0]:.3f} / {mean[1]:.2f}")
        lines.append(cells)
    return make_table(["shift", *found], lines)


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


if __name__ == "__main__":
    main()
