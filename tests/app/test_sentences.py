"""One truth: the set, the places, the suggestion and the sentences of an answer agree."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepdown.app.gates import (
    PLACES,
    STATE_CODES,
    forbidding_gates,
    has_gap,
    inside_limits,
    outside_limits,
    place_levels,
    state_refusals,
    suggest,
)
from stepdown.app.limits import PRESETS, GateConfig, Limits
from stepdown.app.recordings import request_at
from stepdown.app.request import Channel
from stepdown.app.sentences import list_levels
from stepdown.app.whatif import what_if
from stepdown.signals import LEVELS, NAMES
from tests.app.bedsides import USED, allowed_levels, calm, crowd
from tests.app.sample_sizes import count

PAPER = PRESETS["paper"]
MANY = count(20_000, 100_000)


def shown(bed, risk, judged=None):
    """Acceptable levels of one bedside."""
    allowed = allowed_levels(bed, np.zeros(len(STATE_CODES), bool), PAPER)
    every = np.ones(8, bool) if judged is None else np.array(judged)
    place = place_levels(bed, allowed, every, (np.array(risk), np.array(risk)))
    return [p for p, x in zip(LEVELS, place, strict=True) if PLACES[x] == "acceptable"]


def test_acceptable_levels_follow_the_risk():
    # P-2    P-3  P-4  P-5  P-6  P-7  P-8  P-9: little risk down to P-5, so no more support
    assert shown(calm(), [0.0, 0.5, 0.2, 0.1, 0.05, 0.0, 0.0, 0.0]) == [5, 6]
    assert shown(calm(), [0.0, 0.5, 0.2, 0.2, 0.15, 0.1, 0.0, 0.0]) == [7, 8]
    assert shown(calm(), [0.0, 0.5, 0.2, 0.2, 0.3, 0.2, 0.4, 0.0]) == []  # nothing safe, nothing
    risk = [0.0, 0.0, 0.0, 0.0, np.nan, 0.0, 0.0, 0.0]
    assert shown(calm(), risk) == [4, 5, 7, 8]  # an unknown risk is no small one
    assert shown(calm(), [0.0] * 8, [True] * 4 + [False] + [True] * 3) == [4, 5, 7, 8]


def test_every_level_has_the_place_that_its_plain_definition_gives():
    """The definition level by level, without precedence tricks."""
    bed, draw = crowd(MANY, seed=5), np.random.default_rng(6)
    refused = state_refusals(bed, USED)
    allowed = allowed_levels(bed, refused, PAPER)
    judged = draw.random((MANY, 8)) > 0.3
    risk = draw.choice([0.0, 0.05, 0.1, 0.11, 0.5, np.nan], (MANY, 8))
    place = place_levels(bed, allowed, judged, (risk, risk))
    told = suggest(place == 0, has_gap(bed.signals, USED))
    fine = allowed & judged & (risk <= 0.1)
    index = np.clip(bed.level - 2, 0, 7)
    in_force = (bed.level >= 2) & (bed.level <= 9)
    hold = fine[np.arange(MANY), index] & in_force
    for i, p in enumerate(LEVELS):
        wanted = fine[:, i] & ~(hold & (p > bed.level))
        np.testing.assert_array_equal(place[:, i] == 0, wanted)
        np.testing.assert_array_equal(place[:, i] == PLACES.index("forbidden"), ~allowed[:, i])
    none = ~(place == 0).any(-1)
    assert 0.1 < none.mean() < 0.99
    assert (told[none] == -1).all()
    lowest = np.where(none, -1, np.argmax(place == 0, axis=-1) + 2)
    assert (told[told > 0] == lowest[told > 0]).all()


def test_missing_is_not_outside_and_both_forbid_steps_down():
    """H3 and H5 tell them apart; pulsatility alone is outside and forbids nothing."""
    bed = crowd(MANY, seed=7)
    gates = forbidding_gates(bed, np.zeros((MANY, len(STATE_CODES)), bool), PAPER, USED)
    inside, outside = inside_limits(bed.signals, PAPER), outside_limits(bed.signals, PAPER)
    required = np.isnan(bed.signals[..., [0, 6, 9]]).any((-2, -1))
    assert not (inside & outside).any()
    values = bed.signals[..., [0, 6, 9]]
    within = (values > np.array([60, 50, 10])) & (values < np.inf)  # NaN is not
    np.testing.assert_array_equal(inside, within.all((-2, -1)))
    assert (required & ~outside).sum() > 100
    down = np.array(LEVELS) < bed.level[:, None]
    low = ~(within | np.isnan(values))[..., :2].all((-2, -1))
    assert (outside & ~low).sum() > 100
    np.testing.assert_array_equal(
        (gates["H3"] | gates["H5"]) & down, down & (low | has_gap(bed.signals, USED))[:, None]
    )


def put(request, name, place, value):
    channel = request.channels[name]
    values = list(channel.values)
    values[place] = value
    channels = dict(request.channels) | {name: Channel(channel.unit, tuple(values))}
    return dataclasses.replace(request, channels=channels)


def below(request):
    """A low diastolic pressure, so that a low mean is possible."""
    return put(request, "dbp", -2, min(request.channels["dbp"].values[-2], 50.0))


@pytest.fixture(scope="module")
def answers(engine, answered):
    """Recorded moments, some of them with a sample gone or under a limit."""
    calm = [request for request, one in answered if one["p_now"] in one["acceptable"]]
    changed = [
        what_if(engine, one)
        for request in [*calm[:8], *(request for request, _ in answered[::6])]
        for one in (put(request, "map", -3, None), put(below(request), "map", -2, 57.6))
    ]
    return [one for _, one in answered] + [one for one in changed if one["status"] == "ok"]


def test_the_set_the_flags_the_verdicts_and_the_sentences_agree(answers):
    kinds = set()
    for answer in answers:
        flags = [one["p"] for one in answer["candidates"] if one["acceptable"]]
        said = [one["p"] for one in answer["candidates"] if one["verdict"].startswith("Acceptable")]
        assert answer["acceptable"] == flags == said
        text = " ".join(answer["reasons"])
        assert ("No level is acceptable" in text) == (answer["acceptable"] == [])
        assert ("nothing is suggested" in text) == (flags != [] and answer["suggested"] is None)
        if answer["suggested"] is not None:
            assert answer["suggested"] == min(flags)
            assert f"similar patient-hours at P-{answer['suggested']}" in text
        for one in answer["candidates"]:
            _check(one, answer)
        kinds.add((bool(flags), answer["suggested"] is not None))
    assert {(True, True), (False, False), (True, False)} <= kinds


def _check(one, answer):
    """A verdict follows from the gates, the refusals and the counts beside it."""
    names = ("map_low", "hr_out", "puls_low")
    share = max(one["risk"][x] for x in names) / one["risk"]["draws"] if one["risk"] else None
    if one["acceptable"]:
        assert one["gates"] == []
        assert share is not None
        assert share <= one["risk"]["worst"][1] <= 0.1
    elif one["verdict"].startswith("Not needed"):
        assert one["p"] > answer["p_now"] in answer["acceptable"]
    elif "forbidden" in one["verdict"]:
        assert all(gate["code"] in one["verdict"] for gate in one["gates"])
        assert one["gates"]
    elif one["verdict"].startswith("Undecided"):
        low, high = one["risk"]["worst"]
        assert low <= 0.1 < high
        assert one["p"] in answer["undecided"]
    elif "may." in one["verdict"]:
        assert share is not None
        assert share >= one["risk"]["worst"][0] > 0.1
    else:
        assert one["status"] == "refused"


def test_none_acceptable_accounts_for_every_level_once(answers):
    empty = [one for one in answers if one["acceptable"] == []]
    assert len(empty) > 3
    for answer in empty:
        sentence = next(x for x in answer["reasons"] if x.startswith("No level is acceptable"))
        assert sorted(int(p) for p in re.findall(r"P-(\d)", sentence)) == list(LEVELS)


def test_where_nothing_is_acceptable_the_least_risk_is_told_and_not_suggested(answers):
    told = 0
    for answer in answers:
        found = [x for x in answer["reasons"] if x.startswith("Fewest cross a limit")]
        risky = [one for one in answer["candidates"] if one["word"] in ("risky", "undecided")]
        assert bool(found) == (answer["acceptable"] == [] and risky != [])
        if found:
            worst = {one["p"]: max(one["risk"][x] for x in ("map_low", "hr_out", "puls_low"))
                     / one["risk"]["draws"] for one in risky}  # fmt: skip
            level = int(re.findall(r"P-(\d)", found[0])[0])
            assert worst[level] == min(worst.values())
            assert answer["suggested"] is None
            told += 1
    assert told > 3


def test_a_missing_sample_is_called_missing(answers):
    gone = [one for one in answers if one["quality"]["missing"].get("map")]
    assert len(gone) > 5
    for answer in gone:
        text = " ".join(answer["reasons"])
        assert "Missing in the last hour: MAP (1 of 6 samples)." in text
        measured = [answer["now"][name]["inside"] for name in ("map", "hr", "pulsatility")]
        assert ("Outside the limits" in text) == (False in measured)
        assert "Inside the limits for" not in text
        if answer["now"]["map"]["lowest"] > 60:
            assert answer["now"]["map"]["inside"] is None
        codes = {gate["code"] for one in answer["candidates"] for gate in one["gates"]}
        assert ("H3" in codes) <= (False in measured)


def test_a_sample_outside_is_named_with_its_limit(answers):
    low = [one for one in answers if one["now"]["map"]["lowest"] == 57.6]
    assert len(low) > 5
    for answer in low:
        assert any("MAP down to 58 mmHg (limit 60 mmHg)" in x for x in answer["reasons"])
        assert answer["now"]["map"]["inside"] is False


def test_a_limit_is_said_as_it_was_set(engine, answered):
    """62.5 mmHg is not 62: no digit of a site's own limit or threshold is rounded away."""
    strict = GateConfig(risk=0.025)
    own = dataclasses.replace(engine, site=Limits(map_low=62.5), gates=strict)
    told = [what_if(own, put(request, "map", -2, 62.2), "site") for request, _ in answered[:12]]
    outside = [one for answer in told for one in answer["reasons"] if "Outside the limits" in one]
    assert len(outside) > 5
    assert all("(limit 62.5 mmHg)" in one for one in outside)
    verdicts = " ".join(one["verdict"] for answer in told for one in answer["candidates"])
    assert "MAP 62.5 mmHg" in verdicts
    reasons = " ".join(one for answer in told for one in answer["reasons"])
    assert "in more than 2.5 % of the simulated courses" in reasons


