"""Ten-minute blocks from recorded samples: what is no measurement is marked, gaps stay gaps.

Nothing is bridged or invented. Values outside hard limits and flat lines become missing; a block
is the mean of its valid samples if enough of them are there (App. B), and its level is the one
held for most of it. Where the clock runs backwards or leaps, the stay goes on after an empty hour,
so that no window can span the jump. A sample that lies in no usable hour is dropped. A log says
what was left out, how many and why.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.patients.console import extract_signals
from stepdown.patients.pump import (
    SPEED_TOLERANCE,
    STANDING,
    UNKNOWN,
    PumpProfile,
    level_of_speed,
)
from stepdown.patients.recording import Recording
from stepdown.records.clock import MOST_JUMPS
from stepdown.records.flat import flat_samples
from stepdown.records.readers import RecordingError
from stepdown.records.stays import Samples
from stepdown.signals import (
    DBP,
    HIGHEST,
    KNOWN,
    LOWEST,
    NAMES,
    PULSATILITY,
    REQUIRED,
    SBP,
    SPEED,
    STEPS,
    columns_with,
)

PUMP_OFF_BLOCKS = 3  # unseen at least: fewer could be carried over between two hours

Note = Callable[[str, int | np.integer, str], None]  # what, how many, why


@dataclass(frozen=True)
class CleaningConfig:
    """What may be missing before a block or an hour is dropped."""

    minutes: float = 10.0  # of a block
    missing_share: float = 0.2  # of the samples of a block, and of the blocks of an hour
    longest_gap: float = 24.0  # h; beyond, the clock was set rather than the recording paused
    speed_tolerance: float = SPEED_TOLERANCE  # where levels are read from the speed


class Blocks(eqx.Module):
    """A stay, or a piece of it, block by block."""

    signals: Float[np.ndarray, "blocks signals"]
    level: Int[np.ndarray, " blocks"]  # 0 where unknown or off
    seen: Bool[np.ndarray, " blocks"]
    off: Bool[np.ndarray, " blocks"]  # the pump was at P0 or P1 at some time
    recorded: Bool[np.ndarray, " blocks"]  # there was any row


@dataclass(frozen=True)
class LogRow:
    """One thing that cleaning did to one stay."""

    patient: str
    what: str
    count: int
    why: str


def clean_stay(
    stay: Samples, profile: PumpProfile, config: CleaningConfig
) -> tuple[Blocks, list[LogRow]]:
    """The blocks of a stay on one grid, and what was left out."""
    log: list[LogRow] = []

    def note(what: str, count: int | np.integer, why: str) -> None:
        if count:
            log.append(LogRow(stay.patient, what, int(count), why))

    note("cells", stay.unreadable, "neither a number nor a level; left empty")
    note("rows", stay.timeless, "no time, or an impossible one; left out")
    stay = _drop_repeats(stay, note)
    read = _read_waveform if "placement" in stay.names else _read_values
    pieces = [read(piece, profile, config, note) for piece in _split_at_jumps(stay, config, note)]
    pause = _blank(STEPS, len(columns_with(stay.names)))  # between two pieces
    row = [part for piece in pieces for part in (piece, pause)][:-1] or [pause]
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *row)
    return _keep_usable_hours(_end_at_pump_stops(joined, note), config, note), log


def _blank(blocks: int, columns: int) -> Blocks:
    """Blocks in which nothing was recorded."""
    never = np.zeros(blocks, bool)
    return Blocks(np.full((blocks, columns), np.nan), np.zeros(blocks, int), never, never, never)


def _rows(stay: Samples, keep) -> Samples:
    return jax.tree.map(lambda column: column[keep], stay)


def _drop_repeats(stay: Samples, note) -> Samples:
    """One row per stamp; rows that contradict each other under one stamp all go."""
    again = np.diff(stay.second) == 0
    if not again.any():
        return stay
    content = np.column_stack([stay.level, stay.values])
    before, after = content[:-1], content[1:]
    equal = np.all((before == after) | (np.isnan(before) & np.isnan(after)), axis=1)
    stamp = np.concatenate([[0], np.cumsum(~again)])
    contradicted = np.bincount(stamp[1:], again & ~equal, stamp[-1] + 1) > 0
    first = np.concatenate([[True], ~again])
    keep = first & ~contradicted[stamp]
    note("rows", np.sum(~first & ~contradicted[stamp]), "the stamp and the values of another row")
    note("rows", np.sum(contradicted[stamp]), "other values under the stamp of another row")
    if keep.sum() < 0.5 * len(keep):
        raise RecordingError(
            f"{stay.patient}: expected a time of its own for each row, got most of them twice; "
            "export times with more digits, or give a rate instead."
        )
    return _rows(stay, keep)


def _split_at_jumps(stay: Samples, config: CleaningConfig, note) -> list[Samples]:
    """Pieces within which time moves forward without a leap."""
    step = np.diff(stay.second)
    back, leap = step < 0, step > 3600 * config.longest_gap
    if back.sum() + leap.sum() > MOST_JUMPS:
        raise RecordingError(
            f"{stay.patient}: expected rows in order of time, got {back.sum() + leap.sum():,} "
            "jumps of the clock; sort the table by patient and time."
        )
    note("jumps", back.sum(), "the clock ran backwards; an empty hour keeps both sides apart")
    note("jumps", leap.sum(), "the clock leapt ahead; an empty hour keeps both sides apart")
    cuts = [0, *(np.flatnonzero(back | leap) + 1), len(stay.second)]
    spans = [slice(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True) if b > a]
    return [_rows(stay, span) for span in spans]


def _read_waveform(
    piece: Samples, profile: PumpProfile, config: CleaningConfig, note: Note
) -> Blocks:
    """Blocks of a piece of 25 Hz or faster, through the console's extraction."""
    second = piece.second - piece.second[0]
    size = 60 * config.minutes
    # A sample or two of a last block would only make the number of blocks a matter of rounding.
    keep = second < np.floor(second[-1] / size) * size if second[-1] % size < 0.5 else second >= 0
    if keep.sum() < 2:
        note("rows", len(piece.second), "a piece of less than two samples")
        return _blank(0, len(NAMES))
    second, values, level = second[keep], piece.values[keep], piece.level[keep]
    channel = dict.fromkeys(("speed", "current"), np.full(len(second), np.nan))
    channel |= {name: values[:, i] for i, name in enumerate(piece.names)}
    block = (second / size).astype(int)
    blocks = int(block[-1]) + 1
    given = None
    if piece.has_level:
        given = _most_held(level, block, blocks, config, _samples_per_block(second, config))
    recording = Recording(second, channel["placement"], channel["speed"], channel["current"])
    try:
        readings = extract_signals(recording, profile, given, config.minutes)
    except ValueError as error:
        raise RecordingError(f"{piece.patient}: {error}") from error
    off = _in_block((level <= 1) | (channel["speed"] < STANDING), block, blocks)
    fitting = (readings.level >= LOWEST) & (readings.level <= HIGHEST)
    note("blocks", (~readings.seen).sum(), "too few valid samples in ten minutes")
    note("blocks", (readings.seen & ~fitting).sum(), "level unknown, off, or between two steps")
    level = np.where(fitting, readings.level, 0)
    recorded = np.bincount(block, minlength=blocks) > 0
    return Blocks(readings.signals, level, readings.seen & fitting, off, recorded)


