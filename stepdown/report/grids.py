"""A table for people: cells in words, shown as HTML, as Markdown or as aligned text.

Cells are written once, so that the page, the Markdown file and the terminal say the same.
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

DASH = "–"
_PLAIN = str.maketrans({"−": "-", "–": "-", "±": "+-", "²": "2"})


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str = DASH
    note: str = ""  # smaller, below
    strong: bool = False


@dataclass(frozen=True)
class Grid:
    """A table; the first column holds names."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    above: tuple[tuple[str, int], ...] = ()  # words over several columns, with their number
    groups: Mapping[int, str] = field(default_factory=dict)  # words before the row of this number
    note: str = ""

    def __post_init__(self):
        widths = {len(self.head), *(len(row) for row in self.rows)}
        if self.above:
            widths.add(sum(count for _, count in self.above))
        if len(widths) > 1:
            raise ValueError(
                f"expected {len(self.head)} columns everywhere, got {sorted(widths)}. "
                "Fill the gaps with empty cells."
            )


def words(*texts: str) -> tuple[Cell, ...]:
    """Plain cells."""
    return tuple(Cell(text) for text in texts)


def plain(text: str) -> str:
    """For a terminal, which may know ASCII alone."""
    return text.translate(_PLAIN)


def number(value: float, digits: int = 2) -> str:
    """Rounded, with a real minus and no minus zero; a dash where there is nothing."""
    if not math.isfinite(value):
        return DASH
    text = f"{value:,.{digits}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else text.lstrip("-")


def signed(value: float, digits: int = 2) -> str:
    """As `number`, with a plus before what is above zero."""
    text = number(value, digits)
    return f"+{text}" if math.isfinite(value) and float(f"{value:.{digits}f}") > 0 else text


def mean_sd(mean: float, sd: float | None, digits: int = 2) -> str:
    """A mean and, if there are several seeds, the sd over them."""
    if not math.isfinite(mean) or sd is None or not math.isfinite(sd):
        return number(mean, digits)
    return f"{number(mean, digits)} ± {number(sd, digits)}"


def span(low: float, high: float, digits: int = 2) -> str:
    """An interval; a dash where there are too few patients for one."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return DASH
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def to_html(grid: Grid) -> str:
    """A table that scrolls sideways where the screen is narrow; its names stay in sight."""
    above = ""
    if grid.above:
        cells = "".join(
            f'<th class="above" colspan="{count}">{_escape(text)}</th>'
            for text, count in grid.above
        )
        above = f"<tr>{cells}</tr>"
    first, *others = grid.head
    head = f'<th scope="col">{_escape(first)}</th>' + "".join(
        f'<th scope="col" class="number">{_escape(x)}</th>' for x in others
    )
    lines = []
    for place, row in enumerate(grid.rows):
        if place in grid.groups:
            text = _escape(grid.groups[place])
            lines.append(
                f'<tr class="group"><th colspan="{len(grid.head)}"><span>{text}</span></th></tr>'
            )
        name, *cells = row
        line = "".join(f'<td class="number">{_cell(cell)}</td>' for cell in cells)
        lines.append(f'<tr><th scope="row">{_cell(name)}</th>{line}</tr>')
    body = "\n".join(lines)
    note = f'\n<p class="muted">{_escape(grid.note)}</p>' if grid.note else ""
    return (
        f'<h3>{_escape(grid.title)}</h3>\n<div class="wide names"><table><thead>{above}'
        f"<tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}\n"
    )


def _cell(cell: Cell) -> str:
    text = _escape(cell.text)
    text = f"<strong>{text}</strong>" if cell.strong else text
    return f"{text}<small>{_escape(cell.note)}</small>" if cell.note else text


def _escape(text: str) -> str:
    return html.escape(text)


def to_markdown(grid: Grid) -> str:
    """The same with pipes; words above columns are joined to theirs."""
    lines = [f"**{grid.title}**", ""]
    lines.append("| " + " | ".join(_whole_head(grid)) + " |")
    lines.append("|---" + "|---:" * (len(grid.head) - 1) + "|")
    for place, row in enumerate(grid.rows):
        if place in grid.groups:
            lines.append(f"| *{grid.groups[place]}* " + "| " * (len(grid.head) - 1) + "|")
        lines.append("| " + " | ".join(_marked(cell) for cell in row) + " |")
    if grid.note:
        lines += ["", grid.note]
    return "\n".join(lines) + "\n"


def _marked(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.strong else cell.text
    note = cell.note if cell.note.startswith("[") else f"({cell.note})"  # an interval as it is
    return (f"{text} {note}" if cell.note else text).replace("|", "\\|")


def to_text(grid: Grid) -> str:
    """Aligned, in plain letters; a star marks what is strong, notes of cells are left out."""
    head = [plain(x) for x in grid.head]
    body = [[plain(cell.text) + ("*" if cell.strong else "") for cell in row] for row in grid.rows]
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]

    def line(parts: Sequence[str]) -> str:
        first, *others = zip(parts, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(x.rjust(width) for x, width in others)])

    top = line(head)
    lines = [plain(grid.title), "", *_over(grid, widths), top, "-" * len(top)]
    for place, parts in enumerate(body):
        if place in grid.groups and place > 0:
            lines.append("")
        lines.append(line(parts).rstrip())
    return "\n".join(lines) + "\n"


def _over(grid: Grid, widths: Sequence[int]) -> list[str]:
    """The words above columns, each over the right end of its own."""
    parts, column = [], 0
    for text, count in grid.above:
        width = sum(widths[column : column + count]) + 2 * (count - 1)
        parts.append(plain(text).rjust(width)[:width])
        column += count
    return ["  ".join(parts).rstrip()] if parts else []


def _whole_head(grid: Grid) -> list[str]:
    """Every column's full name."""
    if not grid.above:
        return list(grid.head)
    over = [text for text, count in grid.above for _ in range(count)]
    return [
        f"{top}, {own}" if top and own else top or own
        for top, own in zip(over, grid.head, strict=True)
    ]
