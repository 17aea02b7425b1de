"""Faults planted in CLIF tables, seeded, with how large each is. Committed before their rules.

The same kinds as in MIMIC-IV where CLIF can have them, and those of its own: ids of stays swapped,
one table in local time, sites of measurement lost. Version 3.0 is in Parquet files, 2.1 in CSV.
`SEEN` kinds leave a trace; `UNSEEN` ones stay inside the plausible range of the rows around them
and are counted as such, never as found. `ONLY_3` kinds need the store time that 2.1 does not have.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

Tables = dict[str, pl.DataFrame]  # without "clif_"; typed, as the writer has them
STAY, HOUR = "hospitalization_id", 3_600_000_000  # µs
PRESSURES = ("map", "sbp", "dbp")


def write_tables(tables: Tables, folder: Path) -> None:
    """3.0 as Parquet, 2.1 as CSV."""
    folder.mkdir(parents=True)
    for name, table in tables.items():
        if "mcs" in tables:
            table.write_parquet(folder / f"clif_{name}.parquet")
        else:
            table.write_csv(folder / f"clif_{name}.csv", datetime_format="%Y-%m-%dT%H:%M:%SZ")


def plant(kind: str, tables: Tables, folder: Path, stays: tuple[str, str], seed: int) -> None:
    """Write the tables with one fault of this kind, in the first of two stays where it is one's."""
    rng = np.random.default_rng([seed, sum(kind.encode())])
    if kind in FILES:
        write_tables(tables, folder)
        FILES[kind](folder, rng)
        return
    write_tables((SEEN | UNSEEN)[kind](dict(tables), stays, rng), folder)


def _support(tables: Tables) -> str:
    return "mcs" if "mcs" in tables else "ecmo_mcs"


def _change(tables: Tables, table: str, where: pl.Expr, **columns: pl.Expr) -> Tables:
    """Change columns of some rows."""
    changed = {
        name: pl.when(where).then(to).otherwise(pl.col(name)) for name, to in columns.items()
    }
    return tables | {table: tables[table].with_columns(**changed)}


def _here(stays: tuple[str, str]) -> pl.Expr:
    return pl.col(STAY) == stays[0]


def _pressure() -> pl.Expr:
    return pl.col("vital_category").is_in(PRESSURES)


def _later(column: str, hours: float) -> pl.Expr:
    return pl.col(column) + pl.duration(microseconds=round(hours * HOUR))


def _some(tables: Tables, stays: tuple[str, str], rng) -> pl.DataFrame:
    """Some pressures of a stay: 3 to 12 of them."""
    rows = tables["vitals"].filter(_here(stays) & _pressure())
    count = min(int(rng.integers(3, 13)), rows.height)
    return rows[sorted(rng.choice(rows.height, count, replace=False).tolist())]


def _pressures_swapped(tables: Tables, stays, rng) -> Tables:
    """Systolic and diastolic values of a stay have each other's names."""
    other = {"sbp": "dbp", "dbp": "sbp"}
    name = pl.col("vital_category").replace(other)
    return _change(tables, "vitals", _here(stays), vital_category=name)


def _ids_swapped(tables: Tables, stays, rng) -> Tables:
    """Two stays have each other's vitals."""
    other = {stays[0]: stays[1], stays[1]: stays[0]}
    return tables | {"vitals": tables["vitals"].with_columns(pl.col(STAY).replace(other))}


def _unit_hidden(tables: Tables, stays, rng) -> Tables:
    """Pressures of every stay are in kPa."""
    return _change(
        tables, "vitals", _pressure(), vital_value=(pl.col("vital_value") / 7.50062).round(1)
    )


def _flow_unit(tables: Tables, stays, rng) -> Tables:
    """Pump flow of a stay is in mL/min."""
    if "mcs" in tables:
        flow = _here(stays) & (pl.col("setting_category") == "flow")
        return _change(tables, "mcs", flow, setting_value=pl.col("setting_value") * 1000)
    return _change(tables, "ecmo_mcs", _here(stays), flow=pl.col("flow") * 1000)


def _dose_unit_unknown(tables: Tables, stays, rng) -> Tables:
    unit = pl.lit(rng.choice(["mL/hour", "grams/kg/min", "dose", "mcg"]))
    return _change(tables, "medication_admin_continuous", _here(stays), med_dose_unit=unit)


def _dose_unit_wrong(tables: Tables, stays, rng) -> Tables:
    """Doses of every stay are per minute and declared per kilogram and minute."""
    table = "medication_admin_continuous"
    grown = pl.col("med_dose") * float(rng.uniform(60, 100))
    return _change(tables, table, pl.lit(True), med_dose=grown, med_dose_unit=pl.lit("mcg/kg/min"))


