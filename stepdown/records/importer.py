"""Foreign recordings to a cohort: file by file, in parallel, and not twice after an interruption.

A file holds one stay, or several told apart by a patient column. Every file is read, cleaned and
reduced to ten-minute blocks on its own, so memory holds a stay per process. Finished files are
kept in a work folder under a digest of their content and of all settings, until the cohort is
complete. Patients keep their names if these are plain, or get pseudonyms from a secret key.
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

import jax.numpy as jnp
import numpy as np

from stepdown import __version__
from stepdown.artifacts import ArtifactError, arrays_from_bytes, arrays_to_bytes
from stepdown.handover import Cohort
from stepdown.patients.pump import load_profile
from stepdown.records.cleaning import CleaningConfig, LogRow, clean_stay
from stepdown.records.mapping import Columns
from stepdown.records.readers import RecordingError, companions, list_recordings
from stepdown.records.stays import PSEUDONYM, read_stays
from stepdown.signals import SAMPLE_MINUTES

MOST_LOG_ROWS = 100_000


@dataclass(frozen=True)
class ImportConfig:
    """How recordings become a cohort."""

    profile: str = "cp"  # pump profile
    workers: int = 1  # processes; 1 works in this one
    secret: bytes | None = field(default=None, repr=False)  # pseudonyms are made with it
    cleaning: CleaningConfig = CleaningConfig()


@dataclass(frozen=True)
class _Stay:
    """One cleaned stay."""

    patient: str
    signals: np.ndarray  # (blocks, signals), float32
    level: np.ndarray  # (blocks,)
    seen: np.ndarray  # (blocks,)
    log: tuple[LogRow, ...]


def import_cohort(
    path: Path,
    columns: Columns,
    config: ImportConfig = ImportConfig(),  # noqa: B008 (frozen)
    *,
    work: Path | None = None,
    watch: Callable[[float], None] = lambda share: None,
) -> tuple[Cohort, tuple[LogRow, ...]]:
    """The cohort of a file or folder, and what cleaning left out; `work` keeps finished files."""
    load_profile(config.profile)  # an unknown one is refused before any work
    files = list_recordings(path)
    stays: dict[Path, list[_Stay]] = {}
    for file, found in _import_files(files, columns, config, work):
        stays[file] = found
        watch(len(stays) / len(files))
    ordered = [stay for file in files for stay in stays[file]]
    names = [stay.patient for stay in ordered]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecordingError(
            f"expected each patient in one file, got {twice!r} in two; "
            "join their rows, the earlier stay first."
        )
    log = tuple(row for stay in ordered for row in stay.log)[:MOST_LOG_ROWS]
    usable = [stay for stay in ordered if stay.seen.any()]
    if not usable:
        reasons = "; ".join(sorted({f"{row.what}: {row.why}" for row in log})[:4])
        raise RecordingError(
            f"{path}: expected at least one usable hour, got none ({reasons or 'too short'}); "
            "see what stepdown doctor says about it."
        )
    return _to_cohort(usable, columns.recorded), log


def _import_files(
    files: Sequence[Path], columns: Columns, config: ImportConfig, work: Path | None
) -> Iterator[tuple[Path, list[_Stay]]]:
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


def import_file(file: Path, columns: Columns, config: ImportConfig) -> list[_Stay]:
    """The cleaned stays of one file."""
    profile, stays = load_profile(config.profile), []
    for stay in read_stays(file, columns):
        name = _pseudonym(stay.patient, config.secret, file)
        try:
            blocks, log = clean_stay(stay, profile, config.cleaning)
        except RecordingError as error:
            raise RecordingError(f"{file}: {error}") from error
        rows = tuple(replace(row, patient=name) for row in log)
        signals = blocks.signals.astype(np.float32)
        stays.append(_Stay(name, signals, blocks.level.astype(np.int32), blocks.seen, rows))
    return stays


def _pseudonym(patient: str, secret: bytes | None, file: Path) -> str:
    if secret is not None:
        return hmac.new(secret, patient.encode(), hashlib.sha256).hexdigest()[:16]
    if not PSEUDONYM.fullmatch(patient):
        raise RecordingError(
            f"{file}: expected patients named by up to 64 letters, digits, dots or dashes, got "
            "another name; rename them, or let --secret make pseudonyms."
        )
    return patient


def _to_cohort(stays: Sequence[_Stay], columns: tuple[str, ...]) -> Cohort:
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
    settings = [asdict(columns), asdict(config.cleaning), config.profile, secret, __version__]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    digest.update(file.name.encode())
    for part in companions(file):
        with part.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return work / f"{digest.hexdigest()}.safetensors"


def _save(stays: Sequence[_Stay], place: Path) -> None:
    about = [{"patient": s.patient, "log": [asdict(row) for row in s.log]} for s in stays]
    arrays = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for i, stay in enumerate(stays):
        arrays |= {f"{i}.signals": stay.signals, f"{i}.level": stay.level, f"{i}.seen": stay.seen}
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_suffix(f".{secrets.token_hex(4)}")
    draft.write_bytes(arrays_to_bytes(arrays))
    draft.rename(place)  # whole or not at all


def _load(place: Path) -> list[_Stay] | None:
    """A finished file, or None if nothing was kept or it is damaged."""
    if not place.is_file():
        return None
    try:
        arrays = arrays_from_bytes(place.read_bytes())
        about = json.loads(arrays["about"].tobytes())
        return [
            _Stay(
                one["patient"],
                *(arrays[f"{i}.{part}"] for part in ("signals", "level", "seen")),
                log=tuple(LogRow(**row) for row in one["log"]),
            )
            for i, one in enumerate(about)
        ]
    except (ArtifactError, KeyError, TypeError, ValueError):
        return None
