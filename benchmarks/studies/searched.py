"""What do six trials of every row gain?

    python -m benchmarks.studies.searched --plain DIR --searched DIR

The jobs of two runs of `full`, one of them with `--search`, are read and compared cohort by
cohort; only cohorts whose searches are finished count. `--csv FILE` keeps what was found;
`--tables FILE` prints the tables of such a file.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables import DOCS, make_table
from stepdown.evaluation.compare import values_of
from stepdown.experiment.jobs import INFO, Desk, jobs_of
from stepdown.experiment.judging import read_judged
from stepdown.experiment.plan import Plan, make_plan
from stepdown.experiment.presets import sizes_of
from stepdown.policies.methods import METHODS, OURS_METHOD
from stepdown.report.labels import JUDGES, name_of

SEARCHED = tuple(x.name for x in METHODS.values() if x.dynamics not in ("twin", "ridge"))
METRICS = ("reward", "unsafe_hours", "acp", "ws_gradient")
COLUMNS = ("cohort", "method", "chosen", "promised", "judge", "metric", "plain", "searched")
Found = dict[tuple[str, str, str, str], tuple[float, float]]  # cohort, method, judge, metric


def main() -> None:
    """Compare, or print what was compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", type=Path, help="OUT of the run without searches")
    parser.add_argument("--searched", type=Path, help="OUT of the run with searches")
    parser.add_argument("--csv", type=Path, default=Path("searched.csv"))
    parser.add_argument("--tables", type=Path)
    asked = parser.parse_args()
    if asked.tables is None:
        if asked.plain is None or asked.searched is None:
            parser.error("expected --plain and --searched, or --tables FILE.")
        write(asked.csv, asked.plain, asked.searched)
    print(make_tables(asked.tables or asked.csv))


def write(path: Path, plain: Path, searched: Path) -> None:
    """Every method of every cohort whose searches are finished, before every judge."""
    desks = [Desk(jobs_of(out)) for out in (plain, searched)]
    sizes = sizes_of("full", search=True)
    rows = [row for x in sizes.cohorts for row in _rows(make_plan(sizes, x), *desks)]
    if not rows:
        raise SystemExit(f"expected a cohort with all its searches in {searched}.jobs, got none.")
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([COLUMNS, *rows])


def _rows(plan: Plan, plain: Desk, searched: Desk) -> Iterator[tuple[str | float, ...]]:
    rows = {name: plan.recorded[name] for name in SEARCHED}
    if not all((desk.folder(x.judge) / INFO).is_file()
               for x in rows.values() for desk in (plain, searched)):  # fmt: skip
        return
    for name, row in rows.items():
        search = next(job for job in row.train.needs if "/search/" in job.name)
        told = searched.info(search)
        scores, changes = [x["score"] for x in told["trials"]], told["chosen"]
        words = ", ".join(f"{x.split('.')[-1]} {y:g}" for x, y in changes.items()) or "the preset"
        before, after = (read_judged(desk, row.judge) for desk in (plain, searched))
        for judge in JUDGES:
            for metric in METRICS:
                pair = (values_of(x[judge], metric).mean() for x in (before, after))
                promised = max(scores) - scores[0]  # the first trial is the preset
                yield plan.name, name, words, promised, judge, metric, *map(float, pair)


def tables() -> dict[str, str]:
    """The table of docs/all-results.md, by its marker."""
    return {"searched": judged_table(_read(DOCS / "results/searched.csv"), "fresh")}


def make_tables(path: Path) -> str:
    """What the searches chose, what that gained, and who leads then."""
    lines = _read(path)
    cohorts, methods = _names(lines)
    chosen = {(x["cohort"], x["method"]): x["chosen"] for x in lines}
    parts = []
    for judge, known in JUDGES.items():
        parts += [f"**{len(cohorts)} cohorts, {known.words}**", judged_table(lines, judge)]
    rows = [[name_of(x), *(chosen[y, x] for y in cohorts)] for x in methods]
    parts += ["**Chosen**", make_table(["method", *cohorts], rows)]
    return "\n\n".join([*parts, _kept_promises(_promised(lines), _found(lines))])


def judged_table(lines: list[dict[str, str]], judge: str) -> str:
    """What a search gained before a judge, and CORMPO minus each row, both searched."""
    cohorts, methods = _names(lines)
    promised, found, rows = _promised(lines), _found(lines), []
    for method in methods:
        cells = []
        for metric, scale, digits in (("reward", 1.0, 2), ("unsafe_hours", 100.0, 1)):
            own = [found[x, method, judge, metric] for x in cohorts]
            ours = [found[x, OURS_METHOD, judge, metric] for x in cohorts]
            cells.append(_mean([scale * (b - a) for a, b in own], digits))
            apart = [scale * (y[1] - x[1]) for x, y in zip(own, ours, strict=True)]
            cells.append("" if method == OURS_METHOD else _mean(apart, digits))
        told = _mean([promised[x, method] for x in cohorts], 2)
        rows.append([name_of(method), told, cells[0], cells[2], cells[1], cells[3]])
    heads = ["search promised", "search gained: reward", "unsafe hours, points"]
    heads += ["CORMPO minus it, both searched: reward", "unsafe hours, points"]
    return make_table(["method", *heads], rows)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def _names(lines: list[dict[str, str]]) -> tuple[list[str], ...]:
    """Cohorts and methods, in the order of the file."""
    return tuple(list(dict.fromkeys(x[y] for x in lines)) for y in ("cohort", "method"))


def _promised(lines: list[dict[str, str]]) -> dict[tuple[str, str], float]:
    return {(x["cohort"], x["method"]): float(x["promised"]) for x in lines}


def _found(lines: list[dict[str, str]]) -> Found:
    return {
        (x["cohort"], x["method"], x["judge"], x["metric"]): (
            float(x["plain"]),
            float(x["searched"]),
        )
        for x in lines
    }


def _kept_promises(promised: dict[tuple[str, str], float], found: Found) -> str:
    """What the trials promised in the twin beside what five seeds then did."""
    got = {
        judge: [found[*pair, judge, "reward"][1] - found[*pair, judge, "reward"][0]
                for pair in promised]
        for judge in JUDGES
    }  # fmt: skip
    told = ", ".join(f"{JUDGES[x].words} {sum(y) / len(y):+.3f}" for x, y in got.items())
    mean = sum(promised.values()) / len(promised)
    return (
        f"Over {len(promised)} searches the best trial led the preset's by {mean:+.3f} reward in "
        f"the twin, from select patients; all seeds then gained: {told}."
    )


def _mean(values: list[float], digits: int) -> str:
    """The mean over cohorts and every cohort; three are too few for an interval."""
    each = ", ".join(f"{x:+.{digits}f}" for x in values)
    return f"{sum(values) / len(values):+.{digits}f} ({each})"


if __name__ == "__main__":
    main()
