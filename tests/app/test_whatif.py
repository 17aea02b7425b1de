"""Answers: what they hold and refuse, that numbers are what they claim, and fewer data no more."""

import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from stepdown.app.engine import SHOWN, distances, keys_of, look
from stepdown.app.limits import Limits
from stepdown.app.recordings import request_at
from stepdown.app.request import (
    Channel,
    model_state,
    read_request,
    request_from_dict,
)
from stepdown.app.whatif import policy_wish, to_bytes, what_if
from stepdown.policies.planner import Planner, PlannerConfig, Weighed, count_models
from stepdown.problem.filling import SUBSETS
from stepdown.signals import KNOWN, LEVELS, NAMES
from stepdown.twin.rollout import follow_plans
from tests.app.sample_sizes import count

QUANTILES = ("q05", "q25", "q50", "q75", "q95")
NUMBERS = ("quantiles", "carry_forward", "risk", "uncertainty")


def codes(answer):
    return [one["code"] for one in answer["refusals"]]


def put(request, name, unit, values):
    channels = dict(request.channels) | {name: Channel(unit, tuple(values))}
    return dataclasses.replace(request, channels=channels)


@pytest.fixture(scope="module")
def moments(answered):
    return [request for request, _ in answered]


@pytest.fixture(scope="module")
def answers(answered):
    return [answer for _, answer in answered]


@pytest.fixture(scope="module")
def request_(moments, answers):
    """A moment with a suggestion."""
    return next(r for r, a in zip(moments, answers, strict=True) if a["suggested"] is not None)


def test_every_answer_is_json_with_status_reasons_and_eight_candidates(answers):
    for answer in answers:
        assert json.loads(to_bytes(answer)) == answer
        assert answer["reasons"]
        assert all(reason.endswith(".") for reason in answer["reasons"])
        assert [one["p"] for one in answer["candidates"]] == list(LEVELS)
        assert set(answer["acceptable"]) <= {
            one["p"] for one in answer["candidates"] if one["status"] == "ok"
        }
        assert answer["suggested"] in (None, *answer["acceptable"])
        assert len(answer["unknowns"]) >= 7


def test_bands_are_in_order_and_as_long_as_the_horizon(answers):
    curves = [
        one
        for answer in answers
        for candidate in answer["candidates"]
        for one in (candidate["quantiles"] or {}).values()
    ]
    stacked = np.array([[curve[name] for name in QUANTILES] for curve in curves])
    assert stacked.shape[2] == 36
    assert (np.diff(stacked, axis=1) >= 0).all()


def test_refused_candidates_carry_no_forecast_numbers(answers):
    refused = [
        one for answer in answers for one in answer["candidates"] if one["status"] == "refused"
    ]
    assert len(refused) > 20
    for one in refused:
        assert all(one[name] is None for name in NUMBERS)
        assert one["evidence"] == []
        assert {"R10", "R11", "R16"} & {x["code"] for x in one["refusals"]}


def test_acceptable_levels_pass_every_gate_and_say_where_lv_metrics_end(answers):
    for answer in answers:
        for one in answer["candidates"]:
            if not one["acceptable"]:
                continue
            assert one["gates"] == []
            assert abs(one["p"] - answer["p_now"]) <= 2
            stable = all(answer["now"][x]["inside"] for x in ("map", "hr", "pulsatility"))
            assert stable or one["p"] >= answer["p_now"]
            if one["p"] < 4:
                assert any("LVEDP ends" in note for note in one["notes"])
                assert any("LVEDP ends" in reason for reason in answer["reasons"])
            assert ("lvedp" in one["quantiles"]) == (one["p"] >= 4)


def state_of(engine, request):
    found = model_state(read_request(request, 6, "cp", engine.columns, engine.used), engine.used)
    assert found is not None
    return found[0]


