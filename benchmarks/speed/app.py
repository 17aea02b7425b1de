"""How fast the app answers: `python -m benchmarks.speed.app [RUN]`, as in docs/performance.md.

The server runs in a process of its own, and so does a plain FastAPI echo, to which everything is
held: same machine, same client, same bytes in. Needs the `app` extra and a finished run.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import PORT, ask, get, serve_app, wait, wait_for_reviews
from stepdown.app.audit import Audit, verify

ECHO = """
import sys, uvicorn
from fastapi import FastAPI, Request, Response
app = FastAPI()
@app.get("/healthz")
async def healthz(): return {"status": "alive"}
@app.post("/echo")
async def echo(body: dict): return body
uvicorn.run(app, port=int(sys.argv[1]), access_log=False, log_level="warning")
"""
PORTS = {"app": PORT, "echo": 8442}
PIDS: dict[str, int] = {}
JSON = "content-type: application/json\r\n"


@dataclass(frozen=True)
class Load:
    """What became of many requests."""

    rate: float  # requests a second
    times: list[float]  # milliseconds of each
    codes: list[int]  # status of each
    spent: float  # CPU milliseconds of the server for each


def main() -> None:
    """Start both servers, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="runs/demo", type=Path)
    run = parser.parse_args().run
    with tempfile.TemporaryDirectory() as state:
        started = time.perf_counter()
        echo = [sys.executable, "-c", ECHO, str(PORTS["echo"])]
        with serve_app(run, Path(state)) as app, subprocess.Popen(echo) as plain:
            PIDS.update(app=app.pid, echo=plain.pid)
            spent, took = cpu_ms("app") / 1000, time.perf_counter() - started
            try:
                wait(f"http://127.0.0.1:{PORTS['echo']}/healthz")
                print(f"ready after {took:.1f} s (bar 30), {spent:.1f} s of CPU")
                wait_for_reviews()  # they would be in the way
                asyncio.run(measure(a_body()))
                asyncio.run(hostile())
            finally:
                plain.terminate()
        print(f"audit after all that: {verify(Path(state))}")
    audit_speed()


def a_body() -> dict:
    """The request of a recorded moment that is answered, not refused."""
    for row in get("/v1/patients")["patients"]:
        answer = ask(f"/v1/patients/{row['patient']}/whatif")
        if answer["status"] == "ok":
            return get(f"/v1/audit/{answer['audit_id']}")["body"]["request"]
    raise ValueError("expected a patient whose what-if is not refused, found none.")


async def measure(body: dict) -> None:
    """All figures, one after the other."""
    health = request("GET", "/healthz")
    print("\n| what | req/s | p50 ms | p99 ms | CPU ms each | bar |\n|---|---|---|---|---|---|")
    ours = await closed("app", health, 8, 4.0)
    echo = await closed("echo", health, 8, 4.0)
    say("/healthz, 8 at once", ours, "1000 req/s, p99 20 ms")
    say("echo's /healthz, 8 at once", echo)
    rates, spent = ours.rate / echo.rate, ours.spent / echo.spent
    print(f"| /healthz: ours / echo | x{rates:.2f} | | | x{spent:.2f} | |")
    for hours, rate, seconds, bar in (
        (1, 5.0, 20.0, "5 req/s, p50 300 ms, p99 600 ms"),
        (6, 0.5, 30.0, "0.5 req/s, p99 3 s"),
    ):
        sent = json.dumps(body | {"horizon_h": hours}).encode()
        found = await paced("app", request("POST", "/v1/whatif", sent), rate, seconds)
        plain = await paced("echo", request("POST", "/echo", sent), rate, seconds)
        say(f"what-if {hours} h, paced", found, bar)
        say("echo of the same body, paced", plain)
        ratio = statistics.median(found.times) / statistics.median(plain.times)
        print(
            f"| what-if {hours} h / echo | | x{ratio:.0f} | | x{found.spent / plain.spent:.0f} | |"
        )
    sent = json.dumps(body).encode()
    fastest = await closed("app", request("POST", "/v1/whatif", sent), 2, 10.0)
    say("what-if 6 h, 2 at once", fastest)
    await overload(request("POST", "/v1/whatif", sent), health, 10 * fastest.rate)


def say(name: str, found: Load, bar: str = "") -> None:
    """A line of the table."""
    cuts = statistics.quantiles(found.times, n=100)
    odd = {code: found.codes.count(code) for code in set(found.codes) if code != 200}
    told = f"{found.rate:.1f} | {cuts[49]:.1f} | {cuts[98]:.1f} | {found.spent:.2f}"
    print(f"| {name} | {told} | {bar} {odd or ''} |", flush=True)


