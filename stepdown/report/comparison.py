"""Comparisons of methods: every number before every judge as tidy rows, and as tables for people.

A `Comparison` holds one data set in one setting: every method before every judge. Whoever trains
and judges fills it; nothing here knows how. A judge or a method that is not there leaves its rows
out, never a made-up number.

In tables, a value has its difference to CORMPO below it, paired, with the 95 % interval over
patients. Nobody is called the best unless the interval to every other learned method excludes zero.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepdown.evaluation.compare import (
    Row,
    detectable,
    difference,
    estimate,
    holm,
    noise_drop,
    over_cohorts,
    resample,
    room_share,
    summarize,
    values_of,
)
from stepdown.handover import DataName, Judged, SettingName
from stepdown.report.grids import Cell, Grid, apart, chance, mean_sd, number, signed, span, valued
from stepdown.report.labels import (
    BASELINES,
    BESIDE,
    CEILING,
    CLINICIANS,
    DATA,
    DEFAULT,
    EXPERT,
    GROUPS,
    JUDGES,
    LEARNED,
    METHODS,
    METRICS,
    OURS,
    PENALTIES,
    REFERENCES,
    SETTINGS,
    TRUE_JUDGES,
    TWIN_JUDGES,
    members_of,
    metrics_of,
    name_of,
)
from stepdown.report.paper_numbers import CLAIMS, DROP_PERCENT, REWARDS, SECONDS, SOURCES

Found = Mapping[str, str | float]  # a row of any table
Trials = Sequence[Found]  # of searches, with the columns below
SEARCHED = ("cohort", "data", "setting", "method", "changes", "score", "chosen")
PRESET = "the preset"  # the first trial of every search
ALL = "all"  # cohorts together


@dataclass(frozen=True)
class Comparison:
    """All methods on one data set in one setting."""

    cohort: str  # such as "guarded-7"
    data: DataName  # what methods learned from
    setting: SettingName
    judged: Mapping[str, Mapping[str, Judged]]  # by judge, then by method
    curves: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)  # (epochs, seeds)
    seconds: Mapping[str, float] = field(default_factory=dict)  # of a training, all seeds
    # Of noisy data: the same trainings with nothing changed but the noise, by judge and method.
    without_noise: Mapping[str, Mapping[str, Judged]] = field(default_factory=dict)
    sampled: bool = False  # levels drawn by the policies' probabilities, not the most probable

    def __post_init__(self):
        if unknown := [judge for judge in self.judged if judge not in JUDGES]:
            raise ValueError(
                f"expected judges among {', '.join(JUDGES)}, got {unknown[0]!r}. "
                "Name it as the tables do."
            )
        if not self.judged or not all(self.judged.values()):
            raise ValueError("expected at least one judge with one method, got none. Judge first.")

    @property
    def judges(self) -> list[str]:
        """The judges that were asked, always in the same order."""
        return [judge for judge in JUDGES if judge in self.judged]

    @property
    def twins(self) -> list[str]:
        """Those that are twins: the paper's, ours, or both."""
        return [judge for judge in TWIN_JUDGES if judge in self.judged]

    @property
    def truths(self) -> list[str]:
        """Those that are the truth itself, the surest last."""
        return [judge for judge in self.judges if judge in TRUE_JUDGES]

    @property
    def surest(self) -> str:
        """The judge that knows best of those that were asked."""
        return self.judges[-1]

    @property
    def name(self) -> str:
        """Of its tables: the data set, and what departs from the usual."""
        name = self.data if self.setting == "ours" else f"{self.data}-{self.setting}"
        return f"{name}-sampled" if self.sampled else name

    @functools.cached_property
    def rows(self) -> list[Row]:
        """Every metric of every method before every judge, differences to CORMPO, shares of room.

        Metrics "METRIC_minus_cormpo_kde" are paired by start and seed; "room_percent" is the reward
        between clinicians (0) and look-ahead (100). Intervals are over patients.
        """
        rows = []
        for judge in self.judges:
            judged = self.before(judge)
            rows += summarize(judged, judge, OURS if OURS in judged else None)
            if CLINICIANS in judged and CEILING in judged:
                rows += room_share(judged, judge, CLINICIANS, CEILING)
        return rows

    @functools.cached_property
    def _index(self) -> dict[tuple[str | float, ...], Row]:
        return {(row["method"], row["judge"], row["metric"]): row for row in self.rows}

    def row(self, method: str, judge: str, metric: str) -> Row | None:
        """The one row that says this, if any."""
        return self._index.get((method, judge, metric))

    @functools.cached_property
    def winners(self) -> dict[tuple[str, str], str]:
        """Learned methods that lead by a judge and metric, if clearly ahead of every other one.

        Clearly: the paired interval of the difference to each excludes zero.
        """
        found = {}
        for judge in self.judges:
            judged = {x: one for x, one in self.before(judge).items() if x in LEARNED}
            if len(judged) < 2:
                continue
            weights = resample(next(iter(judged.values())).row)
            for metric, shown in METRICS.items():
                values = {x: shown.sign * values_of(one, metric) for x, one in judged.items()}
                first, *others = sorted(values, key=lambda x: -values[x].mean())
                apart = (difference(values[first], values[x]) for x in others)
                if all(estimate(one, weights)["low"] > 0 for one in apart):
                    found[judge, metric] = first
        return found

    def reward(self, method: str, judge: str) -> float | None:
        """The mean before a judge, if that has seen the method."""
        judged = self.judged.get(judge, {})
        return float(values_of(judged[method], "reward").mean()) if method in judged else None

    def before(self, judge: str) -> dict[str, Judged]:
        """What a judge has seen, in the order of the tables."""
        judged = self.judged.get(judge, {})
        return {method: judged[method] for method in self.methods() if method in judged}

    def methods(self, wanted: Sequence[str] | None = None) -> list[str]:
        """Methods that some judge has seen, in the order of the tables, unknown ones last."""
        seen = dict.fromkeys(method for judge in self.judges for method in self.judged[judge])
        order = (*METHODS, *(x for x in seen if x not in METHODS)) if wanted is None else wanted
        return [method for method in order if method in seen]

    def seeds(self, method: str) -> int:
        """How often a method was trained, or 0 if nobody judged it."""
        found = (one[method] for one in self.judged.values() if method in one)
        return next((len(one.level) for one in found), 0)


