"""Foreign recordings to a cohort: file by file, in parallel, and not twice after an interruption.

A file holds one stay, or several told apart by a patient column. Every file is read, cleaned and
reduced to ten-minute blocks on its own, so memory holds a stay per process. Finished files are
kept in a work folder under a digest of their content and of all settings, until the cohort is
complete. Patients keep their names if these are plain, or get pseudonyms from a secret key.

`look` and `combine` are also what `stepdown doctor` does: whatever the import would refuse, the
doctor says in the same words, and a stay with a finding that needs action is not imported.
"""

import hashlib
import hmac
import json
import multiprocessing
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from stepdown import __version__
from stepdown.artifacts import ArtifactError, arrays_from_bytes, arrays_to_bytes
from stepdown.handover import Cohort
from stepdown.patients.pump import load_profile
from stepdown.records.cleaning import CleaningConfig, LogRow, clean_stay
from stepdown.records.dialects import in_words, settle
from stepdown.records.doctor import examine
from stepdown.records.files import check_table, cohort_table
from stepdown.records.findings import CODES, Finding
from stepdown.records.mapping import Columns
from stepdown.records.readers import RecordingError, column_names, companions, list_recordings
from stepdown.records.stays import PSEUDONYM, Trace, read_traces, to_samples
from stepdown.signals import SAMPLE_MINUTES, STEPS

MOST_LOG_ROWS = 100_000
MOST_EMPTIED = 0.5  # share of the values of a signal that cleaning may empty unasked
TOLD = 3  # findings of a stay that a refusal names


Ahead = Callable[[Sequence[tuple[Path, Path]]], None]


@dataclass(frozen=True)
class ImportConfig:
    """How recordings become a cohort."""

    profile: str = "cp"  # pump profile
    workers: int = 1  # processes; 1 works in this one
    secret: bytes | None = field(default=None, repr=False)  # pseudonyms are made with it
    accept_losses: bool = False  # also where cleaning empties most of a signal
    leave_out: bool = False  # stays that need action, instead of refusing all
    cleaning: CleaningConfig = CleaningConfig()


@dataclass(frozen=True)
class Stay:
    """One cleaned stay."""

    patient: str
    signals: np.ndarray  # (blocks, signals), float32
    level: np.ndarray  # (blocks,)
    seen: np.ndarray  # (blocks,)
    log: tuple[LogRow, ...]
    recorded: int  # blocks in which there was any row
    given: dict[str, int]  # values of the file by signal
    read_as: str  # how the file is written, to confirm


@dataclass(frozen=True)
class Looked:
    """One stay of a file: as recorded, what is odd about it, and what the import makes of it."""

    trace: Trace
    findings: tuple[Finding, ...]
    stay: Stay | None  # None: refused
    refusal: str = ""  # in the words of the import
    found: bool = False  # refused for findings alone


@dataclass(frozen=True)
class Intake:
    """How much of the recordings is in the cohort."""

    recorded: int  # blocks in which there was any row
    kept: int  # blocks of the cohort
    possible: int  # decisions that the recorded blocks could give
    emptied: tuple[tuple[str, int, int], ...]  # signal, values that cleaning emptied, of how many
    read_as: tuple[str, ...]  # how the files are written, to confirm

    def losses(self) -> list[str]:
        """Every signal that cleaning took values from, in words."""
        return [
            f"{count:,} of {of:,} values of {name} were left empty"
            for name, count, of in self.emptied
            if count
        ]


class Imported(NamedTuple):
    """A cohort, what cleaning left out, and how much that is."""

    cohort: Cohort
    log: tuple[LogRow, ...]
    intake: Intake


def import_cohort(
    path: Path,
    columns: Columns,
    config: ImportConfig = ImportConfig(),  # noqa: B008 (frozen)
    *,
    work: Path | None = None,
    watch: Callable[[float], None] = lambda share: None,
    ahead: Ahead | None = None,
) -> Imported:
    """The cohort of a file or folder, and what cleaning left out; `work` keeps finished files.

    `ahead` may make them elsewhere before: it is given what is left, each with its place in `work`.
    """
    load_profile(config.profile)  # an unknown one is refused before any work
    files = _meant(list_recordings(path), columns)
    stays: dict[Path, list[Stay]] = {}
    if work and ahead:
        kept = {file: _kept(work, file, columns, config) for file in files}
        ahead([(file, place) for file, place in kept.items() if _load(place) is None])
    for file, found in _import_files(files, columns, config, work):
        stays[file] = found
        watch(len(stays) / len(files))
    ordered = [stay for file in files for stay in stays[file]]
    return combine(ordered, columns.recorded, path, accept_losses=config.accept_losses)


