"""From a recording at 25 Hz or faster to the twelve signals of every ten minutes.

Samples are laid on a regular grid; windows of two seconds decide what is an artifact. Beats
are upward crossings, with hysteresis, of placement pressure plus motor current expressed as
pressure: the current keeps beating where an unloaded heart hardly moves the aorta. Pressures
and rate come from the beats and from valid samples. What could not be measured is NaN, never a
guess; a level is read from the speed only where it lies on a step of the profile, otherwise it
is 0.

The ventricle is read as the pump feels it: the current tells the flow, the flow tells the head,
and placement pressure minus head is the ventricle's (`pump.py`, inverted). A pump may deliver
less than its profile says, so its gain is calibrated first: while the aortic valve is open the
head is only the valve's gradient, and the flow known. All the beats of a block are folded into
one, 10 ms fine although samples lie 40 ms apart, from which the end of diastole, the relaxation
and the peak are read.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.patients.pump import BACKFLOW, PumpProfile, level_of_speed
from stepdown.patients.recording import Recording
from stepdown.signals import HIGHEST, LOWEST, SIGNALS

# Limits of the reading: judgment, held to the truth behind simulated recordings (docs/cohort.md).
SLOWEST = 24.0  # Hz; below, systole has too few samples
FASTEST = 50.0  # Hz; faster recordings are averaged down to between 50 and 100
BRIDGE = 0.12  # s; a longer gap spoils its beat
WINDOW = 2.0  # s, holds at least one beat down to 40 /min
OPEN_LINE = 235.0  # mmHg; a line open to the flush bag reads more
CURRENT_AS_PRESSURE = 0.25  # mmHg per mA, near the slope of head over current at P6
FEWEST_BEATS = 12
LEAST_VALID = 0.3  # share of a block's samples; with less, nothing is reported
BROKEN_LINE = -30.0  # mmHg; a line that reads less is not connected
SLACK, SLACK_PULSE = 40.0, 0.5  # mmHg and share of the usual pulse: further off is out of line
FLAT = 0.35  # share of the usual pulse; a window with less is damped
CROWDED = 0.5  # share of a window's samples; with fewer in range none is trusted
UPSTROKE = 0.65  # of a window's range: crossed upward by a beat, again only after 1 - UPSTROKE
INTERVALS = (0.25, 2.5)  # s between two beats: 240 to 24 /min
USUAL_INTERVALS = (0.5, 1.75)  # of the block's median: outside a beat was doubled or missed

# of the ventricle
BIN = 0.01  # s
BEFORE, AFTER = 35, 65  # bins of the folded beat around the upstroke
EJECTING = 10.0  # mmHg of pulse that a closed valve does not let through
VALVE_SHARE = 0.1  # of the pulse: gradient across the open aortic valve
USUAL_GAIN = 0.965  # where the valve never opened
GAINS = (0.7, 1.2)  # outside: not a calibration
FOOT = 0.15  # of the steepest rise: where systole begins
RISE = (15, 10)  # bins before and after the upstroke in which the steepest rise is sought
FALL = (3, 55)  # bins after the upstroke in which the steepest fall is sought
FALL_BINS = 30  # that the relaxation may take
SYSTOLE, PEAK_BINS = 30, 4  # bins after the upstroke; of these the highest flows are averaged
RELAXED = 3.0  # mmHg above the lowest pressure: end of the relaxation that is fitted
SHALLOW = 15.0  # mmHg; a smaller fall ends, as filling begins, before it shows its course
TAUS = np.arange(0.016, 0.160, 0.001)  # s
SYSTOLIC_VOLUME = 140.0  # mL


class Readings(eqx.Module):
    """What a console would have shown, block by block."""

    signals: Float[np.ndarray, "blocks signals"]  # signals.SIGNALS; NaN where not measured
    level: Int[np.ndarray, " blocks"]  # P-level held most of the block, 0 where unknown
    seen: Bool[np.ndarray, " blocks"]  # enough of the block was recorded
    quality: Float[np.ndarray, " blocks"]  # valid share of the block's samples


class _Grid(eqx.Module):
    """The recording on a regular grid, in whole windows."""

    placement: Float[np.ndarray, " n"]
    speed: Float[np.ndarray, " n"]
    current: Float[np.ndarray, " n"]
    recorded: Bool[np.ndarray, " n"]  # the pressure was; short gaps are bridged for the beats
    block: Int[np.ndarray, " n"]
    rate: float  # Hz
    size: int  # samples in a window
    blocks: int


class _Beats(eqx.Module):
    """Beats found in a recording; beat i runs from onset i to onset i + 1."""

    onset: Int[np.ndarray, " onsets"]  # first sample after the upstroke
    time: Float[np.ndarray, " onsets"]  # s, of the upstroke between samples
    whole: Bool[np.ndarray, " beats"]  # free of artifacts
    block: Int[np.ndarray, " beats"]


class _Ventricle(eqx.Module):
    """Readings of every block; NaN where they could not be made."""

    flow: Float[np.ndarray, " blocks"]  # L/min through the pump
    lvp: Float[np.ndarray, " blocks"]  # mmHg, mean
    lvedp: Float[np.ndarray, " blocks"]  # mmHg
    tau: Float[np.ndarray, " blocks"]  # ms
    ese: Float[np.ndarray, " blocks"]  # mmHg/mL, peak pressure over `SYSTOLIC_VOLUME`


def extract_signals(
    recording: Recording,
    profile: PumpProfile,
    level: Int[np.ndarray, " blocks"] | None = None,
    minutes: float = 10.0,
) -> Readings:
    """The twelve signals and the level of every `minutes`; blocks count from second 0."""
    profile = jax.tree.map(np.asarray, profile)
    grid = _lay_on_grid(recording, minutes)
    if level is not None and len(level) != grid.blocks:
        raise ValueError(
            f"expected a level for each of {grid.blocks} blocks, got {len(level)} levels."
        )
    valid = _valid(grid)
    powered = np.isfinite(grid.current)
    level, at_level = _levels(grid, profile, level)
    beats, rhythm = _find_beats(grid, valid, powered)
    mean = _block_mean(grid.placement, valid, grid)
    sbp, dbp = _extremes(grid, beats)
    inner = _read_ventricle(grid, beats, valid & powered & at_level, level, sbp - dbp, profile)
    speed = _block_mean(grid.speed, np.isfinite(grid.speed), grid)
    current = _block_mean(grid.current, powered, grid)
    columns = (mean, speed, current, inner.flow, inner.lvp, inner.lvedp)
    columns += (rhythm, sbp, dbp, sbp - dbp, inner.tau, inner.ese)
    quality = np.bincount(grid.block, valid & grid.recorded, grid.blocks) / (
        60 * minutes * grid.rate
    )
    quality = np.minimum(quality, 1.0)
    seen = quality >= LEAST_VALID
    signals = np.where(seen[:, None], np.stack(columns, axis=1), np.nan)
    return Readings(_plausible(signals), np.where(seen, level, 0), seen, quality)


def _lay_on_grid(recording: Recording, minutes: float) -> _Grid:
    second = recording.second
    if len(second) < 2 or not np.all(np.diff(second) > 0) or second[0] < 0:
        raise ValueError("expected times in seconds from 0 on, each later than the one before.")
    rate = 1 / float(np.median(np.diff(second)))
    if rate < SLOWEST:
        raise ValueError(f"expected a recording at 25 Hz or faster, got {rate:.1f} Hz.")
    merged = max(int(rate / FASTEST + 1e-6), 1)
    rate /= merged
    slot = np.floor((second - second[0]) * rate + 0.5 / merged).astype(int)
    size = round(WINDOW * rate)
    count = -(-(slot[-1] + 1) // size) * size
    longest = round(BRIDGE * rate)
    pressure = _place(recording.placement, slot, count)
    recorded = np.isfinite(pressure)
    speed, current = (_place(x, slot, count) for x in (recording.speed, recording.current))
    pressure, speed, current = (_bridge(x, longest) for x in (pressure, speed, current))
    block = ((second[0] + np.arange(count) / rate + 1e-6) / (60 * minutes)).astype(int)
    blocks = int(block[slot[-1]]) + 1
    block = np.minimum(block, blocks - 1)
    return _Grid(pressure, speed, current, recorded, block, rate, size, blocks)


def _place(values, slot, count) -> np.ndarray:
    """Mean of the known values of each slot; NaN where there are none."""
    if len(slot) == slot[-1] + 1:  # nothing missing, nothing to merge
        return np.concatenate([values, np.full(count - len(slot), np.nan)]).astype(float)
    known = np.isfinite(values)
    total = np.bincount(slot[known], values[known], count)
    with np.errstate(invalid="ignore"):
        return total / np.bincount(slot[known], minlength=count)


def _bridge(values: np.ndarray, longest: int) -> np.ndarray:
    """Join the samples on both sides of a gap of a few samples by a line."""
    known, missing = np.flatnonzero(np.isfinite(values)), np.flatnonzero(np.isnan(values))
    after = np.searchsorted(known, missing)
    inner = (after > 0) & (after < len(known))
    missing, after = missing[inner], after[inner]
    missing = missing[known[after] - known[after - 1] <= longest + 1]
    if len(missing):
        values[missing] = np.interp(missing, known, values[known])
    return values


def _valid(grid: _Grid) -> np.ndarray:
    """Samples of pressure that are no artifact: not open to flush, not out of line, not flat."""
    pressure = grid.placement
    with np.errstate(invalid="ignore"):
        valid = (pressure < OPEN_LINE) & (pressure > BROKEN_LINE)
    high, low = _window_range(np.where(valid, pressure, np.nan), grid.size)
    block = grid.block[grid.size // 2 :: grid.size]
    known = np.isfinite(high)
    usual = [_block_median(x, known, block, grid.blocks)[block] for x in (high, low, high - low)]
    slack = SLACK + SLACK_PULSE * usual[2]
    with np.errstate(invalid="ignore"):
        fine = (high < usual[0] + slack) & (low > usual[1] - slack)
        fine &= high - low > FLAT * usual[2]
    crowded = valid.reshape(-1, grid.size).mean(1) > CROWDED
    return valid & np.repeat(fine & crowded, grid.size)


def _window_range(values, size):
    """Largest and smallest known value of each window; NaN where all are missing."""
    windows = values.reshape(-1, size)
    return np.fmax.reduce(windows, axis=1), np.fmin.reduce(windows, axis=1)


def _levels(grid: _Grid, profile: PumpProfile, given):
    """Level of each block, and the samples recorded at it."""
    block = grid.block[grid.size // 2 :: grid.size]
    if given is not None:
        known = (given >= LOWEST) & (given <= HIGHEST)
        level = np.where(known, given, 0).astype(int)
        return level, level[grid.block] > 0
    speed = grid.speed.reshape(-1, grid.size)
    with np.errstate(invalid="ignore"):
        mean = np.where(np.isfinite(speed), speed, 0).sum(1) / np.isfinite(speed).sum(1)
    held = np.maximum(level_of_speed(profile, mean) - LOWEST + 1, 0)  # 0: unknown or off
    counts = np.bincount(block * 9 + held, minlength=grid.blocks * 9).reshape(-1, 9)
    turned = np.bincount(block, np.isfinite(mean), grid.blocks)
    best = counts[:, 1:].argmax(1)
    most = counts[:, 1:].max(1) > 0.5 * turned
    level = np.where(most, best + LOWEST, 0)
    at_level = (held > 0) & (held - 1 + LOWEST == level[block])
    return level, np.repeat(at_level, grid.size)


def _find_beats(grid: _Grid, valid, powered) -> tuple[_Beats, np.ndarray]:
    """Beats between two crossings without an artifact, and the heart rate of each block."""
    steady = np.repeat(powered.reshape(-1, grid.size).all(1), grid.size)
    trace = np.where(valid, grid.placement, 0.0)
    trace += np.where(steady, CURRENT_AS_PRESSURE * grid.current, 0.0)
    trace[1:-1] = 0.25 * trace[:-2] + 0.5 * trace[1:-1] + 0.25 * trace[2:]
    high, low = _window_range(np.where(valid, trace, np.nan), grid.size)
    above = np.repeat(UPSTROKE * high + (1 - UPSTROKE) * low, grid.size)
    below = np.repeat((1 - UPSTROKE) * high + UPSTROKE * low, grid.size)
    with np.errstate(invalid="ignore"):
        up, down = valid & (trace > above), valid & (trace < below)
    outside = np.flatnonzero(up | down)
    rises = up[outside]
    onset = outside[1:][rises[1:] & ~rises[:-1]]
    step = np.maximum(trace[onset] - trace[onset - 1], 1e-6)
    time = (onset - np.clip((trace[onset] - above[onset]) / step, 0, 1)) / grid.rate
    interval = np.diff(time)
    spoiled = np.concatenate([[0], np.cumsum(~valid)])
    whole = spoiled[onset[1:]] == spoiled[onset[:-1]]
    whole &= (interval > INTERVALS[0]) & (interval < INTERVALS[1])
    block = grid.block[onset[:-1]]
    usual = _block_median(interval, whole, block, grid.blocks)[block]
    doubled, missed = (share * usual for share in USUAL_INTERVALS)
    with np.errstate(invalid="ignore"):
        whole &= (interval > doubled) & (interval < missed)
    count = np.bincount(block, whole, grid.blocks)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = 60 * count / np.bincount(block, np.where(whole, interval, 0.0), grid.blocks)
    enough = count >= FEWEST_BEATS
    whole &= enough[block]
    return _Beats(onset, time, whole, block), np.where(enough, rate, np.nan)


def _extremes(grid: _Grid, beats: _Beats):
    """Medians over beats of the largest and the smallest pressure.

    Noise lifts a maximum about as much as sampling at 25 Hz misses it; what remains is
    some tenths of a mmHg, so neither is corrected.
    """
    if len(beats.onset) < 2:
        return np.full((2, grid.blocks), np.nan)
    high = np.maximum.reduceat(grid.placement, beats.onset)[:-1]
    low = np.minimum.reduceat(grid.placement, beats.onset)[:-1]
    return [_block_median(x, beats.whole, beats.block, grid.blocks) for x in (high, low)]


def _block_mean(values, use, grid: _Grid) -> np.ndarray:
    count = np.bincount(grid.block, use, grid.blocks)
    with np.errstate(invalid="ignore"):
        return np.bincount(grid.block, np.where(use, values, 0.0), grid.blocks) / count


def _block_median(values, use, block, blocks) -> np.ndarray:
    """Median of the used values of every block; NaN where there are none."""
    values, block = values[use], block[use]
    ordered = values[np.lexsort((values, block))]
    count = np.bincount(block, minlength=blocks)
    some = count > 0
    start = (np.cumsum(count) - count)[some]
    count = count[some]
    median = np.full(blocks, np.nan)
    median[some] = (ordered[start + (count - 1) // 2] + ordered[start + count // 2]) / 2
    return median


def _plausible(signals: np.ndarray) -> np.ndarray:
    """NaN for what lies outside the hard limits of a signal."""
    low, high = np.array([signal.hard for signal in SIGNALS]).T
    with np.errstate(invalid="ignore"):
        return np.where((signals >= low) & (signals <= high), signals, np.nan)


def _read_ventricle(
    grid: _Grid,
    beats: _Beats,
    valid: Bool[np.ndarray, " samples"],
    level: Int[np.ndarray, " blocks"],
    pulse: Float[np.ndarray, " blocks"],
    profile: PumpProfile,
) -> _Ventricle:
    """What placement pressure (mmHg) and current (mA) say about the ventricle.

    The elastance is a surrogate: the console knows no volume, so the peak pressure is divided
    by a usual end-systolic one. It follows contractility, not the size of the heart.
    """
    block = grid.block
    speed = np.where(level > 0, profile.speed[level - LOWEST] / profile.reference_speed, np.nan)
    idle, slope = profile.idle_current[level - LOWEST], profile.current_per_flow * speed
    shutoff = profile.shutoff_head[level - LOWEST]
    flow = np.where(valid, (grid.current - idle[block]) / slope[block], 0.0)

    folded, folded_flow = _fold(grid, beats, valid, flow)
    gain = _calibrate(folded_flow, speed, shutoff, pulse, profile)
    inner = grid.placement - _head(flow / gain[block], speed[block], shutoff[block], profile)
    head = _head(folded_flow / gain[:, None], speed[:, None], shutoff[:, None], profile)
    beat = folded - head
    slopes = np.gradient(beat, BIN, axis=1)
    slopes[:, 1:-1] = (slopes[:, :-2] + 2 * slopes[:, 1:-1] + slopes[:, 2:]) / 4
    return _Ventricle(
        flow=_block_mean(flow, valid, grid),
        lvp=_block_mean(inner, valid, grid),
        lvedp=_end_diastole(beat, slopes),
        tau=_relaxation(beat, slopes),
        ese=beat.max(axis=1) / SYSTOLIC_VOLUME,
    )


def _fold(grid: _Grid, beats: _Beats, valid, flow):
    """Pressure and flow against time from the upstroke, (blocks, BEFORE + AFTER) bins."""
    width = BEFORE + AFTER
    size, channels = grid.blocks * width, (grid.placement, flow)
    counts, totals = np.zeros(size), [np.zeros(size) for _ in channels]
    samples = np.arange(*beats.onset[[0, -1]]) if len(beats.onset) > 1 else np.zeros(0, int)
    beat = np.repeat(np.arange(len(beats.whole)), np.diff(beats.onset))
    use = beats.whole[beat] & valid[samples]
    samples, beat = samples[use], beat[use]
    for shift in (0, 1):  # time since this beat's upstroke, then time to the next one's
        place = (samples / grid.rate - beats.time[beat + shift]) / BIN + BEFORE
        place = np.floor(place).astype(int)
        inside = (place >= 0) & (place < BEFORE) if shift else (place >= BEFORE) & (place < width)
        index = beats.block[beat[inside]] * width + place[inside]
        counts += np.bincount(index, minlength=size)
        for total, channel in zip(totals, channels, strict=True):
            total += np.bincount(index, channel[samples[inside]], size)
    with np.errstate(invalid="ignore"):
        return [_bridge_bins((total / counts).reshape(-1, width)) for total in totals]


def _bridge_bins(folded: np.ndarray) -> np.ndarray:
    """Fill empty bins, as a paced rhythm in step with the samples leaves them."""
    bins = np.arange(folded.shape[1])
    for row in folded:
        known = np.isfinite(row)
        if not known.all() and known.sum() >= len(row) // 5:
            row[:] = np.interp(bins, bins[known], row[known])
    return folded


def _calibrate(flow, speed, shutoff, pulse, profile: PumpProfile) -> np.ndarray:
    """Flow of this pump as a share of its profile's, from beats that open the valve.

    Blocks without ejection take the gain of the ejecting blocks around them.
    """
    systole = np.sort(flow[:, BEFORE : BEFORE + SYSTOLE], axis=1)[:, -PEAK_BINS:].mean(axis=1)
    with np.errstate(invalid="ignore"):
        gain = systole / _flow(-VALVE_SHARE * pulse, speed, shutoff, profile)
        ejecting = (pulse > EJECTING) & (gain > GAINS[0]) & (gain < GAINS[1])
    where = np.flatnonzero(ejecting)
    if len(where) == 0:
        return np.full(len(gain), USUAL_GAIN)
    return np.interp(np.arange(len(gain)), where, gain[where])


def _flow(head, speed, shutoff, profile: PumpProfile):
    """`pump.pump_flow` below shut-off, over arrays of speeds and shut-off heads."""
    linear, quadratic = profile.linear_loss * speed, profile.quadratic_loss
    spare = shutoff - head
    return (np.sqrt(linear**2 + 4 * quadratic * spare) - linear) / (2 * quadratic)


def _head(flow, speed, shutoff, profile: PumpProfile):
    """`pump.pump_head` over arrays of speeds and shut-off heads."""
    losses = profile.linear_loss * speed * flow
    bent = np.where(flow > 0, losses + profile.quadratic_loss * flow**2, losses / BACKFLOW)
    return shutoff - bent


def _end_diastole(beat: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Pressure where the systolic rise begins: the last bins before it that hardly rise."""
    bins = np.arange(beat.shape[1])
    from_bin = BEFORE - RISE[0]
    rising = slopes[:, from_bin : BEFORE + RISE[1]]
    steepest = from_bin + rising.argmax(axis=1)
    calm = (slopes < FOOT * rising.max(axis=1)[:, None]) & (bins < steepest[:, None])
    foot = np.maximum(beat.shape[1] - 1 - calm[:, ::-1].argmax(axis=1), 1)
    rows = np.arange(len(beat))
    pressure = (beat[rows, foot] + beat[rows, foot - 1]) / 2
    return np.where(calm.any(axis=1), pressure, np.nan)


