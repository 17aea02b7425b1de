"""Foreign files as tables, batch by batch: CSV, Parquet, HDF5, WFDB. Nothing in them is believed.

Sizes are checked before anything is unpacked, links and foreign places are refused, and whatever
a library raises over a damaged file leaves here as a `RecordingError`: one sentence for a person.
The libraries for HDF5 and WFDB follow links and believe headers, so a link, a view of other files,
a plug-in filter, a signal file elsewhere or a size that the files do not have is refused before
they may act on it. Columns come as they are; what they mean is for `mapping.py` to say, and how a
text file is written (`Layout`) for `dialects.py`.
"""

import codecs
import contextlib
import csv
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

BATCH = 2**18  # rows that are read at once
MOST_ROWS = 2**25  # of one stay, or of a file that is read whole: two weeks at 25 Hz
ENDINGS = {".csv": "CSV", ".parquet": "Parquet", ".h5": "HDF5", ".hdf5": "HDF5", ".hea": "WFDB"}

_LONGEST_LINE = 2**17  # bytes of a CSV's header
_MOST_DECODED = 2**30  # bytes of a text file in another encoding than UTF-8
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
_ROOM = 64 * 2**20  # bytes that any file may unpack to
_RATIO = 200  # beyond that, unpacked bytes per byte of the file
_LARGEST_PIECE = 128 * 2**20  # bytes that a library unpacks at once: a page, a chunk
_LONGEST_HEADER = 2**16  # bytes
_MOST_ENTRIES = 10_000  # groups and datasets of an HDF5 file
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_HDF5_FILTERS = {1, 2, 3, 32000}  # deflate, shuffle, checksum, lzf: built in, no plug-ins
_WFDB_BYTES = {"8": 1.0, "16": 2.0, "24": 3.0, "32": 4.0, "61": 2.0, "80": 1.0, "160": 2.0}
_WFDB_BYTES |= {"212": 1.5, "310": 4 / 3, "311": 4 / 3}
_WFDB_BYTES |= {"508": 0.0, "516": 0.0, "524": 0.0}  # FLAC: as long as it happens to be
_WFDB_NAME = r"~|[A-Za-z0-9_-][A-Za-z0-9._-]*"
_NOTHING = "~"  # a gap, or a signal of the layout
_ENOUGH = 50.0  # Hz


class RecordingError(ValueError):
    """A recording is damaged, hostile or not what the mapping says."""

    exit_code = 65  # of a command that ends with it


@dataclass(frozen=True)
class Layout:
    """How the cells of a text file are found; other formats know it by themselves."""

    encoding: str = "utf-8"
    separator: str = ","


PLAIN = Layout()


def list_recordings(path: Path) -> list[Path]:
    """The file itself, or every recording directly inside a folder, in order of name."""
    if not path.is_dir():
        return [require_file(path)]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
    for file in found:
        if file.is_symlink():
            raise RecordingError(f"{file}: expected a file, got a link; copy the file here.")
    parts = {name for file in found for name in _parts(file)}
    found = [file for file in found if file.name not in parts]
    if not found:
        raise RecordingError(
            f"{path}: expected recordings ({', '.join(ENDINGS)}), found none; check the folder."
        )
    return [require_file(file) for file in found]


def _parts(file: Path) -> list[str]:
    """Headers of the segments of a record, which are no recordings of their own."""
    if ENDINGS[file.suffix.lower()] != "WFDB":
        return []
    with _typed(file):
        first, *lines = _wfdb_lines(file) or [""]
    return [f"{line.split()[0]}.hea" for line in lines] if "/" in first.split(" ")[0] else []


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
        return [path, *(path.parent / name for name in _wfdb_header(path).files)]


def column_names(path: Path, layout: Layout = PLAIN) -> list[str]:
    """The columns of a recording, in order."""
    kind = ENDINGS[require_file(path).suffix.lower()]
    with _typed(path):
        return _NAMES[kind](path, layout)


