"""Jobs are made once, renewed only if something they rest on changed, and survive interruption."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from stepdown.experiment.datasets import FitEnsemble, Source
from stepdown.experiment.guardians import FitGuardian
from stepdown.experiment.jobs import (
    Desk,
    Job,
    alone,
    arrays_and_info,
    in_order,
    jobs_of,
    run_jobs,
)
from stepdown.experiment.judging import JudgePolicies
from stepdown.experiment.plan import make_plan
from stepdown.experiment.presets import DESIGN, PRESETS, CohortChoice, sizes_of
from stepdown.experiment.training import TrainPolicy
from stepdown.experiment.twins import WINDOWS
from stepdown.handover import shown
from stepdown.policies.methods import COMPARED, METHODS, make_recipe
from tests.experiment.works import Begin, Interrupt, chain, made, notes

SEARCHABLE = {x for x in PRESETS["full"].methods if METHODS[x].dynamics not in ("twin", "ridge")}


def test_jobs_come_after_what_they_need_and_each_once():
    one, two, three = chain()
    assert [job.name for job in in_order([three, two, three])] == [
        "a/begin",
        "a/twice",
        "b/shifted",
    ]
    assert (one.needs, two.needs, three.needs) == ((), (one,), (two,))


def test_two_jobs_of_one_name_are_refused():
    one, other = Job("a/begin", Begin(1.0)), Job("a/begin", Begin(2.0))
    assert in_order([one, Job("a/begin", Begin(1.0))]) == [one]
    with pytest.raises(ValueError, match="expected one job a/begin, got two that differ"):
        in_order([one, other])


@dataclass(frozen=True)
class Chosen:
    """A search that has chosen a weight."""

    def make(self, desk: Desk):
        """The best trial."""
        return arrays_and_info({}, {"chosen": {"penalty_weight": 0.02}})


def test_what_a_search_chose_is_the_config_used(tmp_path):
    desk, search = Desk(tmp_path), Job("search", Chosen())
    source, recipe = Source("recorded", None), make_recipe("cormpo_kde")
    work = TrainPolicy(METHODS["cormpo_kde"], recipe, (0,), source, search=search)
    run_jobs([search], desk)
    assert work.config_used(desk) == replace(recipe, penalty_weight=0.02)  # pyright: ignore[reportArgumentType]
    assert replace(work, search=None).config_used(desk) == recipe


def test_a_finished_job_is_not_made_again(tmp_path):
    desk = Desk(tmp_path)
    run_jobs(chain()[2:], desk)
    assert desk.arrays(chain()[2])["x"] == 12.0
    run_jobs(chain(), desk)
    assert notes(desk) == ["begin", "twice", "shifted"]
    assert desk.info(chain()[1]) == {"name": "twice"}


def test_a_change_renews_what_depends_on_it_and_nothing_else(tmp_path):
    desk = Desk(tmp_path)
    run_jobs(chain(), desk)
    run_jobs(chain(last=20.0), desk)
    assert notes(desk)[3:] == ["shifted"]
    assert desk.arrays(chain(last=20.0)[2])["x"] == 22.0
    run_jobs(chain(3.0, 20.0), desk)
    assert notes(desk)[4:] == ["begin", "twice", "shifted"]
    assert desk.arrays(chain(3.0, 20.0)[2])["x"] == 26.0


@dataclass(frozen=True)
class Told:
    """Work whose setting may be anything, with words that only people see."""

    setting: Any
    words: str = shown("plain")

    def make(self, desk: Desk):
        return made(desk, "told", 0.0)


def one_way() -> None:
    """A setting."""


def another_way() -> None:
    """Another setting."""


@pytest.mark.parametrize(
    ("setting", "other"),
    [(1, 2), ((1, 2), (2, 1)), ({"a": 1}, {"a": 2}), (one_way, another_way),
     (Begin(1.0), Begin(2.0)), ((Begin(1.0),), (Begin(2.0),))],
)  # fmt: skip
def test_every_setting_counts_and_words_do_not(setting, other):
    job = Job("told", Told(setting))
    assert job.fingerprint == Job("told", Told(setting, "other words")).fingerprint
    assert job.fingerprint != Job("told", Told(other)).fingerprint
    assert job.fingerprint != Job("told again", Told(setting)).fingerprint


def test_jobs_are_found_wherever_they_stand():
    one, two, _ = chain()
    found = Job("told", Told({"a": (one, [two]), "b": Told(one)})).needs
    assert found == (one, two)


def test_a_damaged_job_is_made_again(tmp_path):
    desk = Desk(tmp_path)
    run_jobs(chain(), desk)
    file = desk.folder(chain()[1]) / "arrays.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    run_jobs(chain(), desk)
    assert notes(desk)[3:] == ["twice"]


def test_an_interrupted_run_keeps_what_was_finished(tmp_path):
    desk = Desk(tmp_path)
    one, two, three = chain()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([one, Job("a/twice", Interrupt((one,)))], desk)
    assert [desk.is_done(job) for job in (one, two, three)] == [True, False, False]
    run_jobs([three], desk)
    assert notes(desk) == ["begin", "twice", "shifted"]


def test_two_runs_into_one_folder_are_refused(tmp_path):
    folder = jobs_of(tmp_path / "run")
    with (
        alone(folder),
        pytest.raises(ValueError, match="expected nobody at work there"),
        alone(folder),
    ):
        pass
    with alone(folder) as desk:  # the first one has ended
        assert desk.path == tmp_path / "run.jobs"


@pytest.mark.parametrize("preset", PRESETS)
def test_jobs_of_a_preset_have_different_names_and_prints(preset):
    config = PRESETS[preset]
    plans = [make_plan(config, choice) for choice in config.cohorts]
    jobs = in_order([job for plan in plans for job in plan.jobs])
    assert len({job.name for job in jobs}) == len({job.fingerprint for job in jobs}) == len(jobs)
    for plan in plans:
        assert set(plan.compared) == {(d, s) for d in config.data for s in config.settings}
        for (data, _), rows in plan.compared.items():
            ridge = {x for x in config.methods if METHODS[x].dynamics == "ridge"}
            left_out = set() if data == "recorded" else ridge  # it is fitted to recordings
            assert tuple(rows) == tuple(x for x in config.methods if x not in left_out)


def test_recorded_policies_do_not_depend_on_the_twin_that_judges_them():
    config = PRESETS["paper"]
    other = replace(config, twin_seeds=1)
    ours, theirs = (make_plan(x, x.cohorts[0]).recorded for x in (config, other))
    for name in config.methods:
        assert ours[name].train.fingerprint == theirs[name].train.fingerprint
        assert ours[name].judge.fingerprint != theirs[name].judge.fingerprint


def test_methods_differ_by_the_idea_alone():
    """The shaped row of a method charges jumps as CORMPO does; the unshaped one charges nothing."""
    cormpo: Any = make_recipe("cormpo_kde")
    for name, method in METHODS.items():
        if name in ("bc", "svr", "cql", "planner", "distilled", "expert"):
            continue
        recipe: Any = make_recipe(name)
        weight = 0.5 if method.shaped else 0.0
        same = replace(cormpo, jump_weight=weight, penalty_weight=recipe.penalty_weight)
        assert recipe == same


def test_methods_in_the_twin_learn_there_and_are_not_searched():
    rows = make_plan(sizes_of("full", search=True), CohortChoice()).recorded
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


def test_rows_are_searched_where_the_design_says_so_or_somebody_asks():
    for search in (False, True):
        config = sizes_of("full", search=search)
        names = [job.name for job in in_order(make_plan(config, CohortChoice()).jobs)]
        searched = {name.rsplit("/", 1)[1] for name in names if "/search/" in name}
        assert searched == (SEARCHABLE if search or DESIGN["full"]["searched"] else set())
    assert not sizes_of("demo").searches


def test_the_paper_shapes_no_reward_of_noisy_data_so_both_rows_are_one():
    plan = make_plan(PRESETS["paper"], CohortChoice())
    noisy, recorded = (plan.compared[data, "paper"] for data in ("noisy", "recorded"))
    assert noisy["mbpo"] == noisy["mbpo_shaped"]
    assert noisy["cormpo_kde"] == noisy["cormpo_unshaped"]
    assert recorded["mbpo"] != recorded["mbpo_shaped"]


@pytest.mark.parametrize("searches", [False, True])
@pytest.mark.parametrize("setting", ["ours", "paper"])
def test_a_drop_by_noise_compares_trainings_that_differ_in_the_noise_alone(setting, searches):
    plan = make_plan(replace(PRESETS["paper"], searches=searches), CohortChoice())
    noisy, clean = plan.compared["noisy", setting], plan.without_noise[setting]
    assert tuple(clean) == tuple(noisy) == COMPARED
    for name, one in noisy.items():
        ours, theirs = one.train.work, clean[name].train.work
        assert isinstance(ours, TrainPolicy)
        assert isinstance(theirs, TrainPolicy)
        assert (ours.source.data, theirs.source.data) == ("noisy", "noiseless")
        assert replace(ours.source, data="noiseless") == theirs.source
        for mine, other in ((ours.dynamics, theirs.dynamics), (ours.guardian, theirs.guardian)):
            assert (mine is None) == (other is None)
            if mine is not None and other is not None:  # of the same kind, from the other hours
                assert isinstance(mine.work, FitEnsemble | FitGuardian)
                assert replace(mine.work, source=theirs.source) == other.work
        same = {"source": theirs.source, "dynamics": theirs.dynamics, "guardian": theirs.guardian}
        assert replace(ours, **same) == theirs  # method, numbers, search, seeds and key
        judges = [x.judge.work for x in (one, clean[name])]
        assert all(isinstance(x, JudgePolicies) and x.bench == plan.bench for x in judges)


def test_noise_alone_costs_six_further_trainings_in_the_papers_settings_and_none_in_ours():
    plan = make_plan(PRESETS["paper"], CohortChoice())
    assert plan.without_noise["ours"] == plan.compared["noiseless", "ours"]
    names = [job.name for job in in_order(plan.jobs) if "/train/drop/" in job.name]
    assert sorted(names) == [
        f"guarded-7/train/drop/paper/{x}"
        for x in ("cormpo_flow", "cormpo_kde", "disagreement", "mbpo", "mopo", "svr")
    ]
    clean = plan.without_noise["paper"]["cormpo_kde"].train.work
    mixed = plan.compared["noiseless", "paper"]["cormpo_kde"].train.work
    assert isinstance(clean, TrainPolicy)
    assert isinstance(mixed, TrainPolicy)
    told = [(x.config.penalty_weight, x.config.updates, x.config.jump_weight)
            for x in (clean, mixed)]  # fmt: skip
    assert told == [(0.08, 100_000, 0.0), (0.005, 90_000, 0.5)]
    assert make_plan(PRESETS["full"], CohortChoice()).without_noise == {}


@pytest.mark.parametrize("setting", ["ours", "paper"])
@pytest.mark.parametrize("data", ["recorded", "noiseless", "noisy"])
def test_guardians_have_the_papers_percentile_and_the_settings_weight(data, setting):
    """20 % of synthetic, 35 % of recorded hours; weight 8 in our setting, 1 in the paper's."""
    plan = make_plan(PRESETS["paper"], CohortChoice())
    train = plan.compared[data, setting]["cormpo_kde"].train.work
    assert isinstance(train, TrainPolicy)
    guardian: Any = train.guardian and train.guardian.work
    assert guardian.limits.percentile == (35.0 if data == "recorded" else 20.0)
    assert guardian.density.settings.action_weight == (8.0 if setting == "ours" else 1.0)
    assert guardian.source.data == train.source.data == data
    assert guardian.source.config == PRESETS["paper"].dataset
