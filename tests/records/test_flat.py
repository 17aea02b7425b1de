"""A line is flat where its sensor is stuck, and not because its numbers are short."""

import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.hours import count_decisions
from stepdown.records.files import cohort_table
from stepdown.records.flat import STEADY, digit, flat_samples
from stepdown.records.importer import ImportConfig, import_cohort
from stepdown.records.mapping import OUR_UNITS, parse_mapping
from stepdown.records.readers import RecordingError
from stepdown.signals import FLOW, MAP, NAMES
from tests.records.recordings import VALUES, value_table

SHORT = {"map": 0, "flow": 1, "lvp": 0, "lvedp": 0, "sbp": 0, "dbp": 0, "pulsatility": 0}
SHORT |= {"current": 0, "tau": 0, "ese": 2, "speed": 0, "hr": 0}


@pytest.fixture(scope="module")
def cohort():
    return simulate_cohort(CohortConfig(patients=12, hours=48.0), key=jr.key(4))[0]


@pytest.fixture(scope="module")
def mapping():
    signals = {name: {"column": name, "unit": OUR_UNITS[name]} for name in NAMES}
    return parse_mapping(VALUES | {"signals": signals})


def rounded(cohort) -> pl.DataFrame:
    """As consoles and monitors export: whole numbers, and a flow of one decimal."""
    table = cohort_table(cohort)
    return table.with_columns(
        pl.col(name).cast(pl.Float64).round(places) for name, places in SHORT.items()
    )


def test_short_numbers_lose_no_value_and_no_decision(cohort, mapping, tmp_path):
    """A flow of one decimal was taken for a stuck one, and nearly every decision was lost."""
    table = rounded(cohort)
    table.write_csv(tmp_path / "short.csv")
    found, log, intake = import_cohort(tmp_path / "short.csv", mapping)
    assert [row for row in log if "flat" in row.why] == []
    assert all(count == 0 for _, count, _ in intake.emptied)
    assert count_decisions(found) == count_decisions(cohort) == intake.possible
    seen = np.asarray(cohort.seen)
    flow = np.asarray(cohort.signals)[..., FLOW][seen]
    np.testing.assert_allclose(np.asarray(found.signals)[..., FLOW][seen], flow, atol=0.0501)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*STEADY, "flow")])
def test_a_stuck_line_is_found_among_whole_numbers(name, cohort):
    values = np.round(np.asarray(cohort.signals, float)[0, :, NAMES.index(name)], SHORT[name])
    second = 600.0 * np.arange(len(values))
    assert not flat_samples(name, values, second, 600.0).any()
    values[100:150] = values[100]  # eight hours
    flat = np.flatnonzero(flat_samples(name, values, second, 600.0))
    assert flat.min() >= 95
    assert flat.max() <= 155
    assert len(flat) >= 50


@pytest.mark.parametrize(
    ("name", "value", "flat"),
    [("map", 75.0, True), ("map", 75.25, True), ("flow", 2.75, True), ("flow", 2.7, False),
     ("hr", 80.0, False), ("speed", 39_000.0, False), ("lactate", 1.5, False)],
)  # fmt: skip
def test_a_column_that_never_moves_is_judged_by_the_usual_movement(name, value, flat):
    values, second = np.full(72, value), 600.0 * np.arange(72)
    assert flat_samples(name, values, second, 600.0).all() == flat


def test_a_flow_of_one_decimal_that_rarely_moves_is_no_flat_line():
    values = np.full(36, 2.8)
    values[[7, 30]] = 2.7, 2.9
    assert not flat_samples("flow", values, 600.0 * np.arange(36), 600.0).any()


def test_three_equal_values_of_few_digits_are_chance_and_of_many_are_not():
    second = 600.0 * np.arange(72)
    values = 30 + 4 * np.sin(np.arange(72.0) ** 2)
    for digits, flat in ((1, False), (6, True)):
        line = np.round(values, digits)
        line[40:43] = line[40]
        assert flat_samples("pulsatility", line, second, 600.0).any() == flat


def test_the_digit_of_a_column():
    assert digit(np.array([70.0, 72.0, 75.0, np.nan])) == 2.0
    assert digit(np.array([2.8, 2.7, 2.8])) == pytest.approx(0.1)
    assert digit(np.array([2.75, 2.75])) == 0.01
    assert digit(np.array([75.0])) == 1.0
    assert digit(np.array([np.nan])) == 0.0


def test_an_import_that_would_empty_most_of_a_signal_is_refused(tmp_path):
    table = value_table().with_columns(map=pl.Series([70.0] * 30 + [70.5 + i for i in range(6)]))
    table.write_csv(tmp_path / "table.csv")
    columns = parse_mapping(VALUES)
    with pytest.raises(
        RecordingError, match=r"got 30 of 36 .* \(a flat line; left empty\).*losses"
    ):
        import_cohort(tmp_path / "table.csv", columns)
    cohort, *_ = import_cohort(tmp_path / "table.csv", columns, ImportConfig(accept_losses=True))
    assert np.isfinite(np.asarray(cohort.signals)[..., MAP]).sum() == 6
