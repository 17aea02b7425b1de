"""How a file is written: encoding, separator, decimal mark, order of dates. Recognized, or asked.

`settle` looks at the whole file, not at its first lines, and gives the mapping back with every
open entry filled in. What the mapping declares is taken as declared. What has one reading is
recognized, and said in words (`in_words`) for people to confirm. What has two, such as a `1,234`
among whole numbers or a `03/04/2024` in a stay that ends before the thirteenth, is asked about: a
`QuestionError` names both and the entry that settles it. Nothing is guessed.

The rules: a file has one decimal mark. A mark is a decimal one for certain where the digits around
it cannot be a group of thousands (`70.5`, `0.125`, `1,234.5`). The other mark, a space or an
apostrophe in front of groups of three digits is a thousands mark. A year of four digits in front
means year, month, day; dots mean day, month, year; with slashes or dashes some day above 12 has
to tell.
"""

import codecs
import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from stepdown.records.mapping import DATES, STAMPS, Columns, MappingError, Order
from stepdown.records.readers import (
    PLAIN,
    Layout,
    RecordingError,
    column_names,
    header_line,
    is_text,
    read_batches,
)

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
ORDER_WORDS: dict[Order, str] = {
    "year-month-day": "year-month-day",
    "day-month-year": "day.month.year",
    "month-day-year": "month/day/year",
}
FEW = 0.01  # share of the cells of a column that may contradict the others

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\x0c")) + b"\x7f"  # never in a line of text
_PIECE = 2**20  # bytes
_FIRST = 4096  # cells
_EXPONENT = r"(?:[eE][+-]?\d+)?$"
_DATE = r"^\s*(\d{1,2})[./-](\d{1,2})[./-]\d{4}(?:\D|$)"
_YEAR_FIRST = r"^\s*\d{4}[./-]"


class QuestionError(MappingError):
    """A file that can be read in two ways; the mapping has to say in which."""


@dataclass(frozen=True)
class Evidence:
    """Cells that speak for a decimal mark, or for both, with one of each to show."""

    point: int = 0
    comma: int = 0
    either: int = 0
    shown: tuple[str, str, str] = ("", "", "")

    def __add__(self, other: "Evidence") -> "Evidence":
        shown = tuple(a or b for a, b in zip(self.shown, other.shown, strict=True))
        counts = (self.point + other.point, self.comma + other.comma, self.either + other.either)
        return Evidence(*counts, (shown[0], shown[1], shown[2]))


@dataclass(frozen=True)
class Dates:
    """What the first two numbers of the dates of a column can be."""

    first: int = 0  # the largest
    second: int = 0
    year_first: int = 0  # cells
    other: int = 0
    dotted: bool = True  # all of them
    shown: str = ""

    def __add__(self, other: "Dates") -> "Dates":
        return Dates(
            max(self.first, other.first),
            max(self.second, other.second),
            self.year_first + other.year_first,
            self.other + other.other,
            self.dotted and other.dotted,
            self.shown or other.shown,
        )


def settle(path: Path, columns: Columns) -> Columns:
    """The mapping with everything filled in that the file tells, or a question."""
    layout = find_layout(path, columns)
    columns = replace(columns, encoding=layout.encoding, separator=layout.separator)
    dated = columns.time is not None and columns.time.unit == DATES and columns.order is None
    if columns.decimal_comma is not None and not dated:
        return _iso(columns)
    numbers, dates = _read_evidence(path, columns, layout)
    if columns.decimal_comma is None:
        columns = replace(columns, decimal_comma=decimal_comma_of([numbers], path))
    if dated:
        columns = replace(columns, order=order_of(dates, path))
    return _iso(columns)


def _iso(columns: Columns) -> Columns:
    stamped = columns.time is not None and columns.time.unit == STAMPS
    return replace(columns, order="year-month-day") if stamped else columns


def layout_of(columns: Columns) -> Layout:
    """The layout that a settled mapping tells."""
    return Layout(columns.encoding or PLAIN.encoding, columns.separator or PLAIN.separator)


def in_words(path: Path, columns: Columns) -> str:
    """What was recognized or declared, to confirm."""
    words = []
    if is_text(path):
        words = [columns.encoding or "", SEPARATORS.get(columns.separator or "", "own separator")]
        words.append("decimal comma" if columns.decimal_comma else "decimal point")
    if columns.order is not None:
        words.append(ORDER_WORDS[columns.order])
        words.append(columns.zone or "zone in the stamps")
    return f"read as: {', '.join(words)}" if words else "read as its format says"


# ── encoding and separator ───────────────────────────────────────────────────────────────────────


