"""Policies on disk: whole or not at all, and without pickles."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from stepdown.artifacts import load_config, load_module, save_module
from stepdown.handover import Policy
from stepdown.patients.pump import load_profile
from stepdown.policies.constraint import Constrained
from stepdown.policies.networks import LearnedPolicy, feature_count, make_network
from stepdown.policies.planner import Planner, PlannerConfig
from stepdown.problem.clinical import PAPER, ClinicalConfig
from stepdown.problem.persistence import CarryForward
from stepdown.problem.scaling import blank_scaler
from stepdown.signals import LEVELS, NAMES, STEPS
from stepdown.training import member, stack
from stepdown.twin.coordinates import blank_coordinates
from stepdown.twin.fit import Twin
from stepdown.twin.ridge import RIDGE_BASE, Ridge, RidgeConfig, make_ridge

POLICY, POLICIES = "policy", "policies"


@dataclass(frozen=True)
class SavedPolicy:
    """What must be known to rebuild a learned policy or a planner before its numbers are read."""

    method: str
    widths: tuple[int, ...]  # none for a planner
    present: tuple[int, ...]  # columns of the signals in use
    steps: int = STEPS  # samples of an hour
    constrained: bool = False
    clinical: ClinicalConfig = PAPER  # limits of the constraint
    columns: tuple[str, ...] = NAMES  # of the recordings that it learned from
    planner: dict[str, Any] = field(default_factory=dict)  # config; empty for a learned policy
    members: int = 0  # models that a planner plans in
    errors: int = 0  # hours of errors that its draws come from
    profile: str = "cp"  # the pump of its twin
    history: int = 1  # hours of a state that it reads

    @property
    def policy(self) -> Policy:
        """A policy of the right shapes and any content."""
        inner = self._planner() if self.planner else self._learned()
        return Constrained(inner, self.clinical) if self.constrained else inner

    def _learned(self) -> LearnedPolicy:
        scaler = blank_scaler(self.present, self.columns)
        sizes = (feature_count(scaler, self.steps), *self.widths, len(LEVELS))
        return LearnedPolicy(scaler, make_network(sizes, key=jr.key(0)))

    def _planner(self) -> Planner:
        scaler = blank_scaler(self.present, self.columns)
        coordinates = blank_coordinates(self.present, self.columns)
        sizes = RidgeConfig(members=self.members, errors=self.errors, history=self.history)
        ridge = make_ridge(self.steps, len(self.present), sizes, key=jr.key(0))
        carry = CarryForward(load_profile(self.profile))
        twin = Twin(scaler, coordinates, ridge, carry, RIDGE_BASE, self.steps, self.history)
        return Planner(twin, jnp.asarray(0), config=PlannerConfig(**self.planner))


def save_policy(path: Path, policy: Policy, method: str, *, seed: int | None = None) -> None:
    """Save a learned policy, constrained or not."""
    about = describe_policy(policy, method)
    assert isinstance(policy, eqx.Module)
    save_module(path, policy, config=about, kind=POLICY, seed=seed)


def describe_policy(policy: Policy, method: str) -> SavedPolicy:
    """What must be known to rebuild a learned policy or a planner; any other is refused."""
    inner = policy.policy if isinstance(policy, Constrained) else policy
    if isinstance(inner, Planner):
        return _describe_planner(inner, policy, method)
    if not isinstance(policy, eqx.Module) or not isinstance(inner, LearnedPolicy):
        raise TypeError("expected a learned policy or a planner, got one of another kind.")
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


def _describe_planner(planner: Planner, policy: Policy, method: str) -> SavedPolicy:
    """A planner without guards in a ridge twin; what it plans in is saved with it."""
    twin = planner.dynamics
    if not isinstance(twin, Twin) or not isinstance(twin.network, Ridge):
        raise TypeError(
            "expected a planner in a ridge twin, got one in another model. Save the "
            "model, and make the planner anew from it."
        )
    if planner.penalty is not None or planner.clinicians is not None:
        raise TypeError("expected a planner without a guardian or clinicians, got one with them.")
    return SavedPolicy(
        method=method,
        widths=(),
        present=twin.scaler.present,
        steps=twin.steps,
        constrained=isinstance(policy, Constrained),
        clinical=policy.config if isinstance(policy, Constrained) else PAPER,
        columns=twin.scaler.columns,
        planner=asdict(planner.config),
        members=twin.network.members,
        errors=len(twin.network.errors),
        profile=twin.carry.profile.name,
        history=twin.history,
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