def _read_values(
    piece: Samples, profile: PumpProfile, config: CleaningConfig, note: Note
) -> Blocks:
    """Blocks of a piece that holds values at any rate."""
    values = _valid_values(piece, config, note)
    level = piece.level
    if not piece.has_level:
        read = level_of_speed(profile, values[:, SPEED], config.speed_tolerance)
        level = np.where(read == UNKNOWN, np.nan, read)
    pause = _pause(piece.second, config)
    place = piece.second - piece.second[0] + pause / 2  # a stamp may come a little early
    block = (place / (60 * config.minutes)).astype(int)
    blocks, usual = int(block[-1]) + 1, _samples_per_block(piece.second, config)
    known = np.isfinite(values)
    total = [np.bincount(block[k], v[k], blocks) for v, k in zip(values.T, known.T, strict=True)]
    count = np.stack([np.bincount(block, k, blocks) for k in known.T], axis=1)
    enough = count >= np.ceil((1 - config.missing_share) * usual - 1e-9)
    signals = np.where(enough, np.stack(total, axis=1) / np.maximum(count, 1), np.nan)
    held = _most_held(level, block, blocks, config, usual)
    known_level = np.nan_to_num(level, nan=-1.0)
    inside = (np.diff(known_level) != 0) & (np.diff(block) == 0)
    changed = _in_block(inside, block[1:], blocks) & (held > 0)
    note("blocks", changed.sum(), "level changed inside, or was unknown for a while; most counts")
    recorded = np.bincount(block, minlength=blocks) > 0
    fitting = (held >= LOWEST) & (held <= HIGHEST)
    note("blocks", (~recorded).sum(), "nothing recorded")
    note("blocks", (recorded & ~fitting).sum(), "level unknown, off, or between two steps")
    off = _in_block(level <= 1, block, blocks)
    return Blocks(signals, np.where(fitting, held, 0), recorded & fitting, off, recorded)


