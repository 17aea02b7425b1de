"""CLIF tables as charts: version 3.0 (`mcs`) and both variants of 2.1 (`ecmo_mcs`).

Tables are Parquet or CSV files `clif_<table>`, times in UTC. Support is read first; of the other
tables only the rows of stays with support are kept, batch by batch. Vitals of 3.0 say when a value
was measured and when it was recorded, which are taken as chart and store time; where a table has
one time only, a stated delay is assumed until an entry is stored. Where a pressure was taken is
read from the name of its site or of its vital; one that says neither is not used, and counted.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from stepdown.records.charted import ChartedConfig, Charts, read_levels
from stepdown.records.drugs import DRUGS, add_shares
from stepdown.records.pieces import Watch
from stepdown.records.readers import RecordingError, column_names, read_batches

STAY = "hospitalization_id"
_STAMP = r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|[+-]00:?00| UTC)?$"
_CONFIGS = {"cp": "cp", "2_5": "cp", "2_5_or_cp": "cp", "5_0": "5.0", "5_5": "5.5"}
_DEVICES = {f"impella_{name}": device for name, device in _CONFIGS.items()}
_SETTINGS = {"performance": "level", "impella_power": "level", "flow": "flow", "rpm": "speed"}
_METRICS = {"performance level": "level", "p-level": "level", "rpm": "speed", "pump speed": "speed"}
_VITALS = {"map": "map", "sbp": "sbp", "dbp": "dbp", "heart_rate": "hr"}
_ARTERIAL, _CUFF = r"arterial|\bart\b|a-line|\babp\b", r"non.?invasive|cuff|\bnibp\b|\bnbp\b"
_HEMODYNAMICS = {"cvp": "cvp", "pa_systolic": "pas", "pa_diastolic": "pad", "pa_mean": "pam"}
_LONGEST_LINE = 2**16
_STOPPED = ("stop", "stopped", "held", "paused", "discontinued", "completed")


def read_clif(folder: Path, config: ChartedConfig, watch: Watch, work: Path) -> Charts:
    """Charts from a folder of CLIF tables; their rows are few enough to need no `work` folder."""
    del work
    findings: dict[str, int] = {}
    support, settings = _read_support(folder, config)
    watch(0.25)
    stays = _read_stays(folder, config)
    pumped = support["stay"].unique().to_list()
    vitals, weights = _read_vitals(folder, pumped, config, findings)
    watch(0.7)
    further = [_read_hemodynamics(folder, pumped, config), _read_labs(folder, pumped, config)]
    watch(0.8)
    doses = _read_doses(folder, pumped, weights, config)
    watch(1.0)
    entries = [settings, vitals, *(part for part in further if part is not None)]
    return Charts(stays, pl.concat(entries), support, doses, findings)


# ── support ──────────────────────────────────────────────────────────────────────────────────────


def _read_support(folder: Path, config: ChartedConfig) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Which support ran when, and what the pump was set to and gave."""
    new, old = _find(folder, "mcs"), _find(folder, "ecmo_mcs")
    if new is not None and old is None:
        return _support_3(new, config)
    if old is not None and new is None:
        return _support_2(old, config)
    raise RecordingError(
        f"{folder}: expected a table of support, clif_mcs (3.0) or clif_ecmo_mcs (2.1), got "
        f"{'neither' if new is None else 'both'}; name a folder of one version."
    )


def _support_3(file: Path, config: ChartedConfig) -> tuple[pl.DataFrame, pl.DataFrame]:
    names = ("support_category", "device_category", "config_category")
    rows = _table(file, (STAY, "recorded_dttm", *names, "setting_category", "setting_value"))
    is_pump = _small("device_category").str.contains("impella")
    side = (
        pl.when(~is_pump)
        .then(pl.lit("other"))
        .when(_small("support_category") == "rvad")
        .then(pl.lit("right"))
        .otherwise(pl.lit("left"))
    )
    named = _small("config_category")
    rows = rows.with_columns(
        stay=pl.col(STAY),
        time=_times(rows, "recorded_dttm", file),
        side=side,
        device=named.replace_strict(_CONFIGS, default=None, return_dtype=pl.String),
        name=_small("setting_category").replace_strict(
            _SETTINGS, default=None, return_dtype=pl.String
        ),
    )
    return _split_support(rows, pl.col("setting_value"), config)