def _dose_negative(tables: Tables, stays, rng) -> Tables:
    given = _here(stays) & (pl.col("med_dose") > 0)
    return _change(tables, "medication_admin_continuous", given, med_dose=-pl.col("med_dose"))


def _entries_contradict(tables: Tables, stays, rng) -> Tables:
    """Pressures of a stay come twice, the second time with another value."""
    shift = float(rng.integers(5, 40))
    again = _some(tables, stays, rng).with_columns(pl.col("vital_value") + shift)
    return tables | {"vitals": pl.concat([tables["vitals"], again])}


def _entries_repeat(tables: Tables, stays, rng) -> Tables:
    """Pressures of a stay come twice, the same."""
    return tables | {"vitals": pl.concat([tables["vitals"], _some(tables, stays, rng)])}


def _stored_before(tables: Tables, stays, rng) -> Tables:
    """Vitals of a stay are recorded before they are measured."""
    early = pl.col("measured_dttm") - pl.duration(minutes=int(rng.integers(30, 600)))
    return _change(tables, "vitals", _here(stays), recorded_dttm=early)


def _clock_ahead(tables: Tables, stays, rng) -> Tables:
    """The clock by which a stay was measured runs two to five hours ahead."""
    late = _later("measured_dttm", int(rng.integers(2, 6)))
    return _change(tables, "vitals", _here(stays), measured_dttm=late)


def _local_time(tables: Tables, stays, rng) -> Tables:
    """The table of support is in local time, of a hospital west or far east, declared as UTC."""
    hours = int(rng.choice([-8, -7, -6, -5, 8, 9, 10]))
    table = _support(tables)
    return _change(tables, table, pl.lit(True), recorded_dttm=_later("recorded_dttm", hours))


def _offset_shown(tables: Tables, stays, rng) -> Tables:
    """Stamps of vitals are text with another offset than that of UTC."""
    stamp = pl.col("recorded_dttm").dt.strftime(f"%Y-%m-%dT%H:%M:%S-0{rng.integers(4, 9)}:00")
    return tables | {"vitals": tables["vitals"].with_columns(recorded_dttm=stamp)}


def _time_unreadable(tables: Tables, stays, rng) -> Tables:
    """A time of some rows of a stay is empty or written in another way."""
    odd = rng.choice(["", "26/10/2163 14:08", "noon", "2163-10-26"])
    stamp = pl.col("recorded_dttm").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    changed = pl.when(_here(stays)).then(pl.lit(odd)).otherwise(stamp)
    return tables | {"vitals": tables["vitals"].with_columns(recorded_dttm=changed)}


def _support_overlaps(tables: Tables, stays, rng) -> Tables:
    """A balloon or ECMO runs beside the pump."""
    name, kind = _support(tables), str(rng.choice(["iabp", "ecmo"]))
    row = tables[name].filter(_here(stays)).head(1)
    about = {"device_category": pl.lit(kind if kind == "iabp" else "centrimag")}
    group = "support_category" if name == "mcs" else "mcs_group"
    row = row.with_columns(**about, **{group: pl.lit(kind)})
    return tables | {name: pl.concat([tables[name], row])}


def _cuff_for_line(tables: Tables, stays, rng) -> Tables:
    """All pressures of a stay are said to be a cuff's."""
    if "mcs" in tables:
        return _change(tables, "vitals", _here(stays) & _pressure(), meas_site_name=pl.lit("cuff"))
    name = pl.lit("Non Invasive Blood Pressure ") + pl.col("vital_category")
    return _change(tables, "vitals", _here(stays) & _pressure(), vital_name=name)


def _site_lost(tables: Tables, stays, rng) -> Tables:
    """Nothing says where the pressures of a stay were taken."""
    column = "meas_site_name" if "mcs" in tables else "vital_name"
    return _change(
        tables, "vitals", _here(stays) & _pressure(), **{column: pl.lit(None, pl.String)}
    )


def _category_unknown(tables: Tables, stays, rng) -> Tables:
    """A pressure of a stay has a name that the format does not know."""
    one = str(rng.choice(PRESSURES))
    name = {one: f"{one}_mean"}
    return _change(
        tables, "vitals", _here(stays), vital_category=pl.col("vital_category").replace(name)
    )


def _level_unreadable(tables: Tables, stays, rng) -> Tables:
    value = float(rng.choice([12.0, 8.5, -3.0]))
    if "mcs" in tables:
        level = _here(stays) & (pl.col("setting_category") == "performance")
        return _change(tables, "mcs", level, setting_value=pl.lit(value))
    column = next(x for x in ("control_parameter_value", "device_rate") if x in _names(tables))
    level = _here(stays) & (pl.col(column) < 10)
    return _change(tables, "ecmo_mcs", level, **{column: pl.lit(value)})


