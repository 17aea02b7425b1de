"""A run on recordings says where it left the protocol; a gate that is shut stops every claim."""

from dataclasses import replace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.handover import Cohort, Hours
from stepdown.problem.hours import make_transitions
from stepdown.records.split import split_patients
from stepdown.report.comparison import Comparison
from stepdown.report.evidence import Findings
from stepdown.report.protocol import (
    Facts,
    protocol_points,
    protocol_section,
    protocol_sentences,
)
from stepdown.signals import columns_with
from tests.report.comparisons import judged

COLUMNS = columns_with(("nee", "vis"))
CHARTED = {"device": "cp", "pressure": "arterial", "carry": 4.0, "delay": 15.0}
OVERLAP = {"informative": 1, "seeds": 1, "agreed": True, "effective": 31.0}


def findings(planner: float = 2.0, second: float = 0.3, lower: float = 1.2) -> Findings:
    """The planner's reward in the twin, its gain in the second one, its bound at 1.5."""
    rows = {"planner": judged([[planner] * 4]), "clinicians": judged([[1.0] * 4])}
    bounds = [{"gamma": 1.5, "lower": lower, "upper": 3.0}]
    records = [
        OVERLAP | {"method": "planner", "bounds": bounds, "estimates": {}},
        OVERLAP | {"method": "hold", "bounds": [], "estimates": {"wis": {"mean": 1.1}}},
    ]
    gain = {"method": "planner", "metric": "reward_minus_clinicians", "mean": second}
    return Findings(
        Comparison("mine", "recorded", "ours", {"twin": rows}),
        second={"rows": [gain]},
        records={"policies": records},
    )


@pytest.fixture(scope="module")
def facts() -> Facts:
    """120 stays of 21 hours: 20 decisions each."""
    stays, hours = 120, 21
    signals = np.full((stays, hours, len(COLUMNS)), np.nan, np.float32)
    for name, value in (("map", 75.0), ("hr", 80.0), ("pulsatility", 30.0)):
        signals[..., COLUMNS.index(name)] = value
    cohort = Cohort(
        jnp.asarray(signals),
        jnp.full((stays, hours), 6),
        jnp.ones((stays, hours), bool),
        tuple(f"p{i}" for i in range(stays)),
        minutes=60.0,
        columns=COLUMNS,
    )
    train, select, test = map(make_transitions, split_patients(cohort, key=jr.key(0)))
    return Facts(
        cohort=cohort,
        hours=Hours(train, select, test, train),
        present=COLUMNS,
        charted=CHARTED,
        quick=False,
        methods=("planner", "bc"),
        twins={"best": 4.2, "persistence": 4.5},
        judging="best",
        alarms={0.05: 0.03},
        findings=findings(),
    )


def kept(facts: Facts) -> dict[str, bool | None]:
    return {x.name: x.kept for x in protocol_points(facts)}


def test_a_run_that_follows_it_may_tell_its_result(facts):
    found = kept(facts)
    assert found.pop("Sensitivity of the import") is None  # no run can know
    assert set(found.values()) == {True}
    first, last = protocol_sentences(protocol_points(facts))
    assert first.endswith("followed in 5 of 6 points.")
    assert last.startswith("All gates hold")
    assert (
        "120 stays, 2,400 decisions, 24 test patients"
        in protocol_section(protocol_points(facts)).body
    )


@pytest.mark.parametrize(
    ("change", "point"),
    [
        ({"charted": None}, "Cohort"),
        ({"charted": CHARTED | {"pressure": "cuff"}}, "Cohort"),
        ({"charted": CHARTED | {"delay": 60.0}}, "Cohort"),
        ({"present": COLUMNS[:-1]}, "Drugs"),
        ({"methods": ("bc",)}, "Policy"),
        ({"quick": True}, "Trainings"),
    ],
)
def test_a_point_that_was_left_is_named(change, point, facts):
    left = replace(facts, **change)
    assert kept(left)[point] is False
    assert f"left in: {point.lower()}." in protocol_sentences(protocol_points(left))[0]


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        ({"twins": {"best": 4.6, "persistence": 4.5}}, "Twin"),
        ({"alarms": {0.05: 0.11}}, "Guardian"),
        ({"findings": findings(planner=0.9)}, "Second twin"),
        ({"findings": findings(second=-0.1)}, "Second twin"),
        ({"findings": findings(lower=1.0)}, "Hidden confounding"),
    ],
)
def test_a_gate_that_does_not_hold_stops_every_claim(change, gate, facts):
    shut = replace(facts, **change)
    assert kept(shut)[gate] is False
    assert protocol_sentences(protocol_points(shut))[1] == (
        f"Gates that do not hold: {gate.lower()}. Nothing may be said about benefit."
    )


def test_too_few_patients_or_no_overlap_shut_a_gate(facts):
    few = replace(facts, cohort=replace(facts.cohort, patient=facts.cohort.patient[:99]))
    assert kept(few)["Size"] is False
    alone = facts.findings
    assert alone is not None
    lone = [x | {"informative": 0} for x in alone.records["policies"]]
    lonely = replace(facts, findings=replace(alone, records={"policies": lone}))
    assert kept(lonely)["Overlap"] is False


def test_what_was_not_asked_is_not_taken_for_good(facts):
    early = replace(facts, findings=None)
    assert [kept(early)[x] for x in ("Overlap", "Second twin", "Hidden confounding")] == [None] * 3
    assert "stepdown judge" in protocol_sentences(protocol_points(early))[1]
