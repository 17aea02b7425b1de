"""Seconds and memory to import 24-hour stays: `python -m benchmarks.speed.importing [STAYS]`.

Three channels at 25 Hz, once in each format, then a folder of so many stays.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import polars as pl

from stepdown.records.importer import ImportConfig, import_file
from stepdown.records.mapping import parse_mapping

HOURS, RATE = 24, 25
MAPPING = {
    "kind": "waveforms",
    "time": {"column": "second", "unit": "s"},
    "signals": {
        "placement": {"column": "placement", "unit": "mmHg"},
        "speed": {"column": "speed", "unit": "rpm"},
        "current": {"column": "current", "unit": "mA"},
    },
}


def main() -> None:
    """Each format once, then the folder (links to one file would be refused)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stays", type=int, nargs="?", default=100)
    stays = parser.parse_args().stays
    columns, config = parse_mapping(MAPPING), ImportConfig()
    with tempfile.TemporaryDirectory() as folder:
        base, many = Path(folder), Path(folder) / "many"
        many.mkdir()
        table = make_stay()
        write(table, base)
        for i in range(stays):
            (many / f"s{i:03d}.parquet").hardlink_to(base / "stay.parquet")
        del table
        import_file(base / "stay.parquet", columns, config)  # imports and caches
        for ending in (".csv", ".parquet", ".h5"):
            start, busy = time.perf_counter(), time.process_time()
            import_file(base / f"stay{ending}", columns, config)
            taken, busy = time.perf_counter() - start, time.process_time() - busy
            print(f"24 h {ending}: {taken:.2f} s ({busy:.2f} s CPU), peak {peak():.0f} MB")
        start = time.perf_counter()
        for file in sorted(many.iterdir()):
            import_file(file, columns, config)
        taken = time.perf_counter() - start
        print(f"{stays} stays, one process: {taken:.1f} s, peak {peak():.0f} MB")


def make_stay() -> pl.DataFrame:
    """Something that beats; what it means does not matter to the clock."""
    draw, second = np.random.default_rng(0), np.arange(HOURS * 3600 * RATE) / RATE
    beat = np.sin(2 * np.pi * 1.3 * second)
    return pl.DataFrame(
        {
            "second": second,
            "placement": np.round(80 + 15 * beat + draw.normal(0, 1, len(second)), 2),
            "speed": np.round(39_000 + draw.normal(0, 15, len(second))),
            "current": np.round(550 + 60 * beat + draw.normal(0, 5, len(second))),
        }
    )


def write(table: pl.DataFrame, folder: Path) -> None:
    """The stay in three formats."""
    table.write_csv(folder / "stay.csv")
    table.write_parquet(folder / "stay.parquet")
    with h5py.File(folder / "stay.h5", "w") as file:
        for name in table.columns:
            file.create_dataset(name, data=table[name].to_numpy(), compression="gzip")


def peak() -> float:
    """Largest memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
