"""`stepdown doctor`: look at a recording and say what is wrong with it, in words.

Without a mapping file a foreign table is read through a proposed one, and every column is
reported as undeclared (D08): a proposal is for people to confirm. Every stay goes the way of the
import, short of writing anything, so what the import would refuse is said here in the same words.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from stepdown.commands.import_recordings import warnings
from stepdown.patients.pump import load_profile
from stepdown.problem.hours import count_decisions
from stepdown.records.dialects import QuestionError, find_layout, in_words, settle
from stepdown.records.findings import SCHEMA, Finding, counted, to_machine, to_words
from stepdown.records.importer import ImportConfig, Stay, combine, look
from stepdown.records.mapping import Columns, MappingError, read_mapping
from stepdown.records.proposal import Proposal, propose_mapping
from stepdown.records.readers import (
    RecordingError,
    column_names,
    is_text,
    own_rate,
    read_batches,
)
from stepdown.records.stays import Trace, own_columns, recordings
from stepdown.report.doctor_page import PLOTTED, doctor_page, worst_first
from stepdown.signals import NAMES

NEEDS_ACTION = 1  # exit code


@dataclass(frozen=True)
class DoctorConfig:
    """Say what is wrong with a recording and propose a mapping file."""

    file: Positional[Path]  # recording, or folder of recordings
    columns: Path | None = None  # mapping file; without one, one is proposed
    html: Path | None = None  # also write a page with plots
    json: bool = False  # print the findings for machines
    profile: str = "cp"  # pump profile that levels and speeds must match


def doctor(config: DoctorConfig) -> int:
    """Print what was found; 1 if anything needs action before import, otherwise 0."""
    load_profile(config.profile)  # an unknown one is refused before any work
    if config.html is not None and not config.html.parent.is_dir():
        raise FileNotFoundError(
            f"--html: expected a file in an existing folder, got {config.html}; make the folder."
        )
    declared = None if config.columns is None else read_mapping(config.columns)
    found = _Found()
    for file in recordings(config.file):
        columns, found.proposal = _columns(file, declared, found.proposal)
        _examine_file(file, columns, config, found)
    found.findings.append(_verdict(config.file, found))
    toml = found.proposal.toml if found.proposal else ""
    if config.html is not None:
        page = doctor_page(config.file.name, found.plotted, found.findings, toml)
        config.html.write_text(page, encoding="utf-8")
    sys.stdout.write(_report(config, found, toml))
    return NEEDS_ACTION if any(f.severity == "action" for f in found.findings) else 0


@dataclass
class _Found:
    """What was found so far, file by file."""

    findings: list[Finding] = field(default_factory=list)
    plotted: list[Trace] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)  # as the import would write them
    refused: int = 0
    read_as: list[str] = field(default_factory=list)
    signals: tuple[str, ...] = NAMES  # columns of the cohort
    proposal: Proposal | None = None


def _report(config: DoctorConfig, found: _Found, toml: str) -> str:
    if config.json:
        content: dict[str, Any] = {"schema": SCHEMA, "file": config.file.name}
        content |= {"read_as": found.read_as}
        content |= {"findings": to_machine(found.findings), "proposed_mapping": toml or None}
        return json.dumps(content, indent=2, allow_nan=False) + "\n"
    proposed = f"A proposed mapping file, to confirm:\n\n{toml}\n" if toml else ""
    read_as = "".join(f"File {words}.\n" for words in found.read_as)
    return f"{proposed}{read_as}{to_words(found.findings)}\n"


def _columns(
    file: Path, declared: Columns | None, known: Proposal | None
) -> tuple[Columns, Proposal | None]:
    """How to read a file: as declared, as our own, or as proposed; settled in any case."""
    layout = find_layout(file, declared)
    columns = declared or own_columns(column_names(file, layout))
    if columns is not None:
        return settle(file, columns), known
    proposal = known
    if proposal is None:
        frame = next(iter(read_batches(file, None, layout)), None)
        if frame is None:
            raise MappingError(f"{file}: expected rows, got none; export it again.")
        proposal = propose_mapping(frame, own_rate(file), layout if is_text(file) else None)
    if proposal.columns is None:
        raise MappingError(
            f"{file}: expected columns that can be recognized, got too few ({proposal.problem}). "
            f"Complete this mapping and pass it with --columns:\n\n{proposal.toml}"
        )
    try:
        return settle(file, proposal.columns), proposal
    except QuestionError as question:
        raise QuestionError(
            f"{question} Complete this mapping with it and pass it with --columns:\n\n"
            f"{proposal.toml}"
        ) from question


def _examine_file(file: Path, columns: Columns, config: DoctorConfig, found: _Found) -> None:
    """Add what is in one file."""
    found.signals = columns.recorded
    if found.proposal:
        found.findings += _undeclared(file, columns, found.proposal)
    words = in_words(file, columns)
    if words not in found.read_as:
        found.read_as.append(words)
    for looked in look(file, columns, ImportConfig(config.profile)):
        found.findings += looked.findings
        if looked.stay is not None:
            found.stays.append(looked.stay)
        else:
            found.refused += 1
            if not looked.found:
                patient = looked.trace.patient
                found.findings.append(
                    Finding("D18", "action", patient, "", (), 0, f"Refused: {looked.refusal}")
                )
        if config.html is not None:
            found.plotted = worst_first([*found.plotted, looked.trace], found.findings)[:PLOTTED]


def _verdict(path: Path, found: _Found) -> Finding:
    """Whether the import takes the recordings, and how much of them."""
    if found.refused:
        sentence = f"{counted(found.refused, 'stay')} would be refused, for what needs action here."
        return Finding("D18", "action", "", "", (), found.refused, sentence)
    try:
        cohort, _, intake = combine(found.stays, found.signals, path)
    except RecordingError as error:
        return Finding("D18", "action", "", "", (), 0, f"Refused: {error}")
    told = [
        f"{intake.kept:,} of {intake.recorded:,} recorded blocks of ten minutes would be imported, "
        f"{count_decisions(cohort):,} of {intake.possible:,} decisions.",
        *(f"{words[0].upper()}{words[1:]}." for words in intake.losses()),
    ]
    severity = "check" if warnings(cohort, intake) else "note"
    return Finding("D18", severity, "", "", (), intake.kept, " ".join(told))


def _undeclared(file: Path, columns: Columns, proposal: Proposal) -> list[Finding]:
    """One finding per column: nobody has declared its unit yet."""
    units = {name: theirs.unit for name, theirs in columns.signals}
    words = "No unit is declared; {} is proposed: {}."
    return [
        Finding(
            "D08", "action", file.name, name, (), 0, words.format(units[name], reason),
            (units[name],),
        )
        for name, reason in proposal.reasons.items()
    ]  # fmt: skip
