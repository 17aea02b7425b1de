"""What the doctor may say: one table of stable codes, each with a remedy.

A code never changes its meaning; a new check gets a new code. Three severities: "note" is for
information, "check" is something that cleaning will mark or drop and that deserves a look,
"action" would make results wrong and has to be mended: the import refuses it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np

Severity = Literal["note", "check", "action"]
SEVERITIES: tuple[Severity, ...] = ("action", "check", "note")
SCHEMA = 1  # of the findings for machines; changes only when a field changes its meaning
SHOWN = 20  # stretches of a finding that are listed
EACH = 3  # stays that are told one by one where all have the same finding


@dataclass(frozen=True)
class Code:
    """One line of the table."""

    title: str
    rule: str  # when it is raised
    remedy: str


CODES: dict[str, Code] = {
    "D01": Code(
        "Rate",
        "how often a sample comes; check: 0.05 to 2 % off the nearest usual rate, irregular, "
        "or a rate that cannot be told; action: slower than one in 10 minutes",
        "Export at one of the usual rates, or correct the clock of the recorder; "
        "stamps are taken as they are, so durations would be off by the same share.",
    ),
    "D02": Code(
        "Gap",
        "no row or no value in any signal for longer than 1.5 samples (0.12 s at 25 Hz); "
        "check: 10 minutes or longer",
        "Nothing to mend if the pump or the network was off: gaps are kept as gaps and never "
        "bridged. Otherwise export the missing time again.",
    ),
    "D03": Code(
        "Clock jump",
        "action: dates without a zone, an hour of autumn that cannot be told from its double, an "
        "hour that does not exist, or more than 20 steps back; check: a stamp earlier than the "
        "one before or more than 100 days from the others, a step of less than a sample, exactly "
        "one missing hour, or a year before 1990 or after 2089",
        "Export in UTC or declare the zone, and shift the stamps behind the jump; windows never "
        "span it.",
    ),
    "D04": Code(
        "Duplicate stamps",
        "two rows with the same time; the second is left out, both where values differ; action: "
        "most of the rows",
        "Remove the second row; where values differ, find out which one was measured.",
    ),
    "D05": Code(
        "Flat line",
        "25 Hz: within one digit for 10 s; slower: the same value for 30 minutes, or longer where "
        "the column is rounded or the patient quiet, so that neighbors repeat by chance; not for "
        "speed and heart rate, which a controller and a pacemaker hold, nor for what is charted by "
        "hand",
        "Leave these stretches empty in the export; a stuck line is no measurement.",
    ),
    "D06": Code(
        "Outside the hard range",
        "a value that is no measurement, infinity included; it is left empty",
        "Find out what the device writes when it has no value, and export that as empty.",
    ),
    "D07": Code(
        "Outside the soft range",
        "a value that is rare in patients; check: more than 90 % of the values",
        "Look at the plot: a patient may be that ill; a sensor or a unit may be wrong.",
    ),
    "D08": Code(
        "Suspicious unit",
        "action: the values do not fit their declared unit and fit another known one, in the "
        "whole column or for a stretch; or no unit is declared",
        "Declare the unit that the device really writes in the mapping file; never rescale by eye.",
    ),
    "D09": Code(
        "Level does not match the speed",
        "action: the speed lies on another step of the pump profile than the level says, away "
        "from changes of level",
        "Check the level column, its alignment in time and the pump profile.",
    ),
    "D10": Code(
        "Speed between the steps",
        "a speed more than 2 % off every step of the pump profile: the level is unknown, not the "
        "nearest; action: more than half of the samples",
        "Choose the profile of this pump; a level is never guessed from such a speed.",
    ),
    "D11": Code(
        "Missing signal",
        "a signal without a column or without a single value; action: no column for mean pressure, "
        "heart rate or pulsatility (at 25 Hz: any of the three channels), or for level and speed",
        "Add the column to the export and to the mapping file; everything else works without it.",
    ),
    "D12": Code(
        "Missing values",
        "share of empty samples in a signal that is otherwise there; check: more than 20 %",
        "Nothing is filled in: hours with more than the allowed share are dropped. "
        "Export again if the device did show these values.",
    ),
    "D13": Code(
        "Not a number",
        "text where a number belongs, such as 'P5', or an unreadable time; it is left empty; "
        "action: in more than 1 % of the cells of a column; empty cells, dashes and NaN count as "
        "missing",
        "Export numbers with one decimal mark, and nothing where nothing was measured.",
    ),
    "D14": Code(
        "Pressures out of order",
        "action: diastolic, mean and systolic pressure out of order, or a pulsatility that is not "
        "their difference, in more than 5 % of the samples",
        "Check whether columns are swapped, or taken from different lines.",
    ),
    "D15": Code(
        "Suction-like stretch",
        "flow (at 25 Hz: motor current) below 75 % of what is usual at this level in this stay",
        "Mark the time as a device event if the console alarmed; do not delete it.",
    ),
    "D16": Code(
        "Usable hours",
        "share of whole hours with at most 20 % missing in every required signal; check: below "
        "80 %",
        "Mend the gaps, flat lines and missing values named above; the rest is dropped.",
    ),
    "D17": Code(
        "Level outside P-2 to P-9",
        "a level that no decision can take, such as P-0 or P-1",
        "End the stay before the pump is off; map words such as AUTO to the level in force.",
    ),
    "D18": Code(
        "Import",
        "what `stepdown import` makes of the recordings; check: it empties more than 5 % of a "
        "signal, or fewer than half of the possible decisions are left; action: it refuses them",
        "Do what the sentence says; it is the one that the import would end with.",
    ),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was found in one stay."""

    code: str
    severity: Severity
    patient: str
    signal: str  # of signals.KNOWN, a channel, "level", "time", or "" for the whole stay
    where: tuple[tuple[float, float], ...]  # s since the first stamp: first and last of each
    count: int  # samples, or stretches for gaps and jumps
    sentence: str
    likely_units: tuple[str, ...] = ()  # D08: those that the values fit, best first


