"""What the searches before the trainings chose, and how far it led."""

from collections.abc import Mapping, Sequence

from stepdown.report.comparison import name_of
from stepdown.report.grids import Cell, Grid, signed

Trials = Sequence[Mapping[str, str | float]]  # with the columns below
COLUMNS = ("cohort", "data", "setting", "method", "changes", "score", "chosen")
PRESET = "the preset"  # the first trial of every search


def search_grid(trials: Trials) -> Grid:
    """Methods as lines, searches as columns: the best trial and its lead over the preset."""
    found: dict[tuple[str, ...], list[Mapping[str, str | float]]] = {}
    for trial in trials:
        found.setdefault(tuple(str(trial[x]) for x in COLUMNS[:4]), []).append(trial)
    columns = list(dict.fromkeys(key[:3] for key in found))
    lines = [
        (Cell(name_of(method)), *(_best(found.get((*column, method), [])) for column in columns))
        for method in dict.fromkeys(key[3] for key in found)
    ]
    head = [f"{data}, {setting} ({cohort})" for cohort, data, setting in columns]
    return Grid(
        "What the searches chose",
        ("Method", *head),
        tuple(lines),
        note="The best trial and its lead over the preset, mean six-hour reward in the twin from "
        "select patients. On simulated cohorts most of such a lead was luck, and the twin liked "
        "weaker guardians than the truth did where low support is dangerous.",
    )


def _best(trials: Trials) -> Cell:
    if not trials:
        return Cell()
    best = next(x for x in trials if x["chosen"] == "yes")
    lead = float(best["score"]) - float(trials[0]["score"])
    words = str(best["changes"])
    return Cell(words, "" if words == PRESET else signed(lead))
