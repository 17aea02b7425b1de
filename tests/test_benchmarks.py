"""Benchmarks are measured by hand, so that here only their words and names are checked."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
}
OURS = ("benchmarks", "stepdown", "tests")


def test_all_benchmarks_are_looked_at():
    folders = {name.split(".")[1] for name in FILES if name.count(".") == 2}
    assert folders == {"documents", "speed", "studies"}


@pytest.mark.parametrize("name", FILES)
def test_a_benchmark_uses_only_names_that_exist(name):
    """Those that a function imports, too; attributes are checked by basedpyright."""
    importlib.import_module(name)
    tree = ast.parse(FILES[name].read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    asked = {
        (node.module, one.name)
        for node in imports
        for one in node.names
        if node.module and node.module.split(".")[0] in OURS
    }
    gone = {pair for pair in asked if not hasattr(importlib.import_module(pair[0]), pair[1])}
    assert gone == set()


@pytest.mark.parametrize("name", FILES)
def test_a_benchmark_says_what_it_does_and_how_it_is_run(name):
    text = FILES[name].read_text("utf-8")
    words = ast.get_docstring(ast.parse(text)) or ""
    assert words.partition("\n")[0].endswith((".", "?", ":")), words
    if 'if __name__ == "__main__":' in text:
        assert f"python -m {name}" in " ".join(words.split())
