"""Plans of levels over up to a day beside holding: what may come of them, hour by hour. Pure.

A plan is a level for every hour. Holding is always played, too, and all plans meet the same luck,
so that the difference of two courses is that of the plans. What a plan rests on is asked again at
every hour: the guardian's p-value of the coming level in the states that the courses have reached.
From the hour on at which most courses are unlike the recorded decisions, nothing is forecast.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from stepdown.app import gates, sentences, steady
from stepdown.app.engine import QUANTILES, Engine, keys_of, shown_columns
from stepdown.app.limits import DEFAULT_GATES, JUDGED, LV_FROM, Limits, effective_limits
from stepdown.app.request import Request, rounded
from stepdown.app.whatif import Judge, now_table, pump_of, quality_notes, see, shares, unknowns
from stepdown.guardian.threshold import Guardian
from stepdown.policies.constraint import REACH
from stepdown.signals import KNOWN, LOWEST, LVEDP
from stepdown.twin.fit import Twin
from stepdown.twin.rollout import follow_plans

MOST_PLANS, HOURS = 3, 24  # beside holding; h of the longest plan
ASKED = 32  # courses of which the guardian is asked
TESTED = 6  # h that forecasts have been tested over
DIFFERENCE = (0.05, 0.50, 0.95)
_JUDGED = ("map_low", "hr_out", "puls_low")


class Played(eqx.Module):
    """Courses of every plan, holding first, over 24 hours."""

    quantiles: Float[Array, "plans quantiles samples shown"]
    difference: Float[Array, "plans three samples shown"]  # to holding, course by course
    left: Bool[Array, "plans courses hours judged"]  # whether a course leaves a limit in an hour
    p_value: Float[Array, "plans hours asked"]  # of the level of an hour in a course's state


def compare_plans(
    engine: Engine, request: Request, plans: Sequence[Sequence[int]], preset: str = "paper"
) -> dict[str, Any]:
    """What may come of up to three plans and of holding; the last level of a plan goes on."""
    limits = effective_limits(engine.site, preset, request.limits)
    seen = see(engine, request, limits, adaptive=False)
    hours = max(len(plan) for plan in plans)
    head = {
        "status": "refused" if seen.codes else "ok",
        "refusals": sentences.state_sentences(seen.read, seen.codes, engine),
        "now": now_table(seen.read, limits),
        "p_now": None if seen.read.bed.level < 0 else int(seen.read.bed.level),
        "pump": pump_of(request),
        "limits": asdict(limits),
        "grid_min": request.grid_min,
        "hours": hours,
        "tested_hours": TESTED,
        "quality": quality_notes(seen.read, seen.filled, seen.absent, engine.used),
        "unknowns": unknowns(engine.names),
        "model": engine.model,
    }
    if seen.judge is None or seen.outlook is None or seen.codes:
        return head | {"plans": []}
    level = int(seen.read.bed.level)
    whole = [[level] * HOURS, *(_extended(plan) for plan in plans)]
    whole += [whole[0]] * (MOST_PLANS + 1 - len(whole))  # one compiled program for any number
    bounds = jnp.asarray([limits.bounds()[column] for column in JUDGED], jnp.float32)
    keys = keys_of(engine.luck, engine.draws)
    state = jnp.asarray(seen.judge.state)
    played = _play(engine.twin, engine.guardian, state, jnp.asarray(whole), bounds, keys)
    played = jax.tree.map(np.asarray, played)
    known = {i for i in engine.twin.scaler.present if i not in seen.absent}
    codes = seen.judge.codes(seen.outlook)
    told = [
        _told(seen.judge, codes, played, i, whole[i][:hours], known) for i in range(len(plans) + 1)
    ]
    return head | {"plans": told}


def warm_up(engine: Engine) -> None:
    """Compile what comparing plans needs."""
    row = np.append(np.asarray(engine.twin.scaler.mean), LOWEST).astype(np.float32)
    state = jnp.asarray(np.tile(row, (engine.twin.steps, 1)))
    bounds = jnp.asarray([Limits().bounds()[column] for column in JUDGED], jnp.float32)
    plans = jnp.full((MOST_PLANS + 1, HOURS), LOWEST)
    keys = keys_of(engine.luck, engine.draws)
    jax.block_until_ready(_play(engine.twin, engine.guardian, state, plans, bounds, keys))


def refuse_plans(request: Request, code: str) -> dict[str, Any]:
    """The answer where nothing could be computed at all (R13, R14)."""
    refusal = gates.refusal(code, DEFAULT_GATES)
    return {"status": "refused", "refusals": [refusal], "now": {}, "p_now": request.p_now,
            "limits": None, "grid_min": request.grid_min, "plans": [], "model": None}  # fmt: skip


def plan_words(levels: Sequence[int]) -> str:
    """A plan as people say it: "P-6 for 2 h, P-5 for 4 h"."""
    starts = [i for i in range(len(levels)) if i == 0 or levels[i] != levels[i - 1]]
    ends = [*starts[1:], len(levels)]
    return ", ".join(f"P-{levels[a]} for {b - a} h" for a, b in zip(starts, ends, strict=True))


@eqx.filter_jit
def _play(
    twin: Twin,
    guardian: Guardian,
    state: Float[Array, "steps columns"],
    plans: Int[Array, "plans hours"],
    bounds: Float[Array, "3 2"],
    keys: Key[Array, " draws"],
) -> Played:
    drawn = follow_plans(twin, state, plans, keys=keys)  # (plans, draws, hours, steps, columns)
    shown, judged = np.array(shown_columns(twin)), np.array(JUDGED)
    flat = drawn[..., shown].reshape(*drawn.shape[:2], -1, len(shown))
    away = flat - flat[:1]
    quantiles = jnp.quantile(flat, jnp.asarray(QUANTILES), axis=1)
    difference = jnp.quantile(away, jnp.asarray(DIFFERENCE), axis=1)
    low, high = bounds.T[:, None, None, None, None]
    values = drawn[..., judged]
    left = ~((values > low) & (values < high)).all(3)
    some = drawn[:, :ASKED]
    first = jnp.broadcast_to(state, (*some.shape[:2], 1, *state.shape))
    before = jnp.concatenate([first, some[:, :, :-1]], axis=2)
    levels = jnp.broadcast_to(plans[:, None], before.shape[:3])
    asked = guardian.p_values(before.reshape(-1, *state.shape), levels.ravel())
    return Played(
        quantiles=jnp.moveaxis(quantiles, 0, 1),
        difference=jnp.moveaxis(difference, 0, 1),
        left=left,
        p_value=jnp.swapaxes(asked.reshape(levels.shape), 1, 2),
    )


def _extended(plan: Sequence[int]) -> list[int]:
    return [*plan, *[plan[-1]] * (HOURS - len(plan))][:HOURS]


def _told(
    judge: Judge,
    codes: dict[str, np.ndarray],
    played: Played,
    i: int,
    levels: Sequence[int],
    known: set[int],
) -> dict[str, Any]:
    """One plan of the answer."""
    asked = np.asarray(played.p_value[i])
    middle = np.median(asked, axis=1)[: len(levels)]
    refusals = _refused(judge, codes, levels[0])
    strange = np.flatnonzero(middle < judge.engine.gates.unlike_level)
    until = 0 if refusals else int(strange[0]) if len(strange) else len(levels)
    return {
        "levels": list(levels),
        "holding": i == 0,
        "words": plan_words(levels),
        "refusals": refusals,
        "gates": _gates(judge, levels),
        "until_h": until,  # forecasts end where most courses are unlike the recorded decisions
        "quantiles": _curves(judge, played.quantiles[i], QUANTILES, levels, until, known),
        "difference": _curves(judge, played.difference[i], DIFFERENCE, levels, until, known),
        "risk": _risk(played, i, until) if until else None,
        "by_hour": [
            {
                "hour": hour + 1,
                "level": int(levels[hour]),
                "pvalue": round(float(middle[hour]), 4),
                "unlike": round(float(np.mean(asked[hour] < judge.engine.gates.unlike_level)), 3),
                "left": round(float(played.left[i, :, : hour + 1].any((1, 2)).mean()), 3)
                if hour < until
                else None,
            }
            for hour in range(len(levels))
        ],
    }


def _refused(judge: Judge, codes: dict[str, np.ndarray], level: int) -> list[dict[str, Any]]:
    """Why the first level of a plan has no forecast: the same as on the what-if screen."""
    config = judge.engine.gates
    held = [x for x in ("R10", "R11", "R16") if codes[x][level - LOWEST]]
    found = [gates.refusal(code, config) for code in held]
    if level > int(judge.read.bed.highest):
        found.insert(0, gates.refusal("R07", config, f"P-{level} is not a level of this pump."))
    return found


def _gates(judge: Judge, levels: Sequence[int]) -> list[dict[str, Any]]:
    """Hard gates that a plan breaks, with the hour; the first hour as on the what-if screen."""
    first = levels[0] - LOWEST
    found = [(1, code) for code, held in judge.forbidden.items() if held[first]]
    for hour in range(1, len(levels)):
        if abs(levels[hour] - levels[hour - 1]) > REACH:
            found.append((hour + 1, "H2"))
        if levels[hour] > int(judge.read.bed.highest):
            found.append((hour + 1, "H1"))
    return [{"hour": hour, "code": code, "sentence": gates.GATES[code]} for hour, code in found]


def _curves(
    judge: Judge,
    curves: np.ndarray,
    quantiles: Sequence[float],
    levels: Sequence[int],
    until: int,
    known: set[int],
) -> dict[str, Any]:
    """By signal and quantile; LVEDP ends where the plan goes below P-4."""
    engine, found = judge.engine, {}
    if not until:
        return found
    below = next((i for i, p in enumerate(levels) if p < LV_FROM), len(levels))
    for column, index in enumerate(shown_columns(engine.twin)):
        hours = min(until, below) if index == LVEDP else until
        if index not in known or not hours:
            continue
        name = engine.columns[index]
        found[name] = {
            f"q{100 * q:02.0f}": [
                rounded(x, KNOWN[name].unit) for x in curves[k, : hours * engine.twin.steps, column]
            ]
            for k, q in enumerate(quantiles)
        }
    return found


def _risk(played: Played, i: int, until: int) -> dict[str, Any]:
    """Courses that leave a limit while the plan is forecast, and how many more than holding."""
    left: np.ndarray = np.asarray(played.left[:, :, :until]).any(2)  # (plans, courses, judged)
    draws = left.shape[1]
    counts = dict(zip(_JUDGED, (int(x) for x in left[i].sum(0)), strict=True))
    counts["any"] = int(left[i].any(-1).sum())
    low, high = steady.interval(np.array(counts["any"]), np.array(draws))
    ours, held = left[i].any(-1), left[0].any(-1)
    more, fewer = int((ours & ~held).sum()), int((held & ~ours).sum())
    share = (more - fewer) / draws
    half = steady.Z * np.sqrt(more + fewer + 2 - draws * share**2) / draws if i else 0.0
    return counts | {
        "draws": draws,
        "hours": until,
        "interval": shares(low, high),
        "more_than_holding": [round(float(x), 3) for x in (share, share - half, share + half)],
    }
