"""Tables of comparisons for people: reward and safety, changes of level, claims, cohorts, searches.

Below a value stands its difference to CORMPO, paired, with the 95 % interval over patients. Nobody
is called the best unless the interval to every other learned method excludes zero.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepdown.evaluation.compare import (
    Row,
    difference,
    estimate,
    noise_drop,
    resample,
    values_of,
)
from stepdown.report.comparison import (
    ALL,
    Comparison,
    across_rows,
    drop_rows,
    find,
    judges_of,
    margin_of,
    methods_of,
    preset_of,
    same_question,
    time_rows,
)
from stepdown.report.grids import Cell, Grid, apart, mean_sd, number, signed, span
from stepdown.report.labels import (
    BASELINES,
    DATA,
    EXPERT,
    GROUPS,
    JUDGES,
    LEARNED,
    METHODS,
    METRICS,
    OURS,
    PENALTIES,
    SETTINGS,
    members_of,
    metrics_of,
    name_of,
)
from stepdown.report.paper_numbers import CLAIMS, DROP_PERCENT, REWARDS, SECONDS, SOURCES

Trials = Sequence[Mapping[str, str | float]]  # of searches, with the columns below
SEARCHED = ("cohort", "data", "setting", "method", "changes", "score", "chosen")
PRESET = "the preset"  # the first trial of every search


def safety_grid(comparison: Comparison) -> Grid:
    """Reward and unsafe hours before every judge, the share of the room, the paper's reward."""
    numbers, truth, metrics = Numbers(comparison), comparison.judges[-1], metrics_of("safety")
    room = any(x["metric"] == "room_percent" and x["judge"] == truth for x in comparison.rows)

    def line(method: str) -> list[Cell]:
        return numbers.line(method, metrics) + [numbers.room(method, truth)] * room

    note = (
        f"Below a value: its difference to {name_of(OURS)}, paired, with the 95 % interval over "
        "patients; ≈ where that contains zero. ± is the sd over seeds. Bold: clearly ahead of "
        f"every other learned method. {_noise(comparison)} Reward: 3.84 at best, −12 at worst. "
        "Room: 0 % are the clinicians, 100 % the look-ahead. Constant levels are in the CSV. "
        f"Paper: {SOURCES[comparison.data]}; its clinicians are its recorded expert."
    )
    head = ("Method", *numbers.head(metrics), *["room, %"] * room)
    above = (("", 1), *numbers.above(metrics), *[(JUDGES[truth].words, 1)] * room)
    lines, groups = _grouped(comparison, line)
    return Grid(f"Reward and safety: {heading(comparison)}", head, lines, above, groups, note)


def changes_grid(comparison: Comparison) -> Grid:
    """Jumps of the level and weaning scores before every judge, beside the paper's."""
    numbers, metrics = Numbers(comparison), metrics_of("changes")
    note = (
        "ACP adds up jumps of more than two levels. Weaning scores count decisions in hours that "
        "are stable by gradient (the paper's), by limits, or by both; the difference is of the "
        "first. Stepping down blindly scores high, so read them beside the unsafe hours. Cloning "
        "by the most probable level nearly holds it, so a lower ACP is not to be expected."
    )
    head, above = ("Method", *numbers.head(metrics)), (("", 1), *numbers.above(metrics))
    lines, groups = _grouped(comparison, lambda method: numbers.line(method, metrics))
    return Grid(f"Changes of level: {heading(comparison)}", head, lines, above, groups, note)


