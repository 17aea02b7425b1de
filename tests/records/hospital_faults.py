"""Faults planted in MIMIC-IV tables, seeded, with how large each is. Committed before any rule.

Each kind changes a whole table or some rows of one stay, as it happens when an export goes wrong.
`SEEN` kinds leave a trace that a careful reader finds; `UNSEEN` ones stay inside the plausible
range of the rows around them and are counted as such, never as found.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

Tables = dict[str, pl.DataFrame]  # all text, as in the files

ARTERIAL = {"sbp": "220050", "dbp": "220051", "map": "220052"}
CUFF = {"220050": "220179", "220051": "220180", "220052": "220181"}


def read_tables(folder: Path) -> Tables:
    """Every table of a folder, as text."""
    found = sorted((folder / "icu").glob("*.csv.gz"))
    return {
        file.name.removesuffix(".csv.gz"): pl.read_csv(
            gzip.decompress(file.read_bytes()), infer_schema=False
        )
        for file in found
    }


def write_tables(tables: Tables, folder: Path) -> None:
    """The tables as a folder again."""
    (folder / "icu").mkdir(parents=True)
    for name, table in tables.items():
        data = gzip.compress(table.write_csv().encode(), 1, mtime=0)
        (folder / "icu" / f"{name}.csv.gz").write_bytes(data)


def plant(kind: str, tables: Tables, folder: Path, stay: str, seed: int) -> None:
    """Write the tables with one fault of this kind, in this stay where it is a stay's."""
    rng = np.random.default_rng([seed, sum(kind.encode())])
    if kind in FILES:
        write_tables(tables, folder)
        FILES[kind](folder / "icu", rng)
        return
    write_tables((SEEN | UNSEEN)[kind](dict(tables), stay, rng), folder)


def _labels_swapped(tables: Tables, stay: str, rng) -> Tables:
    """Two items of the dictionary have each other's names."""
    items, known = tables["d_items"], [*ARTERIAL.values(), *CUFF.values(), "228154", "229898"]
    one, two = rng.choice(known, 2, replace=False)
    other = {one: two, two: one}
    return tables | {"d_items": items.with_columns(pl.col("itemid").replace(other))}


def _pressures_swapped(tables: Tables, stay: str, rng) -> Tables:
    """Systolic and diastolic rows of a stay have each other's ids."""
    swap = {ARTERIAL["sbp"]: ARTERIAL["dbp"], ARTERIAL["dbp"]: ARTERIAL["sbp"]}
    return _chart(tables, stay, itemid=pl.col("itemid").replace(swap))


def _unit_declared(tables: Tables, stay: str, rng) -> Tables:
    """The unit that a pressure of a stay declares is another one."""
    item, unit = rng.choice(list(ARTERIAL.values())), rng.choice(["kPa", "cmH2O", "bpm"])
    here = pl.col("itemid") == item
    return _chart(
        tables, stay, valueuom=pl.when(here).then(pl.lit(unit)).otherwise(pl.col("valueuom"))
    )


def _unit_hidden(tables: Tables, stay: str, rng) -> Tables:
    """Arterial pressures of every stay are in kPa and declared as mmHg."""
    number = (pl.col("valuenum").cast(pl.Float64) / 7.50062).round(1).cast(pl.String)
    here = pl.col("itemid").is_in(list(ARTERIAL.values()))
    changed = tables["chartevents"].with_columns(
        pl.when(here).then(number).otherwise(pl.col(name)).alias(name)
        for name in ("value", "valuenum")
    )
    return tables | {"chartevents": changed}


def _dose_unit_unknown(tables: Tables, stay: str, rng) -> Tables:
    return _doses(tables, stay, rateuom=pl.lit(rng.choice(["mL/hour", "grams/kg/min", "dose"])))


def _dose_unit_wrong(tables: Tables, stay: str, rng) -> Tables:
    """Rates of every stay are per minute and declared per kilogram and minute."""
    rate = pl.col("rate").cast(pl.Float64) * pl.col("patientweight").cast(pl.Float64)
    changed = tables["inputevents"].with_columns(rate=rate.round(3).cast(pl.String))
    return tables | {"inputevents": changed}


def _dose_negative(tables: Tables, stay: str, rng) -> Tables:
    return _doses(tables, stay, rate=pl.lit("-") + pl.col("rate"))


def _entries_contradict(tables: Tables, stay: str, rng) -> Tables:
    """Entries of a stay come twice, the second time with another value."""
    rows = _some(tables, stay, list(ARTERIAL.values()), rng)
    shift = float(rng.integers(5, 40))
    number = (pl.col("valuenum").cast(pl.Float64) + shift).cast(pl.String)
    again = rows.with_columns(value=number, valuenum=number)
    return tables | {"chartevents": pl.concat([tables["chartevents"], again])}


def _entries_repeat(tables: Tables, stay: str, rng) -> Tables:
    """Entries of a stay come twice, the same."""
    rows = _some(tables, stay, list(ARTERIAL.values()), rng)
    return tables | {"chartevents": pl.concat([tables["chartevents"], rows])}


def _stored_before(tables: Tables, stay: str, rng) -> Tables:
    """Entries of a stay are stored before they are charted."""
    return _chart(tables, stay, storetime=_moved("charttime", -int(rng.integers(30, 600))))


def _support_overlaps(tables: Tables, stay: str, rng) -> Tables:
    item, value = (("229270", "3.5"), ("225980", "40"))[int(rng.integers(2))]
    rows = _some(tables, stay, ["228156"], rng).head(1)
    other = rows.with_columns(itemid=pl.lit(item), value=pl.lit(value), valuenum=pl.lit(value))
    return tables | {"chartevents": pl.concat([tables["chartevents"], other])}


