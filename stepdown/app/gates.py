"""The gates: when nothing may be forecast, what may never be suggested, and the words for it. Pure.

R01 to R09 and R15 refuse the whole state, R10, R11 and R16 one candidate level, R12 one chart, R13
and R14 the computation. H1 to H5 are the hard gates: what may never be suggested, whatever a model
thinks. A code never changes its meaning; its sentence says the threshold that is in force.

Everything works on one bedside or on many at once (leading axes), so that the same code that
serves one patient is tried on a hundred thousand. A missing sample can hide anything, so it never
vouches for stability: with a gap in the last hour no change is suggested. Therefore taking data
away never turns a refusal into advice.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.app.limits import DEFAULT_GATES, JUDGED, LV_FROM, GateConfig, Limits
from stepdown.policies.constraint import REACH, forbidden_levels
from stepdown.records.mapping import BY_SIZE, TYPICAL, UNITS, units_of
from stepdown.signals import (
    DBP,
    FLOW,
    FURTHER,
    HIGHEST,
    HR,
    KNOWN,
    LEVELS,
    LOWEST,
    LVEDP,
    MAP,
    NAMES,
    PULSATILITY,
    REQUIRED,
    SBP,
    SPEED,
    STEPS,
)

UNKNOWN = -1  # a level that nobody told
FORBIDDING = (MAP, HR)  # outside their limits no step down; of pulsatility it is a remedy
# Of a level in an answer.
PLACES = ("acceptable", "forbidden", "unjudged", "risky", "more", "undecided")
ACCEPTABLE, RISKY, UNDECIDED = (PLACES.index(x) for x in ("acceptable", "risky", "undecided"))
# A controller holds the speed, an infusion its rate, a laboratory value stands until the next.
HELD = (NAMES[SPEED], *(signal.name for signal in FURTHER))

ODD_UP_TO = 0.0  # mmHg of LVEDP; below it the sensor is rather off than the filling pressure
NOISE = 2.0  # mmHg by which pressures that are averaged apart may cross
NO_FLOW_ABOVE = 0.5  # L/min beyond what the pump gives without any head
REVERSED = 0.5  # mmHg by which more support is forecast to give less MAP

_FAR = np.log(2.0)  # units that differ by less explain nothing
_SAME = np.log(1.5)  # pulsatility is systolic less diastolic pressure within this factor


class Bedside(eqx.Module):
    """The last hour at one bedside or at many, as measured, in our units."""

    signals: Float[np.ndarray, "*n steps signals"]  # `columns`; NaN where nothing was measured
    level: Int[np.ndarray, "*n"]  # P-level in force, UNKNOWN where nobody told
    highest: Int[np.ndarray, "*n"]  # level of the pump; 0 where the pump is unknown
    age: Float[np.ndarray, "*n"]  # min between the newest sample and now
    clock: Bool[np.ndarray, "*n"]  # the clock can be believed
    alarm: Bool[np.ndarray, "*n"]  # suction or position is reported
    undeclared: Bool[np.ndarray, "*n"]  # a channel lacks a unit that fits it
    speed_level: Int[np.ndarray, "*n"]  # level that the speed belongs to, UNKNOWN if not known
    likeness: Float[np.ndarray, "*n"]  # p-value of the likeliest level; NaN where not computed
    most_flow: Float[np.ndarray, "*n"] = eqx.field(  # L/min at the level without any head
        default_factory=lambda: np.asarray(np.inf)
    )
    minutes: float = eqx.field(static=True, default=10.0)  # between samples
    columns: tuple[str, ...] = eqx.field(static=True, default=NAMES)  # of signals.KNOWN


def state_refusals(
    bed: Bedside,
    used: tuple[int, ...],
    config: GateConfig = DEFAULT_GATES,
    declared: Float[np.ndarray, " signals"] | None = None,
) -> Bool[np.ndarray, "*n 10"]:
    """Which of R01 to R09 and R15 hold; `used` are the columns that the models read.

    Columns that no model reads are not looked at, so leaving one out changes nothing.
    """
    columns = np.array(sorted({*used, *REQUIRED}))
    empty = too_empty(bed.signals, config)
    found = [
        ~(bed.age <= config.oldest),
        empty[..., list(REQUIRED)].any(-1),
        _flat(bed, columns, config).any(-1),
        outside_hard(bed)[..., columns].any(-1),
        suspect_units(bed.signals, bed.columns, declared)[..., columns].any(-1) | bed.undeclared,
        ~bed.clock | (bed.age < 0),
        wrong_level(bed),
        bed.alarm,
    ]
    others = [i for i in columns if i not in REQUIRED]
    incomplete = empty[..., others].any(-1)
    unjudged = np.isnan(bed.likeness) & ~np.any(found, axis=0)
    found.append(incomplete | (bed.likeness < config.unlike_state) | unjudged)
    crossed = np.any(list(contradictions(bed, columns).values()), axis=0)
    found.append(crossed & ~found[4])  # a wrong unit explains it
    return np.stack([np.broadcast_to(x, bed.level.shape) for x in found], axis=-1)


def forbidding_gates(
    bed: Bedside,
    refused: Bool[np.ndarray, "*n 10"],
    limits: Limits,
    used: tuple[int, ...] = REQUIRED,
) -> dict[str, Bool[np.ndarray, "*n 8"]]:
    """By hard gate, the levels that it forbids; column i is P-(i + 2)."""
    levels = np.array(LEVELS)
    change = levels != bed.level[..., None]
    valid = (levels >= LOWEST) & (levels <= np.minimum(bed.highest, HIGHEST)[..., None])
    constraint = forbidden_levels(bed.level, outside_limits(bed.signals, limits, FORBIDDING))
    gap = has_gap(bed.signals, used)[..., None]
    return {
        "H1": ~valid,
        "H2": np.asarray(constraint.far),
        "H3": np.asarray(constraint.down),
        "H4": change & refused.any(-1, keepdims=True),
        "H5": change & gap,
    }


def place_levels(
    bed: Bedside,
    allowed: Bool[np.ndarray, "*n 8"],
    judged: Bool[np.ndarray, "*n 8"],
    risk: tuple[Float[np.ndarray, "*n 8"], Float[np.ndarray, "*n 8"]],
    config: GateConfig = DEFAULT_GATES,
    before: Int[np.ndarray, "*n 8"] | None = None,
) -> Int[np.ndarray, "*n 8"]:
    """What is the matter with each level: an index into PLACES, 0 is acceptable.

    `judged` levels have a forecast that is not refused; `risk` is the interval of the share of
    courses that cross a limit, of the limit that is crossed most. Every level has one place, the
    first that fits: a hard gate forbids it, it has no forecast, it is more support than is in force
    although that would do, or too many courses cross a limit. Where the interval holds the line it
    is undecided, unless `before` says what it was a moment ago: then it stays that. What is left is
    acceptable, and nothing else is.
    """
    levels, level = np.array(LEVELS), bed.level[..., None]
    risky = ~(risk[0] <= config.risk)  # NaN is risky
    open_ = ~risky & ~(risk[1] <= config.risk)
    if before is not None:
        risky = risky | (open_ & (before == RISKY))
        open_ = open_ & (before != RISKY) & (before != ACCEPTABLE)
    safe = allowed & judged & ~risky & ~open_
    holding = (safe & (levels == level)).any(-1, keepdims=True)
    more = holding & (levels > level)
    return np.select([~allowed, ~judged, more, risky, open_], [1, 2, 4, 3, 5], 0)


def suggest(
    acceptable: Bool[np.ndarray, "*n 8"], gap: Bool[np.ndarray, "*n"]
) -> Int[np.ndarray, "*n"]:
    """The smallest acceptable support; UNKNOWN where there is none, or a gap in the hour."""
    lowest = np.argmax(acceptable, axis=-1) + LOWEST
    return np.where(acceptable.any(-1) & ~gap, lowest, UNKNOWN)


def gate_wish(
    wish: Int[np.ndarray, "*n"], acceptable: Bool[np.ndarray, "*n 8"]
) -> Int[np.ndarray, "*n"]:
    """What is left of a policy's wish: the wish if it is acceptable, else UNKNOWN."""
    index = np.clip(wish - LOWEST, 0, len(LEVELS) - 1)
    kept = np.take_along_axis(acceptable, index[..., None], axis=-1)[..., 0]
    return np.where(kept & (wish >= LOWEST) & (wish <= HIGHEST), wish, UNKNOWN)


