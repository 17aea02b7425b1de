"""Cells of the evidence beyond the twin: differences, regrets, intervals, ranks."""

from collections.abc import Sequence
from typing import Any

from stepdown.report.comparison import LEARNED
from stepdown.report.evidence_parts import Info, Row
from stepdown.report.grids import DASH, Cell, number, signed, span

NAN = float("nan")


def apart_cell(row: Row | None, scale: float, digits: int) -> Cell:
    """A difference with its interval; strong where that excludes zero."""
    if row is None:
        return Cell()
    mean, low, high = (scale * or_nan(row[x]) for x in ("mean", "low", "high"))
    return Cell(signed(mean, digits), span(low, high, digits), low > 0 or high < 0)


def regret_cell(each: Sequence[float] | None) -> Cell:
    """The mean over seeds, and below it the least and the largest."""
    if not each:
        return Cell()
    between = f"{number(min(each))} to {number(max(each))}" if len(each) > 1 else ""
    return Cell(number(mean_of(each)), between)


def span_cell(row: Row, name: str) -> Cell:
    """A gap with its interval; strong where that excludes zero."""
    if row[name] is None:
        return Cell()
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return Cell(signed(row[name]), span(low, high), low > 0 or high < 0)


def interval_cell(value: Info | None) -> Cell:
    """A value with its interval, which may have no limit."""
    if value is None or value["mean"] is None:
        return Cell()
    low, high = value["low"], value["high"]
    between = "no limit" if low is None or high is None else span(low, high)
    return Cell(number(value["mean"]), between)


def in_order(rows: Sequence[Any]) -> list[Any]:
    """Rows in the order of the tables."""
    place = {name: i for i, name in enumerate(ranked([x["method"] for x in rows]))}
    return sorted(rows, key=lambda x: place[x["method"]])


def ranked(methods: Sequence[str]) -> list[str]:
    """Learned methods first, in the order of the tables."""
    return [x for x in LEARNED if x in methods] + [x for x in methods if x not in LEARNED]


def rank_cell(value: int | None) -> Cell:
    """A place, or a dash."""
    return Cell(DASH if value is None else str(value))


def first_known(*values: float | None, default: float) -> float:
    """The first value that is known."""
    return next((x for x in values if x is not None), default)


def or_nan(value: float | None) -> float:
    """None as NaN, which is shown as a dash."""
    return NAN if value is None else float(value)


def mean_of(values: Sequence[float] | None) -> float:
    """The mean, or NaN of nothing."""
    return sum(values) / len(values) if values else NAN
