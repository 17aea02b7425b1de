"""What no recording exceeds, and the error for one that does."""

from pathlib import Path

BATCH = 2**18  # rows that are read at once

_ROOM = 64 * 2**20  # bytes that any file may unpack to
_RATIO = 200  # beyond that, unpacked bytes per byte of the file
_LARGEST_PIECE = 128 * 2**20  # bytes that a library unpacks at once: a page, a chunk


class RecordingError(ValueError):
    """A recording is damaged, hostile or not what the mapping says."""


def check_sizes(path: Path, unpacked: int, piece: int) -> None:
    """Refuse a file that claims to hold far more than it can."""
    allowed = _ROOM + _RATIO * path.stat().st_size
    if unpacked > allowed or piece > _LARGEST_PIECE:
        raise RecordingError(
            f"{path}: expected at most {allowed:,} bytes in pieces of {_LARGEST_PIECE:,}, "
            f"got {unpacked:,} in pieces of {piece:,}; this cannot be a recording."
        )