def short_grid(comparison: Comparison) -> Grid:
    """What a terminal shows: reward before every judge, the rest before the last one."""
    numbers, judges = Numbers(comparison), comparison.judges
    truth, others = judges[-1], tuple(METRICS)[1:]

    def line(method: str) -> list[Cell]:
        cells = [Cell(number(numbers.mean(method, x, "reward"))) for x in judges]
        row = comparison.row(method, truth, f"reward_minus_{OURS}")
        words = f"{signed(at(row, 'mean'))} {span(at(row, 'low'), at(row, 'high'))}"
        cells.append(Cell(words) if row else Cell())
        return [*cells, *(Cell(numbers.shown(method, truth, x)) for x in others)]

    names, brief = (JUDGES[x].words.split()[0] for x in judges), (METRICS[x].brief for x in others)
    head = ("method", *names, "minus CORMPO", *brief)
    over = (f"in {JUDGES[truth].words}", 1 + len(others))
    lines, groups = _grouped(comparison, line)
    title = f"Learned from {heading(comparison)}"
    return Grid(title, head, lines, (("", 1), ("reward in", len(judges)), over), groups)


def penalty_grid(comparison: Comparison) -> Grid:
    """The paper's table of penalty types: reward, ACP and weaning by judge, ours beside theirs."""
    numbers, judges = Numbers(comparison), comparison.judges
    metrics: dict[str, str] = {
        "reward": "Reward",
        "acp": "ACP, levels",
        "ws_gradient": "WS (gradient)",
    }
    names = [*(JUDGES[x].words for x in judges), "paper"]
    above = (("", 1), *((words, len(names)) for words in metrics.values()))
    lines = []
    for method in comparison.methods(PENALTIES):
        cells = [Cell(name_of(method))]
        for metric in metrics:
            cells += [numbers.cell(method, x, metric) for x in judges]
            cells.append(numbers.papers(method, metric))
        lines.append(tuple(cells))
    title, note = f"Penalty types: {heading(comparison)}", f"Paper: {SOURCES['penalty']}."
    return Grid(title, ("Method", *3 * names), tuple(lines), above, note=note)


def cohorts_grid(comparisons: Sequence[Comparison], judge: str) -> Grid:
    """CORMPO's reward minus every other learned method's, one line per cohort."""
    asked = [one for one in comparisons if OURS in one.judged.get(judge, {})]
    methods = [x for x in LEARNED if x != OURS and any(x in one.judged[judge] for one in asked)]
    lines = []
    for one in asked:
        judged = one.judged[judge]
        ours, weights = values_of(judged[OURS], "reward"), resample(judged[OURS].row)
        room = one.row(OURS, judge, "room_percent")
        share = f"{number(float(room['mean']), 0)} % of the room" if room else ""
        cells = [Cell(one.cohort), Cell(number(ours.mean()), share)]
        for method in methods:
            if method not in judged:
                cells.append(Cell())
                continue
            found = estimate(difference(ours, values_of(judged[method], "reward")), weights)
            cells.append(apart(found))
        lines.append(tuple(cells))
    head = ("Cohort", "its reward", *(name_of(x) for x in methods))
    title = f"{name_of(OURS)} minus each other method, {JUDGES[judge].words}"
    above = (("", 2), ("difference of the 6-hour reward to", len(methods))) if methods else ()
    note = "Paired differences; bold where the 95 % interval over patients excludes zero."
    return Grid(title, head, tuple(lines), above, note=note)


