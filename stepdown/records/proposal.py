"""A mapping file proposed from the names and the values of the columns: to confirm, never used.

Names decide what a column is; values, and a unit inside the name, decide what its unit may be.
Every unit is marked as a proposal, since a guess that nobody confirmed is how units get lost. How
the file is written stands there as recognized, and what has two readings as a line to complete.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from stepdown.records.dialects import (
    QuestionError,
    date_evidence,
    decimal_comma_of,
    number_evidence,
    order_of,
)
from stepdown.records.flat import WAVEFORM_INTERVAL
from stepdown.records.mapping import (
    CHANNELS,
    DATES,
    OUR_UNITS,
    STAMPS,
    UNITS,
    Column,
    Columns,
    MappingError,
    likely_units,
    parse_mapping,
    units_of,
)
from stepdown.records.readers import Layout
from stepdown.records.stays import make_trace, read_line
from stepdown.signals import FURTHER, KNOWN

# What people call a column; the first that matches wins, so the special stand before the general.
WORDS: dict[str, str] = {
    **{signal.name: signal.name for signal in FURTHER},
    "lactate": r"lactat|\blac\b",
    "norepinephrine": r"norepi(?!.*equiv)|noradren",
    "nee": r"\bnee\b|norepi.*equiv",
    "vis": r"\bvis\b|vasoactive",
    "cvp": r"\bcvp\b|central venous",
    "pas": r"\bpa ?s(p|ys)?\b|pulmonary art.*sys",
    "pad": r"\bpa ?d(p|ia)?\b|pulmonary art.*dia",
    "pam": r"\bpa ?m(p|ean)?\b|pulmonary art.*mean",
    "papi": r"\bpapi\b",
    "co": r"\bco\b(?!.*2)|cardiac output",
    "cpo": r"\bcpo\b|cardiac power",
    "suction": r"\bsuction",
    "position": r"\b(wrong )?position|misplace",
    "weight": r"\bweight\b",
    "age": r"\bage\b",
    "pulsatility": r"puls(at|e press)|\bpp\b",
    "lvedp": r"edp\b|end diastolic",
    "tau": r"\btau\b|relaxation",
    "ese": r"\bese\b|\bees\b|elastance",
    "lvp": r"\blvp|\blv (mean )?press|ventricular press",
    "sbp": r"\bsbp\b|sys(?!tem)|\b(abp|art|ao) ?s\b",
    "dbp": r"\bdbp\b|diastol|dia\b|\b(abp|art|ao) ?d\b",
    "map": r"\bmap\b|^(?!.*(flow|speed|current|rate|rpm)).*mean|\b(abp|art|ao) ?m\b",
    "level": r"level|\bp ?lvl|^pl$|^p$",
    "placement": r"placement|\baop?\b|aortic|\babp\b|\bart\b",
    "speed": r"speed|rpm\b|rotation",
    "current": r"current|motor",
    "flow": r"flow|lpm\b",
    "hr": r"\bhr\b|heart|pulse rate|\bbpm\b",
    "patient": r"patient|subject|\bcase\b|\bstay\b|\bpid\b|\bid\b|\bmrn\b",
    "time": r"time|stamp|date|clock|second|minute|hour|\bmin\b|\bsec\b|^t$|^ms$|^s$|^h$",
}
UNIT_WORDS = {
    **{unit.lower(): unit for unit in UNITS},
    **{"lpm": "L/min", "l min": "L/min", "ml min": "mL/min", "cmh2o": "cmH2O"},
}
TIME_WORDS = {
    **{"ms": "ms", "millisecond": "ms", "milliseconds": "ms", "h": "h", "hour": "h", "hours": "h"},
    **{"s": "s", "sec": "s", "second": "s", "seconds": "s"},
    **{"min": "min", "minute": "min", "minutes": "min"},
}


@dataclass(frozen=True)
class Proposal:
    """A mapping file to confirm, and what it would mean if it were."""

    toml: str
    columns: Columns | None  # None: something required was not recognized
    reasons: dict[str, str]  # signal -> why this unit
    problem: str = ""  # what is still missing


def propose_mapping(
    frame: pl.DataFrame, rate: float | None = None, layout: Layout | None = None
) -> Proposal:
    """Guess what every column of a table (or of its first rows) may be; text has a layout."""
    roles = _roles(frame)
    comma = _comma(frame, [name for role, name in roles.items() if role not in ("patient", "time")])
    time, why_time = _time(frame, roles, bool(comma))
    is_waveform = "placement" in roles and 0 < _step(frame, time, rate) < WAVEFORM_INTERVAL
    if not is_waveform and "map" not in roles and "placement" in roles:
        roles["map"] = roles["placement"]
    signals, reasons = {}, {}
    for name in [name for name in (CHANNELS if is_waveform else KNOWN) if name in roles]:
        values = read_line(frame[roles[name]], None, bool(comma)).values
        unit, reasons[name] = _unit(name, roles[name], values)
        signals[name] = {"column": roles[name], "unit": unit}
    table: dict[str, Any] = {"kind": "waveforms" if is_waveform else "values"}
    if layout is not None:
        table["csv"] = {"encoding": layout.encoding, "separator": layout.separator}
        table["csv"] |= {} if comma is None else {"decimal_comma": comma}
    if "patient" in roles:
        table["patient"] = {"column": roles["patient"]}
    table |= {"time": time, "signals": signals}
    table["level"] = {"column": roles["level"]} if "level" in roles else {"from": "speed"}
    used = {entry["column"] for entry in signals.values()}
    used |= {roles[name] for name in ("patient", "time", "level") if name in roles}
    unused = [name for name in frame.columns if name not in used]
    toml = _toml(table, reasons, why_time, unused)
    try:
        return Proposal(toml, parse_mapping(table, "proposal"), reasons)
    except MappingError as error:
        return Proposal(toml, None, reasons, str(error))


def _comma(frame: pl.DataFrame, names: list[str]) -> bool | None:
    """Whether numbers have a decimal comma; None where they do not tell."""
    text = [frame[name] for name in dict.fromkeys(names) if frame[name].dtype == pl.String]
    try:
        return decimal_comma_of([number_evidence(cells) for cells in text], "")
    except QuestionError:
        return None


def _plain(name: str) -> str:
    """Words of a column's name: PatientID, p_level and "Flow [L/min]" come apart."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.sub(r"[^a-z0-9]+", " ", apart.lower()).strip()


