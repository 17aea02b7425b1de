"""What would happen under each level: a request in, an answer out, and nothing else. Pure.

The answer is plain JSON. A refused state has no forecast, a refused candidate has no forecast
numbers, and whatever is not known is listed rather than left out. Risks are counts of simulated
courses over six hours, whatever horizon is drawn.
"""

import functools
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from stepdown.app import gates, sentences, steady
from stepdown.app.engine import (
    QUANTILES,
    SHOWN,
    Engine,
    Outlook,
    count_similar,
    disagreement,
    distances,
    fill_absent,
    look,
    nearest_patients,
    planner_of,
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
from stepdown.policies.planner import count_models
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
_TOLD_BY = {  # columns that hold what would be unknown without them
    "vasopressors": ("nee", "vis", "norepinephrine"),
    "inotropes": ("vis",),
    "RV function (CVP, PAPi)": ("cvp", "papi"),
}
_RISKS = {MAP: "map_low", HR: "hr_out", PULSATILITY: "puls_low"}  # names in an answer


def what_if(
    engine: Engine,
    request: Request,
    preset: str = "paper",
    skill: dict[str, Any] | None = None,
    before: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Answer one request; `preset` are the limits of the server, `skill` the patient's ledger.

    `before` are the words of the last answer about this patient (steady.words_kept): where the
    courses leave a word open, it stays.
    """
    limits = effective_limits(engine.site, preset, request.limits)
    seen = see(engine, request, limits, steady.words_before(before), adaptive=True)
    read, codes, judge, outlook = seen.read, seen.codes, seen.judge, seen.outlook
    if judge and outlook and not codes:
        body = _forecast(judge, request, outlook)
    else:
        body = _silence(request, int(read.bed.level), codes, engine.gates)
    return (
        {
            "status": "refused" if codes else "ok",
            "refusals": sentences.state_sentences(read, codes, engine),
            "now": now_table(read, limits),
            "p_now": None if read.bed.level < 0 else int(read.bed.level),
            "pump": pump_of(request),
            "limits": asdict(limits),
            "horizon_h": request.horizon_h,
            "grid_min": request.grid_min,
            "quality": quality_notes(read, seen.filled, seen.absent, engine.used),
        }
        | body
        | {"skill": skill, "unknowns": unknowns(engine.names), "model": engine.model}
    )


@dataclass(frozen=True)
class Seen:
    """A moment as it was read, and why it is refused; without an outlook where it cannot be."""

    read: Read
    absent: tuple[int, ...]
    filled: tuple[str, ...]
    codes: list[str]
    judge: "Judge | None"
    outlook: Outlook | None


def see(
    engine: Engine,
    request: Request,
    limits: Limits,
    before: np.ndarray | None = None,
    *,
    adaptive: bool,
) -> Seen:
    """Read a request and look ahead; `adaptive` draws further courses where a word is open."""
    read = read_request(request, engine.twin.steps, engine.table, engine.columns, engine.used)
    absent = absent_columns(read, engine.used)
    used = tuple(i for i in engine.used if i not in absent)
    refused = gates.state_refusals(read.bed, used, engine.gates, read.factors)
    found = model_state(read, used)
    state = fill_absent(engine, found[0]) if found else None
    outlook, judge, filled = None, None, ()
    if found and state is not None and not np.delete(refused, gates.JUDGED_LAST).any():
        filled = found[1]
        judge = Judge(engine, read, state, limits, before)
        outlook = look(engine, state, limits, judge.unclear if adaptive else None)
        bed = replace(read.bed, likeness=np.asarray(np.max(outlook.p_value), float))
        refused = gates.state_refusals(bed, used, engine.gates, read.factors)
    codes = [code for code, held in zip(gates.STATE_CODES, refused, strict=True) if held]
    return Seen(read, absent, filled, codes, judge, outlook)


def refuse_service(request: Request, code: str) -> dict[str, Any]:
    """The answer where nothing could be computed at all (R13, R14)."""
    return (
        {
            "status": "refused",
            "refusals": [gates.refusal(code, DEFAULT_GATES)],
            "now": {},
            "p_now": request.p_now,
            "pump": pump_of(request),
            "limits": None,
            "horizon_h": request.horizon_h,
            "grid_min": request.grid_min,
            "quality": None,
        }
        | _silence(request, request.p_now or 0, [code], DEFAULT_GATES)
        | {"skill": None, "unknowns": list(UNKNOWNS), "model": None}
    )


def unknowns(names: Collection[str]) -> list[str]:
    """What models that read these columns do not know about a patient."""
    seen = set(names)
    return [x for x in UNKNOWNS if x not in seen and not seen & set(_TOLD_BY.get(x, ()))]


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
        "undecided": [],
        "suggested": None,
        "advice": {"kind": "none", "p": None, "words": "No forecast and no suggestion."},
        "reasons": ["No forecast and no suggestion.", *(table[code].sentence for code in codes)],
        "uncertainty": None,
        "policy": None,
    }


@dataclass(frozen=True)
class Judge:
    """What the gates and the line say of an outlook."""

    engine: Engine
    read: Read
    state: np.ndarray
    limits: Limits
    before: np.ndarray | None  # places of the last answer

    @functools.cached_property
    def distance(self) -> np.ndarray:
        """From every recorded hour."""
        return distances(self.engine.support, self.state)

    @functools.cached_property
    def similar(self) -> np.ndarray:
        """Recorded hours like this one, by level."""
        return count_similar(self.engine.support, self.distance)

    @functools.cached_property
    def forbidden(self) -> dict[str, np.ndarray]:
        """By hard gate."""
        nothing = np.zeros(len(gates.STATE_CODES), bool)
        return gates.forbidding_gates(self.read.bed, nothing, self.limits, self.engine.used)

    def codes(self, outlook: Outlook) -> dict[str, np.ndarray]:
        """R10 to R12 and R16, by level."""
        pressure = np.asarray(outlook.quantiles)[:, QUANTILES.index(0.5), :, SHOWN.index(MAP)]
        return gates.candidate_refusals(
            np.asarray(outlook.p_value),
            self.similar,
            disagreement(outlook),
            gates.reversed_levels(pressure.mean(-1), int(self.read.bed.level)),
            self.engine.gates,
        )

    def open_to(self, outlook: Outlook) -> np.ndarray:
        """Levels that no gate forbids and whose forecast is not refused."""
        codes = self.codes(outlook)
        refused = codes["R10"] | codes["R11"] | codes["R16"]
        return ~np.any(list(self.forbidden.values()), axis=0) & ~refused

    def place(self, outlook: Outlook, *, kept: bool = True) -> np.ndarray:
        """Where the gates place each level; words of a moment ago are `kept` where it is open."""
        codes = self.codes(outlook)
        return gates.place_levels(
            self.read.bed,
            ~np.any(list(self.forbidden.values()), axis=0),
            ~(codes["R10"] | codes["R11"] | codes["R16"]),
            steady.risk_interval(outlook),
            self.engine.gates,
            self.before if kept else None,
        )

    def unclear(self, outlook: Outlook) -> np.ndarray:
        """Levels that need further courses; a word that is kept answers no question."""
        place, level = self.place(outlook, kept=False), int(self.read.bed.level)
        return steady.unclear(outlook, place, self.open_to(outlook), level)


def _forecast(judge: Judge, request: Request, outlook: Outlook) -> dict[str, Any]:
    engine, bed = judge.engine, judge.read.bed
    place, level = judge.place(outlook), int(bed.level)
    asked = np.isin(np.array(LEVELS), request.candidates)
    good = (place == gates.ACCEPTABLE) & asked
    undecided = (place == gates.UNDECIDED) & asked
    suggested = int(gates.suggest(good, gates.has_gap(bed.signals, engine.used)))
    open_to = judge.open_to(outlook)
    advice = steady.advise(outlook, np.where(asked, place, -1), open_to, level)
    moment = Moment(
        engine=engine,
        request=request,
        read=judge.read,
        outlook=outlook,
        limits=judge.limits,
        similar=judge.similar,
        distance=judge.distance,
        codes=judge.codes(outlook),
        forbidden=judge.forbidden,
        place=place,
        advice=advice,
        rank=steady.rank(outlook, open_to, level),
        fewer=steady.fewer_than_holding(outlook, level),
    )
    return {
        "candidates": [make_candidate(moment, p) for p in request.candidates],
        "acceptable": [p for p in LEVELS if good[p - LOWEST]],
        "undecided": [p for p in LEVELS if undecided[p - LOWEST]],
        "suggested": suggested if suggested > 0 else None,
        "advice": {
            "kind": advice.kind,
            "p": advice.level,
            "words": sentences.advice_words(moment),
        },
        "reasons": sentences.reasons_for(moment, suggested),
        "uncertainty": uncertainty_of(outlook, suggested if suggested > 0 else level),
        "policy": policy_wish(engine, outlook, good),
    }


def pump_of(request: Request) -> dict[str, Any]:
    """The pump type that was named, as the screen shows it."""
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
        "odd": gates.odd_values(read.bed.signals),
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
        "word": "unjudged",
        "rank": None,
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
    told["word"] = gates.PLACES[moment.place[i]]
    if any(one["scope"] == "candidate" for one in told["refusals"]):
        return bare | told
    return bare | told | _numbers(moment, p) | {"status": "ok"}


def _numbers(moment: Moment, p: int) -> dict[str, Any]:
    i = p - LOWEST
    quantiles, carried = _curves(moment, p)
    return {
        "acceptable": gates.PLACES[moment.place[i]] == "acceptable",
        "rank": moment.rank.get(p),
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
    crossing, draws = moment.outlook.crossing[i], int(moment.outlook.courses[i])
    counts = dict(zip(names, (int(x) for x in crossing), strict=True))
    counts["any"] = int(moment.outlook.crossing_any[i])
    words = {name: sentences.count_words(count, draws) for name, count in counts.items()}
    ends = {
        name: shares(*steady.interval(np.array(x), np.array(draws))) for name, x in counts.items()
    }
    low, high = steady.risk_interval(moment.outlook)
    mean, least, most = (float(x[i]) for x in moment.fewer)
    return counts | {
        "draws": draws,
        "hours": HORIZON,
        "words": words,
        "intervals": ends,  # shares of courses, 99 %
        "worst": shares(low[i], high[i]),
        "more_than_holding": [round(-x, 3) for x in (mean, most, least)],  # any limit
    }


def shares(*ends: float | np.ndarray) -> list[float]:
    """Shares as they are sent."""
    return [round(float(x), 4) for x in ends]


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
    """What the learned policy of the run would choose, and whether the gates leave it that.

    Of a planner also what it chooses by: the reward that each level within reach is expected to
    gain over holding, and how far the models of the records differ in that.
    """
    if engine.policy is None:
        return None
    wish = LEVELS[int(np.argmax(outlook.preference))]
    kept = int(gates.gate_wish(np.asarray(wish), good)) == wish
    held = "which is acceptable" if kept else "which is not acceptable here"
    words = f"The learned policy ({engine.method}) would choose P-{wish}, {held}."
    told = {"method": engine.method, "wish": wish, "acceptable": kept, "words": words}
    planner, weighed = planner_of(engine.policy), outlook.weighed
    if planner is None or weighed is None:
        return told | {"values": None, "hours": None, "models": None}
    values = [
        {"p": p, "gain": round(float(gain), 3), "spread": round(float(spread), 3)}
        for p, gain, spread in zip(LEVELS, weighed.gain, weighed.spread, strict=True)
        if np.isfinite(gain)
    ]
    words = f"The planner ({engine.method}) would choose P-{wish}, {held}."
    return told | {
        "words": words,
        "values": values,
        "hours": planner.config.hours,
        "models": count_models(planner.dynamics),
    }