def test_numbers_are_those_of_the_twins_own_draws(engine, request_):
    """The compiled program against the rollout, counted and sorted on the host."""
    answer = what_if(engine, request_)
    state = state_of(engine, request_)
    plans = jnp.asarray(np.repeat(np.array(LEVELS)[:, None], 6, axis=1))
    keys = keys_of(engine.luck, engine.draws + engine.most)
    drawn = np.asarray(follow_plans(engine.twin, jnp.asarray(state), plans, keys=keys)).reshape(
        8, len(keys), 36, 13
    )
    for one in answer["candidates"]:
        if one["status"] != "ok":
            continue
        every = drawn[one["p"] - 2, : one["risk"]["draws"]]
        assert one["risk"]["map_low"] == int((every[:, :, 0].min(1) <= 60).sum())
        assert one["risk"]["puls_low"] == int((every[:, :, 9].min(1) <= 10).sum())
        own = every[: engine.draws]  # those that are drawn
        for index in SHOWN:
            if NAMES[index] in one["quantiles"]:
                wanted = np.quantile(own[:, :, index], [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
                got = np.array([one["quantiles"][NAMES[index]][q] for q in QUANTILES])
                np.testing.assert_allclose(got, wanted, atol=0.06)


def test_support_counts_recorded_hours_and_evidence_is_real(engine, service, request_):
    answer = what_if(engine, request_)
    state = state_of(engine, request_)
    scaler, support = engine.support.scaler, engine.support
    query = np.asarray(scaler.to_scores(jnp.asarray(state)))
    point = np.append(query[:, :-1].ravel(), query[-1, -1])
    slow = np.array([np.sqrt(((row - point) ** 2).sum()) for row in support.points])
    np.testing.assert_allclose(distances(support, state), slow, rtol=1e-4, atol=1e-4)
    for one in answer["candidates"]:
        here = (support.level == one["p"]) & (slow <= support.radius)
        assert one["support"]["n"] == here.sum()
        wanted = slow_p_value(engine.guardian, point, one["p"])
        assert one["support"]["pvalue"] == pytest.approx(wanted, abs=0.01)
        for told in one["evidence"]:
            rows = np.flatnonzero(
                (support.patient == support.names.index(told["patient"]))
                & (support.hour == told["hour"])
            )
            assert len(rows) == 1
            assert support.level[rows[0]] == told["p"] == one["p"]
            low = support.later[rows[0], :, 0].min()
            assert told["next_hour"]["map_lowest"] == pytest.approx(low, abs=0.06)
            assert told["patient"] not in service.stays  # train patients, not those on screen


def slow_p_value(guardian, point, level):
    """The guardian's arithmetic by hand: the 100 nearest kernels, half of log p(s) left."""
    density, found = guardian.density, []
    for kde, weight in ((density.joint, 4.0), (density.states, 0.0)):
        query = np.append(point, weight * (level - 5.5) / np.std(LEVELS))
        squares = np.sort(((np.asarray(kde.points) - query) ** 2).sum(1))[:100]
        found.append(scipy.special.logsumexp(-squares / 2) - np.log(len(kde.points)))
    found = [x - 37 * np.log(2 * np.pi) for x in found]  # both have 74 coordinates
    score = found[0] - 0.5 * found[1]
    scores = np.asarray(guardian.scores)
    return (1 + (scores <= score).sum()) / (1 + len(scores))


def test_order_and_number_of_candidates_change_nothing(engine, request_):
    """D8: bitwise."""
    whole = {one["p"]: one for one in what_if(engine, request_)["candidates"]}
    for asked in ((9, 2, 5), (5,), tuple(reversed(LEVELS))):
        some = what_if(engine, dataclasses.replace(request_, candidates=asked))
        assert [one["p"] for one in some["candidates"]] == list(asked)
        assert all(one == whole[one["p"]] for one in some["candidates"])
        assert set(some["acceptable"]) <= set(asked)


def test_a_shorter_horizon_is_the_beginning_of_the_longer_one(engine, request_):
    long, short = (
        what_if(engine, dataclasses.replace(request_, horizon_h=h))["candidates"] for h in (6, 1)
    )
    for one, other in zip(long, short, strict=True):
        assert one["risk"] == other["risk"]
        for name, curves in (one["quantiles"] or {}).items():
            assert all(other["quantiles"][name][q] == curves[q][:6] for q in QUANTILES)


def test_a_stricter_limit_counts_no_fewer_courses(engine, moments):
    for request in moments[:5]:
        paper, strict = (what_if(engine, request, preset) for preset in ("paper", "map65"))
        assert strict["limits"]["map_low"] == 65.0
        for one, other in zip(paper["candidates"], strict["candidates"], strict=True):
            if one["risk"]:
                same = one["risk"]["draws"] == other["risk"]["draws"]
                assert not same or one["risk"]["map_low"] <= other["risk"]["map_low"]
        asked = what_if(engine, dataclasses.replace(request, limits="map65"))
        assert asked["limits"] == strict["limits"]  # the most restrictive wins
        both = what_if(engine, dataclasses.replace(request, limits="paper"), "map65")
        assert both["limits"] == strict["limits"]


def test_pumps_without_a_level_refuse_that_level(engine, request_):
    """W18, R07."""
    older = what_if(engine, dataclasses.replace(request_, pump_profile="cp-older"))
    last = older["candidates"][-1]
    assert [one["code"] for one in last["refusals"]] == ["R07"]
    assert "P-9 is not a level of the CP (older)" in last["refusals"][0]["sentence"]
    assert last["quantiles"] is None
    for profile in (None, "2.5", "other"):
        changed = dataclasses.replace(request_, pump_profile=profile)
        assert codes(what_if(engine, changed)) == ["R07"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"now": "2000-01-01T00:00:00+00:00"}, "R06"),
        ({"t_end": "1970-01-01T00:00:00+00:00", "now": None}, "R06"),
        ({"grid_min": 5.0}, "R06"),
        ({"p_now": None}, "R07"),
        ({"p_now": 1}, "R07"),
        ({"alarms": ("suction",)}, "R08"),
    ],
)
def test_a_refused_state_keeps_the_numbers_of_now_and_nothing_else(engine, request_, changes, code):
    answer = what_if(engine, dataclasses.replace(request_, **changes))
    assert code in codes(answer)
    assert answer["status"] == "refused"
    assert answer["now"]["map"]["value"] is not None
    assert answer["acceptable"] == []
    assert answer["suggested"] is None
    assert answer["uncertainty"] is None
    for one in answer["candidates"]:
        assert all(one[name] is None for name in (*NUMBERS, "support"))
    assert len(answer["reasons"]) == 1 + len(answer["refusals"])


