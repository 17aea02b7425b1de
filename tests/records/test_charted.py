"""Hospital tables: what was charted comes back hour by hour, and nothing before it was stored."""

import gzip
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stepdown.__main__ import main
from stepdown.patients.charting import ChartedStay, Infusion, Line, chart_cohort
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.problem.hours import make_transitions
from stepdown.records.charted import NOT_READ, ChartedConfig, make_charted, read_levels
from stepdown.records.charted_tables import (
    clif_2,
    clif_3,
    mimic_iv,
    to_csv,
    to_csv_gz,
    truth_tables,
)
from stepdown.records.clif import read_clif
from stepdown.records.drugs import add_shares
from stepdown.records.files import read_cohort, to_parquet
from stepdown.records.mimic import read_mimic
from stepdown.records.pieces import unwatched
from stepdown.records.readers import RecordingError
from stepdown.signals import NAMES

# how a format is written, read, and which entries come with a store time
FORMATS = {
    "mimic-iv": (mimic_iv, to_csv_gz, ".csv.gz", read_mimic, "all"),
    "clif-3.0": (clif_3, to_parquet, ".parquet", read_clif, "vitals"),
    "clif-2.1": (clif_2, to_csv, ".csv", read_clif, "none"),
    "clif-2.1-rates": (lambda x: clif_2(x, rates=True), to_csv, ".csv", read_clif, "none"),
}
DELAY = ChartedConfig().delay
LEFT_OUT = {
    "no pump": "no pump",
    "right": "a right-sided pump",
    "balloon": "other support beside the pump",
    "ecmo": "other support beside the pump",
    "5.5": "another type of pump, or none charted",
    "unnamed": "another type of pump, or none charted",
    "cuff": "no pressures of the chosen kind",
}


def write(stays, name: str, folder: Path) -> Path:
    make, to_file, ending, _, _ = FORMATS[name]
    for table, rows in make(stays).items():
        (folder / f"{table}{ending}").parent.mkdir(parents=True, exist_ok=True)
        to_file(rows)(folder / f"{table}{ending}")
    return folder


def imported(stays, name: str, folder: Path, config: ChartedConfig | None = None):
    config = config or ChartedConfig()
    read = FORMATS[name][3]
    charts = read(write(stays, name, folder), config, unwatched, folder / "work")
    return make_charted(charts, config, folder)


def values(made, signal: str, row: int = 0) -> np.ndarray:
    return np.asarray(made.cohort.signals)[row, :, made.cohort.columns.index(signal)]


# ── the round trip, against a slow twin ──────────────────────────────────────────────────────────


def slow_hours(entries: pl.DataFrame, doses: pl.DataFrame, stores: str) -> dict[int, dict]:
    """What was known at the end of each hour, entry by entry; minutes since the first level."""
    lines = {name: rows for (name,), rows in entries.partition_by("name", as_dict=True).items()}
    level = [(m, v) for m, v in lines["level"].select("minute", "value").iter_rows()]
    hours = {}
    for hour in range(200):
        end, minutes = 60 * (hour + 1), []
        for minute in range(60 * hour, end):
            past = [(m, v) for m, v in level if m <= minute]
            minutes.append(past[-1][1] if past and minute + 0.5 - past[-1][0] <= 240 else -1)
        held = max(sorted(set(minutes)), key=minutes.count)
        known = {"level": held}
        for name in ("map", "hr", "sbp", "dbp", "flow"):
            vital = name != "flow"
            said = stores == "all" or (stores == "vitals" and vital)
            for minute, stored, value in lines[name].select("minute", "stored", "value").rows():
                if 60 * hour <= minute < end and (stored if said else minute + DELAY) <= end:
                    known[name] = value
        if len(known) > 1 and held >= 2:
            rates = {
                drug: rate_at(doses, drug, end, stores) for drug in ("norepinephrine", "dobutamine")
            }
            known["nee"] = rates["norepinephrine"]
            known["vis"] = 100 * rates["norepinephrine"] + rates["dobutamine"]
            hours[hour] = known
    return hours


