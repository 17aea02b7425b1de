"""Stays as transitions: what was seen for an hour, what was set, what came next (App. B).

`cut_stays` cuts an unbroken stretch of a stay into hours from its first sample on. Missing rows
longer than ten minutes are a gap, and so is a pump at P0 or P1; no window reaches across. Up to
ten minutes of an hour may be empty in a signal: models get the last value carried forward,
clinical numbers look only at what was measured. A signal that a stay never measured stays an
empty (NaN) column.

A state may hold several hours of history (`HoursConfig.history`): the hours before it in the same
unbroken stretch. Where a stretch begins later than that, its earliest hour stands for those that
are not there, so every length of history has the same rows.

The step between two rows is the cohort's. Charts have one row an hour: such a state is one row,
every missing row is a gap, MAP, heart rate and pulsatility have to be charted in the hour itself,
and any other signal holds for some hours after it was charted.

`make_transitions` gives the windows their rewards, shaped and unshaped, from what was really
measured, and says which of them end a life: the hour that a patient does not live through scores
the minimum, and so does every hour after it, so nothing may be expected behind the last row.
`add_noise` makes the noisy data set of the paper out of any transitions.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from stepdown.handover import Cohort, Transitions, require_one_hour
from stepdown.patients.cohort import batch_size, in_groups
from stepdown.problem.clinical import PAPER, ClinicalConfig, normalized_reward, shaped_reward
from stepdown.problem.scaling import Scaler
from stepdown.signals import HIGHEST, KNOWN, LOWEST, NAMES, REQUIRED, STEPS

HourLevel = Literal["mean", "mode"]
CHARTED = 4.0  # h for which a value holds where rows are an hour apart; not of a required signal


@dataclass(frozen=True)
class HoursConfig:
    """How stays become transitions; defaults are docs/definitions.md."""

    jump_weight: float = 0.0  # lambda 1 of the shaped reward
    weaning_weight: float = 0.0  # lambda 2
    level: HourLevel = "mean"  # of a recorded hour
    stride: float = 60.0  # min between two rows, or the cohort's step if that is longer
    window: float = 60.0  # min of a state; others are the twin's alternative settings
    clinical: ClinicalConfig = PAPER
    history: int = 1  # hours that a state holds

    def __post_init__(self):
        if self.history < 1:
            raise ValueError(f"history: expected at least 1 hour, got {self.history}.")
        for name, minutes in (("stride", self.stride), ("window", self.window)):
            if not minutes > 0:
                raise ValueError(f"{name}: expected minutes above 0, got {minutes:g}.")


@dataclass(frozen=True)
class NoiseConfig:
    """Noise on observations; defaults are the paper's noisy data set."""

    share: float = 0.8  # of the states that get any
    sd: float = 0.2  # in standard deviations of train patients

    def __post_init__(self):
        if not (0 <= self.share <= 1 and self.sd >= 0):
            raise ValueError(
                f"expected a share of 0 to 1 and an sd of at least 0, got {self.share}, {self.sd}."
            )


HOURLY, PAPER_NOISE = HoursConfig(), NoiseConfig()


def make_transitions(cohort: Cohort, config: HoursConfig = HOURLY) -> Transitions:
    """Every decision of every stay, patient by patient, in order of time.

    >>> train, select, test = map(sd.make_transitions, parts)
    >>> train.state.shape[1:]  # samples of an hour; the signals and the level in force
    (6, 13)
    """
    cut = cut_stays(
        cohort,
        level=config.level,
        stride=config.stride,
        window=config.window,
        history=config.history,
    )
    weights = jnp.asarray([config.jump_weight, config.weaning_weight], jnp.float32)
    rows = (cut.measured, cut.level, cut.next_measured)
    shaped, unshaped = in_groups(
        _rewards, rows, weights, config.clinical, size=batch_size(len(cut.level))
    )
    carried = _differ(cut.state, cut.measured) | _differ(cut.next_state, cut.next_measured)
    died, fatal = _deaths(cohort, cut)
    shaped = np.where(fatal, shaped - unshaped - config.clinical.reward_clip, shaped)
    unshaped = np.where(fatal, np.float32(-config.clinical.reward_clip), unshaped)
    return Transitions(
        state=jnp.asarray(np.concatenate([cut.earlier, cut.state], axis=1)),
        level=jnp.asarray(cut.level),
        levels=jnp.asarray(cut.levels),
        reward=jnp.asarray(shaped),
        unshaped=jnp.asarray(unshaped),
        next_state=jnp.asarray(cut.next_state),
        last=jnp.asarray(cut.last),
        died=jnp.asarray(died),
        filled=jnp.asarray(carried),
        patient=jnp.asarray(cut.patient),
        role=cohort.role,
        columns=cohort.columns,
    )


