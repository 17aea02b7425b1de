"""The doctor's page: what was found in a recording, with small plots of where."""

import html
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from stepdown.records.findings import CODES, SEVERITIES, Finding, by_severity, counted
from stepdown.records.mapping import OUR_UNITS
from stepdown.records.stays import Trace
from stepdown.report.figures import BARS, GRID, INK, LEVEL_COLOR, MUTED, to_png
from stepdown.report.page import Section, make_page, picture
from stepdown.signals import KNOWN

BANNER = "Research software. Not a medical device, not for care."
SHADES = {"action": ("#c8322b", "///"), "check": ("#d98e04", ""), "note": ("#7a8794", "")}
LABELS = {name: signal.label for name, signal in KNOWN.items()}
LABELS |= {"placement": "Placement pressure"}
PLOTTED = 8  # stays with plots; the rest are in the table
POINTS = 1500  # in a panel; longer lines are drawn as their range
NARROWEST = 0.006  # of the axis; a shorter stretch would not be seen


def doctor_page(
    source: str, traces: Sequence[Trace], findings: Sequence[Finding], proposal: str = ""
) -> str:
    """The whole page; `traces` are the stays to plot, in order."""
    counts = {s: sum(f.severity == s for f in findings) for s in SEVERITIES}
    stays = len({f.patient for f in findings if f.code == "D16"})  # every stay has one
    lead = (
        f"{source}: {counted(stays, 'stay')}. Findings: {counts['action']} to act on before "
        f"import, {counts['check']} to look at, {counted(counts['note'], 'note')}."
    )
    sections = [Section("Findings", _table(findings) + _remedies(findings))]
    for trace in traces[:PLOTTED]:
        here = [finding for finding in findings if finding.patient == trace.patient]
        words = f"Signals of stay {trace.patient} over time with the findings shaded"
        body = picture(draw_stay(trace, here), html.escape(words))
        sections.append(Section(f"Stay {trace.patient}", body))
    if proposal:
        words = "<p>Not used until you confirm it: save it, check every unit, pass it with "
        words += "<code>--columns</code>.</p>"
        words += f'<div class="wide"><pre>{html.escape(proposal)}</pre></div>'
        sections.insert(1, Section("A proposed mapping file", words))
    return make_page("What the doctor found", lead, sections, BANNER)


def worst_first(traces: Sequence[Trace], findings: Sequence[Finding]) -> list[Trace]:
    """Stays with the most serious findings first."""

    def seriousness(trace: Trace) -> tuple[int, ...]:
        own = [f.severity for f in findings if f.patient == trace.patient]
        return tuple(-own.count(severity) for severity in SEVERITIES)

    return sorted(traces, key=seriousness)


def _table(findings: Sequence[Finding]) -> str:
    """One row per finding; notes that every clean stay has are folded away."""
    serious = [f for f in findings if f.severity != "note"]
    notes = [f for f in findings if f.severity == "note"]
    shown = _rows(serious) if serious else "<p>Nothing that needs action or a look.</p>"
    if not notes:
        return shown
    summary = f"<summary>{counted(len(notes), 'note')}</summary>"
    return f"{shown}<details{'' if serious else ' open'}>{summary}{_rows(notes)}</details>"


def _rows(findings: Sequence[Finding]) -> str:
    head = "<tr><th>code</th><th>severity</th><th>stay</th><th>signal</th><th>found</th></tr>"
    rows = []
    for f in by_severity(findings):
        color = SHADES[f.severity][0]
        dot = f'<span style="color:{color}" aria-hidden="true">&#9632;</span>'
        cells = (f"{f.code}&nbsp;{html.escape(CODES[f.code].title)}", f"{dot}&nbsp;{f.severity}")
        words = (html.escape(f.patient), html.escape(f.signal or "all"), html.escape(f.sentence))
        rows.append("<tr>" + "".join(f"<td>{x}</td>" for x in (*cells, *words)) + "</tr>")
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'


def _remedies(findings: Sequence[Finding]) -> str:
    codes = sorted({f.code for f in findings if f.severity != "note"})
    if not codes:
        return ""
    items = (f"<li><strong>{c}</strong> {html.escape(CODES[c].remedy)}</li>" for c in codes)
    return f"<h3>What to do</h3><ul>{''.join(items)}</ul>"


