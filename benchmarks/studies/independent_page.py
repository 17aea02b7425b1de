"""What 48 independent cohorts say of the planner, CORMPO and the clinicians: page and figure.

    python -m benchmarks.studies.independent_page

writes docs/results/independent.md and .png from docs/results/independent_planned.jsonl and
independent_learned.jsonl (studies/independent.py). The cohort is the unit of every interval; the
differences that design.json names are corrected by Holm's rule in the families it names.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from benchmarks.cohorts import Line, read_lines
from benchmarks.studies.independent import SAME, cohorts_of, read_design
from benchmarks.tables import DOCS, make_table, student
from stepdown.evaluation.compare import detectable, holm, over_cohorts

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

FILES = tuple(DOCS / f"results/independent_{part}.jsonl" for part in ("planned", "learned"))
PAGE, FIGURE = DOCS / "results/independent.md", DOCS / "results/independent.png"
DEFAULT, CORMPO, TEAM = "ridge, 3 h, care 1", "cormpo_kde", "clinicians"
PRESETS = ("guarded", "hidden", "benign")
BARS = {"guarded": 60, "hidden": 57, "benign": 90}  # % of the room, asked of version 1
SPREADS = {"reward": 0.15, "unsafe_hours": 0.015}  # over cohorts, assumed by the design
SHOWN = {
    "look-ahead": "Look-ahead (ceiling)",
    DEFAULT: "**Planner** (default: ridge twin, 3 h, care 1)",
    "ridge, 3 h, care 0": "Planner without care for the spread of models",
    "ensemble, 2 h": "Planner in the paper's ensemble, 2 h",
    CORMPO: "CORMPO (kernels)",
    "mbpo_shaped": "MBPO, reward shaped",
    "hold": "Hold the level",
}


def joined(files: Sequence[Path]) -> list[Line]:
    """One line for each cohort, with the rows of all files; the room is that of its look-ahead."""
    found: dict[tuple[object, ...], Line] = {}
    for line in (line for file in files for line in read_lines(file)):
        own = found.setdefault(tuple(line[name] for name in SAME), {**line, "rows": {}})
        own["rows"] |= line["rows"]
    for line in found.values():
        line["room"] = line["rows"]["look-ahead"]["reward"]["gain"][0]
    return list(found.values())


def gains(lines: Sequence[Line], name: str, metric: str = "reward") -> list[float]:
    """Above the clinicians in each cohort where the row was made."""
    return [x["rows"][name][metric]["gain"][0] for x in lines if name in x["rows"]]


def shares(lines: Sequence[Line], name: str) -> list[float]:
    """Of the room, in %."""
    known = [x for x in lines if name in x["rows"]]
    return [100 * x["rows"][name]["reward"]["gain"][0] / x["room"] for x in known]


def minus(lines: Sequence[Line], name: str, other: str, metric: str = "reward") -> list[float]:
    """One row minus another in each cohort that has both."""
    both = [x for x in lines if name in x["rows"] and other in x["rows"]]
    ours, theirs = (gains(both, x, metric) for x in (name, other))
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def of(lines: Sequence[Line], version: int, preset: str | None = None) -> list[Line]:
    """The cohorts of a version, and of a preset."""
    return [x for x in lines if x["version"] == version and preset in (None, x["preset"])]


def write_page(lines: Sequence[Line]) -> str:
    """The whole page."""
    design = read_design()
    parts = [
        "# Forty-eight independent cohorts",
        "Written by `python -m benchmarks.studies.independent_page` from "
        "[independent_planned.jsonl](independent_planned.jsonl) and "
        "[independent_learned.jsonl](independent_learned.jsonl). Cohorts, rows and the rule of the "
        "default were fixed in [design.json](../../benchmarks/studies/design.json) before any of "
        "these results. Every cohort has a seed of its own: 379 patients to fit and learn from, "
        "300 others to judge by, in the simulator itself, 1,024 episodes of six hours from the "
        "same starts for every row.",
        f"Asked: {design['question']}",
        f"The rule: {design['default_rule']} Chosen: {design['chosen']}",
        "## What the design can detect",
        _detectable(),
        "A difference between two rows that is so large is found with a chance of 80 %, given the "
        "spread over cohorts that the design assumed (0.15 reward, 1.5 points of unsafe hours).",
        "## The default against the clinicians and against CORMPO",
        _family(lines),
        _missing(lines),
        "## Every row",
        "![Reward and unsafe hours minus the clinicians', a dot for each cohort](independent.png)",
        *(part for v in (1, 2) for preset in PRESETS for part in _block(lines, v, preset)),
        "### All cohorts",
        _rows(lines),
        "Reward and unsafe hours minus the clinicians', mean over cohorts with Student's 95 % "
        "interval; unsafe hours in points of percentage; room: share of what lies between "
        "clinicians and look-ahead; worst: the cohort with the smallest share.",
    ]
    return "\n\n".join(map(_wrapped, parts)) + "\n"


def _wrapped(part: str) -> str:
    """Prose in lines; tables, heads and pictures as they are."""
    return part if part[0] in "|#!" else textwrap.fill(part, 116, break_on_hyphens=False)


def _detectable() -> str:
    spread = [("8, one preset of one version", 8), ("24, one version", 24), ("48, all", 48)]
    rows = [
        [
            name,
            f"{detectable(SPREADS['reward'], count):.2f}",
            f"{detectable(SPREADS['reward'], count, sure=1 - 0.05 / 12):.2f}",
            f"{100 * detectable(SPREADS['unsafe_hours'], count):.1f}",
        ]
        for name, count in spread
    ]
    heads = ["cohorts", "reward", "reward, as one of twelve comparisons", "unsafe hours, points"]
    return make_table(heads, rows)


def _family(lines: Sequence[Line]) -> str:
    """The fourteen differences that the design names, each with its adjusted p-value."""
    places = [(v, preset) for v in (1, 2) for preset in PRESETS]
    reward = [(v, p, other) for v, p in places for other in (TEAM, CORMPO)]
    found = [minus(of(lines, v, p), DEFAULT, other) for v, p, other in reward]
    unsafe = [gains(of(lines, v), DEFAULT, "unsafe_hours") for v in (1, 2)]
    adjusted = holm([over_cohorts(x)["p"] for x in found])
    rows = [
        [f"reward minus {_short(other)}", f"version {v}, {p}", str(len(x)), student(x), _chance(q)]
        for (v, p, other), x, q in zip(reward, found, adjusted, strict=True)
    ]
    adjusted = holm([over_cohorts(x)["p"] for x in unsafe])
    rows += [
        [
            "unsafe hours minus clinicians, points",
            f"version {v}, all presets",
            str(len(x)),
            student([100 * y for y in x]),
            _chance(q),
        ]
        for v, x, q in zip((1, 2), unsafe, adjusted, strict=True)
    ]
    return make_table(["planner's", "where", "cohorts", "mean [95 %]", "p, Holm"], rows)


def _short(name: str) -> str:
    return {TEAM: "clinicians", CORMPO: "CORMPO"}[name]


def _chance(p: float) -> str:
    return "–" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _missing(lines: Sequence[Line]) -> str:
    """What was asked and not reached, and what was not made."""
    asked = len(cohorts_of(read_design(), "test"))
    known = {x: sum(x in line["rows"] for line in lines) for x in SHOWN}
    less = [f"{_plain(SHOWN[x])} {n}" for x, n in known.items() if n < asked]
    below = sum(x["rows"][DEFAULT]["reward"]["gain"][2] < 0 for x in lines)
    words = [
        f"{preset} {np.mean(shares(of(lines, 1, preset), DEFAULT)):.0f} % ({bar})"
        for preset, bar in BARS.items()
    ]
    return (
        f"Share of the room on version 1, in brackets what was asked: {', '.join(words)}. The "
        f"planner's reward minus the clinicians' has its whole interval over patients below zero "
        f"in {below} of {len(lines)} cohorts. Where time on a GPU ended before all {asked} cohorts "
        f"were made, rows have fewer: {'; '.join(less)}."
    )


def _plain(name: str) -> str:
    return name.replace("**", "")


def _block(lines: Sequence[Line], version: int, preset: str) -> list[str]:
    own = of(lines, version, preset)
    return [f"### Version {version}, {preset}", _rows(own)] if own else []


def _rows(lines: Sequence[Line]) -> str:
    rows = []
    for name, shown in SHOWN.items():
        if not (reward := gains(lines, name)):
            continue
        unsafe = [100 * x for x in gains(lines, name, "unsafe_hours")]
        acp = np.mean([x["rows"][name]["acp"]["mean"] for x in lines if name in x["rows"]])
        share = shares(lines, name)
        told = [student(share, 0), student(reward), student(unsafe), f"{acp:.2f}"]
        rows.append([shown, str(len(reward)), *told, f"{min(share):.0f}"])
    heads = ["row", "cohorts", "room, %", "reward", "unsafe hours", "ACP", "worst, %"]
    return make_table(heads, rows)


def draw_figure(lines: Sequence[Line], path: Path) -> None:
    """A dot for each cohort: planner, CORMPO and holding, by preset and version."""
    shown = {
        DEFAULT: ("planner", "#0b6e4f", "o"),
        CORMPO: ("CORMPO", "#c05a00", "s"),
        "hold": ("hold the level", "#777777", "^"),
    }
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, (metric, scale, words) in zip(
        axes,
        (("reward", 1.0, "Reward of six hours"), ("unsafe_hours", 100.0, "Unsafe hours, points")),
        strict=True,
    ):
        for place, (version, preset) in enumerate((v, p) for v in (1, 2) for p in PRESETS):
            for number, (name, (label, color, marker)) in enumerate(shown.items()):
                own = [scale * x for x in gains(of(lines, version, preset), name, metric)]
                if not own:
                    continue
                x = place + 0.25 * (number - 1)
                axis.plot([x] * len(own), own, marker, color=color, alpha=0.35, ms=4, mew=0)
                mean = over_cohorts(own)
                axis.plot([x, x], [mean["low"], mean["high"]], color=color, lw=1.5)
                axis.plot(
                    x, mean["mean"], marker, color=color, ms=7, label=None if place else label
                )
        axis.axhline(0, color="black", lw=0.8)
        axis.axvline(2.5, color="#bbbbbb", lw=0.8, ls=":")
        axis.set_xticks(range(6), [f"{p}\nversion {v}" for v in (1, 2) for p in PRESETS])
        axis.tick_params(axis="x", labelsize=8)
        axis.set_ylabel(f"{words}, minus the clinicians'")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8, loc="upper left", ncols=3)
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(low, high + 0.12 * (high - low))
    axes[0].set_title("More is better", fontsize=9)
    axes[1].set_title("Less is better", fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Write both."""
    lines = joined(FILES)
    PAGE.write_text(write_page(lines), encoding="utf-8")
    draw_figure(lines, FIGURE)
    print(f"wrote {PAGE.name} and {FIGURE.name} from {len(lines)} cohorts.")


if __name__ == "__main__":
    main()
