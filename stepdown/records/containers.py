"""HDF5 and WFDB: libraries that follow links and believe headers, so both are checked first.

The only place that knows h5py and wfdb. A link, a view of other files, a plug-in filter, a signal
file elsewhere or a size that the files do not have is refused before the library may act on it.
"""

import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepdown.records.limits import BATCH, RecordingError, check_sizes

_LONGEST_HEADER = 2**16  # bytes
_MOST_ENTRIES = 10_000  # groups and datasets of an HDF5 file
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_HDF5_FILTERS = {1, 2, 3, 32000}  # deflate, shuffle, checksum, lzf: built in, no plug-ins
_WFDB_BYTES = {"8": 1.0, "16": 2.0, "24": 3.0, "32": 4.0, "61": 2.0, "80": 1.0, "160": 2.0}
_WFDB_BYTES |= {"212": 1.5, "310": 4 / 3, "311": 4 / 3}


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


def hdf5_names(path: Path, _: str = "") -> list[str]:
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
    check_sizes(path, data.size * data.dtype.itemsize, piece * data.dtype.itemsize)


def read_hdf5(path: Path, wanted: list[str], _: str = "") -> Iterator[pl.DataFrame]:
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
class WfdbHeader:
    """What a WFDB header promises, after its promises were held against the files."""

    names: list[str]
    rate: float
    samples: int
    files: list[str]


def wfdb_header(path: Path) -> WfdbHeader:
    """Check names and sizes by hand: the library believes the header and allocates."""
    if path.stat().st_size > _LONGEST_HEADER:
        raise RecordingError(f"{path}: expected a short header, got {path.stat().st_size} bytes.")
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    record = re.fullmatch(r"(\S+)\s+(\d{1,3})\s+([\d.]+)\S*\s+(\d+)(\s.*)?", lines[0])
    if not record or record[1] != path.stem or len(lines) != int(record[2]) + 1:
        raise RecordingError(
            f"{path}: expected a record of one segment with its own name, rate, length and one "
            "line per signal; write it anew."
        )
    names, samples, needed = [], int(record[4]), {}
    for line in lines[1:]:
        file, size, name = _wfdb_signal(line, path)
        names.append(name)
        needed[file] = needed.get(file, 0.0) + size * samples
    for file, size in needed.items():
        _check_signal_file(path.parent / file, size, path)
    if len(set(names)) < len(names) or not 0 < float(record[3]) < 1e5:
        raise RecordingError(f"{path}: expected different names of signals and a rate in Hz.")
    return WfdbHeader(names, float(record[3]), samples, list(needed))


def _wfdb_signal(line: str, path: Path) -> tuple[str, float, str]:
    """File, bytes per sample and name of a signal."""
    words = line.split(maxsplit=8)
    if len(words) < 9 or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", words[0]):
        raise RecordingError(
            f"{path}: expected a file beside the header and nine fields, got {words[:1]}; "
            "keep header and signals in one folder."
        )
    if words[1] not in _WFDB_BYTES:
        raise RecordingError(f"{path}: expected a format of {', '.join(_WFDB_BYTES)}.")
    return words[0], _WFDB_BYTES[words[1]], words[8].strip()


def _check_signal_file(file: Path, needed: float, path: Path) -> None:
    if file.is_symlink() or not file.is_file():
        raise RecordingError(f"{path}: expected the file {file.name} beside it, found none.")
    if file.stat().st_size < int(needed):
        raise RecordingError(
            f"{path}: expected {int(needed):,} bytes in {file.name}, as the header says, "
            f"got {file.stat().st_size:,}; copy it again."
        )


def read_wfdb(path: Path, wanted: list[str], _: str = "") -> Iterator[pl.DataFrame]:
    """Signals in the header's units, batch by batch."""
    header, wfdb = wfdb_header(path), _library("wfdb")
    record = os.path.realpath(path)[: -len(path.suffix)]  # absolute: never taken for an address
    for start in range(0, header.samples, BATCH):
        stop = min(start + BATCH, header.samples)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own quarrels with pandas
            part = wfdb.rdrecord(record, sampfrom=start, sampto=stop, channel_names=wanted)
        frame = pl.DataFrame(dict(zip(part.sig_name, part.p_signal.T, strict=True)))
        yield frame.select(wanted)
