"""Recordings come in as they are: same signals, same order, nothing across a gap or a patient."""

import multiprocessing
import time

import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.console import extract_signals
from stepdown.patients.waveforms import simulate_waveforms
from stepdown.records.dialects import settle
from stepdown.records.importer import ImportConfig, import_cohort
from stepdown.records.mapping import parse_mapping
from stepdown.records.readers import RecordingError
from stepdown.records.stays import read_traces
from stepdown.signals import MAP
from tests.records.recordings import VALUES, WAVES, WFDB_WAVES, value_table, write_waveform

TOLERANCE = 1e-4  # relative; files hold float32 or the sensors' own digits
KIND = {".csv": WAVES, ".parquet": WAVES, ".h5": WAVES, ".hea": WFDB_WAVES}


@pytest.fixture(scope="module")
def wave():
    """Three hours of one simulated patient at 25 Hz."""
    config = CohortConfig(patients=2, hours=3.0)
    cohort, latents = simulate_cohort(config, key=jr.key(7))
    return simulate_waveforms(cohort, latents, world_of(config), 0, key=jr.key(1))


@pytest.fixture(scope="module")
def readings(wave):
    return extract_signals(wave.recording, world_of(CohortConfig()).profile)


@pytest.mark.parametrize("ending", KIND)
def test_a_stay_comes_back_from_every_format(ending, wave, readings, tmp_path):
    path = write_waveform(wave.recording, tmp_path / f"stay{ending}")
    cohort, *_ = import_cohort(path, parse_mapping(KIND[ending]))
    assert cohort.patient == ("stay",)
    assert np.asarray(cohort.seen).all()
    np.testing.assert_array_equal(cohort.level[0], wave.level)
    np.testing.assert_allclose(cohort.signals[0], readings.signals, rtol=TOLERANCE, atol=1e-3)


def write(path, mapping, table):
    table.write_csv(path / "table.csv")
    return path / "table.csv", parse_mapping(mapping)


def test_state_level_and_next_state_stay_aligned(tmp_path):
    """`map` counts samples and the level counts hours, so every cell names its own place."""
    level = 2 + np.arange(36) // 6
    table = value_table(level=level)
    cohort, log, _ = import_cohort(*write(tmp_path, VALUES, table))
    assert log == ()
    np.testing.assert_allclose(cohort.signals[0, :, MAP], 60 + np.arange(36) / 4)
    np.testing.assert_array_equal(cohort.level[0], level)


@pytest.mark.parametrize("minutes", [1 / 60, 0.5, 1.0, 5.0])
def test_blocks_are_means_of_ten_minutes(minutes, tmp_path):
    per_block = round(10 / minutes)
    rows = 12 * per_block
    table = value_table(rows=rows, minutes=minutes).with_columns(
        map=60 + 40 * pl.arange(0, rows) / rows
    )
    cohort, *_ = import_cohort(*write(tmp_path, VALUES, table))
    expected = table["map"].to_numpy().reshape(12, per_block).mean(axis=1)
    np.testing.assert_allclose(cohort.signals[0, :, MAP], expected, rtol=1e-6)


def test_a_gap_stays_a_gap(tmp_path):
    table = value_table(rows=40).filter(~pl.col("minute").is_between(150, 250))
    cohort, *_ = import_cohort(*write(tmp_path, VALUES, table))
    np.testing.assert_array_equal(np.flatnonzero(~np.asarray(cohort.seen[0])), np.arange(15, 26))
    assert np.isnan(np.asarray(cohort.signals)[0, 15:26]).all()


@pytest.mark.parametrize("shift", [-60.0, -10 - 1 / 60, 60.0 * 24 * 365 * 40])
def test_no_window_spans_a_jump_of_the_clock(shift, tmp_path):
    first, second = value_table(rows=18), value_table(rows=18, start=180 + shift)
    cohort, log, _ = import_cohort(*write(tmp_path, VALUES, pl.concat([first, second])))
    seen = np.asarray(cohort.seen[0])
    np.testing.assert_array_equal(seen, [True] * 18 + [False] * 6 + [True] * 18)
    assert [(row.what, row.count) for row in log] == [("jumps", 1)]


