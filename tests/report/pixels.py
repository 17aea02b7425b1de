"""What a drawn picture shows."""

import io

import matplotlib.image
import numpy as np

from stepdown.report.figures import DPI


def pixels(png: bytes) -> np.ndarray:
    """Red, green and blue from 0 to 1."""
    return matplotlib.image.imread(io.BytesIO(png), format="png")[..., :3]


def inches(png: bytes) -> tuple[float, float]:
    """Width and height; the picture must not be empty."""
    image = pixels(png)
    assert image.std() > 0.02
    height, width = image.shape[:2]
    return width / DPI, height / DPI


def has(png: bytes, color: str) -> bool:
    """Whether a color is drawn somewhere, exactly."""
    image = np.round(255 * pixels(png)).astype(int)
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((image == wanted).all(-1).any())
