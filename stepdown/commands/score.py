"""Scores of recorded stays: a table to read, a JSON file to go on with."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tyro.conf import Positional

from stepdown.handover import Cohort, Scores
from stepdown.problem.metrics import METRICS
from stepdown.problem.stays import mean_scores, score_stays
from stepdown.records.files import read_cohort

SHOWN = 10  # stays in the printed table


@dataclass(frozen=True)
class ScoreConfig:
    """Score the stays of a cohort or episode file."""

    file: Positional[Path]  # folder of `stepdown simulate`, or a Parquet file of the same columns
    json: Path | None = None  # also write all scores to this file


def score(config: ScoreConfig) -> None:
    """Print the scores of a file, and write them if asked to."""
    if config.json is not None and not config.json.parent.is_dir():
        raise FileNotFoundError(
            f"--json: expected a file in an existing folder, got {config.json}; make the folder."
        )
    cohort = read_cohort(config.file)
    found = scores_to_dict(cohort.patient, score_stays(cohort)) | {"absent": never_measured(cohort)}
    if config.json is not None:
        config.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(scores_to_text(found))


def never_measured(cohort: Cohort) -> list[str]:
    """Signals that no stay has; scores do without, because they rest on those that are required."""
    empty = np.asarray(np.isnan(np.asarray(cohort.signals)).all((0, 1)))
    return [name for i, name in enumerate(cohort.columns) if empty[i]]


def scores_to_dict(patients: tuple[str, ...], scores: Scores) -> dict:
    """Plain values; a stay without a decision has no scores (None)."""
    columns = {name: [_plain(x) for x in scores[name].tolist()] for name in METRICS}
    overall = mean_scores(scores)
    return {
        "stays": [
            {"patient": patient, **{name: columns[name][row] for name in METRICS}}
            for row, patient in enumerate(patients)
        ],
        "overall": {name: _plain(float(overall[name])) for name in METRICS},
    }


def scores_to_text(found: dict) -> str:
    """An aligned table: the first stays, then the mean over all."""
    stays = found["stays"]
    lines = [["patient", *METRICS]]
    lines += [[stay["patient"], *map(_cell, list(stay.values())[1:])] for stay in stays[:SHOWN]]
    lines.append([f"all {len(stays)}", *map(_cell, found["overall"].values())])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
    if len(stays) > SHOWN:
        rows.insert(-1, "...")
    if found["absent"]:
        rows.append(
            f"Absent in all stays: {', '.join(found['absent'])}. "
            "The scores need map, hr and pulsatility alone."
        )
    return "\n".join(rows) + "\n"


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