def candidate_refusals(
    p_value: Float[np.ndarray, "*n 8"],
    support: Int[np.ndarray, "*n 8"],
    disagreement: Float[np.ndarray, "*n 8"],
    against_pump: Bool[np.ndarray, "*n 8"],
    config: GateConfig = DEFAULT_GATES,
) -> dict[str, Bool[np.ndarray, "*n 8"]]:
    """R10 to R12 and R16 by level. R12 concerns the LV charts alone; a NaN is not known."""
    return {
        "R10": ~(p_value >= config.unlike_level) | (support < config.support),
        "R11": disagreement > config.disagreement,
        "R12": np.broadcast_to(np.array(LEVELS) < LV_FROM, p_value.shape),
        "R16": against_pump,
    }


def reversed_levels(pressure: Float[np.ndarray, " 8"], level: int) -> Bool[np.ndarray, " 8"]:
    """Levels at which more support is forecast to give less MAP than the level before.

    `pressure` is the forecast MAP by level. Counted from the level in force outward, so that of
    two levels in the wrong order the farther one is in doubt, and all beyond it.
    """
    found, held = np.zeros(len(LEVELS), bool), level - LOWEST
    for i in range(held + 1, len(LEVELS)):
        found[i] = found[i - 1] or pressure[i] < pressure[i - 1] - REVERSED
    for i in range(held - 1, -1, -1):
        found[i] = (found[i + 1] and i + 1 != held) or pressure[i] > pressure[i + 1] + REVERSED
    return found


