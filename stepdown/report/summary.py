"""The first screen: CORMPO against the best baseline before every judge, and who agrees.

The sentences are those of `evaluation/compare.py`; cards and headline show the same numbers
for a quick look.
"""

import html
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepdown.evaluation.compare import (
    OTHERS,
    Metric,
    against_best,
    difference,
    estimate,
    over_cohorts,
    ranking_agreement,
    resample,
    values_of,
)
from stepdown.evaluation.judging import Judged
from stepdown.report.comparison import (
    Comparison,
    Margin,
    judges_of,
    margin_of,
    mean_of,
    same_question,
)
from stepdown.report.grids import signed, span
from stepdown.report.labels import (
    BASELINES,
    JUDGES,
    LEARNED,
    METRICS,
    OURS,
    PARTS,
    TOLD,
    name_of,
)


@dataclass(frozen=True)
class Verdict:
    """CORMPO minus the baseline with the best reward before one judge."""

    judge: str
    reward: Margin
    others: dict[Metric, Margin]  # to the same baseline

    @property
    def word(self) -> str:
        """Ahead, behind, or not to be told."""
        return _word(self.reward.found)


def find_verdicts(comparison: Comparison, baselines: Sequence[str] = BASELINES) -> list[Verdict]:
    """One verdict for every judge that has seen CORMPO and a baseline."""
    found = []
    for judge in comparison.judges:
        reward = margin_of(comparison, judge, "reward", baselines)
        if reward is not None:
            others: dict[Metric, Margin] = {
                metric: one
                for metric in OTHERS
                if (one := margin_of(comparison, judge, metric, [reward.best]))
            }
            found.append(Verdict(judge, reward, others))
    return found


def headline(comparison: Comparison) -> list[str]:
    """Two or three plain sentences that the numbers below bear out."""
    said = []
    for words, baselines in (("best baseline", BASELINES), ("best method without density", PARTS)):
        places: dict[str, list[str]] = {}
        for one in find_verdicts(comparison, baselines):
            places.setdefault(one.word, []).append(JUDGES[one.judge].place)
        parts = [f"{word} the {words} {' and '.join(where)}" for word, where in places.items()]
        if parts:
            said.append(f"CORMPO is {'; '.join(parts)}.")
    return said


def say_ranking(comparison: Comparison) -> list[str]:
    """Whether the twin ranks the learned methods as each truth does; disagreement is said first."""
    said: dict[bool, list[str]] = {False: [], True: []}
    for truth in comparison.judges[1:]:
        first = {x: _first(comparison, x) for x in ("twin", truth)}
        if comparison.judges[0] != "twin" or None in first.values():
            continue
        wrong, pairs = _reversed_pairs(comparison, truth)
        names = {x: name_of(str(y)) for x, y in first.items()}
        same = first["twin"] == first[truth] and not wrong
        best = (
            f"both put {names[truth]} first"
            if first["twin"] == first[truth]
            else f"the twin puts {names['twin']} first, the {JUDGES[truth].full} {names[truth]}"
        )
        word = "agree" if same else "disagree"
        said[same].append(
            f"Twin and {JUDGES[truth].full} {word} on the ranking: {best}; {wrong} of {pairs} "
            "pairs of methods are clearly the other way round."
        )
    return [*said[False], *said[True]]


def say_comparisons(comparisons: Sequence[Comparison]) -> list[str]:
    """In how many comparisons the twin puts another method first than the surest truth does."""
    asked = [x for x in comparisons if len(x.judges) > 1 and _first(x, x.judges[-1]) is not None]
    if len(asked) < 2:
        return []
    apart = [x for x in asked if _first(x, "twin") != _first(x, x.judges[-1])]
    names = ", ".join(f"{x.name} ({x.cohort})" for x in apart)
    return [
        f"Over all data sets, settings and cohorts, the twin puts another method first than the "
        f"truth in {len(apart)} of {len(asked)} comparisons{': ' if apart else ''}{names}."
    ]


def _reversed_pairs(comparison: Comparison, truth: str) -> tuple[int, int]:
    """Pairs of learned methods that both judges tell apart clearly, in opposite order; and all."""
    both = [comparison.before(x) for x in ("twin", truth)]
    learned = [x for x in LEARNED if all(x in judged for judged in both)]
    weights = [resample(judged[learned[0]].row) for judged in both] if learned else []
    wrong, pairs = 0, list(itertools.combinations(learned, 2))
    for one, other in pairs:
        words = [
            _word(estimate(_apart(judged, one, other), own))
            for judged, own in zip(both, weights, strict=True)
        ]
        wrong += sorted(words) == ["ahead of", "behind"]
    return wrong, len(pairs)


def _apart(judged: Mapping[str, Judged], one: str, other: str) -> np.ndarray:
    return difference(values_of(judged[one], "reward"), values_of(judged[other], "reward"))


