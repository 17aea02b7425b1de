"""What is lost without some signals: filled by one model, or refitted?

    python -m benchmarks.studies.missing_signals --out docs/results/missing_signals.json

Twin, guardian and policy with 12, 11, 9 and 7 signals (problem/filling.py), on the same fresh
patients. "Filled": fitted once on all signals, asked with fewer. "Refitted": fitted on patients who
have no more than these. `python -m benchmarks.documents.results` makes the tables. Every number is
a mean with its 95 % interval by a bootstrap over patients, or a paired difference to all signals.
Needs JAX, Equinox, Optax and NumPy alone.
"""

import argparse
import functools
import json
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from benchmarks.tables import DOCS, make_table
from stepdown.artifacts import provenance
from stepdown.evaluation.compare import draw_patients, estimate, middle
from stepdown.evaluation.forecast import METRICS, score_forecasts
from stepdown.evaluation.guardians import auroc, shift_levels
from stepdown.guardian.filled import fill_guardian, guardian_of
from stepdown.guardian.fit import DensityConfig, fit_guardian
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.threshold import Guardian, log_densities
from stepdown.handover import Policy, Transitions
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import Mode, Starts, draw_starts, play
from stepdown.patients.population import World
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.filled import FilledPolicy
from stepdown.policies.networks import LearnedPolicy
from stepdown.problem.filling import SUBSETS
from stepdown.problem.hours import HoursConfig, keep_signals, make_transitions
from stepdown.problem.metrics import score_episodes
from stepdown.problem.scaling import fit_scaler
from stepdown.records.split import split_patients
from stepdown.signals import FLOW, HR, MAP, NAMES, PULSATILITY
from stepdown.training import FitConfig
from stepdown.twin.filled import FilledTwin
from stepdown.twin.fit import fit_twin
from stepdown.twin.twins import twin_config

SEED, FRESH = 1901, 91_901  # of the patients to fit on, and of those to judge by
COMMON = (MAP, FLOW, HR, PULSATILITY)  # signals that all subsets hold and whose forecast counts
SWAP = 2  # levels by which a choice is moved
RATE = 0.05  # of decisions that a guardian is asked to refuse
DRAWS = 500  # of patients, for an AUROC, which is no mean
CLONING = BCConfig(widths=(64, 64), fit=FitConfig(epochs=40, batch=256, patience=6))
KDE = DensityConfig(DENSITIES["kde"])
FILE = DOCS / "results/missing_signals.json"
FILLED, ANEW, REFITTED = "filled", "filled, scale anew", "refitted"

Number = dict[str, float]
Scored = dict[str, np.ndarray]


@dataclass(frozen=True)
class MissingStudy:
    """What was asked for."""

    patients: int = 160  # to fit on: train and select
    fresh: int = 120  # to judge by
    hours: int = 2000  # of the fresh patients, drawn
    starts: int = 512  # of the episodes