def _grouped(
    comparison: Comparison, line: Callable[[str], list[Cell]]
) -> tuple[tuple[tuple[Cell, ...], ...], dict[int, str]]:
    """Lines of all methods by group; unknown ones come last, constant levels not at all."""
    groups = {words: members_of(group) for group, words in GROUPS.items()}
    others = {"Others": tuple(x for x in comparison.methods() if x not in METHODS)}
    lines, starts = [], {}
    for words, members in (groups | others).items():
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


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Numbers:
    """The tidy rows of a comparison, as cells."""

    comparison: Comparison

    def head(self, metrics: Sequence[str]) -> list[str]:
        """A column for every judge and, where the paper prints the metric, for the paper."""
        judges = [JUDGES[x].words for x in self.comparison.judges]
        return [x for one in metrics for x in (*judges, *["paper"] * METRICS[one].printed)]

    def above(self, metrics: Sequence[str]) -> list[tuple[str, int]]:
        """The words of the metrics over their columns."""
        judges = len(self.comparison.judges)
        return [(METRICS[one].words, judges + METRICS[one].printed) for one in metrics]

    def line(self, method: str, metrics: Sequence[str]) -> list[Cell]:
        """What stands in these columns."""
        cells = []
        for one in metrics:
            cells += [self.cell(method, x, one, readings=True) for x in self.comparison.judges]
            cells += [self.papers(method, one)] * METRICS[one].printed
        return cells

    def mean(self, method: str, judge: str, metric: str) -> float:
        """One number, or NaN."""
        return at(self.comparison.row(method, judge, metric), "mean")

    def shown(self, method: str, judge: str, metric: str) -> str:
        """One number as it is shown, or a dash."""
        one = METRICS[metric]
        return number(one.scale * self.mean(method, judge, metric), one.digits)

    def cell(self, method: str, judge: str, metric: str, *, readings: bool = False) -> Cell:
        """Mean ± sd, or the means of all readings, and below it the difference to CORMPO."""
        row, one = self.comparison.row(method, judge, metric), METRICS[metric]
        if row is None:
            return Cell()
        text = mean_sd(one.scale * at(row, "mean"), sd_of(row, one.scale), one.digits)
        if readings and one.beside:
            several = (metric, *one.beside)
            text = " / ".join(number(self.mean(method, judge, x)) for x in several)
        strong = self.comparison.winners.get((judge, metric)) == method
        return Cell(text, self.apart(method, judge, metric), strong)

    def apart(self, method: str, judge: str, metric: str) -> str:
        """The difference to CORMPO in a few signs; ≈ where it may be none."""
        row, one = self.comparison.row(method, judge, f"{metric}_minus_{OURS}"), METRICS[metric]
        if row is None:
            return ""
        mean, low, high = (one.scale * at(row, name) for name in ("mean", "low", "high"))
        same = "≈ " if low <= 0 <= high else ""
        return f"{same}{signed(mean, one.digits)} {span(low, high, one.digits)}"

    def room(self, method: str, judge: str) -> Cell:
        """The share of the room, with its interval."""
        row = self.comparison.row(method, judge, "room_percent")
        if row is None or not math.isfinite(at(row, "mean")):
            return Cell()
        return Cell(number(at(row, "mean"), 0), span(at(row, "low"), at(row, "high"), 0))

    def papers(self, method: str, metric: str) -> Cell:
        """What the paper prints, if anything."""
        found = REWARDS[self.comparison.data].get(method, {}).get(metric)
        return Cell() if found is None else Cell(mean_sd(*found, 3))


def heading(comparison: Comparison) -> str:
    """What was learned from, how, and on which patients."""
    drawn = ", levels drawn" if comparison.sampled else ""
    return f"{DATA[comparison.data]}, {SETTINGS[comparison.setting]}{drawn} ({comparison.cohort})"


def at(row: Row | None, name: str) -> float:
    """A number of a row, or NaN."""
    return math.nan if row is None else float(row[name])


def sd_of(row: Row | None, scale: float = 1.0) -> float | None:
    """What is not learned, or was learned once, has no spread over seeds."""
    sd = scale * at(row, "sd")
    learned = row is not None and row["method"] in (*LEARNED, EXPERT)
    return sd if learned and sd > 0 else None


# ── beside the paper's claims, noise and times ────────────────────────────────────────────────────


def claims_grid(comparisons: Sequence[Comparison]) -> Grid:
    """What the paper claims beside what was found here, before every judge."""
    by_data = {one.data: one for one in reversed(comparisons)}  # the first of each counts
    judges = judges_of(comparisons)
    lines = []
    for claim in CLAIMS:
        if claim.metric == "drop":
            clean, rough = by_data.get("noiseless"), by_data.get("noisy")
            cells = [_drop(clean, rough, judge) for judge in judges]
        else:
            cells = [_margin(by_data.get(claim.data), judge, claim.metric) for judge in judges]
        if any(cell != Cell() for cell in cells):
            lines.append((Cell(claim.words), Cell(claim.text), Cell(claim.tables), *cells))
    head = ("CORMPO (KDE) against the best baseline", "its text", "its tables")
    note = (
        f"The best of {', '.join(name_of(x) for x in BASELINES)} may be another one for every "
        "number and judge, and is known only afterwards. In brackets: 95 % interval over "
        "patients; bold where it excludes zero, for better or worse."
    )
    above = (("", 1), ("Paper", 2), ("Here", len(judges)))
    heads = (*head, *(JUDGES[x].words for x in judges))
    return Grid("The paper's claims, and what we find", heads, tuple(lines), above, note=note)