def summary_html(
    comparison: Comparison, first: Sequence[str] = (), more: Sequence[str] = ()
) -> str:
    """Whether twin and truth agree, headline, a card for each judge, and all in full sentences.

    `first` are sentences about all cohorts, `more` those of the evidence beyond the twin.
    """
    ranking = say_ranking(comparison)
    warned = any("disagree" in x for x in ranking)
    told = " ".join(f"{html.escape(x)}" for x in ranking)
    box = f'<p class="{"warn" if warned else "muted"}">{told}</p>' if told else ""
    lines = "".join(f"<li>{html.escape(x)}</li>" for x in (*first, *headline(comparison)))
    cards = "".join(_card(one) for one in find_verdicts(comparison))
    if not cards:
        return "<p>No verdict: CORMPO and its baselines were not both judged.</p>"
    sentences = [
        x
        for baselines in (BASELINES, PARTS)
        for judge in comparison.judges
        for x in say_against(comparison, judge, baselines)
    ]
    ranks = "".join(f"<p>{html.escape(x)}</p>" for x in (*more, *say_agreement(comparison)))
    full = "".join(f"<li>{html.escape(x)}</li>" for x in sentences)
    return (
        f'{box}<ul class="headline">{lines}</ul>\n<div class="cards">{cards}</div>\n{ranks}\n'
        f"<details><summary>The same in full sentences, and against the methods without density"
        f"</summary><ul>{full}</ul></details>\n"
    )


def _card(one: Verdict) -> str:
    reward, seeds = one.reward, len(one.reward.per_seed)
    percent = "" if reward.percent is None else f" ({signed(reward.percent, 0)} %)"
    kind = {"ahead of": "good", "behind": "bad"}.get(one.word, "")
    others = "".join(f"<li>{html.escape(_line(x, y.found))}</li>" for x, y in one.others.items())
    above = int((reward.per_seed > 0).sum())
    ahead = f"ahead with {above} of {seeds} seeds" if seeds > 1 else "one seed"
    best = (
        f"against {name_of(reward.best)}, the best baseline here (known only afterwards); {ahead}"
    )
    return (
        f'<div class="card {kind}"><h3>{html.escape(JUDGES[one.judge].place.capitalize())}</h3>'
        f'<p><span class="big">{signed(reward.found["mean"])}</span> reward{percent} '
        f"{_span(reward.found)}<br>{html.escape(best)}</p><ul>{others}</ul></div>"
    )


def _line(metric: Metric, found: dict[str, float]) -> str:
    """A difference with its interval; better or worse only where it is clear."""
    better = {"ahead of": 1.0, "behind": -1.0}.get(_word(found), 0.0) * METRICS[metric].sign
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
    where = ["in the twin" if x == "twin" else f"in {patients[x]:,} {JUDGES[x].words}"
             for x in comparison.judges]  # fmt: skip
    count = "1 method" if len(learned) == 1 else f"{len(learned)} methods"
    return (
        f"{count}, {'one seed' if seeds == 1 else f'{seeds} seeds'} each, judged "
        f"over {episodes:,} paired episodes of six hours: {', '.join(where)}."
    )


def say_against(comparison: Comparison, judge: str, baselines: Sequence[str]) -> list[str]:
    """Two sentences: CORMPO's reward against the best of these, and the other metrics."""
    named = {name_of(x): one for x, one in comparison.before(judge).items()}
    against = [name_of(x) for x in baselines]
    return against_best(named, JUDGES[judge].full, name_of(OURS), against)


def say_agreement(comparison: Comparison) -> list[str]:
    """Whether the twin ranks the learned methods as the truth does, a sentence for each truth."""
    first, *truths = comparison.judges
    if first != "twin" or len(comparison.methods(LEARNED)) < 2:
        return []
    said = []
    for truth in truths:
        judged = {
            JUDGES[judge].full: {name_of(x): one for x, one in comparison.before(judge).items()}
            for judge in (first, truth)
        }
        names = [name_of(x) for x in LEARNED if x != OURS]
        said.append(ranking_agreement(judged, [name_of(OURS), *names]))
    return said


def say_across(comparisons: Sequence[Comparison]) -> list[str]:
    """CORMPO against what it adds density to, over all cohorts; nothing for a single cohort."""
    asked = same_question(comparisons)
    if len(asked) < 2:
        return []
    judge, said = judges_of(asked)[-1], []
    for method in TOLD:
        pairs = []
        for metric in ("reward", "unsafe_hours"):
            shown, minus = METRICS[metric], f"{metric}_minus_{OURS}"
            found = over_cohorts([-shown.scale * mean_of(x, judge, method, minus) for x in asked])
            if found["cohorts"] > 1:
                between = span(found["low"], found["high"], shown.digits)
                pairs.append(f"{signed(found['mean'], shown.digits)} {between}")
        if len(pairs) == 2:
            said.append(
                f"Over {len(asked)} cohorts, CORMPO minus {name_of(method)} in "
                f"{JUDGES[judge].full}: reward {pairs[0]}, unsafe hours {pairs[1]} points."
            )
    return said
