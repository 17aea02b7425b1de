"""The API: what may be sent, what is sent back (the shapes behind the OpenAPI page), and the paths.

Bodies are strict: a number is a number, unknown fields are refused, lists have a longest length.
Answers are the bytes that the service made. Errors name a code and say what was expected, never
what was sent.
"""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import fastapi
from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from stepdown import __version__
from stepdown.app.audit import Entry, verify
from stepdown.app.gates import GATES, refusal_codes
from stepdown.app.limits import LABELS, PRESETS, PresetName
from stepdown.app.plans import HOURS, MOST_PLANS
from stepdown.app.recordings import Stay, patient_row, quality, request_at, to_minute, trends
from stepdown.app.request import LONGEST, Request, request_from_dict
from stepdown.app.reviews import counted, summarize
from stepdown.app.security import COOKIE, hash_token
from stepdown.app.service import BANNER, Line, Service
from stepdown.app.whatif import unknowns
from stepdown.signals import HIGHEST, HORIZON, KNOWN, LEVELS, LOWEST

JSON = "application/json"

# ── the shapes ────────────────────────────────────────────────────────────────────────────────────

Value = Annotated[float, Field(allow_inf_nan=False)]
Level = Annotated[int, Field(ge=LOWEST, le=HIGHEST)]
AnyLevel = Annotated[int, Field(ge=0, le=HIGHEST)]  # also P-0 and P-1, where a pump stands still
Time = Annotated[str, Field(max_length=40)]
Reason = Annotated[str, Field(max_length=20_000)]
PATIENT = r"^[A-Za-z0-9._-]{1,64}$"
WHO = r"^[A-Za-z0-9._ -]{0,31}[A-Za-z0-9]$"  # initials or a name
REASON = 500  # characters that are kept

_STRICT = ConfigDict(extra="forbid", strict=True)


class ChannelBody(BaseModel):
    """One signal: a unit (UCUM), and samples of which the last is the newest; null is missing."""

    model_config = _STRICT
    unit: Annotated[str, Field(max_length=16)] | None = None
    values: Annotated[list[Value | None], Field(min_length=1, max_length=LONGEST)]


class WhatIfBody(BaseModel):
    """One moment of one patient."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "example": {
                "pump_profile": "cp-smartassist",
                "p_now": 6,
                "t_end": "2000-01-02T14:20:00+00:00",
                "grid_min": 10,
                "channels": {"MAP": {"unit": "mm[Hg]", "values": [71, 72, 72, 73, 71.5, 72]}},
                "candidates": [2, 3, 4, 5, 6, 7, 8, 9],
                "horizon_h": 6,
            }
        },
    )
    pump_profile: Annotated[str, Field(max_length=32)] | None = None
    p_now: AnyLevel | None = None
    t_end: Time
    now: Time | None = None
    grid_min: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)] = 10.0
    channels: Annotated[
        dict[Annotated[str, Field(max_length=16)], ChannelBody], Field(max_length=len(KNOWN))
    ]
    candidates: Annotated[list[Level], Field(min_length=1, max_length=len(LEVELS))] = list(LEVELS)
    horizon_h: Annotated[int, Field(ge=1, le=HORIZON)] = HORIZON
    p_levels: Annotated[list[AnyLevel | None], Field(max_length=LONGEST)] | None = None
    alarms: Annotated[list[Literal["suction", "position"]], Field(max_length=2)] = []
    limits: PresetName | None = None


class PlansBody(BaseModel):
    """Plans to compare with holding: a level for every hour, the last one goes on."""

    model_config = _STRICT
    plans: Annotated[
        list[Annotated[list[Level], Field(min_length=1, max_length=HOURS)]],
        Field(min_length=1, max_length=MOST_PLANS),
    ]


class ResponseBody(BaseModel):
    """What a clinician says to an answer, and who it is; Disagree needs a reason."""

    model_config = _STRICT
    audit_id: Annotated[int, Field(ge=1, le=2**53)]
    answer: Literal["agree", "disagree", "not_now"]
    by: Annotated[str, Field(pattern=WHO)]
    reason: Reason = ""


class ChoiceBody(BaseModel):
    """Study mode: what a clinician would do, before the model is shown."""

    model_config = _STRICT
    patient: Annotated[str, Field(pattern=PATIENT)]
    at: Time | None = None
    p: Level
    by: Annotated[str, Field(pattern=WHO)]
    reason: Reason = ""


class LimitsBody(BaseModel):
    """Another preset, or stricter limits of the site's own; who changes them is kept."""

    model_config = _STRICT
    preset: PresetName
    by: Annotated[str, Field(pattern=WHO)]
    site: dict[Annotated[str, Field(max_length=32)], Value | None] | None = None


