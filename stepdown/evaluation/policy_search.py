"""The same number of trials for every method, so that no method is the only tuned one.

A trial is a change of the preset. Every method's first trial is the preset itself. What is best is
said by a rule that a user with real data could apply, on select patients; the rule is an argument.
The default, reward in the twin, is known to pick badly under confounding, so it is only a default.
Trials come one by one and are kept as they come, so a search goes on where it stopped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from stepdown.evaluation.judging import score_episodes
from stepdown.handover import Dynamics, Policy, Transitions, require_role
from stepdown.patients.episodes import Mode
from stepdown.twin.rollout import roll_out

BUDGET = 6  # trials of every method
STARTS = 2048  # from 256 the lead of a best trial is mostly luck (docs/results.md)

Changes = Mapping[str, float | int]  # by field, such as "sac.discount"
Rule = Callable[[Policy], float]  # higher is better
Recipe = TypeVar("Recipe")


def _grid(**values: tuple[float | int, ...]) -> tuple[dict[str, float | int], ...]:
    """All combinations; names have __ for a dot."""
    trials: list[dict[str, float | int]] = [{}]
    for name, options in values.items():
        trials = [one | {name.replace("__", "."): x} for one in trials for x in options]
    return tuple(trials)


# All but our preset, which comes first by itself.
_SAC = (
    *_grid(sac__discount=(0.9,), sac__entropy_share=(0.02, 0.3)),
    *_grid(sac__discount=(0.95,), sac__entropy_share=(0.02, 0.1, 0.3)),
)

TRIALS: dict[str, tuple[Changes, ...]] = {
    "bc": ({}, *_grid(fit__learning_rate=(1e-4, 1e-3, 3e-3)), *_grid(fit__batch=(64, 1024))),
    "expert": ({}, *_SAC),
    "mbpo": ({}, *_SAC),
    "mopo": ({}, *_grid(penalty_weight=(0.05, 0.1, 0.2, 0.35, 0.75))),
    "disagreement": ({}, *_grid(penalty_weight=(0.05, 0.1, 0.2, 1.0, 2.0))),
    "cormpo": ({}, *_grid(penalty_weight=(0.005, 0.02, 0.04, 0.12, 0.15))),
    "svr": ({}, *_grid(weight=(0.1, 3.0), support=(0.003, 0.03)), {"support": 0.03}),
}


@dataclass(frozen=True)
class Trial:
    """One change of a preset and what it scored on select patients."""

    method: str
    changes: dict[str, float | int]
    score: float


def search_policy(
    method: str,
    train: Callable[[Changes], Policy],
    rule: Rule,
    *,
    finished: Sequence[Trial] = (),
    keep: Callable[[Trial], None] = lambda trial: None,
) -> tuple[Trial, tuple[Trial, ...]]:
    """The best trial and all of them; those that are finished already are not run again."""
    known = {_name(one.changes): one for one in finished if one.method == method}
    trials = []
    for changes in TRIALS[method]:
        if (one := known.get(_name(changes))) is None:
            one = Trial(method, dict(changes), rule(train(changes)))
            keep(one)
        trials.append(one)
    return max(trials, key=lambda one: one.score), tuple(trials)


def apply_changes(recipe: Recipe, changes: Changes) -> Recipe:
    """The recipe with some fields changed; "sac.discount" is a field of its field `sac`."""
    made: Any = recipe
    for name, value in changes.items():
        made = _set(made, name.split("."), value)
    return made


def _set(recipe: Any, names: list[str], value: float | int) -> Any:
    first, *rest = names
    if not is_dataclass(recipe) or first not in {field.name for field in fields(recipe)}:
        raise ValueError(f"expected a field of {type(recipe).__name__}, got {first!r}.")
    inner = _set(getattr(recipe, first), rest, value) if rest else value
    return replace(recipe, **{first: inner})  # pyright: ignore[reportArgumentType]


def _name(changes: Changes) -> tuple[tuple[str, float | int], ...]:
    return tuple(sorted(changes.items()))


class TwinReward(eqx.Module):
    """The default rule: mean 6-hour reward of a policy's mode in a twin.

    Every policy meets the same starts and the same luck.
    """

    twin: Dynamics
    states: Float[Array, "starts steps 13"]
    keys: Key[Array, " starts"]

    def __call__(self, policy: Policy) -> float:
        """Higher is better."""
        episodes = roll_out(Mode(policy), self.twin, self.states, keys=self.keys)
        return float(np.mean(np.asarray(score_episodes(episodes).reward)))


def make_rule(
    twin: Dynamics, select: Transitions, starts: int = STARTS, *, key: PRNGKeyArray
) -> TwinReward:
    """The default rule from random hours of select patients."""
    require_role(select, "select")
    k_starts, k_luck = jr.split(key)
    # NumPy's generator: JAX would compile a program for every number of hours.
    draw = np.random.default_rng(np.asarray(jr.key_data(k_starts)).ravel())
    rows = draw.integers(len(select.level), size=starts)
    return TwinReward(twin, jnp.asarray(np.asarray(select.state)[rows]), jr.split(k_luck, starts))
