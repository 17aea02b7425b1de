"""One self-contained page: no network, images inside, readable on a phone and in the dark.

A picture's name is one of `CAPTIONS`, alone or with more words after a comma, such as
"exploitation, hidden-8": the words after the comma go to its heading.
"""

import base64
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepdown.report.grids import Grid, to_csv, to_html, to_markdown

BANNER = "Research software on simulated patients. Not a medical device, not for care."
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
class Caption:
    """Where a picture stands and what is to be seen."""

    chapter: str
    heading: str
    words: str = ""


CAPTIONS = {
    "against": Caption(
        "first",
        "Who gains over the clinicians, in truth",
        "Each row minus the clinicians, the same patients and the same chance for all, with 95 % "
        "intervals over patients. Open and gray: the interval includes 0, so it is undecided.",
    ),
    "exploitation": Caption(
        "truth",
        "What the twin promises, what the truth keeps",
        "Differences to the clinicians from the same starts. An arrow to the left is a gain that "
        "exists in the model alone: the longer it is, the more a policy has exploited the model.",
    ),
    "cohorts": Caption(
        "truth",
        "All cohorts: reward and safety against the clinicians",
        "Every mark is a cohort with its own patients, clinicians and models. What counts is "
        "whether the marks stay on one side, not how one of them fell.",
    ),
    "levels": Caption(
        "truth",
        "One level held for six hours: true, and as models believe",
        "If records hold low support for recovered hearts alone, models take it for a remedy. "
        "Where models rise and the truth falls, learning without a guardian is led astray.",
    ),
    "ranks": Caption(
        "evidence",
        "Who is best? Ask the twin, ask the truth",
        "Learned methods by reward in test patients and in two twins. Lines that cross are "
        "methods that a model puts in the wrong order.",
    ),
    "records alone": Caption(
        "evidence",
        "Estimates from records alone",
        "Gray: so few patients followed the policy, or estimates disagree so much, that they are "
        "called uninformative.",
    ),
    "regret": Caption(
        "evidence",
        "What a choice without the truth costs",
        "Bold: the rule that is the default.",
    ),
    "subgroups": Caption("evidence", "Who is helped, who is harmed"),
    "elsewhere": Caption(
        "evidence",
        "Trained here, judged elsewhere",
        "Where reward falls and the guardian's share does not rise, nobody is warned.",
    ),
    "scores": Caption("scores", "Scores of all episodes", "Every seed and episode of a judge."),
    "mix": Caption("scores", "Levels chosen", "What each method sets, all hours of all episodes."),
    "rollouts reward": Caption(
        "bedside",
        "Six hours from the same start: high and low reward",
        "Every method begins in the same recorded hour and meets the same chance.",
    ),
    "rollouts ws": Caption("bedside", "Six hours from the same start: high and low weaning score"),
    "rollouts acp": Caption("bedside", "Six hours from the same start: large and small jumps"),
    "agreement": Caption(
        "bedside",
        "Would the policy have done as the clinicians did?",
        "Rows are what was recorded, columns what the policy would have set in the same hour.",
    ),
    "weaning": Caption(
        "bedside", "How teams weaned", "Days of the records on which the level fell most."
    ),
    "sensitivity": Caption(
        "learning",
        "Sensitivity to τ, λ, λ₁ and λ₂",
        "One thing changed at a time, trained and judged anew: from our numbers and, where a panel "
        "names others, from those of the paper's figure. τ is a percentile, the paper's search for "
        "the least variance, or absent: then −log p-value is charged.",
    ),
    "curves": Caption(
        "learning", "How training went", "Epochs are the same number of updates each."
    ),
    "training mix": Caption("learning", "Levels set in imagination while training"),
    "examples": Caption("twin", "Forecasts where the level changes"),
    "growth": Caption("twin", "Error over the hours ahead", "Under the recorded levels."),
    "calibration": Caption("twin", "What bands claim and what they cover"),
    "rewards": Caption("twin", "Forecast against recorded reward"),
    "horizons": Caption(
        "twin",
        "The clinicians' decisions in the twin and in the records",
        "The same recorded levels; what differs is the twin's error alone.",
    ),
    "shifts": Caption("guardian", "What the guardians notice, by the size of a shift"),
    "records": Caption("records", "The recorded hours", "Shaded: little support and a poor hour."),
}


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
    parts = "\n".join(map(_section, sections))
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


def chapter_of(name: str) -> str:
    """The chapter in which a picture stands."""
    caption = CAPTIONS.get(name.partition(",")[0])
    return "more" if caption is None else caption.chapter


def show(pictures: Mapping[str, bytes], chapter: str) -> str:
    """The pictures of a chapter as HTML, in the order of `CAPTIONS`; unknown ones are in "more"."""
    bases = {name: name.partition(",")[0] for name in pictures}
    if chapter == "more":
        own = [name for name, base in bases.items() if base not in CAPTIONS]
    else:
        wanted = [base for base, caption in CAPTIONS.items() if caption.chapter == chapter]
        own = [name for one in wanted for name, base in bases.items() if base == one]
    return "\n".join(_figure(name, pictures[name]) for name in own)


def _figure(name: str, png: bytes) -> str:
    base, _, rest = name.partition(",")
    caption = CAPTIONS.get(base, Caption("more", name.capitalize()))
    title = _text(f"{caption.heading} ({rest.strip()})" if rest else caption.heading)
    words = f"<figcaption>{_text(caption.words)}</figcaption>" if caption.words else ""
    return f"<figure><h3>{title}</h3>{picture(png, title)}{words}</figure>"


def picture(png: bytes, alt: str) -> str:
    """A picture inside the page, which scrolls sideways where the screen is narrow."""
    image = base64.b64encode(png).decode()
    return f'<div class="wide"><img alt="{alt}" src="data:image/png;base64,{image}"></div>'


@dataclass(frozen=True)
class Table:
    """Numbers of a run: tidy rows for programs and, for people, tables that show them."""

    path: str  # in the run, without an ending
    rows: Sequence[Mapping[str, object]]
    grids: Sequence[Grid] = ()
    columns: Sequence[str] = ()  # by default those of all rows

    @property
    def html(self) -> list[str]:
        """The tables, and which file holds their numbers."""
        source = f'<p class="muted">Numbers: <code>{_text(self.path)}.csv</code></p>\n'
        return [*map(to_html, self.grids), source]


def files_of(tables: Iterable[Table]) -> dict[str, bytes]:
    """Every table as tidy CSV and as Markdown, by its path in the run."""
    made = {}
    for one in tables:
        made[f"{one.path}.csv"] = to_csv(one.rows, one.columns)
        if one.grids:
            made[f"{one.path}.md"] = "\n".join(map(to_markdown, one.grids)).encode()
    return made


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
