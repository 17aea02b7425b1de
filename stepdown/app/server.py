"""HTTP around the service, as thin as can be: paths, shapes, codes.

Answers are the bytes that the service made. Errors name a code and say what was expected, never
what was sent. See docs/app.md for the paths in words, /docs for all of them.
"""

import html
import json
import secrets
import socket
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException

from stepdown import __version__
from stepdown.app.connections import Bounded
from stepdown.app.routes import ROUTERS, Desk
from stepdown.app.security import LOG, Fence
from stepdown.app.service import BANNER, BusyError, Line, Service

STATIC = Path(__file__).parent / "static"
LOCAL = ("127.0.0.1", "localhost", "::1")
PAGES = ("/", "/p/{patient}", "/p/{patient}/{screen}", "/model", "/limits", "/audit", "/review")


def serve(service: Service, door: socket.socket, token: str | None) -> None:
    """Answer requests at an open door until stopped."""
    make_server(create_app(service, token)).run(sockets=[door])


def make_server(app: Fence) -> uvicorn.Server:
    """The server of an app, not started yet."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            port=0,
            http=Bounded,
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=5,
        )
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
    app.state.desk = Desk(service, line, secrets.token_urlsafe(24), token)
    for router in ROUTERS:
        app.include_router(router)

    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    app.add_api_route("/docs", docs, include_in_schema=False)
    for path in PAGES:
        app.add_api_route(path, page, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _handle_errors(app)
    return Fence(app, line, LOCAL if token is None else None, token)


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        where = [".".join(str(x)[:32] for x in one["loc"]) for one in error.errors()[:8]]
        words = error.errors()[0]["msg"] if error.errors() else "invalid"
        sentence = f"Expected another body or query: {words[:200]}."
        return _problem(422, "invalid", sentence, where=where)

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        status = error.status_code
        return _problem(status, f"http_{status}", str(error.detail), error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return _problem(500, "internal", "Something failed here; the request is not to blame.")

    @app.exception_handler(sqlite3.OperationalError)
    async def unkept(request: Request, error: sqlite3.OperationalError) -> JSONResponse:
        LOG.error("the audit cannot be written: %s", error)
        words = "The audit cannot be written, so nothing is shown; is the disk full?"
        return _problem(503, "audit", words, {"Retry-After": "2"})

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> JSONResponse:
        words = "Too many computations are waiting; try again."
        return _problem(429, "busy", words, {"Retry-After": "1"})


def _problem(
    status: int,
    code: str,
    sentence: str,
    headers: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
) -> JSONResponse:
    """An error as JSON."""
    body = {"code": code, "sentence": sentence, "where": list(where)}
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
    shapes = "".join(
        f'<section id="{html.escape(name)}"><h3>{html.escape(name)}</h3>'
        f"<pre>{html.escape(json.dumps(shape, indent=2))}</pre></section>"
        for name, shape in api["components"]["schemas"].items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        '<link rel="stylesheet" href="/static/docs.css"></head><body>'
        f'<p class="banner" data-testid="research-banner" role="note">{BANNER}</p>'
        f"<main><h1>{title}</h1><p>{html.escape(api['info']['description'])}</p>"
        '<p>For programs: <a href="/openapi.json">openapi.json</a></p>'
        f"<h2>Paths</h2>{paths}<h2>Shapes</h2>{shapes}</main></body></html>"
    )


def _operation(path: str, method: str, entry: dict[str, Any]) -> str:
    given = "".join(
        f"<li><code>{html.escape(one['name'])}</code> in {one['in']}: {_code(one['schema'])}</li>"
        for one in entry.get("parameters", [])
    )
    sent = f"<p>Body: {_shape(entry['requestBody'])}</p>" if "requestBody" in entry else ""
    answers = "".join(
        f"<li>{status}: {html.escape(one['description'])} {_shape(one)}</li>"
        for status, one in entry["responses"].items()
    )
    words = html.escape(entry.get("description") or entry.get("summary", ""))
    return (
        f"<section><h3><code>{method.upper()} {html.escape(path)}</code></h3><p>{words}</p>"
        f"<ul>{given}</ul>{sent}<ul>{answers}</ul></section>"
    )


def _shape(told: dict[str, Any]) -> str:
    """What a body or an answer looks like: a link to its shape, or the schema itself."""
    schema = told.get("content", {}).get("application/json", {}).get("schema")
    if schema is None:
        return ""
    name = html.escape(schema.get("$ref", "").rsplit("/", 1)[-1])
    return f'<a href="#{name}">{name}</a>' if name else _code(schema)


def _code(schema: dict[str, Any]) -> str:
    return f"<code>{html.escape(json.dumps(schema))}</code>"
