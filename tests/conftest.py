"""Strict settings for every test: no silent broadcasting, checked shapes, fixed examples."""

import os
from pathlib import Path

import jax
from hypothesis import settings
from jaxtyping import install_import_hook

# Before the first import of the package, so that every shape in a signature is checked.
install_import_hook("stepdown", "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # plain `pytest`; `make test` sets it
    jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".cache/jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

settings.register_profile("stepdown", deadline=None, derandomize=True)
settings.load_profile("stepdown")
