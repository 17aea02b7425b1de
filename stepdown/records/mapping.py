"""The mapping file: which column holds what, in which unit. Declared, never guessed.

A TOML file with the tables `patient`, `time`, `level` and `signals`. `kind` says whether the rows
are values (a number per signal at any rate down to one in ten minutes) or waveforms (placement
pressure, motor current and pump speed at 25 Hz or faster). docs/import.md walks through one. The
known units stand here too, with the medians that tell one of them from another. How a text file is
written may be declared as well; what is left open, `dialects.py` recognizes or asks about.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from stepdown.signals import FURTHER, KNOWN, NAMES, REQUIRED, columns_with

Kind = Literal["values", "waveforms"]
Order = Literal["year-month-day", "day-month-year", "month-day-year"]
Doubled = Literal["earlier", "later"]

_MMHG = 133.322387415  # Pa, by definition
_LONGEST = 2**16  # bytes of a mapping file

# Unit -> what it measures, and the factor to our unit of it (signals.KNOWN).
UNITS: dict[str, tuple[str, float]] = {
    **{signal.unit: (signal.name, 1.0) for signal in FURTHER},  # those below say it better
    "mmHg": ("pressure", 1.0),
    "kPa": ("pressure", 1000 / _MMHG),
    "cmH2O": ("pressure", 98.0665 / _MMHG),
    "mA": ("current", 1.0),
    "A": ("current", 1000.0),
    "rpm": ("speed", 1.0),
    "krpm": ("speed", 1000.0),
    "10 rpm": ("speed", 10.0),
    "L/min": ("flow", 1.0),
    "mL/min": ("flow", 0.001),
    "0.01 L/min": ("flow", 0.01),
    "/min": ("rate", 1.0),
    "ms": ("duration", 1.0),
    "s": ("duration", 1000.0),
    "mmHg/mL": ("elastance", 1.0),
    "mmol/L": ("concentration", 1.0),
    "mg/dL": ("concentration", 10 / 90.08),  # of lactic acid, g/mol
    "µg/kg/min": ("dose rate", 1.0),
    "ug/kg/min": ("dose rate", 1.0),
}
OUR_UNITS = {signal.name: signal.unit for signal in KNOWN.values()} | {"placement": "mmHg"}
QUANTITIES = {name: UNITS[unit][0] for name, unit in OUR_UNITS.items()}
# Medians of a stay. Where a unit cannot be told from small values, the lower end is wide open: an
# unloaded heart has a pulsatility of 2 mmHg and an LV pressure around zero.
TYPICAL: dict[str, tuple[float, float]] = {
    **{signal.name: signal.soft for signal in KNOWN.values()},
    "flow": (0.7, 6.5),
    "pulsatility": (0.0, 100.0),
    "ese": (0.15, 6.0),
    "placement": (30.0, 150.0),
}
BY_SIZE = ("map", "speed", "current", "flow", "hr", "sbp", "dbp", "tau", "placement")  # tell units
TIME_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}  # to seconds; any origin
STAMPS, DATES = "ISO-8601", "date"  # stamps that begin with the year, and dates of any order
ORDERS: tuple[Order, ...] = ("year-month-day", "day-month-year", "month-day-year")
DOUBLED: tuple[Doubled, ...] = ("earlier", "later")
ENCODINGS = ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "cp1252", "latin-1")
CHANNELS = ("placement", "current", "speed")  # of a waveform; with a level, the first is enough


class MappingError(ValueError):
    """The mapping file does not say what is needed, or says it wrongly."""


@dataclass(frozen=True)
class Column:
    """A column of the recording and the unit of its numbers."""

    column: str
    unit: str


@dataclass(frozen=True)
class Columns:
    """What a mapping file says."""

    kind: Kind
    signals: tuple[tuple[str, Column], ...]  # our name -> theirs
    time: Column | None  # None: samples follow each other at `rate`
    patient: str | None = None  # None: a file is a stay and its name the patient
    level: str | None = None  # None: read from the speed
    zone: str | None = None  # of stamps that carry none
    rate: float | None = None  # Hz; for WFDB the header's where this is None
    doubled: Doubled | None = None  # how an hour of autumn is read that cannot be told by its rows
    # How text is written; None: the file tells (dialects.py).
    order: Order | None = None  # of the parts of a date
    separator: str | None = None  # between the cells of a CSV
    decimal_comma: bool | None = None
    encoding: str | None = None

    @property
    def recorded(self) -> tuple[str, ...]:
        """The columns of a cohort that is read through this mapping."""
        return columns_with(name for name, _ in self.signals)

    def wanted(self) -> tuple[str, ...]:
        """Every column that has to be read."""
        names = [self.patient, self.time and self.time.column, self.level]
        names += [theirs.column for _, theirs in self.signals]
        return tuple(dict.fromkeys(name for name in names if name))


def units_of(signal: str) -> tuple[str, ...]:
    """The known units of a signal or channel."""
    return tuple(unit for unit, (what, _) in UNITS.items() if what == QUANTITIES[signal])


def convert(values: np.ndarray, unit: str) -> np.ndarray:
    """Values of a known unit in our unit of the same quantity."""
    return values * UNITS[unit][1]


def to_seconds(values: np.ndarray, unit: str) -> np.ndarray:
    """Numeric times in seconds."""
    return values * TIME_UNITS[unit]


def likely_units(signal: str, values: np.ndarray) -> tuple[str, ...]:
    """Known units in which the median of these raw values is a usual one, best first."""
    known = values[np.isfinite(values)]
    if not len(known):
        return ()
    median = float(np.median(known))
    low, high = TYPICAL[signal]
    inside = [unit for unit in units_of(signal) if low <= median * UNITS[unit][1] <= high]
    # Our own unit first where several fit: a third more or less is no evidence.
    return tuple(sorted(inside, key=lambda unit: unit != OUR_UNITS[signal]))


def can_be_told(signal: str, true: str, declared: str) -> bool:
    """Whether a stay's values always tell one unit from the other; docs/doctor.md lists where not.

    Pulsatility needs systolic and diastolic pressure beside it.
    """
    if signal == "pulsatility":
        return True
    return signal in BY_SIZE and true in other_units(signal, declared)


def other_units(name: str, declared: str) -> list[str]:
    """Known units of the same quantity that differ by more than a third or so."""
    size = UNITS[declared][1]
    return [unit for unit in units_of(name) if abs(np.log(UNITS[unit][1] / size)) > np.log(2)]


def read_mapping(path: Path) -> Columns:
    """Read and check a mapping file."""
    if not path.is_file():
        raise MappingError(f"{path}: expected a mapping file, found none; check the path.")
    if path.stat().st_size > _LONGEST:
        raise MappingError(f"{path}: expected a short mapping file, got a long one.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise MappingError(f"{path}: expected TOML, got something else ({error}).") from error
    return parse_mapping(table, str(path))


def parse_mapping(table: Mapping[str, Any], where: str = "mapping") -> Columns:
    """Check a mapping and give it its type."""
    _only(table, ("kind", "patient", "time", "level", "signals", "csv"), where)
    kind = table.get("kind")
    if kind not in ("values", "waveforms"):
        raise MappingError(f"{where}: expected kind = 'values' or 'waveforms', got {kind!r}.")
    signals = _signals(table, kind, where)
    time, rate = _time(table, kind, where)
    zone, order, doubled = _calendar(table, time, f"{where}: time")
    separator, comma, encoding = _csv(table, f"{where}: csv")
    patient = _table(table, "patient", ("column",), where)
    columns = Columns(
        kind=kind,
        signals=signals,
        time=time,
        patient=_text(patient["column"], f"{where}: patient") if patient else None,
        level=_level(table, kind, signals, where),
        zone=zone,
        rate=rate,
        doubled=doubled,
        order=order,
        separator=separator,
        decimal_comma=comma,
        encoding=encoding,
    )
    _distinct(columns, where)
    return columns


def _signals(table, kind: Kind, where: str) -> tuple[tuple[str, Column], ...]:
    known = tuple(KNOWN) if kind == "values" else CHANNELS
    signals = []
    for name, entry in _table(table, "signals", None, where).items():
        here = f"{where}: signals.{name}"
        if name not in known:
            raise MappingError(f"{here}: expected a signal of {', '.join(known)}.")
        if not isinstance(entry, dict) or "unit" not in entry:
            raise MappingError(
                f"{here}: expected {{ column = ..., unit = ... }}, got no unit; "
                "declare the unit that the numbers are in."
            )
        _only(entry, ("column", "unit"), here)
        _check_unit(entry["unit"], name, here)
        signals.append((name, Column(_text(entry.get("column"), here), entry["unit"])))
    _require(dict(signals), kind, where, has_level="column" in table.get("level", {}))
    return tuple(signals)


def _check_unit(unit: object, signal: str, where: str) -> None:
    """Refuse an unknown unit, or one that does not measure what the signal is."""
    fitting = units_of(signal)
    if not isinstance(unit, str) or unit not in UNITS:
        raise MappingError(
            f"{where}: expected a unit for {signal!r} of {', '.join(fitting)}, got {unit!r}; "
            "declare the unit that the numbers are in."
        )
    if unit not in fitting:
        raise MappingError(
            f"{where}: expected a {QUANTITIES[signal]} for {signal!r} ({', '.join(fitting)}), "
            f"got {unit!r}, which is a {UNITS[unit][0]}; map the right column or unit."
        )


def _require(signals: Mapping[str, Column], kind: Kind, where: str, *, has_level: bool) -> None:
    """All that a decision needs; pulsatility may come as systolic less diastolic pressure.

    An arterial line without the pump's own channels is enough where the level has a column.
    """
    needed = [NAMES[i] for i in REQUIRED] if kind == "values" else list(CHANNELS)
    needed = needed[:1] if kind == "waveforms" and has_level else needed
    derived = {"pulsatility"} if {"sbp", "dbp"} <= set(signals) else set()
    for name in [name for name in needed if name not in set(signals) | derived]:
        hint = "map it, or sbp and dbp" if name == "pulsatility" else "map it"
        raise MappingError(f"{where}: expected a column for {name!r}, got none; {hint}.")


def _time(table, kind: Kind, where: str) -> tuple[Column | None, float | None]:
    """The column of times and its unit, or how often a sample comes, Hz."""
    known = ("column", "unit", "zone", "rate", "order", "doubled")
    entry = _table(table, "time", known, where)
    where = f"{where}: time"
    rate = entry.get("rate")
    if "column" not in entry:
        _check_rate(rate, kind, where)
        return None, None if rate is None else float(rate)
    if rate is not None:
        raise MappingError(f"{where}: expected a column or a rate, got both; leave one.")
    unit = entry.get("unit")
    if not isinstance(unit, str) or unit not in (*TIME_UNITS, STAMPS, DATES):
        raise MappingError(
            f"{where}: expected a unit of {', '.join((*TIME_UNITS, STAMPS, DATES))}, got {unit!r}."
        )
    return Column(_text(entry["column"], where), unit), None


def _calendar(
    table, time: Column | None, where: str
) -> tuple[str | None, Order | None, Doubled | None]:
    """The zone of stamps, the order of dates, and which pass through a doubled hour is meant."""
    entry, dated = table.get("time", {}), time is not None and time.unit in (STAMPS, DATES)
    for name in [name for name in ("zone", "order", "doubled") if name in entry and not dated]:
        raise MappingError(f"{where}: expected a {name} with stamps only; remove it.")
    zone, order, doubled = (entry.get(name) for name in ("zone", "order", "doubled"))
    if zone is not None:
        _check_zone(zone, where)
    for name, value, known in (("order", order, ORDERS), ("doubled", doubled, DOUBLED)):
        if value is not None and value not in known:
            raise MappingError(
                f"{where}: expected {name} as one of {', '.join(known)}, got {value!r}."
            )
    if order is not None and time is not None and time.unit == STAMPS:
        raise MappingError(f"{where}: expected an order with unit = 'date' only; change the unit.")
    return zone, order, doubled


def _csv(table, where: str) -> tuple[str | None, bool | None, str | None]:
    """What is declared about how a text file is written; None: the file tells."""
    known = ("separator", "decimal_comma", "encoding")
    entry = _table(table, "csv", known, where.removesuffix(": csv"))
    separator, comma, encoding = (entry.get(name) for name in known)
    wrong = not isinstance(separator, str) or len(separator) != 1 or not separator.isascii()
    if separator is not None and wrong:
        raise MappingError(f"{where}: expected one character to separate cells, got {separator!r}.")
    if comma is not None and not isinstance(comma, bool):
        raise MappingError(f"{where}: expected decimal_comma = true or false, got {comma!r}.")
    if encoding is not None and encoding not in ENCODINGS:
        raise MappingError(
            f"{where}: expected an encoding of {', '.join(ENCODINGS)}, got {encoding!r}."
        )
    return separator, comma, encoding


def _check_rate(rate: object, kind: Kind, where: str) -> None:
    """A missing rate is a WFDB header's to say; the reader asks."""
    if rate is None and kind == "waveforms":
        return
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.001 < rate < 1e5:
        raise MappingError(f"{where}: expected a column, or a rate in Hz, got {rate!r}.")


