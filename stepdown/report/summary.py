"""The first screen: CORMPO against the best baseline before every judge, and who agrees.

The sentences are those of `evaluation.compare.verdicts`; cards and headline show the same numbers
for a quick look.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from stepdown.evaluation.compare import OTHERS, Metric, difference, estimate, resample, values_of
from stepdown.report.comparison import (
    BASELINES,
    JUDGES,
    LEARNED,
    OURS,
    PARTS,
    SIGNS,
    WORDS,
    Comparison,
    name_of,
    say_against,
    say_agreement,
)
from stepdown.report.grids import signed, span

IN = {"twin": "in the twin", "patients": "in true test patients", "fresh": "in fresh patients"}


@dataclass(frozen=True)
class Verdict:
    """CORMPO minus the baseline with the best reward before one judge."""

    judge: str
    best: str  # known only afterwards
    reward: dict[str, float]  # mean, sd, low, high
    percent: float | None  # of the baseline's reward, unless that is about zero
    above: int  # seeds in which CORMPO is ahead
    seeds: int
    others: dict[Metric, dict[str, float]]

    @property
    def word(self) -> str:
        """Ahead, behind, or not to be told."""
        return _word(self.reward)


def find_verdicts(comparison: Comparison, baselines: Sequence[str] = BASELINES) -> list[Verdict]:
    """One verdict for every judge that has seen CORMPO and a baseline."""
    return [
        one
        for judge in comparison.judges
        if (one := _verdict(comparison, judge, baselines)) is not None
    ]


def _verdict(comparison: Comparison, judge: str, baselines: Sequence[str]) -> Verdict | None:
    judged = comparison.before(judge)
    known = [x for x in baselines if x in judged]
    if OURS not in judged or not known:
        return None
    best = max(known, key=lambda x: values_of(judged[x], "reward").mean())
    weights, theirs = resample(judged[best].row), values_of(judged[best], "reward")
    apart, whole = difference(values_of(judged[OURS], "reward"), theirs), estimate(theirs, weights)
    found = estimate(apart, weights)
    off_zero = whole["low"] * whole["high"] > 0  # a share of almost nothing says nothing
    others: dict[Metric, dict[str, float]] = {
        metric: estimate(
            difference(values_of(judged[OURS], metric), values_of(judged[best], metric)), weights
        )
        for metric in OTHERS
    }
    percent = 100 * found["mean"] / abs(whole["mean"]) if off_zero else None
    above = int((apart.mean(1) > 0).sum())
    return Verdict(judge, best, found, percent, above, len(apart), others)


def headline(comparison: Comparison) -> list[str]:
    """Two or three plain sentences that the numbers below bear out."""
    said = []
    for words, baselines in (("best baseline", BASELINES), ("best method without density", PARTS)):
        places: dict[str, list[str]] = {}
        for one in find_verdicts(comparison, baselines):
            places.setdefault(one.word, []).append(IN[one.judge])
        parts = [f"{word} the {words} {' and '.join(where)}" for word, where in places.items()]
        if parts:
            said.append(f"CORMPO is {'; '.join(parts)}.")
    agree = {x: _first(comparison, "twin") == _first(comparison, x) for x in comparison.judges[1:]}
    for same, word in ((True, "agrees"), (False, "disagrees")):
        truths = [WORDS[judge] for judge, answer in agree.items() if answer == same]
        if truths and _first(comparison, "twin") is not None:
            said.append(f"The twin {word} with the {' and the '.join(truths)} on the best method.")
    return said


def summary_html(comparison: Comparison) -> str:
    """Headline, a card for each judge, and everything in full sentences."""
    lines = "".join(f"<li>{html.escape(x)}</li>" for x in headline(comparison))
    cards = "".join(_card(one) for one in find_verdicts(comparison))
    if not cards:
        return "<p>No verdict: CORMPO and its baselines were not both judged.</p>"
    sentences = [
        x
        for baselines in (BASELINES, PARTS)
        for judge in comparison.judges
        for x in say_against(comparison, judge, baselines)
    ]
    ranks = "".join(f"<p>{html.escape(x)}</p>" for x in say_agreement(comparison))
    full = "".join(f"<li>{html.escape(x)}</li>" for x in sentences)
    return (
        f'<ul class="headline">{lines}</ul>\n<div class="cards">{cards}</div>\n{ranks}\n'
        f"<details><summary>The same in full sentences, and against the methods without density"
        f"</summary><ul>{full}</ul></details>\n"
    )


def summary_text(comparison: Comparison) -> str:
    """The same for a terminal."""
    sentences = [x for y in comparison.judges for x in say_against(comparison, y, BASELINES)[:1]]
    return "\n".join([*headline(comparison), *sentences, *say_agreement(comparison)]) + "\n"


def _card(one: Verdict) -> str:
    percent = "" if one.percent is None else f" ({signed(one.percent, 0)} %)"
    kind = {"ahead of": "good", "behind": "bad"}.get(one.word, "")
    others = "".join(f"<li>{html.escape(_line(*x))}</li>" for x in one.others.items())
    seeds = f"ahead with {one.above} of {one.seeds} seeds" if one.seeds > 1 else "one seed"
    best = f"against {name_of(one.best)}, the best baseline here (known only afterwards); {seeds}"
    return (
        f'<div class="card {kind}"><h3>{html.escape(IN[one.judge].capitalize())}</h3>'
        f'<p><span class="big">{signed(one.reward["mean"])}</span> reward{percent} '
        f"{_span(one.reward)}<br>{html.escape(best)}</p><ul>{others}</ul></div>"
    )


def _line(metric: Metric, found: dict[str, float]) -> str:
    """A difference with its interval; better or worse only where it is clear."""
    better = {"ahead of": 1.0, "behind": -1.0}.get(_word(found), 0.0) * SIGNS[metric]
    same, word = "≈ " if better == 0 else "", {1.0: ", better", -1.0: ", worse"}.get(better, "")
    return f"{OTHERS[metric]}: {same}{signed(found['mean'], 3)} {_span(found, 3)}{word}"


def _span(found: dict[str, float], digits: int = 2) -> str:
    words = span(found["low"], found["high"], digits)
    return words if words.startswith("[") else "(too few patients for an interval)"


def _word(found: dict[str, float]) -> str:
    if found["low"] > 0:
        return "ahead of"
    return "behind" if found["high"] < 0 else "not clearly different from"


def _first(comparison: Comparison, judge: str) -> str | None:
    """The learned method that a judge's mean reward puts first."""
    judged = {x: one for x, one in comparison.before(judge).items() if x in LEARNED}
    means = {x: values_of(one, "reward").mean() for x, one in judged.items()}
    return max(means, key=means.__getitem__) if len(means) > 1 else None


def lead_of(comparison: Comparison) -> str:
    """What was learned, from what, and who judged."""
    judged = comparison.judged[comparison.judges[0]]
    learned = comparison.methods(LEARNED)
    one = judged[next((x for x in learned if x in judged), next(iter(judged)))]
    seeds, episodes = one.level.shape[:2]
    patients = {x: len(set(next(iter(y.values())).row.tolist()))
                for x, y in comparison.judged.items()}  # fmt: skip
    where = ["in the twin" if x == "twin" else f"in {patients[x]:,} {JUDGES[x]}"
             for x in comparison.judges]  # fmt: skip
    count = "1 method" if len(learned) == 1 else f"{len(learned)} methods"
    return (
        f"{count}, {'one seed' if seeds == 1 else f'{seeds} seeds'} each, judged "
        f"over {episodes:,} paired episodes of six hours: {', '.join(where)}."
    )
