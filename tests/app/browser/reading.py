"""What stands on the page, read back as numbers."""

import re
from typing import Any

from playwright.sync_api import Page

SHOWN = ("map", "pulsatility", "hr", "lvedp", "flow")
QUANTILES = ("q05", "q25", "q50", "q75", "q95")
READ = """(name) => {
  const figure = document.querySelector(`[data-testid=chart-${name}]`);
  const svg = figure.querySelector("svg");
  const path = (kind) => svg.querySelector(`path.${kind}`)?.getAttribute("d") ?? null;
  const ticks = [...svg.querySelectorAll(".grid line + text")];
  const limits = [...svg.querySelectorAll("line.limit")];
  return {
    ...svg.dataset, ticks: ticks.map((one) => [one.textContent, Number(one.getAttribute("y")) - 5]),
    limits: limits.map((one) => Number(one.getAttribute("y1"))),
    forecasts: figure.querySelectorAll("path.forecast").length,
    median: path("median"), band90: path("band90"), band50: path("band50"), carry: path("carry"),
    measured: path("measured"), refused: figure.querySelector(".refusal-box")?.textContent ?? null,
    code: figure.querySelector(".refusal-box")?.dataset.code ?? null,
  };
}"""
POINT = re.compile(r"[ML](-?[\d.]+) (-?[\d.]+)")


class Chart:
    """One chart: its scale, and its curves in the units of the signal."""

    def __init__(self, page: Page, name: str):
        """Read the chart of a signal."""
        self.raw: dict[str, Any] = page.evaluate(READ, name)
        self.x, self.y, self.minutes, self.values = (
            [float(x) for x in self.raw[key].split()] for key in ("x", "y", "minutes", "values")
        )

    def pixel(self, minute: float, value: float) -> tuple[float, float]:
        """Where a value at a minute from now belongs."""
        return _map(minute, self.minutes, self.x), _map(value, self.values, self.y)

    def points(self, kind: str) -> list[tuple[float, float]]:
        """The corners of a path, in pixels."""
        return [(float(x), float(y)) for x, y in POINT.findall(self.raw[kind] or "")]

    def quantiles(self) -> dict[str, list[float]]:
        """The five curves, in pixels upward; bands run there along the top and back below."""
        wide, narrow = ([y for _, y in self.points(kind)] for kind in ("band90", "band50"))
        half = len(wide) // 2
        return {
            "q05": wide[:half - 1:-1], "q25": narrow[:half - 1:-1],
            "q50": [y for _, y in self.points("median")],
            "q75": narrow[:half], "q95": wide[:half],
        }  # fmt: skip


def _map(value: float, source: list[float], target: list[float]) -> float:
    share = (value - source[0]) / (source[1] - source[0])
    return target[0] + share * (target[1] - target[0])


def show(page: Page, path: str) -> None:
    """Open a what-if screen and wait for its numbers."""
    page.goto(path)
    page.get_by_test_id("whatif").wait_for()


def text_of(page: Page, testid: str) -> str:
    """The text of one element."""
    return page.get_by_test_id(testid).first.inner_text()


def whole(value: float | None) -> str:
    """A number as the page rounds it: half away from zero, a true minus, a dash if missing."""
    if value is None:
        return "—"
    rounded = int(abs(value) + 0.5)
    return f"−{rounded}" if value < 0 and rounded else str(rounded)
