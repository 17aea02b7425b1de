"""Are the app's words steady, do the risks happen, and what becomes of patients who get them?

    python -m benchmarks.studies.suggestions --run runs/demo --moments 500 --out found.json

The models are those of a finished run, or a twin and a guardian that are fitted to a cohort here
(--twin). The app's own answer (app/whatif.py, without hysteresis) is asked for moments of fresh
patients. Repeats take long: --first and --repeated choose some of the moments, --part one of both.

* Steady: every moment is asked again with the last MAP some thousandths of a mmHg off and with
  other luck. A word is what is said of a level; a moment changes if a level gets two words neither
  of which is "undecided". What is said of the moment as a whole, and the level that is suggested,
  are counted beside it.
* Helpful: of moments inside the limits, the share that gets neither an acceptable level nor advice
  to act or to hold and watch.
* True: the level that is suggested (or to be acted on; else the one in force) is held for six hours
  in the simulator, and so is the one in force: difference of reward and unsafe hours, with 95 %
  intervals over patients. Every level that shows a risk is held in the simulator, too: how often a
  limit was left, by what was said. Both are what the app says of levels: held for six hours.

Needs JAX, Equinox, Optax, NumPy and the app's packages.
"""

import argparse
import datetime
import itertools
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int

from stepdown.app.engine import Engine, make_support
from stepdown.app.limits import JUDGED, Limits
from stepdown.app.recordings import load_run
from stepdown.app.request import Channel, Request
from stepdown.app.whatif import what_if
from stepdown.artifacts import CONFIG, config_from_dict, provenance
from stepdown.evaluation.compare import draw_patients, paired_difference
from stepdown.guardian.fit import DensityConfig, fit_guardian
from stepdown.guardian.guardians import DENSITIES
from stepdown.guardian.kde import KdeConfig
from stepdown.guardian.threshold import RECORDED
from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.episodes import Starts, draw_starts, play
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.metrics import score_episodes
from stepdown.records.split import split_patients
from stepdown.signals import KNOWN, LEVELS, LOWEST, MAP, NAMES
from stepdown.twin.fit import fit_twin
from stepdown.twin.twins import twin_config

FRESH = 70_000  # added to the seed: of the patients to judge by
NEIGHBORS = (0.0, 0.001, 0.005, -0.001, -0.005)  # mmHg, added to the last MAP
SEEDS = (0, 1, 2, 3, 4)  # of the luck
BINS = (0.0, 0.03, 0.07, 0.13, 0.3, 0.6, 1.01)  # of the share of courses that is said
DAY = datetime.datetime(2000, 1, 2, tzinfo=datetime.UTC).isoformat()
RISKS = ("map_low", "hr_out", "puls_low")


class Always(eqx.Module):
    """One level for everybody."""

    level: Int[Array, ""]

    def __call__(self, patient, state, key):
        """The level."""
        return self.level


def main() -> None:
    """Fit, ask, play, print, write."""
    asked = arguments()
    begun = time.perf_counter()
    config = CohortConfig(asked.patients, preset=asked.preset)
    if asked.run is None:
        engine = fit_engine(config, asked.seed, asked.twin, asked.size)
    else:
        engine, config = load_run(asked.run).engine, config_of(asked.run)
    others = replace(config, patients=asked.fresh)
    cohort, latents = simulate_cohort(others, key=jr.key(asked.seed + FRESH))
    starts = draw_starts(cohort, latents, asked.moments, key=jr.key(asked.seed))
    requests = [request_of(np.asarray(state)) for state in starts.state]
    found: dict[str, Any] = {
        "about": provenance(config=config, seed=asked.seed),
        "model": engine.model if asked.run else {"twin": asked.twin, "size": asked.size},
        "policy": engine.method,
        "moments": len(requests),
        "fresh_patients": asked.fresh,
    }
    if asked.part != "steady":
        found |= helpful_and_true(engine, requests, starts, config)
        say(found, asked.out)
    if asked.part != "truth":
        some = requests[asked.first : asked.first + asked.repeated]
        found["steady"] = {"first": asked.first} | steadiness(engine, some)
    found["seconds"] = round(time.perf_counter() - begun)
    say(found, asked.out)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the numbers")
    parser.add_argument("--run", type=Path, help="finished run of simulated patients")
    parser.add_argument("--part", default="both", choices=("both", "truth", "steady"))
    parser.add_argument("--first", type=int, default=0, help="moment from which on to repeat")
    parser.add_argument("--twin", default="best")
    parser.add_argument("--size", default="small", choices=("small", "paper"))
    parser.add_argument("--preset", default="guarded")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--patients", type=int, default=379)
    parser.add_argument("--fresh", type=int, default=200)
    parser.add_argument("--moments", type=int, default=500)
    parser.add_argument("--repeated", type=int, default=500, help="of these moments, repeated")
    return parser.parse_args()


