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

from stepdown.experiment.jobs import Desk, Job, arrays_and_info, run_jobs
from stepdown.experiment.scale import run_on_ray
from stepdown.policies.model_based import train_model_based
from stepdown.policies.penalties import Unpenalized
from tests.policies.toys import POCKET, ROWS, MoreIsBetter, make_hours, random_states

# Ray's test cluster forks this process to start its own, where JAX has threads; they exec at once.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@dataclass(frozen=True)
class Wide:
    value: int


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


def graph(notes: Path) -> list[Job]:
    """One job, four that need it, one that needs them; each notes where it begins.

    The four wait for a file named `gate`, so that somebody can be sure to meet them at work.
    """

    def source(desk: Desk):
        note(notes, "source")
        return arrays_and_info({"x": jr.normal(jr.key(3), (64, 64))}, {})

    def wide(number: int) -> Callable[[Desk], Any]:
        def make(desk: Desk):
            note(notes, f"wide-{number}")
            wait_for(lambda: (notes / "gate").exists())
            x = desk.arrays(first)["x"]
            return arrays_and_info({"x": jax.nn.softmax(x @ x.T / number)}, {"number": number})

        return make

    def together(desk: Desk):
        note(notes, "together")
        return arrays_and_info({"x": sum(desk.arrays(job)["x"] for job in middle)}, {})

    first = Job("a/source", Wide(0), ("signals.py",), source)
    middle = tuple(Job(f"a/wide-{n}", Wide(n), (), wide(n), (first,)) for n in range(1, 5))
    return [Job("b/together", Wide(9), (), together, (first, *middle))]


def note(notes: Path, name: str) -> None:
    """Leave a file that says which node began a job, in which process."""
    import ray

    node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "none"
    (notes / f"{name} {node} {os.getpid()}").touch()


def wait_for(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end, "nothing happened for a minute"
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

    def fail(desk: Desk):
        note(notes, "fail")
        raise ValueError("expected hours, got none.")

    source = graph(notes)[0].needs[0]
    failing = Job("c/fail", Wide(1), (), fail, (source,))
    after = Job("c/after", Wide(1), (), fail, (failing,))
    with pytest.raises(ValueError, match=r"c/fail: expected hours, got none\."):
        run_on_ray([after], desk, cluster.address)
    assert [name for name, _, _ in begun(notes)] == ["fail", "source"]
    assert desk.is_done(source)


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
from tests.experiment.test_scale import train_two
arrays, devices = train_two()
assert devices == 2, devices
np.savez(sys.argv[1], **arrays)
"""


def train_two() -> tuple[dict[str, np.ndarray], int]:
    """Two seeds of a short training, and the number of devices that learned them."""
    levels = np.arange(ROWS) % 3 + 3
    states = random_states(ROWS, levels, seed=0)
    policies, curves = train_model_based(
        make_hours(states, levels, states),
        MoreIsBetter(),
        Unpenalized(),
        replace(POCKET, updates=UPDATES, rollout_every=UPDATES),
        key=jr.split(jr.key(2), 2),
    )
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
