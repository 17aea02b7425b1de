"""The wheel and the source archive are whole: they work where the repository is not."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from stepdown import __version__

ROOT = Path(__file__).parents[1]
RUN = """
import stepdown, sys
from pathlib import Path
from stepdown.__main__ import main
assert Path(stepdown.__file__).is_relative_to(sys.argv[1]), stepdown.__file__
assert main(["simulate", "--out", "cohort", "--patients", "3", "--hours", "6"]) == 0
assert main(["doctor", "cohort/cohort.parquet"]) in (0, 1)
assert main(["score", "cohort"]) == 0
"""


def build(source: Path, kind: str, out: Path) -> Path:
    words = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(out)]
    made = subprocess.run(words, cwd=source, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the unpacked source archive, as a package index would have it."""
    folder = tmp_path_factory.mktemp("release")
    archive = build(ROOT, "sdist", folder / "sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return build(source, "wheel", folder / "wheel")


def test_the_wheel_holds_every_file_of_the_package(wheel):
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "stepdown"]
    wanted = set(subprocess.check_output(listed, cwd=ROOT, text=True).split())
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("stepdown/")}
    assert held == wanted
    assert "stepdown/py.typed" in held
    assert any(name.startswith("stepdown/app/static/") for name in held)
    assert any(name.startswith("stepdown/patients/profiles/") for name in held)


def test_the_wheel_works_without_the_repository(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    words = [sys.executable, "-c", RUN, str(tmp_path / "site")]
    env = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    (tmp_path / "work").mkdir()
    ran = subprocess.run(words, cwd=tmp_path / "work", env=env, capture_output=True, text=True,
                         check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "work/cohort/latents.safetensors").is_file()


def test_the_wheel_says_who_it_is_and_what_each_extra_is_for(wheel):
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [x for x in packed.namelist() if x.endswith("METADATA")]
        about = metadata.PathDistribution(zipfile.Path(packed, name.removesuffix("METADATA")))
        assert about.version == __version__
        extras = set(about.metadata.get_all("Provides-Extra") or ())
        assert about.metadata.get_all("Project-URL")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert extras == set(settings["project"]["optional-dependencies"])
    page = (ROOT / "docs/install.md").read_text("utf-8")
    assert {x for x in extras if f"`{x}`" not in page} == set()


@pytest.mark.skipif("STEPDOWN_FULL" not in os.environ, reason="installs into a new environment")
def test_the_wheel_installs_alone(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "new"], check=True)
    python = tmp_path / "new/bin/python"
    pins = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *pins, wheel], check=True)
    told = subprocess.check_output([tmp_path / "new/bin/stepdown", "--version"], text=True)
    assert told == f"stepdown {__version__}\n"
    subprocess.run([python, "-c", RUN, str(tmp_path / "new")], cwd=tmp_path, check=True)
