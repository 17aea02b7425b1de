"""Large text tables: every kept row once, with its number, however they are packed or cut."""

import gzip

import polars as pl
import pytest

from stepdown.records import pieces
from stepdown.records.pieces import ROW, read_pieces, read_to_disk
from stepdown.records.readers import RecordingError

KEPT = pl.col("item").is_in(["3", "5"])


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE", 4096)
    monkeypatch.setattr(pieces, "_PACKED", 512)
    monkeypatch.setattr(pieces, "_LONGEST_ROW", 4 * 4096)


def table(rows: int = 3000) -> bytes:
    """Quoted cells with commas and quotation marks, an item that counts."""
    lines = [f'{i},"a ""b"", c",{i % 7}' for i in range(rows)]
    return "\n".join(["number,text,item", *lines]).encode() + b"\n"


def expected(rows: int = 3000) -> list[tuple[int, str, str]]:
    return [(i + 2, str(i), str(i % 7)) for i in range(rows) if i % 7 in (3, 5)]


@pytest.mark.parametrize("how", ["plain", "one stream", "many streams", "no last line end"])
def test_every_kept_row_comes_once_with_its_number(how, tmp_path):
    text, file = table(), tmp_path / ("t.csv" if how == "plain" else "t.csv.gz")
    cuts = range(0, len(text), 999)
    packed = {
        "plain": text,
        "one stream": gzip.compress(text),
        "many streams": b"".join(gzip.compress(text[i : i + 999]) for i in cuts) + b"\0" * 600,
        "no last line end": gzip.compress(text[:-1]),
    }
    file.write_bytes(packed[how])
    rows = pl.concat(read_pieces(file, ("number", "item"), KEPT))
    assert rows.columns == [ROW, "number", "item"]
    assert rows.rows() == expected()


def test_a_line_break_inside_a_cell_is_no_end_of_a_row(tmp_path):
    text = b"number,text\n" + b"".join(b'%d,"up\n\n\n\n\ndown"\n' % i for i in range(3000))
    (tmp_path / "t.csv").write_bytes(text)
    rows = pl.concat(read_pieces(tmp_path / "t.csv", ("number", "text")))
    assert rows["number"].to_list() == [str(i) for i in range(3000)]
    assert set(rows["text"]) == {"up\n\n\n\n\ndown"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (gzip.compress(table())[:-300], "it ends in the middle"),
        (gzip.compress(table()) + b"and more", "damaged or foreign"),
        (gzip.compress(b"number,text,item\n"), "expected rows, got none"),
        (gzip.compress(b'number,text,item\n1,"2,3\n' + b"4,5,6\n" * 9999), "never closed"),
        (gzip.compress(b"number,text\n1,2\n"), "a column 'item', which is missing"),
        (b"", "it ends in the middle"),
    ],
    ids=("cut", "more behind it", "no rows", "a quote is open", "no column", "empty"),  # no times
)
def test_a_damaged_table_is_refused(text, words, tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(text)
    with pytest.raises(RecordingError, match=words):
        list(read_pieces(tmp_path / "t.csv.gz", ("number", "item")))


def test_an_interrupted_reading_goes_on_where_it_was(tmp_path):
    file, work, told = tmp_path / "t.csv.gz", tmp_path / "work", []
    file.write_bytes(gzip.compress(table()))

    def interrupt(share: float) -> None:
        told.append(share)
        if len(told) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_to_disk(file, ("number", "item"), KEPT, work, interrupt)
    (folder,) = work.iterdir()
    before = {part: part.stat().st_mtime_ns for part in folder.iterdir()}
    assert len(before) == 4
    rows = read_to_disk(file, ("number", "item"), KEPT, work).collect()
    assert rows.rows() == expected()
    assert before == {part: part.stat().st_mtime_ns for part in before}
    file.write_bytes(gzip.compress(table(100)))  # another table is read from its beginning
    assert read_to_disk(file, ("number", "item"), KEPT, work).collect().height == len(expected(100))
