"""The audit finds every change, and a killed process loses at most the entry it was writing."""

import itertools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from stepdown.app.audit import ANCHOR, AUDIT, KEY, Audit, AuditError, digest_of, verify
from stepdown.commands.audit import AuditConfig, verify_audit
from tests.app.sample_sizes import count

WHEN = "2026-01-01T00:00:00.000+00:00"
ENTRIES = 40
TEXTS = ("time", "kind", "body", "before", "digest")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An audit of some entries, closed."""
    folder = tmp_path_factory.mktemp("audit")
    audit = Audit(folder)
    for number in range(ENTRIES):
        audit.append("whatif", {"number": number, "values": [72.1, 88.0], "name": "p-é"}, WHEN)
    audit.close()
    return folder


def copy(folder, target):
    shutil.copytree(folder, target, dirs_exist_ok=True)
    return target


def change(folder, *statements):
    """What somebody with an SQLite client does."""
    database = sqlite3.connect(folder / AUDIT)
    database.execute("PRAGMA synchronous=OFF")  # a thousand times, so without waiting for the disk
    for statement in statements:
        database.execute(*statement)
    database.commit()
    database.close()


def test_what_was_appended_is_read_back_and_verified(whole, tmp_path):
    folder = copy(whole, tmp_path / "a")
    audit = Audit(folder)
    third = audit.get(3)
    assert third
    assert third.content() == {"number": 2, "values": [72.1, 88.0], "name": "p-é"}
    assert audit.get(41) is None
    assert [one.id for one in audit.newest(3)] == [40, 39, 38]
    assert [one.id for one in audit.newest(2, before=5)] == [4, 3]
    assert audit.append("response", {"audit_id": 3}, WHEN).id == 41
    newest = audit.last("response", 3)
    assert newest == audit.last("response") == audit.get(41)
    assert audit.last("response", 2) is audit.last("limits") is None
    audit.close()
    assert verify(folder).valid
    assert verify(folder).entries == 41


def test_edits_deletions_swaps_and_cuts_are_all_found(whole, tmp_path):
    """A1, on what the entries say: every column, every row, whatever a client can do."""
    draw, rows, missed = random.Random(0), entries(whole), []
    kinds = itertools.cycle(["edit"] * 5 + ["delete", "swap", "cut", "number", "insert"])
    for trial, kind in zip(range(count(150, 1000)), kinds, strict=False):
        folder = copy(whole, tmp_path / "b")
        change(folder, *tamper(kind, rows, draw))
        if verify(folder).valid:
            missed.append((trial, kind))
    assert missed == []


def tamper(kind, rows, draw):
    """Statements that change, remove, move or add one entry."""
    row, other = draw.sample(range(1, ENTRIES + 1), 2)
    if kind == "edit":
        name = draw.choice(TEXTS)
        text = rows[row - 1][1 + TEXTS.index(name)]
        place = draw.randrange(len(text))
        letter = draw.choice([c for c in '0123456789abcxyz",{}' if c != text[place]])
        edited = text[:place] + letter + text[place + 1 :]
        return [(f"UPDATE entries SET {name} = ? WHERE id = ?", (edited, row))]
    if kind == "swap":
        return [
            ("UPDATE entries SET id = 999 WHERE id = ?", (row,)),
            ("UPDATE entries SET id = ? WHERE id = ?", (row, other)),
            ("UPDATE entries SET id = ? WHERE id = 999", (other,)),
        ]
    if kind == "insert":
        told = rows[row - 1][1:]
        return [(f"INSERT INTO entries VALUES ({ENTRIES + 2},?,?,?,?,?)", told)]
    simple = {
        "delete": ("DELETE FROM entries WHERE id = ?", (row,)),
        "cut": ("DELETE FROM entries WHERE id >= ?", (row,)),
        "number": ("UPDATE entries SET id = 1000 + id WHERE id = ?", (row,)),
    }
    return [simple[kind]]


def test_a_flipped_byte_of_the_file_is_found_or_changes_nothing(whole, tmp_path):
    """A byte in unused space changes no entry; every other flip is found."""
    before = [tuple(row) for row in entries(whole)]
    draw = random.Random(1)
    found = 0
    for trial in range(count(100, 1000)):
        folder = copy(whole, tmp_path / f"c{trial}")
        data = bytearray((folder / AUDIT).read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        (folder / AUDIT).write_bytes(data)
        if verify(folder).valid:
            assert [tuple(row) for row in entries(folder)] == before
        else:
            found += 1
    assert found > 20  # the rest lay in unused space of the pages


def entries(folder):
    database = sqlite3.connect(folder / AUDIT)
    rows = database.execute("SELECT * FROM entries ORDER BY id").fetchall()
    database.close()
    return rows


@pytest.mark.parametrize("trial", range(60))
def test_a_changed_anchor_is_found(whole, tmp_path, trial):
    folder = copy(whole, tmp_path / "d")
    data = bytearray((folder / ANCHOR).read_bytes())
    data[(7 * trial) % len(data)] ^= 1 << (trial % 7)
    (folder / ANCHOR).write_bytes(data)
    assert not verify(folder).valid
    with pytest.raises(AuditError, match="expected|not the one"):
        Audit(folder)


def test_a_lost_anchor_is_found(whole, tmp_path):
    folder = copy(whole, tmp_path / "e")
    (folder / ANCHOR).unlink()
    assert "beside 40 entries, found none" in verify(folder).problem


def test_only_the_owner_reads_the_files(tmp_path):
    folder = tmp_path / "state"
    before = os.umask(0)
    try:
        audit = Audit(folder)
        audit.append("start", {}, WHEN)
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        audit.close()
    finally:
        os.umask(before)
    assert {AUDIT, ANCHOR, KEY} < set(modes)
    assert set(modes.values()) == {0o600}
    (folder / AUDIT).chmod(0o644)
    Audit(folder).close()
    assert (folder / AUDIT).stat().st_mode & 0o777 == 0o600  # of an audit that was begun before
    (folder / KEY).chmod(0o640)
    assert "only its owner can read" in verify(folder).problem


def test_who_has_no_key_writes_no_entry_that_verifies(whole, tmp_path):
    """Every digest made anew, and the anchor with them, as who knows the code would."""
    folder, before = copy(whole, tmp_path / "g"), "0" * 64
    for number, time_, kind, body, *_ in entries(folder):
        told = body.replace("72.1", "79.1")
        digest = digest_of(b"", number, time_, kind, told, before)
        change(folder, ("UPDATE entries SET body = ?, before = ?, digest = ? WHERE id = ?",
                        (told, before, digest, number)))  # fmt: skip
        before = digest
    (folder / ANCHOR).write_text(f"{ENTRIES:016d} {before}\n")
    assert verify(folder).problem == "Entry 1 was changed after it was written."
    (folder / KEY).unlink()
    assert "expected audit.key beside the audit, found none" in verify(folder).problem
    with pytest.raises(AuditError, match="expected audit.key"):
        Audit(folder)


def test_two_writers_at_once_are_refused(tmp_path):
    audit = Audit(tmp_path)
    with pytest.raises(AuditError, match="in use"):
        Audit(tmp_path)
    audit.close()


WRITER = """
import sys
from pathlib import Path
from stepdown.app.audit import Audit
audit = Audit(Path(sys.argv[1]))
number = audit.newest(1)[0].id if audit.newest(1) else 0
while True:
    number += 1
    audit.append("whatif", {"number": number, "filling": "x" * 2000}, "2026-01-01T00:00:00+00:00")
    print(number, flush=True)  # acknowledged