def rate_at(doses: pl.DataFrame, drug: str, end: float, stores: str) -> float:
    """The rate of a drug as known at a minute."""
    rate = 0.0
    rows = doses.filter(pl.col("drug") == drug).sort("start").rows(named=True)
    starts = [row["start"] for row in rows]
    for row in rows:
        told = row["stored"] if stores == "all" else row["start"] + DELAY
        if row["start"] <= end and told <= end:
            rate = row["rate"]
            over = max(row["end"], row["stored"]) if stores == "all" else row["end"] + DELAY
            if row["end"] not in starts and row["end"] <= end and over <= end:
                rate = 0.0
    return rate


@pytest.fixture(scope="module")
def stays() -> tuple[ChartedStay, ...]:
    simulated = simulate_cohort(CohortConfig(patients=40, hours=20.0), key=jr.key(11))
    return chart_cohort(*simulated, key=jr.key(12))


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_charted_comes_back(name, stays, tmp_path):
    truth = truth_tables(stays)
    made = imported(stays, name, tmp_path)
    flow = dict(made.flow)
    kinds = truth["stays"]["kind"].to_list()
    assert set(kinds) == {"plain", *LEFT_OUT}
    for reason in set(LEFT_OUT.values()):
        expected = sum(LEFT_OUT.get(kind) == reason for kind in kinds)
        assert flow[f"left out: {reason}"] == expected
    plain = truth["stays"].filter(pl.col("kind") == "plain")["id"].to_list()
    assert flow["taken"] == len(plain) == len(made.cohort.patient)
    assert made.findings == ()
    level, seen = np.asarray(made.cohort.level), np.asarray(made.cohort.seen)
    compared = 0
    for row, patient in enumerate(made.cohort.patient):
        mine = {
            key: t.filter(pl.col("id") == str(int(patient) - 10_000_000))
            for key, t in truth.items()
        }
        expected = slow_hours(mine["entries"], mine["infusions"], FORMATS[name][4])
        assert sorted(expected) == np.flatnonzero(seen[row]).tolist()
        for hour, known in expected.items():
            assert level[row, hour] == known["level"]
            for signal in ("map", "hr", "sbp", "dbp", "flow", "nee", "vis"):
                got = values(made, signal, row)[hour]
                np.testing.assert_allclose(got, known.get(signal, np.nan), rtol=2e-4, atol=1e-4)
                compared += 1
    assert compared > 2000


# ── stays made by hand ───────────────────────────────────────────────────────────────────────────