def is_text(path: Path) -> bool:
    """Whether cells are text that somebody wrote in some dialect."""
    return ENDINGS[require_file(path).suffix.lower()] == "CSV"


def own_rate(path: Path, declared: float | None = None) -> float | None:
    """Rows per second: as declared, or as the format knows it."""
    if ENDINGS[path.suffix.lower()] != "WFDB":
        return declared
    with _typed(path):
        header = _wfdb_header(path)
        return (declared or header.rate) / header.merged


def read_batches(
    path: Path, wanted: Sequence[str] | None = None, layout: Layout = PLAIN
) -> Iterator[pl.DataFrame]:
    """The wanted columns (None: all of them), at most about `BATCH` rows at a time."""
    names = column_names(path, layout)
    for name in [name for name in wanted or () if name not in names]:
        shown = ", ".join(names[:20])
        raise RecordingError(
            f"{path}: expected a column {name!r}, which is missing; "
            f"correct the mapping. There are: {shown}."
        )
    with _typed(path):
        read = _READ[ENDINGS[path.suffix.lower()]]
        yield from read(path, list(names if wanted is None else wanted), layout)


def read_table(
    path: Path, wanted: Sequence[str] | None = None, layout: Layout = PLAIN
) -> pl.DataFrame:
    """A whole recording at once, if it has no more than `MOST_ROWS` rows."""
    frames, total = [], 0
    for frame in read_batches(path, wanted, layout):
        total += frame.height
        if total > MOST_ROWS:
            raise RecordingError(f"{path}: expected at most {MOST_ROWS:,} rows; split the file.")
        frames.append(frame)
    if not frames:
        raise RecordingError(f"{path}: expected rows, got none; export it again.")
    return pl.concat(frames)


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


def _check_sizes(path: Path, unpacked: int, piece: int) -> None:
    """Refuse a file that claims to hold far more than it can."""
    allowed = _ROOM + _RATIO * path.stat().st_size
    if unpacked > allowed or piece > _LARGEST_PIECE:
        raise RecordingError(
            f"{path}: expected at most {allowed:,} bytes in pieces of {_LARGEST_PIECE:,}, "
            f"got {unpacked:,} in pieces of {piece:,}; this cannot be a recording."
        )


def _csv_names(path: Path, layout: Layout) -> list[str]:
    line = header_line(path, layout.encoding)
    row = next(csv.reader(io.StringIO(line), delimiter=layout.separator), [])
    names = [name.strip() for name in row]
    if not all(names) or len(set(names)) < len(names) or not names:
        raise RecordingError(f"{path}: expected a name for every column, each once; add them.")
    return names


def header_line(path: Path, encoding: str) -> str:
    """The first line of a text file."""
    with path.open("rb") as stream:
        head = stream.read(_LONGEST_LINE)
    decoder = codecs.getincrementaldecoder(encoding)()
    line, *rest = decoder.decode(head).removeprefix("\ufeff").split("\n", 1)
    if "\0" in line or not rest:
        raise RecordingError(f"{path}: expected lines of text, got something else; unpack it.")
    return line.strip("\r")


def _read_csv(path: Path, wanted: list[str], layout: Layout) -> Iterator[pl.DataFrame]:
    """Cells stay text: what is no number shall be counted, not guessed."""
    schema = dict.fromkeys(_csv_names(path, layout), pl.String)
    lazy = pl.scan_csv(
        _as_utf8(path, layout.encoding), schema=schema, separator=layout.separator, glob=False
    )
    # All columns are read: where some are skipped, polars also skips a cell too many in a row.
    yield from (frame.select(wanted) for frame in _collect(lazy))