def find_layout(path: Path, columns: Columns | None = None) -> Layout:
    """Encoding and separator, as declared or as the whole file tells."""
    if not is_text(path):
        return PLAIN
    encoding = (columns and columns.encoding) or _encoding(path)
    try:
        separator = (columns and columns.separator) or _separator(path, encoding, columns)
    except UnicodeError as error:
        raise RecordingError(
            f"{path}: expected text in {encoding}, got other bytes; correct csv.encoding."
        ) from error
    return Layout(encoding, separator)


def _encoding(path: Path) -> str:
    """By its mark, or the first of UTF-8, UTF-16 and Windows-1252 that all bytes are text in."""
    with path.open("rb") as stream:
        head = stream.read(_PIECE)
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if max(even, odd) > 0.4 * len(head) / 2:
        return "utf-16-be" if even > odd else "utf-16-le"
    if head.translate(None, _CONTROL) != head:
        raise RecordingError(f"{path}: expected lines of text, got something else; unpack it.")
    for name in ("utf-8", "cp1252"):
        if all(_decodes(path, name)):
            return name
    raise RecordingError(
        f"{path}: expected text in UTF-8, UTF-16 or Windows-1252, got other bytes; convert it, or "
        "declare csv.encoding."
    )


def _decodes(path: Path, name: str) -> Iterator[bool]:
    """Whether the pieces of a file are text in an encoding; ends at the first that is not."""
    decoder = codecs.getincrementaldecoder(name)()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE):
            try:
                decoder.decode(piece)
                yield True
            except UnicodeError:
                yield False
                return
    try:
        decoder.decode(b"", final=True)
    except UnicodeError:
        yield False


def _separator(path: Path, encoding: str, columns: Columns | None) -> str:
    """The one that gives every row as many cells as there are names."""
    line = header_line(path, encoding)
    wanted = set(columns.wanted()) if columns else set()
    names = {mark: _cells(line, mark) for mark in SEPARATORS}
    likely = [mark for mark, cells in names.items() if len(cells) > 1 and _distinct(cells)]
    if len(likely) > 1:
        likely = [mark for mark in likely if wanted <= set(names[mark])] or likely
    if len(likely) > 1:
        likely = [mark for mark in likely if _fits(path, encoding, mark, len(names[mark]))]
    if len(likely) > 1:
        words = " or ".join(f"{SEPARATORS[mark]} ({len(names[mark])} columns)" for mark in likely)
        raise QuestionError(
            f"{path}: expected one separator of cells, got a file that {words} would fit. Say "
            f"csv.separator = {likely[0]!r} or {likely[1]!r} in the mapping."
        )
    return likely[0] if likely else ","


def _cells(line: str, mark: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], delimiter=mark), [])]


def _distinct(cells: list[str]) -> bool:
    return all(cells) and len(set(cells)) == len(cells)


def _fits(path: Path, encoding: str, mark: str, count: int) -> bool:
    """Whether no row has more cells than there are names, and most have as many."""
    rows = full = 0
    try:
        with path.open(encoding=encoding, newline="") as stream:
            for row in csv.reader(stream, delimiter=mark):
                if len(row) > count:
                    return False
                rows, full = rows + bool(row), full + (len(row) == count)
    except csv.Error:  # a cell without an end
        return False
    return 2 * full > rows


# ── numbers and dates ────────────────────────────────────────────────────────────────────────────


def _read_evidence(path: Path, columns: Columns, layout: Layout) -> tuple[Evidence, Dates]:
    """What every cell of the mapped columns says about numbers and dates."""
    numbers, dates = Evidence(), Dates()
    stamps = columns.time.column if columns.time and columns.time.unit in (STAMPS, DATES) else None
    names = [name for name in columns.wanted() if name in column_names(path, layout)]
    for frame in read_batches(path, names, layout):
        text = [name for name in names if frame[name].dtype == pl.String]
        if not text:
            break  # numbers and dates by type
        for name in [name for name in text if name != columns.patient]:
            if name == stamps:
                dates += date_evidence(frame[name])
            else:
                numbers += number_evidence(frame[name])
    return numbers, dates


def number_evidence(cells: pl.Series) -> Evidence:
    """How many numbers of a column need a decimal point, a decimal comma, or could have either.

    A column with one kind of mark is settled by its first cells if these are; the rest, which may
    be millions, cannot contradict them.
    """
    marks = [cells.str.contains(mark, literal=True).any() for mark in ".,"]
    if not any(marks):
        return Evidence()
    if not all(marks):
        first = _evidence(cells.head(_FIRST))
        if first.point or first.comma:
            return first
    return _evidence(cells)


