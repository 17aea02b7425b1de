"""Which stays to show: one for each fate, chosen by rule, so that nobody picks favorites."""

import numpy as np

from stepdown.handover import Cohort
from stepdown.signals import MAP

TRANSFERRED, EXPLANTED, DEAD = 0, 1, 2
LOW_MAP = 60.0  # mmHg
SHORTEST, LONG = 12.0, 72.0  # h; a shorter stay shows little


def pick_examples(cohort: Cohort, outcome: np.ndarray | None = None) -> list[tuple[int, str]]:
    """At most four rows of the cohort, with what happened in words.

    The fates are looked for in turn; each takes its most typical or clearest stay among those
    not yet taken. A cohort too small to hold one fills the place with its longest other stay.
    """
    facts = _facts(cohort)
    fate = np.full(len(cohort.patient), -1) if outcome is None else np.asarray(outcome)
    hours = facts["hours"]
    left_in_peace = (fate == EXPLANTED) if outcome is not None else (facts["last_level"] <= 3)
    usual = np.median(hours[left_in_peace]) if left_in_peace.any() else 0.0
    stuck = (fate <= TRANSFERRED) & (facts["late_level"] >= 7) & (hours >= LONG)
    wishes = (
        (left_in_peace & (facts["drop"] >= 4), -np.abs(hours - usual), "weaned"),
        ((fate != DEAD) & (facts["rescue"] >= 2), facts["rescue"] + hours / 1e3, "rescued"),
        (stuck, hours, "long support, no recovery"),
        (fate == DEAD, hours, "died on support"),
        (fate <= TRANSFERRED, -np.abs(hours - np.median(hours)), "on support to the end"),
    )
    ending = {EXPLANTED: "explanted", DEAD: "died", TRANSFERRED: "left on support"}
    taken: list[tuple[int, str]] = []
    for fits, score, words in wishes:
        free = fits & (hours >= min(SHORTEST, hours.max()))
        free[[row for row, _ in taken]] = False
        if free.any() and len(taken) < 4:
            row = int(np.argmax(np.where(free, score, -np.inf)))
            end = ending.get(int(fate[row]))
            known = end is None or "support" in words
            taken.append((row, words if known else f"{words}, {end}"))
    for row in np.argsort(-hours, kind="stable"):
        if len(taken) >= min(2, len(hours)):
            break
        if row not in [other for other, _ in taken]:
            taken.append((int(row), ending.get(int(fate[row]), "recorded")))
    return taken


def _facts(cohort: Cohort) -> dict[str, np.ndarray]:
    """What the choice looks at, one number per stay."""
    facts: dict[str, list[float]] = {}
    per_hour = round(60 / cohort.minutes)
    for row in range(len(cohort.patient)):
        seen = np.asarray(cohort.seen)[row]
        level = np.asarray(cohort.level)[row][seen].astype(float)
        pressure = np.asarray(cohort.signals)[row, :, MAP][seen]
        one = {
            "hours": len(level) / per_hour,
            "last_level": level[-1],
            "late_level": level[-24 * per_hour :].mean(),
            "drop": level.max() - level[-1],
            "rescue": _largest_rescue(level, pressure, per_hour),
        }
        for name, value in one.items():
            facts.setdefault(name, []).append(value)
    return {name: np.asarray(values) for name, values in facts.items()}


def _largest_rescue(level: np.ndarray, pressure: np.ndarray, per_hour: int) -> float:
    """Largest rise within two hours that met a low pressure.

    The level must have been held for three hours before, which a short turn-down test is not.
    """
    span, held = 2 * per_hour, 3 * per_hour
    rises = [
        level[now + span] - level[now]
        for now in range(held, len(level) - span)
        if np.nanmin(pressure[now : now + span], initial=np.inf) < LOW_MAP
        and np.ptp(level[now - held : now + 1]) == 0
    ]
    return max(rises, default=0.0)
