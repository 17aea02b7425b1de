"""Numerical stages on a machine with JAX alone: `python -m stepdown.experiment PRESET STAGE`.

A stage is a part of the jobs' names, such as `patients`, `twin`, `guardian`, `train/recorded`,
`judge/noisy/paper`; `all` are all of `stepdown run`, `evidence` those of `stepdown judge`. What
they need is made first. `stepdown run PRESET --out DIR` goes on from the folder and writes tables
and report.
"""

import argparse
import sys
from pathlib import Path

from stepdown.experiment.duration import Duration
from stepdown.experiment.jobs import in_order, say
from stepdown.experiment.legs import STOPPED, at_work, ended, legs_words, read_legs
from stepdown.experiment.plan import make_evidence, make_plans
from stepdown.experiment.presets import PRESETS, sizes_of
from stepdown.experiment.processes import run_somewhere


def main() -> None:
    """Make the jobs of a stage."""
    parser = argparse.ArgumentParser(prog="python -m stepdown.experiment", description=__doc__)
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("stage", help="part of the jobs' names, or all")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ray", help="auto or the address of a Ray cluster: jobs run there")
    parser.add_argument("--workers", type=int, default=1, help="processes of this machine")
    parser.add_argument("--minutes", type=float, help="to end after; call again to go on")
    parser.add_argument("--search", action="store_true", help="six trials of every row first")
    parser.add_argument("--version", type=int, choices=(1, 2), default=2, help="of the patients")
    parser.add_argument("--judge", choices=("tdt", "best", "both"), default="best")
    asked = parser.parse_args()
    config = sizes_of(asked.preset, search=asked.search, version=asked.version, judge=asked.judge)
    plans = make_plans(config)
    if asked.stage.startswith("evidence"):
        jobs = [job for plan in plans for job in make_evidence(plan).by_kind.values()]
    else:
        jobs = in_order([job for plan in plans for job in plan.jobs])
    chosen = [job for job in jobs if asked.stage == "all" or asked.stage in job.name]
    if not chosen:
        parser.error(
            f"expected a stage of this preset, got {asked.stage!r}. Jobs are "
            f"{', '.join(job.name for job in jobs[:5])} and so on."
        )
    with at_work(asked.out, asked.stage, asked.workers, asked.minutes) as (desk, stop):
        clock = Duration(asked.preset, [job for job in in_order(chosen) if not desk.is_done(job)])
        say(clock.before())
        try:
            run_somewhere(chosen, desk, asked.ray, asked.workers, clock)
        except STOPPED:
            sys.exit(ended(stop))
        say(f"this run so far: {legs_words(read_legs(desk.path))}")


if __name__ == "__main__":
    main()
