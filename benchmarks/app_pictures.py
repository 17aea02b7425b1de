"""The pictures of docs/app.md: `python benchmarks/app_pictures.py [RUN] [FOLDER]`.

Starts the app on a finished run (by default runs/demo), looks for a patient of each kind, and
photographs the screens with the Chromium of this machine. Needs the `test` extra.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

APP = """
import sys
from pathlib import Path
from stepdown.commands.app import AppConfig, serve
serve(AppConfig(Path(sys.argv[2]), port=int(sys.argv[1]), state=Path(sys.argv[3])))
"""
PORT = 8433
URL = f"http://127.0.0.1:{PORT}"
LARGEST = 250_000  # bytes of a picture
SETTLED = """() => !/(Loading|Computing|not looked at yet)/.test(document.body.innerText)
  && document.getElementById("main").childElementCount > 0"""


def main() -> None:
    """Start the app, take the pictures, stop it."""
    run = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/app")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state:
        server = subprocess.Popen([sys.executable, "-c", APP, str(PORT), str(run), state])
        try:
            patients = wait_for_reviews()
            with sync_playwright() as driver:
                options = ["--no-sandbox"] if os.geteuid() == 0 else []
                path = shutil.which("chromium") or shutil.which("google-chrome")
                browser = driver.chromium.launch(executable_path=path, args=options)
                for name, address, look in shots(patients):
                    take(browser, out / f"{name}.png", address, **look)
                browser.close()
        finally:
            server.terminate()
            server.wait()


def ask(path: str) -> Any:
    """What the API answers."""
    with urllib.request.urlopen(URL + path, timeout=30) as answer:
        return json.load(answer)


def wait_for_reviews(seconds: float = 120.0) -> list[dict[str, Any]]:
    """The patient list, once the server has looked at everybody."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            patients = ask("/v1/patients")["patients"]
        except OSError:
            patients = []
        if patients and all(one["review"] for one in patients):
            return patients
        time.sleep(1)
    raise TimeoutError(f"expected a ready server within {seconds:g} s.")


def shots(patients: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, address and look of each picture."""
    lower = next(
        one["patient"]
        for one in patients
        if (one["review"]["suggested"] or 9) < (one["p_now"] or 0)
    )
    refused = [one["patient"] for one in patients if one["review"]["rank"] == 0]
    stale = f"/p/{lower}/whatif?at={ask(f'/v1/patients/{lower}')['minute'] + 20:g}"
    return [
        ("whatif", f"/p/{lower}/whatif", {}),
        ("refused", f"/p/{refused[0]}/whatif" if refused else stale, {"theme": "light"}),
        ("patients", "/", {"theme": "light"}),
        ("trends", f"/p/{lower}/trends", {}),
        ("narrow", f"/p/{lower}/whatif", {"width": 320, "height": 1400}),
    ]


def take(
    browser: Browser, file: Path, address: str, theme: Any = "dark", width: int = 1280,
    height: int = 800,
) -> None:  # fmt: skip
    """One picture; larger ones than a document can bear are refused."""
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
    )
    page.goto(URL + address)
    page.wait_for_function(SETTLED)
    page.wait_for_timeout(300)  # the charts take the size of their boxes
    shot = page.screenshot()
    page.close()
    flat = Image.open(io.BytesIO(shot)).convert("RGB")
    flat.quantize(200, dither=Image.Dither.NONE).save(file, optimize=True)  # a quarter of the bytes
    size = file.stat().st_size
    print(f"{file}  {size / 1000:.0f} kB")
    if size > LARGEST:
        raise ValueError(f"{file}: expected at most {LARGEST} bytes, got {size}.")


if __name__ == "__main__":
    main()
