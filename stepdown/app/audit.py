"""The audit: entries that can be added and read, and nothing else.

SQLite in WAL mode, each entry fsynced before it is acknowledged. Every entry holds the digest of
the one before it, and a second file (the anchor) holds the digest of the newest, so that edits,
deletions, swaps and a cut-off end are all found. A crash can lose the entry that was being
written; one that was written may be one ahead of the anchor. Digests are keyed (HMAC-SHA-256) with
a key that only the owner of the files can read, as the files themselves: without it nobody can
write an entry that verifies. Who can read the key can forge all: keep a copy of it, and of the
anchor, where the app's owner cannot write.
"""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

AUDIT, ANCHOR, KEY = "audit.sqlite", "audit.anchor", "audit.key"
OWNER = 0o600  # of every file
Kind = Literal["start", "whatif", "response", "limits", "choice", "plan"]

_FIRST = "0" * 64  # what the first entry follows
_TABLE = """CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    before TEXT NOT NULL, digest TEXT NOT NULL) STRICT"""
_COLUMNS = "id, time, kind, body, before, digest"


class AuditError(ValueError):
    """The audit is damaged, was changed, or is no audit."""


@dataclass(frozen=True)
class Entry:
    """One line of the audit."""

    id: int  # from 1, without gaps
    time: str  # of the server, ISO 8601, UTC
    kind: str
    body: str  # JSON
    before: str  # digest of the entry before
    digest: str

    def content(self) -> dict[str, Any]:
        """What the entry says."""
        return json.loads(self.body)


def digest_of(key: bytes, number: int, time: str, kind: str, body: str, before: str) -> str:
    """The keyed digest of an entry: of all it says and of the entry before."""
    told = json.dumps([number, time, kind, body, before], separators=(",", ":"))
    return hmac.new(key, told.encode(), hashlib.sha256).hexdigest()


class Audit:
    """An open audit; safe to use from several threads, for one process at a time."""

    def __init__(self, folder: Path):
        """Open or begin the audit in a folder; a damaged one is refused."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        new = not (folder / AUDIT).exists()
        for name in (AUDIT, ANCHOR):
            os.close(os.open(folder / name, os.O_CREAT, OWNER))
            (folder / name).chmod(OWNER)
        if new and not (folder / KEY).exists():
            _write_key(folder)
        self._key = _read_key(folder)
        self._database = _connect(folder / AUDIT)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(_TABLE)
        self._anchor = os.open(folder / ANCHOR, os.O_RDWR)
        _lock_for_us(self._anchor, folder)
        newest = self.newest(1)
        self._last = (newest[0].id, newest[0].digest) if newest else (0, _FIRST)
        known = _read_anchor(folder / ANCHOR)
        _check_anchor(known, self._last, self.get(known[0]) if known else None)
        self._write_anchor()

    def append(self, kind: Kind, body: Mapping[str, Any], time: str) -> Entry:
        """Add an entry; it is on the disk when this returns."""
        text = json.dumps(body, separators=(",", ":"), sort_keys=True, allow_nan=False)
        with self._lock:
            number, before = self._last[0] + 1, self._last[1]
            digest = digest_of(self._key, number, time, kind, text, before)
            row = (number, time, kind, text, before, digest)
            with self._database:
                self._database.execute(
                    f"INSERT INTO entries ({_COLUMNS}) VALUES (?,?,?,?,?,?)", row
                )
            self._last = (number, digest)
            self._write_anchor()
        return Entry(*row)

    def get(self, number: int) -> Entry | None:
        """One entry, if there is one of this number."""
        return next(iter(self._select("WHERE id = ?", number)), None)

    def newest(self, limit: int, before: int | None = None) -> list[Entry]:
        """The newest entries, or those before an entry, newest first."""
        return self._select("WHERE id < ? ORDER BY id DESC LIMIT ?", before or 2**62, limit)

    def last(self, kind: Kind, about: int | None = None) -> Entry | None:
        """The newest entry of a kind, or of those whose body says `about` this entry."""
        told = "? IS NULL OR json_extract(body, '$.audit_id') = ?"
        chosen = f"WHERE kind = ? AND ({told}) ORDER BY id DESC LIMIT 1"
        return next(iter(self._select(chosen, kind, about, about)), None)

    def every(self, kind: Kind) -> list[Entry]:
        """All entries of a kind, oldest first."""
        return self._select("WHERE kind = ? ORDER BY id", kind)

    def shown(self, patient: str, minute: float, by: str) -> bool:
        """Whether an answer about a moment was on a screen, but for another reviewer's own."""
        told = "json_extract(body, '$.{}') = ?"
        source = f"{told.format('source.patient')} AND {told.format('source.minute')}"
        others = "coalesce(json_extract(body, '$.for'), ?) = ?"
        chosen = f"WHERE kind IN ('whatif', 'plan') AND {source} AND {others} LIMIT 1"
        return bool(self._select(chosen, patient, minute, by, by))

    def close(self) -> None:
        """Close both files."""
        with self._lock:
            self._database.close()
            os.close(self._anchor)

    def _select(self, chosen: str, *values: Any) -> list[Entry]:
        with self._lock:
            rows = self._database.execute(
                f"SELECT {_COLUMNS} FROM entries {chosen}", values
            ).fetchall()
        return [Entry(*row) for row in rows]

    def _write_anchor(self) -> None:
        os.pwrite(self._anchor, _anchor_line(*self._last), 0)
        os.fdatasync(self._anchor)


