"""Hospital tables to a cohort folder, with the flow of stays into it on its card."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from stepdown.artifacts import (
    CONFIG,
    Content,
    config_to_dict,
    provenance,
    require_free,
    to_json,
    write_folder,
)
from stepdown.experiment.cohort_folder import FLOW
from stepdown.experiment.progress import progress
from stepdown.patients.pump import load_profile
from stepdown.records import files
from stepdown.records.charted import Charted, ChartedConfig, make_charted
from stepdown.records.clif import read_clif
from stepdown.records.importer import pseudonym
from stepdown.records.mimic import read_mimic
from stepdown.records.readers import RecordingError
from stepdown.report.flow_figure import draw_flow
from stepdown.signals import KNOWN

Format = Literal["clif", "mimic-iv"]
READERS = {"clif": read_clif, "mimic-iv": read_mimic}
CARD, COUNTS, ENDS = "card.md", "flow.json", "stays.parquet"


@dataclass(frozen=True)
class ChartedRecord:
    """What is saved about an import of hospital tables."""

    minutes: float
    profile: str
    origin: Format
    charted: ChartedConfig


def import_charted(
    folder: Path,
    origin: Format,
    config: ChartedConfig,
    profile: str,
    out: Path,
    secret: bytes | None,
) -> str:
    """Write the cohort or nothing, and say what it is."""
    load_profile(profile)  # an unknown one is refused before any work
    require_free(out)
    work = out.parent / f".{out.name}.unfinished"
    try:
        with progress("reading tables") as watch:
            charts = READERS[origin](folder, config, watch, work)
        made = make_charted(charts, config, folder)
    except RecordingError:  # only an interrupted import has something to go on with
        shutil.rmtree(work, ignore_errors=True)
        raise
    names = tuple(pseudonym(name, secret, folder) for name in made.cohort.patient)
    ends = made.ends.with_columns(pl.Series("patient", names))
    made = made._replace(cohort=replace(made.cohort, patient=names), ends=ends)
    record = ChartedRecord(made.cohort.minutes, profile, origin, config)
    counts = {"stays": made.flow, "findings": made.findings, "stored late": made.late}
    content: dict[str, Content] = {
        files.COHORT: files.to_parquet(files.cohort_table(made.cohort)),
        CONFIG: to_json(config_to_dict(record)),
        COUNTS: to_json({name: dict(rows) for name, rows in counts.items()}),
        FLOW: draw_flow(made.flow),
        ENDS: files.to_parquet(made.ends),
        CARD: charted_card(made, record).encode(),
    }
    if made.cohort.died is not None:
        content[files.DEATHS] = files.to_parquet(files.death_table(made.cohort))
    about = provenance(config=record) | {"imported": True}
    write_folder(out, content, kind=files.KIND, about=about)
    shutil.rmtree(work, ignore_errors=True)
    lines = [_size(made), *(f"{words}: {count:,}" for words, count in made.flow)]
    lines += [f"ATTENTION: {count:,} {words}." for words, count in made.findings]
    return "\n".join(lines) + "\n"


def charted_card(made: Charted, record: ChartedRecord) -> str:
    """What was imported, from which stays, and what was assumed."""
    cohort, config = made.cohort, record.charted
    known = np.isfinite(np.asarray(cohort.signals))[np.asarray(cohort.seen)].mean(0)
    signals = [
        f"| `{name}` | {KNOWN[name].unit} | {f'{share:.0%}' if share else 'missing'} |"
        for name, share in zip(cohort.columns, known, strict=True)
    ]
    parts = [
        "# Dataset card: charted stays",
        "**Hospital tables, imported; not checked by a clinician; not for care.**",
        _size(made),
        f"Read as {record.origin}. {_PREPARED} Pump: {config.device}. Pressures: {config.pressure} "
        f"only. A charted level is believed for {config.carry:g} h, by its chart time. Where a "
        f"table has no store time, {config.delay:g} min are assumed. There is no truth behind "
        "recordings, hence no latents.",
        "## Flow of stays",
        f"![Flow of stays]({FLOW})",
        _table(("stays", "number"), made.flow),
        "## Who they are",
        "Of each stay the hours, and the first value known of each column: median and quartiles.",
        _characteristics(made),
        "## How support ended",
        "By the tables: turned off (P0 or P1), death or the end of the stay within "
        f"{config.carry:g} h of the last charted level, or levels that were no longer charted. In "
        f"`{ENDS}`, for reports; no state knows it. {_FATES[cohort.died is not None]}",
        _table(("support", "stays"), _counts(made.ends["ended"])),
        _table(("hospital stay", "stays"), _counts(made.ends["died"])),
        "## Signals",
        "\n".join(["| signal | unit | hours that have it |", "|---|---|---|", *signals]),
        "## Odd entries",
        _table(("not used", "number"), made.findings) if made.findings else "None.",
        "## Stored too late",
        "Entries that were stored after the hour in which they were charted. Nobody knew them when "
        "the next hour was decided, so they are in no state. Levels are only counted here: the "
        "pump shows its own, so they hold from their chart time.",
        _table(("signal", "entries"), made.late),
        "## For a report by TRIPOD+AI",
        _reporting(made, record),
    ]
    return "\n\n".join(parts) + "\n"


_PREPARED = (
    "One row an hour, counted from the first charted level: the last value charted in the hour and "
    "stored by its end, the level that held most of it, the drugs in force at its end."
)

_FATES = {
    True: f"A death on support ends its stay for good (`{files.DEATHS}`): what would have followed "
    "counts as the worst there is.",
    False: "The tables do not say who died, so no stay ends by death.",
}


def _characteristics(made: Charted) -> str:
    """Median and quartiles over stays."""
    values = {"hours of support with a row, h": made.ends["hours"].to_numpy().astype(float)}
    signals, level = np.asarray(made.cohort.signals), np.asarray(made.cohort.level)
    values["first level, P"] = level[:, 0].astype(float)
    for i, name in enumerate(made.cohort.columns):
        known = np.isfinite(signals[..., i])
        first = np.take_along_axis(signals[..., i], known.argmax(1)[:, None], 1)[:, 0]
        if known.any():
            values[f"{KNOWN[name].label}, {KNOWN[name].unit}"] = first[known.any(1)]
    rows = []
    for words, found in values.items():
        low, middle, high = np.quantile(found, [0.25, 0.5, 0.75])
        rows.append(f"| {words} | {middle:.4g} ({low:.4g} to {high:.4g}) | {len(found):,} |")
    return "\n".join(["| what | median (quartiles) | stays |", "|---|---|---|", *rows])


def _reporting(made: Charted, record: ChartedRecord) -> str:
    """Items that an import knows; the others are named, so that nobody thinks them done."""
    config, flow = record.charted, dict(made.flow)
    held = np.isfinite(np.asarray(made.cohort.signals)).any((0, 1)).sum()
    rows = [
        ("source of data", f"routine charts, read as {record.origin}"),
        (
            "dates",
            "not on this card, since tables may hold shifted ones; see the page of the data",
        ),
        (
            "eligibility",
            f"left-sided pump of type {config.device} alone, {config.pressure} pressures, a "
            "charted level, two hours in a row with all that is required, first such stay",
        ),
        ("treatment under study", "the level of the pump, P2 to P9, hour by hour"),
        ("preparation of data", _PREPARED),
        (
            "outcomes",
            "hours that follow a decision (docs/definitions.md); how support ended, above",
        ),
        ("predictors", f"{held} columns with values, and the level; see Signals"),
        ("sample size", f"{_size(made)} No sample size was computed by the import"),
        ("missing data", "left empty, nothing filled in by the import; shares under Signals"),
        ("participants", f"{flow['taken']:,} of {made.flow[0][1]:,} stays; flow and table above"),
    ]
    left = (
        "Left to the authors: title, abstract, background and objectives, setting and years, "
        "ethics, funding and conflicts, protocol and registration, patient involvement, fairness "
        "across groups that these columns do not name, interpretation. Methods, performance and "
        "limitations are on the report of the run."
    )
    lines = [f"| {item} | {words} |" for item, words in rows]
    return "\n".join(["| item | what the import knows |", "|---|---|", *lines, "", left])


def _counts(column: pl.Series) -> list[tuple[str, int]]:
    """How often each value occurs, the most frequent first."""
    words: dict[Any, str] = {True: "died", False: "survived", None: "not known"}
    found = column.value_counts().sort(["count", column.name], descending=[True, False])
    return [(words.get(value, str(value)), count) for value, count in found.iter_rows()]


def _size(made: Charted) -> str:
    hours = int(np.sum(made.cohort.seen))
    return f"{len(made.cohort.patient):,} stays, {hours:,} hours."


def _table(head: tuple[str, str], rows: Sequence[tuple[str, int]]) -> str:
    lines = [f"| {words} | {count:,} |" for words, count in rows]
    return "\n".join([f"| {head[0]} | {head[1]} |", "|---|---|", *lines])