def counted(hours: int = 10) -> ChartedStay:
    """Every value counts the hours: heart rate 60, 61, ... charted at half past, stored at once."""
    minute = 60.0 * np.arange(hours) + 30
    count = np.arange(hours, dtype=float)

    def line(value):
        return Line(minute, minute + 5, value)

    lines = {"hr": line(60 + count), "map": line(70 + count), "sbp": line(90 + count)}
    lines |= {"dbp": line(50 + count), "flow": line(2 + count / 10), "level": line(8 - count // 3)}
    lines["level"] = Line(
        np.append(0.0, minute), np.append(5.0, minute + 5), np.append(8.0, 8 - count // 3)
    )
    lines |= {
        f"cuff {name}": line(at + count) for name, at in (("map", 60), ("sbp", 80), ("dbp", 45))
    }
    start, drugs = (
        datetime(2150, 3, 1, 8, 17),
        (Infusion("norepinephrine", 60.0, 240.0, 66.0, 0.1),),
    )
    return ChartedStay("p1", "plain", start, 60.0 * hours, 80.0, False, lines, drugs)


@pytest.mark.parametrize("name", FORMATS)
def test_a_counter_shows_that_no_hour_is_shifted(name, tmp_path):
    made = imported([counted()], name, tmp_path)
    np.testing.assert_array_equal(values(made, "hr")[:10], 60 + np.arange(10))
    np.testing.assert_array_equal(values(made, "map")[:10], 70 + np.arange(10))
    np.testing.assert_array_equal(values(made, "pulsatility")[:10], np.full(10, 40.0))
    # from 1:00 to 4:00; at the end of the first hour it is known to nobody yet
    nee = [0, 0.1, 0.1, 0.1 if name != "mimic-iv" else 0, 0, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(values(made, "nee")[:10], nee, atol=1e-6)
    assert made.cohort.minutes == 60.0


@pytest.mark.parametrize("name", ["mimic-iv", "clif-3.0"])
@pytest.mark.parametrize(("stored", "known"), [(300.0, 64.0), (301.0, np.nan)])
def test_a_value_stored_late_is_not_in_the_state_of_its_hour(name, stored, known, tmp_path):
    """The fifth heart rate is charted at 4:30; the hour ends at minute 300."""
    stay = counted()
    hr = stay.lines["hr"]
    late = Line(hr.minute, np.where(hr.minute == 270, stored, hr.stored), hr.value)
    made = imported([replace(stay, lines={**stay.lines, "hr": late})], name, tmp_path)
    expected = 60.0 + np.arange(10)
    expected[4] = known
    np.testing.assert_array_equal(values(made, "hr")[:10], expected)
    assert dict(made.late)["hr"] == int(np.isnan(known))


@pytest.mark.parametrize(("delay", "known"), [(15.0, 10), (30.0, 10), (31.0, 0)])
def test_the_stated_delay_is_assumed_where_no_table_says_it(delay, known, tmp_path):
    config = ChartedConfig(delay=delay)
    if known:
        made = imported([counted()], "clif-2.1", tmp_path, config)
        assert np.isfinite(values(made, "hr")).sum() == known
        return
    with pytest.raises(RecordingError, match="no two hours in a row .*: 1"):
        imported([counted()], "clif-2.1", tmp_path, config)


def test_a_level_is_carried_for_four_hours_and_no_longer(tmp_path):
    stay = counted(12)
    levels = Line(np.array([0.0, 600.0]), np.array([5.0, 605.0]), np.array([7.0, 4.0]))
    made = imported([replace(stay, lines={**stay.lines, "level": levels})], "mimic-iv", tmp_path)
    seen = np.asarray(made.cohort.seen)[0]
    assert np.flatnonzero(seen).tolist() == [0, 1, 2, 3, 10, 11]
    assert np.asarray(made.cohort.level)[0, seen].tolist() == [7, 7, 7, 7, 4, 4]


def test_levels_are_read_from_text_and_a_negative_number_is_none():
    text = ["P8", "P-8", "p 8", "8", " 8.0 ", "-3", "-3.0", "P-12", "8.5", "Auto", None]
    found = pl.DataFrame({"x": text}, {"x": pl.String}).select(read_levels(pl.col("x")))["x"]
    assert found.to_list() == [8.0] * 5 + [NOT_READ] * 6


def test_a_pump_at_p0_ends_the_hours(tmp_path):
    stay = counted()
    minute = np.array([0.0, 200.0, 300.0])
    levels = Line(minute, minute + 5, np.array([7.0, 7.0, 0.0]))
    made = imported([replace(stay, lines={**stay.lines, "level": levels})], "mimic-iv", tmp_path)
    assert np.flatnonzero(np.asarray(made.cohort.seen)[0]).tolist() == [0, 1, 2, 3, 4]


FURTHER = ("lactate", "cvp", "pas", "pad", "pam", "papi", "weight", "age")


def with_further() -> ChartedStay:
    """Lactate every four hours, stored 45 min after it was drawn, or five hours; PA pressures."""
    stay = counted()
    drawn = np.array([20.0, 260.0, 290.0])
    lines = {"lactate": Line(drawn, drawn + np.array([45.0, 45.0, 300.0]), np.array([4.0, 3, 9]))}
    minute = 60.0 * np.arange(10) + 30
    about = {"cvp": 10.0, "pas": 45.0, "pad": 20.0, "pam": 28.0}
    lines |= {name: Line(minute, minute + 5, np.full(10, at)) for name, at in about.items()}
    return replace(stay, lines={**stay.lines, **lines}, age=67, died=True)


@pytest.mark.parametrize("name", FORMATS)
def test_further_columns_stand_where_they_became_known(name, tmp_path):
    made = imported([with_further()], name, tmp_path, ChartedConfig(further=FURTHER))
    assert set(made.cohort.columns[len(NAMES) :]) == {"nee", "vis", *FURTHER}
    lactate = np.full(10, np.nan)
    lactate[[1, 5]] = 4.0, 3.0  # known at 1:05 and 5:05; the last one came too late
    np.testing.assert_array_equal(values(made, "lactate")[:10], lactate)
    assert dict(made.late)["lactate"] == 1
    for signal, at in {"cvp": 10, "pas": 45, "pad": 20, "pam": 28, "papi": 2.5}.items():
        np.testing.assert_array_equal(values(made, signal)[:10], np.full(10, at))
    np.testing.assert_array_equal(values(made, "weight")[:10], np.full(10, 80.0))
    np.testing.assert_array_equal(values(made, "age")[:10], np.full(10, 67.0))
    # nothing of them is in a cohort that did not ask for it, and no hour is seen for them alone
    plain = imported([with_further()], name, tmp_path)
    assert plain.cohort.columns == (*NAMES, "nee", "vis")
    np.testing.assert_array_equal(plain.cohort.seen, made.cohort.seen)


@pytest.mark.parametrize("name", ["mimic-iv", "clif-3.0"])
def test_how_support_ended_is_told_beside_the_cohort(name, tmp_path):
    """The pump was turned off; the patient died on it; left with it; charting just ended."""
    stay = counted()
    minute = stay.lines["level"].minute
    off = Line(minute, minute + 5, np.append(stay.lines["level"].value[:-1], 0.0))
    stays = [
        replace(stay, lines={**stay.lines, "level": off}),
        replace(stay, died=True),
        replace(stay, minutes=560.0),
        replace(stay, minutes=900.0),
    ]
    stays = [replace(each, patient=f"p{i}") for i, each in enumerate(stays)]
    made = imported(stays, name, tmp_path)
    ended = dict(made.ends.select("patient", "ended").iter_rows())
    assert list(ended.values()) == ["off", "died", "left", "charting ended"]
    assert made.ends["died"].to_list() == [False, True, False, False]
    assert made.ends["hours"].to_list() == np.asarray(made.cohort.seen).sum(1).tolist()
    assert "died" not in made.cohort.columns
    # a death on support ends its stay for good: no hour follows the last decision
    assert np.asarray(made.cohort.died).tolist() == [False, True, False, False]
    hours = make_transitions(made.cohort)
    fatal = np.asarray(hours.died)
    assert np.asarray(hours.patient)[fatal].tolist() == [1]
    assert np.asarray(hours.last)[fatal].all()


def test_a_column_that_no_stay_has_is_refused(tmp_path):
    with pytest.raises(
        RecordingError, match=r"expected values of pas .* leave it out of --further"
    ):
        imported([counted()], "mimic-iv", tmp_path, ChartedConfig(further=("pas",)))
    with pytest.raises(RecordingError, match="expected the table clif_labs"):
        imported([counted()], "clif-3.0", tmp_path, ChartedConfig(further=("lactate",)))


@pytest.mark.parametrize("name", FORMATS)
def test_cuff_and_line_are_never_mixed(name, tmp_path):
    """The line is not charted in the sixth hour, the cuff is; and each cohort holds one of them."""
    stay = counted()
    lines = dict(stay.lines)
    for signal in ("map", "sbp", "dbp"):
        kept = lines[signal].minute != 330
        lines[signal] = Line(*(x[kept] for x in vars(lines[signal]).values()))
    made = imported([replace(stay, lines=lines)], name, tmp_path / "line")
    line = 70.0 + np.arange(10)
    line[5] = np.nan
    np.testing.assert_array_equal(values(made, "map")[:10], line)
    cuff = imported(
        [replace(stay, lines=lines)], name, tmp_path / "cuff", ChartedConfig(pressure="cuff")
    )
    np.testing.assert_array_equal(values(cuff, "map")[:10], 60.0 + np.arange(10))


def test_doses_in_any_unit_become_two_numbers():
    """By hand, at 80 kg: 8 mcg/min is 0.1 mcg/kg/min; 2.4 units/h are 0.04 units/min."""
    rows = [
        ("norepinephrine", 0.1, "mcg/kg/min", 0.1, 10.0),
        ("norepinephrine", 8.0, "mcg/min", 0.1, 10.0),
        ("norepinephrine", 0.48, "mg/hour", 0.1, 10.0),
        ("vasopressin", 2.4, "units/hour", 0.1, 5.0),
        ("milrinone", 0.5, "mcg/kg/min", 0.0, 5.0),
        ("dopamine", 5.0, "mcg/kg/min", 0.05, 5.0),
        ("phenylephrine", 1.0, "mcg/kg/min", 0.1, 0.0),
    ]
    names = ("drug", "dose", "unit")
    doses = pl.DataFrame([row[:3] for row in rows], names, orient="row")
    doses = doses.with_columns(weight=80.0, row=pl.int_range(1, len(rows) + 1))
    shares = add_shares(doses, "doses")
    np.testing.assert_allclose(shares["nee"], [row[3] for row in rows], rtol=1e-9)
    np.testing.assert_allclose(shares["vis"], [row[4] for row in rows], rtol=1e-9)
    no_weight = add_shares(doses.with_columns(weight=pl.lit(None, pl.Float64)), "doses")
    assert no_weight["nee"].is_null().to_list() == [False, True, True, False, False, False, False]
    with pytest.raises(
        RecordingError, match=r"doses, row 4: .*vasopressin in units/min .*'mcg/min'"
    ):
        add_shares(doses.with_columns(unit=pl.lit("mcg/min")).filter(pl.col("row") > 3), "doses")


# ── the command ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", FORMATS)
def test_the_command_writes_a_cohort_with_its_flow_of_stays(name, stays, tmp_path, capsys):
    folder = write(stays, name, tmp_path / "tables")
    origin = "mimic-iv" if name == "mimic-iv" else "clif"
    assert main(["import", str(folder), "--from", origin, "--out", str(tmp_path / "out")]) == 0
    taken = sum(stay.kind == "plain" for stay in stays)
    assert f"taken: {taken}\n" in capsys.readouterr().out
    cohort = read_cohort(tmp_path / "out")
    assert (len(cohort.patient), cohort.minutes, cohort.columns[-2:]) == (
        taken,
        60.0,
        ("nee", "vis"),
    )
    card = (tmp_path / "out/card.md").read_text()
    assert "![Flow of stays](flow.png)" in card
    assert (tmp_path / "out/flow.png").read_bytes().startswith(b"\x89PNG")
    ends = pl.read_parquet(tmp_path / "out/stays.parquet")
    assert ends["patient"].to_list() == list(cohort.patient)
    dead = np.asarray(cohort.died)
    assert ends.filter(pl.col("ended") == "died")["patient"].to_list() == [
        x for x, died in zip(cohort.patient, dead, strict=True) if died
    ]
    told = ends.group_by("ended").len().sort("len", "ended", descending=[True, False])
    for ended, count in told.iter_rows():
        assert f"| {ended} | {count} |" in card
    assert f"| left out: a right-sided pump | {sum(s.kind == 'right' for s in stays)} |" in card


def test_wrong_words_are_refused_in_one_sentence(tmp_path, capsys):
    words = ["import", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "expected --columns FILE or --from FORMAT, got neither." in capsys.readouterr().err
    assert main([*words, "--from", "clif", "--carry", "90"]) == 2
    assert "--carry: expected 1 to 24 hours, got 90." in capsys.readouterr().err
    assert main([*words, "--from", "clif"]) == 65
    assert "clif_mcs (3.0) or clif_ecmo_mcs (2.1), got neither" in capsys.readouterr().err
    assert main([*words, "--from", "mimic-iv"]) == 65
    assert "expected MIMIC-IV's table d_items.csv.gz, found none" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_unit_names_table_row_and_remedy_and_writes_nothing(tmp_path, capsys):
    folder = write([counted()], "mimic-iv", tmp_path / "tables")
    file = folder / "icu/chartevents.csv.gz"
    text = gzip.decompress(file.read_bytes()).decode().splitlines()
    place = next(i for i, line in enumerate(text) if ",220052," in line)
    text[place] = text[place].replace("mmHg", "kPa")
    file.write_bytes(gzip.compress("\n".join(text).encode()))
    words = ["import", str(folder), "--from", "mimic-iv", "--out", str(tmp_path / "out")]
    assert main(words) == 65
    said = capsys.readouterr().err
    assert f"chartevents.csv.gz, row {place + 1}: expected map in mmhg, got 'kPa'; convert" in said
    assert [file.name for file in tmp_path.iterdir()] == ["tables"]
