"""Pump types: a profile is all that a pump needs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stepdown
from stepdown.app.request import PUMPS, pump_of_table
from stepdown.patients.pump import profile_names


def test_every_profile_belongs_to_a_pump_type_with_all_its_levels():
    assert {PUMPS[pump_of_table(name)].table for name in profile_names()} == set(profile_names())
    assert {PUMPS[pump_of_table(name)].highest for name in profile_names()} == {9}
    with pytest.raises(ValueError, match="one of the pumps 2.5, cp, got 'other'"):
        pump_of_table("other")


ADDED = """
from stepdown.app.request import PUMPS, Channel, Request, pump_of_table, read_request
from stepdown.signals import NAMES
name = pump_of_table("added")
channels = {"speed": Channel("rpm", (41_000.0,) * 6)}
request = Request(name, 5, "2000-01-02T14:20:00+00:00", channels)
bed = read_request(request, 6, "added", NAMES, (1,)).bed
print(name, PUMPS[name].label, bed.highest, bed.speed_level)
"""


def test_a_pump_is_added_by_its_profile_alone(tmp_path):
    """The recipe of CONTRIBUTING.md, in a copy of the package."""
    package = tmp_path / "stepdown"
    shutil.copytree(Path(stepdown.__file__).parent, package)
    folder = package / "patients" / "profiles"
    table = json.loads((folder / "cp.json").read_text())
    table |= {"name": "added", "source": "made up for this test"}
    table["speed"] = [35_000 + 2000 * i for i in range(8)]
    (folder / "added.json").write_text(json.dumps(table))
    found = subprocess.run(
        [sys.executable, "-c", ADDED],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.stdout.split(), found.stderr) == (["added", "added", "9", "5"], "")
