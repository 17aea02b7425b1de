"""Seconds of the jobs of a finished run, for `stepdown/experiment/seconds.py`.

    python -m benchmarks.speed.run_seconds runs/demo "on two quiet cores, nothing compiled before"

prints the entry of the run's preset: the seconds of each job, and how long the report took.
"""

import argparse
import json
import sys
from pathlib import Path

from stepdown.artifacts import MANIFEST
from stepdown.commands.run import asked_for, plans_of
from stepdown.experiment.duration import stage_of
from stepdown.experiment.jobs import Desk, in_order, jobs_of
from stepdown.experiment.legs import read_legs


def main() -> None:
    """Print the entry of a preset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("how", help="where it was measured, as the sentence goes on")
    asked = parser.parse_args()
    config, desk = asked_for(asked.run), Desk(jobs_of(asked.run))
    jobs = in_order([job for plan in plans_of(config) for job in plan.jobs])
    if missing := [job.name for job in jobs if not (desk.folder(job) / MANIFEST).is_file()]:
        parser.error(f"expected a finished run, got one without {missing[0]}.")
    seconds = {stage_of(job): round(float(desk.about(job)["seconds"]), 1) for job in jobs}
    legs = read_legs(desk.path)
    rest = max(0.0, sum(leg.seconds for leg in legs) - sum(seconds.values()))
    entry = {config.preset: {"how": asked.how, "jobs": seconds, "report": round(rest, 1)}}
    sys.stdout.write(json.dumps(entry, indent=4) + "\n")


if __name__ == "__main__":
    main()