def _evidence(cells: pl.Series) -> Evidence:
    text = cells.str.strip_chars()
    marked = text.filter(text.str.contains(r"^[+-]?[\d'’\s]*[.,][\d.,'’\s]*(?:[eE].*)?$"))
    if marked.is_empty():
        return Evidence()
    point = plain_number(marked, decimal_comma=False).is_not_null()
    comma = plain_number(marked, decimal_comma=True).is_not_null()
    kinds = [marked.filter(kind) for kind in (point & ~comma, comma & ~point, point & comma)]
    shown = [str(next(iter(kind.head(1)), "")) for kind in kinds]
    return Evidence(len(kinds[0]), len(kinds[1]), len(kinds[2]), (shown[0], shown[1], shown[2]))


def plain_number(text: pl.Series, decimal_comma: bool) -> pl.Series:
    """Numbers as text with a point and no thousands marks; null where a cell is none.

    `70,5` is no number with a decimal point: a comma has to stand before groups of three digits.
    """
    mark, other = (",", ".") if decimal_comma else (".", ",")
    space = r"[ \u00a0\u2009\u202f]"
    groups = "|".join(rf"(?:{gap}\d{{3}})+" for gap in (rf"\{other}", "['’]", space))
    grouped = rf"^[+-]?[1-9]\d{{0,2}}(?:{groups})(?:\{mark}\d*)?{_EXPONENT}"
    simple = rf"^[+-]?(?:\d+\{mark}?\d*|\{mark}\d+){_EXPONENT}"
    bare = text.str.replace_all(rf"[\{other}'’ \u00a0\u2009\u202f]", "")
    frame = pl.DataFrame({"text": text, "bare": bare})
    chosen = (
        pl.when(pl.col("text").str.contains(simple))
        .then("text")
        .when(pl.col("text").str.contains(grouped))
        .then("bare")
    )
    return frame.select(chosen.str.replace(",", ".", literal=True))["text"]


def decimal_comma_of(evidence: Iterable[Evidence], path: Path | str) -> bool:
    """Whether the cells need a comma; a question where they need both marks, or have either."""
    found = sum(evidence, Evidence())
    point, comma, either = found.shown
    if min(found.point, found.comma) > FEW * (found.point + found.comma) + 1:
        raise QuestionError(
            f"{path}: expected one decimal mark, got numbers such as {point!r} and {comma!r}. "
            "Export one of them, or say csv.decimal_comma = false or true in the mapping: the "
            "others then count as no numbers."
        )
    if found.either and not found.point and not found.comma:
        grouped = either.replace(",", "").replace(".", "")
        split = either.replace(",", ".")
        yes, no = (split, grouped) if "," in either else (grouped, split)
        raise QuestionError(
            f"{path}: expected to know the decimal mark, got only numbers such as {either!r}, "
            f"which may be {split} or {grouped}. Say csv.decimal_comma = true ({yes}) or false "
            f"({no}) in the mapping."
        )
    return found.comma > found.point


def date_evidence(cells: pl.Series) -> Dates:
    """The largest first and second number of the dates of a column."""
    parts = cells.str.extract_groups(_DATE)
    first = parts.struct.field("1").cast(pl.Int64, strict=False)
    second = parts.struct.field("2").cast(pl.Int64, strict=False)
    told = cells.filter(first.is_not_null())
    return Dates(
        _largest(first),
        _largest(second),
        int(cells.str.contains(_YEAR_FIRST).sum()),
        len(told),
        bool(told.str.contains(r"^\s*\d+\.\d+\.").all()),
        next(iter(told.head(1)), ""),
    )


def _largest(numbers: pl.Series) -> int:
    found = numbers.max()
    return found if isinstance(found, int) else 0


def order_of(found: Dates, path: Path | str) -> Order:
    """The order of dates; a question where the days do not tell."""
    if found.year_first and found.other:
        raise QuestionError(
            f"{path}: expected dates of one order, got {found.other:,} such as {found.shown!r} "
            f"beside {found.year_first:,} that begin with the year. Export one of them."
        )
    if not found.other:
        return "year-month-day"  # also where the cells are dates by type
    if found.first > 12 and found.second > 12:
        raise QuestionError(
            f"{path}: expected dates of one order, got days above 12 in the first and in the "
            "second place. Export one order of dates."
        )
    if found.first > 12:
        return "day-month-year"
    if found.second > 12:
        return "month-day-year"
    if found.dotted:
        return "day-month-year"
    raise QuestionError(
        f"{path}: expected to know the order of dates, got only dates such as {found.shown!r}, "
        "which may be day, month, year or month, day, year. Say time.order = 'day-month-year' or "
        "'month-day-year' in the mapping."
    )
