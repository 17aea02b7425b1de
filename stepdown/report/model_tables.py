"""Tables of models: twins, guardians, trainings and the searches of either.

Tables with a title stand in the report, beside the paper's numbers where it has any; texts are
what the single commands print.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from stepdown.evaluation.guardians import SearchConfig
from stepdown.evaluation.guardians import Trial as DensityTrial
from stepdown.report.grids import Cell, Grid, mean_sd, to_text
from stepdown.report.labels import TWIN_METRICS, WINDOW_METRICS, size_words, twin_name
from stepdown.report.paper_numbers import SOURCES, WINDOWS, Number
from stepdown.report.paper_numbers import TWINS as PAPERS_TWINS

Summaries = Mapping[str, Sequence[Mapping[str, object]]]  # by model, then by seed
Windows = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]  # by window, model, metric
Row = dict[str, str | float]
Scores = Mapping[str, Any]  # plain numbers, as a command writes them to JSON
NOTED = (("offset", 1.0), ("action", 1.0), ("action", 3.0))  # shifts of the short table
WIDE = 14  # letters of a guardian's column


# ── twins ─────────────────────────────────────────────────────────────────────────────────────────


def twin_rows(models: Summaries) -> list[Row]:
    """Scores of every twin on test patients, mean and sd over its fits, beside the paper's."""
    return [
        {"model": model, "metric": metric, **_spread([one.get(metric) for one in seeds]),
         **_papers(PAPERS_TWINS.get(model, {}).get(metric))}
        for model, seeds in models.items()
        for metric in TWIN_METRICS
    ]  # fmt: skip


def settings_rows(windows: Windows) -> list[Row]:
    """Squared errors by window and model; the paper's belong to its Transformer."""
    return [
        {"window": window, "model": model, "metric": metric, **_spread(scores[metric]),
         **_papers(WINDOWS.get(window, {}).get(metric) if model == "tdt" else None)}
        for window, models in windows.items()
        for model, scores in models.items()
        for metric in WINDOW_METRICS
    ]  # fmt: skip


def twin_grid(models: Summaries) -> Grid:
    """Twins as lines, scores as columns; the paper's score stands below ours."""
    note = (
        "On test patients. Mixed units add mmHg, rpm, mA and L/min; published units count speed in "
        "10 rpm and flow in 0.01 L/min, as the paper's errors do; z counts in sd of train hours. "
        f"Paper: {SOURCES['twin']}."
    )
    lines = _lines(twin_rows(models), lambda row: twin_name(str(row["model"])))
    head = ("Model", *TWIN_METRICS.values())
    return Grid("What would happen next: twins", head, lines, note=note)


def settings_grid(windows: Windows) -> Grid:
    """Windows and models as lines."""
    rows = settings_rows(windows)
    lines = _lines(rows, lambda row: f"{row['window']}, {twin_name(str(row['model']))}")
    head, note = ("Window, model", *WINDOW_METRICS.values()), f"Paper: {SOURCES['settings']}."
    return Grid("Other windows of the twin", head, lines, note=note)


def _lines(rows: Sequence[Row], name: Callable[[Row], str]) -> tuple[tuple[Cell, ...], ...]:
    """A line for each name, whose rows follow each other."""
    return tuple((Cell(x), *map(_beside, own)) for x, own in groupby(rows, name))


def _spread(values: Sequence[object]) -> dict[str, float]:
    known = [float(x) for x in values if isinstance(x, (int, float))]
    if not known:
        return {"mean": math.nan, "sd": math.nan}
    return {"mean": float(np.mean(known)), "sd": float(np.std(known, ddof=1)) if known[1:] else 0.0}


def _papers(found: Number | None) -> dict[str, float]:
    mean, sd = (math.nan, None) if found is None else found
    return {"paper_mean": mean, "paper_sd": math.nan if sd is None else sd}


def _beside(row: Row) -> Cell:
    sd, paper = float(row["sd"]), float(row["paper_mean"])
    text = mean_sd(float(row["mean"]), sd if sd > 0 else None, 3)
    return Cell(text, f"paper {mean_sd(paper, float(row['paper_sd']))}" if paper == paper else "")


def forecasts_text(models: Mapping[str, Scores], base: str) -> str:
    """Forecasts on test patients, a line for each model, and what the numbers rest on.

    `base` is the model without any skill.
    """
    lines = [_line(name, [one[x] for x in TWIN_METRICS]) for name, one in models.items()]
    known = models[base]
    trend = ""
    if known["trend_base"] is not None:
        trend = f"; always guessing the most frequent trend scores {known['trend_base']:.3f}"
    return (
        f"{to_text(Grid('', ('model', *TWIN_METRICS), tuple(lines)), rule=False)}"
        f"\n{known['rows']:,} hours of {known['patients']:,} patients, "
        f"{known['changing']['rows']:,} with a change of level, "
        f"{known['inside']['rows']:,} inside the hour{trend}.\n"
    )


def _line(name: str, values: Sequence[float | None]) -> tuple[Cell, ...]:
    return (Cell(name), *(Cell() if x is None else Cell(f"{x:.3f}") for x in values))


# ── guardians ─────────────────────────────────────────────────────────────────────────────────────


