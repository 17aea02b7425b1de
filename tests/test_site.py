"""The site builds without a warning, and its notebooks and Python blocks run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Strict: a broken link or anchor, or a name that is not there, is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


def test_the_site_has_every_page_and_every_name_of_the_front_door(site):
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    wanted = {path.stem for path in DOCS.glob("*.md")}
    assert wanted | {f"notebooks/{path.stem}" for path in NOTEBOOKS} <= pages
    import stepdown as sd

    api = (site / "api.html").read_text("utf-8")
    for name, home in sd._HOMES.items():
        assert f'id="stepdown.{home}.{name}"' in api, name
    assert "&gt;&gt;&gt; " in api or ">>> " in api  # examples are code


def test_the_site_loads_nothing_from_outside(site):
    page = (site / "index.html").read_text("utf-8")
    assert (
        re.findall(r'(?:src|href)="https?://(?!squidfunk|www\.mkdocs)[^"]+\.(?:js|css)', page) == []
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, capsys):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    known: dict = {}
    for cell in cells:
        assert cell.get("outputs", []) == []  # none are kept
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), known)
    assert capsys.readouterr().out.strip()


def test_there_are_four_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["choose", "cohort", "plan", "recordings"]


def test_the_policy_of_the_page_steps_calm_patients_down():
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "evaluate.md").read_text("utf-8"), re.S)
    known: dict = {}
    exec(compile(block, "evaluate.md", "exec"), known)
    hours = np.full((2, 6, 13), 80.0)
    hours[..., -1] = 6
    hours[1, 3, 0] = 65  # MAP, once
    assert known["steady"](hours).tolist() == [5, 6]


def test_every_word_that_we_coined_is_in_the_glossary():
    words = (DOCS / "glossary.md").read_text("utf-8")
    for word in ("room", "guarded", "look-ahead", "planner", "twin", "guardian", "undecided"):
        assert re.search(rf"^\| .*\b{word}\b.* \|", words, re.M), word


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120
