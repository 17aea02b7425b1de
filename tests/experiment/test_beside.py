"""Several processes leave the files of one; what fails is told, and nothing is lost."""

import os
import signal
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from stepdown.experiment.beside import MEMORY, run_beside
from stepdown.experiment.jobs import Desk, Job, arrays_and_info, run_jobs


@dataclass(frozen=True)
class Number:
    value: float


def source(desk: Desk, value: float):
    return arrays_and_info({"x": np.array(value)}, {})


def add(desk: Desk, needs: tuple[Job, ...], value: float):
    return arrays_and_info({"x": sum(desk.arrays(job)["x"] for job in needs) + value}, {})


def refuse(desk: Desk):
    raise ValueError("expected better patients.")


def die(desk: Desk):
    os.kill(os.getpid(), signal.SIGKILL)
    return arrays_and_info({}, {})


def graph() -> list[Job]:
    """One job, four that need it, one that needs them."""
    first = Job("first", Number(1), (), partial(source, value=1.0))
    middle = tuple(
        Job(f"middle-{n}", Number(n), (), partial(add, needs=(first,), value=float(n)), (first,))
        for n in range(4)
    )
    return [Job("last", Number(9), (), partial(add, needs=middle, value=9.0), middle)]


def test_the_files_are_those_of_one_process(tmp_path, capfd):
    alone, beside = Desk(tmp_path / "alone"), Desk(tmp_path / "beside")
    run_jobs(graph(), alone)
    run_beside(graph(), beside, 2)
    assert beside.arrays(graph()[0])["x"] == 19.0
    for path in (tmp_path / "alone").rglob("*.safetensors"):
        twin = tmp_path / "beside" / path.relative_to(tmp_path / "alone")
        assert twin.read_bytes() == path.read_bytes()
    capfd.readouterr()
    run_beside(graph(), beside, 2)
    assert capfd.readouterr().err == ""  # nothing was made again


def told(desk: Desk):
    all_at_once = os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] != "false"
    return arrays_and_info({"share": np.array(float(os.environ[MEMORY]) + all_at_once)}, {})


def test_each_process_has_its_part_of_a_gpus_memory(tmp_path, monkeypatch):
    monkeypatch.delenv(MEMORY, raising=False)
    job, desk = Job("told", Number(0), (), told), Desk(tmp_path / "ours")
    run_beside([job], desk, 2)
    assert desk.arrays(job)["share"] == 0.45
    assert MEMORY not in os.environ  # nothing stays behind
    monkeypatch.setenv(MEMORY, "0.2")
    theirs = Desk(tmp_path / "theirs")
    run_beside([job], theirs, 2)
    assert theirs.arrays(job)["share"] == 0.2
    assert os.environ[MEMORY] == "0.2"


def test_failures_are_told_and_what_was_finished_is_kept(tmp_path):
    desk, (last,) = Desk(tmp_path), graph()
    bad = Job("bad", Number(0), (), refuse, (last,))
    with pytest.raises(ValueError, match="expected better patients"):
        run_beside([bad], desk, 2)
    assert desk.is_done(last)
    killed = Job("killed", Number(0), (), die, (last,))
    with pytest.raises(RuntimeError, match=r"killed: expected a process that lasts.*--workers"):
        run_beside([killed], desk, 2)
    with pytest.raises(ValueError, match="--workers: expected at least 1, got 0"):
        run_beside([last], desk, 0)
