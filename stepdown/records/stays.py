"""The stays of a file, read through its mapping: as they are told, and as numbers in our units.

`read_traces` is for the doctor: every cell is counted, none is corrected, and nothing but a file
that cannot be opened safely is refused. `read_stays` is for the importer: what is no number, no
level or no time is counted and left empty, and a column that is mostly so has been mapped wrongly
and is refused. Both read a cell alike, and rows keep their order: a clock that runs backwards is
for the doctor and for `cleaning.py` to see, not for a sort to hide.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import equinox as eqx
import numpy as np
import polars as pl
from jaxtyping import Float

from stepdown.records.files import COHORT, WAVEFORM, table_types
from stepdown.records.mapping import (
    CHANNELS,
    OUR_UNITS,
    STAMPS,
    Column,
    Columns,
    convert,
    to_seconds,
)
from stepdown.records.readers import (
    MOST_ROWS,
    RecordingError,
    column_names,
    list_recordings,
    own_rate,
    read_batches,
    read_table,
)
from stepdown.signals import HIGHEST, NAMES, columns_with

# Cells that say: nothing was measured. Consoles show dashes.
EMPTY = ("", "-", "--", "---", "—", "–", "−", "na", "n/a", "nan", "null", "none", ".")
EXAMPLES = 3  # of unreadable cells
HELD_ROWS = 2**22  # of several stays at once, where a file mixes patients
WRONG_SHARE = 0.01  # of the cells of a column that may be unreadable
PSEUDONYM = re.compile(r"[A-Za-z0-9._-]{1,64}")

OUR_WAVEFORMS = Columns(
    kind="waveforms",
    signals=tuple((name, Column(name, OUR_UNITS[name])) for name in WAVEFORM if name != "second"),
    time=Column("second", "s"),
)

_FORMATS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M")
_LEVEL = r"^[Pp][\s-]*(\d+)$"


@dataclass(frozen=True)
class Line:
    """The numbers of one signal in file order; NaN where the cell was empty or unreadable."""

    values: np.ndarray  # float64, in the declared unit
    unit: str | None  # of mapping.UNITS; None: nobody declared one
    unreadable: tuple[int, ...] = ()  # rows that hold text
    examples: tuple[str, ...] = ()  # some of that text

    def in_our_unit(self) -> np.ndarray:
        """The values as the declared unit says; taken as ours where none is declared."""
        return self.values if self.unit is None else convert(self.values, self.unit)


@dataclass(frozen=True)
class Trace:
    """A stay: values per signal, or the three channels of a waveform."""

    patient: str
    second: np.ndarray  # s since the first stamp, in file order; NaN where unreadable
    lines: Mapping[str, Line]  # by name of `expected`
    level: Line | None = None  # unit None
    start: float | None = None  # s since 1970 of the first stamp, where stamps are dates
    unreadable_times: tuple[str, ...] = ()
    zoneless: bool = False  # dates, and nobody says in which zone
    expected: tuple[str, ...] = NAMES  # every signal that should be here, or mapping.CHANNELS

    @property
    def is_waveform(self) -> bool:
        """Whether rows are samples of a waveform."""
        return self.expected == CHANNELS


class Samples(eqx.Module):
    """One stay as recorded, in our units; NaN where nothing was measured."""

    second: Float[np.ndarray, " n"]  # any origin, in the order of the file
    level: Float[np.ndarray, " n"]  # whole numbers 0..9, or NaN
    values: Float[np.ndarray, "n channels"]
    names: tuple[str, ...] = eqx.field(static=True)  # of the channels
    patient: str = eqx.field(static=True)
    has_level: bool = eqx.field(static=True)  # otherwise it is to be read from the speed
    unreadable: int = eqx.field(static=True, default=0)  # cells that were text or no level
    timeless: int = eqx.field(static=True, default=0)  # rows left out for want of a time


def recordings(path: Path) -> list[Path]:
    """The files to look at; of a cohort folder its table alone."""
    if path.is_dir() and (path / COHORT).is_file():
        return [path / COHORT]
    return list_recordings(path)


def own_columns(names: list[str]) -> Columns | None:
    """How to read what `stepdown simulate` and `stepdown import` write; None for other files."""
    if set(names) == set(WAVEFORM):
        return OUR_WAVEFORMS
    recorded = columns_with(names)
    if set(names) != set(table_types(recorded)):
        return None
    return Columns(
        kind="values",
        signals=tuple((name, Column(name, OUR_UNITS[name])) for name in recorded),
        time=Column("minute", "min"),
        patient="patient",
        level="level",
    )


def read_traces(path: Path, columns: Columns) -> Iterator[Trace]:
    """Every stay of a file, in order of appearance."""
    names = column_names(path, columns.separator)
    wanted = [name for name in columns.wanted() if name in names]
    if not wanted:
        raise RecordingError(
            f"{path}: expected a column of the mapping ({', '.join(columns.wanted())}), "
            f"got {', '.join(names[:20])}; correct the mapping."
        )
    frame, rate = read_table(path, wanted, columns.separator), own_rate(path)
    if columns.patient is None or columns.patient not in wanted:
        yield make_trace(frame, columns, path.stem, rate)
        return
    patient = pl.col(columns.patient).cast(pl.String).str.strip_chars()
    for key, part in frame.group_by(patient, maintain_order=True):
        yield make_trace(part, columns, str(key[0]), rate)


def make_trace(frame: pl.DataFrame, columns: Columns, patient: str, rate: float | None) -> Trace:
    """One stay; `rate` in Hz counts where there is no time column."""
    lines = {
        ours: read_line(frame[theirs.column], theirs.unit, columns.decimal_comma)
        for ours, theirs in columns.signals
        if theirs.column in frame.columns
    }
    level = None
    if columns.level is not None and columns.level in frame.columns:
        level = _read_level(frame[columns.level])
    # Without a rate, no time is known.
    second = np.arange(frame.height) / (columns.rate or rate or np.nan)
    expected = CHANNELS if columns.kind == "waveforms" else columns.recorded
    trace = Trace(patient, second, lines, level, expected=expected)
    if columns.time is None or columns.time.column not in frame.columns:
        return trace
    return _timed(trace, frame[columns.time.column], columns.time.unit, columns)


def _timed(trace: Trace, cells: pl.Series, unit: str, columns: Columns) -> Trace:
    """The stay with the times that its cells tell, of a doubled hour the earlier ones."""
    zoneless = False
    if unit == STAMPS:
        second = _read_dates(cells, columns.zone or "UTC", "earliest")
        if columns.zone is None:
            zoneless = bool(np.any(np.isfinite(second) & np.isnan(_read_dates(cells, None))))
    else:
        numbers = read_line(cells, None, columns.decimal_comma).values
        second = to_seconds(numbers, unit)
    known = np.isfinite(second)
    odd = cells.filter(pl.Series(~known)).drop_nulls().head(EXAMPLES)
    first = float(second[np.argmax(known)]) if known.any() else 0.0
    return replace(
        trace,
        # An origin in 1970 keeps few digits of a millisecond; differences keep them all.
        second=np.where(known, second, np.nan) - first,
        start=first if unit == STAMPS and known.any() else None,
        unreadable_times=tuple(str(cell) for cell in odd),
        zoneless=zoneless,
    )


def read_line(cells: pl.Series, unit: str | None, decimal_comma: bool = False) -> Line:
    """The numbers of a column, and the cells that hold none."""
    if cells.dtype.is_numeric() or cells.dtype in (pl.Boolean, pl.Null):
        return Line(cells.cast(pl.Float64).fill_null(np.nan).to_numpy(), unit)
    text = cells.cast(pl.String).str.strip_chars()
    digits = text.str.replace(",", ".", literal=True) if decimal_comma else text
    numbers = digits.cast(pl.Float64, strict=False)
    bad = numbers.is_null() & text.is_not_null() & ~text.str.to_lowercase().is_in(EMPTY)
    examples = tuple(text.filter(bad).unique(maintain_order=True).head(EXAMPLES).to_list())
    rows = tuple(bad.arg_true().to_list())
    return Line(numbers.fill_null(np.nan).to_numpy(), unit, rows, examples)


def _read_level(cells: pl.Series) -> Line:
    """Levels as numbers; `P-5`, `P5` and `5` are one."""
    if not cells.dtype.is_numeric():
        cells = cells.cast(pl.String).str.strip_chars().str.replace(_LEVEL, "${1}")
    return read_line(cells, None)


def _read_dates(
    cells: pl.Series, zone: str | None, doubled: Literal["earliest", "null"] = "null"
) -> np.ndarray:
    """Seconds since 1970; an offset in the stamp counts more than the zone, NaN without either.

    `doubled` says what is made of an hour that comes twice in autumn.
    """
    stamp = pl.col("t")
    if isinstance(cells.dtype, pl.Datetime):
        aware = cells.dtype.time_zone is not None
        stamp = stamp if aware else _local(stamp, zone, doubled)
    else:
        text = stamp.cast(pl.String).str.strip_chars().str.replace(r"^(.{10})[ t]", "${1}T")
        zoned = [
            text.str.to_datetime(form + "%#z", strict=False, time_unit="us", time_zone="UTC")
            for form in _FORMATS
        ]
        plain = [text.str.to_datetime(form, strict=False, time_unit="us") for form in _FORMATS]
        stamp = pl.coalesce(*zoned, *(_local(one, zone, doubled) for one in plain))
    micro = cells.to_frame("t").with_columns(t=stamp.dt.epoch("us").cast(pl.Float64))["t"]
    return micro.fill_null(np.nan).to_numpy() / 1e6


def _local(stamp: pl.Expr, zone: str | None, doubled: Literal["earliest", "null"]) -> pl.Expr:
    """A stamp of this zone in UTC; a skipped hour is unknown, and so is all without a zone."""
    if zone is None:
        return pl.lit(None, pl.Datetime("us", "UTC"))
    placed = stamp.dt.replace_time_zone(zone, ambiguous=doubled, non_existent="null")
    return placed.dt.convert_time_zone("UTC")


def read_stays(path: Path, columns: Columns) -> Iterator[Samples]:
    """The stays of a file, one after the other; memory holds a stay, or `HELD_ROWS` rows."""
    held: dict[str, list[Samples]] = {}
    given: set[str] = set()
    offset = 0
    for frame in read_batches(path, columns.wanted(), columns.separator):
        present = set()
        for part in _parts(frame, columns, path, offset):
            if part.patient in given:
                raise RecordingError(
                    f"{path}: expected the rows of a patient together, got some further on; "
                    "sort the table by patient and time."
                )
            held.setdefault(part.patient, []).append(part)
            present.add(part.patient)
        offset += frame.height
        rows = [sum(len(part.second) for part in parts) for parts in held.values()]
        if max(rows, default=0) > MOST_ROWS:
            raise RecordingError(
                f"{path}: expected at most {MOST_ROWS:,} rows in a stay, got more; split the stay."
            )
        for patient in [name for name in held if sum(rows) > HELD_ROWS and name not in present]:
            given.add(patient)
            yield _join(held.pop(patient), columns, path)
    if not held and not given:
        raise RecordingError(f"{path}: expected rows, got none; export it again.")
    for parts in held.values():
        yield _join(parts, columns, path)


def _parts(frame: pl.DataFrame, columns: Columns, path: Path, offset: int) -> Iterator[Samples]:
    """The rows of each patient in one batch; `offset` rows of the file came before."""
    if columns.patient is None:
        yield _samples(frame, columns, path, path.stem, offset)
        return
    ids = frame[columns.patient].cast(pl.String).str.strip_chars()
    if ids.null_count():
        raise RecordingError(
            f"{path}: expected a patient in every row, got {ids.null_count()} without."
        )
    for key, part in frame.group_by(ids.alias("patient"), maintain_order=True):
        yield _samples(part, columns, path, str(key[0]), 0)


def _samples(
    frame: pl.DataFrame, columns: Columns, path: Path, patient: str, offset: int
) -> Samples:
    second = _seconds(frame, columns, path, offset)
    wrong, values = 0, []
    for _, theirs in columns.signals:
        line = _numbers(frame[theirs.column], theirs.unit, columns, path)
        values.append(line.in_our_unit())
        wrong += len(line.unreadable)
    level = np.full(frame.height, np.nan)
    if columns.level:
        line = _read_level(frame[columns.level])
        known = np.isin(line.values, range(HIGHEST + 1))
        level = np.where(known, line.values, np.nan)
        wrong += len(line.unreadable) + int(np.sum(~known & ~np.isnan(line.values)))
    timed = np.isfinite(second)
    return Samples(
        second=second[timed],
        level=level[timed],
        values=np.stack(values, axis=1)[timed],
        names=tuple(name for name, _ in columns.signals),
        patient=patient,
        has_level=columns.level is not None,
        unreadable=wrong,
        timeless=int(np.sum(~timed)),
    )


def _numbers(column: pl.Series, unit: str | None, columns: Columns, path: Path) -> Line:
    """The numbers of a column; one that mostly holds something else is refused."""
    line = read_line(column, unit, columns.decimal_comma)
    if (count := len(line.unreadable)) > WRONG_SHARE * len(column) + 1:
        raise RecordingError(
            f"{path}: expected numbers in {column.name!r}, got {line.examples[0][:40]!r} "
            f"and {count - 1:,} like it; correct the mapping or the export."
        )
    return line


def _seconds(frame: pl.DataFrame, columns: Columns, path: Path, offset: int) -> np.ndarray:
    """Times in seconds; NaN where a stamp is missing, impossible or ambiguous."""
    if columns.time is None:
        rate = columns.rate or own_rate(path)
        if rate is None:
            raise RecordingError(
                f"{path}: expected a column of times or a rate, as only WFDB knows its "
                "own; add time.column or time.rate to the mapping."
            )
        if columns.patient is not None:
            raise RecordingError(
                f"{path}: expected a column of times where a file holds several patients."
            )
        return (offset + np.arange(frame.height)) / rate
    column = frame[columns.time.column]
    if columns.time.unit != STAMPS:
        return to_seconds(_numbers(column, None, columns, path).values, columns.time.unit)
    return _read_dates(column, columns.zone)


def _join(parts: list[Samples], columns: Columns, path: Path) -> Samples:
    """One stay from its parts; refused if its times or levels are mostly unreadable."""
    stay = replace(
        parts[0],
        second=np.concatenate([part.second for part in parts]),
        level=np.concatenate([part.level for part in parts]),
        values=np.concatenate([part.values for part in parts]),
        unreadable=sum(part.unreadable for part in parts),
        timeless=sum(part.timeless for part in parts),
    )
    if stay.timeless > WRONG_SHARE * (len(stay.second) + stay.timeless) + 1:
        zone = " with a zone, or a zone in the mapping" if columns.zone is None else ""
        unit = columns.time.unit if columns.time else "s"
        raise RecordingError(
            f"{path}: expected times as {unit}{zone if unit == STAMPS else ''}, "
            f"got {stay.timeless:,} rows without; correct the mapping."
        )
    if columns.level and len(stay.level) and not np.any(np.isfinite(stay.level)):
        raise RecordingError(
            f"{path}: expected levels 0 to 9 or P-0 to P-9 in {columns.level!r}, got none; "
            "correct the mapping."
        )
    return stay
