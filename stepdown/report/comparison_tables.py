"""Tables of a comparison for people: reward and safety, weaning, penalties, cohorts, a short one.

Below a value stands its difference to CORMPO, paired, with the 95 % interval over patients. Nobody
is called the best unless the interval to every other learned method excludes zero.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from stepdown.evaluation.compare import difference, estimate, resample, values_of
from stepdown.report.comparison import (
    BASELINES,
    CONTRASTS,
    IN_TWIN,
    JUDGES,
    LEARNED,
    OURS,
    PARTS,
    PENALTIES,
    REFERENCES,
    Comparison,
    find,
    name_of,
)
from stepdown.report.comparison_cells import Numbers, at, heading, paper_cell
from stepdown.report.grids import Cell, Grid, number, signed, span
from stepdown.report.paper_numbers import REWARDS, SOURCES

GROUPS = {
    "The paper's methods": (*BASELINES, "cormpo_flow", OURS),
    "What each part of CORMPO does": ("cormpo_unshaped", *PARTS),
    "Learned in the better twin": IN_TWIN,
    "References": REFERENCES,
    "Contrasts": [x for x in CONTRASTS if not x.startswith("always")],
}


def safety_grid(comparison: Comparison) -> Grid:
    """Reward and unsafe hours before every judge, the share of the room, the paper's reward."""
    numbers, judges, paper = Numbers(comparison), comparison.judges, REWARDS[comparison.data]
    truth, names = judges[-1], [JUDGES[judge] for judge in judges]
    room = any(x["metric"] == "room_percent" and x["judge"] == truth for x in numbers.rows)
    head = ("Method", *names, "paper", *names, *["room, %"] * room)
    above = (("", 1), ("Reward of 6 hours", len(judges) + 1), ("Unsafe hours, %", len(judges)))

    def line(method: str) -> list[Cell]:
        cells = [numbers.cell(method, x, "reward") for x in judges]
        cells.append(paper_cell(paper, method, "reward"))
        cells += [numbers.cell(method, x, "unsafe_hours") for x in judges]
        return cells + [numbers.room(method, truth)] * room

    note = (
        f"Below a value: its difference to {name_of(OURS)}, paired, with the 95 % interval over "
        "patients; ≈ where that contains zero. ± is the sd over seeds. Bold: clearly ahead of "
        f"every other learned method. {_noise(comparison)} Reward: 3.84 at best, −12 at worst. "
        "Room: 0 % are the clinicians, 100 % the look-ahead. Constant levels are in the CSV. "
        f"Paper: {SOURCES[comparison.data]}; its clinicians are its recorded expert."
    )
    lines, groups = _grouped(comparison, line)
    title = f"Reward and safety: {heading(comparison)}"
    return Grid(title, head, lines, (*above, *[(JUDGES[truth], 1)] * room), groups, note)


def weaning_grid(comparison: Comparison) -> Grid:
    """Jumps of the level and weaning scores before every judge, beside the paper's."""
    numbers, judges, paper = Numbers(comparison), comparison.judges, REWARDS[comparison.data]
    names = [JUDGES[judge] for judge in judges]
    head = ("Method", *names, "paper", *names, "paper")
    weaning = "Weaning score: gradient / limits / both"
    above = (("", 1), ("ACP, levels", len(judges) + 1), (weaning, len(judges) + 1))

    def line(method: str) -> list[Cell]:
        cells = [numbers.cell(method, x, "acp") for x in judges]
        cells.append(paper_cell(paper, method, "acp"))
        cells += [numbers.weaning(method, x) for x in judges]
        return [*cells, paper_cell(paper, method, "ws_gradient")]

    note = (
        "ACP adds up jumps of more than two levels. Weaning scores count decisions in hours that "
        "are stable by gradient (the paper's), by limits, or by both; the difference is of the "
        "first. Stepping down blindly scores high, so read them beside the unsafe hours. Cloning "
        "by the most probable level nearly holds it, so a lower ACP is not to be expected."
    )
    lines, groups = _grouped(comparison, line)
    return Grid(f"Changes of level: {heading(comparison)}", head, lines, above, groups, note)