class LoginBody(BaseModel):
    """The token that was shown when the server was first started for others."""

    model_config = _STRICT
    token: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,256}$")]


class Refusal(BaseModel):
    """Why something is not shown."""

    code: str
    scope: Literal["state", "candidate", "chart", "service"]
    sentence: str
    remedy: str
    about: str | None


class Gate(BaseModel):
    """A hard gate that forbids a level."""

    code: str
    sentence: str


class Support(BaseModel):
    """Recorded hours behind a candidate."""

    n: int
    pvalue: float
    needed: int


class Candidate(BaseModel):
    """One level; all numbers are null where it is refused."""

    p: int
    label: str
    status: Literal["ok", "refused"]
    refusals: list[Refusal]
    gates: list[Gate]
    acceptable: bool
    word: str  # what the gates say of it, one of gates.PLACES
    rank: int | None  # 1 has the fewest courses that leave a limit
    verdict: str  # why, in a sentence
    quantiles: dict[str, dict[str, list[float]]] | None
    carry_forward: dict[str, float] | None
    risk: dict[str, Any] | None
    support: Support | None
    evidence: list[dict[str, Any]]
    uncertainty: dict[str, float | None] | None
    notes: list[str]


class Answer(BaseModel):
    """What would happen under each level, or why that is not said."""

    source: dict[str, Any] | None  # patient and minute of a recording
    at: str
    t_end: str
    status: Literal["ok", "refused"]
    refusals: list[Refusal]
    now: dict[str, dict[str, Any]]
    p_now: int | None
    pump: dict[str, Any]
    limits: dict[str, float | None] | None
    horizon_h: int
    grid_min: float
    quality: dict[str, Any] | None
    candidates: list[Candidate]
    acceptable: list[int]
    undecided: list[int]  # too near the line to be called acceptable or not
    suggested: int | None
    advice: dict[str, Any]  # acceptable, act, watch, undecided or none; in words
    reasons: Annotated[list[str], Field(min_length=1)]
    uncertainty: dict[str, float | None] | None
    policy: dict[str, Any] | None
    skill: dict[str, Any] | None
    unknowns: list[str]
    model: dict[str, Any] | None
    audit_id: int


class Problem(BaseModel):
    """What went wrong with a request, without repeating what was sent."""

    code: str
    sentence: str
    where: list[str] = []


# ── the paths ─────────────────────────────────────────────────────────────────────────────────────

Patient = Annotated[str, Path(pattern=PATIENT)]
At = Annotated[
    str | None,
    Query(max_length=40, description="ISO time on the recording's clock, or minute of support"),
]
Csrf = Annotated[str, Header(alias="X-CSRF-Token", max_length=128)]
Number = Annotated[int, Path(ge=1, le=2**53)]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": words}
    for status, words in (
        (400, "not JSON"),
        (401, "a token is needed"),
        (403, "from another site, or X-CSRF-Token is needed"),
        (404, "unknown"),
        (408, "too slow"),
        (409, "cannot be done with this state"),
        (413, "too large"),
        (415, "not application/json"),
        (421, "another host"),
        (422, "not what was expected"),
        (429, "too many at once; see Retry-After"),
        (503, "warming up; see Retry-After"),
    )
}


