"""`stepdown guardian fit`, `score` and `search`: a guardian out of a cohort, and what it notices.

Fitted on train patients, set by select patients, scored on test patients; the split is the one of
the twins. The search looks at select patients alone.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax.random as jr

from stepdown.artifacts import provenance, require_free, to_json, write_folder
from stepdown.commands.checks import check_outputs, check_seed, name_models
from stepdown.evaluation.guardians import Moved, SearchConfig, score_shifts, search_guardian
from stepdown.experiment.progress import progress
from stepdown.guardian.density import Density
from stepdown.guardian.fit import KIND, DensityConfig, fit_guardian, require_flag, save_guardian
from stepdown.guardian.guardians import DENSITIES, load_guardian
from stepdown.guardian.kde import KdeConfig, fit_kde
from stepdown.guardian.threshold import Clip, GuardianConfig
from stepdown.problem.hours import make_transitions
from stepdown.records.split import SPLIT, read_note, read_parts, require_same_split, save_fitted
from stepdown.report.model_figures import draw_densities, draw_search, draw_shifts
from stepdown.report.model_tables import densities_text, shifts_text

if TYPE_CHECKING:
    DensityName = str
else:
    DensityName = Literal[tuple(DENSITIES)]
SHIFTS, PLACES, SEARCH = "shifts.png", "densities-{}.png", "search.png"


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
    check_seed(config.seed)
    kind, kernels = DENSITIES[config.density], None
    if isinstance(kind.config, KdeConfig):
        kernels = KdeConfig(config.bandwidth, config.neighbors or None, config.action_weight)
    recipe = DensityConfig(kind, config.share, kernels)
    rule = GuardianConfig(config.percentile, clip=config.clip)
    require_flag(kind, config.contains_patient_data)
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
    check_outputs(config.json, config.figures)
    check_seed(config.seed)
    notes = [read_note(path, KIND) for path in config.guardian]
    named = name_models(KIND, config.guardian, [note["model"] for note in notes])
    parts = read_parts(config.cohort, notes[0]["split"])
    for path, note in zip(config.guardian, notes, strict=True):
        require_same_split(note, parts, path)
    guardians = {name: load_guardian(path)[0] for name, path in named.items()}
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
            files[PLACES.format(name)] = draw_densities(name, guardian, moved[name])
        about = provenance(config=config, seed=config.seed)
        write_folder(config.figures, files, kind="figures", about=about)
    sys.stdout.write(shifts_text(found))


def search(config: GuardianSearchConfig) -> None:
    """Print every trial and the chosen one; write numbers and the curve if asked to."""
    check_outputs(config.json, config.figures)
    check_seed(config.seed)
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
    sys.stdout.write(densities_text(best, trials, wanted))


def _write_json(file: Path | None, found: object) -> None:
    if file is not None:
        file.write_bytes(to_json(found))
