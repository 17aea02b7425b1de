"""A run on a Ray cluster ends with the very files of a run in one process, whoever dies."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
import pytest

from stepdown.__main__ import main
from stepdown.experiment.cluster import run_on_ray
from stepdown.experiment.jobs import Desk, Job, arrays_and_info, run_jobs
from stepdown.policies.learning import spread_seeds
from stepdown.policies.model_based import prepare
from stepdown.policies.penalties import Unpenalized
from tests.policies.toys import (
    POCKET,
    ROWS,
    MoreIsBetter,
    make_hours,
    random_states,
    side_by_side,
)
from tests.records.recordings import mapping_file, value_table

# Ray's test cluster forks this process to start its own, where JAX has threads; they exec at once.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The head of a cluster, with one CPU."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'stepdown[ray]'")
    from ray.cluster_utils import Cluster

    try:
        started = Cluster(initialize_head=True, head_node_args=NODE)
    except Exception as error:  # noqa: BLE001
        pytest.skip(f"Ray cannot start on this machine: {error}")
    yield started
    started.shutdown()


@dataclass(frozen=True)
class First:
    notes: Path

    def make(self, desk: Desk):
        note(self.notes, "source")
        return arrays_and_info({"x": jr.normal(jr.key(3), (64, 64))}, {})


@dataclass(frozen=True)
class Wide:
    """Waits for a file named `gate`, so that somebody can be sure to meet it at work."""

    notes: Path
    first: Job
    number: int

    def make(self, desk: Desk):
        note(self.notes, f"wide-{self.number}")
        wait_for(lambda: (self.notes / "gate").exists())
        x = desk.arrays(self.first)["x"]
        found = {"x": jax.nn.softmax(x @ x.T / self.number)}
        return arrays_and_info(found, {"number": self.number})


@dataclass(frozen=True)
class Together:
    notes: Path
    first: Job
    middle: tuple[Job, ...]

    def make(self, desk: Desk):
        note(self.notes, "together")
        return arrays_and_info({"x": sum(desk.arrays(job)["x"] for job in self.middle)}, {})


@dataclass(frozen=True)
class Fail:
    notes: Path
    before: Job

    def make(self, desk: Desk):
        note(self.notes, "fail")
        raise ValueError("expected hours, got none.")


def graph(notes: Path) -> list[Job]:
    """One job, four that need it, one that needs them; each notes where it begins."""
    first = Job("a/source", First(notes))
    middle = tuple(Job(f"a/wide-{n}", Wide(notes, first, n)) for n in range(1, 5))
    return [Job("b/together", Together(notes, first, middle))]


def note(notes: Path, name: str) -> None:
    """Leave a file that says which node began a job, in which process."""
    import ray

    node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "none"
    (notes / f"{name} {node} {os.getpid()}").touch()


def wait_for(ready: Callable[[], bool]) -> None:
    while not ready():
        time.sleep(0.02)


def begun(notes: Path) -> list[list[str]]:
    return [path.name.split() for path in sorted(notes.glob("* * *"))]


def results(desk: Desk) -> dict[str, bytes]:
    files = sorted(desk.path.glob("*/*/*"))
    return {
        str(file.relative_to(desk.path)): file.read_bytes()
        for file in files
        if file.name != "manifest.json"
    }


def folders(tmp_path: Path, name: str) -> tuple[Desk, Path]:
    desk, notes = tmp_path / name, tmp_path / f"{name}-notes"
    desk.mkdir()
    notes.mkdir()
    return Desk(desk), notes


def test_a_job_that_fails_by_itself_ends_the_run_with_its_name(cluster, tmp_path):
    desk, notes = folders(tmp_path, "ray")
    source = graph(notes)[0].needs[0]
    failing = Job("c/fail", Fail(notes, source))
    after = Job("c/after", Fail(notes, failing))
    with pytest.raises(ValueError, match=r"c/fail: expected hours, got none\."):
        run_on_ray([after], desk, cluster.address)
    assert [name for name, _, _ in begun(notes)] == ["fail", "source"]
    assert desk.is_done(source)


def test_recordings_read_on_a_cluster_are_the_same_cohort(cluster, tmp_path, capsys):
    """And what one process refuses, a cluster refuses in the same words."""
    stays = tmp_path / "stays"
    stays.mkdir()
    for number in range(3):
        value_table(f"p{number}", level=3 + number).write_parquet(stays / f"{number}.parquet")
    here, there = tmp_path / "here", tmp_path / "there"
    words = ["import", str(stays), "--columns", str(mapping_file(tmp_path))]
    assert main([*words, "--out", str(here)]) == 0
    assert main([*words, "--out", str(there), "--ray", cluster.address]) == 0
    said = capsys.readouterr().err
    assert [f"[{number}/3] import/" in said for number in (1, 2, 3)] == [True] * 3
    assert (there / "cohort.parquet").read_bytes() == (here / "cohort.parquet").read_bytes()
    assert not (tmp_path / ".there.unfinished").exists()

    (stays / "3.parquet").write_bytes(b"no table")
    told = []
    for more in ([], ["--ray", cluster.address]):
        assert main([*words, "--out", str(tmp_path / "bad"), *more]) == 65
        told.append(capsys.readouterr().err.splitlines()[-1])
    assert told[0] == told[1]
    assert str(stays / "3.parquet") in told[0]


def test_a_lost_node_changes_no_result(cluster, tmp_path, capsys):
    local, seen = folders(tmp_path, "local")
    (seen / "gate").touch()
    run_jobs(graph(seen), local)

    desk, notes = folders(tmp_path, "ray")
    run_jobs(graph(notes)[0].needs[:1], desk)  # one is done before
    second = cluster.add_node(**NODE)

    def kill() -> None:
        wait_for(lambda: any(node == second.node_id for _, node, _ in begun(notes)))
        cluster.remove_node(second, allow_graceful=False)
        for _, node, process in begun(notes):  # as with a machine, all of it ends
            if node == second.node_id:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        (notes / "gate").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    run_on_ray(graph(notes), desk, cluster.address)
    killer.join()

    assert results(desk) == results(local)
    assert len(results(local)) == 12
    times = Counter(name for name, _, _ in begun(notes))
    lost = [name for name, node, _ in begun(notes) if node == second.node_id]
    assert len(lost) == 1
    assert lost[0].startswith("wide")
    names = ["source", *(f"wide-{n}" for n in range(1, 5)), "together"]
    assert times == {name: 1 for name in names} | {lost[0]: 2}
    assert f"a/{lost[0]}: lost (" in capsys.readouterr().err
    assert sorted(path.name for path in desk.path.iterdir()) == ["a", "b"]


def test_a_finished_run_needs_no_cluster(tmp_path, capsys):
    desk, notes = folders(tmp_path, "run")
    (notes / "gate").touch()
    run_jobs(graph(notes), desk)
    capsys.readouterr()
    run_on_ray(graph(notes), desk, "127.0.0.1:1")
    assert capsys.readouterr().err.split("\n")[:2] == ["[1/6] a/source", "[2/6] a/wide-1"]


def test_a_wrong_address_is_refused_in_words(tmp_path):
    desk, notes = folders(tmp_path, "run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # taken, but nobody answers
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"expected a Ray cluster at {address}"):
            run_on_ray(graph(notes), desk, address)
    with pytest.raises(ValueError, match="expected auto or HOST:PORT, got 'here'"):
        run_on_ray(graph(notes), desk, "here")


def test_without_ray_the_way_to_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    desk, notes = folders(tmp_path, "run")
    with pytest.raises(ValueError, match=r"pip install 'stepdown\[ray\]'"):
        run_on_ray(graph(notes), desk, "auto")


# ── several devices of one machine ───────────────────────────────────────────────────────────────


UPDATES = 8  # few: later, rounding may switch a unit on or off, which no longer is a small change
TRAIN = """
import sys
import numpy as np
from tests.experiment.test_cluster import train_two
arrays, devices = train_two()
assert devices == 2, devices
np.savez(sys.argv[1], **arrays)
"""


def train_two() -> tuple[dict[str, np.ndarray], int]:
    """Two seeds of a short training, and the number of devices that learned them."""
    levels = np.arange(ROWS) % 3 + 3
    states = random_states(ROWS, levels, seed=0)
    config = replace(POCKET, updates=UPDATES, rollout_every=UPDATES)
    hours = make_hours(states, levels, states)
    setting = prepare(hours, MoreIsBetter(), Unpenalized(), config)
    policies, curves = side_by_side(setting, spread_seeds(jr.split(jr.key(2), 2)))
    leaves = jax.tree.leaves(policies)
    devices = len(leaves[-1].addressable_shards)
    assert all(shard.data.shape[0] == 2 // devices for shard in leaves[-1].addressable_shards)
    numbered = {str(n): np.asarray(leaf) for n, leaf in enumerate(leaves)}
    return numbered | curves, devices


def test_seeds_on_two_devices_are_the_seeds_on_one(tmp_path):
    expected, devices = train_two()
    assert devices == 1
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    env = os.environ | {"XLA_FLAGS": flags.strip()}
    words = [sys.executable, "-W", "error", "-c", TRAIN, str(tmp_path / "found.npz")]
    root = Path(__file__).parents[2]
    run = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = np.load(tmp_path / "found.npz")
    assert set(found) == set(expected)
    for name in expected:  # products in another order
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
