"""What the routers share: how an answer is made and sent, and how a problem is said."""

import asyncio
import hmac
from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException, Response
from fastapi.responses import JSONResponse

from stepdown.app import wire
from stepdown.app.recordings import Stay
from stepdown.app.request import Request
from stepdown.app.service import Service
from stepdown.app.waiting import Line

JSON = "application/json"
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


def problem(
    status: int,
    code: str,
    sentence: str,
    where: list[str],
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An error as JSON."""
    body = {"code": code, "sentence": sentence, "where": where}
    return JSONResponse(body, status, dict(headers or {}))


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


def find_stay(service: Service, patient: str) -> Stay:
    """A recorded patient, or 404."""
    if patient not in service.stays:
        raise HTTPException(404, "Expected a patient of this run.")
    return service.stays[patient]


def require_csrf(given: str, wanted: str) -> None:
    """Refuse a write that another site may have sent."""
    if not hmac.compare_digest(given.encode(), wanted.encode()):
        raise HTTPException(403, "Expected the header X-CSRF-Token from /v1/session.")


def clip(text: str) -> str:
    """Free text for the audit: without control characters, of bounded length."""
    printable = "".join(c for c in text if c.isprintable() or c == "\n")
    return printable.encode("utf-8", "replace").decode()[: wire.REASON]
