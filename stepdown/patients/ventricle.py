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
RELAXED = 3.0  # mmHg above the lowest pressure: end of the relaxation that is fitted
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
    blocks: int


def read_ventricle(
    beats: Beats,
    samples: tuple[np.ndarray, np.ndarray, np.ndarray],
    level: Int[np.ndarray, " blocks"],
    aortic: tuple[np.ndarray, np.ndarray],
    profile: PumpProfile,
) -> tuple[np.ndarray, ...]:
    """Flow (L/min), mean and end-diastolic pressure (mmHg), tau (ms), elastance (mmHg/mL).

    `samples` are placement pressure, current and their validity; `aortic` is mean pressure
    and pulse of each block. The elastance is a surrogate: the console knows no volume, so the
    peak pressure is divided by `SYSTOLIC_VOLUME`. It follows contractility and not size.
    """
    placement, current, valid = samples
    block, (mean, pulse) = beats.sample_block, aortic
    speed = np.where(level > 0, profile.speed[level - LOWEST] / profile.reference_speed, np.nan)
    idle = profile.idle_current[level - LOWEST]
    slope = profile.current_per_flow * speed
    flow = np.where(valid, (current - idle[block]) / slope[block], 0.0)
    count = np.bincount(block, valid, beats.blocks)
    with np.errstate(invalid="ignore"):
        mean_flow = np.bincount(block, flow, beats.blocks) / count
    mean_flow[np.isnan(speed)] = np.nan

    gains = profile.flow_gain[level - LOWEST]
    folded, folded_flow = _fold(beats, valid, (placement, flow))
    gain = gains * _calibrate(folded_flow / gains[:, None], speed, pulse, profile)
    head = pump_heads(flow / gain[block], speed[block], profile)
    with np.errstate(invalid="ignore"):
        mean_head = np.bincount(block, np.where(valid, head, 0.0), beats.blocks) / count
    inner = folded - pump_heads(folded_flow / gain[:, None], speed[:, None], profile)
    slopes = _smooth(np.gradient(inner, BIN, axis=1))
    filled = _end_diastole(inner, slopes)
    peak = np.max(inner, axis=1)
    return mean_flow, mean - mean_head, filled, _relaxation(inner, slopes), peak / SYSTOLIC_VOLUME
