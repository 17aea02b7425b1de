"""What charts lose against a console's recording, and what it is worth to record.

    python -m benchmarks.studies.charted --out docs/results/charted.jsonl
    python -m benchmarks.documents.results

Three questions, each answered by simulated patients, whose truth is known:

* `charts`: a planner in the ridge twin and cloning, fitted to console recordings and to the same
  patients as charted (`patients/charting.py`, read as `stepdown import` reads charts), and decided
  by what each of them shows: a policy of charts sees charts. Where a chart lacks what is required,
  the level is held. Beside it, how the charted hour is rewarded and called stable.
* `columns`: the planner and the error of its twin with more and more signals of the console, and
  with the hidden drugs (`stepdown simulate --drugs`).
* `history`: a linear twin of hourly numbers with one to six hours behind it, planned in by trying
  each level near; a state of stepdown holds one hour, so this is measured here alone.

Confounding is how far the twin's effect of one level more, held for six hours, on MAP lies from the
true one. Development seeds alone; nothing here was used to choose anything.
"""

import argparse
import json
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from benchmarks.cohorts import add_lines, read_lines
from benchmarks.studies.level_effects import forecast_effects, slopes, true_effects
from benchmarks.tables import DOCS, make_table
from stepdown.evaluation.compare import paired_difference
from stepdown.evaluation.judging import LookAhead
from stepdown.handover import Cohort, Episodes, Policy, Transitions
from stepdown.patients.charting import (
    GROUPS,
    ChartingConfig,
    chart_cohort,
    drug_scores,
    record_drugs,
)
from stepdown.patients.cohort import (
    CohortConfig,
    Latents,
    in_groups,
    play_hour,
    simulate_cohort,
    tick_keys,
    world_of,
)
from stepdown.patients.episodes import OwnTeam, Starts, draw_starts, play
from stepdown.patients.population import PresetName, World
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.planner import Planner, PlannerConfig
from stepdown.problem.clinical import normalized_reward, stable_by_limits
from stepdown.problem.hours import HoursConfig, cut_stays, keep_signals, make_transitions
from stepdown.problem.metrics import score_episodes
from stepdown.records import charted_tables
from stepdown.records.charted import ChartedConfig, make_charted
from stepdown.records.mimic import read_mimic
from stepdown.records.pieces import unwatched
from stepdown.records.split import split_patients
from stepdown.report.grids import PROSE
from stepdown.signals import HIGHEST, HR, LEVELS, LOWEST, MAP, NAMES, PULSATILITY, REQUIRED
from stepdown.training import FitConfig
from stepdown.twin.fit import Twin, fit_twin
from stepdown.twin.twins import twin_config

COHORTS: tuple[tuple[PresetName, int], ...] = (("guarded", 441), ("guarded", 442), ("hidden", 451))
PARTS = ("charts", "columns", "history")
FRESH = 60_000  # added to the seed: of the patients to judge by
FILE = DOCS / "results/charted.jsonl"

PRESSURES = ("map", "sbp", "dbp", "pulsatility", "hr")
CHARTED = (*PRESSURES, "flow", "lvedp")  # what MIMIC-IV charts
DRUGS = ("nee", "vis")
AT_ONCE = ChartingConfig(skipped=0.0, delay=0.0, late=0.0, odd=0.0)
USUAL = ChartingConfig(odd=0.0)
SLOW = ChartingConfig(odd=0.0, delay=30.0)  # median; half of an hour's entries come too late
COLUMNS: dict[str, tuple[str, ...]] = {
    "pressures and heart rate": PRESSURES,
    "and flow": (*PRESSURES, "flow"),
    "and LVEDP": CHARTED,
    "and motor current, speed": (*CHARTED, "current", "speed"),
    "all 12 signals": NAMES,
    "charted seven, and pressors": (*CHARTED, "nee"),
    "charted seven, and all drugs": (*CHARTED, *DRUGS),
    "all 12, and all drugs": (*NAMES, *DRUGS),
}
HISTORIES = (1, 2, 3, 6)  # h
PLANNER = PlannerConfig(draws=4)
CLONING = BCConfig(widths=(64, 64), fit=FitConfig(epochs=30, batch=256, patience=6))
HELD = 4  # h for which a charted value that is not required stands, as in problem/hours.py
CHANCES = 32  # hours of errors that the linear twin draws
AHEAD, REACH = 3, 2  # h and levels that are tried in the linear twin

