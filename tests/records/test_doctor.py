"""The doctor finds what was damaged on purpose, names it, and leaves clean stays alone."""

import json
from dataclasses import replace

import jax.random as jr
import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepdown.patients.cohort import CohortConfig, simulate_cohort, world_of
from stepdown.patients.pump import load_profile
from stepdown.patients.waveforms import simulate_waveforms
from stepdown.records.doctor import HARD, examine
from stepdown.records.findings import CODES, to_machine, to_words
from stepdown.records.mapping import CHANNELS, OUR_UNITS, Column, Columns, can_be_told, likely_units
from stepdown.records.stays import Line, Trace, make_trace
from stepdown.signals import KNOWN, NAMES, SIGNALS
from tests.records.seeded import (
    alarms,
    count_contradicted,
    count_found,
    pieces_of,
    traces_of,
    unit_pairs,
    value_faults,
    waveform_faults,
)

PROFILE = load_profile("cp")
STEPS = np.asarray(PROFILE.speed, float)


@pytest.fixture(scope="module")
def simulated():
    config = CohortConfig(patients=60, hours=12.0)
    return *simulate_cohort(config, key=jr.key(5)), world_of(config)


@pytest.fixture(scope="module")
def stays(simulated) -> list[Trace]:
    return traces_of(simulated[0])


@pytest.fixture(scope="module")
def pieces(simulated) -> list[Trace]:
    """Twenty minutes each of one stay at 25 Hz, with the artifacts of its sensors."""
    cohort, latents, world = simulated
    wave = simulate_waveforms(cohort, latents, world, 0, key=jr.key(1))
    return [trace for trace, _ in pieces_of(wave, 20 * 60.0, every=3)]


@pytest.mark.parametrize("name", value_faults(STEPS))
def test_seeded_faults_of_values_are_found(name, stays):
    assert count_found(stays, value_faults(STEPS)[name], PROFILE, draws=25) >= 0.99 * 25


@pytest.mark.parametrize("name", waveform_faults(STEPS))
def test_seeded_faults_of_waveforms_are_found(name, pieces):
    assert count_found(pieces, waveform_faults(STEPS)[name], PROFILE, draws=6) >= 0.99 * 6


def test_clean_stays_raise_no_alarm(stays, pieces):
    accused = []
    for trace in [*stays, *pieces]:
        found = examine(trace, PROFILE)
        if trace.is_waveform:  # twenty minutes hold no whole hour
            found = tuple(f for f in found if f.code != "D16")
        accused.append(bool(alarms(found)))
    assert np.mean(accused) <= 0.01


def test_units_that_the_values_contradict_are_named(stays):
    pairs = [pair for pair in unit_pairs() if can_be_told(*pair)]
    counts = count_contradicted(stays, pairs, draws=30 * len(pairs), seed=3)
    found, tried = np.sum(list(counts.values()), axis=0)
    assert found >= 0.99 * tried == 0.99 * 30 * len(pairs)


def test_an_undeclared_unit_is_never_accepted(stays):
    for name in NAMES:
        line = replace(stays[0].lines[name], unit=None)
        found = examine(replace(stays[0], lines={**stays[0].lines, name: line}), PROFILE)
        assert [f.signal for f in found if f.code == "D08" and f.severity == "action"] == [name]


def test_kilopascals_cannot_be_told_on_lvedp():
    values = np.array([1.0, 2.0, 3.0])  # 2 mmHg of an unloaded heart, or 15 mmHg
    assert set(likely_units("lvedp", values)) == {"mmHg", "kPa", "cmH2O"}
    assert not can_be_told("lvedp", "kPa", "mmHg")


def wave(pressure, rate=25.0):
    second = np.arange(len(pressure)) / rate
    noise = np.random.default_rng(0).normal(0, 6, len(pressure))
    lines = {
        "placement": Line(pressure, "mmHg"),
        "speed": Line(np.full(len(pressure), 39_000.0), "rpm"),
        "current": Line(np.round(500 + 50 * np.sin(8 * second) + noise), "mA"),
    }
    return Trace("steady", second, lines, expected=CHANNELS)


def test_low_and_high_pressures_are_no_slip_of_the_unit(stays):
    second = np.arange(25 * 600) / 25.0
    beat = np.sin(2 * np.pi * 1.2 * second)
    pressure = np.where(second < 300, 75 + 12 * beat, 110 * np.maximum(beat, 0) ** 4 + 8)
    assert "D08" not in codes(wave(pressure))  # the catheter slips into the ventricle
    high = stays[0].lines["map"].values.copy()
    high[3:9] = 160.0 + np.arange(6)  # an hour of hypertension, not of cmH2O
    lines = {**stays[0].lines, "map": Line(high, "mmHg")}
    assert "D08" not in codes(replace(stays[0], lines=lines))


