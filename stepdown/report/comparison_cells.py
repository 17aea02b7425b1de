"""Numbers of a comparison as cells: a mean, and below it the paired difference to CORMPO."""

import math

from stepdown.evaluation.compare import Metric, Row
from stepdown.report.comparison import (
    DATA,
    EXPERT,
    LEARNED,
    OURS,
    SETTINGS,
    Comparison,
    find,
)
from stepdown.report.grids import Cell, mean_sd, number, signed, span
from stepdown.report.paper_numbers import Metrics

SCALE = {"unsafe_hours": 100.0}  # shown in percent
DIGITS = {"unsafe_hours": 1}
WEANING: tuple[Metric, ...] = ("ws_gradient", "ws_limits", "ws_both")


class Numbers:
    """The tidy rows of a comparison, as cells."""

    def __init__(self, comparison: Comparison):
        self.rows = comparison.rows
        self.winners = comparison.winners

    def mean(self, method: str, judge: str, metric: str) -> float:
        """One number, or NaN."""
        return at(find(self.rows, method, judge, metric), "mean")

    def cell(self, method: str, judge: str, metric: Metric) -> Cell:
        """Mean ± sd, and below it the difference to CORMPO."""
        row = find(self.rows, method, judge, metric)
        if row is None:
            return Cell()
        scale, digits = SCALE.get(metric, 1.0), DIGITS.get(metric, 2)
        text = mean_sd(scale * at(row, "mean"), sd_of(row, scale), digits)
        strong = self.winners.get((judge, metric)) == method
        return Cell(text, self.apart(method, judge, metric), strong)

    def apart(self, method: str, judge: str, metric: Metric) -> str:
        """The difference to CORMPO in a few signs; ≈ where it may be none."""
        row = find(self.rows, method, judge, f"{metric}_minus_{OURS}")
        if row is None:
            return ""
        scale, digits = SCALE.get(metric, 1.0), DIGITS.get(metric, 2)
        mean, low, high = (scale * at(row, name) for name in ("mean", "low", "high"))
        same = "≈ " if low <= 0 <= high else ""
        return f"{same}{signed(mean, digits)} {span(low, high, digits)}"

    def weaning(self, method: str, judge: str) -> Cell:
        """The three weaning scores; the difference is of the first."""
        if find(self.rows, method, judge, "ws_gradient") is None:
            return Cell()
        text = " / ".join(number(self.mean(method, judge, metric)) for metric in WEANING)
        strong = self.winners.get((judge, "ws_gradient")) == method
        return Cell(text, self.apart(method, judge, "ws_gradient"), strong)

    def room(self, method: str, judge: str) -> Cell:
        """The share of the room, with its interval."""
        row = find(self.rows, method, judge, "room_percent")
        if row is None or not math.isfinite(at(row, "mean")):
            return Cell()
        return Cell(number(at(row, "mean"), 0), span(at(row, "low"), at(row, "high"), 0))


def heading(comparison: Comparison) -> str:
    """What was learned from, how, and on which patients."""
    drawn = ", levels drawn" if comparison.sampled else ""
    return f"{DATA[comparison.data]}, {SETTINGS[comparison.setting]}{drawn} ({comparison.cohort})"


def paper_cell(paper: dict[str, Metrics], method: str, metric: str) -> Cell:
    """What the paper prints, if anything."""
    found = paper.get(method, {}).get(metric)
    return Cell() if found is None else Cell(mean_sd(*found, 3))


def at(row: Row | None, name: str) -> float:
    """A number of a row, or NaN."""
    return math.nan if row is None else float(row[name])


def sd_of(row: Row | None, scale: float = 1.0) -> float | None:
    """What is not learned, or was learned once, has no spread over seeds."""
    sd = scale * at(row, "sd")
    learned = row is not None and row["method"] in (*LEARNED, EXPERT)
    return sd if learned and sd > 0 else None
