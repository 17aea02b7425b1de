"""Jobs on a Ray cluster: independent ones at the same time, on as many machines as there are.

Every machine needs the same stepdown and sees the folder of the jobs under the same path, such as
a network file system: jobs read and leave their files there, as they do in one process. A job is
handed out once what it needs is done. One that was lost with its machine is handed out again; one
that fails by itself ends the run. What was finished is kept, so a stopped run goes on where it was.
"""

import contextlib
import fcntl
import secrets
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from stepdown.artifacts import MANIFEST
from stepdown.experiment.jobs import Desk, Job, in_order, run_job, say

LOSSES = 3  # times that one job may be lost with its machine and handed out again
LOCKS = "locks"  # folder of the desk
PATIENCE = 90.0  # seconds; a network file system shows new files late, usually within 60
REACH = 5.0  # seconds to answer at an address


def run_on_ray(jobs: Sequence[Job], desk: Desk, address: str) -> None:
    """Make what is missing on the Ray cluster at `address` ("auto": the one of this machine).

    The folder of the desk must be visible to all nodes under the same path. The results are those
    of `run_jobs` on the same kind of machine, to the byte. Each job takes one CPU, and one GPU if
    the cluster has any.
    """
    ray = _import_ray()
    ordered, desk = in_order(jobs), Desk(desk.path.resolve())
    lines = {job.name: f"[{n}/{len(ordered)}] {job.name}" for n, job in enumerate(ordered, 1)}
    missing = []
    for job in ordered:
        if desk.is_done(job):  # this makes the fingerprint too, which then travels with the job
            say(lines[job.name])
        else:
            missing.append(job)
    if not missing:
        return
    with _connected(ray, address), _sign(ray, desk) as sign:
        _hand_out(ray, missing, desk, sign, lines)
    shutil.rmtree(desk.path / LOCKS, ignore_errors=True)


def _import_ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise ValueError(
            "--ray: expected Ray, which is not installed. Install it with "
            "`pip install 'stepdown[ray]'`, on every machine of the cluster."
        ) from None
    return ray


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str) -> Iterator[None]:
    """Be a driver of the cluster; when it leaves, Ray ends what still runs for it."""
    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        raise ValueError(
            f"--ray: expected a running Ray cluster, got {address}, where none was found. Start "
            "one with `ray start --head`, or leave --ray out."
        ) from None
    try:
        if _has_gpus(ray) and jax.default_backend() != "cpu":
            raise ValueError(
                "--ray: expected JAX on the CPU in the process that hands out jobs, got "
                f"{jax.default_backend()}, whose memory the jobs need. Set JAX_PLATFORMS=cpu for "
                "this command; the nodes keep their GPUs."
            )
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Ray itself tries a wrong address for minutes, then ends the process."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"--ray: expected auto or HOST:PORT, got {address!r}.")
    try:
        socket.create_connection((host, int(port)), timeout=REACH).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"--ray: expected a Ray cluster at {address}, got no answer ({error}). See "
            "`ray status` on its head node."
        ) from None


def _has_gpus(ray: ModuleType) -> bool:
    return ray.cluster_resources().get("GPU", 0) > 0


# ── the folder that all nodes see ────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _sign(ray: ModuleType, desk: Desk) -> Iterator[Path]:
    """A file that nodes know the folder by; refuse nodes that cannot read and write there."""
    sign = desk.path / f".sign-{secrets.token_hex(8)}"
    sign.touch()
    try:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        asked = [(node["NodeManagerAddress"], _ask(ray, node, sign)) for node in nodes]
        blind = [address for address, answer in asked if not _answer(ray, address, answer)]
        if blind:
            raise ValueError(_not_shared(desk.path, blind))
        yield sign
    finally:
        sign.unlink(missing_ok=True)


def _ask(ray: ModuleType, node: dict[str, Any], sign: Path) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    ask = ray.remote(_sees).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return ask.remote(sign)


