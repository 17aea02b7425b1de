"""The words of an answer: why a state is refused, what each level is, why these are acceptable.

Every sentence follows from the place that the gates gave a level, and every number has a unit.
What was not measured is said to be missing, never to be outside a limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepdown.app import gates
from stepdown.app.engine import Engine, Outlook
from stepdown.app.gates import COUNTS, LV_END, PLACES, UNKNOWN, refusal
from stepdown.app.limits import JUDGED, LV_FROM, Limits
from stepdown.app.request import PUMPS, Read, Request, absent_columns
from stepdown.app.steady import BETTER, Advice, interval
from stepdown.problem.filling import filled_words
from stepdown.signals import (
    HORIZON,
    HR,
    KNOWN,
    LEVELS,
    LOWEST,
    LVEDP,
    MAP,
    NAMES,
    PULSATILITY,
    REQUIRED,
    SIGNALS,
)

SHORT = {MAP: "MAP", HR: "HR", PULSATILITY: "pulsatility"}
_WHY = {  # after "P-5" or "P-5 and P-6"
    "forbidden": ("is forbidden by a hard gate", "are forbidden by a hard gate"),
    "unjudged": ("has no forecast", "have no forecast"),
    "risky": ("crosses a limit", "cross a limit"),
    "more": ("is more support than is needed", "are more support than is needed"),
    "undecided": ("is undecided", "are undecided"),
}


@dataclass(frozen=True)
class Moment:
    """One moment as the models see it and as the gates judged it."""

    engine: Engine
    request: Request
    read: Read
    outlook: Outlook
    limits: Limits
    similar: np.ndarray  # (8,) recorded hours
    distance: np.ndarray  # to every recorded hour
    codes: dict[str, np.ndarray]  # R10 to R12 and R16, (8,) each
    forbidden: dict[str, np.ndarray]  # H1 to H5, (8,) each
    place: np.ndarray  # (8,) what is the matter with a level, an index into gates.PLACES
    advice: Advice
    rank: dict[int, int]  # of levels that nothing forbids, 1 has the fewest crossing courses
    fewer: tuple[np.ndarray, ...]  # (8,) each: courses fewer than at the level in force, a share

    def draws(self, p: int) -> int:
        """Courses that were computed of a level."""
        return int(self.outlook.courses[p - LOWEST])


# ── the reasons ──────────────────────────────────────────────────────────────────────────────────


def reasons_for(moment: Moment, suggested: int) -> list[str]:
    """Why these levels are acceptable, and why others are not; never empty."""
    asked = sorted(set(moment.request.candidates))
    good = [p for p in asked if moment.place[p - LOWEST] == 0]
    reasons = [*_served_by(moment.engine), *_gaps(moment), _stability(moment.read, moment.limits)]
    if suggested > 0:
        reasons += _about_suggestion(moment, suggested)
    elif good:
        reasons.append(f"Acceptable is to hold {list_levels(good)}; nothing is suggested.")
    else:
        reasons += [_none_acceptable(moment, asked), *_least_risk(moment, asked)]
        reasons += [] if moment.advice.kind == "none" else [advice_words(moment)]
    return [*reasons, LV_END] if good and good[0] < LV_FROM else reasons


def _served_by(engine: Engine) -> list[str]:
    """Which models answer, where they are not those of the run."""
    if engine.first:
        return []
    names = ", ".join(KNOWN[name].label for name in engine.names)
    return [f"Answered by the models with fewer signals, which this patient has: {names}."]


def _gaps(moment: Moment) -> list[str]:
    """What is missing in the hour, if anything."""
    hour, columns = moment.read.bed.signals, moment.read.bed.columns
    if not gates.has_gap(hour, moment.engine.used):
        return []
    counts = np.isnan(hour).sum(0)
    absent = absent_columns(moment.read, moment.engine.used)
    found = [
        f"{SHORT.get(i, KNOWN[columns[i]].label)} ({counts[i]} of {len(hour)} samples)"
        for i in sorted({*moment.engine.used, *REQUIRED})
        if counts[i] and i not in absent
    ]
    told = [filled_words(tuple(columns[i] for i in absent))] if absent else []
    told += [f"Missing in the last hour: {', '.join(found)}."] if found else []
    return [*told[:-1], f"{told[-1]} No change is suggested."]


def _stability(read: Read, limits: Limits) -> str:
    """Inside, outside, or not known because samples are missing."""
    hour = read.bed.signals
    if gates.outside_limits(hour, limits):
        found = [words for i in JUDGED for words in _crossed(hour[:, i], i, limits)]
        forbids = gates.outside_limits(hour, limits, gates.FORBIDDING)
        told = f"Outside the limits in the last hour: {', '.join(found)}."
        return f"{told} No step down." if forbids else told
    told = ", ".join(
        f"{SHORT[i]} at least {np.nanmin(hour[:, i]):.0f} {SIGNALS[i].unit}" for i in JUDGED
    )
    if gates.inside_limits(hour, limits):
        hours = _stable_hours(read, limits)
        span = "the last hour" if hours <= 1 else f"{hours} h"
        return f"Inside the limits for {span} (last hour: {told})."
    return f"What was measured in the last hour lay inside the limits ({told})."


def _crossed(values: np.ndarray, index: int, limits: Limits) -> list[str]:
    """A signal's lowest and highest sample where they are outside, with the limit."""
    low, high = limits.bounds()[index]
    unit, found = SIGNALS[index].unit, []
    for word, worst, limit, crossed in (
        ("down to", np.nanmin(values), low, np.nanmin(values) <= low),
        ("up to", np.nanmax(values), high, np.nanmax(values) >= high),
    ):
        if crossed:
            digits = 1 if round(float(worst)) == limit else 0  # 59.8 must not read as 60
            shown = f"{worst:.{digits}f} {unit}"
            found.append(f"{SHORT[index]} {word} {shown} (limit {limit:g} {unit})")
    return found


