"""Limits and thresholds: presets that a site may make stricter, never looser.

A limit is crossed at the limit itself, as in docs/definitions.md (stable strictly above). Of two
sets of limits the most restrictive value of each wins.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from stepdown.problem.clinical import PAPER as CLINICAL
from stepdown.signals import HR, MAP, PULSATILITY

PresetName = Literal["paper", "map65", "site"]


@dataclass(frozen=True)
class Limits:
    """Inside means strictly between; None is no limit."""

    map_low: float = CLINICAL.map_limit  # mmHg
    hr_low: float = CLINICAL.hr_limit  # /min
    pulsatility_low: float = CLINICAL.pulsatility_limit  # mmHg
    map_high: float | None = None
    hr_high: float | None = None
    pulsatility_high: float | None = None

    def __post_init__(self):
        for name in ("map", "hr", "pulsatility"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            base = _BASE[f"{name}_low"]
            if not base <= low < 300.0:
                raise ValueError(
                    f"{name}_low: expected {base:g} to 300, got {low:g}. "
                    "A site may only make limits stricter."
                )
            if high is not None and not low < high <= 300.0:
                raise ValueError(f"{name}_high: expected {low:g} to 300, got {high:g}.")

    def bounds(self) -> dict[int, tuple[float, float]]:
        """Lower and upper limit by column of a state."""
        return {
            MAP: (self.map_low, _top(self.map_high)),
            HR: (self.hr_low, _top(self.hr_high)),
            PULSATILITY: (self.pulsatility_low, _top(self.pulsatility_high)),
        }


_BASE = {
    "map_low": CLINICAL.map_limit,
    "hr_low": CLINICAL.hr_limit,
    "pulsatility_low": CLINICAL.pulsatility_limit,
}
PRESETS: dict[str, Limits] = {"paper": Limits(), "map65": Limits(map_low=65.0)}
LABELS = {"paper": "Paper (MAP 60)", "map65": "MAP 65", "site": "Site"}


def most_restrictive(*limits: Limits) -> Limits:
    """The strictest value of each limit."""
    found: dict[str, Any] = {}
    for field in fields(Limits):
        values = [x for x in (getattr(one, field.name) for one in limits) if x is not None]
        worst = max if field.name.endswith("_low") else min
        found[field.name] = worst(values) if values else None
    return Limits(**found)


def limits_from_dict(table: Mapping[str, Any]) -> Limits:
    """Limits out of JSON; unknown names and looser values are refused."""
    known = [field.name for field in fields(Limits)]
    for name, value in table.items():
        if name not in known:
            raise ValueError(f"limits: expected {', '.join(known)}, got {str(name)[:32]!r}.")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number and not (value is None and name.endswith("_high")):
            raise ValueError(f"{name}: expected a number.")
    given: dict[str, Any] = {n: x if x is None else float(x) for n, x in table.items()}
    return Limits(**given)


def limits_to_dict(limits: Limits) -> dict[str, float | None]:
    """Limits as JSON."""
    return asdict(limits)


def _top(high: float | None) -> float:
    return float("inf") if high is None else high


@dataclass(frozen=True)
class GateConfig:
    """Thresholds of the refusals; a site may only make them stricter. Judgment, to be signed."""

    oldest: float = 15.0  # min; R01
    missing: float = 0.20  # share of an hour; R02
    flat: float = 30.0  # min; R03
    unlike_state: float = 0.05  # p-value of the likeliest level; R09
    unlike_level: float = 0.05  # p-value; R10
    support: int = 20  # similar recorded hours at the level; R10
    disagreement: float = 0.5  # share of the variance between members; R11
    risk: float = 0.10  # share of courses that may cross a limit at an acceptable level

    def __post_init__(self):
        for name in ("oldest", "missing", "flat", "disagreement", "risk"):
            _within(name, getattr(self, name), 0.0, _LOOSEST[name])
        for name in ("unlike_state", "unlike_level"):
            _within(name, getattr(self, name), _LOOSEST[name], 1.0)
        _within("support", self.support, _LOOSEST["support"], 1e9)


_LOOSEST: dict[str, float | int] = {
    "oldest": 15.0,
    "missing": 0.20,
    "flat": 30.0,
    "unlike_state": 0.05,
    "unlike_level": 0.05,
    "support": 20,
    "disagreement": 0.5,
    "risk": 0.10,
}


def _within(name: str, value: float | int, low: float | int, high: float | int) -> None:
    if not low <= value <= high:
        raise ValueError(
            f"{name}: expected {low:g} to {high:g}, got {value:g}. "
            "A site may only make thresholds stricter."
        )


DEFAULT_GATES = GateConfig()