Choose = Callable[[int, np.ndarray, np.ndarray], np.ndarray]  # hour, states, doses -> levels
Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much is done for one cohort."""

    patients: int = 160
    fresh: int = 120
    starts: int = 320
    effects: int = 128  # starts at which levels are compared


TINY = Sizes(patients=24, fresh=12, starts=16, effects=8)


def main() -> None:
    """Measure what is missing in the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="file of lines for the numbers")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--cohorts", type=int, default=len(COHORTS), help="how many of them")
    parser.add_argument("--tiny", action="store_true", help="to see that it works")
    asked = parser.parse_args()
    tasks = [
        {"part": part, "preset": preset, "seed": seed, "sizes": TINY if asked.tiny else Sizes()}
        for part in asked.parts
        for preset, seed in COHORTS[: asked.cohorts]
    ]
    add_lines(asked.out, tasks, measure, same=("part", "preset", "seed"))


def measure(part: str, preset: PresetName, seed: int, sizes: Sizes) -> Row:
    """One part on one cohort."""
    begun = time.perf_counter()
    ward = make_ward(preset, seed, sizes)
    work = {"charts": study_charts, "columns": study_columns, "history": study_history}[part]
    found = work(ward, seed)
    seconds = time.perf_counter() - begun
    about = {"part": part, "preset": preset, "seed": seed, "seconds": round(seconds)}
    return about | {"sizes": vars(sizes), "jax": jax.__version__, "room": ward.room} | found


# ── patients, and who decides for them ───────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Ward:
    """Patients to fit on, and others to judge by."""

    cohort: Cohort
    latents: Latents
    fresh: Cohort
    behind: Latents
    starts: Starts
    doses: np.ndarray  # (starts, 2): in the hour before the start
    world: World
    team: Row
    room: float
    effects: int


def make_ward(preset: PresetName, seed: int, sizes: Sizes) -> Ward:
    """A cohort of version 2, fresh patients, what their teams and the look-ahead reach."""
    recipe = CohortConfig(sizes.patients, preset=preset, version=2)
    cohort, latents = simulate_cohort(recipe, key=jr.split(jr.key(seed), 3)[0])
    fresh, behind = simulate_cohort(replace(recipe, patients=sizes.fresh), key=jr.key(seed + FRESH))
    starts, world = draw_starts(fresh, behind, sizes.starts, key=jr.key(seed)), world_of(recipe)
    team, ceiling = (scored(play(x, starts, world)) for x in (OwnTeam(), LookAhead(world)))
    room = float(ceiling["reward"].mean() - team["reward"].mean())
    hour = np.asarray(starts.tick) // 6 - 1
    row, given = np.asarray(starts.row), drug_scores(behind.course)
    doses = np.stack([given[name][row, hour] for name in DRUGS], axis=-1)
    return Ward(cohort, latents, fresh, behind, starts, doses, world, team, room, sizes.effects)


def scored(episodes: Episodes) -> Row:
    """Metrics by episode."""
    return {name: np.asarray(x, float) for name, x in score_episodes(episodes).items()}


def follow(choose: Choose, ward: Ward, hours: int = 6) -> Row:
    """Six hours in the simulated patients under levels that the host chooses, told."""
    starts, patients = ward.starts, ward.starts.patient
    states, doses = [np.asarray(starts.state)], ward.doses
    levels, alive = [np.rint(states[0][:, -1, -1]).astype(np.int32)], []
    for hour in range(hours):
        levels.append(np.asarray(choose(hour, states[-1], doses), np.int32))
        given = drug_scores(patients.course)  # what is set as the hour begins
        doses = np.stack([given[name] for name in DRUGS], axis=-1)
        ticks = np.asarray(starts.tick) + 6 * hour
        rows = (patients, starts.key, ticks, levels[-1])
        patients, later, lived = in_groups(_hour, rows, ward.world, size=128)
        states.append(later)
        alive.append(lived)
    each = (np.stack(x, axis=1) for x in (states, levels, alive))
    return told(scored(Episodes(*map(jnp.asarray, each))), ward)


def _hour(patients, keys, ticks, levels, world: World):
    def one(patient, key, tick, level):
        patient, state = play_hour(patient, level, world, keys=tick_keys(key, tick, 6))
        return patient, state, patient.course.alive > 0

    return jax.vmap(one)(patients, keys, ticks, levels)


