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
* **Further columns**, on request. A result comes hours after its blood was drawn, so it stands in
  the row of the hour in which it was stored. The last known weight and the age stand in every row.
* **How support ended** is no column, since no state may know it: it stands in a table of stays.
  Where the tables know who died, a death on support ends its stay for good (`Cohort.died`).

A value that cannot be believed becomes empty and is counted; nothing is filled in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import polars as pl

from stepdown.artifacts import ArtifactError
from stepdown.handover import Cohort
from stepdown.records.files import check_table, cohort_table
from stepdown.records.readers import RecordingError
from stepdown.signals import HIGHEST, KNOWN, LOWEST, NAMES, REQUIRED, columns_with

HOUR = 60.0  # min
EDGE = timedelta(hours=1)  # before and after a stay in which an entry may still be its own
DRUG_COLUMNS = ("nee", "vis")
PRESSURES = ("map", "sbp", "dbp")
RESULTS = ("lactate", "cvp", "pas", "pad", "pam")  # as they become known
STALE = 240.0  # min; a result that is stored later than this is not used
PAPI = ("pas", "pad", "cvp")  # what it is made of: (pas - pad) / cvp
NOT_READ = -1.0  # a level that is charted and cannot be read
_LEVEL_TEXT = r"^\s*(?:[Pp][\s\-]*)?([0-9])(?:\.0+)?\s*$"  # P8, P-8, 8, 8.0; not -8

# Why a stay is left out; the first that applies counts.
NO_PUMP, RIGHT, OTHER = "no pump", "a right-sided pump", "other support beside the pump"
ANOTHER, NO_LEVEL = "another type of pump, or none charted", "no level charted"
NO_PRESSURE, LATER = "no pressures of the chosen kind", "a later stay of a patient"
TOO_SHORT = "no two hours in a row with level, MAP, heart rate and pulsatility"
REASONS = (NO_PUMP, RIGHT, OTHER, ANOTHER, NO_LEVEL, NO_PRESSURE, LATER, TOO_SHORT)

Device = Literal["cp", "5.0", "5.5", "unnamed"]
Pressure = Literal["arterial", "cuff"]
_ENDS = {"patient": pl.String, "hours": pl.Int64, "ended": pl.String, "died": pl.Boolean}
Further = Literal["lactate", "cvp", "pas", "pad", "pam", "papi", "weight", "age"]
Ended = Literal["off", "died", "left", "charting ended"]


@dataclass(frozen=True)
class ChartedConfig:
    """Which stays are followed, and what is assumed where a table does not say."""

    device: Device = "cp"  # 2.5 and CP are charted as one; unnamed: the type was never charted
    pressure: Pressure = "arterial"  # where pressures were taken; the other is not used
    carry: float = 4.0  # h for which a charted level is believed
    delay: float = 15.0  # min until an entry is stored, where a table does not say
    further: tuple[Further, ...] = ()  # columns beside signals and drugs

    def __post_init__(self):
        if not 1 <= self.carry <= 24:
            raise ValueError(f"--carry: expected 1 to 24 hours, got {self.carry:g}.")
        if not 0 <= self.delay <= 240:
            raise ValueError(f"--delay: expected 0 to 240 minutes, got {self.delay:g}.")

    def wants(self, *names: str) -> bool:
        """Whether a further column is asked for that needs one of these entries."""
        needed = {*self.further, *(PAPI if "papi" in self.further else ())}
        return bool(needed & set(names))


@dataclass
class Charts:
    """What a format's tables hold, in our words; times without a zone, all by one clock."""

    stays: pl.DataFrame  # stay, patient, begin, end; age in years, died and death where known
    entries: pl.DataFrame  # stay, name, time, stored, value: columns, "cuff map" ..., "level"
    support: pl.DataFrame  # stay, time, side ("left", "right", "other"), device
    doses: pl.DataFrame | None  # stay, drug, time, stored, nee, vis; None: no table of drugs
    findings: dict[str, int] = field(default_factory=dict)  # what is odd about rows -> how many


class Charted(NamedTuple):
    """A cohort, the flow of stays into it, and what was odd or left empty."""

    cohort: Cohort
    flow: tuple[tuple[str, int], ...]  # stays found, left out by reason, taken
    findings: tuple[tuple[str, int], ...]  # odd entries by kind
    late: tuple[tuple[str, int], ...]  # entries that were stored after their hour: usual
    ends: pl.DataFrame  # patient, hours, ended, died: how support ended, for reports only