@dataclass(frozen=True)
class Margin:
    """A method minus the rival that a metric puts first."""

    best: str  # known only afterwards
    found: dict[str, float]  # mean, sd, low, high
    percent: float | None  # of the rival's value, unless that is about zero
    per_seed: np.ndarray


def margin_of(
    comparison: Comparison, judge: str, metric: str, rivals: Sequence[str], method: str = OURS
) -> Margin | None:
    """By one judge, if that has seen the method, by default CORMPO, and a rival."""
    judged = comparison.before(judge)
    known = [x for x in rivals if x in judged]
    if method not in judged or not known:
        return None
    values = {x: values_of(judged[x], metric) for x in (method, *known)}
    best = max(known, key=lambda x: METRICS[metric].sign * values[x].mean())
    weights, apart = resample(judged[best].row), difference(values[method], values[best])
    found, theirs = estimate(apart, weights), estimate(values[best], weights)
    off_zero = theirs["low"] * theirs["high"] > 0  # a share of almost nothing says nothing
    percent = 100 * found["mean"] / abs(theirs["mean"]) if off_zero else None
    return Margin(best, found, percent, apart.mean(1))


def penalty_rows(comparison: Comparison) -> list[Row]:
    """The paper's table of penalty types: as the comparison, fewer methods."""
    wanted = comparison.methods(PENALTIES)
    return [row for row in comparison.rows if row["method"] in wanted]


def drop_rows(noisy: Comparison) -> list[Row]:
    """Reward after learning from noisy data and without the noise; the drop, also in percent.

    The two trainings of a method differ in the noise alone. The expert learned from neither.
    """
    rows = []
    for judge in noisy.judges:
        clean, rough = noisy.without_noise.get(judge, {}), noisy.before(judge)
        both = [x for x in rough if x in clean and x in LEARNED]
        if not both:
            continue
        for words, part in (("noiseless", clean), ("noisy", rough)):
            found = summarize({x: part[x] for x in both}, judge)
            kept = [row for row in found if row["metric"] == "reward"]
            rows += [row | {"metric": f"reward_{words}"} for row in kept]
        rows += noise_drop({x: clean[x] for x in both}, {x: rough[x] for x in both}, judge)
    return rows


