"""The real server on a real port, in a thread; it can be stopped in the middle of a view."""

import json
import threading
from typing import Any

import httpx
import uvicorn

from stepdown.app.server import create_app
from stepdown.app.service import Service


class Served:
    """One service at one address; `token` is the digest of the token that is needed."""

    def __init__(self, service: Service, token: str | None = None):
        """Start, and wait until the port is open."""
        config = uvicorn.Config(
            create_app(service, token),
            host="127.0.0.1",
            port=0,
            access_log=False,
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            self.thread.join(0.01)
            assert self.thread.is_alive(), "the server did not start"
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=None)

    def ask(self, path: str) -> Any:
        """What the API answers, as JSON."""
        answer = self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    def tell(self, path: str, body: Any) -> Any:
        """A POST with the token of the session, as JSON."""
        token = self.ask("/v1/session")["csrf"]
        answer = self.http.post(path, json=body, headers={"X-CSRF-Token": token})
        answer.raise_for_status()
        return answer.json()

    def answer(self, path: str) -> Any:
        """The answer for a recorded moment, which is kept."""
        answer = self.http.post(f"/v1/patients/{path}", json={})
        answer.raise_for_status()
        return answer.json()

    def stop(self) -> None:
        """Close the port and every connection."""
        self.http.close()
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(10)


def posted(served: Served, body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The answer to a hand-made moment: a recorded one with changes."""
    made = json.loads(json.dumps(body)) | changes
    answer = served.http.post("/v1/whatif", json=made)
    assert answer.status_code == 200, answer.text
    return answer.json()
