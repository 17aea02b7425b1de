"""Train, select and test patients, and which of them a model was fitted on.

A patient belongs to exactly one part. A cohort is split by a seed alone, so every command that is
given the same cohort and seed sees the same parts. A saved model names the cohort, the split and,
by a digest of their first recorded hour, the patients that it has seen; they are checked wherever
it is scored: a leak is an error, whatever the names.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from stepdown.artifacts import CONFIG, ArtifactError, check_folder, write_folder
from stepdown.handover import Cohort, Role, require_role
from stepdown.patients.population import host_generator
from stepdown.signals import NAMES

SPLIT = 7  # seed of the split in every command, so that all see the same patients
NOTE = "fitted_on"  # where a manifest keeps what is written here

Note = Mapping[str, Any]  # cohort, split, patients


def split_patients(
    cohort: Cohort,
    shares: tuple[float, float, float] = (0.65, 0.15, 0.20),
    *,
    key: PRNGKeyArray,
) -> tuple[Cohort, Cohort, Cohort]:
    """Train, select and test patients; every patient in exactly one of them.

    >>> parts = sd.split_patients(cohort, key=jr.key(1))
    >>> [(part.role, len(part.patient)) for part in parts]
    [('train', 26), ('select', 6), ('test', 8)]
    """
    require_role(cohort, "all")
    number = len(cohort.patient)
    if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"expected three shares above 0 that add up to 1, got {shares}.")
    if len(set(cohort.patient)) < number:
        raise ValueError("expected each patient once in a cohort, got one twice; join the stays.")
    exact = np.array(shares) * number
    sizes = np.floor(exact + 1e-9).astype(int)
    sizes[np.argsort(sizes - exact, kind="stable")[: number - sizes.sum()]] += 1
    if sizes.min() < 1:
        raise ValueError(
            f"expected enough patients for three parts, got {number}, of which "
            f"{' / '.join(map(str, sizes))} would train, select and test; bring more patients."
        )
    parts = np.split(host_generator(key).permutation(number), np.cumsum(sizes)[:2])
    train, select, test = (np.sort(rows) for rows in parts)
    return (
        _part(cohort, train, "train"),
        _part(cohort, select, "select"),
        _part(cohort, test, "test"),
    )


def _part(cohort: Cohort, rows: np.ndarray, role: Role) -> Cohort:
    return replace(
        cohort,
        signals=jnp.asarray(np.asarray(cohort.signals)[rows]),
        level=jnp.asarray(np.asarray(cohort.level)[rows]),
        seen=jnp.asarray(np.asarray(cohort.seen)[rows]),
        patient=tuple(cohort.patient[row] for row in rows),
        role=role,
        died=None if cohort.died is None else jnp.asarray(np.asarray(cohort.died)[rows]),
    )


class Parts(eqx.Module):
    """A cohort split by patient."""

    train: Cohort
    select: Cohort
    test: Cohort
    split: int = eqx.field(static=True)  # the seed
    digest: str = eqx.field(static=True)  # of the whole cohort


def read_parts(path: Path, split: int = SPLIT) -> Parts:
    """Read a cohort and split it, every time in the same way."""
    if not 0 <= split < 2**32:
        raise ValueError(f"--split: expected 0 to {2**32 - 1}, got {split}.")
    from stepdown.records.files import read_cohort  # needs polars, which a GPU machine may lack

    return make_parts(read_cohort(path), split)


def make_parts(cohort: Cohort, split: int = SPLIT) -> Parts:
    """A cohort split by patient."""
    return Parts(*split_patients(cohort, key=jr.key(split)), split, _digest(cohort))


def read_profile(path: Path, wanted: str | None) -> str:
    """The pump profile of a cohort: the one asked for, else the folder's own, else CP."""
    own = None
    if (path / CONFIG).is_file():
        own = json.loads((path / CONFIG).read_bytes()).get("profile")
    return wanted or own or "cp"


def save_fitted(
    path: Path, save: Callable[[Path], None], seen: Parts | Note, *, kind: str, model: str
) -> None:
    """Save a model by its own `save`, with a note about the patients that it has seen."""
    note = {"model": model} | dict(note_patients(seen) if isinstance(seen, Parts) else seen)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "model"
        save(folder)
        manifest = check_folder(folder, kind)
        files = {name: (folder / name).read_bytes() for name in manifest["files"]}
        write_folder(path, files, kind=kind, about=manifest["about"] | {NOTE: note})


def note_patients(parts: Parts) -> Note:
    """What a saved model says about the patients that it was fitted on or chosen by."""
    seen = [*patient_digests(parts.train), *patient_digests(parts.select)]
    return {"cohort": parts.digest, "split": parts.split, "patients": seen}


def read_note(path: Path, kind: str) -> dict[str, Any]:
    """The note that a saved model carries."""
    note = check_folder(path, kind)["about"].get(NOTE)
    if note is None:
        raise ArtifactError(
            f"{path}: expected a {kind} that knows the patients it was fitted on, got none of "
            f"these. Fit it with stepdown {kind} fit."
        )
    return note


def require_same_split(note: Mapping[str, Any], parts: Parts, path: Path) -> None:
    """Refuse a model of another cohort or split: its train patients could be our test patients."""
    if note["cohort"] != parts.digest:
        raise ValueError(
            f"{path}: expected a model fitted on this cohort, got one of another. Name the cohort "
            "that it was fitted on, and score new patients with --fresh."
        )
    if note["split"] != parts.split:
        raise ValueError(
            f"{path}: expected the split {parts.split}, got a model fitted on split "
            f"{note['split']}. Models of one split can be compared; fit it again."
        )


def require_unseen(note: Mapping[str, Any], cohort: Cohort, path: Path) -> None:
    """Refuse patients that a model was fitted on or chosen by."""
    seen = set(note["patients"])
    known = [
        x for x, own in zip(cohort.patient, patient_digests(cohort), strict=True) if own in seen
    ]
    if known:
        raise ValueError(
            f"{path}: expected patients that the model has never seen, got {len(known)} that it "
            f"was fitted on, such as {known[0]}. Bring other patients."
        )


def patient_digests(cohort: Cohort) -> list[str]:
    """A digest of everybody's first recorded hour in the columns that all recordings have.

    Neither a longer stay nor a further column changes it.
    """
    per_hour = round(60 / cohort.minutes)
    level, seen = np.asarray(cohort.level), np.asarray(cohort.seen)
    signals = np.asarray(cohort.signals)[..., : len(NAMES)]
    found = []
    for row in range(len(cohort.patient)):
        first = np.flatnonzero(seen[row])[:per_hour]
        values = np.nan_to_num(signals[row, first], nan=-1.0).astype("<f4")
        told = values.tobytes() + level[row, first].astype("<i4").tobytes()
        found.append(hashlib.sha256(told).hexdigest()[:16])
    return found


def _digest(cohort: Cohort) -> str:
    seen = np.asarray(cohort.seen)
    told = hashlib.sha256(json.dumps([cohort.minutes, cohort.patient]).encode())
    told.update(seen.tobytes())
    told.update(np.nan_to_num(np.asarray(cohort.signals)[seen], nan=-1.0).astype("<f4").tobytes())
    told.update(np.asarray(cohort.level)[seen].astype("<i4").tobytes())
    return told.hexdigest()
