"""Ten-minute blocks from recorded samples: what is no measurement is marked, gaps stay gaps.

Nothing is bridged or invented. Values outside hard limits and flat lines become missing; a block
is the mean of its valid samples if enough of them are there (App. B). Where the clock runs
backwards or leaps, the stay goes on after an empty hour, so that no window can span the jump. A
sample that lies in no usable hour is dropped. A log says what was left out, how many and why.
"""

from dataclasses import dataclass

import numpy as np

from stepdown.patients.pump import PumpProfile
from stepdown.records.blocks import Blocks, CleaningConfig, read_values, read_waveform
from stepdown.records.limits import RecordingError
from stepdown.records.samples import Samples
from stepdown.signals import NAMES, REQUIRED, STEPS

PUMP_OFF_BLOCKS = 3  # unseen at least: fewer could be carried over between two hours
MOST_JUMPS = 20  # of a stay's clock; more means rows out of order


@dataclass(frozen=True)
class LogRow:
    """One thing that cleaning did to one stay."""

    patient: str
    what: str
    count: int
    why: str


Log = list[LogRow]


def clean_stay(
    stay: Samples, profile: PumpProfile, config: CleaningConfig, waveforms: bool = False
) -> tuple[Blocks, Log]:
    """The blocks of a stay on one grid, and what was left out."""
    log: Log = []

    def note(what: str, count: int | np.integer, why: str) -> None:
        if count:
            log.append(LogRow(stay.patient, what, int(count), why))

    note("cells", stay.unreadable, "neither a number nor a level; left empty")
    note("rows", stay.timeless, "no time, or an impossible one; left out")
    stay = _drop_repeats(stay, note)
    pieces = _split_at_jumps(stay, config, note)
    read = read_waveform if waveforms else read_values
    blocks = [read(piece, profile, config, note) for piece in pieces]
    joined = _join(blocks)
    return _keep_usable_hours(_end_at_pump_stops(joined, note), config, note), log


def _rows(stay: Samples, keep) -> Samples:
    kept = stay.second[keep], stay.level[keep], stay.values[keep]
    return Samples(*kept, stay.names, stay.patient, stay.has_level)


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


def _join(pieces: list[Blocks]) -> Blocks:
    """Pieces one after the other with an empty hour between them."""
    pause = Blocks(
        np.full((STEPS, len(NAMES)), np.nan),
        np.zeros(STEPS, int),
        np.zeros(STEPS, bool),
        np.zeros(STEPS, bool),
    )
    row = [part for piece in pieces for part in (piece, pause)][:-1] or [pause]
    return Blocks(
        signals=np.concatenate([part.signals for part in row]),
        level=np.concatenate([part.level for part in row]),
        seen=np.concatenate([part.seen for part in row]),
        off=np.concatenate([part.off for part in row]),
    )


def _end_at_pump_stops(blocks: Blocks, note) -> Blocks:
    """Unsee blocks at P0 or P1 and the next few, so that no window goes on across a stop."""
    spread = np.convolve(blocks.off, np.ones(PUMP_OFF_BLOCKS))[: len(blocks.off)] > 0
    note("blocks", np.sum(blocks.seen & spread), "pump at P0 or P1, or just started again")
    return Blocks(blocks.signals, blocks.level, blocks.seen & ~spread, blocks.off)


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
    return Blocks(signals, np.where(seen, blocks.level, 0), seen, blocks.off)