def codes(trace, severity=None):
    return {f.code for f in examine(trace, PROFILE) if severity in (None, f.severity)}


@pytest.mark.parametrize("digit", [0.25, 1.0])
def test_a_steady_heart_with_a_pulse_of_3_mmhg_is_not_flat(digit):
    second = np.arange(25 * 600) / 25.0
    pressure = digit * np.round((70 + 1.5 * np.sin(2 * np.pi * 1.2 * second)) / digit)
    assert "D05" not in codes(wave(pressure))
    stuck = pressure.copy()
    stuck[5000:5250] = 70.0  # 10 s
    assert "D05" in codes(wave(stuck))
    stuck = pressure.copy()
    stuck[5000:5225] = 70.0  # 9 s
    assert "D05" not in codes(wave(stuck))


@pytest.mark.parametrize("signal", SIGNALS, ids=NAMES)
def test_a_hard_limit_belongs_to_the_range(signal, stays):
    for limit, outward in zip(HARD[signal.name], (-np.inf, np.inf), strict=True):
        for value, expected in ((limit, False), (np.nextafter(limit, outward), True)):
            values = stays[0].lines[signal.name].values.copy()
            values[5] = value
            line = Line(values, signal.unit)
            found = examine(replace(stays[0], lines={**stays[0].lines, signal.name: line}), PROFILE)
            told = [f.where for f in found if (f.code, f.signal) == ("D06", signal.name)]
            assert told == ([((3000.0, 3000.0),)] if expected else [])


def test_the_small_pump_is_at_its_highest_level_when_its_speed_is(stays):
    """P-8 and P-9 are 2 % apart; the speed of P-9 was taken for that of P-8."""
    small = load_profile("2.5")
    for level in (8, 9):
        speed = np.full(len(stays[0].second), float(small.speed[level - 2]))
        lines = {**stays[0].lines, "speed": Line(speed, "rpm")}
        stay = replace(stays[0], lines=lines, level=Line(np.full(len(speed), float(level)), None))
        assert not {"D09", "D10"} & {f.code for f in examine(stay, small)}


def test_a_rate_of_24_97_hertz_in_milliseconds_is_a_drift_and_no_jump():
    second = np.round(np.arange(25 * 600) / 24.97, 3)
    pressure = 70 + 10 * np.sin(2 * np.pi * 1.2 * second)
    found = examine(replace(wave(pressure), second=second), PROFILE)
    assert [f.severity for f in found if f.code == "D01"] == ["check"]
    assert "24.97 times a second, 0.12 % off" in next(f.sentence for f in found if f.code == "D01")
    assert "D03" not in {f.code for f in found}


VALUES = Columns(
    kind="values",
    signals=(("map", Column("m", "mmHg")), ("hr", Column("h", "/min"))),
    time=Column("t", "ISO-8601"),
    level="p",
    zone="Europe/Berlin",
)


def table(stamps, **columns):
    count = len(stamps)
    steady = {"m": [f"{70 + i % 7}.5" for i in range(count)], "h": ["80", "81", "83"] * count}
    cells = {name: list(cells)[:count] for name, cells in (steady | columns).items()}
    return pl.DataFrame({"t": stamps, "p": ["P-5"] * count, **cells})


def test_what_is_no_number_is_counted_and_shown():
    stamps = [f"2024-01-01T0{hour}:00:00" for hour in range(8)]
    frame = table(stamps, m=["70", "P5", "1,5", "", "−", "NaN", "72", "71"])
    found = examine(make_trace(frame, VALUES, "a", None), PROFILE)
    text = next(f for f in found if f.code == "D13")
    assert (text.signal, text.count) == ("map", 2)
    assert text.where == ((3600.0, 3600.0), (7200.0, 7200.0))
    assert "'P5', '1,5'" in text.sentence


def test_an_empty_cell_is_no_example_of_an_unreadable_time():
    stamps = ["2024-01-01T00:00:00Z", None, "2024-01-01T00:20:00Z", "soon"]
    for cells, shown in ((stamps, "2 rows, such as 'soon'"), (stamps[:3], "1 row, such as empty")):
        found = examine(make_trace(table(cells), VALUES, "a", None), PROFILE)
        assert [shown in f.sentence for f in found if f.code == "D13"] == [True]


def local_hours(first: int, count: int):
    """Ten-minute stamps as a clock on a wall in Berlin writes them, from a time in UTC on."""
    utc = pl.from_epoch(pl.Series(first + 600 * np.arange(count))).dt.replace_time_zone("UTC")
    berlin = utc.dt.convert_time_zone("Europe/Berlin")
    return berlin.dt.to_string("%Y-%m-%d %H:%M:%S").to_list()