def short_grid(comparison: Comparison) -> Grid:
    """What a terminal shows: reward before every judge, the rest before the last one."""
    numbers, judges = Numbers(comparison), comparison.judges
    truth = judges[-1]

    def line(method: str) -> list[Cell]:
        cells = [Cell(number(numbers.mean(method, x, "reward"))) for x in judges]
        apart = find(numbers.rows, method, truth, f"reward_minus_{OURS}")
        words = f"{signed(at(apart, 'mean'))} {span(at(apart, 'low'), at(apart, 'high'))}"
        cells.append(Cell(words) if apart else Cell())
        cells += [Cell(number(numbers.mean(method, truth, x))) for x in ("acp", "ws_gradient")]
        return [*cells, Cell(number(100 * numbers.mean(method, truth, "unsafe_hours"), 1))]

    head = (
        "method",
        *(JUDGES[x].split()[0] for x in judges),
        "minus CORMPO",
        "ACP",
        "WS",
        "unsafe",
    )
    above = (("", 1), ("reward in", len(judges)), (f"in {JUDGES[truth]}", 4))
    lines, groups = _grouped(comparison, line)
    return Grid(f"Learned from {heading(comparison)}", head, lines, above, groups)


def penalty_grid(comparison: Comparison) -> Grid:
    """The paper's table of penalty types: reward, ACP and weaning by judge, ours beside theirs."""
    numbers, judges, paper = Numbers(comparison), comparison.judges, REWARDS[comparison.data]
    names = [*(JUDGES[x] for x in judges), "paper"]
    above = [("", 1), *((x, len(names)) for x in ("Reward", "ACP, levels", "WS (gradient)"))]
    lines = []
    for method in comparison.methods(PENALTIES):
        cells = [Cell(name_of(method))]
        for metric in ("reward", "acp", "ws_gradient"):
            cells += [numbers.cell(method, x, metric) for x in judges]
            cells.append(paper_cell(paper, method, metric))
        lines.append(tuple(cells))
    title, note = f"Penalty types: {heading(comparison)}", f"Paper: {SOURCES['penalty']}."
    return Grid(title, ("Method", *3 * names), tuple(lines), tuple(above), note=note)


def cohorts_grid(comparisons: Sequence[Comparison], judge: str) -> Grid:
    """CORMPO's reward minus every other learned method's, one line per cohort."""
    asked = [one for one in comparisons if OURS in one.judged.get(judge, {})]
    methods = [x for x in LEARNED if x != OURS and any(x in one.judged[judge] for one in asked)]
    lines = []
    for one in asked:
        judged = one.judged[judge]
        ours, weights = values_of(judged[OURS], "reward"), resample(judged[OURS].row)
        room = find(one.rows, OURS, judge, "room_percent")
        share = f"{number(float(room['mean']), 0)} % of the room" if room else ""
        cells = [Cell(one.cohort), Cell(number(ours.mean()), share)]
        for method in methods:
            if method not in judged:
                cells.append(Cell())
                continue
            found = estimate(difference(ours, values_of(judged[method], "reward")), weights)
            clear = found["low"] > 0 or found["high"] < 0
            between = span(found["low"], found["high"])
            cells.append(Cell(signed(found["mean"]), between, strong=clear))
        lines.append(tuple(cells))
    head = ("Cohort", "its reward", *(name_of(x) for x in methods))
    title = f"{name_of(OURS)} minus each other method, {JUDGES[judge]}"
    above = (("", 2), ("difference of the 6-hour reward to", len(methods))) if methods else ()
    note = "Paired differences; bold where the 95 % interval over patients excludes zero."
    return Grid(title, head, tuple(lines), above, note=note)


def _grouped(
    comparison: Comparison, line: Callable[[str], list[Cell]]
) -> tuple[tuple[tuple[Cell, ...], ...], dict[int, str]]:
    """Lines of all methods by group; unknown ones come last, constant levels not at all."""
    known = [x for members in (*GROUPS.values(), CONTRASTS) for x in members]
    groups = GROUPS | {"Others": [x for x in comparison.methods() if x not in known]}
    lines, starts = [], {}
    for words, members in groups.items():
        methods = comparison.methods(members)
        if methods:
            starts[len(lines)] = words
        lines += [(Cell(name_of(method)), *line(method)) for method in methods]
    return tuple(lines), starts


def _noise(comparison: Comparison) -> str:
    """How large a gap means nothing unless it is paired."""
    judged = comparison.before(comparison.judges[-1])
    reward = values_of(judged.get(OURS) or next(iter(judged.values())), "reward")
    sd, count = float(np.std(reward)), reward.shape[1]
    gap = 1.96 * math.sqrt(2.0 / count) * sd
    return (
        f"One episode's reward has an sd of {number(sd, 1)}: at {count:,} episodes an unpaired gap "
        f"below {number(gap)} is noise."
    )