def _margin(comparison: Comparison | None, judge: str, metric: str) -> Cell:
    """CORMPO minus the baseline that this metric puts first."""
    margin = comparison and margin_of(comparison, judge, metric, BASELINES)
    if margin is None:
        return Cell()
    cell = apart(margin.found, 2 if metric == "reward" else 3)
    percent = "" if margin.percent is None else f" ({signed(margin.percent, 0)} %)"
    note = f"{cell.note} against {name_of(margin.best)}"
    return Cell(f"{cell.text}{percent}", note, cell.strong)


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
    above = (("", 1), *((f"Reward, {JUDGES[x].words}", 3) for x in judges), ("Paper", 1))
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
    cell = apart(drop)
    percent = f" ({signed(share, 1)} %)" if math.isfinite(share) else ""
    return Cell(f"{cell.text}{percent}", cell.note, cell.strong)


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


# ── all cohorts together ──────────────────────────────────────────────────────────────────────────


def across_grid(comparisons: Sequence[Comparison], judge: str) -> Grid:
    """Each method minus CORMPO over all cohorts and by preset, before one judge."""
    rows = {(x["cohorts"], x["method"], x["metric"]): x for x in across_rows(comparisons)
            if x["judge"] == judge}  # fmt: skip
    presets = list(dict.fromkeys(preset_of(x) for x in same_question(comparisons)))
    reward, unsafe = (f"{x}_minus_{OURS}" for x in ("reward", "unsafe_hours"))
    lines = []
    for method in methods_of(same_question(comparisons)):
        cells = [Cell(name_of(method)), _plain(rows.get((ALL, method, "room_percent")), 0)]
        cells += [_apart(rows.get((x, method, reward)), "reward") for x in (ALL, *presets)]
        cells.append(_apart(rows.get((ALL, method, unsafe)), "unsafe_hours"))
        cells += [_plain(rows.get((ALL, method, x)), 2) for x in ("acp", "ws_gradient")]
        lines.append(tuple(cells))
    head = ("Method", "room, %", ALL, *presets, "unsafe hours", "ACP", "WS")
    above = (("", 2), ("reward minus CORMPO", 1 + len(presets)), ("minus CORMPO, points", 1),
             ("", 2))  # fmt: skip
    count = len(same_question(comparisons))
    return Grid(
        f"{count} cohorts together, {JUDGES[judge].words}",
        head,
        tuple(lines),
        above,
        note="Means over cohorts, each with its own patients, clinicians and models; 95 % interval "
        "of Student's t over cohorts, bold where it excludes zero. Room: share of what lies "
        "between clinicians and look-ahead.",
    )


def _plain(row: Mapping[str, str | float] | None, digits: int) -> Cell:
    return Cell() if row is None else Cell(number(float(row["mean"]), digits))


def _apart(row: Mapping[str, str | float] | None, metric: str) -> Cell:
    one = METRICS[metric]
    return Cell() if row is None else apart(row, one.digits, one.scale)


# ── searches before the trainings ─────────────────────────────────────────────────────────────────


def search_grid(trials: Trials) -> Grid:
    """What the searches chose, and how far it led.

    Methods as lines, searches as columns: the best trial and its lead over the preset.
    """
    found: dict[tuple[str, ...], list[Mapping[str, str | float]]] = {}
    for trial in trials:
        found.setdefault(tuple(str(trial[x]) for x in SEARCHED[:4]), []).append(trial)
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
