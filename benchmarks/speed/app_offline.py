"""Without any network (S8): `python -m benchmarks.speed.app_offline`, everything on loopback.

It starts itself again in a network namespace that has nothing but loopback, makes a pocket run
(simulate, fit, learn, judge, report), looks at it with the commands, and serves it. Needs Linux
with `unshare` and the `app` and `onnx` extras.
"""

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.servers import URL, get, serve_app

INSIDE = "--inside"
COMMAND = [sys.executable, "-m", "stepdown"]


def main() -> None:
    """Outside: enter the namespace. Inside: try everything."""
    if INSIDE in sys.argv:
        inside()
        return
    script = 'ip link set lo up && exec "$0" "$@"'
    words = ["sh", "-c", script, sys.executable, "-m", "benchmarks.speed.app_offline", INSIDE]
    sys.exit(subprocess.run(["unshare", "--map-root-user", "--net", *words]).returncode)


def inside() -> None:
    """All the commands, then the app."""
    names = [name for _, name in socket.if_nameindex()]
    print(f"interfaces: {', '.join(names)}")
    if names != ["lo"]:
        raise SystemExit("expected loopback alone.")
    with tempfile.TemporaryDirectory() as made:
        run = Path(made) / "pocket"
        tell("run", "pocket", "--out", str(run))
        assert b"<html" in (run / "report.html").read_bytes()[:2000].lower()
        outside = [
            word
            for word in ('src="http', 'href="http', "url(http", "@import")
            if word in (run / "report.html").read_text(encoding="utf-8")
        ]
        print(f"report.html: {(run / 'report.html').stat().st_size:,} bytes, loads {outside}")
        tell("score", str(run / "cohort"))
        tell("doctor", str(run / "cohort" / "cohort.parquet"))
        tell("export", str(run), "--onnx", f"{made}/onnx", "--include-patient-data")
        serve(run, Path(made) / "state")
        tell("audit", "verify", f"{made}/state")


def tell(*words: str) -> None:
    """Run a command; 1 is the doctor's word for findings."""
    started = time.perf_counter()
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    took = time.perf_counter() - started
    print(f"stepdown {words[0]} {words[1] if words[0] in ('run', 'audit') else ''}: "
          f"exit {done.returncode}, {took:.0f} s", flush=True)  # fmt: skip
    if done.returncode not in (0, 1 if words[0] == "doctor" else 0):
        raise SystemExit(done.stderr)


def serve(run: Path, state: Path) -> None:
    """The app, a page and a what-if."""
    with serve_app(run, state):
        patient = get("/v1/patients")["patients"][0]["patient"]
        answer = get(f"/v1/patients/{patient}/whatif")
        with urllib.request.urlopen(URL, timeout=60) as found:
            page = found.read()
        told = (answer["status"], [one["code"] for one in answer["refusals"]])
        print(f"app: {len(page):,} bytes of page; what-if of {patient}: {told}")


if __name__ == "__main__":
    main()
