"""The host's side of a training: seed after seed, epoch after epoch, noted, saved, stoppable.

All methods but cloning are loops in pieces (policies/model_based.py, policies/svr.py), whose state
is saved now and then. Cloning takes a minute, so a stopped one begins its seed again. The ensemble
and SVR's behavior policy are fitted once for all seeds, and saved.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from stepdown.evaluation.policy_search import TwinReward
from stepdown.handover import Penalty, Policy
from stepdown.policies import model_based, svr
from stepdown.policies.bc import BCConfig, train_bc
from stepdown.policies.checkpoints import (
    ENSEMBLE,
    POLICY,
    forget_training,
    load_ensemble,
    load_policy,
    load_training,
    save_ensemble,
    save_policy,
    save_training,
    sweep,
)
from stepdown.policies.constraint import Constrained
from stepdown.policies.ensemble import Ensemble, EnsembleConfig, fit_ensemble
from stepdown.policies.networks import LearnedPolicy
from stepdown.policies.penalties import (
    DensityPenalty,
    DisagreementPenalty,
    SpreadPenalty,
    Unpenalized,
)
from stepdown.policies.svr import SVRConfig
from stepdown.report.diary import Diary
from stepdown.report.parts import save_fitted
from stepdown.report.progress import progress
from stepdown.report.recipes import Recipe
from stepdown.report.stopping import Stop
from stepdown.report.training_parts import Hours, Models

MIXED = 2048  # select hours over which the levels are counted
ENSEMBLE_KEY, BEHAVIOR_KEY = 1_000_001, 1_000_002  # seeds of what all policies share

# How a method charges a choice; the others charge nothing.
PENALTIES: dict[str, Callable[[Any, Ensemble, Array], Penalty]] = {
    "mopo": lambda models, ensemble, weight: SpreadPenalty(ensemble, weight),
    "disagreement": lambda models, ensemble, weight: DisagreementPenalty(ensemble, weight),
    "cormpo": lambda models, ensemble, weight: DensityPenalty(models.guardian, weight),
}


class Job(eqx.Module):
    """A training with everything that it needs."""

    hours: Hours
    models: Models
    rule: TwinReward | None  # rewards in the twin, on select patients
    method: str = eqx.field(static=True)
    seeds: tuple[int, ...] = eqx.field(static=True)
    recipe: Recipe = eqx.field(static=True)
    ensemble: EnsembleConfig = eqx.field(static=True)
    constrained: bool = eqx.field(static=True)
    work: Path = eqx.field(static=True)  # where everything lies while it runs
    save_seconds: float = eqx.field(static=True)  # least time between two saves


def train_all(job: Job, stop: Stop) -> None:
    """Train every seed that is not finished; `policy-SEED` folders are the result."""
    for folder in (job.work, *job.work.glob("state-*")):
        sweep(folder)
    diary = Diary(job.work, job.method)
    if isinstance(job.recipe, BCConfig):
        for seed in job.seeds:
            _clone(job, job.recipe, seed, diary, stop)
        return
    loop, setting = _prepare(job, stop)
    side_by_side = jax.default_backend() != "cpu"
    groups = [job.seeds] if side_by_side else [(seed,) for seed in job.seeds]
    for seeds in groups:
        _learn(job, (loop, setting), seeds, diary, stop)


def policy_folder(work: Path, seed: int) -> Path:
    """Where the policy of a seed lies."""
    return work / f"policy-{seed}"


def level_mix(policy: Policy, states: Float[Array, "n steps 13"]) -> Float[np.ndarray, " 8"]:
    """Mean probability of each level."""
    return np.asarray(_level_mix(policy, states[:MIXED]))


@eqx.filter_jit
def _level_mix(policy, states):
    return jnp.mean(jnp.exp(jax.vmap(policy)(states)), axis=0)


def _clone(job: Job, recipe: BCConfig, seed: int, diary: Diary, stop: Stop) -> None:
    if policy_folder(job.work, seed).exists():
        return
    hours = job.hours
    with progress(f"{job.method} seed {seed}") as bar:
        watch = functools.partial(_watch, bar, stop)
        learned, info = train_bc(hours.train, hours.select, recipe, key=jr.key(seed), watch=watch)
    diary.rewind(seed, 0)
    policy = Constrained(learned) if job.constrained else learned
    last = len(info["loss"]) - 1
    steps = max(len(hours.train.level) // recipe.fit.batch, 1)
    for number in range(last + 1):
        line = {"loss": info["loss"][number], "held_out": info["held_out"][number]}
        if number == last:
            line |= _judge(job, policy, line)
        diary.write(seed, number + 1, steps * (number + 1), line)
    diary.show(seed, 1.0)
    _finish(job, policy, seed)


def _learn(job: Job, pieces: tuple[Any, Any], seeds: tuple[int, ...], diary: Diary, stop: Stop):
    """Train one seed, or several side by side, from the newest saved state."""
    if all(policy_folder(job.work, seed).exists() for seed in seeds):
        return
    loop, setting = pieces
    keys = jnp.stack([jr.key(seed) for seed in seeds])
    key = keys if len(seeds) > 1 else keys[0]
    folder = job.work / f"state-{min(seeds)}"
    like = eqx.filter_eval_shape(lambda: loop.begin(setting, key=key))
    training, done = load_training(folder, like) or (loop.begin(setting, key=key), 0)
    for seed in seeds:
        diary.rewind(seed, done)
    updates, saved = _updates(job.recipe), time.monotonic()
    while done < updates:
        training, done = loop.advance(training, setting, done, key=key)
        jax.block_until_ready(training.tally)  # a signal must not wait for a queue of programs
        if done % setting.sizes.every == 0:
            _note(job, diary, seeds, (training.tally, loop.finish(training, setting)), done)
            if time.monotonic() - saved >= job.save_seconds:
                save_training(folder, training, done)
                saved = time.monotonic()
        if stop.number is not None:
            save_training(folder, training, done)
            stop.check()
    policies = loop.finish(training, setting)
    for row, seed in enumerate(seeds):
        _finish(job, _one(policies, row, len(seeds)), seed)
    forget_training(folder)


def _note(job: Job, diary: Diary, seeds: tuple[int, ...], found: tuple[Any, Any], done: int):
    """Write what an epoch brought for every seed."""
    tally, policies = found
    infos = jax.tree.map(np.asarray, tally)
    every = _every(job.recipe)
    for row, seed in enumerate(seeds):
        info = _one(infos, row, len(seeds))
        if not all(np.isfinite(x).all() for x in info.values()):
            raise ValueError(
                f"expected finite losses, got NaN or infinity in seed {seed} after {done} "
                "updates. Lower the learning rate or the weight of the penalty."
            )
        info |= _judge(job, _one(policies, row, len(seeds)), info)
        diary.write(seed, done // every, done, info)
        diary.show(seed, done / _updates(job.recipe))


def _judge(job: Job, policy: Policy, info: dict[str, Any]) -> dict[str, Any]:
    """The reward in the twin, if there is one, and the levels where nobody has counted them."""
    found: dict[str, Any] = {}
    if "levels" not in info:
        found["levels"] = level_mix(policy, job.hours.select.state)
    if job.rule is not None:
        found["twin_reward"] = job.rule(policy)
    return found


def _one(tree: Any, row: int, count: int) -> Any:
    """One seed of several."""
    return tree if count == 1 else jax.tree.map(lambda x: x[row], tree)


def _finish(job: Job, policy: Policy, seed: int) -> None:
    def save(path: Path) -> None:
        save_policy(path, policy, job.method, seed=seed)

    path = policy_folder(job.work, seed)
    if not path.exists():
        save_fitted(path, save, job.hours.seen, kind=POLICY, model=job.method)


def _prepare(job: Job, stop: Stop) -> tuple[Any, Any]:
    """The loop of the method, and its setting: data, dynamics, penalty."""
    recipe, hours = job.recipe, job.hours
    if isinstance(recipe, SVRConfig):
        return svr, svr.prepare(hours.train, hours.select, _behavior(job, recipe, stop), recipe)
    assert isinstance(recipe, model_based.ModelBasedConfig)
    if job.method == "expert":
        assert job.models.twin is not None
        return model_based, model_based.prepare(hours.train, job.models.twin, Unpenalized(), recipe)
    ensemble = job.models.ensemble or own_ensemble(job, stop)
    weight = jnp.asarray(recipe.penalty_weight, jnp.float32)
    make = PENALTIES.get(job.method)
    penalty = make(job.models, ensemble, weight) if make else Unpenalized()
    return model_based, model_based.prepare(hours.train, ensemble, penalty, recipe)


def own_ensemble(job: Job, stop: Stop) -> Ensemble:
    """The ensemble of this training, fitted once."""
    path = job.work / ENSEMBLE
    if not path.exists():
        with progress("fitting the ensemble") as bar:
            watch = functools.partial(_watch, bar, stop)
            fitted, _ = fit_ensemble(
                job.hours.train, job.ensemble, key=jr.key(ENSEMBLE_KEY), watch=watch
            )

        def save(place: Path) -> None:
            save_ensemble(place, fitted, job.ensemble, seed=ENSEMBLE_KEY)

        save_fitted(path, save, job.hours.seen, kind=ENSEMBLE, model=ENSEMBLE)
    return load_ensemble(path)[0]


def _behavior(job: Job, recipe: SVRConfig, stop: Stop) -> LearnedPolicy:
    """The estimated behavior policy of SVR, fitted once."""
    path = job.work / "behavior"
    if not path.exists():
        with progress("cloning the behavior") as bar:
            watch = functools.partial(_watch, bar, stop)
            train, select, key = job.hours.train, job.hours.select, jr.key(BEHAVIOR_KEY)
            fitted, _ = train_bc(train, select, recipe.behavior, key=key, watch=watch)

        def save(place: Path) -> None:
            save_policy(place, fitted, "bc", seed=BEHAVIOR_KEY)

        save_fitted(path, save, job.hours.seen, kind=POLICY, model="bc")
    policy = load_policy(path)[0]
    assert isinstance(policy, LearnedPolicy)
    return policy


def _watch(bar: Callable[[float], None], stop: Stop, share: float) -> None:
    bar(share)
    stop.check()


def _updates(recipe: Recipe) -> int:
    return 0 if isinstance(recipe, BCConfig) else recipe.updates


def _every(recipe: Recipe) -> int:
    if isinstance(recipe, BCConfig):
        return 1
    return recipe.report_every if isinstance(recipe, SVRConfig) else recipe.rollout_every
