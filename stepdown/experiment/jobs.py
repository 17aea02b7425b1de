"""Jobs of a run: each is made once, kept in a folder, and made again only if it has to be.

A job is a name and some work: a dataclass with a method `make`. Fields of the work that are jobs
are what it needs; the others are its settings. The fingerprint of a job is a digest of its name,
its settings, the sources that it rests on (sources.py) and the fingerprints of what it needs. The
folder keeps it in its manifest: the same fingerprint is never made twice, so a run that was stopped
goes on where it was, and a changed setting or line renews exactly what depends on it. Versions and
devices are noted, not part of it: a job made on a GPU machine is good on a laptop.
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stepdown.artifacts import (
    ARRAYS,
    MANIFEST,
    ArtifactError,
    Content,
    arrays_from_bytes,
    arrays_to_bytes,
    check_folder,
    provenance,
    to_json,
    write_folder,
)
from stepdown.experiment.sources import digest_of

KIND, INFO, LOCK = "job", "info.json", "lock"
HALF_DONE = "half-done"  # folder of what jobs keep while they are made


@runtime_checkable
class Work(Protocol):
    """What a job does: a frozen dataclass whose fields are settings and jobs."""

    def make(self, desk: "Desk") -> Mapping[str, Content]:
        """The files of the result; what it needs is finished."""
        ...


@dataclass(frozen=True, eq=False)
class Job:
    """Something to make from other jobs; two with one fingerprint are the same."""

    name: str  # of its folder, such as "guarded-7/train/recorded/ours/cormpo_kde"
    work: Work

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @functools.cached_property
    def needs(self) -> tuple["Job", ...]:
        """The jobs among the fields of the work."""
        return tuple(dict.fromkeys(_jobs_in(self.work)))

    @functools.cached_property
    def fingerprint(self) -> str:
        """What the result depends on."""
        known = [self.name, _told(self.work), digest_of(_modules_of(self.work))]
        known += [need.fingerprint for need in self.needs]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    @property
    def settings(self) -> Any:
        """The settings of the work, as plain values."""
        return _told(self.work)


def _jobs_in(value: Any) -> Iterator[Job]:
    if isinstance(value, Job):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _jobs_in(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _jobs_in(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from _jobs_in(inner)


def _told(value: Any) -> Any:
    """Settings as plain values: jobs and functions by name, nothing that is only shown."""
    if isinstance(value, Job):
        return f"job {value.name}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = [x for x in dataclasses.fields(value) if not x.metadata.get("shown")]
        return [type(value).__qualname__, {x.name: _told(getattr(value, x.name)) for x in kept}]
    if isinstance(value, Mapping):
        return {str(name): _told(inner) for name, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_told(inner) for inner in value]
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return str(value) if isinstance(value, Path) else value


def _modules_of(value: Any) -> set[str]:
    """Where the work, its settings and the functions among them are written."""
    if isinstance(value, Job):
        return set()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = [x for x in dataclasses.fields(value) if not x.metadata.get("shown")]
        inner = [_modules_of(getattr(value, x.name)) for x in kept]
        return {type(value).__module__}.union(*inner)
    if isinstance(value, Mapping):
        return set().union(*(_modules_of(inner) for inner in value.values()))
    if isinstance(value, (tuple, list)):
        return set().union(*(_modules_of(inner) for inner in value))
    return {value.__module__} if callable(value) else set()


@runtime_checkable
class Teller(Protocol):
    """Says what goes on while a job is made; results do not depend on it."""

    def progress(self, words: str) -> AbstractContextManager[Callable[[float], None]]:
        """Whom to tell the share that is done."""
        ...

    def begin(self, folder: Path, seed: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """A training of a seed begins, or goes on after these lines of its record."""
        ...

    def epoch(self, folder: Path, title: str, share: float, line: Mapping[str, Any]) -> None:
        """A training has written a line into its record."""
        ...


class Silent:
    """Says nothing."""

    @contextlib.contextmanager
    def progress(self, words: str) -> Iterator[Callable[[float], None]]:
        """Nobody listens."""
        yield lambda share: None

    def begin(self, folder: Path, seed: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Nobody listens."""

    def epoch(self, folder: Path, title: str, share: float, line: Mapping[str, Any]) -> None:
        """Nobody listens."""


