"""The pictures of a results page: what each shows, where it stands, and those of a comparison.

A picture's name is one of `CAPTIONS`, alone or with more words after a comma, such as
"exploitation, hidden-8": the words after the comma go to its heading.
"""

import base64
import html
from collections.abc import Callable, Mapping
from pathlib import Path

from stepdown.report.comparison import Comparison
from stepdown.report.comparison_figures import draw_exploitation, draw_score_distributions
from stepdown.report.record_figures import constant_levels, draw_constant_levels
from stepdown.report.training_figures import draw_action_mix, draw_curves, draw_training_mix

CAPTIONS: dict[str, tuple[str, str, str]] = {  # chapter, heading, what to see
    "exploitation": (
        "truth",
        "What the twin promises, what the truth keeps",
        "Differences to the clinicians from the same starts. An arrow to the left is a gain that "
        "exists in the model alone: the longer it is, the more a policy has exploited the model.",
    ),
    "cohorts": (
        "truth",
        "All cohorts: reward and safety against the clinicians",
        "Every mark is a cohort with its own patients, clinicians and models. What counts is "
        "whether the marks stay on one side, not how one of them fell.",
    ),
    "levels": (
        "truth",
        "One level held for six hours: true, and as models believe",
        "If records hold low support for recovered hearts alone, models take it for a remedy. "
        "Where models rise and the truth falls, learning without a guardian is led astray.",
    ),
    "ranks": (
        "evidence",
        "Who is best? Ask the twin, ask the truth",
        "Learned methods by reward in test patients and in two twins. Lines that cross are "
        "methods that a model puts in the wrong order.",
    ),
    "records alone": (
        "evidence",
        "Estimates from records alone, beside the truth",
        "Gray: so few patients followed the policy that the estimate is called uninformative.",
    ),
    "regret": (
        "evidence",
        "What a choice without the truth costs",
        "Bold: the rule that is the default.",
    ),
    "subgroups": ("evidence", "Who is helped, who is harmed", ""),
    "elsewhere": (
        "evidence",
        "Trained here, judged elsewhere",
        "Where reward falls and the guardian's share does not rise, nobody is warned.",
    ),
    "scores": ("scores", "Scores of all episodes", "Every seed and episode of a judge."),
    "mix": ("scores", "Levels chosen", "What each method sets, all hours of all episodes."),
    "rollouts reward": (
        "bedside",
        "Six hours from the same start: high and low reward",
        "Every method begins in the same recorded hour and meets the same chance.",
    ),
    "rollouts ws": ("bedside", "Six hours from the same start: high and low weaning score", ""),
    "rollouts acp": ("bedside", "Six hours from the same start: large and small jumps", ""),
    "agreement": (
        "bedside",
        "Would the policy have done as the clinicians did?",
        "Rows are what was recorded, columns what the policy would have set in the same hour.",
    ),
    "weaning": ("bedside", "How teams weaned", "Days of the records on which the level fell most."),
    "sensitivity": (
        "learning",
        "Sensitivity to τ, λ, λ₁ and λ₂",
        "One number changed at a time, trained and judged anew.",
    ),
    "curves": ("learning", "How training went", "Epochs are the same number of updates each."),
    "training mix": ("learning", "Levels set in imagination while training", ""),
    "examples": ("twin", "Forecasts where the level changes", ""),
    "growth": ("twin", "Error over the hours ahead", "Under the recorded levels."),
    "calibration": ("twin", "What bands claim and what they cover", ""),
    "rewards": ("twin", "Forecast against recorded reward", ""),
    "horizons": (
        "twin",
        "The clinicians' decisions in the twin and in the records",
        "The same recorded levels; what differs is the twin's error alone.",
    ),
    "shifts": ("guardian", "What the guardians notice, by the size of a shift", ""),
    "records": ("records", "The recorded hours", "Shaded: little support and a poor hour."),
    "overview": ("records", "The patients at a glance", ""),
}


def draw_comparison(comparison: Comparison, folder: Path) -> dict[str, bytes]:
    """All pictures that a comparison alone can give, by name; drawn in `folder`."""
    values = constant_levels(comparison)
    kept = [one for one in comparison.curves.values() if any(x.ndim == 2 for x in one.values())]
    wanted: dict[str, Callable[[Path], None]] = {
        "exploitation": lambda path: draw_exploitation(comparison, path),
        "scores": lambda path: draw_score_distributions(comparison, path),
        "mix": lambda path: draw_action_mix(comparison, path),
    }
    if values:
        first = next(iter(comparison.judged["twin"].values()))
        wanted["levels"] = lambda path: draw_constant_levels(values, first.row, path)
    if kept:
        wanted["curves"] = lambda path: draw_curves(comparison, path)
    if any("levels" in one for one in comparison.curves.values()):
        wanted["training mix"] = lambda path: draw_training_mix(comparison.curves, path)
    pictures = {}
    for name, draw in wanted.items():
        path = folder / f"{name.replace(' ', '-')}.png"
        draw(path)
        pictures[name] = path.read_bytes()
    return pictures


def chapter_of(name: str) -> str:
    """Where a picture stands; unknown ones stand at the end."""
    return CAPTIONS.get(name.partition(",")[0], ("more", "", ""))[0]


def show(pictures: Mapping[str, bytes], chapter: str) -> str:
    """The pictures of a chapter as HTML, in the order of `CAPTIONS`."""
    order = list(CAPTIONS)
    own = [name for name in pictures if chapter_of(name) == chapter]
    own.sort(key=lambda x: order.index(x.partition(",")[0]) if chapter != "more" else 0)
    return "\n".join(_figure(name, pictures[name]) for name in own)


def _figure(name: str, png: bytes) -> str:
    base, _, rest = name.partition(",")
    _, heading, words = CAPTIONS.get(base, ("more", name.capitalize(), ""))
    title = html.escape(f"{heading} ({rest.strip()})" if rest else heading)
    caption = f"<figcaption>{html.escape(words)}</figcaption>" if words else ""
    image = base64.b64encode(png).decode()
    return (
        f'<figure><h3>{title}</h3><div class="wide">'
        f'<img alt="{title}" src="data:image/png;base64,{image}"></div>{caption}</figure>'
    )
