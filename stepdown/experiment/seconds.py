"""Seconds of a run where they were measured, by preset.

`jobs` are measured one by one and used for the jobs of a run that are missing; `seconds` are those
of a whole run. `how` says where, and what is not measured but reckoned.
"""

from typing import Any

MEASURED: dict[str, dict[str, Any]] = {
    "demo": {
        "seconds": 400.0,
        "how": "on two cores, reckoned from the CPU seconds of its first jobs, not measured whole",
    },
    "overnight": {
        "seconds": 7 * 3600.0,
        "how": "on two cores, reckoned from the seconds of an update (docs/performance.md)",
    },
    "paper": {"seconds": 1677.0, "how": "on one H200 with five processes (docs/performance.md)"},
    "full": {
        "seconds": 24 * 105.0,
        "how": "on one H200 with ten processes, reckoned from nine cohorts (docs/performance.md)",
    },
}
