"""Units at the border: declared ones are converted exactly, suspicious ones are refused (R05).

Names follow UCUM; the printed forms (mmHg, rpm) are understood too. Nothing is guessed: a column
without a unit is refused, and so is one whose values fit another known unit and not their own.
"""

import numpy as np
from jaxtyping import Bool, Float

from stepdown.records.mapping import BY_SIZE, QUANTITIES, TYPICAL, UNITS, units_of
from stepdown.signals import DBP, KNOWN, PULSATILITY, SBP

_UCUM = {"cm[H2O]": "cmH2O", "1000/min": "krpm", "10*3/min": "krpm"}  # beside our own units
_DIGITS = {"L/min": 2, "mmHg/mL": 2, "µg/kg/min": 3}  # of other units one
_FAR = np.log(2.0)  # units that differ by less explain nothing
_SAME = np.log(1.5)  # pulsatility is systolic less diastolic pressure within this factor


def unit_factor(signal: str, unit: str | None) -> float | None:
    """What a value in this unit is multiplied with to be in ours; None if it is no unit of it."""
    if unit in (KNOWN[signal].unit, KNOWN[signal].ucum):
        return 1.0
    measured, factor = UNITS.get(_UCUM.get(unit or "", unit or ""), (None, None))
    return factor if measured == QUANTITIES.get(signal) else None


def rounded(value: float | np.floating, unit: str) -> float | None:
    """A value as it is sent: with the digits of its unit, None where there is none."""
    return round(float(value), _DIGITS.get(unit, 1)) if np.isfinite(value) else None


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
