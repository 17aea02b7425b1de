"""Changes of a recipe, and the rule by which trials are compared."""

import dataclasses

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stepdown.policies.learning import apply_changes
from stepdown.policies.methods import make_recipe
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.policies.rules import RULES, Always
from stepdown.policies.search import make_rule
from tests.policies.toys import MoreIsBetter, make_hours, random_states


def test_changes_reach_inner_fields_and_wrong_names_are_refused():
    recipe = apply_changes(make_recipe("mbpo"), {"sac.discount": 0.5, "batch": 8})
    assert isinstance(recipe, ModelBasedConfig)
    assert (recipe.sac.discount, recipe.batch) == (0.5, 8)
    with pytest.raises(ValueError, match="expected one of .*discount.*, got 'gamma'"):
        apply_changes(make_recipe("mbpo"), {"sac.gamma": 0.5})
    with pytest.raises(ValueError, match="a discount"):
        apply_changes(make_recipe("mbpo"), {"sac.discount": 2.0})


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