def helpful_and_true(
    engine: Engine, requests: list[Request], starts: Starts, config: CohortConfig
) -> dict[str, Any]:
    """What is said of every moment once, and what becomes of the patients."""
    answers = [what_if(engine, one) for one in requests]
    return {
        "kinds": dict(Counter(one["advice"]["kind"] for one in answers)),
        "codes": dict(Counter(code for one in answers for code in codes_of(one))),
        "courses": draws_of(answers),
        "helpful": helpful(answers),
        "truth": in_truth(answers, starts, world_of(config)),
    }


def config_of(run: Path) -> CohortConfig:
    """How the patients of a run were simulated; fresh ones are drawn in the same way."""
    stored = json.loads((run / "cohort" / CONFIG).read_bytes())
    return config_from_dict(stored, CohortConfig, str(run / "cohort" / CONFIG))


def fit_engine(config: CohortConfig, seed: int, twin: str, size: Any) -> Engine:
    """What the app would load of a run."""
    cohort, _ = simulate_cohort(config, key=jr.key(seed))
    train, select, _ = split_patients(cohort, key=jr.key(0))
    hours, chosen = make_transitions(train), make_transitions(select)
    asked = twin_config(twin, size)
    sliding = make_transitions(train, HoursConfig(stride=asked.kind.stride))
    fitted, _ = fit_twin(sliding, chosen, asked, key=jr.key(seed))
    density = DensityConfig(DENSITIES["kde"], 0.5, KdeConfig(action_weight=4.0))
    guardian, _ = fit_guardian(hours, chosen, density, RECORDED, key=jr.key(0))
    scaler = guardian.density.pairs.scaler
    support = make_support(hours, chosen, scaler, train.patient)
    return Engine(fitted, guardian, support, table=config.profile, model={"sha256": "-"})


def request_of(state: np.ndarray, change: float = 0.0) -> Request:
    """The question of a bedside at the end of this hour; `change` is added to the last MAP."""
    signals = np.asarray(state[:, : len(NAMES)], float)
    signals[-1, MAP] += change
    channels = {
        name: Channel(KNOWN[name].ucum, tuple(float(x) for x in signals[:, i]))
        for i, name in enumerate(NAMES)
        if np.isfinite(signals[:, i]).all()
    }
    level = int(state[-1, -1])
    return Request("cp-smartassist", level, DAY, channels, p_levels=(level,) * len(signals))


def words_of(answer: dict[str, Any]) -> dict[int, str]:
    """What is said of each level."""
    return {one["p"]: one["word"] for one in answer["candidates"]}


def codes_of(answer: dict[str, Any]) -> list[str]:
    """Refusals of the state, and of levels within reach."""
    levels = [
        code["code"]
        for one in answer["candidates"]
        for code in one["refusals"]
        if answer["status"] == "ok" and code["scope"] == "candidate" and not one["gates"]
    ]
    return [one["code"] for one in answer["refusals"]] + levels


def draws_of(answers: list[dict[str, Any]]) -> dict[str, float]:
    """How many courses a level took."""
    drawn = [one["risk"]["draws"] for x in answers for one in x["candidates"] if one["risk"]]
    return {"mean": float(np.mean(drawn)), "most": int(np.max(drawn))} if drawn else {}


