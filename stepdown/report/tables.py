"""Tables of a report, as aligned text for a terminal and as CSV for everyone else."""

import csv
import io
import math
from collections.abc import Sequence

from stepdown.report.calibration import Row
from stepdown.report.grids import plain

HEAD = ("number", "ours", "published", "difference", "bar", "verdict")


def verdict(row: Row) -> str:
    """Whether the bar is kept, in words."""
    if math.isnan(row.ours):
        return "no data"
    return {True: "within", False: "outside", None: "shown"}[row.within]


def summarize(rows: Sequence[Row]) -> str:
    """How many bars are kept."""
    judged = [row for row in rows if row.bar is not None]
    kept = sum(row.within is True for row in judged)
    return f"{kept} of {len(judged)} published numbers within their bar"


def cells(row: Row) -> tuple[str, ...]:
    """One row in words and rounded numbers, in the order of `HEAD`."""
    name = f"{row.group}, {row.what}" + (f" [{row.unit}]" if row.unit else "")
    scale = "" if row.scale == "r" else f" {row.scale}"
    bar = "–" if row.bar is None else f"± {row.bar:g}{scale}"
    difference = "–" if math.isnan(row.ours) else _signed(row.difference, row.scale) + scale
    return name, number(row.ours), number(row.published), difference, bar, verdict(row)


def number(value: float) -> str:
    """About four digits, as a reader needs them; a dash where there is nothing."""
    if math.isnan(value):
        return "–"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}".replace("-", "−")


def to_text(rows: Sequence[Row]) -> str:
    """An aligned table that fits any terminal, and what it says."""
    table = [HEAD, *([plain(cell) for cell in cells(row)] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEAD))]
    lines = []
    for line in table:
        first, *middle, last = zip(line, widths, strict=True)
        parts = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in middle), last[0]]
        lines.append("  ".join(parts))
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join([*lines, "", summarize(rows) + "."])


def to_csv(rows: Sequence[Row]) -> bytes:
    """All digits, one line per number; a number that could not be computed stays empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("group", "what", "unit", "ours", "published", "difference", "scale", "bar", "verdict")
    )
    for row in rows:
        unknown = math.isnan(row.ours)
        ours, difference = ("", "") if unknown else (f"{row.ours:.6g}", f"{row.difference:.6g}")
        bar = "" if row.bar is None else f"{row.bar:g}"
        names = (row.group, row.what, row.unit)
        writer.writerow(
            (*names, ours, f"{row.published:g}", difference, row.scale, bar, verdict(row))
        )
    return out.getvalue().encode()


def _signed(value: float, scale: str) -> str:
    digits = {"r": 3, "sd": 2}.get(scale, 1)
    text = f"{value:+.{digits}f}"
    return (text if float(text) else text.replace("-", "+")).replace("-", "−")
