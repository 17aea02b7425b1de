"""Jobs are made once, renewed only if something they rest on changed, and survive interruption."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from stepdown.experiment.jobs import Desk, Job, alone, arrays_and_info, in_order, run_jobs
from stepdown.experiment.plan import make_plan
from stepdown.experiment.presets import PRESETS, ROWS, CohortChoice, recipe_of, sizes_of
from stepdown.experiment.sweeps import WINDOWS


@dataclass(frozen=True)
class Number:
    value: float


def chain(made: list[str], first: float = 1.0, second: float = 10.0) -> list[Job]:
    """Three jobs, each needing the one before; `made` notes who was really made."""

    def source(desk: Desk):
        made.append("source")
        return arrays_and_info({"x": np.array(first)}, {})

    def twice(desk: Desk):
        made.append("twice")
        return arrays_and_info({"x": 2 * desk.arrays(one)["x"]}, {"seen": True})

    def shifted(desk: Desk):
        made.append("shifted")
        return arrays_and_info({"x": desk.arrays(two)["x"] + second}, {})

    one = Job("a/source", Number(first), ("signals.py",), source)
    two = Job("a/twice", Number(2.0), ("signals.py",), twice, (one,))
    three = Job("b/shifted", Number(second), (), shifted, (two,))
    return [one, two, three]


def test_jobs_come_after_what_they_need_and_each_once():
    one, two, three = chain([])
    assert in_order([three, two, three]) == [one, two, three]


def test_a_finished_job_is_not_made_again(tmp_path):
    made: list[str] = []
    desk = Desk(tmp_path)
    run_jobs(chain(made)[2:], desk)
    assert desk.arrays(chain([])[2])["x"] == 12.0
    run_jobs(chain(made), desk)
    assert made == ["source", "twice", "shifted"]
    assert desk.info(chain([])[1]) == {"seen": True}


def test_a_change_renews_what_depends_on_it_and_nothing_else(tmp_path):
    made: list[str] = []
    desk = Desk(tmp_path)
    run_jobs(chain(made), desk)
    run_jobs(chain(made, second=20.0), desk)
    assert made == ["source", "twice", "shifted", "shifted"]
    assert desk.arrays(chain([], second=20.0)[2])["x"] == 22.0
    run_jobs(chain(made, first=3.0, second=20.0), desk)
    assert made[4:] == ["source", "twice", "shifted"]
    assert desk.arrays(chain([], 3.0, 20.0)[2])["x"] == 26.0


def test_a_damaged_job_is_made_again(tmp_path):
    made: list[str] = []
    desk = Desk(tmp_path)
    run_jobs(chain(made), desk)
    file = desk.folder(chain([])[1]) / "arrays.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    run_jobs(chain(made), desk)
    assert made[3:] == ["twice"]


def test_an_interrupted_run_keeps_what_was_finished(tmp_path):
    made: list[str] = []
    desk = Desk(tmp_path)

    def stop(desk: Desk):
        raise KeyboardInterrupt

    one, two, three = chain(made)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([one, replace(two, make=stop)], desk)
    assert [desk.is_done(job) for job in (one, two, three)] == [True, False, False]
    run_jobs([three], desk)
    assert made == ["source", "twice", "shifted"]


def test_two_runs_into_one_folder_are_refused(tmp_path):
    with (
        alone(tmp_path / "run"),
        pytest.raises(ValueError, match="expected nobody at work there"),
        alone(tmp_path / "run"),
    ):
        pass
    with alone(tmp_path / "run") as desk:  # the first one has ended
        assert desk.path == tmp_path / "run.jobs"


@pytest.mark.parametrize("preset", PRESETS)
def test_jobs_of_a_preset_have_different_names_and_prints(preset):
    config = PRESETS[preset]
    plans = [make_plan(config, choice) for choice in config.cohorts]
    jobs = in_order([job for plan in plans for job in plan.jobs])
    assert len({job.name for job in jobs}) == len({job.fingerprint for job in jobs}) == len(jobs)
    for plan in plans:
        assert set(plan.compared) == {(d, s) for d in config.data for s in config.settings}
        for rows in plan.compared.values():
            assert tuple(rows) == config.rows


def test_recorded_policies_do_not_depend_on_the_twin_that_judges_them():
    config = PRESETS["paper"]
    other = replace(config, twin_seeds=1)
    ours, theirs = (make_plan(x, x.cohorts[0]) for x in (config, other))
    key = ("recorded", "ours")
    for row in config.rows:
        assert ours.compared[key][row].train.fingerprint == (
            theirs.compared[key][row].train.fingerprint
        )
        assert ours.compared[key][row].judge.fingerprint != (
            theirs.compared[key][row].judge.fingerprint
        )


def test_rows_differ_by_the_idea_alone():
    """The shaped row of a method charges jumps as CORMPO does; the unshaped one charges nothing."""
    cormpo = recipe_of("cormpo_kde", "ours", "recorded", None)
    for name, row in ROWS.items():
        if row.method in ("bc", "svr"):
            continue
        recipe = recipe_of(name, "ours", "recorded", None)
        weight = 0.5 if row.shaped else 0.0
        same = replace(cormpo, jump_weight=weight, penalty_weight=recipe.penalty_weight)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        assert recipe == same


def test_rows_in_the_twin_learn_there_and_are_not_searched():
    plan = make_plan(PRESETS["full"], CohortChoice())
    rows = plan.compared["recorded", "ours"]
    for name in ("mbpo_twin", "cormpo_twin"):
        needs = [job.name.split("/")[1] for job in rows[name].train.needs]
        assert "twin" in needs
        assert not {"ensemble", "search"} & set(needs)
    needs = [job.name.split("/")[1] for job in rows["cormpo_kde"].train.needs]
    assert {"ensemble", "search"} <= set(needs)


def test_what_others_wait_for_is_made_first():
    config = PRESETS["paper"]
    names = [job.name.split("/", 1)[1] for job in in_order(make_plan(config, CohortChoice()).jobs)]
    assert names[:3] == ["patients", "twin/best", "expert"]
    learned = max(i for i, name in enumerate(names) if name.startswith(("train/", "judge/")))
    others = [i for i, name in enumerate(names) if name.startswith(("twin/", "window/"))][1:]
    assert len(others) == len(config.twins) - 1 + len(WINDOWS)
    assert learned < min(others)  # nobody waits for these


def test_a_run_may_leave_its_searches_out():
    config = sizes_of("full", search=False)
    names = [job.name for job in in_order(make_plan(config, CohortChoice()).jobs)]
    assert not [name for name in names if "/trial/" in name or "/search/" in name]
    assert sizes_of("full").searches
    assert not sizes_of("demo").searches
