"""Charted stays to a cohort of hours: which stays are taken, and what was known in each hour.

Formats (`clif.py`, `mimic.py`) hand over `Charts`: stays, entries, support and doses with chart
and store times. Here a study is made of them:

* **Which stays.** One cohort follows one kind of support, with one kind of pressure. Every stay
  that is left out is counted under the first reason that applies.
* **Hours.** They count from the first charted level. The state at the end of an hour holds the last
  value that was charted in it *and stored by its end*; what was stored later was not known. The
  level is what was decided and what the pump's screen shows, so its entries count from their chart
  time: most of the hour's minutes decide, and an entry is carried for `carry` hours, no longer.
* **Drugs.** The rate in force at the end of the hour, as far as stored by then.

A value that cannot be believed becomes empty and is counted; nothing is filled in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import polars as pl

from stepdown.artifacts import ArtifactError
from stepdown.handover import Cohort
from stepdown.records.files import check_table, cohort_table
from stepdown.records.readers import RecordingError
from stepdown.signals import HIGHEST, KNOWN, LOWEST, NAMES, REQUIRED, columns_with

HOUR = 60.0  # min
DRUG_COLUMNS = ("nee", "vis")
PRESSURES = ("map", "sbp", "dbp")
NOT_READ = -1.0  # a level that is charted and cannot be read
_LEVEL_TEXT = r"^\s*[Pp]?[\s\-]*([0-9])(?:\.0+)?\s*$"  # P8, P-8, 8, 8.0

# Why a stay is left out; the first that applies counts.
NO_PUMP, RIGHT, OTHER = "no pump", "a right-sided pump", "other support beside the pump"
ANOTHER, NO_LEVEL = "another type of pump, or none charted", "no level charted"
NO_PRESSURE, LATER = "no pressures of the chosen kind", "a later stay of a patient"
TOO_SHORT = "no two hours in a row with level, MAP, heart rate and pulsatility"
REASONS = (NO_PUMP, RIGHT, OTHER, ANOTHER, NO_LEVEL, NO_PRESSURE, LATER, TOO_SHORT)

Device = Literal["cp", "5.0", "5.5", "unnamed"]
Pressure = Literal["arterial", "cuff"]


@dataclass(frozen=True)
class ChartedConfig:
    """Which stays are followed, and what is assumed where a table does not say."""

    device: Device = "cp"  # 2.5 and CP are charted as one; unnamed: the type was never charted
    pressure: Pressure = "arterial"  # where pressures were taken; the other is not used
    carry: float = 4.0  # h for which a charted level is believed
    delay: float = 15.0  # min until an entry is stored, where a table does not say

    def __post_init__(self):
        if not 1 <= self.carry <= 24:
            raise ValueError(f"--carry: expected 1 to 24 hours, got {self.carry:g}.")
        if not 0 <= self.delay <= 240:
            raise ValueError(f"--delay: expected 0 to 240 minutes, got {self.delay:g}.")


@dataclass
class Charts:
    """What a format's tables hold, in our words; times without a zone, all by one clock."""

    stays: pl.DataFrame  # stay, patient, begin, end
    entries: pl.DataFrame  # stay, name, time, stored, value: signals, "cuff map" ..., "level"
    support: pl.DataFrame  # stay, time, side ("left", "right", "other"), device
    doses: pl.DataFrame | None  # stay, drug, time, stored, nee, vis; None: no table of drugs
    findings: dict[str, int] = field(default_factory=dict)  # what is odd about rows -> how many


class Charted(NamedTuple):
    """A cohort, the flow of stays into it, and what was odd or left empty."""

    cohort: Cohort
    flow: tuple[tuple[str, int], ...]  # stays found, left out by reason, taken
    findings: tuple[tuple[str, int], ...]  # odd entries by kind
    late: tuple[tuple[str, int], ...]  # entries that were stored after their hour: usual


def read_levels(text: pl.Expr) -> pl.Expr:
    """Levels out of text; what is charted and says none is `NOT_READ`."""
    return text.str.extract(_LEVEL_TEXT, 1).cast(pl.Float64).fill_null(NOT_READ)


