"""What a training notes down: lines of JSON, and the same numbers as TensorBoard reads them."""

import struct
from pathlib import Path

import numpy as np
import pytest

from stepdown.experiment.datasets import Source
from stepdown.experiment.progress import Terminal, words_of
from stepdown.experiment.training import METRICS, Record, TrainPolicy, read_lines
from stepdown.export.tensorboard import crc32c
from stepdown.policies.learning import Epoch
from stepdown.policies.methods import METHODS, make_recipe
from stepdown.policies.rules import RULES
from tests.policies.toys import make_hours, random_states

SHARES = np.asarray([0.0, 0.0, 0.25, 0.5, 0.25, 0.0, 0.0, 0.0])
SELECT = make_hours(random_states(4, np.full(4, 5), 0), np.full(4, 5), random_states(4, [5] * 4, 1))


def open_record(folder: Path) -> Record:
    work = TrainPolicy(METHODS["mbpo"], make_recipe("mbpo"), (0, 1), Source("recorded", None))
    return Record(folder, work, Terminal(), SELECT, None)


def epoch(seed: int, number: int, reward: float | None = None) -> Epoch:
    """An epoch of ten updates."""
    info = {"reward": np.asarray(number / 4 if reward is None else reward), "levels": SHARES}
    return Epoch((seed,), number, 10 * number, number / 3, info, RULES["hold"])


def written(folder: Path) -> Record:
    """Three epochs of two seeds in turn."""
    record = open_record(folder)
    for seed in (0, 1):
        for number in (1, 2, 3):
            record.tell(epoch(seed, number))
    return record


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
    events, line = events_of(tmp_path, 1), read_lines(tmp_path / METRICS)[-1]
    assert len(events) == 3
    assert struct.unpack("<d", events[-1][1:9]) == (line["time"],)
    assert events[-1][9:11] == bytes([0x10, 30])
    assert b"\x0a\x06reward\x15" + struct.pack("<f", 0.75) in events[-1]
    assert b"\x0a\x09levels/P5\x15" + struct.pack("<f", 0.5) in events[-1]


def test_a_training_that_goes_on_forgets_what_it_writes_again(tmp_path):
    written(tmp_path)
    again = open_record(tmp_path)
    again.tell(epoch(1, 2, reward=9.0))  # after the first ten updates of seed 1
    found = [(line["seed"], line["updates"], line["reward"]) for line in read_lines(again.file)]
    assert found == [(0, 10, 0.25), (0, 20, 0.5), (0, 30, 0.75), (1, 10, 0.25), (1, 20, 9.0)]
    assert [len(events_of(tmp_path, seed)) for seed in (0, 1)] == [3, 2]


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    file = written(tmp_path).file
    file.write_text(file.read_text()[:-9])
    assert len(read_lines(file)) == 5
    again = open_record(tmp_path)
    again.tell(epoch(1, 3))
    assert [(line["seed"], line["epoch"]) for line in read_lines(file)] == [
        (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3),
    ]  # fmt: skip


def test_losses_that_are_no_numbers_end_the_training(tmp_path):
    with pytest.raises(ValueError, match="got NaN or infinity in seed 1 after 20 updates"):
        open_record(tmp_path).tell(epoch(1, 2, reward=float("nan")))


def test_a_line_is_told_in_words():
    line = {"seed": 0, "reward": 0.5, "critic_loss": 2.0, "levels": SHARES.tolist()}
    assert words_of(line) == "reward 0.500  critic loss 2.000  P4 25% P5 50% P6 25%"


def test_checksums_are_the_published_ones():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
