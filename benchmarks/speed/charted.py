"""Rows a second and memory to import MIMIC-IV: `python -m benchmarks.speed.charted FOLDER ROWS...`.

For about each number of rows, tables are invented below FOLDER (once), unpacked without reading
them, and imported by the command. About one row in ten is of an item that is read, one stay in a
hundred has a pump. A hundred stays are drawn, and come again and again under new ids.
"""

import argparse
import gzip
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import polars as pl

ROWS_OF_STAY, STAYS = 4500, 100  # rows of a stay, stays of a group; the first has a pump
# item, label, unit, share of all rows, mean, sd
READ = (
    (220045, "Heart Rate", "bpm", 0.022, 85, 12),
    (220179, "Non Invasive Blood Pressure systolic", "mmHg", 0.014, 118, 10),
    (220180, "Non Invasive Blood Pressure diastolic", "mmHg", 0.014, 62, 6),
    (220181, "Non Invasive Blood Pressure mean", "mmHg", 0.014, 78, 4),
    (220050, "Arterial Blood Pressure systolic", "mmHg", 0.012, 115, 8),
    (220051, "Arterial Blood Pressure diastolic", "mmHg", 0.012, 60, 5),
    (220052, "Arterial Blood Pressure mean", "mmHg", 0.012, 80, 4),
    (220074, "Central Venous Pressure", "mmHg", 0.008, 10, 2),
)
OTHERS = 250  # items that are not read
TEXTS = ("SR (Sinus Rhythm)", '"Alert, oriented"', "Done", "None", '"Within Normal, see note"')
PUMP = (
    (228156, "Performance Level", None),
    (228154, "Flow Rate (Impella)", "L/min"),
    (229679, "Type of Catheter (Impella)", None),
)
HEAD = (
    "subject_id,hadm_id,stay_id,caregiver_id,charttime,storetime,itemid,value,valuenum,"
    "valueuom,warning\n"
)
STAMP = "%Y-%m-%d %H:%M:%S"
TEXT = (228156, 229679)
START, MINUTE = np.datetime64("2150-01-01T00:00:00", "ms"), np.timedelta64(60_000, "ms")


