"""The forecast ledger: past forecasts for the level that was really used, scored as time goes on.

At every whole hour of a recording the coming hour is forecast for the level that was held in it,
from what was known then. Once the hour is over, the forecast is scored: whether the 90 % band held
the sample at its end, and how far the median and carry-forward were off over the hour. An hour in
which the level changed was held at no level, so it is left out and counted. Over all patients the
same scores say whether bands cover what they claim, and what models give away.
"""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from stepdown.app.engine import QUANTILES, Engine
from stepdown.app.limits import JUDGED
from stepdown.app.recordings import Stay
from stepdown.evaluation.guardians import auroc
from stepdown.guardian.threshold import log_densities
from stepdown.signals import LEVEL, LEVELS, LOWEST, MAP, NAMES
from stepdown.twin.fit import Twin

ROWS = 24  # hours of one compiled call
BAND = (QUANTILES[0], QUANTILES[-1])  # 90 %
HOURS = 480  # of all patients, evenly spread
TELLING = 0.60  # AUC up to which membership counts as hidden


class Scored(eqx.Module):
    """How past forecasts came out; columns are MAP, HR and pulsatility."""

    held: Float[np.ndarray, "n 3"]  # 1 where the band held the sample at the end of the hour
    place: Float[np.ndarray, "n 3"]  # share of the draws below that sample
    error: Float[np.ndarray, "n 3"]  # of the median, mean over the hour
    carried: Float[np.ndarray, "n 3"]  # of carry-forward


class Past(eqx.Module):
    """The whole hours of a recording, as they were before and as they came out."""

    state: Float[np.ndarray, "n steps columns"]
    level: Int[np.ndarray, " n"]  # held, or the rounded mean if it changed
    later: Float[np.ndarray, "n steps columns"]
    end: Float[np.ndarray, " n"]  # minute of the last sample of the later hour
    changed: Bool[np.ndarray, " n"]  # the level changed in the later hour


class Book(eqx.Module):
    """The hours of one patient or of many, and how their forecasts came out."""

    past: Past
    scored: Scored


def past_hours(stay: Stay, steps: int, used: tuple[int, ...]) -> Past:
    """Two whole hours after the other, from the start on; an hour with a gap is left out."""
    whole = len(stay.level) // steps
    signals = stay.signals[: whole * steps].reshape(whole, steps, len(stay.columns))
    level = stay.level[: whole * steps].reshape(whole, steps)
    measured = np.isfinite(signals[..., list(used)]).all((1, 2))
    good = np.logical_and(measured, (level >= LOWEST).all(1))
    before = np.flatnonzero(good[:-1] & good[1:])
    coming, held = before + 1, np.floor(level.mean(1) + 0.5)
    in_force = np.broadcast_to(held[:, None, None], (whole, steps, 1))
    states = np.concatenate([signals, in_force], axis=-1, dtype=np.float32)
    return Past(
        state=states[before],
        level=held[coming].astype(np.int32),
        later=states[coming],
        end=((coming + 1) * steps - 1) * stay.minutes,
        changed=(level[coming] != level[coming, :1]).any(1),
    )


def keep_book(engine: Engine, past: Past) -> Book:
    """Score the forecast of every hour, some hours at a time, by one compiled program."""
    count = len(past.level)
    keys = jax.vmap(lambda i: jr.split(jr.fold_in(jr.key(0), i), engine.draws))(jnp.arange(ROWS))
    parts = [Scored(*(np.zeros((0, len(JUDGED)), np.float32) for _ in range(4)))]
    for first in range(0, count, ROWS):
        rows = np.minimum(np.arange(first, first + ROWS), count - 1)
        state, level, later = (jnp.asarray(x[rows]) for x in (past.state, past.level, past.later))
        found = _score(engine.twin, state, level, later, keys)
        parts.append(Scored(*(np.asarray(x)[: count - first] for x in found)))
    return Book(past, jax.tree.map(lambda *rows: np.concatenate(rows), *parts))


@eqx.filter_jit
def _score(
    twin: Twin,
    states: Float[Array, "rows steps columns"],
    levels: Int[Array, " rows"],
    later: Float[Array, "rows steps columns"],
    keys: Key[Array, "rows draws"],
):
    columns = np.array(JUDGED)

    def one(state, level, truth, keys):
        drawn = jax.vmap(lambda key: twin(state, level, key=key))(keys)[..., columns]
        truth = truth[:, columns]
        low, middle, high = jnp.quantile(drawn, jnp.asarray([BAND[0], 0.5, BAND[1]]), axis=0)
        held = (truth[-1] >= low[-1]) & (truth[-1] <= high[-1])
        place = jnp.mean(drawn[:, -1] < truth[-1:], axis=0)
        carried = twin.carry(state, level)[:, columns]
        errors = (jnp.mean(jnp.abs(x - truth), axis=0) for x in (middle, carried))
        return held.astype(float), place, *errors

    return jax.vmap(one)(states, levels, later, keys)


