"""`stepdown import`: a folder that everything reads, names hidden, wrong units refused."""

import jax.random as jr
import numpy as np
import polars as pl

from stepdown.__main__ import main
from stepdown.problem.hours import make_transitions
from stepdown.records.files import read_cohort
from stepdown.records.split import split_patients
from stepdown.signals import NAMES
from tests.records.recordings import VALUES, import_words, mapping_file, value_table


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


def test_a_further_column_passes_from_the_file_to_the_hours(tmp_path, capsys):
    """Lactate is charted every two hours and stands still between; patient 3 begins at 3 mmol/L."""
    charted = {f"p{i}": i + np.repeat([0.0, 0.5, 0.25], 12) for i in range(1, 9)}
    tables = [
        value_table(name).with_columns(pl.Series("Lac [mg/dL]", 9.008 * values))
        for name, values in charted.items()
    ]
    pl.concat(tables).write_csv(tmp_path / "table.csv")
    lactate = {"column": "Lac [mg/dL]", "unit": "mg/dL"}
    mapping = mapping_file(tmp_path, VALUES | {"signals": VALUES["signals"] | {"lactate": lactate}})

    assert main(["doctor", str(tmp_path / "table.csv")]) == 1
    proposed = 'lactate = { column = "Lac [mg/dL]", unit = "mg/dL" }  # PROPOSAL: by its name'
    assert proposed in capsys.readouterr().out
    assert main(["doctor", str(tmp_path / "table.csv"), "--columns", str(mapping)]) == 0
    assert "lactate" not in capsys.readouterr().out  # nothing is wrong with it

    assert main(import_words(tmp_path, tmp_path / "table.csv")) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(
        "Missing signals: speed, current, flow, lvp, lvedp, sbp, dbp, tau, ese.\n"
    )
    assert "| `lactate` | mmol/L | yes | mg/dL |" in (tmp_path / "out/card.md").read_text()
    written = pl.read_parquet(tmp_path / "out/cohort.parquet")
    assert written.columns == ["patient", "minute", *NAMES, "lactate", "level"]
    assert main(["doctor", str(tmp_path / "out"), "--html", str(tmp_path / "page.html")]) == 0
    assert "Blood lactate" not in capsys.readouterr().out

    cohort = read_cohort(tmp_path / "out")
    assert cohort.columns == (*NAMES, "lactate")
    np.testing.assert_allclose(cohort.signals[..., -1], list(charted.values()), rtol=1e-6)
    for part in split_patients(cohort, key=jr.key(7)):
        assert part.columns == (*NAMES, "lactate")
        hours = make_transitions(part)
        assert hours.columns == (*NAMES, "lactate")
        assert hours.state.shape == (5 * len(part.patient), 6, len(NAMES) + 2)
        known = np.stack([charted[name].reshape(6, 6) for name in part.patient])
        for states, wanted in ((hours.state, known[:, :-1]), (hours.next_state, known[:, 1:])):
            np.testing.assert_allclose(states[..., -2], wanted.reshape(-1, 6), rtol=1e-6)


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
    assert "Declared in mmHg, the median would be 8.583 mmHg; 8.583 fits kPa." in (
        capsys.readouterr().err
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mapping.toml", "table.csv"]


def test_losses_are_told_first_and_with_both_counts(tmp_path, capsys):
    """Every third hour stands at 400 mmHg: a value that is no measurement.

    A sample of it may be missing at either end of the two hours between; at the front of them it
    cannot be carried forward, so only the first two hours of the stay are a decision.
    """
    odd = pl.arange(0, 72) // 6 % 3 == 2
    table = value_table(rows=72).with_columns(
        map=pl.when(odd).then(400.0).otherwise(60 + pl.arange(0, 72) % 7)
    )
    mapping = mapping_file(tmp_path)
    table.write_csv(tmp_path / "table.csv")
    assert main(import_words(tmp_path, tmp_path / "table.csv")) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "ATTENTION: 24 of 72 values of map (33 %) were left empty.\n"
        "ATTENTION: 1 of 11 decisions are left that the recorded hours could give.\n"
    )
    assert main(["doctor", str(tmp_path / "table.csv"), "--columns", str(mapping)]) == 0
    told = capsys.readouterr().out
    assert "55 of 72 recorded blocks of ten minutes would be imported, 1 of 11 decisions." in told
    assert "24 of 72 values of map were left empty." in told
    assert read_cohort(tmp_path / "out").seen.sum() == 55


def test_stays_that_need_action_are_refused_or_left_out(tmp_path, capsys):
    good, bad = value_table("a"), value_table("b").with_columns(pl.col("map") / 7.50062)
    pl.concat([good, bad]).write_csv(tmp_path / "table.csv")
    mapping = mapping_file(tmp_path)
    sentence = "Declared in mmHg, the median would be 8.583 mmHg; 8.583 fits kPa."
    assert main(import_words(tmp_path, tmp_path / "table.csv")) == 65
    refused = capsys.readouterr().err
    assert "got for b:" in refused
    assert sentence in refused
    assert main(["doctor", str(tmp_path / "table.csv"), "--columns", str(mapping)]) == 1
    assert sentence in capsys.readouterr().out
    assert main(import_words(tmp_path, tmp_path / "table.csv", "--leave-out")) == 0
    printed = capsys.readouterr().out
    assert "Left out: 1 stays in 1 stays: D08 suspicious unit needs action" in printed
    assert read_cohort(tmp_path / "out").patient == ("a",)


def test_doctor_and_import_place_the_doubled_hour_alike(tmp_path, capsys):
    """Six hours across the change of clocks in Berlin, as the wall shows them."""
    utc = pl.from_epoch(pl.Series(1_729_980_000 + 600 * np.arange(36))).dt.replace_time_zone("UTC")
    wall = utc.dt.convert_time_zone("Europe/Berlin").dt.to_string("%d.%m.%Y %H:%M")
    table = value_table().with_columns(minute=wall)
    table.write_csv(tmp_path / "table.csv", separator=";")
    time = {"column": "minute", "unit": "date", "zone": "Europe/Berlin"}
    mapping = mapping_file(tmp_path, VALUES | {"time": time})
    assert main(["doctor", str(tmp_path / "table.csv"), "--columns", str(mapping)]) == 0
    told = capsys.readouterr().out
    assert "36 of 36 recorded blocks" in told
    assert "D03" not in told
    assert main(import_words(tmp_path, tmp_path / "table.csv")) == 0
    confirmed = "utf-8, semicolon, decimal point, day.month.year, Europe/Berlin"
    assert f"File read as: {confirmed}.\n1 stays, 6.0 hours." in capsys.readouterr().out
    assert f"File read as: {confirmed}." in (tmp_path / "out/card.md").read_text()
    assert read_cohort(tmp_path / "out").seen.all()
