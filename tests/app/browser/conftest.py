"""One server for all tests of the page and one browser for each file; both are the real ones."""

import os
import shutil
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Error, expect, sync_playwright

from tests.app.browser.serving import Served
from tests.app.small_run import beside

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 30_000  # ms; only a busy machine needs it
OUTSIDE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"  # no other host is found

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def chromium():
    """Where the browser is; without one nothing else is begun."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"expected a browser ({', '.join(NAMES)}), found none; apt install chromium")
    return path


# Not for the whole session: while Playwright runs, no other event loop can run in this thread.
@pytest.fixture(scope="module")
def browser(chromium):
    options = [OUTSIDE, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as driver:
        try:
            made = driver.chromium.launch(executable_path=chromium, args=options)
        except Error as error:
            pytest.skip(
                f"expected a browser that starts, got {chromium}: {str(error).splitlines()[0]}"
            )
        yield made
        made.close()


@pytest.fixture(scope="session")
def served(chromium, request):
    made = Served(request.getfixturevalue("service"))
    yield made
    made.stop()


@pytest.fixture
def page(browser, served):
    """A page of its own; nothing may fail in it unseen."""
    context = browser.new_context(
        base_url=served.url,
        viewport={"width": 1280, "height": 800},
        color_scheme="dark",
        reduced_motion="reduce",  # colors change at once
    )
    context.set_default_timeout(PATIENCE)
    made = context.new_page()
    failed: list[str] = []
    made.on("pageerror", lambda error: failed.append(str(error)))
    yield made
    context.close()
    assert failed == []


@dataclass(frozen=True)
class Moment:
    """A recorded moment and the address of its what-if screen."""

    patient: str
    minute: int
    answer: dict[str, Any]

    @property
    def path(self) -> str:
        return f"/p/{self.patient}/whatif?at={self.minute}&h=6"


@pytest.fixture(scope="session")
def moments(served):
    """Recorded moments of each kind: with a suggestion, with refused levels, refused."""
    found: dict[str, Moment] = {}
    for row in served.ask("/v1/patients")["patients"]:
        for minute in range(60, int(row["minute"]) + 1, 60):
            answer = served.answer(f"{row['patient']}/whatif?at={minute}")
            for kind in _kinds(answer):
                found.setdefault(kind, Moment(row["patient"], minute, answer))
            if len(found) == 3:
                return found
    return found


def _kinds(answer: dict[str, Any]) -> list[str]:
    if answer["status"] == "refused":
        return ["refused"]
    refused = [one for one in answer["candidates"] if one["status"] == "refused"]
    codes = [one["code"] for level in refused for one in level["refusals"]]
    kinds = ["levels"] if "R10" in codes and len(refused) < 8 else []
    return [
        *kinds,
        *(["suggested"] if len(answer["acceptable"]) > 1 and answer["p_now"] < 9 else []),
    ]


@pytest.fixture(scope="session")
def body(served, moments):
    """A valid body for a hand-made moment, taken from a recorded one."""
    number = moments["suggested"].answer["audit_id"]
    return served.ask(f"/v1/audit/{number}")["body"]["request"]


@pytest.fixture(scope="session")
def low(chromium, service, tmp_path_factory):
    """A server that has seen every hour twenty times, so that P-3 has support, and a moment."""
    engine = service.engine
    rows = ("points", "level", "before", "patient", "hour", "later")
    often = {name: np.concatenate([getattr(engine.support, name)] * 20) for name in rows}
    often_seen = replace(engine, support=replace(engine.support, **often))
    other = beside(service, tmp_path_factory.mktemp("low"), engine=often_seen)
    made = Served(other)
    yield made, _low_moment(made)
    made.stop()
    other.stop()


def _low_moment(served: Served) -> dict[str, Any]:
    for row in served.ask("/v1/patients")["patients"]:
        for minute in range(int(row["minute"]), 0, -60):
            answer = served.answer(f"{row['patient']}/whatif?at={minute}")
            if answer["candidates"][1]["status"] == "ok":
                return served.ask(f"/v1/audit/{answer['audit_id']}")["body"]["request"]
    raise AssertionError("no recorded moment has a forecast at P-3")
