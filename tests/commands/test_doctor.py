"""`stepdown doctor` as a person or a machine uses it: words, JSON, page, proposal, exit codes."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stepdown.__main__ import main
from stepdown.records.files import COLUMNS, WAVEFORM, to_parquet
from stepdown.records.findings import CODES, SEVERITIES, table_of_codes
from stepdown.records.mapping import parse_mapping
from stepdown.records.proposal import propose_mapping

COUNT = 36  # ten-minute samples


def values() -> pl.DataFrame:
    """Six hours of one patient in our units and columns."""
    noise = np.random.default_rng(0).normal(size=(COUNT, 12))
    center = (75, 39_000, 550, 2.8, 30, 8, 85, 95, 62, 33, 45, 0.7)
    spread = (4, 10, 8, 0.05, 3, 4, 3, 4, 4, 0, 3, 0.03)
    columns = np.asarray(center) + np.asarray(spread) * noise
    columns[:, 9] = columns[:, 7] - columns[:, 8]
    data = {"patient": ["a"] * COUNT, "minute": 10.0 * np.arange(COUNT)}
    data |= {name: columns[:, i] for i, name in enumerate(list(COLUMNS)[2:-1])}
    return pl.DataFrame(data | {"level": [6] * COUNT}, schema_overrides=COLUMNS)


def foreign() -> pl.DataFrame:
    """The same in the words and units of somebody else."""
    stamps = [f"2024-05-01T{i // 6:02d}:{10 * (i % 6):02d}:00Z" for i in range(COUNT)]
    return values().select(
        pl.Series("Timestamp", stamps),
        SubjectID="patient",
        **{"ABP mean [kPa]": pl.col("map") * 0.133322387415},
        PumpSpeed=(pl.col("speed") / 10).round(),
        MotorCurrent=pl.col("current") / 1000,
        **{"Flow": pl.col("flow") * 1000, "HR (bpm)": pl.col("hr").round(1)},
        ABPsys="sbp",
        ABPdia="dbp",
        **{"P-level": "P-" + pl.col("level").cast(pl.String), "nurse": pl.lit("x")},
    )


@pytest.fixture
def clean(tmp_path) -> Path:
    to_parquet(values())(tmp_path / "clean.parquet")
    return tmp_path / "clean.parquet"


@pytest.fixture
def strange(tmp_path) -> Path:
    foreign().write_csv(tmp_path / "strange.csv")
    return tmp_path / "strange.csv"


def test_a_clean_file_of_ours_needs_no_mapping(clean, capsys):
    assert main(["doctor", str(clean)]) == 0
    printed = capsys.readouterr().out
    assert "One sample every 10 min." in printed
    assert "6 of 6 whole hours can be used." in printed
    assert "36 of 36 recorded blocks of ten minutes would be imported, 5 of 5 decisions." in printed
    assert printed.endswith("Findings: 0 action, 0 check, 3 note.\n")


def test_waveforms_of_ours_need_no_mapping(tmp_path, capsys):
    second = np.arange(25 * 60) / 25
    pressure = 70 + 15 * np.sin(8 * second)
    channels = {"second": second, "placement": pressure, "speed": np.full(len(second), 39_000.0)}
    frame = pl.DataFrame(channels | {"current": 500 + pressure}, schema_overrides=WAVEFORM)
    to_parquet(frame)(tmp_path / "w.parquet")
    assert main(["doctor", str(tmp_path / "w.parquet")]) == 1
    printed = capsys.readouterr().out
    assert "25.00 times a second" in printed
    assert "D16 check  Usable hours\n    w: 0 of 0 whole hours can be used." in printed
    assert "D18 action Import\n    Refused: " in printed


def test_findings_for_machines_have_a_stable_shape(clean, capsys):
    frame = pl.read_parquet(clean).with_columns(map=pl.col("map") * 0.1333)
    to_parquet(frame.with_columns(pl.col("map").cast(pl.Float32)))(clean)
    assert main(["doctor", str(clean), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["file"], told["proposed_mapping"]) == (1, "clean.parquet", None)
    first = told["findings"][0]
    assert list(first) == [
        "code", "title", "severity", "patient", "signal", "first", "last", "count", "stretches",
        "likely_units", "sentence", "remedy",
    ]  # fmt: skip
    assert (first["code"], first["severity"], first["signal"]) == ("D08", "action", "map")
    assert first["likely_units"] == ["kPa"]
    assert (first["first"], first["last"]) == (0.0, 600.0 * (COUNT - 1))


def test_a_proposal_names_the_traps_and_is_only_a_proposal(strange, capsys):
    assert main(["doctor", str(strange)]) == 1
    printed = capsys.readouterr().out
    signals = ("map", "speed", "current", "flow", "hr", "sbp", "dbp")
    for name in signals:
        assert (
            f"D08 action Suspicious unit: {name}\n    strange.csv: No unit is declared" in printed
        )
    toml = re.search(r"# A proposal.*?\n\n(?=File read as)", printed, re.DOTALL)
    assert toml is not None
    for line in toml[0].splitlines():
        assert "unit" not in line.split("#")[0] or "PROPOSAL" in line
    columns = parse_mapping(tomllib.loads(toml[0]))
    units = {name: theirs.unit for name, theirs in columns.signals}
    expected = ("kPa", "10 rpm", "A", "mL/min", "/min", "mmHg", "mmHg")
    assert units == dict(zip(signals, expected, strict=True))
    assert (columns.patient, columns.level) == ("SubjectID", "P-level")
    assert '# not recognized: "nurse"' in toml[0]


def test_a_confirmed_proposal_makes_the_file_clean(strange, tmp_path, capsys):
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(propose_mapping(foreign()).toml)
    assert main(["doctor", str(strange), "--columns", str(mapping)]) == 0
    printed = capsys.readouterr().out
    assert "0 action, 0 check" in printed
    assert "proposed mapping" not in printed


def test_a_column_that_the_mapping_names_and_the_file_lacks_is_told(strange, tmp_path, capsys):
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(propose_mapping(foreign()).toml.replace("HR (bpm)", "Heart"))
    assert main(["doctor", str(strange), "--columns", str(mapping)]) == 1
    assert "D11 action Missing signal: hr\n    a: No column holds it." in capsys.readouterr().out


def test_columns_without_a_meaning_are_refused_with_a_mapping_to_complete(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("alpha,beta\n1,2\n3,4\n")
    assert main(["doctor", str(tmp_path / "x.csv")]) == 2
    printed = capsys.readouterr().err
    assert "expected columns that can be recognized" in printed
    assert '# not recognized: "alpha", "beta"' in printed


@pytest.mark.parametrize("name", ["nowhere.csv", "bad.parquet", "odd.txt"])
def test_what_cannot_be_read_ends_with_65(name, tmp_path, capsys):
    if name != "nowhere.csv":
        (tmp_path / name).write_bytes(b"\x00\x01 nothing")
    assert main(["doctor", str(tmp_path / name)]) == 65
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"stepdown: {tmp_path / name}: expected ")


def test_the_page_stands_alone_and_escapes_what_it_shows(tmp_path, capsys):
    frame = values().with_columns(patient=pl.lit("<script>alert(1)</script>"))
    frame = frame.with_row_index().filter(~pl.col("index").is_between(10, 20)).drop("index")
    to_parquet(frame)(tmp_path / "x.parquet")
    page = tmp_path / "page.html"
    assert main(["doctor", str(tmp_path / "x.parquet"), "--html", str(page)]) == 1
    text = page.read_text()
    assert "<script" not in text
    assert re.findall(r"(?:src|href)=\"(.{5})", text) == ["data:"]
    assert "1 gap, 1.83 h in all" in text
    assert "1 stay. Findings: 2 to act on before import, 2 to look at" in text
    printed = capsys.readouterr().out
    assert printed.count("D02 check") == 1
    assert "or let --secret make pseudonyms" in printed  # as the import would say


def test_a_page_in_a_missing_folder_is_refused(clean, tmp_path, capsys):
    assert main(["doctor", str(clean), "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "--html: expected a file in an existing folder" in capsys.readouterr().err


def test_the_document_holds_the_table_of_codes():
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert table_of_codes() in text
    assert list(CODES) == [f"D{i:02d}" for i in range(1, len(CODES) + 1)]
    for severity in SEVERITIES:
        assert f"`{severity}`" in text