@dataclass(frozen=True)
class Ward:
    """Patients to fit on, and others to judge by."""

    train: Transitions
    sliding: Transitions  # half-hourly, for the twin
    select: Transitions
    test: Transitions
    starts: Starts
    world: World


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=FILE, help="JSON file for the numbers")
    for name, default in vars(MissingStudy()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    config = MissingStudy(asked.patients, asked.fresh, asked.hours, asked.starts)
    command = f"python -m benchmarks.studies.missing_signals --out {asked.out}"
    about = provenance(config=config, seed=SEED, command=command)
    start = time.perf_counter()
    ward = make_ward(config)
    found: dict[str, Any] = {"about": about}
    for name, measure in (("guardian", guardians), ("policy", policies), ("twin", twins)):
        found[name] = measure(ward)
        about["seconds"] = time.perf_counter() - start
        print(f"{name}: {about['seconds']:.0f} s", flush=True)
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, table in tables_of(found).items():
        print(name, table, sep="\n\n", end="\n\n")


def make_ward(config: MissingStudy) -> Ward:
    """Version 2 of the patients, guarded."""
    recipe = CohortConfig(patients=config.patients)
    cohort, _ = simulate_cohort(recipe, key=jr.key(SEED))
    train, select, _ = split_patients(cohort, (0.7, 0.25, 0.05), key=jr.key(SEED))
    fresh, latents = simulate_cohort(replace(recipe, patients=config.fresh), key=jr.key(FRESH))
    test = make_transitions(replace(fresh, role="test"))
    count = min(config.hours, len(test.level))
    rows = np.random.default_rng(FRESH).choice(len(test.level), count, replace=False)
    return Ward(
        train=make_transitions(train),
        sliding=make_transitions(train, HoursConfig(stride=30.0)),
        select=make_transitions(select),
        test=jax.tree.map(lambda x: x[np.sort(rows)], test),
        starts=draw_starts(fresh, latents, config.starts, key=jr.key(FRESH)),
        world=world_of(recipe),
    )


# ── twins ────────────────────────────────────────────────────────────────────────────────────────


def twins(ward: Ward) -> list[dict[str, Any]]:
    """Errors, CRPS and coverage of MAP, HR, pulsatility and flow over the coming hour."""
    scaler = replace(fit_scaler(ward.train), present=COMMON)
    config = twin_config("best", "small")

    @functools.cache
    def fitted(names: tuple[str, ...]) -> FilledTwin:
        parts = keep_signals(ward.sliding, names), keep_signals(ward.select, names)
        return FilledTwin(fit_twin(*parts, config, key=jr.key(SEED))[0])

    def score(twin: FilledTwin, names: tuple[str, ...]) -> Scored:
        test = keep_signals(ward.test, names)
        found = score_forecasts(twin, test, scaler, key=jr.key(FRESH))
        return {name: METRICS[name](found) for name in ("mae_z", "crps_z", "coverage90")}

    return compare(fitted, {FILLED: score}, score, np.asarray(ward.test.patient))


# ── guardians ────────────────────────────────────────────────────────────────────────────────────


def guardians(ward: Ward) -> list[dict[str, Any]]:
    """Recorded choices told from moved ones, and recorded ones refused at 5 %."""
    moved, possible = shift_levels(ward.test.level, SWAP, key=jr.key(FRESH))
    kept = np.asarray(possible)
    patient = np.asarray(ward.test.patient)

    @functools.cache
    def fitted(names: tuple[str, ...]) -> Guardian:
        parts = keep_signals(ward.train, names), keep_signals(ward.select, names)
        return fit_guardian(*parts, KDE, key=jr.key(SEED))[0]

    def score(guardian: Guardian, names: tuple[str, ...]) -> Scored:
        states = keep_signals(ward.test, names).state
        recorded = log_densities(guardian.density, states, ward.test.level)
        others = log_densities(guardian.density, states, moved)
        refused = np.asarray(guardian.rank(jnp.asarray(recorded))) <= RATE
        return {"pairs": np.stack([recorded, others]), "refused": refused.astype(float)}

    ways = {
        FILLED: lambda one, names: score(fill_guardian(one), names),
        ANEW: lambda one, names: score(guardian_of(one, ward.select, names), names),
    }
    rows = [
        row | {"auroc": _auroc(pairs, kept, patient)}
        for row, pairs in _pairs_apart(compare(fitted, ways, score, patient))
    ]
    base = rows[0]["auroc"]["draws"]
    for row in rows:
        draws = row["auroc"].pop("draws")
        row["auroc_less"] = {"mean": row["auroc"]["mean"] - rows[0]["auroc"]["mean"]}
        row["auroc_less"] |= dict(zip(("low", "high"), middle(draws - base), strict=True))
    return rows


def _pairs_apart(rows: list[dict[str, Any]]):
    for row in rows:
        pairs = row.pop("pairs")
        row.pop("pairs_less", None)
        yield row, pairs


def _auroc(pairs: np.ndarray, kept: np.ndarray, patient: np.ndarray) -> dict[str, Any]:
    """Of recorded against moved choices, with draws of whole patients."""
    recorded, moved = pairs
    patients, index = np.unique(patient, return_inverse=True)
    rows = [np.flatnonzero(index == i) for i in range(len(patients))]
    chosen = np.random.default_rng(0).integers(len(patients), size=(DRAWS, len(patients)))
    draws = []
    for drawn in chosen:
        one = np.concatenate([rows[i] for i in drawn])
        draws.append(auroc(recorded[one], moved[one[kept[one]]]))
    low, high = middle(np.asarray(draws))
    return {
        "mean": auroc(recorded, moved[kept]),
        "low": low,
        "high": high,
        "draws": np.asarray(draws),
    }


# ── policies ─────────────────────────────────────────────────────────────────────────────────────


class Lacking(eqx.Module):
    """A policy whose patients have only some of the signals."""

    policy: Policy
    gone: Bool[Array, " columns"]

    def __call__(self, state: Float[Array, "steps columns"], /) -> Float[Array, " 8"]:
        """Weigh the levels without looking at what is not there."""
        return self.policy(jnp.where(self.gone[None], jnp.nan, state))


def policies(ward: Ward) -> list[dict[str, Any]]:
    """How often cloning chooses as with all signals, and its reward in the patients themselves."""
    patient, row = np.asarray(ward.test.patient), np.asarray(ward.starts.row)

    @functools.cache
    def fitted(names: tuple[str, ...]) -> LearnedPolicy:
        parts = keep_signals(ward.train, names), keep_signals(ward.select, names)
        return train_bc(*parts, CLONING, key=jr.key(SEED))[0]

    whole = _choices(_lacking(fitted(NAMES), NAMES), ward.test)

    def agreement(policy: LearnedPolicy, names: tuple[str, ...]) -> Scored:
        chosen = _choices(_lacking(policy, names), ward.test)
        recorded = np.asarray(ward.test.level)
        return {"same": (chosen == whole) * 1.0, "as_recorded": (chosen == recorded) * 1.0}

    def value(policy: LearnedPolicy, names: tuple[str, ...]) -> Scored:
        episodes = play(Mode(_lacking(policy, names)), ward.starts, ward.world)
        return {"reward": np.asarray(score_episodes(episodes)["reward"], float)}

    known = compare(fitted, {FILLED: agreement}, agreement, patient)
    played = compare(fitted, {FILLED: value}, value, row)
    return [one | other for one, other in zip(known, played, strict=True)]


def _lacking(policy: LearnedPolicy, names: tuple[str, ...]) -> Lacking:
    return Lacking(
        FilledPolicy(policy), jnp.asarray([*(name not in names for name in NAMES), False])
    )


@eqx.filter_jit
def _modes(policy: Policy, states: Float[Array, "n steps columns"]):
    return jnp.argmax(jax.vmap(policy)(states), axis=1) + 2


def _choices(policy: Policy, hours: Transitions) -> np.ndarray:
    return np.asarray(_modes(policy, hours.state))


# ── the comparison and its tables ────────────────────────────────────────────────────────────────


def compare(
    fitted: Callable[[tuple[str, ...]], Any],
    ways: dict[str, Callable[..., Scored]],
    score: Callable[..., Scored],
    patient: np.ndarray,
) -> list[dict[str, Any]]:
    """A row for each subset and way: means, and paired differences to all signals."""
    weights = draw_patients(patient)
    first = fitted(NAMES)
    base = score(first, NAMES)
    rows = [_row(12, "all signals", base, base, weights)]
    for count, names in list(SUBSETS.items())[1:]:
        found = {way: measure(first, names) for way, measure in ways.items()}
        found[REFITTED] = score(fitted(names), names)
        rows += [_row(count, way, one, base, weights) for way, one in found.items()]
        print(count, {way: _brief(one) for way, one in found.items()}, flush=True)
    return rows


def _brief(scored: Scored) -> dict[str, float]:
    return {name: round(float(x.mean()), 4) for name, x in scored.items()}


def _row(count: int, way: str, own: Scored, base: Scored, weights: np.ndarray) -> dict[str, Any]:
    row: dict[str, Any] = {"signals": count, "way": way}
    for name, values in own.items():
        if values.ndim > 1:
            row[name] = values
            continue
        row[name] = _plain(estimate(values[None].astype(float), weights))
        row[f"{name}_less"] = _plain(estimate((values - base[name])[None], weights))
    return row


def _plain(found: Number) -> Number:
    return {name: found[name] for name in ("mean", "low", "high")}


COLUMNS = {  # of the tables: name, head, digits, factor
    "twin": (
        ("mae_z", "error, sd", 3, 1),
        ("mae_z_less", "more than with all", 3, 1),
        ("crps_z", "CRPS, sd", 3, 1),
        ("crps_z_less", "more than with all", 3, 1),
        ("coverage90", "inside the 90 % band, %", 1, 100),
    ),
    "guardian": (
        ("auroc", "AUROC", 3, 1),
        ("auroc_less", "against all", 3, 1),
        ("refused", "recorded decisions refused at 5 %, %", 1, 100),
    ),
    "policy": (
        ("same", "choices as with all signals, %", 1, 100),
        ("as_recorded", "choices as recorded, %", 1, 100),
        ("reward", "reward in the patients", 3, 1),
        ("reward_less", "against all", 3, 1),
    ),
}


def tables_of(found: dict[str, Any]) -> dict[str, str]:
    """A table for each kind of model, by the name of its marker."""
    made = {}
    for kind, columns in COLUMNS.items():
        heads = ["signals", "way", *(head for _, head, _, _ in columns)]
        lines = [
            [str(row["signals"]), row["way"], *(_cell(row, *column) for column in columns)]
            for row in found[kind]
        ]
        made[f"missing {kind}"] = make_table(heads, lines)
    return made


def _cell(row: dict[str, Any], name: str, _: str, digits: int, factor: float) -> str:
    compared = name.endswith("_less")
    if row["way"] == "all signals" and (compared or name == "same"):
        return ""
    sign = "+" if compared else ""
    mean, low, high = (f"{factor * row[name][x]:{sign}.{digits}f}" for x in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]".replace("-", "−")


def tables() -> dict[str, str]:
    """The tables of docs/all-results.md, by their markers."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    about = found["about"]
    size = about["config"]
    words = (
        f"`{about['command']}`, one shared CPU core, jax {about['versions']['jax']}, "
        f"{about['date'][:10]}, {about['seconds']:.0f} s; {size['patients']} patients of seed "
        f"{SEED} to fit on, {size['fresh']} of seed {FRESH} to judge by."
    )
    return tables_of(found) | {"missing about": textwrap.fill(words, 120)}


if __name__ == "__main__":
    main()
