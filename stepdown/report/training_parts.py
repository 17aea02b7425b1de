"""What a training is given: recorded hours by role, a twin, a guardian, an ensemble, all checked.

Hours come from a cohort, split as everywhere, or from a data set of `stepdown export`: the file
`train.hdf5` with `select.hdf5` beside it, or a Minari root folder. Models must have been fitted on
the same cohort and split. A data set does not tell whose hours it holds, so there only the
signals of a model are compared.
"""

import hashlib
from pathlib import Path

import equinox as eqx
import numpy as np

from stepdown.artifacts import check_folder
from stepdown.guardian.fit import KIND as GUARDIAN
from stepdown.guardian.fit import load_guardian
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Transitions
from stepdown.policies.checkpoints import ENSEMBLE, load_ensemble
from stepdown.policies.ensemble import Ensemble
from stepdown.problem.hours import make_transitions
from stepdown.report.parts import NOTE, Note, Parts, read_note, read_parts, require_same_split
from stepdown.signals import NAMES
from stepdown.twin.fit import Twin, check_state, load_twin

TWIN = "twin"


class Hours(eqx.Module):
    """Recorded decisions to learn from and to choose by."""

    train: Transitions
    select: Transitions
    parts: Parts | None  # of a cohort
    digest: str = eqx.field(static=True)  # of the cohort or the data set

    @property
    def seen(self) -> Parts | Note:
        """Whom a model has seen, as `save_fitted` notes it."""
        if self.parts is not None:
            return self.parts
        # A data set has no stays whose first hour could be recognized.
        return {"cohort": self.digest, "split": None, "patients": []}


def read_hours(cohort: Path | None, dataset: Path | None, split: int) -> Hours:
    """Train and select hours of a cohort or of a data set; test patients stay unseen."""
    if (cohort is None) == (dataset is None):
        got = "neither" if cohort is None else "both"
        raise ValueError(f"expected --cohort or --dataset, got {got}.")
    if cohort is not None:
        parts = read_parts(cohort, split)
        train, select = make_transitions(parts.train), make_transitions(parts.select)
        return Hours(train, select, parts, parts.digest)
    assert dataset is not None
    train, select = _read_dataset(dataset)
    return Hours(train, select, None, _digest(train, select))


def _read_dataset(path: Path) -> tuple[Transitions, Transitions]:
    try:
        from stepdown.export.datasets import read_d4rl, read_minari
    except ModuleNotFoundError as error:
        raise ValueError(
            f"expected {error.name}, which is not installed. Run pip install 'stepdown[gym]'."
        ) from error
    if path.is_dir():
        return read_minari(path, "train"), read_minari(path, "select")
    beside = path.with_name("select.hdf5")
    for file in (path, beside):
        if not file.is_file():
            raise FileNotFoundError(
                f"--dataset: expected {file}, which is missing. Name the train.hdf5 of stepdown "
                "export --d4rl, with select.hdf5 beside it, or a folder of --minari."
            )
    return read_d4rl(path), read_d4rl(beside)


def _digest(*parts: Transitions) -> str:
    told = hashlib.sha256()
    for hours in parts:
        for name in ("state", "level", "unshaped", "next_state", "patient"):
            told.update(np.ascontiguousarray(getattr(hours, name)).tobytes())
    return told.hexdigest()


class Models(eqx.Module):
    """The fitted things that a training uses; None where it needs none."""

    twin: Twin | None
    guardian: Guardian | None
    ensemble: Ensemble | None


def read_models(
    hours: Hours, *, twin: Path | None, guardian: Path | None, ensemble: Path | None
) -> tuple[Models, dict[str, str | None]]:
    """Load and check the models; also the digests of what was loaded."""
    paths = {TWIN: twin, GUARDIAN: guardian, ENSEMBLE: ensemble}
    for kind, path in paths.items():
        if path is not None:
            _require_same_patients(path, kind, hours)
    models = Models(
        load_twin(twin)[0] if twin else None,
        load_guardian(guardian)[0] if guardian else None,
        load_ensemble(ensemble)[0] if ensemble else None,
    )
    if models.twin is not None:
        check_state(models.twin, hours.select.state)
        check_state(models.twin, hours.train.state)
    if models.ensemble is not None:
        _require_signals(ensemble, hours, models.ensemble.scaler.present, models.ensemble.steps)
    if models.guardian is not None and guardian is not None:
        about = load_guardian(guardian)[1]
        _require_signals(
            guardian, hours, about.present, (about.coordinates - 2) // len(about.present)
        )
    digests = {
        kind: None if path is None else check_folder(path, kind)["sha256"]
        for kind, path in paths.items()
    }
    return models, digests


def _require_same_patients(path: Path, kind: str, hours: Hours) -> None:
    if kind == ENSEMBLE:
        note = check_folder(path, kind)["about"].get(NOTE, {})
        if note.get("cohort") != hours.digest:
            raise ValueError(
                f"{path}: expected an ensemble fitted on these records, got one of others. "
                "Leave --ensemble out to fit one."
            )
        return
    note = read_note(path, kind)
    if hours.parts is not None:
        require_same_split(note, hours.parts, path)


def _require_signals(path: Path | None, hours: Hours, present: tuple[int, ...], steps: int) -> None:
    """Refuse a model of other signals or of hours of another length."""
    if steps != hours.train.state.shape[1]:
        raise ValueError(
            f"{path}: expected a model of {hours.train.state.shape[1]} samples an hour, got one "
            f"of {steps}. Fit it on the same records."
        )
    for part in (hours.train, hours.select):
        known = np.asarray(np.isfinite(np.asarray(part.state)).all((0, 1)))
        if lacking := [NAMES[i] for i in present if not known[i]]:
            raise ValueError(
                f"{path}: expected {lacking[0]} in every {part.role} hour, as the model needs, "
                "got empty samples. Fit it on the same records."
            )
