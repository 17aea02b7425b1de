"""What everything is called, how it is drawn, and where it is shown.

Methods, judges, data sets, settings, episode metrics, twins, estimators: tables, figures and
sentences read them here, so that a name, a color or a rounding is the same wherever it stands.
"""

from dataclasses import dataclass
from typing import Any, Literal

from stepdown.handover import Look
from stepdown.policies.learning import Method as Learned
from stepdown.policies.methods import DEFAULT_METHOD, OURS_METHOD
from stepdown.policies.methods import METHODS as LEARNERS
from stepdown.problem.metrics import METRICS as ALL_METRICS
from stepdown.signals import LEVELS
from stepdown.twin.twins import TWINS

# Okabe and Ito's palette, darkened where thin lines would fade on white.
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, OCHRE, VIOLET, GRAY, BLACK = "#56b4e9", "#8a6d00", "#7b5cb8", "#5f6b76", "#222222"
TRUTH, TWIN = BLUE, ORANGE  # what is true, what a twin says


@dataclass(frozen=True)
class Label:
    """What something is called and how it is drawn."""

    words: str
    look: Look


# ── methods ───────────────────────────────────────────────────────────────────────────────────────

DEFAULT, OURS = DEFAULT_METHOD, OURS_METHOD
CLINICIANS, CEILING, EXPERT = "clinicians", "look-ahead", "expert"
BOLD = (DEFAULT, OURS)  # names in figures
UNKNOWN = Look(GRAY, "-.", "x")
DOTTED, DASHED = (0, (1, 1.2)), (0, (5, 2))
GROUPS = {  # of the tables; who stands in none is in the CSV files alone
    "paper": "The paper's methods",
    "parts": "What each part of CORMPO does",
    "peers": "Learned from the records alone",
    "twin": "Learned in the better twin",
    "planning": "Planned at each decision",
    "references": "References",
    "contrasts": "Contrasts",
}


@dataclass(frozen=True)
class Method:
    """A row of the tables."""

    words: str
    group: str  # of GROUPS, or "constant"
    look: Look = UNKNOWN
    rival: Literal["", "baseline", "part"] = ""  # the paper's baseline; CORMPO without density


def _learned(method: Learned) -> Method:
    """A row of the table of methods (policies/methods.py)."""
    group = "references" if method.group == "expert" else method.group
    if method.density or method.group not in ("paper", "parts"):
        return Method(method.words, group, method.look)
    return Method(method.words, group, method.look, "part" if group == "parts" else "baseline")


METHODS = {  # in the order of the tables
    **{name: _learned(method) for name, method in LEARNERS.items()},
    CLINICIANS: Method("Clinicians", "references", Look(BLACK)),
    "hold": Method("Hold the level", "references"),
    "taper": Method("Taper when stable", "references"),
    "protocol": Method("Weaning protocol", "references"),
    CEILING: Method("Look-ahead (ceiling)", "references"),
    "blind stepping down": Method("Blind stepping down", "contrasts"),
    "random": Method("Random level", "contrasts"),
    **{f"always P{level}": Method(f"Always P{level}", "constant") for level in LEVELS},
}


def members_of(*groups: str) -> tuple[str, ...]:
    """The methods of these groups, in the order of the tables."""
    return tuple(name for name, method in METHODS.items() if method.group in groups)


LEARNED = members_of("paper", "parts", "peers", "twin", "planning")
REFERENCES, CONTRASTS, CONSTANT = (members_of(x) for x in ("references", "contrasts", "constant"))
BASELINES = tuple(name for name, method in METHODS.items() if method.rival == "baseline")
PARTS = tuple(name for name, method in METHODS.items() if method.rival == "part")

# Who is shown where there is no room for all.
PENALTIES = (EXPERT, CLINICIANS, *BASELINES, OURS, "cormpo_flow", "disagreement")  # table of App. F
SCORED = (CLINICIANS, "mbpo", "mopo", OURS)  # distributions of scores
GROUPED = (*BASELINES, OURS, "disagreement_shaped", "hold")  # table of subgroups
PLOTTED = tuple(x for x in GROUPED if x != "bc")  # figures of subgroups and of transfer
BEDSIDE = (CLINICIANS, *BASELINES, OURS, "cormpo_flow")  # six hours from one start
AGREED = (
    *BEDSIDE[1:],
    "mbpo_shaped",
    "disagreement_shaped",
)  # would they have done as clinicians did
TOLD = ("mbpo", "mbpo_shaped", "disagreement_shaped", CLINICIANS)  # sentences about all cohorts
BESIDE = {"mbpo_twin": ("mbpo_shaped",), "cormpo_twin": ("mbpo_twin",)}  # what one change does


def name_of(method: str) -> str:
    """A method in words."""
    known = METHODS.get(method)
    return method[:1].upper() + method[1:] if known is None else known.words


def look_of(method: str) -> dict[str, Any]:
    """How a method's line is drawn everywhere, as Matplotlib takes it."""
    look = METHODS[method].look if method in METHODS else UNKNOWN
    return line_of(look) | {"ms": 4.5, "lw": 2.4 if method in (*BOLD, CLINICIANS) else 1.5}


