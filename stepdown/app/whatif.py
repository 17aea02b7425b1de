"""What would happen under each level: a request in, an answer out, and nothing else. Pure.

The answer is plain JSON. A refused state has no forecast, a refused candidate has no forecast
numbers, and whatever is not known is listed rather than left out. Risks are counts of simulated
courses over six hours, whatever horizon is drawn.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from stepdown.app import gates, sentences
from stepdown.app.engine import (
    QUANTILES,
    Engine,
    Outlook,
    count_similar,
    disagreement,
    distances,
    fill_absent,
    look,
    nearest_patients,
    shown_columns,
)
from stepdown.app.limits import DEFAULT_GATES, JUDGED, LV_FROM, GateConfig, Limits, effective_limits
from stepdown.app.request import (
    PUMPS,
    Read,
    Request,
    absent_columns,
    model_state,
    read_request,
    rounded,
)
from stepdown.app.sentences import Moment
from stepdown.signals import HORIZON, HR, KNOWN, LEVELS, LOWEST, LVEDP, MAP, PULSATILITY

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
_RISKS = {MAP: "map_low", HR: "hr_out", PULSATILITY: "puls_low"}  # names in an answer


def what_if(
    engine: Engine, request: Request, preset: str = "paper", skill: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Answer one request; `preset` are the limits of the server, `skill` the patient's ledger."""
    limits = effective_limits(engine.site, preset, request.limits)
    read = read_request(request, engine.twin.steps, engine.table, engine.columns, engine.used)
    absent = absent_columns(read, engine.used)
    used = tuple(i for i in engine.used if i not in absent)
    refused = gates.state_refusals(read.bed, used, engine.gates, read.factors)
    found = model_state(read, used)
    state = fill_absent(engine, found[0]) if found else None
    outlook, filled = None, ()
    if found and state is not None and not refused[:8].any():  # R09 waits for the models' verdict
        outlook, filled = look(engine, state, limits), found[1]
        bed = replace(read.bed, likeness=np.asarray(np.max(outlook.p_value), float))
        refused = gates.state_refusals(bed, used, engine.gates, read.factors)
    codes = [code for code, held in zip(gates.STATE_CODES, refused, strict=True) if held]
    if state is not None and outlook and not codes:
        body = _forecast(engine, request, read, state, outlook, limits)
    else:
        body = _silence(request, int(read.bed.level), codes, engine.gates)
    return (
        {
            "status": "refused" if codes else "ok",
            "refusals": sentences.state_sentences(read, codes, engine),
            "now": now_table(read, limits),
            "p_now": None if read.bed.level < 0 else int(read.bed.level),
            "pump": _pump(request),
            "limits": asdict(limits),
            "horizon_h": request.horizon_h,
            "grid_min": request.grid_min,
            "quality": quality_notes(read, filled, absent, engine.used),
        }
        | body
        | {"skill": skill, "unknowns": unknowns(engine), "model": engine.model}
    )


def refuse_service(request: Request, code: str) -> dict[str, Any]:
    """The answer where nothing could be computed at all (R13, R14)."""
    return (
        {
            "status": "refused",
            "refusals": [gates.refusal(code, DEFAULT_GATES)],
            "now": {},
            "p_now": request.p_now,
            "pump": _pump(request),
            "limits": None,
            "horizon_h": request.horizon_h,
            "grid_min": request.grid_min,
            "quality": None,
        }
        | _silence(request, request.p_now or 0, [code], DEFAULT_GATES)
        | {"skill": None, "unknowns": list(UNKNOWNS), "model": None}
    )


def unknowns(engine: Engine) -> list[str]:
    """What the models do not know about a patient."""
    return [name for name in UNKNOWNS if name not in engine.names]


