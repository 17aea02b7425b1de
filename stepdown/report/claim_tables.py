"""Tables beside the paper's: its claims, noise, training time, twins, windows of the twin."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from stepdown.evaluation.compare import (
    Metric,
    Row,
    difference,
    estimate,
    noise_drop,
    resample,
    values_of,
)
from stepdown.report.comparison import (
    BASELINES,
    JUDGES,
    OURS,
    SETTINGS,
    Comparison,
    drop_rows,
    find,
    name_of,
    time_rows,
)
from stepdown.report.comparison_cells import at, sd_of
from stepdown.report.grids import Cell, Grid, mean_sd, number, signed, span
from stepdown.report.paper_numbers import (
    CLAIMS,
    DROP_PERCENT,
    SECONDS,
    SOURCES,
    TWINS,
    WINDOWS,
    Number,
)

TWIN_METRICS = {
    "mae": "MAE, mixed units",
    "mae_z": "MAE, z",
    "mae_map": "MAE of MAP, mmHg",
    "mae_static": "MAE, level stays",
    "mae_changing": "MAE, level changes",
    "trend": "MAP trend right",
    "crps": "CRPS, mixed units",
    "crps_z": "CRPS, z",
    "coverage50": "in 50 % band",
    "coverage90": "in 90 % band",
}
TWIN_NAMES = {
    "persistence": "Persistence",
    "mlp": "MLP",
    "np": "Neural process",
    "clmu": "CLMU",
    "ssm": "State-space model",
    "tdt": "Transformer (the paper's)",
    "rotary": "Transformer, rotary",
    "best": "Better twin (ours)",
}
WINDOW_METRICS = {"mse_z": "MSE, z", "mse_map": "MSE of MAP, mmHg²"}

Summaries = Mapping[str, Sequence[Mapping[str, object]]]  # by model, then by seed
Windows = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]  # by window, model, metric


def claims_grid(comparisons: Sequence[Comparison]) -> Grid:
    """What the paper claims beside what was found here, before every judge."""
    by_data = {one.data: one for one in reversed(comparisons)}  # the first of each counts
    judges = list(dict.fromkeys(x for one in comparisons for x in one.judges))
    judges = [judge for judge in JUDGES if judge in judges]
    lines = []
    for words, text, table, (data, metric, largest) in CLAIMS:
        if metric == "drop":
            clean, rough = by_data.get("noiseless"), by_data.get("noisy")
            cells = [_drop(clean, rough, judge) for judge in judges]
        else:
            cells = [_margin(by_data.get(data), judge, metric, largest) for judge in judges]
        if any(cell != Cell() for cell in cells):
            lines.append((Cell(words), Cell(text), Cell(table), *cells))
    head = ("CORMPO (KDE) against the best baseline", "its text", "its tables")
    note = (
        f"The best of {', '.join(name_of(x) for x in BASELINES)} may be another one for every "
        "number and judge, and is known only afterwards. In brackets: 95 % interval over "
        "patients; bold where it excludes zero, for better or worse."
    )
    above = (("", 1), ("Paper", 2), ("Here", len(judges)))
    heads = (*head, *(JUDGES[x] for x in judges))
    return Grid("The paper's claims, and what we find", heads, tuple(lines), above, note=note)


def _margin(comparison: Comparison | None, judge: str, metric: Metric, largest: bool) -> Cell:
    """CORMPO minus the baseline that this metric puts first."""
    judged = {} if comparison is None else comparison.before(judge)
    known = [x for x in BASELINES if x in judged]
    if OURS not in judged or not known:
        return Cell()
    values = {x: values_of(judged[x], metric) for x in (OURS, *known)}
    best = (max if largest else min)(known, key=lambda x: values[x].mean())
    weights = resample(judged[best].row)
    found = estimate(difference(values[OURS], values[best]), weights)
    theirs = estimate(values[best], weights)
    percent = ""
    if theirs["low"] * theirs["high"] > 0:  # a share of almost nothing says nothing
        percent = f" ({signed(100 * found['mean'] / abs(theirs['mean']), 0)} %)"
    clear, digits = found["low"] > 0 or found["high"] < 0, 2 if metric == "reward" else 3
    note = f"{span(found['low'], found['high'], digits)} against {name_of(best)}"
    return Cell(f"{signed(found['mean'], digits)}{percent}", note, strong=clear)


def _drop(noiseless: Comparison | None, noisy: Comparison | None, judge: str) -> Cell:
    if noiseless is None or noisy is None:
        return Cell()
    if not all(OURS in one.judged.get(judge, {}) for one in (noiseless, noisy)):
        return Cell()
    clean, rough = ({OURS: one.judged[judge][OURS]} for one in (noiseless, noisy))
    row = find(noise_drop(clean, rough, judge), OURS, judge, "reward_drop_percent")
    if row is None or not math.isfinite(at(row, "mean")):
        return Cell()
    return Cell(f"{signed(at(row, 'mean'), 1)} %", span(at(row, "low"), at(row, "high"), 1))


def drop_grid(noiseless: Comparison, noisy: Comparison) -> Grid:
    """Reward lost to noisy observations, with intervals, beside the paper's percent."""
    rows = drop_rows(noiseless, noisy)
    judges = [x for x in noiseless.judges if any(row["judge"] == x for row in rows)]
    head = ("Method", *("noiseless", "noisy", "drop") * len(judges), "drop")
    above = (("", 1), *((f"Reward, {JUDGES[x]}", 3) for x in judges), ("Paper", 1))
    lines = []
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        cells = [Cell(name_of(method))]
        for judge in judges:
            for metric in ("reward_noiseless", "reward_noisy"):
                row = find(rows, method, judge, metric)
                cells.append(Cell(mean_sd(at(row, "mean"), sd_of(row))))
            cells.append(_lost(rows, method, judge))
        paper = f"{DROP_PERCENT[method]:.2f} %" if method in DROP_PERCENT else Cell().text
        lines.append((*cells, Cell(paper)))
    note = (
        "Learned from noisy instead of noiseless observations, judged without noise. Bold: the "
        "95 % interval over patients excludes zero. A share of a reward that is not clearly off "
        "zero says nothing and is left out. Paper: "
        f"{SOURCES['drop']}; its expert's rewards (1.16 and 1.110) give 4.3 %, not 5.74 %."
    )
    title = f"Reward lost to noise: {SETTINGS[noisy.setting]} ({noisy.cohort})"
    return Grid(title, head, tuple(lines), above, note=note)


