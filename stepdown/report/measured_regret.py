"""What choosing without the truth costs, as measured on simulated cohorts; part of every report.

The numbers are in measured_regret.json, written by
`python -m benchmarks.studies.choosing --tables docs/results/choosing.jsonl --measured FILE`.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepdown.evaluation.choosing import DEFAULT_RULE
from stepdown.report.grids import number

PLAIN = "twin reward"  # the paper's way


@functools.cache
def read_measured() -> dict[str, Any]:
    """The file: number of cohorts and candidates, and for every rule its regret."""
    return json.loads(Path(__file__).with_suffix(".json").read_bytes())


def say_measured(rule: str = DEFAULT_RULE) -> str:
    """The measured regret of a rule beside that of choosing by the twin's reward alone."""
    found = read_measured()
    own, plain = (found["rules"][x] for x in (rule, PLAIN))
    return (
        f"Choosing without the truth, measured on {found['cohorts']} simulated cohorts of "
        f"{found['candidates']} candidates: the rule '{rule}' (stepdown judge) lost {_lost(own)} "
        f"of the reward that the best candidate really has and was better than the clinicians in "
        f"{own['ahead']} of {found['cohorts']}; the twin's reward alone lost {_lost(plain)}, "
        f"better in {plain['ahead']}."
    )


def _lost(one: Mapping[str, int | float]) -> str:
    return f"{number(one['mean'])} [{number(one['low'])}, {number(one['high'])}]"
