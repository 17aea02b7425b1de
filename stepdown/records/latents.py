"""The truth behind a cohort as plain arrays, each under its path in the tree, and back."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.artifacts import ArtifactError
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, Latents, admit, world_of
from stepdown.patients.population import World

Leaf = jax.Array | np.ndarray | jax.ShapeDtypeStruct


def latents_to_arrays(latents: Latents) -> dict[str, np.ndarray]:
    """Every array of the truth by name; keys as their numbers."""
    names, leaves, _ = _named(latents)
    arrays = [jr.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]
    return {name: np.asarray(x, order="C") for name, x in zip(names, arrays, strict=True)}


def arrays_to_latents(saved: Mapping[str, np.ndarray], config: CohortConfig, where: str) -> Latents:
    """What `latents_to_arrays` gave, or an error that says `where` it was read from."""
    like = eqx.filter_eval_shape(_one_patient, world_of(config), jr.key(0))
    names, leaves, structure = _named(like)
    if odd := sorted(set(names) ^ set(saved)):
        raise ArtifactError(
            f"{where}: expected the latent state of this version, "
            f"{odd[0]} does not fit; simulate the cohort again."
        )
    found = [_leaf(saved[name], leaf) for name, leaf in zip(names, leaves, strict=True)]
    return jax.tree.unflatten(structure, found)


def _one_patient(world: World, key: PRNGKeyArray) -> Latents:
    """What latents are made of; only the structure is of interest."""
    patient = admit(world, key=key)
    return Latents(patient, patient.course, patient.memory, key[None], jnp.zeros(1, int))


def _leaf(saved: np.ndarray, like: Leaf) -> jax.Array:
    return jr.wrap_key_data(jnp.asarray(saved)) if _is_key(like) else jnp.asarray(saved)


def _is_key(leaf: Leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named(tree: Latents) -> tuple[list[str], list, Any]:
    flat, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in flat]
    return names, [leaf for _, leaf in flat], structure


def latents_of(latents: Latents, whole: Cohort, part: Cohort) -> Latents:
    """The truth behind some of a cohort's patients, such as the test patients."""
    number = {name: row for row, name in enumerate(whole.patient)}
    if unknown := [name for name in part.patient if name not in number]:
        raise ValueError(
            f"expected patients of the cohort, got {unknown[0]!r}, who is not in it. "
            "Split the cohort that the latents belong to."
        )
    rows = np.array([number[name] for name in part.patient])
    return jax.tree.map(lambda x: x[rows], latents)
