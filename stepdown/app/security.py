"""The fence around the server, as plain ASGI: sizes, hosts, tokens, headers, a log without names.

A page of another site can neither read answers (no CORS), nor frame them, nor write: whatever is
kept comes by POST, which needs JSON and must not be sent by another site's page; what changes
something needs the token of the session in a header. Requests for another host name are refused,
which stops a name that was bent to this machine.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import re
import time
from http.cookies import CookieError, SimpleCookie
from typing import Any

from stepdown.app.service import Line

LARGEST = 128 * 1024  # bytes of a body
SLOWEST = 10.0  # s for a body to arrive
COOKIE = "stepdown_token"
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
ADDED = {  # by status of a refusal
    401: (b"www-authenticate", b"Bearer"),
    408: (b"connection", b"close"),
    413: (b"connection", b"close"),
    429: (b"retry-after", b"1"),
}
COMPUTED = re.compile(
    r"/v1/(patients/[^/]+/)?(whatif|plans)"
)  # what is sent away when the line is full
READING = ("GET", "HEAD")  # what keeps nothing
OPEN = ("/healthz", "/readyz", "/v1/login", "/v1/session")  # without a token
PAGE = re.compile(r"/(model|limits|audit|review|p/[^/]+(/[^/]+)?|static/.+)?")  # holds no patients
LOG = logging.getLogger("stepdown.app")


class Fence:
    """Everything that is checked before, and added after, what the app itself does."""

    def __init__(self, app: Any, line: Line, hosts: tuple[str, ...] | None, token: str | None):
        """`hosts` that may be asked for (None: any), `token` the digest of the one needed."""
        self.app, self.line, self.hosts, self.token = app, line, hosts, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass one request through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message, scope["path"])
            await send(message)

        headers = {key.decode("latin-1"): value for key, value in scope["headers"]}
        found = self._problem(scope, headers) or await _read_body(receive, headers)
        if isinstance(found, bytes):
            await self._call(scope, _replaying(found, receive), sending)
        else:
            await _answer(sending, *found)
        route = getattr(scope.get("route"), "path", "-")  # the pattern, never a patient
        LOG.info(
            "%s %s %s %.0f ms",
            scope["method"],
            route,
            status,
            1000 * (time.perf_counter() - started),
        )

    async def _call(self, scope: Any, receive: Any, send: Any) -> None:
        """The app; an error was answered already and is logged by its kind, not by its words."""
        try:
            await self.app(scope, receive, send)
        except Exception as error:  # noqa: BLE001  # words of errors may hold values of patients
            LOG.error("error of kind %s", type(error).__name__)

    def _problem(self, scope: Any, headers: dict[str, bytes]) -> tuple[int, str, str] | None:
        host = headers.get("host", b"").decode("latin-1").rsplit(":", 1)[0].strip("[]")
        if self.hosts is not None and host not in self.hosts:
            return 421, "host", "Expected a request for this machine."
        if self.token is not None and not _is_open(scope) and not self._has_token(headers):
            return 401, "token", "Expected the token of this server; log in with it first."
        if scope["method"] not in READING and _is_foreign(headers):
            return 403, "site", "Expected a request of this app's own pages or of no page at all."
        media = headers.get("content-type", b"").split(b";")[0].strip().lower()
        if scope["method"] == "POST" and media != b"application/json":
            return 415, "media", "Expected a body of type application/json."
        length = headers.get("content-length", b"0")
        if not length.isdigit() or int(length[:12]) > LARGEST:
            return 413, "size", f"Expected a body of at most {LARGEST} bytes."
        if COMPUTED.fullmatch(scope["path"]) and self.line.full:  # before the body is looked at
            return 429, "busy", "Too many computations are waiting; try again."
        return None

    def _has_token(self, headers: dict[str, bytes]) -> bool:
        given = headers.get("authorization", b"").decode("latin-1").removeprefix("Bearer ")
        if not given:
            try:
                jar = SimpleCookie(headers.get("cookie", b"").decode("latin-1"))
            except CookieError:
                return False
            given = jar[COOKIE].value if COOKIE in jar else ""
        return hmac.compare_digest(hash_token(given), self.token or "")


def hash_token(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _is_open(scope: Any) -> bool:
    """Whether a token is not needed: health, the way in, and the empty page that asks for it."""
    asked = scope["path"]
    reading = scope["method"] in READING
    return asked in OPEN or (reading and PAGE.fullmatch(asked) is not None)


def _is_foreign(headers: dict[str, bytes]) -> bool:
    """Whether a page of another site sent this, as the browser tells; programs tell nothing."""
    if headers.get("sec-fetch-site", b"none").lower() not in (b"none", b"same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get("host")


async def _read_body(receive: Any, headers: dict[str, bytes]) -> bytes | tuple[int, str, str]:
    """The whole body, within bytes and seconds; a request without one is not waited for."""
    if "content-length" not in headers and "transfer-encoding" not in headers:
        return b""
    parts, size, more = [], 0, True
    until = time.monotonic() + SLOWEST
    while more:
        try:
            message = await asyncio.wait_for(receive(), until - time.monotonic())
        except TimeoutError:
            return 408, "slow", f"Expected the body within {SLOWEST:g} s."
        if message["type"] == "http.disconnect":
            return 400, "gone", "Expected a body, got the end of the connection."
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST:
            return 413, "size", f"Expected a body of at most {LARGEST} bytes."
        more = message.get("more_body", False)
    return b"".join(parts)


def _replaying(body: bytes, receive: Any) -> Any:
    """A `receive` that hands out the body that was read already."""
    given = False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _add_headers(message: Any, path: str) -> None:
    known = {key for key, _ in message["headers"]}
    stored = "no-cache" if path.startswith("/static/") else "no-store"
    added = HEADERS | {"cache-control": stored}
    for name, value in added.items():
        if name.encode() not in known:
            message["headers"].append((name.encode(), value.encode()))


async def _answer(send: Any, status: int, code: str, sentence: str) -> None:
    body = json.dumps({"code": code, "sentence": sentence, "where": []}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [ADDED[status]] if status in ADDED else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
