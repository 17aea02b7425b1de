"""`stepdown compare`: a page, its numbers and a summary; what cannot be compared is refused."""

import csv
import json
import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from stepdown.__main__ import main
from stepdown.artifacts import check_folder
from stepdown.records.files import write_cohort
from stepdown.signals import TAU
from tests.evaluation.invented import invented

PAGE, NUMBERS, TABLE = "index.html", "compare.json", "differences.csv"


def compare(*words) -> int:
    """Persistence takes the place of the twin: nothing is trained, and nothing is saved by it."""
    return main(["compare", *map(str, words), "--model", "persistence"])


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    """Thirty patients whose LVEDP moves twice as much, and as many others; tau in one alone."""
    folder = tmp_path_factory.mktemp("cohorts")
    mine = invented(30, 16, 1, moves=2.0)
    signals = np.array(mine.signals)
    signals[..., TAU] = 40.0 + np.random.default_rng(0).normal(size=signals.shape[:2])
    write_cohort(folder / "mine.parquet", replace(mine, signals=jnp.asarray(signals)))
    write_cohort(folder / "others.parquet", invented(30, 16, 2))
    write_cohort(folder / "few.parquet", invented(4, 16, 3))
    return folder


@pytest.fixture(scope="module")
def made(cohorts):
    out = cohorts / "page"
    assert (
        compare(cohorts / "mine.parquet", "--with", cohorts / "others.parquet", "--out", out) == 0
    )
    return out


def test_the_folder_is_whole_and_verified(made):
    assert set(check_folder(made, "comparison")["files"]) == {PAGE, NUMBERS, TABLE}


def test_the_planted_difference_leads_the_numbers_and_the_verdict(made):
    found = json.loads((made / NUMBERS).read_bytes())
    assert found["differences"][0]["what"] == "lvedp"
    with (made / TABLE).open() as file:
        first = next(csv.DictReader(file))
    assert (first["what"], first["material"]) == ("lvedp", "True")
    told = {one["view"]: one for one in found["classifier"]}
    assert told["movement"]["low"] > 0.8
    assert told["levels"]["low"] < 0.7
    auc = f"{told['movement']['auc']:.2f}"
    assert f"with AUC {auc} (0.5 is a coin), mostly by the movement of LV end-d" in found["verdict"]
    assert "is no better than persistence on mine.parquet" in found["verdict"]
    assert [x["gains"]["mae_z"] for x in found["twin"]] == [[0.0, 0.0, 0.0]] * 3
    assert [x["fitted_on"] for x in found["guardian"]] == ["theirs", "ours"]
    assert [x["fitted_on"] for x in found["twin"]] == ["theirs", "theirs", "ours"]
    assert found["ours"]["only"] == ["tau"]
    assert any("Only in mine.parquet: LV relaxation constant" in x for x in found["next"])


def test_the_page_says_the_same_and_needs_nothing_from_outside(made):
    page = (made / PAGE).read_text("utf-8")
    found = json.loads((made / NUMBERS).read_bytes())
    assert found["verdict"] in page
    assert page.index(found["verdict"]) < page.index("<img") < page.index("What differs most")
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    for one in found["twin"]:
        assert f"{one['errors']['mae_z'][0]:.3f}" in page
    for one in found["guardian"]:
        assert f"{one['abroad']['mean']:.1f} %" in page
    for patient in ("1-0", "2-0"):  # numbers of cohorts, nobody's name
        assert f">{patient}<" not in page


def test_few_patients_beside_the_simulator(cohorts, capsys):
    write_cohort(cohorts / "six.parquet", invented(6, 8, 4, shift=40.0))
    assert compare(cohorts / "six.parquet", "--out", cohorts / "simulated") == 0
    printed = capsys.readouterr()
    assert re.match(r"comparing 6 with 60 patients: roughly \d+ min on two cores\n", printed.err)
    assert "Most different, of " in printed.out
    assert "Classifier by levels: AUC " in printed.out
    assert "With 30 patients or more a twin of their own is fitted" in printed.out
    listed = re.findall(r"^  [^-].* against ", printed.out, re.M)
    assert len(listed) == 5
    found = json.loads((cohorts / "simulated" / NUMBERS).read_bytes())
    assert found["theirs"]["words"].startswith("simulated, guarded, version 2, seed ")
    assert found["theirs"]["patients"] == 60
    assert found["used"] == ["map", "lvedp", "hr", "pulsatility"]
    assert [x["fitted_on"] for x in found["twin"]] == ["theirs", "theirs"]


def test_what_cannot_be_compared_is_refused_before_any_work(cohorts, made, capsys):
    mine, few, out = cohorts / "mine.parquet", cohorts / "few.parquet", cohorts / "new"
    assert compare(mine, "--out", made) == 2
    assert "expected a new or empty folder, got" in capsys.readouterr().err
    assert compare(few, "--out", out) == 2
    assert "few.parquet: expected at least 5 patients, got 4" in capsys.readouterr().err
    assert compare(mine, "--with", few, "--out", out) == 2
    assert "expected at least 5 patients" in capsys.readouterr().err
    assert compare(cohorts / "none", "--out", out) == 2
    assert "expected a cohort folder or a Parquet file, found none" in capsys.readouterr().err
    assert not out.exists()
