"""Jobs in several processes of one machine: one compiles or judges while another learns.

A training of a few seeds fills neither a GPU nor many cores, and patients are simulated on the CPU
meanwhile. The results are those of one process: a job's random numbers are its own. Processes
share a GPU's time by turns; where NVIDIA's multi-process service runs, at the same time.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stepdown.experiment.cluster import run_on_ray
from stepdown.experiment.jobs import (
    Clock,
    Desk,
    Job,
    RunStoppedError,
    in_order,
    left_after,
    run_job,
    run_jobs,
    say,
)
from stepdown.policies.learning import TrainingStoppedError

STOP, LOOK = "stop", 0.5  # file that tells the processes to end; s between two looks at our own
MEMORY, SHARED = "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.9  # of a GPU, in equal parts


def run_somewhere(
    jobs: Sequence[Job], desk: Desk, ray: str | None, workers: int, clock: Clock | None = None
) -> None:
    """Make what is missing: on a Ray cluster, in several processes, or simply here."""
    if ray is not None:
        run_on_ray(jobs, desk, ray)
    elif workers == 1:
        run_jobs(jobs, desk, clock)
    else:
        run_beside(jobs, desk, workers, clock)


def run_beside(jobs: Sequence[Job], desk: Desk, workers: int, clock: Clock | None = None) -> None:
    """Make what is missing in so many processes; a job begins once what it needs is there."""
    if workers < 1:
        raise ValueError(f"--workers: expected at least 1, got {workers}.")
    ordered = in_order(jobs)
    waiting = {job.name: job for job in ordered if not desk.is_done(job)}
    number = {job.name: f"[{n}/{len(ordered)}]" for n, job in enumerate(ordered, 1)}
    running: dict[Future[float], Job] = {}
    sign = Sign(desk.path / STOP)
    sign.path.unlink(missing_ok=True)  # of a run that was killed
    theirs = Desk(desk.path, desk.teller, sign)
    with _pool(workers) as pool:
        while running or (waiting and not sign()):
            if desk.stopping():
                sign.path.touch()  # trainings save and end, other jobs have until we are ended
            else:
                for job in _ready(waiting, running)[: workers - len(running)]:
                    running[pool.submit(_make, waiting.pop(job.name), theirs)] = job
                    say(f"{number[job.name]} {job.name}")
            done, _ = wait(running, LOOK, return_when=FIRST_COMPLETED)
            for task in done:
                job = running.pop(task)
                if not isinstance(task.exception(), TrainingStoppedError):
                    made = f"{number[job.name]} {job.name}: {_seconds(task, job):.1f} s"
                    say(", ".join(filter(None, [made, left_after(job, clock)])))
    if sign():
        sign.path.unlink()
        raise RunStoppedError


@dataclass(frozen=True)
class Sign:
    """Whether a file is there: a question that other processes can ask, too."""

    path: Path

    def __call__(self) -> bool:
        """Whether it is."""
        return self.path.exists()


def _ready(waiting: dict[str, Job], running: dict[Future[float], Job]) -> list[Job]:
    """Jobs whose needs are done, in the order of the plan."""
    open_names = {*waiting, *(job.name for job in running.values())}
    return [
        job for job in waiting.values() if not any(need.name in open_names for need in job.needs)
    ]


def _seconds(task: Future[float], job: Job) -> float:
    try:
        return task.result()
    except BrokenProcessPool as error:
        raise RuntimeError(
            f"{job.name}: expected a process that lasts, got one that was killed, perhaps for want "
            "of memory. Start again with fewer --workers; what was finished is kept."
        ) from error


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of their own; on the way out nothing is begun any more, and none stays behind."""
    before = os.environ.get(MEMORY)
    os.environ.setdefault(MEMORY, f"{SHARED / workers:.3f}")
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    pool = ProcessPoolExecutor(workers, context, initializer=_stay_with, initargs=(os.getpid(),))
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        if before is None:
            del os.environ[MEMORY]


def _stay_with(parent: int) -> None:
    """End with the process that hands out jobs, however it ends."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _make(job: Job, desk: Desk) -> float:
    start = time.perf_counter()
    run_job(job, desk)
    return time.perf_counter() - start