def _deaths(cohort: Cohort, cut: "Windows") -> tuple[np.ndarray, np.ndarray]:
    """Rows behind which no whole hour was lived, and those whose coming hour was not."""
    if cohort.died is None:
        never = np.zeros(len(cut.level), bool)
        return never, never
    seen, width = np.asarray(cohort.seen), cut.state.shape[1]
    samples = np.where(seen.any(1), seen.shape[1] - seen[:, ::-1].argmax(1), 0)
    left = samples[cut.patient] - (cut.start + 2 * width)
    died = np.asarray(cohort.died)[cut.patient]
    return died & (left < width), died & (left <= 0)


def keep_signals(hours: Transitions, names: Collection[str]) -> Transitions:
    """The same hours with these signals alone, as if nothing else had been recorded.

    What is fitted to them does without the others (`Scaler.present`); a model that was fitted with
    them fills them (filling.py).
    """
    if lacking := [NAMES[i] for i in REQUIRED if NAMES[i] not in names]:
        raise ValueError(
            f"expected {lacking[0]} among the signals, got {', '.join(names)}. "
            "It cannot be done without."
        )
    if unknown := [name for name in names if name not in hours.columns]:
        raise ValueError(
            f"expected signals out of {', '.join(hours.columns)}, got {unknown[0]!r}. Correct it."
        )
    gone = np.array([*(name not in names for name in hours.columns), False])[None, None]
    state, later = (jnp.where(gone, jnp.nan, x) for x in (hours.state, hours.next_state))
    return replace(hours, state=state, next_state=later)


def count_decisions(cohort: Cohort, config: HoursConfig = HOURLY) -> int:
    """How many transitions `make_transitions` gives."""
    cut = cut_stays(cohort, level=config.level, stride=config.stride, window=config.window)
    return len(cut.level)


def _rewards(states, levels, next_states, weights, config: ClinicalConfig):
    """Shaped and unshaped reward of every row."""

    def one(state, level, later):
        shaped = shaped_reward(
            state,
            level,
            later,
            jump_weight=weights[0],
            weaning_weight=weights[1],
            config=config,
        )
        return shaped, normalized_reward(later, config)

    return jax.vmap(one)(states, levels, next_states)


def shape_rewards(hours: Transitions, config: HoursConfig = HOURLY) -> Transitions:
    """The stored physiological reward, shaped by the weights; what a noisy state shows decides."""
    weights = jnp.asarray([config.jump_weight, config.weaning_weight], jnp.float32)
    rows = (hours.hour, hours.level, hours.next_state)
    shaped, plain = in_groups(
        _rewards, rows, weights, config.clinical, size=batch_size(len(hours.level))
    )
    return replace(hours, reward=hours.unshaped + jnp.asarray(shaped - plain))


