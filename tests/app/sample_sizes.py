"""How often: usual counts every day, the stated ones with STEPDOWN_FULL=1 (docs/performance.md)."""

import os


def count(usual: int, full: int) -> int:
    """`full` is what the specification asks for, run before a release."""
    return full if os.environ.get("STEPDOWN_FULL") else usual
