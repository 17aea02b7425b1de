"""Foreign files as tables, batch by batch: CSV, Parquet, HDF5, WFDB. Nothing in them is believed.

Sizes are checked before anything is unpacked, links and foreign places are refused, and whatever
a library raises over a damaged file leaves here as a `RecordingError`: one sentence for a person.
Columns come as they are; what they mean is for `mapping.py` to say.
"""

import contextlib
import csv
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from stepdown.records.containers import hdf5_names, read_hdf5, read_wfdb, wfdb_header
from stepdown.records.limits import BATCH, RecordingError, check_sizes
from stepdown.records.parquet_sizes import MAGIC, ParquetError, parquet_sizes

ENDINGS = {".csv": "CSV", ".parquet": "Parquet", ".h5": "HDF5", ".hdf5": "HDF5", ".hea": "WFDB"}

_LONGEST_LINE = 2**16  # bytes of a CSV's header
_PLAIN_TYPES = (pl.String, pl.Boolean, pl.Datetime, pl.Null)
# Seen in 24,000 damaged files, and what running out of room or of numbers would raise.
_LIBRARY_ERRORS = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class RawTable:
    """Some rows of a recording, as they are in the file."""

    frame: pl.DataFrame
    name: str  # of the file, without its ending
    source: Path
    rate: float | None = None  # Hz, where the format knows it

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Every column as an array; text stays text."""
        return {name: self.frame[name].to_numpy() for name in self.frame.columns}


def list_recordings(path: Path) -> list[Path]:
    """The file itself, or every recording directly inside a folder, in order of name."""
    if not path.is_dir():
        return [require_file(path)]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
    for file in found:
        if file.is_symlink():
            raise RecordingError(f"{file}: expected a file, got a link; copy the file here.")
    if not found:
        raise RecordingError(
            f"{path}: expected recordings ({', '.join(ENDINGS)}), found none; check the folder."
        )
    return [require_file(file) for file in found]


def require_file(path: Path) -> Path:
    """Refuse what is no local file of a known format."""
    if not path.is_file():
        raise RecordingError(
            f"{path}: expected a file or folder on this machine, found none; check the path."
        )
    if path.suffix.lower() not in ENDINGS:
        raise RecordingError(f"{path}: expected a name with {', '.join(ENDINGS)}; convert it.")
    return path


def companions(path: Path) -> list[Path]:
    """Every file that a recording consists of."""
    if ENDINGS[path.suffix.lower()] != "WFDB":
        return [path]
    with _typed(path):
        return [path, *(path.parent / name for name in wfdb_header(path).files)]


def column_names(path: Path, separator: str = ",") -> list[str]:
    """The columns of a recording, in order."""
    kind = ENDINGS[require_file(path).suffix.lower()]
    with _typed(path):
        return _NAMES[kind](path, separator)


def read_batches(
    path: Path, wanted: Sequence[str] | None = None, separator: str = ","
) -> Iterator[RawTable]:
    """The wanted columns (None: all of them), at most about `BATCH` rows at a time."""
    names = column_names(path, separator)
    for name in [name for name in wanted or () if name not in names]:
        shown = ", ".join(names[:20])
        raise RecordingError(
            f"{path}: expected a column {name!r}, which is missing; "
            f"correct the mapping. There are: {shown}."
        )
    wanted = list(names if wanted is None else wanted)
    kind = ENDINGS[path.suffix.lower()]
    with _typed(path):
        rate = wfdb_header(path).rate if kind == "WFDB" else None
        for frame in _READ[kind](path, wanted, separator):
            yield RawTable(frame, path.stem, path, rate)


def read_table(
    path: Path, wanted: Sequence[str] | None = None, separator: str = ",", rows: int = 2**25
) -> RawTable:
    """A whole recording at once, if it has no more than `rows` rows."""
    tables, total = [], 0
    for table in read_batches(path, wanted, separator):
        total += table.frame.height
        if total > rows:
            raise RecordingError(f"{path}: expected at most {rows:,} rows; split the file.")
        tables.append(table)
    if not tables:
        raise RecordingError(f"{path}: expected rows, got none; export it again.")
    frame = pl.concat([table.frame for table in tables])
    return RawTable(frame, path.stem, path, tables[0].rate)


@contextlib.contextmanager
def _typed(path: Path) -> Iterator[None]:
    """Turn whatever a library raises over this file into one typed sentence."""
    try:
        yield
    except RecordingError:
        raise
    except _LIBRARY_ERRORS as error:
        kind = ENDINGS[path.suffix.lower()]
        words = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise RecordingError(
            f"{path}: expected a readable {kind} file, got a damaged or foreign one ({words}); "
            "export it again."
        ) from error


def _csv_names(path: Path, separator: str) -> list[str]:
    with path.open("rb") as stream:
        head = stream.read(_LONGEST_LINE)
    line, *rest = head.split(b"\n", 1)
    if b"\0" in head or not rest:
        raise RecordingError(f"{path}: expected lines of text, got something else; unpack it.")
    row = next(csv.reader(io.StringIO(line.decode("utf-8-sig").strip()), delimiter=separator), [])
    names = [name.strip() for name in row]
    if not all(names) or len(set(names)) < len(names) or not names:
        raise RecordingError(f"{path}: expected a name for every column, each once; add them.")
    return names


def _read_csv(path: Path, wanted: list[str], separator: str) -> Iterator[pl.DataFrame]:
    """Cells stay text: what is no number shall be counted, not guessed."""
    schema = dict.fromkeys(_csv_names(path, separator), pl.String)
    lazy = pl.scan_csv(path, schema=schema, separator=separator, glob=False)
    yield from _collect(lazy.select(wanted))


def _parquet_names(path: Path, _: str) -> list[str]:
    with path.open("rb") as stream:
        if stream.read(4) != MAGIC:
            raise ParquetError("it does not begin like Parquet")
    sizes = parquet_sizes(path)
    check_sizes(path, max(sizes.unpacked, 8 * sizes.rows), 8 * sizes.most_values)
    check_sizes(path, 0, max(sizes.largest_page, 8 * sizes.largest_group))
    with _silence():
        return list(pl.read_parquet_schema(path))


def _read_parquet(path: Path, wanted: list[str], _: str) -> Iterator[pl.DataFrame]:
    schema = pl.read_parquet_schema(path)
    for name in wanted:
        if not (schema[name].is_numeric() or isinstance(schema[name], _PLAIN_TYPES)):
            raise RecordingError(
                f"{path}: expected numbers, text or times in {name!r}, got {schema[name]}."
            )
    yield from _collect(pl.scan_parquet(path, glob=False).select(wanted))


def _collect(lazy: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """Batches; what polars writes to the screen when it panics is for no user's eyes."""
    with _silence():
        batches = iter(lazy.collect_batches(chunk_size=BATCH, engine="streaming"))
    while True:
        with _silence():
            frame = next(batches, None)
        if frame is None:
            return
        yield frame


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drop stderr at the level of the process: a panic does not go through Python."""
    sys.stderr.flush()
    screen = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


_NAMES: dict[str, Callable[[Path, str], list[str]]] = {
    "CSV": _csv_names,
    "Parquet": _parquet_names,
    "HDF5": hdf5_names,
    "WFDB": lambda path, _: wfdb_header(path).names,
}
_READ: dict[str, Callable[[Path, list[str], str], Iterator[pl.DataFrame]]] = {
    "CSV": _read_csv,
    "Parquet": _read_parquet,
    "HDF5": read_hdf5,
    "WFDB": read_wfdb,
}