def time_rows(comparisons: Sequence[Comparison]) -> list[dict[str, str | float]]:
    """Seconds of every training, all seeds together, beside the paper's (one seed)."""
    return [
        {
            "cohort": one.cohort,
            "data": one.data,
            "setting": one.setting,
            "method": method,
            "seeds": one.seeds(method),
            "seconds": one.seconds[method],
            "paper_seconds": SECONDS.get(method, math.nan),
        }
        for one in comparisons
        for method in (*METHODS, *(x for x in one.seconds if x not in METHODS))
        if method in one.seconds
    ]


def find(rows: Sequence[Row], method: str, judge: str, metric: str) -> Row | None:
    """The one row that says this, if any."""
    wanted = (method, judge, metric)
    return next((x for x in rows if (x["method"], x["judge"], x["metric"]) == wanted), None)


# ── all cohorts of a run together; a cohort counts as one number ──────────────────────────────────


def preset_of(comparison: Comparison) -> str:
    """From "guarded-7" to "guarded"."""
    return comparison.cohort.rpartition("-")[0] or comparison.cohort


def same_question(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """One comparison of every cohort: recorded hours, our settings."""
    return [x for x in comparisons if (x.data, x.setting) == ("recorded", "ours")]


def across_rows(comparisons: Sequence[Comparison]) -> list[dict[str, str | float]]:
    """Every method over all cohorts and over those of each preset, before every judge.

    A difference has "p", Holm's "p_holm" among all methods minus the same one by the same metric,
    judge and cohorts, and "detectable", what so many cohorts find with 80 % power if alone.
    """
    asked = same_question(comparisons)
    rows: list[dict[str, str | float]] = []
    groups = {ALL: asked}
    for one in asked:
        groups.setdefault(preset_of(one), []).append(one)
    for group, members in groups.items():
        for judge in judges_of(asked):
            for method in methods_of(members):
                for metric in _across(method):
                    values = [mean_of(x, judge, method, metric) for x in members]
                    found = over_cohorts(values)
                    if found["cohorts"]:
                        head = {"cohorts": group, "method": method, "judge": judge}
                        count = found.pop("cohorts")
                        rows.append(head | {"metric": metric, "number": count} | found)
    return _by_families(rows)


def _by_families(rows: list[dict[str, str | float]]) -> list[dict[str, str | float]]:
    """The same rows, with what is said of differences; of values nothing is tested."""
    none = {"p": math.nan, "p_holm": math.nan, "detectable": math.nan}
    families: dict[tuple[str | float, ...], list[int]] = {}
    for place, row in enumerate(rows):
        if "_minus_" in str(row["metric"]):
            family = tuple(row[x] for x in ("cohorts", "judge", "metric"))
            families.setdefault(family, []).append(place)
    found = [row | none for row in rows]
    for places in families.values():
        each = [float(rows[x]["p"]) for x in places]
        for place, p, adjusted in zip(places, each, holm(each), strict=True):
            least = detectable(float(rows[place]["sd"]), int(rows[place]["number"]))
            found[place] |= {"p": p, "p_holm": adjusted, "detectable": least}
    return found


def _across(method: str) -> tuple[str, ...]:
    others = [x for x in (OURS, CLINICIANS, *BESIDE.get(method, ())) if x != method]
    return (*METRICS, *(f"{x}_minus_{y}" for y in others for x in METRICS), "room_percent")


def judges_of(comparisons: Sequence[Comparison]) -> list[str]:
    """The judges that some of them have asked."""
    return [x for x in JUDGES if any(x in one.judged for one in comparisons)]


def methods_of(comparisons: Sequence[Comparison]) -> list[str]:
    """Learned methods and references that some of them hold."""
    seen = [x for one in comparisons for x in one.methods((*LEARNED, *REFERENCES))]
    return [x for x in (*LEARNED, *REFERENCES) if x in seen]


def mean_of(comparison: Comparison, judge: str, method: str, metric: str) -> float:
    """Of seeds and episodes; all play the same ones, so a difference is that of the means."""
    plain, minus, other = metric.partition("_minus_")
    row = comparison.row(method, judge, plain)
    own = math.nan if row is None else float(row["mean"])
    return own - mean_of(comparison, judge, other, plain) if minus else own


# ── one comparison as tables ──────────────────────────────────────────────────────────────────────


def safety_grid(comparison: Comparison) -> Grid:
    """Reward and unsafe hours before every judge, the share of the room, the paper's reward."""
    truth = comparison.surest
    head, above, line = _columns(comparison, _words("safety"), readings=True)
    rooms = {x["method"]: x for x in comparison.rows
             if (x["metric"], x["judge"]) == ("room_percent", truth)}  # fmt: skip
    if rooms:
        head, above = (*head, "room, %"), (*above, (JUDGES[truth].words, 1))
    note = (
        f"Below a value: its difference to {name_of(OURS)}, paired, with the 95 % interval over "
        "patients; ≈ where that contains zero. ± is the sd over seeds. Bold: clearly ahead of "
        f"every other learned method; and the name of the default. {_noise(comparison)} "
        "Reward: 3.84 at best, −12 at worst. "
        + "Room: 0 % are the clinicians, 100 % the look-ahead. "
        * bool(rooms)
        + f"Constant levels are in the CSV. Paper: {SOURCES[comparison.data]}; "
        "its clinicians are its recorded expert."
    )
    lines, groups = _grouped(
        comparison, lambda x: [*line(x), *[valued(rooms.get(x), 0)] * bool(rooms)]
    )
    return Grid(f"Reward and safety: {heading(comparison)}", head, lines, above, groups, note)


def changes_grid(comparison: Comparison) -> Grid:
    """Jumps of the level and weaning scores before every judge, beside the paper's."""
    head, above, line = _columns(comparison, _words("changes"), readings=True)
    note = (
        "ACP adds up jumps of more than two levels. Weaning scores count decisions in hours that "
        "are stable by gradient (the paper's), by limits, or by both; the difference is of the "
        "first. Stepping down blindly scores high, so read them beside the unsafe hours. Cloning "
        "by the most probable level nearly holds it, so a lower ACP is not to be expected."
    )
    lines, groups = _grouped(comparison, line)
    return Grid(f"Changes of level: {heading(comparison)}", head, lines, above, groups, note)


def penalty_grid(comparison: Comparison) -> Grid:
    """The paper's table of penalty types: reward, ACP and weaning by judge, ours beside theirs."""
    metrics: dict[str, str] = {
        "reward": "Reward",
        "acp": "ACP, levels",
        "ws_gradient": "WS (gradient)",
    }
    head, above, line = _columns(comparison, metrics, readings=False)
    lines = tuple((Cell(name_of(x)), *line(x)) for x in comparison.methods(PENALTIES))
    title, note = f"Penalty types: {heading(comparison)}", f"Paper: {SOURCES['penalty']}."
    return Grid(title, head, lines, above, note=note)


def short_grid(comparison: Comparison) -> Grid:
    """What a terminal shows: reward before every judge, the rest before the last one."""
    judges, truth, others = comparison.judges, comparison.surest, tuple(METRICS)[1:]

    def shown(method: str, judge: str, metric: str) -> Cell:
        one = METRICS[metric]
        return Cell(number(one.scale * mean_of(comparison, judge, method, metric), one.digits))

    def line(method: str) -> list[Cell]:
        cells = [shown(method, x, "reward") for x in judges]
        row = apart(comparison.row(method, truth, f"reward_minus_{OURS}"))
        cells.append(Cell(f"{row.text} {row.note}") if row.note else Cell())
        return [*cells, *(shown(method, truth, x) for x in others)]

    names, brief = (JUDGES[x].brief for x in judges), (METRICS[x].brief for x in others)
    head = ("method", *names, "minus CORMPO", *brief)
    over = (f"in {JUDGES[truth].words}", 1 + len(others))
    lines, groups = _grouped(comparison, line)
    title = f"Learned from {heading(comparison)}"
    return Grid(title, head, lines, (("", 1), ("reward in", len(judges)), over), groups)


PAIRED = 9  # rows beyond which a table of all pairs is too wide to read


def compared_rows(comparison: Comparison) -> list[str]:
    """Who is told apart: learned rows, holding, the ceiling, clinicians, and rows of others."""
    others = [x for x in comparison.methods() if x not in METHODS]
    return comparison.methods((*LEARNED, *others, "hold", CLINICIANS, CEILING))


def pair_rows(comparison: Comparison, judge: str) -> list[dict[str, str | float]]:
    """Every two rows before one judge, paired; "undecided" where the interval includes 0."""
    judged = comparison.before(judge)
    names = [x for x in compared_rows(comparison) if x in judged]
    weights = resample(next(iter(judged.values())).row)
    rows: list[dict[str, str | float]] = []
    for metric in ("reward", "unsafe_hours"):
        values = {x: METRICS[metric].scale * values_of(judged[x], metric) for x in names}
        for one, other in itertools.combinations(names, 2):
            found = paired(values[one], values[other], weights)
            head = {"method": one, "minus": other, "judge": judge, "metric": metric}
            rows.append({**head, **found, "word": word_of(found)})
    return rows


def paired(ours: np.ndarray, theirs: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """The difference of two rows; where they were trained unlike often, of the means over seeds."""
    if len(ours) != len(theirs):
        ours, theirs = ours.mean(0, keepdims=True), theirs.mean(0, keepdims=True)
    return estimate(difference(ours, theirs), weights)


def word_of(found: Found) -> str:
    """Above or below zero, or undecided."""
    if at(found, "low") > 0:
        return "above"
    return "below" if at(found, "high") < 0 else "undecided"


def pairs_grid(comparison: Comparison) -> Grid:
    """Reward of the row minus that of the column before the surest judge; undecided is said."""
    judge = comparison.surest
    known = {(x["method"], x["minus"]): x for x in pair_rows(comparison, judge)
             if x["metric"] == "reward"}  # fmt: skip
    names = [x for x in compared_rows(comparison) if x in comparison.before(judge)]

    def cell(one: str, other: str) -> Cell:
        sign, found = 1, known.get((one, other))
        if found is None:
            sign, found = -1, known.get((other, one))
        if found is None:
            return Cell("")
        if found["word"] == "undecided":
            return Cell("undecided")
        return Cell(signed(sign * at(found, "mean")))

    order = sorted(names, key=lambda x: -(comparison.reward(x, judge) or 0.0))
    lines = tuple((Cell(name_of(x), strong=x == DEFAULT), *(cell(x, y) for y in order))
                  for x in order)  # fmt: skip
    note = (
        "The row's reward minus the column's, paired by start. Undecided: the 95 % interval over "
        "patients includes 0. The intervals are in tables/pairs.csv."
    )
    title = f"Every two rows, reward in {JUDGES[judge].words}: {heading(comparison)}"
    return Grid(title, ("Method", *map(name_of, order)), lines, note=note)


def row_grid(name: str, judged: Mapping[str, Judged], team: Mapping[str, Judged]) -> Grid:
    """One row before every judge, and minus the clinicians from the same starts."""
    lines = []
    for judge, one in judged.items():
        cells, weights = [Cell(JUDGES[judge].words)], resample(one.row)
        for metric in ("reward", "unsafe_hours", "acp"):
            shown = METRICS[metric]
            own = shown.scale * values_of(one, metric)
            cells.append(Cell(number(float(own.mean()), shown.digits)))
            if metric == "acp":
                continue
            if judge not in team:
                cells.append(Cell())
                continue
            found = paired(own, shown.scale * values_of(team[judge], metric), weights)
            between = span(found["low"], found["high"], shown.digits)
            words = f"{signed(found['mean'], shown.digits)} {between} {word_of(found)}"
            cells.append(Cell(words))
        lines.append(tuple(cells))
    head = ("Judge", "reward", "minus clinicians", "unsafe hours, %", "minus clinicians", "ACP")
    return Grid(name_of(name), head, tuple(lines))


def cohorts_grid(comparisons: Sequence[Comparison], judge: str) -> Grid:
    """CORMPO's reward minus every other learned method's, one line per cohort."""
    asked = [one for one in comparisons if OURS in one.judged.get(judge, {})]
    methods = [x for x in LEARNED if x != OURS and any(x in one.judged[judge] for one in asked)]
    lines = []
    for one in asked:
        judged = one.judged[judge]
        ours, weights = values_of(judged[OURS], "reward"), resample(judged[OURS].row)
        room = one.row(OURS, judge, "room_percent")
        share = f"{number(at(room, 'mean'), 0)} % of the room" if room else ""
        cells = [Cell(one.cohort), Cell(number(ours.mean()), share)]
        for method in methods:
            theirs = values_of(judged[method], "reward") if method in judged else None
            found = None if theirs is None else estimate(difference(ours, theirs), weights)
            cells.append(replace(apart(found), strong=False))
        lines.append(tuple(cells))
    head = ("Cohort", "its reward", *(name_of(x) for x in methods))
    title = f"{name_of(OURS)} minus each other method, {JUDGES[judge].words}"
    above = (("", 2), ("difference of the 6-hour reward to", len(methods))) if methods else ()
    note = (
        "Paired differences with 95 % intervals over patients, each by itself: of so many some "
        "exclude zero by chance. What holds over cohorts is said by the table of all."
    )
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
        lines += [(Cell(name_of(x), strong=x == DEFAULT), *line(x)) for x in methods]
    return tuple(lines), starts


def _noise(comparison: Comparison) -> str:
    """How large a gap means nothing unless it is paired."""
    judged = comparison.before(comparison.surest)
    reward = values_of(judged.get(OURS) or next(iter(judged.values())), "reward")
    sd, count = float(np.std(reward)), reward.shape[1]
    gap = 1.96 * math.sqrt(2.0 / count) * sd
    return (
        f"One episode's reward has an sd of {number(sd, 1)}: at {count:,} episodes an unpaired gap "
        f"below {number(gap)} is noise."
    )


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────


def _words(table: str) -> dict[str, str]:
    return {metric: METRICS[metric].words for metric in metrics_of(table)}


def _columns(
    comparison: Comparison, metrics: Mapping[str, str], *, readings: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...], Callable[[str], list[Cell]]]:
    """Head, words above it, and the cells of a method, for metrics that have such words.

    A column for every judge and, where the paper prints the metric, for the paper.
    """
    judges = comparison.judges
    names = {x: [JUDGES[y].words for y in judges] + ["paper"] * METRICS[x].printed for x in metrics}

    def line(method: str) -> list[Cell]:
        cells = []
        for metric in metrics:
            cells += [_cell(comparison, method, x, metric, readings=readings) for x in judges]
            paper = REWARDS[comparison.data].get(method, {}).get(metric, (math.nan, None))
            cells += [Cell(mean_sd(*paper, 3))] * METRICS[metric].printed
        return cells

    above = (("", 1), *((words, len(names[metric])) for metric, words in metrics.items()))
    return ("Method", *itertools.chain(*names.values())), above, line


def _cell(comparison: Comparison, method: str, judge: str, metric: str, *, readings: bool) -> Cell:
    """Mean ± sd, or the means of all readings; below it the difference to CORMPO, ≈ if none."""
    row, one = comparison.row(method, judge, metric), METRICS[metric]
    if row is None:
        return Cell()
    text = mean_sd(one.scale * at(row, "mean"), sd_of(row, one.scale), one.digits)
    if readings and one.beside:
        several = (mean_of(comparison, judge, method, x) for x in (metric, *one.beside))
        text = " / ".join(map(number, several))
    minus, note = comparison.row(method, judge, f"{metric}_minus_{OURS}"), ""
    if minus is not None:
        cell, same = apart(minus, one.digits, one.scale), at(minus, "low") <= 0 <= at(minus, "high")
        note = f"{'≈ ' * same}{cell.text} {cell.note}"
    return Cell(text, note, strong=comparison.winners.get((judge, metric)) == method)


def heading(comparison: Comparison) -> str:
    """What was learned from, how, and on which patients."""
    how = ", levels drawn" if comparison.sampled else ""
    return f"{DATA[comparison.data]}, {SETTINGS[comparison.setting]}{how} ({comparison.cohort})"


def at(row: Found | None, name: str) -> float:
    """A number of a row, or NaN."""
    return math.nan if row is None else float(row[name])


def sd_of(row: Found | None, scale: float = 1.0) -> float | None:
    """What is not learned, or was learned once, has no spread over seeds."""
    sd = scale * at(row, "sd")
    learned = row is not None and row["method"] in (*LEARNED, EXPERT)
    return sd if learned and sd > 0 else None


# ── beside the paper's claims, noise and times ────────────────────────────────────────────────────


def claim_rows(comparisons: Sequence[Comparison]) -> list[dict[str, str | float]]:
    """The paper's claims as numbers: CORMPO minus the best baseline of each, before every judge.

    Comparisons are those of one cohort in one setting, one for each data set.
    """
    by_data = {one.data: one for one in reversed(comparisons)}  # the first of each counts
    rows: list[dict[str, str | float]] = []
    for claim in (x for x in CLAIMS if x.metric != "drop"):  # which has a table of its own
        one = by_data.get(claim.data)
        for judge in one.judges if one else ():
            if margin := one and margin_of(one, judge, claim.metric, BASELINES):
                head = {"claim": claim.words, "judge": judge, "best": margin.best}
                percent = math.nan if margin.percent is None else margin.percent
                rows.append(head | margin.found | {"percent": percent})
    return rows


def claims_grid(comparisons: Sequence[Comparison]) -> Grid:
    """What the paper claims beside what was found here, before every judge."""
    by_data = {one.data: one for one in reversed(comparisons)}  # the first of each counts
    judges = judges_of(comparisons)
    drops = drop_rows(by_data["noisy"]) if "noisy" in by_data else []
    lines = []
    for claim in CLAIMS:
        if claim.metric == "drop":
            rows = (find(drops, OURS, judge, "reward_drop_percent") for judge in judges)
            cells = [_percent(row) for row in rows]
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
    title = f"The paper's claims, and what we find: {SETTINGS[comparisons[0].setting]}"
    return Grid(title, heads, tuple(lines), above, note=note)


def _margin(comparison: Comparison | None, judge: str, metric: str) -> Cell:
    """CORMPO minus the baseline that this metric puts first."""
    margin = comparison and margin_of(comparison, judge, metric, BASELINES)
    if margin is None:
        return Cell()
    cell = apart(margin.found, 2 if metric == "reward" else 3)
    percent = "" if margin.percent is None else f" ({signed(margin.percent, 0)} %)"
    note = f"{cell.note} against {name_of(margin.best)}"
    return Cell(f"{cell.text}{percent}", note, cell.strong)


def _percent(row: Row | None) -> Cell:
    """A share of something, which may be too small to have shares."""
    mean, low, high = (at(row, name) for name in ("mean", "low", "high"))
    return Cell(f"{signed(mean, 1)} %", span(low, high, 1)) if math.isfinite(mean) else Cell()


def drop_grid(noisy: Comparison) -> Grid:
    """Reward lost to noisy observations, with intervals, beside the paper's percent."""
    rows = drop_rows(noisy)
    judges = [x for x in noisy.judges if any(row["judge"] == x for row in rows)]
    head = ("Method", *("noiseless", "noisy", "drop") * len(judges), "drop")
    above = (("", 1), *((f"Reward, {JUDGES[x].words}", 3) for x in judges), ("Paper", 1))
    lines = []
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        cells = [Cell(name_of(method))]
        for judge in judges:
            for metric in ("reward_noiseless", "reward_noisy"):
                row = find(rows, method, judge, metric)
                cells.append(Cell(mean_sd(at(row, "mean"), sd_of(row))))
            lost = apart(find(rows, method, judge, "reward_drop"))
            share = _percent(find(rows, method, judge, "reward_drop_percent"))
            percent = f" ({share.text})" if share != Cell() else ""
            cells.append(replace(lost, text=f"{lost.text}{percent}"))
        known = method in DROP_PERCENT
        lines.append((*cells, Cell(f"{DROP_PERCENT[method]:.2f} %") if known else Cell()))
    if EXPERT in noisy.methods():
        none = [Cell()] * 3 * len(judges)
        lines.append((Cell(name_of(EXPERT)), *none, Cell(f"{DROP_PERCENT[EXPERT]:.2f} %")))
    other = (
        " The paper trains on noiseless data with another λ, shaping and number of updates; here "
        "both columns have those of its noisy data, so the first is not that of the noiseless "
        "table."
    )
    note = (
        "Two trainings of each row that differ in the noise of the observations alone: the same "
        "settings (those of the noisy table), seeds and episodes; what a row learns in and is "
        "charged by is fitted to the same hours as it. Both are judged without noise."
        f"{other if noisy.setting == 'paper' else ''} The expert learned in the twin, from neither "
        "data set, and is judged once: nothing of it differs in noise, so it has no drop. Bold: "
        "the 95 % interval over patients excludes zero. A share of a reward that is not clearly "
        f"off zero says nothing and is left out. Paper: {SOURCES['drop']}; its expert's rewards "
        "(1.16 and 1.110) give 4.3 %, not 5.74 %."
    )
    title = f"Reward lost to noise: {SETTINGS[noisy.setting]} ({noisy.cohort})"
    return Grid(title, head, tuple(lines), above, note=note)


def time_grid(comparisons: Sequence[Comparison]) -> Grid:
    """Seconds of every training."""
    timed = [one for one in comparisons if one.seconds]
    several = len({one.cohort for one in timed}) > 1
    head = [f"{x.data}, {x.setting}" + f" ({x.cohort})" * several for x in timed]
    lines = [
        (
            Cell(name_of(method)),
            *(_seconds(one.seconds.get(method), one.seeds(method)) for one in timed),
            Cell(number(SECONDS.get(method), 0)),
        )
        for method in dict.fromkeys(str(row["method"]) for row in time_rows(timed))
    ]
    note = f"Seconds to train all seeds together. Paper: {SOURCES['time']}."
    return Grid("Training time, s", ("Method", *head, "paper"), tuple(lines), note=note)


def _seconds(seconds: float | None, seeds: int) -> Cell:
    each = f"{number(seconds / seeds, 1)} each" if seconds and seeds > 1 else ""
    return Cell(number(seconds, 1), each)


# ── all cohorts together ──────────────────────────────────────────────────────────────────────────


def across_grid(comparisons: Sequence[Comparison], judge: str) -> Grid:
    """Each method minus CORMPO over all cohorts and by preset, before one judge."""
    rows = {(x["cohorts"], x["method"], x["metric"]): x for x in across_rows(comparisons)
            if x["judge"] == judge}  # fmt: skip
    presets = list(dict.fromkeys(preset_of(x) for x in same_question(comparisons)))
    reward, unsafe = (f"{x}_minus_{OURS}" for x in ("reward", "unsafe_hours"))
    points, lines = METRICS["unsafe_hours"], []
    for method in methods_of(same_question(comparisons)):
        room, acp, weaning = (
            at(rows.get((ALL, method, x)), "mean") for x in ("room_percent", "acp", "ws_gradient")
        )
        cells = [Cell(name_of(method)), Cell(number(room, 0))]
        cells += [_corrected(rows.get((x, method, reward))) for x in (ALL, *presets)]
        cells.append(_corrected(rows.get((ALL, method, unsafe)), points.digits, points.scale))
        lines.append((*cells, Cell(number(acp)), Cell(number(weaning))))
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
        "of Student's t over cohorts, each by itself. p is Holm's over all methods of the column; "
        "bold where it is at most 5 %. Room: share of what lies between clinicians and look-ahead.",
    )


