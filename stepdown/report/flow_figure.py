"""The flow of stays into a cohort, as observational studies print it."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stepdown.report.figures import INK, MUTED, to_png

LEFT_OUT = "left out: "
_WIDTH, _ROW, _MIDDLE = 8.0, 0.75, 0.16  # inches, inches, share of the width


def draw_flow(flow: Sequence[tuple[str, int]]) -> bytes:
    """Stays found, and how many are left after every reason that applied to any."""
    (first, found), *reasons, (last, _) = flow
    steps = [(words.removeprefix(LEFT_OUT), count) for words, count in reasons if count]
    steps = steps or [("none left out", 0)]

    def draw(figure: Figure) -> None:
        axis = figure.add_subplot()
        axis.set_axis_off()
        axis.set_xlim(0, 1)
        axis.set_ylim(-len(steps) - 0.5, 0.5)
        _box(axis, 0, f"{first}\n{found:,}")
        left = found
        for row, (words, count) in enumerate(steps, start=1):
            left -= count
            _arrow(axis, (_MIDDLE, 0.7 - row), (_MIDDLE, 0.3 - row))
            _arrow(axis, (_MIDDLE, 0.5 - row), (0.36, 0.5 - row))
            said = f"{words}: {count:,}" if count else words
            axis.text(0.37, 0.5 - row, said, va="center", color=MUTED)
            _box(axis, row, f"{last}\n{left:,}" if row == len(steps) else f"{left:,}")

    return to_png(draw, (_WIDTH, _ROW * (len(steps) + 1)))


def _box(axis: Axes, row: int, words: str) -> None:
    look = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": INK}
    axis.text(_MIDDLE, -row, words, ha="center", va="center", color=INK, bbox=look)


def _arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": MUTED})
