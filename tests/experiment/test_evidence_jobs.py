"""The jobs of `stepdown judge`: what they are, what they need, how seeds are put together."""

from pathlib import Path

import numpy as np
import pytest

from stepdown.evaluation.importance import Bounds, Overlap
from stepdown.evaluation.off_policy import Estimate, Estimates
from stepdown.experiment.evidence_jobs import choose_in_fields, tell_policies
from stepdown.experiment.jobs import Desk, Job, in_order, run_job
from stepdown.experiment.patients import ImportPatients
from stepdown.experiment.plan import finished_evidence, make_evidence, make_plan
from stepdown.experiment.presets import PRESETS, CohortChoice
from tests.evaluation.test_choosing import evidence
from tests.experiment.works import Begin

POCKET = PRESETS["pocket"]


def test_evidence_rests_on_jobs_of_the_run_and_trains_nothing():
    for name in ("pocket", "paper", "full"):
        plan = make_plan(PRESETS[name], PRESETS[name].cohorts[-1])
        own = {job.name for job in in_order(plan.jobs)}
        more = list(make_evidence(plan).by_kind.values())
        assert [job.name.rsplit("/", 1)[1] for job in more] == [
            "second", "records", "choice", "certificate", "groups", "transfer",
        ]  # fmt: skip
        added = {job.name for job in in_order(more)} - own
        assert added == {job.name for job in more}


def test_recordings_have_no_transfer():
    plan = make_plan(POCKET, CohortChoice(), ImportPatients(Path("somewhere"), "digest"))
    found = make_evidence(plan)
    assert found.transfer is None
    assert len(found.by_kind) == 5


def test_only_finished_evidence_is_published(tmp_path):
    plan, desk = make_plan(POCKET, CohortChoice()), Desk(tmp_path)
    assert finished_evidence([plan], desk) == []
    job = make_evidence(plan).groups
    assert job is not None
    run_job(Job(job.name, Begin(1.0)), desk)  # another job in its place
    assert finished_evidence([plan], desk) == []


def policy(value: float, spread: float, word, limits: bool = True) -> Estimates:
    draws = value + spread * np.linspace(-1, 1, 41)
    draws = draws if limits else np.full(41, np.nan)
    one = Estimate(value, -9.0, 9.0, draws)
    hours = np.full(6, 0.5)
    overlap = Overlap(20 * hours, 2 * hours, 0.2 * hours, hours, hours, 0.25)
    safe = Estimate(value, -9.0, 9.0, value + spread * np.linspace(-1, 1, 41))
    bounds = (Bounds(1.5, value - 1, 1.0, 0.0, 0.0),)
    return Estimates(one, safe, safe, safe, safe, safe, overlap, bounds, word)


def test_seeds_are_averaged_draw_by_draw():
    told = tell_policies(
        {
            "hold": [policy(0.0, 1.0, "informative")],
            "mbpo": [policy(1.0, 1.0, "informative"), policy(2.0, 3.0, "uninformative", False)],
        }
    )
    hold, mbpo = told
    assert (mbpo["seeds"], mbpo["informative"], mbpo["effective"]) == (2, 1, 10.0)
    assert mbpo["unsupported"] == 0.25
    fqe = mbpo["estimates"]["fqe"]
    assert fqe["mean"] == 1.5
    assert (fqe["low"], fqe["high"]) == pytest.approx((1.5 - 1.9, 1.5 + 1.9))  # 95 % of ± 2
    assert mbpo["estimates"]["wis"] == {"mean": 1.5, "low": None, "high": None}  # a draw is NaN
    # minus hold, whose draws are the same patients': 1.5 + 2 x - x
    apart = mbpo["apart"]["fqe"]
    assert (apart["low"], apart["high"]) == pytest.approx((1.5 - 0.95, 1.5 + 0.95))
    assert hold["apart"]["fqe"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert mbpo["bounds"] == [{"gamma": 1.5, "lower": 0.5, "upper": 1.0}]


def test_regret_is_that_of_every_seeds_own_field():
    """The twin prefers `bold` in both fields; in truth it is best in the first alone."""
    fields = [
        [evidence("clinicians"), evidence("bold", twin=2.0), evidence("timid", twin=0.0)],
        [evidence("clinicians"), evidence("bold", twin=3.0), evidence("timid", twin=0.5)],
    ]
    truth = {
        "patients": {
            "clinicians": np.array([-1.0]),  # one number for all seeds
            "bold": np.array([0.5, -2.0]),
            "timid": np.array([0.0, 0.25]),
        }
    }
    told = choose_in_fields("twin reward", fields, truth)
    assert told["chosen"] == ["bold", "bold"]
    assert told["regret_patients"] == pytest.approx([0.0, 2.25])
    assert "regret_fresh" not in told
