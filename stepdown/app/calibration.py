"""Whether bands cover what they claim on the patients that are shown, and what models give away."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from stepdown.app.engine import Engine
from stepdown.app.ledger import Past, Scored, coverage_curve, join, past_hours, score_hours
from stepdown.app.recordings import Stay
from stepdown.guardian.threshold import log_densities
from stepdown.signals import LEVELS

HOURS = 480  # of all patients, evenly spread
TELLING = 0.60  # AUC up to which membership counts as hidden
_FIELDS = ("state", "level", "later", "end", "changed")


def calibrate(
    engine: Engine, stays: Iterable[Stay], fitted_on: Iterable[Stay] = ()
) -> dict[str, Any]:
    """Coverage of MAP an hour ahead: overall, by level, and where the level changed.

    With the patients that the models were fitted on, also how far membership shows.
    """
    some, others = _sample(engine, stays), _sample(engine, fitted_on)
    scored = score_hours(engine.twin, some, engine.draws)
    before = some.state[:, -1, -1]
    groups = {f"P-{p}": some.level == p for p in LEVELS}
    groups |= {"level changed": some.level != before, "level held": some.level == before}
    return {
        "hours": len(some.level),
        "signal": "map",
        "curve": coverage_curve(scored) if len(some.level) else [],
        "groups": [_group(name, mask, scored) for name, mask in groups.items()],
        "membership": _membership(engine, (some, scored), others),
    }


def _sample(engine: Engine, stays: Iterable[Stay]) -> Past:
    """Hours through which the level was held, evenly spread over the patients."""
    steps = engine.twin.steps
    every = join([past_hours(stay, steps, engine.used) for stay in stays], steps)
    held = np.flatnonzero(~every.changed)
    rows = held[np.unique(np.linspace(0, len(held) - 1, HOURS).astype(int))] if len(held) else held
    return Past(**{name: getattr(every, name)[rows] for name in _FIELDS})


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


def _membership(
    engine: Engine, shown: tuple[Past, Scored], fitted_on: Past
) -> dict[str, Any] | None:
    """How well one can tell hours that a model was fitted on from others: 0.5 is not at all."""
    if not len(fitted_on.level) or not len(shown[0].level):
        return None
    own = score_hours(engine.twin, fitted_on, engine.draws)
    small = [-np.mean(x.error, axis=1) for x in (own, shown[1])]
    dense = [
        log_densities(engine.guardian.density, jnp.asarray(x.state), jnp.asarray(x.level))
        for x in (fitted_on, shown[0])
    ]
    return {
        "twin_auc": round(rank_auc(*small), 3),
        "guardian_auc": round(rank_auc(*dense), 3),
        "target": TELLING,
        "hours": [len(fitted_on.level), len(shown[0].level)],
        "words": "AUC of telling hours that a model was fitted on from hours of test patients, by "
        "the twin's error and by the guardian's density; 0.5 is chance.",
    }


def rank_auc(higher: Float[np.ndarray, " n"], lower: Float[np.ndarray, " m"]) -> float:
    """Share of pairs whose first is the higher; ties count half."""
    above = (higher[:, None] > lower[None]).mean()
    return float(above + 0.5 * (higher[:, None] == lower[None]).mean())
