"""Damage with a known answer, to measure the doctor by: one fault into one stay.

`patients/recording.py` corrupts cohorts as consoles do; here every fault of an export is placed at
random, its clock and its units included, and named with the finding that has to follow. The tests
and `benchmarks/studies/doctor.py` ask the same questions, the latter about more stays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepdown.handover import Cohort
from stepdown.patients.pump import PumpProfile
from stepdown.patients.waveforms import Waveform
from stepdown.records.clock import read_clock
from stepdown.records.doctor import (
    ALLOWED_MISSING,
    HARD,
    LV_DERIVED,
    LV_SHOWN_FROM,
    examine,
    suspect_units,
)
from stepdown.records.findings import Finding, Severity
from stepdown.records.flat import STEADY
from stepdown.records.mapping import CHANNELS, OUR_UNITS, UNITS, units_of
from stepdown.records.stays import Line, Trace
from stepdown.signals import LEVELS, NAMES

HOUR = 3600.0
FACTS = ("D01", "D02", "D07", "D12", "D15", "D16")  # as notes these describe, they do not accuse


@dataclass(frozen=True)
class Expected:
    """The finding that a fault must lead to."""

    code: str
    signal: str
    first: float = -np.inf  # s
    last: float = np.inf
    severity: Severity | None = None  # None: any


Fault = Callable[[Trace, np.random.Generator], tuple[Trace, Expected]]


def traces_of(cohort: Cohort) -> list[Trace]:
    """The stays of a cohort, in our units."""
    traces = []
    for row, patient in enumerate(cohort.patient):
        seen = np.asarray(cohort.seen)[row]
        values = np.asarray(cohort.signals)[row][seen].astype(float)
        lines = {name: Line(values[:, i], OUR_UNITS[name]) for i, name in enumerate(cohort.columns)}
        level = Line(np.asarray(cohort.level)[row][seen].astype(float), None)
        second = 60 * cohort.minutes * np.flatnonzero(seen)
        trace = Trace(patient, second, lines, level, 1.7e9, expected=cohort.columns)
        traces.append(trace)
    return traces


def pieces_of(
    wave: Waveform, seconds: float, every: int = 1, name: str = "piece"
) -> list[tuple[Trace, np.ndarray]]:
    """Every so many pieces of one stay at 25 Hz, each with the artifacts of its sensors."""
    size, recording, pieces = round(25 * seconds), wave.recording, []
    for start in range(0, len(recording.second) - size + 1, every * size):
        part = slice(start, start + size)
        lines = {
            channel: Line(getattr(recording, channel)[part].astype(float), OUR_UNITS[channel])
            for channel in ("placement", "speed", "current")
        }
        second = recording.second[part] - recording.second[start]
        trace = Trace(f"{name}-{start}", second, lines, expected=CHANNELS)
        pieces.append((trace, wave.artifact[part]))
    return pieces


def count_found(
    traces: Sequence[Trace], fault: Fault, profile: PumpProfile, draws: int, seed: int = 0
) -> int:
    """How many of so many faults at random places are found."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(draws):
        damaged, expected = fault(traces[int(rng.integers(len(traces)))], rng)
        hits += is_found(examine(damaged, profile), expected)
    return hits


def is_found(findings: Sequence[Finding], expected: Expected) -> bool:
    """Whether the right code names the right signal at the right time."""
    return any(
        f.code == expected.code
        and f.signal == expected.signal
        and expected.severity in (None, f.severity)
        and (not f.where or any(a <= expected.last and b >= expected.first for a, b in f.where))
        for f in findings
    )


def alarms(findings: Sequence[Finding]) -> set[str]:
    """Codes that a clean stay should not have: faults, and anything that asks for a look."""
    return {f.code for f in findings if f.severity != "note" or f.code not in FACTS}


Units = tuple[str, str, str]  # signal, unit that it is written in, unit that is declared


