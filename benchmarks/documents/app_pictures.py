"""The pictures of docs/app.md: `python -m benchmarks.documents.app_pictures [RUN] [FOLDER]`.

Starts the app on a finished run (by default runs/demo), looks for a patient of each kind, and
photographs the screens with the Chromium of this machine. Needs the `test` extra.
"""

import argparse
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from benchmarks.servers import URL, get, serve_app, wait_for_reviews

LARGEST = 250_000  # bytes of a picture
SETTLED = """() => !/(Loading|Computing|not looked at yet)/.test(document.body.innerText)
  && document.getElementById("main").childElementCount > 0"""


def main() -> None:
    """Start the app, take the pictures, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="runs/demo", type=Path)
    parser.add_argument("folder", nargs="?", default="docs/app", type=Path)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state, serve_app(asked.run, Path(state)):
        patients = wait_for_reviews()
        with sync_playwright() as driver:
            options = ["--no-sandbox"] if os.geteuid() == 0 else []
            path = shutil.which("chromium") or shutil.which("google-chrome")
            browser = driver.chromium.launch(executable_path=path, args=options)
            for name, address, look in shots(patients):
                take(browser, asked.folder / f"{name}.png", address, **look)
            browser.close()


def shots(patients: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, address and look of each picture."""
    lower = next(
        one["patient"]
        for one in patients
        if (one["review"]["suggested"] or 9) < (one["p_now"] or 0)
    )
    refused = [one["patient"] for one in patients if one["review"]["rank"] == 0]
    stale = f"/p/{lower}/whatif?at={get(f'/v1/patients/{lower}')['minute'] + 20:g}"
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
