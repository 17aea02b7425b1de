"""Hours of what-ifs (S4): `python -m benchmarks.speed.app_soak [RUN] [--minutes 60]`.

Two requests a second, over random patients and moments, while memory, errors and compilations of
the server are watched. Needs the `app` extra and a finished run.
"""

import argparse
import os
import random
import re
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

from benchmarks.servers import URL, get, serve_app, wait_for_reviews
from stepdown.app.audit import verify

RATE = 2.0  # requests a second


def main() -> None:
    """Start the server, ask for a long time, say what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="runs/demo", type=Path)
    parser.add_argument("--minutes", default=60.0, type=float)
    config = parser.parse_args()
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryFile() as log:
        known = os.environ | {"JAX_LOG_COMPILES": "1"}
        with serve_app(config.run, Path(state), stderr=log, env=known) as server:
            wait_for_reviews()
            soak(server.pid, log, 60 * config.minutes)
        print(f"audit after all that: {verify(Path(state))}")


def soak(pid: int, log, seconds: float) -> None:
    """Ask at the rate, whatever comes back."""
    draw = random.Random(0)
    last = {row["patient"]: row["minute"] for row in get("/v1/patients")["patients"]}
    for patient in last:  # everybody's ledger is scored once
        ask(f"/v1/patients/{patient}/whatif")
    ask("/v1/model/calibration")
    compiled, began, memory = compilations(log), time.monotonic(), [resident(pid)]
    codes: Counter[str] = Counter()
    times, sent = [], 0
    print(f"resident at the start: {memory[0]:.0f} MB; compiled so far: {compiled}")
    while (now := time.monotonic() - began) < seconds:
        if now < sent / RATE:
            time.sleep(sent / RATE - now)
        patient = draw.choice(sorted(last))
        minute = draw.uniform(60, last[patient] + 20)
        started = time.monotonic()
        path = f"/v1/patients/{patient}/whatif?at={minute:.0f}&h={draw.choice((1, 6))}"
        codes[ask(path)] += 1
        times.append(1000 * (time.monotonic() - started))
        sent += 1
        if sent % round(seconds * RATE / 6) == 0:
            memory.append(resident(pid))
            print(f"after {now / 60:.0f} min: {memory[-1]:.0f} MB, {dict(codes)}", flush=True)
    times.sort()
    growth = 100 * (resident(pid) / memory[0] - 1)
    print(
        f"{sent} what-ifs in {seconds / 60:.0f} min ({sent / seconds:.2f} a second), "
        f"codes {dict(codes)}, p50 {times[len(times) // 2]:.0f} ms, "
        f"p99 {times[int(0.99 * len(times))]:.0f} ms, resident {growth:+.1f} % (bar 5 %), "
        f"compiled since the start: {compilations(log) - compiled} (bar 0)"
    )


def ask(path: str) -> str:
    """The status of an answer."""
    try:
        with urllib.request.urlopen(URL + path, timeout=60) as found:
            found.read()
            return str(found.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return type(error).__name__


def resident(pid: int) -> float:
    """Memory of a process in MB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found.group(1)) / 1000 if found else float("nan")


def compilations(log) -> int:
    """Programs that the server has compiled, by its own log."""
    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), size, 0).count(b"Finished XLA compilation")


if __name__ == "__main__":
    main()