def test_repeated_stamps_are_never_averaged(tmp_path):
    table = value_table()
    same, other = table[5:6], table[9:10].with_columns(map=pl.lit(200.0))
    cohort, log, _ = import_cohort(
        *write(tmp_path, VALUES, pl.concat([table[:6], same, table[6:10], other, table[10:]]))
    )
    assert {(row.count, row.why.split()[0]) for row in log} >= {(1, "the"), (2, "other")}
    seen = np.asarray(cohort.seen[0])
    np.testing.assert_array_equal(np.flatnonzero(~seen), [9])
    np.testing.assert_allclose(cohort.signals[0, 5, MAP], 61.25)


def test_a_stopped_pump_ends_the_window(tmp_path):
    level = np.full(36, 6)
    level[17] = 1
    cohort, log, _ = import_cohort(*write(tmp_path, VALUES, value_table(level=level)))
    seen = np.asarray(cohort.seen[0])
    np.testing.assert_array_equal(np.flatnonzero(~seen), [17, 18, 19])


def test_hours_with_too_little_are_dropped_and_counted(tmp_path):
    """One missing sample of six is allowed; where two of six are missing, nothing is usable."""
    table = value_table(rows=30).with_row_index()
    hole = (pl.col("index") % 3 == 0) & (pl.col("index") >= 12)
    table = table.with_columns(
        map=pl.when(hole | (pl.col("index") == 3)).then(None).otherwise("map")
    )
    cohort, log, _ = import_cohort(*write(tmp_path, VALUES, table.drop("index")))
    seen = np.asarray(cohort.seen[0])
    np.testing.assert_array_equal(np.flatnonzero(seen), np.arange(15))
    assert log[-1].count == 15
    assert "1 of 6" in log[-1].why


def test_flat_lines_and_impossible_values_become_missing(tmp_path):
    table = value_table().with_row_index()
    table = table.with_columns(
        pulsatility=pl.when(pl.col("index") == 3).then(-5.0).otherwise("pulsatility"),
        map=pl.when(pl.col("index").is_between(20, 24)).then(70.0).otherwise("map"),
    ).drop("index")
    cohort, log, _ = import_cohort(*write(tmp_path, VALUES, table))
    assert {(row.what, row.count) for row in log} >= {
        ("values of pulsatility", 1),
        ("values of map", 5),
    }
    assert np.isnan(np.asarray(cohort.signals)[0, 20:25, MAP]).all()


def test_cells_with_spaces_around_them_are_read_as_the_doctor_reads_them(tmp_path):
    table = value_table(level=np.repeat([5, 7], 18))
    padded = table.with_columns(
        pl.format(" {} ", pl.col("map")).alias("map"), pl.format("P- {} ", "level").alias("level")
    )
    cohort, log, _ = import_cohort(*write(tmp_path, VALUES, padded))
    assert log == ()
    np.testing.assert_allclose(cohort.signals[0, :, MAP], table["map"])
    np.testing.assert_array_equal(cohort.level[0], table["level"])
    path = tmp_path / "table.csv"
    (trace,) = read_traces(path, settle(path, parse_mapping(VALUES)))
    assert trace.level is not None
    np.testing.assert_array_equal(trace.lines["map"].values, table["map"])
    np.testing.assert_array_equal(trace.level.values, table["level"])


def test_a_dash_says_that_nothing_was_measured_in_any_column(tmp_path):
    table = value_table().with_columns(pl.col("level", "map").cast(pl.String)).with_row_index()
    for name in ("level", "map"):
        dash = pl.when(pl.col("index") == 7).then(pl.lit("--")).otherwise(name)
        table = table.with_columns(dash.alias(name))
    _, log, _ = import_cohort(*write(tmp_path, VALUES, table.drop("index")))
    assert [row for row in log if row.what == "cells"] == []


