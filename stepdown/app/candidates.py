"""One candidate level on the screen: its forecast, or why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepdown.app.engine import Engine
from stepdown.app.forecast import JUDGED, QUANTILES, SHOWN, Outlook
from stepdown.app.gates import LV_FROM, PLACES
from stepdown.app.limits import Limits
from stepdown.app.pumps import PUMPS
from stepdown.app.refusals import GATES, LV_END, refusal
from stepdown.app.request import Read, Request
from stepdown.app.support import nearest_patients
from stepdown.signals import HORIZON, HR, LEVELS, LVEDP, MAP, NAMES, PULSATILITY, SIGNALS

SHORT = {MAP: "MAP", HR: "HR", PULSATILITY: "pulsatility"}
_STEPS = ("", "one level", "two levels", "three levels", "four levels", "five levels",
          "six levels", "seven levels")  # fmt: skip


@dataclass(frozen=True)
class Shared:
    """What all candidates of an answer share."""

    engine: Engine
    request: Request
    read: Read
    outlook: Outlook
    limits: Limits
    similar: np.ndarray  # (8,) recorded hours
    distance: np.ndarray  # to every recorded hour
    codes: dict[str, np.ndarray]  # R10 to R12, (8,) each
    forbidden: dict[str, np.ndarray]  # H1 to H5, (8,) each
    place: np.ndarray  # (8,) what is the matter with a level, an index into gates.PLACES


def bare_candidate(p: int, level: int) -> dict[str, Any]:
    """A candidate without any number."""
    return {
        "p": p,
        "label": candidate_label(p, level),
        "status": "refused",
        "refusals": [],
        "gates": [],
        "acceptable": False,
        "verdict": "Not acceptable: no forecast is shown.",
        "quantiles": None,
        "carry_forward": None,
        "risk": None,
        "support": None,
        "evidence": [],
        "uncertainty": None,
        "notes": [],
    }


def make_candidate(shared: Shared, p: int) -> dict[str, Any]:
    """One level of an answer; a refused one carries no forecast numbers."""
    i, pump = p - LEVELS[0], PUMPS[shared.request.pump_profile or ""]
    bare = bare_candidate(p, int(shared.read.bed.level))
    gates = [
        {"code": code, "sentence": GATES[code]} for code, x in shared.forbidden.items() if x[i]
    ]
    if p > pump.highest:
        sentence = f"P-{p} is not a level of the {pump.label}."
        verdict = f"Not acceptable: {sentence}"
        return bare | {"refusals": [refusal("R07", sentence)], "gates": gates, "verdict": verdict}
    support = {
        "n": int(shared.similar[i]),
        "pvalue": round(float(shared.outlook.p_value[i]), 4),
        "needed": shared.engine.gates.support,
    }
    refusals = _refusals(shared, p, support["n"])
    common = {"refusals": refusals, "gates": gates, "support": support}
    common["verdict"] = _verdict(shared, p, [gate["code"] for gate in gates])
    if any(one["scope"] == "candidate" for one in refusals):
        return bare | common
    return bare | common | _numbers(shared, p) | {"status": "ok"}


def candidate_label(p: int, level: int) -> str:
    """The name that a screen reader says, such as "P-5, one level down"."""
    if level not in LEVELS:
        return f"P-{p}"
    if p == level:
        return f"P-{p}, level in force"
    return f"P-{p}, {_STEPS[abs(p - level)]} {'down' if p < level else 'up'}"


def uncertainty_of(outlook: Outlook, p: int) -> dict[str, Any] | None:
    """Shares of the first hour's variance in MAP and pulsatility, if the twin can tell.

    `patient` is within the members' own spread, `data` between the members. What the sensors add
    is not known to the model.
    """
    columns = [SHOWN.index(MAP), SHOWN.index(PULSATILITY)]
    within = float(np.sum(outlook.within[p - LEVELS[0], columns]))
    between = float(np.sum(outlook.between[p - LEVELS[0], columns]))
    if not np.isfinite(within + between) or within + between <= 0:
        return None
    share = round(between / (within + between), 2)
    return {"patient": round(1 - share, 2), "data": share, "signal": None, "hours": 1}


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


def worst_limit(shared: Shared, p: int) -> tuple[str, int]:
    """The limit that most courses cross at a level, in words, and how many do."""
    counts = np.asarray(shared.outlook.crossing[p - LEVELS[0]])
    column = JUDGED[int(np.argmax(counts))]
    low, high = shared.limits.bounds()[column]
    unit = SIGNALS[column].unit
    ends = f"{low:.0f}" if np.isinf(high) else f"{low:.0f} or {high:.0f}"
    return f"{SHORT[column]} {ends} {unit}", int(counts.max())


def _verdict(shared: Shared, p: int, gates: list[str]) -> str:
    """The one sentence on whether a level is acceptable, as the gates placed it."""
    place = PLACES[shared.place[p - LEVELS[0]]]
    if place == "forbidden":
        return f"Not acceptable: forbidden by {', '.join(gates)}."
    if place == "unjudged":
        return "Not acceptable: no forecast is shown."
    if place == "more":
        return f"Not needed: holding P-{int(shared.read.bed.level)} is acceptable."
    limit, many = worst_limit(shared, p)
    draws = shared.engine.draws
    most = int(shared.engine.gates.risk * draws + 1e-9)  # exact: 11 of 100 is not "about 2 in 20"
    told = f"{many} of {draws} simulated courses cross {limit}, at most {most} of {draws} may."
    return f"Acceptable: {told}" if place == "acceptable" else f"Not acceptable: {told}"


def _refusals(shared: Shared, p: int, similar: int) -> list[dict[str, Any]]:
    i, gates, found = p - LEVELS[0], shared.engine.gates, []
    if shared.codes["R10"][i]:
        sentence = (
            f"Fewer than {gates.support} similar patient-hours at P-{p}. No forecast is shown."
            if similar < gates.support
            else f"P-{p} was hardly ever chosen in such a state. No forecast is shown."
        )
        found.append(refusal("R10", sentence))
    if shared.codes["R11"][i]:
        found.append(refusal("R11"))
    if shared.codes["R12"][i]:
        found.append(refusal("R12", about=NAMES[LVEDP]))
    return found


def _numbers(shared: Shared, p: int) -> dict[str, Any]:
    i = p - LEVELS[0]
    quantiles, carried = _curves(shared, p)
    return {
        "acceptable": PLACES[shared.place[i]] == "acceptable",
        "quantiles": quantiles,
        "carry_forward": carried,
        "risk": _risk(shared, i),
        "evidence": nearest_patients(shared.engine.support, shared.distance, p),
        "uncertainty": uncertainty_of(shared.outlook, p),
        "notes": [LV_END] if p < LV_FROM else [],
    }


def _curves(shared: Shared, p: int) -> tuple[dict[str, Any], dict[str, float]]:
    samples = shared.request.horizon_h * shared.engine.twin.steps
    quantiles, carried = {}, {}
    for column, index in enumerate(SHOWN):
        if index not in shared.engine.twin.scaler.present or (index == LVEDP and p < LV_FROM):
            continue
        digits = 2 if SIGNALS[index].unit == "L/min" else 1
        curves = shared.outlook.quantiles[p - LEVELS[0], :, :samples, column]
        quantiles[NAMES[index]] = {
            f"q{100 * q:02.0f}": [round(float(x), digits) for x in curve]
            for q, curve in zip(QUANTILES, np.asarray(curves), strict=True)
        }
        carried[NAMES[index]] = round(float(shared.outlook.carried[p - LEVELS[0], column]), digits)
    return quantiles, carried


def _risk(shared: Shared, i: int) -> dict[str, Any]:
    """Courses, out of all draws, that leave a limit at some time in six hours."""
    names = ["map_low" if c == MAP else "puls_low" if c == PULSATILITY else "hr_out"
             for c in JUDGED]  # fmt: skip
    counts = dict(zip(names, (int(x) for x in shared.outlook.crossing[i]), strict=True))
    counts["any"] = int(shared.outlook.crossing_any[i])
    draws = shared.engine.draws
    words = {name: count_words(count, draws) for name, count in counts.items()}
    return counts | {"draws": draws, "hours": HORIZON, "words": words}
