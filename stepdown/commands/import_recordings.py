"""`stepdown import`: recordings in, a cohort folder out, laid out as by `stepdown simulate`.

Recordings come through a mapping file (`--columns`), hospital tables by their format (`--from`).
"""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import Positional, arg

from stepdown.artifacts import (
    CONFIG,
    Content,
    config_to_dict,
    provenance,
    require_free,
    write_folder,
)
from stepdown.commands.import_charted import Format, import_charted
from stepdown.experiment.imports import read_on_ray
from stepdown.experiment.progress import progress
from stepdown.handover import Cohort
from stepdown.problem.hours import count_decisions
from stepdown.records import files
from stepdown.records.charted import ChartedConfig, Device, Further, Pressure
from stepdown.records.cleaning import CleaningConfig, LogRow
from stepdown.records.importer import ImportConfig, Intake, import_cohort
from stepdown.records.mapping import Columns, MappingError, read_mapping
from stepdown.records.readers import RecordingError
from stepdown.signals import KNOWN

CARD, LOG = "card.md", "log.json"
MUCH_EMPTIED, FEW_DECISIONS = 0.05, 0.5  # shares that are told first
_SHORTEST_KEY = 16  # bytes


@dataclass(frozen=True)
class ImportCommand:
    """Import recordings into a cohort folder."""

    file: Positional[Path]  # recording (.csv, .parquet, .h5, .hdf5, .hea), or a folder of them
    out: Path  # new folder for the cohort
    columns: Path | None = None  # mapping file that names columns and units
    origin: Annotated[Format | None, arg(name="from")] = None  # hospital tables of this format
    profile: str = "cp"  # pump profile
    workers: int = 1  # processes that read files side by side
    ray: str | None = None  # "auto" or the address of a Ray cluster: files are read there
    secret: Path | None = None  # secret that makes pseudonyms out of patient names
    accept_losses: bool = False  # import also where cleaning empties most of a signal
    leave_out: bool = False  # leave out stays that need action, instead of refusing all
    device: Device = ChartedConfig.device  # with --from: the one pump that is followed
    pressure: Pressure = ChartedConfig.pressure  # with --from: where pressures were taken
    carry: float = ChartedConfig.carry  # with --from: hours for which a charted level is believed
    delay: float = ChartedConfig.delay  # with --from: minutes to storage where no table says it
    further: tuple[Further, ...] = ()  # with --from: columns beside signals and drugs


@dataclass(frozen=True)
class ImportRecord:
    """What is saved about an import."""

    minutes: float
    profile: str
    columns: Columns
    cleaning: CleaningConfig
    read_as: tuple[str, ...]  # how the files are written, as recognized


def import_recordings(command: ImportCommand) -> None:
    """Write the cohort, or nothing; finished files wait beside it if the work is interrupted."""
    if (command.columns is None) == (command.origin is None):
        got = "neither" if command.columns is None else "both"
        raise ValueError(f"expected --columns FILE or --from FORMAT, got {got}.")
    if command.origin is not None:
        _import_tables(command, command.origin)
    elif command.columns is not None:
        _import_mapped(command, read_mapping(command.columns))


def _import_tables(command: ImportCommand, origin: Format) -> None:
    """Hospital tables of a known format."""
    if command.leave_out or command.accept_losses or command.workers != 1 or command.ray:
        raise ValueError("--leave-out, --accept-losses, --workers and --ray go with --columns.")
    chosen = (command.device, command.pressure, command.carry, command.delay, command.further)
    config = ChartedConfig(*chosen)
    secret = _read_secret(command.secret)
    said = import_charted(command.file, origin, config, command.profile, command.out, secret)
    sys.stdout.write(said)


