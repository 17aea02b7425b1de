"""HTTP around the service, as thin as can be: paths, shapes, codes.

Answers are the bytes that the service made. Errors name a code and say what was expected, never
what was sent. See docs/app.md for the paths in words, /docs for all of them.
"""

import functools
import hmac
import html
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException

from stepdown import __version__
from stepdown.app import wire
from stepdown.app.routes import PROBLEMS, patients_router, records_router, whatif_router
from stepdown.app.security import COOKIE, Fence, hash_token
from stepdown.app.service import BANNER, BusyError, Line, Service

STATIC = Path(__file__).parent / "static"
LOCAL = ("127.0.0.1", "localhost", "::1")
PAGES = ("/", "/p/{patient}", "/p/{patient}/{screen}", "/model", "/limits", "/audit", "/review")


def serve(service: Service, host: str, port: int, token: str | None) -> None:
    """Answer requests until stopped."""
    uvicorn.run(
        create_app(service, token),
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=5,
        limit_concurrency=512,
    )


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
    app.include_router(whatif_router(service, line))
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
        return _problem(422, "invalid", f"Expected another body or query: {words[:200]}.", where)

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return _problem(
            error.status_code, f"http_{error.status_code}", str(error.detail), [], error.headers
        )

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return _problem(500, "internal", "Something failed here; the request is not to blame.", [])

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> JSONResponse:
        words = "Too many computations are waiting; try again."
        return _problem(429, "busy", words, [], {"Retry-After": "1"})


def _problem(
    status: int,
    code: str,
    sentence: str,
    where: list[str],
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An error as JSON."""
    body = {"code": code, "sentence": sentence, "where": where}
    return JSONResponse(body, status, dict(headers or {}))


# ── the documentation ─────────────────────────────────────────────────────────────────────────────


def docs_page(api: dict[str, Any]) -> str:
    """All paths with parameters, bodies and answers, without a script or a foreign host."""
    title = html.escape(api["info"]["title"])
    paths = "".join(
        _operation(path, method, entry[method])
        for path, entry in api["paths"].items()
        for method in ("get", "post")
        if method in entry
    )
    shapes = api.get("components", {}).get("schemas", {})
    listed = "".join(
        f'<section id="{html.escape(name)}"><h3>{html.escape(name)}</h3>{_json(shape)}</section>'
        for name, shape in shapes.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        '<link rel="stylesheet" href="/static/docs.css"></head><body>'
        f'<p class="banner" data-testid="research-banner" role="note">{BANNER}</p>'
        f"<main><h1>{title}</h1><p>{html.escape(api['info']['description'])}</p>"
        '<p>For programs: <a href="/openapi.json">openapi.json</a></p>'
        f"<h2>Paths</h2>{paths}<h2>Shapes</h2>{listed}</main></body></html>"
    )


def _operation(path: str, method: str, entry: dict[str, Any]) -> str:
    given = "".join(
        f"<li><code>{html.escape(one['name'])}</code> in {one['in']}: "
        f"<code>{html.escape(json.dumps(one['schema']))}</code></li>"
        for one in entry.get("parameters", [])
    )
    body = entry.get("requestBody", {}).get("content", {}).get("application/json", {})
    sent = f"<p>Body: {_link(body['schema'])}</p>" if body else ""
    answers = "".join(
        f"<li>{status}: {html.escape(one.get('description', ''))} {_answer(one)}</li>"
        for status, one in entry["responses"].items()
    )
    words = html.escape(entry.get("description") or entry.get("summary", ""))
    return (
        f"<section><h3><code>{method.upper()} {html.escape(path)}</code></h3><p>{words}</p>"
        f"<ul>{given}</ul>{sent}<ul>{answers}</ul></section>"
    )


def _answer(one: dict[str, Any]) -> str:
    content = one.get("content", {}).get("application/json", {})
    return _link(content["schema"]) if "schema" in content else ""


def _link(schema: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rsplit("/", 1)[-1]
    if not name:
        return f"<code>{html.escape(json.dumps(schema))}</code>"
    return f'<a href="#{html.escape(name)}">{html.escape(name)}</a>'


def _json(value: Any) -> str:
    return f"<pre>{html.escape(json.dumps(value, indent=2))}</pre>"