def to_bytes(answer: dict[str, Any]) -> bytes:
    """The one JSON form of an answer: the same answer, the same bytes."""
    text = json.dumps(answer, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.encode()


def _silence(
    request: Request, level: int, codes: Sequence[str], config: GateConfig
) -> dict[str, Any]:
    """Candidates without any number, no suggestion; codes of the state are said of each level."""
    table = gates.refusal_codes(config)
    said = [gates.refusal(code, config) for code in codes if code in gates.STATE_CODES]
    return {
        "candidates": [bare_candidate(p, level) | {"refusals": said} for p in request.candidates],
        "acceptable": [],
        "suggested": None,
        "reasons": ["No forecast and no suggestion.", *(table[code].sentence for code in codes)],
        "uncertainty": None,
        "policy": None,
    }


def _forecast(
    engine: Engine,
    request: Request,
    read: Read,
    state: np.ndarray,
    outlook: Outlook,
    limits: Limits,
) -> dict[str, Any]:
    bed, nothing = read.bed, np.zeros(len(gates.STATE_CODES), bool)
    distance = distances(engine.support, state)
    similar = count_similar(engine.support, distance)
    p_value = np.asarray(outlook.p_value)
    codes = gates.candidate_refusals(p_value, similar, disagreement(outlook), engine.gates)
    forbidden = gates.forbidding_gates(bed, nothing, limits, engine.used)
    place = gates.place_levels(
        bed,
        ~np.any(list(forbidden.values()), axis=0),
        ~(codes["R10"] | codes["R11"]),
        np.asarray(outlook.crossing).max(-1) / engine.draws,
        engine.gates,
    )
    good = (place == 0) & np.isin(np.array(LEVELS), request.candidates)
    suggested = int(gates.suggest(good, gates.has_gap(bed.signals, engine.used)))
    moment = Moment(
        engine, request, read, outlook, limits, similar, distance, codes, forbidden, place
    )
    return {
        "candidates": [make_candidate(moment, p) for p in request.candidates],
        "acceptable": [p for p in LEVELS if good[p - LOWEST]],
        "suggested": suggested if suggested > 0 else None,
        "reasons": sentences.reasons_for(moment, suggested),
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


# ── what is measured now ─────────────────────────────────────────────────────────────────────────


def now_table(read: Read, limits: Limits) -> dict[str, Any]:
    """The newest sample of every signal that came, and its lowest in the hour; None is missing."""
    hour, bounds, table = read.bed.signals, limits.bounds(), {}
    for index, name in enumerate(read.bed.columns):
        signal, column = KNOWN[name], hour[:, index]
        known = column[np.isfinite(column)]
        table[name] = {
            "value": rounded(column[-1], signal.unit),
            "unit": signal.unit,
            "ucum": signal.ucum,
            "lowest": rounded(known.min(), signal.unit) if len(known) else None,
            "highest": rounded(known.max(), signal.unit) if len(known) else None,
            "trend": _trend(column, signal.unit),
            "inside": _inside(column, *bounds[index]) if index in bounds else None,
            "converted": read.converted.get(name),
        }
    return table


def _inside(column: np.ndarray, low: float, high: float) -> bool | None:
    """Whether the hour lay inside; None where a missing sample leaves that open."""
    if ((column <= low) | (column >= high)).any():
        return False
    return None if np.isnan(column).any() else True


def _trend(column: np.ndarray, unit: str) -> float | None:
    """Change over the hour by a straight line."""
    place = np.flatnonzero(np.isfinite(column) & (np.abs(column) < 1e6))
    if len(place) < 3:
        return None
    away = place - place.mean()
    slope = away @ column[place] / (away @ away)
    return rounded(slope * (len(column) - 1), unit)


def quality_notes(
    read: Read, filled: Sequence[str], absent: Sequence[int], used: Sequence[int]
) -> dict[str, Any]:
    """What was converted, carried over or filled for the models, missing, or not looked at."""
    missing, columns = np.isnan(read.bed.signals).mean(0), read.bed.columns
    return {
        "converted": read.converted,
        "carried_over": list(filled),
        "absent": [columns[i] for i in absent],  # filled from the other signals
        "missing": {columns[i]: round(float(missing[i]), 2) for i in used if missing[i] > 0},
        "not_used": [name for i, name in enumerate(columns) if i not in used],
        "age_min": None if np.isnan(read.bed.age) else round(float(read.bed.age), 1),
    }


# ── the candidates ───────────────────────────────────────────────────────────────────────────────


def bare_candidate(p: int, level: int) -> dict[str, Any]:
    """A candidate without any number."""
    return {
        "p": p,
        "label": sentences.candidate_label(p, level),
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


def make_candidate(moment: Moment, p: int) -> dict[str, Any]:
    """One level of an answer; a refused one carries no forecast numbers."""
    i, pump = p - LOWEST, PUMPS[moment.request.pump_profile or ""]
    bare = bare_candidate(p, int(moment.read.bed.level))
    held = [code for code, forbidden in moment.forbidden.items() if forbidden[i]]
    told: dict[str, Any] = {
        "gates": [{"code": code, "sentence": gates.GATES[code]} for code in held]
    }
    if p > pump.highest:
        sentence = f"P-{p} is not a level of the {pump.label}."
        refusals = [gates.refusal("R07", moment.engine.gates, sentence)]
        return bare | told | {"refusals": refusals, "verdict": f"Not acceptable: {sentence}"}
    told["refusals"] = sentences.level_refusals(moment, p)
    told["support"] = {
        "n": int(moment.similar[i]),
        "pvalue": round(float(moment.outlook.p_value[i]), 4),
        "needed": moment.engine.gates.support,
    }
    told["verdict"] = sentences.verdict(moment, p, held)
    if any(one["scope"] == "candidate" for one in told["refusals"]):
        return bare | told
    return bare | told | _numbers(moment, p) | {"status": "ok"}


def _numbers(moment: Moment, p: int) -> dict[str, Any]:
    i = p - LOWEST
    quantiles, carried = _curves(moment, p)
    return {
        "acceptable": gates.PLACES[moment.place[i]] == "acceptable",
        "quantiles": quantiles,
        "carry_forward": carried,
        "risk": _risk(moment, i),
        "evidence": nearest_patients(moment.engine.support, moment.distance, p),
        "uncertainty": uncertainty_of(moment.outlook, p),
        "notes": [gates.LV_END] if p < LV_FROM else [],
    }


def _curves(moment: Moment, p: int) -> tuple[dict[str, Any], dict[str, float | None]]:
    samples = moment.request.horizon_h * moment.engine.twin.steps
    absent = absent_columns(moment.read, moment.engine.used)
    known = {i for i in moment.engine.twin.scaler.present if i not in absent}
    quantiles, carried = {}, {}
    for column, index in enumerate(shown_columns(moment.engine.twin)):
        if index not in known or (index == LVEDP and p < LV_FROM):
            continue
        name = moment.engine.columns[index]
        unit = KNOWN[name].unit
        curves = moment.outlook.quantiles[p - LOWEST, :, :samples, column]
        quantiles[name] = {
            f"q{100 * q:02.0f}": [rounded(x, unit) for x in curve]
            for q, curve in zip(QUANTILES, np.asarray(curves), strict=True)
        }
        carried[name] = rounded(float(moment.outlook.carried[p - LOWEST, column]), unit)
    return quantiles, carried


def _risk(moment: Moment, i: int) -> dict[str, Any]:
    """Courses, out of all draws, that leave a limit at some time in six hours."""
    names = [_RISKS[column] for column in JUDGED]
    counts = dict(zip(names, (int(x) for x in moment.outlook.crossing[i]), strict=True))
    counts["any"] = int(moment.outlook.crossing_any[i])
    draws = moment.engine.draws
    words = {name: sentences.count_words(count, draws) for name, count in counts.items()}
    return counts | {"draws": draws, "hours": HORIZON, "words": words}


def uncertainty_of(outlook: Outlook, p: int) -> dict[str, Any] | None:
    """Shares of the first hour's variance in MAP and pulsatility, if the twin can tell.

    `patient` is within the members' own spread, `data` between the members. What the sensors add
    is not known to the model.
    """
    within = float(np.sum(outlook.within[p - LOWEST]))
    between = float(np.sum(outlook.between[p - LOWEST]))
    if not np.isfinite(within + between) or within + between <= 0:
        return None
    share = round(between / (within + between), 2)
    return {"patient": round(1 - share, 2), "data": share, "signal": None, "hours": 1}


def policy_wish(engine: Engine, outlook: Outlook, good: np.ndarray) -> dict[str, Any] | None:
    """What the learned policy of the run would choose, and whether the gates leave it that."""
    if engine.policy is None:
        return None
    wish = LEVELS[int(np.argmax(outlook.preference))]
    kept = int(gates.gate_wish(np.asarray(wish), good)) == wish
    held = "which is acceptable" if kept else "which is not acceptable here"
    words = f"The learned policy ({engine.method}) would choose P-{wish}, {held}."
    return {"method": engine.method, "wish": wish, "acceptable": kept, "words": words}
