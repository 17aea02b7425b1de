"""How fast patients are simulated: `python -m benchmarks.speed.cohort` (one core: taskset -c 0).

Prints compile time (cold cache), cache time, and seconds for the sizes the project promises,
as patient-hours per second, with the growth in patients and hours and the peak memory.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

WORK = """
import sys, time, json
import jax, jax.random as jr
from stepdown.patients.cohort import CohortConfig, simulate_cohort
patients, hours, repeats = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
seconds = []
for i in range(repeats):
    start = time.perf_counter()
    simulate_cohort(CohortConfig(patients=patients, hours=hours), key=jr.key(i))
    seconds.append(time.perf_counter() - start)
import resource
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({"seconds": seconds, "peak_gb": peak, "jax": jax.__version__,
                  "device": jax.devices()[0].device_kind}))
"""


def measure(patients: int, hours: float, repeats: int, cache: str) -> dict:
    """One process, so that compilation and memory are its own."""
    command = [sys.executable, "-c", WORK, str(patients), str(hours), str(repeats)]
    env = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5"}
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also 10,000 patients x 65 h")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        cold = measure(379, 65, 4, cache)
        warm = measure(379, 65, 1, cache)
        best = sorted(cold["seconds"][1:])[1]
        print(f"jax {cold['jax']}, {cold['device']}, {platform.machine()}, {time.strftime('%F')}")
        print(
            f"compilation: {cold['seconds'][0] - best:.1f} s cold, "
            f"{warm['seconds'][0] - best:.1f} s from the cache\n"
        )
        print("| patients | hours | seconds (median) | patient-hours/s | peak memory GB |")
        print("|---|---|---|---|---|")
        sizes = [
            (256, 65, 3),
            (1024, 65, 3),
            (379, 30, 3),
            (379, 60, 3),
            (379, 120, 3),
            (1000, 6, 5),
        ]
        rows = [(379, 65, cold)] + [
            (patients, hours, measure(patients, hours, repeats + 1, cache))
            for patients, hours, repeats in sizes
        ]
        if args.large:
            rows.append((10_000, 65, measure(10_000, 65, 1, cache)))
        for patients, hours, found in rows:
            seconds = found["seconds"][1:] or found["seconds"]
            middle = sorted(seconds)[len(seconds) // 2]
            print(
                f"| {patients} | {hours:g} | {middle:.2f} | {patients * hours / middle:,.0f} "
                f"| {found['peak_gb']:.2f} |"
            )


if __name__ == "__main__":
    main()
