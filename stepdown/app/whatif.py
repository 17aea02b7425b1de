"""What would happen under each level: a request in, an answer out, and nothing else. Pure.

The answer is plain JSON. A refused state has no forecast, a refused candidate has no forecast
numbers, and whatever is not known is listed rather than left out. Risks are counts of simulated
courses over six hours, whatever horizon is drawn.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np

from stepdown.app.candidates import Shared, bare_candidate, make_candidate, uncertainty_of
from stepdown.app.engine import Engine, look
from stepdown.app.explain import now_table, quality_notes, state_sentences
from stepdown.app.forecast import Outlook, disagreement, likeness
from stepdown.app.gates import (
    candidate_refusals,
    forbidding_gates,
    has_gap,
    place_levels,
    state_refusals,
    suggest,
)
from stepdown.app.limits import PRESETS, Limits, limits_to_dict, most_restrictive
from stepdown.app.pumps import PUMPS
from stepdown.app.reasons import policy_wish, reasons_for, refused_reasons
from stepdown.app.refusals import STATE_CODES, refusal
from stepdown.app.request import Read, Request, model_state, read_request
from stepdown.app.support import count_similar, distances
from stepdown.signals import LEVELS

UNKNOWNS = (
    "vasopressors",
    "inotropes",
    "lactate",
    "echo (LVEF)",
    "RV function (CVP, PAPi)",
    "volume and urine",
    "hemolysis",
    "anticoagulation and purge",
    "suction and pump position, unless they are reported",
)


def what_if(
    engine: Engine, request: Request, preset: str = "paper", skill: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Answer one request; `preset` are the limits of the server, `skill` the patient's ledger."""
    limits = effective_limits(engine.site, preset, request.limits)
    read = read_request(request, engine.twin.steps, engine.table, engine.used)
    refused = state_refusals(read.bed, engine.used, engine.gates, read.factors)
    found = model_state(read, engine.used)
    filled: tuple[str, ...] = ()
    if refused[:8].any() or found is None:  # R09 alone may hold for want of the models' verdict
        body = _silence(request, read, refused)
    else:
        state, filled = found
        outlook = look(engine, state, limits)
        bed = replace(read.bed, likeness=np.asarray(likeness(np.asarray(outlook.p_value))))
        refused = state_refusals(bed, engine.used, engine.gates, read.factors)
        if refused.any():
            body = _silence(request, read, refused)
        else:
            body = _forecast(engine, request, read, (state, outlook), limits)
    return (
        {
            "status": "refused" if refused.any() else "ok",
            "refusals": state_sentences(read, refused, engine),
            "now": now_table(read, limits),
            "p_now": None if read.bed.level < 0 else int(read.bed.level),
            "pump": _pump(request),
            "limits": limits_to_dict(limits),
            "horizon_h": request.horizon_h,
            "grid_min": request.grid_min,
            "quality": quality_notes(read, filled, engine.used),
        }
        | body
        | {"skill": skill, "unknowns": list(UNKNOWNS), "model": engine.model}
    )


def refuse_service(request: Request, code: str) -> dict[str, Any]:
    """The answer where nothing could be computed at all (R13, R14)."""
    return {
        "status": "refused",
        "refusals": [refusal(code)],
        "now": {},
        "p_now": request.p_now,
        "pump": _pump(request),
        "limits": None,
        "horizon_h": request.horizon_h,
        "grid_min": request.grid_min,
        "quality": None,
        "candidates": [bare_candidate(p, request.p_now or 0) for p in request.candidates],
        "acceptable": [],
        "suggested": None,
        "reasons": refused_reasons([code]),
        "uncertainty": None,
        "policy": None,
        "skill": None,
        "unknowns": list(UNKNOWNS),
        "model": None,
    }


def effective_limits(site: Limits, *presets: str | None) -> Limits:
    """The most restrictive of the presets, `site` being the site's own."""
    table = PRESETS | {"site": site}
    return most_restrictive(*(table[name] for name in presets if name is not None))


def to_bytes(answer: dict[str, Any]) -> bytes:
    """The one JSON form of an answer: the same answer, the same bytes."""
    text = json.dumps(answer, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.encode()


def _silence(request: Request, read: Read, refused: np.ndarray) -> dict[str, Any]:
    """A refused state: candidates without any number, no suggestion."""
    codes = [code for code, held in zip(STATE_CODES, refused, strict=True) if held]
    said = {"refusals": [refusal(code) for code in codes]}
    return {
        "candidates": [bare_candidate(p, int(read.bed.level)) | said for p in request.candidates],
        "acceptable": [],
        "suggested": None,
        "reasons": refused_reasons(codes),
        "uncertainty": None,
        "policy": None,
    }


def _forecast(
    engine: Engine,
    request: Request,
    read: Read,
    seen: tuple[np.ndarray, Outlook],
    limits: Limits,
) -> dict[str, Any]:
    state, outlook = seen
    bed, nothing = read.bed, np.zeros(len(STATE_CODES), bool)
    distance = distances(engine.support, state)
    similar = count_similar(engine.support, distance)
    p_value = np.asarray(outlook.p_value)
    codes = candidate_refusals(p_value, similar, disagreement(outlook), engine.gates)
    forbidden = forbidding_gates(bed, nothing, limits, engine.used)
    place = place_levels(
        bed,
        ~np.any(list(forbidden.values()), axis=0),
        ~(codes["R10"] | codes["R11"]),
        np.asarray(outlook.crossing).max(-1) / engine.draws,
        engine.gates,
    )
    good = (place == 0) & np.isin(np.array(LEVELS), request.candidates)
    suggested = int(suggest(good, has_gap(bed.signals, engine.used)))
    shared = Shared(
        engine, request, read, outlook, limits, similar, distance, codes, forbidden, place
    )
    return {
        "candidates": [make_candidate(shared, p) for p in request.candidates],
        "acceptable": [p for p in LEVELS if good[p - LEVELS[0]]],
        "suggested": suggested if suggested > 0 else None,
        "reasons": reasons_for(shared, suggested),
        "uncertainty": uncertainty_of(outlook, suggested if suggested > 0 else int(bed.level)),
        "policy": policy_wish(engine, outlook, good),
    }


def _pump(request: Request) -> dict[str, Any]:
    pump = PUMPS.get(request.pump_profile or "")
    return {
        "profile": request.pump_profile if pump else None,
        "label": pump.label if pump else None,
        "highest": pump.highest if pump else None,
    }
