"""The tables of docs/results.md and docs/all-results.md, from the numbers in docs/results.

    python -m benchmarks.documents.results

Each study says which tables it makes of the file that it has written; they are put between their
markers, and nothing else is touched. A test makes them again and compares. What was measured before
its numbers were kept stands in the pages of docs/results that `kept.json` names by their digest,
so that nobody changes it unseen.
"""

import csv
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cohorts import read_lines
from benchmarks.studies import (
    charted,
    choosing,
    constraint,
    history,
    independent_page,
    missing_signals,
    off_policy,
    search_luck,
    searched,
    twin,
)
from benchmarks.studies.model_quality import difference
from benchmarks.tables import DOCS, filled, make_table
from stepdown.policies.methods import METHODS, OURS_METHOD
from stepdown.report.labels import name_of
from stepdown.twin.twins import TWINS

STUDIES = (twin, history, charted, missing_signals, searched, search_luck, off_policy, choosing)
KEPT = DOCS / "results/kept.json"
REFERENCES = ("clinicians", "hold", "taper", "protocol", "look-ahead")
POINTS = {"reward": (1, 2), "unsafe_hours": (100, 1)}  # factor and digits


def main() -> None:
    """Write every page whose tables changed."""
    for page, text in pages().items():
        changed = text != page.read_text(encoding="utf-8")
        page.write_text(text, encoding="utf-8")
        print(f"{page.name}: {'tables changed' if changed else 'as it was'}.")


def pages() -> dict[Path, str]:
    """Both pages with the tables that the numbers give."""
    found = {"windows": windows(), "nine cohorts": nine_cohorts(), "density": density()}
    for study in STUDIES:
        found |= study.tables()
    found["planners tried"] = independent_page.development_table()
    found["constraint"] = constraint.table(read_lines(constraint.FILE))
    headline = independent_page.write_headline(independent_page.planned())
    tables = {"results.md": {"headline": headline}, "all-results.md": found}
    return {
        DOCS / name: filled((DOCS / name).read_text(encoding="utf-8"), own)
        for name, own in tables.items()
    }


def changed_pages() -> list[str]:
    """Pages whose numbers were not kept and that are not what `kept.json` says."""
    kept: dict[str, str] = json.loads(KEPT.read_text(encoding="utf-8"))
    digests = {name: hashlib.sha256((KEPT.parent / name).read_bytes()) for name in kept}
    return [name for name, digest in kept.items() if digests[name].hexdigest() != digest]


def windows() -> str:
    """Five windows of the twin, beside the paper's."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for line in _csv("settings.csv"):
        cell = _plus_minus(line["mean"], line["sd"])
        if line["paper_mean"]:
            cell += f" (paper {_plus_minus(line['paper_mean'], line['paper_sd'], 2)})"
        rows.setdefault((line["window"], line["model"]), {})[line["metric"]] = cell
    cells = [
        [f"{window}, {TWINS[model].words}", x["mse_z"], x["mse_map"]]
        for (window, model), x in rows.items()
    ]
    return make_table(["Window, model", "MSE, z", "MSE of MAP, mmHg²"], cells)


def _plus_minus(mean: str, sd: str, digits: int = 3) -> str:
    told = f"{float(mean):.{digits}f}"
    return f"{told} ± {float(sd):.{digits}f}" if sd and float(sd) else told


def nine_cohorts() -> str:
    """Every row of nine cohorts in fresh patients."""
    found, known = _cohorts(), {x: METHODS[x].words for x in METHODS}
    rows = []
    for name in dict.fromkeys([*known, *REFERENCES]):
        if ("all", name, "reward") not in found:
            continue
        room = found.get(("all", name, "room_percent"))
        cells = [f"{room['mean']:.0f}" if room else "–"]
        for some in ("all", "guarded", "benign", "hidden"):
            cells.append(_apart(found, some, name, "reward"))
        cells.append(_apart(found, "all", name, "unsafe_hours"))
        cells += [f"{found['all', name, x]['mean']:.2f}" for x in ("acp", "ws_gradient")]
        rows.append([name_of(name), *cells])
    presets = (f"reward minus CORMPO, {x}" for x in ("all", "guarded", "benign", "hidden"))
    heads = ("method", "room, %", *presets, "unsafe hours minus CORMPO, points", "ACP", "WS")
    return make_table(heads, rows)


def density() -> str:
    """CORMPO minus others, in three experiments."""
    rows, found = [], _cohorts()
    for other in ("mbpo", "mbpo_shaped", "disagreement_shaped"):
        cells = [_apart(found, "all", other, x, -1) for x in POINTS]
        rows.append(["`full`, 9 cohorts, long trainings", name_of(other), *cells])
    lines = read_lines(DOCS / "results/model_quality.jsonl")
    words = "the same 9 cohorts and kind of ensemble, short trainings"
    for other in ("MBPO", "MBPO shaped"):
        rows.append([words, other, *difference(lines, "the paper's ensemble", "CORMPO", other)])
    lines = read_lines(DOCS / "results/choosing.jsonl")
    words = f"choosing, {len(lines)} cohorts, small ensemble, short trainings"
    for other in ("mbpo", "mbpo shaped", "mopo"):
        rows.append([words, other.upper().replace("SHAPED", "shaped"),
                     *choosing.difference(lines, "cormpo 0.08", other)])  # fmt: skip
    return make_table(["experiment", "against", "reward", "unsafe hours, points"], rows)


Found = dict[tuple[str, str, str], dict[str, float]]  # cohorts, method, metric


def _cohorts() -> Found:
    """What the nine cohorts gave in fresh patients."""
    return {
        (x["cohorts"], x["method"], x["metric"]): {
            key: float(x[key]) for key in ("mean", "low", "high")
        }
        for x in _csv("cohorts.csv")
        if x["judge"] == "fresh"
    }


def _apart(found: Found, some: str, name: str, metric: str, sign: int = 1) -> str:
    """A row minus CORMPO, or CORMPO minus it, with its interval."""
    if name == OURS_METHOD:
        return "–"
    factor, digits = POINTS[metric]
    one = found[some, name, f"{metric}_minus_{OURS_METHOD}"]
    mean, *ends = (sign * factor * one[x] for x in ("mean", "low", "high"))
    low, high = sorted(ends)
    return f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def _csv(name: str) -> Sequence[dict[str, str]]:
    with (DOCS / "results" / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


if __name__ == "__main__":
    main()
