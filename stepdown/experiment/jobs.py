"""Jobs of a run: each is made once, kept in a folder, and made again only if it has to be.

A job names the jobs it needs, its settings and the parts of our sources that it rests on. Their
digest is its fingerprint, which the folder keeps in its manifest: the same fingerprint is never
made twice, so a run that was stopped goes on where it was, and a changed setting renews exactly
what depends on it. Versions and devices are noted, not part of it: a job made on a GPU machine is
good on a laptop.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepdown.artifacts import (
    ARRAYS,
    MANIFEST,
    ArtifactError,
    Content,
    arrays_from_bytes,
    arrays_to_bytes,
    check_folder,
    config_to_dict,
    provenance,
    write_folder,
)

KIND, INFO, LOCK = "job", "info.json", "lock"
_PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Job:
    """Something to make from other jobs."""

    name: str  # of its folder, such as "guarded-7/train/recorded/ours/cormpo_kde"
    settings: Any  # a config dataclass: what the result depends on beside other jobs
    sources: tuple[str, ...]  # files and folders of the package
    make: Callable[["Desk"], Mapping[str, Content]]
    needs: tuple["Job", ...] = ()

    @functools.cached_property
    def fingerprint(self) -> str:
        """What the result depends on."""
        known = [self.name, config_to_dict(self.settings)]
        known += [_digest_of(source) for source in self.sources]
        known += [need.fingerprint for need in self.needs]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Desk:
    """Where jobs find what other jobs have left."""

    path: Path

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
    start = time.perf_counter()
    files = job.make(desk)
    seconds = time.perf_counter() - start
    about = provenance(config=job.settings) | {"fingerprint": job.fingerprint, "seconds": seconds}
    folder = desk.folder(job)
    shutil.rmtree(folder, ignore_errors=True)  # an older fingerprint
    write_folder(folder, files, kind=KIND, about=about)
    return True


def in_order(jobs: Sequence[Job]) -> list[Job]:
    """The jobs and all they need, every one once and after its needs."""
    ordered: dict[str, Job] = {}

    def visit(job: Job) -> None:
        for need in job.needs:
            visit(need)
        ordered.setdefault(job.name, job)

    for job in jobs:
        visit(job)
    return list(ordered.values())


def run_jobs(jobs: Sequence[Job], desk: Desk) -> None:
    """Make what is missing, one after the other, and say so."""
    ordered = in_order(jobs)
    for number, job in enumerate(ordered, 1):
        say(f"[{number}/{len(ordered)}] {job.name}")
        start = time.perf_counter()
        if run_job(job, desk):
            say(f"[{number}/{len(ordered)}] {time.perf_counter() - start:.1f} s")


def say(line: str) -> None:
    """A line for whoever waits, at once."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def alone(out: Path) -> Iterator[Desk]:
    """The jobs of a run, OUT.jobs, for this process alone; a second one is refused."""
    path = out.resolve().with_name(f"{out.resolve().name}.jobs")
    path.mkdir(parents=True, exist_ok=True)
    with (path / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{path}: expected nobody at work there, got another run. Wait for it, or choose "
                "another --out."
            ) from None
        yield Desk(path)


def arrays_and_info(arrays: Mapping[str, Any], info: Any) -> dict[str, Content]:
    """The two files that most jobs leave."""
    plain = {name: np.asarray(values) for name, values in arrays.items()}
    text = json.dumps(info, indent=1, sort_keys=True, default=_plain) + "\n"
    return {ARRAYS: arrays_to_bytes(plain), INFO: text.encode()}


def saved(save: Callable[[Path], None], name: str) -> dict[str, Content]:
    """The files of a model that saves itself, to be kept inside a job."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / name
        save(folder)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {path.relative_to(made).as_posix(): path.read_bytes() for path in files}


def _plain(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"expected plain values, got {value!r}.")


@functools.cache  # the sources as they were loaded, should somebody edit them meanwhile
def _digest_of(source: str) -> str:
    path = _PACKAGE / source
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    told = hashlib.sha256()
    for file in files:
        if file.suffix in (".py", ".json"):
            told.update(file.relative_to(_PACKAGE).as_posix().encode() + file.read_bytes())
    return told.hexdigest()