def unit_pairs() -> list[Units]:
    """Every signal with two different units of it."""
    return [
        (name, true, declared)
        for name in NAMES
        for true in units_of(name)
        for declared in units_of(name)
        if true != declared
    ]


def count_contradicted(
    traces: Sequence[Trace], pairs: Sequence[Units], draws: int, seed: int
) -> dict[Units, list[int]]:
    """How often the true unit was named, and how often it was asked for, pair by pair."""
    rng = np.random.default_rng(seed)
    counts = {pair: [0, 0] for pair in pairs}
    for draw in range(draws):
        name, true, declared = pairs[draw % len(pairs)]
        trace = traces[int(rng.integers(len(traces)))]
        line = Line(trace.lines[name].values / UNITS[true][1], declared)
        damaged = replace(trace, lines={**trace.lines, name: line})
        found = suspect_units(read_clock(damaged)[0])
        counts[name, true, declared][0] += any(
            f.signal == name and true in f.likely_units for f in found
        )
        counts[name, true, declared][1] += 1
    return counts


def _with(trace: Trace, name: str, values: np.ndarray) -> Trace:
    line = replace(trace.lines[name], values=values)
    return replace(trace, lines={**trace.lines, name: line})


def _rows(trace: Trace, keep: np.ndarray, second: np.ndarray | None = None) -> Trace:
    """Some rows of a stay, perhaps with other stamps."""
    second = trace.second if second is None else second
    lines = {n: replace(line, values=line.values[keep]) for n, line in trace.lines.items()}
    level = trace.level and replace(trace.level, values=trace.level.values[keep])
    return replace(trace, second=second[keep], lines=lines, level=level)


def _stretch(trace: Trace, seconds: float, rng: np.random.Generator, edge: int = 1) -> slice:
    """Rows of a stretch of this length at a random place, `edge` rows from either end."""
    interval = float(np.median(np.diff(trace.second)))
    size = max(round(seconds / interval), 1)
    first = int(rng.integers(edge, max(len(trace.second) - size - edge, edge + 1)))
    return slice(first, min(first + size, len(trace.second) - edge))


def _ends(trace: Trace, part: slice) -> tuple[float, float]:
    return float(trace.second[part.start]), float(trace.second[part.stop - 1])


