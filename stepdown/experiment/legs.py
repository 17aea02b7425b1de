"""A run in legs: each ends when it is asked to or after some minutes, the next one goes on.

A leg is a file of OUT.jobs/legs, written anew every second while it lasts, so that one that was
killed counts as well. The time of a run is the sum of its legs.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from stepdown.experiment.jobs import Desk, RunStoppedError, alone, jobs_of, say
from stepdown.experiment.progress import Terminal
from stepdown.experiment.stopping import Stop, stoppable
from stepdown.policies.learning import TrainingStoppedError

FOLDER, TICK = "legs", 1.0  # s between two writings
HINT = "stopped; what is finished is kept. Start the same command again to go on."
STOPPED = (RunStoppedError, TrainingStoppedError)  # what a stopped run raises


@dataclass(frozen=True)
class Leg:
    """One call of a command that makes jobs."""

    what: str  # such as "run"
    begun: str  # UTC
    workers: int
    seconds: float


@contextlib.contextmanager
def at_work(
    out: Path, what: str, workers: int = 1, minutes: float | None = None
) -> Iterator[tuple[Desk, Stop]]:
    """The jobs of a run for this process alone, until it is asked to end or its time is over."""
    if minutes is not None and not minutes > 0:
        raise ValueError(f"--minutes: expected more than 0, got {minutes:g}.")
    with (
        stoppable(HINT, minutes=minutes) as stop,
        alone(jobs_of(out), Terminal(), stop.asked) as desk,
        counted(desk.path, what, workers),
    ):
        yield desk, stop


@contextlib.contextmanager
def counted(path: Path, what: str, workers: int = 1) -> Iterator[None]:
    """Write down how long the block lasts, while it lasts."""
    folder, start, over = path / FOLDER, time.monotonic(), threading.Event()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{len(read_legs(path)) + 1:03d}.json"
    begun = datetime.now().astimezone().isoformat(timespec="seconds")

    def write() -> None:
        leg = Leg(what, begun, workers, round(time.monotonic() - start, 2))
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(leg)), encoding="utf-8")
        os.replace(draft, file)

    def keep_writing() -> None:
        while not over.wait(TICK):
            write()

    write()
    writer = threading.Thread(target=keep_writing, daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()
        write()


def read_legs(path: Path) -> list[Leg]:
    """The legs of a run so far, the one under way included."""
    files = sorted((path / FOLDER).glob("*.json"))
    return [Leg(**json.loads(file.read_text(encoding="utf-8"))) for file in files]


def legs_words(legs: list[Leg]) -> str:
    """The time of a run in a sentence."""
    each = ", ".join(f"{leg.what} {leg.seconds / 60:.1f}" for leg in legs)
    total = sum(leg.seconds for leg in legs) / 60
    count = "1 leg" if len(legs) == 1 else f"{len(legs)} legs"
    return f"{total:.1f} min in {count}, min: {each}."


def ended(stop: Stop) -> int:
    """Say that a run goes on when it is called again, and give the exit code."""
    say(f"\nstepdown: {HINT}")
    return stop.code
