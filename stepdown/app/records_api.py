"""Paths about what is kept: responses, limits, the model card, the audit and its replay."""

import asyncio
import functools
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Path, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse

from stepdown.app import wire
from stepdown.app.audit import Entry, verify
from stepdown.app.limits import LABELS, PRESETS, limits_from_dict, limits_to_dict
from stepdown.app.patients_api import moment
from stepdown.app.refusals import CODES, GATES
from stepdown.app.service import Service, now_text
from stepdown.app.waiting import Line
from stepdown.app.web import JSON, PROBLEMS, clip, find_stay, require_csrf
from stepdown.app.whatif import UNKNOWNS, effective_limits

Csrf = Annotated[str, Header(alias="X-CSRF-Token", max_length=128)]
Number = Annotated[int, Path(ge=1, le=2**53)]


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
        entry = find_entry(service, body.audit_id)
        if entry.kind != "whatif":
            raise HTTPException(409, "Expected the number of an answer, got another entry.")
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
            "effective": limits_to_dict(effective_limits(service.site, service.preset)),
            "presets": {
                name: {"label": LABELS[name], "limits": limits_to_dict(one)}
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
        return JSONResponse(service.loaded.card | {"unknowns": list(UNKNOWNS)})

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
        refusals = {code: asdict(one) for code, one in CODES.items()}
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
        found = await asyncio.to_thread(find_entry, service, number)
        if found.kind != "whatif":
            raise HTTPException(409, "Expected the number of an answer, got another entry.")
        try:
            body, same = await line.run(functools.partial(service.replay, found))
        except TimeoutError:
            raise HTTPException(503, "The computation took too long.") from None
        except (ValueError, KeyError) as error:
            raise HTTPException(409, str(error)) from None
        if not same:
            raise HTTPException(409, "The answer came out differently: another machine or version.")
        return Response(body, media_type=JSON, headers={"X-Replay": "same"})


def find_entry(service: Service, number: int) -> Entry:
    """An entry of the audit, or 404."""
    try:
        return service.audit.get(number)
    except KeyError:
        raise HTTPException(404, "Expected the number of an entry.") from None


def _short(entry: Entry) -> dict[str, Any]:
    body = entry.content()
    kept = ("status", "codes", "acceptable", "suggested", "source", "answer", "reason", "by",
            "audit_id", "preset", "replaces", "patient", "p")  # fmt: skip
    told = {name: body[name] for name in kept if name in body}
    return {"id": entry.id, "time": entry.time, "kind": entry.kind, "digest": entry.digest} | {
        "told": told
    }


def _lines(service: Service) -> Iterator[bytes]:
    number = 1
    while True:
        try:
            entry = service.audit.get(number)
        except KeyError:
            return
        yield (json.dumps(asdict(entry) | {"body": entry.content()}) + "\n").encode()
        number += 1
