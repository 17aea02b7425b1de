"""`stepdown import`: a folder that everything reads, names hidden, wrong units refused."""

import numpy as np
import polars as pl

from stepdown.__main__ import main
from stepdown.records.files import read_cohort
from stepdown.signals import NAMES
from tests.records.recordings import import_words, mapping_file, value_table


def test_the_command_writes_what_read_cohort_reads(tmp_path, capsys):
    mapping_file(tmp_path)
    value_table().write_csv(tmp_path / "table.csv")
    assert main(import_words(tmp_path, tmp_path / "table.csv")) == 0
    assert "1 stays, 6.0 hours." in capsys.readouterr().out
    cohort = read_cohort(tmp_path / "out")
    assert cohort.role == "all"
    known = np.flatnonzero(np.isfinite(np.asarray(cohort.signals)).any(axis=(0, 1)))
    assert [NAMES[i] for i in known] == ["map", "hr", "pulsatility"]  # no tau, no flow, ...
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mapping.toml", "out", "table.csv"]


def test_a_secret_hides_the_names_of_patients(tmp_path):
    mapping_file(tmp_path)
    value_table("Erika Mustermann").write_csv(tmp_path / "table.csv")
    assert main(import_words(tmp_path, tmp_path / "table.csv")) == 65
    (tmp_path / "key").write_text("a long enough secret")
    words = import_words(tmp_path, tmp_path / "table.csv", "--secret", str(tmp_path / "key"))
    assert main(words) == 0
    assert len(read_cohort(tmp_path / "out").patient[0]) == 16
    for file in (tmp_path / "out").iterdir():
        assert b"Mustermann" not in file.read_bytes()


def test_numbers_that_contradict_the_declared_unit_are_refused(tmp_path, capsys):
    mapping_file(tmp_path)
    table = value_table().with_columns(pl.col("map") / 7.50062)
    table.write_csv(tmp_path / "table.csv")
    assert main(import_words(tmp_path, tmp_path / "table.csv")) == 65
    assert "convert the unit" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mapping.toml", "table.csv"]
