"""`stepdown twin fit` and `stepdown twin score`: a twin out of a cohort, and how well it forecasts.

Fitting slides its windows by half an hour over train patients and stops by the hourly decisions of
select patients; scores come from those of patients that no twin has seen. Persistence is always a
row of the table.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax.random as jr

from stepdown.artifacts import Content, provenance, require_free, to_json, write_folder
from stepdown.commands.checks import check_outputs, check_seed, name_models
from stepdown.evaluation.forecast import (
    PAPER_HORIZON,
    Forecaster,
    ForecastScores,
    compare_forecasts,
    describe_honesty,
    forecast_examples,
    grow_errors,
    score_forecasts,
    summarize,
    summarize_growth,
)
from stepdown.experiment.patients import SLIDING
from stepdown.experiment.progress import progress
from stepdown.handover import Cohort, Transitions, hours_read
from stepdown.problem.hours import HoursConfig, make_transitions
from stepdown.problem.scaling import Scaler
from stepdown.records.files import read_cohort
from stepdown.records.split import (
    SPLIT,
    Parts,
    read_note,
    read_parts,
    read_profile,
    require_same_split,
    require_unseen,
    save_fitted,
)
from stepdown.report.model_figures import draw_examples, draw_growth, draw_honesty
from stepdown.report.model_tables import forecasts_text
from stepdown.twin.fit import KIND, fit_twin, save_twin
from stepdown.twin.twins import TWINS, Size, load_twin, twin_config

COMPARED = ("mae", "mae_z", "mae_map", "mae_changing", "crps", "crps_z")
PERSISTENCE = "persistence"

if TYPE_CHECKING:
    TwinName = str
else:
    TwinName = Literal[tuple(TWINS)]


@dataclass(frozen=True)
class TwinFitConfig:
    """Fit a digital twin to the train patients of a cohort."""

    cohort: Path  # folder of `stepdown simulate` or `import`, or a Parquet file like it
    model: TwinName  # which twin
    out: Path  # new folder for the twin
    seed: int = 0  # of the weights and the order of the rows
    size: Size = "paper"  # full, of the Transformer in sizes of ours; small: for two cores
    split: int = SPLIT  # seed of the split into train, select and test patients
    profile: str | None = None  # pump profile; by default the cohort's own, else cp
    history: int = 1  # hours before a decision that it reads, 1 to 12; ridge and best alone


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
    check_seed(config.seed)
    require_free(config.out)
    recipe = twin_config(config.model, config.size, history=config.history)
    parts = read_parts(config.cohort, config.split)
    recipe = replace(recipe, profile=read_profile(config.cohort, config.profile))
    train, select = twin_hours(parts, config.history)
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
    check_outputs(config.json, config.figures)
    notes = [read_note(path, KIND) for path in config.twin]
    named = name_models(KIND, config.twin, [note["model"] for note in notes])
    parts = read_parts(config.cohort, notes[0]["split"])
    for path, note in zip(config.twin, notes, strict=True):
        require_same_split(note, parts, path)
    patients = parts.test
    if config.fresh is not None:
        patients = _fresh(config.fresh, parts.test.minutes)
        for path, note in zip(config.twin, notes, strict=True):
            require_unseen(note, patients, path)
    models: dict[str, Forecaster] = {name: load_twin(path)[0] for name, path in named.items()}
    base, scaler = _persistence(parts, read_profile(config.cohort, config.profile))
    models = {PERSISTENCE: base} | models  # a saved one takes the place of ours
    hours = make_transitions(patients, HoursConfig(history=max(map(hours_read, models.values()))))
    scores = score_models(models, hours, scaler)
    found = scores_to_dict(scores)
    if config.json is not None:
        config.json.write_bytes(to_json(found))
    sys.stdout.write(forecasts_text(found["models"], PERSISTENCE))
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


def _draw(path: Path, models: dict[str, Forecaster], scores, hours: Transitions) -> None:
    """The figures of a comparison; the first twin that was named is the main one."""
    order = [name for name in models if name != PERSISTENCE] + [PERSISTENCE]
    growths = {name: grow_errors(models[name], hours, key=jr.key(0)) for name in order}
    growing = {name: summarize_growth(one) for name, one in growths.items()}
    honesty = {name: describe_honesty(scores[name], key=jr.key(0)) for name in order}
    forecast = {name: forecast_examples(models[name], hours, key=jr.key(0)) for name in order}
    examples = {name: one for name, one in forecast.items() if one is not None}
    starts = len(growths[order[0]].patient)
    content: dict[str, Content] = {"examples.png": draw_examples(examples)} if examples else {}
    content |= {
        "calibration.png": draw_honesty(honesty),
        "growth.png": draw_growth(growing, starts),
        "growth.json": to_json(growing),
    }
    write_folder(path, content, kind="figures", about=provenance(config=PAPER_HORIZON))


def _fresh(path: Path, minutes: float) -> Cohort:
    """All patients of another cohort, sampled as the twins know it."""
    cohort = read_cohort(path)
    if cohort.minutes != minutes:
        raise ValueError(
            f"{path}: expected a sample every {minutes:g} min, as the twins were fitted on, "
            f"got every {cohort.minutes:g} min. Resample the recordings."
        )
    return replace(cohort, role="test")


def twin_hours(parts: Parts, history: int = 1) -> tuple[Transitions, Transitions]:
    """Windows to fit, sliding by half an hour, and the hourly decisions to choose by."""
    sliding = replace(SLIDING, history=history)
    hourly = HoursConfig(history=history)
    return make_transitions(parts.train, sliding), make_transitions(parts.select, hourly)


def _persistence(parts: Parts, profile: str) -> tuple[Forecaster, Scaler]:
    """The row that every twin must beat, and the one scale of the train patients."""
    train, select = twin_hours(parts)
    recipe = twin_config(PERSISTENCE, profile=profile)
    twin, _ = fit_twin(train, select, recipe, key=jr.key(0))
    return twin, twin.scaler
