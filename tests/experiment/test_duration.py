"""A run says how long it will take, and is right about it once its own pace is known."""

import pytest

from stepdown.experiment import duration
from stepdown.experiment.duration import Duration, span_of
from stepdown.experiment.jobs import Job
from tests.experiment.works import Begin

JOBS = [Job(f"guarded-7/{name}", Begin(0.0)) for name in ("patients", "twin/best", "figures")]


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when it is told to."""
    now = [0.0]
    monkeypatch.setattr(duration.time, "monotonic", lambda: now[0])
    jobs = {"patients": 30.0, "twin/best": 60.0, "figures": 90.0}
    known = {"how": "on two cores", "jobs": jobs, "report": 20.0}
    monkeypatch.setitem(duration.MEASURED, "demo", known)
    return now


def test_before_the_start_the_measured_seconds_are_told(clock):
    said = Duration("demo", JOBS).before()
    assert said == "demo: 3 jobs to make and a report: about 3.3 min on two cores."
    assert "about 1.8 min" in Duration("demo", JOBS[2:]).before()


def test_what_is_left_follows_the_pace_of_this_machine(clock):
    """Twice as slow as measured: (60 + 30) / (30 + 30) = 1.5 times the 150 s that are left."""
    told = Duration("demo", JOBS)
    clock[0] = 60.0
    told.finish(JOBS[0])
    assert told.left() == "about 4.1 min left"  # 225 s and 20 of the report
    clock[0] = 360.0
    for job in JOBS[1:]:
        told.finish(job)
    assert told.left() == "about 20 s left"


def test_a_preset_that_nobody_measured_goes_by_its_own_jobs(clock):
    told = Duration("pocket", JOBS)
    assert told.before() == (
        "pocket: 3 jobs to make; how long they take is said once the first ones are made."
    )
    assert told.left() == ""
    clock[0] = 50.0
    told.finish(JOBS[0])
    assert told.left() == "about 1.7 min left, going by the jobs so far"


def test_a_whole_measured_run_is_told_as_such():
    said = Duration("paper", JOBS).before()
    assert said == (
        "paper: 3 jobs to make; all of them take about 28 min on one H200 with five processes "
        "(docs/performance.md)."
    )
    assert [span_of(x) for x in (3.0, 42.0, 300.0, 7000.0)] == ["5 s", "40 s", "5.0 min", "1.9 h"]
