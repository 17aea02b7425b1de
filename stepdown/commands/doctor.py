"""`stepdown doctor`: look at a recording and say what is wrong with it, in words.

Without a mapping file a foreign table is read through a proposed one, and every column is
reported as undeclared (D08): a proposal is for people to confirm.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from stepdown.patients.pump import PumpProfile, load_profile
from stepdown.records.doctor import examine
from stepdown.records.findings import SCHEMA, Finding, to_machine, to_words
from stepdown.records.mapping import Columns, MappingError, read_mapping
from stepdown.records.proposal import Proposal, propose_mapping
from stepdown.records.readers import column_names, own_rate, read_batches
from stepdown.records.stays import Trace, own_columns, read_traces, recordings
from stepdown.report.doctor_page import PLOTTED, doctor_page, worst_first

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
    profile = load_profile(config.profile)
    if config.html is not None and not config.html.parent.is_dir():
        raise FileNotFoundError(
            f"--html: expected a file in an existing folder, got {config.html}; make the folder."
        )
    declared = None if config.columns is None else read_mapping(config.columns)
    findings: list[Finding] = []
    plotted: list[Trace] = []
    proposal: Proposal | None = None
    for file in recordings(config.file):
        columns, proposal = _columns(file, declared, proposal)
        found, traces = _examine_file(file, columns, proposal, profile)
        findings += found
        if config.html is not None:
            plotted = worst_first([*plotted, *traces], findings)[:PLOTTED]
    toml = proposal.toml if proposal else ""
    if config.html is not None:
        page = doctor_page(config.file.name, plotted, findings, toml)
        config.html.write_text(page, encoding="utf-8")
    sys.stdout.write(_report(config, findings, toml))
    return NEEDS_ACTION if any(f.severity == "action" for f in findings) else 0


def _report(config: DoctorConfig, findings: list[Finding], toml: str) -> str:
    if config.json:
        content: dict[str, Any] = {"schema": SCHEMA, "file": config.file.name}
        content |= {"findings": to_machine(findings), "proposed_mapping": toml or None}
        return json.dumps(content, indent=2, allow_nan=False) + "\n"
    proposed = f"A proposed mapping file, to confirm:\n\n{toml}\n" if toml else ""
    return f"{proposed}{to_words(findings)}\n"


def _columns(
    file: Path, declared: Columns | None, known: Proposal | None
) -> tuple[Columns, Proposal | None]:
    """How to read a file: as declared, as our own, or as proposed."""
    columns = declared or own_columns(column_names(file))
    if columns is not None:
        return columns, known
    proposal = known
    if proposal is None:
        frame = next(iter(read_batches(file)), None)
        if frame is None:
            raise MappingError(f"{file}: expected rows, got none; export it again.")
        proposal = propose_mapping(frame, own_rate(file))
    if proposal.columns is None:
        raise MappingError(
            f"{file}: expected columns that can be recognized, got too few ({proposal.problem}). "
            f"Complete this mapping and pass it with --columns:\n\n{proposal.toml}"
        )
    return proposal.columns, proposal


def _examine_file(
    file: Path, columns: Columns, proposal: Proposal | None, profile: PumpProfile
) -> tuple[list[Finding], list[Trace]]:
    findings = _undeclared(file, columns, proposal) if proposal else []
    traces: list[Trace] = []
    for trace in read_traces(file, columns):
        findings += examine(trace, profile)
        traces = worst_first([*traces, trace], findings)[:PLOTTED]
    return findings, traces


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
