"""Cohorts as files: one Parquet table of seen samples, and the truth behind it, kept apart.

`cohort.parquet` has one row per seen sample; a gap is a missing row. Tables that others wrote may
hold their numbers in any type that means the same: signals are kept in single precision, levels are
never rounded. `deaths.parquet` names the patients whose stay ended by death, where somebody told; a
folder without it tells of no death. `latents.safetensors` holds what no bedside knows. It exists to
judge policies: nothing that fits or chooses may read it. The same cohort gives the same bytes.
Writing goes through `artifacts.write_folder`, reading a folder verifies its manifest first.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import polars as pl
import safetensors.numpy

from stepdown.artifacts import (
    CONFIG,
    ArtifactError,
    arrays_from_bytes,
    check_folder,
    config_from_dict,
)
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, Latents
from stepdown.patients.recording import Fault, Recording
from stepdown.records.latents import arrays_to_latents, latents_to_arrays
from stepdown.signals import (
    HIGHEST,
    KNOWN,
    LOWEST,
    NAMES,
    REQUIRED,
    SAMPLE_MINUTES,
    Signal,
    columns_with,
)

KIND = "cohort"
COHORT, LATENTS, FAULTS = "cohort.parquet", "latents.safetensors", "faults.parquet"
DEATHS = "deaths.parquet"  # one row for each patient who died on support
JUDGING_ONLY = "for judging only: nothing that fits or chooses may read this file"

Types = dict[str, Any]  # column -> type of polars


def table_types(columns: tuple[str, ...]) -> Types:
    """The columns of the table of a cohort that records these signals, with their types."""
    signals = dict.fromkeys(columns, pl.Float32)
    return {"patient": pl.String, "minute": pl.Float64, **signals, "level": pl.Int32}


COLUMNS = table_types(NAMES)  # without further signals
WAVEFORM: Types = {
    "second": pl.Float64,
    **dict.fromkeys(("placement", "speed", "current"), pl.Float32),
}
_LONGEST = 100 * 24 * 60.0  # min; more is a calendar date or another unit


def cohort_table(cohort: Cohort) -> pl.DataFrame:
    """The seen samples, patient by patient; minutes count from the start of support."""
    row, step = np.nonzero(np.asarray(cohort.seen))
    signals = np.asarray(cohort.signals)[row, step]
    data = {
        "patient": np.asarray(cohort.patient)[row],
        "minute": step * float(cohort.minutes),
        **{name: signals[:, i] for i, name in enumerate(cohort.columns)},
        "level": np.asarray(cohort.level)[row, step],
    }
    return pl.DataFrame(data, schema_overrides=table_types(cohort.columns))


def death_table(cohort: Cohort) -> pl.DataFrame:
    """The patients who died at the end of their stay."""
    assert cohort.died is not None
    names = [x for x, died in zip(cohort.patient, np.asarray(cohort.died), strict=True) if died]
    return pl.DataFrame({"patient": names}, {"patient": pl.String})


def waveform_table(recording: Recording) -> pl.DataFrame:
    """A 25 Hz recording; a channel is NaN where nothing was measured."""
    channels = {name: np.asarray(getattr(recording, name)) for name in WAVEFORM}
    return pl.DataFrame(channels, schema_overrides=WAVEFORM)


def fault_table(faults: Iterable[Fault]) -> pl.DataFrame:
    """What the corruption layer did, one row per signal and stretch of samples."""
    types = {"patient": pl.String, "first": pl.Int32, "last": pl.Int32}
    schema = types | {"signal": pl.String, "kind": pl.String}
    return pl.DataFrame([asdict(fault) for fault in faults], schema)


def to_parquet(table: pl.DataFrame) -> Callable[[Path], None]:
    """Who writes this table to a file (for `write_folder`), every time the same bytes."""

    def write(file: Path) -> None:
        table.write_parquet(file, compression="zstd", compression_level=6, row_group_size=2**18)

    return write


def write_cohort(path: Path | str, cohort: Cohort) -> None:
    """Write a cohort to one Parquet file, a row for every sample.

    >>> sd.write_cohort("cohort.parquet", cohort)
    """
    to_parquet(cohort_table(cohort))(Path(path))


def read_cohort(path: Path | str) -> Cohort:
    """A cohort from a verified folder (simulated or imported), or from a bare Parquet file.

    >>> sd.read_cohort("cohort.parquet").patient == cohort.patient
    True
    """
    minutes, dead, path = None, None, Path(path)
    if path.is_dir():
        minutes = _saved_minutes(path)
        if (path / DEATHS).is_file():
            dead = _read_table(path / DEATHS)["patient"].to_list()
        path = path / COHORT
    table = check_table(_read_table(path), path)
    minutes = _interval(table) if minutes is None else minutes
    cohort = _to_grid(table, minutes, path)
    if dead is None:
        return cohort
    if unknown := sorted(set(dead) - set(cohort.patient)):
        raise ArtifactError(
            f"{path.with_name(DEATHS)}: expected patients of {COHORT}, got {unknown[0]!r}; "
            "export the cohort again."
        )
    return replace(cohort, died=jnp.asarray(np.isin(cohort.patient, dead)))


def check_table(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    """The table in our types; refused if it is no cohort or its numbers cannot be in our units."""
    types = table_types(columns_with(table.columns))
    _check_names(table, types, path)
    wide = pl.DataFrame([_widened(table[name], types, path) for name in types])
    # Others write NaN where a whole number is missing.
    wide = wide.with_columns(pl.col("level").fill_nan(None))
    _check_values(wide, path)
    return wide.cast(pl.Schema(types))


def latents_to_bytes(latents: Latents) -> bytes:
    """Every array of the truth under its path in the tree, in safetensors form."""
    return safetensors.numpy.save(latents_to_arrays(latents), {"use": JUDGING_ONLY})


def read_recipe(folder: Path) -> CohortConfig:
    """What a simulated cohort was made by."""
    check_folder(folder, KIND)
    stored = json.loads((folder / CONFIG).read_bytes())
    stored = {"version": 1, **stored}  # cohorts before version 2 do not say theirs
    return config_from_dict(stored, CohortConfig, str(folder / CONFIG))


def read_latents(folder: Path) -> Latents:
    """The truth behind a simulated cohort. For judging only: never fit or choose with it."""
    config = read_recipe(folder)
    saved = arrays_from_bytes((folder / LATENTS).read_bytes())
    return arrays_to_latents(saved, config, str(folder / LATENTS))


def _saved_minutes(folder: Path) -> float:
    """Time between samples of a verified folder, simulated or imported."""
    check_folder(folder, KIND)
    minutes = json.loads((folder / CONFIG).read_bytes()).get("minutes")
    if not isinstance(minutes, float) or not minutes > 0:
        raise ArtifactError(
            f"{folder / CONFIG}: expected minutes between samples, got {minutes!r}."
        )
    return minutes


def _read_table(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: expected a cohort folder or a Parquet file, found none; check the path."
        )
    try:
        return pl.read_parquet(path, glob=False)
    except pl.exceptions.PolarsError as error:
        raise ArtifactError(
            f"{path}: expected a Parquet table, got something else; export the cohort again."
        ) from error


def _check_names(table: pl.DataFrame, types: Types, path: Path) -> None:
    for name in [name for name in types if name not in table.columns]:
        raise ArtifactError(f"{path}: expected a column {name!r}, which is missing; add it.")
    for name in [name for name in table.columns if name not in types]:
        raise ArtifactError(f"{path}: expected no column {name!r}; rename or remove it.")
    if table.height == 0:
        raise ArtifactError(f"{path}: expected samples, got an empty table; export it again.")


def _widened(column: pl.Series, types: Types, path: Path) -> pl.Series:
    """Names as text and numbers in double precision, out of any type that means the same."""
    kind, given = types[column.name], column.dtype
    named = given.is_integer() or isinstance(given, (pl.String, pl.Categorical, pl.Enum))
    fits = named if kind == pl.String else given.is_numeric()
    if not fits and given != pl.Null:
        raise ArtifactError(
            f"{path}: expected column {column.name!r} as {kind.__name__}, got {given}; convert it."
        )
    return column.cast(pl.String if kind == pl.String else pl.Float64)


def _check_values(table: pl.DataFrame, path: Path) -> None:
    for name in ("patient", "minute", "level"):
        if count := table[name].null_count():
            raise ArtifactError(f"{path}: expected {name!r} in every row, {count} lack it.")
    minute = table["minute"].to_numpy()
    for odd in minute[~((minute >= 0) & (minute <= _LONGEST))]:
        raise ArtifactError(
            f"{path}: expected minutes since the start of support, got {odd:g}; "
            "subtract the start of each stay."
        )
    level = table["level"].to_numpy()
    for odd in level[(level < LOWEST) | (level > HIGHEST)]:
        raise ArtifactError(
            f"{path}: expected levels {LOWEST} to {HIGHEST}, got {odd:g}; "
            "end the stay before the pump is off."
        )
    for odd in level[level != np.rint(level)]:
        raise ArtifactError(
            f"{path}: expected whole levels, got {odd:g}; write the level that was set, "
            "none is rounded."
        )
    for name in columns_with(table.columns):
        _check_signal(table[name].to_numpy(), KNOWN[name], path)


def _check_signal(values: np.ndarray, signal: Signal, path: Path) -> None:
    """Refuse infinite values, and a column whose bulk cannot be in our unit.

    The median is asked, not every value: a glitch is for cleaning, a wrong unit is for the author.
    """
    huge = np.abs(values) > np.finfo(np.float32).max  # in the precision that signals are kept in
    for odd in values[huge]:
        told = "infinity" if np.isinf(odd) else f"{odd:g}"
        raise ArtifactError(f"{path}: expected finite {signal.name!r}, got {told}; leave it empty.")
    known = values[~np.isnan(values)]
    if not len(known) and signal.name in (NAMES[i] for i in REQUIRED):
        raise ArtifactError(
            f"{path}: expected values in {signal.name!r}, got none; it cannot be done without."
        )
    low, high = signal.soft
    if len(known) and not low <= np.median(known) <= high:
        raise ArtifactError(
            f"{path}: expected {signal.name!r} in {signal.unit}, mostly {low:g} to {high:g}, "
            f"got a median of {np.median(known):g}; convert the unit."
        )


def _interval(table: pl.DataFrame) -> float:
    """The usual time between two samples of a stay, min."""
    pauses = table.sort("patient", "minute").select(pl.col("minute").diff().over("patient"))
    known = pauses["minute"].drop_nulls().to_numpy()
    values, counts = np.unique(known[known > 0], return_counts=True)
    return float(values[np.argmax(counts)]) if len(values) else SAMPLE_MINUTES


def _to_grid(table: pl.DataFrame, minutes: float, path: Path) -> Cohort:
    columns = columns_with(table.columns)
    names = table["patient"].unique(maintain_order=True).to_list()
    number = {name: i for i, name in enumerate(names)}
    row = np.array([number[name] for name in table["patient"]])
    minute = table["minute"].to_numpy()
    step = np.rint(minute / minutes).astype(int)
    for odd in minute[np.abs(minute / minutes - step) > 1e-3]:
        raise ArtifactError(
            f"{path}: expected one sample every {minutes:g} min, got one at minute {odd:g}; "
            "resample to a regular grid."
        )
    shape = (len(names), int(step.max()) + 1)
    seen = np.zeros(shape, bool)
    seen[row, step] = True
    if seen.sum() < table.height:
        raise ArtifactError(f"{path}: expected one row per patient and minute; remove duplicates.")
    signals = np.full((*shape, len(columns)), np.nan, np.float32)
    signals[row, step] = table.select(columns).to_numpy()
    level = np.zeros(shape, np.int32)
    level[row, step] = table["level"].to_numpy()
    return Cohort(
        signals=jnp.asarray(signals),
        level=jnp.asarray(level),
        seen=jnp.asarray(seen),
        patient=tuple(names),
        minutes=float(minutes),
        columns=columns,
    )
