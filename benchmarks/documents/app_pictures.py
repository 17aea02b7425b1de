"""The pictures of docs/app.md: `python -m benchmarks.documents.app_pictures [RUN] [FOLDER]`.

Starts the app on a finished run (by default runs/demo), looks for a patient of each kind, and
photographs the screens with the Chromium of this machine. Needs the `test` extra.
"""

import argparse
import datetime
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from benchmarks.servers import URL, get, serve_app, wait_for_reviews
from stepdown.records.split import read_parts
from stepdown.signals import DBP, FLOW, HR, MAP, PULSATILITY, SBP

LARGEST = 250_000  # bytes of a picture
BEGIN = datetime.datetime(2025, 3, 7, 8, 0)
MAPPING = """kind = "values"
patient = { column = "Fall" }
time = { column = "Zeit", unit = "date", zone = "Europe/Berlin" }
level = { column = "Stufe" }
[signals]
map = { column = "MAD", unit = "mmHg" }
hr = { column = "HF", unit = "/min" }
sbp = { column = "RRsys", unit = "mmHg" }
dbp = { column = "RRdia", unit = "mmHg" }
pulsatility = { column = "Puls", unit = "mmHg" }
flow = { column = "Fluss", unit = "L/min" }
lactate = { column = "Laktat", unit = "mmol/L" }
"""
SETTLED = """() => !/(Loading|Computing|Waiting|not looked at yet)/.test(document.body.innerText)
  && document.getElementById("main").childElementCount > 0"""


def main() -> None:
    """Start the app, take the pictures, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="runs/demo", type=Path)
    parser.add_argument("folder", nargs="?", default="docs/app", type=Path)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as kept:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = driver.chromium.launch(executable_path=path, args=options)
        with serve_app(asked.run, Path(kept) / "state"):
            for name, address, look in shots(wait_for_reviews()):
                take(browser, asked.folder / f"{name}.png", address, **look)
        with serve_app(asked.run, Path(kept) / "own-state", *own_table(asked.run, Path(kept))):
            take(browser, asked.folder / "own.png", "/p/A1/trends", theme="light")
        browser.close()


def own_table(run: Path, folder: Path) -> list[str]:
    """A table with semicolons, decimal commas and local dates, and the words that show it."""
    test = read_parts(run / "cohort").test
    signals, level = np.asarray(test.signals[0], float), np.asarray(test.level[0])
    lines = ["Fall;Zeit;Stufe;MAD;HF;RRsys;RRdia;Puls;Fluss;Laktat"]
    for i in np.flatnonzero(np.asarray(test.seen[0])):
        stamp = (BEGIN + datetime.timedelta(minutes=test.minutes * int(i))).strftime(
            "%d.%m.%Y %H:%M"
        )
        values = [*signals[i, [MAP, HR, SBP, DBP, PULSATILITY, FLOW]], 1.8]
        told = [f"{x:.2f}".replace(".", ",") for x in values]
        lines.append(";".join(["A1", stamp, f"P-{level[i]}", *told]))
    (folder / "export.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "mapping.toml").write_text(MAPPING, encoding="utf-8")
    return ["--patients", str(folder / "export.csv"), "--columns", str(folder / "mapping.toml")]


def shots(patients: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, address and look of each picture."""
    lower = next(
        one["patient"]
        for one in patients
        if (one["review"]["suggested"] or 9) < (one["p_now"] or 0)
    )
    refused = [one["patient"] for one in patients if one["review"]["rank"] == 0]
    row = get(f"/v1/patients/{lower}")
    now = row["p_now"]
    plans = "".join(str(max(now - 1 - hour // 2, 2)) for hour in range(6)) + f",{str(now - 1) * 6}"
    stale = f"/p/{lower}/whatif?at={row['minute'] + 20:g}"
    return [
        ("whatif", f"/p/{lower}/whatif", {}),
        ("refused", f"/p/{refused[0]}/whatif" if refused else stale, {"theme": "light"}),
        ("patients", "/", {"theme": "light"}),
        ("trends", f"/p/{lower}/trends", {}),
        ("plans", f"/p/{lower}/plan?plans={plans}", {"height": 1560}),
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
