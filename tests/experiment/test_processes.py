"""Several processes leave the files of one; what fails is told, and nothing is lost."""

import os

import pytest

from stepdown.experiment.jobs import Desk, Job, run_jobs
from stepdown.experiment.processes import MEMORY, run_beside
from tests.experiment.works import Die, Refuse, TellMemory, fan


def test_the_files_are_those_of_one_process(tmp_path, capfd):
    alone, beside = Desk(tmp_path / "alone"), Desk(tmp_path / "beside")
    run_jobs([fan()], alone)
    run_beside([fan()], beside, 2)
    assert beside.arrays(fan())["x"] == 19.0
    found = [path.relative_to(alone.path) for path in alone.path.rglob("*.safetensors")]
    assert len(found) == 6
    for path in found:
        assert (beside.path / path).read_bytes() == (alone.path / path).read_bytes()
    capfd.readouterr()
    run_beside([fan()], beside, 2)
    assert capfd.readouterr().err == ""  # nothing was made again


def test_each_process_has_its_part_of_a_gpus_memory(tmp_path, monkeypatch):
    monkeypatch.delenv(MEMORY, raising=False)
    job, desk = Job("told", TellMemory()), Desk(tmp_path / "ours")
    run_beside([job], desk, 2)
    assert desk.arrays(job)["x"] == 0.45
    assert MEMORY not in os.environ  # nothing stays behind
    monkeypatch.setenv(MEMORY, "0.2")
    theirs = Desk(tmp_path / "theirs")
    run_beside([job], theirs, 2)
    assert theirs.arrays(job)["x"] == 0.2
    assert os.environ[MEMORY] == "0.2"


def test_failures_are_told_and_what_was_finished_is_kept(tmp_path):
    desk, last = Desk(tmp_path), fan()
    with pytest.raises(ValueError, match="expected better patients"):
        run_beside([Job("bad", Refuse((last,)))], desk, 2)
    assert desk.is_done(last)
    with pytest.raises(RuntimeError, match=r"killed: expected a process that lasts.*--workers"):
        run_beside([Job("killed", Die((last,)))], desk, 2)
    with pytest.raises(ValueError, match="--workers: expected at least 1, got 0"):
        run_beside([last], desk, 0)
