"""Damaged, oversized, linking or escaping files give one typed sentence, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import polars as pl
import pytest

from stepdown.__main__ import main
from stepdown.patients.recording import Recording
from stepdown.records.readers import RecordingError, column_names, list_recordings, read_table
from tests.records.recordings import WAVES, import_words, mapping_file, write_waveform

ROOT = Path(__file__).parents[2]


def test_damaged_files_give_typed_errors_only():
    """120 damaged files of each format in a process of its own, so that a crash counts too."""
    words = [sys.executable, "-m", "tests.records.fuzzing", "120", "5"]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["odd"] == []
    assert sum(report["outcomes"].values()) == 480
    assert report["megabytes"] < 512


@pytest.fixture
def stay(tmp_path):
    """A short recording, to be written in a format of choice."""
    second = np.arange(2000) / 25
    channel = np.sin(second).astype(np.float32)
    recording = Recording(second, 80 + channel, 39_000 + channel, 500 + channel)
    return lambda name: write_waveform(recording, tmp_path / name)


def test_a_header_that_promises_a_trillion_samples_is_refused(stay):
    path = stay("stay.hea")
    path.write_text(path.read_text().replace(" 2000", " 1000000000000", 1))
    with pytest.raises(RecordingError, match="as the header says, got 24,000; copy it again"):
        read_table(path)


@pytest.mark.parametrize(
    "elsewhere", ["../stay.dat", "/etc/passwd", "s3://bucket/stay.dat", "http://host/x", "~/x"]
)
def test_signals_in_another_place_are_refused(elsewhere, stay):
    path = stay("stay.hea")
    path.write_text(path.read_text().replace("stay.dat", elsewhere))
    with pytest.raises(RecordingError, match="expected a file beside the header"):
        read_table(path)


def test_a_linked_signal_file_is_refused(stay, tmp_path):
    path = stay("stay.hea")
    (tmp_path / "stay.dat").rename(tmp_path / "secret")
    (tmp_path / "stay.dat").symlink_to(tmp_path / "secret")
    with pytest.raises(RecordingError, match="expected the file stay.dat beside it, found none"):
        read_table(path)


def test_a_linked_recording_in_a_folder_is_refused(stay, tmp_path):
    path = stay("stay.csv")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "link.csv").symlink_to(path)
    with pytest.raises(RecordingError, match="expected a file, got a link"):
        list_recordings(tmp_path / "more")


@pytest.mark.parametrize(
    "address", ["s3://b/x.parquet", "http://host/x.csv", "gs://b/x.h5", "/dev/zero"]
)
def test_addresses_and_devices_are_not_files(address):
    with pytest.raises(RecordingError, match="expected a file or folder on this machine"):
        column_names(Path(address))


def links(file, folder):
    file["soft"] = h5py.SoftLink("/second")


def external_link(file, folder):
    file["other"] = h5py.ExternalLink(str(folder / "other.h5"), "/second")


def view(file, folder):
    layout = h5py.VirtualLayout((5,), float)
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "second", (5,))
    file.create_virtual_dataset("view", layout)


def raw_file(file, folder):
    file.create_dataset("raw", (5,), float, external=[(str(folder / "raw.bin"), 0, 40)])


def objects(file, folder):
    file.create_dataset("text", data=["a", "b"], dtype=h5py.string_dtype())


def matrix(file, folder):
    file["matrix"] = np.zeros((3, 3))


def bomb(file, folder):
    file.create_dataset("zeros", (10**12,), float, chunks=(2**20,), compression="gzip")


def large_chunk(file, folder):
    file.create_dataset("chunk", (2**26,), np.int8, chunks=(2**26,), compression="gzip")
    file.create_dataset("chunks", (2**25,), float, chunks=(2**25,), compression="gzip")


@pytest.mark.parametrize(
    ("add", "sentence"),
    [
        (links, "got a link"),
        (external_link, "got a link"),
        (view, "got a view of other files"),
        (raw_file, "got a view of other files"),
        (objects, "expected one column of numbers"),
        (matrix, "expected one column of numbers"),
        (bomb, "this cannot be a recording"),
        (large_chunk, "this cannot be a recording"),
    ],
)
def test_hdf5_that_reaches_out_or_blows_up_is_refused(add, sentence, stay, tmp_path):
    path = stay("stay.h5")
    with h5py.File(path, "a") as file:
        add(file, tmp_path)
    with pytest.raises(RecordingError, match=sentence):
        read_table(path, ["second"])


def test_a_parquet_bomb_is_refused_before_it_is_unpacked(tmp_path):
    zeros = pl.select(second=pl.repeat(0.0, 2 * 10**7, eager=False))
    zeros.write_parquet(tmp_path / "bomb.parquet", row_group_size=2 * 10**7)
    assert (tmp_path / "bomb.parquet").stat().st_size < 2**20
    with pytest.raises(RecordingError, match="this cannot be a recording"):
        read_table(tmp_path / "bomb.parquet")


def test_a_long_text_in_parquet_is_refused_before_it_is_unpacked(tmp_path):
    pl.DataFrame({"second": ["0" * 140_000_000]}).write_parquet(tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 2**20
    with pytest.raises(RecordingError, match="this cannot be a recording"):
        read_table(tmp_path / "bomb.parquet")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x1f\x8b\x08\0packed", b"a,a\n1,2\n", b"\xff\xfe\n", b"a,b\n1,2,3\n", b"a" * 10**6],
)
def test_text_that_is_no_table_is_refused(content, tmp_path):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(RecordingError):
        read_table(tmp_path / "x.csv")


def test_the_command_answers_65_and_writes_nothing(stay, tmp_path, capsys):
    mapping_file(tmp_path, WAVES)
    path = stay("stay.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    before = sorted(tmp_path.iterdir())
    assert main(import_words(tmp_path, path)) == 65
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "expected a readable Parquet file" in printed.err
    assert "Traceback" not in printed.err
    assert sorted(tmp_path.iterdir()) == before
