"""The models and the recorded hours behind an answer, and what they say about one state.

The outlook is one compiled program: eight levels, six hours, judged by counts. It always computes
everything, in the same order and with the same luck for every level and every state, so candidates
can be asked for in any order, or alone, and a state that is hardly another has hardly another
answer. A level whose risk is not clear of the line gets further courses (steady.py), those of the
same luck, too. What is not shown is cut away on the host.

The support is recorded hours like this one: how many there are at each level, and what happened
next. A recorded hour is similar if its state is no farther than a radius, in z-scores over the
hour's signals and the level in force. The radius is set by select patients: so large that 95 % of
their recorded decisions have at least 20 similar train hours at the level that was chosen. Counts
are of hours in which exactly the candidate level was chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from stepdown.app.limits import DEFAULT_GATES, JUDGED, GateConfig, Limits
from stepdown.guardian.threshold import Guardian
from stepdown.handover import Policy, Transitions, require_role
from stepdown.policies.constraint import Constrained
from stepdown.policies.planner import Planner, Weighed
from stepdown.problem.scaling import LEVEL_MEAN, LEVEL_SD, Scaler
from stepdown.signals import (
    FLOW,
    HORIZON,
    HR,
    LEVEL,
    LEVELS,
    LVEDP,
    MAP,
    NAMES,
    PULSATILITY,
    REQUIRED,
)
from stepdown.twin.calibrated import Calibrated, widen
from stepdown.twin.filled import FilledTwin
from stepdown.twin.fit import Twin, level_score
from stepdown.twin.ridge import Ridge
from stepdown.twin.rollout import follow_plans

DRAWS, FEWEST_DRAWS = 200, 50  # simulated courses of every level
BLOCK, MOST = 400, 2000  # further courses at a time, and all those of a level beyond the first
OF_MEMBER = 32  # courses by each member alone
SHOWN = (MAP, PULSATILITY, HR, LVEDP, FLOW)  # columns whose forecast is shown, before further ones
QUANTILES = (0.05, 0.25, 0.50, 0.75, 0.95)
SHARE, ENOUGH = 0.95, DEFAULT_GATES.support  # of select decisions that have enough similar hours
SAMPLED = 1000  # select decisions that set the radius
NEAREST = 3  # recorded patients that are shown for a level

State = Float[Array, "steps columns"]
Host = Array | np.ndarray  # an outlook is computed on the device and read on the host


class Support(eqx.Module):
    """Train hours as points, with what came next."""

    points: Float[np.ndarray, "n coordinates"]
    level: Int[np.ndarray, " n"]  # chosen
    before: Int[np.ndarray, " n"]  # in force
    patient: Int[np.ndarray, " n"]
    hour: Int[np.ndarray, " n"]  # of the patient's recorded decisions
    later: Float[np.ndarray, "n steps 3"]  # MAP, HR and pulsatility of the hour that followed
    radius: float
    scaler: Scaler
    names: tuple[str, ...] = eqx.field(static=True)  # pseudonyms


class Outlook(eqx.Module):
    """What may come under each level, held for six hours."""

    quantiles: Float[Host, "8 quantiles samples shown"]
    carried: Float[Host, "8 shown"]  # the last sample, carried forward under the level
    left: Bool[Host, "8 courses judged"]  # whether a course leaves a limit at any sample
    courses: Int[Host, " 8"]  # how many of them were computed, the first ones
    by_member: Float[Host, "members 8"]  # share of courses that leave the worst limit; NaN: one
    p_value: Float[Host, " 8"]  # of the decision, by the guardian
    within: Float[Host, "8 2"]  # variance of MAP and pulsatility in the members; NaN: not known
    between: Float[Host, "8 2"]  # variance of the members' centers; both over the first hour
    preference: Float[Host, " 8"]  # log-probabilities of the policy; NaN without one
    weighed: Weighed | None  # what a planner chooses by; None for any other policy

    @property
    def crossing(self) -> Int[np.ndarray, "8 judged"]:
        """Courses that leave each limit."""
        return np.asarray(self.left).sum(1)

    @property
    def crossing_any(self) -> Int[np.ndarray, " 8"]:
        """Courses that leave any of them."""
        return np.asarray(self.left).any(-1).sum(1)


@dataclass(frozen=True)
class Engine:
    """The models, the recorded hours, the thresholds."""

    twin: Twin
    guardian: Guardian
    support: Support
    table: str  # profile of speeds that the models were fitted on
    model: dict[str, Any]  # version and digests
    draws: int = DRAWS
    most: int = MOST  # further draws of one level, in blocks
    luck: int = 0  # seed of all draws
    gates: GateConfig = DEFAULT_GATES
    site: Limits = field(default_factory=Limits)
    first: bool = True  # the models of the run itself, not of one with fewer signals
    policy: Policy | None = None  # a learned one of the run
    method: str | None = None  # its name
    read_by_policy: tuple[int, ...] = ()  # columns

    @property
    def columns(self) -> tuple[str, ...]:
        """Signals of the recordings that the models were fitted on."""
        return self.twin.scaler.columns

    @property
    def used(self) -> tuple[int, ...]:
        """Columns that any of the models reads."""
        read = {*self.twin.scaler.present, *self.guardian.density.pairs.scaler.present}
        return tuple(sorted(read | set(self.read_by_policy)))

    @property
    def names(self) -> list[str]:
        """Signals that any of the models reads."""
        return [self.columns[i] for i in self.used]


def look(
    engine: Engine,
    state: np.ndarray,
    limits: Limits,
    unclear: Callable[[Outlook], Bool[np.ndarray, " 8"]] | None = None,
) -> Outlook:
    """The outlook of one state, on the host; levels that are `unclear` get further courses."""
    by_column = limits.bounds()
    bounds = jnp.asarray([by_column[column] for column in JUDGED], jnp.float32)
    keys = keys_of(engine.luck, engine.draws + engine.most)
    first, state_ = keys[: engine.draws], jnp.asarray(state)
    found = look_ahead(engine.twin, engine.guardian, engine.policy, state_, bounds, first)
    found = jax.tree.map(np.asarray, found)
    for begin in range(engine.draws, engine.draws + engine.most - BLOCK + 1, BLOCK):
        wanted = np.flatnonzero(unclear(found)) if unclear else []
        if not len(wanted):
            break
        more = np.zeros((len(LEVELS), BLOCK, len(JUDGED)), bool)
        for i in wanted:  # at most eight, one compiled program each
            if found.courses[i] == begin:  # its own courses, without a hole
                level = jnp.asarray(LEVELS[i])
                more[i] = follow_on(engine.twin, state_, level, bounds, keys[begin : begin + BLOCK])
        grown = found.courses + BLOCK * ((found.courses == begin) & np.isin(np.arange(8), wanted))
        found = replace(found, left=np.concatenate([found.left, more], 1), courses=grown)
    return found


def fill_absent(engine: Engine, state: np.ndarray) -> np.ndarray:
    """The state with the signals that the patient lacks as the others let expect them."""
    if not np.isnan(state[:, list(engine.used)]).any():
        return state
    return np.asarray(_fill_absent(engine.twin, engine.guardian, jnp.asarray(state)))


@eqx.filter_jit
def _fill_absent(twin: Twin, guardian: Guardian, state: State) -> State:
    return guardian.density.pairs.scaler.fill(FilledTwin(twin).fill(state))


def warm_up(engine: Engine) -> None:
    """Compile everything that an answer needs, by looking once."""
    row = np.append(np.asarray(engine.twin.scaler.mean), LEVELS[0])
    state = np.tile(row.astype(np.float32), (engine.twin.steps, 1))
    look(engine, state, Limits(), lambda found: np.asarray(found.courses) == engine.draws)
    lacking = [i for i in engine.used if i not in REQUIRED]
    state[:, lacking] = np.nan
    fill_absent(engine, state)


def shown_columns(twin: Twin) -> tuple[int, ...]:
    """Columns whose forecast is shown: the usual ones, then further ones that the twin reads."""
    names = twin.scaler.columns
    return (*SHOWN, *(i for i in twin.scaler.present if names[i] not in NAMES))


# ── the outlook ───────────────────────────────────────────────────────────────────────────────────


@eqx.filter_jit
def look_ahead(
    twin: Twin,
    guardian: Guardian,
    policy: Policy | None,
    state: State,
    bounds: Float[Array, "3 2"],
    keys: Key[Array, " draws"],
) -> Outlook:
    """Follow every level for six hours; `bounds` are the limits of MAP, HR and pulsatility."""
    levels = jnp.asarray(LEVELS)
    plans = jnp.broadcast_to(levels[:, None], (len(LEVELS), HORIZON))
    drawn = follow_plans(twin, state, plans, keys=keys)
    drawn = drawn.reshape(*drawn.shape[:2], -1, drawn.shape[-1])  # (8, draws, samples, columns)
    shown = np.array(shown_columns(twin))
    quantiles = jnp.quantile(drawn[..., shown], jnp.asarray(QUANTILES), axis=1)
    left = _leaves(drawn, bounds)
    carried = jax.vmap(lambda level: twin.carry(state, level))(levels)[:, -1]
    within, between = _spread(twin, state, levels)
    states = jnp.broadcast_to(state[None], (len(LEVELS), *state.shape))
    return Outlook(
        quantiles=jnp.moveaxis(quantiles, 0, 1),
        carried=carried[:, shown],
        left=left,
        courses=jnp.full(len(LEVELS), len(keys)),
        by_member=_by_member(twin, state, plans, bounds, keys[:OF_MEMBER]),
        p_value=guardian.p_values(states, levels),
        within=within,
        between=between,
        preference=jnp.full(len(LEVELS), jnp.nan) if policy is None else policy(state),
        weighed=None if (planner := planner_of(policy)) is None else planner.weigh(state),
    )


@eqx.filter_jit
def follow_on(
    twin: Twin,
    state: State,
    level: Int[Array, ""],
    bounds: Float[Array, "3 2"],
    keys: Key[Array, " draws"],
) -> Bool[Array, "draws judged"]:
    """Further courses of one level: whether they leave the limits."""
    drawn = follow_plans(twin, state, jnp.full((1, HORIZON), level), keys=keys)
    return _leaves(drawn.reshape(1, len(keys), -1, drawn.shape[-1]), bounds)[0]


def _leaves(
    drawn: Float[Array, "plans draws samples columns"], bounds: Float[Array, "3 2"]
) -> Bool[Array, "plans draws judged"]:
    judged = drawn[..., np.array(JUDGED)]
    low, high = bounds.T[:, None, None, None]
    return ~((judged > low) & (judged < high)).all(2)


def planner_of(policy: Policy | None) -> Planner | None:
    """The planner behind a policy, if it is one."""
    inner = policy.policy if isinstance(policy, Constrained) else policy
    return inner if isinstance(inner, Planner) else None


def members_of(twin: Twin) -> int:
    """How many models of the same records stand side by side in the twin; 1 has none to ask."""
    if isinstance(twin.network, Calibrated):
        return len(twin.network.members.walk)
    return twin.network.members if isinstance(twin.network, Ridge) else 1


def member_of(twin: Twin, number: Int[Array, ""]) -> Twin:
    """The twin by one of them alone."""
    network = twin.network
    if isinstance(network, Calibrated):
        arrays, rest = eqx.partition(network.members, eqx.is_array)
        one = eqx.combine(jax.tree.map(lambda x: x[number][None], arrays), rest)
        return replace(twin, network=replace(network, members=one))
    return twin.member(number)


def _by_member(
    twin: Twin,
    state: State,
    plans: Int[Array, "8 hours"],
    bounds: Float[Array, "3 2"],
    keys: Key[Array, " draws"],
) -> Float[Array, "members 8"]:
    """The share of courses that leave the worst limit, by each member alone with the same luck."""
    if members_of(twin) == 1:
        return jnp.full((1, len(LEVELS)), jnp.nan)

    def course(number, plan, key):
        alone = member_of(twin, number)

        def hour(now, coming):  # one body for all hours: it compiles in half the time
            later = alone(now, coming[0], key=coming[1])
            return later, later

        return jax.lax.scan(hour, state, (plan, jr.split(key, len(plan))))[1]

    def one(number):
        each = jax.vmap(jax.vmap(course, (None, None, 0)), (None, 0, None))(number, plans, keys)
        drawn = each.reshape(*each.shape[:2], -1, each.shape[-1])
        return _leaves(drawn, bounds).mean(1).max(-1)

    return jax.lax.map(one, jnp.arange(members_of(twin)))


def _spread(twin: Twin, state: State, levels: Int[Array, " 8"]):
    """Variance within and between members over the first hour, of coordinates; NaN if one model."""
    network = twin.network
    if not isinstance(network, Calibrated):
        unknown = jnp.full((len(LEVELS), 2), jnp.nan)
        return unknown, unknown
    scores = twin.read(state)
    columns = np.array([twin.scaler.present.index(i) for i in (MAP, PULSATILITY)])

    def one(level):
        coming = level_score(twin.each(level))
        far, spread = eqx.filter_vmap(lambda x: x.expect(scores, coming))(network.members)
        drawn = jnp.var(jax.vmap(lambda x: widen(x, network.width))(network.errors), axis=0)
        inside = jnp.mean(spread**2, axis=0) * drawn
        between = jnp.mean(jnp.var(far, axis=0), axis=0)
        return jnp.mean(inside, axis=0)[columns], between[columns]

    return jax.vmap(one)(levels)


def keys_of(luck: int, draws: int) -> Key[Array, " draws"]:
    """The luck of all courses: the same for every level and every state."""
    return jr.split(jr.key(luck), draws)


def disagreement(outlook: Outlook) -> Float[np.ndarray, " 8"]:
    """How far apart the members' own risks are, highest less lowest; NaN where there is one."""
    return np.ptp(np.asarray(outlook.by_member), axis=0)


