"""Policies of several seeds in one folder: few files, whatever the number of seeds."""

from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax

from stepdown.artifacts import Content, load_config, load_module, save_module
from stepdown.experiment.jobs import saved
from stepdown.handover import Policy
from stepdown.policies.checkpoints import SavedPolicy, describe_policy
from stepdown.training import member, stack

POLICIES = "policies"


@dataclass(frozen=True)
class SavedPolicies:
    """What must be known to rebuild them."""

    each: SavedPolicy
    seeds: int


def save_policies(policies: Policy, method: str) -> dict[str, Content]:
    """Files of policies whose leaves lead with the seeds."""
    seeds = len(jax.tree.leaves(policies)[0])
    about = SavedPolicies(describe_policy(member(policies, 0), method), seeds)
    assert isinstance(policies, eqx.Module)
    return saved(lambda path: save_module(path, policies, config=about, kind=POLICIES), POLICIES)


def read_policies(folder: Path) -> Policy:
    """The policies of a finished job; leaves lead with the seeds."""
    path = folder / POLICIES
    about = load_config(path, SavedPolicies, kind=POLICIES)
    like = eqx.filter_eval_shape(lambda: stack([about.each.policy] * about.seeds))
    return load_module(path, like, kind=POLICIES)
