"""Curves for TensorBoard, written by hand: its files are simple, its packages are many.

A file is a sequence of records: length, checksum of the length, an Event message, checksum of the
message. An Event holds a time, a step and named numbers, in protocol buffer form.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

POLYNOMIAL = 0x82F63B78  # CRC-32C, bits reversed
MASK = 0xA282EAD8
VERSION = b"brain.Event:2"


def write_events(path: Path, events: Sequence[tuple[float, int, Mapping[str, float]]]) -> None:
    """Begin a file with some events: Unix time in s, step, numbers by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [_record(_double(1, events[0][0] if events else 0.0) + _bytes(3, VERSION))]
    path.write_bytes(b"".join(records + [_record(_event(*event)) for event in events]))


def append_event(path: Path, time: float, step: int, numbers: Mapping[str, float]) -> None:
    """Add one event to a file."""
    with path.open("ab") as file:
        file.write(_record(_event(time, step, numbers)))


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + MASK) & 0xFFFFFFFF)


def _event(time: float, step: int, numbers: Mapping[str, float]) -> bytes:
    values = [_bytes(1, _bytes(1, tag.encode()) + _float(2, x)) for tag, x in numbers.items()]
    return _double(1, time) + _tag(2, 0) + _varint(step) + _bytes(5, b"".join(values))


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _double(field: int, number: float) -> bytes:
    return _tag(field, 1) + struct.pack("<d", number)


def _float(field: int, number: float) -> bytes:
    return _tag(field, 5) + struct.pack("<f", number)


def _bytes(field: int, data: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(data)) + data