# ── the support ───────────────────────────────────────────────────────────────────────────────────


def make_support(
    train: Transitions, select: Transitions, scaler: Scaler, names: tuple[str, ...]
) -> Support:
    """Index the train hours; `names` are the pseudonyms of the train cohort."""
    require_role(train, "train")
    require_role(select, "select")
    points, patient = _points(scaler, np.asarray(train.state)), np.asarray(train.patient)
    level = np.asarray(train.level)
    every = np.unique(np.linspace(0, len(select.level) - 1, SAMPLED).astype(int))
    asked = _points(scaler, np.asarray(select.state)[every])
    chosen = np.asarray(select.level)[every]
    later = np.asarray(train.next_state)[..., list(JUDGED)]
    first = np.searchsorted(patient, patient)  # rows go patient by patient
    return Support(
        points=points,
        level=level,
        before=np.round(np.asarray(train.state)[:, -1, LEVEL]).astype(int),
        patient=patient,
        hour=np.arange(len(patient)) - first,
        later=later,
        radius=_radius(points, level, asked, chosen),
        scaler=scaler,
        names=names,
    )


def distances(support: Support, state: np.ndarray) -> Float[np.ndarray, " n"]:
    """From one state to every train state, z-scores."""
    query = _points(support.scaler, np.asarray(state)[None])
    return np.linalg.norm(support.points - query, axis=1)


