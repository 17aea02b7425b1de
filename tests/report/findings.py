"""Findings made by hand, for a comparison whose numbers are known."""

from typing import Any

from stepdown.report.comparison import Comparison
from stepdown.report.evidence import Findings
from tests.report.comparisons import comparison

METHODS = ("bc", "mbpo", "cormpo_kde", "mbpo_shaped", "hold")


def estimates(value: float) -> dict[str, dict[str, float | None]]:
    """All estimators agree; WIS has no limit."""
    told: dict[str, dict[str, float | None]] = {
        name: {"mean": value, "low": value - 1, "high": value + 1}
        for name in ("fqe", "wdr", "joint", "magic", "model")
    }
    return told | {"wis": {"mean": value, "low": None, "high": None}}


def policy(method: str, value: float, informative: int, seeds: int = 2) -> dict[str, Any]:
    return {
        "method": method, "seeds": seeds, "informative": informative, "agreed": True,
        "effective": 12.5,
        "seen": 0.8, "unsupported": 0.05, "largest": 0.2, "tail": 0.3,
        "estimates": estimates(value), "apart": {"fqe": {"mean": 0.1, "low": 0.0, "high": 0.2}},
        "bounds": [{"gamma": 1.5, "lower": value - 0.25, "upper": value + 0.25}],
    }  # fmt: skip


RECORDS = {
    "patients": 71, "decisions": 4321, "too_short": 3, "deaths_known": True,
    "calibration": {"log_loss": 0.5, "ece": 0.012, "brier": 0.1},
    "policies": [policy("bc", 0.5, 2), policy("mbpo", 1.0, 1), policy("hold", 0.2, 1, 1)],
}  # fmt: skip
CHOICE = {
    "default": "careful",
    "truth": "patients",
    "candidates": [],
    "choices": [
        {"rule": "twin reward", "chosen": ["mbpo", "mbpo"], "regret_patients": [2.5, 1.5]},
        {"rule": "careful", "chosen": ["cormpo_kde", "mbpo_shaped"], "regret_patients": [0.5, 0.0]},
    ],
}
SECOND = {
    "rows": [
        {"method": x, "judge": "second", "metric": "reward", "mean": y, "sd": 0.0, "low": y - 1,
         "high": y + 1}
        for x, y in zip(METHODS, (0.0, 1.0, 2.0, 3.0, 0.0), strict=True)
    ]
}  # fmt: skip
LOWER = {"in_mean": -5.0, "everywhere": -14.0, "as_trained": -20.0}
BOUNDS = {name: {"slope": 0.01, "rest": 0.2, "bound": bound} for name, bound in LOWER.items()}
CERTIFICATE = {
    "rows": [
        {
            "method": "cormpo_kde", "value_in_truth": 3.0, "value_in_twin": 1.0,
            "value_in_model": 2.0, "floor": -12.0, "charged": 0.4, "bonus": 1.5, "redrawn": True,
            "tv_known": 0.3, "rank_correlation": 0.25, "vacuous": False, "weight": 0.12,
            "gap": 41.5, "model": "twin", "model_lent": False, "density": "kde",
            "density_lent": False,
        }
        | {f"{x}_{y}": z for x, own in BOUNDS.items() for y, z in own.items()}
    ]
}  # fmt: skip


def _numbers(mean: float) -> dict[str, float]:
    return {"mean": mean, "sd": 0.0, "low": mean - 0.1, "high": mean + 0.1}


GROUPS = {
    "truth": True,
    "rows": [
        {"method": x, "judge": "patients", "group": group, "metric": f"{metric}{minus}",
         "patients": people, "episodes": 2 * people, **_numbers(value)}
        for group, people in (("all", 20), ("non-recoverers", 4))
        for metric in ("reward", "unsafe_hours", "reward_worst_tenth")
        for x, minus, value in (("clinicians", "", 0.5), ("cormpo_kde", "_minus_clinicians", 0.3),
                                ("mbpo", "_minus_clinicians", -0.05))
    ],
}  # fmt: skip
TRANSFER = {
    "shifts": [["as trained", "the same"], ["another pump", "the other profile"]],
    "rows": [
        {"shift": shift, "method": x, "metric": metric, **_numbers(value)}
        for shift, by in (("as trained", 0.0), ("another pump", -1.0))
        for x, metric, value in (
            ("cormpo_kde", "reward_minus_clinicians", 0.5 + by), ("cormpo_kde", "charged", 0.3),
            ("mbpo", "reward_minus_clinicians", 0.2 + by), ("clinicians", "charged", 0.25),
        )
    ],
}  # fmt: skip


def findings(cohort: str = "guarded-7") -> Findings:
    """Everything was found."""
    return Findings(
        comparison(cohort=cohort), SECOND, RECORDS, CHOICE, CERTIFICATE, GROUPS, TRANSFER
    )


def without_truth() -> Findings:
    """Recordings: the twin alone judges, and the records were too few."""
    known = comparison(cohort="imported")
    alone = Comparison("imported", "recorded", "ours", {"twin": known.judged["twin"]})
    told = [{x: y for x, y in one.items() if x[:6] != "regret"} for one in CHOICE["choices"]]
    refused = {"refused": "expected 5 patients, got 2.", "policies": []}
    return Findings(alone, SECOND, refused, CHOICE | {"choices": told, "truth": None})