def _about_suggestion(moment: Moment, suggested: int) -> list[str]:
    limit, many = worst_limit(moment, suggested)
    similar = int(moment.similar[suggested - LOWEST])
    return [
        f"P-{suggested}: {count_words(many, moment.draws(suggested))} cross {limit} "
        f"within {HORIZON} h.",
        f"{similar} similar patient-hours at P-{suggested}.",
    ]


def _none_acceptable(moment: Moment, asked: Sequence[int]) -> str:
    """Every level that was asked for, by what is the matter with it."""
    share = f"in more than {100 * moment.engine.gates.risk:g} % of the simulated courses"
    parts = []
    for place, (one, many) in _WHY.items():
        found = [p for p in asked if PLACES[moment.place[p - LOWEST]] == place]
        if found:
            words = one if len(found) == 1 else many
            tail = f" {share}" if place == "risky" else ""
            parts.append(f"{list_levels(found)} {words}{tail}")
    return f"No level is acceptable: {'; '.join(parts)}."


def _least_risk(moment: Moment, asked: Sequence[int]) -> list[str]:
    """Where the fewest courses cross a limit, among levels that only their risk speaks against.

    A count, not a suggestion: none of these levels is acceptable.
    """
    open_to = ("risky", "undecided")
    risky = [p for p in asked if PLACES[moment.place[p - LOWEST]] in open_to]
    if not risky:
        return []
    worst = np.asarray(moment.outlook.crossing).max(-1) / np.asarray(moment.outlook.courses)
    level = int(moment.read.bed.level)
    best = min(risky, key=lambda p: (worst[p - LOWEST], abs(p - level)))
    limit, many = worst_limit(moment, best)
    told = "Fewest cross a limit at "
    told += f"P-{best}: {many} of {moment.draws(best)} simulated courses, {limit}"
    if best == level or level not in risky:
        return [f"{told}."]
    limit, many = worst_limit(moment, level)
    return [f"{told}; at P-{level}, in force, {many} of {moment.draws(level)} courses, {limit}."]