def missing(share: float, block: bool) -> Fault:
    """I1: empty cells in one signal."""

    def apply(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
        # Below P-4 a console shows no LV signals, so nothing is missing there.
        hiding = trace.level is not None and np.any(trace.level.values < LV_SHOWN_FROM)
        hidden = LV_DERIVED if hiding else ()
        name = str(rng.choice([n for n in trace.lines if n not in hidden]))
        values = trace.lines[name].values.copy()
        count = max(round(share * len(values)), 1)
        first = int(rng.integers(0, len(values) - count + 1))
        chosen = rng.choice(len(values), count, replace=False)
        values[slice(first, first + count) if block else chosen] = np.nan
        if count == len(values):
            return _with(trace, name, values), Expected("D11", name)
        severity: Severity = "check" if count > ALLOWED_MISSING * len(values) else "note"
        return _with(trace, name, values), Expected("D12", name, severity=severity)

    return apply


def flat(shortest: float, longest: float) -> Fault:
    """I2: a line that stands still for a while, s."""

    def apply(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
        name = str(rng.choice([n for n in trace.lines if n not in STEADY]))
        part = _stretch(trace, rng.uniform(shortest, longest), rng, edge=0)
        values = trace.lines[name].values.copy()
        later = values[part.start :]
        values[part] = later[np.isfinite(later)][0]
        return _with(trace, name, values), Expected("D05", name, *_ends(trace, part))

    return apply


def out_of_range(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
    """I3: one value just outside a hard limit, or far, or infinite."""
    name = str(rng.choice(list(trace.lines)))
    low, high = HARD[name]
    odd = [np.nextafter(low, -np.inf), np.nextafter(high, np.inf), np.inf, -np.inf, 1e308]
    values = trace.lines[name].values.copy()
    row = int(rng.integers(len(values)))
    values[row] = rng.choice(odd)
    second = float(trace.second[row])
    return _with(trace, name, values), Expected("D06", name, second, second)


def other_unit(names: tuple[str, ...], stretch: float | None = None) -> Fault:
    """I4: a signal written in another unit than declared, as a whole or for a stretch in s."""

    def apply(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
        name = str(rng.choice([n for n in names if n in trace.lines]))
        declared = trace.lines[name].unit or ""
        size = UNITS[declared][1]
        units = [unit for unit in units_of(name) if abs(np.log(UNITS[unit][1] / size)) > 1]
        part = slice(0, len(trace.second)) if stretch is None else _stretch(trace, stretch, rng)
        values = trace.lines[name].values.copy()
        values[part] *= size / UNITS[str(rng.choice(units))][1]
        return _with(trace, name, values), Expected("D08", name, *_ends(trace, part))

    return apply


def shifted_clock(by: float) -> Fault:
    """I5: from some row on, all stamps are earlier (or later) by this, s."""

    def apply(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
        second = trace.second.copy()
        row = int(rng.integers(1, len(second) - 1))
        second[row:] += by
        dated = replace(trace, second=second, start=trace.start or 1.7e9)
        first, last = sorted((float(second[row - 1]), float(second[row])))
        return dated, Expected("D03", "time", first, last)

    return apply


def odd_stamp(year: int) -> Fault:
    """I5: one stamp of another year."""

    def apply(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
        second = trace.second.copy()
        start = trace.start or 1.7e9
        second[int(rng.integers(1, len(second)))] = (year - 1970) * 365.2425 * 86400 - start
        return replace(trace, second=second, start=start), Expected("D03", "time")

    return apply


def duplicate(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
    """I5: one row twice."""
    row = int(rng.integers(len(trace.second)))
    keep = np.insert(np.arange(len(trace.second)), row, row)
    second = float(trace.second[row])
    return _rows(trace, keep), Expected("D04", "time", second, second)


def drift(share: float) -> Fault:
    """I5: a clock that runs slow by this share."""

    def apply(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
        slow = replace(trace, second=trace.second * (1 + share))
        return slow, Expected("D01", "time", severity="check")

    return apply


def gap(seconds: float, at_hour: bool = False, empty: bool = False) -> Fault:
    """I6: rows that are not there, or that hold nothing; perhaps right from an hour on."""

    def apply(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
        part = _stretch(trace, seconds, rng)
        if at_hour:
            hours = max(int((trace.second[-1] - seconds) // HOUR), 1)
            begin = int(np.searchsorted(trace.second, HOUR * rng.integers(1, hours + 1) - 1e-6))
            begin = min(begin, len(trace.second) - 2)
            part = slice(begin, min(begin + part.stop - part.start, len(trace.second) - 1))
        inside = np.zeros(len(trace.second), bool)
        inside[part] = True
        expected = Expected("D02", "time", *_ends(trace, part))
        if not empty:
            return _rows(trace, np.flatnonzero(~inside)), expected
        lines = {
            name: replace(line, values=np.where(inside, np.nan, line.values))
            for name, line in trace.lines.items()
        }
        return replace(trace, lines=lines), expected

    return apply


def all_gap(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
    """I6: rows without a single value."""
    lines = {
        name: Line(np.full(len(trace.second), np.nan), line.unit)
        for name, line in trace.lines.items()
    }
    return replace(trace, lines=lines), Expected("D16", "", severity="check")


def wrong_level(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
    """I11: for an hour the level column says another level than the speed."""
    assert trace.level is not None
    level = trace.level.values.copy()
    part = _stretch(trace, HOUR, rng)
    others = [one for one in LEVELS if one not in level[max(part.start - 1, 0) : part.stop + 1]]
    level[part] = rng.choice(others)
    changed = replace(trace, level=replace(trace.level, values=level))
    return changed, Expected("D09", "level", *_ends(trace, part))


def between_steps(steps: np.ndarray) -> Fault:
    """I11: a speed between two steps of the profile for half an hour (at 25 Hz a minute)."""

    def apply(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Expected]:
        place = int(rng.integers(len(steps) - 1))
        low, high = 1.0205 * steps[place], 0.9795 * steps[place + 1]
        part = _stretch(trace, 60.0 if trace.is_waveform else HOUR / 2, rng)
        values = trace.lines["speed"].values.copy()
        values[part] = rng.uniform(low, high)
        return _with(trace, "speed", values), Expected("D10", "speed", *_ends(trace, part))

    return apply


TOLD_BY_SIZE = ("map", "speed", "current", "flow", "sbp", "dbp", "pulsatility", "tau", "placement")


def value_faults(steps: np.ndarray) -> Mapping[str, Fault]:
    """Every fault of I1 to I6 and I11 that a recording of values can have."""
    shares = {f"I1 missing, {100 * s:.0f} % {w}": missing(s, w == "block")
              for s in (0.01, 0.05, 0.2, 0.21, 0.5, 1.0) for w in ("random", "block")}  # fmt: skip
    slipping = tuple(name for name in TOLD_BY_SIZE if name != "pulsatility")
    return shares | {
        "I2 flat line, 30 min to 3 h": flat(1800.0, 10800.0),
        "I3 outside the hard range": out_of_range,
        "I4 unit of a column": other_unit(TOLD_BY_SIZE),
        "I4 unit of an hour": other_unit(slipping, HOUR),
        "I5 duplicate stamp": duplicate,
        "I5 back by 1 s": shifted_clock(-1.0),
        "I5 back by 1 h": shifted_clock(-HOUR),
        "I5 forward by 1 h": shifted_clock(HOUR),
        "I5 stamp of 1970": odd_stamp(1970),
        "I5 stamp of 2099": odd_stamp(2099),
        "I5 drift of +0.5 %": drift(0.005),
        "I5 drift of -0.5 %": drift(-0.005),
        "I6 gap of 10 min": gap(600.0),
        "I6 gap of 3 h": gap(3 * HOUR),
        "I6 gap from a full hour on": gap(1800.0, at_hour=True),
        "I6 empty rows, 30 min": gap(1800.0, empty=True),
        "I6 nothing but empty rows": all_gap,
        "I11 level against speed": wrong_level,
        "I11 speed between steps": between_steps(steps),
    }


def waveform_faults(steps: np.ndarray) -> Mapping[str, Fault]:
    """Every fault of I1 to I6 and I11 that a waveform can have."""
    return {
        "I1 missing, 21 % block": missing(0.21, True),
        "I2 flat line, 10 s to 1 min": flat(10.0, 60.0),
        "I3 outside the hard range": out_of_range,
        "I4 unit of a channel": other_unit(TOLD_BY_SIZE),
        "I4 unit of five minutes": other_unit(("placement", "current", "speed"), 300.0),
        "I5 duplicate stamp": duplicate,
        "I5 back by 1 s": shifted_clock(-1.0),
        "I5 back by 1 h": shifted_clock(-HOUR),
        "I5 stamp of 1970": odd_stamp(1970),
        "I5 drift of +0.5 %": drift(0.005),
        "I5 drift of -0.5 %": drift(-0.005),
        "I5 24.97 Hz": drift(25 / 24.97 - 1),
        "I6 gap of 1 s": gap(1.0),
        "I6 gap of 59 s": gap(59.0),
        "I6 gap of 10 min": gap(600.0),
        "I6 empty rows, 1 s": gap(1.0, empty=True),
        "I11 speed between steps": between_steps(steps),
    }
