"""`stepdown app`: the what-if screen of a finished run, served until it is stopped.

Nothing here needs the web server's packages until it is started.
"""

import ipaddress
import secrets
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from stepdown.app.engine import FEWEST_DRAWS
from stepdown.app.own_patients import Own
from stepdown.app.security import hash_token
from stepdown.app.service import BANNER, Service, ServiceConfig

TOKEN = "token.sha256"


@dataclass(frozen=True)
class AppConfig:
    """Show the what-if screen of a finished run; research use, on recorded data."""

    run: Positional[Path]  # folder of `stepdown run`
    port: int = 8000  # 0 lets the system choose
    host: str = "127.0.0.1"  # any other address than loopback needs a token
    patients: Path | None = None  # cohort of your own, shown instead of the run's test patients
    columns: Path | None = None  # mapping file: --patients are recordings, read anew as they grow
    fewer: tuple[Path, ...] = ()  # runs whose models read fewer signals, for who has fewer
    state: Path | None = None  # folder for the audit; by default beside the run, `RUN-app`
    site: Path | None = None  # JSON file with stricter `limits` and `gates` of a site
    draws: int = ServiceConfig.draws  # simulated courses
    timeout: float = ServiceConfig.timeout  # s until a computation is given up (R14)
    queue: int = ServiceConfig.queue  # computations that may wait; more are sent away with 429

    def __post_init__(self):
        if not 0 <= self.port < 2**16:
            raise ValueError(f"--port: expected 0 to {2**16 - 1}, got {self.port}.")
        if not self.timeout > 0 or self.queue < 1:
            raise ValueError("expected a --timeout above 0 and a --queue of at least 1.")
        if self.columns is not None and self.patients is None:
            raise ValueError("--columns: expected --patients with the recordings that it maps.")
        if self.draws < FEWEST_DRAWS:
            raise ValueError(f"--draws: expected at least {FEWEST_DRAWS}, got {self.draws}.")

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


def serve(config: AppConfig) -> None:
    """Run the server until it is stopped."""
    try:
        from stepdown.app import server
    except ModuleNotFoundError as error:
        raise ValueError(
            f"expected the packages of the app, got no {error.name}. "
            "Install them: pip install 'stepdown[app]'."
        ) from None
    for run in (config.run, *config.fewer):
        require_run(run)
    door = open_door(config.host, config.port)  # before the models, which take long
    token = None if config.loopback else _token(config.folder)
    service = Service(
        ServiceConfig(
            run=config.run,
            folder=config.folder,
            patients=None if config.patients is None else Own(config.patients, config.columns),
            fewer=config.fewer,
            site=config.site,
            draws=config.draws,
            timeout=config.timeout,
            queue=config.queue,
        )
    )
    service.start()
    where = f"http://{config.host}:{door.getsockname()[1]}/"
    _say(f"{BANNER}.\n{where} (ready after warm-up; Ctrl-C stops)\n")
    try:
        server.serve(service, door, token)
    finally:
        service.stop()


def require_run(run: Path) -> None:
    """Refuse a folder that is no run, in words."""
    lacking = [name for name in ("cohort", "twin", "guardian") if not (run / name).is_dir()]
    if lacking:
        raise ValueError(
            f"{run}: expected a finished run with {lacking[0]}/, found none. "
            "Make one with stepdown run demo --out runs/demo."
        )


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


def open_door(host: str, port: int) -> socket.socket:
    """The socket that will be listened at; one that is taken is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ValueError(
            f"expected an address that is free, got {host} port {port}: {error.strerror}. "
            "Stop what listens there, or choose another --port."
        ) from None


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
