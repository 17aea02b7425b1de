"""Tables: tidy rows as CSV for programs, a grid of cells in words for people.

A grid is shown as HTML, as Markdown or as aligned text. Cells are written once, so that the page,
the Markdown file and the terminal say the same.
"""

import csv
import html
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DASH = "–"
PROSE = 120  # columns of a Markdown line that is no table
_PLAIN = str.maketrans({"−": "-", "–": "-", "±": "+-", "²": "2"})


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str = DASH
    note: str = ""  # smaller, below
    strong: bool = False
    kind: str = ""  # how the page shows it; by default as its column


@dataclass(frozen=True)
class Grid:
    """A table."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    above: tuple[tuple[str, int], ...] = ()  # words over several columns, with their number
    groups: Mapping[int, str] = field(default_factory=dict)  # words before the row of this number
    note: str = ""
    kinds: tuple[str, ...] = ()  # of columns: "" words, "number"; by default words come first
    names: bool = True  # the first column holds names, which the page keeps in sight

    def __post_init__(self):
        widths = {len(self.head), *(len(row) for row in self.rows)}
        if self.above:
            widths.add(sum(count for _, count in self.above))
        if self.kinds:
            widths.add(len(self.kinds))
        if len(widths) > 1:
            raise ValueError(
                f"expected {len(self.head)} columns everywhere, got {sorted(widths)}. "
                "Fill the gaps with empty cells."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """What each column holds."""
        return self.kinds or ("", *["number"] * (len(self.head) - 1))


def plain(text: str) -> str:
    """For a terminal, which may know ASCII alone."""
    return text.translate(_PLAIN)


def minus(text: str) -> str:
    """A number with a real minus."""
    return text.replace("-", "−")


def number(value: float | None, digits: int = 2) -> str:
    """Rounded, with a real minus and no minus zero; a dash where there is nothing."""
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{value:,.{digits}f}"
    return minus(text) if float(text.replace(",", "")) else text.lstrip("-")


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


def apart(found: Mapping[str, Any] | None, digits: int = 2, scale: float = 1.0) -> Cell:
    """A difference (mean, low, high) with its interval; strong where that excludes zero."""
    if found is None:
        return Cell()
    mean, low, high = (scale * float(found[x]) for x in ("mean", "low", "high"))
    return Cell(signed(mean, digits), span(low, high, digits), strong=low > 0 or high < 0)


def chance(p: float) -> str:
    """A p-value."""
    return "< 0.001" if p < 0.001 else number(p, 3)


def valued(found: Mapping[str, Any] | None, digits: int = 2) -> Cell:
    """A mean with its interval, which may have no limit; empty where nothing is known."""
    if found is None or found["mean"] is None or not math.isfinite(found["mean"]):
        return Cell()
    low, high = found["low"], found["high"]
    between = "no limit" if low is None or high is None else span(low, high, digits)
    return Cell(number(found["mean"], digits), between)


def to_csv(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str] = (),
    *,
    digits: int | None = 6,
) -> bytes:
    """Tidy rows, a line for each; what could not be computed stays empty.

    By default the columns are those of all rows, as they first come, and numbers have six digits;
    None keeps every digit.
    """
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_value(row.get(column), digits) for column in columns])
    return out.getvalue().encode()


def _value(value: object, digits: int | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) and digits else str(value)


def to_html(grid: Grid) -> str:
    """A table that scrolls sideways where the screen is narrow; its names stay in sight."""
    above = ""
    if grid.above:
        cells = "".join(
            f'<th class="above" colspan="{count}">{html.escape(text)}</th>'
            for text, count in grid.above
        )
        above = f"<tr>{cells}</tr>"
    column, name = (' scope="col"', "th") if grid.names else ("", "td")
    head = "".join(
        f"<th{column}{_class(kind)}>{html.escape(x)}</th>"
        for kind, x in zip(grid.columns, grid.head, strict=True)
    )
    lines = []
    for place, row in enumerate(grid.rows):
        if place in grid.groups:
            text = html.escape(grid.groups[place])
            text = f"<span>{text}</span>" if grid.names else text
            lines.append(f'<tr class="group"><th colspan="{len(grid.head)}">{text}</th></tr>')
        cells = [
            f"<td{_class(cell.kind or kind)}>{_cell(cell)}</td>"
            for kind, cell in zip(grid.columns, row, strict=True)
        ]
        if grid.names:
            cells[0] = f'<th scope="row">{_cell(row[0])}</th>'
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    title = f"<h3>{html.escape(grid.title)}</h3>\n" if grid.title else ""
    note = f'\n<p class="muted">{html.escape(grid.note)}</p>' if grid.note else ""
    return (
        f'{title}<div class="wide{" names" * grid.names}"><table><thead>{above}'
        f"<tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}\n"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _cell(cell: Cell) -> str:
    text = html.escape(cell.text)
    text = f"<strong>{text}</strong>" if cell.strong else text
    return f"{text}<small>{html.escape(cell.note)}</small>" if cell.note else text


def to_markdown(grid: Grid) -> str:
    """The same with pipes; words above columns are joined to theirs."""
    lines = [f"**{grid.title}**", ""] if grid.title else []
    lines.append(pipes(_whole_head(grid)))
    lines.append("|" + "".join("---:|" if kind else "---|" for kind in grid.columns))
    for place, row in enumerate(grid.rows):
        if place in grid.groups:
            lines.append(f"| *{grid.groups[place]}* " + "| " * (len(grid.head) - 1) + "|")
        lines.append(pipes([_marked(cell) for cell in row]))
    if grid.note:
        lines += ["", textwrap.fill(grid.note, PROSE, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


def pipes(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _marked(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.strong else cell.text
    note = cell.note if cell.note.startswith("[") else f"({cell.note})"  # an interval as it is
    return (f"{text} {note}" if cell.note else text).replace("|", "\\|")


def to_text(grid: Grid, *, rule: bool = True, least: int = 0) -> str:
    """Aligned, in plain letters; a star marks what is strong, notes of cells are left out.

    A rule stands below the head, and columns of numbers have at least so many letters.
    """
    head = [plain(x) for x in grid.head]
    body = [[plain(cell.text) + ("*" if cell.strong else "") for cell in row] for row in grid.rows]
    longest = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    widths = [
        max(width, least if kind else 0) for width, kind in zip(longest, grid.columns, strict=True)
    ]

    def line(parts: Sequence[str]) -> str:
        each = zip(parts, widths, grid.columns, strict=True)
        return "  ".join(x.rjust(width) if kind else x.ljust(width) for x, width, kind in each)

    lines = [plain(grid.title), ""] if grid.title else []
    lines += [*_over(grid, widths), line(head).rstrip()]
    if rule:
        lines.append("-" * len(line(head)))
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
