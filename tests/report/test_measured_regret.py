"""What every report says about choosing without the truth."""

from pathlib import Path

import pytest

from benchmarks.cohorts import read_lines
from benchmarks.studies.choosing import measure
from stepdown.evaluation.choosing import CHOICE_RULES, DEFAULT_RULE
from stepdown.report.measured_regret import PLAIN, read_measured, say_measured

ROOT = Path(__file__).parents[2]


def test_the_numbers_are_those_of_the_kept_cohorts():
    again = measure(read_lines(ROOT / "docs/results/choosing.jsonl"))
    kept = read_measured()
    assert set(kept["rules"]) == set(CHOICE_RULES)
    assert kept["cohorts"] == again["cohorts"]
    assert "--tables docs/results/choosing.jsonl" in kept["about"]["command"]  # for anybody
    for rule, found in again["rules"].items():
        assert kept["rules"][rule] == pytest.approx(found)


def test_the_sentence_holds_both_rules_and_their_numbers():
    said, rules = say_measured(), read_measured()["rules"]
    assert DEFAULT_RULE in said
    for rule in (DEFAULT_RULE, PLAIN):
        assert f"lost {rules[rule]['mean']:.2f} [{rules[rule]['low']:.2f}" in said
