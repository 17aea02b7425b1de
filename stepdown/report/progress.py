"""Progress of long work, on stderr."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(words: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal; elsewhere a line for every quarter."""
    start, quarters, terminal = time.monotonic(), 0, sys.stderr.isatty()

    def watch(share: float) -> None:
        nonlocal quarters
        elapsed = f"{100 * share:3.0f} %, {time.monotonic() - start:.0f} s"
        if terminal:
            bar = ("#" * round(30 * share)).ljust(30, ".")
            sys.stderr.write(f"\r{words} [{bar}] {elapsed} ")
        elif int(4 * share) > quarters:
            quarters = int(4 * share)
            sys.stderr.write(f"{words}: {elapsed}\n")
        sys.stderr.flush()

    try:
        yield watch
    finally:
        if terminal:
            sys.stderr.write("\n")
