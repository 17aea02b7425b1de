"""One small run for all tests of the app, made once however many processes there are."""

import fcntl
import os

import pytest

from stepdown.app.recordings import request_at
from stepdown.app.whatif import what_if
from tests.app.small_run import Client, add_lactate, add_policy, make_run, make_service


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    made = root / "app" / "run"
    made.parent.mkdir(exist_ok=True)
    with (made.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second finds it made
        if not (made / "policy").is_dir():  # the last thing to be made
            add_policy(make_run(made))
    return made


@pytest.fixture(scope="session")
def service(run, tmp_path_factory):
    made = make_service(run, tmp_path_factory.mktemp("state"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def engine(service):
    return service.engine


@pytest.fixture(scope="session")
def further(run):
    """Models and patients with a further column."""
    return add_lactate(run)


@pytest.fixture(scope="session")
def recorded(service):
    """Requests of many recorded moments."""
    return [
        request_at(stay, float(minute))
        for stay in service.stays.values()
        for minute in range(420, int(stay.last), 200)
    ]


@pytest.fixture(scope="session")
def answered(engine, recorded):
    """Those that are not refused, with their answers."""
    pairs = [(request, what_if(engine, request)) for request in recorded]
    found = [(request, answer) for request, answer in pairs if answer["status"] == "ok"]
    assert len(found) > 20
    return found


@pytest.fixture(scope="module")
def client(service):
    made = Client(service)
    yield made
    made.close()
