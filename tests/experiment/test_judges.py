"""Which twin judges: the paper's, ours or both, and what is made in which."""

from dataclasses import replace
from typing import Any

import pytest

from stepdown.experiment.datasets import ImagineHours
from stepdown.experiment.jobs import in_order
from stepdown.experiment.judging import JudgePolicies
from stepdown.experiment.plan import Plan, make_evidence, make_plan
from stepdown.experiment.presets import CohortChoice, JudgeName, sizes_of
from stepdown.experiment.training import TrainPolicy
from stepdown.report.labels import PARAMETERS

SETTINGS = ("ours", "paper")


def plan_of(judge: JudgeName, preset: Any = "paper") -> Plan:
    return make_plan(sizes_of(preset, judge=judge), CohortChoice())


def made_in(plan: Plan, setting: Any, data: Any = "noiseless") -> set[str]:
    """The twins behind a setting's synthetic hours and behind their expert."""
    train = plan.compared[data, setting]["bc"].train.work
    assert isinstance(train, TrainPolicy)
    stored = train.source.stored
    assert stored is not None
    imagined = stored.work
    assert isinstance(imagined, ImagineHours)
    expert = imagined.expert.work
    assert isinstance(expert, TrainPolicy)
    assert expert.dynamics is not None
    return {job.name for job in (imagined.twin, expert.dynamics)}


@pytest.mark.parametrize(
    ("judge", "twins", "ours", "papers"),
    [
        ("best", {"twin": "best"}, "best", "best"),
        ("tdt", {"tdt": "tdt"}, "tdt", "tdt"),
        ("both", {"tdt": "tdt", "twin": "best"}, "best", "tdt"),
    ],
)
def test_the_papers_settings_are_judged_and_made_in_the_papers_twin(judge, twins, ours, papers):
    plan = plan_of(judge)
    told = {name: f"guarded-7/twin/{twin}" for name, twin in twins.items()}
    assert {name: job.name for name, job in plan.bench.twins.items()} == told
    for data in ("noiseless", "noisy"):
        assert made_in(plan, "ours", data) == {f"guarded-7/twin/{ours}"}
        assert made_in(plan, "paper", data) == {f"guarded-7/twin/{papers}"}
    for setting in SETTINGS:
        for rows in (plan.compared["recorded", setting], plan.without_noise[setting]):
            for one in rows.values():
                assert isinstance(one.judge.work, JudgePolicies)
                assert one.judge.work.bench == plan.bench


def test_models_of_hours_from_two_twins_are_fitted_apart():
    plan = plan_of("both")
    names = [job.name for job in in_order(plan.jobs)]  # refuses two that differ under one name
    both = ("expert", "data", "ensemble/noiseless", "ensemble/noisy", "guardian/noisy/flow")
    for name in both:
        assert {f"guarded-7/{name}", f"guarded-7/tdt/{name}"} <= set(names)
    rows: list[Any] = [
        plan.compared["noisy", setting]["cormpo_flow"].train.work for setting in SETTINGS
    ]
    assert [x.dynamics.name for x in rows] == [
        "guarded-7/ensemble/noisy", "guarded-7/tdt/ensemble/noisy"
    ]  # fmt: skip
    assert [x.guardian.work.source == x.source for x in rows] == [True, True]


def test_what_our_twin_judges_alone_is_trained_once_for_both():
    """Trainings do not know who judges them, but for the hours that a twin has made."""
    alone, both = plan_of("best"), plan_of("both")
    for data in ("recorded", "noiseless", "noisy"):
        for name, one in alone.compared[data, "ours"].items():
            assert one.train == both.compared[data, "ours"][name].train
    for name, one in alone.compared["recorded", "paper"].items():
        assert one.train == both.compared["recorded", "paper"][name].train
    for name, one in alone.compared["noisy", "paper"].items():
        assert one.train != both.compared["noisy", "paper"][name].train


@pytest.mark.parametrize("preset", ["pocket", "demo", "overnight", "paper", "full"])
def test_every_preset_has_a_paper_twin_to_judge(preset):
    sizes = sizes_of(preset, judge="tdt")
    assert [x.kind.name for x in sizes.fitted].count("tdt") == 1
    plan = plan_of("tdt", preset)
    assert set(plan.bench.twins) == {"tdt"}
    assert plan.bench.twin == plan.twins["tdt"]
    assert "best" in plan.twins  # which a run keeps to go on with
    assert sizes_of(preset).fitted == sizes_of(preset).twins


def test_methods_of_the_better_twin_learn_there_whoever_judges():
    for judge in ("tdt", "both"):
        row = plan_of(judge, "full").recorded["mbpo_twin"].train.work
        assert isinstance(row, TrainPolicy)
        assert row.dynamics is not None
        assert row.dynamics.name == "guarded-7/twin/best"


def test_evidence_beside_our_twin_needs_our_twin():
    assert make_evidence(plan_of("tdt")).by_kind == {}
    assert len(make_evidence(plan_of("both")).by_kind) == 6


def test_drawn_levels_are_those_of_the_same_trainings_before_the_same_judges():
    plan = plan_of("both")
    assert list(plan.sampled) == list(plan.compared)
    for where, jobs in plan.sampled.items():
        for name, job in jobs.items():
            drawn, usual = job.work, plan.compared[where][name].judge.work
            assert isinstance(drawn, JudgePolicies)
            assert drawn == replace(drawn, trained=plan.compared[where][name].train)
            assert replace(drawn, bench=replace(drawn.bench, sampled=False)) == usual != drawn
    assert plan_of("best", "demo").sampled == {}


def test_the_sweep_has_the_papers_anchors():
    """App. F: lambda 1 at lambda 2 = 0, lambda 2 at lambda 1 = 0, lambda at 0 and 0.8."""
    sweep = plan_of("best").sweep
    recipes: dict[Any, Any] = {key: one.train.work for key, one in sweep.items()}
    weights = {
        key: (x.config.jump_weight, x.config.weaning_weight, x.config.penalty_weight)
        for key, x in recipes.items()
    }
    usual = 0.08
    for value in (0.0, 0.25, 0.5, 1.0):
        assert weights["lambda1", value] == (value, 0.0, usual)
    for value in (0.0, 0.1, 0.3, 0.8):
        assert weights["lambda2, anchored", value] == (0.0, value, usual)
    for value in (0.0, 0.02, 0.08, 0.15, 0.3):
        assert weights["lambda, anchored", value] == (0.0, 0.8, value)
    assert {key[0] for key in sweep} == set(PARAMETERS)
    # what is asked twice is trained once
    works = [x for x in dict.fromkeys(one.train.name for one in sweep.values())]
    assert len(works) == len({one.train.fingerprint for one in sweep.values()}) == 23
    assert sweep["lambda2, anchored", 0.8] is sweep["lambda, anchored", 0.08]
    assert sweep["lambda1", 0.0] is sweep["lambda2, anchored", 0.0]
