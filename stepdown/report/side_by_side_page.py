"""Two cohorts side by side, as a page: a verdict, one picture, then every number.

The first screen is for somebody who has just imported recordings: can they be told from the other
cohort, by what, and does a model fitted there hold here? Every sentence is computed from the
numbers below it. Orange marks what differs by a size that is worth a word (evaluation/
side_by_side.py); gray is what does not, or not for sure.
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from stepdown.evaluation.carried_over import ENOUGH, Forecasts, Refusals, Share
from stepdown.evaluation.guardians import RATE
from stepdown.evaluation.side_by_side import LEVEL_NAME, MATERIAL, SPREAD, Difference
from stepdown.evaluation.told_apart import ToldApart
from stepdown.report.cohort_report import four_digits
from stepdown.report.figures import FAINT, GRID, INK, MUTED, to_png
from stepdown.report.grids import DASH, Cell, Grid, number, plain, signed, span, to_csv, to_html
from stepdown.report.labels import ORANGE
from stepdown.report.page import Section, make_page, picture, provenance_section
from stepdown.report.results_page import STYLE
from stepdown.signals import KNOWN

BANNER = "Research software. Not a medical device, not for care."
TOP, SHOWN = 5, 15  # numbers in the summary, and in the first table
TELLING = 0.6  # AUC from which a classifier is worth a warning
STRANGE = 2.0  # times the promised share of refusals
HONEST = 5.0  # points that the coverage of a 90 % band may be off
VIEW_WORDS = {
    "levels": "Levels: hour means of the signals, their squares and products",
    "movement": "Movement: sd and largest step inside the hour, change from the hour before",
}
GROUPS = {
    "levels": "Means and spreads",
    "movement": "Movement",
    "tails": "Tails",
    "correlations": "Correlations",
    "practice": "How levels are set",
    "records": "Records",
}
PANELS = (  # measure, title, axis
    ("mean", "Mean", "sd"),
    (SPREAD, "Spread of samples", "ratio"),
    ("sd inside the hour, median", "Movement inside the hour", "ratio"),
    ("change from hour to hour, robust sd", "Change from hour to hour", "ratio"),
)
ALT = "Differences of means in sd, and ratios of spread and movement, by signal with intervals"
OWN_STYLE = (
    STYLE
    + """