def read_levels(text: pl.Expr) -> pl.Expr:
    """Levels out of text; what is charted and says none is `NOT_READ`."""
    return text.str.extract(_LEVEL_TEXT, 1).cast(pl.Float64).fill_null(NOT_READ)


def make_charted(charts: Charts, config: ChartedConfig, path: Path) -> Charted:
    """The cohort of one kind of support."""
    findings, late = dict(charts.findings), {}
    entries = _clean(charts.entries, charts.stays, config, findings)
    left_out: dict[str, int] = dict.fromkeys(REASONS, 0)
    taken = list(_take(charts, entries, config, late, left_out))
    flow = {"stays in the tables": charts.stays.height}
    flow |= {f"left out: {reason}": count for reason, count in left_out.items()}
    flow["taken"] = len(taken)
    if not taken:
        told = "; ".join(f"{words}: {count:,}" for words, count in flow.items())
        raise RecordingError(
            f"{path}: expected stays with a {config.device} pump and {config.pressure} pressures, "
            f"got none ({told}). See which device and pressure the tables hold."
        )
    _require_further([stay.hours for stay in taken], config, path)
    drugs = DRUG_COLUMNS if charts.doses is not None else ()
    cohort = _to_cohort(taken, columns_with((*drugs, *config.further)))
    if any(stay.died is not None for stay in taken):
        dead = jnp.asarray([stay.ended == "died" for stay in taken])
        cohort = replace(cohort, died=dead)
    try:
        check_table(cohort_table(cohort), path)
    except ArtifactError as error:  # what would be refused when it is read again
        raise RecordingError(str(error)) from error
    ends = [(x.patient, int(x.hours.seen.sum()), x.ended, x.died) for x in taken]
    return Charted(
        cohort,
        flow=tuple(flow.items()),
        findings=tuple(findings.items()),
        late=tuple(late.items()),
        ends=pl.DataFrame(ends, _ENDS, orient="row"),
    )


def _take(
    charts: Charts,
    entries: pl.DataFrame,
    config: ChartedConfig,
    late: dict[str, int],
    left_out: dict[str, int],
) -> Iterator["_Taken"]:
    """The stays of the study; the others are counted by reason."""
    rows = _by_stay(entries)
    doses = None if charts.doses is None else _by_stay(charts.doses)
    for stay, reason in _chosen(charts, entries, config):
        if reason:
            left_out[reason] += 1
            continue
        found = rows[stay["stay"]]
        given = None if doses is None else doses.get(stay["stay"], pl.DataFrame())
        hours = _make_hours(found, given, stay, config, late)
        if hours is None or not _usable(hours):
            left_out[TOO_SHORT] += 1
            continue
        yield _Taken(stay["patient"], hours, _ended(found, stay, config), stay["died"])


# ── which entries ────────────────────────────────────────────────────────────────────────────────


def _clean(
    entries: pl.DataFrame, stays: pl.DataFrame, config: ChartedConfig, findings: dict[str, int]
) -> pl.DataFrame:
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
    spans = stays.select("stay", pl.col("begin") - EDGE, pl.col("end") + EDGE)
    outside = (pl.col("time") < pl.col("begin")) | (pl.col("time") > pl.col("end"))
    outside = entries.join(spans, "stay", "left", maintain_order="left").select(outside)
    inside = entries.filter(~outside.to_series().fill_null(False))
    entries = keep(inside, "entries outside the times of their stay")
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
    """Every stay, earliest first, and why it is left out, if it is."""
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
        yield stay, reason


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


class _Taken(NamedTuple):
    patient: str
    hours: _Hours
    ended: Ended
    died: bool | None