SILENT = Silent()


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Desk:
    """Where jobs find what others have left, say what goes on, hear whether to stop."""

    path: Path
    teller: Teller = SILENT
    stopping: Callable[[], bool] = _never
    half_done: Path | None = None  # where the job at work may keep what it has done so far
    save_seconds: float = 20.0  # least time between two savings of what is half done

    def folder(self, job: Job) -> Path:
        """The folder of a finished job."""
        return self.path / job.name

    def arrays(self, job: Job) -> dict[str, np.ndarray]:
        """The arrays of a finished job."""
        return arrays_from_bytes((self.folder(job) / ARRAYS).read_bytes())

    def info(self, job: Job) -> Any:
        """What a finished job says about itself."""
        return json.loads((self.folder(job) / INFO).read_bytes())

    def about(self, job: Job) -> dict[str, Any]:
        """How a finished job came about: seconds, device, versions, date."""
        return json.loads((self.folder(job) / MANIFEST).read_bytes())["about"]

    def is_done(self, job: Job) -> bool:
        """Whether the folder holds this very job, undamaged."""
        folder = self.folder(job)
        if not (folder / MANIFEST).is_file():
            return False
        try:
            return check_folder(folder, KIND)["about"].get("fingerprint") == job.fingerprint
        except ArtifactError:
            return False


def run_job(job: Job, desk: Desk) -> bool:
    """Make a job whose needs are done; False if it was there already."""
    if desk.is_done(job):
        return False
    half_done = desk.path / HALF_DONE / job.fingerprint[:16]
    start = time.perf_counter()
    files = job.work.make(dataclasses.replace(desk, half_done=half_done))
    seconds = time.perf_counter() - start
    about = provenance(config=job.settings) | {"fingerprint": job.fingerprint, "seconds": seconds}
    folder = desk.folder(job)
    shutil.rmtree(folder, ignore_errors=True)  # an older fingerprint
    write_folder(folder, files, kind=KIND, about=about)
    shutil.rmtree(half_done, ignore_errors=True)
    return True


def in_order(jobs: Sequence[Job]) -> list[Job]:
    """The jobs and all they need, every one once and after its needs."""
    ordered: dict[str, Job] = {}

    def visit(job: Job) -> None:
        for need in job.needs:
            visit(need)
        if ordered.setdefault(job.name, job) != job:
            raise ValueError(f"expected one job {job.name}, got two that differ. Name them apart.")

    for job in jobs:
        visit(job)
    return list(ordered.values())


class RunStoppedError(Exception):
    """Somebody asked a run to end; what was finished is kept."""


@runtime_checkable
class Clock(Protocol):
    """Knows how long the rest of a run will take."""

    def finish(self, job: Job) -> None:
        """A job is made."""
        ...

    def left(self) -> str:
        """In words; empty where nobody can know."""
        ...


def run_jobs(jobs: Sequence[Job], desk: Desk, clock: Clock | None = None) -> None:
    """Make what is missing, one after the other, and say so."""
    ordered = in_order(jobs)
    for number, job in enumerate(ordered, 1):
        if desk.stopping():
            raise RunStoppedError
        say(f"[{number}/{len(ordered)}] {job.name}")
        start = time.perf_counter()
        if run_job(job, desk):
            made = f"[{number}/{len(ordered)}] {time.perf_counter() - start:.1f} s"
            say(", ".join(filter(None, [made, left_after(job, clock)])))


def left_after(job: Job, clock: Clock | None) -> str:
    """How long the rest will take now that a job is made."""
    if clock is None:
        return ""
    clock.finish(job)
    return clock.left()


def jobs_words(count: int) -> str:
    """A number of jobs."""
    return "1 job" if count == 1 else f"{count} jobs"


def say(line: str) -> None:
    """A line for whoever waits, at once."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def alone(
    path: Path, teller: Teller = SILENT, stopping: Callable[[], bool] = _never
) -> Iterator[Desk]:
    """A folder of jobs for this process alone; a second one is refused."""
    path = path.resolve()
    path.mkdir(parents=True, exist_ok=True)
    with (path / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{path}: expected nobody at work there, got another run. Wait for it, or choose "
                "another --out."
            ) from None
        yield Desk(path, teller, stopping)


def jobs_of(out: Path) -> Path:
    """The folder that keeps what the results in OUT are made of: OUT.jobs beside it."""
    return out.resolve().with_name(f"{out.resolve().name}.jobs")


def arrays_and_info(arrays: Mapping[str, Any], info: Any) -> dict[str, Content]:
    """The two files that most jobs leave."""
    plain = {name: np.asarray(values) for name, values in arrays.items()}
    return {ARRAYS: arrays_to_bytes(plain), INFO: to_json(info, nan=True)}


def saved(save: Callable[[Path], None], name: str) -> dict[str, Content]:
    """The files of a model that saves itself, to be kept inside a job or a run."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / name
        save(folder)
        return files_of(folder, name)


def files_of(folder: Path, name: str) -> dict[str, Content]:
    """The files of a folder, to be kept under another name."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in files}
