"""Strict settings for every test: no silent broadcasting, checked shapes, fixed examples."""

import ctypes
import gc
import os
import resource
from pathlib import Path

# Workers inherit this before they load NumPy. Other cores have tests of their own, and threads that
# wait for each other's cores double the time of small matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# Before the first import of the package, so that every shape in a signature is checked.
install_import_hook("stepdown", "beartype.beartype")

# Tests compile for longer than they compute. Compiled plainly they take half the time; what is
# asserted stays the same. `XLA_FLAGS= make test` compiles as users do. Commands that tests start
# inherit this; JAX reads it when the first program is compiled.
PLAINLY = (
    "--xla_backend_optimization_level=1",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",  # the other cores have tests of their own
)
os.environ.setdefault("XLA_FLAGS", " ".join(PLAINLY))

jax.config.update("jax_numpy_rank_promotion", "raise")
# Programs are kept between runs, the thousands of little ones too. Plain `pytest` needs it said;
# `make test` does so by these variables, which commands that tests start inherit.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    folder = os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".cache/jax")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

settings.register_profile("stepdown", deadline=None, derandomize=True)
settings.load_profile("stepdown")


MOST = 2.0  # GiB that a process may have held before its compiled programs are let go


def _held() -> float:
    """GiB of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**30


@pytest.fixture(autouse=True, scope="module")
def programs_let_go():
    """Compiled programs of a file are of little use to the next one, and many fill the memory."""
    yield
    if Path("/proc/self/statm").exists() and _held() > MOST:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


# Files that take a minute or more begin first, so that no core waits for one at the end.
LONGEST = (
    "test_pocket_run.py",
    "commands/test_train.py",
    "policies/test_contract.py",
    "experiment/test_cluster.py",
    "commands/test_twin.py",
    "evaluation/test_certificate.py",
    "twin/test_fit.py",
    "patients/test_cohort.py",
    "app/browser/test_looks.py",
    "app/browser/test_answers.py",
    "test_front_door.py",
    "test_documents.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, the others as they come."""

    def place(item: pytest.Item) -> int:
        known = [i for i, name in enumerate(LONGEST) if item.path.as_posix().endswith(name)]
        return known[0] if known else len(LONGEST)

    items.sort(key=place)
