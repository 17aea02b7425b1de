"""Is a published row of the independent cohorts what the program gives again?

    python -m benchmarks.studies.again docs/results/independent_planned.jsonl

A cohort is drawn by lot from the file (`--lot` draws the same one again) and made once more, in a
fresh process and with an empty folder for compiled programs. On the same kind of device every
number must be the published one within the rounding that the tables show; on another kind each
difference to the clinicians must lie inside its published interval over patients. What does not
agree is marked, and the exit code is 1. `--tiny` is for a file that was made with `--tiny`.
"""

import argparse
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from benchmarks.cohorts import Line, add_lines, read_lines
from benchmarks.studies.independent import SAME, TOLD, judge_cohort
from benchmarks.tables import make_table

GIVEN = ("clinicians", "look-ahead")  # judged unasked
SHOWN = dict.fromkeys(TOLD, 0.01) | {"unsafe_hours": 0.001}  # what the last digit of a table counts


def draw(lines: list[Line], lot: int) -> Line:
    """One of the published cohorts."""
    if not lines:
        raise SystemExit("expected a file with published cohorts, got none in it. Name another.")
    return lines[int(np.random.default_rng(lot).integers(len(lines)))]


def compare(published: Line, again: Line, device: str) -> list[tuple[str, str, str, str, str]]:
    """Every number of every row: published, again, whether it agrees."""
    same, found = published["device"] == device, []
    for name, metrics in published["rows"].items():
        for metric, theirs in metrics.items():
            ours = again["rows"][name][metric]
            pairs = {"mean": (theirs["mean"], ours["mean"])}
            pairs["minus clinicians"] = (theirs["gain"][0], ours["gain"][0])
            for what, (old, new) in pairs.items():
                if same:
                    agrees = abs(old - new) <= SHOWN[metric] / 2
                elif what == "mean":
                    continue  # which has no interval of its own
                else:
                    low, high = theirs["gain"][1:]
                    agrees = low - SHOWN[metric] / 2 <= new <= high + SHOWN[metric] / 2
                words = "yes" if agrees else "NO"
                found.append((f"{name}, {what}", metric, f"{old:.4f}", f"{new:.4f}", words))
    return found


def make_again(published: Line, part: str, *, tiny: bool) -> Line:
    """The same cohort in a fresh process; nothing that was compiled before is used."""
    rows = [name for name in published["rows"] if name not in GIVEN]
    task = {name: published[name] for name in SAME} | {"part": part, "rows": rows, "small": tiny}
    with tempfile.TemporaryDirectory() as empty:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(empty) / "compiled")
        file = Path(empty) / "again.jsonl"
        add_lines(file, [task], judge_cohort, same=SAME, workers=1)
        lines = read_lines(file)
    if not lines:
        raise SystemExit("expected the cohort once more, got a failure; it is told above.")
    return lines[0]


def main() -> None:
    """Draw, make again, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("published", type=Path, help="JSON lines of benchmarks.studies.independent")
    parser.add_argument("--part", choices=("development", "test"), default="test")
    parser.add_argument("--lot", type=int, help="number that draws the cohort; default: a new one")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    lot = secrets.randbelow(1_000_000) if asked.lot is None else asked.lot
    published = draw(read_lines(asked.published), lot)
    print(f"lot {lot}: {json.dumps({name: published[name] for name in SAME})}", flush=True)
    again = make_again(published, asked.part, tiny=asked.tiny)
    told = compare(published, again, again["device"])
    kind = "the same" if again["device"] == published["device"] else "another"
    print(make_table(["row", "metric", "published", "again", "agrees"], told))
    missed = sum(one[-1] == "NO" for one in told)
    print(
        f"{kind} kind of device, jax {jax.__version__}: {len(told) - missed} of {len(told)} agree"
    )
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
