"""Ten-minute blocks of one piece of a stay, from values at any rate or from waveforms.

A block is the mean of its valid samples (App. B), empty if too few are left after what lies
outside hard limits or stands still was taken out; its level is the one held for most of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.patients.console import extract_signals
from stepdown.patients.pump import PumpProfile
from stepdown.patients.recording import Recording
from stepdown.records.limits import RecordingError
from stepdown.records.samples import Samples
from stepdown.signals import DBP, HIGHEST, HR, LOWEST, NAMES, PULSATILITY, SBP, SIGNALS, SPEED

STOPPED = 1000.0  # rpm; a pump that turns more slowly is off

Note = Callable[[str, int | np.integer, str], None]  # what, how many, why


@dataclass(frozen=True)
class CleaningConfig:
    """What may be missing before a block or an hour is dropped."""

    minutes: float = 10.0  # of a block
    missing_share: float = 0.2  # of the samples of a block, and of the blocks of an hour
    flat_minutes: float = 30.0  # of the same value; a beating heart does not do that
    longest_gap: float = 24.0  # h; beyond, the clock was set rather than the recording paused
    speed_tolerance: float = 0.02  # of a profile's step, where levels are read from the speed


class Blocks(eqx.Module):
    """A stay, or a piece of it, block by block."""

    signals: Float[np.ndarray, "blocks 12"]
    level: Int[np.ndarray, " blocks"]  # 0 where unknown or off
    seen: Bool[np.ndarray, " blocks"]
    off: Bool[np.ndarray, " blocks"]  # the pump was at P0 or P1 at some time


def read_waveform(
    piece: Samples, profile: PumpProfile, config: CleaningConfig, note: Note
) -> Blocks:
    """Blocks of a piece of 25 Hz or faster, through the console's extraction."""
    second = piece.second - piece.second[0]
    size = 60 * config.minutes
    # A sample or two of a last block would only make the number of blocks a matter of rounding.
    keep = second < np.floor(second[-1] / size) * size if second[-1] % size < 0.5 else second >= 0
    if keep.sum() < 2:
        return _nothing(piece, note)
    second, values, level = second[keep], piece.values[keep], piece.level[keep]
    channel = {name: values[:, i] for i, name in enumerate(piece.names)}
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
    off = _in_block((level <= 1) | (channel["speed"] < STOPPED), block, blocks)
    fitting = (readings.level >= LOWEST) & (readings.level <= HIGHEST)
    note("blocks", int(np.sum(~readings.seen)), "too few valid samples in ten minutes")
    note(
        "blocks", int(np.sum(readings.seen & ~fitting)), "level unknown, off, or between two steps"
    )
    level = np.where(fitting, readings.level, 0)
    return Blocks(readings.signals, level, readings.seen & fitting, off)


def _nothing(piece: Samples, note) -> Blocks:
    note("rows", len(piece.second), "a piece of less than two samples")
    empty = np.zeros(0, bool)
    return Blocks(np.zeros((0, len(NAMES))), np.zeros(0, int), empty, empty)


def read_values(piece: Samples, profile: PumpProfile, config: CleaningConfig, note: Note) -> Blocks:
    """Blocks of a piece that holds values at any rate."""
    values = np.full((len(piece.second), len(NAMES)), np.nan)
    values[:, [NAMES.index(name) for name in piece.names]] = piece.values
    values = _within_limits(values, note)
    level = piece.level
    if not piece.has_level:
        level = _levels_from_speed(values[:, SPEED], profile, config)
    values = _without_flat_lines(values, piece.second, config, note)
    if "pulsatility" not in piece.names:
        values[:, PULSATILITY] = values[:, SBP] - values[:, DBP]
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
    note("blocks", int(np.sum(~recorded)), "nothing recorded")
    note("blocks", int(np.sum(recorded & ~fitting)), "level unknown, off, or between two steps")
    off = _in_block(level <= 1, block, blocks)
    return Blocks(signals, np.where(fitting, held, 0), recorded & fitting, off)


def _within_limits(values, note):
    """NaN for what is outside the hard limits; infinities are."""
    low, high = np.array([signal.hard for signal in SIGNALS]).T
    with np.errstate(invalid="ignore"):
        outside = ((values < low[None]) | (values > high[None])) & ~np.isnan(values)
    for i in np.flatnonzero(outside.any(0)):
        limits = f"{low[i]:g} to {high[i]:g} {SIGNALS[i].unit}"
        note(f"values of {NAMES[i]}", outside[:, i].sum(), f"outside {limits}; left empty")
    return np.where(outside, np.nan, values)


def _without_flat_lines(values, second, config: CleaningConfig, note):
    """NaN where a value stands still; speed is set, and a paced heart keeps its rate."""
    values = values.copy()
    for i in [i for i in range(len(NAMES)) if i not in (SPEED, HR)]:
        line = values[:, i]
        start = np.concatenate([[True], line[1:] != line[:-1]])  # NaN differs from NaN
        run = np.cumsum(start) - 1
        first = np.flatnonzero(start)
        last = np.append(first[1:], len(line)) - 1
        flat = second[last] - second[first] >= 60 * config.flat_minutes
        if flat.any():
            note(f"values of {NAMES[i]}", flat[run].sum(), "a flat line; left empty")
            values[flat[run], i] = np.nan
    return values


def _levels_from_speed(speed, profile: PumpProfile, config: CleaningConfig) -> np.ndarray:
    """The level whose step the speed lies on, 0 if the pump stands, otherwise unknown."""
    gap = np.abs(speed[:, None] / np.asarray(profile.speed, float)[None] - 1)
    step = np.argmin(np.where(np.isnan(gap), np.inf, gap), axis=1)
    near = np.take_along_axis(gap, step[:, None], 1)[:, 0] <= config.speed_tolerance
    level = np.where(near, step + float(LOWEST), np.nan)
    return np.where(speed < STOPPED, 0.0, level)


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
