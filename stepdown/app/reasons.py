"""Why these levels are acceptable and others are not: the sentences of an answer.

Every sentence follows from the place that the gates gave a level, and every number has a unit.
What was not measured is said to be missing, never to be outside a limit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepdown.app.candidates import SHORT, Shared, count_words, list_levels, worst_limit
from stepdown.app.engine import Engine
from stepdown.app.forecast import JUDGED, Outlook
from stepdown.app.gates import (
    LV_FROM,
    PLACES,
    gate_wish,
    has_gap,
    inside_limits,
    outside_limits,
)
from stepdown.app.limits import Limits
from stepdown.app.refusals import CODES, LV_END
from stepdown.app.request import Read
from stepdown.signals import HORIZON, LEVELS, REQUIRED, SIGNALS

_WHY = {  # after "P-5" or "P-5 and P-6"
    "forbidden": ("is forbidden by a hard gate", "are forbidden by a hard gate"),
    "unjudged": ("has no forecast", "have no forecast"),
    "risky": ("crosses a limit", "cross a limit"),
    "more": ("is more support than is needed", "are more support than is needed"),
}


def refused_reasons(codes: Sequence[str]) -> list[str]:
    """Why there is no suggestion."""
    return ["No forecast and no suggestion.", *(CODES[code].sentence for code in codes)]


def reasons_for(shared: Shared, suggested: int) -> list[str]:
    """Why these levels are acceptable, and why others are not; never empty."""
    asked = sorted(set(shared.request.candidates))
    good = [p for p in asked if shared.place[p - LEVELS[0]] == 0]
    reasons = [*_gaps(shared), _stability(shared.read, shared.limits)]
    if suggested > 0:
        reasons += _about_suggestion(shared, suggested)
    elif good:
        reasons.append(f"Acceptable is to hold {list_levels(good)}; nothing is suggested.")
    else:
        reasons += [_none_acceptable(shared, asked), *_least_risk(shared, asked)]
    return [*reasons, LV_END] if good and good[0] < LV_FROM else reasons


def _gaps(shared: Shared) -> list[str]:
    """What is missing in the hour, if anything."""
    hour = shared.read.bed.signals
    if not has_gap(hour, shared.engine.used):
        return []
    counts = np.isnan(hour).sum(0)
    found = [
        f"{_name(i)} ({counts[i]} of {len(hour)} samples)"
        for i in sorted({*shared.engine.used, *REQUIRED})
        if counts[i]
    ]
    return [f"Missing in the last hour: {', '.join(found)}. No change is suggested."]


def _stability(read: Read, limits: Limits) -> str:
    """Inside, outside, or not known because samples are missing."""
    hour = read.bed.signals
    if outside_limits(hour, limits):
        found = [words for i in JUDGED for words in _crossed(hour[:, i], i, limits)]
        return f"Outside the limits in the last hour: {', '.join(found)}. No step down."
    told = ", ".join(f"{SHORT[i]} at least {_said(np.nanmin(hour[:, i]), i)}" for i in JUDGED)
    if inside_limits(hour, limits):
        return f"Inside the limits for {_hours(_stable_hours(read, limits))} (last hour: {told})."
    return f"What was measured in the last hour lay inside the limits ({told})."


def _crossed(values: np.ndarray, index: int, limits: Limits) -> list[str]:
    """A signal's lowest and highest sample where they are outside, with the limit."""
    low, high = limits.bounds()[index]
    found = []
    for word, worst, limit, crossed in (
        ("down to", np.nanmin(values), low, np.nanmin(values) <= low),
        ("up to", np.nanmax(values), high, np.nanmax(values) >= high),
    ):
        if crossed:
            digits = 1 if round(float(worst)) == limit else 0  # 59.8 must not read as 60
            shown = f"{worst:.{digits}f} {SIGNALS[index].unit}"
            found.append(f"{SHORT[index]} {word} {shown} (limit {_said(limit, index)})")
    return found


def _about_suggestion(shared: Shared, suggested: int) -> list[str]:
    limit, many = worst_limit(shared, suggested)
    similar = int(shared.similar[suggested - LEVELS[0]])
    return [
        f"P-{suggested}: {count_words(many, shared.engine.draws)} cross {limit} "
        f"within {HORIZON} h.",
        f"{similar} similar patient-hours at P-{suggested}.",
    ]


def _none_acceptable(shared: Shared, asked: Sequence[int]) -> str:
    """Every level that was asked for, by what is the matter with it."""
    share = f"in more than {100 * shared.engine.gates.risk:.0f} % of the simulated courses"
    parts = []
    for place, (one, many) in _WHY.items():
        found = [p for p in asked if PLACES[shared.place[p - LEVELS[0]]] == place]
        if found:
            words = one if len(found) == 1 else many
            tail = f" {share}" if place == "risky" else ""
            parts.append(f"{list_levels(found)} {words}{tail}")
    return f"No level is acceptable: {'; '.join(parts)}."


def _least_risk(shared: Shared, asked: Sequence[int]) -> list[str]:
    """Where the fewest courses cross a limit, among levels that only their risk speaks against.

    A count, not a suggestion: none of these levels is acceptable.
    """
    risky = [p for p in asked if PLACES[shared.place[p - LEVELS[0]]] == "risky"]
    if not risky:
        return []
    worst = np.asarray(shared.outlook.crossing).max(-1)
    level = int(shared.read.bed.level)
    best = min(risky, key=lambda p: (worst[p - LEVELS[0]], abs(p - level)))
    limit, many = worst_limit(shared, best)
    draws = shared.engine.draws
    told = f"Fewest cross a limit at P-{best}: {many} of {draws} simulated courses, {limit}"
    if best == level or level not in risky:
        return [f"{told}."]
    limit, many = worst_limit(shared, level)
    return [f"{told}; at P-{level}, in force, {many} of {draws} courses, {limit}."]


def policy_wish(engine: Engine, outlook: Outlook, good: np.ndarray) -> dict[str, Any] | None:
    """What the learned policy of the run would choose, and whether the gates leave it that."""
    if engine.policy is None:
        return None
    wish = LEVELS[int(np.argmax(outlook.preference))]
    kept = int(gate_wish(np.asarray(wish), good)) == wish
    verdict = "which is acceptable" if kept else "which is not acceptable here"
    words = f"The learned policy ({engine.method}) would choose P-{wish}, {verdict}."
    return {"method": engine.method, "wish": wish, "acceptable": kept, "words": words}


def _name(index: int) -> str:
    return SHORT.get(index, SIGNALS[index].label)


def _said(value: float | np.floating, index: int) -> str:
    """A whole number with its unit."""
    return f"{value:.0f} {SIGNALS[index].unit}"


def _stable_hours(read: Read, limits: Limits) -> int:
    """Whole hours in a row, back from now, inside the limits."""
    steps, count = len(read.bed.signals), 0
    while (count + 1) * steps <= len(read.signals):
        end = len(read.signals) - count * steps
        if not inside_limits(read.signals[end - steps : end], limits):
            break
        count += 1
    return count


def _hours(count: int) -> str:
    return "the last hour" if count <= 1 else f"{count} h"