def count_similar(support: Support, distance: Float[np.ndarray, " n"]) -> Int[np.ndarray, " 8"]:
    """Similar train hours in which each level was chosen."""
    near = support.level[distance <= support.radius]
    return np.bincount(near, minlength=LEVELS[-1] + 1)[LEVELS[0] : LEVELS[-1] + 1]


def nearest_patients(
    support: Support, distance: Float[np.ndarray, " n"], level: int
) -> list[dict[str, Any]]:
    """The most similar hour of each of the nearest patients at this level, and what came next."""
    rows = np.flatnonzero((support.level == level) & (distance <= support.radius))
    rows = rows[np.argsort(distance[rows], kind="stable")]
    _, first = np.unique(support.patient[rows], return_index=True)
    return [
        _told(support, int(row), float(distance[row])) for row in rows[np.sort(first)[:NEAREST]]
    ]


def _told(support: Support, row: int, distance: float) -> dict[str, Any]:
    pressure, rate, pulse = support.later[row].T
    coming = {
        "map_mean": np.nanmean(pressure),
        "map_lowest": np.nanmin(pressure),
        "hr_mean": np.nanmean(rate),
        "pulsatility_lowest": np.nanmin(pulse),
    }
    return {
        "patient": support.names[support.patient[row]],
        "hour": int(support.hour[row]),
        "distance": round(distance, 2),
        "p_before": int(support.before[row]),
        "p": int(support.level[row]),
        "next_hour": {name: round(float(value), 1) for name, value in coming.items()},
    }


