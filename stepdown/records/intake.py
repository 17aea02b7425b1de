"""From a foreign file to stays for the doctor: every cell is counted, none is corrected.

Unlike the importer this reader refuses no value: text, odd times and missing columns are what
the doctor is asked about. A file that cannot be opened safely is still a `RecordingError`.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from stepdown.records.files import COHORT, COLUMNS, WAVEFORM
from stepdown.records.limits import RecordingError
from stepdown.records.mapping import STAMPS, Column, Columns, to_seconds
from stepdown.records.readers import column_names, list_recordings, read_table
from stepdown.records.trace import OUR_UNITS, Line, Trace
from stepdown.signals import NAMES

# Cells that say: nothing was measured. Consoles show dashes.
EMPTY = ("", "-", "--", "---", "—", "–", "−", "na", "n/a", "nan", "null", "none", ".")
EXAMPLES = 3
_TIME_FORMATS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M")
_OFFSET = r"(?:Z|[+-]\d{2}:?\d{2})$"

# What `stepdown simulate` and `stepdown import` write needs no mapping file.
OUR_VALUES = Columns(
    kind="values",
    signals=tuple((name, Column(name, OUR_UNITS[name])) for name in NAMES),
    time=Column("minute", "min"),
    patient="patient",
    level="level",
)
OUR_WAVEFORMS = Columns(
    kind="waveforms",
    signals=tuple((name, Column(name, OUR_UNITS[name])) for name in WAVEFORM if name != "second"),
    time=Column("second", "s"),
)


def recordings(path: Path) -> list[Path]:
    """The files to look at; of a cohort folder its table alone."""
    if path.is_dir() and (path / COHORT).is_file():
        return [path / COHORT]
    return list_recordings(path)


def own_columns(names: list[str]) -> Columns | None:
    """The columns of our own files, whose units are known; None for a foreign file."""
    known = {frozenset(COLUMNS): OUR_VALUES, frozenset(WAVEFORM): OUR_WAVEFORMS}
    return known.get(frozenset(names))


def read_traces(path: Path, columns: Columns) -> Iterator[Trace]:
    """Every stay of a file, in order of appearance."""
    names = column_names(path, columns.separator)
    wanted = [name for name in columns.wanted() if name in names]
    if not wanted:
        raise RecordingError(
            f"{path}: expected a column of the mapping ({', '.join(columns.wanted())}), "
            f"got {', '.join(names[:20])}; correct the mapping."
        )
    table = read_table(path, wanted, columns.separator)
    frame = table.frame
    if columns.patient is None or columns.patient not in wanted:
        yield make_trace(frame, columns, table.name, table.rate)
        return
    patient = pl.col(columns.patient).cast(pl.String)
    for key, part in frame.group_by(patient, maintain_order=True):
        yield make_trace(part, columns, str(key[0]), table.rate)


def make_trace(frame: pl.DataFrame, columns: Columns, patient: str, rate: float | None) -> Trace:
    """One stay; `rate` in Hz counts where there is no time column."""
    second, start, odd = seconds_of(frame, columns, rate)
    zoneless = start is not None and _zoneless(frame, columns)
    lines = {
        ours: read_line(frame[theirs.column], theirs.unit, columns.decimal_comma)
        for ours, theirs in columns.signals
        if theirs.column in frame.columns
    }
    level = None
    if columns.level is not None and columns.level in frame.columns:
        level = read_line(_level_digits(frame[columns.level]), None)
    return Trace(patient, second, lines, level, start, odd, zoneless, columns.kind)


def read_line(cells: pl.Series, unit: str | None, decimal_comma: bool = False) -> Line:
    """The numbers of a column, and the cells that hold none."""
    if cells.dtype != pl.String:
        return Line(cells.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy(), unit)
    text = cells.str.strip_chars()
    if decimal_comma:
        text = text.str.replace(",", ".", literal=True)
    numbers = text.cast(pl.Float64, strict=False)
    bad = numbers.is_null() & text.is_not_null() & ~text.str.to_lowercase().is_in(EMPTY)
    examples = tuple(cells.filter(bad).unique(maintain_order=True).head(EXAMPLES).to_list())
    rows = tuple(int(row) for row in bad.arg_true())
    return Line(numbers.fill_null(np.nan).to_numpy(), unit, rows, tuple(x[:20] for x in examples))


def _level_digits(cells: pl.Series) -> pl.Series:
    """P5 and P-5 as 5."""
    if cells.dtype != pl.String:
        return cells
    return cells.str.strip_chars().str.replace(r"^[Pp]\s?-?(\d)$", "$1")


def seconds_of(frame: pl.DataFrame, columns: Columns, rate: float | None):
    """Seconds since the first readable stamp, the date of that, and stamps that are none."""
    if columns.time is None or columns.time.column not in frame.columns:
        rate = columns.rate or rate
        if rate is None:
            return np.full(frame.height, np.nan), None, ()
        return np.arange(frame.height) / rate, None, ()
    cells = frame[columns.time.column]
    if columns.time.unit == STAMPS or isinstance(cells.dtype, pl.Datetime):
        second, is_date = _from_stamps(cells, columns.zone), True
    else:
        numbers = read_line(cells, None, columns.decimal_comma).values
        second, is_date = to_seconds(numbers, columns.time.unit), False
    known = np.isfinite(second)
    second = np.where(known, second, np.nan)
    odd = tuple(str(x)[:30] for x in cells.filter(pl.Series(~known)).head(EXAMPLES).to_list())
    first = float(second[np.argmax(known)]) if known.any() else 0.0
    # An origin in 1970 keeps few digits of a millisecond; differences keep them all.
    return second - first, (first if is_date and known.any() else None), odd


def _zoneless(frame: pl.DataFrame, columns: Columns) -> bool:
    """Whether some date says neither by itself nor by the mapping in which zone it is."""
    if columns.zone is not None or columns.time is None:
        return False
    cells = frame[columns.time.column]
    if isinstance(cells.dtype, pl.Datetime):
        return cells.dtype.time_zone is None
    return bool((~cells.drop_nulls().str.strip_chars().str.contains(_OFFSET)).any())


def _from_stamps(cells: pl.Series, zone: str | None) -> np.ndarray:
    """Seconds since 1970 of dates; an offset in the stamp counts more than the zone."""
    if isinstance(cells.dtype, pl.Datetime):
        return _epoch(cells.to_frame("t"), pl.col("t").dt.replace_time_zone(None))
    if cells.dtype != pl.String:
        return np.full(len(cells), np.nan)
    frame = cells.str.strip_chars().str.replace(" ", "T", literal=True).to_frame("t")
    plain = pl.col("t").str.replace(_OFFSET, "")
    local = pl.coalesce(
        *(plain.str.to_datetime(form, strict=False, time_unit="us") for form in _TIME_FORMATS)
    )
    offset = pl.col("t").str.extract(r"([+-]\d{2}:?\d{2})$").str.replace(":", "", literal=True)
    hundreds = offset.cast(pl.Int64, strict=False)
    minutes = (hundreds.abs() // 100 * 60 + hundreds.abs() % 100) * hundreds.sign()
    shift = 60.0 * minutes.fill_null(0).cast(pl.Float64)
    aware = pl.col("t").str.contains(_OFFSET)
    stamp = _epoch(frame, local)
    stamp -= frame.select(shift.alias("t"))["t"].fill_null(0).to_numpy()
    if zone is None:
        return stamp
    zoned = local.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    known = frame.select(aware.alias("t"))["t"].fill_null(False).to_numpy()
    return np.where(known, stamp, _epoch(frame, zoned))


def _epoch(frame: pl.DataFrame, stamp: pl.Expr) -> np.ndarray:
    micro = frame.select(stamp.dt.epoch("us").alias("t"))["t"]
    return micro.cast(pl.Float64).fill_null(np.nan).to_numpy() / 1e6
