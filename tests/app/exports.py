"""A table as people write it: semicolons, decimal commas, local dates; and its mapping."""

import datetime
from pathlib import Path

import numpy as np

from stepdown.app.gates import UNKNOWN
from stepdown.app.recordings import Stay
from stepdown.signals import NAMES

MAPPING = """kind = "values"
[patient]
column = "Fall"
[time]
column = "Zeit"
unit = "date"
zone = "Europe/Berlin"
[level]
column = "Stufe"
[signals]
map = { column = "MAD", unit = "mmHg" }
hr = { column = "HF", unit = "/min" }
sbp = { column = "RRsys", unit = "mmHg" }
dbp = { column = "RRdia", unit = "mmHg" }
pulsatility = { column = "Puls", unit = "mmHg" }
flow = { column = "Fluss", unit = "L/min" }
lactate = { column = "Laktat", unit = "mmol/L" }
"""
COLUMNS = {"MAD": "map", "HF": "hr", "RRsys": "sbp", "RRdia": "dbp", "Puls": "pulsatility",
           "Fluss": "flow"}  # fmt: skip
HEAD = ";".join(["Fall", "Zeit", "Stufe", *COLUMNS, "Laktat"])
BEGIN = datetime.datetime(2025, 3, 7, 8, 0)  # in spring: the clock changes later in the month


def rows_of(stay: Stay, name: str, first: int, last: int) -> list[str]:
    """Samples of a stay as lines of the table."""
    found = []
    for i in range(first, last):
        if stay.level[i] == UNKNOWN:
            continue
        stamp = (BEGIN + datetime.timedelta(minutes=stay.minutes * i)).strftime("%d.%m.%Y %H:%M")
        values = [float(stay.signals[i, NAMES.index(x)]) for x in COLUMNS.values()]
        told = ["" if np.isnan(x) else f"{x:.2f}".replace(".", ",") for x in [*values, 1.8]]
        found.append(";".join([name, stamp, f"P-{stay.level[i]}", *told]))
    return found


def write_export(folder: Path, stay: Stay, last: int) -> Path:
    """`export.csv` and `mapping.toml` with the beginning of a stay."""
    (folder / "mapping.toml").write_text(MAPPING, encoding="utf-8")
    file = folder / "export.csv"
    file.write_text("\n".join([HEAD, *rows_of(stay, "A1", 0, last)]) + "\n", encoding="utf-8")
    return file
