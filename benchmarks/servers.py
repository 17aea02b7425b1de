"""The app as a process of its own, and how it is asked."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PORT = 8441
URL = f"http://127.0.0.1:{PORT}"


@contextmanager
def serve_app(run: Path, state: Path, *more: str, **options: Any) -> Iterator[subprocess.Popen]:
    """`stepdown app` on a finished run, once it is ready; stopped in the end."""
    words = ["app", str(run), "--port", str(PORT), "--state", str(state), *more]
    command = [sys.executable, "-m", "stepdown", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, **options) as server:
        try:
            wait(f"{URL}/readyz")
            yield server
        finally:
            server.terminate()


def wait(url: str) -> None:
    """Until a server answers with 200, at most two minutes."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, timeout=1) as found:
                if found.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"expected an answer of {url} within two minutes, got none.")


def get(path: str) -> Any:
    """JSON of the app."""
    with urllib.request.urlopen(URL + path, timeout=60) as found:
        return json.load(found)


def ask(path: str) -> Any:
    """The answer for a recorded moment, which the app keeps."""
    media = {"content-type": "application/json"}
    sent = urllib.request.Request(URL + path, b"{}", media)
    with urllib.request.urlopen(sent, timeout=60) as found:
        return json.load(found)


def wait_for_reviews() -> list[dict[str, Any]]:
    """The patients, once the app has looked at all of them in the background."""
    while True:
        patients = get("/v1/patients")["patients"]
        if all(row["review"] is not None for row in patients):
            return patients
        time.sleep(0.5)