def _make_hours(
    entries: pl.DataFrame,
    doses: pl.DataFrame | None,
    stay: dict[str, Any],
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
    if stay["end"] is not None:
        last = min(last, (stay["end"] - start).total_seconds() / 60)
    count = int(last // HOUR)
    level = _levels(minute, levels["value"].to_numpy(), count, config)
    signals, further = {}, {"age": np.full(count, np.nan if stay["age"] is None else stay["age"])}
    for (name,), rows in entries.partition_by("name", as_dict=True).items():
        if name == "weight":
            further["weight"] = _so_far(rows, start, count)
        elif name in RESULTS:
            further[str(name)] = _results(rows, start, count, str(name), late)
        else:
            signals[str(name)] = _last_known(rows, start, count, str(name), late)
    signals.pop("level")  # only counted: how often a level was stored after its hour
    values = list(signals.values())
    any_known = np.isfinite(values).any(0) if values else np.zeros(count, bool)
    if doses is not None:
        signals |= _rates(doses, start, count)
    if set(PAPI) <= set(further):
        high, low, venous = (further[name] for name in PAPI)
        further["papi"] = (high - low) / np.where(venous > 0, venous, np.nan)
    signals |= further
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


def _results(
    rows: pl.DataFrame, start: datetime, count: int, name: str, late: dict[str, int]
) -> np.ndarray:
    """The newest value among those that were stored in each hour."""
    rows = rows.sort("time", "stored")
    time, stored = _minutes(rows["time"], start), _minutes(rows["stored"], start)
    hour = np.ceil(stored / HOUR).astype(int) - 1
    inside = (hour >= 0) & (hour < count)
    known = inside & (stored - time <= STALE)
    late[name] = late.get(name, 0) + int((inside & ~known).sum())
    out = np.full(count, np.nan)
    out[hour[known]] = rows["value"].to_numpy()[known]
    return out


def _so_far(rows: pl.DataFrame, start: datetime, count: int) -> np.ndarray:
    """The last value known at the end of each hour, however old."""
    rows = rows.sort("time", "stored")
    time, stored = _minutes(rows["time"], start), _minutes(rows["stored"], start)
    ends = HOUR * (1 + np.arange(count))[:, None]
    known = (time <= ends) & (stored <= ends)
    latest = known.shape[1] - 1 - known[:, ::-1].argmax(1)
    return np.where(known.any(1), rows["value"].to_numpy()[latest], np.nan)


def _ended(entries: pl.DataFrame, stay: dict[str, Any], config: ChartedConfig) -> Ended:
    """How support ended, as far as the tables say it; what is not said is not guessed."""
    levels = entries.filter(pl.col("name") == "level").sort("time", "stored")
    if levels["value"][-1] in (0, 1):
        return "off"
    soon = levels["time"][-1] + timedelta(hours=config.carry)
    if stay["death"] is not None and stay["death"] <= soon:
        return "died"
    if stay["end"] is not None and stay["end"] <= soon:
        return "left"
    return "charting ended"


def _require_further(stays: list["_Hours"], config: ChartedConfig, path: Path) -> None:
    """Refuse a column that is asked for and that no stay has."""
    for name in config.further:
        if not any(np.isfinite(stay.signals.get(name, np.nan)).any() for stay in stays):
            raise RecordingError(
                f"{path}: expected values of {name} in the tables, got none in any stay that is "
                "taken; leave it out of --further."
            )


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


def _usable(hours: _Hours) -> bool:
    """Whether two hours in a row hold a level and all that cannot be done without."""
    needed = [hours.signals.get(NAMES[i]) for i in REQUIRED]
    if any(values is None for values in needed):
        return False
    whole = hours.seen & np.isfinite([x for x in needed if x is not None]).all(0)
    return bool((whole[1:] & whole[:-1]).any())


def _to_cohort(taken: list[_Taken], columns: tuple[str, ...]) -> Cohort:
    shape = (len(taken), max(len(stay.hours.seen) for stay in taken))
    signals = np.full((*shape, len(columns)), np.nan, np.float32)
    level, seen = np.zeros(shape, np.int32), np.zeros(shape, bool)
    for row, (_, hours, *_) in enumerate(taken):
        count = len(hours.seen)
        seen[row, :count] = hours.seen
        level[row, :count] = np.where(hours.seen, hours.level, 0)
        for i, name in enumerate(columns):
            if name in hours.signals:
                signals[row, :count, i] = np.where(hours.seen, hours.signals[name], np.nan)
    return Cohort(
        signals=jnp.asarray(signals),
        level=jnp.asarray(level),
        seen=jnp.asarray(seen),
        patient=tuple(stay.patient for stay in taken),
        minutes=HOUR,
        columns=columns,
    )


def _minutes(times: pl.Series, start: datetime) -> np.ndarray:
    return (times - start).dt.total_seconds().to_numpy() / 60


def _by_stay(table: pl.DataFrame) -> dict[object, pl.DataFrame]:
    return {stay: rows for (stay,), rows in table.partition_by("stay", as_dict=True).items()}
