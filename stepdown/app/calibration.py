"""Whether bands cover what they claim, on the patients that are shown: a curve and a table."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from stepdown.app.engine import Engine
from stepdown.app.ledger import Past, Scored, coverage_curve, join, past_hours, score_hours
from stepdown.app.recordings import Stay
from stepdown.signals import LEVELS

HOURS = 480  # of all patients, evenly spread
_FIELDS = ("state", "level", "later", "end", "changed")


def calibrate(engine: Engine, stays: Iterable[Stay]) -> dict[str, Any]:
    """Coverage of MAP an hour ahead: overall, by level, and where the level changed."""
    steps = engine.twin.steps
    every = join([past_hours(stay, steps, engine.used) for stay in stays], steps)
    held = np.flatnonzero(~every.changed)
    rows = held[np.unique(np.linspace(0, len(held) - 1, HOURS).astype(int))] if len(held) else held
    some = Past(**{name: getattr(every, name)[rows] for name in _FIELDS})
    scored = score_hours(engine.twin, some, engine.draws)
    before = some.state[:, -1, -1]
    groups = {f"P-{p}": some.level == p for p in LEVELS}
    groups |= {"level changed": some.level != before, "level held": some.level == before}
    return {
        "hours": len(rows),
        "signal": "map",
        "curve": coverage_curve(scored) if len(rows) else [],
        "groups": [_group(name, mask, scored) for name, mask in groups.items()],
    }


def _group(name: str, mask: np.ndarray, scored: Scored) -> dict[str, Any]:
    rows = np.flatnonzero(mask)
    if not len(rows):
        return {"group": name, "hours": 0, "coverage90": None, "vs_persistence": None}
    error, carried = scored.error[rows, 0].mean(), scored.carried[rows, 0].mean()
    return {
        "group": name,
        "hours": len(rows),
        "coverage90": round(float(scored.held[rows, 0].mean()), 3),
        "vs_persistence": round(float(error / carried - 1), 3),
    }