# ── the parts ────────────────────────────────────────────────────────────────────────────────────


def inside_limits(
    signals: Float[np.ndarray, "*n steps signals"], limits: Limits
) -> Bool[np.ndarray, "*n"]:
    """Whether every sample of MAP, HR and pulsatility was measured and lay inside the limits."""
    return np.asarray(~(outside_limits(signals, limits) | has_gap(signals, JUDGED)))


def outside_limits(
    signals: Float[np.ndarray, "*n steps signals"],
    limits: Limits,
    columns: tuple[int, ...] = JUDGED,
) -> Bool[np.ndarray, "*n"]:
    """Whether any measured sample of MAP, HR or pulsatility lay outside the limits.

    A missing one may have, too: that is a gap, and says so.
    """
    found, bounds = np.zeros(signals.shape[:-2], bool), limits.bounds()
    for column in columns:
        low, high = bounds[column]
        values = signals[..., column]
        found |= ((values <= low) | (values >= high)).any(-1)  # NaN is not outside
    return np.asarray(found)


def has_gap(
    signals: Float[np.ndarray, "*n steps signals"], used: tuple[int, ...]
) -> Bool[np.ndarray, "*n"]:
    """Whether any sample of the columns in use is missing."""
    columns = sorted({*used, *REQUIRED})
    return np.asarray(np.isnan(signals[..., columns]).any((-2, -1)))


def wrong_level(bed: Bedside) -> Bool[np.ndarray, "*n"]:
    """Whether the level is none of the pump's, or not the one that the speed shows."""
    outside = (bed.level < LOWEST) | (bed.level > np.minimum(bed.highest, HIGHEST))
    return np.asarray(outside | ((bed.speed_level != UNKNOWN) & (bed.speed_level != bed.level)))


def too_empty(
    signals: Float[np.ndarray, "*n steps signals"], config: GateConfig
) -> Bool[np.ndarray, "*n signals"]:
    """Columns that lack more of the hour than a forecast can do without."""
    return np.isnan(signals).mean(-2) > config.missing


def outside_hard(bed: Bedside) -> Bool[np.ndarray, "*n signals"]:
    """Columns with a value that can be no measurement."""
    low, high = np.array([KNOWN[name].hard for name in bed.columns]).T
    return np.any((bed.signals < low) | (bed.signals > high), axis=-2)


def contradictions(
    bed: Bedside, columns: Sequence[int] | np.ndarray
) -> dict[str, Bool[np.ndarray, "*n"]]:
    """By sentence, what cannot be true at once in any sample: pressures, and flow at the level."""
    signals = bed.signals
    with np.errstate(invalid="ignore"):  # what is missing contradicts nothing
        found = {
            "mean pressure above systolic": (MAP, SBP, signals[..., MAP] - signals[..., SBP]),
            "diastolic pressure above mean": (DBP, MAP, signals[..., DBP] - signals[..., MAP]),
        }
        told: dict[str, np.ndarray] = {
            words: np.asarray(np.any(difference > NOISE, axis=-1))
            for words, (one, other, difference) in found.items()
            if {one, other} <= {int(x) for x in columns}
        }
        if FLOW in columns:
            above = signals[..., FLOW] > bed.most_flow[..., None] + NO_FLOW_ABOVE
            told["more flow than the pump can give at this level"] = np.asarray(
                np.any(above, axis=-1)
            )
    return told or {"nothing": np.zeros(bed.level.shape, bool)}


