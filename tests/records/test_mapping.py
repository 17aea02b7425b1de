"""Units are declared, converted exactly and never guessed."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepdown.records.mapping import (
    QUANTITIES,
    UNITS,
    MappingError,
    convert,
    parse_mapping,
    read_mapping,
    to_seconds,
)
from stepdown.signals import KNOWN
from tests.records.recordings import VALUES, WAVES

# Definitions, as exact fractions of our units: 1 mmHg is 133.322387415 Pa, 1 cmH2O 98.0665 Pa.
MMHG = Fraction(133322387415, 10**9)
EXACT = {
    "kPa": 1000 / MMHG,
    "cmH2O": Fraction(980665, 10**4) / MMHG,
    "A": Fraction(1000),
    "s": Fraction(1000),
    "krpm": Fraction(1000),
    "10 rpm": Fraction(10),
    "mL/min": Fraction(1, 1000),
    "0.01 L/min": Fraction(1, 100),
    "mg/dL": Fraction(10) / Fraction(9008, 100),  # lactic acid has 90.08 g/mol
}
FITTING = [(s, u) for s, q in QUANTITIES.items() for u, (what, _) in UNITS.items() if what == q]


@given(st.sampled_from(FITTING), st.floats(-1e6, 1e6))
def test_declared_units_are_converted_exactly(pair, value):
    _, unit = pair
    expected = float(Fraction(value) * EXACT.get(unit, Fraction(1)))
    assert convert(np.array([value]), unit)[0] == pytest.approx(expected, rel=1e-9, abs=0)


def test_our_own_units_are_among_them_and_change_nothing():
    for signal in KNOWN.values():
        assert (signal.name, signal.unit) in FITTING
        assert convert(np.array([3.7]), signal.unit)[0] == 3.7


@given(
    st.sampled_from([*KNOWN, "placement"]), st.sampled_from([*UNITS, "", "mmhg", "psi", None, 1])
)
def test_a_unit_that_does_not_fit_is_never_accepted(signal, unit):
    kind = "waveforms" if signal == "placement" else "values"
    base = WAVES if kind == "waveforms" else VALUES
    entry = {"column": "x"} if unit is None else {"column": "x", "unit": unit}
    table = base | {"signals": base["signals"] | {signal: entry}}
    if (signal, unit) in FITTING:
        assert dict(parse_mapping(table).signals)[signal].unit == unit
        return
    with pytest.raises(MappingError, match=f"signals.{signal}: expected"):
        parse_mapping(table)


def without(name):
    return VALUES | {"signals": {k: v for k, v in VALUES["signals"].items() if k != name}}


def signals(**more):
    return VALUES | {"signals": VALUES["signals"] | more}


PRESSURE = {"column": "x", "unit": "mmHg"}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({}, "expected kind = 'values' or 'waveforms', got None"),
        (VALUES | {"extra": 1}, "expected only kind, .* got 'extra'; remove it"),
        (without("map"), "expected a column for 'map', got none; map it"),
        (without("hr"), "expected a column for 'hr'"),
        (without("pulsatility"), "expected a column for 'pulsatility', got none; map it, or sbp"),
        (VALUES | {"level": {}}, "expected level = { column"),
        (VALUES | {"level": {"from": "speed"}}, "with the speed mapped"),
        (
            VALUES | {"time": {"column": "t"}},
            "a unit of ms, s, min, h, ISO-8601, date",
        ),
        (VALUES | {"time": {"column": "t", "unit": "days"}}, "got 'days'"),
        (VALUES | {"time": {"column": "t", "unit": "s", "rate": 1}}, "got both; leave one"),
        (VALUES | {"time": {"column": "t", "unit": "ISO-8601", "zone": "Mars"}}, "such as 'UTC'"),
        (VALUES | {"time": {"column": "t", "unit": "s", "zone": "UTC"}}, "stamps only"),
        (VALUES | {"patient": {"column": 3}}, "expected the name of a column, got 3"),
        (VALUES | {"csv": {"separator": ";;"}}, "expected one character"),
        (VALUES | {"csv": {"decimal_comma": ","}}, "expected decimal_comma = true or false"),
        (VALUES | {"csv": {"encoding": "utf-7"}}, "expected an encoding of utf-8, .* got 'utf-7'"),
        (VALUES | {"time": {"column": "t", "unit": "s", "order": "day-month-year"}}, "stamps only"),
        (VALUES | {"time": {"column": "t", "unit": "date", "order": "dmy"}}, "got 'dmy'"),
        (
            VALUES | {"time": {"column": "t", "unit": "ISO-8601", "order": "day-month-year"}},
            "expected an order with unit = 'date' only",
        ),
        (VALUES | {"time": {"column": "t", "unit": "date", "doubled": 2}}, "earlier, later, got 2"),
        (signals(lvp={"column": "map", "unit": "mmHg"}), "expected each column once, got 'map'"),
        (signals(placement=PRESSURE), "expected a signal of map, speed"),
        (signals(map={"column": "map"}), "got no unit; declare the unit"),
        (signals(map="map"), "got no unit; declare the unit"),
        (signals(map={"column": "map", "unit": "mA"}), "expected a pressure .* which is a current"),
    ],
)
def test_an_incomplete_mapping_is_refused_in_words(table, sentence):
    with pytest.raises(MappingError, match=sentence):
        parse_mapping(table)


def test_two_columns_for_one_signal_are_refused(tmp_path):
    lines = 'kind = "values"\n[signals]\nmap = { column = "a", unit = "mmHg" }\n'
    (tmp_path / "m.toml").write_text(lines + 'map = { column = "b", unit = "mmHg" }\n')
    with pytest.raises(MappingError, match="expected TOML"):
        read_mapping(tmp_path / "m.toml")


def test_pulsatility_may_come_as_systolic_less_diastolic_pressure():
    table = without("pulsatility")
    more = {"sbp": {"column": "s", "unit": "kPa"}, "dbp": {"column": "d", "unit": "kPa"}}
    columns = parse_mapping(table | {"signals": table["signals"] | more})
    assert [name for name, _ in columns.signals] == ["map", "hr", "sbp", "dbp"]


def test_times_are_converted_to_seconds():
    given = {"ms": 5.4e6, "s": 5400.0, "min": 90.0, "h": 1.5}
    assert {to_seconds(np.array([x]), unit)[0] for unit, x in given.items()} == {5400.0}
