"""WFDB records as hospitals keep them: segments, gaps, FLAC, numerics, any rate, a line alone."""

import warnings
from pathlib import Path

import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.waveforms import simulate_waveforms
from stepdown.records.importer import import_cohort
from stepdown.records.mapping import parse_mapping
from stepdown.records.readers import RecordingError, list_recordings, own_rate, read_batches
from stepdown.signals import CURRENT, DBP, FLOW, HR, MAP, SBP
from tests.records.recordings import WFDB_WAVES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # wfdb warns about the pandas that it imports
    import wfdb

UNITS = {"placement": "mmHg", "speed": "rpm", "current": "mA", "level": "NU", "hr": "/min"}


def write(folder: Path, name: str, table: pl.DataFrame, rate: float, fmt: str = "32") -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wfdb.wrsamp(
            name,
            fs=rate,
            units=[UNITS.get(column, "NU") for column in table.columns],
            sig_name=table.columns,
            p_signal=table.to_numpy().astype(float),
            fmt=[fmt] * table.width,
            adc_gain=[4.0 if fmt == "32" else 1.0] * table.width,
            baseline=[0] * table.width,
            write_dir=str(folder),
        )


def counting(rows: int, first: int = 0) -> pl.DataFrame:
    number = np.arange(first, first + rows)
    return pl.DataFrame({"placement": 50.0 + number, "current": 300.0 - number})


def read(path: Path, wanted: tuple[str, ...] = ("placement", "current")) -> np.ndarray:
    return pl.concat(read_batches(path, list(wanted))).to_numpy()


@pytest.mark.parametrize("layout", ["fixed", "variable"])
def test_segments_and_gaps_become_one_line_of_time(layout, tmp_path):
    write(tmp_path, "r_0001", counting(100), 25)
    second = counting(80, 150) if layout == "fixed" else counting(80, 150).select("current")
    write(tmp_path, "r_0002", second, 25)
    lines = ["r_0001 100", "~ 50", "r_0002 80"]
    if layout == "variable":
        signals = "~ 0 4/mmHg 32 0 0 0 0 placement\n~ 0 4/mA 32 0 0 0 0 current\n"
        (tmp_path / "r_layout.hea").write_text(f"r_layout 2 25 0\n{signals}")
        lines = ["r_layout 0", *lines]
    (tmp_path / "r.hea").write_text(f"r/{len(lines)} 2 25 230\n" + "\n".join(lines) + "\n")
    assert list_recordings(tmp_path) == [tmp_path / "r.hea"]
    expected = counting(230).to_numpy()
    expected[100:150] = np.nan
    if layout == "variable":
        expected[150:, 0] = np.nan
    np.testing.assert_allclose(read(tmp_path / "r.hea"), expected)


@pytest.mark.parametrize(("rate", "merged"), [(62.5, 1), (125, 2), (240, 4), (500, 10)])
def test_fast_records_are_averaged_down_across_segments(rate, merged, tmp_path):
    """Nine samples in one segment, eleven in the next: no group of samples shifts."""
    write(tmp_path, "r_0001", counting(9), rate)
    write(tmp_path, "r_0002", counting(11, 9), rate)
    (tmp_path / "r.hea").write_text(f"r/2 2 {rate} 20\nr_0001 9\nr_0002 11\n")
    assert own_rate(tmp_path / "r.hea") == rate / merged
    whole = counting(20).to_numpy().reshape(-1, merged, 2).mean(1)
    np.testing.assert_allclose(read(tmp_path / "r.hea"), whole)