def make_charted(charts: Charts, config: ChartedConfig, path: Path) -> Charted:
    """The cohort of one kind of support."""
    findings, late = dict(charts.findings), {}
    entries = _clean(charts.entries, config, findings)
    rows = _by_stay(entries)
    doses = None if charts.doses is None else _by_stay(charts.doses)
    left_out = dict.fromkeys(REASONS, 0)
    names, hours = [], []
    for stay, patient, reason in _chosen(charts, entries, config):
        made = None
        if not reason:
            who = stay["stay"]
            given = None if doses is None else doses.get(who, pl.DataFrame())
            made = _make_hours(rows[who], given, stay["end"], config, late)
            reason = "" if _usable(made) else TOO_SHORT
        if reason:
            left_out[reason] += 1
        elif made is not None:
            names.append(patient)
            hours.append(made)
    flow = {"stays in the tables": charts.stays.height}
    flow |= {f"left out: {reason}": count for reason, count in left_out.items()}
    flow["taken"] = len(names)
    if not names:
        told = "; ".join(f"{words}: {count:,}" for words, count in flow.items())
        raise RecordingError(
            f"{path}: expected stays with a {config.device} pump and {config.pressure} pressures, "
            f"got none ({told}). See which device and pressure the tables hold."
        )
    columns = columns_with(DRUG_COLUMNS if charts.doses is not None else ())
    cohort = _to_cohort(names, hours, columns)
    try:
        check_table(cohort_table(cohort), path)
    except ArtifactError as error:  # what would be refused when it is read again
        raise RecordingError(str(error)) from error
    return Charted(cohort, *(tuple(part.items()) for part in (flow, findings, late)))


# ── which entries ────────────────────────────────────────────────────────────────────────────────


def _clean(entries: pl.DataFrame, config: ChartedConfig, findings: dict[str, int]) -> pl.DataFrame:
    """Entries of the chosen pressure, each once, of this world; what goes is counted."""
    cuff = pl.col("name").str.starts_with("cuff ")
    if config.pressure == "cuff":
        entries = entries.filter(~pl.col("name").is_in(PRESSURES))
        entries = entries.with_columns(pl.col("name").str.strip_prefix("cuff "))
    else:
        entries = entries.filter(~cuff)

    def keep(kept: pl.DataFrame, words: str) -> pl.DataFrame:
        if gone := entries.height - kept.height:
            findings[words] = findings.get(words, 0) + gone
        return kept

    entries = keep(entries.filter(pl.col("value").is_not_null()), "entries without a number")
    entries = keep(entries.unique(maintain_order=True), "entries that come twice")
    alone = pl.len().over("stay", "name", "time", "stored") == 1
    entries = keep(entries.filter(alone), "entries that contradict one at the same time")
    before = pl.col("stored") < pl.col("time")
    entries = keep(entries.filter(~before), "entries stored before they were charted")
    for name in entries["name"].unique().sort():
        low, high = KNOWN[name].hard if name in KNOWN else (NOT_READ, HIGHEST)
        odd = (pl.col("name") == name) & ~pl.col("value").is_between(low, high)
        entries = keep(entries.filter(~odd), f"values of {name} outside {low:g} to {high:g}")
    unread = ((pl.col("name") == "level") & (pl.col("value") == NOT_READ)).sum()
    if count := entries.select(unread).item():
        findings["levels that cannot be read"] = count
    return _with_pulsatility(entries, keep)


