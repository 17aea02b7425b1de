"""Every method gets the same number of trials, each a possible change of its preset."""

import dataclasses
import json
import typing

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.__main__ import main
from stepdown.evaluation.policy_search import (
    BUDGET,
    TRIALS,
    Trial,
    apply_changes,
    make_rule,
    search_policy,
)
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.policies.rules import RULES, Always
from stepdown.report.recipes import Method, make_recipe
from tests.policies.toys import MoreIsBetter, make_hours, random_states


def test_every_method_has_the_same_budget_and_begins_with_its_preset():
    assert set(TRIALS) == set(typing.get_args(Method))
    for method in typing.get_args(Method):
        trials = TRIALS[method]
        assert len(trials) == BUDGET == 6
        recipes = [apply_changes(make_recipe(method), changes) for changes in trials]
        assert recipes[0] == make_recipe(method)
        assert len(set(recipes)) == BUDGET  # all different, all possible


def test_changes_reach_inner_fields_and_wrong_names_are_refused():
    recipe = apply_changes(make_recipe("mbpo"), {"sac.discount": 0.5, "batch": 8})
    assert isinstance(recipe, ModelBasedConfig)
    assert (recipe.sac.discount, recipe.batch) == (0.5, 8)
    with pytest.raises(ValueError, match="expected a field of SACConfig, got 'gamma'"):
        apply_changes(make_recipe("mbpo"), {"sac.gamma": 0.5})
    with pytest.raises(ValueError, match="a discount"):
        apply_changes(make_recipe("mbpo"), {"sac.discount": 2.0})


def test_the_rule_decides_and_finished_trials_are_not_run_again():
    ran, kept = [], []

    def train(changes):
        ran.append(changes)
        return Always(jnp.asarray(2))

    def rule(policy):
        return -abs(len(ran) - 3.0)  # the third that runs is best

    best, trials = search_policy("mopo", train, rule, keep=kept.append)
    assert list(trials) == kept
    assert best == trials[2]
    assert ran == list(TRIALS["mopo"])
    again, all_of_them = search_policy("mopo", train, rule, finished=kept[:4])
    assert ran[6:] == list(TRIALS["mopo"][4:])
    assert all_of_them[:4] == trials[:4]
    assert again == best
    other = Trial("cormpo", dict(TRIALS["mopo"][0]), 99.0)  # of another method: not ours
    assert search_policy("mopo", train, rule, finished=[*kept, other])[0] == best


def test_the_twins_rule_prefers_what_is_better_there():
    """In a world where MAP is 40 + 2 per level, P9 earns most; all meet the same luck."""
    states = random_states(50, np.full(50, 5), seed=0)
    select = dataclasses.replace(make_hours(states, np.full(50, 5), states), role="select")
    rule = make_rule(MoreIsBetter(), select, 32, key=jr.key(0))
    scores = {level: rule(Always(jnp.asarray(level))) for level in (2, 5, 9)}
    assert scores[2] < scores[5] < scores[9]
    assert rule(RULES["hold"]) == pytest.approx(scores[5], abs=1e-5)
    # P9: the hour's least MAP is 58 mmHg less the least of six draws of sd 0.1, which is 0.127
    hourly = (-7 * (60 - (58 - 0.127)) / 20 + 1.7018) / 2.6621
    assert scores[9] == pytest.approx(6 * hourly, abs=0.03)
    with pytest.raises(ValueError, match="expected select patients, got train"):
        make_rule(MoreIsBetter(), dataclasses.replace(select, role="train"), key=jr.key(0))


def test_a_search_goes_on_where_it_stopped(tmp_path, capsys):
    def run(*words: object) -> int:
        return main([str(word) for word in words])

    cohort = ("--cohort", tmp_path / "cohort")
    assert run("simulate", "--out", tmp_path / "cohort", "--patients", 10, "--hours", 24) == 0
    assert run("twin", "fit", *cohort, "--model", "persistence", "--out", tmp_path / "twin") == 0
    words = ("search", "bc", *cohort, "--twin", tmp_path / "twin", "--size", "pocket")
    assert run(*words, "--out", tmp_path / "out") == 0
    file = tmp_path / "out" / "trials.jsonl"
    lines = file.read_text().splitlines()
    assert [json.loads(line)["changes"] for line in lines] == list(TRIALS["bc"])
    table = capsys.readouterr().out.splitlines()[-7:]
    assert sum(line.endswith("<") for line in table) == 1
    file.write_text("\n".join([*lines[:4], lines[4][:9]]))  # killed while writing the fifth
    (tmp_path / "out" / "trial").mkdir()
    assert run(*words, "--out", tmp_path / "out") == 0
    assert capsys.readouterr().out.splitlines() == table
    assert file.read_text().splitlines() == lines
    assert run(*words, "--seed", 1, "--out", tmp_path / "out") == 2
    assert "(seed: 0), got 1" in capsys.readouterr().err