def _lost(rows: Sequence[Row], method: str, judge: str) -> Cell:
    drop = find(rows, method, judge, "reward_drop")
    share = at(find(rows, method, judge, "reward_drop_percent"), "mean")
    if drop is None:
        return Cell()
    percent = f" ({signed(share, 1)} %)" if math.isfinite(share) else ""
    low, high = at(drop, "low"), at(drop, "high")
    clear = low > 0 or high < 0
    return Cell(f"{signed(at(drop, 'mean'))}{percent}", span(low, high), strong=clear)


def time_grid(comparisons: Sequence[Comparison]) -> Grid:
    """Seconds of every training."""
    rows = time_rows(comparisons)
    columns = [(one.cohort, one.data, one.setting) for one in comparisons if one.seconds]
    several = len({cohort for cohort, *_ in columns}) > 1
    head = [f"{data}, {setting}" + f" ({cohort})" * several for cohort, data, setting in columns]
    lines = []
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        cells = []
        for column in columns:
            kept = [x for x in rows if (x["cohort"], x["data"], x["setting"]) == column]
            row = next((x for x in kept if x["method"] == method), None)
            cells.append(Cell() if row is None else _seconds(row))
        lines.append(
            (Cell(name_of(method)), *cells, Cell(number(SECONDS.get(method, math.nan), 0)))
        )
    note = f"Seconds to train all seeds together. Paper: {SOURCES['time']}."
    return Grid("Training time, s", ("Method", *head, "paper"), tuple(lines), note=note)


def _seconds(row: Mapping[str, str | float]) -> Cell:
    seconds, seeds = float(row["seconds"]), int(row["seeds"])
    return Cell(number(seconds, 1), f"{number(seconds / seeds, 1)} each" if seeds > 1 else "")


def twin_rows(models: Summaries) -> list[dict[str, str | float]]:
    """Scores of every twin on test patients, mean and sd over its fits, beside the paper's."""
    return [
        {"model": model, "metric": metric, **_spread([one.get(metric) for one in seeds]),
         **_papers(TWINS.get(model, {}).get(metric))}
        for model, seeds in models.items()
        for metric in TWIN_METRICS
    ]  # fmt: skip


def settings_rows(windows: Windows) -> list[dict[str, str | float]]:
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
    rows = {(row["model"], row["metric"]): row for row in twin_rows(models)}
    lines = [
        (Cell(TWIN_NAMES.get(model, model)), *(_beside(rows[model, x], 3) for x in TWIN_METRICS))
        for model in models
    ]
    note = (
        "On test patients. Mixed units add mmHg, rpm, mA and L/min, as the paper does; z counts in "
        f"sd of train hours. Paper: {SOURCES['twin']}."
    )
    head = ("Model", *TWIN_METRICS.values())
    return Grid("What would happen next: twins", head, tuple(lines), note=note)


def settings_grid(windows: Windows) -> Grid:
    """Windows and models as lines."""
    rows = {(x["window"], x["model"], x["metric"]): x for x in settings_rows(windows)}
    lines = [
        (Cell(f"{window}, {TWIN_NAMES.get(model, model)}"),
         *(_beside(rows[window, model, x], 3) for x in WINDOW_METRICS))
        for window, models in windows.items()
        for model in models
    ]  # fmt: skip
    head, note = ("Window, model", *WINDOW_METRICS.values()), f"Paper: {SOURCES['settings']}."
    return Grid("Other windows of the twin", head, tuple(lines), note=note)


def _spread(values: Sequence[object]) -> dict[str, float]:
    known = [float(x) for x in values if isinstance(x, (int, float))]
    if not known:
        return {"mean": math.nan, "sd": math.nan}
    return {"mean": float(np.mean(known)), "sd": float(np.std(known, ddof=1)) if known[1:] else 0.0}


def _papers(found: Number | None) -> dict[str, float]:
    mean, sd = (math.nan, None) if found is None else found
    return {"paper_mean": mean, "paper_sd": math.nan if sd is None else sd}


def _beside(row: Mapping[str, str | float], digits: int) -> Cell:
    sd, paper = float(row["sd"]), float(row["paper_mean"])
    text = mean_sd(float(row["mean"]), sd if sd > 0 else None, digits)
    return Cell(text, f"paper {mean_sd(paper, float(row['paper_sd']))}" if paper == paper else "")
