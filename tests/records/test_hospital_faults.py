"""Seeded faults in MIMIC-IV tables are found or refused; clean tables are not accused.

`STEPDOWN_FULL=1 .venv/bin/python -m pytest tests/records/test_hospital_faults.py` plants 2,000.
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
from stepdown.records.charted_tables import mimic_iv, to_csv_gz
from stepdown.records.mimic import read_mimic
from stepdown.records.pieces import unwatched
from stepdown.records.readers import RecordingError
from tests.records.hospital_faults import FILES, SEEN, UNSEEN, plant, read_tables

FAULTS = 2000 if os.environ.get("STEPDOWN_FULL") else 76
CLEAN = 300 if os.environ.get("STEPDOWN_FULL") else 12
PATIENTS = 24


@pytest.fixture(scope="module")
def simulated():
    return simulate_cohort(CohortConfig(patients=PATIENTS, hours=8.0), key=jr.key(31))


def write(stays, folder: Path) -> None:
    """Charts as MIMIC-IV has them."""
    (folder / "icu").mkdir(parents=True)
    for name, table in mimic_iv(stays).items():
        to_csv_gz(table)(folder / f"{name}.csv.gz")


def say(folder: Path) -> tuple:
    """All that an import says about a folder: its flow and findings, or why it refuses."""
    config = ChartedConfig()
    try:
        made = make_charted(read_mimic(folder, config, unwatched, folder / "work"), config, folder)
    except RecordingError as error:
        return ("refused", str(error))
    return made.flow, made.findings


def test_planted_faults_are_found_or_refused(simulated, tmp_path):
    """At least 99 % of those that can be seen; the others are counted, and none is claimed."""
    stays = chart_cohort(*simulated, key=jr.key(32))
    write(stays, tmp_path / "clean")
    tables, usual = read_tables(tmp_path / "clean"), say(tmp_path / "clean")
    plain = [str(30_000_001 + i) for i, stay in enumerate(stays) if stay.kind == "plain"]
    kinds = [*SEEN, *FILES, *UNSEEN]
    planted, missed, unseen = Counter(), Counter(), 0
    for seed in range(FAULTS):
        kind, folder = kinds[seed % len(kinds)], tmp_path / f"fault-{seed}"
        plant(kind, tables, folder, plain[seed // len(kinds) % len(plain)], seed)
        said = say(folder)
        planted[kind] += 1
        if kind in UNSEEN:
            unseen += said == usual
        else:
            missed[kind] += said == usual
            assert said[0] != "refused" or str(folder) in said[1]  # names its table
    seen = {kind: (planted[kind], missed[kind]) for kind in (*SEEN, *FILES)}
    visible = sum(planted[kind] for kind in (*SEEN, *FILES))
    assert sum(missed.values()) <= 0.01 * visible, seen
    sys.stdout.write(f"{visible} visible faults, {sum(missed.values())} missed: {seen}\n")
    sys.stdout.write(f"{sum(planted[k] for k in UNSEEN)} others, {unseen} of them not seen\n")
    assert unseen > 0  # what cannot be seen exists, and is not counted as found


def test_clean_tables_are_not_accused(simulated, tmp_path):
    """At most 1 % false alarms: nothing odd is said about charts without a fault.

    A stay whose entries were stored too late to leave two hours in a row is rightly left out.
    """
    alarms = 0
    for seed in range(CLEAN):
        stays = chart_cohort(*simulated, key=jr.key(1000 + seed))
        folder = tmp_path / f"clean-{seed}"
        write(stays, folder)
        flow, findings = say(folder)
        used = dict(flow).get("taken", 0) + dict(flow).get(f"left out: {TOO_SHORT}", 0)
        alarms += findings != () or used != sum(stay.kind == "plain" for stay in stays)
    sys.stdout.write(f"{alarms} false alarms in {CLEAN} clean folders\n")
    assert alarms <= 0.01 * CLEAN