def main() -> None:
    """Each number of rows, smallest first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=int, nargs="+")
    arguments = parser.parse_args()
    for about in arguments.rows:
        folder = arguments.folder / f"rows-{about}"
        if not folder.is_dir():
            make_tables(folder, about)
        file = folder / "icu/chartevents.csv.gz"
        rows = int((folder / "rows").read_text())
        floor = timed(["gunzip", "-c", str(file)])
        number = time.monotonic_ns()
        out = arguments.folder / f"out-{number}"
        words = ["import", str(folder), "--from", "mimic-iv", "--out", str(out)]
        wall, busy, memory = timed([sys.executable, "-m", "stepdown", *words])
        print(
            f"{rows:,} rows, {file.stat().st_size / 1e6:.0f} MB packed: "
            f"{wall:.1f} s ({busy:.1f} s CPU), {rows / wall / 1e6:.2f} M rows/s "
            f"({rows / busy / 1e6:.2f} M by CPU), gunzip {floor[0]:.1f} s ({floor[1]:.1f} s CPU), "
            f"peak {memory:.0f} MB",
            flush=True,
        )


def timed(words: list[str]) -> tuple[float, float, float]:
    """Seconds, seconds of CPU and peak MB of a command and its children."""
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
        raise SystemExit(f"{words[0]} ended with {status}.")
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def make_tables(folder: Path, rows: int) -> None:
    """The four tables; charts stay by stay, in one gzip stream."""
    icu = folder / "icu"
    icu.mkdir(parents=True)
    groups = max(rows // (ROWS_OF_STAY * STAYS), 1)
    items = [(i, label, unit) for i, label, unit, *_ in READ] + list(PUMP)
    items += [(300_000 + i, f"Other {i}", None) for i in range(OTHERS)]
    names = ["itemid", "label", "unitname"]
    write(icu / "d_items.csv.gz", pl.DataFrame(items, names, orient="row"))
    number = np.arange(groups * STAYS)
    begin = START + (number % STAYS) * 60 * MINUTE
    about = {
        "subject_id": 10_000_000 + number,
        "hadm_id": 20_000_000 + number,
        "stay_id": 30_000_000 + number,
        "intime": begin,
        "outtime": begin + 5 * 24 * 60 * MINUTE,
    }
    write(icu / "icustays.csv.gz", pl.DataFrame(about))
    group = charts(number[:STAYS], begin[:STAYS], ROWS_OF_STAY * STAYS, np.random.default_rng(0))
    packer, ids = zlib.compressobj(6, wbits=31), ("subject_id", "hadm_id", "stay_id")
    with (icu / "chartevents.csv.gz").open("wb") as file:
        file.write(packer.compress(HEAD.encode()))
        for first in range(0, groups * STAYS, STAYS):
            table = group.with_columns(pl.col(ids) + first)
            text = table.write_csv(include_header=False, quote_style="never", datetime_format=STAMP)
            file.write(packer.compress(text.encode()))
        file.write(packer.flush())
    (folder / "rows").write_text(str(group.height * groups))


def charts(stays: np.ndarray, begin: np.ndarray, rows: int, draw) -> pl.DataFrame:
    """So many rows of some stays, in order of stay and time."""
    who = np.sort(draw.integers(0, len(stays), rows))
    minute = draw.integers(0, 5 * 24 * 60, rows)
    order = np.lexsort((minute, who))
    when = begin[who] + minute[order] * MINUTE
    shares = np.array([share for *_, share, _, _ in READ])
    kind = draw.choice(len(READ) + 1, rows, p=[*shares, 1 - shares.sum()])
    means = np.array([*(mean for *_, mean, _ in READ), 50])
    spread = np.array([*(sd for *_, sd in READ), 10])
    value = np.rint(means[kind] + spread[kind] * draw.uniform(-1, 1, rows)).astype(int)
    ids = np.array([item for item, *_ in READ] + [0])
    other = 300_000 + draw.integers(0, OTHERS, rows)
    item = np.where(kind == len(READ), other, ids[kind])
    units = [*(unit for _, _, unit, *_ in READ), ""]
    text = (kind == len(READ)) & (draw.random(rows) < 0.4)
    words = np.array(TEXTS)[draw.integers(0, len(TEXTS), rows)]
    table = pl.DataFrame(
        {
            "subject_id": 10_000_000 + stays[who],
            "hadm_id": 20_000_000 + stays[who],
            "stay_id": 30_000_000 + stays[who],
            "caregiver_id": draw.integers(10_000, 99_999, rows),
            "charttime": when,
            "storetime": when + draw.integers(1, 40, rows) * MINUTE,
            "itemid": item,
            "value": np.where(text, words, value.astype(str)),
            "valuenum": value,
            "valueuom": np.array(units)[kind],
            "warning": np.zeros(rows, int),
        }
    ).with_columns(valuenum=pl.when(pl.Series(~text)).then("valuenum"))
    whole = pl.concat([pump_rows(stays[0], begin[0], draw), table], how="vertical_relaxed")
    whole = whole.unique(["stay_id", "itemid", "charttime"], maintain_order=True)
    return whole.sort("stay_id", "charttime", maintain_order=True)


def pump_rows(number: np.integer, begin: np.datetime64, draw) -> pl.DataFrame:
    """Level, flow, catheter and an arterial line every hour of a stay."""
    hours = begin + (60 * np.arange(1, 100) + draw.integers(0, 59, 99)) * MINUTE
    level = np.repeat([8, 7, 6, 5], 25)[:99]
    lines = {228156: [f"P-{x}" for x in level], 228154: [f"{x / 2:.1f}" for x in level]}
    lines |= {
        item: [str(mean)] * 99
        for item, _, _, _, mean, _ in READ
        if item in (220045, 220050, 220051, 220052)
    }
    units = {item: unit for item, _, unit, *_ in READ} | {228154: "L/min"}
    lines[229679] = ["2.5 / CP"] * 99
    parts = [
        pl.DataFrame(
            {
                "subject_id": np.full(99, 10_000_000 + number),
                "hadm_id": np.full(99, 20_000_000 + number),
                "stay_id": np.full(99, 30_000_000 + number),
                "caregiver_id": np.full(99, 12_345),
                "charttime": hours,
                "storetime": hours + 5 * MINUTE,
                "itemid": np.full(99, item),
                "value": values,
                "valuenum": [None if item in TEXT else float(x) for x in values],
                "valueuom": [units.get(item, "")] * 99,
                "warning": np.zeros(99, int),
            },
            schema_overrides={"valuenum": pl.Float64},
        )
        for item, values in lines.items()
    ]
    return pl.concat(parts)


def write(file: Path, table: pl.DataFrame) -> None:
    """One small table."""
    file.write_bytes(gzip.compress(table.write_csv(datetime_format=STAMP).encode()))


if __name__ == "__main__":
    main()
