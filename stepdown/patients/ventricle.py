"""The left ventricle as the pump feels it: pressure, filling, relaxation, strength.

The current tells the flow, the flow tells the head, and placement pressure minus head is the
ventricle's (`pump.py`, inverted). A pump may deliver less than its profile says, so its gain is
calibrated first: while the aortic valve is open the head is only the valve's gradient, and the
flow known. All the beats of a block are folded into one, 10 ms fine although samples lie 40 ms
apart, from which the end of diastole, the relaxation and the peak are read.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from stepdown.patients.pump import BACKFLOW, PumpProfile
from stepdown.signals import LOWEST

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


class Beats(eqx.Module):
    """Beats found in a recording; beat i runs from onset i to onset i + 1."""

    onset: Int[np.ndarray, " onsets"]  # first sample after the upstroke
    time: Float[np.ndarray, " onsets"]  # s, of the upstroke between samples
    whole: Bool[np.ndarray, " beats"]  # free of artifacts
    block: Int[np.ndarray, " beats"]
    sample_block: Int[np.ndarray, " samples"]
    rate: float  # Hz


class Ventricle(eqx.Module):
    """Readings of every block; NaN where they could not be made."""

    flow: Float[np.ndarray, " blocks"]  # L/min through the pump
    lvp: Float[np.ndarray, " blocks"]  # mmHg, mean
    lvedp: Float[np.ndarray, " blocks"]  # mmHg
    tau: Float[np.ndarray, " blocks"]  # ms
    ese: Float[np.ndarray, " blocks"]  # mmHg/mL, peak pressure over `SYSTOLIC_VOLUME`


def read_ventricle(
    beats: Beats,
    channels: Float[np.ndarray, "2 samples"],
    valid: Bool[np.ndarray, " samples"],
    level: Int[np.ndarray, " blocks"],
    pulse: Float[np.ndarray, " blocks"],
    profile: PumpProfile,
) -> Ventricle:
    """What placement pressure (mmHg) and current (mA) say about the ventricle.

    The elastance is a surrogate: the console knows no volume, so the peak pressure is divided
    by a usual end-systolic one. It follows contractility, not the size of the heart.
    """
    placement, current = channels
    block, blocks = beats.sample_block, len(level)
    speed = np.where(level > 0, profile.speed[level - LOWEST] / profile.reference_speed, np.nan)
    idle, slope = profile.idle_current[level - LOWEST], profile.current_per_flow * speed
    shutoff = profile.shutoff_head[level - LOWEST]
    flow = np.where(valid, (current - idle[block]) / slope[block], 0.0)

    folded, folded_flow = _fold(beats, valid, (placement, flow), blocks)
    gain = _calibrate(folded_flow, (speed, shutoff), pulse, profile)
    pump = (speed[block], shutoff[block])
    inner = placement - _head(flow / gain[block], pump, profile)
    pump = (speed[:, None], shutoff[:, None])
    beat = folded - _head(folded_flow / gain[:, None], pump, profile)
    slopes = np.gradient(beat, BIN, axis=1)
    slopes[:, 1:-1] = (slopes[:, :-2] + 2 * slopes[:, 1:-1] + slopes[:, 2:]) / 4

    count = np.bincount(block, valid, blocks)

    def mean(values):
        with np.errstate(invalid="ignore"):
            return np.bincount(block, np.where(valid, values, 0.0), blocks) / count

    return Ventricle(
        flow=mean(flow),
        lvp=mean(inner),
        lvedp=_end_diastole(beat, slopes),
        tau=_relaxation(beat, slopes),
        ese=beat.max(axis=1) / SYSTOLIC_VOLUME,
    )


def _fold(beats: Beats, valid, channels, blocks: int):
    """Mean of each channel against time from the upstroke, (blocks, BEFORE + AFTER) bins."""
    width = BEFORE + AFTER
    counts, totals = np.zeros(blocks * width), [np.zeros(blocks * width) for _ in channels]
    samples = (
        np.arange(beats.onset[0], beats.onset[-1]) if len(beats.onset) > 1 else np.zeros(0, int)
    )
    beat = np.repeat(np.arange(len(beats.whole)), np.diff(beats.onset))
    use = beats.whole[beat] & valid[samples]
    samples, beat = samples[use], beat[use]
    for shift in (0, 1):  # time since this beat's upstroke, then time to the next one's
        place = (samples / beats.rate - beats.time[beat + shift]) / BIN + BEFORE
        place = np.floor(place).astype(int)
        inside = (place >= 0) & (place < BEFORE) if shift else (place >= BEFORE) & (place < width)
        index = beats.block[beat[inside]] * width + place[inside]
        counts += np.bincount(index, minlength=blocks * width)
        for total, channel in zip(totals, channels, strict=True):
            total += np.bincount(index, channel[samples[inside]], blocks * width)
    with np.errstate(invalid="ignore"):
        return [_bridge((total / counts).reshape(blocks, width)) for total in totals]


def _bridge(folded: np.ndarray) -> np.ndarray:
    """Fill empty bins, as a paced rhythm in step with the samples leaves them."""
    bins = np.arange(folded.shape[1])
    for row in folded:
        known = np.isfinite(row)
        if not known.all() and known.sum() >= len(row) // 5:
            row[:] = np.interp(bins, bins[known], row[known])
    return folded


def _calibrate(flow, pump, pulse, profile: PumpProfile) -> np.ndarray:
    """Flow of this pump as a share of its profile's, from beats that open the valve.

    Blocks without ejection take the gain of the ejecting blocks around them.
    """
    systole = np.sort(flow[:, BEFORE : BEFORE + SYSTOLE], axis=1)[:, -PEAK_BINS:].mean(axis=1)
    with np.errstate(invalid="ignore"):
        gain = systole / _flow(-VALVE_SHARE * pulse, pump, profile)
        ejecting = (pulse > EJECTING) & (gain > GAINS[0]) & (gain < GAINS[1])
    where = np.flatnonzero(ejecting)
    if len(where) == 0:
        return np.full(len(gain), USUAL_GAIN)
    return np.interp(np.arange(len(gain)), where, gain[where])


def _flow(head, pump, profile: PumpProfile):
    """`pump.pump_flow` below shut-off, over arrays of speeds and shut-off heads."""
    speed, shutoff = pump
    linear, quadratic = profile.linear_loss * speed, profile.quadratic_loss
    spare = shutoff - head
    return (np.sqrt(linear**2 + 4 * quadratic * spare) - linear) / (2 * quadratic)


def _head(flow, pump, profile: PumpProfile):
    """`pump.pump_head` over arrays of speeds and shut-off heads."""
    speed, shutoff = pump
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
