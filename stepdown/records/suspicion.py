"""Units that the values contradict (D08): found, named, never repaired.

A column is suspect if the median of the stay is no possible one in the declared unit and a
usual one in another known unit. Where two units overlap, other columns help: pulsatility is
systolic less diastolic pressure. What cannot be told is listed in docs/doctor.md: kPa on LV
pressures that are declared in mmHg, and cmH2O, a third off mmHg, on everything.
"""

from collections.abc import Mapping

import numpy as np

from stepdown.records.findings import Finding, at, counted, runs, stretches
from stepdown.records.mapping import QUANTITIES, UNITS
from stepdown.records.trace import HARD, OUR_UNITS, Line, Trace

# Medians of a stay in our unit. Where a unit cannot be told from small values, the lower end is
# wide open: an unloaded heart has a pulsatility of 2 mmHg and an LV pressure around zero.
TYPICAL: dict[str, tuple[float, float]] = {
    "map": (30.0, 150.0),
    "speed": (20_000.0, 52_000.0),
    "current": (150.0, 1100.0),
    "flow": (0.7, 6.5),
    "lvp": (-20.0, 150.0),
    "lvedp": (-40.0, 60.0),
    "hr": (30.0, 200.0),
    "sbp": (40.0, 220.0),
    "dbp": (20.0, 130.0),
    "pulsatility": (0.0, 100.0),
    "tau": (20.0, 120.0),
    "ese": (0.15, 6.0),
    "placement": (30.0, 150.0),
}
BY_SIZE = ("map", "speed", "current", "flow", "hr", "sbp", "dbp", "tau", "placement")
WINDOW = 2.0  # s at 25 Hz
NEAR = np.log(1.6)  # a stretch in another unit continues the stay within this factor


def likely_units(signal: str, values: np.ndarray) -> tuple[str, ...]:
    """Known units in which the median of these raw values is a usual one, best first."""
    known = values[np.isfinite(values)]
    if not len(known):
        return ()
    median = float(np.median(known))
    low, high = TYPICAL[signal]
    fitting = [(u, median * k) for u, (what, k) in UNITS.items() if what == QUANTITIES[signal]]
    inside = [(unit, value) for unit, value in fitting if low <= value <= high]
    # Our own unit first where several fit: a third more or less is no evidence.
    inside.sort(key=lambda pair: pair[0] != OUR_UNITS[signal])
    return tuple(unit for unit, _ in inside)


def suspect_units(trace: Trace, second: np.ndarray, order: np.ndarray) -> list[Finding]:
    """Findings about the units of a stay; `order` sorts its rows by time."""
    found = []
    for name, line in trace.lines.items():
        whole = _whole_column(trace.patient, name, line, second)
        found += [whole] if whole else _slips(trace, name, second, order)
    suspects = {finding.signal for finding in found}
    if {"sbp", "dbp", "pulsatility"} <= set(trace.lines) and "pulsatility" not in suspects:
        found += _pulsatility(trace.patient, trace.lines, second, suspects)
    return found


def can_be_told(signal: str, true: str, declared: str) -> bool:
    """Whether a stay's values always tell one unit from the other; docs/doctor.md lists where not.

    Pulsatility needs systolic and diastolic pressure beside it.
    """
    if signal == "pulsatility":
        return True
    return signal in BY_SIZE and true in _other_units(signal, declared)


def _whole_column(patient: str, name: str, line: Line, second) -> Finding | None:
    units = likely_units(name, line.values)
    if not np.isfinite(line.values).any() or (line.unit is not None and line.unit in units):
        return None
    if line.unit is not None:
        # A third more or less (cmH2O for mmHg) explains nothing: then it is a matter of range.
        others = _other_units(name, line.unit)
        units = tuple(unit for unit in units if unit in others)
        if not units:
            return None
    median = float(np.nanmedian(line.values))
    guess = " or ".join(units) if units else "no unit that is known here"
    if line.unit is None:
        sentence = f"No unit is declared; the median {median:.4g} fits {guess}."
    else:
        ours = median * UNITS[line.unit][1]
        sentence = (
            f"Declared in {line.unit}, the median would be {ours:.4g} {OUR_UNITS[name]}; "
            f"{median:.4g} fits {guess}."
        )
    ends = [(second[0], second[-1])]
    return _finding(patient, name, ends, len(line.values), sentence, units)


