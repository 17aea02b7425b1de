"""Small real jobs for the tests of this folder: numbers out of numbers."""

import os
import signal
import time
from dataclasses import dataclass

import numpy as np

from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.experiment.processes import MEMORY
from stepdown.policies.learning import TrainingStoppedError


@dataclass(frozen=True)
class Begin:
    """A number out of nothing."""

    value: float

    def make(self, desk: Desk):
        """Note that it was really made."""
        return made(desk, "begin", self.value)


@dataclass(frozen=True)
class Add:
    """The sum of other jobs and a number."""

    needs: tuple[Job, ...]
    value: float = 0.0
    name: str = "add"

    def make(self, desk: Desk):
        """Note that it was really made."""
        return made(desk, self.name, sum(desk.arrays(job)["x"] for job in self.needs) + self.value)


def made(desk: Desk, name: str, value) -> dict:
    desk.path.mkdir(parents=True, exist_ok=True)
    with (desk.path / "made.log").open("a") as notes:
        notes.write(f"{name}\n")
    return arrays_and_info({"x": np.asarray(value, float)}, {"name": name})


def notes(desk: Desk) -> list[str]:
    """Who was really made, in order."""
    return (desk.path / "made.log").read_text().split()


@dataclass(frozen=True)
class WaitForStop:
    """A training: works until it is told to stop, saves, and goes on when it is made again."""

    def make(self, desk: Desk):
        """Begin, or go on."""
        assert desk.half_done is not None
        if not desk.half_done.is_dir():
            (desk.path / "begun").touch()
            while not desk.stopping():
                time.sleep(0.01)
            desk.half_done.mkdir(parents=True)
            raise TrainingStoppedError
        return made(desk, "slow", 7.0)


@dataclass(frozen=True)
class Refuse:
    """Fails by itself."""

    needs: tuple[Job, ...] = ()

    def make(self, desk: Desk):
        """Say why."""
        raise ValueError("expected better patients.")


@dataclass(frozen=True)
class Interrupt:
    """Is interrupted from the keyboard."""

    needs: tuple[Job, ...] = ()

    def make(self, desk: Desk):
        """Never end."""
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Die:
    """Is killed."""

    needs: tuple[Job, ...] = ()

    def make(self, desk: Desk):
        """End at once."""
        os.kill(os.getpid(), signal.SIGKILL)
        return {}


@dataclass(frozen=True)
class TellMemory:
    """Tells how much of a GPU it may take, plus one if all at once."""

    def make(self, desk: Desk):
        """Read the environment."""
        at_once = os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] != "false"
        return arrays_and_info({"x": np.array(float(os.environ[MEMORY]) + at_once)}, {})


def chain(first: float = 1.0, last: float = 10.0) -> list[Job]:
    """Three jobs, each needing the one before: x, 2 x, 2 x + 10."""
    one = Job("a/begin", Begin(first))
    two = Job("a/twice", Add((one, one), name="twice"))
    return [one, two, Job("b/shifted", Add((two,), last, "shifted"))]


def fan() -> Job:
    """One job, four that need it, one that needs them: 19 in all."""
    first = Job("first", Begin(1.0))
    middle = tuple(Job(f"middle-{n}", Add((first,), float(n), f"{n}")) for n in range(4))
    return Job("last", Add(middle, 9.0, "last"))