def helpful(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Of moments inside the limits, those that get nothing; and who is told undecided."""
    inside = [
        one for one in answers
        if all(one["now"][NAMES[i]]["inside"] for i in JUDGED)
    ]  # fmt: skip
    nothing = [one for one in inside if one["advice"]["kind"] in ("none", "undecided")]
    undecided = [one for one in answers if one["advice"]["kind"] == "undecided"]
    shown = [
        x
        for one in answers
        for x in one["candidates"]
        if x["word"] not in ("unjudged", "forbidden")
    ]
    return {
        "inside": len(inside),
        "nothing_share": len(nothing) / max(len(inside), 1),
        "refused_share": float(np.mean([one["status"] == "refused" for one in inside])),
        "no_acceptable_share": float(np.mean([not one["acceptable"] for one in inside])),
        "undecided_moments_share": len(undecided) / len(answers),
        "undecided_levels_share": float(np.mean([x["word"] == "undecided" for x in shown])),
    }


def steadiness(engine: Engine, requests: list[Request]) -> dict[str, Any]:
    """Ask again, hardly changed and with other luck."""
    changed = Counter()
    for request in requests:
        near = [what_if(engine, nudged(request, x)) for x in NEIGHBORS]
        lucky = [what_if(replace(engine, luck=seed), request) for seed in SEEDS[1:]]
        for name, some in (("neighbors", near), ("seeds", [near[0], *lucky])):
            changed[name, "words"] += contradict([words_of(one) for one in some])
            kinds = [{0: one["advice"]["kind"]} for one in some]
            changed[name, "advice"] += contradict(kinds)
            changed[name, "suggested"] += len({one["suggested"] for one in some}) > 1
            sure = [words_of(one) for one in some]
            changed[name, "any_word"] += any(one != sure[0] for one in sure)
    return {
        "moments": len(requests),
        "share_changed": {
            name: {
                what: count / len(requests) for (one, what), count in changed.items() if one == name
            }
            for name in ("neighbors", "seeds")
        },
    }


def contradict(said: list[dict[int, str]]) -> bool:
    """Whether one thing got two words that are both not "undecided"."""
    return any(len({one[x] for one in said} - {"undecided"}) > 1 for x in said[0])


def nudged(request: Request, change: float) -> Request:
    """The same moment with another last MAP."""
    *before, last = request.channels["map"].values
    values = (*before, None if last is None else last + change)
    channels = dict(request.channels) | {"map": Channel(request.channels["map"].unit, values)}
    return replace(request, channels=channels)


def in_truth(answers: list[dict[str, Any]], starts: Starts, world: Any) -> dict[str, Any]:
    """Every level held for six hours, from every moment."""
    bounds = np.array([Limits().bounds()[column] for column in JUDGED])
    scores, left = [], []
    for p in LEVELS:
        episodes = play(Always(jnp.asarray(p)), starts, world)
        told = score_episodes(episodes)
        scores.append({x: np.asarray(told[x], float) for x in ("reward", "unsafe_hours")})
        signals = np.asarray(episodes.state)[:, 1:, :, list(JUDGED)]  # (n, hours, steps, judged)
        inside: np.ndarray = (signals > bounds[:, 0]) & (signals < bounds[:, 1])
        alive: np.ndarray = np.all(np.asarray(episodes.alive), axis=1, keepdims=True)
        out = ~np.all(inside, axis=(1, 2)) | ~alive
        left.append(out)  # (n, judged)
    row = np.asarray(starts.row)
    good = [i for i, one in enumerate(answers) if one["status"] == "ok"]
    held = [answers[i]["p_now"] for i in good]
    taken = [
        answers[i]["suggested"] or answers[i]["advice"]["p"] or p
        for i, p in zip(good, held, strict=True)
    ]
    found: dict[str, Any] = {
        "answered": len(good),
        "changes": sum(a != b for a, b in zip(held, taken, strict=True)),
    }
    for name in ("reward", "unsafe_hours"):
        ours, theirs = (
            np.array([scores[p - LOWEST][name][i] for i, p in zip(good, levels, strict=True)])
            for levels in (taken, held)
        )
        found[name] = paired_difference(ours, theirs, row[good])
    rows = [
        (max(one["risk"][x] for x in RISKS) / one["risk"]["draws"], i, one)
        for i in good
        for one in answers[i]["candidates"]
        if one["risk"] and not one["gates"]
    ]
    found["risks"] = [
        told_risk(low, high, rows, left, row) for low, high in itertools.pairwise(BINS)
    ]
    return found


def told_risk(low, high, rows, left, patients) -> dict[str, Any]:
    """Of levels whose risk was said to lie in a bin: how often that limit was left."""
    said = [(share, i, one) for share, i, one in rows if low <= share < high]
    if not said:
        return {"said": [low, high], "levels": 0}
    happened = np.array([
        left[one["p"] - LOWEST][i][int(np.argmax([one["risk"][x] for x in RISKS]))]
        for _, i, one in said
    ], float)  # fmt: skip
    weights = draw_patients(patients[[i for _, i, _ in said]])
    drawn = np.sort(np.asarray(weights) @ happened)
    ends = drawn[[int(0.025 * len(drawn)), int(0.975 * len(drawn)) - 1]]
    return {
        "said": [low, high],
        "levels": len(said),
        "mean_said": float(np.mean([share for share, *_ in said])),
        "happened": [float(happened.mean()), *map(float, ends)],
    }


def say(found: dict[str, Any], out: Path) -> None:
    """Write, and print what was found."""
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    told = {name: x for name, x in found.items() if name != "about"}
    print(json.dumps(told, indent=1), flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