def _slips(trace: Trace, name: str, second, order) -> list[Finding]:
    """Stretches in another unit than the rest of the column."""
    line = trace.lines[name]
    if name not in BY_SIZE or line.unit is None:
        return []
    size = _window(second) if trace.is_waveform else 1
    values, peak = _windows(line.in_our_unit()[order], size)
    low, high = TYPICAL[name]
    inside = (values >= low) & (values <= high)
    odd = np.isfinite(values) & ~inside & (values > 0)
    if not odd.any() or not inside.any():
        return []
    usual = np.median(values[inside])
    for unit in _other_units(name, line.unit):
        # Written in `unit` but read as declared: the truth differs by this factor.
        with np.errstate(invalid="ignore", over="ignore"):
            factor = UNITS[unit][1] / UNITS[line.unit][1]
            true = np.where(odd, values, np.nan) * factor
            slip = (np.abs(np.log(true / usual)) < NEAR) & (true >= low) & (true <= high)
            slip &= peak * factor <= HARD[name][1]
        slip = _longer_than_one(slip)
        if slip.any():
            where = stretches(slip, second[::size])
            count = int(slip.sum()) * size
            words = f"{counted(count, 'sample')} from {at(where[0][0])} on"
            sentence = f"{words} in {unit} rather than {line.unit}."
            return [_finding(trace.patient, name, where, count, sentence, (unit,))]
    return []


def _other_units(name: str, declared: str) -> list[str]:
    """Known units of the same quantity that differ by more than a third or so."""
    fitting = [unit for unit, (what, _) in UNITS.items() if what == QUANTITIES[name]]
    size = UNITS[declared][1]
    return [unit for unit in fitting if abs(np.log(UNITS[unit][1] / size)) > np.log(2)]


def _window(second: np.ndarray) -> int:
    """Samples in two seconds."""
    steps = np.diff(second[:1000])
    usual = float(np.median(steps)) if len(steps) else 0.0
    # No window is longer than the record, however small its steps claim to be.
    return max(round(min(WINDOW / usual, len(second) + 1)), 1) if usual > 0 else 1


def _windows(values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Median and largest value of every window: the low half of a beat is no slip to kPa."""
    if size == 1:
        return values, values
    windows = values[: len(values) // size * size].reshape(-1, size)
    return np.median(windows, axis=1), windows.max(axis=1)


def _longer_than_one(mask: np.ndarray) -> np.ndarray:
    """Without single samples: one odd value is a glitch, not a unit."""
    kept = np.zeros_like(mask)
    for first, last in runs(mask):
        kept[first : last + 1] = last > first
    return kept


def _pulsatility(
    patient: str, lines: Mapping[str, Line], second, suspects: set[str]
) -> list[Finding]:
    """Pulsatility in another unit than the pressures that it is the difference of.

    Where these are in a wrong unit themselves, a pulsatility that fits them is so too.
    """
    line = lines["pulsatility"]
    if line.unit is None or len(suspects & {"sbp", "dbp"}) == 1:
        return []
    difference = lines["sbp"].in_our_unit() - lines["dbp"].in_our_unit()
    known = np.isfinite(difference) & np.isfinite(line.values) & (difference > 0)
    if known.sum() < 3:
        return []
    share = float(np.median(line.in_our_unit()[known] / difference[known]))
    fits = share > 0 and abs(np.log(share)) < 0.2
    ends, count = [(second[0], second[-1])], len(line.values)
    if "sbp" in suspects:
        sentence = "It is systolic less diastolic pressure, whose units are suspect."
        return [_finding(patient, "pulsatility", ends, count, sentence)] if fits else []
    for unit, (what, factor) in UNITS.items():
        if what != "pressure" or fits or share <= 0:
            continue
        if abs(np.log(share * factor / UNITS[line.unit][1])) < 0.1:
            sentence = (
                f"Declared in {line.unit}, it would be {share:.3g} times systolic less diastolic "
                f"pressure; in {unit} it is their difference."
            )
            return [_finding(patient, "pulsatility", ends, count, sentence, (unit,))]
    return []


def _finding(patient: str, name: str, where, count: int, sentence: str, units=()) -> Finding:
    where = tuple((float(a), float(b)) for a, b in where)
    return Finding("D08", "action", patient, name, where, count, sentence, units)
