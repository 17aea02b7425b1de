"""MIMIC-IV's `icu` tables as charts: stays, charted values, infusions.

`chartevents` has several hundred million rows and is read piece by piece (`pieces.py`): rows of
the items below wait on disk, those of stays with a pump are read as numbers. Every id is checked
against its label in `d_items` before anything is believed, every unit against what the rows
declare. Pump ids are those of the mapping tables of CLIF-MIMIC.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepdown.records.charted import ChartedConfig, Charts, read_levels
from stepdown.records.drugs import add_shares
from stepdown.records.pieces import ROW, Watch, read_pieces, read_to_disk
from stepdown.records.readers import RecordingError

_STAMP = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class Item:
    """What an id means here, how its label must read, which units it may declare."""

    name: str
    label: str
    units: tuple[str, ...] = ()  # in small letters; empty: text


_MMHG, _FLOW = ("mmhg", "mmhg."), ("l/min",)
_CHARTED = {
    228156: Item("level", r"^performance level$"),
    229675: Item("right", r"^performance level \(r\)$"),
    229671: Item("right", r"^flow rate \(impella\) \(r\)$", _FLOW),
    228154: Item("flow", r"^flow rate \(impella\)$", _FLOW),
    229898: Item("lvedp", r"^lvedp \(impella\)$", _MMHG),
    229679: Item("catheter", r"^type of catheter \(impella\)$"),
    220050: Item("sbp", r"^arterial blood pressure systolic$", _MMHG),
    220051: Item("dbp", r"^arterial blood pressure diastolic$", _MMHG),
    220052: Item("map", r"^arterial blood pressure mean$", _MMHG),
    220179: Item("cuff sbp", r"^non.?invasive blood pressure systolic$", _MMHG),
    220180: Item("cuff dbp", r"^non.?invasive blood pressure diastolic$", _MMHG),
    220181: Item("cuff map", r"^non.?invasive blood pressure mean$", _MMHG),
    220045: Item("hr", r"^heart rate$", ("bpm", "/min")),
    # further columns, read where they are asked for
    220074: Item("cvp", r"^central venous pressure$", _MMHG),
    220059: Item("pas", r"^pulmonary artery pressure systolic$", _MMHG),
    220060: Item("pad", r"^pulmonary artery pressure diastolic$", _MMHG),
    220061: Item("pam", r"^pulmonary artery pressure mean$", _MMHG),
    226512: Item("weight", r"^admission weight \(kg\)$", ("kg",)),
    224639: Item("weight", r"^daily weight$", ("kg",)),
    # other support; a row of one is enough
    229270: Item("other", r"^flow \(ecmo\)$", _FLOW),
    229842: Item("other", r"^flow \(ch\)$", _FLOW),
    224660: Item("other", r"^ecmo$", _FLOW),
    229254: Item("other", r"^flow \(lvad\)$", _FLOW),
    229255: Item("other", r"^flow \(rvad\)$", _FLOW),
    229823: Item("other", r"^flow \(vad\)$", _FLOW),
    228198: Item("other", r"^tandem heart flow$", _FLOW),
    225980: Item("other", r"^iabp volume$", ("ml",)),
    220120: Item("other", r"^intra aortic ball?oon pump setting|intra aortic ballon"),
}
_DRUGS = {
    221906: "norepinephrine",
    221289: "epinephrine",
    222315: "vasopressin",
    221749: "phenylephrine",
    221662: "dopamine",
    221653: "dobutamine",
    221986: "milrinone",
}
_PUMP = ("level", "right", "flow", "catheter")  # a stay without any of these had no pump
_FURTHER = ("cvp", "pas", "pad", "pam", "weight")
_LABS = {50813: Item("lactate", r"^lactate$", ("mmol/l", "meq/l"))}
_NEEDED = ("level", "sbp", "dbp", "map", "hr")  # without these there is no cohort
_CATHETERS = {"2.5 / CP": "cp", "2.5": "cp", "CP": "cp", "5": "5.0", "5.0": "5.0", "5.5": "5.5"}


def read_mimic(folder: Path, config: ChartedConfig, watch: Watch, work: Path) -> Charts:
    """Charts from a folder that holds MIMIC-IV, or its `icu` folder; `work` keeps what was read."""
    icu = folder / "icu" if (folder / "icu").is_dir() else folder
    named = {i: x.label for i, x in _CHARTED.items()} | {i: f"^{x}$" for i, x in _DRUGS.items()}
    needed = {i: x.name for i, x in _CHARTED.items() if x.name in _NEEDED}
    _check_labels(_file(icu, "d_items"), named, needed)
    hosp = icu.parent / "hosp"
    stays = _read_stays(icu, hosp, config)
    findings: dict[str, int] = {}
    charted = _read_charted(_file(icu, "chartevents"), config, findings, watch, work)
    pumped = charted["stay"].unique()
    doses = None
    if _there(icu, "inputevents"):
        doses = _read_doses(_file(icu, "inputevents"), pumped, config)
    entries = charted.filter(~pl.col("name").is_in(["right", "other", "catheter"]))
    entries = entries.select("stay", "name", "time", "stored", "value")
    if config.wants("lactate"):
        of = stays.filter(pl.col("stay").is_in(pumped.implode()))
        labs = _read_labs(_file(hosp, "labevents"), _file(hosp, "d_labitems"), of, config)
        entries = pl.concat([entries, labs])
    stays = stays.select("stay", "patient", "begin", "end", "age", "died", "death")
    return Charts(stays, entries, _support(charted), doses, findings)


def _support(charted: pl.DataFrame) -> pl.DataFrame:
    """Rows that tell which support ran: level and flow of a left pump, a right one, others."""
    catheter = pl.col("text").str.strip_chars()
    right = (pl.col("name") == "right") | ((pl.col("name") == "catheter") & (catheter == "RP"))
    side = (
        pl.when(right)
        .then(pl.lit("right"))
        .when(pl.col("name") == "other")
        .then(pl.lit("other"))
        .when(pl.col("name").is_in(["level", "flow", "catheter"]))
        .then(pl.lit("left"))
    )
    named = pl.when(pl.col("name") == "catheter").then(
        catheter.replace_strict(_CATHETERS, default=None, return_dtype=pl.String)
    )
    rows = charted.with_columns(side=side, device=named).drop_nulls("side")
    return rows.select("stay", "time", "side", "device")


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def _there(icu: Path, table: str) -> bool:
    return any((icu / f"{table}{ending}").is_file() for ending in (".csv.gz", ".csv"))


def _file(icu: Path, table: str) -> Path:
    for ending in (".csv.gz", ".csv"):
        if (icu / f"{table}{ending}").is_file():
            return icu / f"{table}{ending}"
    raise RecordingError(
        f"{icu}: expected MIMIC-IV's table {table}.csv.gz, found none; name the folder that holds "
        "`icu`, or that folder itself."
    )


def _check_labels(file: Path, wanted: dict[int, str], needed: dict[int, str]) -> None:
    """Refuse a dictionary in which an id of ours means something else."""
    table = pl.concat(read_pieces(file, ("itemid", "label")))
    labels = dict(table.select("itemid", "label").iter_rows())
    for item, pattern in wanted.items():
        label = labels.get(str(item))
        if label is not None and not re.search(pattern, label.strip().lower()):
            raise RecordingError(
                f"{file}: expected item {item} to be {pattern!r}, got {label!r}; the ids of this "
                "export are not those of MIMIC-IV, import it by a mapping file instead."
            )
    for item in [item for item in needed if str(item) not in labels]:
        raise RecordingError(
            f"{file}: expected item {item} ({needed[item]}), which is missing; copy the whole "
            "table."
        )


def _read_stays(icu: Path, hosp: Path, config: ChartedConfig) -> pl.DataFrame:
    """Stays; with age and fate where the `hosp` folder lies beside."""
    file = _file(icu, "icustays")
    table = pl.concat(read_pieces(file, ("subject_id", "hadm_id", "stay_id", "intime", "outtime")))
    if table["stay_id"].is_duplicated().any():
        raise RecordingError(f"{file}: expected each stay_id once, got one twice; export it again.")
    stays = table.select(
        stay=_numbers(table, "stay_id", file).cast(pl.Int64),
        patient="subject_id",
        admission="hadm_id",
        begin=_times(table, "intime", file),
        end=_times(table, "outtime", file),
    )
    if config.wants("age"):
        stays = stays.join(_read_ages(_file(hosp, "patients")), "patient", "left")
        stays = stays.with_columns(age=pl.col("age") + pl.col("begin").dt.year() - pl.col("year"))
    else:
        stays = stays.with_columns(age=pl.lit(None, pl.Float64))
    if _there(hosp, "admissions"):
        return stays.join(_read_fates(_file(hosp, "admissions")), "admission", "left")
    nothing = {"died": pl.lit(None, pl.Boolean), "death": pl.lit(None, pl.Datetime("us"))}
    return stays.with_columns(**nothing)


def _read_ages(file: Path) -> pl.DataFrame:
    """Age in one year of every patient; above 89 it is one number for all."""
    table = pl.concat(read_pieces(file, ("subject_id", "anchor_age", "anchor_year")))
    return table.select(
        patient="subject_id",
        age=_numbers(table, "anchor_age", file),
        year=_numbers(table, "anchor_year", file),
    )


def _read_fates(file: Path) -> pl.DataFrame:
    """Who died in hospital, and when."""
    table = pl.concat(read_pieces(file, ("hadm_id", "deathtime", "hospital_expire_flag")))
    dead = table.filter(pl.col("deathtime").is_not_null())
    deaths = dead.select(admission="hadm_id", death=_times(dead, "deathtime", file))
    fates = table.select(admission="hadm_id", died=pl.col("hospital_expire_flag") == "1")
    return fates.join(deaths, "admission", "left")


def _read_labs(
    file: Path, labels: Path, stays: pl.DataFrame, config: ChartedConfig
) -> pl.DataFrame:
    """Lactate of these stays, by the time of its blood; its table knows patients, not stays."""
    named = {i: x.label for i, x in _LABS.items()}
    _check_labels(labels, named, {i: x.name for i, x in _LABS.items()})
    wanted = ("subject_id", "itemid", "charttime", "storetime", "valuenum", "valueuom")
    ours = pl.col("itemid").is_in([str(item) for item in _LABS])
    ours &= pl.col("subject_id").is_in(stays["patient"].unique().implode())
    rows = pl.concat(read_pieces(file, wanted, ours))
    _check_units(rows, file, _LABS)
    time, stored = _when(rows, "charttime", file, config)
    found = rows.select(
        patient="subject_id",
        name=pl.lit("lactate"),
        time=time,
        stored=stored,
        value=pl.col("valuenum").cast(pl.Float64, strict=False),
    ).join(stays, "patient", maintain_order="left")
    during = pl.col("time").is_between("begin", "end") & pl.col("value").is_not_null()
    return found.filter(during).select("stay", "name", "time", "stored", "value")


def _read_charted(
    file: Path, config: ChartedConfig, findings: dict[str, int], watch: Watch, work: Path
) -> pl.DataFrame:
    """The rows of our items, of stays in which a pump was charted."""
    wanted = ("stay_id", "charttime", "storetime", "itemid", "value", "valuenum", "valueuom")
    items = [i for i, x in _CHARTED.items() if x.name not in _FURTHER or config.wants(x.name)]
    ours = pl.col("itemid").is_in([str(item) for item in items])
    kept = read_to_disk(file, wanted, ours, work, watch)
    pump = pl.col("itemid").is_in([str(item) for item, x in _CHARTED.items() if x.name in _PUMP])
    pumped = kept.filter(pump).select("stay_id").unique().collect()
    rows = kept.join(pumped.lazy(), "stay_id", "semi", nulls_equal=True).collect()
    rows = rows.sort(ROW)
    _check_units(rows, file, _CHARTED)
    return _entries(rows, file, config, findings)


def _entries(rows: pl.DataFrame, file: Path, config: ChartedConfig, findings: dict[str, int]):
    """Compact rows: text only where it is read as text."""
    names = {str(item): about.name for item, about in _CHARTED.items()}
    level, text = pl.col("name") == "level", pl.col("name").is_in(["level", "catheter"])
    read = read_levels(pl.col("value"))
    if count := rows["storetime"].null_count():
        words = "entries without a store time, assumed"
        findings[words] = findings.get(words, 0) + count
    time, stored = _when(rows, "charttime", file, config)
    return rows.with_columns(
        name=pl.col("itemid").replace_strict(names, return_dtype=pl.String),
        time=time,
        stored=stored,
        stay=_numbers(rows, "stay_id", file).cast(pl.Int64),
    ).select(
        "stay",
        "name",
        "time",
        "stored",
        value=pl.when(level)
        .then(read)
        .otherwise(pl.col("valuenum").cast(pl.Float64, strict=False)),
        text=pl.when(text).then("value"),
    )


def _check_units(rows: pl.DataFrame, file: Path, items: dict[int, Item]) -> None:
    """Refuse a number whose row declares another unit than its item has."""
    for item, about in items.items():
        if not about.units:
            continue
        unit = pl.col("valueuom").str.strip_chars().str.to_lowercase()
        wrong = rows.filter(
            (pl.col("itemid") == str(item))
            & ~unit.is_in(about.units)
            & pl.col("valueuom").is_not_null()
        )
        for row in wrong.iter_rows(named=True):
            raise RecordingError(
                f"{file}, row {row[ROW]}: expected {about.name} in {about.units[0]}, got "
                f"{row['valueuom']!r}; convert the values, or leave these rows out."
            )


def _read_doses(file: Path, stays: pl.Series, config: ChartedConfig) -> pl.DataFrame:
    """Infusions as changes of a rate: a start, and an end where no other rate follows at once."""
    wanted = ("stay_id", "starttime", "endtime", "storetime", "itemid", "rate", "rateuom")
    wanted = (*wanted, "patientweight", "statusdescription")
    items = {str(item): drug for item, drug in _DRUGS.items()}
    ours = pl.col("itemid").is_in(list(items))
    ours &= pl.col("stay_id").is_in(stays.cast(pl.String).implode())
    rows = pl.concat(read_pieces(file, wanted, ours))
    rows = rows.filter(
        (pl.col("statusdescription").fill_null("") != "Rewritten") & pl.col("rate").is_not_null()
    )
    begin, stored = _when(rows, "starttime", file, config)
    end = _times(rows, "endtime", file)
    starts = rows.select(
        ROW,
        stay=_numbers(rows, "stay_id", file).cast(pl.Int64),
        drug=pl.col("itemid").replace_strict(items, return_dtype=pl.String),
        time=begin,
        end=end,
        stored=stored,
        dose=_numbers(rows, "rate", file),
        unit=pl.col("rateuom"),
        weight=pl.col("patientweight").cast(pl.Float64, strict=False),
    )
    ends = starts.with_columns(
        time=pl.col("end"), stored=pl.max_horizontal("end", "stored"), dose=pl.lit(0.0)
    ).join(starts, ["stay", "drug", "time"], "anti")
    shares = add_shares(pl.concat([starts, ends]), str(file))
    return shares.select("stay", "drug", "time", "stored", "nee", "vis")


def _when(
    rows: pl.DataFrame, column: str, file: Path, config: ChartedConfig
) -> tuple[pl.Series, pl.Series]:
    """Chart and store time; where the latter is missing, the stated delay is assumed."""
    time, unknown = _times(rows, column, file), rows["storetime"].is_null()
    filled = rows.with_columns(pl.col("storetime").fill_null(pl.col(column)))
    assumed = time.dt.offset_by(f"{round(60 * config.delay)}s")
    return time, assumed.zip_with(unknown, _times(filled, "storetime", file))


def _numbers(table: pl.DataFrame, column: str, file: Path) -> pl.Series:
    """A column of numbers, or the row that is none."""
    read = table[column].cast(pl.Float64, strict=False)
    _refuse(table, read, column, "a number", file)
    return read


def _times(table: pl.DataFrame, column: str, file: Path) -> pl.Series:
    read = table[column].str.to_datetime(_STAMP, strict=False, time_unit="us")
    _refuse(table, read, column, "a time such as 2180-07-23 14:00:00", file)
    return read


def _refuse(table: pl.DataFrame, read: pl.Series, column: str, wanted: str, file: Path) -> None:
    for row in table.filter(read.is_null()).iter_rows(named=True):
        raise RecordingError(
            f"{file}, row {row[ROW]}: expected {wanted} in {column}, got {row[column]!r}; "
            "correct the row or leave it out."
        )
