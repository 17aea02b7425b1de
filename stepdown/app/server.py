"""HTTP around the service, as thin as can be: paths, shapes, codes.

Answers are the bytes that the service made. Errors name a code and say what was expected, never
what was sent. See docs/app.md for the paths in words, /docs for all of them.
"""

import functools
import hmac
import secrets
from pathlib import Path

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException

from stepdown import __version__
from stepdown.app import wire
from stepdown.app.commands import hash_token
from stepdown.app.docs_page import docs_page
from stepdown.app.patients_api import patients_router
from stepdown.app.records_api import records_router
from stepdown.app.request import request_from_dict
from stepdown.app.security import COOKIE, Fence
from stepdown.app.service import Service
from stepdown.app.waiting import BusyError, Line
from stepdown.app.web import PROBLEMS, answer_whatif, problem

STATIC = Path(__file__).parent / "static"
LOCAL = ("127.0.0.1", "localhost", "::1")
BANNER = "Research tool, not for patient care"
PAGES = ("/", "/p/{patient}", "/p/{patient}/{screen}", "/model", "/limits", "/audit", "/review")


def create_app(service: Service, token: str | None = None) -> Fence:
    """The ASGI app of a service; `token` is the digest of the token that others need."""
    app = FastAPI(
        title="stepdown what-if",
        description=f"{BANNER}. Forecasts, support and refusals for recorded patients.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
    )
    line = Line(service.worker, service.config.queue, service.config.timeout)
    csrf = secrets.token_urlsafe(24)
    app.include_router(_about(service, csrf, token is not None))
    app.include_router(_login(token))
    app.include_router(_whatif(service, line))
    app.include_router(patients_router(service, line))
    app.include_router(records_router(service, line, csrf))
    app.include_router(_pages(app))
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _handle_errors(app)
    return Fence(app, line, LOCAL if token is None else None, token)


def _about(service: Service, csrf: str, needs_token: bool) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get("/healthz")
    async def healthz() -> JSONResponse:
        """Whether the process lives; says nothing about models."""
        return JSONResponse({"status": "alive"})

    @router.get("/readyz", responses={503: {"model": wire.Problem}})
    async def readyz() -> JSONResponse:
        """Whether answers can be given: models verified, loaded and warmed up."""
        if service.phase == "ready":
            return JSONResponse({"status": "ready", "model": service.engine.model})
        code = "R13" if service.phase == "refused" else "warming"
        told = service.problem or "The models are being loaded."
        body = {"code": code, "sentence": told, "where": [], "status": service.phase}
        return JSONResponse(body, 503, {"Retry-After": "2"})

    @router.get("/v1/session")
    async def session() -> JSONResponse:
        """The token that writes need in `X-CSRF-Token`, and what kind of server this is."""
        return JSONResponse(
            {
                "csrf": csrf,
                "needs_token": needs_token,
                "version": __version__,
                "banner": BANNER,
                "phase": service.phase,
            }
        )

    return router


def _login(token: str | None) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.post("/v1/login", responses=PROBLEMS)
    async def login(body: wire.LoginBody, response: Response) -> dict[str, str]:
        """Keep the token in a cookie that no script reads and no other site sends."""
        if token is None:
            raise HTTPException(409, "No token is needed on this machine itself.")
        if not hmac.compare_digest(hash_token(body.token), token):
            raise HTTPException(401, "Expected the token of this server.")
        response.set_cookie(COOKIE, body.token, httponly=True, samesite="strict")
        return {"status": "in"}

    return router


def _whatif(service: Service, line: Line) -> APIRouter:
    router = APIRouter(tags=["what-if"])

    @router.post("/v1/whatif", responses=PROBLEMS | {200: {"model": wire.Answer}})
    async def whatif(body: wire.WhatIfBody) -> Response:
        """What would happen under each level, for a moment that the caller describes."""
        try:
            request = request_from_dict(body.model_dump())
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return await answer_whatif(service, line, request, None)

    return router


def _pages(app: FastAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @functools.cache
    def documentation() -> str:
        return docs_page(app.openapi())

    @router.get("/docs")
    async def docs() -> HTMLResponse:
        return HTMLResponse(documentation())

    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    for path in PAGES:
        router.add_api_route(path, page)
    return router


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        where = [".".join(str(x)[:32] for x in one["loc"]) for one in error.errors()[:8]]
        words = error.errors()[0]["msg"] if error.errors() else "invalid"
        return problem(422, "invalid", f"Expected another body or query: {words[:200]}.", where)

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return problem(
            error.status_code, f"http_{error.status_code}", str(error.detail), [], error.headers
        )

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return problem(500, "internal", "Something failed here; the request is not to blame.", [])

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> JSONResponse:
        words = "Too many computations are waiting; try again."
        return problem(429, "busy", words, [], {"Retry-After": "1"})