def _points(scaler: Scaler, states: np.ndarray) -> np.ndarray:
    """The signals of the hour and the level in force; not the choice."""
    used = list(scaler.present)
    mean, sd = np.asarray(scaler.mean)[used], np.asarray(scaler.sd)[used]
    scores = ((states[..., used] - mean) / sd).reshape(len(states), -1)
    level = (states[:, -1, LEVEL] - LEVEL_MEAN) / LEVEL_SD
    return np.concatenate([scores, level[:, None]], axis=1, dtype=np.float32)


def _radius(points, level, asked, chosen) -> float:
    """Within it, most select decisions have enough similar hours at the chosen level."""
    needed: list[float] = []
    squares = np.sum(points**2, axis=1)
    for p in np.unique(chosen):
        rows = level == p
        if rows.sum() < ENOUGH:
            needed += [np.inf] * int((chosen == p).sum())
            continue
        here = asked[chosen == p]
        gram = here @ points[rows].T
        square = np.sum(here**2, axis=1)[:, None] + squares[rows][None] - 2 * gram
        needed += list(np.sqrt(np.maximum(np.partition(square, ENOUGH - 1)[:, ENOUGH - 1], 0.0)))
    finite: Bool[np.ndarray, " n"] = np.isfinite(needed)
    if not finite.any():
        return 0.0  # too few patients: nothing has support
    return float(np.quantile(np.asarray(needed)[finite], SHARE))
