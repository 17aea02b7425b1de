"""Requests changed in one thing: data taken away, other units, other limits."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepdown.app.limits import Limits
from stepdown.app.recordings import request_at
from stepdown.app.request import Channel, request_from_dict, request_to_dict
from stepdown.app.whatif import what_if
from stepdown.signals import NAMES
from tests.app.sample_sizes import count


def codes(answer):
    return [one["code"] for one in answer["refusals"]]


def put(request, name, unit, values):
    channels = dict(request.channels) | {name: Channel(unit, tuple(values))}
    return dataclasses.replace(request, channels=channels)


def test_a_request_survives_json(service):
    for stay in service.stays.values():
        request = request_at(stay, 700.0, 3, "map65")
        table = json.loads(json.dumps(request_to_dict(request)))
        assert request_from_dict(table) == request


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


def test_a_site_can_only_be_stricter(engine, service):
    own = dataclasses.replace(engine, site=Limits(pulsatility_low=20.0))
    request = request_at(next(iter(service.stays.values())), 700.0)
    assert what_if(own, request, "site")["limits"]["pulsatility_low"] == 20.0
    assert what_if(own, request, "map65")["limits"]["pulsatility_low"] == 10.0


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
