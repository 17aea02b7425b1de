"""How large a Parquet file will be in memory, asked before anything is unpacked.

A few bytes of Parquet can declare gigabytes. The library that reads the file believes them, so
the footer and the header of every page are read here first: Thrift's compact encoding, no more
of it than sizes need. https://parquet.apache.org/docs/file-format/ names the fields.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"PAR1"
_LARGEST_FOOTER = 2**21  # bytes; a day at 25 Hz needs some kilobytes
_LARGEST_HEADER = 2**16  # bytes of a page header
_DEEPEST = 16

_TRUE, _FALSE, _BYTE, _SHORT, _INT, _LONG, _DOUBLE = range(1, 8)
_BINARY, _LIST, _SET, _MAP, _STRUCT = range(8, 13)


class ParquetError(ValueError):
    """The file is no Parquet, or contradicts itself."""


@dataclass(frozen=True)
class Sizes:
    """What a file declares."""

    rows: int
    largest_group: int  # rows
    largest_page: int  # bytes unpacked
    unpacked: int  # bytes of all pages
    most_values: int  # in a page


def parquet_sizes(path: Path) -> Sizes:
    """Sizes from footer and page headers; the pages themselves stay packed."""
    try:
        with path.open("rb") as stream:
            return _sizes(stream, os.fstat(stream.fileno()).st_size)
    except (IndexError, KeyError, TypeError) as error:  # a field is cut off, missing or another
        raise ParquetError("the footer or a page header is damaged") from error


def _sizes(stream: BinaryIO, size: int) -> Sizes:
    footer = _footer(stream, size)
    groups = [(group[3], group[1]) for group in footer[4]]
    pages = [page for _, chunks in groups for chunk in chunks for page in _pages(stream, chunk)]
    numbers = [footer[3], *(rows for rows, _ in groups), *(n for page in pages for n in page)]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ParquetError("a size is negative or no number")
    if sum(rows for rows, _ in groups) != footer[3]:
        raise ParquetError("the row groups do not add up")
    return Sizes(
        rows=footer[3],
        largest_group=max((rows for rows, _ in groups), default=0),
        largest_page=max((page[0] for page in pages), default=0),
        unpacked=sum(page[0] for page in pages),
        most_values=max((page[1] for page in pages), default=0),
    )


def _footer(stream: BinaryIO, size: int) -> dict[int, Any]:
    stream.seek(max(size - 8, 0))
    tail = stream.read(8)
    length = int.from_bytes(tail[:4], "little")
    if len(tail) < 8 or tail[4:] != MAGIC or length > size - 12:
        raise ParquetError("the end of the file is missing")
    if length > _LARGEST_FOOTER:
        raise ParquetError("the footer is too long; write fewer row groups")
    stream.seek(size - 8 - length)
    return _Thrift(stream.read(length)).struct()


def _pages(stream: BinaryIO, chunk: dict[int, Any]) -> Iterator[tuple[int, int]]:
    """Unpacked bytes and values of every page of a column."""
    if 1 in chunk:
        raise ParquetError("a column lies in another file; join the files")
    column = chunk[3]
    place = min(column[9], column.get(11, column[9]))
    end = place + column[7]
    while place < end:
        stream.seek(place)
        reader = _Thrift(stream.read(_LARGEST_HEADER))
        header = reader.struct()
        inner = header.get(5) or header.get(7) or header.get(8) or {1: 0}
        if header[3] < 0:
            raise ParquetError("a page has a negative size")
        yield header[2], inner[1]
        place += reader.place + header[3]


class _Thrift:
    """Values of Thrift's compact protocol, structures as dictionaries by field number."""

    def __init__(self, data: bytes):
        self.data, self.place = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Fields up to the stop byte."""
        if depth > _DEEPEST:
            raise ParquetError("structures are nested too deeply")
        fields, number = {}, 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in (_SHORT, _INT, _LONG):
            return self._signed()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind in (_BYTE, _DOUBLE, _BINARY):
            return self._skip({_BYTE: 1, _DOUBLE: 8}.get(kind) or self._varint())
        raise ParquetError("a field has an unknown type")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self.data) - self.place:  # an element takes a byte at least
            raise ParquetError("a list is longer than the file")
        inner = head & 15
        if inner in (_TRUE, _FALSE):
            return [self._byte() for _ in range(count)]
        return [self._value(inner, depth + 1) for _ in range(count)]

    def _skip(self, count: int) -> None:
        self.place += count
        if self.place > len(self.data):
            raise IndexError

    def _byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def _varint(self) -> int:
        value, shift = 0, 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ParquetError("a number is too long")
        return value | byte << shift

    def _signed(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
