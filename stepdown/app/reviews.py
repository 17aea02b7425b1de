"""A study out of the audit: who chose what before the model was shown, how far both agree. Pure.

A choice is blind if nobody had the model's answer for that moment on a screen before, other than
reviewers who had chosen already and saw it for themselves. Only a reviewer's first choice for a
moment counts, if it was blind and the model said something to agree with: acceptable levels, a
level to act on, or to hold and watch.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from stepdown.app.audit import Entry
from stepdown.app.steady import interval

BLOCK = 10  # counted choices of one point of the course over time


def verdict(answer: dict[str, Any], p: int) -> bool | None:
    """Whether a choice agrees with an answer; None where it says nothing to agree with."""
    if answer["acceptable"]:
        return p in answer["acceptable"]
    advised = answer["advice"]["p"] if answer["advice"]["kind"] in ("act", "watch") else None
    return None if advised is None else p == advised


def counted(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """All choices, oldest first, with whether each counts."""
    found, known = [], set()
    for entry in entries:
        body = entry.content()
        moment = (body["by"], body["patient"], body["minute"])
        told = {name: body.get(name) for name in (
            "by", "patient", "minute", "p", "reason", "blind", "agrees", "answer_id"
        )}  # fmt: skip
        first = moment not in known
        known.add(moment)
        counts = bool(first and told["blind"] and told["agrees"] is not None)
        found.append(
            told | {"audit_id": entry.id, "time": entry.time, "digest": entry.digest,
                    "first": first, "counts": counts}
        )  # fmt: skip
    return found


def summarize(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Agreement with the model by reviewer and over time, and between reviewers."""
    by_name = defaultdict(list)
    for one in choices:
        by_name[one["by"]].append(one)
    return {
        "choices": len(choices),
        "counted": sum(one["counts"] for one in choices),
        "reviewers": [_reviewer(name, some) for name, some in sorted(by_name.items())],
        "pairs": _pairs(choices),
    }


def _reviewer(name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    agreed = [bool(one["agrees"]) for one in choices if one["counts"]]
    blocks = [agreed[i : i + BLOCK] for i in range(0, len(agreed), BLOCK)]
    return {
        "by": name,
        "choices": len(choices),
        "not_blind": sum(not one["blind"] for one in choices),
        "counted": len(agreed),
        "agreed": sum(agreed),
        "interval": _ends(sum(agreed), len(agreed)),
        "over_time": [{"counted": len(x), "agreed": sum(x)} for x in blocks],
    }


def _ends(count: int, of: int) -> list[float] | None:
    """Wilson's 99 % interval."""
    if not of:
        return None
    return [round(float(x), 3) for x in interval(np.array(count), np.array(of))]


def _pairs(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of moments that two reviewers chose for, how often they chose the same and nearly so."""
    first: dict[str, dict[tuple[str, float], int]] = defaultdict(dict)
    for one in choices:
        if one["first"] and one["blind"]:
            first[one["by"]][one["patient"], one["minute"]] = one["p"]
    found = []
    for one, other in itertools.combinations(sorted(first), 2):
        both = first[one].keys() & first[other].keys()
        apart = [abs(first[one][x] - first[other][x]) for x in both]
        if both:
            found.append({
                "by": [one, other],
                "moments": len(both),
                "same": sum(x == 0 for x in apart),
                "within_one": sum(x <= 1 for x in apart),
            })  # fmt: skip
    return found
