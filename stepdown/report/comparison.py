"""What a comparison hands to tables, figures and page, and its numbers as tidy rows.

A `Comparison` holds one data set in one setting: every method before every judge. Whoever trains
and judges fills it; nothing here knows how. A judge or a method that is not there leaves its rows
out, never a made-up number.
"""

import csv
import functools
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from stepdown.evaluation.compare import (
    COLUMNS,
    Metric,
    Row,
    difference,
    estimate,
    noise_drop,
    resample,
    room_share,
    summarize,
    values_of,
    verdicts,
)
from stepdown.evaluation.judging import Judged
from stepdown.report.paper_numbers import SECONDS

Data = Literal["recorded", "noiseless", "noisy"]
Setting = Literal["ours", "paper"]
Judge = Literal["twin", "patients", "fresh"]

OURS, CLINICIANS, CEILING, EXPERT = "cormpo_kde", "clinicians", "look-ahead", "expert"
BASELINES = ("bc", "mbpo", "mopo", "svr")  # the paper's
PARTS = ("mbpo_shaped", "mopo_shaped", "disagreement", "disagreement_shaped")  # without density
IN_TWIN = ("mbpo_twin", "cormpo_twin")  # which judges them, too
LEARNED = (*BASELINES, "cormpo_flow", OURS, "cormpo_unshaped", *PARTS, *IN_TWIN)
REFERENCES = (EXPERT, CLINICIANS, "hold", "taper", "protocol", CEILING)
CONTRASTS = ("blind stepping down", "random", *(f"always P{level}" for level in range(2, 10)))
ORDER = (*LEARNED, *REFERENCES, *CONTRASTS)
PENALTIES = (EXPERT, CLINICIANS, *BASELINES, OURS, "cormpo_flow", "disagreement")

METHODS = {
    "bc": "BC (cloning)",
    "mbpo": "MBPO",
    "mopo": "MOPO",
    "svr": "SVR",
    "cormpo_flow": "CORMPO (RealNVP)",
    "cormpo_kde": "CORMPO (KDE)",
    "cormpo_unshaped": "CORMPO, reward unshaped",
    "mbpo_shaped": "MBPO, reward shaped",
    "mopo_shaped": "MOPO, reward shaped",
    "disagreement": "Disagreement",
    "disagreement_shaped": "Disagreement, shaped",
    "mbpo_twin": "MBPO taught by the twin",
    "cormpo_twin": "CORMPO taught by the twin",
    "expert": "Expert (learned in the twin)",
    "clinicians": "Clinicians",
    "hold": "Hold the level",
    "taper": "Taper when stable",
    "protocol": "Weaning protocol",
    "look-ahead": "Look-ahead (ceiling)",
    "blind stepping down": "Blind stepping down",
    "random": "Random level",
}
SIGNS: dict[Metric, float] = {  # whether more is better
    "reward": 1.0,
    "acp": -1.0,
    "ws_gradient": 1.0,
    "unsafe_hours": -1.0,
}
JUDGES: dict[str, str] = {"twin": "twin", "patients": "test patients", "fresh": "fresh patients"}
DATA: dict[str, str] = {
    "recorded": "recorded hours",
    "noiseless": "noiseless synthetic hours",
    "noisy": "noisy synthetic hours",
}
SETTINGS: dict[str, str] = {"ours": "our settings", "paper": "the paper's settings"}


@dataclass(frozen=True)
class Comparison:
    """All methods on one data set in one setting."""

    cohort: str  # such as "guarded-7"
    data: Data  # what methods learned from
    setting: Setting
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
    def winners(self) -> dict[tuple[str, Metric], str]:
        """Learned methods that lead by a judge and metric, if clearly ahead of every other one.

        Clearly: the paired interval of the difference to each excludes zero.
        """
        found = {}
        for judge in self.judges:
            judged = self.before(judge)
            learned = [x for x in judged if x in LEARNED]
            weights = resample(judged[learned[0]].row) if len(learned) > 1 else np.zeros((0, 0))
            for metric, sign in SIGNS.items() if len(learned) > 1 else ():
                values = {x: sign * values_of(judged[x], metric) for x in learned}
                first, *others = sorted(learned, key=lambda x: -values[x].mean())
                if all(_ahead(values[first], values[x], weights) for x in others):
                    found[judge, metric] = first
        return found

    def before(self, judge: str) -> dict[str, Judged]:
        """What a judge has seen, in the order of the tables."""
        judged = self.judged.get(judge, {})
        return {method: judged[method] for method in self.methods() if method in judged}

    def methods(self, wanted: Sequence[str] | None = None) -> list[str]:
        """Methods that some judge has seen, in the order of the tables, unknown ones last."""
        seen = [method for judge in self.judges for method in self.judged[judge]]
        known = [method for method in (ORDER if wanted is None else wanted) if method in seen]
        extra = [] if wanted is not None else [x for x in dict.fromkeys(seen) if x not in ORDER]
        return known + extra


def _ahead(ours: np.ndarray, theirs: np.ndarray, weights: np.ndarray) -> bool:
    return estimate(difference(ours, theirs), weights)["low"] > 0


def name_of(method: str) -> str:
    """A method in words."""
    return METHODS.get(method, method[:1].upper() + method[1:])


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
        for method in (*ORDER, *(x for x in one.seconds if x not in ORDER))
        if method in one.seconds
    ]


def find(rows: Sequence[Row], method: str, judge: str, metric: str) -> Row | None:
    """The one row that says this, if any."""
    for row in rows:
        if (row["method"], row["judge"], row["metric"]) == (method, judge, metric):
            return row
    return None


def say_against(comparison: Comparison, judge: str, baselines: Sequence[str]) -> list[str]:
    """Two sentences: CORMPO's reward against the best of these, and the other metrics."""
    named = {name_of(x): one for x, one in comparison.before(judge).items()}
    return verdicts({WORDS[judge]: named}, name_of(OURS), [name_of(x) for x in baselines])


def say_agreement(comparison: Comparison) -> list[str]:
    """Whether the twin ranks the learned methods as the truth does, a sentence for each truth."""
    first, *truths = comparison.judges
    if first != "twin" or len(comparison.methods(LEARNED)) < 2:
        return []
    said = []
    for truth in truths:
        judged = {
            WORDS[judge]: {name_of(x): one for x, one in comparison.before(judge).items()}
            for judge in (first, truth)
        }
        names = [name_of(x) for x in LEARNED if x != OURS]
        said.append(verdicts(judged, name_of(OURS), names)[-1])
    return said


WORDS = {"twin": "twin", "patients": "true test patients", "fresh": "fresh patients"}


def to_csv(rows: Sequence[Mapping[str, object]], columns: Sequence[str] = COLUMNS) -> bytes:
    """All digits; what could not be computed stays empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_plain(row[column]) for column in columns])
    return out.getvalue().encode()


def _plain(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)


def _seeds(comparison: Comparison, method: str) -> int:
    """How often it was trained, or 0 if nobody judged it."""
    for judge in comparison.judges:
        if method in comparison.judged[judge]:
            return len(comparison.judged[judge][method].level)
    return 0
