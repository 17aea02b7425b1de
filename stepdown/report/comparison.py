"""What a comparison hands to tables, figures and page, and its numbers as tidy rows.

A `Comparison` holds one data set in one setting: every method before every judge. Whoever trains
and judges fills it; nothing here knows how. A judge or a method that is not there leaves its rows
out, never a made-up number.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepdown.evaluation.compare import (
    Metric,
    Row,
    difference,
    estimate,
    noise_drop,
    over_cohorts,
    resample,
    room_share,
    summarize,
    values_of,
)
from stepdown.evaluation.judging import Judged
from stepdown.handover import DataName, SettingName
from stepdown.report.labels import (
    BESIDE,
    CEILING,
    CLINICIANS,
    EXPERT,
    JUDGES,
    LEARNED,
    METHODS,
    METRICS,
    OURS,
    PENALTIES,
    REFERENCES,
)
from stepdown.report.paper_numbers import SECONDS

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
    sampled: bool = False  # levels are drawn instead of the most probable taken

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
    def name(self) -> str:
        """Of its tables: the data set, and what departs from the usual."""
        setting = "" if self.setting == "ours" else f"-{self.setting}"
        return f"{self.data}{setting}{'-drawn' if self.sampled else ''}"

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
    def winners(self) -> dict[tuple[str, Metric], str]:
        """Learned methods that lead by a judge and metric, if clearly ahead of every other one.

        Clearly: the paired interval of the difference to each excludes zero.
        """
        found = {}
        for judge in self.judges:
            judged = self.before(judge)
            learned = [x for x in judged if x in LEARNED]
            weights = resample(judged[learned[0]].row) if len(learned) > 1 else np.zeros((0, 0))
            for metric, shown in METRICS.items() if len(learned) > 1 else ():
                values = {x: shown.sign * values_of(judged[x], metric) for x in learned}
                first, *others = sorted(learned, key=lambda x: -values[x].mean())
                if all(_ahead(values[first], values[x], weights) for x in others):
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
        seen = [method for judge in self.judges for method in self.judged[judge]]
        known = [method for method in (METHODS if wanted is None else wanted) if method in seen]
        extra = [] if wanted is not None else [x for x in dict.fromkeys(seen) if x not in METHODS]
        return known + extra


def _ahead(ours: np.ndarray, theirs: np.ndarray, weights: np.ndarray) -> bool:
    return estimate(difference(ours, theirs), weights)["low"] > 0


@dataclass(frozen=True)
class Margin:
    """CORMPO minus the rival that a metric puts first."""

    best: str  # known only afterwards
    found: dict[str, float]  # mean, sd, low, high
    percent: float | None  # of the rival's value, unless that is about zero
    per_seed: np.ndarray


def margin_of(
    comparison: Comparison, judge: str, metric: Metric, rivals: Sequence[str]
) -> Margin | None:
    """By one judge, if that has seen CORMPO and a rival."""
    judged = comparison.before(judge)
    known = [x for x in rivals if x in judged]
    if OURS not in judged or not known:
        return None
    values = {x: values_of(judged[x], metric) for x in (OURS, *known)}
    best = max(known, key=lambda x: METRICS[metric].sign * values[x].mean())
    weights, apart = resample(judged[best].row), difference(values[OURS], values[best])
    found, theirs = estimate(apart, weights), estimate(values[best], weights)
    off_zero = theirs["low"] * theirs["high"] > 0  # a share of almost nothing says nothing
    percent = 100 * found["mean"] / abs(theirs["mean"]) if off_zero else None
    return Margin(best, found, percent, apart.mean(1))


def penalty_rows(comparison: Comparison) -> list[Row]:
    """The paper's table of penalty types: as the comparison, fewer methods."""
    wanted = comparison.methods(PENALTIES)
    return [row for row in comparison.rows if row["method"] in wanted]


def drop_rows(noiseless: Comparison, noisy: Comparison) -> list[Row]:
    """Reward after learning from either data set, and the drop in reward and in percent."""
    rows = []
    for judge in noiseless.judges:
        if judge not in noisy.judged:
            continue
        clean, rough = noiseless.before(judge), noisy.before(judge)
        both = [x for x in clean if x in rough and x in (*LEARNED, EXPERT)]
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
            "seeds": _seeds(one, method),
            "seconds": one.seconds[method],
            "paper_seconds": SECONDS.get(method, math.nan),
        }
        for one in comparisons
        for method in (*METHODS, *(x for x in one.seconds if x not in METHODS))
        if method in one.seconds
    ]


def _seeds(comparison: Comparison, method: str) -> int:
    """How often it was trained, or 0 if nobody judged it."""
    for judge in comparison.judges:
        if method in comparison.judged[judge]:
            return len(comparison.judged[judge][method].level)
    return 0


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
    wanted = ("recorded", "ours", False)
    return [x for x in comparisons if (x.data, x.setting, x.sampled) == wanted]


def across_rows(comparisons: Sequence[Comparison]) -> list[dict[str, str | float]]:
    """Every method over all cohorts and over those of each preset, before every judge."""
    asked, rows = same_question(comparisons), []
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
    return rows


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
