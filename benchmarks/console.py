"""The 25 Hz path: `python benchmarks/console.py` fills its table in docs/cohort.md.

Twelve fresh 24-hour stays (rows 0 to 11 of seed 2024, not chosen) are written at 25 Hz with the
default noise and artifacts, read by the console, and held against the noise-free truth of each
ten-minute block. Also prints seconds for writing and reading one stay.
"""

import time

import jax.random as jr
import numpy as np
from cohort_tables import PAGE, fill

from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.console import extract_signals
from stepdown.patients.waveforms import simulate_waveforms
from stepdown.signals import SIGNALS

STAYS, HOURS, SEED = 12, 24.0, 2024
BARS = {"map": 1, "sbp": 2, "dbp": 2, "hr": 1, "flow": 0.05, "lvp": 4, "lvedp": 4, "tau": 15}


def main() -> None:
    """Write, read, compare."""
    config = CohortConfig(patients=STAYS, hours=HOURS)
    cohort, latents = simulate_cohort(config, key=jr.key(SEED))
    world = world_of(config)
    errors, wrong, blocks = [], 0, 0
    for row in range(STAYS):
        start = time.perf_counter()
        wave = simulate_waveforms(cohort, latents, world, row, key=jr.key(row))
        written = time.perf_counter()
        found = extract_signals(wave.recording, world.profile)
        read = time.perf_counter()
        print(
            f"stay {row}: {len(wave.recording.second):,} samples written in "
            f"{written - start:.2f} s, read in {read - written:.2f} s",
            flush=True,
        )
        errors.append(np.abs(found.signals - wave.truth))
        wrong += int(np.sum((found.level != wave.level) & (found.level > 0)))
        blocks += len(found.level)
    error = np.concatenate(errors)
    lines = [
        "| signal | unit | bar | median error | 90th percentile | blocks without a value |",
        "|---|---|---|---|---|---|",
    ]
    for i, signal in enumerate(SIGNALS):
        bar = BARS.get(signal.name, "")
        middle, tail = np.nanquantile(error[:, i], [0.5, 0.9])
        empty = int(np.isnan(error[:, i]).sum())
        lines.append(
            f"| {signal.name} | {signal.unit} | {bar} | {middle:.3g} | {tail:.3g} | {empty} |"
        )
    lines += ["", f"{blocks:,} blocks, {wrong} with a wrong level. `python benchmarks/console.py`."]
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(fill(page, "console", "\n".join(lines)), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
