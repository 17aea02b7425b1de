"""The jobs of `stepdown judge`: what they are, what they need, how seeds are put together."""

import json
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from stepdown.evaluation.importance import Bounds, Overlap
from stepdown.evaluation.off_policy import Estimate, Estimates
from stepdown.experiment import evidence_jobs, training
from stepdown.experiment.evidence_jobs import (
    CertifyPolicies,
    choose_in_fields,
    read_as_trained,
    tell_policies,
)
from stepdown.experiment.jobs import INFO, Desk, Job, in_order, run_job
from stepdown.experiment.patients import ImportPatients
from stepdown.experiment.plan import finished_evidence, make_evidence, make_plan
from stepdown.experiment.presets import PRESETS, CohortChoice
from stepdown.guardian.threshold import Guardian
from stepdown.policies.rules import Hold
from stepdown.signals import MAP
from tests.evaluation.test_certificate import (
    BEST,
    COMES_LOW,
    COMES_TRUE,
    LOW,
    ByPressure,
    calm_and_high,
    guardian,
    recorded,
)
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
    assert hold["agreed"]  # nothing to compare it with
    assert mbpo["agreed"]


def test_a_twin_that_sees_a_loss_where_weights_see_a_gain_does_not_agree():
    gain, loss = (policy(x, 1.0, "informative") for x in (1.0, -1.0))
    apart = eqx.tree_at(lambda x: x.model, gain, loss.model)
    told = {x["method"]: x for x in tell_policies({
        "hold": [policy(0.0, 1.0, "informative")], "mbpo": [apart], "mopo": [loss]
    })}  # fmt: skip
    assert (told["mbpo"]["agreed"], told["mopo"]["agreed"]) == (False, True)
    assert told["mbpo"]["informative"] == 1  # by overlap alone
    (alone,) = tell_policies({"mbpo": [apart]})  # without holding nothing is compared
    assert alone["agreed"]


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


# ── certificates: what each policy was trained with ──────────────────────────────────────────────

FULL = replace(PRESETS["full"], searches=True)


def charging(per_nat: float) -> Guardian:
    """u is (MAP − 90) / per_nat: kernels and flow that disagree about the same hour."""
    usual = guardian()
    return replace(usual, density=Steeper(usual.density.pairs, jnp.asarray(per_nat)))


class Steeper(ByPressure):
    """A density by pressure with a slope of its own."""

    per_nat: Float[Array, ""]

    def log_density(self, state, level, /):
        return (90.0 - state[0, MAP]) / self.per_nat

    def log_densities(self, states, levels, /):
        return (90.0 - states[:, 0, MAP]) / self.per_nat


GUARDIANS = {"kde": charging(4.0), "flow": charging(10.0)}  # u at 100 mmHg: 2.5 and 1


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """A plan with searches whose models are toys and whose searches chose lambda 0.2."""
    plan, desk = make_plan(FULL, CohortChoice()), Desk(tmp_path)
    for job in plan.searches:
        method = job.name.rsplit("/", 1)[1]
        chosen = {"penalty_weight": 0.2} if method.startswith("cormpo") else {}
        folder = desk.folder(job)
        folder.mkdir(parents=True)
        (folder / INFO).write_text(json.dumps({"chosen": chosen}))

    def read_toy_guardian(desk, job):
        return GUARDIANS["flow" if "flow" in job.name else "kde"]

    for place in (evidence_jobs, training):
        monkeypatch.setattr(place, "read_ensemble", lambda desk, job: COMES_LOW)
        monkeypatch.setattr(place, "read_twin", lambda desk, job: COMES_TRUE)
        monkeypatch.setattr(place, "read_guardian", read_toy_guardian)
    return plan, desk