def _names(tables: Tables) -> list[str]:
    return tables[_support(tables)].columns


def _pressure_shifted(tables: Tables, stays, rng) -> Tables:
    """A line that was not zeroed: 3 to 8 mmHg off, which no row can tell."""
    value = pl.col("vital_value") + float(rng.integers(3, 9))
    return _change(tables, "vitals", _here(stays) & _pressure(), vital_value=value)


def _clock_behind(tables: Tables, stays, rng) -> Tables:
    """All vitals of a stay are an hour early; 2.1 has no second clock to tell it."""
    times = [x for x in ("recorded_dttm", "measured_dttm") if x in tables["vitals"].columns]
    return _change(tables, "vitals", _here(stays), **{x: _later(x, -1) for x in times})


def _weight_in_pounds(tables: Tables, stays, rng) -> Tables:
    """The weight of a stay is in pounds: its doses by weight are those of a lighter patient."""
    weight = _here(stays) & (pl.col("vital_category") == "weight_kg")
    return _change(tables, "vitals", weight, vital_value=pl.col("vital_value") * 2.2046)


Fault = Callable[[Tables, tuple[str, str], np.random.Generator], Tables]
SEEN: dict[str, Fault] = {
    "pressures swapped": _pressures_swapped,
    "ids swapped": _ids_swapped,
    "unit hidden": _unit_hidden,
    "flow in mL/min": _flow_unit,
    "dose unit unknown": _dose_unit_unknown,
    "dose unit wrong": _dose_unit_wrong,
    "dose negative": _dose_negative,
    "entries contradict": _entries_contradict,
    "entries repeat": _entries_repeat,
    "stored before charted": _stored_before,
    "clock ahead": _clock_ahead,
    "support in local time": _local_time,
    "offset shown": _offset_shown,
    "time unreadable": _time_unreadable,
    "support overlaps": _support_overlaps,
    "cuff for line": _cuff_for_line,
    "site lost": _site_lost,
    "category unknown": _category_unknown,
    "level unreadable": _level_unreadable,
}
ONLY_3 = ("stored before charted", "clock ahead")
UNSEEN: dict[str, Fault] = {
    "pressure shifted": _pressure_shifted,
    "clock behind": _clock_behind,
    "weight in pounds": _weight_in_pounds,
}


def _cut(folder: Path, rng) -> None:
    """A table ends in the middle of a row, before its last column."""
    name = str(rng.choice(["vitals", "medication_admin_continuous"]))
    file = next(folder.glob(f"clif_{name}.*"))
    data = file.read_bytes()
    place = int(len(data) * rng.uniform(0.2, 0.95))
    if file.suffix == ".csv":
        place = data.rfind(b"\n", 0, place) + int(rng.integers(5, 25))
    file.write_bytes(data[:place])


def _encoded(folder: Path, rng) -> None:
    """A table in another encoding; of Parquet, text under that name."""
    file = next(folder.glob("clif_vitals.*"))
    text = file.read_text() if file.suffix == ".csv" else pl.read_parquet(file).write_csv()
    file.write_bytes(text.encode("utf-16" if file.suffix == ".csv" else "utf-8"))


def _column_renamed(folder: Path, rng) -> None:
    table, name = _COLUMNS[int(rng.integers(len(_COLUMNS)))]
    file = next(folder.glob(f"clif_{table}.*"))
    if file.suffix == ".csv":
        file.write_bytes(file.read_bytes().replace(name.encode(), f"{name}_x".encode(), 1))
        return
    pl.read_parquet(file).rename({name: f"{name}_x"}).write_parquet(file)


_COLUMNS = (
    ("vitals", "recorded_dttm"),
    ("vitals", "vital_value"),
    ("hospitalization", "patient_id"),
    ("medication_admin_continuous", "med_dose_unit"),
    ("medication_admin_continuous", STAY),
)


def _table_missing(folder: Path, rng) -> None:
    table = rng.choice(["vitals", "hospitalization", "*mcs"])
    next(folder.glob(f"clif_{table}.*")).unlink()


def _two_versions(folder: Path, rng) -> None:
    """Tables of support of both versions."""
    (file,) = folder.glob("clif_*mcs.*")
    other = "clif_ecmo_mcs" if file.stem == "clif_mcs" else "clif_mcs"
    (folder / f"{other}{file.suffix}").write_bytes(file.read_bytes())


FILES: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "cut off": _cut,
    "other encoding": _encoded,
    "column renamed": _column_renamed,
    "table missing": _table_missing,
    "two versions": _two_versions,
}