@dataclass(frozen=True)
class Desk:
    """What the paths work with."""

    service: Service
    line: Line
    csrf: str  # the token that writes need
    token: str | None  # digest of the one that others need to come in

    def find_moment(self, patient: str, at: str | None) -> tuple[Stay, float]:
        """A recorded patient, or 404, and the chosen minute, or 422."""
        stay = self.service.stays.get(patient)
        if stay is None and self.service.phase == "warming":  # who there is, is not known yet
            raise HTTPException(503, "The models are being loaded.", {"Retry-After": "2"})
        if stay is None:
            raise HTTPException(404, "Expected a patient of this run.")
        try:
            return stay, to_minute(at, stay)
        except (ValueError, OverflowError):
            raise HTTPException(
                422,
                "at: expected a moment of the recording, as ISO time with a zone or in minutes.",
            ) from None

    def find_entry(self, number: int) -> Entry:
        """An entry of the audit, or 404."""
        found = self.service.audit.get(number)
        if found is None:
            raise HTTPException(404, "Expected the number of an entry.")
        return found

    def find_answer(self, number: int) -> Entry:
        """An entry that is an answer, or 409."""
        found = self.find_entry(number)
        if found.kind not in ("whatif", "plan"):
            raise HTTPException(409, "Expected the number of an answer, got another entry.")
        return found

    def require_csrf(self, given: str) -> None:
        """Refuse a write that another site may have sent."""
        if not hmac.compare_digest(given.encode(), self.csrf.encode()):
            raise HTTPException(403, "Expected the header X-CSRF-Token from /v1/session.")

    async def answer(
        self,
        request: Request,
        source: dict[str, Any] | None,
        plans: list[list[int]] | None = None,
    ) -> Response:
        """Compute, remember, send; what takes too long is refused with R14."""
        service = self.service
        if service.phase == "warming":
            raise HTTPException(503, "The models are being loaded.", {"Retry-After": "2"})
        if plans and service.loaded is not None and not service.planning.is_set():
            raise HTTPException(503, "Plans are being made ready.", {"Retry-After": "2"})
        try:
            computed = await self.line.run(service.compute, request, source, None, plans)
        except TimeoutError:
            computed = service.compute(request, source, "R14", plans)
        body = await asyncio.to_thread(service.remember, request, source, computed)
        return Response(body, media_type=JSON)


async def _desk(request: fastapi.Request) -> Desk:
    return request.app.state.desk


Here = Annotated[Desk, Depends(_desk)]

about = APIRouter(tags=["service"])
asked = APIRouter(responses=PROBLEMS)
patients_only = APIRouter(prefix="/v1/patients", tags=["patients"], responses=PROBLEMS)
kept = APIRouter(prefix="/v1", responses=PROBLEMS)
ROUTERS = (about, asked, patients_only, kept)  # in the order of the documentation


@about.get("/healthz")
async def healthz() -> JSONResponse:
    """Whether the process lives; says nothing about models."""
    return JSONResponse({"status": "alive"})


@about.get("/readyz", responses={503: {"model": Problem}})
async def readyz(desk: Here) -> JSONResponse:
    """Whether answers can be given: models verified, loaded and warmed up."""
    service = desk.service
    if service.phase == "ready":
        return JSONResponse({"status": "ready", "model": service.engine.model})
    code = "R13" if service.phase == "refused" else "warming"
    body = {"code": code, "sentence": _state(service), "where": [], "status": service.phase}
    return JSONResponse(body, 503, {"Retry-After": "2"})


def _state(service: Service) -> str:
    """Why there are no models; where files lie is told by the server's own log."""
    if service.phase == "warming":
        return "The models are being loaded."
    return "The models could not be loaded; the log of the server says why."


@about.get("/v1/session")
async def session(desk: Here) -> JSONResponse:
    """The token that writes need in `X-CSRF-Token`, and what kind of server this is."""
    return JSONResponse(
        {
            "csrf": desk.csrf,
            "needs_token": desk.token is not None,
            "version": __version__,
            "banner": BANNER,
            "phase": desk.service.phase,
            "followed": desk.service.config.patients is not None,
        }
    )


@asked.post("/v1/login", tags=["service"])
async def login(desk: Here, body: LoginBody, response: Response) -> dict[str, str]:
    """Keep the token in a cookie that no script reads and no other site sends."""
    if desk.token is None:
        raise HTTPException(409, "No token is needed on this machine itself.")
    if not hmac.compare_digest(hash_token(body.token), desk.token):
        raise HTTPException(401, "Expected the token of this server.")
    response.set_cookie(COOKIE, body.token, httponly=True, samesite="strict")
    return {"status": "in"}


@asked.post("/v1/whatif", tags=["what-if"], responses={200: {"model": Answer}})
async def whatif(desk: Here, body: WhatIfBody) -> Response:
    """What would happen under each level, for a moment that the caller describes."""
    try:
        request = request_from_dict(body.model_dump(), desk.service.columns)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    return await desk.answer(request, None)


# ── recorded patients ─────────────────────────────────────────────────────────────────────────────


@patients_only.get("")
def patients(desk: Here) -> JSONResponse:
    """Test patients, those who need a look first; `review` is null until looked at."""
    service = desk.service
    own = service.config.patients is not None
    told = {"phase": service.phase, "own": own, "trouble": service.trouble or None}
    return JSONResponse({"patients": service.patients(), **told})


@patients_only.get("/{patient}")
def patient(desk: Here, patient: Patient, at: At = None) -> JSONResponse:
    """One patient at a moment."""
    row = patient_row(*desk.find_moment(patient, at))
    return JSONResponse(row | {"review": desk.service.review_of(patient)})


