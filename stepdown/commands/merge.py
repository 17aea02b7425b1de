"""`stepdown merge`: cohort folders in, one cohort folder out, each with its origin."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tyro.conf import Positional

from stepdown.artifacts import (
    CONFIG,
    Content,
    check_folder,
    config_to_dict,
    provenance,
    require_free,
    to_json,
    write_folder,
)
from stepdown.handover import Cohort
from stepdown.problem.hours import count_decisions
from stepdown.records import files
from stepdown.records.merge import merge_cohorts
from stepdown.records.split import read_profile

CARD = "card.md"
NO_TRUTH = (
    "The hidden truth of simulated patients is left behind: judge policies in the cohorts that "
    "they come from."
)


@dataclass(frozen=True)
class MergeConfig:
    """Merge cohort folders into one."""

    cohorts: Positional[tuple[Path, ...]]  # two cohort folders or more, simulated or imported
    out: Path  # new folder for the cohort
    prefix: bool = False  # put the name of its folder before every patient's


@dataclass(frozen=True)
class Source:
    """Where some of the patients come from."""

    name: str
    patients: int
    signals: tuple[str, ...]  # that any of them has
    sha256: str  # of its manifest


@dataclass(frozen=True)
class MergeRecord:
    """What is saved about a merged cohort."""

    minutes: float
    profile: str
    prefix: bool
    sources: tuple[Source, ...]


def merge(config: MergeConfig) -> None:
    """Write the merged cohort, or nothing."""
    names = [folder.resolve().name for folder in config.cohorts]
    if len(set(names)) < len(names):
        raise ValueError(
            f"expected folders of different names, got {', '.join(names)}; rename one, since the "
            "name says where a patient comes from."
        )
    require_free(config.out)
    manifests = {
        name: check_folder(folder, files.KIND)
        for name, folder in zip(names, config.cohorts, strict=True)
    }
    profile = _one_pump(config.cohorts)
    imported = _one_kind(manifests)
    cohorts = {
        name: files.read_cohort(folder) for name, folder in zip(names, config.cohorts, strict=True)
    }
    merged = merge_cohorts(cohorts, prefix=config.prefix)
    table = files.check_table(files.cohort_table(merged), config.out)
    sources = tuple(
        Source(name, len(cohort.patient), _measured(cohort), manifests[name]["sha256"])
        for name, cohort in cohorts.items()
    )
    record = MergeRecord(merged.minutes, profile, config.prefix, sources)
    lost = any(files.LATENTS in manifest["files"] for manifest in manifests.values())
    content: dict[str, Content] = {
        files.COHORT: files.to_parquet(table),
        CONFIG: to_json(config_to_dict(record)),
        CARD: _card(merged, record, lost).encode(),
    }
    if merged.died is not None:
        content[files.DEATHS] = files.to_parquet(files.death_table(merged))
    origin = {name: manifest["about"] for name, manifest in manifests.items()}
    about = provenance(config=record) | {"imported": imported, "merged": origin}
    write_folder(config.out, content, kind=files.KIND, about=about)
    sys.stdout.write(_summary(merged, record, lost))


def _one_pump(folders: tuple[Path, ...]) -> str:
    pumps = {folder: read_profile(folder, None) for folder in folders}
    if len(set(pumps.values())) > 1:
        told = ", ".join(f"{pump!r} in {folder.name}" for folder, pump in pumps.items())
        raise ValueError(
            f"expected cohorts of one pump, got {told}; a level of one pump is none of the other."
        )
    return next(iter(pumps.values()))


def _one_kind(manifests: dict[str, Any]) -> bool:
    """Whether all are recordings; simulated patients are not mixed with real ones."""
    kinds = {name: bool(x["about"].get("imported")) for name, x in manifests.items()}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{name} {'imported' if x else 'simulated'}" for name, x in kinds.items())
        raise ValueError(
            f"expected cohorts of one kind, got {told}. Keep simulated and recorded patients "
            "apart: no result could say which it is about."
        )
    return next(iter(kinds.values()))


def _measured(cohort: Cohort) -> tuple[str, ...]:
    known = np.isfinite(np.asarray(cohort.signals))
    return tuple(name for i, name in enumerate(cohort.columns) if known[..., i].any())


def _summary(merged: Cohort, record: MergeRecord, lost: bool) -> str:
    lines = [f"{source.name}: {source.patients:,} patients." for source in record.sources]
    lines.append(
        f"Merged: {len(merged.patient):,} patients, {count_decisions(merged):,} decisions."
    )
    lines += _partly(record) + ([NO_TRUTH] if lost else [])
    return "\n".join(lines) + "\n"


def _partly(record: MergeRecord) -> list[str]:
    """Signals that only some of the cohorts have."""
    everywhere = dict.fromkeys(name for source in record.sources for name in source.signals)
    lines = []
    for signal in everywhere:
        lacking = [source.name for source in record.sources if signal not in source.signals]
        if lacking:
            lines.append(f"{signal} is empty in the patients of {', '.join(lacking)}.")
    return lines


def _card(merged: Cohort, record: MergeRecord, lost: bool) -> str:
    rows = [
        f"| {source.name} | {source.patients:,} | {', '.join(source.signals)} | {source.sha256} |"
        for source in record.sources
    ]
    parts = [
        "# Dataset card: merged cohorts",
        "**Not checked by a clinician; not for care.**",
        f"{len(merged.patient):,} patients, one sample every {record.minutes:g} min, pump profile "
        f"`{record.profile}`. `manifest.json` holds what each cohort says about its own origin.",
        "\n".join(["| cohort | patients | signals | manifest |", "|---|--:|---|---|", *rows]),
        *_partly(record),
        *([NO_TRUTH] if lost else []),
    ]
    return "\n\n".join(parts) + "\n"