SPRING, AUTUMN = 1_711_836_000, 1_729_980_000  # 22:00 UTC before the change, 2024


@pytest.mark.parametrize("day", [SPRING, AUTUMN])
def test_clocks_that_change_to_summer_time_and_back(day):
    """A declared zone explains the hour missing in spring; in autumn the step back tells."""
    trace = make_trace(table(local_hours(day, 36)), VALUES, "a", None)
    np.testing.assert_array_equal(trace.second, 600.0 * np.arange(36))
    assert [f for f in examine(trace, PROFILE) if f.code == "D03"] == []
    undeclared = make_trace(table(local_hours(day, 36)), replace(VALUES, zone=None), "a", None)
    sentences = [f.sentence for f in examine(undeclared, PROFILE) if f.code == "D03"]
    assert any("without a zone" in sentence for sentence in sentences)
    assert any("one hour" in sentence or "back in time" in sentence for sentence in sentences)


def test_dates_with_a_zone_of_their_own_need_no_zone_and_make_no_jump():
    """A column of dates in Berlin's time across the night in which an hour comes twice."""
    utc = pl.from_epoch(pl.Series(AUTUMN + 600 * np.arange(36))).dt.replace_time_zone("UTC")
    frame = table(utc.dt.convert_time_zone("Europe/Berlin"))
    trace = make_trace(frame, replace(VALUES, zone=None), "a", None)
    np.testing.assert_array_equal(trace.second, 600.0 * np.arange(36))
    assert (trace.start, trace.questions) == (AUTUMN, ())
    naive = table(utc.dt.replace_time_zone(None))
    (question,) = make_trace(naive, replace(VALUES, zone=None), "a", None).questions
    assert question.startswith("36 dates without a zone")


def test_offsets_in_the_stamps_count_more_than_the_zone():
    stamps = ["2024-06-01T12:00:00Z", "2024-06-01T14:10:00+02:00", "2024-06-01T14:20:00"]
    trace = make_trace(table(stamps), VALUES, "a", None)
    np.testing.assert_array_equal(trace.second, [0.0, 600.0, 1200.0])


def test_a_stay_of_1970_or_2099_deserves_a_look(stays):
    for start, expected in ((0.0, True), (1.7e9, False), (4.08e9, True)):
        found = examine(replace(stays[0], start=start), PROFILE)
        assert any(f.code == "D03" and f.severity == "check" for f in found) == expected


def test_a_window_never_counts_as_usable_across_a_long_gap(stays):
    stay = stays[0]
    lines = {n: replace(x, values=x.values.copy()) for n, x in stay.lines.items()}
    lines["map"].values[6:8] = np.nan  # two of six samples: a third of the second hour
    found = next(f for f in examine(replace(stay, lines=lines), PROFILE) if f.code == "D16")
    whole = len(stay.second) // 6
    assert found.count == whole - 1
    assert found.where == ((3600.0, 7200.0),)


def test_a_pause_as_frequent_as_a_sample_has_a_rate_too():
    """Two steps of different length: the median lies between them and is near neither."""
    lines = {name: Line(np.array([70.0, 71.0, 72.0]), OUR_UNITS[name]) for name in NAMES}
    found = examine(Trace("few", np.array([0.0, 60.0, 660.0]), lines), PROFILE)
    rate = next(f for f in found if f.code == "D01")
    assert rate.sentence == "One sample every 5.5 min on average, at irregular times."
    assert rate.severity == "check"


@example([i * 1e-300 for i in range(12)], [70.0] * 12, True)
@example([i * 5e-324 for i in range(12)], [70.0] * 12, True)
@given(
    st.lists(st.floats(width=64), max_size=12),
    st.lists(st.floats(width=64), min_size=12, max_size=12),
    st.booleans(),
)
def test_any_numbers_are_examined_and_told_in_words_and_json(times, values, as_waveform):
    second = np.asarray(times, float)
    second = np.where(np.isfinite(second), second, np.nan)
    names = CHANNELS if as_waveform else tuple(KNOWN)
    numbers = np.asarray(values, float)[: len(second)]
    lines = {name: Line(numbers, OUR_UNITS[name]) for name in names}
    trace = Trace("any", second, lines, Line(numbers, None), 0.0, expected=names)
    with np.errstate(all="ignore"):
        found = examine(trace, PROFILE)
    assert {f.code for f in found} <= set(CODES)
    assert {f.code for f in found} >= {"D16"}
    assert json.loads(json.dumps(to_machine(found), allow_nan=False)) == to_machine(found)
    assert to_words(found).endswith(f"{sum(f.severity == 'note' for f in found)} note.")