def _differ(carried: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return np.asarray((np.isnan(measured) & ~np.isnan(carried)).any((1, 2)))


def add_noise(
    hours: Transitions, scaler: Scaler, config: NoiseConfig = PAPER_NOISE, *, key: PRNGKeyArray
) -> Transitions:
    """Blur what was seen, never the level nor the stored rewards (the paper's noisy data).

    A state gets noise as a whole or not at all. The next state of a row is the state of the row
    after it, so both get the same noise; only the end of a record draws its own.
    """
    require_one_hour(hours, "the noisy data set")
    require_order(hours)
    rows = len(hours.level)
    k_state, k_end = jr.split(key)
    state = hours.state + _noise(hours.state, scaler, config, k_state)
    ends = hours.next_state + _noise(hours.next_state, scaler, config, k_end)
    after = state[np.minimum(np.arange(rows) + 1, rows - 1)]
    next_state = jnp.where(hours.last[:, None, None], ends, after)
    return replace(hours, state=state, next_state=next_state)


def require_order(hours: Transitions) -> None:
    """Refuse rows that do not follow one another, such as shuffled or half-hourly ones."""
    goes_on = ~np.asarray(hours.last)
    follows = np.asarray(hours.next_state)[:-1][goes_on[:-1]]
    if goes_on[-1:].any() or not np.array_equal(
        np.asarray(hours.hour)[1:][goes_on[:-1]], follows, equal_nan=True
    ):
        raise ValueError(
            "expected rows one hour apart and in order, got others. "
            "Make the transitions with a stride of 60 min, and add noise before shuffling."
        )


def find_runs(hours: Transitions, length: int) -> Int[np.ndarray, " runs"]:
    """Rows from which `length` recorded hours follow one another."""
    require_order(hours)
    goes_on = ~np.asarray(hours.last)
    fits = np.ones(len(goes_on), bool)
    for ahead in range(length - 1):
        fits &= np.append(goes_on[ahead:], np.zeros(ahead, bool))
    if not fits.any():
        raise ValueError(
            f"expected {length + 1} recorded hours in a row, got fewer. Use longer stays."
        )
    return np.flatnonzero(fits)


def _noise(states, scaler: Scaler, config: NoiseConfig, key):
    """Noise in physical units for whole states; zero in the level column."""
    k_which, k_size = jr.split(key)
    hit = jr.bernoulli(k_which, config.share, (len(states), 1, 1))
    size = jnp.concatenate([config.sd * scaler.sd, jnp.zeros(1)])
    noise = jr.normal(k_size, states.shape) * size[None, None, :]
    return jnp.where(hit, noise, 0.0)


class Windows(NamedTuple):
    """Two hours in a row, many times; arrays of the host, patient by patient in order of time."""

    earlier: np.ndarray  # (n, hours of history before the last x steps, columns): for models
    state: np.ndarray  # (n, steps, columns), the last hour, carried forward: for models
    measured: np.ndarray  # the same with empty samples left empty: for clinical numbers
    level: np.ndarray  # (n,) of the coming hour
    levels: np.ndarray  # (n, steps) of its samples
    next_state: np.ndarray
    next_measured: np.ndarray
    last: np.ndarray  # (n,) no window follows in this stretch
    patient: np.ndarray  # (n,) row of the cohort
    start: np.ndarray  # (n,) sample of the stay with which the state begins


def cut_stays(
    cohort: Cohort,
    *,
    level: HourLevel = "mean",
    stride: float = 60.0,
    window: float = 60.0,
    history: int = 1,
) -> Windows:
    """Every two whole hours in a row; `stride` is the time between two windows, min.

    `window` replaces the hour by another length, min, for the twin's alternative settings.
    `history` hours end with the first of the two.
    """
    per_hour = check_cohort(cohort)
    every = _samples(max(stride, cohort.minutes), "stride", cohort)
    width = _samples(window, "window", cohort)
    if width < min(STEPS, per_hour):
        raise ValueError(
            f"window: expected at least {STEPS} samples, got {width}. Sample more often."
        )
    measured, carried, levels, ends = _fill(cohort, width, per_hour)
    allowed = np.where(_holds(cohort, width, per_hour) > width // STEPS, width, width // STEPS)
    fits = _whole_hours(measured, carried, ends, width, allowed)
    row, start = _rows(fits, ends, width, every)
    if len(row) == 0:
        raise ValueError(
            "expected stays with two whole hours in a row, got none. "
            "Record longer stays or look for gaps."
        )
    here = start[:, None] + np.arange(width)
    before, coming = levels[row[:, None], here], levels[row[:, None], here + width]
    in_force, chosen = _level(before, level), _level(coming, level)
    follows = np.pad(fits, ((0, 0), (0, 2 * width)))[row, start + 2 * width]
    earlier = [np.zeros((len(row), 0, carried.shape[-1] + 1), np.float32)]
    for begin in earlier_hours(fits, row, start, width, history):
        there = begin[:, None] + np.arange(width)
        in_hour = _level(levels[row[:, None], there], level)
        earlier.append(_with_level(carried[row[:, None], there], in_hour))
    return Windows(
        earlier=np.concatenate(earlier, axis=1),
        state=_with_level(carried[row[:, None], here], in_force),
        measured=_with_level(measured[row[:, None], here], in_force),
        level=chosen,
        levels=coming.astype(np.int32),
        next_state=_with_level(carried[row[:, None], here + width], chosen),
        next_measured=_with_level(measured[row[:, None], here + width], chosen),
        last=~follows,
        patient=row.astype(np.int32),
        start=start,
    )


def earlier_hours(
    fits: np.ndarray, row: np.ndarray, start: np.ndarray, width: int, history: int
) -> list[np.ndarray]:
    """Where the hours before each window's last one begin, the earliest first.

    They follow one another without a gap. Where the hour before is not a whole one of the same
    stretch, the last that was found stands for it and for all before it.
    """
    found, begin = [], start
    for _ in range(history - 1):
        before = begin - width
        begin = np.where((before >= 0) & fits[row, np.maximum(before, 0)], before, begin)
        found.append(begin)
    return found[::-1]


def _samples(minutes: float, name: str, cohort: Cohort) -> int:
    """How many samples a time holds."""
    number = round(minutes / cohort.minutes)
    if number < 1 or abs(number * cohort.minutes - minutes) > 1e-6:
        raise ValueError(
            f"{name}: expected a multiple of the {cohort.minutes:g} min between two samples, "
            f"got {minutes:g} min. Choose another {name}."
        )
    return number


def check_cohort(cohort: Cohort) -> int:
    """Samples per hour of a cohort in physical units; anything else is refused in words."""
    per_hour = round(60 / cohort.minutes)
    known = per_hour == 1 or per_hour >= STEPS
    if not known or abs(per_hour * cohort.minutes - 60) > 1e-6:
        raise ValueError(
            "expected samples every 10 min or a fraction of it, or one row an hour, got every "
            f"{cohort.minutes:g} min. Resample the recording."
        )
    seen, level = np.asarray(cohort.seen), np.asarray(cohort.level)
    wrong = level[seen & ((level < 0) | (level > HIGHEST))]
    if wrong.size:
        raise ValueError(
            f"expected levels P0 to P{HIGHEST}, got {wrong[0]}. Correct the level column."
        )
    check_units(np.asarray(cohort.signals)[seen], cohort.columns)
    return per_hour


def check_units(signals: np.ndarray, columns: tuple[str, ...] = NAMES) -> None:
    """Refuse infinite values and z-scores: the bulk of each signal must be plausible in its unit.

    `signals` ends in these columns; empty (NaN) samples are no matter here.
    """
    for index, signal in enumerate(KNOWN[name] for name in columns):
        values = signals[..., index]
        known = values[~np.isnan(values)]
        if np.isinf(known).any():
            raise ValueError(f"expected finite {signal.name}, got infinity. Leave it empty (NaN).")
        low, high = signal.soft
        if known.size and not low <= np.median(known) <= high:
            raise ValueError(
                f"expected {signal.name} in {signal.unit}, mostly {low:g} to {high:g}, got a "
                f"median of {np.median(known):g}. Pass physical units, not normalized values."
            )
        if index in REQUIRED and signals.size and not known.size:
            raise ValueError(f"expected {signal.name}, got none. It cannot be done without.")


def _fill(cohort: Cohort, width: int, per_hour: int):
    """The signals as measured and carried forward, the level, and where windows must end."""
    longest = width // STEPS  # ten minutes of an hour; none of an hour that is one row
    short = max(2 * width - cohort.seen.shape[1], 0)  # so that even a short stay can be asked
    seen = np.pad(np.asarray(cohort.seen), ((0, 0), (0, short)))
    level = np.pad(np.asarray(cohort.level), ((0, 0), (0, short)))
    signals = np.pad(np.asarray(cohort.signals), ((0, 0), (0, short), (0, 0)))
    on = seen & (level >= LOWEST)  # what is seen while the pump is off is no part of a stretch
    measured = np.where(on[..., None], signals, np.nan)
    level = _carry(np.where(seen, level, -1)[..., None], seen[..., None], longest)[..., 0]
    ends = (level < LOWEST) | _long_gaps(seen, longest)
    holds = _holds(cohort, width, per_hour)
    carried = _carry(measured, ~np.isnan(measured), holds, ends)
    return measured, carried, level, ends


def _holds(cohort: Cohort, width: int, per_hour: int) -> Int[np.ndarray, " signals"]:
    """For how many samples the last value of each column is carried forward."""
    holds = np.full(len(cohort.columns), width // STEPS)
    if per_hour == 1:
        holds[:] = round(CHARTED)
        holds[list(REQUIRED)] = 0
    own = [round(KNOWN[name].holds * per_hour) for name in cohort.columns]
    return np.maximum(holds, own)


def _carry(
    values: np.ndarray,
    known: np.ndarray,
    longest: int | np.ndarray,
    ends: np.ndarray | None = None,
) -> np.ndarray:
    """Repeat the last known value for at most `longest` samples, never from before an end."""
    step = np.arange(values.shape[1])[None, :, None]
    latest = np.maximum.accumulate(np.where(known, step, -1), axis=1)
    begun = -1 if ends is None else np.maximum.accumulate(np.where(ends[..., None], step, -1), 1)
    found = np.take_along_axis(values, np.maximum(latest, 0), axis=1)
    return np.where((latest > begun) & (step - latest <= longest), found, values)


def _long_gaps(seen: np.ndarray, longest: int) -> np.ndarray:
    """Unseen samples in runs of more than `longest`, or at the edges of a stay."""
    step = np.arange(seen.shape[1])[None]
    before = np.maximum.accumulate(np.where(seen, step, -np.inf), axis=1)
    after = np.minimum.accumulate(np.where(seen, step, np.inf)[:, ::-1], axis=1)[:, ::-1]
    return ~seen & (after - before > longest + 1)


def _whole_hours(measured, carried, ends, width: int, allowed: np.ndarray) -> np.ndarray:
    """Whether an hour may begin at each sample (patients, steps - width + 1).

    `allowed` is how many samples of a window may be empty, by column.
    """
    never = np.isnan(measured).all(1)  # (patients, signals): the stay lacks the signal
    never[:, list(REQUIRED)] = False
    empty = np.isnan(measured) & ~never[:, None]
    unknown = (np.isnan(carried) & ~never[:, None]).any(-1) | ends
    few = _window_sums(empty, width) <= allowed
    return few.all(-1) & (_window_sums(unknown, width) == 0)


def _window_sums(flags: np.ndarray, width: int) -> np.ndarray:
    """How many flags are set in the `width` samples from each sample on."""
    sums = np.cumsum(flags, axis=1, dtype=np.int32)
    sums = np.concatenate([np.zeros_like(sums[:, :1]), sums], axis=1)
    return sums[:, width:] - sums[:, :-width]


def _rows(fits, ends, width: int, stride: int):
    """Patient and first sample of every two hours in a row, on the grid of their stretch."""
    step = np.arange(ends.shape[1])[None]
    since = step - np.maximum.accumulate(np.where(ends, step, -1), axis=1) - 1
    pairs = fits[:, :-width] & fits[:, width:]
    return np.nonzero(pairs & (since[:, : pairs.shape[1]] % stride == 0))


def _level(levels: np.ndarray, how: str) -> np.ndarray:
    """One level per hour: the mean rounded to nearest (halves up), or the most frequent one."""
    if how == "mean":
        return np.floor(levels.mean(1) + 0.5).astype(np.int32)
    counts = (levels[:, :, None] == np.arange(HIGHEST + 1)).sum(1)
    return counts.argmax(1).astype(np.int32)  # of equals the lower


def _with_level(signals: np.ndarray, level: np.ndarray) -> np.ndarray:
    column = np.broadcast_to(level[:, None, None], (*signals.shape[:2], 1))
    return np.concatenate([signals, column], axis=-1, dtype=np.float32)
