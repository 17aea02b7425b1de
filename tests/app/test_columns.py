"""A further column that the models were fitted on goes through the app like the twelve."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from stepdown.app.ledger import measure_coverage, past_hours
from stepdown.app.limits import GateConfig
from stepdown.app.recordings import Stay, load_run, quality, request_at, trends
from stepdown.app.request import Channel
from stepdown.app.whatif import unknowns, what_if
from stepdown.artifacts import ArtifactError
from stepdown.signals import NAMES, columns_with
from tests.app.bedsides import MIDDLE, calm
from tests.app.small_run import Client, add_policy, beside
from tests.app.test_gates import codes as gate_codes


@pytest.fixture(scope="module")
def engine(further):
    return further.engine


@pytest.fixture(scope="module")
def stays(further):
    return further.stays


@pytest.fixture(scope="module")
def answered(engine, stays):
    """A moment that is not refused, nor is every level, and its answer."""
    asked = (request_at(stay, 700.0) for stay in stays.values())
    pairs = ((request, what_if(engine, request)) for request in asked)
    return next(
        (request, answer)
        for request, answer in pairs
        if "ok" in {one["status"] for one in answer["candidates"]}
    )


def put(request, unit, values):
    channels = dict(request.channels) | {"lactate": Channel(unit, tuple(values))}
    return dataclasses.replace(request, channels=channels)


def test_a_charted_row_stands_still_for_nobody_and_absent_signals_are_not_lost():
    """One row an hour: equal neighbors mean nothing, and what was never charted is no fault."""
    signals = np.full((30, len(NAMES)), np.nan)
    for name, value in (("map", 70.3), ("hr", 80.5), ("pulsatility", 30.2), ("flow", 2.4)):
        signals[:, NAMES.index(name)] = value
    stay = Stay("p1", signals, np.full(30, 6), 60.0, "cp", NAMES)
    found = quality(stay, 29 * 60.0, GateConfig())
    assert (found["channels"]["flow"]["flat_stretches"], found["excluded"]) == (0, [])
    assert (found["channels"]["speed"]["missing_share"], found["chip"]) == (1.0, "good")
    signals[-1, NAMES.index("flow")] = np.nan
    assert quality(stay, 29 * 60.0, GateConfig())["chip"] == "check"  # recorded, and lost now


def test_drugs_that_models_read_are_not_called_unknown(engine):
    """Norepinephrine equivalents tell of pressors alone, the score of both."""
    assert {"vasopressors", "inotropes"} <= set(unknowns(engine.names))
    assert "vasopressors" not in unknowns([*NAMES, "nee"])
    assert "inotropes" in unknowns([*NAMES, "nee"])
    assert not {"vasopressors", "inotropes"} & set(unknowns([*NAMES, "nee", "vis"]))


def codes(answer):
    return [one["code"] for one in answer["refusals"]]


def test_an_answer_shows_lactate_with_its_unit_and_forecasts_it(engine, answered):
    request, answer = answered
    assert engine.columns == (*NAMES, "lactate")
    told = answer["now"]["lactate"]
    assert told["value"] == round(request.channels["lactate"].values[-1], 1)
    assert (told["unit"], told["ucum"], told["inside"]) == ("mmol/L", "mmol/L", None)
    assert list(answer["now"]) == list(engine.columns)
    assert "lactate" not in answer["unknowns"]
    assert "vasopressors" in answer["unknowns"]
    shown = [one for one in answer["candidates"] if one["status"] == "ok"]
    for one in shown:
        band = one["quantiles"]["lactate"]
        assert len(band["q50"]) == 36
        assert all(low <= high for low, high in zip(band["q05"], band["q95"], strict=True))
        assert one["carry_forward"]["lactate"] == told["value"]
    assert shown


def test_lactate_is_held_to_its_unit_its_range_and_its_hour(engine, answered):
    request, _ = answered
    values = request.channels["lactate"].values
    assert codes(what_if(engine, put(request, None, values))) == ["R05"]
    wrong = what_if(engine, put(request, "kPa", values))
    assert wrong["refusals"][0]["about"] == "lactate"
    assert "Blood lactate has no unit that fits it." in wrong["refusals"][0]["sentence"]
    high = what_if(engine, put(request, "mmol/L", [*values[:-1], 41.0]))
    assert "Blood lactate lies outside 0 to 40 mmol/L." in high["refusals"][0]["sentence"]
    assert codes(high) == ["R04"]
    gone = what_if(engine, put(request, "mmol/L", [*values[:-2], None, None]))
    assert "R09" in codes(gone)
    assert gone["quality"]["missing"] == {"lactate": 0.33}
    one = what_if(engine, put(request, "mmol/L", [*values[:-2], None, values[-1]]))
    assert any("Missing in the last hour: Blood lactate (1 of 6" in x for x in one["reasons"])


def test_a_laboratory_value_may_stand_still():
    """R03 asks sensors; lactate stands until the next sample is drawn."""
    signals = np.concatenate([calm().signals, np.full((6, 1), 1.7)], axis=1)
    bed = calm(signals=signals, columns=columns_with(["lactate"]))
    assert gate_codes(bed, used=tuple(range(len(MIDDLE) + 1))) == set()
    stuck = signals.copy()
    stuck[:, 0] = 71.3
    assert gate_codes(calm(signals=stuck, columns=bed.columns)) == {"R03"}


def test_recordings_and_ledger_carry_lactate(engine, stays):
    stay = next(iter(stays.values()))
    shown = trends(stay, 700.0, 2.0)["channels"]
    assert list(shown) == list(engine.columns)
    assert shown["lactate"]["label"] == "Blood lactate"
    assert shown["lactate"]["values"][-1] == round(float(stay.signals[70, -1]), 1)
    found = quality(stay, 700.0, engine.gates)["channels"]["lactate"]
    assert (found["hard_range"], found["flat_stretches"]) == ([0.0, 40.0], 0)
    past = past_hours(stay, 6, engine.used)
    np.testing.assert_allclose(past.state[3, :, -2], stay.signals[18:24, -1], rtol=1e-6)
    np.testing.assert_array_equal(past.later[3, :, -1], past.level[3])
    assert measure_coverage(engine, stays.values(), stays.values())["hours"] > 100


def test_models_of_other_columns_than_the_recordings_are_refused(run, engine, tmp_path):
    other = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(other / "policy")
    add_policy(other, engine.twin.scaler)
    with pytest.raises(
        ArtifactError, match="expected a policy of the columns .* ese, lactate. Fit"
    ):
        load_run(other)


def test_the_server_takes_what_the_run_records_and_nothing_else(
    service, engine, stays, answered, tmp_path
):
    body = json.loads(json.dumps(dataclasses.asdict(answered[0])))
    plain = Client(service)
    refused = plain.post("/v1/whatif", body)
    plain.close()
    assert refused.status_code == 422
    assert refused.json()["sentence"].endswith("tau, ese, got 'lactate'.")
    made = beside(service, tmp_path, engine, stays)
    client = Client(made)
    told = client.post("/v1/whatif", body).json()
    assert told["candidates"] == answered[1]["candidates"]
    assert client.get(f"/v1/audit/{told['audit_id']}/replay").json() == told
    body["channels"]["cvp"] = body["channels"].pop("lactate")
    foreign = client.post("/v1/whatif", body)
    client.close()
    made.stop()
    assert foreign.json()["sentence"].endswith("tau, ese, lactate, got 'cvp'.")