def _meant(files: list[Path], columns: Columns) -> list[Path]:
    """Of waveforms and numerics of one record (named with an n), those that are mapped."""
    stems = {file.stem for file in files if file.suffix.lower() == ".hea"}
    twins = {stem for stem in stems if f"{stem}n" in stems}
    twins |= {f"{stem}n" for stem in twins}
    wanted = set(columns.wanted())
    return [file for file in files if file.stem not in twins or wanted & set(column_names(file))]


def combine(
    stays: Sequence[Stay], signals: tuple[str, ...], path: Path, *, accept_losses: bool = False
) -> Imported:
    """One cohort from all stays; refused if it would not be one, or if too little is left."""
    names = [stay.patient for stay in stays]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecordingError(
            f"expected each patient in one file, got {twice!r} in two; "
            "join their rows, the earlier stay first."
        )
    log, intake = tuple(row for stay in stays for row in stay.log), _intake(stays)
    if not accept_losses:
        _require_most(intake, log, path)
    usable = [stay for stay in stays if stay.seen.any()]
    if not usable:
        reasons = "; ".join(sorted({f"{row.what}: {row.why}" for row in log})[:4])
        raise RecordingError(
            f"{path}: expected at least one usable hour, got none ({reasons or 'too short'}); "
            "see what stepdown doctor says about it."
        )
    cohort = _to_cohort(usable, signals)
    try:
        check_table(cohort_table(cohort), path)
    except ArtifactError as error:  # a table that would be refused when it is read again
        raise RecordingError(str(error)) from error
    return Imported(cohort, log[:MOST_LOG_ROWS], intake)