def line_of(look: Look) -> dict[str, Any]:
    """A look as Matplotlib takes it."""
    return {"color": look.color, "ls": look.dash, "marker": look.marker}


# ── who judges, what was learned from, in which setting ───────────────────────────────────────────


@dataclass(frozen=True)
class Judge:
    """Who scores episodes."""

    words: str  # above a column
    brief: str  # above a column of a terminal
    full: str  # in a sentence
    place: str
    legend: str  # where the twin's promise is held beside the truth


JUDGES = {
    "tdt": Judge(
        "paper's twin",
        "paper's twin",
        "paper's twin",
        "in the paper's twin",
        "what the paper's twin says",
    ),
    "twin": Judge(
        "our twin", "twin", "twin", "in the twin", "what the twin says (shaded: 95 % interval)"
    ),
    "patients": Judge(
        "test patients",
        "test",
        "true test patients",
        "in true test patients",
        "true test patients (arrow: from the twin to here)",
    ),
    "fresh": Judge(
        "fresh patients", "fresh", "fresh patients", "in fresh patients", "fresh patients"
    ),
}
TWIN_JUDGES = ("tdt", "twin")
TRUE_JUDGES = ("fresh", "patients")  # the surest first
DATA: dict[str, str] = {
    "recorded": "recorded hours",
    "noiseless": "noiseless synthetic hours",
    "noisy": "noisy synthetic hours",
}
SETTINGS: dict[str, str] = {"ours": "our settings", "paper": "the paper's settings"}
PRESETS = {  # of a simulated cohort
    "guarded": Look(BLUE, marker="o"),
    "benign": Look(GREEN, marker="^"),
    "hidden": Look(ORANGE, marker="s"),
}
UNKNOWN_PRESET = Look(VIOLET, marker="D")


SOURCES = {  # who says what hours bring
    "truth": Label("true patients", Look(TRUTH)),
    "twin": Label("twin", Look(TWIN, DASHED, "s")),
    "ensemble": Label("ensemble that policies learn in", Look(GREEN, DOTTED, "^")),
    "records": Label("records", Look(BLACK)),
}
PARAMETERS = {  # of CORMPO, changed one at a time; anchored: from the numbers of the paper's figure
    "tau": "Threshold: percentile of select hours",
    "rule": "What sets the threshold",
    "lambda": "Weight of the penalty, λ",
    "lambda, anchored": "λ, at λ₁ = 0 and λ₂ = 0.8",
    "lambda1": "Charge for jumps, λ₁",
    "lambda2": "Bonus for weaning, λ₂",
    "lambda2, anchored": "λ₂, at λ₁ = 0",
}


# ── episode metrics ───────────────────────────────────────────────────────────────────────────────


METRICS = {name: metric for name, metric in ALL_METRICS.items() if metric.table}


def metrics_of(table: str) -> tuple[str, ...]:
    """The metrics of a table, in its order."""
    return tuple(name for name, metric in METRICS.items() if metric.table == table)


# ── models ────────────────────────────────────────────────────────────────────────────────────────


def twin_name(model: str) -> str:
    """A twin in words."""
    return TWINS[model].words if model in TWINS else model


TWIN_METRICS = {  # of forecasts
    "mae": "MAE, mixed units",
    "mae_published": "MAE, published units",
    "mae_published_static": "the same, level stays",
    "mae_published_changing": "the same, level changes",
    "mae_z": "MAE, z",
    "mae_z_inside": "the same, level changes inside the hour",
    "mae_map": "MAE of MAP, mmHg",
    "trend": "MAP trend right",
    "crps_published": "CRPS, published units",
    "crps_z": "CRPS, z",
    "crps_z_inside": "the same, level changes inside the hour",
    "coverage50": "in 50 % band",
    "coverage90": "in 90 % band",
    "coverage90_inside": "the same, level changes inside the hour",
}
WINDOW_METRICS = {"mse_z": "MSE, z", "mse_map": "MSE of MAP, mmHg²"}


ESTIMATORS = {  # how records alone are asked about a policy
    "joint": Label("FQE and WDR", Look(GREEN, marker="o")),
    "wis": Label("WIS", Look(VIOLET, marker="v")),
    "fqe": Label("FQE", Look(PINK, marker="^")),
    "wdr": Label("WDR", Look(OCHRE, marker="D")),
    "magic": Label("MAGIC", Look(ORANGE, marker="P")),
}
RECOMMENDED = "joint"
SHIFTS = {  # ways to move decisions away from the records: in words, and beside an axis
    "offset": ("Signals moved, held over the hour", "Shift, sd of train patients"),
    "noise": ("Signals with noise in every sample", "Noise, sd of train patients"),
    "action": ("Chosen level moved", "Shift, levels"),
}


def size_words(kind: str, size: float) -> str:
    """The size of a shift with its unit."""
    if kind == "action":
        return f"{size:g} level" + ("" if size == 1 else "s")
    return f"{size:g} sd"