def _answer(ray: ModuleType, address: str, answer: Any) -> bool:
    """Whether a node works in the folder; one that is lost meanwhile gets no job anyway."""
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        raise ValueError(
            f"--ray: expected stepdown on every node, got {address} with {error.cause}. Install "
            "the same version there."
        ) from error
    except ray.exceptions.RayError:
        return True


def _sees(sign: Path) -> bool:
    """On a node: whether the sign is there, and files can be written beside it."""
    tried = sign.with_name(f"{sign.name}-{secrets.token_hex(8)}")
    try:
        if not sign.exists():
            return False
        tried.touch()
        tried.unlink()
    except OSError:
        return False
    return True


def _not_shared(folder: Path, nodes: list[str]) -> str:
    return (
        f"{folder}: expected a folder that every node of the Ray cluster can read and write, got "
        f"{', '.join(nodes)}, which cannot. Choose an --out on a file system that all nodes share."
    )


def _appears(path: Path) -> bool:
    """Wait for a file that another node has just written."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


# ── handing out ──────────────────────────────────────────────────────────────────────────────────


def _hand_out(
    ray: ModuleType, missing: list[Job], desk: Desk, sign: Path, lines: dict[str, str]
) -> None:
    """Keep the cluster busy until everything is there."""
    # Ray would repeat a job that is too large for its machine forever; so we count ourselves.
    make = ray.remote(_make).options(num_cpus=1, num_gpus=int(_has_gpus(ray)), max_retries=0)
    waiting = {job.name: job for job in missing}
    running: dict[Any, Job] = {}
    losses: Counter[str] = Counter()
    while waiting or running:
        open_names = {*waiting, *(job.name for job in running.values())}
        for job in list(waiting.values()):
            if not any(need.name in open_names for need in job.needs):
                running[make.remote(waiting.pop(job.name), desk, sign)] = job
                say(lines[job.name])
        (task,), _ = ray.wait(list(running), num_returns=1)
        job = running.pop(task)
        try:
            seconds = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            raise _failure(job, error.cause) from error
        except ray.exceptions.RayError as error:
            losses[job.name] += 1
            _again(job, losses[job.name], error, lines)
            waiting[job.name] = job
            continue
        if not _appears(desk.folder(job) / MANIFEST):
            raise ValueError(_not_shared(desk.path, ["a node"]))
        say(f"{lines[job.name]}: {seconds:.1f} s")


def _again(job: Job, losses: int, error: Exception, lines: dict[str, str]) -> None:
    """Say that a job was lost; too often is too much."""
    reason = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
    if losses > LOSSES:
        raise RuntimeError(
            f"{job.name}: expected a node that lasts, got {losses} that were lost, the last one "
            f"with: {reason}. Look at their memory; what was finished is kept."
        ) from error
    say(f"{lines[job.name]}: lost ({reason}), handed out again, {losses} of {LOSSES}")


def _failure(job: Job, cause: BaseException) -> Exception:
    """Wrong input stays wrong input, as in one process; the rest keeps its traceback."""
    kind = ValueError if isinstance(cause, (ValueError, OSError)) else RuntimeError
    return kind(f"{job.name}: {cause or repr(cause)}")


def _make(job: Job, desk: Desk, sign: Path) -> float:
    """On a node: make a job as one process would; returned are seconds."""
    here = socket.gethostname()
    if not sign.exists():  # a node that came late
        raise ValueError(_not_shared(desk.path, [here]))
    if replace(job).fingerprint != job.fingerprint:  # a fresh one, of the sources on this node
        raise ValueError(
            f"expected the sources of stepdown that the run began with, got other ones on {here}. "
            "Install the same version on every node."
        )
    for need in job.needs:
        if not _appears(desk.folder(need) / MANIFEST):
            raise ValueError(f"expected {need.name}, which does not appear on {here}.")
    lock = desk.path / LOCKS / job.fingerprint
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        # A node that is cut off may still be at work; then we wait and find its result.
        fcntl.flock(held, fcntl.LOCK_EX)
        start = time.perf_counter()
        run_job(job, desk)
        return time.perf_counter() - start
