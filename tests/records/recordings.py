"""Recordings in foreign formats, for the tests of everything that reads them."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import h5py
import jax.numpy as jnp
import numpy as np
import polars as pl

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # wfdb warns about the pandas that it imports
    import wfdb

from stepdown.handover import Cohort
from stepdown.patients.recording import Recording
from stepdown.records.files import waveform_table
from stepdown.signals import columns_with

UNITS = {"placement": "mmHg", "speed": "rpm", "current": "mA"}
WAVES = {
    "kind": "waveforms",
    "time": {"column": "second", "unit": "s"},
    "signals": {name: {"column": name, "unit": unit} for name, unit in UNITS.items()},
}
WFDB_WAVES = {key: value for key, value in WAVES.items() if key != "time"}
VALUES = {
    "kind": "values",
    "patient": {"column": "patient"},
    "time": {"column": "minute", "unit": "min"},
    "level": {"column": "level"},
    "signals": {
        "map": {"column": "map", "unit": "mmHg"},
        "hr": {"column": "hr", "unit": "/min"},
        "pulsatility": {"column": "pulsatility", "unit": "mmHg"},
    },
}


def write_waveform(recording: Recording, path: Path) -> Path:
    """The recording in the format that the ending names."""
    table = waveform_table(recording)
    if path.suffix == ".csv":
        table.write_csv(path)
    if path.suffix == ".parquet":
        table.write_parquet(path)
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name in table.columns:
                file.create_dataset(name, data=table[name].to_numpy(), compression="gzip")
    if path.suffix == ".hea":
        _write_wfdb(table, path)
    return path


def _write_wfdb(table: pl.DataFrame, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wfdb.wrsamp(
            path.stem,
            fs=25,
            units=list(UNITS.values()),
            sig_name=list(UNITS),
            p_signal=table.select(list(UNITS)).to_numpy().astype(float),
            fmt=["32"] * 3,
            adc_gain=[4.0, 1.0, 1.0],  # digits of the simulated sensors: 0.25 mmHg, rpm, mA
            baseline=[0, 0, 0],
            write_dir=str(path.parent),
        )


def value_table(
    patient="a", rows=36, minutes=10.0, level: int | np.ndarray = 6, start=0.0
) -> pl.DataFrame:
    """Lively values of one patient; `map` counts the rows."""
    number = np.arange(rows)
    wave = np.sin(number)
    return pl.DataFrame(
        {
            "patient": [patient] * rows,
            "minute": start + minutes * number,
            "level": np.broadcast_to(np.asarray(level), (rows,)),
            "map": 60.0 + number / 4,
            "hr": 80 + 5 * wave,
            "pulsatility": 25 + 3 * wave,
        }
    )


def with_lactate(cohort: Cohort) -> Cohort:
    """The same stays with a further column, which differs from sample to sample."""
    shape = cohort.seen.shape
    lactate = 2 + np.random.default_rng(9).random(shape)
    lactate = np.where(cohort.seen, lactate, np.nan).astype(np.float32)
    signals = np.concatenate([np.asarray(cohort.signals), lactate[..., None]], axis=2)
    return replace(cohort, signals=jnp.asarray(signals), columns=columns_with(["lactate"]))


def mapping_file(folder: Path, mapping: dict = VALUES) -> Path:
    """The mapping as TOML; JSON's tables are not, but its strings and numbers are."""
    lines = [f'kind = "{mapping["kind"]}"']
    for name in ("patient", "time", "level"):
        if name in mapping:
            lines += [f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in mapping[name].items())]
    for name, entry in mapping["signals"].items():
        lines += [f"[signals.{name}]", *(f"{k} = {json.dumps(v)}" for k, v in entry.items())]
    (folder / "mapping.toml").write_text("\n".join(lines))
    return folder / "mapping.toml"


def import_words(folder: Path, source: Path, *more: str) -> list[str]:
    """The command that imports a recording through the mapping of the folder."""
    mapping = folder / "mapping.toml"
    return ["import", str(source), "--columns", str(mapping), "--out", str(folder / "out"), *more]
