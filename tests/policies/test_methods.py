"""Both settings are those of docs/definitions.md (17), for every method of the table."""

import math

import pytest

from stepdown.policies.bc import BCConfig
from stepdown.policies.cql import CQLConfig
from stepdown.policies.ensemble import EnsembleConfig
from stepdown.policies.methods import METHODS, make_recipe
from stepdown.policies.model_based import ModelBasedConfig
from stepdown.policies.sac import make_rates
from stepdown.policies.svr import SVRConfig


def model_based(method, *words, **more) -> ModelBasedConfig:
    recipe = make_recipe(method, *words, **more)
    assert isinstance(recipe, ModelBasedConfig)
    return recipe


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (("ours",), (0.9, 30_000, 0.5, 0.0, 0.08)),
        (("paper", "noiseless"), (0.99, 90_000, 0.5, 0.3, 0.005)),
        (("paper", "noisy"), (0.99, 100_000, 0.0, 0.0, 0.08)),
        (("paper", "recorded"), (0.99, 100_000, 1.0, 0.0, 0.005)),
    ],
)
def test_settings_are_those_of_the_definitions(words, numbers):
    recipe = model_based("cormpo_kde", *words)
    weights = (recipe.jump_weight, recipe.weaning_weight, recipe.penalty_weight)
    assert (recipe.sac.discount, recipe.updates, *weights) == numbers
    rollouts = recipe.rollouts
    assert (recipe.rollout_every, rollouts.starts, rollouts.hours, rollouts.kept) == (
        *(1000, 10_000, 5),
        5,
    )
    assert (recipe.batch, recipe.real_share, recipe.widths) == (256, 0.05, (256, 256))
    sac = recipe.sac
    assert (sac.learning_rate, sac.target_rate, sac.temperature) == (3e-4, 0.005, 0.1)
    assert make_rates(sac).target_entropy == pytest.approx(0.1 * math.log(8))
    assert not recipe.constrained


@pytest.mark.parametrize("setting", ["ours", "paper"])
def test_methods_differ_by_penalty_shaping_and_recorded_rows_alone(setting):
    cormpo = model_based("cormpo_kde", setting)
    for method, weight in {"mbpo": None, "mopo": 0.5, "disagreement": 0.5}.items():
        plain, shaped = model_based(method, setting), model_based(f"{method}_shaped", setting)
        assert shaped == model_based(method, setting, shaped=True)
        assert (plain.jump_weight, plain.weaning_weight) == (0.0, 0.0)
        assert (shaped.jump_weight, shaped.weaning_weight) == (
            cormpo.jump_weight,
            cormpo.weaning_weight,
        )
        assert weight in (None, plain.penalty_weight)
        assert (plain.sac, plain.updates, plain.rollouts) == (
            cormpo.sac,
            cormpo.updates,
            cormpo.rollouts,
        )
    expert = model_based("expert", setting)
    assert (expert.real_share, expert.jump_weight) == (0.0, 0.0)


def test_svr_shares_the_numbers_of_the_others_and_has_two_of_its_own():
    for setting in ("ours", "paper"):
        recipe, other = make_recipe("svr", setting), model_based("mbpo", setting)
        assert isinstance(recipe, SVRConfig)
        assert (recipe.updates, recipe.batch, recipe.widths, recipe.sac) == (
            *(other.updates, other.batch, other.widths),
            other.sac,
        )
        assert (recipe.support, recipe.weight) == (0.01, 1.0)


def test_cql_shares_the_numbers_of_the_others_and_has_one_of_its_own():
    for setting in ("ours", "paper"):
        recipe, other = make_recipe("cql", setting), model_based("mbpo", setting)
        assert isinstance(recipe, CQLConfig)
        assert (recipe.updates, recipe.batch, recipe.widths, recipe.sac) == (
            *(other.updates, other.batch, other.widths),
            other.sac,
        )
        assert recipe.weight == 1.0


def test_cloning_and_the_ensemble_are_the_same_in_both_settings():
    assert make_recipe("bc", "paper") == make_recipe("bc", "ours") == BCConfig()
    fit = BCConfig().fit
    assert (fit.epochs, fit.batch, fit.learning_rate, fit.patience) == (100, 256, 3e-4, 10)
    ensemble = EnsembleConfig()
    sizes = (ensemble.members, ensemble.elites, ensemble.width, ensemble.depth, ensemble.hold_out)
    assert sizes == (7, 5, 200, 4, 0.2)
    assert (ensemble.fit.learning_rate, ensemble.correlated) == (1e-3, True)


def test_every_method_is_given_what_its_penalty_needs():
    for method in METHODS.values():
        assert (method.density is not None) == (method.penalty == "density")
        assert method.penalty == "none" or method.dynamics is not None