async def overload(call: bytes, health: bytes, rate: float, seconds: float = 5.0) -> None:
    """Ten times what can be answered, for a while; health meanwhile; then one more."""
    asking = asyncio.create_task(paced("app", call, rate, seconds))
    pulse = []
    while not asking.done():
        pulse.append((await once("app", health))[0])
        await asyncio.sleep(0.02)
    codes = asking.result().codes
    started, after = time.perf_counter(), (0.0, 429)
    while after[1] != 200:
        after = await once("app", call)
    took = time.perf_counter() - started
    cuts = statistics.quantiles(pulse, n=100)
    print(
        f"\noverload: {rate:.0f} req/s for {seconds:.0f} s, {codes.count(200)} answered, "
        f"{codes.count(429)} sent away, {sum(code >= 500 for code in codes)} failed; health p50 "
        f"{cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, slowest {max(pulse):.0f} ms (bar 100); "
        f"an answer {took:.1f} s after it (bar 5)"
    )


async def hostile(times: int = 20) -> None:
    """CPU time of the server for bodies that are none, the worst of them."""
    bodies = {
        "10 MB": b"1" * 10_000_000,
        "a list of 1e6": b'{"candidates":[' + b"1," * 999_999 + b"1]}",
        "120 kB of numbers": b'{"candidates":[' + b"1," * 60_000 + b"1]}",
        "deep JSON": b"[" * 120_000,
        "bad UTF-8": b'{"t_end": "\xff\xfe"}',
    }
    spent, codes = {}, set()
    for name, body in bodies.items():
        before = cpu_ms("app")
        for _ in range(times):
            try:
                codes.add((await once("app", request("POST", "/v1/whatif", body)))[1])
            except (ConnectionError, asyncio.IncompleteReadError):
                codes.add("closed")  # before the whole body was read
        spent[name] = (cpu_ms("app") - before) / times
    told = ", ".join(f"{name} {value:.1f} ms" for name, value in spent.items())
    print(f"\nhostile bodies: {told} of CPU each (bar 50); codes {sorted(map(str, codes))}")


def cpu_ms(server: str) -> float:
    """CPU time of a server so far."""
    fields = (
        Path(f"/proc/{PIDS[server]}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    )
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ── a small HTTP client: the usual ones are slower than what is measured ─────────────────────────


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """A request as it goes over the wire."""
    kind = JSON if body else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{kind}content-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


async def answer(reader, writer, call: bytes) -> tuple[float, int]:
    """Milliseconds and status of one request on an open connection."""
    started = time.perf_counter()
    writer.write(call)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    await reader.readexactly(length)
    return 1000 * (time.perf_counter() - started), int(head.split(" ")[1])


async def once(server: str, call: bytes) -> tuple[float, int]:
    """The same on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORTS[server])
    found = await answer(reader, writer, call)
    writer.close()
    return found


async def closed(server: str, call: bytes, workers: int, seconds: float) -> Load:
    """As fast as it goes: each worker asks again when it has its answer."""
    until = time.perf_counter() + seconds
    found: list[tuple[float, int]] = []

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORTS[server])
        while time.perf_counter() < until:
            found.append(await answer(reader, writer, call))
        writer.close()

    started, before = time.perf_counter(), cpu_ms(server)
    await asyncio.gather(*(work() for _ in range(workers)))
    rate = len(found) / (time.perf_counter() - started)
    spent = (cpu_ms(server) - before) / len(found)
    return Load(rate, [ms for ms, _ in found], [code for _, code in found], spent)


async def paced(server: str, call: bytes, rate: float, seconds: float) -> Load:
    """At a rate, whether or not the last answer is there."""
    tasks, before = [], cpu_ms(server)
    for _ in range(round(rate * seconds)):
        tasks.append(asyncio.create_task(once(server, call)))
        await asyncio.sleep(1 / rate)
    found = await asyncio.gather(*tasks)
    spent = (cpu_ms(server) - before) / len(found)
    return Load(rate, [ms for ms, _ in found], [code for _, code in found], spent)


def audit_speed(entries: int = 1000) -> None:
    """Entries in a second, each on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        audit = Audit(Path(folder))
        started = time.perf_counter()
        for number in range(entries):
            body = {"number": number, "filling": "x" * 8000}
            audit.append("whatif", body, "2026-01-01T00:00:00+00:00")
        rate = entries / (time.perf_counter() - started)
        audit.close()
    print(f"audit: {rate:.0f} entries/s of 8 kB, each fsynced (bar 200)")


if __name__ == "__main__":
    main()