def _intake(stays: Sequence[Stay]) -> Intake:
    emptied = []
    for name in dict.fromkeys(name for stay in stays for name in stay.given):
        rows = [row for stay in stays for row in stay.log if row.what == f"values of {name}"]
        given = sum(stay.given.get(name, 0) for stay in stays)
        emptied.append((name, sum(row.count for row in rows), given))
    return Intake(
        recorded=sum(stay.recorded for stay in stays),
        kept=sum(int(stay.seen.sum()) for stay in stays),
        possible=sum(max(stay.recorded // STEPS - 1, 0) for stay in stays),
        emptied=tuple(emptied),
        read_as=tuple(dict.fromkeys(stay.read_as for stay in stays if stay.read_as)),
    )


def _require_most(intake: Intake, log: Sequence[LogRow], path: Path) -> None:
    """Refuse to empty most of a signal without being asked to."""
    for name, count, of in intake.emptied:
        if count <= MOST_EMPTIED * of:
            continue
        why = sorted({row.why for row in log if row.what == f"values of {name}"})
        raise RecordingError(
            f"{path}: expected to keep most values of {name!r}, got {count:,} of {of:,} that "
            f"would be left empty ({'; '.join(why)}). Correct the export or the unit, leave the "
            "signal out of the mapping, or import with --accept-losses."
        )


def _import_files(
    files: Sequence[Path], columns: Columns, config: ImportConfig, work: Path | None
) -> Iterator[tuple[Path, list[Stay]]]:
    """Every file with its stays, as they get ready; those already in `work` come first."""
    kept = {file: _kept(work, file, columns, config) for file in files} if work else {}
    left = []
    for file in files:
        stays = _load(kept[file]) if work else None
        if stays is None:
            left.append(file)
        else:
            yield file, stays
    for file, stays in _compute(left, columns, config):
        if work:
            _save(stays, kept[file])
        yield file, stays


def _compute(left: Sequence[Path], columns: Columns, config: ImportConfig):
    if config.workers <= 1 or len(left) <= 1:
        yield from ((file, import_file(file, columns, config)) for file in left)
        return
    # JAX holds threads, which a forked process would lack; hence fresh processes.
    context = multiprocessing.get_context("spawn")
    workers = min(config.workers, len(left))
    with ProcessPoolExecutor(workers, context, _ignore_interrupts) as pool:
        jobs = {pool.submit(import_file, file, columns, config): file for file in left}
        try:
            for job in as_completed(jobs):
                yield jobs[job], job.result()
        except BrokenProcessPool as error:
            raise RecordingError(
                "expected readable files, got one that ended the process that read it; "
                "import them one by one to find it."
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, which says one sentence about it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def keep_file(file: Path, place: Path, columns: Columns, config: ImportConfig) -> int:
    """Leave the stays of a file where an import looks for them; returned is how many."""
    stays = import_file(file, columns, config)
    _save(stays, place)
    return len(stays)


def import_file(file: Path, columns: Columns, config: ImportConfig) -> list[Stay]:
    """The cleaned stays of one file."""
    stays = []
    for looked in look(file, settle(file, columns), config):
        if looked.stay is not None:
            stays.append(looked.stay)
        elif config.leave_out and looked.found:
            stays.append(_left_out(looked, config, file))
        else:
            raise RecordingError(looked.refusal)
    return stays


def _left_out(looked: Looked, config: ImportConfig, file: Path) -> Stay:
    """A stay of which nothing is taken, and why."""
    name = pseudonym(looked.trace.patient, config.secret, file)
    acts = sorted({f.code for f in looked.findings if f.severity == "action"})
    why = " and ".join(f"{code} {CODES[code].title.lower()}" for code in acts)
    log = (LogRow(name, "stays", 1, f"{why} needs action; left out as a whole"),)
    nothing = np.zeros((0, len(looked.trace.expected)), np.float32)
    return Stay(name, nothing, np.zeros(0, np.int32), np.zeros(0, bool), log, 0, {}, "")


def look(file: Path, columns: Columns, config: ImportConfig) -> Iterator[Looked]:
    """Every stay of a file through a settled mapping, imported or refused in words."""
    profile, read_as = load_profile(config.profile), in_words(file, columns)
    for trace in read_traces(file, columns):
        findings = examine(trace, profile)
        acts = [finding for finding in findings if finding.severity == "action"]
        try:
            _require_columns(file, trace, columns)
            name = pseudonym(trace.patient, config.secret, file)
            if acts:
                yield Looked(trace, findings, None, _acts_in_words(file, acts), found=True)
                continue
            blocks, log = clean_stay(to_samples(trace), profile, config.cleaning)
        except RecordingError as error:
            words = str(error) if str(error).startswith(str(file)) else f"{file}: {error}"
            yield Looked(trace, findings, None, words)
            continue
        rows = tuple(replace(row, patient=name) for row in log)
        stay = Stay(
            name,
            blocks.signals.astype(np.float32),
            blocks.level.astype(np.int32),
            blocks.seen,
            rows,
            int(blocks.recorded.sum()),
            _given(trace),
            read_as,
        )
        yield Looked(trace, findings, stay)


def _given(trace: Trace) -> dict[str, int]:
    """Values of a recording of values, by signal; waveforms become signals only later."""
    if trace.is_waveform:
        return {}
    return {name: int(np.isfinite(line.values).sum()) for name, line in trace.lines.items()}


def _require_columns(file: Path, trace: Trace, columns: Columns) -> None:
    """Refuse a stay without one of its columns, without times or without a single level."""
    for name, theirs in columns.signals:
        if name not in trace.lines:
            raise RecordingError(
                f"{file}: expected a column {theirs.column!r}, which is missing; correct the "
                "mapping."
            )
    if columns.level is not None and trace.level is None:
        raise RecordingError(
            f"{file}: expected a column {columns.level!r}, which is missing; correct the mapping."
        )
    if columns.time is None and columns.patient is not None:
        raise RecordingError(
            f"{file}: expected a column of times where a file holds several patients."
        )
    if not np.isfinite(trace.second).any():
        raise RecordingError(
            f"{file}: expected readable times, or a rate, as only WFDB knows its own; correct "
            "time.column, time.unit or time.rate in the mapping."
        )
    if trace.level is not None and not np.isfinite(trace.level.values).any():
        raise RecordingError(
            f"{file}: expected levels 0 to 9 or P-0 to P-9 in {columns.level!r}, got none; "
            "correct the mapping."
        )


def _acts_in_words(file: Path, acts: Sequence[Finding]) -> str:
    """The findings of one stay that need action, as the doctor says them."""
    told = [
        f"{finding.code} {CODES[finding.code].title}{finding.signal and ': '}{finding.signal}: "
        f"{finding.sentence} {CODES[finding.code].remedy}"
        for finding in acts[:TOLD]
    ]
    if len(acts) > TOLD:
        told.append(f"and {len(acts) - TOLD} more, see stepdown doctor.")
    return (
        f"{file}: expected a recording that needs no action, got for {acts[0].patient}:\n  "
        + "\n  ".join(told)
        + "\nMend the recording or the mapping, or import with --leave-out, without such stays."
    )


def pseudonym(patient: str, secret: bytes | None, file: Path) -> str:
    """The name under which a patient is kept: made with the secret, or their own if it is plain."""
    if secret is not None:
        return hmac.new(secret, patient.encode(), hashlib.sha256).hexdigest()[:16]
    if not PSEUDONYM.fullmatch(patient):
        raise RecordingError(
            f"{file}: expected patients named by up to 64 letters, digits, dots or dashes, got "
            "another name; rename them, or let --secret make pseudonyms."
        )
    return patient


def _to_cohort(stays: Sequence[Stay], columns: tuple[str, ...]) -> Cohort:
    shape = (len(stays), max(len(stay.seen) for stay in stays))
    signals = np.full((*shape, len(columns)), np.nan, np.float32)
    level, seen = np.zeros(shape, np.int32), np.zeros(shape, bool)
    for row, stay in enumerate(stays):
        steps = len(stay.seen)
        signals[row, :steps], level[row, :steps] = stay.signals, stay.level
        seen[row, :steps] = stay.seen
    return Cohort(
        signals=jnp.asarray(signals),
        level=jnp.asarray(level),
        seen=jnp.asarray(seen),
        patient=tuple(stay.patient for stay in stays),
        minutes=SAMPLE_MINUTES,
        columns=columns,
    )


def _kept(work: Path, file: Path, columns: Columns, config: ImportConfig) -> Path:
    """Where a finished file is kept: a name that its content and every setting decide."""
    secret = hashlib.sha256(config.secret or b"").hexdigest()
    settings = [asdict(columns), asdict(config.cleaning), config.profile, config.leave_out]
    settings += [secret, __version__]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    digest.update(file.name.encode())
    for part in companions(file):
        with part.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return work / f"{digest.hexdigest()}.safetensors"


def _save(stays: Sequence[Stay], place: Path) -> None:
    about = [
        {
            "patient": stay.patient,
            "log": [asdict(row) for row in stay.log],
            "recorded": stay.recorded,
            "given": stay.given,
            "read_as": stay.read_as,
        }
        for stay in stays
    ]
    arrays = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for i, stay in enumerate(stays):
        arrays |= {f"{i}.signals": stay.signals, f"{i}.level": stay.level, f"{i}.seen": stay.seen}
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_suffix(f".{secrets.token_hex(4)}")
    draft.write_bytes(arrays_to_bytes(arrays))
    draft.rename(place)  # whole or not at all


def _load(place: Path) -> list[Stay] | None:
    """A finished file, or None if nothing was kept or it is damaged."""
    if not place.is_file():
        return None
    try:
        arrays = arrays_from_bytes(place.read_bytes())
        about = json.loads(arrays["about"].tobytes())
        return [
            Stay(
                one["patient"],
                *(arrays[f"{i}.{part}"] for part in ("signals", "level", "seen")),
                log=tuple(LogRow(**row) for row in one["log"]),
                recorded=one["recorded"],
                given=one["given"],
                read_as=one["read_as"],
            )
            for i, one in enumerate(about)
        ]
    except (ArtifactError, KeyError, TypeError, ValueError):
        return None