def _stable_hours(read: Read, limits: Limits) -> int:
    """Whole hours in a row, back from now, inside the limits."""
    steps, count = len(read.bed.signals), 0
    while (count + 1) * steps <= len(read.signals):
        end = len(read.signals) - count * steps
        if not gates.inside_limits(read.signals[end - steps : end], limits):
            break
        count += 1
    return count


# ── a refused state ──────────────────────────────────────────────────────────────────────────────


def state_sentences(read: Read, codes: Sequence[str], engine: Engine) -> list[dict[str, Any]]:
    """The refusals of a state with what exactly is the matter."""
    details = {
        "R02": lambda: _lacking(read, engine, REQUIRED),
        "R04": lambda: _range_detail(read),
        "R05": lambda: _unit_detail(read),
        "R07": lambda: _level_detail(read, engine),
        "R09": lambda: _lacking(read, engine, engine.used),
        "R15": lambda: _contradiction_detail(read, engine),
    }
    found = []
    for code in codes:
        about, words = details[code]() if code in details else (None, "")
        sentence = f"{gates.refusal_codes(engine.gates)[code].sentence} {words}".strip()
        found.append(refusal(code, engine.gates, sentence, about))
    return found


def _lacking(read: Read, engine: Engine, wanted: Sequence[int]) -> tuple[str | None, str]:
    empty = gates.too_empty(read.bed.signals, engine.gates)
    names = [engine.columns[i] for i in wanted if empty[i]]
    if not names:
        return None, ""
    return names[0], f"{', '.join(KNOWN[name].label for name in names)} is missing in the hour."


def _range_detail(read: Read) -> tuple[str | None, str]:
    found = np.flatnonzero(gates.outside_hard(read.bed))
    told = []
    for index in found:
        signal = KNOWN[read.bed.columns[index]]
        low, high = signal.hard
        told.append(f"{signal.label} lies outside {low:g} to {high:.0f} {signal.unit}")
    return (read.bed.columns[found[0]], f"{', '.join(told)}.") if told else (None, "")


def _contradiction_detail(read: Read, engine: Engine) -> tuple[str | None, str]:
    columns = sorted({*engine.used, *REQUIRED})
    told = [words for words, held in gates.contradictions(read.bed, columns).items() if held]
    text = " and ".join(told)
    return NAMES[MAP], f"{text[:1].upper()}{text[1:]}."


def _unit_detail(read: Read) -> tuple[str | None, str]:
    if read.undeclared:
        label = KNOWN[read.undeclared[0]].label
        return read.undeclared[0], f"{label} has no unit that fits it."
    columns = read.bed.columns
    found = np.flatnonzero(gates.suspect_units(read.bed.signals, columns, read.factors))
    told = [f"{KNOWN[columns[i]].label} does not look like {KNOWN[columns[i]].unit}" for i in found]
    return (columns[found[0]], f"{', '.join(told)}.") if told else (None, "")


def _level_detail(read: Read, engine: Engine) -> tuple[str | None, str]:
    bed = read.bed
    if bed.highest == 0:
        known = [pump.label for pump in PUMPS.values() if pump.table == engine.table]
        return "pump", f"The models know {' and '.join(known)}."
    if bed.level == UNKNOWN:
        return "level", "No P-level was given."
    if bed.speed_level not in (UNKNOWN, bed.level):
        return "level", f"P-{bed.level} was given; the speed is that of P-{bed.speed_level}."
    return "level", f"P-{bed.level} is none of P-{LOWEST} to P-{bed.highest}."


# ── one level ────────────────────────────────────────────────────────────────────────────────────


def candidate_label(p: int, level: int) -> str:
    """The name that a screen reader says, such as "P-5, one level down"."""
    if level not in LEVELS:
        return f"P-{p}"
    if p == level:
        return f"P-{p}, level in force"
    steps = abs(p - level)
    words = f"{COUNTS[steps]} level{'s' * (steps > 1)}"
    return f"P-{p}, {words} {'down' if p < level else 'up'}"