def test_staleness_is_measured_against_the_chosen_moment(service, engine):
    stay = next(iter(service.stays.values()))
    for wait, refused in ((0.0, False), (15.0, False), (15.02, True), (45.0, True)):
        answer = what_if(engine, request_at(stay, stay.last + wait))
        assert ("R01" in codes(answer)) == refused
        assert answer["quality"]["age_min"] == pytest.approx(wait, abs=0.1)


def test_a_strange_patient_is_refused(engine, request_):
    """R09: every pressure and rate at its own plausible end."""
    strange = request_
    odd = {"map": 148.0, "sbp": 215.0, "dbp": 22.0, "pulsatility": 193.0, "hr": 190.0}
    for name, value in odd.items():
        wave = [value + 0.1 * i % 0.3 for i in range(36)]
        strange = put(strange, name, request_.channels[name].unit, wave)
    assert codes(what_if(engine, strange)) == ["R09"]


def test_a_missing_sample_is_carried_for_the_models_alone(engine, request_):
    values = list(request_.channels["map"].values)
    values[-3] = None
    answer = what_if(engine, put(request_, "map", "mm[Hg]", values))
    assert answer["status"] == "ok"
    assert answer["quality"]["carried_over"] == ["map"]
    assert answer["acceptable"] in ([], [answer["p_now"]])
    assert answer["suggested"] is None
    assert any("Missing in the last hour: MAP (1 of 6" in x for x in answer["reasons"])
    values[-1] = None
    gone = what_if(engine, put(request_, "map", "mm[Hg]", values))
    assert codes(gone) == ["R02"]
    assert gone["now"]["map"]["value"] is None


