"""What a report on recorded patients has to say beside its numbers: what is missing, and why.

There is no truth behind recordings, charts have no minutes, and what a hospital did not record is
in no model. A reader who is not told so takes an absent table for a good one.
"""

import html
from collections.abc import Collection, Sequence

import numpy as np

from stepdown.handover import Cohort, Hours
from stepdown.report.cohort_report import SOURCE, Row, moments_grid
from stepdown.report.evidence import KINDS, UNKNOWN
from stepdown.report.grids import to_html
from stepdown.report.page import Section, picture, render_markdown
from stepdown.signals import KNOWN, REQUIRED

BANNER = (
    "Research software on recordings that nobody has checked for this purpose. Not a medical "
    "device, not for care. Some figures show hours of single stays: share this page as you may "
    "share the records."
)
NEEDS_TRUTH = ("transfer",)  # evidence that only simulated patients give
HOURLY = (
    "One row an hour, charted values: what happened between two of them was not seen. Minima, and "
    "with them reward and stability by limits, are those of single values. A single row has no "
    "slope: whether an hour was steady, the weaning score by gradient and the trend of MAP are not "
    "defined and stand nowhere. How much charts lose against a console's recording was measured on "
    "simulated patients (docs/all-results.md)."
)


def missing_section(
    cohort: Cohort, hours: Hours, present: Collection[str], judged: Collection[str]
) -> Section:
    """What no table of this report can say; `judged` are the kinds of evidence that there are."""
    said = [f"Truth. {UNKNOWN}"]
    asked = [words for kind, words in KINDS.items() if kind not in (*judged, *NEEDS_TRUTH)]
    if asked:
        listed = ", ".join(word[0].lower() + word[1:] for word in asked)
        said.append(f"Evidence that was not asked for: {listed}. Add it: stepdown judge RUN.")
    said.append(_signals(cohort, present))
    seen = int(np.asarray(cohort.seen).sum()) * cohort.minutes / 60
    used = sum(len(part.level) for part in (hours.train, hours.select, hours.test))
    needed = ", ".join(cohort.columns[i] for i in REQUIRED)
    said.append(
        f"Hours. {seen:,.0f} hours were recorded, {used:,} of them became decisions: those with a "
        f"whole hour behind them. The others lack {needed}, another signal of their stay or a "
        "level, or end a stretch. If hours are missing because a patient was unwell, every number "
        "here is about calmer hours than there were."
    )
    fates = (
        "Outcomes. Nobody told who died: a stay that ended by death looks like one that was cut off"
        if cohort.died is None
        else f"Outcomes. Of {len(cohort.patient):,} stays {int(np.sum(cohort.died)):,} ended by "
        "death on support, whose hours after it count as the worst there are; deaths later on "
        "count nowhere"
    )
    said.append(f"{fates}.")
    said.append(
        "Reasons. Why a level was chosen is in no column. Where teams acted on what was not "
        "recorded, effects of levels are biased in a way that no table here can show; the bounds "
        "under hidden confounding (Γ) say how far off estimates may be."
    )
    if cohort.minutes > 10:
        said.append(HOURLY)
    lines = "".join(f"<li>{html.escape(x)}</li>" for x in said)
    return Section("What is missing here", f"<ul>{lines}</ul>", "missing")


def _signals(cohort: Cohort, present: Collection[str]) -> str:
    known = np.asarray(np.isfinite(np.asarray(cohort.signals)).any((0, 1)))
    never = [name for name, found in zip(cohort.columns, known, strict=True) if not found]
    some = [x for x in cohort.columns if x not in never and x not in present]
    words = f"Signals. Models see {_listed(present)}."
    if never:
        words += f" Never recorded: {_listed(never)}."
    if some:
        words += (
            f" Recorded, but not in every train hour, hence in no model: {_listed(some)}. "
            "Leave out the stays that lack them to use them."
        )
    return words


def _listed(names: Collection[str]) -> str:
    return ", ".join(KNOWN[name].label for name in names)


def patients_section(rows: Sequence[Row], card: str, flow: bytes = b"") -> Section:
    """The card of an imported cohort, and how its patients compare with published ones.

    `flow` is the picture of the flow of stays, where the card shows one.
    """
    blocks = [x for x in card.strip().split("\n\n") if x[:2] != "# "]
    told = "\n".join(
        (picture(flow, "Flow of stays") if flow else "") if x[:2] == "![" else render_markdown(x)
        for x in blocks
    )
    note = (
        f"Published: {SOURCE}. Rows without data are left out. A number outside its bar says that "
        "these patients, or how they were recorded, differ; it is no error."
    )
    return Section(
        "The patients",
        f"{told}\n<h3>Beside the published cohort</h3>\n"
        f'<p class="muted">{html.escape(note)}</p>\n{to_html(moments_grid(rows))}',
        "patients",
    )
