"""`stepdown compare`: a cohort beside another one, or beside the simulator, as a page.

The first thing to run with recordings of one's own. Without `--with` the other side is simulated:
the guarded preset of version 2, with the pump of the cohort and a fixed seed. Everything is checked
before the long work starts, and the folder appears complete or not at all.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import jax.random as jr
import numpy as np
from tyro.conf import Positional, arg

from stepdown.artifacts import CONFIG, Content, provenance, require_free, to_json, write_folder
from stepdown.evaluation.carried_over import (
    ENOUGH,
    CarryConfig,
    Forecasts,
    Refusals,
    Side,
    forecast_abroad,
    make_sides,
    refuse_abroad,
)
from stepdown.evaluation.side_by_side import FEWEST, Difference, Pair, compare_cohorts, make_pair
from stepdown.evaluation.told_apart import VIEWS, ToldApart, tell_apart
from stepdown.experiment.progress import progress
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, simulate_cohort
from stepdown.records.files import read_cohort
from stepdown.records.split import read_profile
from stepdown.report.side_by_side_page import (
    Facts,
    SideBySide,
    difference_rows,
    plain_values,
    side_by_side_page,
    summary_text,
)
from stepdown.twin.twins import TWINS, twin_config

SEED = 2029  # of the simulated patients; far from the seeds that examples use
LEAST, MOST = 60, 379  # simulated patients
KIND, PAGE, NUMBERS, TABLE = "comparison", "index.html", "compare.json", "differences.csv"
START, PER_PATIENT = 1.0, 0.015  # min on two cores, as measured with 100 and 100 patients

if TYPE_CHECKING:
    TwinName = str
else:
    TwinName = Literal[tuple(TWINS)]


@dataclass(frozen=True)
class CompareConfig:
    """Show a cohort beside another one or the simulator, as a page."""

    source: Positional[Path]  # folder of `stepdown import` or `simulate`, or a Parquet file like it
    out: Path  # new folder for the page and its numbers
    other: Annotated[Path | None, arg(name="with")] = None  # by default patients are simulated
    model: TwinName = "best"  # twin that is carried over, in its small size


def compare(config: CompareConfig) -> None:
    """Write the page, and print what it comes to."""
    require_free(config.out)
    mine = read_cohort(config.source)
    if len(mine.patient) < FEWEST:
        raise ValueError(
            f"{config.source}: expected at least {FEWEST} patients, got {len(mine.patient)}: "
            "intervals are over patients. Import more stays."
        )
    profile = read_profile(config.source, None)
    other_profile = profile if config.other is None else read_profile(config.other, None)
    theirs = None if config.other is None else read_cohort(config.other)
    count = min(max(len(mine.patient), LEAST), MOST) if theirs is None else len(theirs.patient)
    minutes = START + PER_PATIENT * (len(mine.patient) + count)
    sys.stderr.write(
        f"comparing {len(mine.patient)} with {count} patients: roughly {minutes:.0f} min on two "
        "cores\n"
    )
    if theirs is None:
        make_pair(mine, mine)  # refuses what cannot be compared before anything is simulated
        theirs = _simulated(count, profile)
    pair = make_pair(mine, theirs)
    found = _found(config, (mine, theirs), (profile, other_profile), pair)
    content: dict[str, Content] = {
        PAGE: side_by_side_page(found).encode(),
        NUMBERS: to_json(plain_values(found)),
        TABLE: difference_rows(found),
    }
    write_folder(config.out, content, kind=KIND, about=found.about)
    sys.stdout.write(f"{summary_text(found)}\nThe page: {config.out / PAGE}\n")


def _simulated(patients: int, profile: str) -> Cohort:
    recipe = CohortConfig(patients=patients, preset="guarded", profile=profile, version=2)
    with progress("simulating patients") as watch:
        return simulate_cohort(recipe, key=jr.split(jr.key(SEED), 3)[0], watch=watch)[0]


def _found(
    config: CompareConfig, cohorts: tuple[Cohort, Cohort], profiles: tuple[str, str], pair: Pair
) -> SideBySide:
    about = provenance(config={"cohort": config.source.name, "model": config.model}, seed=SEED)
    differences, told = _measure(pair)
    refusals, forecasts = _carry(config, pair, profiles)
    names = config.source.resolve().name, _other_name(config)
    said = names[0], names[1] if config.other else "simulated patients"
    words = _words(config.source), _words(config.other)
    only = pair.only_ours, pair.only_theirs
    each = zip(names, said, words, cohorts, profiles, only, strict=True)
    ours, theirs = (
        Facts(name, told, what, len(x.patient), _hours(x), x.minutes, profile, lacking)
        for name, told, what, x, profile, lacking in each
    )
    return SideBySide(ours, theirs, pair.used, differences, told, refusals, forecasts, about)


def _measure(pair: Pair) -> tuple[tuple[Difference, ...], tuple[ToldApart, ...]]:
    k_numbers, k_classifier = jr.split(jr.key(0))
    with progress("measuring both cohorts") as watch:
        differences = compare_cohorts(pair, key=k_numbers, watch=watch)
    with progress("telling hours apart") as watch:
        told = tuple(
            tell_apart(pair, view, key=k_classifier, watch=lambda x, i=i: watch((i + x) / 2))
            for i, view in enumerate(VIEWS)
        )
    return differences, told


def _carry(
    config: CompareConfig, pair: Pair, profiles: tuple[str, str]
) -> tuple[tuple[Refusals, ...], tuple[Forecasts, ...]]:
    sides, recipe = make_sides(pair), CarryConfig(twin_config(config.model, "small"))
    refusals = []
    with progress("asking guardians") as watch:
        refusals.append(refuse_abroad(sides, "theirs", recipe, key=jr.key(0)))
        watch(0.5)
        if len(sides.ours.patient) >= ENOUGH:
            refusals.append(refuse_abroad(sides, "ours", recipe, key=jr.key(0)))
        watch(1.0)
    pumps: dict[Side, str] = {"ours": profiles[0], "theirs": profiles[1]}
    with progress("fitting and scoring twins") as watch:
        forecasts = forecast_abroad(sides, pumps, recipe, key=jr.key(0), watch=watch)
    return tuple(refusals), forecasts


def _hours(cohort: Cohort) -> float:
    return float(np.sum(np.asarray(cohort.seen))) * cohort.minutes / 60


def _other_name(config: CompareConfig) -> str:
    if config.other is None:
        return "simulated"
    name, own = config.other.resolve().name, config.source.resolve().name
    return f"{name} (other)" if name == own else name


def _words(path: Path | None) -> str:
    """What a cohort is; simulated ones say which."""
    if path is None:
        return f"simulated, guarded, version 2, seed {SEED}"
    about = {}
    if (path / CONFIG).is_file():
        about = json.loads((path / CONFIG).read_bytes())
    if "preset" not in about:
        return "recordings"
    return f"simulated, {about['preset']}, version {about.get('version', 1)}"
