"""The stays of a file, read through its mapping: one way in, for the doctor and for the import.

`read_traces` counts every cell and corrects none; nothing but a file that cannot be opened safely
is refused here. `to_samples` gives the same numbers in our units to cleaning: what is no number, no
level or no time is left empty. Rows keep their order: a clock that runs backwards is for the doctor
and for `cleaning.py` to see, not for a sort to hide.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import numpy as np
import polars as pl
from jaxtyping import Float

from stepdown.records.dialects import layout_of, plain_number
from stepdown.records.files import COHORT, WAVEFORM, table_types
from stepdown.records.mapping import (
    CHANNELS,
    DATES,
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
)
from stepdown.records.stamps import Wall, place, read_stamps
from stepdown.signals import HIGHEST, NAMES, columns_with

# Cells that say: nothing was measured. Consoles show dashes.
EMPTY = ("", "-", "--", "---", "—", "–", "−", "na", "n/a", "nan", "null", "none", ".")
EXAMPLES = 3  # of unreadable cells
HELD_ROWS = 2**22  # of several stays at once, where a file mixes patients
WRONG_SHARE = 0.01  # of the cells of a column that may be unreadable, beside a single one
PSEUDONYM = re.compile(r"[A-Za-z0-9._-]{1,64}")

OUR_WAVEFORMS = Columns(
    kind="waveforms",
    signals=tuple((name, Column(name, OUR_UNITS[name])) for name in WAVEFORM if name != "second"),
    time=Column("second", "s"),
    decimal_comma=False,
)

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
    questions: tuple[str, ...] = ()  # what has to be declared before the times can be believed
    expected: tuple[str, ...] = NAMES  # every signal or channel that should be here

    @property
    def is_waveform(self) -> bool:
        """Whether rows are samples of a waveform."""
        return CHANNELS[0] in self.expected

    @property
    def timeless(self) -> int:
        """Rows without a readable time."""
        return int(np.sum(~np.isfinite(self.second)))


def too_many(wrong: int, cells: int) -> bool:
    """Whether so many unreadable cells mean a wrong mapping or export, not an odd entry."""
    return wrong > WRONG_SHARE * cells + 1


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
        decimal_comma=False,
    )


def read_traces(path: Path, columns: Columns) -> Iterator[Trace]:
    """Every stay of a file through a settled mapping; memory holds a stay, or `HELD_ROWS` rows."""
    layout, rate = layout_of(columns), own_rate(path, columns.rate)
    names = column_names(path, layout)
    wanted = [name for name in columns.wanted() if name in names]
    if not wanted:
        raise RecordingError(
            f"{path}: expected a column of the mapping ({', '.join(columns.wanted())}), "
            f"got {', '.join(names[:20])}; correct the mapping."
        )
    held: dict[str, list[_Part]] = {}
    given: set[str] = set()
    for frame in read_batches(path, wanted, layout):
        present = {
            name: _read_part(rows, columns) for name, rows in _patients(frame, columns, path)
        }
        for name, part in present.items():
            held.setdefault(name, []).append(part)
        rows = _count_rows(held, given, path)
        for name in [name for name in held if rows > HELD_ROWS and name not in present]:
            given.add(name)
            yield _to_trace(held.pop(name), columns, name, rate)
    if not held and not given:
        raise RecordingError(f"{path}: expected rows, got none; export it again.")
    for name in list(held):
        yield _to_trace(held.pop(name), columns, name, rate)


def _count_rows(held: Mapping[str, list["_Part"]], given: set[str], path: Path) -> int:
    """Rows in memory; refused where a stay is too long, or goes on after it was given away."""
    if given & set(held):
        raise RecordingError(
            f"{path}: expected the rows of a patient together, got some further on; "
            "sort the table by patient and time."
        )
    rows = [sum(part.rows for part in parts) for parts in held.values()]
    if max(rows, default=0) > MOST_ROWS:
        raise RecordingError(
            f"{path}: expected at most {MOST_ROWS:,} rows in a stay, got more; split the stay."
        )
    return sum(rows)


def _patients(
    frame: pl.DataFrame, columns: Columns, path: Path
) -> Iterator[tuple[str, pl.DataFrame]]:
    """The rows of each patient in one batch."""
    if columns.patient is None or columns.patient not in frame.columns:
        yield path.stem, frame
        return
    ids = frame[columns.patient].cast(pl.String).str.strip_chars()
    if lost := ids.null_count() + int((ids == "").sum()):
        raise RecordingError(f"{path}: expected a patient in every row, got {lost:,} without.")
    for key, part in frame.group_by(ids.alias("patient"), maintain_order=True):
        yield str(key[0]), part


@dataclass(frozen=True)
class _Part:
    """Some rows of one stay, as numbers."""

    rows: int
    lines: Mapping[str, "Line"]
    level: "Line | None"
    wall: Wall | None  # stamps
    count: np.ndarray | None  # or times in the unit of the mapping
    unreadable_times: tuple[str, ...]


def make_trace(frame: pl.DataFrame, columns: Columns, patient: str, rate: float | None) -> Trace:
    """One stay; `rate` in Hz counts where there is no time column."""
    return _to_trace([_read_part(frame, columns)], columns, patient, columns.rate or rate)


def _read_part(frame: pl.DataFrame, columns: Columns) -> _Part:
    comma = bool(columns.decimal_comma)
    lines = {
        ours: read_line(frame[theirs.column], theirs.unit, comma)
        for ours, theirs in columns.signals
        if theirs.column in frame.columns
    }
    level = None
    if columns.level is not None and columns.level in frame.columns:
        level = _read_level(frame[columns.level], comma)
    if columns.time is None or columns.time.column not in frame.columns:
        return _Part(frame.height, lines, level, None, None, ())
    cells, wall, count = frame[columns.time.column], None, None
    if columns.time.unit in (STAMPS, DATES):
        wall = read_stamps(cells, columns.order or "year-month-day")
        known = np.isfinite(wall.second)
    else:
        count = read_line(cells, None, comma).values
        known = np.isfinite(count)
    odd = cells.filter(pl.Series(~known, dtype=pl.Boolean)).drop_nulls().head(EXAMPLES)
    return _Part(frame.height, lines, level, wall, count, tuple(str(cell) for cell in odd))


def _to_trace(parts: list[_Part], columns: Columns, patient: str, rate: float | None) -> Trace:
    """One stay from its parts."""
    starts = np.cumsum([0, *(part.rows for part in parts)])
    lines = {name: _join([part.lines[name] for part in parts], starts) for name in parts[0].lines}
    levels = [part.level for part in parts if part.level is not None]
    mapped = dict(columns.signals)
    is_waveform = columns.kind == "waveforms"
    expected = tuple(x for x in CHANNELS if x in mapped) if is_waveform else columns.recorded
    # Without a rate, no time is known.
    second = np.arange(starts[-1]) / (rate or np.nan)
    level = _join(levels, starts) if levels else None
    trace = Trace(patient, second, lines, level, expected=expected)
    walls = [part.wall for part in parts if part.wall is not None]
    counts = [part.count for part in parts if part.count is not None]
    questions = ()
    if walls:
        wall = Wall(*(np.concatenate([getattr(w, n) for w in walls]) for n in ("second", "local")))
        placed = place(wall, columns.zone, columns.doubled)
        second, questions = placed.second, placed.questions
    elif counts and columns.time is not None:
        second = to_seconds(np.concatenate(counts), columns.time.unit)
    else:
        return trace
    known = np.isfinite(second)
    first = float(second[np.argmax(known)]) if known.any() else 0.0
    return replace(
        trace,
        # An origin in 1970 keeps few digits of a millisecond; differences keep them all.
        second=np.where(known, second, np.nan) - first,
        start=first if walls and known.any() else None,
        unreadable_times=tuple(x for part in parts for x in part.unreadable_times)[:EXAMPLES],
        questions=questions,
    )


def _join(lines: list["Line"], starts: np.ndarray) -> "Line":
    """One line from its parts, each after so many rows."""
    if len(lines) == 1:
        return lines[0]
    return Line(
        np.concatenate([line.values for line in lines]),
        lines[0].unit,
        tuple(
            int(start) + row
            for start, line in zip(starts[:-1], lines, strict=True)
            for row in line.unreadable
        ),
        tuple(dict.fromkeys(text for line in lines for text in line.examples))[:EXAMPLES],
    )


def read_line(cells: pl.Series, unit: str | None, decimal_comma: bool = False) -> Line:
    """The numbers of a column, and the cells that hold none."""
    if cells.dtype.is_numeric() or cells.dtype in (pl.Boolean, pl.Null):
        return Line(cells.cast(pl.Float64).fill_null(np.nan).to_numpy(), unit)
    text = cells.cast(pl.String)
    numbers = _quick_numbers(text, decimal_comma)
    left = (numbers.is_null() & text.is_not_null()).arg_true()
    if not len(left):
        return Line(numbers.fill_null(np.nan).to_numpy(), unit)
    rest = text.gather(left).str.strip_chars()  # spaces, thousands marks, empty words, text
    marked = plain_number(rest, decimal_comma).cast(pl.Float64, strict=False)
    bad = marked.is_null() & ~rest.str.to_lowercase().is_in(EMPTY)
    numbers = numbers.scatter(left, marked).fill_null(np.nan).to_numpy()
    examples = tuple(rest.filter(bad).unique(maintain_order=True).head(EXAMPLES).to_list())
    return Line(numbers, unit, tuple(left.filter(bad).to_list()), examples)


def _quick_numbers(text: pl.Series, decimal_comma: bool) -> pl.Series:
    """The numbers of cells that hold digits and perhaps one mark; infinities are numbers, too."""
    if decimal_comma:
        clear = text.set(text.str.contains(".", literal=True).fill_null(False), None)
        text = clear.str.replace(",", ".", literal=True)
    return text.cast(pl.Float64, strict=False)


def _read_level(cells: pl.Series, decimal_comma: bool) -> Line:
    """Levels as numbers; `P-5`, `P5` and `5` are one."""
    if not cells.dtype.is_numeric():
        cells = cells.cast(pl.String).str.strip_chars().str.replace(_LEVEL, "${1}")
    return read_line(cells, None, decimal_comma)


def to_samples(trace: Trace) -> Samples:
    """The stay in our units, without the rows that have no time."""
    timed = np.isfinite(trace.second)
    level, wrong = np.full(len(timed), np.nan), sum(len(x.unreadable) for x in trace.lines.values())
    if trace.level is not None:
        values = trace.level.values
        known = np.isin(values, range(HIGHEST + 1))
        level = np.where(known, values, np.nan)
        wrong += len(trace.level.unreadable) + int(np.sum(~known & ~np.isnan(values)))
    values = [line.in_our_unit() for line in trace.lines.values()]
    return Samples(
        second=trace.second[timed],
        level=level[timed],
        values=np.stack(values, axis=1)[timed],
        names=tuple(trace.lines),
        patient=trace.patient,
        has_level=trace.level is not None,
        unreadable=wrong,
        timeless=trace.timeless,
    )
