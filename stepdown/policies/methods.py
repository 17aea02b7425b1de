"""The methods: one row for each, with all that anybody must know about it.

A method is a way to learn (`learn`, in a file of its own), a charge for risky choices, the models
that it needs, six trials of a search, and how tables and figures show it. Whoever plans, trains,
searches, compares or draws reads this table; nothing else lists methods.
"""

from dataclasses import replace
from typing import Any

import jax.random as jr
from jaxtyping import PRNGKeyArray

from stepdown.handover import DataName, Look, Policy, SettingName
from stepdown.policies.bc import clone, like_nobody
from stepdown.policies.cql import learn_conservative, like_everybody
from stepdown.policies.distilled import distil, like_a_planner
from stepdown.policies.learning import (
    ALONE,
    Info,
    Method,
    Recipe,
    Shrink,
    Task,
    Watch,
    apply_changes,
)
from stepdown.policies.model_based import (
    OURS,
    PAPER_NOISELESS,
    PAPER_NOISY,
    PAPER_RECORDED,
    ModelBasedConfig,
    learn_in_model,
    without_records,
)
from stepdown.policies.planner import like_no_learner, plan
from stepdown.policies.svr import learn_supported, like_others
from stepdown.training import member

PAPER: dict[DataName, ModelBasedConfig] = {
    "recorded": PAPER_RECORDED,
    "noiseless": PAPER_NOISELESS,
    "noisy": PAPER_NOISY,
}


def _grid(**values: tuple[float | int, ...]) -> tuple[dict[str, float | int], ...]:
    """All combinations; names have __ for a dot."""
    trials: list[dict[str, float | int]] = [{}]
    for name, options in values.items():
        trials = [one | {name.replace("__", "."): x} for one in trials for x in options]
    return tuple(trials)


# Six trials for every method, so that no method is the only tuned one; the first is the preset.
SAC_TRIALS = (
    {},
    *_grid(sac__discount=(0.9,), sac__entropy_share=(0.02, 0.3)),
    *_grid(sac__discount=(0.95,), sac__entropy_share=(0.02, 0.1, 0.3)),
)
CLONING_TRIALS = (
    {},
    *_grid(fit__learning_rate=(1e-4, 1e-3, 3e-3)),
    *_grid(fit__batch=(64, 1024)),
)
SUPPORT_TRIALS = ({}, *_grid(weight=(0.1, 3.0), support=(0.003, 0.03)), {"support": 0.03})
CONSERVATIVE_TRIALS = ({}, *_grid(weight=(0.1, 0.3, 0.5, 2.0, 5.0)))
SPREAD_TRIALS = ({}, *_grid(penalty_weight=(0.05, 0.1, 0.2, 0.35, 0.75)))
DISAGREEMENT_TRIALS = ({}, *_grid(penalty_weight=(0.05, 0.1, 0.2, 1.0, 2.0)))
PLANNING_TRIALS = (
    {},
    *_grid(caution=(0.0, 1.0), lowering=(0.0, 0.02)),
    {"hours": 2},
)
DISTILLING_TRIALS = tuple(
    {f"planner.{name}": value for name, value in one.items()} for one in PLANNING_TRIALS
)
DENSITY_TRIALS = ({}, *_grid(penalty_weight=(0.005, 0.02, 0.04, 0.12, 0.15)))


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="bc",
            words="BC (cloning)",
            look=Look("#8a6d00", (0, (5, 1.5, 1, 1.5)), "D"),
            group="paper",
            learn=clone,
            recipe=like_nobody,
            trials=CLONING_TRIALS,
            dynamics=None,
        ),
        Method(
            name="mbpo",
            words="MBPO",
            look=Look("#d55e00", (0, (5, 2)), "v"),
            group="paper",
            learn=learn_in_model,
            trials=SAC_TRIALS,
        ),
        Method(
            name="mopo",
            words="MOPO",
            look=Look("#009e73", (0, (5, 2)), "P"),
            group="paper",
            learn=learn_in_model,
            trials=SPREAD_TRIALS,
            penalty="spread",
            weight=0.5,
        ),
        Method(
            name="svr",
            words="SVR",
            look=Look("#cc79a7", (0, (8, 2)), "h"),
            group="paper",
            learn=learn_supported,
            recipe=like_others,
            trials=SUPPORT_TRIALS,
            dynamics=None,
        ),
        Method(
            name="cormpo_flow",
            words="CORMPO (RealNVP)",
            look=Look("#56b4e9", (0, (6, 1.5)), "s"),
            group="paper",
            learn=learn_in_model,
            trials=DENSITY_TRIALS,
            penalty="density",
            density="flow",
            shaped=True,
        ),
        Method(
            name="cormpo_kde",
            words="CORMPO (KDE)",
            look=Look("#0072b2", "-", "o"),
            group="paper",
            learn=learn_in_model,
            trials=DENSITY_TRIALS,
            penalty="density",
            density="kde",
            shaped=True,
        ),
        # What is density's own share? Each part of CORMPO without the other.
        Method(
            name="cormpo_unshaped",
            words="CORMPO, reward unshaped",
            look=Look("#0072b2", (0, (1, 1.2)), "^"),
            group="parts",
            learn=learn_in_model,
            trials=DENSITY_TRIALS,
            penalty="density",
            density="kde",
        ),
        Method(
            name="mbpo_shaped",
            words="MBPO, reward shaped",
            look=Look("#d55e00", (0, (1, 1.2)), "<"),
            group="parts",
            learn=learn_in_model,
            trials=SAC_TRIALS,
            shaped=True,
        ),
        Method(
            name="mopo_shaped",
            words="MOPO, reward shaped",
            look=Look("#009e73", (0, (1, 1.2)), "X"),
            group="parts",
            learn=learn_in_model,
            trials=SPREAD_TRIALS,
            penalty="spread",
            weight=0.5,
            shaped=True,
        ),
        Method(
            name="disagreement",
            words="Disagreement",
            look=Look("#7b5cb8", (0, (5, 2)), "p"),
            group="parts",
            learn=learn_in_model,
            trials=DISAGREEMENT_TRIALS,
            penalty="disagreement",
            weight=0.5,
        ),
        Method(
            name="disagreement_shaped",
            words="Disagreement, shaped",
            look=Look("#7b5cb8", (0, (1, 1.2)), "*"),
            group="parts",
            learn=learn_in_model,
            trials=DISAGREEMENT_TRIALS,
            penalty="disagreement",
            weight=0.5,
            shaped=True,
        ),
        # What do recorded rows alone give, with no model of the patients?
        Method(
            name="cql",
            words="CQL (discrete)",
            look=Look("#882255", (0, (8, 2)), "8"),
            group="peers",
            learn=learn_conservative,
            recipe=like_everybody,
            trials=CONSERVATIVE_TRIALS,
            dynamics=None,
        ),
        # What does a better model do? On recorded hours only: the twin made the synthetic ones.
        Method(
            name="mbpo_twin",
            words="MBPO taught by the twin",
            look=Look("#d55e00", "-", ">"),
            group="twin",
            learn=learn_in_model,
            trials=SAC_TRIALS,
            dynamics="twin",
            shaped=True,
        ),
        Method(
            name="cormpo_twin",
            words="CORMPO taught by the twin",
            look=Look("#0072b2", (0, (3, 1, 1, 1)), "H"),
            group="twin",
            learn=learn_in_model,
            trials=DENSITY_TRIALS,
            dynamics="twin",
            penalty="density",
            density="kde",
            shaped=True,
        ),
        # What do the models know that learning loses? On recorded hours only.
        Method(
            name="planner",
            words="Planner",
            look=Look("#117733", "-", "X"),
            group="planning",
            learn=plan,
            recipe=like_no_learner,
            trials=PLANNING_TRIALS,
            dynamics="ridge",
        ),
        Method(
            name="distilled",
            words="Planner, distilled",
            look=Look("#117733", (0, (2, 1)), "d"),
            group="planning",
            learn=distil,
            recipe=like_a_planner,
            trials=DISTILLING_TRIALS,
            dynamics="ridge",
        ),
        Method(
            name="expert",
            words="Expert (learned in the twin)",
            look=Look("#5f6b76", (0, (3, 1)), "d"),
            group="expert",
            learn=learn_in_model,
            trials=SAC_TRIALS,
            recipe=without_records,
            dynamics="twin",
        ),
    )
}
DEFAULT_METHOD = "planner"  # a run keeps its policy and its first screen speaks of it
OURS_METHOD = "cormpo_kde"  # the paper's, with which others are compared
COMPARED = tuple(x.name for x in METHODS.values() if x.group in ("paper", "parts"))