def _support_2(file: Path, config: ChartedConfig) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Either variant, told apart by its columns; flow has a column of its own in both."""
    known, about = column_names(file), ("device_category", "mcs_group", "flow")
    if "control_parameter_value" in known:
        names, value, words = "control_parameter_category", "control_parameter_value", _SETTINGS
    elif "device_rate" in known:
        names, value, words = "device_metric_name", "device_rate", _METRICS
    else:
        raise RecordingError(
            f"{file}: expected control_parameter_value or device_rate, as the variants of CLIF "
            f"2.1 have it, got {', '.join(known[:20])}; export it as 2.1 or 3.0."
        )
    rows = _table(file, (STAY, "recorded_dttm", *about, names, value))
    device, group = _small("device_category"), _small("mcs_group")
    side = (
        pl.when(~device.str.contains("impella"))
        .then(pl.lit("other"))
        .when(device.str.contains("impella_rp") | group.str.contains("rvad"))
        .then(pl.lit("right"))
        .otherwise(pl.lit("left"))
    )
    rows = rows.with_columns(
        stay=pl.col(STAY),
        time=_times(rows, "recorded_dttm", file),
        side=side,
        device=device.replace_strict(_DEVICES, default=None, return_dtype=pl.String),
        name=_small(names).replace_strict(words, default=None, return_dtype=pl.String),
        setting=pl.col(value),
    )
    flows = rows.filter(pl.col("flow").is_not_null()).with_columns(
        name=pl.lit("flow"), setting=pl.col("flow").cast(pl.String)
    )
    others = rows.with_columns(pl.col("setting").cast(pl.String))
    return _split_support(pl.concat([others, flows]), pl.col("setting"), config)


def _split_support(
    rows: pl.DataFrame, value: pl.Expr, config: ChartedConfig
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows as support, and those of left pumps as entries."""
    level, text = pl.col("name") == "level", value.cast(pl.String)
    entries = rows.filter((pl.col("side") == "left") & pl.col("name").is_not_null()).select(
        "stay",
        "name",
        "time",
        stored=pl.col("time").dt.offset_by(_delay(config)),
        value=pl.when(level).then(read_levels(text)).otherwise(text.cast(pl.Float64, strict=False)),
    )
    support = rows.select("stay", "time", "side", "device").unique(maintain_order=True)
    return support, entries.filter(~((pl.col("name") != "level") & pl.col("value").is_null()))


# ── stays, vitals, drugs ─────────────────────────────────────────────────────────────────────────


def _read_stays(folder: Path, config: ChartedConfig) -> pl.DataFrame:
    """Hospitalizations; age and fate where their columns are there, death from `patient`."""
    file = _require(folder, "hospitalization")
    known, times = column_names(file), ("admission_dttm", "discharge_dttm")
    more = [name for name in ("age_at_admission", "discharge_category") if name in known]
    if config.wants("age") and "age_at_admission" not in known:
        raise RecordingError(
            f"{file}: expected a column 'age_at_admission', which is missing; leave age out of "
            "--further."
        )
    rows = _table(file, (STAY, "patient_id", *times, *more))
    if rows[STAY].is_duplicated().any():
        raise RecordingError(f"{file}: expected each {STAY} once, got one twice; export it again.")
    nothing = pl.lit(None, pl.String)
    age = pl.col("age_at_admission") if "age_at_admission" in more else nothing
    fate = _small("discharge_category") if "discharge_category" in more else nothing
    stays = rows.select(
        stay=pl.col(STAY),
        patient=pl.col("patient_id").cast(pl.String),
        begin=_times(rows, "admission_dttm", file),
        end=_times(rows, "discharge_dttm", file),
        age=age.cast(pl.Float64, strict=False),
        died=fate.is_in(["expired", "dead", "deceased"]),
    )
    return stays.join(_read_deaths(folder), "patient", "left", maintain_order="left")


def _read_deaths(folder: Path) -> pl.DataFrame:
    """When patients died, of those whom the table `patient` knows dead."""
    file = _find(folder, "patient")
    if file is None or "death_dttm" not in column_names(file):
        return pl.DataFrame(schema={"patient": pl.String, "death": pl.Datetime("us")})
    rows = _table(file, ("patient_id", "death_dttm"), key="patient_id")
    rows = rows.filter(pl.col("death_dttm").is_not_null())
    deaths = rows.select(patient=pl.col("patient_id"), death=_times(rows, "death_dttm", file))
    return deaths.unique("patient", keep="first", maintain_order=True)


