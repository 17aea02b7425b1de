"""One small run for all tests of the app."""

import pytest

from tests.app.wards import Client, add_policy, make_run, make_service


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    made = make_run(tmp_path_factory.mktemp("app") / "run")
    add_policy(made)
    return made


@pytest.fixture(scope="session")
def service(run, tmp_path_factory):
    made = make_service(run, tmp_path_factory.mktemp("state"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def engine(service):
    return service.engine


@pytest.fixture(scope="module")
def client(service):
    made = Client(service)
    yield made
    made.close()