def skill_so_far(book: Book, minute: float, hours: float = 24.0) -> dict[str, Any]:
    """This patient's coverage and skill over the last hours, from forecasts that are over."""
    past, scored = book.past, book.scored
    chosen = np.flatnonzero((past.end > minute - 60 * hours) & (past.end <= minute + 1e-6))
    rows = [int(i) for i in chosen if not past.changed[i]]
    found: dict[str, Any] = {
        "hours": hours,
        "of": len(rows),
        "left_out": len(chosen) - len(rows),
        "signals": {},
    }
    for column, index in enumerate(JUDGED):
        found["signals"][NAMES[index]] = _skill(scored, rows, column)
    main = found["signals"][NAMES[MAP]]
    held = int(main["held"])
    words = (
        f"90 % band of MAP held {held} of {len(rows)} times{_compared(main['vs_persistence'])}."
        if rows
        else "No forecast of this patient is over yet."
    )
    return found | main | {"words": words}


def _skill(scored: Scored, rows: list[int], column: int) -> dict[str, Any]:
    if not rows:
        return {"held": 0, "coverage90": None, "vs_persistence": None}
    held = int(np.sum(scored.held[rows, column]))
    error = float(np.mean(scored.error[rows, column]))
    carried = float(np.mean(scored.carried[rows, column]))
    relative = error / carried - 1 if carried > 0 else None
    return {
        "held": held,
        "coverage90": round(held / len(rows), 3),
        "vs_persistence": None if relative is None else round(relative, 3),
    }


def _compared(relative: float | None) -> str:
    if relative is None:
        return ""
    share = f"{abs(100 * relative):.0f} %"
    return f"; error {share} {'below' if relative < 0 else 'above'} carry-forward"


def coverage_curve(scored: Scored) -> list[dict[str, float]]:
    """What central bands claim and what they covered of MAP, for the calibration curve."""
    place, found = scored.place[:, JUDGED.index(MAP)], []
    for claimed in np.arange(0.1, 1.0, 0.1):
        covered = np.mean(np.abs(place - 0.5) <= claimed / 2)
        found.append({"claimed": round(float(claimed), 1), "covered": round(float(covered), 3)})
    return found


# ── all patients ──────────────────────────────────────────────────────────────────────────────────


def measure_coverage(
    engine: Engine, stays: Iterable[Stay], fitted_on: Iterable[Stay]
) -> dict[str, Any]:
    """Coverage of MAP an hour ahead: overall, by level, and where the level changed.

    Beside the patients that the models were fitted on, also how far membership shows.
    """
    shown = keep_book(engine, _sample(engine, stays))
    level, before = shown.past.level, shown.past.state[:, -1, LEVEL]
    groups = {f"P-{p}": level == p for p in LEVELS}
    groups |= {"level changed": level != before, "level held": level == before}
    return {
        "hours": len(level),
        "signal": NAMES[MAP],
        "curve": coverage_curve(shown.scored) if len(level) else [],
        "groups": [_group(name, mask, shown.scored) for name, mask in groups.items()],
        "membership": _membership(engine, shown, _sample(engine, fitted_on)),
    }


def _sample(engine: Engine, stays: Iterable[Stay]) -> Past:
    """Hours through which the level was held, evenly spread over the patients."""
    steps = engine.twin.steps
    parts = [past_hours(stay, steps, engine.used) for stay in stays]
    every = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
    held = np.flatnonzero(~every.changed)
    rows = held[np.unique(np.linspace(0, len(held) - 1, HOURS).astype(int))] if len(held) else held
    return jax.tree.map(lambda x: x[rows], every)


def _group(name: str, mask: np.ndarray, scored: Scored) -> dict[str, Any]:
    rows = [int(i) for i in np.flatnonzero(mask)]
    found = _skill(scored, rows, JUDGED.index(MAP))
    del found["held"]
    return {"group": name, "hours": len(rows)} | found


def _membership(engine: Engine, shown: Book, fitted_on: Past) -> dict[str, Any] | None:
    """How well one can tell hours that a model was fitted on from others: 0.5 is not at all."""
    if not len(fitted_on.level) or not len(shown.past.level):
        return None
    books = keep_book(engine, fitted_on), shown
    small = [-np.mean(x.scored.error, axis=1) for x in books]
    dense = [
        log_densities(engine.guardian.density, jnp.asarray(x.past.state), jnp.asarray(x.past.level))
        for x in books
    ]
    return {
        "twin_auc": round(auroc(*small), 3),
        "guardian_auc": round(auroc(*dense), 3),
        "target": TELLING,
        "hours": [len(x.past.level) for x in books],
        "words": "AUC of telling hours that a model was fitted on from hours of test patients, by "
        "the twin's error and by the guardian's density; 0.5 is chance.",
    }
