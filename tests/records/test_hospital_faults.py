"""Seeded faults in MIMIC-IV and CLIF tables are found or refused; clean tables are not accused.

`STEPDOWN_FULL=1 .venv/bin/python -m pytest -s tests/records/test_hospital_faults.py` plants 2,000
of each.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import jax.random as jr
import pytest

from stepdown.patients.charting import chart_cohort
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.records.charted import TOO_SHORT, ChartedConfig, make_charted
from stepdown.records.charted_tables import clif_2, clif_3, mimic_iv, to_csv_gz
from stepdown.records.clif import read_clif
from stepdown.records.mimic import read_mimic
from stepdown.records.pieces import unwatched
from stepdown.records.readers import RecordingError
from tests.records import clif_faults, hospital_faults

FULL = bool(os.environ.get("STEPDOWN_FULL"))
FAULTS = 2000 if FULL else 42
CLEAN = 300 if FULL else 6
PATIENTS = 24
# Their trace is in the flow of stays: the stay is left out, for a reason that says it.
IN_FLOW = ("support overlaps", "cuff for line", "category unknown")
CLIF = {"3.0": clif_3, "2.1": clif_2, "2.1, rates": lambda stays: clif_2(stays, rates=True)}


@pytest.fixture(scope="module")
def simulated():
    return simulate_cohort(CohortConfig(patients=PATIENTS, hours=8.0), key=jr.key(31))


def write(stays, folder: Path) -> None:
    """Charts as MIMIC-IV has them."""
    for name, table in mimic_iv(stays).items():
        file = folder / f"{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        to_csv_gz(table)(file)


def clif_tables(make, stays) -> clif_faults.Tables:
    return {name.removeprefix("clif_"): table for name, table in make(stays).items()}


def say(folder: Path, read=read_mimic) -> tuple:
    """All that an import says about a folder: its flow and findings, or why it refuses."""
    config = ChartedConfig()
    try:
        charts = read(folder, config, unwatched, folder / "work")
        made = make_charted(charts, config, folder)
    except RecordingError as error:
        return ("refused", str(error))
    return made.flow, made.findings


def tells(kind: str, said: tuple, usual: tuple) -> bool:
    """Whether a reader is told: by a refusal, by a finding, or by a reason to leave a stay out."""
    if said[0] == "refused" or said[1] != usual[1]:
        return True
    return kind in IN_FLOW and said[0] != usual[0]


def judge(results: list[tuple[str, bool]], unseen: dict) -> None:
    """At least 99 % of those that can be seen; the others are counted, and none is claimed."""
    planted = Counter(kind for kind, _ in results)
    missed = Counter(kind for kind, told in results if not told and kind not in unseen)
    visible = sum(count for kind, count in planted.items() if kind not in unseen)
    hidden = sum(not told for kind, told in results if kind in unseen)
    sys.stdout.write(f"{visible} visible faults, {missed.total()} missed: {dict(missed)}\n")
    sys.stdout.write(f"{len(results) - visible} others, {hidden} of them not seen\n")
    assert missed.total() <= 0.01 * visible, missed
    assert hidden > 0  # what cannot be seen exists, and is not counted as found


def test_planted_faults_are_found_or_refused(simulated, tmp_path):
    """In MIMIC-IV tables."""
    stays = chart_cohort(*simulated, key=jr.key(32))
    write(stays, tmp_path / "clean")
    tables, usual = hospital_faults.read_tables(tmp_path / "clean"), say(tmp_path / "clean")
    plain = [str(30_000_001 + i) for i, stay in enumerate(stays) if stay.kind == "plain"]
    unseen = hospital_faults.UNSEEN
    kinds, results = [*hospital_faults.SEEN, *hospital_faults.FILES, *unseen], []
    for seed in range(FAULTS):
        kind, folder = kinds[seed % len(kinds)], tmp_path / f"fault-{seed}"
        stay = plain[seed // len(kinds) % len(plain)]
        hospital_faults.plant(kind, tables, folder, stay, seed)
        said = say(folder)
        results.append((kind, tells(kind, said, usual)))
        assert said[0] != "refused" or str(folder) in said[1]  # names its table
    judge(results, unseen)


def test_planted_faults_in_clif_are_found_or_refused(simulated, tmp_path):
    """In turn in version 3.0 and in both variants of 2.1."""
    stays = chart_cohort(*simulated, key=jr.key(32))
    plain = [str(20_000_001 + i) for i, stay in enumerate(stays) if stay.kind == "plain"]
    versions = [(clif_tables(make, stays), name) for name, make in CLIF.items()]
    usual = {}
    for tables, name in versions:
        clif_faults.write_tables(tables, tmp_path / name)
        usual[name] = say(tmp_path / name, read_clif)
    unseen = clif_faults.UNSEEN
    kinds, results = [*clif_faults.SEEN, *clif_faults.FILES, *unseen], []
    for seed in range(FAULTS):
        turn, place = divmod(seed, len(kinds))
        kind, folder = kinds[place], tmp_path / f"fault-{seed}"
        first = 0 if kind in clif_faults.ONLY_3 else (turn + place) % 3
        two = (plain[turn % len(plain)], plain[(turn + 1) % len(plain)])
        tables, name = versions[first]
        clif_faults.plant(kind, tables, folder, two, seed)
        said = say(folder, read_clif)
        results.append((kind, tells(kind, said, usual[name])))
        assert said[0] != "refused" or str(folder) in said[1]
    judge(results, unseen)


@pytest.mark.parametrize("name", ["mimic-iv", *CLIF])
def test_clean_tables_are_not_accused(name, simulated, tmp_path):
    """At most 1 % false alarms: nothing odd is said about charts without a fault.

    A stay whose entries were stored too late to leave two hours in a row is rightly left out.
    """
    alarms, folders = 0, CLEAN if FULL or name == "mimic-iv" else CLEAN // 3
    for seed in range(folders):
        stays = chart_cohort(*simulated, key=jr.key(1000 + seed))
        folder = tmp_path / f"clean-{seed}"
        if name == "mimic-iv":
            write(stays, folder)
            flow, findings = say(folder)
        else:
            clif_faults.write_tables(clif_tables(CLIF[name], stays), folder)
            flow, findings = say(folder, read_clif)
        used = dict(flow).get("taken", 0) + dict(flow).get(f"left out: {TOO_SHORT}", 0)
        alarms += findings != () or used != sum(stay.kind == "plain" for stay in stays)
    sys.stdout.write(f"{alarms} false alarms in {folders} clean folders\n")
    assert alarms <= 0.01 * folders