def test_dates_of_no_zone_are_refused_in_words(tmp_path):
    dates = pl.from_epoch(pl.Series(1_714_557_600 + 600 * np.arange(36)))
    mapping = VALUES | {"time": {"column": "date", "unit": "ISO-8601"}}
    value_table().with_columns(date=dates).write_parquet(tmp_path / "naive.parquet")
    with pytest.raises(
        RecordingError, match="36 dates without a zone.* Say time.zone in the mapping"
    ):
        import_cohort(tmp_path / "naive.parquet", parse_mapping(mapping))
    mapping["time"] = mapping["time"] | {"zone": "Europe/Berlin"}
    cohort, *_ = import_cohort(tmp_path / "naive.parquet", parse_mapping(mapping))
    assert cohort.seen.sum() == 36


def test_a_recording_may_have_brackets_in_its_name(tmp_path):
    """As browsers name a second copy; polars would look for a pattern."""
    value_table().write_parquet(tmp_path / "stay [1].parquet")
    cohort, *_ = import_cohort(tmp_path / "stay [1].parquet", parse_mapping(VALUES))
    assert cohort.seen.sum() == 36


def test_patients_never_mix(tmp_path):
    tables = [value_table(name, level=level) for name, level in (("a", 3), ("b", 8))]
    mixed = pl.concat(tables).sort("minute", maintain_order=True)
    cohort, *_ = import_cohort(*write(tmp_path, VALUES, mixed))
    assert cohort.patient == ("a", "b")
    np.testing.assert_array_equal(np.unique(cohort.level[0]), [3])
    np.testing.assert_array_equal(np.unique(cohort.level[1]), [8])


def test_levels_come_from_the_speed_only_on_a_step(tmp_path):
    profile = np.asarray(world_of(CohortConfig()).profile.speed)
    speed = np.repeat(profile, 6) * np.tile([0.985, 1.0, 1.015], 16)
    speed[24:30] = 37900  # between two steps
    table = value_table(rows=48).with_columns(speed=pl.Series(speed / 1000))
    mapping = VALUES | {"level": {"from": "speed"}}
    mapping["signals"] = VALUES["signals"] | {"speed": {"column": "speed", "unit": "krpm"}}
    cohort, *_ = import_cohort(*write(tmp_path, mapping, table))
    expected = np.repeat(np.arange(2, 10), 6)
    expected[24:30] = 0
    np.testing.assert_array_equal(cohort.level[0], expected)


def test_workers_give_what_one_process_gives(tmp_path):
    for i in range(3):
        value_table(f"p{i}", level=3 + i).write_parquet(tmp_path / f"{i}.parquet")
    columns = parse_mapping(VALUES)
    one, *_ = import_cohort(tmp_path, columns)
    two, *_ = import_cohort(tmp_path, columns, ImportConfig(workers=2))
    assert one.patient == two.patient == ("p0", "p1", "p2")
    np.testing.assert_array_equal(one.signals, two.signals)


def test_an_import_goes_on_where_it_was_killed(tmp_path):
    """The second run finds the first stays finished: their files may even be unreadable to it."""
    stays = tmp_path / "stays"
    stays.mkdir()
    for i in range(40):
        table = value_table(f"p{i:02d}", rows=2000, minutes=1.0)
        table.with_columns(map=pl.col("map") % 61 + 50).write_csv(stays / f"{i:02d}.csv")
    work = tmp_path / "work"
    context = multiprocessing.get_context("spawn")
    child = context.Process(
        target=import_cohort, args=(stays, parse_mapping(VALUES)), kwargs={"work": work}
    )
    child.start()
    while len(list(work.glob("*.safetensors"))) < 3 and child.is_alive():
        time.sleep(0.01)
    child.kill()
    child.join()
    kept = {file: file.stat().st_mtime_ns for file in work.glob("*.safetensors")}
    assert len(kept) >= 3
    cohort, *_ = import_cohort(stays, parse_mapping(VALUES), work=work)
    assert len(cohort.patient) == 40
    assert len(list(work.glob("*.safetensors"))) == 40
    assert all(file.stat().st_mtime_ns == before for file, before in kept.items())


def test_a_patient_in_two_files_is_refused(tmp_path):
    for name in ("one", "two"):
        value_table("a").write_csv(tmp_path / f"{name}.csv")
    with pytest.raises(RecordingError, match="expected each patient in one file, got 'a' in two"):
        import_cohort(tmp_path, parse_mapping(VALUES))