def _corrected(found: Found | None, digits: int = 2, scale: float = 1.0) -> Cell:
    """A difference over cohorts with its interval; strong by the p-value of its family."""
    cell, p = apart(found, digits, scale), at(found, "p_holm") if found else math.nan
    if not math.isfinite(p):
        return replace(cell, strong=False)
    return replace(cell, note=f"{cell.note}, p {chance(p)}", strong=p <= 0.05)


def detectable_grid(comparisons: Sequence[Comparison], judge: str) -> Grid:
    """What so many cohorts could find: the smallest true difference seen with 80 % power."""
    asked = same_question(comparisons)
    rows = {(x["method"], x["metric"]): x for x in across_rows(comparisons)
            if (x["judge"], x["cohorts"]) == (judge, ALL)}  # fmt: skip
    methods = [x for x in methods_of(asked) if x != OURS]
    lines = []
    for method in methods:
        cells = [Cell(name_of(method))]
        for metric in ("reward", "unsafe_hours"):
            row, shown = rows.get((method, f"{metric}_minus_{OURS}")), METRICS[metric]
            sd, count = at(row, "sd"), int(at(row, "number")) if row else 0
            family = detectable(sd, count, sure=1 - 0.05 / len(methods))
            values = (sd, at(row, "detectable"), family)
            cells += [Cell(number(shown.scale * x, shown.digits)) for x in values]
        lines.append(tuple(cells))
    head = ("Method", *("sd", "alone", "in its family") * 2)
    above = (("", 1), ("reward minus CORMPO", 3), ("unsafe hours minus CORMPO, points", 3))
    return Grid(
        f"What {len(asked)} cohorts can detect, {JUDGES[judge].words}",
        head,
        tuple(lines),
        above,
        note="The sd of the difference over cohorts, and the smallest true difference that as many "
        "cohorts of such an sd find with 80 % power at the 5 % level of Student's t: if it were "
        f"the only comparison, and as one of {len(methods)} (Bonferroni's level, which Holm's "
        "never falls short of).",
    )


# ── searches before the trainings ─────────────────────────────────────────────────────────────────


def search_grid(trials: Trials) -> Grid:
    """What the searches chose, and how far it led.

    Methods as lines, searches as columns: the best trial and its lead over the preset.
    """
    found: dict[tuple[str, ...], list[Found]] = {}
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
