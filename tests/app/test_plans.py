"""Plans beside holding: the twin's own draws, the guardian hour by hour, kept and replayed."""

import jax.numpy as jnp
import numpy as np
import pytest

from stepdown.app.engine import keys_of
from stepdown.app.plans import compare_plans, plan_words
from stepdown.app.request import model_state, read_request
from stepdown.app.whatif import what_if
from stepdown.twin.rollout import follow_plans
from tests.app.small_run import Client


@pytest.fixture(scope="module")
def moment(answered):
    """A moment whose present level and the one below have forecasts."""
    return next(
        (r, a) for r, a in answered
        if a["p_now"] > 4 and all(x["status"] == "ok" for x in a["candidates"]
                                  if x["p"] in (a["p_now"], a["p_now"] - 1))
    )  # fmt: skip


@pytest.fixture(scope="module")
def compared(engine, moment):
    request, answer = moment
    now = answer["p_now"]
    return compare_plans(engine, request, [[now - 1], [now] * 3 + [now - 1] * 9, [now - 4] * 2])


def test_a_plan_is_said_as_people_do():
    assert plan_words([6, 6, 5, 5, 5, 5]) == "P-6 for 2 h, P-5 for 4 h"
    assert plan_words([4]) == "P-4 for 1 h"


def test_plans_are_as_long_as_the_longest_and_holding_comes_first(moment, compared):
    now = moment[1]["p_now"]
    assert compared["hours"] == 12
    assert [one["levels"] for one in compared["plans"]] == [
        [now] * 12, [now - 1] * 12, [now] * 3 + [now - 1] * 9, [now - 4] * 12,
    ]  # fmt: skip
    assert [one["holding"] for one in compared["plans"]] == [True, False, False, False]


def test_the_first_six_hours_of_a_held_level_are_those_of_the_what_if_screen(moment, compared):
    answer = moment[1]
    for plan, p in zip(compared["plans"][:2], (answer["p_now"], answer["p_now"] - 1), strict=True):
        held = next(one for one in answer["candidates"] if one["p"] == p)
        for name, curves in held["quantiles"].items():
            shown = plan["quantiles"][name]
            count = min(len(shown["q50"]), len(curves["q50"]))
            assert count >= 6
            for q, values in curves.items():
                # another order of the same sums: the last digit that is sent may differ
                np.testing.assert_allclose(shown[q][:count], values[:count], atol=0.11)


def test_differences_and_counts_are_of_the_same_courses(engine, moment, compared):
    request, answer = moment
    read = read_request(request, 6, "cp", engine.columns, engine.used)
    found = model_state(read, engine.used)
    assert found is not None
    plans = jnp.asarray([one["levels"] + [one["levels"][-1]] * 12 for one in compared["plans"]])
    keys = keys_of(engine.luck, engine.draws)
    drawn = np.asarray(follow_plans(engine.twin, jnp.asarray(found[0]), plans, keys=keys))
    flat = drawn.reshape(4, engine.draws, -1, 13)
    for i in (1, 2):
        plan = compared["plans"][i]
        until = plan["until_h"]
        assert until >= 1
        middle = np.median(flat[i, :, : 6 * until, 0] - flat[0, :, : 6 * until, 0], axis=0)
        np.testing.assert_allclose(plan["difference"]["map"]["q50"], middle, atol=0.06)
        assert plan["risk"]["map_low"] == int((flat[i, :, : 6 * until, 0].min(1) <= 60).sum())
        assert plan["risk"]["draws"] == engine.draws
    held = compared["plans"][0]
    assert set(held["difference"]["map"]["q50"]) == {0.0}
    assert held["risk"]["more_than_holding"] == [0.0, 0.0, 0.0]
    same = compared["plans"][2]["difference"]["map"]["q50"][:18]  # until the levels part
    assert set(same) == {0.0}


def test_evidence_is_asked_hour_by_hour_and_ends_the_forecast(engine, moment, compared):
    answer = moment[1]
    line = engine.gates.unlike_level
    for plan in compared["plans"]:
        told = plan["by_hour"]
        p = plan["levels"][0]
        held = next(one for one in answer["candidates"] if one["p"] == p)
        assert told[0]["pvalue"] == pytest.approx(held["support"]["pvalue"], abs=2e-4)
        assert [one["level"] for one in told] == plan["levels"]
        below = [one["hour"] for one in told if one["pvalue"] < line]
        refused = any(x["scope"] == "candidate" for x in held["refusals"])
        assert plan["until_h"] == (0 if refused else below[0] - 1 if below else 12)
        assert all((one["left"] is None) == (one["hour"] > plan["until_h"]) for one in told)
        assert all(len(x["q50"]) <= 6 * plan["until_h"] for x in plan["quantiles"].values())
        risen = [one["left"] for one in told if one["left"] is not None]
        assert risen == sorted(risen)
    far = compared["plans"][3]
    assert ("H2", 1) in [(one["code"], one["hour"]) for one in far["gates"]]
    assert compared["plans"][1]["gates"] == [
        {"hour": 1, **one} for one in next(x for x in answer["candidates"]
                                           if x["p"] == answer["p_now"] - 1)["gates"]
    ]  # fmt: skip


def test_a_refused_state_compares_nothing(engine, moment):
    request, _ = moment
    suction = type(request)(**{**vars(request), "alarms": ("suction",)})
    told = compare_plans(engine, suction, [[5]])
    assert (told["status"], told["plans"]) == ("refused", [])
    assert [x["code"] for x in told["refusals"]] == ["R08"]
    assert told["now"] == what_if(engine, suction)["now"]


def test_plans_are_kept_and_replayed_and_odd_ones_refused(service, moment):
    assert service.planning.wait(300)
    client = Client(service)
    patient = next(iter(service.stays))
    sent = {"plans": [[6, 5, 4], [5] * 24]}
    answer = client.post(f"/v1/patients/{patient}/plans?limits=map65", sent).json()
    assert answer["limits"]["map_low"] == 65.0
    entry = client.get(f"/v1/audit/{answer['audit_id']}").json()
    assert (entry["kind"], entry["body"]["plans"]) == ("plan", sent["plans"])
    assert client.get(f"/v1/audit/{answer['audit_id']}/replay").json() == answer
    for odd in ([], [[]], [[1]], [[10]], [[5] * 25], [[5]] * 4, [[5.5]], "555"):
        found = client.post(f"/v1/patients/{patient}/plans", {"plans": odd})
        assert found.status_code == 422, odd
    client.close()
