"""Rules that choose without the truth: what each picks from evidence written by hand."""

import dataclasses
import math

import numpy as np
import pytest

from stepdown.evaluation.choosing import (
    CHOICE_RULES,
    DEFAULT_RULE,
    TEAM,
    Evidence,
    Span,
    choose_best,
    pessimistic,
    pooled_gain,
    regret,
)

VALUES = ("twin", "second", "fqe", "wis", "joint")


def evidence(name: str, **numbers: float | bool) -> Evidence:
    """Evidence with intervals of ±0.5; the clinicians' values are −1 everywhere."""
    known = {"u": -1.0, "u_plus": 0.1, "unsafe": 0.2, "patients": 30.0, "seen": 0.9}
    known |= {"unsupported": 0.05, "informative": True}
    spans = {}
    for kind in VALUES:
        value = float(numbers.pop(kind, -1.0))
        wide = 0.0 if name == TEAM else 0.5
        spans[kind] = Span(value, value - wide, value + wide)
        spans[f"{kind}_gain"] = Span(value + 1, value + 1 - wide, value + 1 + wide)
    return Evidence(name=name, **spans, **(known | numbers))  # type: ignore[arg-type]


BOLD = evidence("bold", twin=1.0, second=-2.0, u=3.0, u_plus=4.0, fqe=-1.5, informative=False)
TIMID = evidence("timid", twin=-0.4, second=-0.3, fqe=-0.8, wis=-0.7, joint=-0.75)
LUCKY = evidence("lucky", twin=-0.9, second=-1.2, fqe=0.5, wis=5.0, u=0.5, informative=False)
NOBODY = evidence(TEAM)
ALL = (NOBODY, BOLD, TIMID, LUCKY)


def test_each_rule_picks_what_its_evidence_prefers():
    chosen = {name: rule(ALL) for name, rule in CHOICE_RULES.items()}
    expected = {
        "twin reward": "bold",  # the largest reward in the twin, whatever else is known
        "twin reward, mean u at most 0": "timid",  # bold and lucky are strange
        "pessimistic twin": "timid",  # bold pays 6 x 0.08 x 4
        "second twin": "timid",
        "smaller of both twins": "timid",
        "FQE": "lucky",
        "WIS where informative, else FQE": "lucky",  # its WIS of 5 does not count
        "surely better in both twins": "timid",
        "surely better by the records": TEAM,  # timid's gain may be below 0
        "least gain by both twins and FQE": "timid",
        "mean of both twins": "timid",  # -0.35; bold's is -0.5
        "mean of both twins, mean u at most 0": "timid",
        "pooled gain": "timid",
        "pooled gain, mean u at most 0": "timid",
        "mean rank by both twins and FQE": "timid",  # second, first, second of four
    }
    assert {name: chosen[name] for name in expected} == expected


def test_weighting_speaks_only_where_it_is_informative():
    rule = CHOICE_RULES["WIS where informative, else FQE"]
    assert rule((TIMID, dataclasses.replace(LUCKY, fqe=Span(-3.0, -3.0, -3.0)))) == "timid"
    assert rule((TIMID, dataclasses.replace(LUCKY, informative=True))) == "lucky"


def test_sources_are_pooled_by_their_precision():
    narrow, wide = Span(1.0, 0.9, 1.1), Span(-1.0, -3.0, 1.0)
    one = dataclasses.replace(TIMID, twin_gain=narrow, second_gain=narrow, joint_gain=wide)
    sd = np.array([0.2, 0.2, 4.0]) / 3.92
    weights = 1 / (sd**2 + 0.25**2)
    expected = weights @ [1.0, 1.0, -1.0] / weights.sum()
    assert pooled_gain(one) == pytest.approx(expected)
    silent = dataclasses.replace(one, joint_gain=Span(math.nan, -math.inf, math.inf))
    assert pooled_gain(silent) == pytest.approx(1.0)
    assert pooled_gain(NOBODY) == 0.0


def test_the_charge_is_that_of_six_hours():
    assert pessimistic(BOLD) == pytest.approx(1.0 - 6 * 0.08 * 4.0)
    assert pessimistic(BOLD, charge=0.0) == 1.0


def test_where_nothing_is_allowed_nothing_is_changed():
    assert choose_best(ALL, lambda e: e.twin.value, lambda e: False) == TEAM
    strange = (BOLD, LUCKY)  # without the clinicians: the least strange
    assert choose_best(strange, lambda e: e.twin.value, lambda e: False) == "lucky"


def test_unknown_values_are_never_chosen_and_equals_go_to_the_first():
    unknown = evidence("unknown", wis=math.nan, twin=math.nan)
    assert choose_best((unknown, TIMID), lambda e: e.twin.value) == "timid"
    twice = evidence("again", twin=-0.4)
    assert choose_best((TIMID, twice), lambda e: e.twin.value) == "timid"
    assert choose_best((twice, TIMID), lambda e: e.twin.value) == "again"


def test_rules_that_want_to_be_sure_leave_things_as_they_are():
    worse = [evidence(f"worse {i}", twin=-1.2, second=-1.2, joint=-1.2) for i in range(3)]
    for name in ("surely better in both twins", "surely better by the records", DEFAULT_RULE):
        assert CHOICE_RULES[name]([NOBODY, *worse]) == TEAM


def test_a_rule_names_the_same_candidate_in_any_order():
    draw = np.random.default_rng(0)
    kinds = (*VALUES, "u", "u_plus")
    for _ in range(20):
        rows = draw.normal(size=(5, len(kinds)))  # no two alike
        made = [
            evidence(f"c{i}", **dict(zip(kinds, x.tolist(), strict=True)))
            for i, x in enumerate(rows)
        ]
        for rule in CHOICE_RULES.values():
            chosen = rule(made)
            assert chosen in {one.name for one in made}
            assert rule(made[::-1]) == chosen


def test_regret_is_what_the_best_would_have_brought_more():
    truth = {"a": -0.5, "b": 0.25, TEAM: 0.0}
    assert [regret(truth, name) for name in truth] == [0.75, 0.0, 0.25]
    with pytest.raises(ValueError, match="expected a candidate out of a, b"):
        regret(truth, "c")


def test_no_candidates_are_refused():
    with pytest.raises(ValueError, match="expected candidates to choose from, got none"):
        CHOICE_RULES[DEFAULT_RULE]([])


def test_the_default_is_a_rule():
    assert DEFAULT_RULE in CHOICE_RULES
