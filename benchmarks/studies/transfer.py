"""Is the planner worse than the clinicians elsewhere, and does the guardian notice?

    python -m benchmarks.studies.transfer --part test --out docs/results/transfer.jsonl

Cohorts, settings and rows stand in `transfer.json` beside this file, committed before any result.
For each cohort the ridge twin and a guardian of kernels are fitted to its train and select patients
(all have the pump `cp`). Then other patients are drawn in every setting of evaluation/transfer.py,
and two settings are added in which the world is the same and the pressure line reads wrongly. The
planner, with and without the guardian's gate, decides six hours for them in the simulator itself,
beside the clinicians of that place. What the guardian refuses there, with a p-value of at most 5 %,
is told of the levels that the clinicians set and of those that the planner would set, at the starts
and for changes of level alone. A line of JSON for each cohort; a second call goes on where the
first ended. `python -m benchmarks.documents.results` writes the tables. Needs JAX, Equinox, Optax
and NumPy alone.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.cohorts import FRESH, Line, add_lines, read_lines
from benchmarks.studies.independent import SAME as SAME_LINE
from benchmarks.studies.independent import Models, cohorts_of, tell
from benchmarks.tables import DOCS, make_table, student
from stepdown.evaluation.compare import holm, over_cohorts
from stepdown.evaluation.judging import (
    draw_judged_starts,
    judge_in_patients,
    judge_team,
)
from stepdown.evaluation.transfer import SAME, SHIFTS, simulate_shifted
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Judged, Policy
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.patients.episodes import Starts
from stepdown.policies.planner import Planner, gated
from stepdown.policies.rules import RULES
from stepdown.signals import DBP, LEVEL, MAP, PULSATILITY, SBP

DESIGN, FILE = Path(__file__).with_name("transfer.json"), DOCS / "results/transfer.jsonl"
Fault = Literal["damped line", "high line"]
FAULTS: dict[Fault, str] = {
    "damped line": "a damped pressure line: SBP and DBP half as far from MAP, pulsatility halved",
    "high line": "a transducer 27 cm too low: MAP, SBP and DBP read 20 mmHg too high",
}


def read_design() -> dict[str, Any]:
    """What was fixed before the results."""
    return json.loads(DESIGN.read_text(encoding="utf-8"))


class Misreads(eqx.Module):
    """A policy that sees the patient through a wrong pressure line."""

    policy: Policy
    fault: Fault = eqx.field(static=True)

    def __call__(self, state, /):
        """What the policy chooses for what it sees."""
        return self.policy(misread(state, self.fault))


def misread(states: Any, fault: Fault) -> Any:
    """What the line shows; of one state or many."""
    states = jnp.asarray(states)
    pressure, sides = states[..., MAP][..., None], [SBP, DBP]
    if fault == "high line":
        return states.at[..., jnp.array([MAP, *sides])].add(20.0)
    near = 0.5 * (states[..., jnp.array(sides)] + pressure)
    return states.at[..., jnp.array(sides)].set(near).at[..., PULSATILITY].multiply(0.5)


def judge_cohort(preset: Any, version: Any, seed: int, small: bool) -> Line:
    """Fit at home; judge in every setting."""
    begun, design = time.perf_counter(), read_design()
    sizes = design["tiny" if small else "sizes"]
    config = CohortConfig(sizes["patients"], preset=preset, version=version, hours=sizes["hours"])
    cohort, _ = simulate_cohort(config, key=jr.split(jr.key(seed), 3)[0])
    models = Models(cohort, design, version, small)
    planner, guardian = models.planner("ridge"), models.model("kde")
    rows = {
        "hold": RULES["hold"],
        "planner": planner,
        "gated": gated(planner, guardian, design["refused"]),
    }
    fresh = CohortConfig(sizes["fresh"], preset=preset, version=version, hours=sizes["hours"])
    places: dict[str, Any] = {}
    for shift in SHIFTS:
        others, latents, world = simulate_shifted(fresh, shift, key=jr.key(FRESH + seed))
        starts = draw_judged_starts(others, latents, sizes["episodes"], key=jr.key(1))
        judged = {"clinicians": judge_team(starts, world)}
        judged |= {name: judge_in_patients(one, starts, world) for name, one in rows.items()}
        places[shift.name] = told(judged, planner, guardian, starts, starts.state, design)
        if shift is not SAME:
            continue
        for fault in FAULTS:
            other = {x: judged[x] for x in ("clinicians", "hold")}
            for name in ("planner", "gated"):
                other[name] = judge_in_patients(Misreads(rows[name], fault), starts, world)
            seen = misread(starts.state, fault)
            places[fault] = told(other, planner, guardian, starts, seen, design)
    seconds = round(time.perf_counter() - begun, 1)
    line = {"preset": preset, "version": version, "seed": seed, "places": places}
    return line | {"seconds": {"all": seconds}}


def told(
    judged: dict[str, Judged],
    planner: Planner,
    guardian: Guardian,
    starts: Starts,
    seen: Any,
    design: dict[str, Any],
) -> dict[str, Any]:
    """Every row minus the clinicians of the place, and what the guardian refuses at the starts."""
    now = np.round(np.asarray(starts.state)[:, -1, LEVEL]).astype(int)
    levels = {name: one.level[0, :, 1] for name, one in judged.items() if name != "gated"}
    refused = {}
    for name in ("clinicians", "hold", "planner"):
        own = np.asarray(levels[name], np.int32)
        p = np.asarray(_p_values(guardian, jnp.asarray(seen), jnp.asarray(own)))
        strange, moved = p <= design["refused"], own != now
        refused[name] = {
            "all": float(strange.mean()),
            "changes": float(strange[moved].mean()) if moved.any() else None,
            "moved": float(moved.mean()),
        }
    return {
        "rows": {name: tell(one, judged["clinicians"]) for name, one in judged.items()},
        "refused": refused,
    }


def tables() -> dict[str, str]:
    """The tables of docs/all-results.md, by their markers."""
    lines = read_lines(FILE)
    return {"transfer": _against_clinicians(lines), "refusals": _refusals(lines)}


def _against_clinicians(lines: list[Line]) -> str:
    """Reward and unsafe hours minus those of the clinicians of the place."""
    places = list(lines[0]["places"])
    adjusted = holm([over_cohorts(_gains(lines, x, "planner", "reward"))["p"] for x in places])
    rows = []
    for place, chance in zip(places, adjusted, strict=True):
        cells = [place, student(_gains(lines, place, "planner", "reward"))]
        cells += ["< 0.001" if chance < 0.001 else f"{chance:.3f}"]
        cells += [student(_gains(lines, place, "planner", "unsafe_hours"), 1)]
        for name in ("gated", "hold"):
            cells += [student(_gains(lines, place, name, "reward"))]
            cells += [student(_gains(lines, place, name, "unsafe_hours"), 1)]
        rows.append(cells)
    heads = ["place", "planner, reward", "p, Holm", "planner, unsafe hours"]
    heads += ["gated, reward", "gated, unsafe hours", "holding, reward", "holding, unsafe hours"]
    return make_table(heads, rows)


def _gains(lines: list[Line], place: str, name: str, metric: str) -> list[float]:
    """By cohort; unsafe hours in points."""
    scale = 100 if metric == "unsafe_hours" else 1
    return [scale * x["places"][place]["rows"][name][metric]["gain"][0] for x in lines]


def _refusals(lines: list[Line]) -> str:
    """What the guardian refuses at the starts, in %; the lowest and highest cohort."""
    asked = (
        ("clinicians", "all"),
        ("planner", "moved"),
        ("planner", "all"),
        ("planner", "changes"),
    )
    rows = []
    for place in lines[0]["places"]:
        told = [[x["places"][place]["refused"][who][what] for x in lines] for who, what in asked]
        shares = [[100 * x for x in own if x is not None] for own in told]
        rows.append([place, *(f"{np.mean(x):.0f} ({min(x):.0f} to {max(x):.0f})" for x in shares)])
    heads = ["place", "of what clinicians set, %", "starts where the planner changes the level, %"]
    return make_table([*heads, "of what it sets, %", "of its changes, %"], rows)


@eqx.filter_jit
def _p_values(guardian: Guardian, states, levels):
    return guardian.p_values(states, levels)


def main() -> None:
    """Judge the cohorts of a part of the design."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("development", "test"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each cohort")
    parser.add_argument(
        "--workers", type=int, help="processes side by side; default: this one alone"
    )
    parser.add_argument("--most", type=int, help="of the cohorts, the first so many")
    parser.add_argument(
        "--tiny", action="store_true", help="a few small patients, to try the program"
    )
    asked = parser.parse_args()
    cohorts = cohorts_of(read_design(), asked.part)[: asked.most]
    tasks = [one | {"small": asked.tiny} for one in cohorts]
    add_lines(asked.out, tasks, judge_cohort, same=SAME_LINE, workers=asked.workers)


if __name__ == "__main__":
    main()