def _read_hemodynamics(folder: Path, stays: list[str], config: ChartedConfig):
    """Central venous and pulmonary pressures, if they are asked for."""
    if not config.wants(*_HEMODYNAMICS.values()):
        return None
    file, category = _require(folder, "invasive_hemodynamics"), _small("measurement_category")
    wanted = (STAY, "recorded_dttm", "measurement_category", "measurement_value")
    rows = _table(file, wanted, stays, category.is_in(list(_HEMODYNAMICS)))
    time = _times(rows, "recorded_dttm", file)
    return rows.select(
        stay=pl.col(STAY),
        name=category.replace_strict(_HEMODYNAMICS, return_dtype=pl.String),
        time=time,
        stored=time.dt.offset_by(_delay(config)),
        value=pl.col("measurement_value").cast(pl.Float64, strict=False),
    )


def _read_labs(folder: Path, stays: list[str], config: ChartedConfig):
    """Lactate by the time of its blood, known when its result was, if it is asked for."""
    if not config.wants("lactate"):
        return None
    file = _require(folder, "labs")
    unit = [name for name in ("reference_unit",) if name in column_names(file)]
    times = ("lab_collect_dttm", "lab_result_dttm")
    wanted = (STAY, "lab_category", *times, "lab_value_numeric", *unit)
    rows = _table(file, wanted, stays, _small("lab_category") == "lactate")
    if unit:
        wrong = ~_small("reference_unit").is_in(["mmol/l", "meq/l"])
        for row in rows.filter(wrong).iter_rows(named=True):
            raise RecordingError(
                f"{file}, row {row['row']}: expected lactate in mmol/L, got "
                f"{row['reference_unit']!r}; convert the values, or leave these rows out."
            )
    return rows.select(
        stay=pl.col(STAY),
        name=pl.lit("lactate"),
        time=_times(rows, "lab_collect_dttm", file),
        stored=_times(rows, "lab_result_dttm", file),
        value=pl.col("lab_value_numeric").cast(pl.Float64, strict=False),
    )


