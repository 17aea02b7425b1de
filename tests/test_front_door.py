"""The names of `import stepdown as sd`: each with an example that runs."""

import contextlib
import doctest
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.random as jr
import pytest

import stepdown as sd

NAMES = re.findall(r"`(\w+)`", sd.__doc__ or "")  # in the order of the page
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, str]:
    """The examples run one after another; each goes on where the one before it ended."""
    known: dict[str, Any] = {"sd": sd, "jr": jr}
    runner, parser, found = doctest.DocTestRunner(), doctest.DocTestParser(), {}
    with contextlib.chdir(tmp_path_factory.mktemp("examples")):
        for name in NAMES:
            text = getattr(sd, name).__doc__ or ""
            example = parser.get_doctest(text, known, name, None, None)
            assert example.examples, f"{name}: expected an example, got none"
            complaints: list[str] = []
            runner.run(example, out=complaints.append, clear_globs=False)
            found[name] = "".join(complaints)
            known.update(example.globs)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_name_uses_it_and_runs(name, told):
    assert told[name] == ""
    assert f"sd.{name}" in (getattr(sd, name).__doc__ or "")


def test_the_page_fits_and_lists_every_name_for_readers_and_type_checkers():
    assert len(NAMES) <= 25
    assert sorted(NAMES) == [name for name in dir(sd) if name != "__version__"]
    source = (ROOT / "stepdown/__init__.py").read_text("utf-8")
    assert set(re.findall(r"import (\w+) as \1", source)) == set(NAMES)


def test_a_name_that_is_not_there_is_said_so():
    with pytest.raises(AttributeError, match="no attribute 'fit_twins'"):
        _ = sd.fit_twins


def test_the_import_loads_nothing_heavy():
    code = "import stepdown, sys; print(sorted({'jax', 'numpy', 'polars'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