def _roles(frame: pl.DataFrame) -> dict[str, str]:
    """Role -> column; each column and each role once, in the order of `WORDS`."""
    roles = {role: name for role in WORDS for name in frame.columns if _plain(name) == role}
    for role, pattern in WORDS.items():
        if role in roles:
            continue
        for column in frame.columns:
            if column not in roles.values() and re.search(pattern, _plain(column)):
                roles[role] = column
                break
    return roles


def _time(frame: pl.DataFrame, roles: dict[str, str], comma: bool) -> tuple[dict[str, str], str]:
    if "time" not in roles:
        return {}, "no column was recognized; name one, or say rate = (Hz)"
    column = roles["time"]
    cells = frame[column]
    if isinstance(cells.dtype, pl.Datetime):
        return {"column": column, "unit": STAMPS}, "dates; add zone = ... if they carry none"
    if not np.isfinite(read_line(cells, None, comma).values).any():
        return _dates(column, cells)
    for word in reversed(_plain(column).split()):
        if word in TIME_WORDS:
            return {"column": column, "unit": TIME_WORDS[word]}, "by its name"
    return {"column": column, "unit": "s"}, "nothing says so; look at the device's manual"


def _dates(column: str, cells: pl.Series) -> tuple[dict[str, str], str]:
    """Stamps that begin with the year, or dates of an order that the days tell."""
    why = "dates; add zone = ... if they carry none"
    try:
        order = order_of(date_evidence(cells.cast(pl.String)), "")
    except QuestionError:
        return {"column": column, "unit": DATES}, f"{why}, and order = ..., which no day tells"
    if order == "year-month-day":
        return {"column": column, "unit": STAMPS}, why
    return {"column": column, "unit": DATES, "order": order}, why


def _step(frame: pl.DataFrame, time: dict[str, str], rate: float | None) -> float:
    """Usual time between two rows, s; 0 where it cannot be told."""
    if not time:
        return 1 / rate if rate else 0.0
    columns = Columns("values", (), Column(time["column"], time["unit"]), zone="UTC")
    columns = replace(columns, order=time.get("order", "year-month-day"))
    steps = np.diff(make_trace(frame, columns, "", None).second)
    steps = steps[steps > 0]
    return float(np.median(steps)) if len(steps) else 0.0


def _unit(signal: str, column: str, values: np.ndarray) -> tuple[str, str]:
    """The likely unit, and why."""
    likely = likely_units(signal, values)
    inside = re.sub(r"[^a-z0-9/.µ ]+", " ", column.lower()).split()
    named = [UNIT_WORDS[word] for word in inside if word in UNIT_WORDS]
    named = [unit for unit in named if unit in units_of(signal)]
    if named and named[0] in likely:
        return named[0], "by its name, and the values fit"
    if named:
        return named[0], f"by its name, but the values fit {' or '.join(likely) or 'no unit'}"
    if likely:
        also = f" (or {', '.join(likely[1:])})" if likely[1:] else ""
        return likely[0], f"the values fit{also}"
    return OUR_UNITS[signal], "nothing says so: the values fit no known unit"


def _toml(table: dict[str, Any], reasons: dict[str, str], why_time: str, unused) -> str:
    """The mapping file with a reason beside every guess."""
    lines = [
        "# A proposal from the names and values of the columns. Confirm every line against the",
        "# device's manual before using it; a unit is declared by you, never by the values.",
        f'kind = "{table["kind"]}"',
    ]
    if "csv" in table:
        lines.append(f"csv = {_entry(table['csv'])}  # as recognized")
    if "patient" in table:
        lines.append(f"patient = {_entry(table['patient'])}")
    lines.append(f"time = {_entry(table['time'])}  # PROPOSAL: {why_time}")
    lines += [f"level = {_entry(table['level'])}", "", "[signals]"]
    for name, entry in table["signals"].items():
        lines.append(f"{name} = {_entry(entry)}  # PROPOSAL: {reasons[name]}")
    if unused:
        lines.append(f"# not recognized: {', '.join(json.dumps(name) for name in unused[:40])}")
    return "\n".join(lines) + "\n"


def _entry(entry: dict[str, str]) -> str:
    # A JSON string is a TOML basic string.
    words = ", ".join(f"{key} = {json.dumps(text)}" for key, text in entry.items())
    return f"{{ {words} }}" if words else "{ }"