def test_a_certificate_has_the_lambda_the_density_and_the_model_of_its_training(searched):
    plan, desk = searched
    lent = plan.ensembles["recorded"], plan.guardians["kde, ours"]
    found = {name: read_as_trained(desk, one.train, *lent) for name, one in plan.recorded.items()}
    told = {name: (x.weight, x.density, x.model, x.lent) for name, x in found.items()}
    assert told == {
        "bc": (0.0, "kde", "ensemble", ("model", "density")),
        "mbpo": (0.0, "kde", "ensemble", ("density",)),
        "mopo": (0.0, "kde", "ensemble", ("density",)),  # its weight is not of a density
        "svr": (0.0, "kde", "ensemble", ("model", "density")),
        "cormpo_flow": (0.2, "flow", "ensemble", ()),
        "cormpo_kde": (0.2, "kde", "ensemble", ()),
        "cormpo_unshaped": (0.2, "kde", "ensemble", ()),
        "mbpo_shaped": (0.0, "kde", "ensemble", ("density",)),
        "mopo_shaped": (0.0, "kde", "ensemble", ("density",)),
        "disagreement": (0.0, "kde", "ensemble", ("density",)),
        "disagreement_shaped": (0.0, "kde", "ensemble", ("density",)),
        "mbpo_twin": (0.0, "kde", "twin", ("density",)),
        "cormpo_twin": (0.08, "kde", "twin", ()),  # not searched: the preset's
        "planner": (0.0, "kde", "ridge", ("density",)),
        "distilled": (0.0, "kde", "ridge", ("density",)),
    }
    for one in found.values():
        assert one.guardian is GUARDIANS[one.density]
        assert one.dynamics is (COMES_LOW if one.model == "ensemble" else COMES_TRUE)


def check_row(row, high: float, weight: float, nats: float, hours: int, error: float) -> None:
    """A share `high` of starts lie at 100 mmHg, where u is `nats`; the model lets them stay there.

    That lasts some `hours`. The worst `error` is in units of the reach, in the model's disfavor.
    """
    spread = (BEST + 2) / 2  # half the range of an hourly reward
    met = nats * high * hours  # the sum of E[u₊] over an episode
    slope = weight / (6 * spread)
    rest = error - slope * nats if error else 0.0
    value = 6 * (BEST - high * (BEST - LOW) * (error > 0))
    bound = value - weight * met - rest * 21 * spread
    gap = 2 * weight * met + 2 * rest * 21 * spread + weight * 3.0 * 6  # u is at least −3
    assert (row["weight"], row["charged"]) == pytest.approx((weight, met / 6))
    assert row["as_trained_slope"] == pytest.approx(slope)
    assert row["as_trained_rest"] == pytest.approx(rest, rel=1e-3, abs=1e-3)
    assert row["value_in_model"] == pytest.approx(value, rel=1e-4)
    assert row["as_trained_bound"] == pytest.approx(bound, abs=0.05)
    assert row["gap"] == pytest.approx(gap, abs=0.05)


def test_certificates_of_a_plan_by_hand(searched, monkeypatch):
    """Levels are held at 80 or 100 mmHg, which stay; the ensemble thinks that 100 falls to 55.

    The fall costs BEST − LOW in the hour itself, whatever is ahead. The twin makes no mistake.
    """
    plan, desk = searched
    job = make_evidence(plan).certificate
    assert job is not None
    assert isinstance(job.work, CertifyPolicies)
    names = ("mbpo", "cormpo_flow", "cormpo_kde", "cormpo_twin")
    judges = replace(job.work.judges, trained={x: plan.recorded[x] for x in names})
    held_out = recorded(calm_and_high())
    toys = {
        "read_policies": lambda desk, job: Hold(),
        "member": lambda policies, seed: policies,
        "read_judged": lambda desk, job: {"twin": None},
        "values_of": lambda judged, metric: np.zeros((1, 4)),
    }
    for name, toy in toys.items():
        monkeypatch.setattr(evidence_jobs, name, toy)
    monkeypatch.setattr(CertifyPolicies, "_held_out", lambda self, desk: held_out)
    made = replace(job.work, judges=judges).make(desk)[INFO]
    assert isinstance(made, bytes)
    rows = {row["method"]: row for row in json.loads(made)["rows"]}
    high = float((held_out.start[:, 0, MAP] == 100).mean())
    worst = 2 * (BEST - LOW) / (BEST + 2)  # of the last hour, in units of its reach
    check_row(rows["mbpo"], high, 0.0, 2.5, 1, worst)
    check_row(rows["cormpo_flow"], high, 0.2, 1.0, 1, worst)
    check_row(rows["cormpo_kde"], high, 0.2, 2.5, 1, worst)
    check_row(rows["cormpo_twin"], high, 0.08, 2.5, 6, 0.0)
    used = {x: (y["density"], y["model"], y["density_lent"]) for x, y in rows.items()}
    assert used == {
        "mbpo": ("kde", "ensemble", True),
        "cormpo_flow": ("flow", "ensemble", False),
        "cormpo_kde": ("kde", "ensemble", False),
        "cormpo_twin": ("kde", "twin", False),
    }