def _relaxation(beat: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Tau in ms: least squares of P = a + b exp(-t / tau), the asymptote a left free.

    From the steepest fall to `RELAXED` above the lowest pressure; forcing a = 0 would bias tau.
    A heart too weak for a fall of `SHALLOW` has no tau here.
    """
    from_bin = BEFORE + FALL[0]
    first = from_bin + slopes[:, from_bin : BEFORE + FALL[1]].argmin(axis=1)
    bins = np.arange(FALL_BINS)
    fall = beat[np.arange(len(beat))[:, None], np.minimum(first[:, None] + bins, beat.shape[1] - 1)]
    ended = fall < fall.min(axis=1)[:, None] + RELAXED
    use = (bins < ended.argmax(axis=1)[:, None]).astype(float)
    count = np.maximum(use.sum(axis=1), 1)

    def centered(x):
        return use * (x - (use * x).sum(axis=1)[:, None] / count[:, None])

    pressure = centered(fall)
    errors = []
    for tau in TAUS:
        decay = centered(np.exp(-bins * BIN / tau)[None])
        scale = (decay * pressure).sum(axis=1) / np.maximum((decay**2).sum(axis=1), 1e-9)
        errors.append(((pressure - scale[:, None] * decay) ** 2).sum(axis=1))
    best = np.argmin(errors, axis=0)
    found = (best > 0) & (best < len(TAUS) - 1) & (count >= 4)
    with np.errstate(invalid="ignore"):
        found &= fall[:, 0] - fall.min(axis=1) > SHALLOW
    return np.where(found & np.isfinite(fall).all(axis=1), 1000 * TAUS[best], np.nan)
