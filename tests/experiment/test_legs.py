"""A run in legs: stopped, gone on with, and as long as its legs together."""

import json
import subprocess
import sys

import pytest

from stepdown.experiment.jobs import Desk, Job, RunStoppedError, run_jobs
from stepdown.experiment.legs import FOLDER, at_work, counted, legs_words, read_legs
from stepdown.experiment.processes import STOP, run_beside
from tests.experiment.works import Begin, WaitForStop, fan, notes

KILLED = """
import os, sys, time
from pathlib import Path
from stepdown.experiment import legs
legs.TICK = 0.02
with legs.counted(Path(sys.argv[1]), "run", 3):
    while legs.read_legs(Path(sys.argv[1]))[0].seconds < 0.1:
        time.sleep(0.01)
    os._exit(9)
"""


def test_a_leg_that_was_killed_counts_as_well(tmp_path):
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    assert subprocess.run(words, check=False).returncode == 9
    with counted(tmp_path, "judge", 2):
        first, second = read_legs(tmp_path)
        assert (first.what, first.workers, second.what, second.workers) == ("run", 3, "judge", 2)
        assert first.seconds >= 0.1
    both = read_legs(tmp_path)
    assert both[0] == first  # a later leg leaves it alone
    total = sum(leg.seconds for leg in both)
    assert legs_words(both).startswith(f"{total / 60:.1f} min in 2 legs, min: run ")


def test_the_time_of_a_run_is_the_sum_of_its_legs(tmp_path):
    for number, (seconds, what) in enumerate([(540.0, "run"), (66.0, "run"), (30.0, "judge")], 1):
        leg = {"what": what, "begun": "2026-11-19T02:00:00+00:00", "workers": 1}
        (tmp_path / FOLDER).mkdir(exist_ok=True)
        file = tmp_path / FOLDER / f"{number:03d}.json"
        file.write_text(json.dumps(leg | {"seconds": seconds}))
    words = legs_words(read_legs(tmp_path))
    assert words == "10.6 min in 3 legs, min: run 9.0, run 1.1, judge 0.5."
    assert legs_words(read_legs(tmp_path)[:1]) == "9.0 min in 1 leg, min: run 9.0."


def test_nothing_is_begun_after_the_time(tmp_path):
    asked = iter([False, True])  # one job is made, then the time is over
    first, last = Job("a", Begin(1.0)), fan()
    desk = Desk(tmp_path, stopping=lambda: next(asked))
    with pytest.raises(RunStoppedError):
        run_jobs([first, last], desk)
    assert notes(desk) == ["begin"]
    run_jobs([first, last], Desk(tmp_path))
    assert desk.arrays(last)["x"] == 19.0


def test_processes_are_told_to_stop_and_go_on_later(tmp_path):
    """The job under way hears of it, saves and ends; what waits is not begun."""
    slow = Job("slow", WaitForStop())
    after = Job("after", Begin(2.0))
    begun = tmp_path / "begun"
    desk = Desk(tmp_path, stopping=begun.exists)
    with pytest.raises(RunStoppedError):
        run_beside([slow, after], desk, 1)
    assert not desk.is_done(slow)
    assert not desk.is_done(after)
    assert not (tmp_path / STOP).exists()
    begun.unlink()
    run_beside([slow, after], Desk(tmp_path), 1)  # it finds what it had saved
    assert desk.arrays(slow)["x"] == 7.0
    assert desk.is_done(after)


def test_minutes_are_more_than_none(tmp_path):
    with (
        pytest.raises(ValueError, match="--minutes: expected more than 0, got 0"),
        at_work(tmp_path / "x", "run", minutes=0.0),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
