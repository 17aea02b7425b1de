"""`stepdown app` and `stepdown audit verify`: their settings, and what they do.

Nothing here needs the web server's packages until it is started.
"""

import hashlib
import ipaddress
import json
import secrets
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepdown.app.audit import verify
from stepdown.app.engine import DRAWS
from stepdown.app.limits import DEFAULT_GATES, GateConfig, Limits, limits_from_dict

TOKEN = "token.sha256"


@dataclass(frozen=True)
class AppConfig:
    """Show the what-if screen of a finished run; research use, on recorded data."""

    run: Path  # folder of `stepdown run`
    port: int = 8000  # 0 lets the system choose
    host: str = "127.0.0.1"  # any other address than loopback needs a token
    state: Path | None = None  # folder for the audit; by default beside the run, `RUN-app`
    site: Path | None = None  # JSON file with stricter `limits` and `gates` of a site
    draws: int = DRAWS  # simulated courses
    timeout: float = 10.0  # s until a computation is given up (R14)
    queue: int = 16  # computations that may wait; more are sent away with 429

    def __post_init__(self):
        if not 0 <= self.port < 2**16:
            raise ValueError(f"--port: expected 0 to {2**16 - 1}, got {self.port}.")
        if not self.timeout > 0 or self.queue < 1:
            raise ValueError("expected a --timeout above 0 and a --queue of at least 1.")
        if self.draws < 50:
            raise ValueError(f"--draws: expected at least 50, got {self.draws}.")

    @property
    def folder(self) -> Path:
        """Where the audit is."""
        return self.state or self.run.with_name(f"{self.run.name}-app")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True)
class AuditConfig:
    """Verify the audit of an app: every entry, their order, and the end."""

    folder: Path  # the app's state folder, such as runs/demo-app


def serve(config: AppConfig) -> None:
    """Run the server until it is stopped."""
    try:
        import uvicorn

        from stepdown.app.server import create_app
        from stepdown.app.service import Service
    except ModuleNotFoundError as error:
        raise ValueError(
            f"expected the packages of the app, got no {error.name}. "
            "Install them: pip install 'stepdown[app]'."
        ) from None
    require_run(config.run)
    token = None if config.loopback else _token(config.folder)
    service = Service(config)
    service.start()
    port = config.port or _free_port(config.host)
    where = f"http://{config.host}:{port}/"
    _say(f"Research tool, not for patient care.\n{where} (ready after warm-up; Ctrl-C stops)\n")
    try:
        uvicorn.run(
            create_app(service, token),
            host=config.host,
            port=port,
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=5,
            limit_concurrency=512,
        )
    finally:
        service.stop()


def verify_audit(config: AuditConfig) -> int:
    """Print what verification found; 1 if the audit cannot be trusted."""
    found = verify(config.folder)
    if found.valid:
        _say(f"{found.entries} entries, each one follows the one before: the audit is whole.\n")
        return 0
    _say(f"{found.problem}\n{found.entries} entries before it are whole.\n")
    return 1


def require_run(run: Path) -> None:
    """Refuse a folder that is no run, in words."""
    lacking = [name for name in ("cohort", "twin", "guardian") if not (run / name).is_dir()]
    if lacking:
        raise ValueError(
            f"{run}: expected a finished run with {lacking[0]}/, found none. "
            "Make one with stepdown run demo --out runs/demo."
        )


def read_site(path: Path | None) -> tuple[Limits, GateConfig]:
    """The stricter limits and thresholds of a site."""
    if path is None:
        return Limits(), DEFAULT_GATES
    try:
        table: dict[str, Any] = json.loads(path.read_bytes())
        known = set(table) <= {"limits", "gates"}
        gates = GateConfig(**table.get("gates", {})) if known else None
    except (TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected JSON with limits and gates, got {error}.") from None
    if gates is None:
        raise ValueError(f"{path}: expected only limits and gates.")
    return limits_from_dict(table.get("limits", {})), gates


def hash_token(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _token(folder: Path) -> str:
    """The digest of the token; a new token is made once and said once."""
    file = folder / TOKEN
    if file.is_file():
        return file.read_text(encoding="ascii").strip()
    token = secrets.token_urlsafe(24)
    folder.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(hash_token(token), encoding="ascii")
    _say(f"Others can reach this address, so a token is needed. It is shown once: {token}\n")
    return hash_token(token)


def _free_port(host: str) -> int:
    with socket.socket() as free:
        free.bind((host, 0))
        return free.getsockname()[1]


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
