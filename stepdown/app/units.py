"""Units at the border: declared ones are converted exactly, suspicious ones are refused (R05).

Names follow UCUM; the printed forms (mmHg, rpm) are understood too. Nothing is guessed: a column
without a unit is refused, and so is one whose values fit another known unit and not their own.
"""

import numpy as np
from jaxtyping import Bool, Float

from stepdown.records.mapping import BY_SIZE, QUANTITIES, TYPICAL, UNITS
from stepdown.signals import DBP, NAMES, PULSATILITY, SBP, SIGNALS

_UCUM = {
    "mm[Hg]": "mmHg",
    "cm[H2O]": "cmH2O",
    "mm[Hg]/mL": "mmHg/mL",
    "1000/min": "krpm",
    "10*3/min": "krpm",
}
_DIGITS = {"L/min": 2, "mmHg/mL": 2}  # of other units one
_FAR = np.log(2.0)  # units that differ by less explain nothing
_SAME = np.log(1.5)  # pulsatility is systolic less diastolic pressure within this factor


def resolve(signal: str, unit: str | None) -> str | None:
    """The known name of a unit of this signal, or None where it is unknown or measures another."""
    if unit is None:
        return None
    name = _UCUM.get(unit, unit)
    if name == "/min" and QUANTITIES[signal] == "speed":
        name = "rpm"
    known = UNITS.get(name)
    return name if known and known[0] == QUANTITIES[signal] else None


def factor(unit: str) -> float:
    """What a value in a known unit is multiplied with to be in ours."""
    return UNITS[unit][1]


def unit_names(signal: str) -> tuple[str, ...]:
    """The known units of a signal."""
    return tuple(name for name, (what, _) in UNITS.items() if what == QUANTITIES[signal])


def rounded(value: float | np.floating, unit: str) -> float | None:
    """A value as it is sent: with the digits of its unit, None where there is none."""
    return round(float(value), _DIGITS.get(unit, 1)) if np.isfinite(value) else None


def suspect_units(
    signals: Float[np.ndarray, "*n steps 12"], declared: Float[np.ndarray, " 12"] | None = None
) -> Bool[np.ndarray, "*n 12"]:
    """Columns that no patient has in the declared unit, and usual ones in another known unit.

    `signals` are in our units already; `declared` are the factors they were converted with.
    """
    factors = np.ones(len(SIGNALS)) if declared is None else declared
    middle = _median(signals)
    doubt = np.zeros(middle.shape, bool)
    for name in BY_SIZE:
        if name not in NAMES:
            continue
        index = NAMES.index(name)
        low, high = TYPICAL[name]
        value = middle[..., index]
        inside = (value >= low) & (value <= high)
        for unit in unit_names(name):
            ratio = factor(unit) / factors[index]
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
        off = np.abs(np.abs(share) - np.log(factor("kPa")))
    return np.asarray(np.isfinite(share) & (difference > 0) & (off < _SAME))


def _median(signals: np.ndarray) -> np.ndarray:
    """Of the finite samples, over the hour; NaN where there is none."""
    finite = np.where(np.isfinite(signals), signals, np.nan)
    order = np.sort(finite, axis=-2)  # NaN last
    count = np.isfinite(order).sum(-2, keepdims=True)
    middle = np.take_along_axis(order, np.maximum(count - 1, 0) // 2, axis=-2)
    upper = np.take_along_axis(order, np.minimum(count // 2, order.shape[-2] - 1), axis=-2)
    return np.where(count > 0, middle / 2 + upper / 2, np.nan)[..., 0, :]
