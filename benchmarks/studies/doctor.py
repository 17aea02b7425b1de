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
from stepdown.records.mapping import can_be_told
from stepdown.records.stays import Trace
from stepdown.signals import NAMES
from tests.records.seeded import (
    Fault,
    alarms,
    count_contradicted,
    count_found,
    flat,
    pieces_of,
    traces_of,
    unit_pairs,
    value_faults,
    waveform_faults,
)

PROFILE = load_profile("cp")
STEPS = np.asarray(PROFILE.speed, float)
# Digits of a usual export; speed to the hundred.
DIGITS = (1, 100, 1, 0.1, 1, 1, 1, 1, 1, 1, 1, 0.01)


def rounded(trace: Trace) -> Trace:
    """The stay as a console's export would round it."""
    digits = dict(zip(NAMES, DIGITS, strict=True))
    lines = {
        name: replace(line, values=digits[name] * np.round(line.values / digits[name]))
        for name, line in trace.lines.items()
    }
    return replace(trace, lines=lines)


def false_alarms(traces: list[Trace]) -> tuple[int, Counter[str]]:
    """Stays with any alarm, and stays by code."""
    found = [alarms(examine(trace, PROFILE)) for trace in traces]
    return sum(map(bool, found)), Counter(code for codes in found for code in codes)


def found(fault: Fault, traces: list[Trace], draws: int, seed: int = 0) -> str:
    """How many of so many faults are found, as the last two cells of a row."""
    return f"{count_found(traces, fault, PROFILE, draws, seed)} | {draws} |"


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
    traces, waves, world = traces_of(cohort), [], world_of(config)
    for row in range(1 if quick else 6):
        wave = simulate_waveforms(cohort, latents, world, row, key=jr.key(row))
        waves += pieces_of(wave, 3600.0, name=str(row))
    draws, few = (40, 10) if quick else (500, 100)
    print("| fault | recording | found | of |\n|---|---|--:|--:|")
    for seed, (name, fault) in enumerate(value_faults(STEPS).items()):
        print(f"| {name} | values, 10 min | {found(fault, traces, draws, seed)}")
    coarse = [rounded(trace) for trace in traces]
    for words, fault in {
        "30 min to 3 h": flat(1800.0, 10800.0),
        "3 to 6 h": flat(10800.0, 21600.0),
    }.items():
        print(f"| I2 flat line, {words} | values, rounded | {found(fault, coarse, draws)}")
    stays = [trace for trace, _ in waves]
    for seed, (name, fault) in enumerate(waveform_faults(STEPS).items()):
        print(f"| {name} | waveform, 25 Hz | {found(fault, stays, few, seed)}")
    print("\n| clean stays | false alarms | of | by code |\n|---|--:|--:|---|")
    clean = {"values, 10 min": traces, "values, rounded": coarse}
    clean |= {"waveform, 25 Hz, 1 h each": stays}
    for name, some in clean.items():
        count, codes = false_alarms(some)
        words = ", ".join(f"{code} {number}" for code, number in codes.items()) or "none"
        print(f"| {name} | {count} | {len(some)} | {words} |")
    told = count_contradicted(traces, unit_pairs(), 1000 if quick else 16_000, 0)
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
