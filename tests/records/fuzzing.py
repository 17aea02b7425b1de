"""Damage recordings at random and read them: run as a program, so that a crash is seen as one.

Prints what was raised, as JSON. Anything but a typed error or a clean reading is a failure.
"""

import collections
import json
import random
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np

from stepdown.patients.recording import Recording
from stepdown.records.dialects import QuestionError, settle
from stepdown.records.mapping import parse_mapping
from stepdown.records.readers import RecordingError
from stepdown.records.stays import read_traces
from tests.records.recordings import WAVES, WFDB_WAVES, write_waveform


def main(mutations: int, seed: int) -> None:
    """Read `mutations` damaged files of every format."""
    draw = random.Random(seed)
    report: dict = {"outcomes": collections.Counter(), "odd": []}
    with tempfile.TemporaryDirectory() as folder:
        good = {
            ending: _good(Path(folder), ending) for ending in (".csv", ".parquet", ".h5", ".hea")
        }
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(mutations):
            for ending, (path, target) in good.items():
                whole = target.read_bytes()
                target.write_bytes(_damage(whole, draw))
                _try(path, WFDB_WAVES if ending == ".hea" else WAVES, report)
                target.write_bytes(whole)
    report["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    sys.stdout.write(json.dumps(report))


def _good(folder: Path, ending: str) -> tuple[Path, Path]:
    """A readable recording, and the file of it that is to be damaged."""
    draw, second = np.random.default_rng(0), np.arange(2000) / 25
    channels = [(center + draw.normal(0, 2, 2000)).astype(np.float32) for center in (80, 39e3, 5e2)]
    path = write_waveform(Recording(second, *channels), folder / f"stay{ending}")
    mapping = parse_mapping(WFDB_WAVES if ending == ".hea" else WAVES)
    stays = list(read_traces(path, settle(path, mapping)))
    assert len(stays[0].second) == 2000
    return path, path


def _damage(data: bytes, draw: random.Random) -> bytes:
    """Flip bits, cut, repeat, swap or overwrite a part; headers and footers more often."""
    changed = bytearray(data)
    kind = draw.choice(["flip", "flip", "ends", "cut", "swap", "fill", "number"])
    if kind == "cut":
        return bytes(changed[: draw.randrange(len(changed))])
    for _ in range(draw.choice([1, 2, 8, 64])):
        size = len(changed)
        near = draw.choice(
            [draw.randrange(min(size, 2048)), size - 1 - draw.randrange(min(size, 1024))]
        )
        place = near if kind != "flip" else draw.randrange(size)
        if kind in ("flip", "ends"):
            changed[place] ^= 1 << draw.randrange(8)
        elif kind == "fill":
            changed[place : place + 8] = draw.choice([b"\xff", b"\0", b"9"]) * 8
        elif kind == "number":
            changed[place : place + 1] = str(draw.randrange(10**12)).encode()
        else:
            other = draw.randrange(size)
            changed[place], changed[other] = changed[other], changed[place]
    return bytes(changed)


def _try(path: Path, mapping: dict, report: dict) -> None:
    try:
        for _ in read_traces(path, settle(path, parse_mapping(mapping))):
            pass
        outcome = "read"
    except QuestionError:
        outcome = "asked"
    except RecordingError as error:
        outcome = type(error.__cause__).__name__ if error.__cause__ else "refused"
    except BaseException as error:  # noqa: BLE001, to be reported as a failure
        outcome = "odd"
        report["odd"].append(f"{path.suffix}: {type(error).__name__}: {error}"[:300])
    report["outcomes"][f"{path.suffix} {outcome}"] += 1


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