def _as_utf8(path: Path, encoding: str) -> Path | io.BytesIO:
    """The file itself, or what it says in the one encoding that is read in batches."""
    if encoding == "utf-8":
        return path
    if path.stat().st_size > _MOST_DECODED:
        raise RecordingError(
            f"{path}: expected at most {_MOST_DECODED:,} bytes in {encoding}; convert it to UTF-8."
        )
    return io.BytesIO(path.read_bytes().decode(encoding).removeprefix("\ufeff").encode())


def _parquet_names(path: Path, _: Layout) -> list[str]:
    sizes = _parquet_sizes(path)
    _check_sizes(path, max(sizes.unpacked, 8 * sizes.rows), 8 * sizes.most_values)
    _check_sizes(path, 0, max(sizes.largest_page, 8 * sizes.largest_group))
    with _silence():
        return list(pl.scan_parquet(path, glob=False).collect_schema())


def _read_parquet(path: Path, wanted: list[str], _: Layout) -> Iterator[pl.DataFrame]:
    lazy = pl.scan_parquet(path, glob=False)
    schema = lazy.collect_schema()
    for name in wanted:
        if not (schema[name].is_numeric() or isinstance(schema[name], _PLAIN_TYPES)):
            raise RecordingError(
                f"{path}: expected numbers, text or times in {name!r}, got {schema[name]}."
            )
    yield from _collect(lazy.select(wanted))


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


def _hdf5(path: Path) -> Any:
    """An open HDF5 file; the library refuses a locked disk, which reading does not mind."""
    with path.open("rb") as stream:
        if stream.read(8) != _HDF5_MAGIC:
            raise RecordingError(f"{path}: expected HDF5, got something else; export it again.")
    return _library("h5py").File(path, "r", locking=False)


