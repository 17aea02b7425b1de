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
from stepdown.records.doctor import examine, level_from_speed
from stepdown.records.findings import CODES, to_machine, to_words
from stepdown.records.intake import make_trace
from stepdown.records.mapping import QUANTITIES, UNITS, Column, Columns
from stepdown.records.seeded import is_found, value_faults, waveform_faults
from stepdown.records.suspicion import can_be_told, likely_units, suspect_units
from stepdown.records.trace import HARD, OUR_UNITS, Line, Trace
from stepdown.signals import LEVELS, NAMES, SIGNALS

PROFILE = load_profile("cp")
STEPS = np.asarray(PROFILE.speed, float)
FACTS = ("D01", "D02", "D07", "D12", "D15", "D16")  # as notes these describe, they do not accuse


@pytest.fixture(scope="module")
def simulated():
    config = CohortConfig(patients=60, hours=12.0)
    return *simulate_cohort(config, key=jr.key(5)), world_of(config)


@pytest.fixture(scope="module")
def stays(simulated) -> list[Trace]:
    cohort = simulated[0]
    traces = []
    for row, patient in enumerate(cohort.patient):
        seen = np.asarray(cohort.seen)[row]
        values = np.asarray(cohort.signals)[row][seen].astype(float)
        lines = {name: Line(values[:, i], OUR_UNITS[name]) for i, name in enumerate(NAMES)}
        level = Line(np.asarray(cohort.level)[row][seen].astype(float), None)
        traces.append(Trace(patient, 600.0 * np.flatnonzero(seen), lines, level, 1.7e9))
    return traces


@pytest.fixture(scope="module")
def pieces(simulated) -> list[Trace]:
    """Twenty minutes each of one stay at 25 Hz, with the artifacts of its sensors."""
    cohort, latents, world = simulated
    wave = simulate_waveforms(cohort, latents, world, 0, key=jr.key(1)).recording
    size, found = 20 * 60 * 25, []
    for start in range(0, len(wave.second) - size + 1, 3 * size):
        part = slice(start, start + size)
        channels = {"placement": wave.placement, "speed": wave.speed, "current": wave.current}
        lines = {name: Line(x[part].astype(float), OUR_UNITS[name]) for name, x in channels.items()}
        second = wave.second[part] - wave.second[start]
        found.append(Trace(f"from {start}", second, lines, kind="waveforms"))
    return found


def share_found(traces, fault, draws, seed=0):
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(draws):
        damaged, expected = fault(traces[int(rng.integers(len(traces)))], rng)
        hits += is_found(examine(damaged, PROFILE), expected)
    return hits / draws


@pytest.mark.parametrize("name", value_faults(STEPS))
def test_seeded_faults_of_values_are_found(name, stays):
    assert share_found(stays, value_faults(STEPS)[name], draws=25) >= 0.99


@pytest.mark.parametrize("name", waveform_faults(STEPS))
def test_seeded_faults_of_waveforms_are_found(name, pieces):
    assert share_found(pieces, waveform_faults(STEPS)[name], draws=6) >= 0.99


def test_clean_stays_raise_no_alarm(stays, pieces):
    accused = []
    for trace in [*stays, *pieces]:
        found = examine(trace, PROFILE)
        if trace.is_waveform:  # twenty minutes hold no whole hour
            found = tuple(f for f in found if f.code != "D16")
        accused.append(any(f.severity != "note" or f.code not in FACTS for f in found))
    assert np.mean(accused) <= 0.01


def test_units_that_the_values_contradict_are_named(stays):
    rng = np.random.default_rng(3)
    pairs = [
        (name, true, declared)
        for name in NAMES
        for true in UNITS
        for declared in UNITS
        if UNITS[true][0] == UNITS[declared][0] == QUANTITIES[name] and true != declared
        and can_be_told(name, true, declared)
    ]  # fmt: skip
    hits = []
    for draw in range(30 * len(pairs)):
        name, true, declared = pairs[draw % len(pairs)]
        trace = stays[int(rng.integers(len(stays)))]
        line = Line(trace.lines[name].values / UNITS[true][1], declared)
        damaged = replace(trace, lines={**trace.lines, name: line})
        found = suspect_units(damaged, trace.second, np.arange(len(trace.second)))
        hits.append(any(f.signal == name and true in f.likely_units for f in found))
    assert np.mean(hits) >= 0.99


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
    return Trace("steady", second, lines, kind="waveforms")


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


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_read_within_two_percent_of_its_step_only(level):
    step = STEPS[level - 2]
    speeds = step * np.array([0.98, 0.99, 1.0, 1.01, 1.02])
    assert np.all(level_from_speed(speeds, STEPS) == level)
    assert np.all(level_from_speed(step * np.array([0.9795, 1.0205]), STEPS) != level)


def test_between_two_steps_the_level_is_unknown():
    middles = np.concatenate([(STEPS[1:] + STEPS[:-1]) / 2, [0.0, 20_000.0, 60_000.0, np.nan]])
    assert np.all(level_from_speed(middles, STEPS) == 0)


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


def local_hours(first: int, count: int):
    """Ten-minute stamps as a clock on a wall in Berlin writes them, from a time in UTC on."""
    utc = pl.from_epoch(pl.Series(first + 600 * np.arange(count))).dt.replace_time_zone("UTC")
    berlin = utc.dt.convert_time_zone("Europe/Berlin")
    return berlin.dt.to_string("%Y-%m-%d %H:%M:%S").to_list()


SPRING, AUTUMN = 1_711_836_000, 1_729_980_000  # 22:00 UTC before the change, 2024


@pytest.mark.parametrize(("day", "told"), [(SPRING, []), (AUTUMN, ["action", "check"])])
def test_clocks_that_change_to_summer_time_and_back(day, told):
    """A declared zone explains the hour missing in spring; in autumn one comes twice, then none."""
    trace = make_trace(table(local_hours(day, 36)), VALUES, "a", None)
    assert [f.severity for f in examine(trace, PROFILE) if f.code == "D03"] == told
    undeclared = make_trace(table(local_hours(day, 36)), replace(VALUES, zone=None), "a", None)
    sentences = [f.sentence for f in examine(undeclared, PROFILE) if f.code == "D03"]
    assert any("without a zone" in sentence for sentence in sentences)
    assert any("one hour" in sentence or "back in time" in sentence for sentence in sentences)


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
    names = ("placement", "speed", "current") if as_waveform else NAMES
    numbers = np.asarray(values, float)[: len(second)]
    lines = {name: Line(numbers, OUR_UNITS[name]) for name in names}
    kind = "waveforms" if as_waveform else "values"
    with np.errstate(all="ignore"):
        found = examine(Trace("any", second, lines, Line(numbers, None), 0.0, kind=kind), PROFILE)
    assert {f.code for f in found} <= set(CODES)
    assert {f.code for f in found} >= {"D16"}
    assert json.loads(json.dumps(to_machine(found), allow_nan=False)) == to_machine(found)
    assert to_words(found).endswith(f"{sum(f.severity == 'note' for f in found)} note.")
