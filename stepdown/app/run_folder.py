"""A finished run as the app needs it: verified models, recorded hours, test patients, a card."""

import csv
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepdown import __version__
from stepdown.app.engine import DRAWS, Engine
from stepdown.app.limits import DEFAULT_GATES, GateConfig, Limits
from stepdown.app.pumps import pump_of_table
from stepdown.app.recordings import Stay, read_stays
from stepdown.app.support import make_support
from stepdown.artifacts import MANIFEST, ArtifactError, check_folder
from stepdown.guardian.fit import load_guardian
from stepdown.handover import Policy
from stepdown.policies.saved import SavedPolicy, load_policy
from stepdown.problem.hours import make_transitions
from stepdown.records.fitted_on import (
    Parts,
    read_note,
    read_parts,
    read_profile,
    require_same_split,
)
from stepdown.signals import NAMES
from stepdown.twin.fit import load_twin

TABLES = ("twin", "guardian")  # of a run, shown in the model card where they are


@dataclass(frozen=True)
class Loaded:
    """What a run folder holds for the app."""

    engine: Engine
    stays: dict[str, Stay]  # test patients, who are shown
    fitted_on: dict[str, Stay]  # train patients, for the card alone
    card: dict[str, Any]


def load_recordings(run: Path) -> tuple[Parts, dict[str, Stay]]:
    """The split cohort of a run, and its test patients."""
    parts = read_parts(run / "cohort")
    table = read_profile(run / "cohort", None)
    return parts, read_stays(parts.test, pump_of_table(table))


def load_run(
    run: Path,
    draws: int = DRAWS,
    gates: GateConfig = DEFAULT_GATES,
    site: Limits | None = None,
) -> Loaded:
    """Verify every file of a run, then load what an answer needs; damage is an ArtifactError."""
    check_run(run)
    parts, stays = load_recordings(run)
    for kind in _kinds(run)[1:]:
        require_same_split(read_note(run / kind, kind), parts, run / kind)
    twin, twin_config = load_twin(run / "twin")
    guardian, saved = load_guardian(run / "guardian")
    if abs(twin.steps * parts.test.minutes - 60) > 1e-6:
        raise ArtifactError(
            f"{run}: expected a twin of one hour, got {twin.steps} samples of "
            f"{parts.test.minutes:g} min. Fit it on hours."
        )
    scaler = guardian.density.pairs.scaler
    train, select = make_transitions(parts.train), make_transitions(parts.select)
    support = make_support(train, select, scaler, parts.train.patient)
    policy, known = _read_policy(run, twin.steps)
    engine = Engine(
        twin=twin,
        guardian=guardian,
        support=support,
        table=read_profile(run / "cohort", None),
        model=_identity(run),
        draws=draws,
        gates=gates,
        site=site or Limits(),
        policy=policy,
        method=known.method if known else None,
        read_by_policy=known.present if known else (),
    )
    hours = {"train": len(train.level), "select": len(select.level)}
    about = {"twin": twin_config.model, "guardian": saved.density.density, "hours": hours}
    about["guardian_holds_patient_data"] = saved.contains_patient_data
    fitted_on = read_stays(parts.train, pump_of_table(engine.table))
    return Loaded(engine, stays, fitted_on, _card(run, engine, parts) | about)


def _read_policy(run: Path, steps: int) -> tuple[Policy | None, SavedPolicy | None]:
    """The learned policy of a run, if it has one."""
    if not (run / "policy").is_dir():
        return None, None
    policy, known = load_policy(run / "policy")
    if known.steps != steps:
        raise ArtifactError(
            f"{run / 'policy'}: expected a policy of {steps} samples, got {known.steps}."
        )
    return policy, known


def _card(run: Path, engine: Engine, parts: Parts) -> dict[str, Any]:
    """What the models are and on whom they were fitted."""
    counted = (parts.train, parts.select, parts.test)
    return {
        **engine.model,
        "signals": [NAMES[i] for i in engine.used],
        "patients": {part.role: len(part.patient) for part in counted},
        "similar_radius": round(engine.support.radius, 2),
        "draws": engine.draws,
        "policy": engine.method,
        "tables": {name: _table(run / "tables" / f"{name}.csv") for name in TABLES},
    }


def check_run(run: Path) -> None:
    """Refuse a run that is not whole; folders made by hand are checked part by part."""
    if (run / MANIFEST).is_file():
        check_folder(run, "run")
    for kind in _kinds(run):
        check_folder(run / kind, kind)


def _kinds(run: Path) -> tuple[str, ...]:
    """Parts of a run that the app reads; a policy need not be there."""
    kinds = ("cohort", "twin", "guardian")
    return (*kinds, "policy") if (run / "policy").is_dir() else kinds


def _identity(run: Path) -> dict[str, Any]:
    """Version and digests: of the twin, of the guardian, and of both together."""
    seals = {
        kind: json.loads((run / kind / MANIFEST).read_bytes())["sha256"] for kind in _kinds(run)
    }
    joint = hashlib.sha256("".join(seals.values()).encode()).hexdigest()
    return {"version": __version__, "sha256": joint, "parts": seals}


def _table(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