"""


def test_a_killed_writer_loses_at_most_the_entry_it_was_writing(tmp_path):
    """A2: kill -9 at random moments; everything acknowledged is there, and the chain goes on."""
    draw, acknowledged = random.Random(2), 0
    for _ in range(count(6, 50)):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()  # it has begun
            time.sleep(draw.uniform(0.0, 0.05))
            os.kill(process.pid, signal.SIGKILL)
            lines = [first, *process.stdout.readlines()]
        told = [int(line) for line in lines if line.endswith("\n")]
        assert told == list(range(told[0], told[0] + len(told)))
        assert acknowledged <= told[0] - 1 <= acknowledged + 1  # the one in flight, if any
        acknowledged = told[-1]
        found = verify(tmp_path)
        assert found.valid, found.problem
        assert acknowledged <= found.entries <= acknowledged + 1
    assert acknowledged > 20


def test_the_command_says_what_it_found(whole, tmp_path, capsys):
    assert verify_audit(AuditConfig(whole)) == 0
    assert "40 entries" in capsys.readouterr().out
    folder = copy(whole, tmp_path / "f")
    change(folder, ("UPDATE entries SET body = '{}' WHERE id = 7", ()))
    assert verify_audit(AuditConfig(folder)) == 1
    assert "Entry 7 was changed after it was written.\n6 entries" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="found none"):
        verify_audit(AuditConfig(tmp_path / "nothing"))