NUMBER = re.compile(r"(?<![-\w.])(\d+(?:\.\d+)?)\b(?: ([a-zA-Z/]+|%))?")  # not the 5 of P-5
UNITS = (
    *("mmHg", "/min", "h", "%", "of", "in", "samples", "similar", "simulated", "courses", "may"),
    "to",  # a range has its unit at its end
)


def test_every_number_of_a_sentence_has_a_unit_and_nothing_is_an_alarm(answers):
    texts = [x for answer in answers for x in answer["reasons"]]
    texts += [one["verdict"] for answer in answers for one in answer["candidates"]]
    assert len(texts) > 500
    for text in texts:
        assert "alarm" not in text.lower()
        for number, unit in NUMBER.findall(text):
            assert unit in UNITS, (text, number, unit)


@settings(max_examples=count(40, 2000))
@given(data=st.data())
def test_any_question_has_an_answer_that_agrees_with_itself(engine, service, data):
    """Whatever levels are asked for under whatever limits, with whatever spoiled."""
    stay = data.draw(st.sampled_from(list(service.stays.values())))
    request = request_at(stay, 10.0 * data.draw(st.integers(36, int(stay.last) // 10)))
    asked = data.draw(st.lists(st.sampled_from(LEVELS), min_size=1, max_size=8, unique=True))
    request = dataclasses.replace(request, candidates=tuple(asked))
    for _ in range(data.draw(st.integers(0, 2))):
        value = data.draw(st.sampled_from([None, 59.0, 60.0, 130.0]))
        request = put(
            request, data.draw(st.sampled_from(NAMES)), data.draw(st.integers(-6, -1)), value
        )
    own = dataclasses.replace(engine, site=Limits(hr_high=120.0, map_low=62.0))
    answer = what_if(own, request, data.draw(st.sampled_from(["paper", "map65", "site"])))
    assert answer["reasons"]
    assert answer["acceptable"] == sorted(
        one["p"] for one in answer["candidates"] if one["acceptable"]
    )
    text = " ".join(answer["reasons"])
    if answer["status"] == "ok":
        assert ("No level is acceptable" in text) == (answer["acceptable"] == [])
    else:
        assert answer["acceptable"] == []
        assert text.startswith("No forecast and no suggestion.")


def test_levels_are_listed_as_people_do():
    assert list_levels([5]) == "P-5"
    assert list_levels([5, 6, 9]) == "P-5, P-6 and P-9"