def runs(mask: np.ndarray) -> np.ndarray:
    """First and last index of every run of true values, one row each."""
    edges = np.diff(np.concatenate([[0], np.asarray(mask).astype(np.int8), [0]]))
    return np.stack([np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1], axis=1)


def stretches(mask: np.ndarray, second: np.ndarray) -> tuple[tuple[float, float], ...]:
    """First and last time of every run of true values."""
    return tuple((float(second[a]), float(second[b])) for a, b in runs(mask))


def at(second: float) -> str:
    """A time since the first stamp, in words."""
    if abs(second) < 600:
        return f"{second:.2f} s"
    return f"{second / 3600:.2f} h" if abs(second) < 1e7 else f"{second / 86400:,.0f} days"


def counted(number: int, word: str) -> str:
    """A number with its noun."""
    plural = f"{word}es" if word.endswith("ch") else f"{word}s"
    return f"{number:,} {word if number == 1 else plural}"


def quoted(cells: Sequence[str], longest: int = 20) -> str:
    """Some unreadable cells, each between quotation marks."""
    return ", ".join(repr(text[:longest]) for text in cells)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Most serious first, then by code."""
    return sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), f.code, f.patient))


def to_words(findings: Sequence[Finding]) -> str:
    """A report to read: alike findings of several stays together, each remedy once."""
    lines, explained = [], set()
    ordered = sorted(findings, key=_kind)
    for (_, code, signal), group in groupby(ordered, _kind):
        alike = list(group)
        lines.append(f"{code} {alike[0].severity:6s} {CODES[code].title}{signal and ': '}{signal}")
        for finding in alike[:EACH]:
            lines.append(f"    {finding.patient}{finding.patient and ': '}{finding.sentence}")
        if len(alike) > EACH:
            lines.append(f"    and {len(alike) - EACH} more stays")
        if alike[0].severity != "note" and code not in explained:
            lines.append(f"    Remedy: {CODES[code].remedy}")
            explained.add(code)
    counts = {s: sum(f.severity == s for f in findings) for s in SEVERITIES}
    total = ", ".join(f"{number} {severity}" for severity, number in counts.items())
    return "\n".join([*lines, "", f"Findings: {total}."])


def _kind(finding: Finding) -> tuple[int, str, str]:
    return SEVERITIES.index(finding.severity), finding.code, finding.signal


def to_machine(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as plain data for JSON; fields are described in docs/doctor.md."""
    return [
        {
            "code": finding.code,
            "title": CODES[finding.code].title,
            "severity": finding.severity,
            "patient": finding.patient,
            "signal": finding.signal,
            "first": min((a for a, _ in finding.where), default=None),
            "last": max((b for _, b in finding.where), default=None),
            "count": finding.count,
            "stretches": [list(pair) for pair in finding.where[:SHOWN]],
            "likely_units": list(finding.likely_units),
            "sentence": finding.sentence,
            "remedy": CODES[finding.code].remedy,
        }
        for finding in by_severity(findings)
    ]


def table_of_codes() -> str:
    """The table of docs/doctor.md."""
    head = "| code | what | raised when | remedy |\n|---|---|---|---|\n"
    rows = (f"| {c} | {x.title} | {x.rule} | {x.remedy} |" for c, x in CODES.items())
    return head + "\n".join(rows)
