"""Where a run on recordings followed the protocol of docs/real-data.md, and where it left it.

The protocol is signed before anybody sees an outcome. Most of its points a run can check by itself:
what it cannot know, or was not asked yet, is said so. Six points are gates. One that does not hold
stops every statement about benefit; what the cohort and the models are like may be told anyway.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepdown.handover import Cohort, Hours
from stepdown.report.evidence import GAMMA, Findings, word_of
from stepdown.report.grids import Cell, Grid, number, signed, to_html
from stepdown.report.labels import CLINICIANS, DEFAULT, METHODS, OURS, name_of
from stepdown.report.page import Section

STAYS, DECISIONS, TESTED = 100, 2000, 20  # fewest, of the last in test patients
ASKED, ALARMS = 0.05, 0.10  # false alarms that a guardian is set to, and may really have
DRUGS = ("nee", "vis")
CARRY, DELAY, PRESSURE = 4.0, 15.0, "arterial"
WORDS = {True: "followed", False: "left", None: "not known"}
GATES = {True: "holds", False: "does not hold", None: "not known"}
PAGE = "docs/real-data.md"


class Point(NamedTuple):
    """One point of the protocol."""

    name: str
    asks: str
    found: str
    kept: bool | None  # None: a run cannot know, or nobody asked yet
    gate: bool = False


@dataclass(frozen=True)
class Facts:
    """What a run knows about itself."""

    cohort: Cohort
    hours: Hours
    present: Sequence[str]  # columns that models see
    charted: Mapping[str, Any] | None  # how tables were imported; None: not from tables
    quick: bool  # trainings too short to rank learned methods
    methods: Sequence[str]
    twins: Mapping[str, float]  # error of MAP on test patients, by twin
    judging: str  # which of them judges
    alarms: Mapping[float, float]  # of the guardian on test patients: asked, real
    findings: Findings | None  # of `stepdown judge`


def protocol_points(facts: Facts) -> list[Point]:
    """Every point, gates last."""
    return [
        _cohort(facts.charted),
        _unit(facts.cohort),
        _drugs(facts.present),
        Point(
            "Policy",
            f"{name_of(DEFAULT)}, chosen before the run; other rows are exploratory",
            f"{name_of(DEFAULT)} is a row" if DEFAULT in facts.methods else "it is no row",
            DEFAULT in facts.methods,
        ),
        Point(
            "Trainings",
            "long enough to rank learned methods, where one of them is spoken of",
            "a quick look: learned rows may not be ranked" if facts.quick else "of full length",
            not facts.quick,
        ),
        Point(
            "Sensitivity of the import",
            "the same with --delay 0 and 60 and with --carry 2 and 8, side by side",
            "a run sees one import alone",
            None,
        ),
        _size(facts),
        _twin(facts),
        _guardian(facts.alarms),
        *_judged(facts),
    ]


def protocol_section(points: Sequence[Point]) -> Section:
    """The points as a table, with what may be said first."""
    words = (GATES if x.gate else WORDS for x in points)
    lines = tuple(
        (Cell(f"{'Gate: ' * x.gate}{x.name}"), Cell(x.asks), Cell(x.found),
         Cell(word[x.kept], strong=x.kept is False))
        for x, word in zip(points, words, strict=True)
    )  # fmt: skip
    head = ("Point", "The protocol asks", "This run", "")
    grid = Grid("", head, lines, kinds=("",) * len(head))
    said = "".join(f"<p>{x}</p>" for x in protocol_sentences(points))
    return Section("The protocol", f"{said}{to_html(grid)}", "protocol")


def protocol_sentences(points: Sequence[Point]) -> list[str]:
    """Where the run left the protocol, and what may be said."""
    plain = [x for x in points if not x.gate]
    left = ", ".join(x.name.lower() for x in plain if x.kept is False)
    followed = sum(x.kept is True for x in plain)
    first = (
        f"Protocol ({PAGE}): followed in {followed} of {len(plain)} points"
        + (f", left in: {left}" if left else "")
        + "."
    )
    closed = ", ".join(x.name.lower() for x in points if x.gate and x.kept is False)
    unknown = ", ".join(x.name.lower() for x in points if x.gate and x.kept is None)
    if closed:
        return [first, f"Gates that do not hold: {closed}. Nothing may be said about benefit."]
    if unknown:
        more = f"Gates not known yet: {unknown}. Ask: stepdown judge RUN."
        return [first, f"{more} Until then nothing may be said about benefit."]
    return [first, "All gates hold: the primary result may be told, as a finding in these records."]


# ── point by point ───────────────────────────────────────────────────────────────────────────────


def _cohort(charted: Mapping[str, Any] | None) -> Point:
    asks = (
        f"hospital tables, one pump, {PRESSURE} pressures, levels believed for {CARRY:g} h, "
        f"{DELAY:g} min where no store time is known"
    )
    if charted is None:
        return Point("Cohort", asks, "recordings that were not imported from tables", False)
    own = (charted["pressure"], charted["carry"], charted["delay"])
    found = f"pump {charted['device']}, {own[0]}, {own[1]:g} h, {own[2]:g} min"
    return Point("Cohort", asks, found, own == (PRESSURE, CARRY, DELAY))


def _unit(cohort: Cohort) -> Point:
    asks = "patients: one stay each, split 65/15/20 by patient, intervals over patients"
    once = len(set(cohort.patient)) == len(cohort.patient)
    found = "one stay each" if once else "patients come twice"
    return Point("Unit of analysis", asks, found, once)


def _drugs(present: Sequence[str]) -> Point:
    asks = "vasoactive drugs in every model, since teams act on them"
    lacking = [name for name in DRUGS if name not in present]
    found = "models do not see " + " and ".join(lacking) if lacking else "models see them"
    return Point("Drugs", asks, found, not lacking)


def _size(facts: Facts) -> Point:
    parts = (facts.hours.train, facts.hours.select, facts.hours.test)
    decisions, stays = sum(len(x.level) for x in parts), len(facts.cohort.patient)
    tested = len(np.unique(facts.hours.test.patient))
    asks = f"at least {STAYS} stays, {DECISIONS:,} decisions, {TESTED} test patients"
    found = f"{stays:,} stays, {decisions:,} decisions, {tested:,} test patients"
    enough = stays >= STAYS and decisions >= DECISIONS and tested >= TESTED
    return Point("Size", asks, found, enough, gate=True)


def _twin(facts: Facts) -> Point:
    asks = "forecasts the next hour's MAP of test patients better than persistence"
    ours, plain = (facts.twins.get(name) for name in (facts.judging, "persistence"))
    if ours is None or plain is None:
        return Point("Twin", asks, "persistence is no row of this run", None, gate=True)
    found = f"error {ours:.2f} mmHg, persistence {plain:.2f}"
    return Point("Twin", asks, found, ours < plain, gate=True)


def _guardian(alarms: Mapping[float, float]) -> Point:
    asks = f"set to {ASKED:.0%} false alarms, has at most {ALARMS:.0%} on test patients"
    real = alarms.get(ASKED)
    if real is None:
        return Point("Guardian", asks, "not measured", None, gate=True)
    return Point("Guardian", asks, f"{real:.1%}", real <= ALARMS, gate=True)


def _judged(facts: Facts) -> list[Point]:
    """What `stepdown judge` has found about the policy."""
    found, who = facts.findings, DEFAULT if DEFAULT in facts.methods else OURS
    records = {} if found is None else {x["method"]: x for x in found.records.get("policies", ())}
    return [_overlap(records.get(who)), _second(found, who), _hidden(records, who)]


def _overlap(one: Mapping[str, Any] | None) -> Point:
    asks = "estimates from records alone are informative and of one sign"
    if one is None:
        return Point("Overlap", asks, "not asked", None, gate=True)
    word = word_of(one)
    found = f"{word}, {one['effective']:.1f} effective patients"
    return Point("Overlap", asks, found, word == "informative", gate=True)


def _second(found: Findings | None, who: str) -> Point:
    asks = "the twin and a second one of other patients put the policy above the clinicians"
    rows = () if found is None else found.second.get("rows", ())
    second = {x["method"]: x["mean"] for x in rows if x["metric"] == f"reward_minus_{CLINICIANS}"}
    ours = None if found is None else found.comparison.reward(who, "twin")
    team = None if found is None else found.comparison.reward(CLINICIANS, "twin")
    if who not in second or ours is None or team is None:
        return Point("Second twin", asks, "not asked", None, gate=True)
    both = (ours - team, second[who])
    words = f"reward less the clinicians': {signed(both[0])} and {signed(both[1])}"
    return Point("Second twin", asks, words, min(both) > 0, gate=True)


def _hidden(records: Mapping[str, Mapping[str, Any]], who: str) -> Point:
    hold = METHODS["hold"].words
    asks = f"the bound of WIS at Γ = {GAMMA:g} lies above WIS of “{hold}”"
    if who not in records or "hold" not in records:
        return Point("Hidden confounding", asks, "not asked", None, gate=True)
    bounds = [x for x in records[who]["bounds"] if x["gamma"] == GAMMA]
    plain = records["hold"]["estimates"]["wis"]["mean"]
    low = bounds[0]["lower"] if bounds else math.nan
    if plain is None or not math.isfinite(low):
        words = "no bound: the records do not follow the policy"
        return Point("Hidden confounding", asks, words, None, gate=True)
    found = f"bound {number(low)}, held level {number(plain)}"
    return Point("Hidden confounding", asks, found, low > plain, gate=True)
