"""The commands of a document work, one after the other, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


SAID = {
    "import.md": ("2 stays, 48.0 hours.", "('C-01', 'C-02') (2, 144, 12)"),
    "real-data.md": ("26 stays, 520 hours.\nstays in the tables: 40\n", "taken: 26\n"),
}


@pytest.mark.parametrize("page", SAID)
def test_the_commands_of_a_page_work(page, tmp_path):
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text("utf-8"), re.S)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-euc", "\n".join(blocks)],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for words in SAID[page]:
        assert words in run.stdout


def test_the_readme_runs_and_blind_weaning_loses(capsys):
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    exec(compile(block, "README.md", "exec"), {})  # the reader's own words, in a fresh namespace
    mean, low, high = (float(x) for x in capsys.readouterr().out.strip("()\n ").split(","))
    assert low < mean < high
    assert mean < 0


def test_tests_and_benchmarks_that_documents_name_exist():
    root = DOCS.parent
    pages = {path: path.read_text("utf-8") for path in (*DOCS.glob("*.md"), root / "README.md")}
    named = {name for page in pages.values() for name in re.findall(r"`(test_\w+)`", page)}
    known = {
        name
        for path in (root / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
    }
    assert len(named) > 200
    assert named - known == set()
    asked = {name for page in pages.values() for name in re.findall(r"-m (benchmarks[\w.]+)", page)}
    assert len(asked) > 15
    for name in asked:
        assert (root / name.replace(".", "/")).with_suffix(".py").is_file(), name
    scripts = {
        name
        for page in pages.values()
        for name in re.findall(r"(?:tests|benchmarks)/[\w/]+\.py", page)
    }
    assert all((root / name).is_file() for name in scripts)
