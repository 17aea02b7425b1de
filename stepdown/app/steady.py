"""How sure a count of simulated courses is, and what may be said of it. Pure.

A share of courses has an interval, and a difference of two levels has one of its own: both meet the
same luck, so that only courses that one crosses and the other does not tell them apart. A word is
said only where the interval is clear of the line; otherwise further courses are asked for, and when
these are used up, it is undecided. So the same patient again, hardly changed or with other luck,
does not get the opposite word.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.app import gates
from stepdown.app.engine import Outlook
from stepdown.app.gates import ACCEPTABLE, RISKY, UNDECIDED
from stepdown.signals import LEVELS, LOWEST

LEVEL_OF = 0.99  # of an interval
Z = 2.5758  # its normal quantile
BETTER = 0.05  # share of courses: fewer by this is worth a change where nothing is acceptable
Kind = Literal["acceptable", "act", "watch", "undecided", "none"]


@dataclass(frozen=True)
class Advice:
    """What there is to say of a moment as a whole."""

    kind: Kind
    level: int | None  # to act on
    better: tuple[int, ...] = ()  # levels that clearly lower the risk, nearest first


def interval(
    count: Int[np.ndarray, "*n"], draws: Int[np.ndarray, "*#n"]
) -> tuple[Float[np.ndarray, "*n"], Float[np.ndarray, "*n"]]:
    """Wilson's interval of a share, lower and upper end."""
    share, square = count / draws, Z**2 / draws
    middle = (share + square / 2) / (1 + square)
    half = Z * np.sqrt(share * (1 - share) / draws + square / (4 * draws)) / (1 + square)
    low, high = np.clip(middle - half, 0.0, 1.0), np.clip(middle + half, 0.0, 1.0)
    return np.asarray(low), np.asarray(high)


def risk_interval(outlook: Outlook) -> tuple[Float[np.ndarray, " 8"], Float[np.ndarray, " 8"]]:
    """By level, of the limit that is crossed most: no limit is crossed more often than this."""
    draws = np.asarray(outlook.courses)[:, None]
    low, high = interval(outlook.crossing, draws)
    return low.max(-1), high.max(-1)


def fewer_than_holding(
    outlook: Outlook, level: int
) -> tuple[Float[np.ndarray, " 8"], Float[np.ndarray, " 8"], Float[np.ndarray, " 8"]]:
    """How many fewer courses, as a share, leave any limit than at `level`: mean and interval.

    Counted over the courses that both have.
    """
    left: np.ndarray = np.any(outlook.left, axis=-1)
    courses = np.asarray(outlook.courses)
    held = level - LOWEST
    mean, low, high = np.zeros((3, len(LEVELS)))
    for i in range(len(LEVELS)):
        n = int(min(courses[i], courses[held]))
        gained, lost = (
            int((a[:n] & ~b[:n]).sum()) for a, b in ((left[held], left[i]), (left[i], left[held]))
        )
        share = (gained - lost) / n
        # One discordant course is added to either side, so that none is not certainty.
        sd = np.sqrt(gained + lost + 2 - n * share**2) / n if i != held else 0.0
        mean[i], low[i], high[i] = share, share - Z * sd, share + Z * sd
    return mean, low, high


def unclear(
    outlook: Outlook, place: Int[np.ndarray, " 8"], open_to: Bool[np.ndarray, " 8"], level: int
) -> Bool[np.ndarray, " 8"]:
    """Levels that need further courses before a word can be said.

    `open_to` are levels that no gate forbids and whose forecast is not refused.
    """
    wanted = place == UNDECIDED
    advice = advise(outlook, place, open_to, level)
    if not wanted.any() and advice.kind == "undecided":
        mean, low, high = fewer_than_holding(outlook, level)
        wanted = open_to & (low < BETTER) & (high > BETTER)
        wanted[level - LOWEST] = wanted.any()
    return wanted


def advise(
    outlook: Outlook, place: Int[np.ndarray, " 8"], open_to: Bool[np.ndarray, " 8"], level: int
) -> Advice:
    """Acceptable levels; else to act, where a level clearly lowers the risk; else to watch."""
    held = level - LOWEST
    if (place == ACCEPTABLE).any():
        return Advice("acceptable", None)
    if not open_to[held]:
        return Advice("none", None)
    if place[held] == UNDECIDED:
        return Advice("undecided", None)
    _, low, high = fewer_than_holding(outlook, level)
    better = [p for p in LEVELS if open_to[p - LOWEST] and low[p - LOWEST] >= BETTER]
    if better:
        better.sort(key=lambda p: (abs(p - level), -p))
        return Advice("act", better[0], tuple(better))
    others = open_to & (np.arange(len(LEVELS)) != held)
    if (others & (high > BETTER)).any():
        return Advice("undecided", None)
    return Advice("watch", level)


def rank(outlook: Outlook, open_to: Bool[np.ndarray, " 8"], level: int) -> dict[int, int]:
    """Levels by the share of courses that leave any limit, 1 the fewest; ties by the change."""
    share = outlook.crossing_any / np.asarray(outlook.courses)
    found = [p for p in LEVELS if open_to[p - LOWEST]]
    found.sort(key=lambda p: (round(share[p - LOWEST], 3), abs(p - level), p))
    return {p: i + 1 for i, p in enumerate(found)}


def words_kept(answer: dict[str, Any]) -> dict[str, str]:
    """The decided words of an answer, by level; what the next one may keep."""
    told = (PLACE_WORDS[ACCEPTABLE], PLACE_WORDS[RISKY])
    return {str(one["p"]): one["word"] for one in answer["candidates"] if one["word"] in told}


PLACE_WORDS = gates.PLACES


def words_before(before: dict[str, str] | None) -> Int[np.ndarray, " 8"] | None:
    """The same as places, for the gates."""
    if not before:
        return None
    told = [before.get(str(p)) for p in LEVELS]
    return np.array([-1 if x is None else gates.PLACES.index(x) for x in told])