@pytest.mark.parametrize("number", SUBSETS)
def test_a_patient_who_lacks_signals_is_answered_and_told(engine, answered, number):
    bands = []
    for request, whole in answered[:4]:
        kept = {name: x for name, x in request.channels.items() if name in SUBSETS[number]}
        answer = what_if(engine, dataclasses.replace(request, channels=kept))
        absent = [name for name in NAMES if name not in SUBSETS[number]]
        assert answer["quality"]["absent"] == absent
        if number == 12:
            assert answer == whole
            continue
        assert answer["status"] == "ok", answer["refusals"]
        told = [x for x in answer["reasons"] if "filled with what the other signals" in x]
        assert len(told) == 1
        assert told[0].endswith("No change is suggested.")
        assert not any("Missing in the last hour" in x for x in answer["reasons"])
        assert all(KNOWN[name].label in told[0] for name in absent)
        assert answer["suggested"] is None
        assert set(answer["acceptable"]) <= {answer["p_now"]}
        bands += [set(one["quantiles"]) for one in answer["candidates"] if one["status"] == "ok"]
    assert bands or number == 12
    for names in bands:
        assert {"map", "hr", "pulsatility", "flow"} <= names
        assert not names & set(NAMES) - set(SUBSETS[number])


def test_a_signal_that_broke_off_is_not_filled(engine, answered):
    request, _ = answered[0]
    values = list(request.channels["tau"].values)
    values[-6:] = [None] * 6
    assert codes(what_if(engine, put(request, "tau", "ms", values))) == ["R09"]
    none = what_if(engine, put(request, "tau", "ms", [None] * len(values)))
    assert none["quality"]["absent"] == ["tau"]


@pytest.mark.parametrize("name", ["map", "hr", "pulsatility"])
def test_a_required_signal_is_never_filled(engine, answered, name):
    request, _ = answered[0]
    left = {x: channel for x, channel in request.channels.items() if x != name}
    answer = what_if(engine, dataclasses.replace(request, channels=left))
    assert "R02" in codes(answer)
    assert answer["quality"]["absent"] == []


def test_the_wish_of_a_policy_is_held_to_the_same_set(engine, moments, answers):
    for request, answer in zip(moments, answers, strict=True):
        told = answer["policy"]
        state = jnp.asarray(state_of(engine, request))
        assert told["wish"] == 2 + int(np.argmax(engine.policy(state)))
        assert told["acceptable"] == (told["wish"] in answer["acceptable"])


def test_a_planner_tells_the_value_and_the_spread_of_each_level(engine, answered):
    """Of the levels it tried alone, with the hours it looks ahead and the models it asks."""

    def by_level(*tried: float) -> jnp.ndarray:
        return jnp.array([jnp.nan, *tried, *[jnp.nan] * 5])

    penalty, within = jnp.zeros(8), jnp.arange(8) == 1
    told = Weighed(by_level(0.25, 0.0), by_level(0.125, 0.0), penalty, within, -penalty)
    preference = jnp.log(jnp.where(within, 0.93, 0.01))
    planner = Planner(engine.twin, jnp.asarray(0), config=PlannerConfig(hours=2))
    asked = dataclasses.replace(engine, policy=planner, method="planner")
    outlook = dataclasses.replace(
        look(engine, state_of(engine, answered[0][0]), Limits()),
        preference=np.asarray(preference),
        weighed=told,
    )
    wish = policy_wish(asked, outlook, np.asarray(within))
    assert wish is not None
    assert wish["values"] == [
        {"p": 3, "gain": 0.25, "spread": 0.125},
        {"p": 4, "gain": 0.0, "spread": 0.0},
    ]
    assert (wish["wish"], wish["hours"], wish["models"]) == (3, 2, count_models(engine.twin))
    assert wish["words"] == "The planner (planner) would choose P-3, which is acceptable."
    refused = policy_wish(asked, outlook, np.asarray(~within))
    assert refused is not None
    assert refused["acceptable"] is False


