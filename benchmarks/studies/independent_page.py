"""What 48 independent cohorts say of the planner, CORMPO and the clinicians: page and figure.

    python -m benchmarks.studies.independent_page

writes docs/results/independent.md and .png from docs/results/independent_planned.jsonl
(studies/independent.py); `python -m benchmarks.documents.results` writes the headline of
docs/results.md. The cohort is the unit of every
interval; the differences that design.json names are corrected by Holm's rule in the families it
names. CORMPO was learned on the cohorts of the first design, five seeds
each, so it is compared with the planner as two groups of cohorts are.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from benchmarks.cohorts import Line, read_lines
from benchmarks.studies.independent import cohorts_of, read_design
from benchmarks.tables import DOCS, make_table, student, sure
from stepdown.evaluation.compare import between_cohorts, detectable, holm, over_cohorts

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

PLANNED = DOCS / "results/independent_planned.jsonl"
EARLIER = DOCS / "results/first-design/learned.jsonl"  # CORMPO on other cohorts, five seeds
DEVELOPED = {  # development cohorts, and the row that the rule of their design took
    "first-design/development.jsonl": "ridge, 3 h, care 0.5",
    "independent_development.jsonl": read_design()["default"],
}
PAGE, FIGURE = DOCS / "results/independent.md", DOCS / "results/independent.png"
DEFAULT, CORMPO, TEAM = read_design()["default"], "cormpo_kde", "clinicians"
PRESETS = ("guarded", "hidden", "benign")
BARS = {"guarded": 60, "hidden": 57, "benign": 90}  # % of the room, asked of version 1
SPREADS = {"reward": 0.15, "unsafe_hours": 0.015}  # over cohorts, assumed by the design
SHOWN = {
    "look-ahead": "Look-ahead (ceiling)",
    DEFAULT: f"**Planner** (default: ridge twin, 3 h, {DEFAULT})",
    **{x: f"Planner, {x}" for x in read_design()["test"]["planning"] if x not in ("hold", DEFAULT)},
    "hold": "Hold the level",
}


def planned(path: Path = PLANNED) -> list[Line]:
    """One line for each cohort; its room is what the look-ahead gains."""
    lines = read_lines(path)
    return [{**x, "room": x["rows"]["look-ahead"]["reward"]["gain"][0]} for x in lines]


def gains(lines: Sequence[Line], name: str, metric: str = "reward") -> list[float]:
    """Above the clinicians in each cohort where the row was made."""
    return [x["rows"][name][metric]["gain"][0] for x in lines if name in x["rows"]]


def shares(lines: Sequence[Line], name: str) -> list[float]:
    """Of the room, in %."""
    known = [x for x in lines if name in x["rows"]]
    return [100 * x["rows"][name]["reward"]["gain"][0] / x["room"] for x in known]


def development_table() -> str:
    """Planners that were tried on development cohorts, each beside the one that was taken."""
    rows = []
    for file, taken in DEVELOPED.items():
        lines = planned(DOCS / "results" / file)
        for name in lines[0]["rows"]:
            if name in (TEAM, "look-ahead", "hold"):
                continue
            share, unsafe = shares(lines, name), gains(lines, name, "unsafe_hours")
            apart = np.subtract(share, shares(lines, taken))
            told = "taken" if name == taken else student(apart.tolist(), 1)
            cells = [student(share, 1), told, student([100 * x for x in unsafe], 2)]
            rows.append([f"`{file}`", name, str(len(lines)), *cells])
    heads = ["design", "planner", "cohorts", "room, %", "minus the one that was taken"]
    return make_table([*heads, "unsafe hours, points"], rows)


def of(lines: Sequence[Line], version: int, preset: str | None = None) -> list[Line]:
    """The cohorts of a version, and of a preset."""
    return [x for x in lines if x["version"] == version and preset in (None, x["preset"])]


def write_page(lines: Sequence[Line]) -> str:
    """The whole page."""
    design = read_design()
    parts = [
        "# Forty-eight independent cohorts",
        "Written by `python -m benchmarks.studies.independent_page` from "
        "[independent_planned.jsonl](independent_planned.jsonl). Cohorts, rows and the rule of the "
        "default were fixed in [design.json](../../benchmarks/studies/design.json) before any of "
        "these results. Every cohort has a seed of its own: 379 patients to fit and learn from, "
        "300 others to judge by, in the simulator itself, 1,024 episodes of six hours from the "
        "same starts for every row. CORMPO was learned, with five seeds, on 21 cohorts of the "
        "[first design](first-design/independent.md), none of which chose anything of CORMPO's; "
        "the difference to it is that of two groups of cohorts, with Welch's interval.",
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


def write_headline(lines: Sequence[Line]) -> str:
    """What a reader is told first, for docs/results.md."""
    earlier, rows = read_lines(EARLIER), []
    for v, preset in ((v, preset) for v in (1, 2) for preset in PRESETS):
        own, other = of(lines, v, preset), of(earlier, v, preset)
        unsafe = student([100 * x for x in gains(own, DEFAULT, "unsafe_hours")], 1)
        each = [student(shares(own, DEFAULT), 0), student(gains(own, DEFAULT)), unsafe]
        rows.append([f"{preset}, version {v}", *each, student(gains(other, CORMPO))])
    heads = ["patients", "room closed, %", "planner, reward", "planner, unsafe hours, points"]
    return make_table([*heads, "CORMPO, reward (other cohorts)"], rows)


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
    earlier = read_lines(EARLIER)
    rows, found = [], []
    for v, preset in ((v, preset) for v in (1, 2) for preset in PRESETS):
        ours, theirs = gains(of(lines, v, preset), DEFAULT), gains(of(earlier, v, preset), CORMPO)
        found += [over_cohorts(ours), between_cohorts(ours, theirs)]
        rows.append(["reward minus clinicians", f"version {v}, {preset}", str(len(ours))])
        cohorts = f"{len(ours)}, {len(theirs)}"
        rows.append(["reward minus CORMPO", f"version {v}, {preset}", cohorts])
    unsafe = [over_cohorts([100 * x for x in _unsafe(lines, v)]) for v in (1, 2)]
    for v in (1, 2):
        count = str(len(_unsafe(lines, v)))
        rows.append(["unsafe hours minus clinicians, points", f"version {v}, all presets", count])
    adjusted = holm([x["p"] for x in found]) + holm([x["p"] for x in unsafe])
    told = zip(rows, [*found, *unsafe], adjusted, strict=True)
    heads = ["planner's", "where", "cohorts", "mean [95 %]", "p, Holm"]
    return make_table(heads, [[*row, sure(x), _chance(p)] for row, x, p in told])


def _unsafe(lines: Sequence[Line], version: int) -> list[float]:
    return gains(of(lines, version), DEFAULT, "unsafe_hours")


def _chance(p: float) -> str:
    return "–" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _missing(lines: Sequence[Line]) -> str:
    """What was asked and not reached, and what was not made."""
    asked = len(cohorts_of(read_design(), "test"))
    known = {x: sum(x in line["rows"] for line in lines) for x in SHOWN}
    less = [f"{_plain(SHOWN[x])} {n}" for x, n in known.items() if 0 < n < asked]
    below = sum(x["rows"][DEFAULT]["reward"]["gain"][2] < 0 for x in lines)
    words = [
        f"{preset} {np.mean(shares(of(lines, 1, preset), DEFAULT)):.0f} % ({bar})"
        for preset, bar in BARS.items()
    ]
    return (
        f"Share of the room on version 1, in brackets what was asked: {', '.join(words)}. The "
        f"planner's reward minus the clinicians' has its whole interval over patients below zero "
        f"in {below} of {len(lines)} cohorts."
        + (f" Rows on fewer cohorts than the design names: {'; '.join(less)}." if less else "")
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
        CORMPO: ("CORMPO (other cohorts)", "#c05a00", "s"),
        "hold": ("hold the level", "#777777", "^"),
    }
    earlier = read_lines(EARLIER)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, (metric, scale, words) in zip(
        axes,
        (("reward", 1.0, "Reward of six hours"), ("unsafe_hours", 100.0, "Unsafe hours, points")),
        strict=True,
    ):
        for place, (version, preset) in enumerate((v, p) for v in (1, 2) for p in PRESETS):
            for number, (name, (label, color, marker)) in enumerate(shown.items()):
                where = earlier if name == CORMPO else lines
                own = [scale * x for x in gains(of(where, version, preset), name, metric)]
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
    lines = planned()
    PAGE.write_text(write_page(lines), encoding="utf-8")
    draw_figure(lines, FIGURE)
    print(f"wrote {PAGE.name} and {FIGURE.name} from {len(lines)} cohorts.")


if __name__ == "__main__":
    main()