.card.warn { border-color: var(--bad); } .lead { max-width: 62rem; }
"""
)


@dataclass(frozen=True)
class Facts:
    """What one of the cohorts is."""

    name: str  # in tables
    said: str  # in sentences, as in "hours of ..."
    words: str  # what it is
    patients: int
    hours: float
    minutes: float  # between samples, as recorded
    profile: str
    only: tuple[str, ...]  # signals that the other one lacks


@dataclass(frozen=True)
class SideBySide:
    """All that the page shows."""

    ours: Facts
    theirs: Facts
    used: tuple[str, ...]  # signals that models are given
    differences: Sequence[Difference]
    told: Sequence[ToldApart]
    refusals: Sequence[Refusals]
    forecasts: Sequence[Forecasts]
    about: Mapping[str, Any]  # artifacts.provenance

    @property
    def material(self) -> list[Difference]:
        """The differences that are worth a word, the surest large one first."""
        return [x for x in self.differences if x.material]


# ── in words ─────────────────────────────────────────────────────────────────────────────────────


def verdict(found: SideBySide) -> str:
    """What it comes to, in one sentence."""
    return f"{_told_words(found)}; {_twin_words(found)}."


def _told_words(found: SideBySide) -> str:
    best = max(found.told, key=lambda x: x.auc)
    ours, theirs = found.ours.said, found.theirs.said
    if not best.clear:
        return (
            f"A classifier cannot tell hours of {ours} from hours of {theirs} "
            f"(AUC {number(best.auc)} by {best.view}, 0.5 is a coin)"
        )
    names = [_signal_words(x.what) for x in best.uses[:2]]
    return (
        f"A classifier tells hours of {ours} from hours of {theirs} with AUC {number(best.auc)} "
        f"(0.5 is a coin), mostly by the {'' if best.view == 'levels' else 'movement of '}"
        f"{' and '.join(names)}"
    )


def _twin_words(found: SideBySide) -> str:
    abroad = _carried(found)
    ours, theirs, told = found.ours.said, found.theirs.said, abroad.verdict()
    size = number(abs(abroad.percent("mae_z")), 0)
    said = {
        "better": f"a twin fitted to {theirs} saves {size} % of the error of persistence on {ours}",
        "no better": f"a twin fitted to {theirs} is no better than persistence on {ours}",
        "worse": f"a twin fitted to {theirs} is worse than persistence on {ours}, by {size} %",
    }[told]
    own = [x for x in found.forecasts if x.fitted_on == "ours"]
    if own and own[0].verdict() == "better":
        said += f", one fitted to {ours} itself saves {number(own[0].percent('mae_z'), 0)} %"
    return said


def _carried(found: SideBySide) -> Forecasts:
    """Their twin on our patients."""
    return next(x for x in found.forecasts if (x.fitted_on, x.judged_on) == ("theirs", "ours"))


def next_steps(found: SideBySide) -> list[str]:
    """What to do now."""
    steps = []
    if found.material:
        first = found.material[0]
        steps.append(
            f"Look at the numbers at the top of the list, first {_title(first)}. If one of them "
            "can be a unit, a sensor or a way of charting, mend the mapping and import again; if "
            f"not, do not carry over what holds for it in {found.theirs.said}."
        )
    elif max(x.auc for x in found.told) < TELLING:
        steps.append(
            "Nothing here speaks against carrying results over. That is not a proof: what was not "
            "compared (hidden states, outcomes, drugs) may still differ."
        )
    abroad = next(x for x in found.refusals if x.fitted_on == "theirs")
    if abroad.abroad.low > STRANGE * 100 * RATE:
        steps.append(
            "Much here is strange to a guardian from there: fit one to these patients "
            "(stepdown guardian fit) before anything is learned."
        )
    steps += _twin_step(found)
    for one, other in ((found.ours, found.theirs), (found.theirs, found.ours)):
        if one.only:
            names = ", ".join(_signal_words(x) for x in one.only)
            steps.append(f"Only in {one.said}: {names}. {other.name} tells nothing about it.")
    return steps


def _twin_step(found: SideBySide) -> list[str]:
    abroad = _carried(found)
    own = [x for x in found.forecasts if x.fitted_on == "ours"]
    wide = abs(abroad.coverage.mean - 90.0) > HONEST
    if not own:
        return [
            f"With {ENOUGH} patients or more a twin of their own is fitted as well, which says how "
            f"much could be had; there are {found.ours.patients}."
        ]
    behind = own[0].gains["mae_z"][1] > abroad.gains["mae_z"][2]  # for sure
    if wide or behind or abroad.verdict() != "better":
        return [
            f"Use a twin fitted to {found.ours.said} itself (stepdown twin fit), not one from "
            "elsewhere: its forecasts are better here or its bands are more honest."
        ]
    return []


def summary_text(found: SideBySide) -> str:
    """For a terminal: the verdict, the most different numbers, what to do."""
    top = found.material[:TOP]
    lines = [verdict(found), ""]
    if top:
        lines.append(f"Most different, of {len(found.differences)} numbers:")
        lines += [f"  {_title(x)}: {_apart_words(x)}" for x in top]
    else:
        lines.append(f"None of {len(found.differences)} numbers is surely different.")
    for one in found.told:
        between = span(one.low, one.high).replace("+", "")
        lines.append(f"Classifier by {one.view}: AUC {number(one.auc)} {between}")
    lines += ["", "What to do next:", *(f"  - {x}" for x in next_steps(found))]
    return plain("\n".join(lines)) + "\n"


def _signal_words(name: str) -> str:
    if name == LEVEL_NAME:
        return "level"
    label = KNOWN[name].label
    return label if label[:2].isupper() else label[0].lower() + label[1:]


def _title(one: Difference) -> str:
    if one.what in KNOWN or one.what == LEVEL_NAME:
        return f"{_signal_words(one.what)}, {one.measure}"
    if one.group == "records":
        return f"{one.measure}, {one.what}"
    return f"{one.measure} {one.what}".strip()


def _apart_words(one: Difference) -> str:
    unit = f" {one.unit}" if one.unit else ""
    return (
        f"{four_digits(one.ours)} against {four_digits(one.theirs)}{unit} "
        f"({_size(one, one.difference)}, {_between(one)})"
    )


def _size(one: Difference, value: float) -> str:
    if not math.isfinite(value):
        return DASH
    if one.scale == "times":
        return f"×{value:.3g}" if value < 0.1 else f"×{number(value)}"
    words = {"sd": " sd", "points": " points", "r": ""}[one.scale]
    return signed(value, 1 if one.scale == "points" else 2) + words


def _between(one: Difference) -> str:
    if not (math.isfinite(one.low) and math.isfinite(one.high)):
        return DASH
    return f"[{_bare(one, one.low)}, {_bare(one, one.high)}]"


def _bare(one: Difference, value: float) -> str:
    return _size(one, value).removesuffix(" sd").removesuffix(" points")


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


def side_by_side_page(found: SideBySide) -> str:
    """The whole page."""
    sections = [
        Section("At a glance", _cards(found) + _figure(found) + _steps(found), "summary"),
        Section("What differs most", _most_different(found), "differences"),
        Section("What a classifier sees", _classifier(found), "classifier"),
        Section("What a guardian refuses", _guardian(found), "guardian"),
        Section("How a twin forecasts", _twin(found), "twin"),
        Section("Every number", _all_numbers(found), "numbers"),
        Section("What was compared", _compared(found), "compared"),
        provenance_section(found.about),
    ]
    title = f"{found.ours.said} beside {found.theirs.said}"
    return make_page(title, verdict(found), sections, BANNER, OWN_STYLE)


def _cards(found: SideBySide) -> str:
    best = max(found.told, key=lambda x: x.auc)
    guardian = next(x for x in found.refusals if x.fitted_on == "theirs")
    twin = _carried(found)
    count, whole = len(found.material), len(found.differences)
    told = {x.view: number(x.auc) for x in found.told}
    refused, home = guardian.abroad, guardian.at_home
    gain = twin.percent("mae_z")
    cards = (
        (
            "Classifier, AUC",
            number(best.auc),
            f"levels {told['levels']}, movement {told['movement']}; 0.5 is a coin, 1 is certain",
            best.clear and best.auc >= TELLING,
        ),
        (
            "Numbers that differ",
            f"{count} of {whole}",
            f"by a size of {MATERIAL:g} or more for sure (explained below)",
            count > 0,
        ),
        (
            f"Refused by a guardian of {found.theirs.said}",
            f"{number(refused.mean, 1)} %",
            f"of hours; {100 * RATE:.0f} % is what it promises, {number(home.mean, 1)} % at home",
            refused.low > STRANGE * 100 * RATE,
        ),
        (
            f"Saved by a twin of {found.theirs.said}",
            f"{signed(gain, 0)} %",
            f"of the error of persistence; its 90 % bands cover {number(twin.coverage.mean, 0)} %",
            twin.verdict() != "better" or abs(twin.coverage.mean - 90) > HONEST,
        ),
    )
    parts = (
        f'<div class="card {"bad" if warn else "good"}"><h3>{html.escape(title)}</h3>'
        f'<div class="big">{html.escape(big)}</div><p class="muted">{html.escape(words)}</p></div>'
        for title, big, words, warn in cards
    )
    return f'<div class="cards">{"".join(parts)}</div>\n'


def _figure(found: SideBySide) -> str:
    words = (
        f"{found.ours.name} against {found.theirs.name}, signal by signal, with 95 % intervals "
        "over patients. On the line in the middle both are alike. Orange: different for sure, by "
        f"a size of {MATERIAL:g} or more."
    )
    image = picture(draw_side_by_side(found.differences, (found.ours.name, found.theirs.name)), ALT)
    return f"<figure>{image}<figcaption>{html.escape(words)}</figcaption></figure>"


def _steps(found: SideBySide) -> str:
    items = "".join(f"<li>{html.escape(x)}</li>" for x in next_steps(found))
    return f"<h3>What to do next</h3><ul>{items}</ul>"


HEAD = ("number", "", "", "difference", "95 % interval", "size", "for sure")


def _differences_grid(
    rows: Sequence[Difference], found: SideBySide, *, grouped: bool = False
) -> Grid:
    lines = tuple(
        (
            Cell(_title(x) + (f", {x.unit}" if x.unit else "")),
            Cell(four_digits(x.ours)),
            Cell(four_digits(x.theirs)),
            Cell(_size(x, x.difference), strong=x.material),
            Cell(_between(x)),
            Cell(number(x.size)),
            Cell(number(x.sure), strong=x.material),
        )
        for x in rows
    )
    groups = {}
    if grouped:
        start = 0
        for measure, members in groupby(rows, lambda x: x.measure):
            groups[start] = measure[0].upper() + measure[1:]
            start += len(list(members))
    head = (HEAD[0], found.ours.name, found.theirs.name, *HEAD[3:])
    return Grid("", head, lines, groups=groups)


def _most_different(found: SideBySide) -> str:
    words = (
        "Sorted by the size that is sure. Sizes share one scale: sd of the other cohort's samples "
        "for means and centiles (sd), the logarithm of the ratio for spreads and movement (×), "
        "the difference itself for correlations, Cohen's h for shares (points). Intervals are for "
        "one number each: of a hundred numbers that are the same, about five exclude it by luck. "
        "For sure: what is left of the size when all numbers are asked at once. From "
        f"{MATERIAL:g} on it is worth a word."
    )
    first = f'<p class="muted">{html.escape(words)}</p>\n'
    if not found.material:
        first = (
            f"<p>None of {len(found.differences)} numbers differs by a size of {MATERIAL:g} for "
            f"sure. The nearest ones are shown.</p>{first}"
        )
    rows = found.differences[:SHOWN]
    return first + to_html(_differences_grid(rows, found))


def _classifier(found: SideBySide) -> str:
    rows = tuple(
        (
            Cell(VIEW_WORDS[x.view]),
            Cell(number(x.auc), span(x.low, x.high).replace("+", ""), strong=x.clear),
            Cell(f"{x.hours[0]:,}"),
            Cell(f"{x.hours[1]:,}"),
            Cell(
                "; ".join(f"{_signal_words(u.what)} {signed(-u.lost)}" for u in x.uses[:5]),
                kind="words",
            ),
        )
        for x in found.told
    )
    head = (
        "what it sees",
        "AUC",
        f"hours, {found.ours.name}",
        f"hours, {found.theirs.name}",
        "used most: what shuffling it does to the AUC",
    )
    words = (
        "A logistic regression, judged on patients that it has not seen (five folds). AUC: the "
        "chance that it tells which of two hours, one from each cohort, is whose. Signals that "
        "carry the same news, such as pressures, share the credit or take it from one another."
    )
    kinds = ("", "number", "number", "number", "")
    return to_html(Grid("", head, rows, note=words, kinds=kinds))


def _name(side: str, found: SideBySide) -> str:
    return found.ours.name if side == "ours" else found.theirs.name


def _share_cell(one: Share, strong: bool = False) -> Cell:
    between = span(one.low, one.high, 1).replace("+", "")
    return Cell(f"{number(one.mean, 1)} %", between, strong=strong)


def _guardian(found: SideBySide) -> str:
    rows = tuple(
        (
            Cell(_name(x.fitted_on, found), f"{x.patients} patients"),
            _share_cell(x.at_home),
            _share_cell(x.abroad, strong=x.abroad.low > STRANGE * 100 * RATE),
            Cell(f"{x.abroad.hours:,}", f"{x.abroad.patients} patients"),
        )
        for x in found.refusals
    )
    head = ("fitted on", "refused at home", "refused in the other cohort", "hours there")
    words = (
        f"A kernel density of recorded hours and decisions, refusing what is as strange as the "
        f"strangest {100 * RATE:.0f} % of select patients' hours. At home: test patients, so about "
        f"{100 * RATE:.0f} % are expected. It asks whether an hour lies where others lie, not "
        "whether hours lie equally dense: a narrower cohort is not strange to a wider one. With "
        "few select patients the rate of a single guardian is off the promised one: compare the "
        "two shares of a line."
    )
    return to_html(Grid("", head, rows, note=words + _few(found, "guardian")))


def _few(found: SideBySide, model: str) -> str:
    if found.ours.patients >= ENOUGH:
        return ""
    return f" {found.ours.name} has fewer than {ENOUGH} patients: no {model} is fitted to it."


def _twin(found: SideBySide) -> str:
    rows = tuple(
        (
            Cell(_name(x.fitted_on, found), f"{x.patients} patients"),
            Cell(_name(x.judged_on, found), f"{x.hours:,} hours, {x.judged} patients"),
            *(_error_cell(x, name) for name in ("mae_z", "crps_z")),
            *(_gain_cell(x, name) for name in ("mae_z", "crps_z")),
            _share_cell(x.coverage, strong=abs(x.coverage.mean - 90) > HONEST),
        )
        for x in found.forecasts
    )
    head = ("fitted on", "judged on", "MAE", "CRPS", "MAE saved", "CRPS saved", "90 % bands cover")
    words = (
        "Forecasts of the coming hour for patients that the twin has not seen, in sd of the train "
        f"patients of {found.theirs.name}. Below an error: that of persistence from the same "
        "patients. Saved: persistence less twin, with its interval over patients; strong where "
        "the interval excludes zero."
    )
    kinds = ("", "", *["number"] * 5)
    return to_html(Grid("", head, rows, note=words + _few(found, "twin"), kinds=kinds))


def _error_cell(one: Forecasts, metric: str) -> Cell:
    own, base = one.errors[metric]
    return Cell(number(own, 3), f"persistence {number(base, 3)}")


def _gain_cell(one: Forecasts, metric: str) -> Cell:
    _, low, high = one.gains[metric]
    return Cell(
        f"{signed(one.percent(metric), 1)} %", span(low, high, 3), strong=low > 0 or high < 0
    )


def _all_numbers(found: SideBySide) -> str:
    parts = []
    for group, title in GROUPS.items():
        order = {x.measure: i for i, x in reversed(list(enumerate(found.differences)))}
        rows = [x for x in found.differences if x.group == group]
        rows.sort(key=lambda x: order[x.measure])
        count = sum(x.material for x in rows)
        table = to_html(_differences_grid(rows, found, grouped=group != "correlations"))
        summary = f"{title}: {count} of {len(rows)} differ"
        parts.append(f"<details><summary>{html.escape(summary)}</summary>{table}</details>")
    source = '<p class="muted">Numbers: <code>differences.csv</code>, <code>compare.json</code></p>'
    return "\n".join(parts) + source


def _compared(found: SideBySide) -> str:
    sides = (found.ours, found.theirs)
    facts = {
        "what it is": [x.words for x in sides],
        "patients": [f"{x.patients:,}" for x in sides],
        "recorded hours": [f"{x.hours:,.0f}" for x in sides],
        "time between samples": [f"{x.minutes:g} min" for x in sides],
        "pump profile": [x.profile for x in sides],
        "signals that only it has": [", ".join(x.only) or "none" for x in sides],
    }
    rows = tuple((Cell(name), *map(Cell, values)) for name, values in facts.items())
    note = f"Models were given {', '.join(found.used)} and the level."
    if any(x.minutes != 10.0 for x in sides):
        note += " Finer samples were thinned to one every ten minutes."
    if found.ours.profile != found.theirs.profile:
        note += " The pumps differ, and with them speed, current and flow at a level."
    head = ("", found.ours.name, found.theirs.name)
    return to_html(Grid("", head, rows, note=note, kinds=("", "", "")))


# ── the picture ──────────────────────────────────────────────────────────────────────────────────


def draw_side_by_side(differences: Sequence[Difference], between: tuple[str, str]) -> bytes:
    """Means, spreads and movement of every signal, ours against theirs, as PNG."""
    by_name = {(x.measure, x.what): x for x in differences}
    names = [name for name in (*KNOWN, LEVEL_NAME) if any((m, name) in by_name for m, *_ in PANELS)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(PANELS), sharey=True)
        for axis, (measure, title, unit) in zip(axes, PANELS, strict=True):
            own = {i: by_name[measure, x] for i, x in enumerate(names) if (measure, x) in by_name}
            _draw_panel(axis, own, ratio=unit == "ratio")
            axis.set_title(title)
            axis.set_xlabel(_axis_words(unit, between), fontsize=9)
        axes[0].set_yticks(range(len(names)), [_tick(x) for x in names])
        axes[0].set_ylim(len(names) - 0.4, -0.6)

    return to_png(draw, (13.0, 0.34 * len(names) + 1.3))


def _axis_words(unit: str, between: tuple[str, str]) -> str:
    """What is to the right of the middle; long names would run into the next panel."""
    one, other = (x if len(x) <= LONGEST else f"{x[: LONGEST - 1]}…" for x in between)
    return f"{one} / {other}" if unit == "ratio" else f"{one} − {other}, in sd"


def _tick(name: str) -> str:
    return "Level" if name == LEVEL_NAME else KNOWN[name].label


RATIOS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16)
RATIO_WORDS = ("×1/16", "×1/8", "×¼", "×½", "same", "×2", "×4", "×8", "×16")
FARTHEST, LONGEST = 16.0, 16  # times; letters of a name


def _draw_panel(axis: Axes, rows: Mapping[int, Difference], *, ratio: bool) -> None:
    same = 1.0 if ratio else 0.0
    axis.axvline(same, color=INK, linewidth=0.9)
    axis.grid(axis="x", **GRID)
    ends = [same]
    for place, one in rows.items():
        color = ORANGE if one.material else MUTED
        values = np.array([one.difference, one.low, one.high])
        if ratio:
            values = np.clip(values, 1 / FARTHEST, FARTHEST)
        ends += [x for x in values if math.isfinite(x)]
        axis.plot(values[1:], [place, place], color=color, linewidth=2.2, solid_capstyle="round")
        face = color if one.material else "white"
        axis.plot(values[0], place, "o", color=color, markerfacecolor=face, markersize=6)
    for place in rows:
        axis.axhline(place + 0.5, color=FAINT, linewidth=0.3)
    axis.tick_params(axis="y", length=0)
    if ratio:
        reach = max(1.9, *(max(x, 1 / x) for x in ends)) * 1.15
        axis.set_xscale("log")
        axis.set_xlim(1 / reach, reach)
        axis.xaxis.set_major_locator(FixedLocator(RATIOS))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticks(RATIOS, RATIO_WORDS)
        axis.set_xlim(1 / reach, reach)
        return
    reach = max(0.5, *(abs(x) for x in ends)) * 1.15
    axis.set_xlim(-reach, reach)


# ── for programs ─────────────────────────────────────────────────────────────────────────────────


def difference_rows(found: SideBySide) -> bytes:
    """Every number as tidy CSV."""
    return to_csv([asdict(x) | {"material": x.material} for x in found.differences])


def plain_values(found: SideBySide) -> dict[str, Any]:
    """Everything as plain values; what could not be computed is None."""
    content = {
        "verdict": verdict(found),
        "next": next_steps(found),
        "ours": asdict(found.ours),
        "theirs": asdict(found.theirs),
        "used": list(found.used),
        "differences": [asdict(x) for x in found.differences],
        "classifier": [asdict(x) for x in found.told],
        "guardian": [asdict(x) for x in found.refusals],
        "twin": [asdict(x) for x in found.forecasts],
    }
    return _without_nan(content)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(x) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