@dataclass(frozen=True)
class Verdict:
    """What verification found."""

    valid: bool
    entries: int
    problem: str = ""  # a sentence, empty if valid
    at: int | None = None  # the entry where it shows


def verify(folder: Path) -> Verdict:
    """Walk the whole chain and compare its end with the anchor."""
    if not (folder / AUDIT).is_file():
        raise FileNotFoundError(f"{folder}: expected a folder with an {AUDIT}, found none.")
    number, before, newest = 0, _FIRST, (0, _FIRST)
    try:
        key, known = _read_key(folder), _read_anchor(folder / ANCHOR)
        anchored = None
        for entry in _walk(folder / AUDIT):
            number += 1
            if problem := _problem(key, entry, number, before):
                return Verdict(False, number - 1, problem, number)
            before, newest = entry.digest, (entry.id, entry.digest)
            anchored = entry if known is not None and entry.id == known[0] else anchored
        if _read_anchor(folder / ANCHOR) == known:  # else somebody is writing just now
            _check_anchor(known, newest, anchored)
        elif known is not None and known[0] > 0:
            _check_anchor(known, known, anchored)
    except (AuditError, sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return Verdict(False, number, f"The audit cannot be trusted: {error}", number + 1)
    return Verdict(True, number)


def _problem(key: bytes, entry: Entry, number: int, before: str) -> str:
    if entry.id != number:
        return f"Expected entry {number}, got entry {entry.id}: one is missing or out of order."
    if entry.before != before:
        return f"Entry {number} does not follow the entry before it: one was replaced or moved."
    told = digest_of(key, entry.id, entry.time, entry.kind, entry.body, entry.before)
    return (
        ""
        if hmac.compare_digest(told, entry.digest)
        else f"Entry {number} was changed after it was written."
    )


def _walk(path: Path) -> Iterator[Entry]:
    with closing(_connect(path)) as database:
        found = database.execute("PRAGMA integrity_check").fetchone()
        if found != ("ok",):
            raise AuditError("the file of the audit is damaged.")
        types = "typeof(id)||typeof(time)||typeof(kind)||typeof(body)"
        odd = database.execute(
            f"SELECT count(*) FROM entries WHERE {types} != 'integertexttexttext'"
        ).fetchone()
        if odd != (0,):
            raise AuditError("an entry holds something that no entry holds.")
        for row in database.execute(f"SELECT {_COLUMNS} FROM entries ORDER BY id"):
            yield Entry(*row)


def _check_anchor(
    known: tuple[int, str] | None, newest: tuple[int, str], anchored: Entry | None
) -> None:
    """The anchor is the newest entry, or the one before it if a crash came between."""
    if known is None:
        if newest[0] > 0:
            raise AuditError(f"expected {ANCHOR} beside {newest[0]} entries, found none.")
        return
    number, digest = known
    if not newest[0] - 1 <= number <= newest[0]:
        raise AuditError(
            f"expected the newest entry to be {number}, as the anchor says, got {newest[0]}."
        )
    held = _FIRST if number == 0 else anchored.digest if anchored else ""
    if held != digest:
        raise AuditError(f"entry {number} is not the one that the anchor knows.")


def _write_key(folder: Path) -> None:
    file = os.open(folder / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER)
    os.write(file, secrets.token_hex(32).encode())
    os.fsync(file)
    os.close(file)


def _read_key(folder: Path) -> bytes:
    file = folder / KEY
    if not file.is_file():
        raise AuditError(
            f"expected {KEY} beside the audit, found none. Put it back; if the audit is older than "
            "keys, keep it where it is and give the app another --state folder."
        )
    if file.stat().st_mode & 0o077:
        raise AuditError(f"expected a {KEY} that only its owner can read. Run chmod 600 on it.")
    return file.read_bytes()


def _anchor_line(number: int, digest: str) -> bytes:
    return f"{number:016d} {digest}\n".encode()


def _read_anchor(path: Path) -> tuple[int, str] | None:
    if not path.is_file() or path.stat().st_size == 0:
        return None
    line = path.read_bytes()
    number, _, digest = line.decode("ascii", "replace").strip().partition(" ")
    if not number.isdecimal() or _anchor_line(int(number), digest) != line:
        raise AuditError(f"expected {ANCHOR} as it was written, got something else.")
    return int(number), digest


def _lock_for_us(descriptor: int, folder: Path) -> None:
    """One writer at a time; the lock goes with the process, however it ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise AuditError(
            f"{folder}: expected an audit that nobody writes to, got one that is in use. "
            "Stop the other app, or give this one another --state folder."
        ) from None


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, check_same_thread=False, timeout=10.0)