def odd_values(signals: Float[np.ndarray, "steps signals"]) -> dict[str, str]:
    """By signal, what is possible but should not be believed at sight; the newest sample."""
    newest = signals[-1, LVEDP]
    if not newest < ODD_UP_TO:
        return {}
    words = (
        f"LV end-diastolic pressure of {newest:.0f} mmHg is below {ODD_UP_TO:g} mmHg: "
        "the sensor may be off; compare it at the console."
    )
    return {NAMES[LVEDP]: words}


def _flat(bed: Bedside, columns: np.ndarray, config: GateConfig) -> np.ndarray:
    """Columns with the same value for so long; whole numbers repeat by chance, so they get longer.

    What is held by others is never asked.
    """
    values = bed.signals[..., [i for i in columns if bed.columns[i] not in HELD]]
    steps = values.shape[-2]
    if steps == 1:  # a single row neither moves nor stands still
        return np.zeros((*values.shape[:-2], values.shape[-1]), bool)
    span = min(int(np.ceil(config.flat / bed.minutes)), steps - 1)  # steps without a change
    same = values[..., 1:, :] == values[..., :-1, :]
    runs = [same[..., i : i + span, :].all(-2) for i in range(steps - span)]
    rounded = ((values == np.round(values)) | np.isnan(values)).all(-2)
    return np.where(rounded, same.all(-2), np.any(runs, axis=0))


def suspect_units(
    signals: Float[np.ndarray, "*n steps signals"],
    columns: tuple[str, ...],
    declared: Float[np.ndarray, " signals"] | None = None,
) -> Bool[np.ndarray, "*n signals"]:
    """Columns that no patient has in the declared unit, and usual ones in another known unit.

    `signals` are in our units already; `declared` are the factors they were converted with.
    """
    factors = np.ones(len(columns)) if declared is None else declared
    middle = _median(signals)
    doubt = np.zeros(middle.shape, bool)
    for index, name in enumerate(columns):
        if name not in BY_SIZE:
            continue
        low, high = TYPICAL[name]
        value = middle[..., index]
        inside = (value >= low) & (value <= high)
        for unit in units_of(name):
            ratio = UNITS[unit][1] / factors[index]
            if abs(np.log(ratio)) > _FAR:
                with np.errstate(over="ignore"):
                    other = value * ratio
                doubt[..., index] |= ~inside & (other >= low) & (other <= high)
    doubt[..., PULSATILITY] |= _odd_pulse(middle)
    return doubt


def _odd_pulse(middle: np.ndarray) -> np.ndarray:
    """Pulsatility that is kPa's factor away from the pressures that it is the difference of."""
    with np.errstate(all="ignore"):  # what is no number raises no doubt
        difference = middle[..., SBP] - middle[..., DBP]
        share = np.log(middle[..., PULSATILITY] / difference)
        off = np.abs(np.abs(share) - np.log(UNITS["kPa"][1]))
    return np.asarray(np.isfinite(share) & (difference > 0) & (off < _SAME))