def test_flac_is_read(tmp_path):
    write(tmp_path, "r", counting(5000), 25, fmt="524")
    assert (tmp_path / "r.dat").stat().st_size < 5000
    np.testing.assert_allclose(read(tmp_path / "r.hea"), counting(5000).to_numpy())


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("r/2 2 25 200\nr_0001 100\n../r_0001 100\n", "expected a segment and its length"),
        ("r/2 2 25 200\nr_0001 100\nr_0009 100\n", "beside that of the record, found none"),
        ("r/1 2 25 300\nr_0001 300\n", "with the rate and length that this header says"),
        ("r/1 2 50 100\nr_0001 100\n", "with the rate and length that this header says"),
        ("r/1 2 25 999\nr_0001 100\n", "segments of 999 samples together"),
        ("r/1 2 25 100\nr 100\n", "recursion"),
    ],
)
def test_a_record_that_does_not_fit_its_segments_is_refused(header, words, tmp_path):
    write(tmp_path, "r_0001", counting(100), 25)
    (tmp_path / "r.hea").write_text(header)
    with pytest.raises(RecordingError, match=words):
        read(tmp_path / "r.hea")


@pytest.fixture(scope="module")
def wave():
    """Three hours of one simulated patient at 25 Hz, as in test_importer.py."""
    config = CohortConfig(patients=2, hours=3.0)
    cohort, latents = simulate_cohort(config, key=jr.key(7))
    return simulate_waveforms(cohort, latents, world_of(config), 0, key=jr.key(1))


def test_an_arterial_line_alone_gives_the_signals_that_it_can(wave, tmp_path):
    """The level stands beside it; what only the pump's own channels tell is absent."""
    recording = wave.recording
    level = np.repeat(wave.level, len(recording.second) // len(wave.level)).astype(float)
    table = pl.DataFrame({"placement": np.asarray(recording.placement), "level": level})
    write(tmp_path, "line", table.fill_nan(None), 25)
    mapping = {
        "kind": "waveforms",
        "signals": {"placement": {"column": "placement", "unit": "mmHg"}},
        "level": {"column": "level"},
    }
    cohort, *_ = import_cohort(tmp_path / "line.hea", parse_mapping(mapping))
    write(
        tmp_path,
        "r",
        pl.DataFrame(
            {n: np.asarray(getattr(recording, n)) for n in ("placement", "speed", "current")}
        ),
        25,
    )
    whole, *_ = import_cohort(tmp_path / "r.hea", parse_mapping(WFDB_WAVES))
    np.testing.assert_array_equal(cohort.level, whole.level)
    alone, both = np.asarray(cohort.signals)[0], np.asarray(whole.signals)[0]
    np.testing.assert_allclose(alone[:, MAP], both[:, MAP], atol=0.5)
    for signal in (SBP, DBP, HR):
        np.testing.assert_allclose(alone[:, signal], both[:, signal], atol=3.0)
    assert np.isnan(alone[:, [CURRENT, FLOW]]).all()


def test_numerics_lie_beside_the_waveforms_of_a_stay(wave, tmp_path):
    """A folder holds both, and the mapping says which are meant."""
    recording = wave.recording
    write(
        tmp_path,
        "p1",
        pl.DataFrame(
            {n: np.asarray(getattr(recording, n)) for n in ("placement", "speed", "current")}
        ),
        25,
    )
    minutes = 180
    level = np.repeat(wave.level, minutes // len(wave.level)).astype(float)
    lively = 5 * np.sin(np.arange(minutes))
    numerics = pl.DataFrame(
        {"hr": 80 + lively, "map": 75 + lively, "pulse": 30 + lively, "level": level}
    )
    write(tmp_path, "p1n", numerics, 1 / 60)
    mapping = {
        "kind": "values",
        "signals": {
            "map": {"column": "map", "unit": "mmHg"},
            "hr": {"column": "hr", "unit": "/min"},
            "pulsatility": {"column": "pulse", "unit": "mmHg"},
        },
        "level": {"column": "level"},
        "time": {"rate": 1 / 60},
    }
    values, *_ = import_cohort(tmp_path, parse_mapping(mapping))
    assert values.patient == ("p1n",)
    np.testing.assert_allclose(
        values.signals[0, :, MAP], numerics["map"].to_numpy().reshape(-1, 10).mean(1), atol=0.2
    )
    waves, *_ = import_cohort(tmp_path, parse_mapping(WFDB_WAVES))
    assert waves.patient == ("p1",)
