"""Seconds to write a 24-hour stay at 25 Hz and to read its twelve signals again."""

import time

import jax.random as jr

from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.console import extract_signals
from stepdown.patients.waveforms import simulate_waveforms

HOURS = 24.0


def main() -> None:
    """Time both ways, the first recording (with compilation) apart from the second."""
    config = CohortConfig(patients=2, hours=HOURS)
    cohort, latents = simulate_cohort(config, key=jr.key(7))
    world = world_of(config)
    for patient, note in enumerate(("with compilation", "compiled")):
        start = time.perf_counter()
        wave = simulate_waveforms(cohort, latents, world, patient, key=jr.key(patient))
        written = time.perf_counter()
        extract_signals(wave.recording, world.profile)
        read = time.perf_counter()
        print(
            f"{HOURS:.0f} h, {len(wave.recording.second):,} samples, {note}: "
            f"written in {written - start:.2f} s, read in {read - written:.2f} s"
        )


if __name__ == "__main__":
    main()
