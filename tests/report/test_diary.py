"""What a training notes down: lines of JSON, and the same numbers as TensorBoard reads them."""

import json
import struct
from pathlib import Path

from stepdown.export.tensorboard import crc32c
from stepdown.report.diary import Diary, read_metrics

SHARES = [0.0, 0.0, 0.25, 0.5, 0.25, 0.0, 0.0, 0.0]


def written(folder: Path) -> Diary:
    """Three epochs of ten updates, of two seeds in turn."""
    diary = Diary(folder, "mbpo")
    for seed in (0, 1):
        diary.rewind(seed, 0)
        for epoch in (1, 2, 3):
            diary.write(seed, epoch, 10 * epoch, {"reward": epoch / 4, "levels": SHARES})
    return diary


def events_of(folder: Path, seed: int) -> list[bytes]:
    (file,) = (folder / "tensorboard" / f"seed-{seed}").iterdir()
    assert "tfevents" in file.name
    head, *events = read_records(file.read_bytes())
    assert head.endswith(b"\x1a\x0dbrain.Event:2")
    return events


def read_records(data: bytes) -> list[bytes]:
    """The records of an event file, checksums checked by another way of computing them."""

    def check(part: bytes, told: bytes) -> None:
        crc = 0xFFFFFFFF
        for byte in part:  # bit by bit
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        crc ^= 0xFFFFFFFF
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        assert struct.unpack("<I", told) == (masked,)

    records = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        check(data[:8], data[8:12])
        records.append(data[12 : 12 + length])
        check(records[-1], data[12 + length : 16 + length])
        data = data[16 + length :]
    return records


def test_tensorboard_reads_the_curves(tmp_path):
    written(tmp_path)
    events, line = events_of(tmp_path, 1), read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert len(events) == 3
    assert struct.unpack("<d", events[-1][1:9]) == (line["time"],)
    assert events[-1][9:11] == bytes([0x10, 30])
    assert b"\x0a\x06reward\x15" + struct.pack("<f", 0.75) in events[-1]
    assert b"\x0a\x09levels/P5\x15" + struct.pack("<f", 0.5) in events[-1]


def test_a_training_that_goes_on_forgets_what_it_writes_again(tmp_path):
    written(tmp_path).rewind(1, 20)
    file = tmp_path / "metrics.jsonl"
    found = [(line["seed"], line["updates"]) for line in read_metrics(file)]
    assert found == [(0, 10), (0, 20), (0, 30), (1, 10), (1, 20)]
    assert [len(events_of(tmp_path, seed)) for seed in (0, 1)] == [3, 2]


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    written(tmp_path)
    file = tmp_path / "metrics.jsonl"
    text = file.read_text()
    file.write_text(text[:-9])
    assert len(read_metrics(file)) == 5
    again = Diary(tmp_path, "mbpo")
    again.rewind(1, 30)
    assert [json.loads(line) for line in file.read_text().splitlines()] == again.lines
    assert len(again.lines) == 5


def test_checksums_are_the_published_ones():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