def guardian_rows(found: Mapping[str, Scores]) -> list[dict[str, str | float | None]]:
    """False alarms, some shifts and refused small changes of every guardian on test patients."""
    rows = []
    for name, one in found.items():
        row: dict[str, str | float | None] = {"guardian": name}
        for alarm in one["false_alarms"]:
            row[f"false alarms, asked {100 * alarm['asked']:g} %"] = alarm["real"]
        for shift in one["shifts"]:
            if (shift["kind"], shift["size"]) in NOTED:
                row[f"AUROC, {_shift(shift)}"] = shift["auroc"]
        row["small changes refused at 5 %"] = one["small_changes"]["refused"]
        rows.append(row)
    return rows


def guardian_grid(found: Mapping[str, Scores]) -> Grid:
    """The same for a page, a line for each guardian."""
    rows = [list(row.items()) for row in guardian_rows(found)]
    head = tuple(name for name, _ in rows[0])
    lines = [_line(str(row[0][1]), [value for _, value in row[1:]]) for row in rows]  # pyright: ignore[reportArgumentType]
    return Grid("", head, tuple(lines))


def guardian_text(found: Mapping[str, Scores]) -> str:
    """The same for a terminal, a column for each guardian: the names are long, the models few."""
    grid = guardian_grid(found)
    first, *columns = zip(
        grid.head, *([cell.text for cell in row] for row in grid.rows), strict=True
    )
    lines = tuple(tuple(map(Cell, column)) for column in columns)
    return to_text(Grid("", first, lines), rule=False, least=WIDE)


def shifts_text(found: Mapping[str, Scores]) -> str:
    """All that was scored, a table for each guardian."""
    return "\n\n".join(_shifts(name, one) for name, one in found.items()) + "\n"


def _shifts(name: str, one: Scores) -> str:
    rate, small = f"{100 * one['rate']:g} %", one["small_changes"]
    alarms = ", ".join(
        f"{100 * row['real']:.1f} % (asked {100 * row['asked']:g} %)" for row in one["false_alarms"]
    )
    refused = "-" if small["refused"] is None else f"{100 * small['refused']:.1f} %"
    lines = [_line(_shift(row), [row["auroc"], row["recall"]]) for row in one["shifts"]]
    table = to_text(Grid("", ("shift", "AUROC", f"recall at {rate}"), tuple(lines)), rule=False)
    return "\n".join(
        (
            f"{name}: {one['decisions']:,} decisions of {one['patients']:,} test patients",
            f"  false alarms: {alarms}; below the threshold of u: "
            f"{100 * one['threshold_alarms']:.1f} %",
            f"  recorded changes of one or two levels refused at {rate}: {refused} "
            f"of {small['decisions']:,}",
            textwrap.indent(table.rstrip("\n"), "  "),
        )
    )


def _shift(row: Scores) -> str:
    return f"{row['kind']} {size_words(row['kind'], row['size'])}"


def densities_text(best: DensityTrial, trials: Sequence[DensityTrial], config: SearchConfig) -> str:
    """All trials of a search for a density, then the choice."""
    names = ("weight", "bandwidth", "share", "swapped", "small changes refused", "1-sd recall")
    lines = [
        (
            *(Cell(f"{x:g}") for x in (one.weight, one.bandwidth, one.share)),
            Cell(f"{one.swapped:.3f}"),
            Cell(f"{100 * one.small_changes:.1f} %"),
            Cell(f"{one.state_recall:.3f}"),
            Cell("yes" if one.allowed else "no"),
            Cell("<" if one == best else ""),
        )
        for one in trials
    ]
    grid = Grid("", (*names, "allowed", ""), tuple(lines), kinds=(*["number"] * 7, ""))
    words = f"weight {best.weight:g}, bandwidth {best.bandwidth:g}, share {best.share:g}"
    said = f"chosen: {words}"
    if not best.allowed:
        said = (
            f"no trial refuses at most {100 * config.most_alarms:g} % of small changes and at "
            f"least {100 * config.least_recall:g} % of moved hours; closest by AUROC: {words}"
        )
    return f"{to_text(grid, rule=False)}\n{said}.\n"


# ── policies ──────────────────────────────────────────────────────────────────────────────────────


def training_text(found: Scores, names: Sequence[str], levels: Sequence[str]) -> str:
    """A training, a line for each seed, and the mean over seeds.

    `names` are the numbers to show; `levels` says for every seed what its policy sets.
    """
    rows = found["seeds"]
    known = [name for name in names if name in rows[0]]
    lines = tuple(
        (Cell(str(row["seed"])), *(Cell(_either(row[name])) for name in known), Cell(mix))
        for row, mix in zip(rows, levels, strict=True)
    )
    head = ("seed", *known, "levels on select patients")
    grid = Grid("", head, lines, kinds=(*["number"] * (1 + len(known)), ""))
    text = to_text(grid, rule=False)
    if "twin_reward" not in known:
        return text
    scores = np.array([row["twin_reward"] for row in rows])
    return (
        f"{text}\n{found['method']}: reward in the twin, select patients: {scores.mean():.3f} "
        f"± {scores.std():.3f} over {len(rows)} seeds\n"
    )


def _either(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def trials_text(found: Scores) -> str:
    """A line for each trial of a search for a policy, the best one marked."""
    best = found["chosen"]
    lines = tuple(
        (
            Cell(f"{one['score']:.3f}"),
            Cell(changes_words(one["changes"]) + "  <" * (one["changes"] == best)),
        )
        for one in found["trials"]
    )
    head = ("reward in the twin, select patients", "change of the preset")
    return to_text(Grid("", head, lines, kinds=("number", "")), rule=False)


def changes_words(changes: Mapping[str, float | int]) -> str:
    """Such as "sac.discount 0.95"."""
    return ", ".join(f"{name} {value:g}" for name, value in changes.items()) or "none"