def draw_stay(trace: Trace, findings: Sequence[Finding]) -> bytes:
    """A panel per signal, shaded where something was found, as PNG."""
    names = [name for name in trace.expected if name in trace.lines]
    panels = len(names) + (trace.level is not None)
    columns = 1 if trace.is_waveform else 3
    rows = max(-(-panels // columns), 1)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
        hours, limits = _hours(trace)
        for name, axis in zip(names, axes, strict=False):
            _draw_line(axis, hours, trace.lines[name].in_our_unit(), name)
        if trace.level is not None:
            _draw_level(axes[len(names)], hours, trace.level.values)
        for place, axis in enumerate(axes):
            axis.set_xlim(*limits)
            signal = [*names, "level"][min(place, len(names))]
            _shade(axis, [f for f in findings if f.signal in (signal, "time")], limits)
            axis.set_visible(place < panels)
            if place + columns >= panels:
                axis.set_xlabel("Hours since the first stamp")
                axis.tick_params(labelbottom=True)
        marks = [
            Patch(facecolor=color, alpha=0.3, hatch=hatch, label=severity)
            for severity, (color, hatch) in SHADES.items()
        ]
        figure.legend(handles=marks, loc="outside upper right", ncols=3, frameon=False,
                      fontsize=9, labelcolor=MUTED)  # fmt: skip

    return to_png(draw, (13.0, 1.75 * rows + 0.7), dpi=100)


def _hours(trace: Trace) -> tuple[np.ndarray, tuple[float, float]]:
    """Times in hours, and where most of them lie: an absurd stamp must not squeeze the rest."""
    hours = trace.second / 3600
    known = hours[np.isfinite(hours)]
    if not len(known):
        return np.arange(len(hours)) * 1.0, (0.0, max(len(hours), 1.0))
    near = known[np.abs(known - np.median(known)) < 2400]
    return hours, (float(near.min()), max(float(near.max()), float(near.min()) + 1e-3))


def _draw_line(axis: Axes, hours, values, name: str) -> None:
    axis.set_title(f"{LABELS[name]}, {OUR_UNITS[name]}", fontsize=10)
    axis.grid(axis="y", **GRID)
    order = np.argsort(hours, kind="stable")
    hours, values = hours[order], np.where(np.isfinite(values), values, np.nan)[order]
    if len(hours) > 2 * POINTS:
        size = len(hours) // POINTS
        count = len(hours) // size * size
        blocks = values[:count].reshape(-1, size)
        low, high = np.fmin.reduce(blocks, axis=1), np.fmax.reduce(blocks, axis=1)
        axis.fill_between(hours[:count:size], low, high, color=BARS, linewidth=0.4)
        return
    # A line across a gap would invent values: cut it where a sample is missing.
    steps = np.diff(hours)
    usual = np.median(steps[steps > 0]) if np.any(steps > 0) else 1.0
    cut = np.flatnonzero(steps > 1.5 * usual) + 1
    hours, values = np.insert(hours, cut, np.nan), np.insert(values, cut, np.nan)
    axis.plot(hours, values, color="#2f6690", linewidth=1.0, marker=".", markersize=2.5)


def _draw_level(axis: Axes, hours, level) -> None:
    axis.set_title("Level", fontsize=10)
    axis.step(hours, level, where="post", color=LEVEL_COLOR, linewidth=1.3)
    axis.set_yticks([2, 4, 6, 8], ["P-2", "P-4", "P-6", "P-8"])
    axis.set_ylim(-0.5, 9.5)


def _shade(axis: Axes, findings: Sequence[Finding], limits: tuple[float, float]) -> None:
    """Shade what was found, serious above notes; a code stands above its first stretch."""
    width = NARROWEST * (limits[1] - limits[0])
    for finding in reversed(by_severity(findings)):
        if finding.code == "D01" and finding.severity == "note":
            continue
        color, hatch = SHADES[finding.severity]
        spans = _joined([(a / 3600, max(b / 3600, a / 3600 + width)) for a, b in finding.where])
        for first, last in spans[:200]:
            axis.axvspan(first, last, color=color, alpha=0.22, linewidth=0, hatch=hatch)
        place = axis.get_xaxis_transform()
        if spans and limits[0] <= spans[0][0] <= limits[1]:
            axis.text(spans[0][0], 0.98, finding.code, color=INK, fontsize=8, va="top",
                      transform=place, clip_on=True)  # fmt: skip


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans that overlap as one: shades would add up to a solid bar."""
    joined: list[tuple[float, float]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1]:
            first, last = joined[-1][0], max(last, joined.pop()[1])
        joined.append((first, last))
    return joined