@patients_only.get("/{patient}/trends")
def trend(
    desk: Here, patient: Patient, at: At = None, hours: Annotated[float, Query(gt=0, le=120)] = 12.0
) -> JSONResponse:
    """Samples up to a moment; null is a gap."""
    return JSONResponse(trends(*desk.find_moment(patient, at), hours))


@patients_only.get("/{patient}/quality")
def data_quality(desk: Here, patient: Patient, at: At = None) -> JSONResponse:
    """By channel: unit, ranges, what is missing, out of range or standing still."""
    return JSONResponse(quality(*desk.find_moment(patient, at), desk.service.gates))


@patients_only.post("/{patient}/whatif", responses={200: {"model": Answer}}, name="whatif")
async def recorded_whatif(
    desk: Here,
    patient: Patient,
    at: At = None,
    h: Annotated[int, Query(ge=1, le=HORIZON)] = HORIZON,
    limits: PresetName | None = None,
) -> Response:
    """What would happen under each level, at a moment of the recording; kept in the audit."""
    stay, minute = desk.find_moment(patient, at)
    source: dict[str, Any] = {"patient": patient, "minute": minute}
    return await desk.answer(request_at(stay, minute, h, limits), source)


@patients_only.post("/{patient}/plans", name="plans")
async def recorded_plans(
    desk: Here,
    patient: Patient,
    body: PlansBody,
    at: At = None,
    limits: PresetName | None = None,
) -> Response:
    """Plans of levels over up to a day beside holding; kept in the audit."""
    stay, minute = desk.find_moment(patient, at)
    source: dict[str, Any] = {"patient": patient, "minute": minute}
    return await desk.answer(request_at(stay, minute, limits=limits), source, body.plans)


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────


@kept.post("/responses", tags=["responses"])
def respond(desk: Here, body: ResponseBody, x_csrf_token: Csrf = "") -> JSONResponse:
    """Agree, disagree (with a reason) or not now; sent twice, it is kept once."""
    desk.require_csrf(x_csrf_token)
    desk.find_answer(body.audit_id)
    reason = clip(body.reason.strip())
    if body.answer == "disagree" and not reason:
        raise HTTPException(422, "reason: expected one to disagree, got none.")
    number, new = desk.service.respond(body.model_dump() | {"reason": reason})
    clipped = reason != body.reason.strip()
    return JSONResponse({"audit_id": number, "new": new, "clipped": clipped})


@kept.post("/choices", tags=["responses"])
async def choose(desk: Here, body: ChoiceBody, x_csrf_token: Csrf = "") -> JSONResponse:
    """Study mode: keep what a clinician would do, and the answer that is shown after."""
    desk.require_csrf(x_csrf_token)
    stay, minute = desk.find_moment(body.patient, body.at)
    told = body.model_dump() | {"reason": clip(body.reason), "minute": minute}
    request, service = request_at(stay, minute), desk.service
    if service.phase == "warming":
        raise HTTPException(503, "The models are being loaded.", {"Retry-After": "2"})
    source: dict[str, Any] = {"patient": body.patient, "minute": minute}
    try:
        computed = await desk.line.run(service.compute, request, source)
    except TimeoutError:
        computed = service.compute(request, source, "R14")
    number, answer = await asyncio.to_thread(service.keep_choice, told, request, computed)
    return JSONResponse({"audit_id": number, "answer_id": answer})


@kept.get("/reviews", tags=["responses"])
def reviews(desk: Here) -> JSONResponse:
    """Choices of named reviewers: agreement with the model, over time, and between them."""
    return JSONResponse(summarize(counted(desk.service.audit.every("choice"))))


@kept.get(
    "/reviews/export",
    tags=["responses"],
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}}},
)
def export_reviews(desk: Here) -> StreamingResponse:
    """Every choice on a line, with the digest of its entry; the last line has one of all lines."""
    choices = counted(desk.service.audit.every("choice"))
    lines = "".join(json.dumps(one) + "\n" for one in choices)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    last = json.dumps({"choices": len(choices), "sha256": digest}) + "\n"
    return StreamingResponse(iter([lines, last]), media_type="application/x-ndjson")


@kept.get("/limits", tags=["limits"])
def limits(desk: Here) -> JSONResponse:
    """The preset in force, all presets, the thresholds, who changed them and when."""
    return JSONResponse(_limits(desk.service))


