"""`stepdown merge`: patients of several cohorts, each once and with their origin."""

import json

import numpy as np
import polars as pl

from stepdown.__main__ import main
from stepdown.problem.hours import make_transitions
from stepdown.records.files import read_cohort
from stepdown.signals import KNOWN, NAMES
from tests.records.recordings import VALUES, import_words, mapping_file, value_table


def imported(folder, name, patients, *, further=None, profile="cp"):
    """A cohort folder of these patients, each at a level of its own."""
    place = folder / f"made-{name}"
    place.mkdir()
    tables = [
        value_table(patient, rows=36, level=level).with_columns(pl.col("map") + level)
        for patient, level in patients.items()
    ]
    mapping = VALUES
    if further:
        more = (1.5 + pl.col("level") / 10).alias(further)
        tables = [table.with_columns(more) for table in tables]
        entry = {"column": further, "unit": KNOWN[further].unit}
        mapping = VALUES | {"signals": VALUES["signals"] | {further: entry}}
    pl.concat(tables).write_csv(place / "table.csv")
    mapping_file(place, mapping)
    words = import_words(place, place / "table.csv", "--profile", profile)
    assert main(words) == 0
    (place / "out").rename(folder / name)
    return folder / name


def merge(folder, *sources, more=()):
    return main(["merge", *map(str, sources), "--out", str(folder / "all"), *more])


def test_merged_patients_keep_their_hours(tmp_path, capsys):
    one = imported(tmp_path, "one", {"a": 3, "b": 4}, further="lactate")
    two = imported(tmp_path, "two", {"c": 7}, further="norepinephrine")
    capsys.readouterr()
    assert merge(tmp_path, one, two) == 0
    printed = capsys.readouterr().out
    assert "one: 2 patients.\ntwo: 1 patients.\nMerged: 3 patients, 15 decisions." in printed
    assert "lactate is empty in the patients of two." in printed
    assert "norepinephrine is empty in the patients of one." in printed
    cohort = read_cohort(tmp_path / "all")
    assert (cohort.patient, cohort.role) == (("a", "b", "c"), "all")
    assert cohort.columns == (*NAMES, "lactate", "norepinephrine")
    hours = make_transitions(cohort)
    apart = [make_transitions(read_cohort(source)) for source in (one, two)]
    for name in ("level", "reward", "unshaped", "last"):
        wanted = np.concatenate([np.asarray(getattr(part, name)) for part in apart])
        np.testing.assert_array_equal(getattr(hours, name), wanted)
    state, size = np.asarray(hours.state), len(NAMES)
    nothing = np.full((15, 6, 1), np.nan, np.float32)
    first, second = (np.asarray(part.state) for part in apart)
    wanted = np.concatenate([first[..., :-1], nothing[:10], first[..., -1:]], axis=2)
    np.testing.assert_array_equal(state[:10], wanted)
    wanted = np.concatenate([second[..., :size], nothing[:5], second[..., size:]], axis=2)
    np.testing.assert_array_equal(state[10:], wanted)
    manifest = json.loads((tmp_path / "all/manifest.json").read_bytes())
    assert list(manifest["about"]["merged"]) == ["one", "two"]
    assert manifest["about"]["merged"]["one"]["config"]["columns"]["kind"] == "values"
    assert (
        "| two | 1 | map, hr, pulsatility, norepinephrine |"
        in (tmp_path / "all/card.md").read_text()
    )
    assert main(["doctor", str(tmp_path / "all")]) == 0  # a cohort like any other


def test_two_patients_of_one_name_are_told_apart_only_when_asked(tmp_path, capsys):
    one, two = imported(tmp_path, "one", {"a": 3}), imported(tmp_path, "two", {"a": 5})
    assert merge(tmp_path, one, two) == 2
    assert "expected each patient in one cohort, got 'a' in one and two" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()
    assert merge(tmp_path, one, two, more=["--prefix"]) == 0
    assert read_cohort(tmp_path / "all").patient == ("one.a", "two.a")


def test_the_same_stay_under_another_name_is_refused(tmp_path, capsys):
    one, two = imported(tmp_path, "one", {"a": 3}), imported(tmp_path, "two", {"b": 3})
    for more in ([], ["--prefix"]):
        assert merge(tmp_path, one, two, more=more) == 2
        assert "the same first hour for " in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


def test_another_pump_another_step_and_a_single_cohort_are_refused(tmp_path, capsys):
    one = imported(tmp_path, "one", {"a": 3})
    other = imported(tmp_path, "other", {"b": 4}, profile="2.5")
    assert merge(tmp_path, one, other) == 2
    assert "of one pump, got 'cp' in one, '2.5' in other" in capsys.readouterr().err
    assert merge(tmp_path, one) == 2
    assert "expected two cohorts or more, got 1" in capsys.readouterr().err
    assert merge(tmp_path, one, one) == 2
    assert "expected folders of different names" in capsys.readouterr().err


def test_simulated_cohorts_merge_without_their_truth_and_not_with_recorded_ones(tmp_path, capsys):
    for name, seed, every in (("s1", "1", "10min"), ("s2", "2", "10min"), ("s3", "3", "5min")):
        words = ["simulate", "--out", str(tmp_path / name), "--patients", "2", "--hours", "4"]
        assert main([*words, "--seed", seed, "--every", every]) == 0
    capsys.readouterr()
    assert merge(tmp_path, tmp_path / "s1", tmp_path / "s2", more=["--prefix"]) == 0
    assert "The hidden truth of simulated patients is left behind" in capsys.readouterr().out
    assert sorted(file.name for file in (tmp_path / "all").iterdir()) == [
        "card.md", "cohort.parquet", "config.json", "deaths.parquet", "manifest.json",
    ]  # fmt: skip
    assert merge(tmp_path / "x", tmp_path / "s1", tmp_path / "s3", more=["--prefix"]) == 2
    assert "expected cohorts of one step, got 10 min in s1, 5 min in s3" in capsys.readouterr().err
    one = imported(tmp_path, "one", {"a": 3})
    assert merge(tmp_path / "x", one, tmp_path / "s1") == 2
    assert "got one imported, s1 simulated" in capsys.readouterr().err