def _with_pulsatility(entries: pl.DataFrame, keep) -> pl.DataFrame:
    """Pulsatility where systolic and diastolic were charted together; none out of order."""
    rows = entries.filter(pl.col("name").is_in(PRESSURES))
    latest = rows.group_by("stay", "time", "name").agg(pl.all().sort_by("stored").last())
    wide = latest.pivot("name", index=["stay", "time"], values=["value", "stored"])
    have = {f"{what}_{name}" for what in ("value", "stored") for name in PRESSURES}
    if not have <= set(wide.columns):
        return entries
    mean, high, low = (pl.col(f"value_{name}") for name in PRESSURES)
    wrong = wide.filter((low > high) | (mean > high) | (mean < low)).select("stay", "time")
    is_pressure = pl.col("name").is_in(PRESSURES)
    bad = entries.filter(is_pressure).join(wrong, ["stay", "time"], "semi")
    kept = entries.join(bad, ["stay", "name", "time", "stored"], "anti", maintain_order="left")
    keep(kept, "pressures with systolic, mean and diastolic out of order")
    pulse = wide.join(wrong, ["stay", "time"], "anti").drop_nulls(["value_sbp", "value_dbp"])
    made = pulse.select(
        "stay",
        pl.lit("pulsatility").alias("name"),
        "time",
        pl.max_horizontal("stored_sbp", "stored_dbp").alias("stored"),
        (high - low).alias("value"),
    )
    return pl.concat([kept.select(made.columns), made])


# ── which stays ──────────────────────────────────────────────────────────────────────────────────


def _chosen(charts: Charts, entries: pl.DataFrame, config: ChartedConfig) -> Iterator[tuple]:
    """Every stay with its patient, earliest first, and why it is left out, if it is."""
    support = _by_stay(charts.support)
    held = entries.group_by("stay").agg(pl.col("name").unique())
    names = {stay: set(found) for stay, found in held.iter_rows()}
    taken: set[str] = set()
    for stay in charts.stays.sort("begin", "stay").iter_rows(named=True):
        who = stay["stay"]
        reason = _reason(support.get(who), names.get(who, set()), config)
        if not reason and stay["patient"] in taken:
            reason = LATER
        if not reason:
            taken.add(stay["patient"])
        yield stay, stay["patient"], reason


def _reason(support: pl.DataFrame | None, names: set[str], config: ChartedConfig) -> str:
    """The first reason to leave a stay out."""
    left = None if support is None else support.filter(pl.col("side") == "left")
    if support is None or not set(support["side"]) & {"left", "right"}:
        return NO_PUMP
    if left is None or left.height == 0 or "right" in set(support["side"]):
        return RIGHT
    begin, end = left["time"].min(), left["time"].max()
    other = support.filter((pl.col("side") == "other") & pl.col("time").is_between(begin, end))
    if other.height:
        return OTHER
    devices = set(left["device"].drop_nulls())
    if devices != (set() if config.device == "unnamed" else {config.device}):
        return ANOTHER
    if "level" not in names:
        return NO_LEVEL
    if not set(PRESSURES) <= names:
        return NO_PRESSURE
    return ""


# ── hours ────────────────────────────────────────────────────────────────────────────────────────


class _Hours(NamedTuple):
    signals: dict[str, np.ndarray]  # by name, a value per hour, NaN where none was known
    level: np.ndarray  # -1 where it is not known or the pump stands
    seen: np.ndarray


