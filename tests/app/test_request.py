"""Requests: units exact where declared and never guessed; a profile is all that a pump needs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stepdown
from stepdown.app.gates import suspect_units
from stepdown.app.request import PUMPS, pump_of_table, unit_factor
from stepdown.patients.pump import profile_names
from stepdown.records.mapping import UNITS, can_be_told, units_of
from stepdown.signals import NAMES
from tests.app.bedsides import MIDDLE, SD


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


def test_declared_units_are_converted_exactly():
    """I4, by the definition of each unit."""
    known = {
        ("map", "kPa"): 1 / 0.133322387415,
        ("map", "cm[H2O]"): 98.0665 / 133.322387415,
        ("map", "mm[Hg]"): 1.0,
        ("current", "A"): 1000.0,
        ("tau", "s"): 1000.0,
        ("speed", "krpm"): 1000.0,
        ("speed", "/min"): 1.0,
        ("speed", "10*3/min"): 1000.0,
        ("flow", "mL/min"): 0.001,
        ("hr", "/min"): 1.0,
        ("lactate", "mmol/L"): 1.0,
        ("norepinephrine", "ug/kg/min"): 1.0,
    }
    for (signal, unit), wanted in known.items():
        assert unit_factor(signal, unit) == pytest.approx(wanted, rel=1e-9)
    wrong = (
        ("map", "mA"),
        ("hr", "rpm"),
        ("flow", "/min"),
        ("map", None),
        ("map", ""),
        ("lactate", "kPa"),
    )
    for signal, unit in wrong:
        assert unit_factor(signal, unit) is None


def test_undeclared_units_are_suspected_in_ten_thousand_hours():
    """I4: usual hours, one signal written in another unit; the doctor lists what can be told."""
    draw = np.random.default_rng(0)
    hours = (
        MIDDLE
        + 0.5 * SD * draw.normal(size=(10_000, 1, 12))
        + 0.02 * SD * draw.normal(size=(10_000, 6, 12))
    )
    hours[..., 8] = np.minimum(hours[..., 8], hours[..., 7] - 5.0)
    hours[..., 9] = hours[..., 7] - hours[..., 8]  # pulsatility is their difference
    assert not suspect_units(hours, NAMES).any()
    for index, signal in enumerate(NAMES):
        for unit in units_of(signal):
            if not can_be_told(signal, unit, units_of(signal)[0]) or unit == "cmH2O":
                continue
            factor = UNITS[unit][1]
            if factor == 1.0:
                continue
            wrong = hours.copy()
            wrong[..., index] /= factor
            assert suspect_units(wrong, NAMES)[:, index].all(), (signal, unit)
