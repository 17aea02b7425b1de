"""The paths of the API: what-if, recorded patients, and what is kept.

Answers are the bytes that the service made. Errors name a code and say what was expected, never
what was sent.
"""

import asyncio
import hmac
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Path, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse

from stepdown.app import wire
from stepdown.app.audit import Entry, verify
from stepdown.app.gates import GATES, refusal_codes
from stepdown.app.limits import (
    LABELS,
    PRESETS,
    PresetName,
    effective_limits,
    limits_from_dict,
)
from stepdown.app.recordings import Stay, patient_row, quality, request_at, to_minute, trends
from stepdown.app.request import Request, request_from_dict
from stepdown.app.service import Line, Service, now_text
from stepdown.app.whatif import unknowns
from stepdown.signals import HORIZON

JSON = "application/json"
Patient = Annotated[str, Path(pattern=wire.PATIENT)]
At = Annotated[
    str | None,
    Query(max_length=40, description="ISO time on the recording's clock, or minute of support"),
]
Csrf = Annotated[str, Header(alias="X-CSRF-Token", max_length=128)]
Number = Annotated[int, Path(ge=1, le=2**53)]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": wire.Problem, "description": words}
    for status, words in (
        (400, "not JSON"),
        (401, "a token is needed"),
        (403, "X-CSRF-Token is needed"),
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


def whatif_router(service: Service, line: Line) -> APIRouter:
    """The path that answers for a moment of the caller's own."""
    router = APIRouter(tags=["what-if"])

    @router.post("/v1/whatif", responses=PROBLEMS | {200: {"model": wire.Answer}})
    async def whatif(body: wire.WhatIfBody) -> Response:
        """What would happen under each level, for a moment that the caller describes."""
        try:
            request = request_from_dict(body.model_dump(), service.columns)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return await answer_whatif(service, line, request, None)

    return router


async def answer_whatif(
    service: Service, line: Line, request: Request, source: dict[str, Any] | None
) -> Response:
    """Compute, remember, send; what takes too long is refused with R14."""
    if service.phase == "warming":
        raise HTTPException(503, "The models are being loaded.", {"Retry-After": "2"})
    try:
        computed = await line.run(service.compute, request, source)
    except TimeoutError:
        computed = service.give_up(request, source)
    body = await asyncio.to_thread(service.remember, request, source, computed)
    return Response(body, media_type=JSON)


# ── recorded patients ─────────────────────────────────────────────────────────────────────────────


def patients_router(service: Service, line: Line) -> APIRouter:
    """The paths under /v1/patients."""
    router = APIRouter(prefix="/v1/patients", tags=["patients"], responses=PROBLEMS)

    @router.get("")
    def patients() -> JSONResponse:
        """Test patients, those who need a look first; `review` is null until looked at."""
        return JSONResponse({"patients": service.patients(), "phase": service.phase})

    @router.get("/{patient}")
    def patient(patient: Patient, at: At = None) -> JSONResponse:
        """One patient at a moment."""
        stay = find_stay(service, patient)
        row = patient_row(stay, moment(at, stay))
        return JSONResponse(row | {"review": service.reviews.get(patient)})

    @router.get("/{patient}/trends")
    def trend(
        patient: Patient, at: At = None, hours: Annotated[float, Query(gt=0, le=120)] = 12.0
    ) -> JSONResponse:
        """Samples up to a moment; null is a gap."""
        stay = find_stay(service, patient)
        return JSONResponse(trends(stay, moment(at, stay), hours))

    @router.get("/{patient}/quality")
    def data_quality(patient: Patient, at: At = None) -> JSONResponse:
        """By channel: unit, ranges, what is missing, out of range or standing still."""
        stay = find_stay(service, patient)
        return JSONResponse(quality(stay, moment(at, stay), service.gates))

    _recorded_whatif(router, service, line)
    return router


def _recorded_whatif(router: APIRouter, service: Service, line: Line) -> None:
    @router.get("/{patient}/whatif", responses={200: {"model": wire.Answer}})
    async def whatif(
        patient: Patient,
        at: At = None,
        h: Annotated[int, Query(ge=1, le=HORIZON)] = HORIZON,
        limits: PresetName | None = None,
    ) -> Response:
        """What would happen under each level, at a moment of the recording."""
        stay = find_stay(service, patient)
        minute = moment(at, stay)
        request = request_at(stay, minute, h, limits)
        source: dict[str, Any] = {"patient": patient, "minute": minute}
        return await answer_whatif(service, line, request, source)


def moment(at: str | None, stay: Stay) -> float:
    """The chosen minute, or 422."""
    try:
        return to_minute(at, stay)
    except (ValueError, OverflowError):
        raise HTTPException(
            422, "at: expected a moment of the recording, as ISO time with a zone or in minutes."
        ) from None


def find_stay(service: Service, patient: str) -> Stay:
    """A recorded patient, or 404."""
    if patient not in service.stays:
        raise HTTPException(404, "Expected a patient of this run.")
    return service.stays[patient]


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────


def records_router(service: Service, line: Line, csrf: str) -> APIRouter:
    """The paths that write, and those that show what was written."""
    router = APIRouter(prefix="/v1", responses=PROBLEMS)
    _responses(router, service, csrf)
    _limits(router, service, csrf)
    _model(router, service, line)
    _audit(router, service)
    _replay(router, service, line)
    return router


def _responses(router: APIRouter, service: Service, csrf: str) -> None:
    @router.post("/responses", tags=["responses"])
    def respond(body: wire.ResponseBody, x_csrf_token: Csrf = "") -> JSONResponse:
        """Agree, disagree (with a reason) or not now; sent twice, it is kept once."""
        require_csrf(x_csrf_token, csrf)
        find_answer(service, body.audit_id)
        reason = clip(body.reason.strip())
        if body.answer == "disagree" and not reason:
            raise HTTPException(422, "reason: expected one to disagree, got none.")
        told = body.model_dump() | {"reason": reason}
        number, new = service.respond(told)
        clipped = reason != body.reason.strip()
        return JSONResponse({"audit_id": number, "new": new, "clipped": clipped})

    @router.post("/choices", tags=["responses"])
    def choose(body: wire.ChoiceBody, x_csrf_token: Csrf = "") -> JSONResponse:
        """Study mode: keep what a clinician would do before the model is shown."""
        require_csrf(x_csrf_token, csrf)
        minute = moment(body.at, find_stay(service, body.patient))
        told = body.model_dump() | {"reason": clip(body.reason), "minute": minute}
        return JSONResponse({"audit_id": service.audit.append("choice", told, now_text()).id})


def _limits(router: APIRouter, service: Service, csrf: str) -> None:
    def shown() -> dict[str, Any]:
        presets = PRESETS | {"site": service.site}
        return {
            "preset": service.preset,
            "effective": asdict(effective_limits(service.site, service.preset)),
            "presets": {
                name: {"label": LABELS[name], "limits": asdict(one)}
                for name, one in presets.items()
            },
            "gates": asdict(service.gates),
            "changed": service.changed,
            "rule": "The most restrictive value wins; a site may only make limits stricter.",
        }

    @router.get("/limits", tags=["limits"])
    def limits() -> JSONResponse:
        """The preset in force, all presets, the thresholds, who changed them and when."""
        return JSONResponse(shown())

    @router.post("/limits", tags=["limits"])
    def set_limits(body: wire.LimitsBody, x_csrf_token: Csrf = "") -> JSONResponse:
        """Choose a preset, or set stricter limits of the site's own; an entry of the audit."""
        require_csrf(x_csrf_token, csrf)
        try:
            site = limits_from_dict(body.site) if body.site is not None else None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        number = service.set_limits(body.preset, site, body.by)
        return JSONResponse(shown() | {"audit_id": number})


def _model(router: APIRouter, service: Service, line: Line) -> None:
    calibrated: dict[str, Any] = {}

    @router.get("/model", tags=["model"])
    def model() -> JSONResponse:
        """The model card: version, digests, patients, settings, scores of the run."""
        if service.loaded is None:
            raise HTTPException(503, service.problem or "The models are being loaded.")
        return JSONResponse(service.loaded.card | {"unknowns": unknowns(service.engine)})

    @router.get("/model/calibration", tags=["model"])
    async def calibration() -> JSONResponse:
        """Coverage of the bands on test patients, overall and by level; computed once."""
        if service.phase != "ready":
            raise HTTPException(503, "The models are not ready.", {"Retry-After": "2"})
        if not calibrated:
            calibrated.update(await line.run(service.calibration))
        return JSONResponse(calibrated)

    @router.get("/codes", tags=["model"])
    def codes() -> JSONResponse:
        """All refusal codes and hard gates."""
        refusals = {code: asdict(one) for code, one in refusal_codes(service.gates).items()}
        return JSONResponse({"refusals": refusals, "gates": GATES})


def _audit(router: APIRouter, service: Service) -> None:
    @router.get("/audit", tags=["audit"])
    def entries(
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    ) -> JSONResponse:
        """Newest entries first, in short."""
        return JSONResponse(
            {"entries": [_short(one) for one in service.audit.newest(limit, before)]}
        )

    @router.get("/audit/verify", tags=["audit"])
    def verified() -> JSONResponse:
        """Walk the whole chain: edits, deletions, swaps and a cut-off end are found."""
        return JSONResponse(asdict(verify(service.config.folder)))

    @router.get("/audit/export", tags=["audit"])
    def export() -> StreamingResponse:
        """All entries, oldest first, a JSON object on each line."""
        return StreamingResponse(_lines(service), media_type="application/x-ndjson")

    @router.get("/audit/{number}", tags=["audit"])
    def entry(number: Number) -> JSONResponse:
        """One entry with all that it holds."""
        found = find_entry(service, number)
        return JSONResponse(asdict(found) | {"body": found.content()})


def _replay(router: APIRouter, service: Service, line: Line) -> None:
    @router.get("/audit/{number}/replay", tags=["audit"])
    async def replay(number: Number) -> Response:
        """Compute an answer again: the same bytes, or 409."""
        found = await asyncio.to_thread(find_answer, service, number)
        try:
            body, same = await line.run(service.replay, found)
        except TimeoutError:
            raise HTTPException(503, "The computation took too long.") from None
        except (ValueError, KeyError) as error:
            raise HTTPException(409, str(error)) from None
        if not same:
            raise HTTPException(409, "The answer came out differently: another machine or version.")
        return Response(body, media_type=JSON, headers={"X-Replay": "same"})


def require_csrf(given: str, wanted: str) -> None:
    """Refuse a write that another site may have sent."""
    if not hmac.compare_digest(given.encode(), wanted.encode()):
        raise HTTPException(403, "Expected the header X-CSRF-Token from /v1/session.")


def clip(text: str) -> str:
    """Free text for the audit: without control characters, of bounded length."""
    printable = "".join(c for c in text if c.isprintable() or c == "\n")
    return printable.encode("utf-8", "replace").decode()[: wire.REASON]


def find_entry(service: Service, number: int) -> Entry:
    """An entry of the audit, or 404."""
    try:
        return service.audit.get(number)
    except KeyError:
        raise HTTPException(404, "Expected the number of an entry.") from None


def find_answer(service: Service, number: int) -> Entry:
    """An entry that is an answer, or 409."""
    found = find_entry(service, number)
    if found.kind != "whatif":
        raise HTTPException(409, "Expected the number of an answer, got another entry.")
    return found


def _short(entry: Entry) -> dict[str, Any]:
    body = entry.content()
    kept = ("status", "codes", "acceptable", "suggested", "source", "answer", "reason", "by",
            "audit_id", "preset", "replaces", "patient", "p")  # fmt: skip
    told = {name: body[name] for name in kept if name in body}
    about = {name: getattr(entry, name) for name in ("id", "time", "kind", "digest")}
    return about | {"told": told}


def _lines(service: Service) -> Iterator[bytes]:
    number = 1
    while True:
        try:
            entry = service.audit.get(number)
        except KeyError:
            return
        yield (json.dumps(asdict(entry) | {"body": entry.content()}) + "\n").encode()
        number += 1