def _library(name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # wfdb warns about pandas, which it imports
            if name == "h5py":
                import h5py

                return h5py
            import wfdb

            return wfdb
    except ImportError as error:
        raise RecordingError(
            f"expected the package {name!r}, which is not installed; "
            "install it with pip install 'stepdown[import]'."
        ) from error


def _hdf5_names(path: Path, _: Layout) -> list[str]:
    """Every dataset, after all of them were found harmless."""
    with _hdf5(path) as file:
        names = _walk(file, path)
        for name in names:
            _check_dataset(file[name], name, path)
        return names


def _walk(file: Any, path: Path) -> list[str]:
    """Datasets of a file without links; h5py would follow one to any other file."""
    h5py, names, groups, count = _library("h5py"), [], [""], 0
    while groups:
        group = groups.pop()
        for key in file[group or "/"]:
            name, count = f"{group}{key}", count + 1
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                raise RecordingError(f"{path}: expected data in {name!r}, got a link; copy it in.")
            if count > _MOST_ENTRIES or name.count("/") > 8:
                raise RecordingError(f"{path}: expected few, flat groups, got too many of them.")
            if file.get(name, getclass=True) is h5py.Group:
                groups.append(f"{name}/")
            elif file.get(name, getclass=True) is h5py.Dataset:
                names.append(name)
    return sorted(names)


def _check_dataset(data: Any, name: str, path: Path) -> None:
    here = f"{path}: {name!r}"
    if data.is_virtual or data.external:
        raise RecordingError(f"{here}: expected data, got a view of other files; copy it in.")
    if data.ndim != 1 or data.dtype.kind not in "iufbS":
        raise RecordingError(f"{here}: expected one column of numbers or short text; convert it.")
    filters = data.id.get_create_plist()
    used = {filters.get_filter(i)[0] for i in range(filters.get_nfilters())}
    if used - _HDF5_FILTERS:
        raise RecordingError(f"{here}: expected gzip, lzf or no packing; pack it anew.")
    piece = data.chunks[0] if data.chunks else min(data.size, BATCH)
    _check_sizes(path, data.size * data.dtype.itemsize, piece * data.dtype.itemsize)


def _read_hdf5(path: Path, wanted: list[str], _: Layout) -> Iterator[pl.DataFrame]:
    """Columns from datasets, batch by batch."""
    with _hdf5(path) as file:
        data = {name: file[name] for name in wanted}
        lengths = {len(column) for column in data.values()}
        if len(lengths) > 1:
            raise RecordingError(f"{path}: expected columns of one length, got {sorted(lengths)}.")
        for start in range(0, lengths.pop() if lengths else 0, BATCH):
            part = {name: column[start : start + BATCH] for name, column in data.items()}
            yield pl.DataFrame({name: _plain(values) for name, values in part.items()})


def _plain(values: np.ndarray) -> np.ndarray:
    """Plain text, whole numbers or float64; odd widths would become Python objects."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8")
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


@dataclass(frozen=True)
class _Segment:
    """A stretch of a record that lies in one set of files; a gap has no names."""

    record: str
    samples: int
    names: list[str]


@dataclass(frozen=True)
class _WfdbHeader:
    """What a WFDB header promises, after its promises were held against the files."""

    names: list[str]
    rate: float
    segments: list[_Segment]
    files: list[str]  # beside the header itself

    @property
    def merged(self) -> int:
        """How many samples become one, so that a long stay fits: 50 to 100 a second are enough."""
        return max(int(self.rate / _ENOUGH), 1)


def _wfdb_header(path: Path) -> _WfdbHeader:
    """Check names and sizes by hand: the library believes the header and allocates."""
    lines = _wfdb_lines(path)
    record = re.fullmatch(
        r"(\S+?)(?:/(\d{1,5}))?\s+(\d{1,3})\s+([\d.]+)\S*\s+(\d+)(\s.*)?", lines[0]
    )
    expected = record and int(record[2] or record[3]) + 1
    if not record or record[1] != path.stem or len(lines) != expected:
        raise RecordingError(
            f"{path}: expected a record with its own name, rate, length and one line per signal or "
            "segment; write it anew."
        )
    rate, samples = float(record[4]), int(record[5])
    if not 0 < rate < 1e5:
        raise RecordingError(f"{path}: expected a rate in Hz, got {record[4]}.")
    if record[2]:
        return _wfdb_segments(path, lines[1:], rate, samples)
    names, needed = [], {}
    for line in lines[1:]:
        file, size, name = _wfdb_signal(line, path)
        names.append(name)
        needed[file] = needed.get(file, 0.0) + size * samples
    files = [] if set(needed) == {_NOTHING} else list(needed)
    for file in files:
        _check_signal_file(path.parent / file, needed[file], path)
    if len(set(names)) < len(names):
        raise RecordingError(f"{path}: expected different names of signals.")
    return _WfdbHeader(names, rate, [_Segment(path.stem, samples, names)], files)


def _wfdb_lines(path: Path) -> list[str]:
    if path.is_symlink() or not path.is_file():
        raise RecordingError(f"{path}: expected a header beside that of the record, found none.")
    if path.stat().st_size > _LONGEST_HEADER:
        raise RecordingError(f"{path}: expected a short header, got {path.stat().st_size} bytes.")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _wfdb_segments(path: Path, lines: list[str], rate: float, samples: int) -> _WfdbHeader:
    """A record of several segments: one layout for all, or a layout that segments fill in part."""
    segments, files, names = [], [], []
    for number, line in enumerate(lines):
        words = line.split()
        if len(words) != 2 or not re.fullmatch(_WFDB_NAME, words[0]) or not words[1].isdigit():
            raise RecordingError(f"{path}: expected a segment and its length, got {line[:80]!r}.")
        if words[0] == _NOTHING:
            segments.append(_Segment(_NOTHING, int(words[1]), []))
            continue
        own = path.with_name(f"{words[0]}.hea")
        part = _wfdb_header(own)
        files += [own.name, *part.files]
        one = part.segments[0]
        layout = number == 0 and not part.files and not one.samples
        if len(part.segments) > 1 or part.rate != rate or one.samples != int(words[1]):
            raise RecordingError(
                f"{path}: expected segment {words[0]} in one piece, with the rate and length that "
                "this header says, got others; copy the record again."
            )
        names += [name for name in part.names if name not in names]
        if not layout:
            segments.append(one)
    if sum(segment.samples for segment in segments) != samples:
        raise RecordingError(f"{path}: expected segments of {samples:,} samples together.")
    return _WfdbHeader(names, rate, segments, list(dict.fromkeys(files)))


def _wfdb_signal(line: str, path: Path) -> tuple[str, float, str]:
    """File, bytes per sample and name of a signal; 0 bytes where samples are packed or missing."""
    words = line.split(maxsplit=8)
    if len(words) < 9 or not re.fullmatch(_WFDB_NAME, words[0]):
        raise RecordingError(
            f"{path}: expected a file beside the header and nine fields, got {words[:1]}; "
            "keep header and signals in one folder."
        )
    kind = re.fullmatch(r"(\d+)(?:x(\d{1,3}))?", words[1])
    if words[0] == _NOTHING:
        return words[0], 0.0, words[8].strip()
    if not kind or kind[1] not in _WFDB_BYTES:
        raise RecordingError(f"{path}: expected a format of {', '.join(_WFDB_BYTES)}.")
    return words[0], _WFDB_BYTES[kind[1]] * int(kind[2] or 1), words[8].strip()


def _check_signal_file(file: Path, needed: float, path: Path) -> None:
    if file.is_symlink() or not file.is_file():
        raise RecordingError(f"{path}: expected the file {file.name} beside it, found none.")
    if file.stat().st_size < int(needed):
        raise RecordingError(
            f"{path}: expected {int(needed):,} bytes in {file.name}, as the header says, "
            f"got {file.stat().st_size:,}; copy it again."
        )


def _read_wfdb(path: Path, wanted: list[str], _: Layout) -> Iterator[pl.DataFrame]:
    """Signals in the header's units, batch by batch; what a segment lacks is NaN, as is a gap."""
    header, rest = _wfdb_header(path), np.zeros((0, len(wanted)))
    for segment in header.segments:
        for start in range(0, segment.samples, BATCH):
            stop = min(start + BATCH, segment.samples)
            part = _read_segment(path.with_name(segment.record), segment, start, stop, wanted)
            rest = np.concatenate([rest, part])
            whole = len(rest) // header.merged * header.merged
            yield pl.DataFrame(_merge(rest[:whole], header.merged), wanted)
            rest = rest[whole:]
    if len(rest):
        yield pl.DataFrame(_merge(rest, len(rest)), wanted)


def _read_segment(
    record: Path, segment: _Segment, start: int, stop: int, wanted: list[str]
) -> np.ndarray:
    out = np.full((stop - start, len(wanted)), np.nan)
    there = [name for name in wanted if name in segment.names]
    if not there:
        return out
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own quarrels with pandas
        # An absolute path is never taken for an address.
        part = _library("wfdb").rdrecord(
            os.path.realpath(record), sampfrom=start, sampto=stop, channel_names=there
        )
    for name, values in zip(part.sig_name, part.p_signal.T, strict=True):
        out[:, wanted.index(name)] = values
    return out


def _merge(values: np.ndarray, samples: int) -> np.ndarray:
    """The mean of so many samples each, of those that are there."""
    if samples <= 1:
        return values
    groups = values.reshape(-1, samples, values.shape[1])
    known = np.isfinite(groups)
    with np.errstate(invalid="ignore"):
        return np.where(known, groups, 0.0).sum(1) / known.sum(1)


# ── how large a Parquet file will be ─────────────────────────────────────────────────────────────
#
# A few bytes of Parquet can declare gigabytes. The library that reads the file believes them, so
# the footer and the header of every page are read here first: Thrift's compact encoding, no more
# of it than sizes need. https://parquet.apache.org/docs/file-format/ names the fields.

_PARQUET_MAGIC = b"PAR1"
_LARGEST_FOOTER = 2**21  # bytes; a day at 25 Hz needs some kilobytes
_LARGEST_PAGE_HEADER = 2**16  # bytes
_DEEPEST = 16  # structures inside one another

_TRUE, _FALSE, _BYTE, _SHORT, _INT, _LONG, _DOUBLE = range(1, 8)
_BINARY, _LIST, _SET, _MAP, _STRUCT = range(8, 13)


@dataclass(frozen=True)
class _Sizes:
    """What a file declares."""

    rows: int
    largest_group: int  # rows
    largest_page: int  # bytes unpacked
    unpacked: int  # bytes of all pages
    most_values: int  # in a page


def _parquet_sizes(path: Path) -> _Sizes:
    """Sizes from footer and page headers; the pages themselves stay packed."""
    try:
        with path.open("rb") as stream:
            if stream.read(4) != _PARQUET_MAGIC:
                raise ValueError("it does not begin like Parquet")
            return _sizes(stream, os.fstat(stream.fileno()).st_size)
    except (IndexError, KeyError, TypeError) as error:  # a field is cut off, missing or another
        raise ValueError("the footer or a page header is damaged") from error


def _sizes(stream: BinaryIO, size: int) -> _Sizes:
    footer = _footer(stream, size)
    groups = [(group[3], group[1]) for group in footer[4]]
    pages = [page for _, chunks in groups for chunk in chunks for page in _pages(stream, chunk)]
    numbers = [footer[3], *(rows for rows, _ in groups), *(n for page in pages for n in page)]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError("a size is negative or no number")
    if sum(rows for rows, _ in groups) != footer[3]:
        raise ValueError("the row groups do not add up")
    return _Sizes(
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
    if len(tail) < 8 or tail[4:] != _PARQUET_MAGIC or length > size - 12:
        raise ValueError("the end of the file is missing")
    if length > _LARGEST_FOOTER:
        raise ValueError("the footer is too long; write fewer row groups")
    stream.seek(size - 8 - length)
    return _Thrift(stream.read(length)).struct()


def _pages(stream: BinaryIO, chunk: dict[int, Any]) -> Iterator[tuple[int, int]]:
    """Unpacked bytes and values of every page of a column."""
    if 1 in chunk:
        raise ValueError("a column lies in another file; join the files")
    column = chunk[3]
    place = min(column[9], column.get(11, column[9]))
    end = place + column[7]
    while place < end:
        stream.seek(place)
        reader = _Thrift(stream.read(_LARGEST_PAGE_HEADER))
        header = reader.struct()
        inner = header.get(5) or header.get(7) or header.get(8) or {1: 0}
        if header[3] < 0:
            raise ValueError("a page has a negative size")
        yield header[2], inner[1]
        place += reader.place + header[3]


class _Thrift:
    """Values of Thrift's compact protocol, structures as dictionaries by field number."""

    def __init__(self, data: bytes):
        self.data, self.place = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Fields up to the stop byte."""
        if depth > _DEEPEST:
            raise ValueError("structures are nested too deeply")
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
        raise ValueError("a field has an unknown type")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self.data) - self.place:  # an element takes a byte at least
            raise ValueError("a list is longer than the file")
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
                raise ValueError("a number is too long")
        return value | byte << shift

    def _signed(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)


_NAMES: dict[str, Callable[[Path, Layout], list[str]]] = {
    "CSV": _csv_names,
    "Parquet": _parquet_names,
    "HDF5": _hdf5_names,
    "WFDB": lambda path, _: list(_wfdb_header(path).names),
}
_READ: dict[str, Callable[[Path, list[str], Layout], Iterator[pl.DataFrame]]] = {
    "CSV": _read_csv,
    "Parquet": _read_parquet,
    "HDF5": _read_hdf5,
    "WFDB": _read_wfdb,
}
