"""`stepdown guardian fit`, `score` and `search`: a guardian out of a cohort, and what it notices.

Fitted on train patients, set by select patients, scored on test patients; the split is the one of
the twins. The search looks at select patients alone.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax.random as jr

from stepdown.artifacts import provenance, require_free, write_folder
from stepdown.evaluation.guardian_search import SearchConfig, Trial, search_guardian
from stepdown.evaluation.shifts import Moved, score_shifts
from stepdown.guardian.conditional import Density
from stepdown.guardian.fit import (
    KIND,
    DensityConfig,
    DensityName,
    fit_guardian,
    load_guardian,
    require_flag,
    save_guardian,
)
from stepdown.guardian.kde import KdeConfig, fit_kde
from stepdown.guardian.threshold import Clip, Guardian, GuardianConfig
from stepdown.problem.hours import make_transitions
from stepdown.report.guardian_figures import draw_densities, draw_search, draw_shifts
from stepdown.report.labels import size_words
from stepdown.report.parts import SPLIT, read_note, read_parts, require_same_split, save_fitted
from stepdown.report.progress import progress

SHIFTS, DENSITIES, SEARCH = "shifts.png", "densities-{}.png", "search.png"


@dataclass(frozen=True)
class GuardianFitConfig:
    """Fit a density guardian to the train patients of a cohort."""

    cohort: Path  # folder of `stepdown simulate` or `import`, or a Parquet file like it
    density: DensityName  # which density
    out: Path  # new folder for the guardian
    contains_patient_data: bool = False  # save recorded hours, which kernels are made of
    percentile: float = 35.0  # of select patients' log p, the threshold of u
    clip: Clip = "both"  # positive: no bonus for dense decisions
    share: float | None = None  # of log p(s) that is kept; by default 1, and 0 for conditional
    bandwidth: float = 1.0  # of kernels, in z-scores
    neighbors: int = 100  # nearest recorded decisions of kernels; 0 for all
    action_weight: float = 8.0  # of the chosen level, for kernels
    seed: int = 0  # of a flow's weights
    split: int = SPLIT  # seed of the split into train, select and test patients


@dataclass(frozen=True)
class GuardianScoreConfig:
    """Score what guardians notice and refuse on test patients."""

    cohort: Path  # the cohort that the guardians were fitted on
    guardian: tuple[Path, ...]  # folders of `stepdown guardian fit`
    json: Path | None = None  # also write all scores to this file
    figures: Path | None = None  # new folder for figures
    seed: int = 0  # of the shifts


@dataclass(frozen=True)
class GuardianSearchConfig:
    """Search the weight of the chosen level and the bandwidth on select patients."""

    cohort: Path  # folder of `stepdown simulate` or `import`, or a Parquet file like it
    json: Path | None = None  # also write all trials to this file
    figures: Path | None = None  # new folder for the figure
    weights: tuple[float, ...] = SearchConfig().weights  # of the chosen level
    bandwidths: tuple[float, ...] = SearchConfig().bandwidths  # in z-scores
    shares: tuple[float, ...] = SearchConfig().shares  # of log p(s): 0 conditional, 1 joint
    neighbors: int = 100  # nearest recorded decisions; 0 for all
    seed: int = 0  # of swaps and shifts
    split: int = SPLIT  # seed of the split into train, select and test patients


def fit_and_save_guardian(config: GuardianFitConfig) -> None:
    """Fit, set the threshold, save with a note about the patients."""
    _check_seed(config.seed)
    kernels = KdeConfig(config.bandwidth, config.neighbors or None, config.action_weight)
    recipe = DensityConfig(config.density, config.share, kde=kernels)
    rule = GuardianConfig(config.percentile, clip=config.clip)
    require_flag(recipe, config.contains_patient_data)
    require_free(config.out)
    parts = read_parts(config.cohort, config.split)
    train, select = make_transitions(parts.train), make_transitions(parts.select)
    with progress(f"fitting {config.density}") as watch:
        guardian, _ = fit_guardian(
            train, select, recipe, rule, key=jr.key(config.seed), watch=watch
        )

    def save(path: Path) -> None:
        flag = config.contains_patient_data
        save_guardian(path, guardian, recipe, rule, seed=config.seed, contains_patient_data=flag)

    save_fitted(config.out, save, parts, kind=KIND, model=config.density)
    sys.stdout.write(
        f"{config.density}: fitted on {len(train.level):,} decisions of "
        f"{len(parts.train.patient):,} patients; threshold {float(guardian.threshold):.2f} nats "
        f"from {len(select.level):,} decisions of {len(parts.select.patient):,} select patients; "
        f"u between {float(guardian.lowest):.1f} and {float(guardian.highest):.1f}\n"
    )


def score_guardians(config: GuardianScoreConfig) -> None:
    """Print what the guardians notice; write numbers and figures if asked to."""
    if not config.guardian:
        raise ValueError("--guardian: expected a folder of stepdown guardian fit, got none.")
    _check_outputs(config.json, config.figures)
    _check_seed(config.seed)
    notes = [read_note(path, KIND) for path in config.guardian]
    parts = read_parts(config.cohort, notes[0]["split"])
    for path, note in zip(config.guardian, notes, strict=True):
        require_same_split(note, parts, path)
    guardians = _named(config.guardian, [note["model"] for note in notes])
    test = make_transitions(parts.test)
    found: dict[str, Any] = {}
    moved: dict[str, tuple[Moved, ...]] = {}
    with progress("scoring") as watch:
        for done, (name, guardian) in enumerate(guardians.items()):
            found[name], moved[name] = score_shifts(guardian, test, key=jr.key(config.seed))
            watch((done + 1) / len(guardians))
    _write_json(config.json, {"guardians": found})
    if config.figures is not None:
        files = {SHIFTS: draw_shifts(found)}
        for name, guardian in guardians.items():
            files[DENSITIES.format(name)] = draw_densities(name, guardian, moved[name])
        about = provenance(config=config, seed=config.seed)
        write_folder(config.figures, files, kind="figures", about=about)
    sys.stdout.write(scores_to_text(found))


def search(config: GuardianSearchConfig) -> None:
    """Print every trial and the chosen one; write numbers and the curve if asked to."""
    _check_outputs(config.json, config.figures)
    _check_seed(config.seed)
    wanted = SearchConfig(config.weights, config.bandwidths, config.shares)
    parts = read_parts(config.cohort, config.split)
    train, select = make_transitions(parts.train), make_transitions(parts.select)

    def fit(weight: float, bandwidth: float) -> Density:
        return fit_kde(train, KdeConfig(bandwidth, config.neighbors or None, weight))

    with progress("searching") as watch:
        best, trials = search_guardian(fit, select, wanted, key=jr.key(config.seed), watch=watch)
    _write_json(config.json, {"best": asdict(best), "trials": [asdict(one) for one in trials]})
    if config.figures is not None:
        about = provenance(config=config, seed=config.seed)
        files = {SEARCH: draw_search(best, trials, wanted)}
        write_folder(config.figures, files, kind="figures", about=about)
    sys.stdout.write(trials_to_text(best, trials, wanted))


def scores_to_text(found: Mapping[str, Any]) -> str:
    """An aligned table per guardian."""
    blocks = []
    for name, one in found.items():
        rate = f"{100 * one['rate']:g} %"
        alarms = ", ".join(
            f"{100 * row['real']:.1f} % (asked {100 * row['asked']:g} %)"
            for row in one["false_alarms"]
        )
        small = one["small_changes"]
        refused = "-" if small["refused"] is None else f"{100 * small['refused']:.1f} %"
        lines = [
            f"{name}: {one['decisions']:,} decisions of {one['patients']:,} test patients",
            f"  false alarms: {alarms}; below the threshold of u: "
            f"{100 * one['threshold_alarms']:.1f} %",
            f"  recorded changes of one or two levels refused at {rate}: {refused} "
            f"of {small['decisions']:,}",
            f"  {'shift':14s}{'AUROC':>8s}{'recall at ' + rate:>16s}",
        ]
        for row in one["shifts"]:
            words = f"{row['kind']} {size_words(row['kind'], row['size'])}"
            lines.append(f"  {words:16s}{row['auroc']:6.3f}{row['recall']:16.3f}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def trials_to_text(best: Trial, trials: tuple[Trial, ...], config: SearchConfig) -> str:
    """An aligned table of all trials, then the choice."""
    lines = ["weight  bandwidth  share  swapped  small changes refused  1-sd recall  allowed"]
    for one in trials:
        lines.append(
            f"{one.weight:6g}{one.bandwidth:11g}{one.share:7g}{one.swapped:9.3f}"
            f"{100 * one.small_changes:21.1f} %{one.state_recall:13.3f}"
            f"{'yes' if one.allowed else 'no':>9s}{'  <' if one == best else ''}"
        )
    words = f"chosen: weight {best.weight:g}, bandwidth {best.bandwidth:g}, share {best.share:g}"
    if not best.allowed:
        words = (
            f"no trial refuses at most {100 * config.most_alarms:g} % of small changes and at "
            f"least {100 * config.least_recall:g} % of moved hours; closest by AUROC: {words[8:]}"
        )
    return "\n".join([*lines, "", words]) + ".\n"


def _named(paths: tuple[Path, ...], models: list[str]) -> dict[str, Guardian]:
    """Guardians by their density where it is the only one, else by folder."""
    found = {}
    for path, model in zip(paths, models, strict=True):
        name = model if models.count(model) == 1 else path.resolve().name
        if name in found:
            raise ValueError(f"--guardian: expected folders of different names, got {name} twice.")
        found[name] = load_guardian(path)[0]
    return found


def _write_json(file: Path | None, found: object) -> None:
    if file is not None:
        text = json.dumps(found, indent=2, allow_nan=False) + "\n"
        file.write_text(text, encoding="utf-8")


def _check_outputs(file: Path | None, figures: Path | None) -> None:
    if file is not None and not file.parent.is_dir():
        raise FileNotFoundError(
            f"--json: expected a file in an existing folder, got {file}; make the folder."
        )
    if figures is not None:
        require_free(figures)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed: expected 0 to {2**32 - 1}, got {seed}.")
