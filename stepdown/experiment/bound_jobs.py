"""What the paper's theorems certify about the policies of a finished run, beside twin and truth.

One policy of every row: the first seed. Held-out decisions are those of the test
patients: with their next hours drawn anew where patients are simulated, as recorded elsewhere.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax.random as jr
import numpy as np

from stepdown.artifacts import Content
from stepdown.evaluation.certificate import Certificate, CertificateConfig, certify
from stepdown.evaluation.compare import values_of
from stepdown.evaluation.model_error import HeldOut, recorded_hours, redraw_hours
from stepdown.experiment.evidence_jobs import Trained
from stepdown.experiment.jobs import Desk, Job, arrays_and_info
from stepdown.experiment.kept import read_policies
from stepdown.experiment.learning import Bench, JudgeJob, TrainJob, read_judged
from stepdown.experiment.models import hours_of, read_ensemble, read_guardian
from stepdown.experiment.patients import on_cpu
from stepdown.experiment.presets import ROWS
from stepdown.report.progress import progress
from stepdown.training import member

KEY = 5


@dataclass(frozen=True)
class BoundJob:
    """The theorems with numbers."""

    judging: JudgeJob
    moments: int = 128  # starts at which every level's next hour is drawn anew
    config: CertificateConfig = field(default_factory=CertificateConfig)


def make_bound_job(
    desk: Desk, bench: Bench, settings: BoundJob, trained: Trained, others: tuple[Job, Job]
) -> dict[str, Content]:
    """Constants and lower bounds; `others` are the ensemble and the guardian."""
    rows = []
    try:
        with progress("bounding") as watch, on_cpu():  # patients are many small steps
            ensemble, guardian = read_ensemble(desk, others[0]), read_guardian(desk, others[1])
            held_out = _held_out(desk, bench, settings)
            for number, (row, (train, judge)) in enumerate(trained.items(), 1):
                policy = member(read_policies(desk.folder(train)), 0)
                config = replace(settings.config, weight=_weight(row, train))
                one = certify(policy, ensemble, guardian, held_out, config, key=jr.key(KEY))
                in_twin = float(values_of(read_judged(desk, judge)["twin"], "reward")[0].mean())
                rows.append({"method": row} | _tell(replace(one, value_in_twin=in_twin)))
                watch(number / len(trained))
    except ValueError as refusal:  # too few patients
        return arrays_and_info({}, {"refused": str(refusal), "rows": []})
    return arrays_and_info({}, {"rows": rows})


def _held_out(desk: Desk, bench: Bench, settings: BoundJob) -> HeldOut:
    starts = bench.starts(desk, settings.judging).get("patients")
    if starts is None:
        test = hours_of(desk, bench.patients).test
        return recorded_hours(test, episodes=settings.judging.episodes, key=jr.key(KEY))
    return redraw_hours(*starts, settings.moments, settings.config.draws, key=jr.key(KEY))


def _weight(row: str, train: Job) -> float:
    """Lambda of a training that charges density; 0 for all others."""
    assert isinstance(train.settings, TrainJob)
    if ROWS[row].method != "cormpo":
        return 0.0
    return float(getattr(train.settings.recipe, "penalty_weight", 0.0))


def _tell(one: Certificate) -> dict[str, Any]:
    """A flat row of numbers; what is no number is None."""
    flat: dict[str, Any] = {"vacuous": one.is_vacuous}
    for name, value in asdict(one).items():
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        flat |= {f"{name}_{part}" if part else name: x for part, x in parts}
    odd = (name for name, x in flat.items() if isinstance(x, float) and not np.isfinite(x))
    return flat | dict.fromkeys(odd)
