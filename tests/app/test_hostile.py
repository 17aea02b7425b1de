"""Hostile bodies, hosts and words: 4xx, no crash, nothing repeated, nothing logged."""

import contextlib
import logging
import re
import select
import socket
import threading
import time
from collections import Counter

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from stepdown.app import connections
from stepdown.app.security import LARGEST
from stepdown.app.server import make_server
from tests.app.sample_sizes import count

PATHS = ("/v1/whatif", "/v1/responses", "/v1/limits", "/v1/choices", "/v1/login")


def moment(values: bytes) -> bytes:
    start = b'{"t_end":"2000-01-01T00:00:00Z","channels":{"MAP":{"unit":"mm[Hg]","values":['
    return start + values + b"]}}}"


BODIES = {
    "empty": b"",
    "no JSON": b"MAP=72",
    "half a JSON": b'{"t_end": "2000',
    "bad UTF-8": b'{"t_end": "\xff\xfe"}',
    "deep": b"[" * 60_000,
    "deep object": b'{"a":' * 20_000,
    "a long list": moment(b"1," * 40_000 + b"1"),
    "NaN": moment(b"NaN"),
    "infinity": moment(b"1e999"),
    "a level": moment(b'"P5"'),
    "a comma": moment(b'"1,5"'),
    "a digit too long": moment(b"1" * 4000),
    "null": b"null",
    "a number": b"1" * 5000,
    "lone surrogate": b'{"token": "\\ud800", "patient": "\\ud800"}',
}
PAGES = ("/", "/docs", "/v1/patients", "/healthz", "/nothing", "/p/x/whatif")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BODIES)
def test_hostile_bodies_are_refused_before_any_work(client, path, name):
    """S5; how long that takes is measured by benchmarks/speed/app.py."""
    before = client.service.audit.newest(1)
    found = client.raw(path, BODIES[name])
    assert 400 <= found.status_code < 500, found.text
    assert set(found.json()) == {"code", "sentence", "where"}
    assert client.service.audit.newest(1) == before  # nothing was computed, nothing is kept


def test_a_large_body_is_refused_before_it_is_read(client):
    assert client.raw("/v1/whatif", b"1" * 10_000_000).status_code == 413

    async def pieces():
        for _ in range(1000):
            yield b"1" * 1000

    assert client.raw("/v1/whatif", pieces()).status_code == 413
    assert LARGEST < 1_000_000


def test_only_json_is_taken(client):
    found = client.raw("/v1/whatif", b"{}", media="text/plain")
    assert (found.status_code, found.json()["code"]) == (415, "media")


def test_another_host_is_refused(client):
    assert client.get("/v1/patients", headers={"Host": "evil.example"}).status_code == 421
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_carries_the_headers(client, path):
    """S7."""
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/", "/docs", "/p/p002/whatif", "/audit"])
def test_pages_carry_the_banner_and_nothing_foreign(client, path):
    page = client.get(path).text
    assert "Research tool, not for patient care" in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    assert "<script>" not in page


def test_unknown_things_are_404_and_do_not_come_back(client):
    for path in ("/v1/patients/nobody/trends", "/v1/audit/99999", "/v1/nothing"):
        found = client.get(path)
        assert found.status_code == 404
        assert "nobody" not in found.text


@given(name=st.text(min_size=1, max_size=80))
@settings(
    max_examples=count(40, 10_000), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_name_reaches_the_log(client, caplog, name):
    """S9, with a mark that no log line may hold."""
    marked = f"zq{name}qz".replace("/", "")
    with caplog.at_level(logging.DEBUG, logger="stepdown.app"):
        client.http.params = {}
        client.get("/v1/patients/" + marked.encode("utf-8", "replace").hex() + "zqzq/trends")
        client.post("/v1/whatif", {"t_end": marked.encode("utf-8", "replace").decode()[:30]})
    assert "zqzq" not in caplog.text
    assert marked not in caplog.text


@pytest.fixture
def port(client):
    """The app behind a real socket."""
    server = make_server(client.app)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def test_many_who_never_finish_asking_hold_nobody_up(port):
    """S5, slow loris: half requests stay open while whole ones are answered."""
    half = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for number, one in enumerate(half):
        one.sendall(b"POST /v1/whatif HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        if number % 2:
            one.sendall(b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
    for _ in range(5):
        found = httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=None)
        assert found.json() == {"status": "alive"}
    answered, _, _ = select.select(half, [], [], 0)
    for one in half:
        one.close()
    assert answered == []  # they were all still waiting when the whole ones had their answers


def _half(port, many):
    found = [socket.create_connection(("127.0.0.1", port)) for _ in range(many)]
    for one in found:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    return found


def test_half_sent_headers_lock_nobody_out(port):
    """More of them than there are places; the oldest lose theirs."""
    half, answers = _half(port, 520), select.poll()  # it takes more files than `select` does
    for one in half:
        answers.register(one, select.POLLIN)
    found = httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5.0)
    closed = answers.poll(0)
    for one in half:
        one.close()
    assert found.json() == {"status": "alive"}
    assert len(closed) >= 520 - connections.PER_CLIENT


def test_headers_have_to_arrive_in_time(port, monkeypatch):
    monkeypatch.setattr(connections, "HEADERS_WITHIN", 0.2)
    (one,) = _half(port, 1)
    one.settimeout(5.0)
    with one, contextlib.suppress(ConnectionResetError):
        assert one.recv(1) == b""  # closed by the server, not by our patience


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:8000"}, 200),
        ({}, 200),
    ],
)
def test_a_page_of_another_site_writes_nothing(client, headers, status):
    """Neither by POST nor by an address that it makes a browser open."""
    patient, before = sorted(client.service.stays)[0], client.service.audit.newest(1)
    path = f"/v1/patients/{patient}/whatif"
    assert client.get(path, headers=headers).status_code == 405
    assert client.post(path, {}, headers=headers).status_code == status
    assert (client.service.audit.newest(1) == before) == (status == 403)


CHECKED = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
HEALTH = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
SKIPPED = ("/v1/audit/export", "/v1/audit/verify", "/v1/model/calibration")  # nothing to vary


def test_the_api_keeps_to_its_own_schema(client):
    """Schemathesis, bounded: no 5xx and no answer outside the schema, whatever comes."""
    api = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    tried: Counter[int] = Counter()
    for result in api.get_all_operations():
        assert isinstance(result, Ok)  # the schema can be read
        operation = result.ok()
        if operation.path not in SKIPPED:
            _try(operation, client, tried)
    assert sum(tried.values()) > count(250, 10_000)
    assert tried[200] > 20
    assert tried[422] > 100
    assert not [status for status in tried if status >= 500]


def _try(operation, client, tried):
    for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=count(12, 600), suppress_health_check=HEALTH, database=None)
        def one(case):
            sent = case.as_transport_kwargs(base_url="http://127.0.0.1:8000")
            content = {"json": sent["json"]} if "json" in sent else {"content": sent.get("data")}
            answer = client.send(
                sent["method"], sent["url"], sent.get("params"), sent.get("headers"), content
            )
            tried[answer.status_code] += 1
            case.validate_response(answer, checks=CHECKED)

        with contextlib.suppress(Unsatisfiable):  # a path without anything to get wrong
            one()