def test_a_request_survives_json(service):
    for stay in service.stays.values():
        request = request_at(stay, 700.0, 3, "map65")
        table = json.loads(json.dumps(dataclasses.asdict(request)))
        assert request_from_dict(table, stay.columns) == request


@settings(max_examples=count(60, 2000))
@given(data=st.data())
def test_removing_data_never_turns_a_refusal_into_advice(engine, service, data):
    """D3, through the whole of an answer: spoil a moment, see it refused, take data away."""
    stays = list(service.stays.values())
    stay = data.draw(st.sampled_from(stays))
    minute = data.draw(st.integers(36, int(stay.last) // 10)) * 10.0
    request = request_at(stay, minute)
    for _ in range(data.draw(st.integers(0, 2))):
        name = data.draw(st.sampled_from(NAMES))
        values = list(request.channels[name].values)
        values[data.draw(st.integers(-6, -1))] = data.draw(st.sampled_from([9.6, -1e4, 1e308, 0.0]))
        request = put(request, name, request.channels[name].unit, values)
    before = what_if(engine, request)
    poorer = request
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(NAMES))
        if name not in poorer.channels:
            continue
        if data.draw(st.booleans()):
            left = {key: one for key, one in poorer.channels.items() if key != name}
            poorer = dataclasses.replace(poorer, channels=left)
        else:
            values = list(poorer.channels[name].values)
            values[data.draw(st.integers(-6, -1))] = None
            poorer = put(poorer, name, poorer.channels[name].unit, values)
    after = what_if(engine, poorer)
    if poorer != request:
        assert after["suggested"] is None
        assert set(after["acceptable"]) <= {after["p_now"]}
    if before["status"] == "refused":
        assert after["suggested"] is None


def test_limits_of_the_site_are_in_force_under_every_preset(engine, service):
    own = dataclasses.replace(engine, site=Limits(pulsatility_low=20.0))
    request = request_at(next(iter(service.stays.values())), 700.0)
    for preset, pressure in (("paper", 60.0), ("map65", 65.0), ("site", 60.0)):
        found = what_if(own, request, preset)["limits"]
        assert (found["pulsatility_low"], found["map_low"]) == (20.0, pressure)


def test_kilopascals_are_converted_if_declared_and_suspected_if_not(engine, service):
    """W11."""
    request_ = request_at(next(iter(service.stays.values())), 700.0)
    assert codes(what_if(engine, request_)) == []
    values = request_.channels["map"].values
    kpa = [None if x is None else x * 0.133322387415 for x in values]
    same = what_if(engine, put(request_, "map", "kPa", kpa))
    assert same["status"] == "ok"
    assert same["now"]["map"]["converted"] == "kPa"
    assert same["now"]["map"]["value"] == pytest.approx(values[-1], abs=0.06)
    assert codes(what_if(engine, put(request_, "map", "mm[Hg]", kpa))) == ["R05"]
    assert codes(what_if(engine, put(request_, "map", None, values))) == ["R05"]
    assert codes(what_if(engine, put(request_, "map", "mA", values))) == ["R05"]


def test_one_program_serves_all_answers(engine, moments, caplog):
    """No compilation after warm-up: JAX would say so."""
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for request in moments[:4]:
            what_if(engine, dataclasses.replace(request, horizon_h=2, candidates=(4, 5)), "map65")
        assert "ompil" not in caplog.text
        jax.jit(lambda x: 2 * x)(jnp.zeros(3))
        assert "ompil" in caplog.text


def test_levels_without_any_channel_are_refused_in_words(engine, request_):
    answer = what_if(engine, dataclasses.replace(request_, channels={}))
    assert "R02" in codes(answer)
    assert answer["now"]["map"]["value"] is None
