"""`stepdown twin fit` and `stepdown twin score`: a twin out of a cohort, and how well it forecasts.

Fitting slides its windows by half an hour over train patients and stops by the hourly decisions of
select patients; scores come from those of patients that no twin has seen. Persistence is always a
row of the table.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax.random as jr

from stepdown.artifacts import Content, provenance, require_free, write_folder
from stepdown.evaluation.forecast import (
    PAPER_HORIZON,
    Forecaster,
    ForecastScores,
    compare_forecasts,
    grow_errors,
    score_forecasts,
    summarize,
    summarize_growth,
)
from stepdown.handover import Cohort, Transitions
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.scaling import Scaler
from stepdown.records.files import read_cohort
from stepdown.report.parts import (
    SPLIT,
    Parts,
    read_note,
    read_parts,
    read_profile,
    require_same_split,
    require_unseen,
    save_fitted,
)
from stepdown.report.progress import progress
from stepdown.report.twin_figures import draw_calibration, draw_examples, draw_growth
from stepdown.twin.fit import SMALL_TWIN, Model, TwinConfig, fit_twin, load_twin, save_twin

KIND = "twin"
SLIDING = HoursConfig(stride=30.0)
COLUMNS = ("mae", "mae_z", "mae_map", "mae_static", "mae_changing", "trend", "crps", "crps_z")
COLUMNS += ("coverage50", "coverage90")
COMPARED = ("mae", "mae_z", "mae_map", "mae_changing", "crps", "crps_z")
PERSISTENCE = "persistence"


@dataclass(frozen=True)
class TwinFitConfig:
    """Fit a digital twin to the train patients of a cohort."""

    cohort: Path  # folder of `stepdown simulate` or `import`, or a Parquet file like it
    model: Model  # which twin
    out: Path  # new folder for the twin
    seed: int = 0  # of the weights and the order of the rows
    size: Literal["paper", "small"] = "paper"  # small: for two cores
    split: int = SPLIT  # seed of the split into train, select and test patients
    profile: str | None = None  # pump profile; by default the cohort's own, else cp


@dataclass(frozen=True)
class TwinScoreConfig:
    """Score the forecasts of twins on test patients."""

    cohort: Path  # the cohort that the twins were fitted on
    twin: tuple[Path, ...]  # folders of `stepdown twin fit`
    json: Path | None = None  # also write all scores to this file
    fresh: Path | None = None  # score all patients of this other cohort instead
    figures: Path | None = None  # new folder for figures
    profile: str | None = None  # pump profile of persistence; by default the cohort's own, else cp


def fit_and_save(config: TwinFitConfig) -> None:
    """Fit on train patients, stop by select patients, save with a note about both."""
    if not 0 <= config.seed < 2**32:
        raise ValueError(f"--seed: expected 0 to {2**32 - 1}, got {config.seed}.")
    require_free(config.out)
    parts = read_parts(config.cohort, config.split)
    recipe = TwinConfig() if config.size == "paper" else SMALL_TWIN
    profile = read_profile(config.cohort, config.profile)
    recipe = replace(recipe, model=config.model, profile=profile)
    train, select = twin_hours(parts)
    with progress(f"fitting {config.model}") as watch:
        twin, info = fit_twin(train, select, recipe, key=jr.key(config.seed), watch=watch)

    def save(path: Path) -> None:
        save_twin(path, twin, recipe, seed=config.seed)

    save_fitted(config.out, save, parts, kind=KIND, model=config.model)
    sys.stdout.write(
        f"{config.model}: fitted on {len(train.level):,} windows of {len(parts.train.patient):,} "
        f"patients; mean squared error on select patients {float(info['select_mse']):.4f} "
        f"(z-scores)\n"
    )


def score_twins(config: TwinScoreConfig) -> None:
    """Print the scores, persistence first, and write them if asked to."""
    _check_outputs(config)
    notes = [read_note(path, KIND) for path in config.twin]
    parts = read_parts(config.cohort, notes[0]["split"])
    for path, note in zip(config.twin, notes, strict=True):
        require_same_split(note, parts, path)
    patients = parts.test
    if config.fresh is not None:
        patients = _fresh(config.fresh, parts.test.minutes)
        for path, note in zip(config.twin, notes, strict=True):
            require_unseen(note, patients, path)
    names = _names(config.twin, [note["model"] for note in notes])
    models: dict[str, Forecaster] = {
        name: load_twin(path)[0] for name, path in zip(names, config.twin, strict=True)
    }
    base, scaler = _persistence(parts, read_profile(config.cohort, config.profile))
    models = {PERSISTENCE: base} | models  # a saved one takes the place of ours
    hours = make_transitions(patients)
    scores = score_models(models, hours, scaler)
    found = scores_to_dict(scores)
    if config.json is not None:
        config.json.write_bytes(_json(found))
    sys.stdout.write(scores_to_text(found))
    if config.figures is not None:
        _draw(config.figures, models, scores, hours)


def score_models(
    models: Mapping[str, Forecaster], hours: Transitions, scaler: Scaler
) -> dict[str, ForecastScores]:
    """Every forecaster on the same rows, with the same key and scale."""
    scores = {}
    with progress("scoring") as watch:
        for done, (name, model) in enumerate(models.items()):
            scores[name] = score_forecasts(model, hours, scaler, key=jr.key(0))
            watch((done + 1) / len(models))
    return scores


def scores_to_dict(scores: Mapping[str, ForecastScores]) -> dict[str, Any]:
    """Plain values; differences to persistence are paired, intervals are over patients."""
    base = scores[PERSISTENCE]
    models = {name: summarize(one) for name, one in scores.items()}
    for name in set(models) - {PERSISTENCE}:
        models[name]["against_persistence"] = {
            metric: compare_forecasts(scores[name], base, metric)
            for metric in COMPARED
            if models[name][metric] is not None
        }
    return {"models": models}


def scores_to_text(found: dict[str, Any]) -> str:
    """An aligned table, one line per model, and what its numbers rest on."""
    models = found["models"]
    lines = [["model", *COLUMNS]]
    lines += [[name, *(_cell(one[key]) for key in COLUMNS)] for name, one in models.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    table = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
    base = models[PERSISTENCE]
    table.append(
        f"\n{base['rows']:,} hours of {base['patients']:,} patients, "
        f"{base['changing']['rows']:,} with a change of level; "
        f"always guessing the most frequent trend scores {base['trend_base']:.3f}."
    )
    return "\n".join(table) + "\n"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _check_outputs(config: TwinScoreConfig) -> None:
    if not config.twin:
        raise ValueError("--twin: expected at least one folder of stepdown twin fit, got none.")
    if config.json is not None and not config.json.parent.is_dir():
        raise FileNotFoundError(
            f"--json: expected a file in an existing folder, got {config.json}; make the folder."
        )
    if config.figures is not None:
        require_free(config.figures)


def _draw(path: Path, models, scores, hours: Transitions) -> None:
    """The figures of a comparison; the first twin that was named is the main one."""
    order = [name for name in models if name != PERSISTENCE] + [PERSISTENCE]
    models, scores = ({name: x[name] for name in order} for x in (models, scores))
    growths = {name: grow_errors(model, hours, key=jr.key(0)) for name, model in models.items()}
    content: dict[str, Content] = {
        "examples.png": lambda file: draw_examples(models, hours, file),
        "calibration.png": lambda file: draw_calibration(scores, file),
        "growth.png": lambda file: draw_growth(growths, file),
        "growth.json": _json({name: summarize_growth(one) for name, one in growths.items()}),
    }
    write_folder(path, content, kind="figures", about=provenance(config=PAPER_HORIZON))


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def _fresh(path: Path, minutes: float) -> Cohort:
    """All patients of another cohort, sampled as the twins know it."""
    cohort = read_cohort(path)
    if cohort.minutes != minutes:
        raise ValueError(
            f"{path}: expected a sample every {minutes:g} min, as the twins were fitted on, "
            f"got every {cohort.minutes:g} min. Resample the recordings."
        )
    return replace(cohort, role="test")


def _names(paths: tuple[Path, ...], models: list[str]) -> list[str]:
    """The model's name where it is the only one, else the folder's."""
    names = [
        model if models.count(model) == 1 else path.resolve().name
        for path, model in zip(paths, models, strict=True)
    ]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"--twin: expected folders with different names, got {twice[0]!r} twice.")
    return names


def twin_hours(parts: Parts) -> tuple[Transitions, Transitions]:
    """Windows to fit, sliding by half an hour, and the hourly decisions to choose by."""
    return make_transitions(parts.train, SLIDING), make_transitions(parts.select)


def _persistence(parts: Parts, profile: str) -> tuple[Forecaster, Scaler]:
    """The row that every twin must beat, and the one scale of the train patients."""
    train, select = twin_hours(parts)
    recipe = TwinConfig(model="persistence", profile=profile)
    twin, _ = fit_twin(train, select, recipe, key=jr.key(0))
    return twin, twin.scaler