def _read_vitals(
    folder: Path, stays: list[str], config: ChartedConfig, findings: dict[str, int]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Heart rate and pressures of stays with support, and their first weight."""
    file = _require(folder, "vitals")
    known = column_names(file)
    names = [name for name in ("vital_name", "meas_site_name", "measured_dttm") if name in known]
    wanted = (STAY, "recorded_dttm", "vital_category", "vital_value", *names)
    category = _small("vital_category")
    rows = _table(file, wanted, stays, category.is_in([*_VITALS, "weight_kg"]))
    recorded = _times(rows, "recorded_dttm", file)
    time = _times(rows, "measured_dttm", file) if "measured_dttm" in known else recorded
    stored = recorded if "measured_dttm" in known else time.dt.offset_by(_delay(config))
    said = pl.concat_str(
        [pl.col(name) for name in names[:2] if "dttm" not in name] or pl.lit(""),
        separator=" ",
        ignore_nulls=True,
    ).str.to_lowercase()
    prefix = (
        pl.when(said.str.contains(_CUFF))
        .then(pl.lit("cuff "))
        .when(said.str.contains(_ARTERIAL))
        .then(pl.lit(""))
    )
    name = category.replace_strict(_VITALS, default=None, return_dtype=pl.String)
    rows = rows.select(
        stay=pl.col(STAY),
        name=pl.when(name == "hr").then(name).otherwise(prefix + name),
        time=time,
        stored=stored,
        value=pl.col("vital_value").cast(pl.Float64, strict=False),
        category=category,
    )
    is_weight = pl.col("category") == "weight_kg"
    weight = rows.filter(is_weight).sort("time")
    unnamed = rows.filter(pl.col("name").is_null() & ~is_weight)
    if unnamed.height:
        findings["pressures that do not say where they were taken"] = unnamed.height
    if config.wants("weight"):
        name = pl.when(is_weight).then(pl.lit("weight")).otherwise(pl.col("name"))
        rows = rows.with_columns(name=name)
    entries = rows.drop_nulls("name").drop("category")
    weights = weight.group_by("stay").agg(weight=pl.col("value").first())
    return entries, weights


def _read_doses(
    folder: Path, stays: list[str], weights: pl.DataFrame, config: ChartedConfig
) -> pl.DataFrame | None:
    file = _find(folder, "medication_admin_continuous")
    if file is None:
        return None
    wanted = (STAY, "admin_dttm", "med_category", "mar_action_category", "med_dose")
    category = _small("med_category")
    rows = _table(file, (*wanted, "med_dose_unit"), stays, category.is_in(list(DRUGS)))
    time = _times(rows, "admin_dttm", file)
    over = _small("mar_action_category").is_in(_STOPPED)
    doses = rows.select(
        "row",
        stay=pl.col(STAY),
        drug=category,
        time=time,
        stored=time.dt.offset_by(_delay(config)),
        dose=pl.when(over).then(0.0).otherwise(pl.col("med_dose").cast(pl.Float64, strict=False)),
        unit=pl.col("med_dose_unit"),
    ).drop_nulls("dose")
    doses = doses.join(weights, "stay", "left", maintain_order="left")
    shares = add_shares(doses, str(file))
    return shares.select("stay", "drug", "time", "stored", "nee", "vis")


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def _find(folder: Path, table: str) -> Path | None:
    found = [folder / f"clif_{table}{ending}" for ending in (".parquet", ".csv")]
    there = [file for file in found if file.is_file()]
    if len(there) > 1:
        raise RecordingError(
            f"{folder}: expected clif_{table} once, got it as Parquet and as CSV; remove one."
        )
    return there[0] if there else None


def _require(folder: Path, table: str) -> Path:
    file = _find(folder, table)
    if file is None:
        raise RecordingError(
            f"{folder}: expected the table clif_{table}.parquet or .csv, found none; name the "
            "folder that holds the tables."
        )
    return file


def _table(
    file: Path,
    wanted: Iterable[str],
    stays: list[str] | None = None,
    kept: pl.Expr | None = None,
    key: str = STAY,
) -> pl.DataFrame:
    """The wanted columns, with the number of each row in the file; ids as text."""
    _require_end(file)
    pieces, first = [], 1
    for batch in read_batches(file, list(wanted)):
        rows = batch.with_columns(pl.col(key).cast(pl.String)).with_row_index("row", first)
        first += batch.height
        if stays is not None:
            rows = rows.filter(pl.col(STAY).is_in(stays))
        pieces.append(rows if kept is None else rows.filter(kept))
    if not pieces:
        raise RecordingError(f"{file}: expected rows, got none; export it again.")
    return pl.concat(pieces)


def _require_end(file: Path) -> None:
    """Refuse a text file whose last line lacks cells: it was cut off while it was copied."""
    if file.suffix != ".csv":
        return
    with file.open("rb") as stream:
        stream.seek(max(file.stat().st_size - _LONGEST_LINE, 0))
        end = stream.read()
    last = end[end.rfind(b"\n") + 1 :].decode("utf-8", "replace")
    cells, names = next(csv.reader([last]), []), column_names(file)
    if cells and len(cells) < len(names):
        raise RecordingError(
            f"{file}: expected {len(names)} cells in the last row, got {len(cells)}; the file was "
            "cut off, copy it again."
        )


def _times(rows: pl.DataFrame, column: str, file: Path) -> pl.Series:
    """UTC without a zone, out of text or times; a row without one is refused."""
    given = rows[column]
    if isinstance(given.dtype, pl.Datetime):
        zone = given.dtype.time_zone
        read = given if zone is None else given.dt.convert_time_zone("UTC")
        read = read.dt.replace_time_zone(None).cast(pl.Datetime("us"))
    else:
        plain = given.cast(pl.String).str.strip_chars()
        plain = plain.str.replace(_STAMP, "${1} ${2}")
        read = plain.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="us")
    for row in rows.filter(read.is_null()).iter_rows(named=True):
        raise RecordingError(
            f"{file}, row {row['row']}: expected a time in UTC in {column}, got {row[column]!r}; "
            "correct the row or leave it out."
        )
    return read


def _small(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).str.strip_chars().str.to_lowercase()


def _delay(config: ChartedConfig) -> str:
    return f"{round(60 * config.delay)}s"
