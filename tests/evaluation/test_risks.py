"""Six-hour risks: what is said is the share of courses, what happened is what was recorded."""

from dataclasses import replace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.evaluation.risks import BINS, calibrate_risks
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.hours import make_transitions
from stepdown.records.split import split_patients
from stepdown.signals import HR, MAP, PULSATILITY
from stepdown.twin.fit import fit_twin
from stepdown.twin.twins import twin_config


@pytest.fixture(scope="module")
def hours():
    cohort, _ = simulate_cohort(CohortConfig(patients=48, hours=24.0), key=jr.key(7))
    return [make_transitions(part) for part in split_patients(cohort, key=jr.key(0))]


def pressed(hours, pressure):
    """The same hours with one MAP throughout and nothing else near a limit."""

    def put(state):
        values = np.asarray(state).copy()
        values[..., MAP], values[..., HR], values[..., PULSATILITY] = pressure, 80.0, 40.0
        return jnp.asarray(values)

    return replace(hours, state=put(hours.state), next_state=put(hours.next_state))


def test_risks_of_a_ridge_twin_are_counted_over_all_windows(hours):
    train, select, test = hours
    twin, _ = fit_twin(train, select, twin_config("ridge", "small"), key=jr.key(0))
    rows = calibrate_risks(twin, test, key=jr.key(1))
    assert len(rows) == 4 * (len(BINS) - 1)
    by_limit = {name: [x for x in rows if x["limit"] == name] for name in ("map", "hr", "any")}
    windows = {name: sum(x["windows"] for x in found) for name, found in by_limit.items()}
    assert len(set(windows.values())) == 1
    assert windows["any"] > 50
    for row in rows:
        if row["windows"]:
            assert row["from"] <= row["said"] <= row["to"]
            assert row["low"] <= row["happened"] <= row["high"]
    worst = sum(x["windows"] * (x["happened"] or 0) for x in by_limit["any"])
    assert worst >= sum(x["windows"] * (x["happened"] or 0) for x in by_limit["map"])


def test_what_happened_is_read_off_the_recording_and_only_unseen_patients_are_asked(hours):
    train, select, test = hours
    twin, _ = fit_twin(train, select, twin_config("ridge", "small"), key=jr.key(0))
    for pressure, share in ((60.0, 1.0), (95.0, 0.0)):  # a limit is crossed at the limit itself
        rows = calibrate_risks(twin, pressed(test, pressure), key=jr.key(1))
        told = [x["happened"] for x in rows if x["limit"] == "map" and x["windows"]]
        assert told
        assert set(told) == {share}
    with pytest.raises(ValueError, match="expected test patients"):
        calibrate_risks(twin, select, key=jr.key(1))