def told(ours: Row, ward: Ward) -> Row:
    """Share of the room in percent, reward and unsafe hours minus the clinicians', with ends."""
    row = ward.starts.row
    gain = paired_difference(ours["reward"], ward.team["reward"], row)
    unsafe = paired_difference(ours["unsafe_hours"], ward.team["unsafe_hours"], row)
    return {
        "room": [100 * x / ward.room for x in gain],
        "unsafe": [100 * x for x in unsafe],
        "acp": float(ours["acp"].mean()),
    }


@eqx.filter_jit
def _modes(policy: Policy, states: Float[Array, "n steps columns"]):
    return jnp.argmax(jax.lax.map(policy, states, batch_size=64), axis=1) + LOWEST


def by_console(policy: Policy, columns: Sequence[str]) -> Choose:
    """Decide by the console's last hour, with the drugs where the policy has learned with them."""

    def choose(hour: int, states: np.ndarray, doses: np.ndarray) -> np.ndarray:
        return np.asarray(_modes(policy, jnp.asarray(with_doses(states, doses, columns))))

    return choose


def with_doses(states: np.ndarray, doses: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """States with those drugs as columns."""
    kept = doses[:, [DRUGS.index(name) for name in columns if name in DRUGS]]
    more = np.broadcast_to(kept[:, None], (*states.shape[:2], kept.shape[1]))
    return np.concatenate([states[..., :-1], more, states[..., -1:]], -1).astype(np.float32)


class ByChart:
    """Decide by what nurses have charted of the last hour, and hold where that is too little.

    The same habits as `patients/charting.py`, an hour at a time.
    """

    def __init__(self, policy: Policy, config: ChartingConfig, *, drugs: bool, seed: int):
        self.policy, self.config, self.drugs = policy, config, drugs
        self.rng = np.random.default_rng(seed)
        self.last, self.age = np.zeros(0), np.zeros(0)
        self.asked: list[float] = []  # share of the decisions that the chart allowed

    def __call__(self, hour: int, states: np.ndarray, doses: np.ndarray) -> np.ndarray:
        """The levels of all starts."""
        charted = self._chart(states)
        if hour == 0:
            self.last, self.age = np.full_like(charted, np.nan), np.zeros_like(charted)
        new = ~np.isnan(charted)
        self.age = np.where(new, 0.0, self.age + 1)
        self.last = np.where(new, charted, self.last)
        held = np.where(self.age <= HELD, self.last, np.nan)
        held[:, list(REQUIRED)] = charted[:, list(REQUIRED)]
        seen = np.concatenate([held, states[:, -1, -1:]], -1)[:, None]
        seen = with_doses(seen, doses if self.drugs else np.full_like(doses, np.nan), DRUGS)
        known = ~np.isnan(held[:, [NAMES.index(name) for name in CHARTED]]).any(1)
        self.asked.append(float(known.mean()))
        chosen = np.asarray(
            _modes(self.policy, jnp.asarray(np.where(known[:, None, None], seen, 0)))
        )
        return np.where(known, chosen, np.rint(states[:, -1, -1]).astype(int))

    def _chart(self, states: np.ndarray) -> np.ndarray:
        """The signals of an hour as charted and stored by its end; NaN where they were not."""
        config, rng, count = self.config, self.rng, len(states)
        minute = np.rint(config.every / 2 + config.early_or_late * rng.standard_normal(count))
        minute = np.clip(minute, 0, config.every - 1)
        shown = states[np.arange(count), (minute / 10).astype(int), :-1].astype(float)
        out = np.full((count, len(NAMES)), np.nan)
        for group in GROUPS:
            wait = config.delay * np.exp(0.5 * rng.standard_normal(count))
            wait += (rng.random(count) < config.late) * rng.uniform(60, 240, count)
            known = (rng.random(count) >= config.skipped) & (minute + np.ceil(wait) <= 60)
            for name, digit in group.items():
                i = NAMES.index(name)
                if name in CHARTED:
                    out[known, i] = np.round(shown[known, i] / digit) * digit
        out[:, PULSATILITY] = out[:, NAMES.index("sbp")] - out[:, NAMES.index("dbp")]
        return out


# ── charts against the console ───────────────────────────────────────────────────────────────────


def study_charts(ward: Ward, seed: int) -> Row:
    """The planner and cloning by console and by chart; charted reward and stability."""
    hours, slides = console_hours(ward.cohort, seed)
    rows = []
    for words, names in (("console, 12 signals", NAMES), ("console, the charted seven", CHARTED)):
        train, select = (keep_signals(x, names) for x in hours)
        twin = fit_ridge_twin(keep_signals(slides, names), select, seed)
        cloned = train_bc(train, select, CLONING, key=jr.key(seed))[0]
        planner = Planner(twin, jnp.asarray(seed), config=PLANNER)
        rows.append(
            {"way": words, "hours": len(train.level), "asked": 1.0}
            | {"planner": follow(by_console(planner, names), ward)}
            | {"cloning": follow(by_console(cloned, names), ward)}
        )
        _say(rows[-1])
    bias = []
    for words, config, drugs in (
        ("an entry an hour, stored at once", AT_ONCE, False),
        ("as nurses chart", USUAL, False),
        ("as nurses chart, and drugs", USUAL, True),
        ("as nurses chart, stored after half an hour", SLOW, False),
    ):
        cohort = charted_as(ward.cohort, ward.latents, config, seed)
        train, select, _ = split_patients(cohort, key=jr.key(0))
        names = (*CHARTED, *(DRUGS if drugs else ()))
        parts = [keep_signals(make_transitions(x), names) for x in (train, select)]
        twin = fit_ridge_twin(*parts, seed)
        cloned = train_bc(*parts, CLONING, key=jr.key(seed))[0]
        planner = Planner(twin, jnp.asarray(seed), config=PLANNER)
        row: Row = {"way": words, "hours": len(parts[0].level)}
        for name, policy in (("planner", planner), ("cloning", cloned)):
            decider = ByChart(policy, config, drugs=drugs, seed=seed)
            row[name] = follow(decider, ward)
            row["asked"] = float(np.mean(decider.asked))
        rows.append(row)
        _say(row)
        if not drugs:
            bias.append({"way": words} | bias_of(cohort, ward.cohort))
            _say(bias[-1])
    return {"rows": rows, "bias": bias}


def console_hours(cohort: Cohort, seed: int) -> tuple[tuple[Transitions, Transitions], Transitions]:
    """Hours of train and select patients, and the windows that the ridge twin is fitted to."""
    train, select, _ = split_patients(cohort, key=jr.key(0))
    slides = make_transitions(train, HoursConfig(stride=10.0))
    return (make_transitions(train), make_transitions(select)), slides


def fit_ridge_twin(train: Transitions, select: Transitions, seed: int) -> Twin:
    """The twin that planners plan in."""
    return fit_twin(train, select, twin_config("ridge"), key=jr.key(seed))[0]


def charted_as(cohort: Cohort, latents: Latents, config: ChartingConfig, seed: int) -> Cohort:
    """The cohort through the tables of MIMIC-IV, rows in the console's order.

    A stay whose chart is too short for two hours in a row keeps its row, with nothing in it.
    """
    stays = chart_cohort(cohort, latents, config, key=jr.key(seed))
    with tempfile.TemporaryDirectory() as made:
        for name, table in charted_tables.mimic_iv(stays).items():
            path = Path(made) / f"{name}.csv.gz"
            path.parent.mkdir(exist_ok=True)
            charted_tables.to_csv_gz(table)(path)
        charts = read_mimic(Path(made), ChartedConfig(), unwatched, Path(made) / "work")
        found = make_charted(charts, ChartedConfig(), Path(made)).cohort
    place = np.array([int(name) for name in found.patient]) - 10_000_001
    steps, count = found.level.shape[1], len(cohort.patient)
    signals = np.full((count, steps, len(found.columns)), np.nan, np.float32)
    level, seen = np.zeros((count, steps), np.int32), np.zeros((count, steps), bool)
    signals[place], level[place], seen[place] = found.signals, found.level, found.seen
    return Cohort(
        jnp.asarray(signals),
        jnp.asarray(level),
        jnp.asarray(seen),
        cohort.patient,
        minutes=found.minutes,
        columns=found.columns,
    )


def bias_of(charted: Cohort, console: Cohort) -> Row:
    """The same hours by chart and by console: reward, stability by limits, and who disagrees."""
    one, other = cut_stays(charted), cut_stays(console)
    at = {key: i for i, key in enumerate(zip(other.patient, other.start // 6, strict=True))}
    pairs = [
        (i, at.get((p, s))) for i, (p, s) in enumerate(zip(one.patient, one.start, strict=True))
    ]
    pairs = np.array([x for x in pairs if x[1] is not None])
    kept = [x.next_measured[pairs[:, place]] for place, x in enumerate((one, other))]
    (ours, safe), (theirs, really) = (
        map(np.asarray, in_groups(_judged, (x,), size=4096)) for x in kept
    )
    patient = one.patient[pairs[:, 0]]
    slow = np.concatenate([_lag_one(x, kept[0], pairs) for x in [one]])
    return {
        "hours": len(pairs),
        "reward": list(paired_difference(ours, theirs, patient)),
        "rewards": [float(ours.mean()), float(theirs.mean())],
        "stable": [100 * float(safe.mean()), 100 * float(really.mean())],
        "missed": 100 * float(safe[~really].mean()),  # of hours not stable by the console
        "false": 100 * float((~safe)[really].mean()),  # of hours stable by the console
        "correlation": float(np.corrcoef(ours, theirs)[0, 1]),
        "lag_one": slow.tolist(),
    }


def _lag_one(cut, later: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Slope and residual sd of MAP on the hour before."""
    before, after = cut.measured[pairs[:, 0], 0, MAP], later[:, 0, MAP]
    slope, base = np.polyfit(before, after, 1)
    return np.array([slope, np.std(after - slope * before - base)])


def _judged(states):
    return jax.vmap(lambda x: (normalized_reward(x), stable_by_limits(x)))(states)


# ── what each column is worth ────────────────────────────────────────────────────────────────────


def study_columns(ward: Ward, seed: int) -> Row:
    """Room, error of MAP and confounding with more and more columns."""
    cohort = record_drugs(ward.cohort, ward.latents)
    hours, slides = console_hours(cohort, seed)
    fresh = make_transitions(replace(record_drugs(ward.fresh, ward.behind), role="test"))
    few = np.random.default_rng(seed).choice(len(fresh.level), min(2000, len(fresh.level)), False)
    test = jax.tree.map(lambda x: x[np.sort(few)], fresh)
    some = jax.tree.map(lambda x: x[: ward.effects], ward.starts)
    truth = slopes(true_effects(some, ward.world).late_map)
    rows = []
    for words, names in COLUMNS.items():
        select = keep_signals(hours[1], names)
        twin = fit_ridge_twin(keep_signals(slides, names), select, seed)
        planner = Planner(twin, jnp.asarray(seed), config=PLANNER)
        states = with_doses(np.asarray(some.state), ward.doses[: ward.effects], DRUGS)
        gone = np.array([name not in names for name in cohort.columns] + [False])
        states = np.where(gone, np.nan, states)
        own = slopes(_forecast(twin, replace(some, state=jnp.asarray(states)), seed))

        def choose(hour: int, states: np.ndarray, doses: np.ndarray, planner=planner) -> np.ndarray:
            return np.asarray(_modes(planner, jnp.asarray(with_doses(states, doses, DRUGS))))

        rows.append(
            {"columns": words, "error": _error(twin, test)}
            | {"effect": [float(own.mean()), float(truth.mean())]}
            | {"apart": list(paired_difference(own, truth, np.asarray(some.row)))}
            | {"planner": follow(choose, ward)}
        )
        _say(rows[-1])
    return {"rows": rows}


def _forecast(twin: Twin, starts: Starts, seed: int) -> np.ndarray:
    return forecast_effects(twin, starts, keys=jr.split(jr.key(seed), 4)).late_map


def _error(twin: Twin, test: Transitions) -> float:
    """Mean absolute error of the hour's mean MAP, mmHg."""
    center = in_groups(_centers, (test.state, test.levels), twin, size=256)
    truth = np.asarray(test.next_state)[..., MAP].mean(1)
    return float(np.abs(center - truth).mean())


def _centers(states, levels, twin: Twin):
    return jax.vmap(lambda x, a: twin.center(x, a)[:, MAP].mean())(states, levels)


# ── what each hour of history is worth ───────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Linear:
    """The next hour's numbers as a linear function of the last hours, the level and its change."""

    weights: np.ndarray  # (features, outputs)
    errors: np.ndarray  # (hours, outputs)

    def draw(self, past: np.ndarray, levels: np.ndarray, now: np.ndarray, error) -> np.ndarray:
        """The next hour: past (n, hours, outputs), levels (n, hours), now (n,)."""
        return linear_features(past, levels, now) @ self.weights + error


def study_history(ward: Ward, seed: int) -> Row:
    """Room, error of MAP and confounding with one to six hours, without and with drugs."""
    train, _, _ = split_patients(ward.cohort, key=jr.key(0))
    names = list(train.patient)
    place = [ward.cohort.patient.index(name) for name in names]
    own = hourly_numbers(ward.cohort, ward.latents)
    other = hourly_numbers(ward.fresh, ward.behind)
    some = jax.tree.map(lambda x: x[: ward.effects], ward.starts)
    truth = slopes(true_effects(some, ward.world).late_map)
    rows = []
    for drugs in (False, True):
        count = len(NUMBERS) + 2 * drugs
        for history in HISTORIES:
            numbers, levels, held = (x[place] for x in own)
            twin = fit_linear(numbers[..., :count], levels, held, history)
            error = linear_error(twin, *(x for x in other), history, count)
            past, before = pasts(other, ward.starts, history, count)
            effect = linear_effect(twin, past[: ward.effects], before[: ward.effects])
            planner = ByHistory(twin, past, before, seed)
            rows.append(
                {"drugs": drugs, "history": history, "error": error}
                | {"effect": [float(effect.mean()), float(truth.mean())]}
                | {"apart": list(paired_difference(effect, truth, np.asarray(some.row)))}
                | {"planner": follow(planner, ward)}
            )
            _say(rows[-1])
    return {"rows": rows}


NUMBERS = (*CHARTED, "lowest map", "lowest hr", "lowest pulsatility")  # of an hour


def numbers_of(hours: np.ndarray) -> np.ndarray:
    """Means of the charted seven and the minima that the reward is made of: (..., samples, 12)."""
    means = hours.mean(-2)[..., [NAMES.index(name) for name in CHARTED]]
    return np.concatenate([means, hours.min(-2)[..., [MAP, HR, PULSATILITY]]], -1)


def hourly_numbers(cohort: Cohort, latents: Latents) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers and drugs of every hour, levels, and through which hours the level was held."""
    count = cohort.level.shape[1] // 6
    cut = [np.asarray(x)[:, : 6 * count] for x in (cohort.signals, cohort.level, cohort.seen)]
    signals, level, seen = (x.reshape(len(x), count, 6, *x.shape[2:]) for x in cut)
    numbers = np.where(seen.all(2)[..., None], numbers_of(signals), np.nan)
    given = drug_scores(latents.course)
    doses = np.stack([given[name][:, :count] for name in DRUGS], -1)
    known = np.where(seen.all(2)[..., None], doses, np.nan)
    levels = np.floor(level.mean(2) + 0.5)
    return np.concatenate([numbers, known], -1), levels, level.min(2) == level.max(2)


def linear_features(past: np.ndarray, levels: np.ndarray, now: np.ndarray) -> np.ndarray:
    """One; hours, levels; the level now, its change by size and side; last hour times change."""
    change = now - levels[:, -1]
    plain = [np.ones_like(now), now, np.maximum(-change, 0), np.maximum(change, 0), change**2]
    last = past[:, -1] * change[:, None]
    return np.concatenate([np.stack(plain, -1), levels, past.reshape(len(past), -1), last], -1)


def _rows(numbers, levels, held, history: int, later: bool = True):
    """Every hour through which the level was held, with what was known before it."""
    past, before, now, after = [], [], [], []
    for hour in range(history, numbers.shape[1]):
        own = held[:, hour]
        past.append(numbers[own, hour - history : hour])
        before.append(levels[own, hour - history : hour])
        now.append(levels[own, hour])
        after.append(numbers[own, hour])
    found = [np.concatenate(x) for x in (past, before, now, after)]
    kept = np.isfinite(found[0]).all((1, 2)) & np.isfinite(found[3]).all(1)
    kept &= (found[1] >= LOWEST).all(1) & (found[2] >= LOWEST)
    return [x[kept] for x in found]


def fit_linear(numbers, levels, held, history: int) -> Linear:
    """Least squares with a little ridge; the errors of those hours."""
    past, before, now, after = _rows(numbers, levels, held, history)
    inputs = linear_features(past, before, now)
    scale = np.sqrt((inputs**2).mean(0)) + 1e-9
    scaled = inputs / scale
    square = scaled.T @ scaled + 1e-4 * len(scaled) * np.eye(scaled.shape[1])
    weights = np.linalg.solve(square, scaled.T @ after) / scale[:, None]
    return Linear(weights, after - inputs @ weights)


def linear_error(twin: Linear, numbers, levels, held, history: int, count: int) -> float:
    """Mean absolute error of the hour's mean MAP, mmHg; the same hours for every history."""
    longest = max(HISTORIES)
    past, before, now, after = _rows(numbers[..., :count], levels, held, longest)
    found = twin.draw(past[:, longest - history :], before[:, longest - history :], now, 0.0)
    return float(np.abs(found - after)[:, 0].mean())


def pasts(found, starts: Starts, history: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The hours before each start; before the stay began, its first one again."""
    numbers, levels, _ = found
    last = np.asarray(starts.tick) // 6 - 1
    hour = np.maximum(last[:, None] - np.arange(history)[::-1], 0)
    row = np.asarray(starts.row)[:, None]
    return numbers[row, hour][..., :count], levels[row, hour]


def linear_effect(twin: Linear, past: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Change of MAP per level of support after six hours, for each start."""
    ends = []
    for level in LEVELS:
        now, known, levels = np.full(len(past), float(level)), past, before
        for _ in range(6):
            later = twin.draw(known, levels, now, 0.0)
            known, levels = _on(known, later), _on(levels, now)
        ends.append(known[:, -1, 0])
    return slopes(np.stack(ends, 1))


def _on(past: np.ndarray, later: np.ndarray) -> np.ndarray:
    return np.concatenate([past[:, 1:], later[:, None]], axis=1)


class ByHistory:
    """Hold each level near for some hours in the linear twin, with the same luck; take the best."""

    def __init__(self, twin: Linear, past: np.ndarray, before: np.ndarray, seed: int):
        self.twin, self.past, self.before = twin, past, before
        rng = np.random.default_rng(seed)
        self.luck = rng.integers(len(twin.errors), size=(CHANCES, AHEAD))

    def __call__(self, hour: int, states: np.ndarray, doses: np.ndarray) -> np.ndarray:
        """The levels of all starts."""
        in_force = np.rint(states[:, -1, -1])
        if hour:
            later = numbers_of(states[..., :-1])
            width = self.past.shape[-1] - later.shape[1]
            self.past = _on(self.past, np.concatenate([later, doses[:, :width]], -1))
            self.before = _on(self.before, in_force)
        values = []
        for offset in range(-REACH, REACH + 1):
            level = np.clip(in_force + offset, LOWEST, HIGHEST)
            values.append(self._value(level) - 1e-4 * abs(offset))
        best = np.argmax(np.stack(values, 1), axis=1) - REACH
        return np.clip(in_force + best, LOWEST, HIGHEST)

    def _value(self, level: np.ndarray) -> np.ndarray:
        total = np.zeros(len(level))
        for luck in self.luck:
            past, before = self.past, self.before
            for ahead in range(AHEAD):
                later = self.twin.draw(past, before, level, self.twin.errors[luck[ahead]])
                total += reward_of(later)
                past, before = _on(past, later), _on(before, level)
        return total / CHANCES


def reward_of(numbers: np.ndarray) -> np.ndarray:
    """The normalized reward of an hour from its mean MAP and its minima."""
    mean, low, rate, pulse = (numbers[:, i] for i in (0, 7, 8, 9))
    charge = np.maximum(7 * (60 - low) / 20, 0) + np.maximum((mean - 106) / 18, 0)
    charge += np.maximum((rate - 75) ** 2 / 250 - 1, 0)
    charge += np.maximum(7 * (20 - pulse) / 20, 0) + np.maximum((pulse - 50) / 20, 0)
    return np.clip((1.7018 - charge) / 2.6621, -2, 2)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def _say(row: Row) -> None:
    print(json.dumps(row), flush=True)


def tables() -> dict[str, str]:
    """The tables of docs/all-results.md, by the name of their marker."""
    lines = read_lines(FILE)
    by_part = {part: [x for x in lines if x["part"] == part] for part in PARTS}
    return {
        "charted about": _about(lines),
        "charted policies": _charts_table(by_part["charts"]),
        "charted bias": _bias_table(by_part["charts"]),
        "charted columns": _columns_table(by_part["columns"]),
        "charted history": _history_table(by_part["history"]),
    }


def _about(lines: list[Row]) -> str:
    sizes, seconds = lines[0]["sizes"], sum(x["seconds"] for x in lines)
    cohorts = {
        part: [f"{x['preset']} {x['seed']}" for x in lines if x["part"] == part] for part in PARTS
    }
    told = "; ".join(f"{part}: {', '.join(names)}" for part, names in cohorts.items())
    return textwrap.fill(
        "`python -m benchmarks.studies.charted --out docs/results/charted.jsonl`, two shared CPU "
        f"cores, jax {lines[0]['jax']}, {seconds:,} s in all. Cohorts of version 2: {told}; "
        f"{sizes['patients']} patients to fit on, {sizes['fresh']} others to judge by, "
        f"{sizes['starts']} starts of six hours in each.",
        PROSE,
    )


def _over(lines: list[Row], place: int, *path: Any, kind: str = "rows") -> list[Any]:
    """One number of a row, by cohort."""
    found = []
    for line in lines:
        value = line[kind][place]
        for step in path:
            value = value[step]
        found.append(value)
    return found


def _mean(values: Sequence[float], digits: int = 1, sign: str = "") -> str:
    """The mean over cohorts, and the least and largest."""
    low, high = min(values), max(values)
    if len(values) == 1:
        return f"{low:{sign}.{digits}f}".replace("-", "−")
    ends = f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"
    return f"{np.mean(values):{sign}.{digits}f} ({ends})".replace("-", "−")


def _charts_table(lines: list[Row]) -> str:
    heads = ("decided by", "hours to fit on", "decisions that can be made, %")
    heads += ("planner: room, %", "unsafe, points", "cloning: room, %", "unsafe, points")
    rows = []
    for place, row in enumerate(lines[0]["rows"] if lines else ()):
        cells = [row["way"], f"{np.mean(_over(lines, place, 'hours')):,.0f}"]
        cells.append(f"{100 * np.mean(_over(lines, place, 'asked')):.0f}")
        for who in ("planner", "cloning"):
            cells.append(_mean(_over(lines, place, who, "room", 0), 0))
            cells.append(_mean(_over(lines, place, who, "unsafe", 0), 1, "+"))
        rows.append(cells)
    return make_table(heads, rows)


def _bias_table(lines: list[Row]) -> str:
    heads = ("chart", "reward, chart less console", "correlation", "stable by chart, %")
    heads += ("by console, %", "not stable but charted so, %", "lag-1 slope and residual of MAP")
    rows = []
    for place, row in enumerate(lines[0]["bias"] if lines else ()):

        def over(*path: Any, place: int = place) -> list[float]:
            return _over(lines, place, *path, kind="bias")

        slope, rest = np.mean(over("lag_one", 0)), np.mean(over("lag_one", 1))
        rows.append(
            [
                row["way"],
                _mean(over("reward", 0), 2, "+"),
                _mean(over("correlation"), 2),
                _mean(over("stable", 0), 0),
                _mean(over("stable", 1), 0),
                _mean(over("missed"), 0),
                f"{slope:.2f}, {rest:.1f} mmHg",
            ]
        )
    return make_table(heads, rows)


def _columns_table(lines: list[Row]) -> str:
    rows = [[row["columns"], *_worth(lines, place)]
            for place, row in enumerate(lines[0]["rows"] if lines else ())]  # fmt: skip
    return make_table(("recorded", *WORTH), rows)


def _history_table(lines: list[Row]) -> str:
    rows = [
        [str(row["history"]), "yes" if row["drugs"] else "no", *_worth(lines, place)]
        for place, row in enumerate(lines[0]["rows"] if lines else ())
    ]
    return make_table(("hours", "drugs", *WORTH), rows)


WORTH = (
    "planner: room, %",
    "unsafe, points",
    "error of MAP, mmHg",
    "effect of a level on MAP after 6 h less the true one, mmHg",
)


def _worth(lines: list[Row], place: int) -> list[str]:
    return [
        _mean(_over(lines, place, "planner", "room", 0), 0),
        _mean(_over(lines, place, "planner", "unsafe", 0), 1, "+"),
        _mean(_over(lines, place, "error"), 2),
        _mean(_over(lines, place, "apart", 0), 2, "+"),
    ]


if __name__ == "__main__":
    main()