def make_recipe(
    name: str,
    setting: SettingName = "ours",
    data: DataName = "recorded",
    *,
    shrink: Shrink | None = None,
    shaped: bool | None = None,
) -> Recipe:
    """The numbers that a method is trained with: ours, or the paper's for a data set.

    `shaped` says whether the reward charges jumps, where that is not as usual for the method.
    """
    method = METHODS[name]
    base = OURS if setting == "ours" else PAPER[data]
    if not (method.shaped if shaped is None else shaped):
        base = replace(base, jump_weight=0.0, weaning_weight=0.0)
    if method.weight is not None:
        base = replace(base, penalty_weight=method.weight)
    recipe = method.recipe(base)
    return recipe if shrink is None else recipe.shrunk(shrink)


def train_policy(
    name: str,
    task: Task,
    *,
    key: PRNGKeyArray,
    seeds: int | None = None,
    watch: Watch = ALONE,
    **changes: Any,
) -> tuple[Policy, Info]:
    """Learn one policy by a method of the table; with `seeds`, as many side by side.

    `changes` replace numbers of our setting, such as `updates=500` or `sac__discount=0.9`. `info`
    holds the curves.

    >>> policy, info = sd.train_policy(
    ...     "cormpo_kde", task, key=jr.key(0), updates=40, rollout_every=20, widths=(16,)
    ... )
    >>> policy(train.state[0]).shape  # log-probabilities of P2 to P9
    (8,)
    """
    if name not in METHODS:
        raise ValueError(f"expected a method out of {', '.join(METHODS)}, got {name!r}.")
    method = METHODS[name]
    if method.dynamics and task.dynamics is None:
        raise ValueError(
            f"expected dynamics for {name} ({method.dynamics}), got none. Pass Task(dynamics=...)."
        )
    if method.density and task.guardian is None:
        raise ValueError(f"expected a guardian for {name}, got none. Pass Task(guardian=...).")
    wanted = {changed.replace("__", "."): value for changed, value in changes.items()}
    recipe = apply_changes(make_recipe(name), wanted)
    keys = key[None] if seeds is None else jr.split(key, seeds)
    task = replace(task, penalty=method.penalty)
    policies, info = method.learn(task, recipe, keys=keys, watch=watch)
    return (member(policies, 0) if seeds is None else policies), info