def _make_hours(
    entries: pl.DataFrame,
    doses: pl.DataFrame | None,
    end: datetime | None,
    config: ChartedConfig,
    late: dict[str, int],
) -> _Hours | None:
    """One stay from its first charted level of P2 or more."""
    levels = entries.filter(pl.col("name") == "level").sort("time", "stored")
    on = levels.filter(pl.col("value") >= LOWEST)
    if on.height == 0:
        return None
    start: datetime = on["time"][0]
    levels = levels.filter(pl.col("time") >= start).unique("time", keep="last").sort("time")
    minute = _minutes(levels["time"], start)
    last = minute[-1] + HOUR * config.carry
    if end is not None:
        last = min(last, (end - start).total_seconds() / 60)
    count = int(last // HOUR)
    level = _levels(minute, levels["value"].to_numpy(), count, config)
    signals = {}
    for (name,), rows in entries.partition_by("name", as_dict=True).items():
        signals[str(name)] = _last_known(rows, start, count, str(name), late)
    signals.pop("level")  # only counted: how often a level was stored after its hour
    values = list(signals.values())
    any_known = np.isfinite(values).any(0) if values else np.zeros(count, bool)
    if doses is not None:
        signals |= _rates(doses, start, count)
    return _Hours(signals, level, any_known & (level >= LOWEST))


def _levels(minute: np.ndarray, value: np.ndarray, count: int, config) -> np.ndarray:
    """The level that held most of each hour's minutes; -1 where most are unknown or stand still."""
    now = np.arange(count * 60) + 0.5
    entry = np.searchsorted(minute, now, side="right") - 1
    fresh = (entry >= 0) & (now - minute[entry] <= HOUR * config.carry)
    each = np.where(fresh & (value[entry] >= LOWEST), value[entry], NOT_READ)
    held = each.reshape(count, 60)[:, :, None] == np.arange(NOT_READ, HIGHEST + 1)
    return held.sum(1).argmax(1) - 1  # of equals the lower


def _last_known(
    rows: pl.DataFrame, start: datetime, count: int, name: str, late: dict[str, int]
) -> np.ndarray:
    """The last value charted in each hour and stored by its end."""
    rows = rows.sort("time", "stored")
    time, stored = _minutes(rows["time"], start), _minutes(rows["stored"], start)
    hour = np.floor(time / HOUR).astype(int)
    inside = (hour >= 0) & (hour < count)
    known = inside & (stored <= HOUR * (hour + 1))
    late[name] = late.get(name, 0) + int((inside & ~known).sum())
    out = np.full(count, np.nan)
    out[hour[known]] = rows["value"].to_numpy()[known]  # of an hour the last one stays
    return out


def _rates(doses: pl.DataFrame, start: datetime, count: int) -> dict[str, np.ndarray]:
    """What all drugs together count at the end of each hour, as far as stored by then."""
    total = {name: np.zeros(count) for name in DRUG_COLUMNS}
    ends = HOUR * (1 + np.arange(count))[:, None]
    for rows in doses.sort("time", "stored").partition_by("drug") if doses.height else ():
        time, stored = _minutes(rows["time"], start), _minutes(rows["stored"], start)
        known = (time <= ends) & (stored <= ends)
        latest = known.shape[1] - 1 - known[:, ::-1].argmax(1)
        for name in DRUG_COLUMNS:
            share = rows[name].fill_null(np.nan).to_numpy()[latest]
            total[name] += np.where(known.any(1), share, 0.0)
    return total


def _usable(hours: _Hours | None) -> bool:
    """Whether two hours in a row hold a level and all that cannot be done without."""
    if hours is None:
        return False
    needed = [hours.signals.get(NAMES[i]) for i in REQUIRED]
    if any(values is None for values in needed):
        return False
    whole = hours.seen & np.isfinite([x for x in needed if x is not None]).all(0)
    return bool((whole[1:] & whole[:-1]).any())


def _to_cohort(names: list[str], stays: list[_Hours], columns: tuple[str, ...]) -> Cohort:
    shape = (len(stays), max(len(stay.seen) for stay in stays))
    signals = np.full((*shape, len(columns)), np.nan, np.float32)
    level, seen = np.zeros(shape, np.int32), np.zeros(shape, bool)
    for row, stay in enumerate(stays):
        count = len(stay.seen)
        seen[row, :count] = stay.seen
        level[row, :count] = np.where(stay.seen, stay.level, 0)
        for i, name in enumerate(columns):
            if name in stay.signals:
                signals[row, :count, i] = np.where(stay.seen, stay.signals[name], np.nan)
    return Cohort(
        signals=jnp.asarray(signals),
        level=jnp.asarray(level),
        seen=jnp.asarray(seen),
        patient=tuple(names),
        minutes=HOUR,
        columns=columns,
    )


def _minutes(times: pl.Series, start: datetime) -> np.ndarray:
    return (times - start).dt.total_seconds().to_numpy() / 60


def _by_stay(table: pl.DataFrame) -> dict[object, pl.DataFrame]:
    return {stay: rows for (stay,), rows in table.partition_by("stay", as_dict=True).items()}