@kept.post("/limits", tags=["limits"])
def set_limits(desk: Here, body: LimitsBody, x_csrf_token: Csrf = "") -> JSONResponse:
    """Choose a preset, or set stricter limits of the site's own; an entry of the audit."""
    desk.require_csrf(x_csrf_token)
    try:
        number = desk.service.set_limits(body.preset, body.site, body.by)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    return JSONResponse(_limits(desk.service) | {"audit_id": number})


def _limits(service: Service) -> dict[str, Any]:
    presets = PRESETS | {"site": service.site}
    return {
        "preset": service.preset,
        "effective": asdict(service.limits),
        "presets": {
            name: {"label": LABELS[name], "limits": asdict(one)} for name, one in presets.items()
        },
        "gates": asdict(service.gates),
        "changed": service.changed,
        "rule": "The most restrictive value wins; the limits of the site are always in force, and "
        "nobody can set them looser than its file.",
    }


@kept.get("/model", tags=["model"])
def model(desk: Here) -> JSONResponse:
    """The model card: version, digests, patients, settings, scores of the run."""
    loaded = desk.service.loaded
    if loaded is None:
        raise HTTPException(503, _state(desk.service))
    return JSONResponse(loaded.card | {"unknowns": unknowns(loaded.engine.names)})


@kept.get("/model/calibration", tags=["model"])
async def calibration(desk: Here) -> JSONResponse:
    """Coverage of the bands on test patients, overall and by level; computed once."""
    if desk.service.phase != "ready":
        raise HTTPException(503, "The models are not ready.", {"Retry-After": "2"})
    if not desk.service.calibrated:  # computed in the background, where it keeps nobody waiting
        raise HTTPException(503, "The calibration is being computed.", {"Retry-After": "2"})
    return JSONResponse(desk.service.calibrated)


@kept.get("/codes", tags=["model"])
def codes(desk: Here) -> JSONResponse:
    """All refusal codes and hard gates."""
    refusals = {code: asdict(one) for code, one in refusal_codes(desk.service.gates).items()}
    return JSONResponse({"refusals": refusals, "gates": GATES})


@kept.get("/audit", tags=["audit"])
def entries(
    desk: Here,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
) -> JSONResponse:
    """Newest entries first, in short."""
    found = desk.service.audit.newest(limit, before)
    return JSONResponse({"entries": [_short(one) for one in found]})


@kept.get("/audit/verify", tags=["audit"])
def verified(desk: Here) -> JSONResponse:
    """Walk the whole chain: edits, deletions, swaps and a cut-off end are found."""
    return JSONResponse(asdict(verify(desk.service.config.folder)))


@kept.get("/audit/export", tags=["audit"])
def export(desk: Here) -> StreamingResponse:
    """All entries, oldest first, a JSON object on each line."""
    return StreamingResponse(_lines(desk.service), media_type="application/x-ndjson")


@kept.get("/audit/{number}", tags=["audit"])
def entry(desk: Here, number: Number) -> JSONResponse:
    """One entry with all that it holds."""
    return JSONResponse(_whole(desk.find_entry(number)))


@kept.get("/audit/{number}/replay", tags=["audit"])
async def replay(desk: Here, number: Number) -> Response:
    """Compute an answer again: the same bytes, or 409."""
    found = await asyncio.to_thread(desk.find_answer, number)
    try:
        body, same = await desk.line.run(desk.service.replay, found)
    except TimeoutError:
        raise HTTPException(503, "The computation took too long.") from None
    except (ValueError, KeyError) as error:
        raise HTTPException(409, str(error)) from None
    if not same:
        raise HTTPException(409, "The answer came out differently: another machine or version.")
    return Response(body, media_type=JSON, headers={"X-Replay": "same"})


def clip(text: str) -> str:
    """Free text for the audit: without control characters, of bounded length."""
    printable = "".join(c for c in text if c.isprintable() or c == "\n")
    return printable.encode("utf-8", "replace").decode()[:REASON]


def _short(entry: Entry) -> dict[str, Any]:
    body = entry.content()
    shown = ("status", "codes", "acceptable", "suggested", "source", "answer", "reason", "by",
             "audit_id", "preset", "replaces", "patient", "p", "plans")  # fmt: skip
    told = {name: body[name] for name in shown if name in body}
    return {name: getattr(entry, name) for name in ("id", "time", "kind", "digest")} | {
        "told": told
    }


def _whole(entry: Entry) -> dict[str, Any]:
    return asdict(entry) | {"body": entry.content()}


def _lines(service: Service) -> Iterator[bytes]:
    number = 1
    while entry := service.audit.get(number):
        yield (json.dumps(_whole(entry)) + "\n").encode()
        number += 1
