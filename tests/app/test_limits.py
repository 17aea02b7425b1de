"""Limits, thresholds and codes: stricter only, and said as they are."""

import dataclasses
import datetime

import jax.numpy as jnp
import numpy as np
import pytest

from stepdown.app.engine import Outlook, disagreement
from stepdown.app.gates import candidate_refusals, refusal, refusal_codes
from stepdown.app.limits import (
    DEFAULT_GATES,
    GateConfig,
    Limits,
    limits_from_dict,
    most_restrictive,
)
from stepdown.app.request import parse_time
from stepdown.app.sentences import count_words
from stepdown.app.whatif import uncertainty_of, what_if
from stepdown.signals import LEVELS


def test_limits_and_thresholds_can_only_be_made_stricter():
    with pytest.raises(ValueError, match="map_low: expected 60 to 300, got 59.9"):
        Limits(map_low=59.9)
    with pytest.raises(ValueError, match="hr_high: expected 50 to 300, got 40"):
        Limits(hr_high=40.0)
    looser = {"oldest": 15.1, "missing": 0.21, "unlike_level": 0.04, "risk": 0.11}
    for name, value in looser.items():
        with pytest.raises(ValueError, match=f"{name}: expected"):
            dataclasses.replace(DEFAULT_GATES, **{name: value})
    with pytest.raises(ValueError, match="support: expected 20"):
        GateConfig(support=19)
    strict = most_restrictive(Limits(map_low=65.0), Limits(pulsatility_low=20.0, hr_high=120.0))
    assert strict == Limits(map_low=65.0, pulsatility_low=20.0, hr_high=120.0)


def test_every_code_has_a_sentence_and_a_remedy():
    assert list(refusal_codes()) == [f"R{i:02d}" for i in range(1, 17)]
    for code in refusal_codes():
        told = refusal(code, DEFAULT_GATES)
        assert str(told["sentence"]).endswith(".")
        assert str(told["remedy"]).endswith(".")
        assert "alarm" not in f"{told['sentence']} {told['remedy']}"


@pytest.mark.parametrize(
    ("changes", "code", "sentence", "remedy"),
    [
        ({}, "R01", "is more than 15 min old.", "Wait for new samples"),
        ({"oldest": 10.0}, "R01", "is more than 10 min old.", "Wait for new samples"),
        ({"oldest": 12.5}, "R01", "is more than 12.5 min old.", "Wait for new samples"),
        ({}, "R02", "More than 20 % of the last hour", "needs at least five of six samples."),
        ({"missing": 0.17}, "R02", "More than 17 % of the", "needs at least five of six samples."),
        ({"missing": 0.1}, "R02", "More than 10 % of the last hour", "needs all six samples."),
        ({}, "R03", "stands still for 30 min or longer.", "a stuck value"),
        ({"flat": 20.0}, "R03", "stands still for 20 min or longer.", "a stuck value"),
    ],
)
def test_a_refusal_says_the_threshold_that_is_in_force(changes, code, sentence, remedy):
    told = refusal(code, GateConfig(**changes))
    assert sentence in str(told["sentence"])
    assert remedy in str(told["remedy"])


def test_an_answer_under_a_stricter_age_limit_says_that_limit(engine, answered):
    """A site that asks for samples of ten minutes is not told of fifteen."""
    strict = dataclasses.replace(engine, gates=GateConfig(oldest=10.0))
    later = parse_time(answered[0][0].t_end, "t_end") + datetime.timedelta(minutes=12)
    request = dataclasses.replace(answered[0][0], now=later.isoformat())
    sentence = "The newest sample is more than 10 min old."
    answer = what_if(strict, request)
    assert [one["sentence"] for one in answer["refusals"]] == [sentence]
    assert answer["reasons"] == ["No forecast and no suggestion.", sentence]
    assert {one["refusals"][0]["sentence"] for one in answer["candidates"]} == {sentence}
    assert what_if(engine, request)["status"] == "ok"  # twelve minutes are not too old by default


WRONG = ({"map_low": 50}, {"other": 1}, {"map_low": None}, {"hr_high": "9"})


@pytest.mark.parametrize("table", WRONG)
def test_looser_and_foreign_limits_are_refused(table):
    with pytest.raises(ValueError, match="expected"):
        limits_from_dict(table)


def test_candidates_are_refused_by_strangeness_support_and_disagreement():
    p_value = np.array([0.5, 0.049, 0.05, np.nan, 0.5, 0.5, 0.5, 0.5])
    support = np.array([20, 99, 99, 99, 19, 99, 99, 99])
    apart = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.26, 0.25, np.nan])
    backward = np.arange(8) == 7
    found = candidate_refusals(p_value, support, apart, backward)
    assert [p for p, x in zip(LEVELS, found["R16"], strict=True) if x] == [9]
    assert [p for p, x in zip(LEVELS, found["R10"], strict=True) if x] == [3, 5, 6]
    assert [p for p, x in zip(LEVELS, found["R11"], strict=True) if x] == [7]
    assert [p for p, x in zip(LEVELS, found["R12"], strict=True) if x] == [2, 3]


def test_a_twin_of_one_member_cannot_tell_how_models_disagree():
    unknown = jnp.full((8, 2), jnp.nan)
    outlook = Outlook(
        quantiles=jnp.zeros((8, 5, 36, 5)),
        carried=jnp.zeros((8, 5)),
        left=np.zeros((8, 50, 3), bool),
        courses=np.full(8, 50),
        by_member=np.full((1, 8), np.nan),
        p_value=jnp.ones(8),
        within=unknown,
        between=unknown,
        preference=jnp.zeros(8),
        weighed=None,
    )
    assert uncertainty_of(outlook, 5) is None
    found = candidate_refusals(np.ones(8), np.full(8, 99), disagreement(outlook), np.zeros(8, bool))
    assert not found["R11"].any()


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "none of 100 simulated courses"),
        (2, "fewer than 1 in 20 simulated courses"),
        (15, "about 3 in 20 simulated courses"),
        (99, "nearly all simulated courses"),
        (100, "about 20 in 20 simulated courses"),
    ],
)
def test_risks_are_said_as_rounded_frequencies(count, words):
    assert count_words(count, 100) == words