def _check_zone(zone: object, where: str) -> None:
    try:
        ZoneInfo(_text(zone, where))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise MappingError(
            f"{where}: expected a time zone such as 'UTC' or 'Europe/Berlin', got {zone!r}."
        ) from None


def _level(table, kind: Kind, signals, where: str) -> str | None:
    """The level's column; without one it is read from the speed, if the mapping says so."""
    entry = _table(table, "level", ("column", "from"), where)
    if "column" in entry and "from" not in entry:
        return _text(entry["column"], f"{where}: level")
    declared = entry == {"from": "speed"} or (kind == "waveforms" and not entry)
    if not declared or "speed" not in dict(signals):
        raise MappingError(
            f"{where}: expected level = {{ column = ... }}, or level = {{ from = 'speed' }} "
            f"with the speed mapped, got {dict(entry)!r}."
        )
    return None


def _distinct(columns: Columns, where: str) -> None:
    """One column for one thing; only the level may be read from the column of another."""
    time = [columns.time.column] if columns.time else []
    used = [*time, *[theirs.column for _, theirs in columns.signals]]
    used += [name for name in (columns.patient, columns.level) if name]
    for name in [name for name in used if used.count(name) > 1]:
        raise MappingError(f"{where}: expected each column once, got {name!r} twice.")


def _table(
    table: Mapping[str, Any], name: str, known: tuple[str, ...] | None, where: str
) -> Mapping[str, Any]:
    """A table of the file, empty where it is missing; it holds nothing but what is known."""
    entry = table.get(name, {})
    if not isinstance(entry, dict):
        raise MappingError(f"{where}: expected a table {name!r}, got {entry!r}.")
    if known is not None:
        _only(entry, known, f"{where}: {name}")
    return entry


def _only(entry: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in [name for name in entry if name not in known]:
        raise MappingError(f"{where}: expected only {', '.join(known)}, got {name!r}; remove it.")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise MappingError(f"{where}: expected the name of a column, got {value!r}.")
    return value
