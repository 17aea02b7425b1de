"""How well the doctor finds seeded faults, and how often it cries wolf on clean stays.

Run: python -m benchmarks.studies.doctor [--quick]. Prints the tables of docs/doctor.md.
"""

import argparse
import time
from collections import Counter
from dataclasses import replace

import jax.random as jr
import numpy as np

from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.pump import load_profile
from stepdown.patients.recording import ARTIFACTS
from stepdown.patients.waveforms import simulate_waveforms
from stepdown.records.doctor import examine
from stepdown.records.findings import Finding
from stepdown.records.mapping import QUANTITIES, UNITS
from stepdown.records.seeded import Fault, flat, is_found, value_faults, waveform_faults
from stepdown.records.suspicion import can_be_told, suspect_units
from stepdown.records.trace import OUR_UNITS, Line, Trace
from stepdown.signals import NAMES

PROFILE = load_profile("cp")
STEPS = np.asarray(PROFILE.speed, float)
# Digits of a usual export; speed to the hundred.
DIGITS = (1, 100, 1, 0.1, 1, 1, 1, 1, 1, 1, 1, 0.01)
FACTS = ("D07", "D15", "D16")  # said of clean stays too, because they are so


def traces_of(cohort) -> list[Trace]:
    """The stays of a cohort, in our units."""
    traces = []
    for row, patient in enumerate(cohort.patient):
        seen = np.asarray(cohort.seen)[row]
        values = np.asarray(cohort.signals)[row][seen].astype(float)
        lines = {n: Line(values[:, i], OUR_UNITS[n]) for i, n in enumerate(NAMES)}
        level = Line(np.asarray(cohort.level)[row][seen].astype(float), None)
        second = 60 * cohort.minutes * np.flatnonzero(seen)
        traces.append(Trace(patient, second, lines, level, 1.7e9))
    return traces


def waves_of(
    cohort, latents, world, patients: int, seconds: float
) -> list[tuple[Trace, np.ndarray]]:
    """Pieces of recorded stays at 25 Hz, each with its artifacts."""
    pieces = []
    for row in range(patients):
        wave = simulate_waveforms(cohort, latents, world, row, key=jr.key(row))
        size, r = round(25 * seconds), wave.recording
        for start in range(0, len(r.second) - size + 1, size):
            part = slice(start, start + size)
            channels = {"placement": r.placement, "speed": r.speed, "current": r.current}
            lines = {n: Line(x[part].astype(float), OUR_UNITS[n]) for n, x in channels.items()}
            second = r.second[part] - r.second[start]
            pieces.append(
                (Trace(f"{row}-{start}", second, lines, kind="waveforms"), wave.artifact[part])
            )
    return pieces


def rounded(trace: Trace) -> Trace:
    """The stay as a console's export would round it."""
    digits = dict(zip(NAMES, DIGITS, strict=True))
    lines = {
        name: replace(line, values=digits[name] * np.round(line.values / digits[name]))
        for name, line in trace.lines.items()
    }
    return replace(trace, lines=lines)


def alarms(findings: tuple[Finding, ...]) -> set[str]:
    """Codes that a clean stay should not have: faults, and anything that asks for a look."""
    return {
        f.code
        for f in findings
        if f.severity != "note" or f.code not in ("D01", "D02", "D12", *FACTS)
    }


def false_alarms(traces: list[Trace]) -> tuple[int, Counter[str]]:
    """Stays with any alarm, and stays by code."""
    found = [alarms(examine(trace, PROFILE)) for trace in traces]
    return sum(map(bool, found)), Counter(code for codes in found for code in codes)


def detected(traces: list[Trace], fault: Fault, draws: int, seed: int) -> int:
    """How many of so many faults at random places are found."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(draws):
        damaged, expected = fault(traces[int(rng.integers(len(traces)))], rng)
        hits += is_found(examine(damaged, PROFILE), expected)
    return hits


def contradicted(
    traces: list[Trace], draws: int, seed: int
) -> dict[tuple[str, str, str], list[int]]:
    """Found and tried for every signal, true unit and declared unit."""
    rng = np.random.default_rng(seed)
    pairs = [
        (name, true, declared)
        for name in NAMES
        for true, (what, _) in UNITS.items()
        for declared, (other, _) in UNITS.items()
        if what == other == QUANTITIES[name] and true != declared
    ]
    counts = {pair: [0, 0] for pair in pairs}
    for draw in range(draws):
        name, true, declared = pairs[draw % len(pairs)]
        trace = traces[int(rng.integers(len(traces)))]
        values = trace.lines[name].values / UNITS[true][1]
        lines = {**trace.lines, name: Line(values, declared)}
        order = np.arange(len(trace.second))
        found = suspect_units(replace(trace, lines=lines), trace.second, order)
        count = counts[name, true, declared]
        count[0] += any(f.signal == name and true in f.likely_units for f in found)
        count[1] += 1
    return counts


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer stays and faults")
    make_tables(parser.parse_args().quick)


def make_tables(quick: bool) -> None:
    """What is found of what was seeded, and what is said of clean stays."""
    start = time.perf_counter()
    config = CohortConfig(patients=60 if quick else 379, hours=12.0)
    cohort, latents = simulate_cohort(config, key=jr.key(101))
    traces = traces_of(cohort)
    waves = waves_of(cohort, latents, world_of(config), 1 if quick else 6, 3600.0)
    draws, few = (40, 10) if quick else (500, 100)
    print("| fault | recording | found | of |\n|---|---|--:|--:|")
    for seed, (name, fault) in enumerate(value_faults(STEPS).items()):
        print(f"| {name} | values, 10 min | {detected(traces, fault, draws, seed)} | {draws} |")
    coarse = [rounded(trace) for trace in traces]
    for words, fault in {
        "30 min to 3 h": flat(1800.0, 10800.0),
        "3 to 6 h": flat(10800.0, 21600.0),
    }.items():
        hits = detected(coarse, fault, draws, 0)
        print(f"| I2 flat line, {words} | values, rounded | {hits} | {draws} |")
    stays = [trace for trace, _ in waves]
    for seed, (name, fault) in enumerate(waveform_faults(STEPS).items()):
        print(f"| {name} | waveform, 25 Hz | {detected(stays, fault, few, seed)} | {few} |")
    print("\n| clean stays | false alarms | of | by code |\n|---|--:|--:|---|")
    clean = {"values, 10 min": traces, "values, rounded": coarse}
    clean |= {"waveform, 25 Hz, 1 h each": stays}
    for name, some in clean.items():
        count, codes = false_alarms(some)
        words = ", ".join(f"{code} {number}" for code, number in codes.items()) or "none"
        print(f"| {name} | {count} | {len(some)} | {words} |")
    told = contradicted(traces, 1000 if quick else 16_000, 0)
    print("\n| signal | written in | declared | told | found | of |\n|---|---|---|---|--:|--:|")
    for pair, (hits, tried) in told.items():
        word = "always" if can_be_told(*pair) else "not always"
        print(f"| {' | '.join(pair)} | {word} | {hits} | {tried} |")
    sums = np.sum([count for pair, count in told.items() if can_be_told(*pair)], axis=0)
    print(f"\nWhere the signal allows it: {sums[0]} of {sums[1]}.")
    artifact = Counter(ARTIFACTS[i] for _, a in waves for i in np.unique(a))
    print(f"\n{len(waves)} pieces with artifacts: {dict(artifact)}; "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