def _import_mapped(command: ImportCommand, columns: Columns) -> None:
    """Recordings through a mapping."""
    if command.workers < 1:
        raise ValueError(f"--workers: expected at least 1, got {command.workers}.")
    require_free(command.out)
    secret = _read_secret(command.secret)
    config = ImportConfig(
        command.profile,
        command.workers,
        secret,
        accept_losses=command.accept_losses,
        leave_out=command.leave_out,
    )
    work = command.out.parent / f".{command.out.name}.unfinished"
    ahead = read_on_ray(command.ray, columns, config, work) if command.ray else None
    try:
        with progress("importing") as watch:
            cohort, log, intake = import_cohort(
                command.file, columns, config, work=work, watch=watch, ahead=ahead
            )
    except (RecordingError, MappingError):  # a question about the file is one about the mapping
        shutil.rmtree(work, ignore_errors=True)
        raise
    record = ImportRecord(cohort.minutes, command.profile, columns, config.cleaning, intake.read_as)
    content: dict[str, Content] = {
        files.COHORT: files.to_parquet(files.cohort_table(cohort)),
        CONFIG: _json(config_to_dict(record)),
        LOG: _json([vars(row) for row in log]),
        CARD: imported_card(cohort, record, log).encode(),
    }
    about = provenance(config=record) | {"imported": True}
    write_folder(command.out, content, kind=files.KIND, about=about)
    shutil.rmtree(work, ignore_errors=True)
    sys.stdout.write(_summary(cohort, log, intake))


def imported_card(cohort: Cohort, record: ImportRecord, log: tuple[LogRow, ...]) -> str:
    """What was imported, which signals it has, what was left out and why."""
    declared = {name: theirs.unit for name, theirs in record.columns.signals}
    there = {name: "yes" if has else "missing" for name, has in _known(cohort).items()}
    rows = [
        f"| `{name}` | {KNOWN[name].unit} | {words} | {declared.get(name, '')} |"
        for name, words in there.items()
    ]
    parts = [
        "# Dataset card: imported recordings",
        "**Real or foreign recordings, imported; not checked by a clinician; not for care.**",
        _size(cohort),
        " ".join(f"File {words}." for words in record.read_as),
        f"Read as {record.columns.kind} with pump profile `{record.profile}`; "
        f"one sample every {record.minutes:g} min. `config.json` holds the mapping, `log.json` "
        "what was left out, stay by stay. There is no truth behind recordings, hence no latents.",
        "## Signals",
        "\n".join(["| signal | unit | there | declared as |", "|---|---|---|---|", *rows]),
        "## Left out",
        "\n".join(f"- {line}" for line in _reasons(log)) or "Nothing.",
    ]
    return "\n\n".join(parts) + "\n"


def _summary(cohort: Cohort, log: tuple[LogRow, ...], intake: Intake) -> str:
    missing = [name for name, has in _known(cohort).items() if not has]
    lines = [*warnings(cohort, intake), *(f"File {words}." for words in intake.read_as)]
    lines += [_size(cohort), f"Missing signals: {', '.join(missing) or 'none'}."]
    lines += [f"Left out: {line}" for line in _reasons(log)]
    return "\n".join(lines) + "\n"


def warnings(cohort: Cohort, intake: Intake) -> list[str]:
    """What must not be overlooked: values that were emptied and decisions that are lost."""
    emptied = [
        f"{count:,} of {of:,} values of {name} ({100 * count / of:.0f} %) were left empty."
        for name, count, of in intake.emptied
        if count > MUCH_EMPTIED * of
    ]
    decisions = count_decisions(cohort)
    if decisions < FEW_DECISIONS * intake.possible:
        emptied.append(
            f"{decisions:,} of {intake.possible:,} decisions are left that the recorded hours "
            "could give."
        )
    return [f"ATTENTION: {line}" for line in emptied]


def _known(cohort: Cohort) -> dict[str, bool]:
    """Which of its columns the cohort has values in."""
    signals = np.asarray(cohort.signals)
    return {name: bool(np.isfinite(signals[..., i]).any()) for i, name in enumerate(cohort.columns)}


def _size(cohort: Cohort) -> str:
    hours = float(np.sum(cohort.seen)) * cohort.minutes / 60
    return f"{len(cohort.patient):,} stays, {hours:,.1f} hours."


def _reasons(log: tuple[LogRow, ...]) -> list[str]:
    """The log by reason, over all stays."""
    counts: dict[tuple[str, str], tuple[int, set[str]]] = {}
    for row in log:
        total, stays = counts.get((row.what, row.why), (0, set()))
        counts[row.what, row.why] = total + row.count, stays | {row.patient}
    return [
        f"{total:,} {what} in {len(stays):,} stays: {why}."
        for (what, why), (total, stays) in counts.items()
    ]


def _read_secret(file: Path | None) -> bytes | None:
    if file is None:
        return None
    secret = file.read_bytes().strip()
    if len(secret) < _SHORTEST_KEY:
        raise ValueError(
            f"{file}: expected a secret of at least {_SHORTEST_KEY} bytes, got {len(secret)}."
        )
    return secret


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
