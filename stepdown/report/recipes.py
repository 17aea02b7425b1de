"""From words to recipes: which method, which setting, which weights (docs/definitions.md)."""

from dataclasses import replace
from typing import Any, Literal

from stepdown.policies.bc import BCConfig
from stepdown.policies.ensemble import EnsembleConfig
from stepdown.policies.imagined import RolloutConfig
from stepdown.policies.model_based import (
    OURS,
    PAPER_NOISELESS,
    PAPER_NOISY,
    PAPER_RECORDED,
    ModelBasedConfig,
)
from stepdown.policies.svr import SVRConfig
from stepdown.training import FitConfig

Method = Literal["bc", "expert", "mbpo", "mopo", "svr", "disagreement", "cormpo"]
SettingName = Literal["ours", "paper"]
DataName = Literal["recorded", "noiseless", "noisy"]
Size = Literal["full", "pocket"]
Recipe = BCConfig | SVRConfig | ModelBasedConfig

PAPER = {"recorded": PAPER_RECORDED, "noiseless": PAPER_NOISELESS, "noisy": PAPER_NOISY}
SHAPED = ("cormpo",)  # methods whose reward is shaped unless told otherwise
# lambda of methods for which the paper names none; CORMPO's is that of the setting
LAMBDAS = {"mopo": 0.5, "disagreement": 0.5}


def make_recipe(
    method: Method,
    setting: SettingName = "ours",
    data: DataName = "recorded",
    *,
    size: Size = "full",
    shaped: bool = False,
    constrained: bool = False,
) -> Recipe:
    """The preset of a method; `shaped` also shapes the reward of methods that go without."""
    base = OURS if setting == "ours" else PAPER[data]
    if method == "bc":
        return _pocket_bc() if size == "pocket" else BCConfig()
    if not (shaped or method in SHAPED):
        base = replace(base, jump_weight=0.0, weaning_weight=0.0)
    base = replace(base, penalty_weight=LAMBDAS.get(method, base.penalty_weight))
    base = replace(base, rollouts=replace(base.rollouts, constrained=constrained))
    if method == "expert":
        base = replace(base, real_share=0.0)
    if size == "pocket":
        base = _pocket(base)
    return _svr(base, size) if method == "svr" else base


def make_ensemble_config(size: Size) -> EnsembleConfig:
    """The paper's ensemble, or one for a quick look."""
    if size == "full":
        return EnsembleConfig()
    return EnsembleConfig(members=2, elites=2, width=16, depth=1, fit=FitConfig(epochs=2, batch=64))


def with_words(recipe: Recipe, **words: Any) -> Recipe:
    """The recipe with what was said on the command line; None was not said."""
    said = {name: value for name, value in words.items() if value is not None}
    if odd := [name for name in said if not hasattr(recipe, name)]:
        raise ValueError(
            f"--{odd[0].replace('_', '-')}: expected a method that has it, got another. "
            "Leave the option out."
        )
    return replace(recipe, **said)


def _svr(base: ModelBasedConfig, size: Size) -> SVRConfig:
    """The numbers that SVR shares with the other methods."""
    return SVRConfig(
        updates=base.updates,
        report_every=base.rollout_every,
        batch=base.batch,
        widths=base.widths,
        jump_weight=base.jump_weight,
        weaning_weight=base.weaning_weight,
        constrained=base.rollouts.constrained,
        clinical=base.rollouts.clinical,
        sac=base.sac,
        behavior=_pocket_bc() if size == "pocket" else BCConfig(),
    )


def _pocket(base: ModelBasedConfig) -> ModelBasedConfig:
    """Seconds, to see that everything works; nothing is learned."""
    rollouts = RolloutConfig(32, 2, 2, base.rollouts.constrained, base.rollouts.clinical)
    return replace(base, updates=60, rollout_every=10, batch=16, widths=(16, 16), rollouts=rollouts)


def _pocket_bc() -> BCConfig:
    return BCConfig(widths=(16,), fit=FitConfig(epochs=3, batch=64, learning_rate=1e-3))
