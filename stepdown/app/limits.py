"""Limits and thresholds, each number once: presets that a site may make stricter, never looser.

Gates, refusals, sentences and screens all read them here. A limit is crossed at the limit itself,
as in docs/definitions.md (stable strictly above). Of two sets of limits the most restrictive value
of each wins. The file of a site is a floor: no preset and nobody at a screen goes below it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from stepdown.problem.clinical import PAPER as CLINICAL
from stepdown.signals import HR, MAP, NAMES, PULSATILITY

PresetName = Literal["paper", "map65", "upper", "site"]
JUDGED = (MAP, HR, PULSATILITY)  # columns with limits
LV_FROM = 4  # P-level; below it the console shows no LV metrics
HIGHEST_LIMIT = 300.0  # of any signal


@dataclass(frozen=True)
class Limits:
    """Inside means strictly between; None is no limit. The defaults are the loosest."""

    map_low: float = CLINICAL.map_limit  # mmHg
    hr_low: float = CLINICAL.hr_limit  # /min
    pulsatility_low: float = CLINICAL.pulsatility_limit  # mmHg
    map_high: float | None = None
    hr_high: float | None = None
    pulsatility_high: float | None = None

    def __post_init__(self):
        for column in JUDGED:
            name = NAMES[column]
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            loosest = getattr(Limits, f"{name}_low")
            if not loosest <= low < HIGHEST_LIMIT:
                raise ValueError(
                    f"{name}_low: expected {loosest:g} to {HIGHEST_LIMIT:g}, got {low:g}. "
                    "A site may only make limits stricter."
                )
            if high is not None and not low < high <= HIGHEST_LIMIT:
                raise ValueError(
                    f"{name}_high: expected {low:g} to {HIGHEST_LIMIT:g}, got {high:g}."
                )

    def bounds(self) -> dict[int, tuple[float, float]]:
        """Lower and upper limit by column of a state."""
        found = {}
        for column in JUDGED:
            high = getattr(self, f"{NAMES[column]}_high")
            low = getattr(self, f"{NAMES[column]}_low")
            found[column] = (low, float("inf") if high is None else high)
        return found


PRESETS: dict[str, Limits] = {
    "paper": Limits(),
    "map65": Limits(map_low=65.0),
    # 106 mmHg is where the reward begins to charge; 110 /min is judgment, to be signed
    "upper": Limits(map_low=65.0, map_high=106.0, hr_high=110.0),
}
LABELS = {
    "paper": f"Paper (MAP {PRESETS['paper'].map_low:g})",
    "map65": f"MAP {PRESETS['map65'].map_low:g}",
    "upper": "MAP 65 to 106, HR to 110",
    "site": "Site",
}


def effective_limits(site: Limits, *presets: str | None) -> Limits:
    """The most restrictive of the presets and the site's own, which always are in force."""
    table = PRESETS | {"site": site}
    return most_restrictive(site, *(table[name] for name in presets if name is not None))


def most_restrictive(*limits: Limits) -> Limits:
    """The strictest value of each limit."""
    found: dict[str, Any] = {}
    for field in fields(Limits):
        values = [x for x in (getattr(one, field.name) for one in limits) if x is not None]
        worst = max if field.name.endswith("_low") else min
        found[field.name] = worst(values) if values else None
    return Limits(**found)


def limits_from_dict(table: Mapping[str, Any], floor: Limits | None = None) -> Limits:
    """Limits out of JSON; unknown names and values looser than the floor are refused.

    What is not named is that of the floor, by default the loosest limits.
    """
    floor = floor or Limits()
    known = [field.name for field in fields(Limits)]
    for name, value in table.items():
        if name not in known:
            raise ValueError(f"limits: expected {', '.join(known)}, got {str(name)[:32]!r}.")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number and not (value is None and name.endswith("_high")):
            raise ValueError(f"{name}: expected a number.")
    given: dict[str, Any] = {n: x if x is None else float(x) for n, x in table.items()}
    found = Limits(**(asdict(floor) | given))
    strict = most_restrictive(floor, found)
    for name in known:
        least, value = getattr(strict, name), getattr(found, name)
        if value != least:
            word = "least" if name.endswith("_low") else "most"
            told = "none" if value is None else f"{value:g}"
            raise ValueError(
                f"{name}: expected at {word} {least:g}, the limit of the site's file, got {told}. "
                "Limits may only be made stricter; to loosen one, change the file."
            )
    return found


@dataclass(frozen=True)
class GateConfig:
    """Thresholds of the refusals; a site may only make them stricter. Judgment, to be signed.

    The defaults are the loosest.
    """

    oldest: float = 15.0  # min; R01
    missing: float = 0.20  # share of an hour; R02
    flat: float = 30.0  # min; R03
    unlike_state: float = 0.05  # p-value of the likeliest level; R09
    unlike_level: float = 0.05  # p-value; R10
    support: int = 20  # similar recorded hours at the level; R10
    disagreement: float = 0.25  # between the risks by single members, highest less lowest; R11
    risk: float = 0.10  # share of courses that may cross a limit at an acceptable level

    def __post_init__(self):
        for field in fields(self):
            value, loosest = getattr(self, field.name), field.default
            low, high = (loosest, _MOST[field.name]) if field.name in _MOST else (0.0, loosest)
            if not low <= value <= high:
                raise ValueError(
                    f"{field.name}: expected {low:g} to {high:g}, got {value:g}. "
                    "A site may only make thresholds stricter."
                )


_MOST = {"unlike_state": 1.0, "unlike_level": 1.0, "support": 1e9}  # of what is stricter if larger
DEFAULT_GATES = GateConfig()


def read_site(path: Path | None) -> tuple[Limits, GateConfig]:
    """The stricter limits and thresholds of a site."""
    if path is None:
        return Limits(), DEFAULT_GATES
    try:
        table: dict[str, Any] = json.loads(path.read_bytes())
        known = set(table) <= {"limits", "gates"}
        given = table.get("gates", {}) if known else {}
        gates = GateConfig(**{name: _as_float(name, value) for name, value in given.items()})
    except (AttributeError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected JSON with limits and gates, got {error}.") from None
    if not known:
        raise ValueError(f"{path}: expected only limits and gates.")
    return limits_from_dict(table.get("limits", {})), gates


def _as_float(name: str, value: Any) -> Any:
    """A whole number in JSON is a number like any other, except where hours are counted."""
    return float(value) if isinstance(value, int) and name != "support" else value
