"""Policies and half-done trainings on disk: whole or not at all, and without pickles.

A training is saved under the number of updates that it has done, beside the one before, which goes
only when the new one is on the disk. Whatever moment a machine stops at, the newest whole one is
there, and the training goes on from it to the same result.
"""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import equinox as eqx
import jax
import jax.random as jr

from stepdown.artifacts import ArtifactError, load_config, load_module, save_module
from stepdown.handover import Policy
from stepdown.policies.constraint import Constrained
from stepdown.policies.networks import LearnedPolicy, feature_count, make_network
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.problem.scaling import blank_scaler
from stepdown.signals import LEVELS, NAMES, STEPS
from stepdown.training import member, stack

POLICY, POLICIES, TRAINING = "policy", "policies", "training state"
AT = "at-"  # folders of half-done trainings, by updates

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class SavedPolicy:
    """What must be known to rebuild a learned policy before its numbers are read."""

    method: str
    widths: tuple[int, ...]
    present: tuple[int, ...]  # columns of the signals in use
    steps: int = STEPS  # samples of a state
    constrained: bool = False
    clinical: ClinicalConfig = PAPER  # limits of the constraint
    columns: tuple[str, ...] = NAMES  # of the recordings that it learned from

    @property
    def policy(self) -> Policy:
        """A policy of the right shapes and any content."""
        scaler = blank_scaler(self.present, self.columns)
        sizes = (feature_count(scaler, self.steps), *self.widths, len(LEVELS))
        learned = LearnedPolicy(scaler, make_network(sizes, key=jr.key(0)))
        return Constrained(learned, self.clinical) if self.constrained else learned


def save_policy(path: Path, policy: Policy, method: str, *, seed: int | None = None) -> None:
    """Save a learned policy, constrained or not."""
    about = describe_policy(policy, method)
    assert isinstance(policy, eqx.Module)
    save_module(path, policy, config=about, kind=POLICY, seed=seed)


def describe_policy(policy: Policy, method: str) -> SavedPolicy:
    """What must be known to rebuild a learned policy; any other is refused."""
    inner = policy.policy if isinstance(policy, Constrained) else policy
    if not isinstance(policy, eqx.Module) or not isinstance(inner, LearnedPolicy):
        raise TypeError(f"expected a learned policy, got {type(inner).__name__}.")
    weights, present = inner.network.weights, inner.scaler.present
    return SavedPolicy(
        method=method,
        widths=tuple(weight.shape[1] for weight in weights[:-1]),
        present=present,
        steps=(weights[0].shape[0] - 1) // len(present),
        constrained=isinstance(policy, Constrained),
        clinical=policy.config if isinstance(policy, Constrained) else PAPER,
        columns=inner.scaler.columns,
    )


def load_policy(path: Path) -> tuple[Policy, SavedPolicy]:
    """A saved policy and what it says about itself."""
    about = load_config(path, SavedPolicy, kind=POLICY)
    return load_module(path, eqx.filter_eval_shape(lambda: about.policy), kind=POLICY), about


@dataclass(frozen=True)
class SavedPolicies:
    """What must be known to rebuild policies of several seeds, whose leaves lead with the seeds."""

    each: SavedPolicy
    seeds: int


def save_policies(path: Path, policies: Policy, method: str) -> None:
    """Policies of several seeds in one folder: few files, whatever the number of seeds."""
    seeds = len(jax.tree.leaves(policies)[0])
    about = SavedPolicies(describe_policy(member(policies, 0), method), seeds)
    assert isinstance(policies, eqx.Module)
    save_module(path, policies, config=about, kind=POLICIES)


def load_policies(path: Path) -> Policy:
    """The policies of several seeds; leaves lead with the seeds."""
    about = load_config(path, SavedPolicies, kind=POLICIES)
    like = eqx.filter_eval_shape(lambda: stack([about.each.policy] * about.seeds))
    return load_module(path, like, kind=POLICIES)


# ── half-done trainings ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Done:
    """How far a training is."""

    updates: int


def save_training(folder: Path, training: eqx.Module, done: int) -> None:
    """Save a half-done training, then forget the ones before it."""
    older = _saved(folder)
    if done in older:
        return
    save_module(folder / f"{AT}{done}", training, config=Done(done), kind=TRAINING)
    for number in older:
        shutil.rmtree(folder / f"{AT}{number}", ignore_errors=True)


def load_training(folder: Path, like: Callable[[], Tree]) -> tuple[Tree, int] | None:
    """The newest half-done training and its updates, or None where nothing was saved.

    `like` gives the shapes of the training, such as by `eqx.filter_eval_shape`.
    """
    for left in folder.glob(".*"):  # of an interrupted save
        shutil.rmtree(left, ignore_errors=True)
    saved = _saved(folder)
    if not saved:
        return None
    path = folder / f"{AT}{saved[-1]}"
    done = load_config(path, Done, kind=TRAINING).updates
    if done != saved[-1]:
        raise ArtifactError(f"{path}: expected {saved[-1]} updates, got {done}; remove the folder.")
    return load_module(path, like(), kind=TRAINING, finite=False), done


def _saved(folder: Path) -> list[int]:
    """Updates of the saved trainings, ascending."""
    found = []
    for path in folder.glob(f"{AT}*"):
        with contextlib.suppress(ValueError):
            found.append(int(path.name.removeprefix(AT)))
    return sorted(found)
