"""An hour-by-hour trend picture in plain pixels, small enough for a training loop to keep."""

import numpy as np
from jaxtyping import Float, UInt8

from stepdown.signals import HIGHEST, HR, LEVEL, LOWEST, MAP, PULSATILITY

# Column, lowest and highest value drawn, color. From top to bottom.
BANDS = (
    (MAP, 30.0, 130.0, (200, 40, 40)),
    (HR, 30.0, 150.0, (40, 120, 60)),
    (PULSATILITY, 0.0, 80.0, (40, 80, 180)),
    (LEVEL, LOWEST - 0.5, HIGHEST + 0.5, (60, 60, 60)),
)
BAND, SAMPLE, MARGIN = 48, 6, 4  # pixels: height of a band, width of a sample, border
Picture = UInt8[np.ndarray, "height width 3"]


def draw_trend(states: Float[np.ndarray, "hours steps 13"], hours: int) -> Picture:
    """MAP, HR, pulsatility and level over an episode of up to `hours` hours."""
    steps = states.shape[1]
    width = 2 * MARGIN + SAMPLE * steps * hours
    picture = np.full((len(BANDS) * BAND, width, 3), 255, np.uint8)
    samples = states.reshape(-1, states.shape[-1])
    for number, (column, low, high, color) in enumerate(BANDS):
        top = number * BAND
        picture[top + BAND - 1] = 220  # a line between two bands
        share = np.clip((samples[:, column] - low) / (high - low), 0.0, 1.0)
        height = np.nan_to_num((BAND - 2 * MARGIN) * (1.0 - share)).astype(int) + top + MARGIN
        _draw_line(picture, height, ~np.isnan(share), color)
    for hour in range(1, hours):
        picture[:, MARGIN + SAMPLE * steps * hour - 1] = 235
    return picture


def _draw_line(picture: Picture, height, known, color) -> None:
    """Steps that are joined by uprights; nothing where nothing is known."""
    last = None
    for sample, (y, seen) in enumerate(zip(height, known, strict=True)):
        x = MARGIN + SAMPLE * sample
        if seen:
            low, high = min(y, y if last is None else last), max(y, y if last is None else last)
            picture[low : high + 2, x : x + 2] = color
            picture[y : y + 2, x : x + SAMPLE] = color
        last = y if seen else None
