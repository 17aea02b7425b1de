"""Large text tables, packed or not, piece by piece: only wanted columns of wanted rows are parsed.

A table of hundreds of millions of rows is unpacked as a stream; while one piece is read, the next
is unpacked. Rows that are kept may wait on disk, a file for every piece, so that memory holds a
piece and an interrupted reading goes on where it was: what was read is unpacked again (a gzip
stream has no other way in) and not parsed.
"""

import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl

from stepdown import __version__
from stepdown.records.readers import RecordingError

PIECE = 32 * 2**20  # bytes of text that are read at once
ROW = "row"  # the number of a row in its file, the header being 1
_PACKED = 2**20  # bytes that are unpacked at once
_LONGEST_LINE = 2**16
_LONGEST_ROW = 4 * PIECE
_DAMAGED = (EOFError, OSError, zlib.error, UnicodeDecodeError, pl.exceptions.PolarsError)

Watch = Callable[[float], None]


def unwatched(share: float) -> None:
    """For whoever does not wait."""


def read_pieces(
    file: Path,
    wanted: Sequence[str],
    kept: pl.Expr | None = None,
    watch: Watch = unwatched,
    done: int = 0,
) -> Iterator[pl.DataFrame]:
    """The wanted columns as text, of the kept rows; nothing of the first `done` pieces."""
    try:
        with file.open("rb") as raw, ThreadPoolExecutor(1) as unpacker:
            blocks = _blocks(_unpacked(raw) if file.suffix == ".gz" else _plain(raw), file)
            line, block = _first_line(next(blocks, b""))
            head = _header(file, line, wanted)
            size, row, number = file.stat().st_size, 2, 0
            while block is not None:
                coming = unpacker.submit(next, blocks, None)
                if block and number >= done:
                    yield _parse(head + block, row, wanted, kept)
                row, number = row + block.count(b"\n"), number + 1
                watch(min(raw.tell() / size, 1.0))
                block = coming.result()
            if row == 2:
                raise RecordingError(f"{file}: expected rows, got none; export it again.")
    except _DAMAGED as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise RecordingError(
            f"{file}: expected a whole table in UTF-8, got a damaged or foreign one ({words}); "
            "copy it again and compare its checksum."
        ) from error


def read_to_disk(
    file: Path, wanted: Sequence[str], kept: pl.Expr, work: Path, watch: Watch = unwatched
) -> pl.LazyFrame:
    """The same rows, to be read from `work`; pieces that wait there already are not read again."""
    about = file.stat()
    said = [str(file.resolve()), about.st_size, about.st_mtime_ns, list(wanted), str(kept), PIECE]
    mark = hashlib.sha256(json.dumps([*said, __version__]).encode()).hexdigest()[:16]
    folder = work / f"{file.name.split('.')[0]}-{mark}"
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while _part(folder, number).is_file():
        number += 1
    for rows in read_pieces(file, wanted, kept, watch, done=number):
        unfinished = folder / "unfinished"
        rows.write_parquet(unfinished, compression="lz4")
        os.replace(unfinished, _part(folder, number))
        number += 1
    return pl.scan_parquet([_part(folder, i) for i in range(number)], glob=False)


def _part(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.parquet"


def _parse(text: bytes, row: int, wanted: Sequence[str], kept: pl.Expr | None) -> pl.DataFrame:
    """Polars looks at the columns that it needs alone, and builds the rows that are kept."""
    table = pl.scan_csv(
        io.BytesIO(text), infer_schema=False, row_index_name=ROW, row_index_offset=row
    ).select(ROW, *wanted)
    return (table if kept is None else table.filter(kept)).collect()


def _first_line(block: bytes) -> tuple[bytes, bytes]:
    place = block.find(b"\n", 0, _LONGEST_LINE)
    return (block, b"") if place < 0 else (block[: place + 1], block[place + 1 :])


def _header(file: Path, line: bytes, wanted: Sequence[str]) -> bytes:
    try:
        names = line[:_LONGEST_LINE].decode().lstrip("\ufeff").strip().split(",")
    except UnicodeDecodeError as error:
        raise RecordingError(
            f"{file}: expected a table in UTF-8, got another encoding; convert it."
        ) from error
    for name in [name for name in wanted if name not in names]:
        raise RecordingError(
            f"{file}: expected a column {name!r}, which is missing; there are: "
            f"{', '.join(names[:20])}. Copy the table as MIMIC-IV has it."
        )
    return ",".join(names).encode() + b"\n"


def _blocks(chunks: Iterator[bytes], file: Path) -> Iterator[bytes]:
    """Whole rows, some megabytes at a time; a quoted cell may hold a line break."""
    held: list[bytes] = []
    size, full = 0, PIECE
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size < full:
            continue
        data = b"".join(held)
        cut = data.rfind(b"\n") + 1
        if cut and data.count(b'"', 0, cut) % 2 == 0:
            yield data[:cut]
            held, size, full = [data[cut:]], len(data) - cut, PIECE
            continue
        held, full = [data], size + PIECE
        if size > _LONGEST_ROW:
            raise RecordingError(
                f"{file}: expected rows of a table, got {size:,} bytes without an end of a row, or "
                "a quotation mark that is never closed; export it again."
            )
    if data := b"".join(held):
        yield data


def _plain(raw: io.BufferedReader) -> Iterator[bytes]:
    while chunk := raw.read(_PACKED):
        yield chunk


def _unpacked(raw: io.BufferedReader) -> Iterator[bytes]:
    """The text of one gzip member after the other; never much more than a piece at once."""
    unpacker, packed = zlib.decompressobj(wbits=31), raw.read(_PACKED)
    while packed:
        yield unpacker.decompress(packed, PIECE)
        if not unpacker.eof:
            packed = unpacker.unconsumed_tail or raw.read(_PACKED)
            continue
        packed = (unpacker.unused_data or raw.read(_PACKED)).lstrip(b"\0")
        unpacker = zlib.decompressobj(wbits=31) if packed else unpacker
    yield unpacker.flush()
    if not unpacker.eof:
        raise EOFError("it ends in the middle")