def verdict(moment: Moment, p: int, forbidding: list[str]) -> str:
    """The one sentence on whether a level is acceptable, as the gates placed it."""
    place = PLACES[moment.place[p - LOWEST]]
    if place == "forbidden":
        return f"Not acceptable: forbidden by {', '.join(forbidding)}."
    if place == "unjudged":
        return "Not acceptable: no forecast is shown."
    if place == "more":
        return f"Not needed: holding P-{int(moment.read.bed.level)} is acceptable."
    limit, many = worst_limit(moment, p)
    draws = moment.draws(p)
    most = int(moment.engine.gates.risk * draws + 1e-9)  # exact: 11 of 100 is not "about 2 in 20"
    told = f"{many} of {draws} simulated courses cross {limit}, at most {most} of {draws} may."
    if place == "undecided":
        low, high = (f"{100 * float(x):.0f}" for x in interval(np.array(many), np.array(draws)))
        return f"Undecided: {told} That is {low} to {high} %, too near the line to say more."
    return f"Acceptable: {told}" if place == "acceptable" else f"Not acceptable: {told}"


def level_refusals(moment: Moment, p: int) -> list[dict[str, Any]]:
    """R10 to R12 of a level, R10 with what exactly is the matter."""
    i, config = p - LOWEST, moment.engine.gates
    strange = (
        f"Fewer than {config.support} similar patient-hours at P-{p}. No forecast is shown."
        if moment.similar[i] < config.support
        else f"P-{p} was hardly ever chosen in such a state. No forecast is shown."
    )
    told = {"R10": refusal("R10", config, strange)}
    told |= {code: refusal(code, config) for code in ("R11", "R16")}
    told["R12"] = refusal("R12", config, about=NAMES[LVEDP])
    return [told[code] for code, held in moment.codes.items() if held[i]]


def advice_words(moment: Moment) -> str:
    """The moment as a whole in a sentence or two."""
    advice, level = moment.advice, int(moment.read.bed.level)
    if advice.kind == "none":
        return f"Nothing can be said: P-{level}, the level in force, has no forecast."
    held = moment.outlook.crossing_any[level - LOWEST]
    draws = moment.draws(level)
    now = f"At P-{level}, in force, {held} of {draws} simulated courses leave a limit within "
    now += f"{HORIZON} h."
    if advice.kind == "acceptable":
        return now
    if advice.kind == "act":
        assert advice.level is not None
        i = advice.level - LOWEST

        mean, low, high = (f"{100 * float(x[i]):.0f}" for x in moment.fewer)
        return (
            f"Act: {now} P-{advice.level} has {mean} % of the courses fewer ({low} % to {high} %); "
            "that is less risk, not an acceptable one."
        )
    if advice.kind == "watch":
        return (
            f"Hold and watch: {now} No level within reach lowers that by {100 * BETTER:.0f} % "
            "or more, so the level alone is not the remedy."
        )
    return f"Undecided: {now} The simulated courses do not tell the levels apart."


def worst_limit(moment: Moment, p: int) -> tuple[str, int]:
    """The limit that most courses cross at a level, in words, and how many do."""
    counts = np.asarray(moment.outlook.crossing[p - LOWEST])
    column = JUDGED[int(np.argmax(counts))]
    low, high = moment.limits.bounds()[column]
    unit = SIGNALS[column].unit
    ends = f"{low:g}" if np.isinf(high) else f"{low:g} or {high:g}"
    return f"{SHORT[column]} {ends} {unit}", int(counts.max())


def count_words(count: int, draws: int) -> str:
    """A count of simulated courses as a rounded frequency."""
    if count == 0:
        return f"none of {draws} simulated courses"
    twentieths = round(20 * count / draws)
    if twentieths == 0:
        return "fewer than 1 in 20 simulated courses"
    if twentieths == 20 and count < draws:
        return "nearly all simulated courses"
    return f"about {twentieths} in 20 simulated courses"


def list_levels(levels: Sequence[int]) -> str:
    """Levels in words, such as "P-5, P-6 and P-7"."""
    names = [f"P-{p}" for p in levels]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