def _cuff_for_line(tables: Tables, stay: str, rng) -> Tables:
    """All arterial pressures of a stay are cuff pressures."""
    chart = tables["chartevents"].filter(
        ~((pl.col("stay_id") == stay) & pl.col("itemid").is_in(list(CUFF.values())))
    )
    return _chart(tables | {"chartevents": chart}, stay, itemid=pl.col("itemid").replace(CUFF))


def _clock_ahead(tables: Tables, stay: str, rng) -> Tables:
    """The clock of the charts runs one hour or more ahead of the computer's."""
    return _chart(tables, stay, charttime=_moved("charttime", 60 * int(rng.integers(2, 6))))


def _clock_behind(tables: Tables, stay: str, rng) -> Tables:
    """The clock of the charts is an hour behind: as if everything were stored an hour late."""
    return _chart(tables, stay, charttime=_moved("charttime", -60))


def _level_unreadable(tables: Tables, stay: str, rng) -> Tables:
    here = pl.col("itemid") == "228156"
    text = pl.lit(rng.choice(["Auto", "P-12", "Boost", "8.5"]))
    return _chart(tables, stay, value=pl.when(here).then(text).otherwise(pl.col("value")))


def _time_unreadable(tables: Tables, stay: str, rng) -> Tables:
    return _chart(tables, stay, charttime=pl.lit(rng.choice(["", "26/10/2163 14:08", "noon"])))


def _pressure_shifted(tables: Tables, stay: str, rng) -> Tables:
    """A line that was not zeroed: 3 to 8 mmHg off, which no row can tell."""
    number = (pl.col("valuenum").cast(pl.Float64) + float(rng.integers(3, 9))).cast(pl.String)
    here = pl.col("itemid").is_in(list(ARTERIAL.values()))
    return _chart(
        tables,
        stay,
        value=pl.when(here).then(number).otherwise(pl.col("value")),
        valuenum=pl.when(here).then(number).otherwise(pl.col("valuenum")),
    )


SEEN: dict[str, Callable[[Tables, str, np.random.Generator], Tables]] = {
    "labels swapped": _labels_swapped,
    "pressures swapped": _pressures_swapped,
    "unit declared otherwise": _unit_declared,
    "unit hidden": _unit_hidden,
    "dose unit unknown": _dose_unit_unknown,
    "dose unit wrong": _dose_unit_wrong,
    "dose negative": _dose_negative,
    "entries contradict": _entries_contradict,
    "entries repeat": _entries_repeat,
    "stored before charted": _stored_before,
    "support overlaps": _support_overlaps,
    "cuff for line": _cuff_for_line,
    "clock ahead": _clock_ahead,
    "level unreadable": _level_unreadable,
    "time unreadable": _time_unreadable,
}
UNSEEN = {"clock behind": _clock_behind, "pressure shifted": _pressure_shifted}


def _truncated(icu: Path, rng) -> None:
    file = icu / str(rng.choice(["chartevents.csv.gz", "inputevents.csv.gz", "icustays.csv.gz"]))
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * rng.uniform(0.2, 0.95))])


def _encoded(icu: Path, rng) -> None:
    """Another encoding, which the dictionary's degree sign or every character shows."""
    encoding = str(rng.choice(["utf-16", "latin-1"]))
    file = icu / "chartevents.csv.gz"
    text = gzip.decompress(file.read_bytes()).decode()
    file.write_bytes(gzip.compress(text.encode(encoding), 1, mtime=0))


def _column_renamed(icu: Path, rng) -> None:
    file = icu / "chartevents.csv.gz"
    text = gzip.decompress(file.read_bytes()).decode()
    name = str(rng.choice(["storetime", "itemid", "valueuom", "stay_id"]))
    file.write_bytes(gzip.compress(text.replace(name, f"{name}_x", 1).encode(), 1, mtime=0))


def _table_missing(icu: Path, rng) -> None:
    (icu / f"{rng.choice(['d_items', 'icustays', 'chartevents'])}.csv.gz").unlink()


FILES: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "gzip truncated": _truncated,
    "other encoding": _encoded,
    "column renamed": _column_renamed,
    "table missing": _table_missing,
}


def _chart(tables: Tables, stay: str, **columns: pl.Expr) -> Tables:
    """Change columns of the charted rows of one stay."""
    here = pl.col("stay_id") == stay
    changed = {name: pl.when(here).then(to).otherwise(pl.col(name)) for name, to in columns.items()}
    return tables | {"chartevents": tables["chartevents"].with_columns(**changed)}


def _doses(tables: Tables, stay: str, **columns: pl.Expr) -> Tables:
    """Change columns of the infusions of one stay."""
    here = pl.col("stay_id") == stay
    changed = {name: pl.when(here).then(to).otherwise(pl.col(name)) for name, to in columns.items()}
    return tables | {"inputevents": tables["inputevents"].with_columns(**changed)}


def _some(tables: Tables, stay: str, items: list[str], rng) -> pl.DataFrame:
    """Some rows of a stay: 3 to 12 of them."""
    here = (pl.col("stay_id") == stay) & pl.col("itemid").is_in(items)
    rows = tables["chartevents"].filter(here)
    count = min(int(rng.integers(3, 13)), rows.height)
    return rows[sorted(rng.choice(rows.height, count, replace=False).tolist())]


def _moved(column: str, minutes: int) -> pl.Expr:
    time = pl.col(column).str.to_datetime("%Y-%m-%d %H:%M:%S") + pl.duration(minutes=minutes)
    return time.dt.strftime("%Y-%m-%d %H:%M:%S")
