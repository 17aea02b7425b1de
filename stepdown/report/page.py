"""One self-contained page: no network, images inside, readable on a phone and in the dark."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from stepdown.report.calibration import SOURCE, Row
from stepdown.report.tables import HEAD, cells, summarize, verdict

BANNER = "Research software on simulated patients. Not a medical device, not for care."
ALT = (
    "Example stays over time with their levels, level against hourly reward with the rare region "
    "shaded, histograms of reward and length of stay"
)
STYLE = """
:root { color-scheme: light dark; --ink: #1b2127; --muted: #56616b; --paper: #ffffff;
  --line: #d9dee3; --soft: #f3f5f7; --good: #14602f; --bad: #a3261f; --warn: #fff4d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --muted: #9ba8b4; --paper: #0f141a;
  --line: #2c353e; --soft: #171e26; --good: #6fdc93; --bad: #ff8f88; --warn: #3a2f10; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1rem 0 .25rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
.banner { background: var(--warn); padding: .5rem .75rem; border-radius: .4rem; margin: 0; }
.lead { font-size: 1.1rem; } .muted { color: var(--muted); }
img { width: 100%; height: auto; background: #fff; border-radius: .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; margin: .75rem 0; }
th, td { text-align: left; padding: .25rem .7rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.group th { background: var(--soft); }
.within { color: var(--good); } .outside, .none { color: var(--bad); font-weight: 600; }
details { background: var(--soft); border-radius: .4rem; padding: .5rem .75rem; margin: 1rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .4rem 0; }
code { font-size: .88em; overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { padding: .5rem; } th, td { padding: .25rem .2rem; }
  table { font-size: .74rem; }
  .bar { display: none; } img { width: 52rem; max-width: none; } }
"""


@dataclass(frozen=True)
class Section:
    """One part of the page; the body is HTML."""

    title: str
    body: str
    anchor: str = ""  # to be linked to


def make_page(
    title: str, lead: str, sections: Sequence[Section], banner: str = BANNER, style: str = ""
) -> str:
    """The whole document; `style` is added to the common one."""
    parts = "\n".join(_section(section) for section in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{STYLE}{style}</style>
</head>
<body>
<p class="banner"><strong>{_text(banner)}</strong></p>
<main>
<h1>{_text(title)}</h1>
<p class="lead">{_text(lead)}</p>
{parts}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    anchor = f' id="{_text(section.anchor)}"' if section.anchor else ""
    return f"<section{anchor}><h2>{_text(section.title)}</h2>\n{section.body}</section>"


def cohort_section(rows: Sequence[Row], overview: bytes, card: str) -> Section:
    """The patients: a picture, the calibration, the card."""
    outside = [row for row in rows if row.bar is not None and not row.within]
    names = "; ".join(f"{row.group}, {row.what}" for row in outside[:6])
    more = f" and {len(outside) - 6} more, marked below" if len(outside) > 6 else ""
    misses = f" Not within: {names}{more}." if outside else ""
    image = base64.b64encode(overview).decode()
    return Section(
        "The patients",
        f'<div class="wide"><img alt="{ALT}" src="data:image/png;base64,{image}"></div>\n'
        f"<h3>Ours beside the real cohort</h3>\n<p>{summarize(rows)}.{_text(misses)} "
        f'<span class="muted">Published: {SOURCE}. A difference is counted in the unit of its bar; '
        f"numbers without a bar are shown for comparison.</span></p>\n{_calibration(rows)}\n"
        f"<details><summary>Dataset card</summary>\n{render_markdown(card)}</details>",
    )


def provenance_section(about: Mapping[str, Any]) -> Section:
    """How the results came about."""
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    facts = {
        "command": about["command"],
        "seed": about["seed"],
        "commit": about["commit"] or "not a checkout",
        "versions": versions,
        "device": f"{about['device']} ({about['machine']})",
        "date": about["date"],
    }
    lines = (
        f"<tr><th>{_text(k)}</th><td><code>{_text(v)}</code></td></tr>" for k, v in facts.items()
    )
    return Section("How this came about", f"<table>{''.join(lines)}</table>")


def _calibration(rows: Sequence[Row]) -> str:
    kinds = ("", ' class="number"', ' class="number"', ' class="number"', ' class="bar number"', "")
    head = "".join(f"<th{kind}>{word}</th>" for kind, word in zip(kinds, HEAD, strict=True))
    lines = []
    for group, members in groupby(rows, lambda row: row.group):
        lines.append(f'<tr class="group"><th colspan="6">{_text(group.capitalize())}</th></tr>')
        for row in members:
            name = row.what + (f" [{row.unit}]" if row.unit else "")
            words = (name, *cells(row)[1:-1])
            line = "".join(f"<td{k}>{_text(w)}</td>" for k, w in zip(kinds, words, strict=False))
            kind = {"no data": "none"}.get(verdict(row), verdict(row))
            lines.append(f'<tr>{line}<td class="{kind}">{verdict(row)}</td></tr>')
    body = "\n".join(lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def render_markdown(text: str) -> str:
    """The little Markdown that our cards use: headings, lists, tables, paragraphs."""
    return "\n".join(_block(block) for block in text.strip().split("\n\n"))


def _block(block: str) -> str:
    lines = block.split("\n")
    if found := re.match(r"(#+) (.*)", block):
        level = min(len(found[1]) + 2, 6)
        return f"<h{level}>{_inline(found[2])}</h{level}>"
    if lines[0].startswith("- "):
        return "<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>"
    if lines[0].startswith("| "):
        head, _, *rows = [line.strip("| ").split(" | ") for line in lines]
        body = "".join(_line("td", row) for row in rows)
        return f'<div class="wide"><table>{_line("th", head)}{body}</table></div>'
    return f"<p>{_inline(block)}</p>"


def _line(tag: str, words: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{_inline(word)}</{tag}>" for word in words) + "</tr>"


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def _text(value: object) -> str:
    return html.escape(str(value))
