"""Stages of a run after the cohort: each fits its models and hands over text, section and files."""

import csv
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.random as jr

from stepdown.artifacts import Content
from stepdown.evaluation.forecast import grow_errors
from stepdown.evaluation.shifts import score_shifts
from stepdown.guardian.fit import DensityConfig, fit_guardian, save_guardian
from stepdown.guardian.kde import KdeConfig
from stepdown.guardian.threshold import RECORDED
from stepdown.problem.hours import make_transitions
from stepdown.report.guardian_figures import draw_shifts, size_words
from stepdown.report.page import Section
from stepdown.report.parts import Parts, save_fitted
from stepdown.report.twin_figures import draw_calibration, draw_examples, draw_growth
from stepdown.report.twins import score_models
from stepdown.twin.fit import Twin, TwinConfig, save_twin

SEED = 0  # of every fit of a run
KERNELS = {
    "kde": DensityConfig("kde"),
    "kde, sharper": DensityConfig("kde", 0.5, kde=KdeConfig(action_weight=4.0)),
}
KEPT = "kde, sharper"  # the one that a run keeps
NOTED = (("offset", 1.0), ("action", 1.0), ("action", 3.0))  # shifts of the printed table


@dataclass(frozen=True)
class Stage:
    """What a stage leaves behind."""

    files: dict[str, Content]
    pictures: dict[str, bytes]  # by name, see pictures.py
    text: str = ""  # for the terminal
    section: Section | None = None  # for the report


def twin_stage(parts: Parts, twins: Mapping[str, Twin], config: TwinConfig, folder: Path) -> Stage:
    """Draw the twins on test patients; the first one is the main one, and kept."""
    test, main = make_transitions(parts.test), next(iter(twins))
    scores = score_models(twins, test, twins[main].scaler)
    growths = {name: grow_errors(twin, test, key=jr.key(SEED)) for name, twin in twins.items()}
    draw_examples(twins, test, folder / "examples.png")
    draw_growth(growths, folder / "growth.png")
    draw_calibration(scores, folder / "calibration.png")

    def save(path: Path) -> None:
        save_twin(path, twins[main], config, seed=SEED)

    save_fitted(folder / "twin", save, parts, kind="twin", model=main)
    names = ("examples", "growth", "calibration")
    pictures = {name: (folder / f"{name}.png").read_bytes() for name in names}
    return Stage(kept_files(folder / "twin", "twin"), pictures)


def guardian_stage(parts: Parts, folder: Path) -> Stage:
    """Fit the kernels, score what they notice on test patients, keep the sharper one."""
    train, select = make_transitions(parts.train), make_transitions(parts.select)
    test = make_transitions(parts.test)
    guardians, found = {}, {}
    for name, config in KERNELS.items():
        guardians[name], _ = fit_guardian(train, select, config, RECORDED, key=jr.key(SEED))
        found[name], _ = score_shifts(guardians[name], test, key=jr.key(SEED))
    draw_shifts(found)(folder / "shifts.png")
    save_fitted(
        folder / "guardian",
        # The run holds the recordings themselves, so this adds nothing that was private.
        lambda path: save_guardian(
            path, guardians[KEPT], KERNELS[KEPT], RECORDED, seed=SEED, contains_patient_data=True
        ),
        parts,
        kind="guardian",
        model="kde",
    )
    rows = [_guardian_row(name, one) for name, one in found.items()]
    files: dict[str, Content] = {"tables/guardian.csv": _csv(rows)}
    return Stage(
        files | kept_files(folder / "guardian", "guardian"),
        {"shifts": (folder / "shifts.png").read_bytes()},
        f"Have we seen this before: guardians on test patients.\n\n{_text(rows)}",
        Section("Have we seen this before", _table(rows)),
    )


def _guardian_row(name: str, one: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"guardian": name}
    for alarm in one["false_alarms"]:
        row[f"false alarms, asked {100 * alarm['asked']:g} %"] = alarm["real"]
    for shift in one["shifts"]:
        if (shift["kind"], shift["size"]) in NOTED:
            words = f"{shift['kind']} {size_words(shift['kind'], shift['size'])}"
            row[f"AUROC, {words}"] = shift["auroc"]
    row["small changes refused at 5 %"] = one["small_changes"]["refused"]
    return row


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.3f}"


def _text(rows: Sequence[Mapping[str, Any]]) -> str:
    """One column for each row: the names are long, the models few."""
    names = list(rows[0])
    width = max(map(len, names))
    lines = [
        "  ".join([name.ljust(width), *(_cell(row[name]).rjust(14) for row in rows)])
        for name in names
    ]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f'<td class="number">{html.escape(_cell(x))}</td>' for x in row.values())
        + "</tr>"
        for row in rows
    )  # fmt: skip
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>\n'


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def kept_files(folder: Path, name: str) -> dict[str, Content]:
    """The files of a saved model, to be kept inside the run."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return {f"{name}/{inner}": (folder / inner).read_bytes() for inner in names}
