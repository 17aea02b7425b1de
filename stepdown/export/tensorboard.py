"""Curves for TensorBoard, written by hand: its files are simple, its packages are many.

A file is a sequence of records: length, checksum of the length, an Event message, checksum of the
message. An Event holds a time, a step and named numbers, in protocol buffer form.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLYNOMIAL = 0x82F63B78  # CRC-32C, bits reversed
MASK = 0xA282EAD8
VERSION = b"brain.Event:2"


@dataclass(frozen=True)
class Event:
    """A point of some curves."""

    time: float  # Unix time, s
    step: int
    numbers: Mapping[str, float]  # by the name of their curve


def write_events(path: Path, events: Sequence[Event]) -> None:
    """Begin a file with some events."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [_record(_double(1, events[0].time if events else 0.0) + _bytes(3, VERSION))]
    path.write_bytes(b"".join(records + [_record(_message(event)) for event in events]))


def append_event(path: Path, event: Event) -> None:
    """Add one event to a file."""
    with path.open("ab") as file:
        file.write(_record(_message(event)))


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


def _message(event: Event) -> bytes:
    values = [_bytes(1, _bytes(1, tag.encode()) + _float(2, x)) for tag, x in event.numbers.items()]
    return _double(1, event.time) + _tag(2, 0) + _varint(event.step) + _bytes(5, b"".join(values))


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
