"""The study of identities counts what it says it counts."""

import json

import jax.random as jr
import numpy as np

from benchmarks.studies.twin_identities import (
    judge,
    over_patients,
    over_runs,
    scatter,
    table,
    violations,
)
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.hours import make_transitions
from stepdown.records.split import split_patients
from stepdown.signals import CURRENT, DBP, MAP, PULSATILITY, SBP, SPEED
from stepdown.twin.fit import fit_twin
from tests.twin.toys import pocket, toy_samples


def test_each_broken_rule_is_counted():
    levels = np.full(8, 6)
    good = np.concatenate([toy_samples(np.zeros((8, 12)), levels), np.full((8, 1), 6.0)], 1)
    good = good.astype(np.float32)
    good[:, PULSATILITY] = good[:, SBP] - good[:, DBP]
    assert set(violations(good, levels).values()) == {0, 8}  # 8 samples, nothing broken
    for column, value, rule in (
        (DBP, 90.0, "dbp_above_map"),
        (SBP, 70.0, "map_above_sbp"),
        (PULSATILITY, 30.0, "pulsatility_is_not_sbp_less_dbp"),
        (SPEED, 42_000.0, "speed_of_another_level"),
        (MAP, -1.0, "outside_hard_ranges"),
        (MAP, np.nan, "not_finite"),
    ):
        bad = good.copy()
        bad[:3, column] = value
        assert violations(bad, levels)[rule] == 3


def test_the_scatter_is_that_about_the_map():
    levels = np.full(500, 6)
    scores = np.random.default_rng(0).normal(size=(500, 12))
    samples = toy_samples(scores, levels).astype(np.float32)
    found = scatter(samples, levels)["current_mA"]
    assert abs(found["sd"] - 10.0 * scores[:, CURRENT].std()) < 0.05
    assert abs(found["p50"] - 3.0 - 10.0 * np.median(scores[:, CURRENT])) < 0.05


def test_a_small_cohort_is_judged_as_a_whole(tmp_path):
    config = CohortConfig(patients=24, hours=20.0)
    cohort, _ = simulate_cohort(config, key=jr.key(3))
    train, select, test = map(make_transitions, split_patients(cohort, key=jr.key(0)))
    twin, _ = fit_twin(train, select, pocket("persistence"), key=jr.key(0))
    found = judge(twin, test, samples=5000)
    assert found["errors"]["all"]["rows"] == len(test.level)
    broken = {name: count for name, count in found["violations"].items() if name != "samples"}
    assert set(broken.values()) == {0}
    assert found["violations"]["samples"] == 5000
    assert len(found["coverage90"]["calm"]["mean"]) == 6
    for name, edges in zip(("flow_L_min", "current_mA"), twin.coordinates.scatter, strict=True):
        drawn, (least, most) = found["scatter"][name], (float(x) for x in edges)
        assert least < drawn["p0.5"] < drawn["p99.5"] < most
    config = {"models": ["persistence"], "patients": 24, "version": 2, "seed": 3, "small": True}
    whole = {"about": {"config": config | {"samples": 5000}}, "persistence": found}
    (tmp_path / "x.json").write_text(json.dumps(whole | {"recorded": found["scatter"]}))
    told = table([("now", str(tmp_path / "x.json"))])
    assert "24 patients of version 2, seed 3, small networks, 5,000 samples" in told
    assert "| now: `persistence` |" in told
    assert "| 0 / 0 / 0 |" in told
    assert "runs that are not of before" not in told  # persistence does not judge
    held = f"| {found['errors']['held']['mae_z']:.4f} |"
    assert held in told


def test_runs_are_summed_up_without_those_of_before(tmp_path):
    for name, shares in (("a", [0.88, 0.9]), ("b", [0.9, 0.93]), ("old", [0.1, 0.1])):
        covered = {"best": {"coverage90": {"all": {"mean": shares}}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(covered))
    files = [(words, str(tmp_path / f"{x}.json")) for words, x in
             (("one", "a"), ("two", "b"), ("two before", "old"))]  # fmt: skip
    told = over_runs(files)
    assert told.startswith("Over the 2 runs")
    assert "cover 89.0, 91.5 %" in told
    assert told.endswith("the least share of a run is 88.0 %, the largest 93.0 %.")


def test_intervals_are_over_patients_not_over_starts():
    """Two patients, always and never covered: the mean is a half, and anything may be."""
    rows, patient = np.repeat([[1.0] * 6, [0.0] * 6], 50, axis=0), np.repeat([3, 8], 50)
    found = over_patients(rows, patient)
    assert found == {"mean": [0.5] * 6, "low": [0.0] * 6, "high": [1.0] * 6}
