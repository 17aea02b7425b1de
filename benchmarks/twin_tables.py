"""Turn measured numbers into the tables of docs/results.md: `python benchmarks/twin_tables.py`.

Reads docs/results/*.json, which `benchmarks/twin.py` and `benchmarks/guardian_rates.py` wrote, and
rewrites what lies between the markers of the page.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from guardian_rates import rates_table, shifts_table  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).parent.parent / "docs"
PAGE, DATA = HERE / "results.md", HERE / "results"
COLUMNS = ("mae", "mae_z", "mae_map", "mae_static", "mae_changing", "crps", "crps_z", "coverage90")
DIFFERENCES = ("mae", "mae_z", "mae_map", "mae_changing", "crps", "crps_z")


def main() -> None:
    """Fill every table whose numbers are there."""
    page = PAGE.read_text(encoding="utf-8")
    for name, (file, make) in TABLES.items():
        if (DATA / file).is_file():
            found = json.loads((DATA / file).read_text(encoding="utf-8"))
            page = fill(page, name, make(found))
    PAGE.write_text(page, encoding="utf-8")


def fill(page: str, name: str, text: str) -> str:
    """Put a table between its two markers."""
    block = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not block.search(page):
        raise SystemExit(f"expected the markers of {name!r} in {PAGE.name}, found none.")
    return block.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)


def twins(found: dict[str, Any]) -> str:
    """Scores by model, then the best twin minus each other one."""
    models = found["models"]
    lines = ["| model | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, one in models.items():
        cells = [_mean_sd(one["scores"][key]) for key in COLUMNS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Best minus the other, 95 % interval by a bootstrap over patients:", ""]
    lines += ["| against | " + " | ".join(DIFFERENCES) + " |"]
    lines += ["|---" * (len(DIFFERENCES) + 1) + "|"]
    for name, one in models.items():
        if name == "best":
            continue
        cells = [_interval(one["best_minus_this"][key]) for key in DIFFERENCES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _about(found)])


def growth(found: dict[str, Any]) -> str:
    """Error over six hours."""
    lines = ["| model | signal | " + " | ".join(f"{h} h" for h in range(1, 7)) + " |"]
    lines.append("|---" * 8 + "|")
    for name, one in found["models"].items():
        for signal, values in one.get("growth", {}).items():
            cells = [f"{x:.2f} ({100 * c:.0f} %)" for x, c in
                     zip(values["mae"], values["coverage90"], strict=True)]  # fmt: skip
            lines.append(f"| {name} | {signal} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fresh(found: dict[str, Any]) -> str:
    """Coverage of the 90 % band."""
    seeds = found["seeds"]
    parts = {
        "all hours": [s["overall"] for s in seeds],
        "level changes": [s["changing"] for s in seeds],
    }
    for level in seeds[0]["by_level"]:
        parts[level] = [s["by_level"][level] for s in seeds]
    lines = ["| hours | coverage of the 90 % band | number of hours |", "|---|---|---|"]
    for name, values in parts.items():
        count = seeds[0]["hours"].get(name, found["hours"] if name == "all hours" else "")
        shown = f"{count:,}" if count else ""
        lines.append(f"| {name} | {100 * np.mean(values):.1f} % | {shown} |")
    return "\n".join([*lines, "", _about(found)])


def levels(found: dict[str, Any]) -> str:
    """Slopes per level and the value of constant levels, forecast beside truth."""
    lines = [
        "| preset | who | flow, L/min | MAP after 1 h, mmHg | MAP after 6 h, mmHg | "
        "value of P2, P3, ... P9 over six hours |",
        "|---|---|---|---|---|---|",
    ]
    for preset, rows in found["presets"].items():
        for who, one in rows.items():
            cells = [f"{one['slope'][k]:+.2f}" for k in ("flow", "map", "late_map")]
            if who != "truth":
                cells = [
                    f"{cell} [{one['slope_minus_truth'][k][1]:+.2f}, "
                    f"{one['slope_minus_truth'][k][2]:+.2f}]"
                    for cell, k in zip(cells, ("flow", "map", "late_map"), strict=True)
                ]
            values = " ".join(f"{x:.2f}" for x in one["value"])
            lines.append(f"| {preset} | {who} | " + " | ".join(cells) + f" | {values} |")
    return "\n".join([*lines, "", _about(found)])


def guardians(found: dict[str, Any]) -> str:
    """False alarms and what is noticed, over fresh cohorts."""
    count = len(next(iter(found.values())))
    parts = [f"{count} cohorts.", rates_table(found), "AUROC / recall at 5 %:", shifts_table(found)]
    return "\n\n".join(parts)


def _mean_sd(values: list[float]) -> str:
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.3f}"


def _interval(values: list[float]) -> str:
    return f"{values[0]:+.3f} [{values[1]:+.3f}, {values[2]:+.3f}]"


def _about(found: dict[str, Any]) -> str:
    about = found["about"]
    return (
        f"`{about['command']}`, {about['device']}, jax {about['versions']['jax']}, "
        f"Python {about['versions']['python']}, {about['date'][:10]}, {about['seconds']:.0f} s."
    )


TABLES = {
    "twins": ("twins.json", twins),
    "growth": ("twins.json", growth),
    "fresh": ("fresh.json", fresh),
    "levels": ("levels.json", levels),
    "guardians": ("guardians.json", guardians),
}

if __name__ == "__main__":
    main()