def _valid_values(piece: Samples, config: CleaningConfig, note: Note) -> np.ndarray:
    """A column for every signal, empty where nothing valid was measured."""
    columns = columns_with(piece.names)
    values = np.full((len(piece.second), len(columns)), np.nan)
    values[:, [columns.index(name) for name in piece.names]] = piece.values
    values = _within_limits(values, columns, note)
    values = _without_flat_lines(values, piece.second, columns, _pause(piece.second, config), note)
    if "pulsatility" not in piece.names:
        values[:, PULSATILITY] = values[:, SBP] - values[:, DBP]
    return values


def _within_limits(values, columns: tuple[str, ...], note):
    """NaN for what is outside the hard limits; infinities are."""
    low, high = np.array([KNOWN[name].hard for name in columns]).T
    with np.errstate(invalid="ignore"):
        outside = ((values < low[None]) | (values > high[None])) & ~np.isnan(values)
    for i in np.flatnonzero(outside.any(0)):
        limits = f"{low[i]:g} to {high[i]:g} {KNOWN[columns[i]].unit}"
        note(f"values of {columns[i]}", outside[:, i].sum(), f"outside {limits}; left empty")
    return np.where(outside, np.nan, values)


def _without_flat_lines(values, second, columns: tuple[str, ...], interval: float, note):
    """NaN where a value stands still for longer than it can (flat.py)."""
    values = values.copy()
    for i, name in enumerate(columns):
        flat = flat_samples(name, values[:, i], second, interval)
        note(f"values of {name}", flat.sum(), "a flat line; left empty")
        values[flat, i] = np.nan
    return values


def _most_held(level, block, blocks: int, config: CleaningConfig, usual: int) -> np.ndarray:
    """The level held for most of the known samples of each block; 0 where too few are known."""
    known = np.isfinite(level)
    index = block[known] * 10 + level[known].astype(int)
    counts = np.bincount(index, minlength=10 * blocks).reshape(blocks, 10)
    total = counts.sum(1)
    enough = total >= np.ceil((1 - config.missing_share) * usual - 1e-9)
    most = 2 * counts.max(1) > total
    return np.where(enough & most, counts.argmax(1), 0)


def _pause(second, config: CleaningConfig) -> float:
    """Usual time between two samples, s."""
    step = np.diff(second)
    pause = float(np.median(step)) if len(step) else 60 * config.minutes
    if pause > 66 * config.minutes:
        raise RecordingError(
            f"expected a sample every {config.minutes:g} min or more often, "
            f"got one every {pause / 60:.1f} min; export a finer table."
        )
    return pause


def _samples_per_block(second, config: CleaningConfig) -> int:
    return max(int(60 * config.minutes / _pause(second, config) + 1e-6), 1)


def _in_block(flag, block, blocks: int) -> np.ndarray:
    return np.bincount(block, flag, blocks) > 0


def _end_at_pump_stops(blocks: Blocks, note) -> Blocks:
    """Unsee blocks at P0 or P1 and the next few, so that no window goes on across a stop."""
    spread = np.convolve(blocks.off, np.ones(PUMP_OFF_BLOCKS))[: len(blocks.off)] > 0
    note("blocks", np.sum(blocks.seen & spread), "pump at P0 or P1, or just started again")
    return replace(blocks, seen=blocks.seen & ~spread)


def _keep_usable_hours(blocks: Blocks, config: CleaningConfig, note) -> Blocks:
    """Keep blocks that lie in an hour with few enough missing ones, wherever the hour starts."""
    present = np.isfinite(blocks.signals[:, list(REQUIRED)]) & blocks.seen[:, None]
    allowed = int(config.missing_share * STEPS)
    missing = np.vstack([np.zeros((1, len(REQUIRED)), int), np.cumsum(~present, axis=0)])
    usable = np.all(missing[STEPS:] - missing[:-STEPS] <= allowed, axis=1)
    inside = np.convolve(usable, np.ones(STEPS)) > 0 if len(usable) else np.zeros(0, bool)
    keep = np.zeros(len(blocks.seen), bool)
    keep[: len(inside)] = inside
    names = ", ".join(NAMES[i] for i in REQUIRED)
    why = f"in no hour with at most {allowed} of {STEPS} samples of {names} or level missing"
    note("blocks", np.sum(blocks.seen & ~keep), why)
    seen = blocks.seen & keep
    signals = np.where(seen[:, None], blocks.signals, np.nan)
    return replace(blocks, signals=signals, level=np.where(seen, blocks.level, 0), seen=seen)
