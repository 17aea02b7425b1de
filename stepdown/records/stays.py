"""Stays as arrays in our units: the rows of a file, read through its mapping, patient by patient.

What is no number, no level or no time is counted and left empty; a column that is mostly so has
been mapped wrongly and is refused. Rows keep their order: a clock that runs backwards is for
`cleaning.py` to see, not for a sort to hide.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import numpy as np
import polars as pl
from jaxtyping import Float

from stepdown.records.limits import RecordingError
from stepdown.records.mapping import STAMPS, Columns, convert, to_seconds
from stepdown.records.readers import RawTable, read_batches

MOST_ROWS = 2**25  # of one stay: two weeks at 25 Hz
HELD_ROWS = 2**22  # of several stays at once, where a file mixes patients
WRONG_SHARE = 0.01  # of the cells of a column that may be unreadable
PSEUDONYM = re.compile(r"[A-Za-z0-9._-]{1,64}")

_EMPTY = ("", "-", "--", "---", "—", "–", "−", "na", "n/a", "nan", "null", "none", ".")
_FORMATS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M")
_LEVEL = r"^[Pp][\s-]*(\d+)$"


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


def read_stays(path: Path, columns: Columns) -> Iterator[Samples]:
    """The stays of a file, one after the other; memory holds a stay, or `HELD_ROWS` rows."""
    held: dict[str, list[Samples]] = {}
    given: set[str] = set()
    offset = 0
    for table in read_batches(path, columns.wanted(), columns.separator):
        present = set()
        for part in _parts(table, columns, offset):
            if part.patient in given:
                raise RecordingError(
                    f"{path}: expected the rows of a patient together, got some further on; "
                    "sort the table by patient and time."
                )
            held.setdefault(part.patient, []).append(part)
            present.add(part.patient)
        offset += table.frame.height
        _check_length(held, path)
        rows = sum(len(part.second) for parts in held.values() for part in parts)
        for patient in [name for name in held if rows > HELD_ROWS and name not in present]:
            given.add(patient)
            yield _join(held.pop(patient), columns, path)
    if not held and not given:
        raise RecordingError(f"{path}: expected rows, got none; export it again.")
    for parts in held.values():
        yield _join(parts, columns, path)


def _check_length(held: dict[str, list[Samples]], path: Path) -> None:
    for parts in held.values():
        if sum(len(part.second) for part in parts) > MOST_ROWS:
            raise RecordingError(
                f"{path}: expected at most {MOST_ROWS:,} rows in a stay, got more; split the stay."
            )


def _parts(table: RawTable, columns: Columns, offset: int) -> Iterator[Samples]:
    """The rows of each patient in one table."""
    if columns.patient is None:
        yield _samples(table.frame, table, columns, table.name, offset)
        return
    ids = table.frame[columns.patient].cast(pl.String).str.strip_chars()
    if ids.null_count():
        raise RecordingError(
            f"{table.source}: expected a patient in every row, got {ids.null_count()} without."
        )
    parts = table.frame.with_columns(ids.alias(columns.patient)).partition_by(
        columns.patient, maintain_order=True
    )
    for part in parts:
        yield _samples(part, table, columns, part[columns.patient][0], 0)


def _samples(
    frame: pl.DataFrame, table: RawTable, columns: Columns, patient: str, offset: int
) -> Samples:
    second = _seconds(frame, table, columns, offset)
    wrong, values = 0, []
    for name, theirs in columns.signals:
        numbers, odd = _numbers(frame[theirs.column], columns, table.source)
        values.append(convert(numbers, theirs.unit, name))
        wrong += odd
    level = np.full(frame.height, np.nan)
    if columns.level:
        level, odd = _levels(frame[columns.level])
        wrong += odd
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


def _join(parts: list[Samples], columns: Columns, path: Path) -> Samples:
    """One stay from its parts; refused if its times or levels are mostly unreadable."""
    stay = Samples(
        second=np.concatenate([part.second for part in parts]),
        level=np.concatenate([part.level for part in parts]),
        values=np.concatenate([part.values for part in parts]),
        names=parts[0].names,
        patient=parts[0].patient,
        has_level=parts[0].has_level,
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


def _numbers(column: pl.Series, columns: Columns, path: Path) -> tuple[np.ndarray, int]:
    """Numbers as float64 with NaN where empty, and how many cells were something else."""
    if column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Float64).to_numpy(), 0
    text = column.cast(pl.String)
    numbers = (text.str.replace(",", ".", literal=True) if columns.decimal_comma else text).cast(
        pl.Float64, strict=False
    )
    odd = text.filter(numbers.is_null() & text.is_not_null()).str.strip_chars()
    odd = odd.filter(~odd.str.to_lowercase().is_in(_EMPTY))
    if len(odd) > WRONG_SHARE * len(column) + 1:
        raise RecordingError(
            f"{path}: expected numbers in {column.name!r}, got {odd[0][:40]!r} "
            f"and {len(odd) - 1:,} like it; correct the mapping or the export."
        )
    return numbers.to_numpy(), len(odd)


def _levels(column: pl.Series) -> tuple[np.ndarray, int]:
    """Levels as numbers; `P-5`, `P5` and `5` are one. What is no level stays unknown."""
    if column.dtype.is_numeric():
        level = column.cast(pl.Float64)
    else:
        text = column.cast(pl.String).str.strip_chars()
        level = text.str.replace(_LEVEL, "${1}").cast(pl.Float64, strict=False)
    known = (level >= 0) & (level <= 9) & (level == level.round())
    filled = column.is_not_null() & ~known.fill_null(value=False)
    return np.where(known.fill_null(value=False), level.to_numpy(), np.nan), int(filled.sum())


def _seconds(frame: pl.DataFrame, table: RawTable, columns: Columns, offset: int) -> np.ndarray:
    """Times in seconds; NaN where a stamp is missing, impossible or ambiguous."""
    if columns.time is None:
        rate = columns.rate or table.rate
        if rate is None:
            raise RecordingError(
                f"{table.source}: expected a column of times or a rate, as only WFDB knows its "
                "own; add time.column or time.rate to the mapping."
            )
        if columns.patient is not None:
            raise RecordingError(
                f"{table.source}: expected a column of times where a file holds several patients."
            )
        return (offset + np.arange(frame.height)) / rate
    column = frame[columns.time.column]
    if columns.time.unit != STAMPS:
        numbers, _ = _numbers(column, columns, table.source)
        return to_seconds(numbers, columns.time.unit)
    stamps = column.to_frame().select(_stamp(column, columns.zone)).to_series()
    known = stamps.dt.epoch("us").cast(pl.Float64) / 1e6
    return known.to_numpy()


def _stamp(column: pl.Series, zone: str | None) -> pl.Expr:
    """A stamp in UTC; a local one needs its zone, and a doubled or skipped hour is unknown."""
    cell = pl.col(column.name)
    if column.dtype == pl.Datetime:
        if column.dtype.time_zone is not None:  # pyright: ignore[reportAttributeAccessIssue]
            return cell
        return _local(cell, zone)
    text = cell.cast(pl.String).str.strip_chars().str.replace(r"^(.{10})[ t]", "${1}T")
    zoned = [
        text.str.to_datetime(form + "%#z", strict=False, time_unit="us", time_zone="UTC")
        for form in _FORMATS
    ]
    local = [
        _local(text.str.to_datetime(form, strict=False, time_unit="us"), zone) for form in _FORMATS
    ]
    return pl.coalesce(*zoned, *local)


def _local(stamp: pl.Expr, zone: str | None) -> pl.Expr:
    if zone is None:
        return pl.lit(None, pl.Datetime("us", "UTC"))
    placed = stamp.dt.replace_time_zone(zone, ambiguous="null", non_existent="null")
    return placed.dt.convert_time_zone("UTC")