def _median(signals: np.ndarray) -> np.ndarray:
    """Of the finite samples, over the hour; NaN where there is none."""
    finite = np.where(np.isfinite(signals), signals, np.nan)
    order = np.sort(finite, axis=-2)  # NaN last
    count = np.isfinite(order).sum(-2, keepdims=True)
    middle = np.take_along_axis(order, np.maximum(count - 1, 0) // 2, axis=-2)
    upper = np.take_along_axis(order, np.minimum(count // 2, order.shape[-2] - 1), axis=-2)
    return np.where(count > 0, middle / 2 + upper / 2, np.nan)[..., 0, :]


# ── the words ────────────────────────────────────────────────────────────────────────────────────

COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven")
Scope = Literal["state", "candidate", "chart", "service"]


@dataclass(frozen=True)
class Code:
    """One line of the table."""

    scope: Scope
    sentence: str  # what is the matter
    remedy: str  # what to do about it


@functools.cache
def refusal_codes(gates: GateConfig = DEFAULT_GATES) -> dict[str, Code]:
    """The table of refusals, under the thresholds of a site."""
    return {
        "R01": Code(
            "state",
            f"The newest sample is more than {gates.oldest:g} min old.",
            "Wait for new samples, or choose an earlier moment of the recording.",
        ),
        "R02": Code(
            "state",
            f"More than {100 * gates.missing:g} % of the last hour is missing in MAP, HR or "
            "pulsatility.",
            f"Check the sensors; a forecast needs {_needed_samples(gates)}.",
        ),
        "R03": Code(
            "state",
            f"A signal stands still for {gates.flat:g} min or longer.",
            "Check the sensor and the line; a stuck value is no measurement.",
        ),
        "R04": Code(
            "state",
            "A value lies outside the range in which it can be a measurement.",
            "Look at the data quality screen; leave the value empty if the device had none.",
        ),
        "R05": Code(
            "state",
            "The values do not fit their declared unit, or no unit is declared.",
            "Declare the unit that the device really writes.",
        ),
        "R06": Code(
            "state",
            "The clock jumped, or samples come from the future.",
            "Check the time and the zone of the recording.",
        ),
        "R07": Code(
            "state",
            "The pump profile is missing or unknown, or the P-level is not one of its levels.",
            "Choose the pump type and enter the P-level that is in force.",
        ),
        "R08": Code(
            "state",
            "Suction or a wrong position of the pump is reported.",
            "Resolve it at the console first; it comes before any change of support.",
        ),
        "R09": Code(
            "state",
            "This patient's state is unlike the training data.",
            "Decide without the model: it has not seen patients like this one.",
        ),
        "R10": Code(
            "candidate",
            "This P-level is unlike the training data for such states. No forecast is shown.",
            "Look at another level, or decide without the model.",
        ),
        "R11": Code(
            "candidate",
            "The members of the model disagree about this P-level. No forecast is shown.",
            "Look at another level, or decide without the model.",
        ),
        "R12": Code(
            "chart",
            f"LV metrics are not available below P-{LV_FROM}.",
            "Judge by MAP, HR, pulsatility and flow, or by echo.",
        ),
        "R13": Code(
            "service",
            "A model file failed its integrity check.",
            "Restore the run folder or make it again; nothing is forecast until then.",
        ),
        "R14": Code(
            "service",
            "The computation took too long and was given up.",
            "Try again; if it happens often, use a smaller model or a faster machine.",
        ),
        "R15": Code(
            "state",
            "Values contradict each other: they cannot all be true at once.",
            "Check the line, its zero and which column is which.",
        ),
        "R16": Code(
            "candidate",
            "More support is forecast to give less pressure here. No forecast is shown.",
            "Look at another level, or decide without the model.",
        ),
    }


def _needed_samples(gates: GateConfig) -> str:
    """How many samples of an hour have to be there, in words."""
    lost = math.floor(STEPS * gates.missing + 1e-9)
    share = f"at least {COUNTS[STEPS - lost]} of" if lost else "all"
    return f"{share} {COUNTS[STEPS]} samples"


STATE_CODES = tuple(name for name, code in refusal_codes().items() if code.scope == "state")
JUDGED_LAST = STATE_CODES.index("R09")  # it waits for the models

GATES: dict[str, str] = {
    "H1": f"Outside P-{LOWEST} to the highest level of this pump.",
    "H2": f"More than {COUNTS[REACH]} levels away from the level in force.",
    "H3": "Lower than the level in force, while MAP or HR was outside its limits in the last hour.",
    "H4": "A change, while the state is refused.",
    "H5": "A change, while a sample of the last hour is missing.",
}
LV_END = f"Below P-{LV_FROM} the console shows no LV metrics: LVEDP ends there."


def refusal(
    code: str, gates: GateConfig, detail: str = "", about: str | None = None
) -> dict[str, str | None]:
    """One refusal as the screen shows it; `about` names the signal or chart it concerns."""
    known = refusal_codes(gates)[code]
    return {
        "code": code,
        "scope": known.scope,
        "sentence": detail or known.sentence,
        "remedy": known.remedy,
        "about": about,
    }
